/* backend_sockets.c -- a backend for ddpengine over TCP sockets, in one file: all collectives between any number of
 * hosts, from a send and a recv.
 *
 *   1. Address    what a rank puts into the store, so that the others can connect
 *   2. Wire       the two functions that <ddpengine/compose.h> makes all collectives of
 *   3. Connect    each two ranks are connected: to those below it a rank connects, those above it connect to it
 *   4. Backend    the function table and the one exported symbol
 *
 *     make && make check
 *     DDPENGINE_PLUGIN_PATH=$PWD ddpengine -c sockets.ini --nproc 2
 *
 * Tensors travel unencrypted, as over any backend. */
#include <ddpengine/compose.h>

#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- 1. address -------------------------------------------------------------------------------------------------- */
/* The store is open to ranks alone, a port to everybody: who connects shows the token. */
struct address {
    uint64_t token;
    socklen_t length;
    struct sockaddr_storage at;
};

struct hello {
    uint64_t token;
    uint32_t rank, reserved;
};

struct wire {
    uint32_t rank, world;
    int listener;
    struct address own;
    int fds[]; /* by rank; -1: not connected */
};

/* ---- 2. wire ----------------------------------------------------------------------------------------------------- */
static ddp_status failed(const char *what, uint32_t peer, ddp_err *err)
{
    const int number = errno;

    (void)ddp_fail(err, DDP_ERR_PEER, "sockets: %s rank %u: %s", what, peer, strerror(number));
    err->rank = (int32_t)peer;
    err->sys_errno = number;
    return err->status;
}

/* After a call that has moved nothing: whether the socket is ready for another one. */
static int is_ready(int fd, short events, int wait_ms)
{
    struct pollfd p = {.fd = fd, .events = events};

    return (errno == EAGAIN || errno == EINTR) && wait_ms > 0 && poll(&p, 1, wait_ms) > 0;
}

static ddp_status wire_send(void *link, uint32_t peer, const void *data, size_t bytes, int wait_ms, size_t *moved,
                            ddp_err *err)
{
    const int fd = ((struct wire *)link)->fds[peer], flags = MSG_DONTWAIT | MSG_NOSIGNAL;
    ssize_t n = send(fd, data, bytes, flags);

    if (n < 0 && is_ready(fd, POLLOUT, wait_ms)) n = send(fd, data, bytes, flags);
    if (n < 0 && errno != EAGAIN && errno != EINTR) return failed("cannot send to", peer, err);
    *moved = n > 0 ? (size_t)n : 0;
    return DDP_OK;
}

static ddp_status wire_recv(void *link, uint32_t peer, void *data, size_t bytes, int wait_ms, size_t *moved,
                            ddp_err *err)
{
    const int fd = ((struct wire *)link)->fds[peer];
    ssize_t n = recv(fd, data, bytes, MSG_DONTWAIT);

    if (n < 0 && is_ready(fd, POLLIN, wait_ms)) n = recv(fd, data, bytes, MSG_DONTWAIT);
    if (n == 0) errno = ECONNRESET;
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return failed("cannot receive from", peer, err);
    *moved = n > 0 ? (size_t)n : 0;
    return DDP_OK;
}

static void wire_close(void *link)
{
    struct wire *w = link;

    for (uint32_t r = 0; r < w->world; r++)
        if (w->fds[r] >= 0) (void)close(w->fds[r]);
    if (w->listener >= 0) (void)close(w->listener);
    free(w);
}

static const ddp_transport transport = {wire_send, wire_recv, wire_close};

