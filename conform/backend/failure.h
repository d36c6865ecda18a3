/* conform/backend/failure.h -- cases that break communicators on purpose, each in processes of its own. */
#ifndef DDP_CONFORM_BACKEND_FAILURE_H
#define DDP_CONFORM_BACKEND_FAILURE_H

#include "conform/harness/rank_process.h"

void backend_abort(ddp_rank_process *a);
void backend_timeout(ddp_rank_process *a);
void backend_late(ddp_rank_process *a);
void backend_killed(ddp_rank_process *a);

#endif
