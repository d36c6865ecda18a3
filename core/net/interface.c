/* net/interface.c -- network interfaces by name: their addresses, and what there is to choose from when a name is
 * wrong. */
#include "net/interface.h"
#include "net/address.h"
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <string.h>

/* 0: of another family, or no address that could be bound. The highest is taken. */
static int preference(const struct ifaddrs *i, int family)
{
    const struct sockaddr *a = i->ifa_addr;

    if (a == NULL || (i->ifa_flags & IFF_UP) == 0 || (family != AF_UNSPEC && a->sa_family != family)) return 0;
    if (a->sa_family == AF_INET) return 3;
    if (a->sa_family != AF_INET6) return 0;
    return IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr) ? 1 : 2;
}

/* "eth0 (192.0.2.7, fe80::1%eth0)", or "eth1 (down)". */
static void describe(ddp_text *out, const struct ifaddrs *list, const struct ifaddrs *which)
{
    bool up = (which->ifa_flags & IFF_UP) != 0, any = false;
    char address[DDP_ADDRESS_MAX];

    ddp_text_printf(out, "%s%s (", out->length > 0 ? ", " : "", which->ifa_name);
    for (const struct ifaddrs *i = list; i != NULL && up; i = i->ifa_next) {
        if (strcmp(i->ifa_name, which->ifa_name) != 0 || preference(i, AF_UNSPEC) == 0) continue;
        ddp_address_text(i->ifa_addr, address, sizeof(address));
        ddp_text_printf(out, "%s%s", any ? ", " : "", address);
        any = true;
    }
    ddp_text_printf(out, "%s)", !up ? "down" : any ? "" : "no address");
}

static void describe_all(ddp_text *out, const struct ifaddrs *list)
{
    for (const struct ifaddrs *i = list; i != NULL; i = i->ifa_next) {
        const struct ifaddrs *first = list;

        while (strcmp(first->ifa_name, i->ifa_name) != 0) first = first->ifa_next;
        if (first == i) describe(out, list, i);
    }
}

static ddp_status refuse(const char *name, int family, const struct ifaddrs *list, ddp_err *err)
{
    const char *kind = family == AF_INET ? "IPv4 " : family == AF_INET6 ? "IPv6 " : "";
    const struct ifaddrs *i = list;
    ddp_text all = {0};

    while (i != NULL && strcmp(i->ifa_name, name) != 0) i = i->ifa_next;
    describe_all(&all, list);
    if (i == NULL)
        (void)ddp_fail(err, DDP_ERR_CONFIG, "this host has no network interface \"%.63s\"; it has %.380s", name,
                       all.length > 0 ? all.data : "none");
    else if ((i->ifa_flags & IFF_UP) == 0)
        (void)ddp_fail(err, DDP_ERR_CONFIG, "network interface \"%.63s\" is down; this host has %.380s", name,
                       all.data);
    else
        (void)ddp_fail(err, DDP_ERR_CONFIG, "network interface \"%.63s\" has no %saddress; this host has %.370s", name,
                       kind, all.data);
    ddp_text_free(&all);
    return err->status;
}

ddp_status ddp_interface_address(const char *name, int family, struct sockaddr_storage *out, socklen_t *length,
                                 ddp_err *err)
{
    const struct ifaddrs *best = NULL;
    struct ifaddrs *list;
    ddp_status st = DDP_OK;

    if (getifaddrs(&list) != 0) return ddp_fail_errno(err, "cannot list the network interfaces");
    for (const struct ifaddrs *i = list; i != NULL; i = i->ifa_next)
        if (strcmp(i->ifa_name, name) == 0 && preference(i, family) > (best == NULL ? 0 : preference(best, family)))
            best = i;
    if (best == NULL) {
        st = refuse(name, family, list, err);
    } else {
        *length = net_address_length(best->ifa_addr);
        memset(out, 0, sizeof(*out));
        memcpy(out, best->ifa_addr, *length);
    }
    freeifaddrs(list);
    return st;
}

ddp_status ddp_interface_check(const char *name, char *address, size_t capacity, ddp_err *err)
{
    struct sockaddr_storage a;
    socklen_t length = 0;

    DDP_TRY(ddp_interface_address(name, AF_UNSPEC, &a, &length, err));
    ddp_address_text((const struct sockaddr *)&a, address, capacity);
    return DDP_OK;
}
