/* control/heartbeat.h -- signs of life on the control plane, and the signal to stop. Control thread. */
#pragma once

#include "control/params.h"

void control_heartbeat_open(ddp_group *g, const ddp_group_params *p);
void control_heartbeat_start(ddp_group *g);
/* At the begin of a round, before anything that has come is read. */
void control_heartbeat_round(ddp_group *g, int64_t now);
/* After what has come was read: sends heartbeats, ends the run for silence, returns the next deadline. */
int64_t control_heartbeat_tick(ddp_group *g, int64_t now);

/* Rank 0: a STOP frame, maybe its own; false when it is malformed. All ranks are asked to stop. */
bool ddp_heartbeat_stop(ddp_group *g, const ddp_frame *f);
/* Words the silence of a rank. */
void ddp_heartbeat_silence_failure(const ddp_group *g, int32_t rank, ddp_failure *out);
/* Rank 0: the same for a rank that joins later, if there was such a frame. */
void ddp_heartbeat_send_stop(ddp_group *g, int32_t rank);
