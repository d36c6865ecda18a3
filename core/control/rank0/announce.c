/* control/rank0/announce.c -- rank 0: a frame to one rank, the first failure to all, and to a connection why it
 * cannot stay. */
#include "control/rank0/announce.h"
#include "control/client.h"
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

void ddp_announce_send(ddp_group *g, int32_t rank, uint32_t type, const ddp_text *payload)
{
    const ddp_frame own = {
        .type = type, .length = (uint32_t)payload->length, .data = (const unsigned char *)payload->data};
    ddp_peer *peer = g->server->ranks[rank].peer;

    if (payload->failed)
        rank0_announce_fail(g, DDP_EXIT_INTERNAL, 0, "rank 0 is out of memory for the control plane");
    else if (rank == 0)
        (void)ddp_client_dispatch(g, &own);
    else if (peer != NULL)
        ddp_peer_put(peer, type, payload->data, payload->length);
}
