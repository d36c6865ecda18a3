/* tests/unit/device/test_device_sequence.c -- the CPU device's kernels of a transformer: against the double
 * reference over odd sizes, alone and as whole models, with one thread and two; every variant gives the same bits;
 * what is fused; indices out of range. */
#include "support/device_variants.h"

typedef struct norm_results {
    float y[MOST], sum[MOST], mean[MAX_T], invstd[MAX_T], dx[MOST], dw[MAX_E + 16], db[MAX_E + 16];
} norm_results;

static void test_norm_variants(void **state)
{
    static norm_results want, got;
    static float x[MOST], r[MOST], w[MOST];

    (void)state;
    for (int64_t n = 1; n <= MAX_E; n += 1 + n / 3) {
        int64_t rows = 1 + n % 9;
        fill(x, MOST);
        fill(r, MOST);
        fill(w, MOST);
        for (int v = variant_count - 1; v >= 0; v--) {
            norm_results *to = v == variant_count - 1 ? &want : &got;
            memset(to, 0, sizeof(*to));
            variants[v]->layer_norm(to->y, to->mean, to->invstd, to->sum, x, r, w, w + n, rows, n, 1e-5);
            variants[v]->layer_norm_grad(to->dx, to->dw, to->db, r, x, w, to->mean, to->invstd, n % 2 ? r : NULL, rows,
                                         n);
            if (to == &got) same("layer norm", v, &got, &want, sizeof(got));
        }
    }
}

typedef struct rms_results {
    float y[MOST], sum[MOST], invstd[MAX_T], dx[MOST], dw[MAX_E + 16];
} rms_results;

static void test_rms_norm_variants(void **state)
{
    static rms_results want, got;
    static float x[MOST], r[MOST], w[MOST];

    (void)state;
    for (int64_t n = 1; n <= MAX_E; n += 1 + n / 3) {
        int64_t rows = 1 + n % 9;
        fill(x, MOST);
        fill(r, MOST);
        fill(w, MOST);
        for (int v = variant_count - 1; v >= 0; v--) {
            rms_results *to = v == variant_count - 1 ? &want : &got;
            memset(to, 0, sizeof(*to));
            variants[v]->rms_norm(to->y, to->invstd, to->sum, x, r, w, rows, n, 1e-5);
            variants[v]->rms_norm_grad(to->dx, to->dw, r, x, w, to->invstd, n % 2 ? r : NULL, rows, n);
            if (to == &got) same("rms norm", v, &got, &want, sizeof(got));
        }
    }
}

/* The same bits everywhere, and at positions of long contexts within 2e-7 of the sine and the cosine. */
static void test_rope_variants(void **state)
{
    enum { ROWS = 12, HEADS = 3 };
    static const int64_t position[ROWS] = {0, 1, 2, 3, 100, 8191, 32767, 131071, 1000000, 4194303, 5, 77};
    static float x[ROWS * HEADS * 64], want[ROWS * HEADS * 64], got[ROWS * HEADS * 64], frequency[32];

    (void)state;
    for (int64_t size = 2; size <= 64; size += 2) {
        cpu_rope p = {.length = ROWS, .heads = HEADS, .size = size, .frequency = frequency, .position = position};
        int64_t count = ROWS * HEADS * size;
        p.scaling = 1.0f;
        p.direction = size % 4 == 0 ? 1.0f : -1.0f;
        for (int64_t i = 0; i < size / 2; i++) frequency[i] = (float)pow(10000.0, -2.0 * (double)i / (double)size);
        for (int64_t i = 0; i < count; i++) x[i] = i % size < size / 2 ? 1.0f : 0.0f;
        for (int v = variant_count - 1; v >= 0; v--) {
            float *to = v == variant_count - 1 ? want : got;
            poison(to, (size_t)count);
            variants[v]->rope(&p, to, x, 0, ROWS);
            if (to == got) same("rope", v, got, want, (size_t)count * sizeof(float));
        }
        for (int64_t i = 0; i < count; i++) {
            int64_t pair = i % size % (size / 2);
            double angle = (double)((float)position[i / (HEADS * size)] * frequency[pair]);
            double exact = i % size < size / 2 ? cos(angle) : sin(angle) * (double)p.direction;
            assert_true(fabs((double)want[i] - exact) < 2e-7);
        }
    }
}

