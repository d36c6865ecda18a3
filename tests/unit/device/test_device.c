/* tests/unit/device/test_device.c -- the CPU device against the double reference: every op forward and gradient over
 * odd sizes, whole models, kernels in place, gradients set and added, refusals and bad labels. */
#include "support/device_models.h"

static uint64_t seed;

/* ---- single ops by hand ------------------------------------------------------------------------------------------ */
typedef struct shape {
    uint32_t kind, dtype;
    int64_t a, b; /* b 0: one dimension */
} shape;

typedef struct single {
    ddp_value values[8];
    ddp_node node;
    ddp_program p;
    int32_t metric;
    uint64_t elements; /* of the parameter arena */
} single;

static void single_value(single *s, uint32_t i, shape sh, int32_t *fields, int32_t *params)
{
    ddp_value *v = &s->values[i];

    *v = (ddp_value){.kind = sh.kind, .dtype = sh.dtype, .rank = sh.b > 0 ? 2 : 1, .index = -1, .name = "v"};
    v->dims[0] = sh.a;
    v->dims[1] = sh.b;
    v->elements = sh.a * (sh.b > 0 ? sh.b : 1);
    if (sh.kind == DDP_VALUE_INPUT) v->index = (*fields)++;
    if (sh.kind != DDP_VALUE_PARAM && sh.kind != DDP_VALUE_GRAD) return;
    v->index = (*params)++;
    v->offset = s->elements;
    s->elements += ddp_round_up((uint64_t)v->elements, 16) + 16;
}

/* Inputs come first in `shapes`, the output is last; it is a metric, so that it lives to the end. */
static void single_make(single *s, uint32_t op, uint32_t count, const shape *shapes)
{
    int32_t fields = 0, params = 0;

    memset(s, 0, sizeof(*s));
    for (uint32_t i = 0; i < count; i++) single_value(s, i, shapes[i], &fields, &params);
    s->node =
        (ddp_node){.op = op, .in_count = count - 1, .out_count = 1, .in = {-1, -1, -1, -1, -1, -1}, .name = "layer7"};
    for (uint32_t i = 0; i + 1 < count; i++) s->node.in[i] = (int32_t)i;
    s->node.out[0] = s->metric = (int32_t)count - 1;
    s->p = (ddp_program){.struct_size = sizeof(s->p),
                         .value_size = sizeof(ddp_value),
                         .node_size = sizeof(ddp_node),
                         .batch = shapes[0].a,
                         .training = 1,
                         .value_count = count,
                         .node_count = 1,
                         .values = s->values,
                         .nodes = &s->node,
                         .loss = s->metric,
                         .metric_count = 1,
                         .metrics = &s->metric};
}

static void single_run(fixture *f, single *s, int64_t classes, double scale, double tolerance)
{
    job j = {.f = f,
             .p = &s->p,
             .arena_elements = s->elements,
             .seed = &seed,
             .classes = classes,
             .scale = scale,
             .tolerance = tolerance};

    job_open(&j);
    job_run_and_check(&j);
    job_close(&j);
}

#define IN(a, b)                                                                                                       \
    {                                                                                                                  \
        DDP_VALUE_INPUT, DDP_F32, a, b                                                                                 \
    }
#define LABEL(a)                                                                                                       \
    {                                                                                                                  \
        DDP_VALUE_INPUT, DDP_I64, a, 0                                                                                 \
    }
#define PARAM(a, b)                                                                                                    \
    {                                                                                                                  \
        DDP_VALUE_PARAM, DDP_F32, a, b                                                                                 \
    }
#define HALVED(a, b)                                                                                                   \
    {                                                                                                                  \
        DDP_VALUE_PARAM, DDP_BF16, a, b                                                                                \
    }
#define GRAD(a, b)                                                                                                     \
    {                                                                                                                  \
        DDP_VALUE_GRAD, DDP_F32, a, b                                                                                  \
    }
#define ACT(a, b)                                                                                                      \
    {                                                                                                                  \
        DDP_VALUE_ACT, DDP_F32, a, b                                                                                   \
    }
#define RUN(op, classes, scale, tolerance, ...)                                                                        \
    do {                                                                                                               \
        const shape shapes_[] = {__VA_ARGS__};                                                                         \
        single s_;                                                                                                     \
        single_make(&s_, op, (uint32_t)DDP_COUNT(shapes_), shapes_);                                                   \
        single_run(f, &s_, classes, scale, tolerance);                                                                 \
    } while (0)

