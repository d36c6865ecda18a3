/* train/rollback.h -- the run goes back to the newest checkpoint, with all ranks and in this process. */
#pragma once

#include "train/trainer.h"

/* Collective, between two steps, where t->progress.rollback.wanted: parameters, states and position are those of the
 * newest checkpoint that verifies, or, where the run has saved none, those that it began with. The trainer then begins
 * an epoch as after a resume. */
ddp_status train_roll_back(ddp_trainer *t, ddp_err *err);
