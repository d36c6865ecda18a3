/* conform/backend/backend.h -- the cases of a backend by name. */
#pragma once

#include "conform/harness/rank_process.h"

void ddp_backend_case(ddp_rank_process *a); /* runs a->c */
void ddp_backend_begin(
    ddp_rank_process *a); /* opens backend and communicator before the first case: its own case, "connect" */
void ddp_backend_end(ddp_rank_process *a);
