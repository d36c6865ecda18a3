/* control/rank0/relay.h -- rank 0: ranks that are behind hubs. In blocks of `ranks_per_hub` ranks the first one is the
 * hub of the others, but in the block of rank 0 itself; see hub/hub.h. Control thread. */
#pragma once

#include "control/params.h"
#include "control/peer.h"

/* The rendezvous is complete: hubs are asked to listen, where there are to be some. */
void rank0_relay_begin(ddp_group *g);
/* A hub listens: its leaves are told where; false when malformed. */
bool rank0_relay_hub(ddp_group *g, int32_t hub, const ddp_frame *f);
/* The last frame of a rank over its own connection: from now on it speaks through its hub. */
bool rank0_relay_moved(ddp_group *g, ddp_peer *p);
/* What a hub has passed on: of which rank, and its frame; false when malformed, or not of one of its leaves. */
bool rank0_relay_open(const ddp_group *g, int32_t hub, const ddp_frame *f, int32_t *rank, ddp_frame *inner);

typedef struct rank0_target {
    int32_t rank;
    uint64_t id; /* of the request that this answers, in front of the payload; 0: of none */
} rank0_target;

/* To leaves of one hub, in one frame; false without memory. */
bool rank0_relay_put(ddp_group *g, int32_t hub, uint32_t type, const rank0_target *targets, size_t count,
                     const ddp_text *payload);
