/* graph/layout.c -- offsets of the parameters in the flat arenas, and the range of each bucket.
 *
 * Buckets are those of torch.nn.parallel.DistributedDataParallel: torch's compute_bucket_assignment_by_size over the
 * parameters in the order in which their gradients appear, which is the reverse of first use. */
#include "graph/internal.h"
#include <stdlib.h>

enum { ALIGNMENT = 16 }; /* elements: 64 bytes of f32 */

/* Latest first use first; of two that one node reads, the one declared later. Insertion keeps it stable and short: the
 * order of declaration is nearly right already. */
static void order_params(const ddp_param_info *params, uint32_t count, uint32_t *order)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = i;

        for (; at > 0 && params[order[at - 1]].first_use <= params[i].first_use; at--) order[at] = order[at - 1];
        order[at] = i;
    }
}

/* The order stays otherwise; returns how many are trained. */
static uint32_t frozen_last(const ddp_param_info *params, ddp_layout *l)
{
    uint32_t trained = 0;

    for (uint32_t i = 0; i < l->param_count; i++) {
        uint32_t p = l->order[i], at = i;

        if (params[p].frozen) continue;
        for (; at > trained; at--) l->order[at] = l->order[at - 1];
        l->order[trained++] = p;
    }
    return trained;
}

typedef struct assignment {
    const ddp_param_info *params;
    ddp_layout *l;
    uint64_t first_bytes, bytes, held;
    uint32_t world;
    bool open;
} assignment;

static void close_bucket(assignment *a)
{
    a->l->bucket_count += a->open;
    a->open = false;
    a->held = 0;
}

static ddp_bucket *open_bucket(assignment *a, uint32_t position)
{
    ddp_bucket *b = &a->l->buckets[a->l->bucket_count];

    if (!a->open) *b = (ddp_bucket){.first_param = position};
    a->open = true;
    return b;
}

static int64_t divisor(int64_t a, int64_t b) { return b == 0 ? a : divisor(b, a % b); }

/* Rows of a parameter that make a bucket of about `bytes`: as many that the next part begins where a bucket may. */
static int64_t rows_of_part(const assignment *a, const ddp_param_info *p)
{
    int64_t cols = (int64_t)p->elements / p->dims[0], unit = (int64_t)a->world * ALIGNMENT;
    int64_t quantum = unit / divisor(unit, cols);
    uint64_t parts = (p->elements * sizeof(float) + a->bytes - 1) / a->bytes;

    return (int64_t)ddp_round_up(((uint64_t)p->dims[0] + parts - 1) / parts, (uint64_t)quantum);
}

/* Into equal parts, but for the last one. */
static void cut(assignment *a, uint32_t position)
{
    const ddp_param_info *p = &a->params[a->l->order[position]];
    int64_t rows = rows_of_part(a, p);

    close_bucket(a);
    for (int64_t row = 0; row < p->dims[0]; row += rows) {
        ddp_bucket *b = open_bucket(a, position);

        b->param_count = 1;
        b->first_row = row;
        b->rows = DDP_MIN_OF(rows, p->dims[0] - row);
        close_bucket(a);
    }
}

static bool is_large(const assignment *a, uint32_t position)
{
    const ddp_param_info *p = &a->params[a->l->order[position]];

    return p->rank > 0 && p->elements * sizeof(float) >= 2 * a->bytes;
}

static uint32_t stage_of(const assignment *a, uint32_t position) { return a->params[a->l->order[position]].stage; }

/* A bucket closes as soon as it holds at least its limit; padding does not count, as in torch. Those of a model that is
 * divided are of one stage. */
static void assign_buckets(assignment *a, bool cuts)
{
    for (uint32_t i = 0; i < a->l->trained; i++) {
        if (i > 0 && stage_of(a, i) != stage_of(a, i - 1)) close_bucket(a);
        if (cuts && is_large(a, i)) {
            cut(a, i);
            continue;
        }
        open_bucket(a, i)->param_count++;
        a->held += a->params[a->l->order[i]].elements * sizeof(float);
        if (a->held >= (a->l->bucket_count == 0 ? a->first_bytes : a->bytes)) close_bucket(a);
    }
    close_bucket(a);
}

