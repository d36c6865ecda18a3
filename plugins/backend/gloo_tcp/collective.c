/* collective.c -- the collectives, over the messages of shim.h.
 *
 * all_reduce   up to `small` bytes: each rank sends its vector to all others and reduces, one round. Above: the vector is
 *              cut into blocks of world slices of at most `chunk` bytes; rank r reduces slice r of each block and sends the
 *              result to all (reduce-scatter, all-gather; 2 (world-1)/world of the bytes each way, as a ring, but two hops
 *              instead of 2 (world-1)). One block's sums travel while the next block's slices do.
 * broadcast    a binomial tree, chunk by chunk
 * all_gather   every rank sends to all, chunk by chunk
 * barrier      a byte from each to each
 *
 * A send may block until its receiver reads (see shim.h). No cycle of ranks can block each other, because at most six
 * messages are ever under way from one rank to another, and chunk is at most an eighth of the sockets' room.
 * Slices are reduced in the order of the ranks, whoever does it: results have the same bits on all ranks and for all sizes. */
#include "collective.h"
#include <string.h>

/* Every peer, each rank starting with another, so that no rank is everyone's first. */
static uint32_t peer_at(const ddp_comm *c, uint32_t step) { return (c->rank + step) % c->world; }

static ddp_status send_to_all(ddp_comm *c, uint32_t where, size_t at, const void *data, size_t bytes, ddp_err *err)
{
    ddp_status st = DDP_OK;

    for (uint32_t i = 1; i < c->world && st == DDP_OK; i++)
        st = ddp_gloo_send(c->mesh, peer_at(c, i), where, at, data, bytes, err);
    return st;
}

static ddp_status receive_from_all(ddp_comm *c, uint32_t where, ddp_err *err)
{
    ddp_status st = DDP_OK;

    for (uint32_t i = 1; i < c->world && st == DDP_OK; i++) st = ddp_gloo_recv(c->mesh, peer_at(c, i), where, err);
    return st;
}

/* `out` = reduction of own and of what lies in the inboxes. */
static void reduce_inboxes(ddp_comm *c, ddp_gloo_reduction reduce, void *out, const void *own, size_t count)
{
    for (uint32_t r = 0; r < c->world; r++) c->sources[r] = r == c->rank ? own : ddp_gloo_inbox(c->mesh, r);
    reduce(out, c->sources, c->world, count);
}

/* ---- all_reduce ---------------------------------------------------------------------------------------------------- */
typedef struct plan { /* of one all_reduce in blocks */
    const char *send;
    char *recv;
    size_t count, element; /* elements; bytes of one */
    size_t slice, blocks;  /* elements of a full slice */
    ddp_gloo_reduction reduce;
} plan;

/* Slice `rank` of a block: its first element, and how many, 0 beyond the end. */
static size_t slice_of(const ddp_comm *c, const plan *p, size_t block, uint32_t rank, size_t *first)
{
    *first = (block * c->world + rank) * p->slice;
    if (*first >= p->count) return 0;
    return p->count - *first < p->slice ? p->count - *first : p->slice;
}

static ddp_status scatter_block(ddp_comm *c, const plan *p, size_t block, ddp_err *err)
{
    ddp_status st = DDP_OK;
    size_t first;

    for (uint32_t i = 1; i < c->world && st == DDP_OK; i++) {
        uint32_t peer = peer_at(c, i);
        size_t n = slice_of(c, p, block, peer, &first);
        if (n == 0) continue;
        st = ddp_gloo_send(c->mesh, peer, DDP_GLOO_INBOX, 0, p->send + first * p->element, n * p->element, err);
    }
    return st;
}

static ddp_status reduce_block(ddp_comm *c, const plan *p, size_t block, ddp_err *err)
{
    size_t first, n = slice_of(c, p, block, c->rank, &first);
    ddp_status st;

    if (n == 0) return DDP_OK;
    st = receive_from_all(c, DDP_GLOO_INBOX, err);
    if (st != DDP_OK) return st;
    reduce_inboxes(c, p->reduce, p->recv + first * p->element, p->send + first * p->element, n);
    return send_to_all(c, DDP_GLOO_REGION, first * p->element, p->recv + first * p->element, n * p->element, err);
}

