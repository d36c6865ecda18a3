/* train/local/pipelined_step.h -- a step begins before the one before it has ended.
 *
 * A single-rank run whose device runs by itself (DDP_DEVICE_CAP_QUEUES), need not wait for a step's loss before it
 * gives the device the next one: while the device works on a step, the host launches the next one. Step k's loss, and
 * what its update has seen that is not finite, are looked at when step k + 1 has been given out; so the run ends a
 * step later than it could, and before anything is saved or evaluated all steps are finished. The host is
 * DDP_PIPELINED_BATCHES micro-steps ahead at most. */
#pragma once

#include "train/trainer.h"

enum { DDP_PIPELINED_BATCHES = 2 }; /* that the device may still copy */

bool ddp_pipelined_possible(const ddp_trainer *t);
ddp_status ddp_pipelined_open(ddp_trainer *t, ddp_err *err); /* where it is possible: sets t->local.pipelined */
void ddp_pipelined_close(ddp_trainer *t);
/* ---- slots of a way -------------------------------------------------------------------------------------------- */
/* Launches a step, and finishes the one before. */
ddp_status ddp_pipelined_step(ddp_trainer *t, uint64_t micros, ddp_err *err);
/* Until all that was launched is done. */
ddp_status ddp_pipelined_finish(ddp_trainer *t, ddp_err *err);
