/* net/nodes.h -- this machine's own addresses, and which entry of [group] nodes it is. */
#pragma once

#include "base/base.h"

typedef struct ddp_own_node {
    size_t index; /* of the entry that is this machine */
    int32_t first_rank, count, world;
    char first_host[256];         /* of the first entry, in brackets if it is an IPv6 address */
    bool first_is_loopback_alias; /* several nodes, and the first one's name is a loopback address on this machine */
} ddp_own_node;

/* `entries` holds const char * "HOST:RANKS". Finds the one entry whose host name or address is this machine's; none,
 * more than one, or an entry that is not HOST:RANKS is DDP_ERR_CONFIG. Looks names up. */
ddp_status ddp_nodes_find(const ddp_list *entries, ddp_own_node *out, ddp_err *err);

/* How many ranks all entries have. */
ddp_status ddp_nodes_world(const ddp_list *entries, int32_t *world, ddp_err *err);

/* Entry `index`: its host, in brackets if it is an IPv6 address, and its first rank. */
ddp_status ddp_nodes_at(const ddp_list *entries, size_t index, char *host, size_t capacity, int32_t *first_rank,
                        ddp_err *err);

/* The address by which other hosts reach this one: that of `interface`; where that is "", of the default route, else
 * the first one that is up and no loopback address, else 127.0.0.1. IPv6 without brackets. */
ddp_status ddp_own_address(const char *interface, char *host, size_t capacity, ddp_err *err);
