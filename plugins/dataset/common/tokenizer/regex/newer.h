/* plugins/dataset/common/tokenizer/regex/newer.h -- characters of Unicode 15 and 16, which Hugging Face's Oniguruma
 * knows and that of Debian 12 does not: it is given them. With an Oniguruma that has them nothing changes. */
#pragma once

#include "common/tokenizer/buffer.h"
#include <stdbool.h>

/* The next range of newer characters that have a property ("L", "Lu", "word", "digit"), from row *at of the table on.
 * false: there is none. */
bool newer_range(const char *property, size_t size, size_t *at, uint32_t *first, uint32_t *last);
/* Adds a regular expression whose properties have the newer characters. */
ddp_status newer_regex(const char *text, size_t size, bytes *out, ddp_err *err);
