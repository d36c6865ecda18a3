/* net/address.c -- socket addresses: as text, of either end of a socket, whether they are loopback. */
#include "net/address.h"
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>

bool net_address_is_loopback(const struct sockaddr *a)
{
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;

    if (a->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24 == 127;
    return a->sa_family == AF_INET6 &&
           (IN6_IS_ADDR_LOOPBACK(v6) || (IN6_IS_ADDR_V4MAPPED(v6) && v6->s6_addr[12] == 127));
}

bool net_address_split(const char *text, char *host, size_t capacity, const char **number)
{
    const char *colon = strrchr(text, ':'), *begin = text, *end = colon;
    size_t digits = colon == NULL ? 0 : strspn(colon + 1, "0123456789");

    if (digits == 0 || digits > 5 || colon[1 + digits] != '\0') return false;
    if (*begin == '[') {
        begin++;
        if (end <= begin || *--end != ']') return false;
    } else if (memchr(begin, ':', (size_t)(end - begin)) != NULL) {
        return false;
    }
    if (begin >= end || (size_t)(end - begin) >= capacity) return false;
    memcpy(host, begin, (size_t)(end - begin));
    host[end - begin] = '\0';
    *number = colon + 1;
    return true;
}

socklen_t net_address_length(const struct sockaddr *a)
{
    return a->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

static void address_text(const struct sockaddr *a, bool with_port, char *buf, size_t capacity)
{
    char host[NI_MAXHOST], port[NI_MAXSERV];

    if (getnameinfo(a, net_address_length(a), host, sizeof(host), port, sizeof(port),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        ddp_copy_text(buf, capacity, "unknown address");
    else if (!with_port)
        ddp_copy_text(buf, capacity, host);
    else
        (void)snprintf(buf, capacity, strchr(host, ':') != NULL ? "[%s]:%s" : "%s:%s", host, port);
}

void ddp_address_text(const struct sockaddr *a, char *buf, size_t capacity) { address_text(a, false, buf, capacity); }

void ddp_address_own(int fd, bool with_port, char *buf, size_t capacity)
{
    struct sockaddr_storage a = {0};
    socklen_t length = sizeof(a);

    (void)getsockname(fd, (struct sockaddr *)&a, &length);
    address_text((const struct sockaddr *)&a, with_port, buf, capacity);
}

void ddp_address_peer(int fd, char *buf, size_t capacity)
{
    struct sockaddr_storage a = {0};
    socklen_t length = sizeof(a);

    (void)getpeername(fd, (struct sockaddr *)&a, &length);
    address_text((const struct sockaddr *)&a, true, buf, capacity);
}

void ddp_address_net(int fd, unsigned char net[8])
{
    struct sockaddr_storage a = {0};
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)&a;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)&a;
    socklen_t length = sizeof(a);

    memset(net, 0, 8);
    (void)getpeername(fd, (struct sockaddr *)&a, &length);
    if (a.ss_family == AF_INET)
        memcpy(net, &v4->sin_addr, 4);
    else if (a.ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr))
        memcpy(net, &v6->sin6_addr.s6_addr[12], 4);
    else if (a.ss_family == AF_INET6)
        memcpy(net, &v6->sin6_addr, 8);
}

int ddp_address_family(int fd)
{
    struct sockaddr_storage a = {0};
    socklen_t length = sizeof(a);

    (void)getsockname(fd, (struct sockaddr *)&a, &length);
    return a.ss_family;
}

bool ddp_address_of_loopback(int fd)
{
    struct sockaddr_storage a = {0};
    socklen_t length = sizeof(a);

    (void)getsockname(fd, (struct sockaddr *)&a, &length);
    return net_address_is_loopback((const struct sockaddr *)&a);
}
