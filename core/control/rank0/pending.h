/* control/rank0/pending.h -- rank 0: requests that wait for other ranks, and the store. Control thread. */
#pragma once

#include "control/params.h"

ddp_status rank0_pending_open(ddp_group *g, ddp_err *err);
void rank0_pending_close(ddp_group *g);
/* A REQUEST frame; false when it is malformed. */
bool rank0_pending_request(ddp_group *g, int32_t from, const ddp_frame *f);
/* The same of a helper, which has the store alone. */
bool rank0_pending_helper_request(ddp_group *g, int32_t from, const ddp_frame *f);
void rank0_pending_goodbye(ddp_group *g, int32_t rank);
int64_t rank0_pending_tick(ddp_group *g, int64_t now);
