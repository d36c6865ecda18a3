/* test_plan.c -- the memory plan of random models, lowered by a double of a device: no two values that live at the
 * same time overlap, and a run in an arena that is poisoned between the kernels gives what the unplanned reference
 * gives. */
#include "support/device_double.h"

#define POISON 0xff /* in every byte: a NaN */

/* ---- the plan in use --------------------------------------------------------------------------------------------- */
typedef struct machine {
    const device *d;
    const ddp_plan *plan;
    values *inside; /* INPUT, PARAM and GRAD, and what has no storage in the arena */
    unsigned char *arena, *live;
} machine;

static double *place_of(const machine *m, int32_t v)
{
    int32_t root = root_of(&m->d->lowered, v);

    if (m->plan->value_offset[v] != DDP_NO_OFFSET) return (double *)(void *)(m->arena + m->plan->value_offset[v]);
    return m->inside->at[root].data;
}

static void run_kernel_node(const machine *m, const ddp_node *n)
{
    ddp_ref_tensor in[DDP_NODE_MAX_IN] = {0}, out = m->inside->at[n->out[0]];
    double *keep = NULL, *to = place_of(m, n->out[0]);

    for (uint32_t i = 0; i < n->in_count; i++) {
        in[i] = m->inside->at[n->in[i]];
        in[i].data = place_of(m, n->in[i]);
        if (n->op == DDP_OP_RESHAPE && in[i].data == to) return; /* a view, or in place */
    }
    out.data = to;
    if (n->accumulate) {
        keep = malloc((size_t)out.elements * sizeof(double));
        assert_non_null(keep);
        memcpy(keep, to, (size_t)out.elements * sizeof(double));
    }
    ddp_op_find(n->op)->reference(n, in, &out);
    for (int64_t i = 0; keep != NULL && i < out.elements; i++) out.data[i] = keep[i] + out.data[i];
    free(keep);
}

static void fill_private(const machine *m, uint32_t kernel)
{
    for (uint32_t i = 0; i < m->d->lowered.private_count; i++) {
        const ddp_private *p = &m->d->privates[i];
        unsigned char *at = m->arena + m->plan->private_offset[i], mark = (unsigned char)(0x40 + i);

        if (kernel == p->first_kernel) memset(at, mark, p->bytes);
        for (uint64_t b = 0; kernel >= p->first_kernel && kernel <= p->last_kernel && b < p->bytes; b++)
            if (at[b] != mark) fail_msg("private value %u is overwritten before kernel %u", i, kernel);
    }
}

/* Everything that no later kernel needs becomes NaN. */
static void poison(const machine *m, uint32_t kernel)
{
    const device *d = m->d;

    memset(m->live, 0, m->plan->arena_bytes);
    for (uint32_t v = 0; v < d->p->value_count; v++) {
        int32_t root = root_of(&d->lowered, (int32_t)v);
        uint32_t first = UINT32_MAX;

        for (uint32_t n = 0; n < d->p->node_count; n++)
            if (d->p->nodes[n].out[0] == (int32_t)v) first = d->kernel_of[n];
        if (d->storage[root].bytes > 0 && first <= kernel && last_read(d, (int32_t)v) > kernel)
            memset(m->live + m->plan->value_offset[v], 1, d->storage[root].bytes);
    }
    for (uint32_t i = 0; i < d->lowered.private_count; i++)
        if (d->privates[i].first_kernel <= kernel && d->privates[i].last_kernel > kernel)
            memset(m->live + m->plan->private_offset[i], 1, d->privates[i].bytes);
    for (uint64_t b = 0; b < m->plan->arena_bytes; b++)
        if (!m->live[b]) m->arena[b] = POISON;
}

static void poison_scratch(const machine *m, uint32_t k)
{
    if (m->d->kernels[k].scratch_bytes > 0)
        memset(m->arena + m->plan->scratch_offset[k], POISON, m->d->kernels[k].scratch_bytes);
}

static bool same_numbers(const double *a, const double *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!(a[i] == b[i])) return false;
    return true;
}

/* The gradients of every bucket that is ready after `kernels` kernels are final. */
static void check_ready(const machine *m, const values *want, const ddp_layout *l, const ddp_planned *planned,
                        uint32_t kernels)
{
    for (uint32_t b = 0; b < l->bucket_count; b++) {
        if (b > 0) assert_true(planned->bucket_ready[b] >= planned->bucket_ready[b - 1]);
        if (planned->bucket_ready[b] != kernels) continue;
        for (uint32_t v = 0; v < m->d->p->value_count; v++) {
            const ddp_value *d = &m->d->p->values[v];
            bool in_bucket = d->offset >= l->buckets[b].first && d->offset < l->buckets[b].first + l->buckets[b].count;

            if (d->kind == DDP_VALUE_GRAD && in_bucket &&
                !same_numbers(m->inside->at[v].data, want->at[v].data, d->elements))
                fail_msg("bucket %u is not complete after kernel %u", b, kernels);
        }
    }
}

/* No kernel before it reads a parameter of the bucket, or of one before it in the arena. */
static void check_used(const device *d, const ddp_layout *l, const ddp_planned *planned)
{
    for (uint32_t k = 0; k < d->lowered.kernel_count; k++)
        for (uint32_t i = 0; i < d->kernels[k].node_count; i++) {
            const ddp_node *n = &d->p->nodes[d->kernels[k].nodes[i]];

            for (uint32_t j = 0; j < n->in_count; j++) {
                const ddp_value *x = n->in[j] < 0 ? NULL : &d->p->values[n->in[j]];

                for (uint32_t b = 0; x != NULL && x->kind == DDP_VALUE_PARAM && b < l->bucket_count; b++)
                    if (x->offset + (uint64_t)x->elements > l->buckets[b].first &&
                        x->offset < l->buckets[b].first + l->buckets[b].count)
                        assert_true(planned->bucket_used[b] <= k);
            }
        }
    for (uint32_t b = 0; b < l->bucket_count; b++) {
        assert_true(b == 0 || planned->bucket_used[b] <= planned->bucket_used[b - 1]);
        assert_true(planned->bucket_used[b] < planned->bucket_ready[b]);
    }
}

