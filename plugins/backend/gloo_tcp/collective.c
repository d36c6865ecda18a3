/* plugins/backend/gloo_tcp/collective.c -- the collectives that reduce, over the messages of shim.h. Those that only
 * move data are in move.c.
 *
 * all_reduce up to `small` bytes: each rank sends its vector to all others and reduces, one round. Above: the
 *                 vector is cut into blocks of world slices of at most `chunk` bytes; rank r reduces slice r of
 *                 each block and sends the result to all (reduce-scatter, all-gather; 2 (world-1)/world of the
 *                 bytes each way, as a ring, but two hops instead of 2 (world-1)). One block's sums travel while
 *                 the next block's slices do.
 * reduce          the same, but vectors and sums go to the root alone
 * reduce_scatter  blocks too, of slices that lie `count` apart, and no sum travels
 *
 * A send may block until its receiver reads (see shim.h). No cycle of ranks can block each other, because at most
 * six messages are ever under way from one rank to another in the same collective, and chunk is at most an eighth of
 * the sockets' room; a rank that is late in the order of collectives reads before it goes on, so it blocks others
 * only for a while. Every rank reduces slices in the order of the ranks: results have the same bits on all ranks and
 * for all sizes. */
#include "collective.h"
#include <string.h>

ddp_status ddp_gloo_send_to_all(ddp_comm *c, uint32_t where, size_t at, const void *data, size_t bytes, ddp_err *err)
{
    ddp_status st = DDP_OK;

    for (uint32_t i = 1; i < c->world && st == DDP_OK; i++)
        st = ddp_gloo_send(c->mesh, ddp_gloo_peer_at(c, i), where, at, data, bytes, err);
    return st;
}

ddp_status ddp_gloo_receive_from_all(ddp_comm *c, uint32_t where, ddp_err *err)
{
    ddp_status st = DDP_OK;

    for (uint32_t i = 1; i < c->world && st == DDP_OK; i++)
        st = ddp_gloo_recv(c->mesh, ddp_gloo_peer_at(c, i), where, err);
    return st;
}

/* ---- in blocks --------------------------------------------------------------------------------------------------- */
enum { TO_ALL = 1, TO_ROOT, TO_OWNER }; /* who gets the reduced slices */

typedef struct plan {
    const char *send;
    char *recv;
    size_t count, element; /* elements of a rank; bytes of one */
    size_t slice, blocks;  /* elements of a full slice */
    int result;            /* TO_* */
    uint32_t root, dtype, op;
} plan;

/* `out` = reduction of own and of what lies in the inboxes. */
static void reduce_inboxes(ddp_comm *c, const plan *p, void *out, const void *own, size_t count)
{
    for (uint32_t r = 0; r < c->world; r++) c->sources[r] = r == c->rank ? own : ddp_gloo_inbox(c->mesh, r);
    ddp_reduce(c->kernels, p->dtype, p->op, &out, 1, c->sources, c->world, count, false);
}

static bool receives_results(const ddp_comm *c, const plan *p)
{
    return p->result == TO_ALL || (p->result == TO_ROOT && p->root == c->rank);
}

/* Slice `rank` of a block: its first element in `send`, and how many, 0 beyond the end. */
static size_t slice_of(const ddp_comm *c, const plan *p, size_t block, uint32_t rank, size_t *first)
{
    size_t end = p->count;

    *first = (block * c->world + rank) * p->slice;
    if (p->result == TO_OWNER) {
        *first = rank * p->count + block * p->slice;
        end = (rank + 1) * p->count;
    }
    if (*first >= end) return 0;
    return end - *first < p->slice ? end - *first : p->slice;
}

static ddp_status scatter_block(ddp_comm *c, const plan *p, size_t block, ddp_err *err)
{
    ddp_status st = DDP_OK;
    size_t first;

    for (uint32_t i = 1; i < c->world && st == DDP_OK; i++) {
        uint32_t peer = ddp_gloo_peer_at(c, i);
        size_t n = slice_of(c, p, block, peer, &first);
        if (n == 0) continue;
        st = ddp_gloo_send(c->mesh, peer, DDP_GLOO_INBOX, 0, p->send + first * p->element, n * p->element, err);
    }
    return st;
}

