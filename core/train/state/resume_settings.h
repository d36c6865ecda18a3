/* train/state/resume_settings.h -- whether a checkpoint's position means the same in this run. Rank 0. */
#pragma once

#include "train/trainer.h"

/* DDP_ERR_CONFIG where the checkpoint is of the middle of an epoch and this run would go on with other samples, or in
 * another order: both values, and what to do. Other settings that differ are one warning. */
ddp_status state_check_settings(const ddp_trainer *t, const ddp_checkpoint *c, ddp_err *err);
