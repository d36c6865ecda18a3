/* group/address.c -- endpoints to sockets: name resolution, the one listener, one attempt to connect. Retries, and what is
 * said over a connection, are meet.c's. */
#include "group/address.h"
#include "base/sys.h"
#include "group/group.h"
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONNECT_NS 5000000000ll /* for one address: an unreachable host answers nothing */

static ddp_status split(const char *endpoint, char host[DDP_ENDPOINT_MAX], char port[8], ddp_err *err)
{
    const char *colon = strrchr(endpoint, ':'), *begin = endpoint, *end = colon;

    if (colon == NULL || strlen(endpoint) >= DDP_ENDPOINT_MAX) goto malformed;
    if (*begin == '[') {
        begin++;
        if (end - begin < 1 || end[-1] != ']') goto malformed;
        end--;
    } else if (memchr(begin, ':', (size_t)(end - begin)) != NULL) {
        goto malformed;
    }
    if (begin == end || colon[1] == '\0' || strlen(colon + 1) > 5 ||
        strspn(colon + 1, "0123456789") != strlen(colon + 1) || strtoul(colon + 1, NULL, 10) > 65535)
        goto malformed;
    memcpy(host, begin, (size_t)(end - begin));
    host[end - begin] = '\0';
    ddp_copy_text(port, 8, colon + 1);
    return DDP_OK;

malformed:
    return ddp_fail(err, DDP_ERR_CONFIG, "\"%.255s\" is not an endpoint: write host:port or [IPv6 address]:port",
                    endpoint);
}

/* DDP_ERR_PEER when the name is not known (yet). */
static ddp_status resolve(const char *endpoint, struct addrinfo **out, ddp_err *err)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    char host[DDP_ENDPOINT_MAX], port[8];
    int rc;

    DDP_TRY(split(endpoint, host, port, err));
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

static bool is_loopback(const struct sockaddr *a)
{
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;

    if (a->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24 == 127;
    return a->sa_family == AF_INET6 &&
           (IN6_IS_ADDR_LOOPBACK(v6) || (IN6_IS_ADDR_V4MAPPED(v6) && v6->s6_addr[12] == 127));
}

bool ddp_endpoint_is_loopback(const char *endpoint)
{
    struct addrinfo *list;
    bool all = true;
    ddp_err err;

    if (resolve(endpoint, &list, &err) != DDP_OK) return false;
    for (const struct addrinfo *a = list; a != NULL; a = a->ai_next) all = all && is_loopback(a->ai_addr);
    freeaddrinfo(list);
    return all;
}

static void address_text(const struct sockaddr_storage *a, socklen_t length, bool with_port, char *buf, size_t capacity)
{
    char host[NI_MAXHOST], port[NI_MAXSERV];

    if (getnameinfo((const struct sockaddr *)a, length, host, sizeof(host), port, sizeof(port),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        ddp_copy_text(buf, capacity, "unknown address");
    else if (!with_port)
        ddp_copy_text(buf, capacity, host);
    else
        (void)snprintf(buf, capacity, strchr(host, ':') != NULL ? "[%s]:%s" : "%s:%s", host, port);
}

void ddp_address_own(int fd, bool with_port, char *buf, size_t capacity)
{
    struct sockaddr_storage a = {0};
    socklen_t length = sizeof(a);

    (void)getsockname(fd, (struct sockaddr *)&a, &length);
    address_text(&a, length, with_port, buf, capacity);
}

void ddp_address_peer(int fd, char *buf, size_t capacity)
{
    struct sockaddr_storage a = {0};
    socklen_t length = sizeof(a);

    (void)getpeername(fd, (struct sockaddr *)&a, &length);
    address_text(&a, length, true, buf, capacity);
}

static ddp_status listen_failed(const char *endpoint, ddp_err *err)
{
    if (errno == EADDRINUSE) {
        (void)ddp_fail(
            err, DDP_ERR_SYSTEM,
            "cannot listen at %s: the port is in use. Stop the process that has it (ss -ltnp names it), or take "
            "another port in init_method on all nodes",
            endpoint);
        err->sys_errno = EADDRINUSE;
        return err->status;
    }
    if (errno == EADDRNOTAVAIL) {
        (void)ddp_fail(
            err, DDP_ERR_SYSTEM,
            "cannot listen at %s: that is not an address of this host. Rank 0 runs on the host that init_method "
            "names: correct init_method or rank",
            endpoint);
        err->sys_errno = EADDRNOTAVAIL;
        return err->status;
    }
    return ddp_fail_errno(err, "cannot listen at %s", endpoint);
}

ddp_status ddp_endpoint_listen(const char *endpoint, int *out, char actual[DDP_ENDPOINT_MAX], ddp_err *err)
{
    char bound[DDP_ENDPOINT_MAX];
    struct addrinfo *list;
    int fd = -1, one = 1;

    DDP_TRY(resolve(endpoint, &list, err));
    if (is_wildcard(list->ai_addr)) {
        (void)ddp_fail(err, DDP_ERR_CONFIG,
                       "%s stands for every address of this host: name the one that the other ranks reach", endpoint);
        goto free_list;
    }
    fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) != 0 ||
        bind(fd, list->ai_addr, list->ai_addrlen) != 0 || listen(fd, SOMAXCONN) != 0) {
        (void)listen_failed(endpoint, err);
        goto close_fd;
    }
    freeaddrinfo(list);
    ddp_address_own(fd, true, bound, sizeof(bound));
    (void)snprintf(actual, DDP_ENDPOINT_MAX, "%.*s%s", (int)(strrchr(endpoint, ':') - endpoint), endpoint,
                   strrchr(bound, ':'));
    *out = fd;
    return DDP_OK;

close_fd:
    if (fd >= 0) (void)close(fd);
free_list:
    freeaddrinfo(list);
    return err->status;
}

/* Without a listener on it, a connection to a port of the ephemeral range can meet itself. */
static bool met_itself(int fd)
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

    if (connect(fd, a->ai_addr, a->ai_addrlen) == 0) return met_itself(fd) ? ECONNREFUSED : 0;
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
    if (error == 0 && met_itself(fd)) return ECONNREFUSED;
    return error;
}

ddp_status ddp_endpoint_connect(const char *endpoint, int64_t deadline_ns, int *out, ddp_err *err)
{
    int64_t until = DDP_MIN_OF(deadline_ns, ddp_now_ns() + CONNECT_NS);
    struct addrinfo *list;
    int error = 0;

    DDP_TRY(resolve(endpoint, &list, err));
    for (const struct addrinfo *a = list; a != NULL; a = a->ai_next) {
        int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

        error = fd < 0 ? errno : connect_one(fd, a, until);
        if (error == 0) {
            freeaddrinfo(list);
            *out = fd;
            return DDP_OK;
        }
        if (fd >= 0) (void)close(fd);
    }
    freeaddrinfo(list);
    (void)ddp_fail(err, DDP_ERR_PEER, "%s", strerror(error));
    err->sys_errno = error;
    return DDP_ERR_PEER;
}