static void test_dropout_variants(void **state)
{
    static float x[1000], want[1000], got[1000];
    const cpu_mask m = {{UINT64_C(0x123456789abcdef0), UINT64_C(0xfedcba9876543210)}, 77, 2147483648u, 2.0f};

    (void)state;
    fill(x, 1000);
    for (uint64_t first = 0; first < 70; first++) {
        for (int64_t i = 0; i < 1000; i++) {
            double factor = ddp_dropout_factor(&m.random, m.place, (first << 31) + first + (uint64_t)i, 0.5);
            want[i] = factor == 0.0 ? 0.0f : x[i] * (float)factor;
        }
        for (int v = 0; v < variant_count; v++) {
            poison(got, 1000);
            variants[v]->dropout(got, x, &m, (first << 31) + first, 1000);
            assert_memory_equal(got, want, sizeof(want));
            poison(got, 1000);
            variants[v]->dropout(got, x, &m, (first << 31) + first, (int64_t)first);
            assert_memory_equal(got, want, first * sizeof(float));
            assert_true(isnan(got[first]));
        }
    }
}

/* ---- models ------------------------------------------------------------------------------------------------------ */
static void model_run(fixture *f, const gpt *m, int64_t batch, bool training)
{
    built b = gpt_build(f, m, batch, training);
    double tolerance = m->gated ? 5e-4 : 1e-4; /* an RMS norm makes a row near 0, and its roundings, large */

    built_check(&b, (job){.f = f, .seed = &seed, .classes = m->vocabulary, .tolerance = tolerance, .by_scale = true},
                1);
    unbuild(&b);
}

/* T, heads, d */
static const int64_t shapes[][3] = {{1, 1, 6},  {3, 1, 5},   {7, 2, 3},  {16, 2, 16}, {31, 2, 32}, {32, 1, 64},
                                    {33, 3, 8}, {64, 2, 20}, {65, 1, 7}, {97, 2, 16}, {130, 2, 17}};

static void test_models(void **state)
{
    for (size_t i = 0; i < 2 * DDP_COUNT(shapes); i++) {
        const int64_t *s = shapes[i / 2];
        const gpt m = {.length = s[0],
                       .heads = s[1],
                       .size = s[2],
                       .vocabulary = 5 + 17 * (int64_t)(i % 4),
                       .layers = s[0] > 64 ? 1 : 1 + (int)i % 2,
                       .dropout = i % 3 == 1 ? 0.3 : 0.0,
                       .tied = i % 2 == 0,
                       .full = i % 4 == 3,
                       .post = i % 5 == 2,
                       .gated = i % 4 >= 2};

        model_run(*state, &m, 1, true);
        model_run(*state, &m, 3, true);
        model_run(*state, &m, 2, false);
    }
}

/* gelu or silu and all norms but the last, whose gradient follows the loss, stand there a second time. */
static void test_recompute(void **state)
{
    for (int i = 0; i < 8; i++) {
        const gpt m = {.length = 33,
                       .heads = 2,
                       .size = 8,
                       .vocabulary = 22,
                       .layers = 3,
                       .tied = i % 2 == 0,
                       .dropout = i & 2 ? 0.3 : 0,
                       .gated = (i & 4) != 0};
        fixture *f = *state;
        built kept = gpt_build(f, &m, 2, true), again = gpt_build(f, &m, 2, true);
        job like = {
            .f = f, .seed = &seed, .classes = m.vocabulary, .tolerance = m.gated ? 5e-4 : 1e-4, .by_scale = true};
        uint64_t bytes[2];
        ddp_lowered *l;
        ddp_planned *planned;

        OK(f, ddp_program_recompute(again.p, &f->err));
        assert_int_equal(again.p->node_count, kept.p->node_count + 3 * 3);
        for (int k = 0; k < 2; k++) {
            const ddp_program *p = k == 0 ? kept.p : again.p;
            OK(f, f->ops->lower(f->device, p, &l, &f->err));
            OK(f, ddp_plan_create(p, l, kept.layout, &planned, &f->err));
            bytes[k] = planned->plan.arena_bytes;
            ddp_plan_free(planned);
            f->ops->lowered_free(f->device, l);
        }
        assert_true(bytes[1] < bytes[0] * 9 / 10);
        built_check(&again, like, 1);
        unbuild(&kept);
        unbuild(&again);
    }
}

