/* plugins/backend/aggregate/mesh.c -- see mesh.h. A rank connects to those below it, those above it connect to it, and
 * all connect to the aggregators. Each end shows the other what only ranks of the run can know: the store has it. */
#include "mesh.h"
#include "all_reduce.h"
#include "serve.h"
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { REPORT_MS = 5000, LOOK_MS = 1000, LEAST_CHUNK = 4096, INBOXES = 96 << 20 /* bytes, of all peers */ };

typedef struct opening {
    const ddp_host *host;
    const ddp_comm_params *p;
    aggregate_mesh *m;
    aggregate_listener listener;
    aggregate_place *places; /* of peers, as in m->peers */
    int64_t deadline_ms;
} opening;

/* ---- moving bytes ------------------------------------------------------------------------------------------------ */
static ddp_status gone(const aggregate_mesh *m, uint32_t peer, int number, ddp_err *err)
{
    (void)ddp_fail(err, DDP_ERR_PEER, "%s is gone: %s", m->peers[peer].name,
                   number == 0 || number == ECONNRESET || number == EPIPE ? "the connection was closed"
                                                                          : strerror(number));
    err->rank = peer < m->world ? (int32_t)peer : -1;
    err->sys_errno = number;
    return err->status;
}

ddp_status aggregate_mesh_send(const aggregate_mesh *m, uint32_t peer, const void *data, size_t bytes, size_t *moved,
                               ddp_err *err)
{
    ssize_t n = send(m->peers[peer].fd, data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);

    *moved = n > 0 ? (size_t)n : 0;
    return n < 0 && errno != EAGAIN && errno != EINTR ? gone(m, peer, errno, err) : DDP_OK;
}

ddp_status aggregate_mesh_recv(const aggregate_mesh *m, uint32_t peer, void *data, size_t bytes, size_t *moved,
                               ddp_err *err)
{
    ssize_t n = recv(m->peers[peer].fd, data, bytes, MSG_DONTWAIT);

    *moved = n > 0 ? (size_t)n : 0;
    if (n == 0) return gone(m, peer, 0, err);
    return n < 0 && errno != EAGAIN && errno != EINTR ? gone(m, peer, errno, err) : DDP_OK;
}

/* ---- who is where ------------------------------------------------------------------------------------------------ */
static int64_t left_ms(const opening *o)
{
    int64_t left = o->deadline_ms - aggregate_now_ms();

    return left > 0 ? left : 0;
}

static void name_peer(const opening *o, uint32_t peer)
{
    const aggregate_place *at = &o->places[peer];
    bool worker = peer < o->m->world, v6 = strchr(at->address, ':') != NULL;

    (void)snprintf(o->m->peers[peer].name, sizeof(o->m->peers[peer].name), "%s %u on host %s (%s%s%s:%u)",
                   worker ? "rank" : "aggregator", worker ? peer : peer - o->m->world, at->host, v6 ? "[" : "",
                   at->address, v6 ? "]" : "", at->port);
}

static ddp_status missing(const opening *o, uint32_t peer, ddp_err *err)
{
    double limit = (double)o->p->connect_timeout_ms / 1e3;

    if (peer < o->m->world)
        return ddp_fail(err, DDP_ERR_TIMEOUT,
                        "aggregate: rank %u did not come to connect within %.3g s (rendezvous_timeout)", peer, limit);
    return ddp_fail(
        err, DDP_ERR_TIMEOUT,
        "aggregate: aggregator %u of %u did not come within %.3g s (rendezvous_timeout). Start ddpengine aggregate with this run's INI on its host, look there why it ended, or lower [backend.aggregate] aggregators",
        peer - o->m->world, o->m->aggregators, limit);
}

