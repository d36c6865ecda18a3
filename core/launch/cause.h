/* launch/cause.h -- why a run has failed, printed once although each of its ranks knows. */
#pragma once

#include "base/log.h"

/* What the ranks of one supervisor share, in shared memory that children inherit. */
typedef struct ddp_cause ddp_cause;
ddp_cause *launch_cause_create(ddp_err *err); /* NULL on failure; lives until the process ends */
/* Prints the line once among all ranks that share `cause` (NULL: always). A rank that leaves because of a peer (exit
 * code DDP_EXIT_PEER) lets the others print first, for the peer itself or the supervisor knows why. */
void ddp_cause_print(ddp_cause *cause, ddp_log *log, int exit_code, const char *message);
