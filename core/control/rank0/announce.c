/* control/rank0/announce.c -- rank 0: a frame to one rank, the first failure to all, and to a connection why it
 * cannot stay. */
#include "control/rank0/announce.h"
#include "control/client.h"
#include "control/rank0/relay.h"
#include "control/run.h"
#include "control/state.h"

static void put_failure(ddp_peer *p, const ddp_failure *f)
{
    ddp_text t = {0};

    ddp_failure_pack(f, DDP_FRAME_FAILURE, &t);
    if (!t.failed) ddp_peer_put(p, DDP_FRAME_FAILURE, t.data, t.length);
    ddp_text_free(&t);
}

void ddp_announce_failure(ddp_group *g, const ddp_failure *f)
{
    ddp_announced *a = &g->server->announced;

    if (a->failed) return;
    a->failed = true;
    a->failure = *f;
    for (ddp_peer *p = g->peers.first; p != NULL; p = p->next) {
        if (!p->dead && p->state == DDP_PEER_HELPS) put_failure(p, f);
        if (!ddp_peer_is_rank(p)) continue;
        put_failure(p, f);
        a->reached++;
    }
    ddp_run_fail(g, f);
}

void rank0_announce_fail(ddp_group *g, int exit_code, int32_t rank, const char *fmt, ...)
{
    ddp_failure f = {.exit_code = exit_code, .rank = rank};
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(f.msg, sizeof(f.msg), fmt, ap);
    va_end(ap);
    ddp_announce_failure(g, &f);
}

void rank0_announce_refusal(ddp_group *g, ddp_peer *p, const ddp_failure *f, bool is_rank)
{
    put_failure(p, f);
    g->server->announced.reached += is_rank;
    p->state = DDP_PEER_REFUSED;
    p->since_ns = ddp_now_ns();
}

static void out_of_memory(ddp_group *g)
{
    rank0_announce_fail(g, DDP_EXIT_INTERNAL, 0, "rank 0 is out of memory for the control plane");
}

/* A process that helps the ranks; its `rank` is DDP_MAX_WORLD + its number. */
static ddp_peer *helper_peer(const ddp_group *g, int32_t rank)
{
    int32_t i = rank - DDP_MAX_WORLD;

    return i < DDP_MAX_HELPERS ? g->server->helpers[i].peer : NULL;
}

void ddp_announce_send(ddp_group *g, int32_t rank, uint32_t type, const ddp_text *payload)
{
    const ddp_frame own = {
        .type = type, .length = (uint32_t)payload->length, .data = (const unsigned char *)payload->data};
    bool helper = rank >= DDP_MAX_WORLD;
    ddp_peer *peer = helper ? helper_peer(g, rank) : g->server->ranks[rank].peer;
    int32_t hub = helper ? 0 : g->server->ranks[rank].hub;
    const rank0_target target = {.rank = rank};

    if (payload->failed)
        out_of_memory(g);
    else if (rank == 0)
        (void)ddp_client_dispatch(g, &own);
    else if (peer != NULL)
        ddp_peer_put(peer, type, payload->data, payload->length);
    else if (hub > 0)
        ddp_announce_relay(g, hub, type, &target, 1, payload);
}

void rank0_announce_ranks(const ddp_group *g, ddp_text *out)
{
    ddp_pack_u32(out, (uint32_t)g->world);
    for (int32_t r = 0; r < g->world; r++) {
        const ddp_rank_info *m = &g->ranks[r];

        ddp_pack_u32(out, (uint32_t)m->home);
        ddp_pack_u32(out, m->pid);
        ddp_pack_bytes(out, m->host_id, strlen(m->host_id));
        ddp_pack_bytes(out, m->host, strlen(m->host));
    }
}

void rank0_announce_welcome(ddp_group *g, int32_t rank, const ddp_text *ranks)
{
    ddp_text t = {.failed = ranks->failed};

    ddp_pack_u64(&t, g->self.start);
    ddp_pack_u32(&t, g->self.generation);
    ddp_pack_u32(&t, (uint32_t)rank);
    ddp_text_append(&t, ranks->data, ranks->length);
    ddp_announce_send(g, rank, DDP_FRAME_WELCOME, &t);
    ddp_text_free(&t);
}

void ddp_announce_relay(ddp_group *g, int32_t hub, uint32_t type, const rank0_target *targets, size_t count,
                        const ddp_text *payload)
{
    if (!rank0_relay_put(g, hub, type, targets, count, payload)) out_of_memory(g);
}
