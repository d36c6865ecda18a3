/* launch/signals.h -- signals that ask a run to end: SIGINT, SIGTERM, SIGHUP. */
#pragma once

#include "launch/cause.h"
#include "session/session.h"
#include <signal.h>

/* Time that the last rank may take, after the first, to leave a run that was asked to end: rank 0 hashes and writes. */
enum { DDP_STOP_MS = 60000 };
enum { DDP_HINT_BYTES = 192 };

/* In a rank. The first signal while the run is graceful is noted in the result, for launch.stop. Any other ends the
 * process, with a line unless it is supervised (`cause`, NULL where not): then the supervisor prints one. A crash of a
 * process that has used up the memory it may have is reported as that. */
ddp_stop *ddp_handle_signals(ddp_cause *cause);
/* In a supervisor: the signals that end a run, and SIGCHLD; not those that were ignored already (nohup, a shell's
 * background job). */
void launch_choose_signals(sigset_t *watched);

static inline bool ddp_signal_ends(int sig) { return sig == SIGINT || sig == SIGTERM || sig == SIGHUP; }

/* A supervisor's lines. "the ranks are asked to end" */
void launch_log_asked_to_end(ddp_log *log, int sig);
int ddp_log_ended_by(ddp_log *log, int sig); /* returns the exit code, 128 + sig */
/* The same, and what is lost with that. */
int launch_log_ended_by(ddp_log *log, int sig, const ddp_cause *cause);
/* In a rank whose run has failed: what is lost with its memory is told to its supervisor, or without one (`cause` NULL)
 * logged. */
void ddp_signals_note_lost(const ddp_stop *stop, ddp_cause *cause, ddp_log *log);
/* In a supervisor: a warning of what is lost, if something is. */
void launch_log_lost(ddp_log *log, const ddp_cause *cause);
/* To append to "was killed by signal ...": a likely reason, or "". Returns buf, of DDP_HINT_BYTES. */
const char *launch_killed_hint(int sig, const ddp_cause *cause, char *buf);
