/* control/rank0/agree.h -- compares what two ranks must have equal. */
#pragma once

#include "base/base.h"

/* Lines "key = value\twhere\n" of two ranks. Returns how many keys differ (a missing one does); the first, in the
 * order of `a`, is described in `text`. Where they were set may differ. */
size_t rank0_agree_compare(const char *a, int32_t rank_a, const char *b, int32_t rank_b, char *text, size_t capacity);
/* The same of the keys that `b` has alone. */
size_t rank0_agree_compare_some(const char *a, int32_t rank_a, const char *b, int32_t rank_b, char *text,
                                size_t capacity);
