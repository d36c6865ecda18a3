/* train/measure/trace.h -- [output] trace_steps: what a rank does when, in some of its steps, as a JSON file that
 * Chrome's about:tracing and ui.perfetto.dev show: segments of the program, buckets on the wire, updates, waits. Each
 * rank writes its own, [output] dir/trace-rankN.json, when the last of those steps is done. Times are of the host's
 * monotonic clock, the same for all ranks of a host. */
#pragma once

#include "session/session.h"

typedef struct ddp_trace ddp_trace;

typedef enum ddp_track {
    DDP_TRACK_TRAINER = 0,
    DDP_TRACK_QUEUE
} ddp_track; /* the threads that there is something of */

/* *out is NULL where no steps are traced. */
ddp_status ddp_trace_open(ddp_session *s, ddp_trace **out, ddp_err *err);
void ddp_trace_close(ddp_trace *t); /* takes NULL, as the others do */
/* Trainer's thread: update `step`, from 1, is about to begin; after the last traced one it writes the file; where that
 * fails it is a warning. */
void ddp_trace_step(ddp_trace *t, uint64_t step);
/* When what is added below began; 0 where nothing is traced. Any thread. */
int64_t ddp_trace_begin(const ddp_trace *t);
/* It has ended. `name` is a constant; bucket -1 and bytes 0: none. Allocates nothing. Any thread. */
void ddp_trace_end(ddp_trace *t, ddp_track track, const char *name, int64_t bucket, uint64_t bytes, int64_t began);