/* What of its address is in the store; while it is not there, rank 0 says whom it waits for. */
static ddp_status look_up(opening *o, uint32_t peer, ddp_err *err)
{
    const ddp_store *store = o->p->store;
    unsigned char bytes[AGGREGATE_PLACE_BYTES];
    ddp_status st = DDP_ERR_TIMEOUT;
    size_t length = 0;
    char key[48];

    if (peer < o->m->world)
        (void)snprintf(key, sizeof(key), AGGREGATE_RANK_KEY, peer);
    else
        (void)snprintf(key, sizeof(key), AGGREGATE_KEY, peer - o->m->world);
    while (st == DDP_ERR_TIMEOUT && left_ms(o) > 0) {
        int64_t wait = left_ms(o) < REPORT_MS ? left_ms(o) : REPORT_MS;

        st = store->get(store->ctx, key, bytes, sizeof(bytes), &length, wait, err);
        if (st == DDP_ERR_TIMEOUT && o->m->rank == 0 && peer >= o->m->world && left_ms(o) > 0)
            o->host->log(o->host->ctx, DDP_LOG_INFO, __FILE__, __LINE__,
                         "aggregate: waiting for aggregator %u of %u (%.0f s of %.3g s)", peer - o->m->world,
                         o->m->aggregators, (double)(o->p->connect_timeout_ms - left_ms(o)) / 1e3,
                         (double)o->p->connect_timeout_ms / 1e3);
    }
    if (st == DDP_ERR_TIMEOUT) return missing(o, peer, err);
    if (st != DDP_OK) return st;
    if (!aggregate_place_parse(bytes, length, &o->places[peer]))
        return ddp_fail(err, DDP_ERR_DATA, "aggregate: \"%s\" in the store is no address", key);
    name_peer(o, peer);
    return DDP_OK;
}

/* ---- to those below, and to aggregators -------------------------------------------------------------------------- */
static ddp_status cannot_reach(const opening *o, uint32_t peer, const char *why, ddp_err *err)
{
    (void)ddp_fail(
        err, DDP_ERR_PEER,
        "aggregate: rank %u (%.60s) cannot connect to %s: %s. Let a firewall between them pass TCP, or name in [group] interface the network that they share",
        o->m->rank, o->p->address, o->m->peers[peer].name, why);
    err->rank = peer < o->m->world ? (int32_t)peer : -1;
    return err->status;
}

static bool wait_for(int fd, short events, int64_t ms)
{
    struct pollfd p = {.fd = fd, .events = events};

    return poll(&p, 1, ms > INT32_MAX ? INT32_MAX : (int)ms) > 0;
}

static ddp_status reach(const opening *o, uint32_t peer, const struct addrinfo *at, ddp_err *err)
{
    int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), number = 0;
    socklen_t size = sizeof(number);

    if (fd < 0) return ddp_fail(err, DDP_ERR_SYSTEM, "aggregate: cannot make a socket: %s", strerror(errno));
    o->m->peers[peer].fd = fd;
    if (connect(fd, at->ai_addr, at->ai_addrlen) != 0) {
        if (errno != EINPROGRESS) return cannot_reach(o, peer, strerror(errno), err);
        if (!wait_for(fd, POLLOUT, left_ms(o))) return cannot_reach(o, peer, "no answer in time", err);
        if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &number, &size) != 0) number = errno;
        if (number != 0) return cannot_reach(o, peer, strerror(number), err);
    }
    aggregate_socket_prepare(fd, peer < o->m->world ? AGGREGATE_BETWEEN_RANKS : AGGREGATE_WITH_AGGREGATOR);
    return DDP_OK;
}

static ddp_status connect_to(opening *o, uint32_t peer, ddp_err *err)
{
    const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    aggregate_hello hello = {.world = o->m->world, .rank = o->m->rank};
    unsigned char bytes[AGGREGATE_HELLO_BYTES];
    struct addrinfo *at = NULL;
    char port[8];
    ddp_status st;

    DDP_TRY(look_up(o, peer, err));
    (void)snprintf(port, sizeof(port), "%u", o->places[peer].port);
    if (getaddrinfo(o->places[peer].address, port, &hints, &at) != 0)
        return cannot_reach(o, peer, "that is no address", err);
    st = reach(o, peer, at, err);
    freeaddrinfo(at);
    if (st != DDP_OK) return st;
    memcpy(hello.token, o->places[peer].token, AGGREGATE_TOKEN);
    (void)snprintf(hello.name, sizeof(hello.name), "%s", o->p->group);
    aggregate_hello_pack(&hello, bytes);
    if (send(o->m->peers[peer].fd, bytes, sizeof(bytes), MSG_NOSIGNAL) != (ssize_t)sizeof(bytes))
        return cannot_reach(o, peer, strerror(errno), err);
    return DDP_OK;
}

