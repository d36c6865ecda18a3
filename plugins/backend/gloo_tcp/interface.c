/* plugins/backend/gloo_tcp/interface.c -- GLOO_SOCKET_IFNAME, for those who know it from PyTorch: the address of an
 * interface of this host. The core has already looked up the one of [group] interface. */
#include "collective.h"
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool address_of(const struct ifaddrs *i, char *buf, size_t capacity)
{
    socklen_t length;

    if (i->ifa_addr == NULL || (i->ifa_flags & IFF_UP) == 0) return false;
    if (i->ifa_addr->sa_family != AF_INET && i->ifa_addr->sa_family != AF_INET6) return false;
    length = i->ifa_addr->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    return getnameinfo(i->ifa_addr, length, buf, (socklen_t)capacity, NULL, 0, NI_NUMERICHOST) == 0;
}

/* Of the family of `like` where there is one. */
static bool find(const struct ifaddrs *list, const char *name, const char *like, char *out)
{
    bool want_v6 = strchr(like, ':') != NULL, found = false, right = false;
    char text[DDP_GLOO_ADDRESS_MAX];

    for (const struct ifaddrs *i = list; i != NULL && !right; i = i->ifa_next) {
        if (strcmp(i->ifa_name, name) != 0 || !address_of(i, text, sizeof(text))) continue;
        right = (strchr(text, ':') != NULL) == want_v6;
        if (right || !found) memcpy(out, text, sizeof(text));
        found = true;
    }
    return found;
}

static ddp_status none(const struct ifaddrs *list, const char *name, ddp_err *err)
{
    char all[300] = "", text[DDP_GLOO_ADDRESS_MAX];
    size_t used = 0;

    for (const struct ifaddrs *i = list; i != NULL && used < sizeof(all); i = i->ifa_next)
        if (address_of(i, text, sizeof(text)))
            used +=
                (size_t)snprintf(all + used, sizeof(all) - used, "%s%s (%s)", used > 0 ? ", " : "", i->ifa_name, text);
    return ddp_fail(
        err, DDP_ERR_CONFIG,
        "gloo-tcp: GLOO_SOCKET_IFNAME=%.63s: no interface of that name is up and has an address; this host has %s",
        name, all);
}

ddp_status ddp_gloo_own_address(const char *interface, const char *address, char *out, ddp_err *err)
{
    const char *names = getenv("GLOO_SOCKET_IFNAME");
    struct ifaddrs *list;
    char name[64];
    bool found;

    if (interface == NULL) interface = "";
    if (address == NULL) address = "";
    (void)snprintf(out, DDP_GLOO_ADDRESS_MAX, "%s", address);
    if (interface[0] != '\0' || names == NULL || names[0] == '\0') return DDP_OK;
    (void)snprintf(name, sizeof(name), "%.*s", (int)strcspn(names, ","), names);
    if (getifaddrs(&list) != 0) return ddp_fail(err, DDP_ERR_SYSTEM, "gloo-tcp: cannot list the network interfaces");
    found = find(list, name, address, out);
    if (!found) (void)none(list, name, err);
    freeifaddrs(list);
    return found ? DDP_OK : err->status;
}