/* Elements of the bucket's parameters from `at` on, where the first of them begins. */
static uint64_t place_params(const ddp_param_info *params, ddp_layout *l, const ddp_bucket *bucket, uint64_t at)
{
    for (uint32_t i = 0; i < bucket->param_count; i++) {
        uint32_t p = l->order[bucket->first_param + i];

        if (bucket->first_row == 0) l->offset[p] = at;
        if (bucket->rows > 0) return at + params[p].elements / (uint64_t)params[p].dims[0] * (uint64_t)bucket->rows;
        at += ddp_round_up(params[p].elements, ALIGNMENT);
    }
    return at;
}

/* From `at` on; returns where they end. */
static uint64_t place_frozen(const ddp_param_info *params, ddp_layout *l, bool rounds, uint64_t at)
{
    for (uint32_t i = l->trained; i < l->param_count; i++) {
        uint32_t p = l->order[i];

        if (params[p].rounds != rounds) continue;
        l->offset[p] = at;
        at += ddp_round_up(params[p].elements, ALIGNMENT);
    }
    return at;
}

static void assign_offsets(const ddp_param_info *params, uint32_t world, ddp_layout *l)
{
    uint64_t at = 0;

    for (uint32_t b = 0; b < l->bucket_count; b++) {
        ddp_bucket *bucket = &l->buckets[b];

        bucket->first = at;
        at = place_params(params, l, bucket, at);
        if (b + 1 == l->bucket_count) {
            l->extra_offset = ddp_round_up(at, ALIGNMENT);
            at = l->extra_offset + DDP_EXTRA;
        }
        bucket->count = ddp_round_up(at - bucket->first, (uint64_t)world * ALIGNMENT);
        at = bucket->first + bucket->count;
    }
    l->elements = at;
    if (l->trained < l->param_count) at = ddp_round_up(at, DDP_FROZEN_ALIGNMENT);
    at = place_frozen(params, l, false, at);
    l->half_first = ddp_round_up(at, DDP_FROZEN_ALIGNMENT);
    l->param_elements = place_frozen(params, l, true, l->half_first);
    if (l->param_elements == l->half_first) l->half_first = l->param_elements = at;
}

static uint64_t most_buckets(const ddp_param_info *params, uint32_t count, uint64_t bytes)
{
    uint64_t most = 0;

    for (uint32_t i = 0; i < count; i++) most += 2 + params[i].elements * sizeof(float) / bytes;
    return most;
}

static ddp_status create(const ddp_graph *g, uint64_t first_bytes, uint64_t bytes, uint32_t world, bool cuts,
                         ddp_layout **out, ddp_err *err)
{
    const ddp_param_info *params;
    uint32_t count = ddp_graph_params(g, &params);
    assignment a = {.params = params, .first_bytes = first_bytes, .bytes = bytes, .world = world};
    ddp_layout *l;

    if (!ddp_graph_view(g)->finished || world == 0)
        return ddp_fail(err, DDP_ERR_INTERNAL, "layout of a graph that is not finished, or of no ranks");
    l = ddp_alloc(sizeof(*l), err);
    if (l == NULL) return err->status;
    l->param_count = count;
    l->offset = ddp_alloc(count * sizeof(*l->offset), err);
    l->order = ddp_alloc(count * sizeof(*l->order), err);
    l->buckets = ddp_alloc((cuts ? most_buckets(params, count, bytes) : count) * sizeof(*l->buckets), err);
    if (l->offset == NULL || l->order == NULL || l->buckets == NULL) {
        ddp_layout_free(l);
        return err->status;
    }
    order_params(params, count, l->order);
    l->trained = frozen_last(params, l);
    a.l = l;
    assign_buckets(&a, cuts);
    assign_offsets(params, world, l);
    *out = l;
    return DDP_OK;
}

ddp_status ddp_layout_create(const ddp_graph *g, uint64_t first_bytes, uint64_t bytes, uint32_t world, ddp_layout **out,
                             ddp_err *err)
{
    return create(g, first_bytes, bytes, world, false, out, err);
}

ddp_status ddp_layout_create_cut(const ddp_graph *g, uint64_t first_bytes, uint64_t bytes, uint32_t world,
                                 ddp_layout **out, ddp_err *err)
{
    return create(g, first_bytes, bytes, world, true, out, err);
}

void ddp_layout_free(ddp_layout *l)
{
    if (l == NULL) return;
    free(l->offset);
    free(l->order);
    free(l->buckets);
    free(l);
}
