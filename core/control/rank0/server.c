/* control/rank0/server.c -- rank 0's side of a run: what the frames of a rank mean, from its hello to its goodbye. A
 * hello goes on to arrivals.c, a request to pending.c. Control thread. */
#include "control/rank0/server.h"
#include "control/client.h"
#include "control/heartbeat.h"
#include "control/rank0/accept.h"
#include "control/rank0/announce.h"
#include "control/rank0/arrivals.h"
#include "control/rank0/helpers.h"
#include "control/rank0/pending.h"
#include "control/rank0/relay.h"
#include "control/rank0/waiting.h"
#include "control/run.h"
#include "control/state.h"
#include "control/straggler.h"
#include "control/times/collect.h"
#include <stdlib.h>
#include <string.h>

#define MANY_RANKS   256
#define FILES_BESIDE 256
#define SUSPICION_MS 200 /* how long "a peer is lost" waits for a better cause */

ddp_status ddp_server_open(ddp_group *g, ddp_err *err)
{
    ddp_server *s = ddp_alloc(sizeof(*s), err);

    if (s == NULL) return err->status;
    g->server = s; /* closed with the group, whatever fails from here */
    /* each rank has a connection until it is behind its hub; a usual limit is 1,024 */
    if (g->world > MANY_RANKS) DDP_TRY(ddp_allow_open_files((unsigned)g->world + FILES_BESIDE, err));
    s->joined = 1;
    s->report_ns = g->self.began_ns + g->self.report_ms * 1000000;
    s->ranks = ddp_alloc((size_t)g->world * sizeof(*s->ranks), err);
    if (s->ranks == NULL) return err->status;
    rank0_listener_open(g);
    DDP_TRY(rank0_pending_open(g, err));
    DDP_TRY(control_times_open(g, err));
    return ddp_straggler_open(g, err);
}

void ddp_server_close(ddp_group *g)
{
    ddp_server *s = g->server;

    if (s == NULL) return;
    rank0_pending_close(g);
    ddp_straggler_close(g);
    free(s->ranks);
    free(s);
    g->server = NULL;
}

/* ---- ranks that fail or go --------------------------------------------------------------------------------------- */
static void aborted(ddp_group *g, int32_t from, ddp_failure *f)
{
    ddp_server *s = g->server;

    if (s->announced.failed || (s->held_ns != 0 && f->exit_code == DDP_EXIT_PEER)) return;
    if (f->exit_code == DDP_EXIT_TIMEOUT) ddp_straggler_blame(g, from, f);
    if (f->exit_code != DDP_EXIT_PEER || g->world == 1) {
        ddp_announce_failure(g, f);
        return;
    }
    s->held = *f;
    s->held.rank = from;
    s->held_ns = ddp_now_ns() + SUSPICION_MS * 1000000ll;
}

/* `rank` cannot be reached any more. */
static void rank_lost(ddp_group *g, int32_t rank, const ddp_err *why)
{
    ddp_server *s = g->server;
    ddp_failure f;

    if (why->status == DDP_ERR_TIMEOUT)
        ddp_heartbeat_silence_failure(g, rank, &f);
    else
        ddp_client_lost_failure(g, rank, why, &f);
    ddp_announce_failure(g, s->held_ns != 0 && s->held.rank == rank ? &s->held : &f);
}

void ddp_server_lost(ddp_group *g, ddp_peer *p, const ddp_err *why)
{
    ddp_server *s = g->server;

    if (p->state == DDP_PEER_NEW || (p->state == DDP_PEER_HELPS && !p->agreed)) rank0_listener_stranger(g, p, why->msg);
    if (p->state == DDP_PEER_WAITS) rank0_waiting_met(g); /* its place is free again */
    if (p->state == DDP_PEER_HELPS) rank0_helpers_lost(g, p, why);
    if (p->state != DDP_PEER_HEARD && p->state != DDP_PEER_JOINED) return;
    s->ranks[p->rank].peer = NULL;
    if (s->announced.failed || s->farewell || p->goodbye || rank0_waiting_forget(g, p, "gone")) return;
    rank_lost(g, p->rank, why);
}

