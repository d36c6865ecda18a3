/* tests/unit/cuda/test_cuda_device.c -- the CUDA device over doubles of the runtime, cuBLASLt and cuDNN, against the
 * double reference: every op forward and gradient, set and added, by itself; in f32 and bf16, with cuDNN and with
 * the device's own kernels. Whole models are in test_cuda_models.c, what is no op in test_cuda_queues.c. Sizes are
 * small: the double runs each CUDA thread by itself. */
#include "cuda_device_util.h"

static uint64_t seed;

static void run_op(fixture *f, uint32_t op, const ddp_attrs *attrs, uint32_t in, uint32_t out, const operand *o,
                   int64_t classes, double tolerance)
{
    single s;
    job j;

    single_make(&s, op, attrs, in, out, o);
    single_job(f, &s, &seed, classes, tolerance, &j);
    job_check_all(&j);
}

#define OP(op, attrs, in, out, tolerance, ...)                                                                         \
    run_op(f, op, attrs, in, out, (const operand[]){__VA_ARGS__}, 5, tolerance)

/* ---- linear ------------------------------------------------------------------------------------------------------ */
static void linear_ops(fixture *f, int64_t n, int64_t i, int64_t o)
{
    const ddp_attrs plain = {.linear = {0}}, turned = {.linear = {1}};
    double t = 1e-6 * (4 + sqrt((double)(i > o ? i : o)) + sqrt((double)n));

    OP(DDP_OP_LINEAR, &plain, 3, 1, t, MAT(INPUT, n, i), MAT(PARAM, o, i), VEC(PARAM, o), MAT(ACT, n, o));
    OP(DDP_OP_LINEAR, &plain, 2, 1, t, MAT(INPUT, n, i), MAT(PARAM, o, i), MAT(ACT, n, o));
    OP(DDP_OP_LINEAR, &turned, 3, 1, t, MAT(INPUT, n, i), MAT(PARAM, i, o), VEC(PARAM, o), MAT(ACT, n, o));
    OP(DDP_OP_LINEAR, &plain, 3, 1, t, MAT(INPUT, n, i), MAT(INPUT, o, i), VEC(INPUT, o), MAT(ACT, n, o));
    OP(DDP_OP_LINEAR_GRAD_INPUT, &plain, 2, 1, t, MAT(INPUT, n, o), MAT(PARAM, o, i), MAT(ACT, n, i));
    OP(DDP_OP_LINEAR_GRAD_INPUT, &turned, 2, 1, t, MAT(INPUT, n, o), MAT(PARAM, i, o), MAT(ACT, n, i));
    OP(DDP_OP_LINEAR_GRAD_INPUT, &plain, 2, 1, t, MAT(INPUT, n, o), MAT(PARAM, o, i), MAT(GRAD, n, i));
    OP(DDP_OP_LINEAR_GRAD_WEIGHT, &plain, 2, 1, t, MAT(INPUT, n, o), MAT(INPUT, n, i), MAT(GRAD, o, i));
    OP(DDP_OP_LINEAR_GRAD_WEIGHT, &turned, 2, 1, t, MAT(INPUT, n, o), MAT(INPUT, n, i), MAT(GRAD, i, o));
    OP(DDP_OP_LINEAR_GRAD_WEIGHT, &plain, 2, 1, t, MAT(INPUT, n, o), MAT(INPUT, n, i), MAT(ACT, o, i));
    OP(DDP_OP_LINEAR_GRAD_BIAS, &plain, 1, 1, t, MAT(INPUT, n, o), VEC(GRAD, o));
}

static void test_linear(void **state)
{
    static const int64_t sizes[][3] = {{1, 1, 1},
                                       {3, 5, 17},
                                       {16, 24, 8},
                                       {9, 33, 40},
                                       {37, 7, 10} LARGE({257, 768, 513}, {1024, 256, 384}, {64, 784, 512})};

    for (size_t i = 0; i < DDP_COUNT(sizes); i++) linear_ops(*state, sizes[i][0], sizes[i][1], sizes[i][2]);
}

