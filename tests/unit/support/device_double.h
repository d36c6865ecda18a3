/* device_double.h -- a double of a device for the tests of the plan: it lowers a program at random but legally, in
 * random order, fused, with aliases, in-place pairs, private values and scratch. It computes nothing. With it the
 * check that a plan gives no two values that live at the same time one place. */
#pragma once

#include "graph_util.h"

typedef struct device {
    const ddp_program *p;
    ddp_lowered lowered; /* points into what follows */
    ddp_kernel *kernels;
    ddp_storage *storage;
    ddp_private privates[6];
    uint32_t *order; /* nodes, by kernel */
    uint32_t *kernel_of;
} device;

/* A random topological order; nodes that write one gradient keep theirs. */
UNUSED_OK static void random_order(device *d, rng *r)
{
    const ddp_program *p = d->p;
    bool *done = calloc(p->node_count, 1);

    assert_non_null(done);
    for (uint32_t count = 0; count < p->node_count; count++) {
        uint32_t ready[1024], n = 0;

        for (uint32_t i = 0; i < p->node_count && n < 1024; i++) {
            bool blocked = done[i];

            for (uint32_t j = 0; j < i && !blocked; j++) {
                if (done[j]) continue;
                blocked = p->nodes[j].out[0] == p->nodes[i].out[0];
                for (uint32_t k = 0; k < p->nodes[i].in_count; k++) blocked |= p->nodes[i].in[k] == p->nodes[j].out[0];
            }
            if (!blocked) ready[n++] = i;
        }
        assert_true(n > 0);
        d->order[count] = ready[rng_below(r, n)];
        done[d->order[count]] = true;
    }
    free(done);
}

UNUSED_OK static int by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

UNUSED_OK static void cut_kernels(device *d, rng *r, uint32_t largest)
{
    uint32_t at = 0, k = 0;

    while (at < d->p->node_count) {
        uint32_t n = 1 + rng_below(r, largest);

        n = DDP_MIN_OF(n, d->p->node_count - at);
        qsort(d->order + at, n, sizeof(*d->order), by_number);
        for (uint32_t i = 0; i < n; i++) d->kernel_of[d->order[at + i]] = k;
        d->kernels[k++] = (ddp_kernel){.nodes = d->order + at, .node_count = n, .name = "double"};
        at += n;
    }
    d->lowered.kernel_count = k;
}

UNUSED_OK static uint32_t last_read(const device *d, int32_t v) /* kernel, counting the end as one more */
{
    uint32_t last = 0;

    for (uint32_t n = 0; n < d->p->node_count; n++) {
        bool touched = d->p->nodes[n].out[0] == v;

        for (uint32_t k = 0; k < d->p->nodes[n].in_count; k++) touched |= d->p->nodes[n].in[k] == v;
        if (touched) last = DDP_MAX_OF(last, d->kernel_of[n]);
    }
    if (v == d->p->loss) return d->lowered.kernel_count;
    for (uint32_t i = 0; i < d->p->metric_count; i++)
        if (v == d->p->metrics[i]) return d->lowered.kernel_count;
    return last;
}

UNUSED_OK static int32_t root_of(const ddp_lowered *l, int32_t v)
{
    while (l->storage[v].alias_of >= 0) v = l->storage[v].alias_of;
    return v;
}

UNUSED_OK static void give_storage(device *d, rng *r, bool views)
{
    const ddp_program *p = d->p;

    for (uint32_t i = 0; i < p->value_count; i++) d->storage[i].alias_of = -1;
    for (uint32_t n = 0; n < p->node_count; n++) {
        int32_t out = p->nodes[n].out[0], in = p->nodes[n].in[0];
        bool crosses = last_read(d, out) != d->kernel_of[n];

        if (p->values[out].kind != DDP_VALUE_ACT) continue;
        if (views && p->nodes[n].op == DDP_OP_RESHAPE && p->values[in].kind != DDP_VALUE_GRAD && rng_below(r, 2)) {
            int32_t root = root_of(&d->lowered, in);

            if (p->values[root].kind == DDP_VALUE_ACT && d->storage[root].bytes == 0)
                d->storage[root].bytes = (uint64_t)p->values[root].elements * sizeof(double);
            d->storage[out].alias_of = in;
            continue;
        }
        if (crosses || rng_below(r, 4) == 0) {
            d->storage[out].bytes = (uint64_t)p->values[out].elements * sizeof(double);
            d->storage[out].layout = n;
        }
    }
}

