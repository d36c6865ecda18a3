/* plugins/backend/aggregate/all_reduce.c -- a rank's part in an all-reduce, by one thread over non-blocking sockets.
 *
 * The buffer is divided into parts, one for each aggregator and each rank (shares.h), and each part into as many
 * pieces. Over a connection go, in an order that both ends know:
 *     to an aggregator      its order, then this rank's pieces of its part; back come the sums
 *     to another rank       this rank's pieces of that one's part, and between them the sums of this rank's own part:
 *                           A piece 0 .. LEAD - 1, sum 0, piece LEAD, sum 1, ..
 * Up to `small` bytes each rank sends its vector to all others, and each makes the sum.
 *
 * All connections share one link, and the network would give each the same part of it. So none may be more than AHEAD
 * pieces ahead of the slowest: then each moves as its share of the bytes says, and no link idles while another one is
 * still full. LEAD pieces are under way before the first sum is due, for a piece and its sum pass two hosts and the
 * queues of a switch. A piece of this rank's own part is taken into one of SLOTS inboxes of each peer, and is summed
 * when all have come, in the order of ranks.
 *
 * Nobody waits in a circle: of all that is still to be sent, the earliest piece waits for nothing, and a sum only for
 * pieces that come before it everywhere. In place is safe: a sum of a piece comes after the piece was sent. */
#include "all_reduce.h"
#include "common/reduce.h"
#include "shares.h"
#include <stdio.h>
#include <stdlib.h>

enum { LEAD = 16, SLOTS = AGGREGATE_SLOTS_OF_PEER, AHEAD = 4, TICK_MS = 20 };

/* Positions 0 .. 2 pieces - 1 between two ranks. */
typedef struct flow {
    size_t out, out_at; /* position, bytes of it that have gone; to an aggregator: bytes of all */
    size_t in, in_at;
    bool can_send, can_recv; /* the socket may be ready */
} flow;

struct aggregate_engine {
    const ddp_kernels *kernels;
    flow *flows;           /* by peer */
    struct pollfd *fds;    /* by peer */
    const void **sources;  /* [world] */
    unsigned char *memory; /* inboxes: by rank, SLOTS of `chunk` bytes */
    int64_t look_ms;       /* at the links, when next */
    unsigned char order[AGGREGATE_ORDER_BYTES];
};

/* One all-reduce. */
typedef struct pass {
    aggregate_mesh *m;
    aggregate_engine *e;
    const ddp_coll *a;
    size_t size; /* bytes of an element */
    aggregate_division d;
    aggregate_part own;
    size_t summed; /* pieces of `own` */
    bool direct;   /* each sends all to all */
    bool moved;
} pass;

ddp_status aggregate_engine_open(aggregate_mesh *m, aggregate_engine **out, ddp_err *err)
{
    aggregate_engine *e = calloc(1, sizeof(*e));
    size_t peers = aggregate_mesh_count(m);

    if (e == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "aggregate: out of memory");
    *out = e;
    e->kernels = ddp_kernels_best();
    e->flows = calloc(peers, sizeof(*e->flows));
    e->fds = calloc(peers, sizeof(*e->fds));
    e->sources = calloc(m->world, sizeof(*e->sources));
    e->memory = m->world > 1 ? aligned_alloc(64, (size_t)m->world * SLOTS * m->chunk) : NULL;
    if (e->flows == NULL || e->fds == NULL || e->sources == NULL || (m->world > 1 && e->memory == NULL))
        return ddp_fail(err, DDP_ERR_NOMEM, "aggregate: no memory for %zu bytes that come in at once",
                        (size_t)m->world * SLOTS * m->chunk);
    return DDP_OK;
}

void aggregate_engine_close(aggregate_engine *e)
{
    free(e->flows);
    free(e->fds);
    free(e->sources);
    free(e->memory);
    free(e);
}

/* ---- what goes where --------------------------------------------------------------------------------------------- */
static unsigned char *inbox(const pass *p, uint32_t rank, size_t piece)
{
    return p->e->memory + ((size_t)rank * SLOTS + piece % SLOTS) * p->m->chunk;
}

/* At a position between two ranks: piece number *i, and whether it is a sum. */
static bool is_sum(const pass *p, size_t position, size_t *i)
{
    size_t lead = p->d.pieces < LEAD ? p->d.pieces : LEAD, later = position - lead, paired = 2 * (p->d.pieces - lead);

    *i = position;
    if (position < lead) return false;
    *i = later < paired ? later / 2 : later - paired / 2;
    if (later < paired && later % 2 == 1) *i += lead;
    return later >= paired || later % 2 == 0;
}

static aggregate_part part_of_rank(const pass *p, uint32_t rank)
{
    if (p->direct) return (aggregate_part){.count = p->a->count, .piece = p->a->count};
    return aggregate_part_of(&p->d, p->d.aggregators + rank);
}

