/* plugins/dataset/common/tokenizer/steps/decode.h -- the decoders of a tokenizer.json: texts of tokens to one text. */
#pragma once

#include "common/tokenizer/steps/steps.h"

/* Texts one after the other: number i is text[i == 0 ? 0 : ends[i - 1]] .. ends[i]. */
typedef struct decode_list {
    bytes text;
    numbers ends;
} decode_list;

ddp_status decode_read(const char *where, const json_t *j, steps *out, ddp_err *err);
ddp_status decode_list_add(decode_list *l, const void *text, size_t size, ddp_err *err);
/* Adds the text; the list is changed. Without a decoder there is a space between two tokens. */
ddp_status decode_run(const steps *d, decode_list *l, bytes *out, ddp_err *err);
void decode_list_free(decode_list *l);
