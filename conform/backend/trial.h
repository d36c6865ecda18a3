/* conform/backend/trial.h -- one thread's communicator, and collectives on it that are checked. */
#pragma once

#include "conform/harness/rank_process.h"

/* One thread's communicator: what the collectives of a trial need. */
typedef struct ddp_trial {
    ddp_rank_process *a;
    ddp_backend *backend;
    ddp_comm *comm;
    uint32_t rank, world, index; /* index: 0, or 1 beside another communicator of the case */
    uint64_t hash;               /* of all results so far that must have the same bits on all ranks */
} ddp_trial;
/* A communicator of its own, on this thread. */
ddp_status ddp_trial_open(ddp_trial *t, ddp_rank_process *a, const char *name, int64_t timeout_ms, ddp_err *err);
void ddp_trial_close(ddp_trial *t);
ddp_trial backend_trial_shared(ddp_rank_process *a);       /* of the communicator that cases share */
bool backend_trial_can(const ddp_trial *t, uint32_t slot); /* the backend has it, and in this world it makes sense */
/* The slot, waited for where it is asynchronous. */
ddp_status backend_trial_call(const ddp_trial *t, uint32_t slot, const ddp_coll *args, ddp_err *err);
ddp_case backend_trial_sum(const ddp_rank_process *a,
                           uint64_t count); /* an all_reduce, f32, for backend_trial_collective */
/* One collective as `c` says, prepared and checked to the last byte; false when it failed, with the reason in the
 * result. */
bool backend_trial_collective(ddp_trial *t, const ddp_case *c);
enum { DDP_TRIAL_TIMEOUT_MS = 30000 };
