/* graph/plan.c -- offsets of everything that lives in the activation arena of one instance: values that cross kernels,
 * the device's private values, scratch. Lifetimes are whole kernels; what never lives at the same time may share
 * memory.
 *
 * In place first: an output takes over the storage of an input of the same size that dies in its kernel. Then offline
 * best fit, largest first (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020, greedy
 * by size). */
#include "graph/internal.h"
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 64 };

typedef struct item {
    uint64_t bytes, offset; /* bytes: a multiple of ALIGNMENT */
    uint32_t first, last;   /* kernels, both included */
    uint32_t claimed;       /* the kernel whose output has taken it over last, DDP_NEVER: none */
    int32_t merged_into;    /* item, -1: not merged */
} item;

typedef struct planned_memory {
    ddp_planned planned; /* what others see; first, so that free finds the rest */
    ddp_pool pool;
} planned_memory;

/* Items in this order: values, privates, scratch of the kernels. */
typedef struct planner {
    const ddp_program *p;
    const ddp_lowered *l;
    ddp_lifetimes t;
    item *items;
    uint32_t item_count;
    uint32_t *by_size, *placed; /* items; `placed` by offset */
    uint32_t placed_count;
} planner;

static uint32_t item_of(const planner *pl, int32_t root)
{
    uint32_t i = (uint32_t)root;

    while (pl->items[i].merged_into >= 0) i = (uint32_t)pl->items[i].merged_into;
    return i;
}

/* ---- lifetimes --------------------------------------------------------------------------------------------------- */
static void value_items(planner *pl)
{
    for (uint32_t v = 0; v < pl->p->value_count; v++) {
        int32_t root = graph_storage_root(pl->l, (int32_t)v);
        item *it = &pl->items[root];

        if (ddp_storage_at(pl->l, (uint32_t)root)->bytes == 0 || pl->t.first[v] == DDP_NEVER) continue;
        it->bytes = ddp_round_up(ddp_storage_at(pl->l, (uint32_t)root)->bytes, ALIGNMENT);
        it->first = DDP_MIN_OF(it->first, pl->t.first[v]);
        it->last = DDP_MAX_OF(it->last, pl->t.last[v]);
    }
}

static void other_items(planner *pl)
{
    item *it = pl->items + pl->p->value_count;

    for (uint32_t i = 0; i < pl->l->private_count; i++, it++) {
        it->bytes = ddp_round_up(ddp_private_at(pl->l, i)->bytes, ALIGNMENT);
        it->first = ddp_private_at(pl->l, i)->first_kernel;
        it->last = ddp_private_at(pl->l, i)->last_kernel;
    }
    for (uint32_t k = 0; k < pl->l->kernel_count; k++, it++) {
        it->bytes = ddp_round_up(ddp_kernel_at(pl->l, k)->scratch_bytes, ALIGNMENT);
        it->first = it->last = k;
    }
}

/* The output may take over the input's storage when nothing reads the input, or what is stored with it, any more. Of
 * alternatives the first is taken: after it, the output's storage begins before this kernel. */
static void take_over(planner *pl, uint32_t kernel, int32_t out, int32_t in)
{
    uint32_t to = item_of(pl, graph_storage_root(pl->l, in)), from = item_of(pl, out);
    item *a = &pl->items[to], *b = &pl->items[from];

    if (to == from || a->bytes != b->bytes || a->last != kernel || b->first != kernel || a->claimed == kernel) return;
    a->last = b->last;
    a->claimed = kernel;
    b->merged_into = (int32_t)to;
    b->bytes = 0;
}

static void merge_in_place(planner *pl)
{
    for (uint32_t k = 0; k < pl->l->kernel_count; k++)
        for (uint32_t i = 0; i < ddp_kernel_at(pl->l, k)->inplace_count; i++)
            take_over(pl, k, ddp_kernel_at(pl->l, k)->inplace_out[i], ddp_kernel_at(pl->l, k)->inplace_in[i]);
}

/* ---- offsets ----------------------------------------------------------------------------------------------------- */
static bool larger(const item *a, const item *b)
{
    uint32_t span_a = a->last - a->first, span_b = b->last - b->first;

    return a->bytes != b->bytes ? a->bytes > b->bytes : span_a > span_b;
}

