/* infer/export/gguf_vocabulary.h -- the tokenizer of a model, as llama.cpp has it in the file. Private to export/. */
#pragma once

#include "infer/export/gguf_file.h"
#include <jansson.h>

/* llama.cpp's and SentencePiece's numbers of what a token is */
enum { TOKEN_NORMAL = 1, TOKEN_UNKNOWN, TOKEN_CONTROL, TOKEN_USER, TOKEN_UNUSED, TOKEN_BYTE };

typedef struct gguf_token {
    const char *text; /* NULL: none has this number */
    size_t size;
    float score;
    int32_t type;
} gguf_token;

/* All zero but for count and numbers of -1. What texts point to lives in the members behind them. */
typedef struct gguf_words {
    gguf_token *all; /* (count), by number */
    int64_t count;
    int64_t bos, eos, unknown, padding; /* -1: none */
    int add_bos, add_eos, add_space;    /* 0, 1; -1: the file does not say */
    const char *model, *pre;            /* tokenizer.ggml.model and .pre */
    json_t *merges;                     /* borrowed; NULL: none */
    json_t *json, *config;
    char *data;
    ddp_pool pool;
} gguf_words;

/* A text of the pool with this token; DDP_ERR_DATA: no such number, or the model lacks the row for it. */
ddp_status gguf_word_put(gguf_words *w, int64_t number, const char *text, size_t size, float score, int32_t type,
                         ddp_err *err);
/* tokenizer.model of SentencePiece, in w->data. */
ddp_status gguf_words_pieces(gguf_words *w, size_t size, ddp_err *err);
/* tokenizer.json in w->json. */
ddp_status gguf_words_json(gguf_words *w, ddp_err *err);

/* Adds the pairs tokenizer.ggml.* of a folder, or of one of its files: tokenizer.model, tokenizer.json, vocab.json
 * with merges.txt, and tokenizer_config.json. NULL: none, and the file says so. `count` is the rows of the token
 * embedding. DDP_ERR_DATA, DDP_ERR_UNSUPPORTED: one line that names the file. */
ddp_status gguf_vocabulary(const char *path, int64_t count, gguf_file *f, ddp_err *err);
