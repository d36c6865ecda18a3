/* train/state/replica_check.h -- are all ranks' parameters the same bits? */
#pragma once

#include "train/trainer.h"

/* Collective. Where the parameters, or whole optimiser states, of ranks differ, the run ends with DDP_EXIT_DIVERGED, or
 * goes back ([train] replicas_differ). */
ddp_status ddp_trainer_check_replicas(ddp_trainer *t, ddp_err *err);