/* ---- element by element ------------------------------------------------------------------------------------------ */
static void test_pointwise(void **state)
{
    static const int64_t sizes[][2] = {{1, 1}, {3, 7}, {16, 33}, {5, 257} LARGE({1023, 769}, {512, 3072})};
    fixture *f = *state;

    for (size_t i = 0; i < DDP_COUNT(sizes); i++) {
        int64_t a = sizes[i][0], b = sizes[i][1];
        OP(DDP_OP_RELU, NULL, 1, 1, 1e-9, MAT(INPUT, a, b), MAT(ACT, a, b));
        OP(DDP_OP_RELU_GRAD, NULL, 2, 1, 1e-9, MAT(INPUT, a, b), MAT(INPUT, a, b), MAT(ACT, a, b));
        OP(DDP_OP_RELU_GRAD, NULL, 2, 1, 1e-6, MAT(INPUT, a, b), MAT(INPUT, a, b), MAT(GRAD, a, b));
        OP(DDP_OP_ADD, NULL, 2, 1, 1e-7, MAT(INPUT, a, b), MAT(INPUT, a, b), MAT(ACT, a, b));
        OP(DDP_OP_ADD, NULL, 2, 1, 1e-6, MAT(INPUT, a, b), MAT(INPUT, a, b), MAT(GRAD, a, b));
        OP(DDP_OP_RESHAPE, NULL, 1, 1, 1e-6, MAT(INPUT, a, b), MAT(GRAD, b, a));
        OP(DDP_OP_RELU, NULL, 1, 1, 1e-9, IMG(INPUT, 2, a, b, 3), IMG(ACT, 2, a, b, 3));
        const ddp_attrs leaky = {.leaky_relu = {0.1}};
        OP(DDP_OP_LEAKY_RELU, &leaky, 1, 1, 1e-6, IMG(INPUT, 2, a, b, 3), IMG(ACT, 2, a, b, 3));
        OP(DDP_OP_LEAKY_RELU_GRAD, &leaky, 2, 1, 1e-6, MAT(INPUT, a, b), MAT(INPUT, a, b), MAT(GRAD, a, b));
        const ddp_attrs scaled = {.scale = {-1.5}};
        OP(DDP_OP_SCALE, &scaled, 1, 1, 1e-6, MAT(INPUT, a, b), MAT(ACT, a, b));
        OP(DDP_OP_SCALE, &scaled, 1, 1, 1e-6, MAT(INPUT, a, b), MAT(GRAD, a, b));
        for (uint32_t tanh_form = 0; tanh_form < 2; tanh_form++) {
            const ddp_attrs g = {.gelu = {tanh_form}};
            OP(DDP_OP_GELU, &g, 1, 1, 2e-6, MAT(INPUT, a, b), MAT(ACT, a, b));
            OP(DDP_OP_GELU_GRAD, &g, 2, 1, 2e-6, MAT(INPUT, a, b), MAT(INPUT, a, b), MAT(ACT, a, b));
        }
        for (uint32_t op = DDP_OP_DROPOUT; op <= DDP_OP_DROPOUT_GRAD; op++) {
            const ddp_attrs d = {.dropout = {.p = i % 2 ? 0.25 : 1.0, .place = 7}};
            OP(op, &d, 1, 1, 1e-6, MAT(INPUT, a, b), MAT(ACT, a, b));
        }
    }
}

/* ---- losses ------------------------------------------------------------------------------------------------------ */
static void pair_losses(fixture *f, int64_t n, int64_t c)
{
    const ddp_attrs a = {.smooth_l1 = {0.3}};

    for (uint32_t op = DDP_OP_L1; op <= DDP_OP_BCE_WITH_LOGITS_GRAD; op += 2) {
        OP(op, &a, 2, 1, 2e-6, MAT(INPUT, n, c), MAT(INPUT, n, c), VEC(ACT, 1));
        OP(op + 1, &a, 2, 1, 2e-6, MAT(INPUT, n, c), MAT(INPUT, n, c), MAT(ACT, n, c));
    }
}

static void mixed(fixture *f, int64_t n, int64_t c)
{
    for (int k = 0; k < 2; k++) {
        const ddp_attrs e = {.cross_entropy = {.label_smoothing = k == 1 ? 0.1 : 0.0}};

        OP(DDP_OP_CROSS_ENTROPY, &e, 4, 1, 2e-6, MAT(INPUT, n, c), LABELS(n), LABELS(n), VEC(INPUT, n), VEC(ACT, 1));
        OP(DDP_OP_CROSS_ENTROPY_GRAD, &e, 4, 1, 2e-6, MAT(INPUT, n, c), LABELS(n), LABELS(n), VEC(INPUT, n),
           MAT(ACT, n, c));
    }
}

