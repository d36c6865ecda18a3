/* data/mix.h -- mixup and cutmix of a batch, as torchvision.transforms.v2 has MixUp and CutMix: the
 * partner of a sample is the one before it in the batch, of the first one the last.
 *
 * What is drawn follows from the seed, the epoch and the index of the batch's first sample alone. */
#pragma once

#include "data/view.h"

typedef struct mix_plan {
    double mixup, cutmix; /* alpha of the Beta distribution; 0: off. Both: each batch one of them, evenly */
    uint64_t seed;
} mix_plan;

/* Of one batch: a sample becomes lambda of itself and 1 - lambda of its partner; or keeps all but a box of it. */
typedef struct mix {
    bool cuts;
    float lambda, rest; /* rest: 1 - lambda, rounded from double as torch has it */
    view_size from, box;
} mix;

static inline bool mix_is_on(const mix_plan *p) { return p->mixup > 0 || p->cutmix > 0; }
/* " -> mixup 0.2", in the words of --check. */
void mix_describe(const mix_plan *p, ddp_text *out);
mix mix_draw(const mix_plan *p, uint64_t index, uint64_t epoch, view_size image);
/* CutMix's box around (y, x) for a lambda that was drawn, and the lambda that its area makes of it. */
mix mix_box(double lambda, int64_t y, int64_t x, view_size image);
/* From Beta(alpha, alpha), as a float; `index` as of mix_draw. */
double mix_beta(double alpha, uint64_t seed, uint64_t index, uint64_t epoch);
/* x: (count, channels, h, w), in place; spare: (channels, h, w). */
void mix_images(const mix *m, float *x, int64_t count, int64_t channels, view_size image, float *spare);
/* other: (count), the partners' labels; lambda: (count). */
void mix_labels(const mix *m, const int64_t *label, int64_t count, int64_t *other, float *lambda);
