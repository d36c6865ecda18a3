/* control/client.h -- what rank 0 sends to a rank, and what becomes of the connection to it. Control thread; on rank
 * 0 the server hands its own frames to the same function. */
#pragma once

#include "control/params.h"

/* A frame from rank 0; false when it is malformed. */
bool ddp_client_dispatch(ddp_group *g, const ddp_frame *f);
/* The connection to `rank`, which is rank 0 or this rank's hub, is lost, or what came there is damaged. */
void control_client_lost(ddp_group *g, int32_t rank, const ddp_err *why);
void control_client_damaged(ddp_group *g, int32_t rank, const ddp_err *why);
/* Rank 0, or the hub, is silent: the failure, which it reads when it wakes. */
void control_client_silence(ddp_group *g, const ddp_failure *f);
/* Words the loss of the connection to a rank, on either side. */
void ddp_client_lost_failure(const ddp_group *g, int32_t rank, const ddp_err *why, ddp_failure *out);
/* "rank 3 on host b", "aggregator 0 on host c" */
void ddp_client_who(const ddp_group *g, int32_t rank, char *buf, size_t capacity);
