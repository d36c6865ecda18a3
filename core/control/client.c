/* control/client.c -- what rank 0 sends to a rank: replies, the end of the rendezvous, farewell, and the first
 * failure. */
#include "control/client.h"
#include "control/hub/hub.h"
#include "control/hub/leaf.h"
#include "control/request.h"
#include "control/run.h"
#include "control/state.h"
#include <errno.h>

static bool dispatch_welcome(ddp_group *g, const ddp_frame *f)
{
    ddp_unpack u = {.data = f->data, .left = f->length};
    int32_t world;

    if (g->run.met) return false; /* written by this thread alone */
    g->self.start = ddp_unpack_u64(&u);
    g->self.generation = ddp_unpack_u32(&u);
    g->rank = (int32_t)ddp_unpack_u32(&u);
    world = (int32_t)ddp_unpack_u32(&u);
    if (u.bad || world < 1 || world > g->self.shares || g->rank < 0) return false;
    if (g->self.rank == DDP_RANK_OF_HELPER ? g->rank < DDP_MAX_WORLD : g->rank >= world) return false;
    g->world = world;
    for (int32_t r = 0; r < g->world; r++) {
        ddp_rank_info *m = &g->ranks[r];

        m->home = (int32_t)ddp_unpack_u32(&u);
        m->pid = ddp_unpack_u32(&u);
        ddp_unpack_text(&u, m->host_id, sizeof(m->host_id));
        ddp_unpack_text(&u, m->host, sizeof(m->host));
    }
    if (u.bad || u.left != 0) return false;
    for (int32_t r = 0; r < g->world; r++)
        if (g->ranks[r].home < 0 || g->ranks[r].home >= g->self.shares) return false;
    ddp_run_met(g);
    return true;
}

static bool dispatch_stop(ddp_group *g, const ddp_frame *f)
{
    ddp_unpack u = {.data = f->data, .left = f->length};
    uint32_t sig = ddp_unpack_u32(&u);

    if (u.bad || sig == 0 || sig > 255) return false;
    control_run_asked_to_stop(g, (int)sig);
    return true;
}

static bool dispatch_failure(ddp_group *g, const ddp_frame *f)
{
    ddp_failure failure;

    if (!ddp_failure_unpack(f, &failure)) return false;
    ddp_run_fail(g, &failure);
    if (g->up != NULL) ddp_peer_put(g->up, DDP_FRAME_GOODBYE, NULL, 0);
    return true;
}

bool ddp_client_dispatch(ddp_group *g, const ddp_frame *f)
{
    switch (f->type) {
    case DDP_FRAME_REPLY: return control_request_reply(g, f);
    case DDP_FRAME_WELCOME: return dispatch_welcome(g, f);
    case DDP_FRAME_FAREWELL: control_run_farewell(g); return true;
    case DDP_FRAME_BEAT: return true;
    case DDP_FRAME_STOP: return dispatch_stop(g, f);
    case DDP_FRAME_FAILURE: return dispatch_failure(g, f);
    case DDP_FRAME_HUB: return control_hub_begin(g, f);
    case DDP_FRAME_RELAY: return control_hub_relay(g, f);
    case DDP_FRAME_MOVE: return control_leaf_move(g, f);
    default: return false;
    }
}

void ddp_client_who(const ddp_group *g, int32_t rank, char *buf, size_t capacity)
{
    int32_t helper = rank - DDP_MAX_WORLD;

    if (helper >= 0)
        (void)snprintf(buf, capacity, "aggregator %d on host %s", (int)helper, g->server->helpers[helper].host);
    else
        (void)snprintf(buf, capacity, "rank %d on host %s", (int)g->ranks[rank].home, g->ranks[rank].host);
}

void ddp_client_lost_failure(const ddp_group *g, int32_t rank, const ddp_err *why, ddp_failure *out)
{
    bool closed =
        why->status == DDP_ERR_PEER && (why->sys_errno == 0 || why->sys_errno == ECONNRESET || why->sys_errno == EPIPE);
    char when[48], who[192];

    control_run_when(g, when, sizeof(when));
    ddp_client_who(g, rank, who, sizeof(who));
    ddp_failure_set(out, DDP_EXIT_PEER, rank < DDP_MAX_WORLD ? rank : -1, "%s: connection %s without goodbye%s%s%.200s",
                    who, closed ? "closed" : "lost", when, closed ? "" : ": ", closed ? "" : why->msg);
}

void control_client_lost(ddp_group *g, int32_t rank, const ddp_err *why)
{
    bool farewell = control_run_has_farewell(g);
    ddp_failure f;

    ddp_client_lost_failure(g, rank, why, &f);
    if (control_run_rank0_gone(g)) {
        if (!farewell) control_hub_rank0_lost(g, &f);
        return;
    }
    ddp_run_fail(g, &f);
}

void control_client_damaged(ddp_group *g, int32_t rank, const ddp_err *why)
{
    ddp_failure f;

    ddp_failure_set(&f, DDP_EXIT_PEER, rank, "rank %d on host %s sent a damaged frame: %.300s",
                    (int)g->ranks[rank].home, g->ranks[rank].host, why->msg);
    ddp_run_fail(g, &f);
}

void control_client_silence(ddp_group *g, const ddp_failure *f)
{
    ddp_text t = {0};

    ddp_failure_pack(f, DDP_FRAME_FAILURE, &t);
    if (!t.failed && g->up != NULL) ddp_peer_put(g->up, DDP_FRAME_FAILURE, t.data, t.length);
    ddp_text_free(&t);
    ddp_run_fail(g, f);
}