/* What the metrics add up; label 3 counts for nothing, in the loss either. */
static void counts(fixture *f, int64_t n, int64_t c)
{
    const ddp_attrs k = {.metric = {.ignore_index = 3, .ignores = 1, .k = 2}};
    const ddp_attrs e = {.cross_entropy = {.ignore_index = 3, .ignores = n > 1}};

    OP(DDP_OP_TOP_K, &k, 2, 1, 1e-9, MAT(INPUT, n, c), LABELS(n), VEC(ACT, 2));
    if (c <= 70) OP(DDP_OP_CONFUSION, &k, 2, 1, 1e-9, MAT(INPUT, n, c), LABELS(n), MAT(ACT, c, c));
    OP(DDP_OP_CROSS_ENTROPY, &e, 2, 1, 2e-6, MAT(INPUT, n, c), LABELS(n), VEC(ACT, 1));
    OP(DDP_OP_CROSS_ENTROPY_GRAD, &e, 2, 1, 2e-6, MAT(INPUT, n, c), LABELS(n), MAT(ACT, n, c));
    OP(DDP_OP_BINARY_CONFUSION, NULL, 2, 1, 1e-9, MAT(INPUT, n, c), MAT(INPUT, n, c), MAT(ACT, 2, 2));
    if (c <= DDP_REGRESSION_MAX)
        OP(DDP_OP_REGRESSION, NULL, 2, 1, 2e-6, MAT(INPUT, n, c), MAT(INPUT, n, c), SEQ(ACT, 2, c, 5));
}

/* Class weights, with label smoothing and without; a divisor instead of what counts. */
static void weighted(fixture *f, int64_t n, int64_t c)
{
    float weight[2048];
    ddp_attrs e = {.cross_entropy = {.weights = (uint32_t)c, .weight = weight, .ignore_index = 1, .ignores = n > 8}};

    for (int64_t i = 0; i < c && i < 2048; i++) weight[i] = 0.25f + (float)(i % 5);
    for (int k = 0; k < 8 && c <= 2048; k++) {
        e.cross_entropy.label_smoothing = k % 2 == 1 ? 0.2 : 0.0;
        e.cross_entropy.divisor = k / 2 % 2 == 1 ? 2.5 * (double)n : 0.0;
        e.cross_entropy.weights = k < 4 ? (uint32_t)c : 0;
        OP(DDP_OP_CROSS_ENTROPY, &e, 2, 1, 2e-6, MAT(INPUT, n, c), LABELS(n), VEC(ACT, 1));
        OP(DDP_OP_CROSS_ENTROPY_GRAD, &e, 2, 1, 2e-6, MAT(INPUT, n, c), LABELS(n), MAT(ACT, n, c));
    }
}

static void test_losses(void **state)
{
    static const int64_t sizes[][2] = {{1, 5}, {7, 5}, {33, 70}, {4, 1030} LARGE({40, 50257}, {300, 50304})};
    fixture *f = *state;

    for (size_t i = 0; i < DDP_COUNT(sizes); i++) {
        int64_t n = sizes[i][0], c = sizes[i][1];
        const ddp_attrs e = {.cross_entropy = {.label_smoothing = i % 2 ? 0.1 : 0.0, .ignore_index = 3, .ignores = 0}};
        OP(DDP_OP_CROSS_ENTROPY_GRAD, &e, 2, 1, 2e-6, MAT(INPUT, n, c), LABELS(n), MAT(ACT, n, c));
        OP(DDP_OP_CROSS_ENTROPY_GRAD, &e, 2, 1, 2e-6, MAT(PARAM, n, c), LABELS(n), MAT(GRAD, n, c));
        OP(DDP_OP_MSE, NULL, 2, 1, 2e-6, MAT(INPUT, n, c), MAT(INPUT, n, c), VEC(ACT, 1));
        OP(DDP_OP_MSE_GRAD, NULL, 2, 1, 2e-6, MAT(INPUT, n, c), MAT(INPUT, n, c), MAT(ACT, n, c));
        OP(DDP_OP_ACCURACY, NULL, 2, 1, 1e-9, MAT(INPUT, n, c), LABELS(n), VEC(ACT, 1));
        pair_losses(f, n, c);
        counts(f, n, c);
        weighted(f, n, c);
        mixed(f, n, c);
        OP(DDP_OP_CROSS_ENTROPY, &e, 2, 1, 2e-6, MAT(INPUT, n, c), LABELS(n), VEC(ACT, 1));
    }
}