static uint64_t arena_of(fixture *f, const built *b)
{
    ddp_lowered *l;
    ddp_planned *planned;
    uint64_t bytes;

    OK(f, f->ops->lower(f->device, b->p, &l, &f->err));
    OK(f, ddp_lowered_check(b->p, l, &f->err));
    OK(f, ddp_plan_create(b->p, l, b->layout, &planned, &f->err));
    bytes = planned->plan.arena_bytes;
    ddp_plan_free(planned);
    f->ops->lowered_free(f->device, l);
    return bytes;
}

/* Blocks "h.0" .. computed again as a whole: each more takes less memory, and the gradients are right. */
static void test_recompute_blocks(void **state)
{
    for (int i = 0; i < 8; i++) {
        const gpt m = {.length = 33,
                       .heads = 2,
                       .size = 8,
                       .vocabulary = 22,
                       .layers = 4,
                       .tied = i % 2 == 0,
                       .post = i >= 4,
                       .dropout = i & 2 ? 0.3 : 0};
        job like = {.f = *state, .seed = &seed, .classes = m.vocabulary, .tolerance = 1e-4, .by_scale = true};
        uint64_t before = UINT64_MAX, bytes;

        for (uint32_t count = 0; count <= 4; count++) {
            built b = gpt_build(*state, &m, 2, true);
            uint32_t nodes = b.p->node_count;

            assert_int_equal(ddp_program_blocks(b.p), 4);
            OK(like.f, ddp_program_recompute_blocks(b.p, count, &like.f->err));
            assert_true(count == 0 ? b.p->node_count == nodes : b.p->node_count > nodes);
            bytes = arena_of(*state, &b);
            assert_true(count == 4 ? bytes <= before : bytes < before);
            before = bytes;
            if (count == 2 || count == 4) built_check(&b, like, 1);
            unbuild(&b);
        }
    }
}

/* ---- single ops, whose every output is a result or a gradient ---------------------------------------------------- */
typedef struct op_case {
    uint32_t op, in_count, out_count;
    ddp_value values[9]; /* inputs, then outputs */
    ddp_attrs attrs;
} op_case;

static void op_value(op_case *c, uint32_t i, uint32_t kind, uint32_t rank, int64_t a, int64_t b, int64_t d)
{
    ddp_value *v = &c->values[i];

    *v = (ddp_value){.kind = kind, .dtype = DDP_F32, .rank = rank, .index = -1, .dims = {a, b, d}, .name = "v"};
    v->elements = a * (rank > 1 ? b : 1) * (rank > 2 ? d : 1);
}

/* What is a result lives to the end as a metric, one at most beside the loss; the rest are gradients. */
static void op_run(fixture *f, op_case *c, double tolerance)
{
    ddp_node n = {.op = c->op, .in_count = c->in_count, .out_count = c->out_count, .attrs = c->attrs, .name = "layer7"};
    uint32_t count = c->in_count + c->out_count;
    int32_t fields = 0, params = 0, metrics[3];
    ddp_program p = {.struct_size = sizeof(p),
                     .value_size = sizeof(ddp_value),
                     .node_size = sizeof(ddp_node),
                     .training = 1,
                     .value_count = count,
                     .node_count = 1,
                     .values = c->values,
                     .nodes = &n,
                     .loss = (int32_t)c->in_count,
                     .metrics = metrics};
    job j = {.f = f, .p = &p, .seed = &seed, .classes = 4, .scale = 1.0, .tolerance = tolerance};

    for (uint32_t i = 0; i < DDP_NODE_MAX_IN; i++) n.in[i] = i < c->in_count ? (int32_t)i : -1;
    for (uint32_t i = 0; i < DDP_NODE_MAX_OUT; i++) n.out[i] = i < c->out_count ? (int32_t)(c->in_count + i) : -1;
    for (uint32_t i = 0; i < count; i++) {
        ddp_value *v = &c->values[i];
        if (v->kind == DDP_VALUE_INPUT) v->index = fields++;
        if (v->kind == DDP_VALUE_ACT) metrics[p.metric_count++] = (int32_t)i;
        if (v->kind != DDP_VALUE_PARAM && v->kind != DDP_VALUE_GRAD) continue;
        v->index = params++;
        v->offset = j.arena_elements;
        j.arena_elements += ddp_round_up((uint64_t)v->elements, 16) + 16;
    }
    p.batch = c->values[0].dims[0];
    j.random = (ddp_random){random_bits(&seed), random_bits(&seed)};
    job_open(&j);
    job_run_and_check(&j);
    job_close(&j);
}