/* By insertion, which keeps equals in order: a program has some hundreds of items. */
static uint32_t sort_items(planner *pl)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < pl->item_count; i++) {
        uint32_t at = count;

        if (pl->items[i].bytes == 0) continue;
        for (; at > 0 && larger(&pl->items[i], &pl->items[pl->by_size[at - 1]]); at--)
            pl->by_size[at] = pl->by_size[at - 1];
        pl->by_size[at] = i;
        count++;
    }
    return count;
}

static bool together(const item *a, const item *b) { return a->first <= b->last && b->first <= a->last; }

/* The smallest gap, between what lives at the same time, that holds the item; else after all of it. */
static uint64_t best_fit(const planner *pl, const item *it)
{
    uint64_t end = 0, best = DDP_NO_OFFSET, best_gap = UINT64_MAX;

    for (uint32_t i = 0; i < pl->placed_count; i++) {
        const item *other = &pl->items[pl->placed[i]];

        if (!together(it, other)) continue;
        if (other->offset > end && other->offset - end >= it->bytes && other->offset - end < best_gap) {
            best_gap = other->offset - end;
            best = end;
        }
        end = DDP_MAX_OF(end, other->offset + other->bytes);
    }
    return best != DDP_NO_OFFSET ? best : end;
}

static uint64_t place_items(planner *pl)
{
    uint32_t count = sort_items(pl);
    uint64_t arena = 0;

    for (uint32_t i = 0; i < count; i++) {
        item *it = &pl->items[pl->by_size[i]];
        uint32_t at = pl->placed_count++;

        it->offset = best_fit(pl, it);
        arena = DDP_MAX_OF(arena, it->offset + it->bytes);
        for (; at > 0 && pl->items[pl->placed[at - 1]].offset > it->offset; at--) pl->placed[at] = pl->placed[at - 1];
        pl->placed[at] = pl->by_size[i];
    }
    return arena;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */
static uint64_t offset_of(const planner *pl, uint32_t i)
{
    i = item_of(pl, (int32_t)i);
    return pl->items[i].bytes > 0 ? pl->items[i].offset : DDP_NO_OFFSET;
}

static ddp_status write_plan(const planner *pl, uint64_t arena, planned_memory *m, ddp_err *err)
{
    uint32_t values = pl->p->value_count, privates = pl->l->private_count, kernels = pl->l->kernel_count;
    uint64_t *offsets = ddp_pool_alloc(&m->pool, ((size_t)values + privates + kernels) * sizeof(*offsets), err);

    if (offsets == NULL) return err->status;
    for (uint32_t i = 0; i < pl->item_count; i++)
        offsets[i] = offset_of(pl, i < values ? (uint32_t)graph_storage_root(pl->l, (int32_t)i) : i);
    m->planned.plan = (ddp_plan){.struct_size = sizeof(ddp_plan),
                                 .arena_bytes = arena,
                                 .value_offset = offsets,
                                 .private_offset = offsets + values,
                                 .scratch_offset = offsets + values + privates};
    return DDP_OK;
}

static void find_peak(const planner *pl, ddp_planned *out)
{
    for (uint32_t k = 0; k < pl->l->kernel_count; k++) {
        uint64_t live = 0;

        for (uint32_t i = 0; i < pl->item_count; i++)
            if (pl->items[i].first <= k && k <= pl->items[i].last) live += pl->items[i].bytes;
        if (live <= out->peak_bytes) continue;
        out->peak_bytes = live;
        out->peak_kernel = k;
    }
}

/* Buckets go out in index order, so none is ready before the one in front of it. */
static ddp_status find_ready(const planner *pl, const ddp_layout *l, planned_memory *m, ddp_err *err)
{
    uint32_t *done = ddp_pool_alloc(&m->pool, l->param_count * sizeof(*done), err); /* by parameter */
    uint32_t *ready = ddp_pool_alloc(&m->pool, l->bucket_count * sizeof(*ready), err);

    if (done == NULL || ready == NULL) return err->status;
    for (uint32_t v = 0; v < pl->p->value_count; v++)
        if (pl->p->values[v].kind == DDP_VALUE_GRAD) done[pl->p->values[v].index] = pl->t.last[v] + 1;
    for (uint32_t b = 0; b < l->bucket_count; b++) {
        ready[b] = b > 0 ? ready[b - 1] : 0;
        for (uint32_t i = 0; i < l->buckets[b].param_count; i++)
            ready[b] = DDP_MAX_OF(ready[b], done[l->order[l->buckets[b].first_param + i]]);
    }
    m->planned.bucket_ready = ready;
    return DDP_OK;
}

static void note_use(const planner *pl, int32_t value, uint32_t kernel, uint32_t *used)
{
    const ddp_value *v = &pl->p->values[value];

    if (v->kind == DDP_VALUE_PARAM || v->kind == DDP_VALUE_GRAD) used[v->index] = DDP_MIN_OF(used[v->index], kernel);
}

/* Buckets come back in the reverse order, so none is used before the one behind it. */
static ddp_status find_used(const planner *pl, const ddp_layout *l, planned_memory *m, ddp_err *err)
{
    uint32_t *first = ddp_pool_alloc(&m->pool, l->param_count * sizeof(*first), err); /* by parameter */
    uint32_t *used = ddp_pool_alloc(&m->pool, l->bucket_count * sizeof(*used), err);

    if (first == NULL || used == NULL) return err->status;
    for (uint32_t i = 0; i < l->param_count; i++) first[i] = pl->l->kernel_count;
    for (uint32_t n = 0; n < pl->p->node_count; n++) {
        const ddp_node *node = ddp_node_at(pl->p, n);

        for (uint32_t i = 0; i < node->in_count; i++)
            if (node->in[i] >= 0) note_use(pl, node->in[i], pl->t.kernel_of[n], first);
        for (uint32_t i = 0; i < node->out_count; i++)
            if (node->out[i] >= 0) note_use(pl, node->out[i], pl->t.kernel_of[n], first);
    }
    for (uint32_t b = 0; b < l->bucket_count; b++) {
        used[b] = b > 0 ? used[b - 1] : pl->l->kernel_count;
        for (uint32_t i = 0; i < l->buckets[b].param_count; i++)
            used[b] = DDP_MIN_OF(used[b], first[l->order[l->buckets[b].first_param + i]]);
    }
    m->planned.bucket_used = used;
    return DDP_OK;
}

static ddp_status make_plan(planner *pl, const ddp_layout *l, planned_memory *m, ddp_err *err)
{
    DDP_TRY(graph_lifetimes_create(pl->p, pl->l, &pl->t, err));
    for (uint32_t i = 0; i < pl->item_count; i++)
        pl->items[i] = (item){.first = DDP_NEVER, .claimed = DDP_NEVER, .merged_into = -1};
    value_items(pl);
    other_items(pl);
    merge_in_place(pl);
    DDP_TRY(write_plan(pl, place_items(pl), m, err));
    find_peak(pl, &m->planned);
    if (l == NULL) return DDP_OK;
    DDP_TRY(find_ready(pl, l, m, err));
    return find_used(pl, l, m, err);
}

ddp_status ddp_plan_create(const ddp_program *p, const ddp_lowered *lowered, const ddp_layout *l, ddp_planned **out,
                           ddp_err *err)
{
    planner pl = {.p = p, .l = lowered, .item_count = p->value_count + lowered->private_count + lowered->kernel_count};
    planned_memory *m = ddp_alloc(sizeof(*m), err);
    ddp_status st;

    pl.items = ddp_alloc(pl.item_count * sizeof(*pl.items), err);
    pl.by_size = ddp_alloc(pl.item_count * sizeof(*pl.by_size), err);
    pl.placed = ddp_alloc(pl.item_count * sizeof(*pl.placed), err);
    st = m != NULL && pl.items != NULL && pl.by_size != NULL && pl.placed != NULL ? make_plan(&pl, l, m, err)
                                                                                  : err->status;
    graph_lifetimes_free(&pl.t);
    free(pl.items);
    free(pl.by_size);
    free(pl.placed);
    if (st == DDP_OK)
        *out = &m->planned;
    else
        ddp_plan_free(m != NULL ? &m->planned : NULL);
    return st;
}

void ddp_plan_free(ddp_planned *planned)
{
    planned_memory *m = (planned_memory *)planned;

    if (m == NULL) return;
    ddp_pool_free(&m->pool);
    free(m);
}
