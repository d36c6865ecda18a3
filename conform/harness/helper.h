/* conform/harness/helper.h -- processes that help the ranks, where the backend asks for some: what `ddpengine
 * aggregate` is in a run. */
#pragma once

#include "conform/harness/rank_process.h"

/* Rank 0, before it has joined and while it has one thread: starts as many as the backend's settings want. They end
 * with this process, or when the ranks have left. */
ddp_status harness_helpers_start(ddp_rank_process *a, int listen_fd, ddp_err *err);
