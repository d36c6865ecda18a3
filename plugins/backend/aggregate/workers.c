/* plugins/backend/aggregate/workers.c -- see workers.h.
 *
 * All-reduces come one after the other, the same from all workers: an order, then the pieces. A piece is summed when
 * all have sent it, in the order of ranks, and goes to all at once. A worker that is ahead is not read from until its
 * slot is free; the order of the next all-reduce waits until this one has been handed out. */
#include "workers.h"
#include "socket.h"
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- life -------------------------------------------------------------------------------------------------------- */
ddp_status workers_open(const aggregate_hello *h, size_t chunk, workers **out, ddp_err *err)
{
    workers *c = calloc(1, sizeof(*c) + h->world * sizeof(c->list[0]));

    if (c == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "out of memory");
    memcpy(c->name, h->name, sizeof(c->name));
    c->world = h->world;
    c->chunk = chunk;
    c->kernels = ddp_kernels_best();
    for (uint32_t r = 0; r < c->world; r++) c->list[r].fd = -1;
    *out = c;
    return DDP_OK;
}

void workers_close(workers *c)
{
    for (uint32_t r = 0; r < c->world; r++)
        if (c->list[r].fd >= 0) (void)close(c->list[r].fd);
    free(c->memory);
    free(c->sources);
    free(c);
}

static ddp_status begin(workers *c, const unsigned char *proof, ddp_err *err)
{
    unsigned char bytes[AGGREGATE_READY_BYTES];

    c->memory = aligned_alloc(64, ((size_t)c->world + 1) * WORKERS_SLOTS * c->chunk);
    c->sources = calloc(c->world, sizeof(*c->sources));
    if (c->memory == NULL || c->sources == NULL)
        return ddp_fail(err, DDP_ERR_NOMEM, "no memory for %zu bytes, of %u workers and %d pieces of each",
                        ((size_t)c->world + 1) * WORKERS_SLOTS * c->chunk, c->world, WORKERS_SLOTS);
    aggregate_ready_pack(proof, bytes);
    for (uint32_t r = 0; r < c->world; r++)
        if (send(c->list[r].fd, bytes, sizeof(bytes), MSG_NOSIGNAL) != (ssize_t)sizeof(bytes))
            return ddp_fail(err, DDP_ERR_PEER, "rank %u (%s) is gone", r, c->list[r].address);
    return DDP_OK;
}

