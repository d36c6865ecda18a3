/* train/state/resume.h -- the parameters and the position that a run starts with. */
#pragma once

#include "train/trainer.h"

/* Rank 0's parameters (and a checkpoint's optimiser state and position) on every rank. *done: the checkpoint is of a
 * run that is complete under this config. */
ddp_status ddp_trainer_restore(ddp_trainer *t, bool *done, ddp_err *err);
/* The same in the middle of a run: the newest checkpoint, or what the run began with where it has saved none. The
 * caller has ended all that uses the arenas. */
ddp_status ddp_trainer_restore_again(ddp_trainer *t, ddp_err *err);
