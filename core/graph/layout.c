/* graph/layout.c -- where each parameter lies in the flat arenas, and which stretch of them is a bucket.
 *
 * Buckets are those of torch.nn.parallel.DistributedDataParallel: torch's compute_bucket_assignment_by_size over the
 * parameters in the order in which their gradients appear, which is the reverse of first use. */
#include "graph/internal.h"
#include <stdlib.h>

enum { ALIGNMENT = 16 }; /* elements: 64 bytes of f32 */

/* Latest first use first; of two that one node reads, the one declared later. Insertion keeps it stable and short: the order
 * of declaration is nearly right already. */
static void order_params(const ddp_param_info *params, uint32_t count, uint32_t *order)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = i;

        for (; at > 0 && params[order[at - 1]].first_use <= params[i].first_use; at--) order[at] = order[at - 1];
        order[at] = i;
    }
}

/* A bucket closes as soon as it holds at least its limit; padding does not count, as in torch. */
static uint32_t assign_buckets(const ddp_param_info *params, const ddp_layout *l, uint64_t first_bytes, uint64_t bytes,
                               ddp_bucket *buckets)
{
    uint32_t count = 0;
    uint64_t held = 0;
    bool open = false;

    for (uint32_t i = 0; i < l->param_count; i++) {
        if (!open) buckets[count] = (ddp_bucket){.first_param = i};
        open = true;
        buckets[count].param_count++;
        held += params[l->order[i]].elements * sizeof(float);
        if (held < (count == 0 ? first_bytes : bytes)) continue;
        count++;
        held = 0;
        open = false;
    }
    return open ? count + 1 : count;
}

static void place(const ddp_param_info *params, uint32_t world, ddp_layout *l)
{
    uint64_t at = 0;

    for (uint32_t b = 0; b < l->bucket_count; b++) {
        ddp_bucket *bucket = &l->buckets[b];

        bucket->first = at;
        for (uint32_t i = 0; i < bucket->param_count; i++) {
            uint32_t p = l->order[bucket->first_param + i];

            l->offset[p] = at;
            at += ddp_round_up(params[p].elements, ALIGNMENT);
        }
        if (b + 1 == l->bucket_count) {
            l->extra_offset = at;
            at += DDP_EXTRA;
        }
        bucket->count = ddp_round_up(at - bucket->first, (uint64_t)world * ALIGNMENT);
        at = bucket->first + bucket->count;
    }
    l->elements = at;
}

ddp_status ddp_layout_create(const ddp_graph *g, uint64_t first_bytes, uint64_t bytes, uint32_t world, ddp_layout **out,
                             ddp_err *err)
{
    const ddp_param_info *params;
    uint32_t count = ddp_graph_params(g, &params);
    ddp_layout *l;

    if (!ddp_graph_view(g)->finished || world == 0)
        return ddp_fail(err, DDP_ERR_INTERNAL, "layout of a graph that is not finished, or of no ranks");
    l = ddp_alloc(sizeof(*l), err);
    if (l == NULL) return err->status;
    l->param_count = count;
    l->offset = ddp_alloc(count * sizeof(*l->offset), err);
    l->order = ddp_alloc(count * sizeof(*l->order), err);
    l->buckets = ddp_alloc(count * sizeof(*l->buckets), err);
    if (l->offset == NULL || l->order == NULL || l->buckets == NULL) {
        ddp_layout_free(l);
        return err->status;
    }
    order_params(params, count, l->order);
    l->bucket_count = assign_buckets(params, l, first_bytes, bytes, l->buckets);
    place(params, world, l);
    *out = l;
    return DDP_OK;
}

void ddp_layout_free(ddp_layout *l)
{
    if (l == NULL) return;
    free(l->offset);
    free(l->order);
    free(l->buckets);
    free(l);
}
