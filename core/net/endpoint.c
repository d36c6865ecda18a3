/* net/endpoint.c -- endpoints to sockets: name resolution, the one listener, one attempt to connect. Retries, and
 * what is sent over a connection, are control/rendezvous.c's. */
#include "net/endpoint.h"
#include "base/sys.h"
#include "net/interface.h"
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONNECT_NS 5000000000ll /* for one address: an unreachable host answers nothing */

/* DDP_ERR_PEER when the name is not known (yet). */
static ddp_status resolve(const char *endpoint, struct addrinfo **out, ddp_err *err)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    char host[DDP_ENDPOINT_MAX];
    const char *port;
    int rc;

    if (!net_address_split(endpoint, host, sizeof(host), &port) || strtoul(port, NULL, 10) > 65535)
        return ddp_fail(err, DDP_ERR_CONFIG, "\"%.255s\" is not an endpoint: write host:port or [IPv6 address]:port",
                        endpoint);
    rc = getaddrinfo(host, port, &hints, out);
    if (rc == 0) return DDP_OK;
    return ddp_fail(err, DDP_ERR_PEER, "cannot resolve host name \"%s\": %s", host,
                    rc == EAI_SYSTEM ? strerror(errno) : gai_strerror(rc));
}

static bool is_wildcard(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET) return ((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr == INADDR_ANY;
    return a->sa_family == AF_INET6 &&
           IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr);
}

bool ddp_endpoint_is_loopback(const char *endpoint)
{
    struct addrinfo *list;
    bool all = true;
    ddp_err err;

    if (resolve(endpoint, &list, &err) != DDP_OK) return false;
    for (const struct addrinfo *a = list; a != NULL; a = a->ai_next) all = all && net_address_is_loopback(a->ai_addr);
    freeaddrinfo(list);
    return all;
}

static ddp_status listen_failed(const char *endpoint, ddp_err *err)
{
    if (errno == EADDRINUSE) {
        (void)ddp_fail(
            err, DDP_ERR_SYSTEM,
            "cannot listen at %s: the port is in use. "
            "Stop the process that has it (ss -ltnp names it), or take another port in init_method on all nodes",
            endpoint);
        err->sys_errno = EADDRINUSE;
        return err->status;
    }
    if (errno == EADDRNOTAVAIL) {
        (void)ddp_fail(
            err, DDP_ERR_SYSTEM,
            "cannot listen at %s: that is not an address of this host. Rank 0 runs on the host that init_method names: "
            "correct init_method or rank",
            endpoint);
        err->sys_errno = EADDRNOTAVAIL;
        return err->status;
    }
    return ddp_fail_errno(err, "cannot listen at %s", endpoint);
}

ddp_status ddp_endpoint_listen(const char *endpoint, int *out, char actual[DDP_ENDPOINT_MAX], ddp_err *err)
{
    char bound[DDP_ENDPOINT_MAX];
    const char *port;
    const struct addrinfo *a;
    struct addrinfo *list;
    int fd = -1, one = 1;

    DDP_TRY(resolve(endpoint, &list, err));
    /* a host name may stand for loopback too, where only ranks of this host would find rank 0 */
    for (a = list; a->ai_next != NULL && net_address_is_loopback(a->ai_addr);) a = a->ai_next;
    if (net_address_is_loopback(a->ai_addr)) a = list;
    if (is_wildcard(a->ai_addr)) {
        (void)ddp_fail(err, DDP_ERR_CONFIG,
                       "%s stands for every address of this host: name the one that the other ranks reach", endpoint);
        goto free_list;
    }
    fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) != 0 ||
        bind(fd, a->ai_addr, a->ai_addrlen) != 0 || listen(fd, SOMAXCONN) != 0) {
        (void)listen_failed(endpoint, err);
        goto close_fd;
    }
    ddp_address_own(fd, true, bound, sizeof(bound));
    port = strrchr(bound, ':');
    if (port == NULL) {
        (void)ddp_fail(err, DDP_ERR_SYSTEM, "cannot listen at %s: the system does not say which port it gave",
                       endpoint);
        goto close_fd;
    }
    (void)snprintf(actual, DDP_ENDPOINT_MAX, "%.*s%s", (int)(strrchr(endpoint, ':') - endpoint), endpoint, port);
    freeaddrinfo(list);
    *out = fd;
    return DDP_OK;

close_fd:
    if (fd >= 0) (void)close(fd);
free_list:
    freeaddrinfo(list);
    return err->status;
}

