/* plugins/backend/aggregate/listener.c -- see listener.h. */
#include "listener.h"
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

/* A slot is kept for LEAST_MS; who connects when all are taken waits in the BACKLOG meanwhile. */
enum { HELLO_MS = 2000, LEAST_MS = 500, AGAIN_MS = 100, BACKLOG = 4096 };

/* ---- life -------------------------------------------------------------------------------------------------------- */
static bool find_port(int fd, uint32_t *port)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } at = {0};
    socklen_t length = sizeof(at);

    if (getsockname(fd, &at.any, &length) != 0) return false;
    *port = ntohs(at.any.sa_family == AF_INET6 ? at.v6.sin6_port : at.v4.sin_port);
    return true;
}

static bool choose_tokens(aggregate_place *p)
{
    return getrandom(p->token, AGGREGATE_TOKEN, 0) == AGGREGATE_TOKEN &&
           getrandom(p->proof, AGGREGATE_TOKEN, 0) == AGGREGATE_TOKEN;
}

ddp_status aggregate_listener_open(aggregate_listener *l, const char *address, ddp_err *err)
{
    const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM};
    struct addrinfo *at = NULL;
    aggregate_place *p = &l->place;
    bool good;

    l->fd = -1;
    l->count = 0;
    l->again_ms = 0;
    if (getaddrinfo(address, "0", &hints, &at) != 0)
        return ddp_fail(err, DDP_ERR_INVALID, "aggregate: \"%.60s\" is no address", address);
    (void)snprintf(p->address, sizeof(p->address), "%s", address);
    if (gethostname(p->host, sizeof(p->host) - 1) != 0 || p->host[0] == '\0') (void)strcpy(p->host, "unknown");
    p->host[sizeof(p->host) - 1] = '\0';
    l->fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    good = l->fd >= 0 && bind(l->fd, at->ai_addr, at->ai_addrlen) == 0 && listen(l->fd, BACKLOG) == 0 &&
           find_port(l->fd, &p->port) && choose_tokens(p);
    freeaddrinfo(at);
    if (good) return DDP_OK;
    (void)ddp_fail(err, DDP_ERR_SYSTEM, "aggregate: cannot listen at %.60s: %s", address, strerror(errno));
    err->sys_errno = errno;
    aggregate_listener_close(l);
    return err->status;
}

void aggregate_listener_close(aggregate_listener *l)
{
    for (uint32_t i = 0; i < l->count; i++) (void)close(l->strangers[i].fd);
    l->count = 0;
    if (l->fd >= 0) (void)close(l->fd);
    l->fd = -1;
}

/* ---- strangers --------------------------------------------------------------------------------------------------- */
static void forget(aggregate_listener *l, uint32_t i) { l->strangers[i] = l->strangers[--l->count]; }

static void send_away(aggregate_listener *l, uint32_t i)
{
    (void)close(l->strangers[i].fd);
    forget(l, i);
}

static uint32_t oldest(const aggregate_listener *l)
{
    uint32_t found = 0;

    for (uint32_t i = 1; i < l->count; i++)
        if (l->strangers[i].until_ms < l->strangers[found].until_ms) found = i;
    return found;
}

static bool has_room(const aggregate_listener *l)
{
    int64_t now = aggregate_now_ms();

    if (now < l->again_ms) return false;
    return l->count < AGGREGATE_SLOTS || now >= l->strangers[oldest(l)].until_ms - HELLO_MS + LEAST_MS;
}

static void accept_all(aggregate_listener *l)
{
    for (uint32_t i = 0; i < AGGREGATE_SLOTS && has_room(l); i++) {
        int fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (fd < 0 && errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
            l->again_ms = aggregate_now_ms() + AGAIN_MS;
        if (fd < 0) return;
        if (l->count == AGGREGATE_SLOTS) send_away(l, oldest(l));
        l->strangers[l->count++] = (aggregate_stranger){.fd = fd, .until_ms = aggregate_now_ms() + HELLO_MS};
    }
}

/* Reads what has come. 1: a whole hello; 0: not yet; -1: it cannot stay. */
static int read_hello(aggregate_stranger *s)
{
    ssize_t n = recv(s->fd, s->bytes + s->got, sizeof(s->bytes) - s->got, MSG_DONTWAIT);

    if (n > 0) s->got += (size_t)n;
    if (s->got == sizeof(s->bytes)) return 1;
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return -1;
    return aggregate_now_ms() < s->until_ms ? 0 : -1;
}

uint32_t aggregate_listener_fds(const aggregate_listener *l, struct pollfd *out)
{
    uint32_t n = 0;

    if (l->fd < 0) return 0;
    out[n++] = (struct pollfd){.fd = has_room(l) ? l->fd : -1, .events = POLLIN};
    for (uint32_t i = 0; i < l->count; i++) out[n++] = (struct pollfd){.fd = l->strangers[i].fd, .events = POLLIN};
    return n;
}

int aggregate_listener_wait_ms(const aggregate_listener *l)
{
    if (l->fd < 0) return -1;
    if (l->again_ms > aggregate_now_ms() || l->count == AGGREGATE_SLOTS) return AGAIN_MS;
    return l->count > 0 ? LEAST_MS : -1;
}

/* One of those that are here. */
static bool take(aggregate_listener *l, aggregate_hello *out, int *fd)
{
    for (uint32_t i = l->count; i-- > 0;) {
        aggregate_stranger *s = &l->strangers[i];
        int state = read_hello(s);

        if (state == 0) continue;
        if (state > 0 && aggregate_hello_parse(s->bytes, out) && aggregate_same_token(out->token, l->place.token)) {
            *fd = s->fd;
            forget(l, i);
            return true;
        }
        send_away(l, i);
    }
    return false;
}

/* Who has shown the token makes room before anybody is sent away for it. */
bool aggregate_listener_next(aggregate_listener *l, aggregate_hello *out, int *fd)
{
    if (l->fd < 0) return false;
    if (take(l, out, fd)) return true;
    accept_all(l);
    return take(l, out, fd);
}
