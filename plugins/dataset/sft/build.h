/* plugins/dataset/sft/build.h -- all samples of the files, in order, into an entry of the cache. Of the rows as many
 * are in memory as are packed at once. */
#pragma once

#include "common/entry.h"
#include "config.h"
#include "counts.h"
#include "sample.h"

typedef struct build {
    const sft_config *config;
    const row_format *format;
    template *template;
    const char *const *paths;
    size_t count;
    tokens_counts counts; /* what build_run has found */
    char first_bad[TOKENS_WHY];
} build;

/* Writes the tokens and the index. DDP_ERR_DATA with the place of a bad row, unless those are left out. */
ddp_status build_run(build *b, cache_entry *to, ddp_err *err);
