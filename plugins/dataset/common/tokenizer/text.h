/* plugins/dataset/common/tokenizer/text.h -- the slots `encode` and `decode` of dataset.h, without special tokens
 * around a text. */
#pragma once

#include "common/tokenizer/tokenizer.h"

/* t: NULL where there is none; `are_bytes`: then tokens are bytes, else there is no text. */
ddp_status text_encode(const tokenizer *t, bool are_bytes, const char *text, size_t size, int64_t *ids, size_t capacity,
                       size_t *count, ddp_err *err);
ddp_status text_decode(const tokenizer *t, bool are_bytes, const int64_t *ids, size_t count, char *text,
                       size_t capacity, size_t *size, ddp_err *err);