/* An aggregator answers when all ranks have come to it. */
static ddp_status take_ready(const opening *o, uint32_t peer, ddp_err *err)
{
    unsigned char bytes[AGGREGATE_READY_BYTES];
    size_t got = 0, moved;

    while (got < sizeof(bytes)) {
        if (left_ms(o) == 0) return cannot_reach(o, peer, "it does not answer in time", err);
        (void)wait_for(o->m->peers[peer].fd, POLLIN, left_ms(o));
        DDP_TRY(aggregate_mesh_recv(o->m, peer, bytes + got, sizeof(bytes) - got, &moved, err));
        got += moved;
    }
    if (aggregate_ready_check(bytes, o->places[peer].proof)) return DDP_OK;
    return cannot_reach(o, peer, "what answers there does not belong to this run", err);
}

/* ---- from those above -------------------------------------------------------------------------------------------- */
static void let_in(const opening *o, const aggregate_hello *h, int fd)
{
    unsigned char bytes[AGGREGATE_READY_BYTES];
    aggregate_mesh *m = o->m;

    aggregate_ready_pack(o->listener.place.proof, bytes);
    if (h->world != m->world || h->rank <= m->rank || m->peers[h->rank].fd >= 0 ||
        strncmp(h->name, o->p->group, sizeof(h->name) - 1) != 0 ||
        send(fd, bytes, sizeof(bytes), MSG_NOSIGNAL) != (ssize_t)sizeof(bytes)) {
        (void)close(fd);
        return;
    }
    aggregate_socket_prepare(fd, AGGREGATE_BETWEEN_RANKS);
    m->peers[h->rank].fd = fd;
}