static size_t positions(const pass *p) { return p->direct ? 1 : 2 * p->d.pieces; }

/* Of rank `peer` at its position: NULL: it must not go, or come, yet. */
static const unsigned char *outgoing(const pass *p, uint32_t peer, size_t *bytes)
{
    aggregate_part to = part_of_rank(p, peer);
    size_t i, first;
    bool sum = is_sum(p, p->e->flows[peer].out, &i);

    if (sum && i >= p->summed) return NULL;
    *bytes = aggregate_piece(sum ? &p->own : &to, i, &first) * p->size;
    return (const unsigned char *)(sum ? p->a->recv : p->a->send) + first * p->size;
}

static unsigned char *incoming(const pass *p, uint32_t peer, size_t *bytes)
{
    aggregate_part of = part_of_rank(p, peer);
    size_t i, first;
    bool sum = is_sum(p, p->e->flows[peer].in, &i);

    if (!sum && i >= p->summed + SLOTS) return NULL;
    *bytes = aggregate_piece(sum ? &of : &p->own, i, &first) * p->size;
    return sum ? (unsigned char *)p->a->recv + first * p->size : inbox(p, peer, i);
}

/* ---- two ranks --------------------------------------------------------------------------------------------------- */
static ddp_status send_to_rank(pass *p, uint32_t peer, size_t limit, ddp_err *err)
{
    flow *f = &p->e->flows[peer];
    const unsigned char *from;
    size_t bytes, moved;

    while (f->out < positions(p) && f->out / 2 <= limit && (from = outgoing(p, peer, &bytes)) != NULL) {
        if (f->out_at < bytes && !f->can_send) return DDP_OK;
        if (f->out_at < bytes) {
            DDP_TRY(aggregate_mesh_send(p->m, peer, from + f->out_at, bytes - f->out_at, &moved, err));
            f->out_at += moved;
            f->can_send = f->out_at == bytes;
            p->moved = p->moved || moved > 0;
        }
        if (f->out_at < bytes) return DDP_OK;
        f->out++;
        f->out_at = 0;
        p->moved = true;
    }
    return DDP_OK;
}

static ddp_status recv_from_rank(pass *p, uint32_t peer, ddp_err *err)
{
    flow *f = &p->e->flows[peer];
    unsigned char *to;
    size_t bytes, moved;

    while (f->in < positions(p) && (to = incoming(p, peer, &bytes)) != NULL) {
        if (f->in_at < bytes && !f->can_recv) return DDP_OK;
        if (f->in_at < bytes) {
            DDP_TRY(aggregate_mesh_recv(p->m, peer, to + f->in_at, bytes - f->in_at, &moved, err));
            f->in_at += moved;
            f->can_recv = f->in_at == bytes;
            p->moved = p->moved || moved > 0;
        }
        if (f->in_at < bytes) return DDP_OK;
        f->in++;
        f->in_at = 0;
        p->moved = true;
    }
    return DDP_OK;
}

/* Pieces of this rank's part that have come from `peer`. */
static size_t pieces_from(const pass *p, uint32_t peer)
{
    size_t position = p->e->flows[peer].in, lead = p->d.pieces < LEAD ? p->d.pieces : LEAD;

    if (position <= lead) return position;
    position -= lead;
    return lead + (position < 2 * (p->d.pieces - lead) ? position / 2 : p->d.pieces - lead);
}

static bool is_out(const pass *p, uint32_t peer) { return p->e->flows[peer].out == positions(p); }

/* The sums of all pieces that have come from everybody. Where each sends all to all, in place, not before it is
 * sent. */
static void sum(pass *p)
{
    aggregate_mesh *m = p->m;
    void *out;

    for (; p->summed < p->d.pieces; p->summed++) {
        size_t first, n = aggregate_piece(&p->own, p->summed, &first);

        for (uint32_t r = 0; r < m->world; r++) {
            if (r == m->rank) continue;
            if (pieces_from(p, r) <= p->summed || (p->direct && !is_out(p, r))) return;
            p->e->sources[r] = inbox(p, r, p->summed);
        }
        p->e->sources[m->rank] = (const unsigned char *)p->a->send + first * p->size;
        out = (unsigned char *)p->a->recv + first * p->size;
        if (n > 0) ddp_reduce(p->e->kernels, p->a->dtype, p->a->op, &out, 1, p->e->sources, m->world, n, false);
        p->moved = true;
    }
}

/* ---- an aggregator ----------------------------------------------------------------------------------------------- */
static aggregate_part part_of_aggregator(const pass *p, uint32_t peer)
{
    if (p->direct) return (aggregate_part){.count = 0, .piece = 1};
    return aggregate_part_of(&p->d, peer - p->m->world);
}