/* With the weight as (in, out). */
static void transposed_op(fixture *f, uint32_t op, double tolerance, shape a, shape b, shape c)
{
    const shape shapes[] = {a, b, c};
    single s;

    single_make(&s, op, 3, shapes);
    s.node.attrs.linear.transposed = 1;
    single_run(f, &s, 0, 1, tolerance);
}

/* The weight is held in bf16, and has no gradient. */
static void frozen_ops(fixture *f, int64_t n, int64_t i, int64_t o)
{
    const double t = 1e-6, forward = t * (1 + sqrt((double)i)), back = t * (1 + sqrt((double)o));

    RUN(DDP_OP_LINEAR, 0, 1, forward, IN(n, i), HALVED(o, i), PARAM(o, 0), ACT(n, o));
    RUN(DDP_OP_LINEAR, 0, 1, forward, IN(n, i), HALVED(o, i), ACT(n, o));
    RUN(DDP_OP_LINEAR_GRAD_INPUT, 0, 1, back, IN(n, o), HALVED(o, i), ACT(n, i));
    transposed_op(f, DDP_OP_LINEAR, forward, (shape)IN(n, i), (shape)HALVED(i, o), (shape)ACT(n, o));
    transposed_op(f, DDP_OP_LINEAR_GRAD_INPUT, back, (shape)IN(n, o), (shape)HALVED(i, o), (shape)ACT(n, i));
}

/* n rows, i inputs, o outputs; the tolerance grows with the length of the sums */
static void linear_ops(fixture *f, int64_t n, int64_t i, int64_t o)
{
    double t = 1e-6;

    RUN(DDP_OP_LINEAR, 0, 1, t * (1 + sqrt((double)i)), IN(n, i), PARAM(o, i), PARAM(o, 0), ACT(n, o));
    RUN(DDP_OP_LINEAR, 0, 1, t * (1 + sqrt((double)i)), IN(n, i), PARAM(o, i), ACT(n, o));
    RUN(DDP_OP_LINEAR_GRAD_INPUT, 0, 1, t * (1 + sqrt((double)o)), IN(n, o), PARAM(o, i), ACT(n, i));
    RUN(DDP_OP_LINEAR_GRAD_INPUT, 0, 1, t * (1 + sqrt((double)o)), IN(n, o), PARAM(o, i), GRAD(n, i));
    RUN(DDP_OP_LINEAR_GRAD_WEIGHT, 0, 1, t * (1 + sqrt((double)n)), IN(n, o), IN(n, i), GRAD(o, i));
    transposed_op(f, DDP_OP_LINEAR, t * (1 + sqrt((double)i)), (shape)IN(n, i), (shape)PARAM(i, o), (shape)ACT(n, o));
    transposed_op(f, DDP_OP_LINEAR_GRAD_INPUT, t * (1 + sqrt((double)o)), (shape)IN(n, o), (shape)PARAM(i, o),
                  (shape)ACT(n, i));
    transposed_op(f, DDP_OP_LINEAR_GRAD_WEIGHT, t * (1 + sqrt((double)n)), (shape)IN(n, o), (shape)IN(n, i),
                  (shape)GRAD(i, o));
    RUN(DDP_OP_LINEAR_GRAD_BIAS, 0, 1, t * (1 + sqrt((double)n)), IN(n, o), GRAD(o, 0));
    if (fixture_takes_half(f)) frozen_ops(f, n, i, o);
}

static const int64_t sizes[][3] = {
    {1, 1, 1},    {1, 7, 10},       {2, 16, 3},     {3, 5, 17},    {8, 33, 64},     {9, 33, 64},    {16, 64, 16},
    {37, 79, 5},  {64, 100, 10},    {130, 17, 129}, {5, 784, 300}, {300, 129, 257}, {800, 130, 70}, {33, 3100, 70},
    {7, 70, 800}, {1030, 65, 2064}, {64, 16, 48},   {72, 48, 8},   {136, 8, 160},   {64, 16, 8},    {2048, 64, 8}};