/* ---- sequences --------------------------------------------------------------------------------------------------- */
static void norm_ops(fixture *f, int64_t n, int64_t t, int64_t e)
{
    const ddp_attrs a = {.layer_norm = {1e-5}};

    OP(DDP_OP_LAYER_NORM, &a, 3, 3, 5e-6, SEQ(INPUT, n, t, e), VEC(PARAM, e), VEC(PARAM, e), SEQ(ACT, n, t, e),
       MAT(ACT, n, t), MAT(ACT, n, t));
    OP(DDP_OP_LAYER_NORM, &a, 3, 3, 5e-6, SEQ(INPUT, n, t, e), VEC(PARAM, e), VEC(PARAM, e), SEQ(ACT, n, t, e), {0},
       {0});
    OP(DDP_OP_LAYER_NORM_GRAD, &a, 5, 3, 1e-5, SEQ(INPUT, n, t, e), SEQ(INPUT, n, t, e), VEC(PARAM, e),
       MAT(INPUT, n, t), MAT(INPUT, n, t), SEQ(ACT, n, t, e), VEC(GRAD, e), VEC(GRAD, e));
    OP(DDP_OP_LAYER_NORM_GRAD, &a, 5, 3, 1e-5, SEQ(INPUT, n, t, e), SEQ(INPUT, n, t, e), VEC(PARAM, e),
       MAT(INPUT, n, t), MAT(INPUT, n, t), SEQ(GRAD, n, t, e), VEC(GRAD, e), {0});
}

static void rms_norm_ops(fixture *f, int64_t n, int64_t t, int64_t e)
{
    const ddp_attrs a = {.rms_norm = {1e-5}};

    OP(DDP_OP_RMS_NORM, &a, 2, 2, 5e-6, SEQ(INPUT, n, t, e), VEC(PARAM, e), SEQ(ACT, n, t, e), MAT(ACT, n, t));
    OP(DDP_OP_RMS_NORM, &a, 2, 2, 5e-6, SEQ(INPUT, n, t, e), VEC(PARAM, e), SEQ(ACT, n, t, e), {0});
    OP(DDP_OP_RMS_NORM_GRAD, &a, 4, 2, 1e-5, SEQ(INPUT, n, t, e), SEQ(INPUT, n, t, e), VEC(PARAM, e), MAT(INPUT, n, t),
       SEQ(ACT, n, t, e), VEC(GRAD, e));
    OP(DDP_OP_RMS_NORM_GRAD, &a, 4, 2, 1e-5, SEQ(INPUT, n, t, e), SEQ(INPUT, n, t, e), VEC(PARAM, e), MAT(INPUT, n, t),
       SEQ(GRAD, n, t, e), {0});
}

static void gate_ops(fixture *f, int64_t n, int64_t t, int64_t e)
{
    OP(DDP_OP_SILU, NULL, 1, 1, 5e-6, SEQ(INPUT, n, t, e), SEQ(ACT, n, t, e));
    OP(DDP_OP_SILU_GRAD, NULL, 2, 1, 5e-6, SEQ(INPUT, n, t, e), SEQ(INPUT, n, t, e), SEQ(ACT, n, t, e));
    OP(DDP_OP_SILU_GRAD, NULL, 2, 1, 5e-6, SEQ(INPUT, n, t, e), SEQ(INPUT, n, t, e), SEQ(GRAD, n, t, e));
    OP(DDP_OP_MUL, NULL, 2, 1, 1e-6, SEQ(INPUT, n, t, e), SEQ(INPUT, n, t, e), SEQ(ACT, n, t, e));
    OP(DDP_OP_MUL, NULL, 2, 1, 1e-6, SEQ(INPUT, n, t, e), SEQ(INPUT, n, t, e), SEQ(GRAD, n, t, e));
}

static void rope_ops(fixture *f, int64_t n, int64_t t, int64_t heads, int64_t size)
{
    ddp_attrs a = {.rope = {.head_dim = size, .theta = 1e4, .factor = 4.0, .original_context = 64}};

    a.rope.low_freq_factor = 1.0;
    a.rope.high_freq_factor = 4.0;
    for (a.rope.kind = DDP_ROPE_DEFAULT; a.rope.kind <= DDP_ROPE_YARN; a.rope.kind++) {
        OP(DDP_OP_ROPE, &a, 1, 1, 5e-6, SEQ(INPUT, n, t, heads * size), SEQ(ACT, n, t, heads * size));
        OP(DDP_OP_ROPE, &a, 2, 1, 5e-6, SEQ(INPUT, n, t, heads * size), T(INPUT, DDP_I64, 2, n, t),
           SEQ(ACT, n, t, heads * size));
        OP(DDP_OP_ROPE, &a, 2, 1, 5e-6, SEQ(INPUT, n, t, heads * size), T(INPUT, DDP_I64, 1, n),
           SEQ(ACT, n, t, heads * size));
        OP(DDP_OP_ROPE_GRAD, &a, 2, 1, 5e-6, SEQ(INPUT, n, t, heads * size), T(INPUT, DDP_I64, 2, n, t),
           SEQ(GRAD, n, t, heads * size));
    }
}

