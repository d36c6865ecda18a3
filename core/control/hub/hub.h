/* control/hub/hub.h -- a rank that is the hub of others, its leaves.
 *
 * When the ranks have met, rank 0 makes the first of each block of ranks a hub (rank0/relay.h). It listens, the others
 * of its block connect to it, and what they and rank 0 say to each other passes through it: rank 0 has a connection for
 * each hub instead of each rank, an answer that is the same for many leaves comes once, and their heartbeats go on in
 * one frame. The hub decides nothing but that a leaf is gone or silent, which it reports. Control thread. */
#pragma once

#include "control/params.h"
#include "control/peer.h"

void control_hub_init(ddp_group *g);
void control_hub_close(ddp_group *g);
/* From rank 0: this rank is a hub from now on; false when malformed. */
bool control_hub_begin(ddp_group *g, const ddp_frame *f);
/* From rank 0, for leaves. */
bool control_hub_relay(ddp_group *g, const ddp_frame *f);

/* Connections that its listener has. */
void control_hub_accept(ddp_group *g);
bool control_hub_frame(ddp_group *g, ddp_peer *p, const ddp_frame *f);
/* The connection is of no more use, the peer dead. */
void control_hub_lost(ddp_group *g, ddp_peer *p, const ddp_err *why);
/* A leaf has been silent for peer_timeout: it is not watched any more. */
void control_hub_silent(ddp_group *g, ddp_peer *p);
/* The connection to rank 0 is gone after this rank's goodbye, and rank 0 has not said farewell. */
void control_hub_rank0_lost(ddp_group *g, const ddp_failure *f);
/* Appends the figures of the leaves' heartbeats to this rank's own. */
void control_hub_pack(ddp_group *g, ddp_text *out);
/* Tells the leaves how the run ends, where it does; returns the next deadline. */
int64_t control_hub_tick(ddp_group *g, int64_t now);
/* The leaves have heard of the failure. */
bool control_hub_done(const ddp_group *g);

/* Leaves that have not said goodbye; any thread. */
int control_hub_leaves(ddp_group *g);
