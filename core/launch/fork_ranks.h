/* launch/fork_ranks.h -- ranks as children of this process. */
#pragma once

#include "launch/args.h"
#include "launch/cause.h"
#include "session/session.h"

/* One rank, in a process of its own: its exit code. `cause` is shared with the other ranks of the supervisor, NULL
 * without one. */
typedef int (*ddp_rank_main)(const ddp_args *args, ddp_config *config, const ddp_launch *launch, ddp_log *log,
                             ddp_cause *cause);

/* first->nproc ranks, the first of them first->rank; returns the exit code of the first cause. */
int launch_fork_ranks(const ddp_args *args, ddp_config *config, const ddp_launch *first, ddp_rank_main run,
                      ddp_log *log);