static ddp_status gather_block(ddp_comm *c, const plan *p, size_t block, ddp_err *err)
{
    ddp_status st = DDP_OK;
    size_t first;

    for (uint32_t i = 1; i < c->world && st == DDP_OK; i++) {
        uint32_t peer = peer_at(c, i);
        if (slice_of(c, p, block, peer, &first) > 0) st = ddp_gloo_recv(c->mesh, peer, DDP_GLOO_REGION, err);
    }
    return st;
}

static ddp_status run_blocks(ddp_comm *c, const plan *p, ddp_err *err)
{
    ddp_status st = scatter_block(c, p, 0, err);

    for (size_t b = 0; b < p->blocks && st == DDP_OK; b++) {
        if (b + 1 < p->blocks) st = scatter_block(c, p, b + 1, err);
        if (st == DDP_OK) st = reduce_block(c, p, b, err);
        if (st == DDP_OK && b > 0) st = gather_block(c, p, b - 1, err);
    }
    return st == DDP_OK ? gather_block(c, p, p->blocks - 1, err) : st;
}

static ddp_status all_reduce_blocks(ddp_comm *c, plan *p, ddp_err *err)
{
    size_t block = c->chunk / p->element * c->world;
    ddp_status st = ddp_gloo_expect(c->mesh, p->recv, p->count * p->element, err);

    if (st != DDP_OK) return st;
    p->blocks = (p->count + block - 1) / block;
    p->slice = (p->count + p->blocks * c->world - 1) / (p->blocks * c->world); /* blocks of one size */
    st = run_blocks(c, p, err);
    ddp_gloo_expect_end(c->mesh);
    return st;
}

static ddp_status all_reduce_small(ddp_comm *c, const plan *p, ddp_err *err)
{
    ddp_status st = send_to_all(c, DDP_GLOO_INBOX, 0, p->send, p->count * p->element, err);

    if (st == DDP_OK) st = receive_from_all(c, DDP_GLOO_INBOX, err);
    if (st == DDP_OK) reduce_inboxes(c, p->reduce, p->recv, p->send, p->count);
    return st;
}

ddp_status ddp_gloo_all_reduce(ddp_comm *c, const ddp_coll *a, ddp_err *err)
{
    plan p = {.send = a->send, .recv = a->recv, .count = a->count, .element = ddp_dtype_size(a->dtype)};

    p.reduce = ddp_gloo_reduction_of(a->dtype, a->op, c->world);
    if (p.count * p.element <= c->small) return all_reduce_small(c, &p, err);
    return all_reduce_blocks(c, &p, err);
}

/* ---- broadcast ----------------------------------------------------------------------------------------------------- */
/* Children of `v` in the binomial tree whose root is 0: v + 2^k for each 2^k below v's lowest bit, the largest first. */
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
        size_t bytes = total - at < c->chunk ? total - at : c->chunk;
        if (v != 0) st = ddp_gloo_recv(c->mesh, parent, DDP_GLOO_REGION, err);
        if (st == DDP_OK) st = send_down(c, a->root, v, at, a->recv, bytes, err);
    }
    ddp_gloo_expect_end(c->mesh);
    return st;
}

/* ---- all_gather, barrier ------------------------------------------------------------------------------------------- */
ddp_status ddp_gloo_all_gather(ddp_comm *c, const ddp_coll *a, ddp_err *err)
{
    size_t each = a->count * ddp_dtype_size(a->dtype), own = c->rank * each;
    char *recv = a->recv;
    ddp_status st = ddp_gloo_expect(c->mesh, recv, each * c->world, err);

    if (st != DDP_OK) return st;
    if (a->send != recv + own) memcpy(recv + own, a->send, each);
    for (size_t at = 0; at < each && st == DDP_OK; at += c->chunk) {
        size_t bytes = each - at < c->chunk ? each - at : c->chunk;
        st = send_to_all(c, DDP_GLOO_REGION, own + at, recv + own + at, bytes, err);
        if (st == DDP_OK) st = receive_from_all(c, DDP_GLOO_REGION, err);
    }
    ddp_gloo_expect_end(c->mesh);
    return st;
}

ddp_status ddp_gloo_barrier(ddp_comm *c, ddp_err *err)
{
    ddp_status st = send_to_all(c, DDP_GLOO_INBOX, 0, "", 1, err);

    return st == DDP_OK ? receive_from_all(c, DDP_GLOO_INBOX, err) : st;
}
