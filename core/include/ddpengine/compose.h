/* ddpengine/compose.h -- all collectives of a backend, from a function that sends and one that receives.
 *
 * For the author of a backend, who has a wire between each two ranks and no collectives: write ddp_transport, give it
 * to ddp_compose_create in comm_create, and put DDP_COMPOSE_CAPS and DDP_COMPOSE_SLOTS into the function table. It is
 * a blocking backend of host memory. This header defines ddp_backend and ddp_comm, so one file of a plugin includes it.
 *
 * What is done with n ranks and B bytes, of which a rank sends and receives at most
 *     all_reduce       up to DDP_COMPOSE_SMALL: reduced to rank 0 and broadcast along a binomial tree, B log2 n
 *                      larger: ring of reduce_scatter and all_gather, 2 B (n - 1) / n
 *     reduce           small: binomial tree. Larger: along the chain of ranks in pieces, B
 *     broadcast        the same the other way
 *     all_gather, reduce_scatter   ring, B (n - 1), B being of one rank's block
 *     gather, scatter  between the root and each rank; all_to_all: in n - 1 rounds, to rank + i and from rank - i
 *     barrier          dissemination, log2 n rounds of one byte
 * A sum is made in an order that depends on n and the size alone, by one rank, which sends it to the others: all ranks
 * and all runs get the same bits. Nothing is allocated after ddp_compose_create.
 *
 * Sources: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH", 2005
 * (trees, rings); D. Hensgen, R. Finkel, U. Manber, "Two algorithms for barrier synchronization", 1988. */
#ifndef DDPENGINE_COMPOSE_H
#define DDPENGINE_COMPOSE_H

#include <ddpengine/backend.h>
#include <ddpengine/reduce.h>

#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifndef CLOCK_MONOTONIC
#error "compose.h needs the clocks of POSIX: compile with -std=gnu11, or with -D_POSIX_C_SOURCE=200809L"
#endif

