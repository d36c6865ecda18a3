/* launch/cause.h -- why a run has failed, printed once although each of its ranks knows. */
#pragma once

#include "base/log.h"

/* What the ranks of one supervisor share, in shared memory that children inherit. */
typedef struct ddp_cause ddp_cause;
ddp_cause *launch_cause_create(ddp_err *err); /* NULL on failure; lives until the process ends */
/* A rank crashes with so much of its memory in use; in a handler of a signal. The supervisor asks for it when the rank
 * has ended: false when none has said so. */
void launch_cause_note_memory(ddp_cause *cause, uint64_t used, uint64_t limit);
bool launch_cause_memory(const ddp_cause *cause, uint64_t *used, uint64_t *limit);
/* A rank ends, and with it step `kept`, which was in memory alone while the ranks joined again; the newest checkpoint
 * is of step `saved`, 0: there is none. In a handler of a signal, too. The supervisor asks: false when nothing is
 * lost. */
void launch_cause_note_lost(ddp_cause *cause, uint64_t kept, uint64_t saved);
bool launch_cause_lost(const ddp_cause *cause, uint64_t *kept, uint64_t *saved);
/* Prints the line once among all ranks that share `cause` (NULL: always). A rank that leaves because of a peer (exit
 * code DDP_EXIT_PEER) lets the others print first, for the peer itself or the supervisor knows why. */
void ddp_cause_print(ddp_cause *cause, ddp_log *log, int exit_code, const char *message);
/* The run survives it: what comes next is another cause. */
void ddp_cause_forget(ddp_cause *cause);
/* Of a rank: generation 0, 1, .. of the run has begun; why it has ended and another one is needed, printed once. */
void ddp_cause_met(ddp_cause *cause, uint32_t generation);
void ddp_cause_print_rejoin(ddp_cause *cause, ddp_log *log, uint32_t generation, const char *message);
/* How many generations have begun. */
uint32_t ddp_cause_generations(const ddp_cause *cause);
