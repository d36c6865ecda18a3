/* cli/child.h -- commands that start runs: this program once more, as a process of its own, one after the other. */
#pragma once

#include "base/log.h"
#include "launch/args.h"

enum { CLI_CHILD_SETS = 32 }; /* overrides that a command adds to the user's */

/* A run of `args` with these settings after the user's, "optimizer.lr=0.1". Signals that ask this process to end are
 * passed on, and *stopped gets the number; 0: none came. Returns the exit code, 128 + n where signal n has ended it. */
int cli_child_run(const ddp_args *args, const char *const *sets, size_t set_count, int *stopped, ddp_log *log);

enum { CLI_TRIAL_FOLDER = 64 };
/* A short training for `command`, "lr": all that a run does beside its steps is off, and what it writes goes into
 * `folder`, which is made here. `sets`: the command's own. As cli_child_run() else. */
int cli_trial_run(const char *command, const ddp_args *args, const char *const *sets, size_t set_count, int32_t steps,
                  char folder[CLI_TRIAL_FOLDER], ddp_log *log);
/* With all that is in it; "": does nothing. */
void cli_trial_remove(const char *folder);
