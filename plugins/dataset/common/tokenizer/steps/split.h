/* plugins/dataset/common/tokenizer/steps/split.h -- the pre-tokenizers of a tokenizer.json: cuts a text into words. */
#pragma once

#include "common/tokenizer/steps/steps.h"

typedef struct span {
    uint32_t begin, size;
    uint32_t first; /* 1: it begins where the whole text does */
} span;

typedef struct spans {
    span *all;
    size_t count, capacity;
} spans;

typedef struct split_scratch {
    spans lists[2];
    bytes text[2];
    pattern_search search;
} split_scratch;

/* *byte_level: the last step says that the words are bytes in GPT-2's alphabet; they are left as bytes here. */
ddp_status split_read(const char *where, const json_t *j, steps *out, bool *byte_level, ddp_err *err);
/* Can the text be cut after a line's end between two other characters, and the parts be split apart? */
bool split_is_local(const steps *p);
/* The words of *text, in order, none empty: spans of what *text is afterwards, itself or in the scratch. They live
 * until the next use of the scratch. */
ddp_status split_run(const steps *p, split_scratch *s, const uint8_t **text, size_t size, bool first, const spans **out,
                     ddp_err *err);
void split_scratch_free(split_scratch *s);