static void test_linear(void **state)
{
    for (size_t i = 0; i < DDP_COUNT(sizes); i++) linear_ops(*state, sizes[i][0], sizes[i][1], sizes[i][2]);
}

static void gelu_op(fixture *f, uint32_t tanh_form, double scale, int64_t a, int64_t b)
{
    const shape forward[] = {IN(a, b), ACT(a, b)}, gradient[] = {IN(a, b), IN(a, b), ACT(a, b)};
    single s;

    single_make(&s, DDP_OP_GELU, 2, forward);
    s.node.attrs.gelu.tanh = tanh_form;
    single_run(f, &s, 0, scale, 1e-6);
    single_make(&s, DDP_OP_GELU_GRAD, 3, gradient);
    s.node.attrs.gelu.tanh = tanh_form;
    single_run(f, &s, 0, scale, 1e-6);
}

static void scale_op(fixture *f, shape x, shape y)
{
    const shape shapes[] = {x, y};
    single s;

    single_make(&s, DDP_OP_SCALE, 2, shapes);
    s.node.attrs.scale.factor = -2.5;
    single_run(f, &s, 0, 1, 1e-6);
}

static void test_pointwise(void **state)
{
    fixture *f = *state;

    for (size_t i = 0; i < DDP_COUNT(sizes); i++) {
        int64_t a = sizes[i][0], b = sizes[i][1];
        RUN(DDP_OP_RELU, 0, 1, 1e-9, IN(a, b), ACT(a, b));
        RUN(DDP_OP_RELU_GRAD, 0, 1, 1e-9, IN(a, b), IN(a, b), ACT(a, b));
        RUN(DDP_OP_RELU_GRAD, 0, 1, 1e-6, IN(a, b), IN(a, b), GRAD(a, b));
        RUN(DDP_OP_ADD, 0, 1, 1e-7, IN(a, b), IN(a, b), ACT(a, b));
        scale_op(f, (shape)IN(a, b), (shape)ACT(a, b));
        scale_op(f, (shape)IN(a, b), (shape)GRAD(a, b));
        RUN(DDP_OP_RESHAPE, 0, 1, 1e-6, IN(a, b), GRAD(b, a)); /* a gradient passed on to a parameter */
        gelu_op(f, 0, 1 + (double)(i % 16), a, b);
        gelu_op(f, 1, 1 + (double)(i % 16), a, b);
    }
    RUN(DDP_OP_RELU, 0, 1, 1e-9, IN(300, 700), ACT(300, 700)); /* large enough for two threads */
    gelu_op(f, 0, 8, 300, 700);
}

static void padded_loss(fixture *f, uint32_t op, int64_t n, int64_t c, int64_t padding)
{
    const shape one[] = {IN(n, c), LABEL(n), ACT(1, 0)}, all[] = {IN(n, c), LABEL(n), ACT(n, c)};
    single s;

    single_make(&s, op, 3, op == DDP_OP_CROSS_ENTROPY ? one : all);
    s.node.attrs.cross_entropy.classes = c - padding;
    single_run(f, &s, c - padding, 20, 1e-6);
}