#ifdef __cplusplus
extern "C" {
#endif

#ifndef DDP_COMPOSE_SMALL
#define DDP_COMPOSE_SMALL ((size_t)16 << 10) /* bytes up to which fewer messages count more than fewer bytes */
#endif
#define DDP_COMPOSE_PIECE ((size_t)256 << 10) /* bytes that are reduced at once; each communicator has two such */
#define DDP_COMPOSE_WAIT  20                  /* ms after which a waiting call looks whether it was aborted */

/* ---- what the author writes -------------------------------------------------------------------------------------- */
/* Bytes between two ranks arrive whole and in order, as over a socket. One thread, the queue thread, makes all calls.
 * An error is final: the communicator answers DDP_ERR_ABORTED from then on. */
typedef struct ddp_transport {
    /* Takes as many of the `bytes` bytes, of which there is at least one, as can be sent to rank `peer` now, and waits
     * at most wait_ms until one can; 0: does not wait. *moved: how many, 0 if none; the core has set it to 0. */
    ddp_status (*send)(void *link, uint32_t peer, const void *data, size_t bytes, int wait_ms, size_t *moved,
                       ddp_err *err);
    /* The same with what has come from rank `peer`. That it has closed is DDP_ERR_PEER. */
    ddp_status (*recv)(void *link, uint32_t peer, void *data, size_t bytes, int wait_ms, size_t *moved, ddp_err *err);
    void (*close)(void *link); /* of comm_destroy, and of a ddp_compose_create that fails */
} ddp_transport;

/* ---- what this header defines ------------------------------------------------------------------------------------ */
struct ddp_backend {
    const ddp_host *host;
    const void *config; /* the plugin's options */
};

struct ddp_comm {
    const ddp_transport *transport;
    void *link;
    uint32_t rank, world;
    int64_t timeout_ms, deadline_ms; /* deadline_ms: of the call under way */
    int aborted;                     /* set by other threads */
    int failed;                      /* an earlier call has: the ranks no longer agree on what comes next */
    char *piece[2];                  /* DDP_COMPOSE_PIECE bytes each */
};

static inline ddp_status ddp_compose_open(const ddp_host *host, const void *config, ddp_backend **out, ddp_err *err)
{
    ddp_backend *b = (ddp_backend *)calloc(1, sizeof(*b));

    if (b == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "no memory for the backend");
    b->host = host;
    b->config = config;
    *out = b;
    return DDP_OK;
}

static inline void ddp_compose_close(ddp_backend *b) { free(b); }

/* ---- moving bytes ------------------------------------------------------------------------------------------------ */
/* What goes out and what comes in at the same time. */
typedef struct ddp_compose_move {
    uint32_t to, from;
    const char *out;
    char *in;
    size_t out_bytes, in_bytes; /* left */
} ddp_compose_move;

static inline int64_t ddp_compose_now_ms_(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* After a wait in which nothing has moved: whether to go on. */
static inline ddp_status ddp_compose_idle_(ddp_comm *c, const char *what, uint32_t peer, ddp_err *err)
{
    if (__atomic_load_n(&c->aborted, __ATOMIC_ACQUIRE)) return ddp_fail(err, DDP_ERR_ABORTED, "%s was aborted", what);
    if (ddp_compose_now_ms_() < c->deadline_ms) return DDP_OK;
    (void)ddp_fail(err, DDP_ERR_TIMEOUT, "%s: rank %u has not come to it within %lld ms", what, peer,
                   (long long)c->timeout_ms);
    err->rank = (int32_t)peer;
    return err->status;
}

/* One try. `idle`: the last one has moved nothing. While both directions have bytes left, neither is waited for longer
 * than a millisecond. */
static inline ddp_status ddp_compose_try_(ddp_comm *c, ddp_compose_move *m, int *idle, ddp_err *err)
{
    const int both = m->out_bytes > 0 && m->in_bytes > 0, wait = both ? *idle : DDP_COMPOSE_WAIT;
    size_t sent = 0, received = 0;

    if (m->out_bytes > 0)
        DDP_TRY(c->transport->send(c->link, m->to, m->out, m->out_bytes, both ? 0 : wait, &sent, err));
    if (m->in_bytes > 0) DDP_TRY(c->transport->recv(c->link, m->from, m->in, m->in_bytes, wait, &received, err));
    m->out += sent;
    m->out_bytes -= sent;
    m->in += received;
    m->in_bytes -= received;
    *idle = sent + received == 0;
    return DDP_OK;
}

/* Sends `out_bytes` and receives `in_bytes`; either may be 0. */
static inline ddp_status ddp_compose_both_(ddp_comm *c, const char *what, ddp_compose_move m, ddp_err *err)
{
    ddp_status status = DDP_OK;
    int idle = 0;

    while (status == DDP_OK && m.out_bytes + m.in_bytes > 0) {
        status = ddp_compose_try_(c, &m, &idle, err);
        if (status == DDP_OK && idle) status = ddp_compose_idle_(c, what, m.in_bytes > 0 ? m.from : m.to, err);
    }
    if (status != DDP_OK) c->failed = 1;
    return status;
}

static inline ddp_status ddp_compose_out_(ddp_comm *c, const char *what, uint32_t to, const void *data, size_t bytes,
                                          ddp_err *err)
{
    const ddp_compose_move m = {to, to, (const char *)data, NULL, bytes, 0};

    return ddp_compose_both_(c, what, m, err);
}

static inline ddp_status ddp_compose_in_(ddp_comm *c, const char *what, uint32_t from, void *data, size_t bytes,
                                         ddp_err *err)
{
    const ddp_compose_move m = {from, from, NULL, (char *)data, 0, bytes};

    return ddp_compose_both_(c, what, m, err);
}

/* ---- arguments --------------------------------------------------------------------------------------------------- */
static inline ddp_status ddp_compose_supports(ddp_comm *c, uint32_t dtype, uint32_t op)
{
    (void)c;
    return ddp_reduce_has(dtype, op) ? DDP_OK : DDP_ERR_UNSUPPORTED;
}

/* Of a collective on this rank: how many blocks of `count` elements its buffers hold, and what is in place. */
enum {
    DDP_COMPOSE_NEVER_ = 0,
    DDP_COMPOSE_SAME_,
    DDP_COMPOSE_BLOCK_
}; /* BLOCK: one is this rank's block of the other */

typedef struct ddp_compose_shape {
    const char *what;
    uint32_t send, recv;
    int in_place, reduces, rooted;
} ddp_compose_shape;

static inline int ddp_compose_apart_(const ddp_comm *c, const ddp_coll *a, const ddp_compose_shape *s, size_t bytes)
{
    const uintptr_t x = (uintptr_t)a->send, y = (uintptr_t)a->recv, own = c->rank * bytes;

    if (s->in_place == DDP_COMPOSE_SAME_ && x == y) return 1;
    if (s->in_place == DDP_COMPOSE_BLOCK_ && (s->recv > s->send ? x == y + own : y == x + own)) return 1;
    return x >= y + s->recv * bytes || y >= x + s->send * bytes;
}

/* Begins a collective. *bytes: of `count` elements. */
static inline ddp_status ddp_compose_check_(ddp_comm *c, const ddp_coll *a, ddp_compose_shape s, size_t *bytes,
                                            ddp_err *err)
{
    const size_t size = ddp_dtype_size(a->dtype);

    if (__atomic_load_n(&c->aborted, __ATOMIC_ACQUIRE) || c->failed)
        return ddp_fail(err, DDP_ERR_ABORTED, "%s: the communicator was aborted or has failed before", s.what);
    if (size == 0 || (s.reduces && !ddp_reduce_has(a->dtype, a->op)))
        return ddp_fail(err, DDP_ERR_UNSUPPORTED, "%s: no dtype %u with operation %u", s.what, a->dtype, a->op);
    if (s.rooted && a->root >= c->world)
        return ddp_fail(err, DDP_ERR_INVALID, "%s with rank %u of %u", s.what, a->root, c->world);
    if (a->count > (size_t)PTRDIFF_MAX / size / c->world)
        return ddp_fail(err, DDP_ERR_INVALID, "%s of %llu elements for each of %u ranks: no memory is so large", s.what,
                        (unsigned long long)a->count, c->world);
    c->deadline_ms = ddp_compose_now_ms_() + c->timeout_ms;
    *bytes = a->count * size;
    if (*bytes > 0 && ((s.send > 0 && a->send == NULL) || (s.recv > 0 && a->recv == NULL)))
        return ddp_fail(err, DDP_ERR_INVALID, "%s of %llu elements without a buffer", s.what,
                        (unsigned long long)a->count);
    if (*bytes > 0 && s.send > 0 && s.recv > 0 && !ddp_compose_apart_(c, a, &s, *bytes))
        return ddp_fail(err, DDP_ERR_INVALID, "%s: send and recv overlap and are not in place", s.what);
    return DDP_OK;
}

static inline void ddp_compose_copy_(void *to, const void *from, size_t bytes)
{
    if (to != from && bytes > 0) memmove(to, from, bytes);
}

/* The end of DDP_AVG; nothing for the other operations. */
static inline void ddp_compose_mean_(const ddp_comm *c, const ddp_coll *a, char *data, size_t bytes)
{
    if (a->op == DDP_AVG) ddp_reduce_divide(a->dtype, data, bytes / ddp_dtype_size(a->dtype), c->world);
}

static inline size_t ddp_compose_least_(size_t a, size_t b) { return a < b ? a : b; }

/* Where the block of rank r begins, of `count` elements that the ranks share; the blocks differ by one at most. */
static inline size_t ddp_compose_begin_(const ddp_comm *c, size_t count, uint32_t r)
{
    return count / c->world * r + ddp_compose_least_(count % c->world, r);
}

/* ---- trees and chains -------------------------------------------------------------------------------------------- */
/* Small: of all ranks' `acc` that of the root becomes the result, the others' partial ones. */
static inline ddp_status ddp_compose_tree_up_(ddp_comm *c, const char *what, const ddp_coll *a, uint32_t root,
                                              char *acc, size_t bytes, ddp_err *err)
{
    const uint32_t me = (c->rank + c->world - root) % c->world;
    uint32_t step;

    for (step = 1; step < c->world; step *= 2) {
        if (me & step) return ddp_compose_out_(c, what, (me - step + root) % c->world, acc, bytes, err);
        if (me + step >= c->world) continue;
        DDP_TRY(ddp_compose_in_(c, what, (me + step + root) % c->world, c->piece[1], bytes, err));
        ddp_reduce(a->dtype, a->op, acc, c->piece[1], bytes / ddp_dtype_size(a->dtype));
    }
    ddp_compose_mean_(c, a, acc, bytes);
    return DDP_OK;
}

static inline ddp_status ddp_compose_tree_down_(ddp_comm *c, const char *what, uint32_t root, char *data, size_t bytes,
                                                ddp_err *err)
{
    const uint32_t me = (c->rank + c->world - root) % c->world;
    uint32_t step = 1;

    while (step < c->world && !(me & step)) step *= 2;
    if (me > 0) DDP_TRY(ddp_compose_in_(c, what, (me - step + root) % c->world, data, bytes, err));
    while (step /= 2)
        if (me + step < c->world) DDP_TRY(ddp_compose_out_(c, what, (me + step + root) % c->world, data, bytes, err));
    return DDP_OK;
}

/* Large: piece k comes from the rank before, while piece k - 1 goes to the one behind. */
static inline ddp_status ddp_compose_chain_down_(ddp_comm *c, const char *what, uint32_t root, char *data, size_t bytes,
                                                 ddp_err *err)
{
    const uint32_t me = (c->rank + c->world - root) % c->world;
    ddp_compose_move m = {(c->rank + 1) % c->world, (c->rank + c->world - 1) % c->world, NULL, NULL, 0, 0};
    size_t at = 0, had = 0;

    do {
        const size_t now = ddp_compose_least_(bytes - at, DDP_COMPOSE_PIECE);

        m.in = data + at;
        m.in_bytes = me > 0 ? now : 0;
        m.out = data + at - had;
        m.out_bytes = me + 1 < c->world ? had : 0;
        DDP_TRY(ddp_compose_both_(c, what, m, err));
        at += now;
        had = now;
    } while (had > 0);
    return DDP_OK;
}

/* The other way round: towards the root, and each rank adds its own. Only the root has a recv. */
static inline ddp_status ddp_compose_chain_up_(ddp_comm *c, const char *what, const ddp_coll *a, size_t bytes,
                                               ddp_err *err)
{
    const uint32_t me = (c->rank + c->world - a->root) % c->world;
    ddp_compose_move m = {(c->rank + c->world - 1) % c->world, (c->rank + 1) % c->world, NULL, NULL, 0, 0};
    size_t at = 0, had = 0;
    uint32_t k = 0;

    do {
        const size_t now = ddp_compose_least_(bytes - at, DDP_COMPOSE_PIECE);
        const char *own = (const char *)a->send + at;

        m.in = c->piece[k];
        m.in_bytes = me + 1 < c->world ? now : 0;
        m.out = c->piece[1 - k];
        m.out_bytes = me > 0 ? had : 0;
        DDP_TRY(ddp_compose_both_(c, what, m, err));
        if (me + 1 < c->world)
            ddp_reduce(a->dtype, a->op, c->piece[k], own, now / ddp_dtype_size(a->dtype));
        else
            ddp_compose_copy_(c->piece[k], own, now);
        if (me == 0) {
            ddp_compose_mean_(c, a, c->piece[k], now);
            ddp_compose_copy_((char *)a->recv + at, c->piece[k], now);
        }
        at += now;
        had = now;
        k = 1 - k;
    } while (had > 0);
    return DDP_OK;
}

/* ---- rings ------------------------------------------------------------------------------------------------------- */
/* Block r of all ranks' `send`, elements begin(r) .. begin(r + 1) - 1 of `count`, is reduced to rank r, which writes it
 * to `to`; the ranks take part in the order r + 1, r + 2, .., r. By pieces, since partial sums need memory. */
static inline ddp_status ddp_compose_ring_reduce_(ddp_comm *c, const char *what, const ddp_coll *a, char *to,
                                                  size_t count, ddp_err *err)
{
    const size_t size = ddp_dtype_size(a->dtype), most = DDP_COMPOSE_PIECE / size;
    const size_t longest = ddp_compose_begin_(c, count, 1);
    const char *from = (const char *)a->send;
    ddp_compose_move m = {(c->rank + 1) % c->world, (c->rank + c->world - 1) % c->world, NULL, NULL, 0, 0};
    size_t at;

    for (at = 0; at < longest; at += most) {
        uint32_t i, k = 0;

        for (i = 0; i < c->world; i++) { /* the partial sum of block `r` comes in, that of the block before goes out */
            const uint32_t r = (c->rank + 2 * c->world - i - 1) % c->world;
            const size_t begin = ddp_compose_begin_(c, count, r) + at, end = ddp_compose_begin_(c, count, r + 1);
            const size_t bytes = (begin < end ? ddp_compose_least_(end - begin, most) : 0) * size;

            m.in = c->piece[k];
            m.in_bytes = i > 0 ? bytes : 0;
            if (i > 0) DDP_TRY(ddp_compose_both_(c, what, m, err));
            if (i > 0)
                ddp_reduce(a->dtype, a->op, c->piece[k], from + begin * size, bytes / size);
            else if (bytes > 0)
                memcpy(c->piece[k], from + begin * size, bytes);
            m.out = c->piece[k];
            m.out_bytes = bytes;
            if (i + 1 == c->world) {
                ddp_compose_mean_(c, a, c->piece[k], bytes);
                ddp_compose_copy_(to + at * size, c->piece[k], bytes);
            }
            k = 1 - k;
        }
    }
    return DDP_OK;
}

/* Every rank has its own block of the `count` elements of `data`, and gets the others'. */
static inline ddp_status ddp_compose_ring_gather_(ddp_comm *c, const char *what, char *data, size_t count, size_t size,
                                                  ddp_err *err)
{
    ddp_compose_move m = {(c->rank + 1) % c->world, (c->rank + c->world - 1) % c->world, NULL, NULL, 0, 0};
    uint32_t i;

    for (i = 0; i + 1 < c->world; i++) {
        const uint32_t out = (c->rank + c->world - i) % c->world, in = (out + c->world - 1) % c->world;

        m.out = data + ddp_compose_begin_(c, count, out) * size;
        m.out_bytes = (ddp_compose_begin_(c, count, out + 1) - ddp_compose_begin_(c, count, out)) * size;
        m.in = data + ddp_compose_begin_(c, count, in) * size;
        m.in_bytes = (ddp_compose_begin_(c, count, in + 1) - ddp_compose_begin_(c, count, in)) * size;
        DDP_TRY(ddp_compose_both_(c, what, m, err));
    }
    return DDP_OK;
}

/* ---- the slots --------------------------------------------------------------------------------------------------- */
/* A blocking backend leaves *out as it is: it has no works. */
static inline ddp_status ddp_compose_all_reduce(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    const ddp_compose_shape s = {"all_reduce", 1, 1, DDP_COMPOSE_SAME_, 1, 0};
    const size_t size = ddp_dtype_size(a->dtype);
    char *recv = (char *)a->recv;
    size_t bytes;

    (void)out;
    DDP_TRY(ddp_compose_check_(c, a, s, &bytes, err));
    if (bytes <= DDP_COMPOSE_SMALL) {
        ddp_compose_copy_(recv, a->send, bytes);
        DDP_TRY(ddp_compose_tree_up_(c, s.what, a, 0, recv, bytes, err));
        return ddp_compose_tree_down_(c, s.what, 0, recv, bytes, err);
    }
    DDP_TRY(
        ddp_compose_ring_reduce_(c, s.what, a, recv + ddp_compose_begin_(c, a->count, c->rank) * size, a->count, err));
    return ddp_compose_ring_gather_(c, s.what, recv, a->count, size, err);
}

static inline ddp_status ddp_compose_broadcast(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    const ddp_compose_shape s = {"broadcast", 0, 1, DDP_COMPOSE_NEVER_, 0, 1};
    size_t bytes;

    (void)out;
    DDP_TRY(ddp_compose_check_(c, a, s, &bytes, err));
    if (bytes <= DDP_COMPOSE_SMALL) return ddp_compose_tree_down_(c, s.what, a->root, (char *)a->recv, bytes, err);
    return ddp_compose_chain_down_(c, s.what, a->root, (char *)a->recv, bytes, err);
}

static inline ddp_status ddp_compose_all_gather(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    const ddp_compose_shape s = {"all_gather", 1, c->world, DDP_COMPOSE_BLOCK_, 0, 0};
    char *recv = (char *)a->recv;
    size_t bytes;

    (void)out;
    DDP_TRY(ddp_compose_check_(c, a, s, &bytes, err));
    if (bytes == 0) return DDP_OK;
    ddp_compose_copy_(recv + c->rank * bytes, a->send, bytes);
    return ddp_compose_ring_gather_(c, s.what, recv, a->count * c->world, ddp_dtype_size(a->dtype), err);
}

static inline ddp_status ddp_compose_reduce_scatter(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    const ddp_compose_shape s = {"reduce_scatter", c->world, 1, DDP_COMPOSE_BLOCK_, 1, 0};
    size_t bytes;

    (void)out;
    DDP_TRY(ddp_compose_check_(c, a, s, &bytes, err));
    return ddp_compose_ring_reduce_(c, s.what, a, (char *)a->recv, a->count * c->world, err);
}

static inline ddp_status ddp_compose_reduce(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    const int root = c->rank == a->root;
    const ddp_compose_shape s = {"reduce", 1, root ? 1u : 0u, DDP_COMPOSE_SAME_, 1, 1};
    char *acc = root ? (char *)a->recv : c->piece[0];
    size_t bytes;

    (void)out;
    DDP_TRY(ddp_compose_check_(c, a, s, &bytes, err));
    if (bytes > DDP_COMPOSE_SMALL) return ddp_compose_chain_up_(c, s.what, a, bytes, err);
    ddp_compose_copy_(acc, a->send, bytes);
    return ddp_compose_tree_up_(c, s.what, a, a->root, acc, bytes, err);
}

static inline ddp_status ddp_compose_gather(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    const int root = c->rank == a->root;
    const ddp_compose_shape s = {"gather", 1, root ? c->world : 0, DDP_COMPOSE_BLOCK_, 0, 1};
    char *recv = (char *)a->recv;
    size_t bytes;
    uint32_t r;

    (void)out;
    DDP_TRY(ddp_compose_check_(c, a, s, &bytes, err));
    if (bytes == 0) return DDP_OK;
    if (!root) return ddp_compose_out_(c, s.what, a->root, a->send, bytes, err);
    ddp_compose_copy_(recv + c->rank * bytes, a->send, bytes);
    for (r = 0; r < c->world; r++)
        if (r != c->rank) DDP_TRY(ddp_compose_in_(c, s.what, r, recv + r * bytes, bytes, err));
    return DDP_OK;
}

static inline ddp_status ddp_compose_scatter(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    const int root = c->rank == a->root;
    const ddp_compose_shape s = {"scatter", root ? c->world : 0, 1, DDP_COMPOSE_BLOCK_, 0, 1};
    const char *send = (const char *)a->send;
    size_t bytes;
    uint32_t r;

    (void)out;
    DDP_TRY(ddp_compose_check_(c, a, s, &bytes, err));
    if (bytes == 0) return DDP_OK;
    if (!root) return ddp_compose_in_(c, s.what, a->root, a->recv, bytes, err);
    for (r = 0; r < c->world; r++)
        if (r != c->rank) DDP_TRY(ddp_compose_out_(c, s.what, r, send + r * bytes, bytes, err));
    ddp_compose_copy_(a->recv, send + c->rank * bytes, bytes);
    return DDP_OK;
}

static inline ddp_status ddp_compose_all_to_all(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    const ddp_compose_shape s = {"all_to_all", c->world, c->world, DDP_COMPOSE_NEVER_, 0, 0};
    const char *send = (const char *)a->send;
    char *recv = (char *)a->recv;
    size_t bytes;
    uint32_t i;

    (void)out;
    DDP_TRY(ddp_compose_check_(c, a, s, &bytes, err));
    if (bytes == 0) return DDP_OK;
    ddp_compose_copy_(recv + c->rank * bytes, send + c->rank * bytes, bytes);
    for (i = 1; i < c->world; i++) {
        const uint32_t to = (c->rank + i) % c->world, from = (c->rank + c->world - i) % c->world;
        const ddp_compose_move m = {to, from, send + to * bytes, recv + from * bytes, bytes, bytes};

        DDP_TRY(ddp_compose_both_(c, s.what, m, err));
    }
    return DDP_OK;
}

static inline ddp_status ddp_compose_send(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    const ddp_compose_shape s = {"send", 1, 0, DDP_COMPOSE_NEVER_, 0, 1};
    size_t bytes;

    (void)out;
    DDP_TRY(ddp_compose_check_(c, a, s, &bytes, err));
    if (a->root == c->rank) return ddp_fail(err, DDP_ERR_INVALID, "send from rank %u to itself", c->rank);
    return ddp_compose_out_(c, s.what, a->root, a->send, bytes, err);
}

static inline ddp_status ddp_compose_recv(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    const ddp_compose_shape s = {"recv", 0, 1, DDP_COMPOSE_NEVER_, 0, 1};
    size_t bytes;

    (void)out;
    DDP_TRY(ddp_compose_check_(c, a, s, &bytes, err));
    if (a->root == c->rank) return ddp_fail(err, DDP_ERR_INVALID, "recv of rank %u from itself", c->rank);
    return ddp_compose_in_(c, s.what, a->root, a->recv, bytes, err);
}

static inline ddp_status ddp_compose_barrier(ddp_comm *c, ddp_work **out, ddp_err *err)
{
    const ddp_compose_shape s = {"barrier", 0, 0, DDP_COMPOSE_NEVER_, 0, 0};
    ddp_coll none;
    size_t bytes;
    uint32_t step;

    (void)out;
    memset(&none, 0, sizeof(none));
    none.dtype = DDP_U8;
    DDP_TRY(ddp_compose_check_(c, &none, s, &bytes, err));
    for (step = 1; step < c->world; step *= 2) {
        char byte = 0, theirs;
        const ddp_compose_move m = {
            (c->rank + step) % c->world, (c->rank + c->world - step) % c->world, &byte, &theirs, 1, 1};

        DDP_TRY(ddp_compose_both_(c, s.what, m, err));
    }
    return DDP_OK;
}

/* ---- a communicator ---------------------------------------------------------------------------------------------- */
static inline void ddp_compose_abort(ddp_comm *c) { __atomic_store_n(&c->aborted, 1, __ATOMIC_RELEASE); }

static inline void ddp_compose_destroy(ddp_comm *c)
{
    c->transport->close(c->link);
    free(c->piece[0]);
    free(c);
}

/* The end of comm_create: `link`, which is of this communicator from now on, can send to and receive from every other
 * rank. Returns when all ranks have come here; on failure the link is closed. */
static inline ddp_status ddp_compose_create(const ddp_comm_params *p, const ddp_transport *transport, void *link,
                                            ddp_comm **out, ddp_err *err)
{
    ddp_comm *c = (ddp_comm *)calloc(1, sizeof(*c));
    char *pieces = (char *)malloc(2 * DDP_COMPOSE_PIECE);
    ddp_status status;

    if (c == NULL || pieces == NULL) {
        free(c);
        free(pieces);
        transport->close(link);
        return ddp_fail(err, DDP_ERR_NOMEM, "no memory for a communicator");
    }
    c->transport = transport;
    c->link = link;
    c->rank = p->rank;
    c->world = p->world_size;
    c->piece[0] = pieces;
    c->piece[1] = pieces + DDP_COMPOSE_PIECE;
    c->timeout_ms = p->connect_timeout_ms;
    status = ddp_compose_barrier(c, NULL, err);
    if (status != DDP_OK) {
        ddp_compose_destroy(c);
        return status;
    }
    c->timeout_ms = p->timeout_ms;
    *out = c;
    return DDP_OK;
}

/* For the function table; struct_size, open, close and comm_create stand in front of them. */
#define DDP_COMPOSE_CAPS                                                                                               \
    (DDP_CAP_ALL_REDUCE | DDP_CAP_BROADCAST | DDP_CAP_ALL_GATHER | DDP_CAP_REDUCE_SCATTER | DDP_CAP_BARRIER |          \
     DDP_CAP_REDUCE | DDP_CAP_GATHER | DDP_CAP_SCATTER | DDP_CAP_ALL_TO_ALL | DDP_CAP_SEND_RECV | DDP_CAP_ABORT)
#define DDP_COMPOSE_SLOTS                                                                                              \
    .comm_abort = ddp_compose_abort, .comm_destroy = ddp_compose_destroy, .supports = ddp_compose_supports,            \
    .all_reduce = ddp_compose_all_reduce, .broadcast = ddp_compose_broadcast, .all_gather = ddp_compose_all_gather,    \
    .reduce_scatter = ddp_compose_reduce_scatter, .reduce = ddp_compose_reduce, .gather = ddp_compose_gather,          \
    .scatter = ddp_compose_scatter, .all_to_all = ddp_compose_all_to_all, .send = ddp_compose_send,                    \
    .recv = ddp_compose_recv, .barrier = ddp_compose_barrier

#ifdef __cplusplus
}
#endif
#endif
