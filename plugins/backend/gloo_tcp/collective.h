/* collective.h -- the collectives of backend gloo-tcp over the mesh of shim.h, and their element-wise reductions. */
#ifndef DDP_GLOO_COLLECTIVE_H
#define DDP_GLOO_COLLECTIVE_H

#include "shim.h"
#include <stdatomic.h>
#include <stdbool.h>

struct ddp_comm {
    ddp_gloo *mesh;      /* NULL when world is 1 */
    atomic_bool aborted; /* set from any thread */
    uint32_t rank, world;
    size_t chunk;         /* bytes of the largest message */
    size_t small;         /* all_reduce of at most this many bytes takes one round; not above chunk */
    const void **sources; /* [world], for ddp_gloo_reduce */
};

/* Reads n sources element by element in the order given, so that the bits do not depend on who computes.
 * `out` may be one of them. */
typedef void (*ddp_gloo_reduction)(void *out, const void *const *in, uint32_t n, size_t count);
/* NULL for a dtype or op that does not exist. `world` selects how AVG scales. */
ddp_gloo_reduction ddp_gloo_reduction_of(uint32_t dtype, uint32_t op, uint32_t world);

ddp_status ddp_gloo_all_reduce(ddp_comm *c, const ddp_coll *a, ddp_err *err);
ddp_status ddp_gloo_broadcast(ddp_comm *c, const ddp_coll *a, ddp_err *err);
ddp_status ddp_gloo_all_gather(ddp_comm *c, const ddp_coll *a, ddp_err *err);
ddp_status ddp_gloo_barrier(ddp_comm *c, ddp_err *err);

#endif
