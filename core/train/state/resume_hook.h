/* train/state/resume_hook.h -- what a checkpoint holds for the hook of a run. */
#pragma once

#include "train/trainer.h"

/* Rank 0: what the checkpoint holds of all ranks' hooks, to be spread; *fits: there is something. */
ddp_status state_trainer_fill_hook(ddp_trainer *t, const ddp_checkpoint *c, bool *fits, ddp_err *err);
