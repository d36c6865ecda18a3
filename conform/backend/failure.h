/* conform/backend/failure.h -- cases that break communicators on purpose, each in processes of its own. */
#pragma once

#include "conform/harness/rank_process.h"

void backend_abort(ddp_rank_process *a);
void backend_timeout(ddp_rank_process *a);
void backend_late(ddp_rank_process *a);
void backend_killed(ddp_rank_process *a);
