/* control/rank0/announce.h -- rank 0: what it sends to the ranks. Control thread. */
#pragma once

#include "control/params.h"
#include "control/peer.h"
#include "control/rank0/relay.h"

/* A frame to one rank, which may be rank 0 itself; one that is not here gets none. */
void ddp_announce_send(ddp_group *g, int32_t rank, uint32_t type, const ddp_text *payload);
/* What is the same in every WELCOME: who the ranks are. */
void rank0_announce_ranks(const ddp_group *g, ddp_text *out);
/* The WELCOME of `rank`; ranks: of rank0_announce_ranks. */
void rank0_announce_welcome(ddp_group *g, int32_t rank, const ddp_text *ranks);
/* To leaves of one hub, in one frame to it; see relay.h. */
void ddp_announce_relay(ddp_group *g, int32_t hub, uint32_t type, const rank0_target *targets, size_t count,
                        const ddp_text *payload);
/* The first failure of the run, to all ranks that are here; later ones do nothing. */
void ddp_announce_failure(ddp_group *g, const ddp_failure *f);
void rank0_announce_fail(ddp_group *g, int exit_code, int32_t rank, const char *fmt, ...) DDP_PRINTF_(4, 5);
/* To a connection that cannot stay: why; it is kept until it closes. `is_rank`: one of the ranks that are to hear of a
 * rendezvous that has failed. */
void rank0_announce_refusal(ddp_group *g, ddp_peer *p, const ddp_failure *f, bool is_rank);