UNUSED_OK static bool elementwise(uint32_t op)
{
    return op == DDP_OP_RELU || op == DDP_OP_RELU_GRAD || op == DDP_OP_GELU || op == DDP_OP_GELU_GRAD ||
           op == DDP_OP_ADD || op == DDP_OP_CROSS_ENTROPY_GRAD || op == DDP_OP_MSE_GRAD || op == DDP_OP_RESHAPE;
}

/* No later node of the kernel reads what shares storage with `in`. */
UNUSED_OK static bool free_in_kernel(const device *d, const ddp_kernel *k, uint32_t from, int32_t in)
{
    for (uint32_t i = from; i < k->node_count; i++)
        for (uint32_t j = 0; j < d->p->nodes[k->nodes[i]].in_count; j++)
            if (root_of(&d->lowered, d->p->nodes[k->nodes[i]].in[j]) == root_of(&d->lowered, in)) return false;
    return true;
}

UNUSED_OK static bool written_earlier(const device *d, int32_t v, uint32_t kernel)
{
    for (uint32_t j = 0; j < d->p->node_count; j++)
        if (d->p->nodes[j].out[0] == v) return d->kernel_of[j] < kernel;
    return false;
}

/* Both inputs of an add may be offered: alternatives. */
UNUSED_OK static void offer_node(device *d, uint32_t k, uint32_t at)
{
    ddp_kernel *kernel = &d->kernels[k];
    const ddp_node *n = &d->p->nodes[kernel->nodes[at]];

    if (!elementwise(n->op) || d->storage[n->out[0]].bytes == 0) return;
    for (uint32_t i = 0; i < n->in_count && kernel->inplace_count < 2; i++) {
        int32_t root = root_of(&d->lowered, n->in[i]);

        if (d->storage[root].bytes == 0 || !written_earlier(d, root, k)) continue;
        if (d->p->values[root].kind != DDP_VALUE_ACT || !free_in_kernel(d, kernel, at + 1, root)) continue;
        kernel->inplace_out[kernel->inplace_count] = n->out[0];
        kernel->inplace_in[kernel->inplace_count++] = n->in[i];
    }
}

UNUSED_OK static void offer_in_place(device *d, rng *r)
{
    for (uint32_t k = 0; k < d->lowered.kernel_count; k++)
        for (uint32_t i = 0; i < d->kernels[k].node_count; i++)
            if (rng_below(r, 4) > 0) offer_node(d, k, i);
}

UNUSED_OK static void add_extras(device *d, rng *r)
{
    for (uint32_t k = 0; k < d->lowered.kernel_count; k++)
        if (rng_below(r, 3) == 0) d->kernels[k].scratch_bytes = rng_below(r, 700);
    d->lowered.private_count = rng_below(r, DDP_COUNT(d->privates) + 1);
    for (uint32_t i = 0; i < d->lowered.private_count; i++) {
        uint32_t a = rng_below(r, d->lowered.kernel_count), b = rng_below(r, d->lowered.kernel_count);

        d->privates[i] = (ddp_private){1 + rng_below(r, 500), DDP_MIN_OF(a, b), DDP_MAX_OF(a, b)};
    }
}