static size_t bytes_to(const pass *p, const aggregate_part *part)
{
    return part->count > 0 ? AGGREGATE_ORDER_BYTES + part->count * p->size : 0;
}

static ddp_status send_to_aggregator(pass *p, uint32_t peer, size_t limit, ddp_err *err)
{
    flow *f = &p->e->flows[peer];
    aggregate_part part = part_of_aggregator(p, peer);
    const aggregate_order order = {
        .kind = AGGREGATE_SUM, .dtype = p->a->dtype, .op = p->a->op, .count = part.count, .piece = part.piece};
    const unsigned char *from = (const unsigned char *)p->a->send + part.first * p->size;
    size_t total = bytes_to(p, &part), most, end, moved;

    if (part.piece * p->size == 0) return DDP_OK;
    while (f->out_at < total && f->can_send) {
        if (f->out_at < AGGREGATE_ORDER_BYTES) {
            aggregate_order_pack(&order, p->e->order);
            DDP_TRY(aggregate_mesh_send(p->m, peer, p->e->order + f->out_at, AGGREGATE_ORDER_BYTES - f->out_at, &moved,
                                        err));
        } else {
            most = part.count / part.piece < limit ? total : AGGREGATE_ORDER_BYTES + (limit + 1) * part.piece * p->size;
            end = total < most ? total : most;
            if (f->out_at >= end) return DDP_OK;
            DDP_TRY(aggregate_mesh_send(p->m, peer, from + f->out_at - AGGREGATE_ORDER_BYTES, end - f->out_at, &moved,
                                        err));
            f->can_send = f->out_at + moved == end;
            f->out = (f->out_at + moved - AGGREGATE_ORDER_BYTES) / (part.piece * p->size);
        }
        if (moved == 0) f->can_send = false;
        f->out_at += moved;
        p->moved = p->moved || moved > 0;
    }
    return DDP_OK;
}

static ddp_status recv_from_aggregator(pass *p, uint32_t peer, ddp_err *err)
{
    flow *f = &p->e->flows[peer];
    aggregate_part part = part_of_aggregator(p, peer);
    unsigned char *to = (unsigned char *)p->a->recv + part.first * p->size;
    size_t moved;

    while (f->in_at < part.count * p->size && f->can_recv) {
        DDP_TRY(aggregate_mesh_recv(p->m, peer, to + f->in_at, part.count * p->size - f->in_at, &moved, err));
        f->in_at += moved;
        f->can_recv = moved > 0;
        p->moved = p->moved || moved > 0;
    }
    return DDP_OK;
}

/* ---- all at once ------------------------------------------------------------------------------------------------- */
static bool is_worker(const pass *p, uint32_t peer) { return peer < p->m->world; }

static bool has_sent(const pass *p, uint32_t peer)
{
    aggregate_part part;

    if (is_worker(p, peer)) return is_out(p, peer);
    part = part_of_aggregator(p, peer);
    return p->e->flows[peer].out_at == bytes_to(p, &part);
}

static bool has_received(const pass *p, uint32_t peer)
{
    if (is_worker(p, peer)) return p->e->flows[peer].in == positions(p);
    return p->e->flows[peer].in_at == part_of_aggregator(p, peer).count * p->size;
}

/* The piece that the slowest connection is at, and AHEAD more. */
static size_t furthest(const pass *p)
{
    size_t least = SIZE_MAX - AHEAD;

    for (uint32_t i = 0; i < aggregate_mesh_count(p->m); i++) {
        size_t at = is_worker(p, i) ? p->e->flows[i].out / 2 : p->e->flows[i].out;

        if (i != p->m->rank && !has_sent(p, i) && at < least) least = at;
    }
    return least + AHEAD;
}

static bool is_done(const pass *p)
{
    if (p->summed < p->d.pieces) return false;
    for (uint32_t i = 0; i < aggregate_mesh_count(p->m); i++)
        if (i != p->m->rank && !(has_sent(p, i) && has_received(p, i))) return false;
    return true;
}

/* Ranks begin with the one behind them, so that no rank is everyone's first. */
static ddp_status move(pass *p, ddp_err *err)
{
    uint32_t count = aggregate_mesh_count(p->m);
    size_t limit = furthest(p);

    for (uint32_t k = 1; k < count; k++) {
        uint32_t i = (p->m->rank + k) % count;

        if (is_worker(p, i)) {
            DDP_TRY(send_to_rank(p, i, limit, err));
            DDP_TRY(recv_from_rank(p, i, err));
        } else {
            DDP_TRY(send_to_aggregator(p, i, limit, err));
            DDP_TRY(recv_from_aggregator(p, i, err));
        }
    }
    sum(p);
    return DDP_OK;
}

