/* train/local/batch.h -- a batch on one device. */
#pragma once

#include "train/trainer.h"

/* The program for `count` samples, ready to run; it is compiled when first due. */
ddp_status local_batch_program(ddp_trainer *t, int64_t count, bool training, ddp_variant **out, ddp_err *err);
/* The next batch of the rank's share number `share`; adds its samples and the wait for it to the step. */
ddp_status local_batch_next(ddp_trainer *t, ddp_step *step, uint32_t share, ddp_batch *out, ddp_err *err);
/* Forward and backward; adds loss x samples, and where it `adds` the gradients to those that are there. `last` of the
 * step: buckets may be sent. */
ddp_status local_batch_train(ddp_trainer *t, uint32_t share, const ddp_batch *batch, bool adds, bool last,
                             double *loss_sum, ddp_err *err);
/* Forward; adds loss, metrics and samples. */
ddp_status ddp_batch_evaluate(ddp_trainer *t, const ddp_batch *batch, ddp_sums *sums, ddp_err *err);
/* A way's micro_steps, on one device. */
ddp_status ddp_batch_micro_steps(ddp_trainer *t, ddp_step *step, ddp_err *err);
