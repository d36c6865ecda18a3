/* control/straggler.h -- the time of a rank's steps, and on rank 0 who is clearly slower than the others. */
#pragma once

#include "control/params.h"

struct ddp_step_times; /* state.h */

/* ---- the owner; any thread, plain atomics ------------------------------------------------------------------------ */
/* For "connection closed at step N". */
void control_group_set_step(ddp_group *g, int64_t step);
/* The same, and where the time of that step went; rank 0 names a rank that is clearly slower than the others. */
void ddp_group_report_step(ddp_group *g, int64_t step, double data_ms, double compute_ms, double wait_ms);
/* Counts a collective that is about to begin, so that a time-out can name who has not come to it. */
void ddp_group_count_collective(ddp_group *g);

/* ---- the control thread ------------------------------------------------------------------------------------------ */
void control_straggler_pack(ddp_group *g, ddp_text *out); /* this rank's sums, for a heartbeat */
void control_straggler_put(const struct ddp_step_times *p, ddp_text *out);
bool control_straggler_unpack(ddp_unpack *u, struct ddp_step_times *out); /* false: malformed */
/* The others on rank 0 alone. */
ddp_status ddp_straggler_open(ddp_group *g, ddp_err *err);
void ddp_straggler_close(ddp_group *g);
bool ddp_straggler_frame(ddp_group *g, int32_t from, const ddp_frame *f); /* false: malformed */
void control_straggler_tick(ddp_group *g, int64_t now);
/* Adds to the time-out of a collective on rank `from` who had not come to it at the last heartbeat. */
void ddp_straggler_blame(ddp_group *g, int32_t from, ddp_failure *f);
