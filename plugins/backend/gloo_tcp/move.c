/* plugins/backend/gloo_tcp/move.c -- the collectives that compute nothing, over the messages of shim.h.
 *
 * broadcast    a binomial tree, chunk by chunk
 * all_gather   every rank sends to all, chunk by chunk; all_to_all the same with another slice for each
 * gather       every rank sends to the root, chunk by chunk; scatter the other way round
 * send, recv   chunk by chunk between two ranks; recv must be called on the one while send is on the other
 * barrier      a byte from each to each
 *
 * Between ranks that are in the same collective at most two chunks are under way where both ends send (all_gather,
 * all_to_all), so no cycle of ranks can block each other; in the others messages travel one way. */
#include "collective.h"
#include <string.h>

static size_t chunk_at(const ddp_comm *c, size_t at, size_t total)
{
    return total - at < c->chunk ? total - at : c->chunk;
}

/* ---- broadcast --------------------------------------------------------------------------------------------------- */
/* Children of `v` in the binomial tree whose root is 0: v + 2^k for each 2^k below v's lowest bit, the largest
 * first. */
static ddp_status send_down(ddp_comm *c, uint32_t root, uint32_t v, size_t at, const char *data, size_t bytes,
                            ddp_err *err)
{
    uint64_t bit = v != 0 ? (v & (~v + 1u)) : (uint64_t)1 << 32;
    ddp_status st = DDP_OK;

    while ((bit >>= 1) != 0 && st == DDP_OK)
        if (v + bit < c->world)
            st = ddp_gloo_send(c->mesh, (uint32_t)((v + bit + root) % c->world), DDP_GLOO_REGION, at, data + at, bytes,
                               err);
    return st;
}

ddp_status ddp_gloo_broadcast(ddp_comm *c, const ddp_coll *a, ddp_err *err)
{
    size_t total = a->count * ddp_dtype_size(a->dtype);
    uint32_t v = (c->rank + c->world - a->root) % c->world, parent = ((v & (v - 1u)) + a->root) % c->world;
    ddp_status st = ddp_gloo_expect(c->mesh, a->recv, total, err);

    if (st != DDP_OK) return st;
    for (size_t at = 0; at < total && st == DDP_OK; at += c->chunk) {
        if (v != 0) st = ddp_gloo_recv(c->mesh, parent, DDP_GLOO_REGION, err);
        if (st == DDP_OK) st = send_down(c, a->root, v, at, a->recv, chunk_at(c, at, total), err);
    }
    ddp_gloo_expect_end(c->mesh);
    return st;
}

/* ---- all to all -------------------------------------------------------------------------------------------------- */
ddp_status ddp_gloo_all_gather(ddp_comm *c, const ddp_coll *a, ddp_err *err)
{
    size_t each = a->count * ddp_dtype_size(a->dtype), own = c->rank * each;
    char *recv = a->recv;
    ddp_status st = ddp_gloo_expect(c->mesh, recv, each * c->world, err);

    if (st != DDP_OK) return st;
    if (a->send != recv + own) memcpy(recv + own, a->send, each);
    for (size_t at = 0; at < each && st == DDP_OK; at += c->chunk) {
        st = ddp_gloo_send_to_all(c, DDP_GLOO_REGION, own + at, recv + own + at, chunk_at(c, at, each), err);
        if (st == DDP_OK) st = ddp_gloo_receive_from_all(c, DDP_GLOO_REGION, err);
    }
    ddp_gloo_expect_end(c->mesh);
    return st;
}

