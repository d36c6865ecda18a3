/* train/reduce/hook_state.c -- what the hooks of all ranks remember, on its way to rank 0 for a checkpoint and back:
 * piece by piece, a broadcast from the rank that has it, since every rank's is its own. */
#include "train/reduce/hook_state.h"
#include "train/reduce/comm_stream.h"
#include "train/reduce/hooked.h"
#include <stdlib.h>
#include <string.h>

enum { PIECE = 1 << 20 }; /* elements */

static uint32_t ranks_of(const ddp_hooked *h, const ddp_hook_state *s) { return s->shared ? 1 : h->group.world_size; }

uint32_t ddp_hooked_states(const ddp_hooked *h, const ddp_hook_state **out)
{
    *out = h->states;
    return h->state_count;
}

float *ddp_hooked_held(const ddp_hooked *h, uint32_t rank, uint32_t state)
{
    return h->held[(size_t)rank * h->state_count + state];
}

ddp_status ddp_hooked_hold(ddp_hooked *h, ddp_err *err)
{
    const ddp_hook_group *g = &h->group;
    const ddp_hook_state *states = h->states;
    uint32_t count = h->state_count;

    if (count == 0) return DDP_OK;
    if (g->rank != 0) {
        h->piece = ddp_alloc(PIECE * sizeof(float), err);
        return h->piece == NULL ? err->status : DDP_OK;
    }
    h->held = ddp_alloc((size_t)g->world_size * count * sizeof(*h->held), err);
    if (h->held == NULL) return err->status;
    for (uint32_t s = 0; s < count; s++)
        for (uint32_t r = 0; r < ranks_of(h, &states[s]); r++) {
            float *x = ddp_alloc((states[s].elements + 1) * sizeof(float), err);

            if (x == NULL) return err->status;
            h->held[(size_t)r * count + s] = x;
        }
    return DDP_OK;
}

void ddp_hooked_drop(ddp_hooked *h)
{
    uint32_t count = h->held == NULL ? 0 : h->state_count;

    for (size_t i = 0; i < (size_t)count * h->group.world_size; i++) free(h->held[i]);
    free(h->held);
    free(h->piece);
    h->held = NULL;
    h->piece = NULL;
}

/* `at`: where this rank sends the elements from, or gets them; NULL: nowhere. */
static ddp_status broadcast(ddp_hooked *h, uint32_t root, float *at, uint64_t elements, ddp_err *err)
{
    for (uint64_t done = 0; done < elements; done += PIECE) {
        ddp_task task = ddp_task_of(DDP_COLL_BROADCAST, DDP_SUM, NULL, at != NULL ? at + done : h->piece,
                                    DDP_MIN_OF(elements - done, (uint64_t)PIECE));

        task.coll.root = root;
        DDP_TRY_AS(DDP_EXIT_PEER, err, ddp_communicator_run(h->comm, &task, err));
    }
    return DDP_OK;
}

ddp_status ddp_hooked_gather(ddp_hooked *h, ddp_err *err)
{
    uint32_t rank = h->group.rank;
    const ddp_hook_state *states = h->states;
    uint32_t count = h->state_count;

    for (uint32_t s = 0; s < count; s++)
        for (uint32_t r = 0; r < ranks_of(h, &states[s]); r++) {
            uint64_t n = states[s].elements;

            if (r == 0 && rank == 0) memcpy(ddp_hooked_held(h, 0, s), states[s].data, n * sizeof(float));
            if (r == 0) continue;
            DDP_TRY(broadcast(h, r, rank == r ? states[s].data : rank == 0 ? ddp_hooked_held(h, r, s) : NULL, n, err));
        }
    return DDP_OK;
}

ddp_status ddp_hooked_spread(ddp_hooked *h, ddp_err *err)
{
    uint32_t rank = h->group.rank;
    const ddp_hook_state *states = h->states;
    uint32_t count = h->state_count;

    for (uint32_t s = 0; s < count; s++)
        for (uint32_t r = 0; r < ranks_of(h, &states[s]); r++) {
            bool mine = states[s].shared || rank == r;
            uint64_t n = states[s].elements;

            if (rank == 0 && mine) memcpy(states[s].data, ddp_hooked_held(h, r, s), n * sizeof(float));
            if (r == 0 && !states[s].shared) continue; /* rank 0's own */
            DDP_TRY(broadcast(h, 0, rank == 0 ? ddp_hooked_held(h, r, s) : mine ? states[s].data : NULL, n, err));
        }
    return DDP_OK;
}