/* Ops with attributes: smooth_l1, class weights and a class that is ignored, counts of the metrics. */
static void loss_ops(fixture *f, int64_t n, int64_t c)
{
    const shape pair[] = {IN(n, c), IN(n, c), ACT(1, 0)}, pair_grad[] = {IN(n, c), IN(n, c), ACT(n, c)};
    const shape one[] = {IN(n, c), LABEL(n), ACT(1, 0)}, all[] = {IN(n, c), LABEL(n), ACT(n, c)};
    const shape hits[] = {IN(n, c), LABEL(n), ACT(2, 0)}, counts[] = {IN(n, c), LABEL(n), ACT(c, c)};
    float weight[512];
    single s;

    for (int64_t i = 0; i < c && i < 512; i++) weight[i] = 0.25f + (float)(i % 5);
    for (int grad = 0; grad < 2; grad++) {
        single_make(&s, grad ? DDP_OP_SMOOTH_L1_GRAD : DDP_OP_SMOOTH_L1, 3, grad ? pair_grad : pair);
        s.node.attrs.smooth_l1.beta = 0.3;
        single_run(f, &s, 0, 1, 1e-6);
        for (int smooth = 0; smooth < 2 && c <= 512; smooth++) {
            single_make(&s, grad ? DDP_OP_CROSS_ENTROPY_GRAD : DDP_OP_CROSS_ENTROPY, 3, grad ? all : one);
            s.node.attrs.cross_entropy.weight = weight;
            s.node.attrs.cross_entropy.weights = (uint32_t)c;
            s.node.attrs.cross_entropy.label_smoothing = smooth ? 0.2 : 0.0;
            s.node.attrs.cross_entropy.ignores = n > 8;
            s.node.attrs.cross_entropy.ignore_index = 1;
            single_run(f, &s, c, 2, 2e-6);
            s.node.attrs.cross_entropy.divisor = 2.5 * (double)n; /* instead of what counts */
            single_run(f, &s, c, 2, 2e-6);
        }
    }
    for (int grad = 0; grad < 2 && n <= 64; grad++) { /* mixed labels */
        const shape mixed[] = {IN(n, c), LABEL(n), LABEL(n), IN(n, 0), grad ? (shape)ACT(n, c) : (shape)ACT(1, 0)};

        single_make(&s, grad ? DDP_OP_CROSS_ENTROPY_GRAD : DDP_OP_CROSS_ENTROPY, 5, mixed);
        s.node.attrs.cross_entropy.label_smoothing = n % 2 == 0 ? 0.1 : 0.0;
        single_run(f, &s, c, 1, 2e-6);
    }
    single_make(&s, DDP_OP_TOP_K, 3, hits);
    s.node.attrs.metric.k = 3;
    single_run(f, &s, c, 1, 1e-9);
    single_make(&s, DDP_OP_CONFUSION, 3, counts);
    s.node.attrs.metric.ignores = 1;
    single_run(f, &s, c, 1, 1e-9);
}

static void test_losses(void **state)
{
    fixture *f = *state;

    for (size_t i = 0; i < DDP_COUNT(sizes); i++) {
        int64_t n = sizes[i][0], c = sizes[i][1];
        double scale = i % 2 == 0 ? 1 : 50; /* 50: exponentials that underflow */
        RUN(DDP_OP_CROSS_ENTROPY, c, scale, 1e-6, IN(n, c), LABEL(n), ACT(1, 0));
        RUN(DDP_OP_CROSS_ENTROPY_GRAD, c, scale, 1e-6, IN(n, c), LABEL(n), ACT(n, c));
        RUN(DDP_OP_CROSS_ENTROPY_GRAD, c, scale, 1e-6, PARAM(n, c), LABEL(n), GRAD(n, c));
        RUN(DDP_OP_SOFTMAX_PARTS, c, scale, 1e-6, IN(n, c), LABEL(n), ACT(n, 4));
        RUN(DDP_OP_SOFTMAX_PARTS_GRAD, c, 1, 2e-6, IN(n, c), LABEL(n), IN(n, 2), ACT(n, c));
        for (int64_t padding = 1; padding < c && padding < 48; padding += 46) { /* columns that are no classes */
            padded_loss(f, DDP_OP_CROSS_ENTROPY, n, c, padding);
            padded_loss(f, DDP_OP_CROSS_ENTROPY_GRAD, n, c, padding);
        }
        RUN(DDP_OP_MSE, 0, 1, 1e-6, IN(n, c), IN(n, c), ACT(1, 0));
        RUN(DDP_OP_MSE_GRAD, 0, 1, 1e-6, IN(n, c), IN(n, c), ACT(n, c));
        RUN(DDP_OP_L1, 0, 1, 1e-6, IN(n, c), IN(n, c), ACT(1, 0));
        RUN(DDP_OP_L1_GRAD, 0, 1, 1e-6, IN(n, c), IN(n, c), ACT(n, c));
        RUN(DDP_OP_BCE_WITH_LOGITS, 0, scale, 1e-6, IN(n, c), IN(n, c), ACT(1, 0));
        RUN(DDP_OP_BCE_WITH_LOGITS_GRAD, 0, scale, 1e-6, IN(n, c), IN(n, c), ACT(n, c));
        RUN(DDP_OP_BCE_WITH_LOGITS_GRAD, 0, scale, 1e-6, PARAM(n, c), IN(n, c), GRAD(n, c));
        RUN(DDP_OP_BINARY_CONFUSION, 0, 1, 1e-9, IN(n, c), IN(n, c), ACT(2, 2));
        loss_ops(f, n, c);
        RUN(DDP_OP_ACCURACY, c, 1, 1e-9, IN(n, c), LABEL(n), ACT(1, 0));
    }
}