static void table_ops(fixture *f, int64_t n, int64_t t, int64_t e)
{
    OP(DDP_OP_EMBEDDING, NULL, 2, 1, 1e-6, T(INPUT, DDP_I64, 2, n, t), MAT(PARAM, 5, e), SEQ(ACT, n, t, e));
    OP(DDP_OP_EMBEDDING_GRAD, NULL, 2, 1, 2e-5, SEQ(INPUT, n, t, e), T(INPUT, DDP_I64, 2, n, t), MAT(GRAD, 5, e));
    OP(DDP_OP_POSITION, NULL, 2, 1, 1e-6, SEQ(INPUT, n, t, e), MAT(PARAM, t + 2, e), SEQ(ACT, n, t, e));
    OP(DDP_OP_POSITION_GRAD, NULL, 1, 1, 5e-6, SEQ(INPUT, n, t, e), MAT(GRAD, t + 2, e));
}

/* In bf16 the weights, and with cuDNN and the tensor cores all of q, k and v's gradients, are rounded. */
static void attention_ops(fixture *f, int64_t n, int64_t t, int64_t heads, int64_t size, bool causal, double dropout)
{
    ddp_attrs a = {
        .attention = {.scale = 0.4, .dropout = dropout, .heads = (uint32_t)heads, .causal = causal, .place = 12}};
    int64_t e = heads * size;
    double rounded = f->half && dropout == 0.0 ? 2e-2 : 0.0;

    OP(DDP_OP_ATTENTION, &a, 1, 2, rounded > 0 ? rounded : 5e-6, SEQ(INPUT, n, t, 3 * e), SEQ(ACT, n, t, e),
       SEQ(ACT, n, heads, t));
    a.attention.scale = 1.0 / sqrt((double)size); /* log-sum-exps are random: more would make weights of thousands */
    if (rounded > 0) return;                      /* the random ones do not fit what the gradient computes again */
    OP(DDP_OP_ATTENTION_GRAD, &a, 4, 1, 1e-4, SEQ(INPUT, n, t, e), SEQ(INPUT, n, t, 3 * e), SEQ(INPUT, n, t, e),
       SEQ(INPUT, n, heads, t), SEQ(ACT, n, t, 3 * e));
    OP(DDP_OP_ATTENTION_GRAD, &a, 4, 1, 1e-4, SEQ(INPUT, n, t, e), SEQ(INPUT, n, t, 3 * e), SEQ(INPUT, n, t, e),
       SEQ(INPUT, n, heads, t), SEQ(GRAD, n, t, 3 * e));
}

typedef struct apart_sizes {
    int64_t t, heads, kv_heads, size;
    uint32_t causal;
    double dropout;
} apart_sizes;

/* Segments are random numbers, in any order. */
static void apart_ops(fixture *f, int64_t n, const apart_sizes *s)
{
    int64_t e = s->heads * s->size, kv = s->kv_heads * s->size, t = s->t;
    const ddp_attrs a = {.attention = {.scale = 1.0 / sqrt((double)s->size),
                                       .dropout = s->dropout,
                                       .heads = (uint32_t)s->heads,
                                       .causal = s->causal,
                                       .place = 12,
                                       .kv_heads = (uint32_t)s->kv_heads}};
    double near = f->half ? 1e-2 : 1e-5;

    OP(DDP_OP_ATTENTION_APART, &a, 3, 2, near, SEQ(INPUT, n, t, e), SEQ(INPUT, n, t, kv), SEQ(INPUT, n, t, kv),
       SEQ(ACT, n, t, e), SEQ(ACT, n, s->heads, t));
    OP(DDP_OP_ATTENTION_APART, &a, 4, 2, near, SEQ(INPUT, n, t, e), SEQ(INPUT, n, t, kv), SEQ(INPUT, n, t, kv),
       T(INPUT, DDP_I64, 2, n, t), SEQ(ACT, n, t, e), {0});
    OP(DDP_OP_ATTENTION_APART_GRAD, &a, 6, 3, 1e-4, SEQ(INPUT, n, t, e), SEQ(INPUT, n, t, e), SEQ(INPUT, n, t, kv),
       SEQ(INPUT, n, t, kv), SEQ(INPUT, n, t, e), SEQ(INPUT, n, s->heads, t), SEQ(ACT, n, t, e), SEQ(GRAD, n, t, kv),
       SEQ(GRAD, n, t, kv));
    OP(DDP_OP_ATTENTION_APART_GRAD, &a, 7, 3, 1e-4, SEQ(INPUT, n, t, e), SEQ(INPUT, n, t, e), SEQ(INPUT, n, t, kv),
       SEQ(INPUT, n, t, kv), SEQ(INPUT, n, t, e), SEQ(INPUT, n, s->heads, t), T(INPUT, DDP_I64, 2, n, t),
       SEQ(GRAD, n, t, e), {0}, SEQ(GRAD, n, t, kv));
}