/* ---- 3. connect -------------------------------------------------------------------------------------------------- */
static int64_t now_ms(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Waits of one call end at its deadline: a socket's own, of connect and of the hello's bytes. */
static void prepare(int fd, int64_t deadline)
{
    const int64_t left = deadline - now_ms() > 1 ? deadline - now_ms() : 1;
    const struct timeval limit = {.tv_sec = left / 1000, .tv_usec = left % 1000 * 1000};
    const int on = 1;

    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

/* At the address by which other ranks reach this one, on a port that is free. */
static ddp_status listen_here(struct wire *w, const char *host, ddp_err *err)
{
    const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM};
    struct addrinfo *at = NULL;

    if (getaddrinfo(host, "0", &hints, &at) != 0)
        return ddp_fail(err, DDP_ERR_INVALID, "sockets: \"%.60s\" is no address", host);
    w->own.length = sizeof(w->own.at);
    w->listener = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (w->listener < 0 || bind(w->listener, at->ai_addr, at->ai_addrlen) != 0 || listen(w->listener, 128) != 0 ||
        getsockname(w->listener, (struct sockaddr *)&w->own.at, &w->own.length) != 0 ||
        getrandom(&w->own.token, sizeof(w->own.token), 0) != (ssize_t)sizeof(w->own.token))
        (void)ddp_fail(err, DDP_ERR_SYSTEM, "sockets: cannot listen at %.60s: %s", host, strerror(errno));
    freeaddrinfo(at);
    return err->status;
}

static ddp_status connect_to(struct wire *w, const ddp_store *store, uint32_t peer, int64_t deadline, ddp_err *err)
{
    struct address to;
    struct hello hello = {.rank = w->rank};
    char key[32];
    size_t got;

    (void)snprintf(key, sizeof(key), "address of %u", peer);
    DDP_TRY(store->get(store->ctx, key, &to, sizeof(to), &got, deadline - now_ms(), err));
    hello.token = to.token;
    w->fds[peer] = socket(to.at.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    prepare(w->fds[peer], deadline);
    if (w->fds[peer] < 0 || connect(w->fds[peer], (struct sockaddr *)&to.at, to.length) != 0 ||
        send(w->fds[peer], &hello, sizeof(hello), MSG_NOSIGNAL) != (ssize_t)sizeof(hello))
        return failed("cannot connect to", peer, err);
    return DDP_OK;
}

/* One more of the ranks above; anybody else is sent away. */
static ddp_status accept_one(struct wire *w, int64_t deadline, uint32_t *count, ddp_err *err)
{
    struct pollfd p = {.fd = w->listener, .events = POLLIN};
    const int64_t left = deadline - now_ms();
    struct hello hello;
    int fd;

    if (left <= 0 || poll(&p, 1, (int)left) <= 0)
        return ddp_fail(err, DDP_ERR_TIMEOUT, "sockets: %u of the ranks above rank %u have connected in time", *count,
                        w->rank);
    if ((fd = accept(w->listener, NULL, NULL)) < 0) return DDP_OK;
    prepare(fd, deadline < now_ms() + 1000 ? deadline : now_ms() + 1000);
    if (recv(fd, &hello, sizeof(hello), MSG_WAITALL) == (ssize_t)sizeof(hello) && hello.token == w->own.token &&
        hello.rank > w->rank && hello.rank < w->world && w->fds[hello.rank] < 0) {
        w->fds[hello.rank] = fd;
        (*count)++;
    } else {
        (void)close(fd);
    }
    return DDP_OK;
}

static ddp_status connect_all(struct wire *w, const ddp_comm_params *p, ddp_err *err)
{
    const int64_t deadline = now_ms() + p->connect_timeout_ms;
    uint32_t above = 0;
    char key[32];

    (void)snprintf(key, sizeof(key), "address of %u", w->rank);
    err->status = DDP_OK;
    DDP_TRY(listen_here(w, p->address, err));
    DDP_TRY(p->store->set(p->store->ctx, key, &w->own, sizeof(w->own), err));
    for (uint32_t r = 0; r < w->rank; r++) DDP_TRY(connect_to(w, p->store, r, deadline, err));
    while (above < w->world - 1 - w->rank) DDP_TRY(accept_one(w, deadline, &above, err));
    return DDP_OK;
}

/* ---- 4. backend -------------------------------------------------------------------------------------------------- */
static ddp_status comm_create(ddp_backend *b, const ddp_comm_params *p, ddp_comm **out, ddp_err *err)
{
    struct wire *w = calloc(1, sizeof(*w) + p->world_size * sizeof(w->fds[0]));
    char key[32];
    ddp_status status;

    (void)b;
    if (w == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "sockets: no memory for %u ranks", p->world_size);
    w->rank = p->rank;
    w->world = p->world_size;
    w->listener = -1;
    for (uint32_t r = 0; r < w->world; r++) w->fds[r] = -1;
    status = connect_all(w, p, err);
    if (status != DDP_OK) {
        wire_close(w);
        return status;
    }
    DDP_TRY(ddp_compose_create(p, &transport, w, out, err)); /* closes the wire if it fails */
    (void)snprintf(key, sizeof(key), "address of %u", p->rank);
    (void)p->store->remove(p->store->ctx, key, err); /* all ranks have come, and read it before */
    return DDP_OK;
}

static const ddp_backend_ops ops = {.struct_size = sizeof(ops),
                                    .caps = DDP_COMPOSE_CAPS,
                                    .open = ddp_compose_open,
                                    .close = ddp_compose_close,
                                    .comm_create = comm_create,
                                    DDP_COMPOSE_SLOTS};

DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(BACKEND, 0),
    .reach = DDP_REACH_NETWORK,
    .memory = DDP_MEMORY_HOST,
    DDP_PLUGIN_TAIL("sockets", "1.0", "collectives over TCP sockets, from send and recv, an example", DDP_NO_OPTIONS,
                    ops),
};
