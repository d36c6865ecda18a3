/* control/hub/leaf.c -- see leaf.h. */
#include "control/hub/leaf.h"
#include "control/state.h"
#include "control/trust.h"
#include "net/endpoint.h"

static ddp_status begin(ddp_group *g, const char *endpoint, ddp_peer **out, ddp_err *err)
{
    ddp_status status;
    ddp_wire wire;
    int fd;

    DDP_TRY(ddp_endpoint_begin(g->self.interface, endpoint, &fd, err));
    ddp_wire_init(&wire, fd, DDP_WIRE_HELLO_LIMIT);
    status = g->self.tls == NULL ? DDP_OK : ddp_wire_secure(&wire, g->self.tls, err);
    if (status == DDP_OK) status = ddp_peers_add(&g->peers, &wire, g->heartbeat.lived_ns, out, err);
    if (status != DDP_OK) ddp_wire_close(&wire);
    return status;
}

bool control_leaf_move(ddp_group *g, const ddp_frame *f)
{
    ddp_unpack u = {.data = f->data, .left = f->length};
    int32_t hub = (int32_t)ddp_unpack_u32(&u);
    char endpoint[DDP_ENDPOINT_MAX];
    ddp_text t = {0};
    ddp_peer *p;
    ddp_err err;

    ddp_unpack_text(&u, endpoint, sizeof(endpoint));
    if (u.bad || u.left != 0 || !g->run.met || hub <= 0 || hub >= g->world || g->up == NULL) return false;
    if (g->next_up != NULL || g->up->rank != 0) return true;
    if (begin(g, endpoint, &p, &err) != DDP_OK) {
        ddp_log_line(g->log, DDP_LOG_DEBUG, "rank %d, the hub of this rank, is not reached at %s: %s",
                     (int)g->ranks[hub].home, endpoint, err.msg);
        return true;
    }
    p->rank = hub;
    p->since_ns = ddp_now_ns();
    g->next_up = p;
    ddp_pack_u64(&t, g->self.start);
    ddp_pack_u32(&t, g->self.generation);
    ddp_pack_u32(&t, (uint32_t)g->rank);
    ddp_pack_u32(&t, g->ranks[g->rank].pid);
    if (!t.failed) ddp_peer_put(p, DDP_FRAME_LEAF, t.data, t.length);
    ddp_text_free(&t);
    return true;
}

bool control_leaf_heard(ddp_group *g, ddp_peer *p, const ddp_frame *f)
{
    ddp_peer *before = g->up;
    ddp_err err;

    if (f->type != DDP_FRAME_HEARD || f->length != 0 || before == NULL || !ddp_wire_trusted(&p->wire) ||
        ddp_trust_check_user(g, p->wire.fd, &err) != DDP_OK)
        return false;
    g->next_up = NULL;
    g->up = p;
    p->state = DDP_PEER_JOINED;
    p->wire.limit = before->wire.limit;
    ddp_peer_put(before, DDP_FRAME_MOVED, NULL, 0); /* the last one on this way; rank 0 answers with its last one */
    before->state = DDP_PEER_RETIRED;
    ddp_log_line(g->log, DDP_LOG_DEBUG, "this rank speaks to rank 0 by way of rank %d", (int)g->ranks[p->rank].home);
    return true;
}