static void test_apart(void **state)
{
    static const apart_sizes sizes[] = {
        {1, 1, 1, 6, 1, 0.0},
        {7, 4, 2, 3, 0, 0.2},
        {33, 3, 1, 16, 1, 0.0},
        {65, 2, 2, 8, 1, 0.1},
        {70, 2, 1, 80, 1, 0.0} LARGE({200, 6, 2, 64, 1, 0.0}, {130, 2, 1, 128, 0, 0.1})};

    for (size_t i = 0; i < DDP_COUNT(sizes); i++) apart_ops(*state, 1 + (int64_t)i % 2, &sizes[i]);
}

/* The gradient behind its forward node, whose y and log-sum-exp it gets: the only way to try it where both are
 * rounded. */
static void attention_pair(fixture *f, int64_t n, int64_t t, int64_t heads, int64_t size, bool causal)
{
    const int64_t e = heads * size;
    const operand o[] = {SEQ(INPUT, n, t, 3 * e), SEQ(INPUT, n, t, e), SEQ(ACT, n, t, e), SEQ(ACT, n, heads, t),
                         SEQ(ACT, n, t, 3 * e)};
    const ddp_attrs a = {.attention = {.scale = 1.0 / sqrt((double)size), .heads = (uint32_t)heads, .causal = causal}};
    ddp_node nodes[2] = {{.op = DDP_OP_ATTENTION,
                          .in_count = 1,
                          .out_count = 2,
                          .in = {0, -1, -1, -1, -1, -1},
                          .out = {2, 3, -1},
                          .attrs = a,
                          .name = "layer7"},
                         {.op = DDP_OP_ATTENTION_GRAD,
                          .in_count = 4,
                          .out_count = 1,
                          .in = {1, 0, 2, 3, -1, -1},
                          .out = {4, -1, -1},
                          .attrs = a,
                          .name = "layer7"}};
    single s;
    job j;

    single_make(&s, DDP_OP_ATTENTION, &a, 2, 3, o);
    s.p.nodes = nodes;
    s.p.node_count = 2;
    s.metrics[0] = 4;
    s.p.metric_count = 1;
    single_job(f, &s, &seed, 0, f->half ? 2e-2 : 1e-5, &j);
    j.by_norm = true;
    job_check_all(&j);
}

static void test_sequences(void **state)
{
    static const int64_t shapes[][3] = {
        {1, 1, 6},
        {7, 2, 3},
        {16, 2, 16},
        {33, 1, 8},
        {20, 1, 64} LARGE({256, 2, 64}, {200, 3, 128}, {512, 1, 64}, {130, 4, 32})}; /* T, heads, d */

    for (size_t i = 0; i < DDP_COUNT(shapes); i++) {
        const int64_t *s = shapes[i];
        norm_ops(*state, 2, s[0], s[1] * s[2]);
        rms_norm_ops(*state, 2, s[0], s[1] * s[2]);
        gate_ops(*state, 2, s[0], s[1] * s[2]);
        rope_ops(*state, 2, s[0], s[1], (s[2] + 1) / 2 * 2);
        table_ops(*state, 2, s[0], s[1] * s[2]);
        attention_ops(*state, 2, s[0], s[1], s[2], i % 2 == 0, 0.0);
        attention_ops(*state, 1, s[0], s[1], s[2], i % 2 == 1, 0.2);
        attention_pair(*state, 2, s[0], s[1], s[2], i % 2 == 0);
        attention_pair(*state, 1, s[0], s[1], s[2], i % 2 == 1);
    }
}

/* ---- images ------------------------------------------------------------------------------------------------------ */
typedef struct conv_sizes {
    int64_t n, c, h, w, o, kh, kw, sh, sw, ph, pw, groups;
} conv_sizes;