static void norm_ops(fixture *f, int64_t n, int64_t t, int64_t e)
{
    op_case c = {.op = DDP_OP_LAYER_NORM, .in_count = 3, .out_count = 3, .attrs = {.layer_norm = {1e-5}}};

    op_value(&c, 0, DDP_VALUE_INPUT, 3, n, t, e);
    op_value(&c, 1, DDP_VALUE_PARAM, 1, e, 0, 0);
    op_value(&c, 2, DDP_VALUE_PARAM, 1, e, 0, 0);
    op_value(&c, 3, DDP_VALUE_ACT, 3, n, t, e);
    op_value(&c, 4, DDP_VALUE_ACT, 2, n, t, 0);
    op_value(&c, 5, DDP_VALUE_ACT, 2, n, t, 0);
    if (e > 1) op_run(f, &c, 5e-6); /* of one element the variance is 0 and rounding is all there is */
    c.op = DDP_OP_LAYER_NORM_GRAD;
    c.in_count = 5;
    for (uint32_t i = 0; i < 2; i++) op_value(&c, i, DDP_VALUE_INPUT, 3, n, t, e);
    op_value(&c, 2, DDP_VALUE_PARAM, 1, e, 0, 0);
    for (uint32_t i = 3; i < 5; i++) op_value(&c, i, DDP_VALUE_INPUT, 2, n, t, 0);
    op_value(&c, 5, DDP_VALUE_ACT, 3, n, t, e);
    for (uint32_t i = 6; i < 8; i++) op_value(&c, i, DDP_VALUE_GRAD, 1, e, 0, 0);
    /* sums of up to 512 rows, which may be near 0 when the rows are not */
    op_run(f, &c, 2e-5);
    op_value(&c, 5, DDP_VALUE_GRAD, 3, n, t, e); /* the input is a parameter */
    op_run(f, &c, 2e-5);
}

static void rms_norm_ops(fixture *f, int64_t n, int64_t t, int64_t e)
{
    op_case c = {.op = DDP_OP_RMS_NORM, .in_count = 2, .out_count = 2, .attrs = {.rms_norm = {1e-5}}};

    op_value(&c, 0, DDP_VALUE_INPUT, 3, n, t, e);
    op_value(&c, 1, DDP_VALUE_PARAM, 1, e, 0, 0);
    op_value(&c, 2, DDP_VALUE_ACT, 3, n, t, e);
    op_value(&c, 3, DDP_VALUE_ACT, 2, n, t, 0);
    op_run(f, &c, 5e-6);
    c.op = DDP_OP_RMS_NORM_GRAD;
    c.in_count = 4;
    for (uint32_t i = 0; i < 2; i++) op_value(&c, i, DDP_VALUE_INPUT, 3, n, t, e);
    op_value(&c, 2, DDP_VALUE_PARAM, 1, e, 0, 0);
    op_value(&c, 3, DDP_VALUE_INPUT, 2, n, t, 0);
    op_value(&c, 4, DDP_VALUE_ACT, 3, n, t, e);
    op_value(&c, 5, DDP_VALUE_GRAD, 1, e, 0, 0);
    op_run(f, &c, 2e-5);
    op_value(&c, 4, DDP_VALUE_GRAD, 3, n, t, e); /* the input is a parameter */
    op_run(f, &c, 2e-5);
}