UNUSED_OK static void device_lower(device *d, const ddp_program *p, rng *r, bool plain)
{
    *d = (device){.p = p,
                  .kernels = calloc(p->node_count, sizeof(ddp_kernel)),
                  .storage = calloc(p->value_count, sizeof(ddp_storage)),
                  .order = calloc(p->node_count, sizeof(uint32_t)),
                  .kernel_of = calloc(p->node_count, sizeof(uint32_t))};
    assert_true(d->kernels != NULL && d->storage != NULL && d->order != NULL && d->kernel_of != NULL);
    d->lowered = (ddp_lowered){.struct_size = sizeof(ddp_lowered),
                               .kernel_size = sizeof(ddp_kernel),
                               .storage_size = sizeof(ddp_storage),
                               .private_size = sizeof(ddp_private),
                               .kernels = d->kernels,
                               .storage = d->storage,
                               .privates = d->privates};
    for (uint32_t i = 0; i < p->node_count; i++) d->order[i] = i;
    if (!plain && rng_below(r, 2)) random_order(d, r);
    cut_kernels(d, r, plain ? 1 : 1 + rng_below(r, 5));
    give_storage(d, r, !plain);
    if (!plain || rng_below(r, 2)) offer_in_place(d, r);
    if (!plain) add_extras(d, r);
}

UNUSED_OK static void device_free(device *d)
{
    free(d->kernels);
    free(d->storage);
    free(d->order);
    free(d->kernel_of);
}

/* ---- a plan by itself -------------------------------------------------------------------------------------------- */
typedef struct span {
    uint64_t from, to;
    uint32_t first, last;
    int32_t value; /* root, -1: private or scratch */
} span;

/* The span of a root covers its aliases. */
UNUSED_OK static span span_of(const device *d, const ddp_plan *plan, int32_t root)
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

UNUSED_OK static uint32_t spans_of(const device *d, const ddp_plan *plan, span *out)
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

UNUSED_OK static bool may_share(const device *d, const span *a, const span *b)
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

UNUSED_OK static void check_spans(const device *d, const ddp_plan *plan)
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

/* ---- a small model, one node a kernel ---------------------------------------------------------------------------- */
typedef struct small {
    ddp_graph *g;
    ddp_layout *l;
    ddp_program *p;
    device d;
} small;

/* image -> flatten -> fc1 (4) -> relu -> fc2 (3) -> cross_entropy */
UNUSED_OK static void small_make(small *s, bool training)
{
    rng r = rng_make(9);
    ddp_err err = {0};
    ddp_tensor x;

    ok(ddp_graph_create(model_fields, DDP_COUNT(model_fields), &s->g, &err));
    x = ddp_flatten(s->g, ddp_input(s->g, "image"));
    x = ddp_linear(s->g, ddp_relu(s->g, ddp_linear(s->g, x, 4, 1, "fc1")), 3, 1, "fc2");
    ddp_loss(s->g, ddp_cross_entropy(s->g, x, ddp_input(s->g, "label")));
    ok(ddp_graph_finish(s->g, &err));
    ok(ddp_layout_create(s->g, 1, 1, 1, &s->l, &err));
    ok(ddp_program_create(s->g, s->l, 32, training, &s->p, &err));
    device_lower(&s->d, s->p, &r, true);
    for (uint32_t k = 0; k < s->d.lowered.kernel_count; k++) s->d.kernels[k].inplace_count = 0;
}

UNUSED_OK static void small_free(small *s)
{
    device_free(&s->d);
    ddp_program_free(s->p);
    ddp_layout_free(s->l);
    ddp_graph_free(s->g);
}

UNUSED_OK static uint32_t kernel_of_op(const small *s, uint32_t op)
{
    for (uint32_t n = 0; n < s->p->node_count; n++)
        if (s->p->nodes[n].op == op) return s->d.kernel_of[n];
    fail_msg("no %s", ddp_op_name(op));
    return 0;
}

UNUSED_OK static int32_t out_of_op(const small *s, uint32_t op)
{
    for (uint32_t n = 0; n < s->p->node_count; n++)
        if (s->p->nodes[n].op == op) return s->p->nodes[n].out[0];
    fail_msg("no %s", ddp_op_name(op));
    return -1;
}

UNUSED_OK static void pair(small *s, uint32_t kernel, uint32_t i, int32_t out, int32_t in)
{
    s->d.kernels[kernel].inplace_count = i + 1;
    s->d.kernels[kernel].inplace_out[i] = out;
    s->d.kernels[kernel].inplace_in[i] = in;
}
