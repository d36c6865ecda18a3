/* infer/tokenize.h -- the tokens of a text by the tokenizer of [data], on standard output. */
#pragma once

#include "base/log.h"
#include "config/config.h"

typedef struct ddp_tokenize_request {
    const char *file;             /* NULL: standard input */
    bool print_ids, print_pieces; /* else the number of tokens */
} ddp_tokenize_request;

/* Returns the exit code, after a line where it is not 0. */
int ddp_tokenize(const ddp_tokenize_request *q, ddp_config *config, ddp_log *log);