static ddp_status reduce_block(ddp_comm *c, const plan *p, size_t block, ddp_err *err)
{
    size_t first, n = slice_of(c, p, block, c->rank, &first), at = first * p->element;
    char *out = p->recv + at;
    ddp_status st;

    if (n == 0) return DDP_OK;
    st = ddp_gloo_receive_from_all(c, DDP_GLOO_INBOX, err);
    if (st != DDP_OK) return st;
    if (p->result == TO_OWNER) out = p->recv + block * p->slice * p->element;
    /* on its way to the root, in the memory of a vector that has been read */
    if (p->result == TO_ROOT && p->root != c->rank) out = ddp_gloo_inbox(c->mesh, ddp_gloo_peer_at(c, 1));
    reduce_inboxes(c, p, out, p->send + at, n);
    if (p->result == TO_ALL) return ddp_gloo_send_to_all(c, DDP_GLOO_REGION, at, out, n * p->element, err);
    if (p->result == TO_ROOT && p->root != c->rank)
        return ddp_gloo_send(c->mesh, p->root, DDP_GLOO_REGION, at, out, n * p->element, err);
    return DDP_OK;
}

static ddp_status gather_block(ddp_comm *c, const plan *p, size_t block, ddp_err *err)
{
    ddp_status st = DDP_OK;
    size_t first;

    for (uint32_t i = 1; i < c->world && st == DDP_OK; i++) {
        uint32_t peer = ddp_gloo_peer_at(c, i);
        if (slice_of(c, p, block, peer, &first) > 0) st = ddp_gloo_recv(c->mesh, peer, DDP_GLOO_REGION, err);
    }
    return st;
}

static ddp_status run_blocks(ddp_comm *c, const plan *p, ddp_err *err)
{
    bool gather = receives_results(c, p);
    ddp_status st = scatter_block(c, p, 0, err);

    for (size_t b = 0; b < p->blocks && st == DDP_OK; b++) {
        if (b + 1 < p->blocks) st = scatter_block(c, p, b + 1, err);
        if (st == DDP_OK) st = reduce_block(c, p, b, err);
        if (st == DDP_OK && b > 0 && gather) st = gather_block(c, p, b - 1, err);
    }
    return st == DDP_OK && gather ? gather_block(c, p, p->blocks - 1, err) : st;
}

static ddp_status in_blocks(ddp_comm *c, plan *p, ddp_err *err)
{
    size_t ways = p->result == TO_OWNER ? 1 : c->world, block;
    ddp_status st = DDP_OK;

    if (p->element == 0) return ddp_fail(err, DDP_ERR_UNSUPPORTED, "gloo-tcp: unknown dtype");
    block = c->chunk / p->element * ways;
    p->blocks = (p->count + block - 1) / block;
    p->slice = (p->count + p->blocks * ways - 1) / (p->blocks * ways); /* blocks of one size */
    if (receives_results(c, p)) st = ddp_gloo_expect(c->mesh, p->recv, p->count * p->element, err);
    if (st != DDP_OK) return st;
    st = run_blocks(c, p, err);
    ddp_gloo_expect_end(c->mesh);
    return st;
}

/* ---- the slots --------------------------------------------------------------------------------------------------- */
static plan plan_of(const ddp_coll *a, int result)
{
    return (plan){.send = a->send,
                  .recv = a->recv,
                  .count = a->count,
                  .element = ddp_dtype_size(a->dtype),
                  .result = result,
                  .root = a->root,
                  .dtype = a->dtype,
                  .op = a->op};
}

ddp_status ddp_gloo_all_reduce(ddp_comm *c, const ddp_coll *a, ddp_err *err)
{
    plan p = plan_of(a, TO_ALL);
    ddp_status st;

    if (p.count * p.element > c->small) return in_blocks(c, &p, err);
    st = ddp_gloo_send_to_all(c, DDP_GLOO_INBOX, 0, p.send, p.count * p.element, err);
    if (st == DDP_OK) st = ddp_gloo_receive_from_all(c, DDP_GLOO_INBOX, err);
    if (st == DDP_OK) reduce_inboxes(c, &p, p.recv, p.send, p.count);
    return st;
}

ddp_status ddp_gloo_reduce(ddp_comm *c, const ddp_coll *a, ddp_err *err)
{
    plan p = plan_of(a, TO_ROOT);
    ddp_status st;

    if (p.count * p.element > c->small) return in_blocks(c, &p, err);
    if (a->root != c->rank) return ddp_gloo_send(c->mesh, a->root, DDP_GLOO_INBOX, 0, p.send, p.count * p.element, err);
    st = ddp_gloo_receive_from_all(c, DDP_GLOO_INBOX, err);
    if (st == DDP_OK) reduce_inboxes(c, &p, p.recv, p.send, p.count);
    return st;
}

ddp_status ddp_gloo_reduce_scatter(ddp_comm *c, const ddp_coll *a, ddp_err *err)
{
    plan p = plan_of(a, TO_OWNER);

    return in_blocks(c, &p, err);
}
