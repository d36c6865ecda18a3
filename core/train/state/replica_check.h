/* train/state/replica_check.h -- are all ranks' parameters the same bits? */
#pragma once

#include "train/trainer.h"

/* Collective; a rank whose parameters are not those of the others ends the run with DDP_EXIT_DIVERGED. */
ddp_status ddp_trainer_check_replicas(ddp_trainer *t, ddp_err *err);