/* Ties go to the first, a NaN counts as the largest, a NaN shows in the loss. */
static void test_special_values(void **state)
{
    fixture *f = *state;
    const shape shapes[] = {IN(3, 20), LABEL(3), ACT(1, 0)};
    const shape relu[] = {IN(1, 40), ACT(1, 40)};
    single s;
    job j = {.f = f, .p = &s.p, .seed = &seed, .classes = 20};
    ddp_run r = {.struct_size = sizeof(r)};

    for (int loss = 0; loss < 2; loss++) {
        single_make(&s, loss ? DDP_OP_CROSS_ENTROPY : DDP_OP_ACCURACY, 3, shapes);
        job_open(&j);
        for (int i = 0; i < 60; i++) j.inputs[0][i] = 1.0f;
        j.inputs[0][25] = NAN;
        ((int64_t *)(void *)j.inputs[1])[0] = 0;
        ((int64_t *)(void *)j.inputs[1])[1] = 5;
        ((int64_t *)(void *)j.inputs[1])[2] = 1;
        r.inputs = (void *const *)(void *)j.inputs;
        OK(f, f->ops->run(j.instance, &r, 0, 1, &f->err));
        if (loss)
            assert_true(isnan(j.arena[0]));
        else
            assert_true(j.arena[0] == 2.0f);
        job_close(&j);
    }
    single_make(&s, DDP_OP_RELU, 2, relu);
    job_open(&j);
    j.inputs[0][3] = j.inputs[0][37] = NAN;
    r.inputs = (void *const *)(void *)j.inputs;
    OK(f, f->ops->run(j.instance, &r, 0, 1, &f->err));
    assert_true(isnan(j.arena[3]) && isnan(j.arena[37]));
    job_close(&j);
}

/* ---- whole models ------------------------------------------------------------------------------------------------ */
static void model_run(fixture *f, const mlp *m, int64_t batch, bool training)
{
    built b = mlp_build(f, m, batch, training);
    job like = {.f = f, .seed = &seed, .classes = m->classes, .scale = 0.3, .tolerance = 2e-5};

    if (f->half) like.tolerance = 0.2; /* two roundings of 2^-9, and what cancels */
    if (f->half) like.scale = 0.25;    /* still bf16 numbers */
    like.by_scale = f->half;
    built_check(&b, like, 1);
    unbuild(&b);
}

static void test_models(void **state)
{
    static const int64_t batches[] = {1, 8, 9, 33};
    const fixture *f = *state;

    for (int i = 0; i < 48; i++) {
        mlp m = mlp_case(i, f->half);
        if (f->half) m.layers = 1;
        if (f->half) m.shared = false;
        for (size_t b = 0; b < DDP_COUNT(batches); b++) {
            model_run(*state, &m, batches[b], true);
            model_run(*state, &m, batches[b], false);
        }
    }
}

/* Adapters of few features, whose products take the add in: the values above, and the kernels. */
static void test_adapters(void **state)
{
    static const int64_t batches[] = {63, 64, 200};
    fixture *f = *state;
    const mlp m = {.features = 32, .width = 48, .classes = 10, .layers = f->half ? 1 : 3, .rank = 8, .bias = true};
    built b;
    ddp_lowered *l;
    int fused = 0;

    b = mlp_build(f, &m, 64, true);
    OK(f, f->ops->lower(f->device, b.p, &l, &f->err));
    for (uint32_t i = 0; i < l->kernel_count; i++) fused += strstr(l->kernels[i].name, "linear+add") != NULL;
    for (uint32_t i = 0; i < l->kernel_count; i++)
        fused += 10 * (strcmp(l->kernels[i].name, "linear_grad_input+add") == 0);
    assert_int_equal(fused, f->half ? 1 : 23);
    f->ops->lowered_free(f->device, l);
    unbuild(&b);
    for (size_t i = 0; i < DDP_COUNT(batches); i++) {
        if (!f->half) model_run(f, &m, batches[i], true); /* in bf16 gradients cancel to next to nothing */
        model_run(f, &m, batches[i], false);
    }
}

