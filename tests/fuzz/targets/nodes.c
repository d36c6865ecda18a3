/* fuzz/targets/nodes.c -- [group] nodes, one entry a line, and the endpoints of init methods. No name is looked up:
 * what is no number counts as known and not this machine, or, where it begins with '?', as unknown. */
#include <netdb.h>
#include <string.h>
static int look_up(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **out)
{
    struct addrinfo numeric = *hints;

    numeric.ai_flags |= AI_NUMERICHOST;
    if (getaddrinfo(host, port, &numeric, out) == 0) return 0;
    if (host[0] == '?') return EAI_NONAME;
    return getaddrinfo(strcmp(host, "localhost") == 0 ? "127.0.0.1" : "198.51.100.9", port, &numeric, out);
}
#define getaddrinfo look_up
#include "net/nodes.c"
#undef getaddrinfo
#include "fuzz.h"

enum { ENTRIES = 64 };

FUZZ_TARGET(nodes)
{
    fuzz_input in = {data, size};
    char *texts[ENTRIES], host[256];
    const char *number;
    ddp_list entries = {.items = texts};
    ddp_own_node node;
    ddp_err err = {0};
    ddp_status status;

    while (entries.count < ENTRIES && in.left > 0) texts[entries.count++] = fuzz_text(&in, '\n');
    for (size_t i = 0; i < entries.count; i++)
        if (net_address_split(texts[i], host, sizeof(host), &number))
            FUZZ_CHECK(host[0] != '\0' && number[0] >= '0' && number[0] <= '9' && strlen(number) <= 5);
    status = ddp_nodes_find(&entries, &node, &err);
    if (status == DDP_OK) {
        FUZZ_CHECK(node.index < entries.count && node.count >= 1 && node.first_rank >= 0);
        FUZZ_CHECK(node.first_rank + node.count <= node.world && node.first_host[0] != '\0');
    }
    for (size_t i = 0; i < entries.count; i++) free(texts[i]);
    return 0;
}