ddp_status workers_join(workers *c, const aggregate_hello *h, int fd, const unsigned char *proof, ddp_err *err)
{
    struct sockaddr_storage at;
    socklen_t length = sizeof(at);
    worker *w;

    if (h->world != c->world || h->rank >= c->world || c->list[h->rank].came) {
        (void)close(fd);
        return ddp_fail(err, DDP_ERR_DATA, "rank %u of %u has come twice, or with another number of ranks", h->rank,
                        c->world);
    }
    w = &c->list[h->rank];
    w->fd = fd;
    w->came = true;
    if (getpeername(fd, (struct sockaddr *)&at, &length) != 0 ||
        getnameinfo((struct sockaddr *)&at, length, w->address, sizeof(w->address), NULL, 0, NI_NUMERICHOST) != 0)
        (void)strcpy(w->address, "address unknown");
    return ++c->here == c->world ? begin(c, proof, err) : DDP_OK;
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */
static ddp_status gone(const workers *c, uint32_t rank, int number, ddp_err *err)
{
    (void)ddp_fail(err, DDP_ERR_PEER, "rank %u (%s) is gone: %s", rank, c->list[rank].address,
                   number == 0 || number == ECONNRESET || number == EPIPE ? "the connection was closed"
                                                                          : strerror(number));
    err->rank = (int32_t)rank;
    return err->status;
}

/* Of send or recv: DDP_OK with *moved, maybe 0. */
static ddp_status moved_by(const workers *c, uint32_t rank, ssize_t n, size_t *moved, ddp_err *err)
{
    *moved = n > 0 ? (size_t)n : 0;
    return n < 0 && errno != EAGAIN && errno != EINTR ? gone(c, rank, errno, err) : DDP_OK;
}

/* ---- pieces ------------------------------------------------------------------------------------------------------ */
static unsigned char *slot(const workers *c, uint32_t row, uint64_t piece)
{
    return c->memory + ((size_t)row * WORKERS_SLOTS + piece % WORKERS_SLOTS) * c->chunk;
}

static size_t piece_bytes(const workers *c, uint64_t piece)
{
    uint64_t left = c->task.count - piece * c->task.piece;

    return (size_t)(left < c->task.piece ? left : c->task.piece) * c->size;
}

static bool may_read(const workers *c, const worker *w)
{
    if (w->fd < 0) return false;
    if (w->order_got < sizeof(w->order)) return true;
    return c->busy && w->in < c->pieces && w->in < c->summed + WORKERS_SLOTS;
}

static bool may_write(const workers *c, const worker *w) { return c->busy && w->out < c->summed; }

void workers_fds(const workers *c, struct pollfd *out)
{
    for (uint32_t r = 0; r < c->world; r++) {
        const worker *w = &c->list[r];
        short events = (short)((may_read(c, w) ? POLLIN : 0) | (may_write(c, w) ? POLLOUT : 0));

        out[r] = (struct pollfd){.fd = events != 0 ? w->fd : -1, .events = events};
    }
}

static void sum(workers *c)
{
    for (; c->summed < c->pieces; c->summed++) {
        void *out = slot(c, c->world, c->summed);

        for (uint32_t r = 0; r < c->world; r++) {
            if (c->list[r].in <= c->summed || c->list[r].out + WORKERS_SLOTS <= c->summed) return;
            c->sources[r] = slot(c, r, c->summed);
        }
        ddp_reduce(c->kernels, c->task.dtype, c->task.op, &out, 1, c->sources, c->world,
                   piece_bytes(c, c->summed) / c->size, false);
        c->bytes += piece_bytes(c, c->summed);
    }
}

/* All have all sums. */
static void finish(workers *c)
{
    for (uint32_t r = 0; r < c->world; r++)
        if (c->list[r].out < c->pieces) return;
    c->busy = false;
    c->done++;
    for (uint32_t r = 0; r < c->world; r++) {
        worker *w = &c->list[r];

        w->order_got = 0;
        w->in = w->out = 0;
        w->in_at = w->out_at = 0;
    }
}

/* ---- orders ------------------------------------------------------------------------------------------------------ */
static bool same_task(const aggregate_order *a, const aggregate_order *b)
{
    return a->dtype == b->dtype && a->op == b->op && a->count == b->count && a->piece == b->piece;
}

static ddp_status take_order(workers *c, uint32_t rank, ddp_err *err)
{
    worker *w = &c->list[rank];
    aggregate_order o;

    if (!aggregate_order_parse(w->order, c->chunk, &o))
        return ddp_fail(err, DDP_ERR_DATA, "rank %u (%s) has sent what is no order", rank, w->address);
    if (o.kind == AGGREGATE_BYE) {
        if (c->busy) return ddp_fail(err, DDP_ERR_PEER, "rank %u (%s) leaves while others reduce", rank, w->address);
        (void)close(w->fd);
        w->fd = -1;
        w->bye = true;
        c->here--;
        return c->here == 0 ? DDP_IN_PROGRESS : DDP_OK;
    }
    if (c->here < c->world)
        return ddp_fail(err, DDP_ERR_PEER, "rank %u (%s) reduces, and another rank has left", rank, w->address);
    if (c->busy && !same_task(&o, &c->task))
        return ddp_fail(err, DDP_ERR_DATA,
                        "the ranks' all-reduces differ: rank %u (%s) has %llu elements of dtype %u, others %llu of %u",
                        rank, w->address, (unsigned long long)o.count, o.dtype, (unsigned long long)c->task.count,
                        c->task.dtype);
    if (c->busy) return DDP_OK;
    c->busy = true;
    c->task = o;
    c->size = ddp_dtype_size(o.dtype);
    c->pieces = o.count / o.piece + (o.count % o.piece != 0);
    c->summed = 0;
    return DDP_OK;
}

static ddp_status read_order(workers *c, uint32_t rank, size_t *moved, ddp_err *err)
{
    worker *w = &c->list[rank];
    ssize_t n = recv(w->fd, w->order + w->order_got, sizeof(w->order) - w->order_got, MSG_DONTWAIT);

    if (n == 0) return gone(c, rank, 0, err);
    DDP_TRY(moved_by(c, rank, n, moved, err));
    w->order_got += *moved;
    return w->order_got == sizeof(w->order) ? take_order(c, rank, err) : DDP_OK;
}

static ddp_status read_piece(workers *c, uint32_t rank, size_t *moved, ddp_err *err)
{
    worker *w = &c->list[rank];
    size_t bytes = piece_bytes(c, w->in);
    ssize_t n = recv(w->fd, slot(c, rank, w->in) + w->in_at, bytes - w->in_at, MSG_DONTWAIT);

    if (n == 0) return gone(c, rank, 0, err);
    DDP_TRY(moved_by(c, rank, n, moved, err));
    w->in_at += *moved;
    if (w->in_at < bytes) return DDP_OK;
    w->in++;
    w->in_at = 0;
    return DDP_OK;
}

static ddp_status read_all(workers *c, uint32_t rank, ddp_err *err)
{
    worker *w = &c->list[rank];
    size_t moved = 1;

    while (moved > 0 && may_read(c, w)) {
        if (w->order_got < sizeof(w->order))
            DDP_TRY(read_order(c, rank, &moved, err));
        else
            DDP_TRY(read_piece(c, rank, &moved, err));
    }
    return DDP_OK;
}

static ddp_status write_all(workers *c, uint32_t rank, ddp_err *err)
{
    worker *w = &c->list[rank];
    size_t moved = 1;

    while (moved > 0 && may_write(c, w)) {
        size_t bytes = piece_bytes(c, w->out);

        DDP_TRY(moved_by(
            c, rank, send(w->fd, slot(c, c->world, w->out) + w->out_at, bytes - w->out_at, MSG_DONTWAIT | MSG_NOSIGNAL),
            &moved, err));
        w->out_at += moved;
        if (w->out_at < bytes) continue;
        w->out++;
        w->out_at = 0;
    }
    return DDP_OK;
}

/* Sums are made and sent until no more can be: a sum that has been sent frees a slot, which poll does not report. */
static ddp_status write_sums(workers *c, ddp_err *err)
{
    uint64_t before;

    do {
        before = c->summed;
        for (uint32_t r = 0; r < c->world; r++) DDP_TRY(write_all(c, r, err));
        sum(c);
    } while (c->summed > before);
    return DDP_OK;
}

static void adapt(workers *c)
{
    int64_t now = aggregate_now_ms();

    if (now < c->look_ms) return;
    c->look_ms = now + AGGREGATE_LOOK_MS;
    for (uint32_t r = 0; r < c->world; r++)
        if (c->list[r].fd >= 0) aggregate_socket_adapt(c->list[r].fd, AGGREGATE_WITH_AGGREGATOR);
}

ddp_status workers_turn(workers *c, const struct pollfd *fds, ddp_err *err)
{
    for (uint32_t r = 0; r < c->world; r++)
        if (fds[r].fd >= 0 && (fds[r].revents & (POLLIN | POLLERR | POLLHUP)) != 0) DDP_TRY(read_all(c, r, err));
    if (!c->busy) return DDP_OK;
    adapt(c);
    DDP_TRY(write_sums(c, err));
    finish(c);
    return DDP_OK;
}
