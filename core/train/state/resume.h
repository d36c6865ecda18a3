/* train/state/resume.h -- the parameters and the position that a run starts with. */
#pragma once

#include "train/trainer.h"

/* Rank 0's parameters (and a checkpoint's optimiser state and position) on every rank. *done: the checkpoint is of a
 * run that is complete under this config. */
ddp_status ddp_trainer_restore(ddp_trainer *t, bool *done, ddp_err *err);
/* Whether a checkpoint is of this run's model and its position means the same in this run; loads nothing, and needs no
 * more of the trainer than its session. Rank 0. */
ddp_status state_check_model(ddp_trainer *t, const ddp_checkpoint *c, ddp_err *err);
/* ddp_trainer_restore in the middle of a run: the newest checkpoint, or what the run began with where none is saved.
 * The caller has ended all that uses the arenas. */
ddp_status ddp_trainer_restore_again(ddp_trainer *t, ddp_err *err);