static void conv_ops(fixture *f, const conv_sizes *s)
{
    const ddp_attrs a = {.conv = {{s->sh, s->sw}, {s->ph, s->pw}, s->groups}};
    int64_t oh = (s->h + 2 * s->ph - s->kh) / s->sh + 1, ow = (s->w + 2 * s->pw - s->kw) / s->sw + 1;
    int64_t ci = s->c / s->groups, per = ci * s->kh * s->kw, places = s->n * oh * ow;
    double t = f->half ? 1e-2 : 2e-6 * (2 + sqrt((double)per) + sqrt((double)s->o));
    double tw = f->half ? 1e-2 : 2e-6 * (1 + sqrt((double)places));
    const operand x = IMG(INPUT, s->n, s->c, s->h, s->w), w = IMG(PARAM, s->o, ci, s->kh, s->kw);
    const operand y = IMG(ACT, s->n, s->o, oh, ow), dy = IMG(INPUT, s->n, s->o, oh, ow);
    const operand dx = IMG(ACT, s->n, s->c, s->h, s->w), db = VEC(GRAD, s->o), b = VEC(PARAM, s->o);

    OP(DDP_OP_CONV2D, &a, 3, 1, t, x, w, b, y);
    OP(DDP_OP_CONV2D, &a, 2, 1, t, x, w, y);
    OP(DDP_OP_CONV2D_GRAD_INPUT, &a, 2, 1, t, dy, w, dx);
    OP(DDP_OP_CONV2D_GRAD_INPUT, &a, 2, 1, t, dy, w, IMG(GRAD, s->n, s->c, s->h, s->w));
    OP(DDP_OP_CONV2D_GRAD_WEIGHT, &a, 2, 1, tw, dy, x, IMG(GRAD, s->o, ci, s->kh, s->kw));
    OP(DDP_OP_CONV2D_GRAD_WEIGHT, &a, 2, 1, tw, dy, x, IMG(ACT, s->o, ci, s->kh, s->kw));
    OP(DDP_OP_CONV2D_GRAD_BIAS, &a, 1, 1, tw, dy, db);
}

static void test_conv(void **state)
{
    static const conv_sizes sizes[] = {
        {1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 1},
        {1, 3, 5, 7, 2, 3, 2, 1, 1, 0, 0, 1},
        {2, 8, 6, 5, 16, 3, 3, 2, 1, 1, 2, 1},
        {2, 6, 5, 5, 4, 3, 3, 1, 1, 1, 1, 2},
        {3, 8, 4, 4, 8, 1, 1, 2, 2, 0, 0, 1} LARGE({8, 64, 16, 16, 64, 3, 3, 1, 1, 1, 1, 1},
                                                   {16, 3, 32, 32, 64, 3, 3, 1, 1, 1, 1, 1},
                                                   {4, 64, 16, 16, 128, 1, 1, 2, 2, 0, 0, 1})};

    for (size_t i = 0; i < DDP_COUNT(sizes); i++) conv_ops(*state, &sizes[i]);
}

/* Among few numbers many are equal. */
static void max_pool_grad(fixture *f, const ddp_attrs *a, operand dy, operand x, operand dx)
{
    const operand o[] = {dy, x, dx};
    single s;
    job j;

    single_make(&s, DDP_OP_MAX_POOL2D_GRAD, a, 2, 1, o);
    single_job(f, &s, &seed, 0, 2e-6, &j);
    for (uint32_t i = 0; i < 2; i++)
        for (int64_t e = 0; e < s.values[i].elements; e++)
            j.ref[i].data[e] = j.inputs[i][e] = roundf(j.inputs[i][e] * 3.0f);
    job_check_all(&j);
}

static void test_pool(void **state)
{
    static const int64_t pools[][10] = {{1, 1, 1, 1, 1, 1, 1, 1, 0, 0},
                                        {2, 3, 4, 6, 2, 2, 2, 2, 0, 0},
                                        {2, 9, 7, 5, 3, 3, 2, 2, 1, 1},
                                        {1, 16, 5, 8, 3, 2, 1, 3, 1, 0} LARGE({32, 64, 16, 16, 3, 3, 2, 2, 1, 1})};
    fixture *f = *state;

    for (size_t i = 0; i < DDP_COUNT(pools); i++) {
        const int64_t *p = pools[i];
        const ddp_attrs a = {.pool = {{p[4], p[5]}, {p[6], p[7]}, {p[8], p[9]}}};
        const ddp_attrs adaptive = {.adaptive = {{1 + (int64_t)i % 2, 1}}};
        int64_t oh = (p[2] + 2 * p[8] - p[4]) / p[6] + 1, ow = (p[3] + 2 * p[9] - p[5]) / p[7] + 1;
        const operand x = IMG(INPUT, p[0], p[1], p[2], p[3]), dx = IMG(ACT, p[0], p[1], p[2], p[3]);
        const operand y = IMG(ACT, p[0], p[1], oh, ow), dy = IMG(INPUT, p[0], p[1], oh, ow);
        OP(DDP_OP_MAX_POOL2D, &a, 1, 1, 1e-9, x, y);
        OP(DDP_OP_AVG_POOL2D, &a, 1, 1, 2e-6, x, y);
        OP(DDP_OP_AVG_POOL2D_GRAD, &a, 1, 1, 2e-6, dy, dx);
        OP(DDP_OP_ADAPTIVE_AVG_POOL2D, &adaptive, 1, 1, 2e-6, x, IMG(ACT, p[0], p[1], 1 + (int64_t)i % 2, 1));
        OP(DDP_OP_ADAPTIVE_AVG_POOL2D_GRAD, &adaptive, 1, 1, 2e-6, IMG(INPUT, p[0], p[1], 1 + (int64_t)i % 2, 1), dx);
        max_pool_grad(f, &a, dy, x, dx);
    }
}