/* By the word of its hub. */
static bool gone(ddp_group *g, int32_t rank, const ddp_frame *f)
{
    ddp_unpack u = {.data = f->data, .left = f->length};
    const ddp_server *s = g->server;
    ddp_err why = {0};

    why.status = (ddp_status)ddp_unpack_u32(&u);
    why.sys_errno = (int32_t)ddp_unpack_u32(&u);
    ddp_unpack_text(&u, why.msg, sizeof(why.msg));
    if (u.bad) return false;
    if (!s->announced.failed && !s->farewell && !s->ranks[rank].goodbye) rank_lost(g, rank, &why);
    return true;
}

void ddp_server_damaged(ddp_group *g, ddp_peer *p, const ddp_err *why)
{
    if (p->state == DDP_PEER_NEW && p->wire.named) {
        rank0_listener_other_secret(g, p);
        return;
    }
    if (p->state != DDP_PEER_HEARD && p->state != DDP_PEER_JOINED) {
        if (p->state == DDP_PEER_HELPS) rank0_helpers_lost(g, p, why);
        rank0_listener_stranger(g, p, why->msg);
        if (p->state == DDP_PEER_WAITS) rank0_waiting_met(g); /* its place is free again */
        return;
    }
    rank0_announce_fail(g, DDP_EXIT_PEER, p->rank, "rank %d on host %s sent a damaged frame: %s",
                        (int)g->ranks[p->rank].home, g->ranks[p->rank].host, why->msg);
    g->server->ranks[p->rank].peer = NULL;
    p->state = DDP_PEER_REFUSED;
    p->since_ns = ddp_now_ns();
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */
void ddp_server_farewell(ddp_group *g)
{
    const ddp_text nothing = {0};

    if (g->server->farewell || g->server->announced.failed) return;
    g->server->farewell = true;
    for (int32_t r = 0; r < g->world; r++) /* a hub tells its leaves */
        if (g->server->ranks[r].hub == 0) ddp_announce_send(g, r, DDP_FRAME_FAREWELL, &nothing);
    rank0_helpers_farewell(g);
    rank0_waiting_farewell(g);
}

static void goodbye(ddp_group *g, int32_t rank)
{
    ddp_server_rank *m = &g->server->ranks[rank];

    if (m->peer != NULL) m->peer->goodbye = true;
    if (m->goodbye) return;
    m->goodbye = true;
    rank0_pending_goodbye(g, rank);
    if (++g->server->goodbyes == g->world) ddp_server_farewell(g);
}

void ddp_server_missing_goodbyes(const ddp_group *g, char *buf, size_t capacity)
{
    bool missing[DDP_MAX_WORLD] = {0};

    for (int32_t r = 0; r < g->world; r++) missing[g->ranks[r].home] = !g->server->ranks[r].goodbye;
    ddp_rank_list(buf, capacity, missing, g->self.shares);
}

bool ddp_server_done(const ddp_group *g)
{
    if (!g->server->announced.failed) return true;
    for (const ddp_peer *p = g->peers.first; p != NULL; p = p->next)
        if (!p->dead && !p->mute && !p->silent && p->state != DDP_PEER_NEW && p->state != DDP_PEER_RETIRED &&
            !p->goodbye)
            return false;
    /* ranks that come a moment later shall hear too why there is no rendezvous */
    return g->run.met || g->server->announced.reached >= g->world - 1;
}

/* ---- frames ------------------------------------------------------------------------------------------------------ */
static bool rank_frame(ddp_group *g, int32_t from, const ddp_frame *f);

/* The hub has passed on what it was sent: it is the leaf that sends what does not belong here. */
static void leaf_damaged(ddp_group *g, int32_t rank, int32_t hub, const ddp_frame *f)
{
    rank0_announce_fail(
        g, DDP_EXIT_PEER, rank,
        "rank %d on host %s sent a damaged frame by way of rank %d: a frame of type %u that does not belong here",
        (int)g->ranks[rank].home, g->ranks[rank].host, (int)g->ranks[hub].home, f->type);
}

/* What a hub has passed on; false: the hub itself has sent nonsense. */
static bool relayed(ddp_group *g, int32_t hub, const ddp_frame *f)
{
    ddp_frame inner;
    int32_t rank;

    if (!rank0_relay_open(g, hub, f, &rank, &inner) || inner.type == DDP_FRAME_RELAY || inner.type == DDP_FRAME_HUB)
        return false;
    if (inner.type == DDP_FRAME_GONE) return gone(g, rank, &inner);
    /* after a failure: it has arrived there */
    if (g->server->announced.failed && inner.type == DDP_FRAME_GOODBYE) return true;
    if (!rank_frame(g, rank, &inner)) leaf_damaged(g, rank, hub, &inner);
    return true;
}

static bool rank_frame(ddp_group *g, int32_t from, const ddp_frame *f)
{
    ddp_failure failure;

    switch (f->type) {
    case DDP_FRAME_REQUEST: /* after a goodbye nobody waits for the reply; before all have met, nobody asks */
        if (!g->run.met) return false;
        return g->server->announced.failed || g->server->ranks[from].goodbye || rank0_pending_request(g, from, f);
    case DDP_FRAME_GOODBYE: goodbye(g, from); return true;
    case DDP_FRAME_BEAT: return ddp_straggler_frame(g, from, f);
    case DDP_FRAME_TIMES: return ddp_times_frame(g, from, f);
    case DDP_FRAME_STOP: return ddp_heartbeat_stop(g, f);
    case DDP_FRAME_HUB: return rank0_relay_hub(g, from, f);
    case DDP_FRAME_RELAY: return relayed(g, from, f);
    case DDP_FRAME_FAILURE:
        if (!ddp_failure_unpack(f, &failure)) return false;
        ddp_announce_failure(g, &failure);
        return true;
    case DDP_FRAME_ABORT:
        if (!ddp_failure_unpack(f, &failure)) return false;
        failure.rank = from;
        aborted(g, from, &failure);
        return true;
    default: return false;
    }
}

bool ddp_server_frame(ddp_group *g, ddp_peer *peer, const ddp_frame *f)
{
    if (peer == NULL) return rank_frame(g, 0, f);
    if (g->server->announced.failed && f->type == DDP_FRAME_GOODBYE) { /* the failure has arrived there */
        peer->goodbye = true;
        return true;
    }
    switch (peer->state) {
    case DDP_PEER_NEW: return f->type == DDP_FRAME_HELLO && rank0_arrivals_hello(g, peer, f);
    case DDP_PEER_HEARD:
        return g->server->announced.failed || (f->type == DDP_FRAME_AGREEMENT && rank0_arrivals_agreement(g, peer, f));
    case DDP_PEER_JOINED: return f->type == DDP_FRAME_MOVED ? rank0_relay_moved(g, peer) : rank_frame(g, peer->rank, f);
    case DDP_PEER_HELPS: return rank0_helpers_frame(g, peer, f);
    case DDP_PEER_WAITS:
        if (f->type == DDP_FRAME_AGREEMENT) rank0_waiting_agreement(g, peer, f);
        return true;
    default: return true;
    }
}

int64_t ddp_server_tick(ddp_group *g, int64_t now)
{
    ddp_server *s = g->server;
    int64_t next = DDP_FOREVER_NS;

    if (s->announced.failed) {
        rank0_waiting_failed(g);
        return next;
    }
    if (!g->run.met) next = rank0_arrivals_tick(g, now);
    if (s->held_ns != 0 && now >= s->held_ns) ddp_announce_failure(g, &s->held);
    if (s->announced.failed) return DDP_FOREVER_NS;
    if (s->held_ns != 0) next = DDP_MIN_OF(next, s->held_ns);
    return DDP_MIN_OF(next, rank0_pending_tick(g, now));
}