/* What is fused, and that the activations of training share memory where they can. */
static void test_lowering(void **state)
{
    static const char *const want[] = {
        "reshape",           "linear+bias+relu",   "linear+bias",       "cross_entropy+grad",
        "linear_grad_bias",  "linear_grad_weight", "linear_grad_input", "relu_grad+bias_grad",
        "linear_grad_weight"};
    fixture *f = *state;
    const ddp_field fields[] = {{.name = "image", .dtype = DDP_F32, .rank = 1, .dims = {20}, .min = 1},
                                {.name = "label", .dtype = DDP_I64, .min = 0, .max = 9}};
    const mlp m = {.features = 20, .width = 32, .classes = 10, .layers = 1, .bias = true};
    ddp_graph *g;
    ddp_layout *layout;
    ddp_program *p;
    ddp_lowered *l;

    OK(f, ddp_graph_create(fields, 2, &g, &f->err));
    mlp_layers(g, &m);
    OK(f, ddp_graph_finish(g, &f->err));
    OK(f, ddp_layout_create(g, 1 << 20, 1 << 20, 1, &layout, &f->err));
    OK(f, ddp_program_create(g, layout, 64, true, &p, &f->err));
    OK(f, f->ops->lower(f->device, p, &l, &f->err));
    for (uint32_t i = 0; i < l->kernel_count && i < DDP_COUNT(want); i++)
        assert_string_equal(l->kernels[i].name, want[i]);
    assert_int_equal(l->kernel_count, DDP_COUNT(want));
    assert_int_equal(l->kernels[3].inplace_count, 1); /* the gradient in place of the logits */
    assert_int_equal(l->kernels[7].inplace_count, 1); /* dx in place of dy */
    f->ops->lowered_free(f->device, l);
    ddp_program_free(p);
    ddp_layout_free(layout);
    ddp_graph_free(g);
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */
static void test_bad_label(void **state)
{
    fixture *f = *state;
    const shape shapes[] = {IN(6, 10), LABEL(6), ACT(1, 0)};
    static const uint32_t ops[] = {DDP_OP_CROSS_ENTROPY, DDP_OP_CROSS_ENTROPY_GRAD, DDP_OP_ACCURACY};
    static const int64_t bad[] = {10, -1, INT64_MAX, INT64_MIN};

    for (size_t i = 0; i < DDP_COUNT(ops) * DDP_COUNT(bad); i++) {
        int64_t label = bad[i / DDP_COUNT(ops)];
        char text[96];
        single s;
        job j = {.f = f, .p = &s.p, .seed = &seed, .classes = 10};
        single_make(&s, ops[i % DDP_COUNT(ops)], 3, shapes);
        if (s.node.op == DDP_OP_CROSS_ENTROPY_GRAD) {
            s.values[2].rank = 2;
            s.values[2].dims[0] = 6;
            s.values[2].dims[1] = 10;
            s.values[2].elements = 60;
        }
        job_open(&j);
        ((int64_t *)(void *)j.inputs[1])[4] = label;
        assert_int_equal(job_run(&j), DDP_ERR_DATA);
        (void)snprintf(text, sizeof(text), "label %lld of row 4 ", (long long)label);
        assert_non_null(strstr(f->err.msg, text));
        assert_non_null(strstr(f->err.msg, "10 classes"));
        job_close(&j);
    }
}

static void refused(fixture *f, const single *s, const char *text)
{
    ddp_lowered *l = NULL;

    assert_int_equal(f->ops->lower(f->device, &s->p, &l, &f->err), DDP_ERR_UNSUPPORTED);
    assert_null(l);
    assert_non_null(strstr(f->err.msg, "layer7"));
    assert_non_null(strstr(f->err.msg, "\"cpu\""));
    if (strstr(f->err.msg, text) == NULL) fail_msg("\"%s\" is not in: %s", text, f->err.msg);
}

static void test_unsupported(void **state)
{
    fixture *f = *state;
    const shape shapes[] = {IN(4, 4), ACT(4, 4)}, to_grad[] = {IN(4, 4), GRAD(4, 4)},
                halved[] = {IN(4, 4), HALVED(4, 4), ACT(4, 4)};
    single s;

    single_make(&s, DDP_OP_LINEAR, 3, halved); /* for products in f32 */
    refused(f, &s, "(linear)");

    single_make(&s, DDP_OP_END_ + 5, 2, shapes);
    refused(f, &s, "(unknown)");
    single_make(&s, DDP_OP_GELU, 2, shapes);
    s.values[0].dtype = DDP_BF16;
    refused(f, &s, "(gelu)");
    s.values[0].dtype = DDP_F32;
    s.values[1].dtype = DDP_BF16;
    refused(f, &s, "(gelu)");
    single_make(&s, DDP_OP_ADD, 2, shapes);
    refused(f, &s, "(add)");
    single_make(&s, DDP_OP_RELU, 2, to_grad);
    refused(f, &s, "(relu)");
}

static void test_open(void **state)
{
    fixture *f = *state;
    ddp_device_params p = {.struct_size = sizeof(p), .threads = 1, .precision = DDP_PRECISION_BF16};
    ddp_device *d = NULL;
    ddp_device_info info = {0};

    OK(f, f->ops->open(NULL, NULL, &p, &d, &f->err));
    f->ops->describe(d, &info);
    assert_non_null(strstr(info.name, "bf16"));
    assert_int_equal(strstr(info.name, "no faster than f32") == NULL, ddp_isa_bf16());
    f->ops->close(d);
    d = NULL;
    p.precision = 77;
    assert_int_equal(f->ops->open(NULL, NULL, &p, &d, &f->err), DDP_ERR_UNSUPPORTED);
    p.precision = DDP_PRECISION_F32;
    p.threads = 0;
    assert_int_equal(f->ops->open(NULL, NULL, &p, &d, &f->err), DDP_ERR_CONFIG);
    assert_null(d);
    f->ops->describe(f->device, &info);
    assert_non_null(strstr(info.library, "oneDNN"));
    assert_true(info.memory_bytes > 0);
    assert_true(strlen(info.name) > 3);
    assert_int_equal(f->plugin->flags & DDP_PLUGIN_F_NO_UNLOAD, DDP_PLUGIN_F_NO_UNLOAD);
}

static void test_memory(void **state)
{
    static const size_t bytes[] = {0, 1, 1000, 3u << 20};
    fixture *f = *state;
    char data[100], back[100];
    void *p;

    memset(data, 7, sizeof(data));
    for (size_t i = 0; i < DDP_COUNT(bytes); i++) {
        OK(f, f->ops->alloc(f->device, bytes[i], &p, &f->err));
        assert_int_equal((uintptr_t)p % 64, 0);
        for (size_t b = 0; b < bytes[i]; b++) assert_int_equal(((char *)p)[b], 0);
        if (bytes[i] >= sizeof(data)) {
            OK(f, f->ops->copy(f->device, p, data, sizeof(data), DDP_COPY_TO_DEVICE, &f->err));
            OK(f, f->ops->copy(f->device, back, p, sizeof(back), DDP_COPY_TO_HOST, &f->err));
            assert_memory_equal(data, back, sizeof(data));
        }
        f->ops->free(f->device, p);
    }
    assert_int_equal(f->ops->alloc(f->device, SIZE_MAX - 10, &p, &f->err), DDP_ERR_NOMEM);
    OK(f, f->ops->sync(f->device, &f->err));
}

/* No rate is known beforehand, but none of a CPU is below these, and none above. */
static void test_measure(void **state)
{
    fixture *f = *state;
    ddp_device_peaks peaks = {.struct_size = sizeof(peaks)};

    OK(f, f->ops->measure(f->device, &peaks, &f->err));
    assert_true(peaks.flops_per_s > 1e7 && peaks.flops_per_s < 1e13);
    assert_true(peaks.bytes_per_s > 1e7 && peaks.bytes_per_s < 1e13);
}

/* ---- main -------------------------------------------------------------------------------------------------------- */
int main(void)
{
    const struct CMUnitTest tests[] = {
        BOTH(test_linear),   HALF(test_linear),     HALF(test_models), BOTH(test_pointwise),     BOTH(test_losses),
        BOTH(test_adapters), HALF(test_adapters),   BOTH(test_models), ONE(test_special_values), ONE(test_lowering),
        ONE(test_bad_label), ONE(test_unsupported), ONE(test_open),    ONE(test_memory),         BOTH(test_measure)};

    seed = test_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
