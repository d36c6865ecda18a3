/* cli/child.h -- commands that start runs: this program once more, as a process of its own, one after the other. */
#pragma once

#include "base/log.h"
#include "launch/args.h"

enum { CLI_CHILD_SETS = 24 }; /* overrides that a command adds to the user's */

/* A run of `args` with these settings after the user's, "optimizer.lr=0.1". Signals that ask this process to end are
 * passed on, and *stopped gets the number; 0: none came. Returns the exit code, 128 + n where signal n has ended it. */
int cli_child_run(const ddp_args *args, const char *const *sets, size_t set_count, int *stopped, ddp_log *log);
