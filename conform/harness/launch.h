/* conform/harness/launch.h -- ranks that the backend's own launcher starts. */
#ifndef DDP_HARNESS_LAUNCH_H
#define DDP_HARNESS_LAUNCH_H

#include "conform/harness/shared_results.h"
#include <signal.h>
#include <sys/types.h>

/* Starts the ranks of a world by the launcher whose template is `launcher`; `fd` is of the shared memory. *out is
 * the launcher's process. */
ddp_status ddp_launch_ranks(const char *launcher, uint32_t world, int fd, const sigset_t *signals, ddp_log *log,
                            pid_t *out, ddp_err *err);

#endif
