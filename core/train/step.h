/* train/step.h -- one update. */
#pragma once

#include "train/trainer.h"

/* DDP_IN_PROGRESS: the epoch has no more batches. */
ddp_status trainer_step(ddp_trainer *t, ddp_err *err);
/* A way's step that ends before it returns. */
ddp_status train_step_run(ddp_trainer *t, uint64_t micros, ddp_err *err);