/* Over all kinds of rope, with and without positions, and back. */
static void rope_ops(fixture *f, int64_t n, int64_t t, int64_t heads, int64_t size)
{
    op_case c = {.attrs = {.rope = {.head_dim = size, .theta = 1e4, .factor = 4.0, .original_context = 64}}};

    c.attrs.rope.low_freq_factor = 1.0;
    c.attrs.rope.high_freq_factor = 4.0;
    c.out_count = 1;
    for (uint32_t k = 0; k < 24; k++) {
        bool back = k % 2 == 1;
        c.op = back ? DDP_OP_ROPE_GRAD : DDP_OP_ROPE;
        c.attrs.rope.kind = k / 6;
        c.in_count = k % 3 == 0 ? 1 : 2;
        op_value(&c, 0, DDP_VALUE_INPUT, 3, n, t, heads * size);
        if (k % 3 != 0) {
            op_value(&c, 1, DDP_VALUE_INPUT, k % 3, n, t, 0); /* the start of each sample, or all positions */
            if (k % 3 == 1) c.values[1].elements = n;
            c.values[1].dtype = DDP_I64;
        }
        op_value(&c, c.in_count, back ? DDP_VALUE_GRAD : DDP_VALUE_ACT, 3, n, t, heads * size);
        op_run(f, &c, 5e-6);
    }
}

static void gate_ops(fixture *f, int64_t n, int64_t t, int64_t e)
{
    op_case c = {.op = DDP_OP_SILU, .in_count = 1, .out_count = 1};

    op_value(&c, 0, DDP_VALUE_INPUT, 3, n, t, e);
    op_value(&c, 1, DDP_VALUE_ACT, 3, n, t, e);
    op_run(f, &c, 5e-6);
    c.in_count = 2;
    op_value(&c, 1, DDP_VALUE_INPUT, 3, n, t, e);
    for (uint32_t k = 0; k < 4; k++) {
        c.op = k < 2 ? DDP_OP_SILU_GRAD : DDP_OP_MUL;
        op_value(&c, 2, k % 2 ? DDP_VALUE_GRAD : DDP_VALUE_ACT, 3, n, t, e);
        op_run(f, &c, 5e-6);
    }
}

static void attention_ops(fixture *f, int64_t n, int64_t t, int64_t heads, int64_t size, bool causal, double dropout)
{
    op_case c = {.op = DDP_OP_ATTENTION, .in_count = 1, .out_count = 2};
    int64_t e = heads * size;

    c.attrs.attention.scale = 0.4;
    c.attrs.attention.dropout = dropout;
    c.attrs.attention.heads = (uint32_t)heads;
    c.attrs.attention.causal = causal;
    c.attrs.attention.place = 12;
    op_value(&c, 0, DDP_VALUE_INPUT, 3, n, t, 3 * e);
    op_value(&c, 1, DDP_VALUE_ACT, 3, n, t, e);
    op_value(&c, 2, DDP_VALUE_ACT, 3, n, heads, t);
    op_run(f, &c, 5e-6);
    c.op = DDP_OP_ATTENTION_GRAD;
    c.in_count = 4;
    c.out_count = 1;
    op_value(&c, 0, DDP_VALUE_INPUT, 3, n, t, e);
    op_value(&c, 1, DDP_VALUE_INPUT, 3, n, t, 3 * e);
    op_value(&c, 2, DDP_VALUE_INPUT, 3, n, t, e);
    op_value(&c, 3, DDP_VALUE_INPUT, 3, n, heads, t);
    op_value(&c, 4, DDP_VALUE_ACT, 3, n, t, 3 * e);
    c.attrs.attention.scale =
        1.0 / sqrt((double)size); /* the log-sum-exps are random: more would make weights of thousands */
    op_run(f, &c, 5e-5);
    op_value(&c, 4, DDP_VALUE_GRAD, 3, n, t, 3 * e);
    op_run(f, &c, 5e-5);
}

