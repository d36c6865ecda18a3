/* net/nodes.c -- this machine's own addresses, and which entry of [group] nodes it is: compares host names and
 * addresses. */
#include "net/nodes.h"
#include "net/address.h"
#include "net/interface.h"
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { RANKS_MAX = 65536 };

/* ---- addresses --------------------------------------------------------------------------------------------------- */
static bool same_address(const struct sockaddr *a, const struct sockaddr *b)
{
    if (a->sa_family != b->sa_family) return false;
    if (a->sa_family == AF_INET)
        return ((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr ==
               ((const struct sockaddr_in *)(const void *)b)->sin_addr.s_addr;
    return memcmp(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr,
                  &((const struct sockaddr_in6 *)(const void *)b)->sin6_addr, sizeof(struct in6_addr)) == 0;
}

static bool has_address(const struct ifaddrs *i)
{
    return i->ifa_addr != NULL && (i->ifa_flags & IFF_UP) != 0 &&
           (i->ifa_addr->sa_family == AF_INET || i->ifa_addr->sa_family == AF_INET6);
}

static bool is_link_local(const struct sockaddr *a)
{
    return a->sa_family == AF_INET6 &&
           IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr);
}

/* What a packet to the rest of the world would be sent from; none is sent. The target is of a block for
 * documentation. */
static bool routed_address(int family, const char *target, char *host, size_t capacity)
{
    struct sockaddr_storage a = {.ss_family = (sa_family_t)family};
    socklen_t length = sizeof(a);
    int fd = socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool found = false;

    if (fd < 0) return false;
    if (family == AF_INET) {
        struct sockaddr_in *v4 = (struct sockaddr_in *)&a;

        v4->sin_port = htons(9);
        (void)inet_pton(family, target, &v4->sin_addr);
    } else {
        struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&a;

        v6->sin6_port = htons(9);
        (void)inet_pton(family, target, &v6->sin6_addr);
    }
    if (connect(fd, (struct sockaddr *)&a, length) == 0 && getsockname(fd, (struct sockaddr *)&a, &length) == 0)
        found = !net_address_is_loopback((struct sockaddr *)&a);
    if (found) ddp_address_text((struct sockaddr *)&a, host, capacity);
    (void)close(fd);
    return found;
}

ddp_status ddp_own_address(const char *interface, char *host, size_t capacity, ddp_err *err)
{
    struct ifaddrs *list;
    bool found = false;

    if (interface[0] != '\0') return ddp_interface_check(interface, host, capacity, err);
    if (routed_address(AF_INET, "198.51.100.1", host, capacity)) return DDP_OK;
    if (routed_address(AF_INET6, "2001:db8::1", host, capacity)) return DDP_OK;
    if (getifaddrs(&list) != 0) return ddp_fail_errno(err, "cannot list this machine's addresses");
    for (const struct ifaddrs *i = list; i != NULL && !found; i = i->ifa_next)
        if (has_address(i) && !is_link_local(i->ifa_addr) && !net_address_is_loopback(i->ifa_addr)) {
            ddp_address_text(i->ifa_addr, host, capacity);
            found = true;
        }
    freeifaddrs(list);
    if (!found) ddp_copy_text(host, capacity, "127.0.0.1");
    return DDP_OK;
}

/* ---- one entry --------------------------------------------------------------------------------------------------- */
typedef struct entry {
    char host[256]; /* without brackets */
    bool brackets;
    int32_t ranks;
} entry;

static ddp_status parse_entry(const char *text, entry *out, ddp_err *err)
{
    const char *number;
    long ranks = 0;

    if (net_address_split(text, out->host, sizeof(out->host), &number)) ranks = strtol(number, NULL, 10);
    out->brackets = *text == '[';
    out->ranks = (int32_t)ranks;
    if (ranks >= 1 && ranks <= RANKS_MAX && strpbrk(out->host, " \t/@[]") == NULL) return DDP_OK;
    return ddp_fail(
        err, DDP_ERR_CONFIG,
        "nodes has \"%.200s\": write HOST:RANKS, as in host1:2 or [2001:db8::7]:2, and a comma between nodes", text);
}

/* ---- is it this machine? ----------------------------------------------------------------------------------------- */
typedef struct machine {
    char name[256];
    struct ifaddrs *addresses;
} machine;

static bool is_own_address(const machine *m, const struct sockaddr *a)
{
    if (net_address_is_loopback(a)) return true;
    for (const struct ifaddrs *i = m->addresses; i != NULL; i = i->ifa_next)
        if (has_address(i) && same_address(i->ifa_addr, a)) return true;
    return false;
}

/* *loopback: every address of it is; *unknown: the name has no address here. */
static bool is_this_machine(const machine *m, const char *host, bool *loopback, bool *unknown)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    bool own = strcasecmp(host, m->name) == 0;
    struct addrinfo *list;

    *loopback = false;
    *unknown = getaddrinfo(host, NULL, &hints, &list) != 0;
    if (*unknown) return own;
    *loopback = true;
    for (const struct addrinfo *a = list; a != NULL; a = a->ai_next) {
        own = own || is_own_address(m, a->ai_addr);
        *loopback = *loopback && net_address_is_loopback(a->ai_addr);
    }
    freeaddrinfo(list);
    return own;
}