static ddp_status accept_others(opening *o, ddp_err *err)
{
    struct pollfd fds[AGGREGATE_LISTENER_FDS];
    uint32_t peer = o->m->rank + 1, n;
    aggregate_hello hello;
    int fd, wait;

    for (;;) {
        while (peer < o->m->world && o->m->peers[peer].fd >= 0) peer++;
        if (peer == o->m->world) return DDP_OK;
        if (left_ms(o) == 0) return missing(o, peer, err);
        n = aggregate_listener_fds(&o->listener, fds);
        wait = aggregate_listener_wait_ms(&o->listener);
        if (wait < 0 || wait > left_ms(o)) wait = left_ms(o) < LOOK_MS ? (int)left_ms(o) : LOOK_MS;
        (void)poll(fds, n, wait);
        while (aggregate_listener_next(&o->listener, &hello, &fd)) let_in(o, &hello, fd);
    }
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */
static ddp_status publish(opening *o, const char *key, ddp_err *err)
{
    unsigned char bytes[AGGREGATE_PLACE_BYTES];

    DDP_TRY(aggregate_listener_open(&o->listener, o->p->address, err));
    aggregate_place_pack(&o->listener.place, bytes);
    return o->p->store->set(o->p->store->ctx, key, bytes, sizeof(bytes), err);
}

/* Ranks above have come by now, so their names are there. */
static ddp_status connect_all(opening *o, const char *key, ddp_err *err)
{
    aggregate_mesh *m = o->m;

    DDP_TRY(publish(o, key, err));
    for (uint32_t r = 0; r < m->rank; r++) DDP_TRY(connect_to(o, r, err));
    DDP_TRY(accept_others(o, err));
    for (uint32_t r = m->rank + 1; r < m->world; r++) DDP_TRY(look_up(o, r, err));
    for (uint32_t r = 0; r < m->rank; r++) DDP_TRY(take_ready(o, r, err));
    for (uint32_t a = m->world; a < aggregate_mesh_count(m); a++) DDP_TRY(connect_to(o, a, err));
    for (uint32_t a = m->world; a < aggregate_mesh_count(m); a++) DDP_TRY(take_ready(o, a, err));
    return DDP_OK;
}

static ddp_status connect_world(const ddp_host *host, const ddp_comm_params *p, aggregate_mesh *m, ddp_err *err)
{
    opening *o = calloc(1, sizeof(*o));
    ddp_status st;
    char key[48];

    if (o == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "aggregate: out of memory");
    *o = (opening){.host = host, .p = p, .m = m, .listener.fd = -1};
    o->deadline_ms =
        p->connect_timeout_ms > INT64_MAX - aggregate_now_ms() ? INT64_MAX : aggregate_now_ms() + p->connect_timeout_ms;
    o->places = calloc(aggregate_mesh_count(m), sizeof(*o->places));
    (void)snprintf(key, sizeof(key), AGGREGATE_RANK_KEY, p->rank);
    st = o->places == NULL ? ddp_fail(err, DDP_ERR_NOMEM, "aggregate: out of memory") : connect_all(o, key, err);
    aggregate_listener_close(&o->listener);
    free(o->places);
    free(o);
    return st;
}

size_t aggregate_mesh_chunk(const aggregate_config *config, uint32_t world)
{
    size_t most = (size_t)INBOXES / AGGREGATE_SLOTS_OF_PEER / world;

    if (most < LEAST_CHUNK) most = LEAST_CHUNK;
    return (config->chunk_bytes < most ? config->chunk_bytes : most) / 64 * 64;
}

ddp_status aggregate_mesh_open(const ddp_host *host, const aggregate_config *config, const ddp_comm_params *p,
                               aggregate_mesh **out, ddp_err *err)
{
    aggregate_mesh *m = calloc(1, sizeof(*m));
    ddp_status st = DDP_OK;

    if (m == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "aggregate: out of memory");
    m->rank = p->rank;
    m->world = p->world_size;
    m->aggregators = p->world_size > 1 ? (uint32_t)config->aggregators : 0;
    m->chunk = aggregate_mesh_chunk(config, m->world);
    m->small = p->world_size > 1 ? config->small_bytes / (p->world_size - 1) : 0;
    if (m->small > m->chunk) m->small = m->chunk;
    m->peers = calloc(aggregate_mesh_count(m), sizeof(*m->peers));
    for (uint32_t i = 0; m->peers != NULL && i < aggregate_mesh_count(m); i++) m->peers[i].fd = -1;
    if (m->peers == NULL) st = ddp_fail(err, DDP_ERR_NOMEM, "aggregate: out of memory");
    if (st == DDP_OK) st = aggregate_engine_open(m, &m->engine, err);
    if (st == DDP_OK && m->world > 1) st = connect_world(host, p, m, err);
    if (st != DDP_OK) {
        aggregate_mesh_close(m);
        return st;
    }
    *out = m;
    return DDP_OK;
}

void aggregate_mesh_close(aggregate_mesh *m)
{
    const aggregate_order bye = {.kind = AGGREGATE_BYE};
    unsigned char bytes[AGGREGATE_ORDER_BYTES];
    size_t moved;
    ddp_err err;

    aggregate_order_pack(&bye, bytes);
    for (uint32_t i = 0; m->peers != NULL && i < aggregate_mesh_count(m); i++) {
        if (m->peers[i].fd < 0) continue;
        if (m->orderly && i >= m->world) (void)aggregate_mesh_send(m, i, bytes, sizeof(bytes), &moved, &err);
        (void)close(m->peers[i].fd);
    }
    if (m->engine != NULL) aggregate_engine_close(m->engine);
    free(m->peers);
    free(m);
}