/* Without a listener on it, a connection to a port of the ephemeral range can be connected to itself. */
static bool is_connected_to_itself(int fd)
{
    char own[DDP_ENDPOINT_MAX], peer[DDP_ENDPOINT_MAX];

    ddp_address_own(fd, true, own, sizeof(own));
    ddp_address_peer(fd, peer, sizeof(peer));
    return strcmp(own, peer) == 0;
}

/* 0, or the errno of the attempt. */
static int connect_one(int fd, const struct addrinfo *a, int64_t deadline_ns)
{
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    int error = 0;
    socklen_t length = sizeof(error);

    if (connect(fd, a->ai_addr, a->ai_addrlen) == 0) return is_connected_to_itself(fd) ? ECONNREFUSED : 0;
    if (errno != EINPROGRESS && errno != EINTR) return errno;
    for (;;) {
        int64_t left = deadline_ns - ddp_now_ns();
        int n;

        if (left <= 0) return ETIMEDOUT;
        n = poll(&p, 1, (int)(left / 1000000 + 1));
        if (n > 0) break;
        if (n < 0 && errno != EINTR) return errno;
    }
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) return errno;
    if (error == 0 && is_connected_to_itself(fd)) return ECONNREFUSED;
    return error;
}

/* Gives a socket the address of `interface`, and its text. A loopback address is reached without. */
static ddp_status bind_source(int fd, const char *interface, const struct addrinfo *to, char *from, ddp_err *err)
{
    struct sockaddr_storage a;
    socklen_t length;

    from[0] = '\0';
    if (interface[0] == '\0' || net_address_is_loopback(to->ai_addr)) return DDP_OK;
    DDP_TRY(ddp_interface_address(interface, to->ai_family, &a, &length, err));
    ddp_address_text((const struct sockaddr *)&a, from, DDP_ADDRESS_MAX);
    if (bind(fd, (const struct sockaddr *)&a, length) == 0) return DDP_OK;
    return ddp_fail_errno(err, "cannot bind to %s of interface %s", from, interface);
}

/* DDP_OK and a connected socket, or the first error that forbids the attempt, or DDP_ERR_PEER. */
static ddp_status connect_from(const char *interface, const struct addrinfo *to, int64_t until, int *out, ddp_err *err)
{
    int fd = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), error;
    char from[DDP_ADDRESS_MAX];
    ddp_status st;

    if (fd < 0) return ddp_fail_errno(err, "cannot make a socket");
    st = bind_source(fd, interface, to, from, err);
    if (st != DDP_OK) goto close_fd;
    error = connect_one(fd, to, until);
    if (error == 0) {
        *out = fd;
        return DDP_OK;
    }
    if (from[0] == '\0')
        st = ddp_fail(err, DDP_ERR_PEER, "%s", strerror(error));
    else
        st = ddp_fail(err, DDP_ERR_PEER, "%s (from %s of interface %s)", strerror(error), from, interface);
    err->sys_errno = error;

close_fd:
    (void)close(fd);
    return st;
}

ddp_status ddp_endpoint_connect(const char *interface, const char *endpoint, int64_t deadline_ns, int *out,
                                ddp_err *err)
{
    int64_t until = DDP_MIN_OF(deadline_ns, ddp_now_ns() + CONNECT_NS);
    ddp_status st = DDP_ERR_PEER;
    struct addrinfo *list;
    ddp_err last = {0};

    DDP_TRY(resolve(endpoint, &list, err));
    for (const struct addrinfo *a = list; a != NULL && st != DDP_OK; a = a->ai_next) {
        st = connect_from(interface, a, until, out, &last);
        if (st == DDP_ERR_SYSTEM) st = last.status = DDP_ERR_PEER; /* an address may come and go */
        /* of several addresses report one that is worth another attempt */
        if (st == DDP_ERR_PEER || a == list) *err = last;
    }
    freeaddrinfo(list);
    return st == DDP_OK ? st : err->status;
}

ddp_status ddp_endpoint_begin(const char *interface, const char *endpoint, int *out, ddp_err *err)
{
    char from[DDP_ADDRESS_MAX];
    struct addrinfo *to;
    ddp_status st;
    int fd;

    DDP_TRY(resolve(endpoint, &to, err));
    fd = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    st = fd < 0 ? ddp_fail_errno(err, "cannot make a socket") : bind_source(fd, interface, to, from, err);
    if (st == DDP_OK && connect(fd, to->ai_addr, to->ai_addrlen) != 0 && errno != EINPROGRESS)
        st = ddp_fail_errno(err, "cannot connect to %s", endpoint);
    freeaddrinfo(to);
    if (st == DDP_OK)
        *out = fd;
    else if (fd >= 0)
        (void)close(fd);
    return st;
}