static void test_batch_norm(void **state)
{
    static const int64_t sizes[][4] = {
        {2, 1, 1, 1}, {1, 3, 2, 5}, {2, 16, 7, 7}, {3, 37, 3, 5} LARGE({64, 64, 16, 16}, {16, 512, 4, 4})};
    fixture *f = *state;

    for (size_t i = 0; i < DDP_COUNT(sizes); i++) {
        const int64_t *s = sizes[i];
        ddp_attrs a = {.batch_norm = {1e-2, 0.1, 1, 0}};
        const operand x = IMG(INPUT, s[0], s[1], s[2], s[3]), y = IMG(ACT, s[0], s[1], s[2], s[3]);
        const operand p = VEC(PARAM, s[1]), b = VEC(BUFFER, s[1]), st = VEC(INPUT, s[1]), g = VEC(GRAD, s[1]);
        double t = 4e-6 * (1 + sqrt((double)(s[0] * s[2] * s[3])));
        OP(DDP_OP_BATCH_NORM, &a, 5, 3, 1e-5, x, p, p, b, b, y, VEC(ACT, s[1]), VEC(ACT, s[1]));
        OP(DDP_OP_BATCH_NORM_GRAD, &a, 5, 3, t, x, x, p, st, st, y, g, g);
        OP(DDP_OP_BATCH_NORM_GRAD, &a, 5, 3, t, x, x, p, st, st, {0}, VEC(ACT, s[1]), g);
        a.batch_norm.training = 0;
        OP(DDP_OP_BATCH_NORM, &a, 5, 3, 1e-5, x, p, p, b, b, y, {0}, {0});
    }
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */
static void refused(fixture *f, const single *s, const char *text)
{
    ddp_lowered *l = NULL;

    assert_int_equal(f->ops->lower(f->device, &s->p, &l, &f->err), DDP_ERR_UNSUPPORTED);
    assert_null(l);
    assert_non_null(strstr(f->err.msg, "layer7"));
    assert_non_null(strstr(f->err.msg, "\"cuda\""));
    if (strstr(f->err.msg, text) == NULL) fail_msg("\"%s\" is not in: %s", text, f->err.msg);
}

static void test_unsupported(void **state)
{
    const operand o[] = {MAT(INPUT, 4, 4), MAT(ACT, 4, 4)}, to_grad[] = {MAT(INPUT, 4, 4), MAT(GRAD, 4, 4)};
    const operand norm[] = {IMG(INPUT, 1, 3, 1, 1), VEC(PARAM, 3),        VEC(PARAM, 3), VEC(BUFFER, 3),
                            VEC(BUFFER, 3),         IMG(ACT, 1, 3, 1, 1), VEC(ACT, 3),   VEC(ACT, 3)};
    const ddp_attrs a = {.batch_norm = {1e-2, 0.1, 1, 0}};
    single s;

    single_make(&s, DDP_OP_END_ + 5, NULL, 1, 1, o);
    refused(*state, &s, "(unknown)");
    single_make(&s, DDP_OP_GELU, NULL, 1, 1, o);
    s.values[0].dtype = DDP_BF16;
    refused(*state, &s, "(gelu)");
    single_make(&s, DDP_OP_ADD, NULL, 1, 1, o);
    refused(*state, &s, "(add)");
    single_make(&s, DDP_OP_RELU, NULL, 1, 1, to_grad);
    refused(*state, &s, "(relu)");
    single_make(&s, DDP_OP_BATCH_NORM, &a, 5, 3, norm);
    refused(*state, &s, "one value per channel");
}

/* ---- main -------------------------------------------------------------------------------------------------------- */
int main(void)
{
    const struct CMUnitTest tests[] = {
        F32(test_linear), BF16(test_linear),   TIMED(test_linear),   F32(test_pointwise),  BF16(test_pointwise),
        F32(test_losses), F32(test_sequences), BF16(test_sequences), OWN(test_sequences),  TIMED(test_sequences),
        F32(test_apart),  BF16(test_apart),    F32(test_conv),       BF16(test_conv),      OWN(test_conv),
        TIMED(test_conv), F32(test_pool),      F32(test_batch_norm), F32(test_unsupported)};

    seed = test_seed();
    return cuda_run_tests("ops on the CUDA device", tests, DDP_COUNT(tests));
}