static void cached_ops(fixture *f, int64_t n, int64_t t, int64_t heads, int64_t size, int64_t capacity)
{
    op_case c = {.op = DDP_OP_ATTENTION_CACHED, .in_count = 4, .out_count = 1};
    int64_t e = heads * size;

    c.attrs.attention.scale = 0.4;
    c.attrs.attention.heads = (uint32_t)heads;
    c.attrs.attention.causal = 1;
    op_value(&c, 0, DDP_VALUE_INPUT, 3, n, t, 3 * e);
    for (uint32_t i = 1; i < 3; i++) {
        op_value(&c, i, DDP_VALUE_BUFFER, 3, n, heads, i == 1 ? size : capacity);
        c.values[i].rank = 4;
        c.values[i].dims[3] = i == 1 ? capacity : size;
        c.values[i].elements = n * heads * size * capacity;
    }
    c.values[2].offset = ddp_round_up((uint64_t)c.values[1].elements, 16);
    op_value(&c, 3, DDP_VALUE_INPUT, 1, n, 0, 0);
    c.values[3].dtype = DDP_I64;
    op_value(&c, 4, DDP_VALUE_ACT, 3, n, t, e);
    op_run(f, &c, 5e-6);
    c.op = DDP_OP_POSITION_AT;
    c.in_count = 3;
    op_value(&c, 0, DDP_VALUE_INPUT, 3, n, t, e);
    op_value(&c, 1, DDP_VALUE_PARAM, 2, t + 3, e, 0);
    op_value(&c, 2, DDP_VALUE_INPUT, 1, n, 0, 0);
    c.values[2].dtype = DDP_I64;
    op_value(&c, 3, DDP_VALUE_ACT, 3, n, t, e);
    op_run(f, &c, 5e-6);
}

static void other_ops(fixture *f, int64_t n, int64_t t, int64_t e)
{
    op_case c = {.op = DDP_OP_EMBEDDING, .in_count = 2, .out_count = 1};

    op_value(&c, 0, DDP_VALUE_INPUT, 2, n, t, 0);
    c.values[0].dtype = DDP_I64;
    op_value(&c, 1, DDP_VALUE_PARAM, 2, 5, e, 0);
    op_value(&c, 2, DDP_VALUE_ACT, 3, n, t, e);
    op_run(f, &c, 5e-6);
    c.op = DDP_OP_EMBEDDING_GRAD;
    op_value(&c, 0, DDP_VALUE_INPUT, 3, n, t, e);
    op_value(&c, 1, DDP_VALUE_INPUT, 2, n, t, 0);
    c.values[1].dtype = DDP_I64;
    op_value(&c, 2, DDP_VALUE_GRAD, 2, 5, e, 0);
    op_run(f, &c, 2e-5); /* a fifth of all rows go into one: their sum may be near 0 when they are not */
    c.op = DDP_OP_POSITION;
    op_value(&c, 1, DDP_VALUE_PARAM, 2, t + 2, e, 0);
    op_value(&c, 2, DDP_VALUE_ACT, 3, n, t, e);
    op_run(f, &c, 5e-6);
    c.op = DDP_OP_POSITION_GRAD;
    c.in_count = 1;
    op_value(&c, 1, DDP_VALUE_GRAD, 2, t + 2, e, 0);
    op_run(f, &c, 5e-6);
    for (c.op = DDP_OP_DROPOUT; c.op <= DDP_OP_DROPOUT_GRAD; c.op++) {
        op_value(&c, 1, DDP_VALUE_ACT, 3, n, t, e);
        c.attrs.dropout.p = n % 2 ? 0.25 : 1.0;
        op_run(f, &c, 5e-6);
    }
}

/* A table that is not trained, where products are in bf16. */
static void test_half_table(void **state)
{
    fixture *f = *state;
    op_case c = {.op = DDP_OP_EMBEDDING, .in_count = 2, .out_count = 1};

    for (int64_t e = 1; e < 100; e += 7) {
        op_value(&c, 0, DDP_VALUE_INPUT, 2, 2, 9, 0);
        c.values[0].dtype = DDP_I64;
        op_value(&c, 1, DDP_VALUE_PARAM, 2, 5, e, 0);
        c.values[1].dtype = DDP_BF16;
        op_value(&c, 2, DDP_VALUE_ACT, 3, 2, 9, e);
        op_run(f, &c, 0);
    }
}