static void run_planned(const device *d, const ddp_planned *planned, const ddp_layout *l, uint64_t seed)
{
    const ddp_program *p = d->p;
    values want = values_make(p), inside = values_make(p);
    machine m = {d, &planned->plan, &inside, NULL, NULL};
    ddp_err err = {0};

    m.arena = ddp_alloc_aligned(planned->plan.arena_bytes, &err);
    m.live = malloc(planned->plan.arena_bytes + 1);
    assert_true(m.arena != NULL && m.live != NULL);
    memset(m.arena, POISON, planned->plan.arena_bytes);
    values_fill(&want, seed, MODEL_CLASSES);
    values_fill(&inside, seed, MODEL_CLASSES);
    ok(ddp_reference_run(p, &(const ddp_random){0}, want.at, &err));
    for (uint32_t v = 0; v < p->value_count; v++) {
        inside.at[v].rank = want.at[v].rank;
        inside.at[v].dims = want.at[v].dims;
        inside.at[v].elements = want.at[v].elements;
    }
    for (uint32_t k = 0; k < d->lowered.kernel_count; k++) {
        poison_scratch(&m, k);
        fill_private(&m, k);
        for (uint32_t i = 0; i < d->kernels[k].node_count; i++) run_kernel_node(&m, &p->nodes[d->kernels[k].nodes[i]]);
        poison_scratch(&m, k);
        fill_private(&m, k);
        poison(&m, k);
        for (uint32_t v = 0; v < p->value_count; v++) /* what has no storage does not outlive its kernel */
            if (p->values[v].kind == DDP_VALUE_ACT)
                memset(inside.at[v].data, POISON, (size_t)p->values[v].elements * sizeof(double));
        if (p->training) check_ready(&m, &want, l, planned, k + 1);
    }
    assert_true(*place_of(&m, p->loss) == values_loss(&want));
    for (uint32_t i = 0; i < p->metric_count; i++)
        assert_true(*place_of(&m, p->metrics[i]) == want.at[p->metrics[i]].data[0]);
    for (uint32_t v = 0; v < p->value_count; v++)
        if (p->values[v].kind == DDP_VALUE_GRAD)
            assert_true(same_numbers(inside.at[v].data, want.at[v].data, p->values[v].elements));
    free(m.arena);
    free(m.live);
    values_free(&want);
    values_free(&inside);
}

struct totals {
    uint64_t arena, peak, unplanned;
    uint32_t in_place, aliases;
};

static void count_totals(const device *d, const ddp_planned *planned, struct totals *t)
{
    t->arena += planned->plan.arena_bytes;
    t->peak += planned->peak_bytes;
    for (uint32_t v = 0; v < d->p->value_count; v++) {
        t->unplanned += d->storage[v].bytes;
        t->aliases += d->storage[v].alias_of >= 0;
    }
    for (uint32_t k = 0; k < d->lowered.kernel_count; k++)
        for (uint32_t i = 0; i < d->kernels[k].inplace_count; i++)
            t->in_place += planned->plan.value_offset[d->kernels[k].inplace_out[i]] ==
                           planned->plan.value_offset[d->kernels[k].inplace_in[i]];
}

static void plan_model(uint64_t seed, bool training, struct totals *totals)
{
    ddp_graph *g = random_model(seed);
    rng r = rng_make(seed + 5);
    ddp_err err = {0};
    ddp_layout *l;
    ddp_program *p;
    ddp_planned *planned;
    device d;

    ok(ddp_layout_create(g, 40, 200, 3, &l, &err));
    ok(ddp_program_create(g, l, seed % 5 == 0 ? 1 : 11, training, &p, &err));
    for (int plain = 0; plain < 2; plain++) {
        device_lower(&d, p, &r, plain != 0);
        ok(ddp_lowered_check(p, &d.lowered, &err));
        ok(ddp_plan_create(p, &d.lowered, training ? l : NULL, &planned, &err));
        assert_true(planned->peak_bytes <= planned->plan.arena_bytes && planned->peak_bytes > 0);
        assert_true(planned->peak_kernel < d.lowered.kernel_count);
        assert_true((planned->bucket_ready != NULL) == training);
        check_spans(&d, &planned->plan);
        if (training) check_used(&d, l, planned);
        run_planned(&d, planned, l, seed);
        count_totals(&d, planned, totals);
        ddp_plan_free(planned);
        device_free(&d);
    }
    ddp_program_free(p);
    ddp_layout_free(l);
    ddp_graph_free(g);
}

static void random_plans(void **state)
{
    struct totals t = {0};

    (void)state;
    for (uint64_t seed = 1; seed <= 150; seed++) plan_model(seed + 1000, seed % 4 != 0, &t);
    /* memory is shared, and the offsets stay near the bound that live storage sets */
    assert_true(t.arena * 100 <= t.peak * 104);
    assert_true(t.arena * 2 < t.unplanned);
    assert_true(t.in_place > 300 && t.aliases > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_plans)};

    return cmocka_run_group_tests_name("plan", tests, NULL, NULL);
}
