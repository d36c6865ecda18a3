/* plugins/backend/nccl/interface.c -- NCCL takes its network interface from the environment; here it gets the one
 * that the run uses. */
#include "comm.h"
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#define VARIABLE "NCCL_SOCKET_IFNAME"

static bool is_address(const struct sockaddr *a, const char *text)
{
    char plain[INET6_ADDRSTRLEN + 1] = "";
    struct in6_addr want;

    if (a == NULL || strlen(text) >= sizeof(plain)) return false;
    memcpy(plain, text, strcspn(text, "%")); /* an IPv6 address may carry its scope */
    if (inet_pton(a->sa_family, plain, &want) != 1) return false;
    if (a->sa_family == AF_INET)
        return memcmp(&want, &((const struct sockaddr_in *)(const void *)a)->sin_addr, sizeof(struct in_addr)) == 0;
    return memcmp(&want, &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr, sizeof(want)) == 0;
}

/* The interface that has the address; "" when none has. */
static void interface_of(const char *address, char name[IF_NAMESIZE])
{
    struct ifaddrs *all;

    name[0] = '\0';
    if (getifaddrs(&all) != 0) return;
    for (const struct ifaddrs *i = all; i != NULL && name[0] == '\0'; i = i->ifa_next) {
        int family = i->ifa_addr != NULL ? i->ifa_addr->sa_family : AF_UNSPEC;
        if ((family == AF_INET || family == AF_INET6) && is_address(i->ifa_addr, address) &&
            strlen(i->ifa_name) < IF_NAMESIZE)
            (void)snprintf(name, IF_NAMESIZE, "%s", i->ifa_name);
    }
    freeifaddrs(all);
}

void ddp_nccl_use_interface(const ddp_host *host, const char *interface, const char *address)
{
    const char *set = getenv(VARIABLE);
    char name[IF_NAMESIZE] = "", value[IF_NAMESIZE + 2];

    if (interface != NULL && strlen(interface) < sizeof(name)) (void)snprintf(name, sizeof(name), "%s", interface);
    if (name[0] == '\0' && set == NULL && address != NULL && address[0] != '\0') interface_of(address, name);
    if (name[0] == '\0') return;
    (void)snprintf(value, sizeof(value), "=%s", name); /* "=": this name, not every name that begins so */
    if (set != NULL && (strcmp(set, value) == 0 || strcmp(set, name) == 0)) return;
    if (set != NULL)
        host->log(host->ctx, DDP_LOG_WARN, __FILE__, __LINE__,
                  "nccl: [group] interface = %s takes the place of " VARIABLE " = %s", name, set);
    (void)setenv(VARIABLE, value, 1);
}
