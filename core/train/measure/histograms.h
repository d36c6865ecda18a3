/* train/measure/histograms.h -- [output] histograms: every so many steps, how the trained parameters and their
 * gradients are distributed, for TensorBoard. The gradient is that of the whole step, the mean over all ranks, before
 * it is clipped; the parameters are those after the update. Rank 0's thread "ddp-observe" writes them. Nothing where it
 * is off. */
#pragma once

#include "train/trainer.h"

ddp_status measure_histograms_open(ddp_trainer *t,
                                   ddp_err *err); /* t->gradients.histograms, where they are asked for */
void measure_histograms_close(ddp_trainer *t);
/* All ranks, in a step whose gradients are reduced, are finite, and stay in all arenas until it returns. Collective
 * where ranks have shards of them. */
ddp_status measure_histograms_gradients(ddp_trainer *t, const ddp_step *step, ddp_err *err);
ddp_status measure_histograms_step(ddp_trainer *t, ddp_err *err); /* after the step, which is counted already */
