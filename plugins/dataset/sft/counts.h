/* plugins/dataset/sft/counts.h -- what was found while the samples were made. */
#pragma once

#include <stdint.h>

enum { TOKENS_WHY = 400 };

/* Of the header of the file of samples, in this order. */
typedef struct tokens_counts {
    uint64_t version, key, samples, tokens, trained, rows, bad, truncated;
} tokens_counts;
