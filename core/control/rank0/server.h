/* control/rank0/server.h -- rank 0's side of a run: who is here, the first failure, goodbye. Control thread. */
#pragma once

#include "control/params.h"
#include "control/peer.h"

ddp_status ddp_server_open(ddp_group *g, ddp_err *err);
void ddp_server_close(ddp_group *g);
/* A frame from a connection, or from rank 0 itself (peer NULL); false when it is malformed or not expected now. */
bool ddp_server_frame(ddp_group *g, ddp_peer *peer, const ddp_frame *f);
void ddp_server_lost(ddp_group *g, ddp_peer *p, const ddp_err *why);
void ddp_server_damaged(ddp_group *g, ddp_peer *p, const ddp_err *why);
/* Sends to all ranks that rank 0 leaves. */
void ddp_server_farewell(ddp_group *g);
void ddp_server_missing_goodbyes(const ddp_group *g, char *buf, size_t capacity);
/* Acts on deadlines that have passed; returns the next one. */
int64_t ddp_server_tick(ddp_group *g, int64_t now);
/* All that there is to send has been sent. */
bool ddp_server_done(const ddp_group *g);
