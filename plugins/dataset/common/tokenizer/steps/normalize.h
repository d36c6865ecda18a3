/* plugins/dataset/common/tokenizer/steps/normalize.h -- the normalizers of a tokenizer.json: what is done to a text
 * before it is cut into words. */
#pragma once

#include "common/tokenizer/steps/steps.h"

typedef struct normalize_scratch {
    bytes text[2];
    bytes characters; /* of utf8proc, 4 bytes each */
    pattern_search search;
} normalize_scratch;

ddp_status normalize_read(const char *where, const json_t *j, steps *out, ddp_err *err);
/* *out is the text itself or lies in the scratch, until its next use. Valid UTF-8 both. */
ddp_status normalize_run(const steps *n, normalize_scratch *s, const uint8_t *text, size_t size, const uint8_t **out,
                         size_t *out_size, ddp_err *err);
void normalize_scratch_free(normalize_scratch *s);
