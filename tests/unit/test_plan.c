/* test_plan.c -- the memory plan, on random models lowered by a double of a device: random order, fusion, aliases, in-place
 * pairs, private values, scratch. The plan is checked by itself, and run in a poisoned arena against the unplanned reference. */
#include "device_double.h"

#define POISON 0xff /* in every byte: a NaN */

/* ---- the plan by itself ---------------------------------------------------------------------------------------------------------- */
typedef struct span {
    uint64_t from, to;
    uint32_t first, last;
    int32_t value; /* root, -1: private or scratch */
} span;

/* The span of a root covers its aliases. */
static span span_of(const device *d, const ddp_plan *plan, int32_t root)
{
    span s = {plan->value_offset[root], plan->value_offset[root] + d->storage[root].bytes, UINT32_MAX, 0, root};

    for (uint32_t n = 0; n < d->p->node_count; n++) {
        int32_t v = d->p->nodes[n].out[0];

        if (root_of(&d->lowered, v) != root) continue;
        s.first = DDP_MIN_OF(s.first, d->kernel_of[n]);
        s.last = DDP_MAX_OF(s.last, last_read(d, v));
    }
    return s;
}

static uint32_t spans_of(const device *d, const ddp_plan *plan, span *out)
{
    uint32_t count = 0;

    for (uint32_t v = 0; v < d->p->value_count; v++) {
        int32_t root = root_of(&d->lowered, (int32_t)v);

        assert_true((plan->value_offset[v] != DDP_NO_OFFSET) == (d->storage[root].bytes > 0));
        assert_int_equal(plan->value_offset[v], plan->value_offset[root]);
        if (root == (int32_t)v && d->storage[v].bytes > 0) out[count++] = span_of(d, plan, root);
    }
    for (uint32_t i = 0; i < d->lowered.private_count; i++)
        out[count++] = (span){plan->private_offset[i], plan->private_offset[i] + d->privates[i].bytes,
                              d->privates[i].first_kernel, d->privates[i].last_kernel, -1};
    for (uint32_t k = 0; k < d->lowered.kernel_count; k++) {
        assert_true((plan->scratch_offset[k] != DDP_NO_OFFSET) == (d->kernels[k].scratch_bytes > 0));
        if (d->kernels[k].scratch_bytes > 0)
            out[count++] =
                (span){plan->scratch_offset[k], plan->scratch_offset[k] + d->kernels[k].scratch_bytes, k, k, -1};
    }
    return count;
}

static bool may_share(const device *d, const span *a, const span *b)
{
    if (a->value < 0 || b->value < 0) return false;
    if (a->last != b->first || a->first >= b->first)
        return b->last == a->first && b->first < a->first && may_share(d, b, a);
    for (uint32_t i = 0; i < d->kernels[b->first].inplace_count; i++)
        if (d->kernels[b->first].inplace_out[i] == b->value &&
            root_of(&d->lowered, d->kernels[b->first].inplace_in[i]) == a->value)
            return a->from == b->from;
    return false;
}

static void check_spans(const device *d, const ddp_plan *plan)
{
    span *s = calloc(d->p->value_count + d->lowered.private_count + d->lowered.kernel_count, sizeof(*s));
    uint32_t count;

    assert_non_null(s);
    count = spans_of(d, plan, s);
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(s[i].from % 64, 0);
        assert_true(s[i].to <= plan->arena_bytes);
        for (uint32_t j = 0; j < i; j++) {
            bool memory = s[i].from < s[j].to && s[j].from < s[i].to;
            bool time = s[i].first <= s[j].last && s[j].first <= s[i].last;

            if (memory && time && !may_share(d, &s[i], &s[j]))
                fail_msg("values %d and %d, kernels %u to %u and %u to %u, overlap", s[i].value, s[j].value, s[i].first,
                         s[i].last, s[j].first, s[j].last);
        }
    }
    free(s);
}