/* What a flow could do if its socket were ready. */
static short wishes(const pass *p, uint32_t i, size_t limit)
{
    const flow *f = &p->e->flows[i];
    bool out = !has_sent(p, i) && !f->can_send, in = !has_received(p, i) && !f->can_recv;
    size_t bytes;

    if (is_worker(p, i)) {
        out = out && f->out / 2 <= limit && outgoing(p, i, &bytes) != NULL;
        in = in && incoming(p, i, &bytes) != NULL;
    }
    return (short)((out ? POLLOUT : 0) | (in ? POLLIN : 0));
}

/* Until a socket is ready, or for a moment. */
static void wait_ready(const pass *p)
{
    uint32_t count = aggregate_mesh_count(p->m);
    struct pollfd *fds = p->e->fds;
    size_t limit = furthest(p);

    for (uint32_t i = 0; i < count; i++) {
        fds[i] = (struct pollfd){.fd = p->m->peers[i].fd, .events = i == p->m->rank ? 0 : wishes(p, i, limit)};
        if (fds[i].events == 0) fds[i].fd = -1;
    }
    if (poll(fds, count, TICK_MS) <= 0) return;
    for (uint32_t i = 0; i < count; i++) {
        bool broken = (fds[i].revents & (POLLERR | POLLHUP)) != 0;

        if ((fds[i].revents & POLLOUT) != 0 || (broken && (fds[i].events & POLLOUT) != 0))
            p->e->flows[i].can_send = true;
        if ((fds[i].revents & POLLIN) != 0 || (broken && (fds[i].events & POLLIN) != 0)) p->e->flows[i].can_recv = true;
    }
}

/* Parts of 1000 that have gone to it and come from it. */
static size_t progress(const pass *p, uint32_t i)
{
    const flow *f = &p->e->flows[i];
    size_t size = is_worker(p, i) ? positions(p) : part_of_aggregator(p, i).count * p->size;
    size_t out = is_worker(p, i) ? f->out : f->out_at, in = is_worker(p, i) ? f->in : f->in_at;

    return size == 0 ? SIZE_MAX : (size_t)(1000.0 * ((double)out + (double)in) / (double)size);
}

/* Who has done least holds up all others. */
static ddp_status late(const pass *p, ddp_err *err)
{
    uint32_t count = aggregate_mesh_count(p->m), last = count;

    for (uint32_t i = 0; i < count; i++) {
        if (i == p->m->rank || (has_sent(p, i) && has_received(p, i))) continue;
        if (last == count || progress(p, i) < progress(p, last)) last = i;
    }
    if (last == count) return ddp_fail(err, DDP_ERR_TIMEOUT, "all_reduce: the time is over");
    (void)ddp_fail(err, DDP_ERR_TIMEOUT, "all_reduce: %s has not done its part in time", p->m->peers[last].name);
    err->rank = is_worker(p, last) ? (int32_t)last : -1;
    return err->status;
}

static void begin(pass *p)
{
    for (uint32_t i = 0; i < aggregate_mesh_count(p->m); i++)
        p->e->flows[i] = (flow){.can_send = true, .can_recv = true};
    p->direct = p->a->count * p->size <= p->m->small;
    if (p->direct)
        p->d = (aggregate_division){.count = p->a->count, .pieces = 1};
    else
        aggregate_divide(p->m->world, p->m->aggregators, p->a->count, p->size, p->m->chunk, &p->d);
    p->own = part_of_rank(p, p->m->rank);
}

static void adapt(const pass *p, int64_t now_ms)
{
    p->e->look_ms = now_ms + AGGREGATE_LOOK_MS;
    for (uint32_t i = 0; i < aggregate_mesh_count(p->m); i++)
        if (i != p->m->rank)
            aggregate_socket_adapt(p->m->peers[i].fd,
                                   is_worker(p, i) ? AGGREGATE_BETWEEN_RANKS : AGGREGATE_WITH_AGGREGATOR);
}

ddp_status aggregate_all_reduce(aggregate_mesh *m, const ddp_coll *a, int64_t deadline_ms, const int *aborted,
                                ddp_err *err)
{
    pass p = {.m = m, .e = m->engine, .a = a, .size = ddp_dtype_size(a->dtype)};

    begin(&p);
    while (!is_done(&p)) {
        int64_t now = aggregate_now_ms();

        if (now >= m->engine->look_ms) adapt(&p, now);
        p.moved = false;
        DDP_TRY(move(&p, err));
        if (!p.moved) wait_ready(&p);
        if (__atomic_load_n(aborted, __ATOMIC_ACQUIRE)) return ddp_fail(err, DDP_ERR_ABORTED, "all_reduce was aborted");
        if (now >= deadline_ms) return late(&p, err);
    }
    return DDP_OK;
}
