/* train/measure/noise.h -- [train] noise_scale: the gradient noise scale tr(S) / |G|^2 of McCandlish et al. 2018,
 * appendix A.1, about the global batch beyond which more samples in a step bring little. From the squared norms of the
 * gradient of one micro-batch of a rank and of the global batch, which every step has anyway; nothing where it is off.
 */
#pragma once

#include "train/trainer.h"

ddp_status measure_noise_open(ddp_trainer *t,
                              ddp_err *err); /* t->gradients.noise, where it is asked for; the buckets are there */
void measure_noise_close(ddp_trainer *t);
/* The arena has the gradient of this batch, the first micro-batch of this step, and nothing of another rank. */
ddp_status measure_noise_first(ddp_trainer *t, const ddp_batch *batch, ddp_err *err);
/* Collective, after an update of `samples` in all: t->result.grad_norm is that of their gradient. */
ddp_status measure_noise_step(ddp_trainer *t, double samples, ddp_err *err);
/* Of the newest steps; 0: it is not measured, NaN: not known yet, or the noise hides the gradient. */
double measure_noise_scale(const ddp_trainer *t);
