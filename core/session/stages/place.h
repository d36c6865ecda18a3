/* session/stages/place.h -- which layers are of which stage where the model does not say: [train] place. */
#pragma once

#include "session/session.h"

/* Whether stages are placed by their times, which only the device knows: at first by arithmetic, then as measured. */
bool ddp_session_stages_measured(const ddp_session *s);
/* Once the graph is built, before the layout: by the names in [train] place, or by arithmetic and bytes. Nothing where
 * the model has placed its layers. */
ddp_status session_stages_place(ddp_session *s, ddp_err *err);
/* measure.c. Seconds of each node of the graph, forward and backward of a micro-batch on this rank's device: those of
 * kernels that look alike are measured once. `times` has room for ddp_graph_nodes. */
ddp_status ddp_session_stage_times(ddp_session *s, double *times, ddp_err *err);
/* The stages' first nodes by these times, and how many times as long each stage's rank takes. *slowest: that of the
 * slowest stage over the mean. */
ddp_status ddp_session_stages_choose(const ddp_session *s, const double *times, const double *speed, uint32_t *first,
                                     double *slowest, ddp_err *err);
