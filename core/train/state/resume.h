/* train/state/resume.h -- the parameters and the position that a run starts with. */
#pragma once

#include "train/trainer.h"

/* Rank 0's parameters (and a checkpoint's optimiser state and position) on every rank. *done: the checkpoint is of a
 * run that is complete under this config. */
ddp_status ddp_trainer_restore(ddp_trainer *t, bool *done, ddp_err *err);
