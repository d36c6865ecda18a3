/* control/rank0/relay.c -- see relay.h. */
#include "control/rank0/relay.h"
#include "control/state.h"
#include <string.h>

/* The hub of a rank; 0: rank 0 itself. */
static int32_t hub_of(const ddp_group *g, int32_t rank)
{
    int32_t block = g->server->ranks_per_hub;

    return block > 0 && g->world > 2 * block ? rank - rank % block : 0;
}

void rank0_relay_begin(ddp_group *g)
{
    for (int32_t r = 1; r + 1 < g->world; r++) {
        ddp_peer *p = g->server->ranks[r].peer;
        ddp_text t = {0};

        if (p == NULL || hub_of(g, r) != r || hub_of(g, r + 1) != r) continue;
        ddp_pack_u32(&t, (uint32_t)(r + 1));
        ddp_pack_u32(&t, (uint32_t)(DDP_MIN_OF(g->world, r + g->server->ranks_per_hub) - r - 1));
        if (!t.failed) ddp_peer_put(p, DDP_FRAME_HUB, t.data, t.length);
        ddp_text_free(&t);
    }
}

bool rank0_relay_hub(ddp_group *g, int32_t hub, const ddp_frame *f)
{
    ddp_unpack u = {.data = f->data, .left = f->length};
    char endpoint[DDP_ENDPOINT_MAX];
    ddp_text t = {0};

    ddp_unpack_text(&u, endpoint, sizeof(endpoint));
    if (u.bad || u.left != 0 || !g->run.met || hub_of(g, hub) != hub || hub == 0) return false;
    ddp_pack_u32(&t, (uint32_t)hub);
    ddp_pack_bytes(&t, endpoint, strlen(endpoint));
    for (int32_t r = hub + 1; r < g->world && hub_of(g, r) == hub; r++) {
        ddp_peer *p = g->server->ranks[r].peer;

        if (p != NULL && !t.failed) ddp_peer_put(p, DDP_FRAME_MOVE, t.data, t.length);
    }
    ddp_text_free(&t);
    return true;
}

bool rank0_relay_moved(ddp_group *g, ddp_peer *p)
{
    ddp_server_rank *r = &g->server->ranks[p->rank];
    int32_t hub = hub_of(g, p->rank);

    if (!g->run.met || hub == 0 || hub == p->rank || r->peer != p) return false;
    r->hub = hub;
    r->peer = NULL;
    ddp_peer_put(p, DDP_FRAME_MOVED, NULL, 0); /* behind all that it was sent; it closes */
    p->state = DDP_PEER_RETIRED;
    (void)atomic_fetch_add(&g->server->relayed, 1);
    return true;
}

bool rank0_relay_open(const ddp_group *g, int32_t hub, const ddp_frame *f, int32_t *rank, ddp_frame *inner)
{
    ddp_unpack u = {.data = f->data, .left = f->length};

    *rank = (int32_t)ddp_unpack_u32(&u);
    inner->type = ddp_unpack_u32(&u);
    inner->data = u.data;
    inner->length = (uint32_t)u.left;
    return !u.bad && hub > 0 && *rank > hub && *rank < g->world && hub_of(g, *rank) == hub;
}

bool rank0_relay_put(ddp_group *g, int32_t hub, uint32_t type, const rank0_target *targets, size_t count,
                     const ddp_text *payload)
{
    ddp_peer *p = g->server->ranks[hub].peer;
    ddp_text t = {.failed = payload->failed};
    bool failed;

    ddp_pack_u32(&t, type);
    ddp_pack_u32(&t, (uint32_t)count);
    for (size_t i = 0; i < count; i++) {
        ddp_pack_u32(&t, (uint32_t)targets[i].rank);
        ddp_pack_u64(&t, targets[i].id);
    }
    if (payload->length > 0) ddp_text_append(&t, payload->data, payload->length);
    failed = t.failed;
    if (p != NULL && !failed) ddp_peer_put(p, DDP_FRAME_RELAY, t.data, t.length);
    ddp_text_free(&t);
    return !failed;
}
