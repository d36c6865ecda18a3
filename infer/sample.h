/* infer/sample.h -- chooses a token by its logits, as transformers' generate does: temperature, then top-k, then top-p,
 * then a draw by softmax. */
#pragma once

#include "base/base.h"

typedef struct ddp_sampling {
    double temperature; /* 0: always the most likely one */
    int64_t top_k;      /* of so many likeliest ones; 0: of all */
    double top_p;       /* of the fewest likeliest ones whose probabilities sum up to it; 0 or 1: of all */
    uint64_t seed;
} ddp_sampling;

/* One of `count` by the softmax of logits / temperature, `uniform` in 0 .. 1 deciding; of equal logits the first
 * comes first. `order`: space for 2 x `count` indices, used with top_k and top_p alone. */
int64_t infer_sample(const ddp_sampling *how, const float *logits, int64_t count, double uniform, int64_t *order);
