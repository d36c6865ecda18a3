/* launch/signals.h -- signals that ask a run to end: SIGINT, SIGTERM, SIGHUP. */
#pragma once

#include "session/session.h"
#include <signal.h>

/* Time that the last rank may take, after the first, to leave a run that was asked to end: rank 0 hashes and writes. */
enum { DDP_STOP_MS = 60000 };

/* In a rank. The first signal while the run is graceful is noted in the result, for launch.stop. Any other ends the
 * process, with a line unless it is supervised: then the supervisor prints one. */
ddp_stop *ddp_handle_signals(bool supervised);
/* In a supervisor: the signals that end a run, and SIGCHLD; not those that were ignored already (nohup, a shell's
 * background job). */
void launch_choose_signals(sigset_t *watched);

static inline bool ddp_signal_ends(int sig) { return sig == SIGINT || sig == SIGTERM || sig == SIGHUP; }

/* A supervisor's lines. "the ranks are asked to end" */
void launch_log_asked_to_end(ddp_log *log, int sig);
int ddp_log_ended_by(ddp_log *log, int sig); /* returns the exit code, 128 + sig */
const char *launch_killed_hint(int sig);     /* to append to "was killed by signal ...": a likely reason, or "" */
