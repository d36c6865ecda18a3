/* train/head/rows.h -- the rows of all ranks' samples before the divided output layer: what the ranks tell each other
 * of them, and what follows from it. All of it is collective but for set, and combine. */
#pragma once

#include "train/head/head.h"

typedef struct head_result {
    double loss;           /* sum over this rank's rows that count */
    double counted, right; /* how many; whose label has the first largest logit */
} head_result;

/* This rank's rows; the features are copied. DDP_ERR_DATA: a label that is no class. */
ddp_status head_rows_set(ddp_trainer *t, const float *features, const int64_t *label, int64_t samples, ddp_err *err);
/* Then those of all ranks are here. */
ddp_status head_rows_gather(ddp_trainer *t, ddp_err *err);
/* Logits of the own classes, and what all ranks say of theirs. */
ddp_status head_rows_parts(ddp_trainer *t, ddp_err *err);
/* The terms of every row, for a loss that is a mean as `mean` says. */
void head_rows_combine(const ddp_trainer *t, const ddp_loss_mean *mean, head_result *own);
/* Gradients of the layer, and of the features of this rank's rows: *out, valid until the next call. */
ddp_status head_rows_backward(ddp_trainer *t, bool adds, float **out, ddp_err *err);
/* What a batch of so many samples adds to a sum of losses. */
static inline double head_loss(const head_result *r, const ddp_loss_mean *mean, int64_t samples)
{
    return mean->by_token ? r->loss : r->loss / r->counted * (double)samples;
}
