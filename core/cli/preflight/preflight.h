/* cli/preflight/preflight.h -- `--check` and `--check --net`: what would be in the way of a run, before it. */
#pragma once

#include "launch/args.h"
#include "launch/cause.h"
#include "session/session.h"

/* --check: this host alone. Prints the plan, then a line for each check; the exit code, after a line with the first
 * problem. */
int cli_preflight(const ddp_args *args, ddp_log *log);
/* --check --net: a rank, with the others. The first rank of each host prints what cli_preflight does but the plan, rank
 * 0 what the ranks have measured. */
int cli_preflight_rank(const ddp_args *args, ddp_session *s, ddp_cause *cause, ddp_log *log);
