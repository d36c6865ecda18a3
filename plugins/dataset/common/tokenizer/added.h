/* plugins/dataset/common/tokenizer/added.h -- tokens that are looked for in a text before it is cut into words: special
 * ones, and those that were added to a vocabulary. */
#pragma once

#include "common/tokenizer/buffer.h"
#include <stdbool.h>

typedef struct added_token {
    bytes content; /* what is looked for */
    uint32_t id, order;
    bool single_word, lstrip, rstrip, special;
} added_token;

/* Tokens that are looked for together. */
typedef struct added {
    added_token *all;
    size_t count, capacity;
    uint32_t first[257]; /* where those of a first byte begin, after added_sort */
} added;

/* What the next token, or the text before it, is. */
typedef struct added_scan {
    const uint8_t *text;
    size_t size, from; /* from: where the next part begins */
    size_t look;       /* where the next token is looked for */
    bool as_text;      /* special tokens are text like any other */
    int64_t id;        /* of a token that was found, else -1 */
    size_t begin, end; /* the text before it, where not empty */
} added_scan;

/* Takes the content over. */
ddp_status added_add(added *a, added_token token, ddp_err *err);
void added_sort(added *a);
void added_free(added *a);
/* Leftmost, of these the longest; false: that was the last part. */
bool added_next(const added *a, added_scan *s);