/* In place a chunk is overwritten by its peer's only after it has been sent. */
ddp_status ddp_gloo_all_to_all(ddp_comm *c, const ddp_coll *a, ddp_err *err)
{
    size_t each = a->count * ddp_dtype_size(a->dtype), own = c->rank * each;
    const char *send = a->send;
    char *recv = a->recv;
    ddp_status st = ddp_gloo_expect(c->mesh, recv, each * c->world, err);

    if (st != DDP_OK) return st;
    memcpy(recv + own, send + own, each);
    for (size_t at = 0; at < each && st == DDP_OK; at += c->chunk) {
        for (uint32_t i = 1; i < c->world && st == DDP_OK; i++) {
            uint32_t peer = ddp_gloo_peer_at(c, i);
            st = ddp_gloo_send(c->mesh, peer, DDP_GLOO_REGION, own + at, send + peer * each + at, chunk_at(c, at, each),
                               err);
        }
        if (st == DDP_OK) st = ddp_gloo_receive_from_all(c, DDP_GLOO_REGION, err);
    }
    ddp_gloo_expect_end(c->mesh);
    return st;
}

/* ---- one and all ------------------------------------------------------------------------------------------------- */
static ddp_status send_chunks(ddp_comm *c, uint32_t peer, size_t where, const char *data, size_t total, ddp_err *err)
{
    ddp_status st = DDP_OK;

    for (size_t at = 0; at < total && st == DDP_OK; at += c->chunk)
        st = ddp_gloo_send(c->mesh, peer, DDP_GLOO_REGION, where + at, data + at, chunk_at(c, at, total), err);
    return st;
}

ddp_status ddp_gloo_gather(ddp_comm *c, const ddp_coll *a, ddp_err *err)
{
    size_t each = a->count * ddp_dtype_size(a->dtype), own = c->rank * each;
    char *recv = a->recv;
    ddp_status st;

    if (c->rank != a->root) return send_chunks(c, a->root, own, a->send, each, err);
    if (a->send != recv + own) memcpy(recv + own, a->send, each);
    st = ddp_gloo_expect(c->mesh, recv, each * c->world, err);
    if (st != DDP_OK) return st;
    for (size_t at = 0; at < each && st == DDP_OK; at += c->chunk)
        st = ddp_gloo_receive_from_all(c, DDP_GLOO_REGION, err);
    ddp_gloo_expect_end(c->mesh);
    return st;
}

ddp_status ddp_gloo_scatter(ddp_comm *c, const ddp_coll *a, ddp_err *err)
{
    size_t each = a->count * ddp_dtype_size(a->dtype), own = c->rank * each;
    const char *send = a->send;
    ddp_status st = DDP_OK;

    if (c->rank != a->root) return ddp_gloo_recv_one(c, a, err);
    for (size_t at = 0; at < each; at += c->chunk)
        for (uint32_t i = 1; i < c->world && st == DDP_OK; i++) {
            uint32_t peer = ddp_gloo_peer_at(c, i);
            st = ddp_gloo_send(c->mesh, peer, DDP_GLOO_REGION, at, send + peer * each + at, chunk_at(c, at, each), err);
        }
    if (st == DDP_OK && a->recv != send + own) memcpy(a->recv, send + own, each);
    return st;
}

/* ---- two ranks --------------------------------------------------------------------------------------------------- */
ddp_status ddp_gloo_send_one(ddp_comm *c, const ddp_coll *a, ddp_err *err)
{
    return send_chunks(c, a->root, 0, a->send, a->count * ddp_dtype_size(a->dtype), err);
}

ddp_status ddp_gloo_recv_one(ddp_comm *c, const ddp_coll *a, ddp_err *err)
{
    size_t total = a->count * ddp_dtype_size(a->dtype);
    ddp_status st = ddp_gloo_expect(c->mesh, a->recv, total, err);

    if (st != DDP_OK) return st;
    for (size_t at = 0; at < total && st == DDP_OK; at += c->chunk)
        st = ddp_gloo_recv(c->mesh, a->root, DDP_GLOO_REGION, err);
    ddp_gloo_expect_end(c->mesh);
    return st;
}

/* ---- barrier ----------------------------------------------------------------------------------------------------- */
ddp_status ddp_gloo_barrier(ddp_comm *c, ddp_err *err)
{
    ddp_status st = ddp_gloo_send_to_all(c, DDP_GLOO_INBOX, 0, "", 1, err);

    return st == DDP_OK ? ddp_gloo_receive_from_all(c, DDP_GLOO_INBOX, err) : st;
}