static void test_ops(void **state)
{
    for (size_t i = 0; i < DDP_COUNT(shapes); i++)
        for (int64_t n = 1; n <= 3; n += 1 + (int64_t)(i % 2)) {
            norm_ops(*state, n, shapes[i][0], shapes[i][1] * shapes[i][2]);
            other_ops(*state, n, shapes[i][0], shapes[i][1] * shapes[i][2]);
            rms_norm_ops(*state, n, shapes[i][0], shapes[i][1] * shapes[i][2]);
            gate_ops(*state, n, shapes[i][0], shapes[i][1] * shapes[i][2]);
            rope_ops(*state, n, shapes[i][0], shapes[i][1], (shapes[i][2] + 1) / 2 * 2);
            cached_ops(*state, n, shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][0] + 3); /* starts are 0 .. 3 */
            cached_ops(*state, n, shapes[i][0], shapes[i][1], shapes[i][2], (shapes[i][0] + 18) / 16 * 16);
            attention_ops(*state, n, shapes[i][0], shapes[i][1], shapes[i][2], i % 3 != 0, i % 2 ? 0.2 : 0.0);
        }
    norm_ops(*state, 2, 256, 256); /* large enough for two threads */
    rms_norm_ops(*state, 2, 256, 256);
    rope_ops(*state, 2, 256, 4, 64);
    other_ops(*state, 2, 256, 128);
    attention_ops(*state, 2, 200, 3, 32, true, 0.1);
}

/* ---- what is fused ----------------------------------------------------------------------------------------------- */
static void test_lowering(void **state)
{
    static const char *const want[] = {
        "embedding+position",  "layer_norm",         "linear+bias",         "attention",           "linear+bias",
        "add+layer_norm",      "linear+bias+gelu",   "linear+bias",         "add+layer_norm",      "linear",
        "cross_entropy+grad",  "linear_grad_weight", "linear_grad_input",   "layer_norm_grad",     "linear_grad_bias",
        "linear_grad_weight",  "linear_grad_input",  "gelu_grad+bias_grad", "linear_grad_weight",  "linear_grad_input",
        "layer_norm_grad+add", "linear_grad_bias",   "linear_grad_weight",  "linear_grad_input",   "attention_grad",
        "linear_grad_bias",    "linear_grad_weight", "linear_grad_input",   "layer_norm_grad+add", "position_grad",
        "embedding_grad"};
    const gpt m = {.length = 8, .heads = 2, .size = 8, .vocabulary = 11, .layers = 1, .tied = true};
    fixture *f = *state;
    built b = gpt_build(f, &m, 2, true);
    ddp_lowered *l;

    OK(f, f->ops->lower(f->device, b.p, &l, &f->err));
    for (uint32_t i = 0; i < l->kernel_count && i < DDP_COUNT(want); i++)
        assert_string_equal(l->kernels[i].name, want[i]);
    assert_int_equal(l->kernel_count, DDP_COUNT(want));
    f->ops->lowered_free(f->device, l);
    unbuild(&b);
}

static void test_bad_index(void **state)
{
    static const int64_t bad[] = {11, -1, INT64_MAX, INT64_MIN};
    const gpt m = {.length = 4, .heads = 1, .size = 4, .vocabulary = 11, .layers = 1};
    fixture *f = *state;
    built b = gpt_build(f, &m, 2, true);

    for (size_t i = 0; i < DDP_COUNT(bad); i++) {
        job j = {
            .f = f, .seed = &seed, .classes = 11, .p = b.p, .layout = b.layout, .arena_elements = b.layout->elements};
        char text[96];
        job_open(&j);
        ((int64_t *)(void *)j.inputs[0])[5] = bad[i];
        assert_int_equal(job_run(&j), DDP_ERR_DATA);
        (void)snprintf(text, sizeof(text), "index %lld at position 5 ", (long long)bad[i]);
        assert_non_null(strstr(f->err.msg, text));
        assert_non_null(strstr(f->err.msg, "\"wte\""));
        assert_non_null(strstr(f->err.msg, "11 rows (0 to 10)"));
        job_close(&j);
    }
    unbuild(&b);
}

/* ---- main -------------------------------------------------------------------------------------------------------- */
int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_norm_variants),
                                       cmocka_unit_test(test_rms_norm_variants),
                                       cmocka_unit_test(test_rope_variants),
                                       cmocka_unit_test(test_dropout_variants),
                                       BOTH(test_ops),
                                       HALF(test_half_table),
                                       BOTH(test_models),
                                       BOTH(test_recompute),
                                       BOTH(test_recompute_blocks),
                                       ONE(test_lowering),
                                       ONE(test_bad_index)};

    variants = cpu_kernels_variants + ddp_isa_best();
    variant_count = DDP_ISA_COUNT - ddp_isa_best();
    seed = test_seed();
    return cmocka_run_group_tests_name("sequences on the CPU device", tests, NULL, NULL);
}