static ddp_status not_listed(const machine *m, const char *unknown, ddp_err *err)
{
    char text[DDP_ADDRESS_MAX], list[300] = "";
    size_t used = 0;

    for (const struct ifaddrs *i = m->addresses; i != NULL; i = i->ifa_next)
        if (has_address(i) && !net_address_is_loopback(i->ifa_addr) && !is_link_local(i->ifa_addr) &&
            used < sizeof(list)) {
            ddp_address_text(i->ifa_addr, text, sizeof(text));
            used += (size_t)snprintf(list + used, sizeof(list) - used, ", %s", text);
        }
    return ddp_fail(err, DDP_ERR_CONFIG,
                    "none of nodes is this machine, which is %s%s%s%s%s; add it, or write its rank", m->name, list,
                    unknown == NULL ? "" : " (no address is known for ", unknown == NULL ? "" : unknown,
                    unknown == NULL ? "" : ")");
}

static ddp_status find(const machine *m, const ddp_list *entries, ddp_own_node *out, ddp_err *err)
{
    const char *const *texts = entries->items;
    char stranger[sizeof(((entry *)0)->host)] = "";
    bool found = false;
    ddp_own_node n = {0};
    int64_t world = 0;

    for (size_t i = 0; i < entries->count; i++) {
        bool loopback, unknown;
        entry e;

        DDP_TRY(parse_entry(texts[i], &e, err));
        if (i == 0) (void)snprintf(n.first_host, sizeof(n.first_host), e.brackets ? "[%.250s]" : "%.250s", e.host);
        if (is_this_machine(m, e.host, &loopback, &unknown)) {
            if (found)
                return ddp_fail(err, DDP_ERR_CONFIG,
                                "nodes lists this machine twice, as %s and as %s; write it once, with all its ranks",
                                texts[n.index], texts[i]);
            found = true;
            n.index = i;
            n.first_rank = (int32_t)world;
            n.count = e.ranks;
        } else if (unknown && stranger[0] == '\0') {
            ddp_copy_text(stranger, sizeof(stranger), e.host);
        }
        if (i == 0) n.first_is_loopback_alias = loopback && entries->count > 1;
        world += e.ranks;
        if (world > RANKS_MAX) return ddp_fail(err, DDP_ERR_CONFIG, "nodes has more than %d ranks", RANKS_MAX);
    }
    if (!found) return not_listed(m, stranger[0] == '\0' ? NULL : stranger, err);
    n.world = (int32_t)world;
    *out = n;
    return DDP_OK;
}

ddp_status ddp_nodes_world(const ddp_list *entries, int32_t *world, ddp_err *err)
{
    entry e;

    *world = 0;
    for (size_t i = 0; i < entries->count; i++) {
        DDP_TRY(parse_entry(((const char *const *)entries->items)[i], &e, err));
        *world += e.ranks;
    }
    return DDP_OK;
}

ddp_status ddp_nodes_at(const ddp_list *entries, size_t index, char *host, size_t capacity, int32_t *first_rank,
                        ddp_err *err)
{
    const char *const *texts = entries->items;
    entry e = {0};

    *first_rank = 0;
    for (size_t i = 0; i <= index; i++) {
        *first_rank += e.ranks;
        DDP_TRY(parse_entry(texts[i], &e, err));
    }
    (void)snprintf(host, capacity, e.brackets ? "[%.250s]" : "%.250s", e.host);
    return DDP_OK;
}

ddp_status ddp_nodes_find(const ddp_list *entries, ddp_own_node *out, ddp_err *err)
{
    machine m = {0};
    ddp_status status;

    (void)gethostname(m.name, sizeof(m.name) - 1);
    if (getifaddrs(&m.addresses) != 0) return ddp_fail_errno(err, "cannot list this machine's addresses");
    status = find(&m, entries, out, err);
    freeifaddrs(m.addresses);
    return status;
}