/* ---- the plan in use ------------------------------------------------------------------------------------------------------------ */
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
    if (n->flags & DDP_NODE_F_ACCUMULATE) {
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
    ok(ddp_reference_run(p, want.at, &err));
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

/* ---- the plan of a small model by hand --------------------------------------------------------------------------------------------- */
static void plan_by_hand(void **state)
{
    small s;
    ddp_err err = {0};
    ddp_planned *planned;
    uint32_t ce_grad, relu_grad;

    (void)state;
    small_make(&s, true);
    /* batch 32, 8 bytes: flatten 1536, fc1 and relu 1024 each, fc2 768, loss 64, dlogits 768, drelu and dfc1 1024 each.
     * Live at relu_grad: flatten (for fc1's weight), relu, drelu, dfc1, the loss. */
    ok(ddp_plan_create(s.p, &s.d.lowered, s.l, &planned, &err));
    assert_int_equal(planned->peak_bytes, 1536 + 3 * 1024 + 64);
    assert_int_equal(planned->peak_kernel, kernel_of_op(&s, DDP_OP_RELU_GRAD));
    assert_int_equal(planned->plan.arena_bytes, planned->peak_bytes);
    ddp_plan_free(planned);
    /* in place: dlogits over the logits, dfc1 over drelu. The peak moves to fc2's input gradient: flatten, relu, dlogits,
     * drelu, loss. */
    ce_grad = kernel_of_op(&s, DDP_OP_CROSS_ENTROPY_GRAD);
    relu_grad = kernel_of_op(&s, DDP_OP_RELU_GRAD);
    s.d.kernels[ce_grad].inplace_count = s.d.kernels[relu_grad].inplace_count = 1;
    s.d.kernels[ce_grad].inplace_out[0] = out_of_op(&s, DDP_OP_CROSS_ENTROPY_GRAD);
    s.d.kernels[ce_grad].inplace_in[0] = s.p->nodes[s.d.kernels[ce_grad].nodes[0]].in[0];
    s.d.kernels[relu_grad].inplace_out[0] = out_of_op(&s, DDP_OP_RELU_GRAD);
    s.d.kernels[relu_grad].inplace_in[0] = s.p->nodes[s.d.kernels[relu_grad].nodes[0]].in[0];
    ok(ddp_lowered_check(s.p, &s.d.lowered, &err));
    ok(ddp_plan_create(s.p, &s.d.lowered, s.l, &planned, &err));
    assert_int_equal(planned->peak_bytes, 1536 + 2 * 1024 + 768 + 64);
    assert_int_equal(planned->plan.value_offset[s.d.kernels[ce_grad].inplace_out[0]],
                     planned->plan.value_offset[s.d.kernels[ce_grad].inplace_in[0]]);
    /* buckets: fc2.bias, fc2.weight, fc1.bias, fc1.weight, one each, as soon as their kernel is done */
    assert_int_equal(s.l->bucket_count, 4);
    assert_int_equal(planned->bucket_ready[0], ce_grad + 2);
    assert_int_equal(planned->bucket_ready[1], ce_grad + 3);
    assert_int_equal(planned->bucket_ready[2], relu_grad + 2);
    assert_int_equal(planned->bucket_ready[3], relu_grad + 3);
    assert_int_equal(planned->bucket_ready[3], s.d.lowered.kernel_count);
    ddp_plan_free(planned);
    small_free(&s);
}

/* An input that is read again, or is of another size, keeps its place. */
static void in_place_only_where_it_may(void **state)
{
    small s;
    ddp_err err = {0};
    ddp_planned *planned;
    uint32_t ce, ce_grad;
    int32_t logits;

    (void)state;
    small_make(&s, true);
    ce_grad = kernel_of_op(&s, DDP_OP_CROSS_ENTROPY_GRAD);
    ce = kernel_of_op(&s, DDP_OP_CROSS_ENTROPY);
    logits = s.p->nodes[s.d.kernels[ce].nodes[0]].in[0];
    pair(&s, ce, 0, s.p->loss, logits); /* the gradient reads the logits again */
    pair(&s, ce_grad + 3, 0, out_of_op(&s, DDP_OP_LINEAR_GRAD_INPUT), out_of_op(&s, DDP_OP_CROSS_ENTROPY_GRAD));
    ok(ddp_lowered_check(s.p, &s.d.lowered, &err));
    ok(ddp_plan_create(s.p, &s.d.lowered, s.l, &planned, &err));
    check_spans(&s.d, &planned->plan);
    assert_true(planned->plan.value_offset[s.p->loss] != planned->plan.value_offset[logits]);
    assert_true(planned->plan.value_offset[out_of_op(&s, DDP_OP_LINEAR_GRAD_INPUT)] !=
                planned->plan.value_offset[out_of_op(&s, DDP_OP_CROSS_ENTROPY_GRAD)]);
    run_planned(&s.d, planned, s.l, 3);
    ddp_plan_free(planned);
    small_free(&s);
}

/* Two outputs of a kernel that nobody reads later are both offered one input's place: only one may have it. */
static void one_input_has_one_heir(void **state)
{
    small s;
    ddp_err err = {0};
    ddp_planned *planned;
    uint32_t k = 2;
    rng r = rng_make(1);
    int32_t in, a, b;
    ddp_tensor h, y;

    (void)state;
    ok(ddp_graph_create(model_fields, DDP_COUNT(model_fields), &s.g, &err));
    h = ddp_linear(s.g, ddp_flatten(s.g, ddp_input(s.g, "image")), 3, 1, "fc1");
    y = ddp_add(s.g, ddp_relu(s.g, h), ddp_gelu(s.g, h, 0));
    ddp_loss(s.g, ddp_cross_entropy(s.g, y, ddp_input(s.g, "label")));
    ok(ddp_graph_finish(s.g, &err));
    ok(ddp_layout_create(s.g, 1, 1, 1, &s.l, &err));
    ok(ddp_program_create(s.g, s.l, 32, false, &s.p, &err));
    device_lower(&s.d, s.p, &r, true); /* reshape, linear, relu, gelu, add, cross_entropy */
    s.d.kernels[k].node_count = 3;     /* relu, gelu and add in one kernel */
    s.d.kernels[k + 1] = s.d.kernels[k + 3];
    s.d.lowered.kernel_count = 4;
    in = s.p->nodes[1].out[0];
    a = s.p->nodes[2].out[0];
    b = s.p->nodes[3].out[0];
    for (uint32_t i = 0; i < 4; i++) s.d.kernels[i].inplace_count = 0;
    pair(&s, k, 0, a, in);
    pair(&s, k, 1, b, in);
    ok(ddp_lowered_check(s.p, &s.d.lowered, &err));
    ok(ddp_plan_create(s.p, &s.d.lowered, NULL, &planned, &err));
    assert_int_equal(planned->plan.value_offset[a], planned->plan.value_offset[in]);
    assert_int_not_equal(planned->plan.value_offset[b], planned->plan.value_offset[in]);
    ddp_plan_free(planned);
    small_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plan_by_hand),
        cmocka_unit_test(in_place_only_where_it_may),
        cmocka_unit_test(one_input_has_one_heir),
        cmocka_unit_test(random_plans),
    };

    return cmocka_run_group_tests_name("plan", tests, NULL, NULL);
}
