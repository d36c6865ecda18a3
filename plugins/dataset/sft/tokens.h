/* plugins/dataset/sft/tokens.h -- the file of a dataset's samples: made once of its files, and kept, as common/entry.h
 * has it.
 *
 * A header of TOKENS_HEADER bytes; the tokens of all samples, uint32 as sample.h has them; then where each sample
 * begins, in tokens, uint64, and one more for the end. Little-endian. */
#pragma once

#include "common/file.h"
#include "config.h"
#include "counts.h"
#include "template.h"

enum { TOKENS_HEADER = 1024 };

typedef struct tokens_file {
    data_file file;
    tokens_counts counts;
    char first_bad[TOKENS_WHY]; /* where and why the first bad row is bad */
} tokens_file;

/* Finds or makes it. `paths`: of all files, in order. */
ddp_status tokens_open(const sft_config *c, const row_format *format, template *t, const char *const *paths,
                       size_t count, tokens_file *out, ddp_err *err);
/* Where sample `index` begins, in tokens, and how many it has. Any number of threads at once. */
ddp_status tokens_find(const tokens_file *f, uint64_t index, uint64_t *begin, uint64_t *count, ddp_err *err);
