/* control/times/collect.h -- rank 0's side of times.h: the marks of all ranks. */
#pragma once

#include "control/params.h"
#include "control/times/parts.h"

struct ddp_times_queue; /* state.h */
struct ddp_times_mark;

typedef struct ddp_rank_times {
    uint64_t step, steps; /* the last step, and of how many these are the means */
    double *ms;           /* DDP_TIMES x world, ms a step; NaN: the rank's figures have not arrived */
} ddp_rank_times;

/* ---- rank 0; any thread, one at a time --------------------------------------------------------------------------- */
/* The next interval, whose `ms` the caller has; false: there is none yet. `last`: also one that ranks are missing in,
 * which else is waited for. */
bool ddp_group_times_take(ddp_group *g, bool last, ddp_rank_times *out);

/* ---- inside ------------------------------------------------------------------------------------------------------ */
ddp_status control_times_open(ddp_group *g, ddp_err *err);
bool ddp_times_frame(ddp_group *g, int32_t from, const ddp_frame *f); /* control thread; false: malformed */
void times_put(struct ddp_times_queue *q, const struct ddp_times_mark *m);
void times_arrived(ddp_group *g, int32_t rank, struct ddp_times_mark *m); /* with the lock */
