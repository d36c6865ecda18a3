/* control/times/times.h -- where the time of each rank's steps goes, on rank 0.
 *
 * A rank adds up the times of its steps, and keeps a mark now and then: a step and the sums up to it. The marks are at
 * steps that are multiples of a power of two, so that different ranks have steps in common although nobody agrees on
 * them, and 125 to 250 ms apart. The control thread sends them to rank 0 four times a second; between two steps of
 * which all ranks have a mark, the means are known of each rank. A rank that goes back to a checkpoint begins a new
 * era. */
#pragma once

#include "control/params.h"
#include "control/times/parts.h"

/* ---- the trainer's thread ---------------------------------------------------------------------------------------- */
/* Times are sent from here on: after `step` steps of `planned`. Without it, nothing is. */
void ddp_group_times_begin(ddp_group *g, uint64_t step, uint64_t planned);
/* Of a step, in ms: by DDP_TIME_*, of which STEP and CHECKPOINT are not read. Allocates nothing. */
void ddp_group_times_step(ddp_group *g, uint64_t step, const double ms[DDP_TIMES]);
/* So long training was held up by a save, which counts to the next step; after the last one to that. */
void ddp_group_times_checkpoint(ddp_group *g, double ms);
/* There is no further step. On rank 0 it waits, for a second at most, for what the others have to send. */
void ddp_group_times_end(ddp_group *g);

/* ---- the control thread ------------------------------------------------------------------------------------------ */
void control_times_init(ddp_group *g);
void control_times_free(ddp_group *g);
int64_t control_times_tick(ddp_group *g, int64_t now); /* sends what is due; returns when to call again */
