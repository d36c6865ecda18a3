/* conform/backend/refusals.h -- what a backend must refuse. */
#ifndef DDP_CONFORM_BACKEND_REFUSALS_H
#define DDP_CONFORM_BACKEND_REFUSALS_H

#include "conform/harness/rank_process.h"

void ddp_backend_refusals(ddp_rank_process *a);

#endif
