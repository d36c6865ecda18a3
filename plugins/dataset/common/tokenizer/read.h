/* plugins/dataset/common/tokenizer/read.h -- the members of a tokenizer, and how they come from its files. */
#pragma once

#include "common/tokenizer/added.h"
#include "common/tokenizer/bpe.h"
#include "common/tokenizer/pieces.h"
#include "common/tokenizer/steps/steps.h"
#include "common/tokenizer/tokenizer.h"

struct tokenizer {
    char *path;
    bpe model;
    vocabulary extra;        /* added tokens that the model does not have */
    numbers special;         /* ids */
    added plain, normalized; /* looked for in the text as it is, and in what the normalizers make of it */
    steps normalizers, splits, decoders;
    bool splits_bytes;
    numbers before, after; /* what the template adds */
    pieces pieces;         /* where it has a library, nothing above is used */
    int64_t bos, eos, pad;
    uint64_t hash;
};

/* Bytes of a file, with a NUL after them; *found = false where there is no such file and the caller can do without. */
ddp_status read_file(const char *path, bool *found, bytes *out, ddp_err *err);
ddp_status read_json(tokenizer *t, const char *path, const bytes *text, ddp_err *err);
ddp_status read_gpt2(tokenizer *t, const char *path, const bytes *vocabulary_text, const bytes *merges, ddp_err *err);
/* bos_token, eos_token and pad_token of tokenizer_config.json */
ddp_status read_names(tokenizer *t, const char *path, const bytes *text, ddp_err *err);
/* For those above: the tree of a JSON text */
ddp_status read_tree(const char *where, const bytes *text, json_t **out, ddp_err *err);
ddp_status read_model(tokenizer *t, const char *where, const json_t *j, ddp_err *err);
ddp_status read_added(tokenizer *t, const char *where, const json_t *list, ddp_err *err);
ddp_status read_template(tokenizer *t, const char *where, const json_t *j, ddp_err *err);
