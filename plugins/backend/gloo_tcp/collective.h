/* plugins/backend/gloo_tcp/collective.h -- the collectives of backend gloo-tcp over the mesh of shim.h. */
#pragma once

#include "common/reduce.h"
#include "shim.h"
#include <stdatomic.h>
#include <stdbool.h>

struct ddp_comm {
    ddp_gloo *mesh;      /* NULL when world is 1 */
    atomic_bool aborted; /* set from any thread */
    uint32_t rank, world;
    size_t chunk;         /* bytes of the largest message */
    size_t small;         /* all_reduce of at most this many bytes takes one round; not above chunk */
    const void **sources; /* [world], for ddp_reduce */
    const ddp_kernels *kernels;
};

/* The peers in an order in which each rank starts with another one, so that no rank is everyone's first; `step` 1 to
 * world-1. */
static inline uint32_t ddp_gloo_peer_at(const ddp_comm *c, uint32_t step) { return (c->rank + step) % c->world; }
ddp_status ddp_gloo_send_to_all(ddp_comm *c, uint32_t where, size_t at, const void *data, size_t bytes, ddp_err *err);
ddp_status ddp_gloo_receive_from_all(ddp_comm *c, uint32_t where, ddp_err *err);

/* All for world 2 and more, arguments checked, count 1 and more. collective.c: */
ddp_status ddp_gloo_all_reduce(ddp_comm *c, const ddp_coll *a, ddp_err *err);
ddp_status ddp_gloo_reduce(ddp_comm *c, const ddp_coll *a, ddp_err *err);
ddp_status ddp_gloo_reduce_scatter(ddp_comm *c, const ddp_coll *a, ddp_err *err);
/* move.c: */
ddp_status ddp_gloo_broadcast(ddp_comm *c, const ddp_coll *a, ddp_err *err);
ddp_status ddp_gloo_all_gather(ddp_comm *c, const ddp_coll *a, ddp_err *err);
ddp_status ddp_gloo_gather(ddp_comm *c, const ddp_coll *a, ddp_err *err);
ddp_status ddp_gloo_scatter(ddp_comm *c, const ddp_coll *a, ddp_err *err);
ddp_status ddp_gloo_all_to_all(ddp_comm *c, const ddp_coll *a, ddp_err *err);
ddp_status ddp_gloo_send_one(ddp_comm *c, const ddp_coll *a, ddp_err *err);
ddp_status ddp_gloo_recv_one(ddp_comm *c, const ddp_coll *a, ddp_err *err);
ddp_status ddp_gloo_barrier(ddp_comm *c, ddp_err *err);

#define DDP_GLOO_ADDRESS_MAX 64
/* The address to bind to: `address`, which the core has chosen; or where no interface was named in [group] and
 * GLOO_SOCKET_IFNAME is set, that interface's. */
ddp_status ddp_gloo_own_address(const char *interface, const char *address, char *out, ddp_err *err);
