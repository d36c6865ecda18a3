/* tests/unit/device/test_device_image.c -- the CPU device against the double reference over images: convolution,
 * pooling, batch norm, each op by itself over odd sizes and as it stands in small networks, where kernels are fused;
 * every variant of the kernels the same bits. */
#include <ddpengine/isa.h>
#include "plugins/device/cpu/kernels/kernels.h"
#include "support/device_models.h"

/* Of a whole network: a batch norm of few numbers that lie close together multiplies the rounding of what is before it,
 * by a hundred and more in one of a thousand draws. A kernel that computes something else is further off than this. */
#define LAYERS 1e-3

static uint64_t seed;

/* ---- one node ---------------------------------------------------------------------------------------------------- */
typedef struct operand {
    uint32_t kind, rank;
    int64_t dims[4];
} operand;

typedef struct single {
    ddp_value values[8];
    ddp_node node;
    ddp_program p;
    int32_t metrics[3];
    uint64_t elements; /* of the parameter arena */
} single;

static void single_value(ddp_value *v, const operand *o, uint64_t *arena, uint64_t *buffers, int32_t *fields)
{
    *v = (ddp_value){.kind = o->kind, .dtype = DDP_F32, .rank = o->rank, .index = -1, .elements = 1, .name = "v"};
    for (uint32_t i = 0; i < o->rank; i++) v->elements *= v->dims[i] = o->dims[i];
    if (o->kind == DDP_VALUE_INPUT) v->index = (*fields)++;
    if (o->kind == DDP_VALUE_PARAM || o->kind == DDP_VALUE_GRAD) {
        v->offset = *arena;
        *arena += ddp_round_up((uint64_t)v->elements, 16) + 16;
    }
    if (o->kind == DDP_VALUE_BUFFER) {
        v->offset = *buffers;
        *buffers += ddp_round_up((uint64_t)v->elements, 16);
    }
}

/* The outputs stand behind the inputs; those of kind ACT are metrics, so that they live to the end. An output of
 * rank 0 is not wanted. */
static void single_run(fixture *f, uint32_t op, const ddp_attrs *attrs, uint32_t in_count, uint32_t out_count,
                       const operand *o, double tolerance)
{
    single s = {.node = {.op = op, .in_count = in_count, .out_count = out_count, .attrs = *attrs, .name = "layer"}};
    uint64_t buffers = 0;
    int32_t fields = 0;
    job j = {.f = f, .seed = &seed, .tolerance = tolerance};

    for (uint32_t i = 0; i < DDP_NODE_MAX_IN; i++) s.node.in[i] = i < in_count ? (int32_t)i : -1;
    for (uint32_t i = 0; i < DDP_NODE_MAX_OUT; i++) s.node.out[i] = -1;
    s.p = (ddp_program){.struct_size = sizeof(s.p),
                        .value_size = sizeof(ddp_value),
                        .node_size = sizeof(ddp_node),
                        .batch = o[0].dims[0],
                        .training = 1,
                        .value_count = in_count + out_count,
                        .node_count = 1,
                        .values = s.values,
                        .nodes = &s.node,
                        .metrics = s.metrics};
    for (uint32_t i = 0; i < in_count + out_count; i++) {
        single_value(&s.values[i], &o[i], &s.elements, &buffers, &fields);
        if (i < in_count || o[i].rank == 0) continue;
        s.node.out[i - in_count] = (int32_t)i;
        if (o[i].kind == DDP_VALUE_ACT) s.metrics[s.p.metric_count++] = (int32_t)i;
    }
    j.p = &s.p;
    j.arena_elements = s.elements;
    job_open(&j);
    for (uint32_t i = 0; op == DDP_OP_MAX_POOL2D_GRAD && i < in_count; i++) /* among few numbers, many are equal */
        for (int64_t e = 0; e < s.values[i].elements; e++)
            j.ref[i].data[e] = j.inputs[i][e] = roundf(j.inputs[i][e] * 3.0f);
    job_run_and_check(&j);
    job_close(&j);
}

#define IMAGE(kind, n, c, h, w)                                                                                        \
    {                                                                                                                  \
        DDP_VALUE_##kind, 4, { n, c, h, w }                                                                            \
    }
#define ROW(kind, n)                                                                                                   \
    {                                                                                                                  \
        DDP_VALUE_##kind, 1, { n }                                                                                     \
    }

/* ---- convolution ------------------------------------------------------------------------------------------------- */
typedef struct conv_sizes {
    int64_t n, c, h, w, o, kh, kw, sh, sw, ph, pw, groups;
} conv_sizes;

static const conv_sizes convs[] = {
    {1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 1},     {1, 3, 5, 7, 2, 3, 2, 1, 1, 0, 0, 1},
    {2, 16, 9, 9, 32, 3, 3, 1, 1, 1, 1, 1},   {3, 5, 11, 8, 7, 3, 3, 2, 1, 1, 2, 1},
    {2, 8, 6, 6, 8, 3, 3, 1, 1, 1, 1, 8},     {2, 12, 7, 5, 18, 3, 3, 2, 2, 1, 1, 3},
    {1, 3, 40, 40, 16, 7, 7, 2, 2, 3, 3, 1},  {5, 17, 20, 20, 33, 1, 1, 1, 1, 0, 0, 1},
    {4, 16, 13, 13, 48, 1, 1, 2, 2, 0, 0, 1}, {2, 64, 12, 12, 64, 3, 3, 1, 1, 1, 1, 1},
    {2, 32, 4, 4, 80, 3, 3, 2, 2, 1, 1, 1},   {9, 1, 28, 28, 32, 5, 5, 1, 1, 2, 2, 1},
    {3, 130, 3, 3, 67, 3, 3, 1, 1, 1, 1, 1},  {1, 32, 40, 40, 32, 3, 3, 1, 1, 1, 1, 1},
    {8, 32, 13, 11, 64, 3, 3, 1, 1, 0, 0, 1}, {4, 32, 10, 11, 48, 3, 3, 1, 1, 2, 2, 1},
    {2, 16, 9, 9, 8, 1, 1, 1, 1, 1, 1, 1},    {2, 6, 5, 6, 8, 2, 2, 1, 1, 2, 3, 2},
    {3, 4, 7, 6, 6, 2, 1, 3, 2, 0, 0, 2},     {4, 32, 65, 65, 8, 3, 3, 2, 2, 0, 0, 1},
};

static void test_conv(void **state)
{
    fixture *f = *state;

    for (size_t i = 0; i < DDP_COUNT(convs); i++) {
        const conv_sizes *s = &convs[i];
        ddp_attrs a = {.conv = {{s->sh, s->sw}, {s->ph, s->pw}, s->groups}};
        int64_t oh = (s->h + 2 * s->ph - s->kh) / s->sh + 1, ow = (s->w + 2 * s->pw - s->kw) / s->sw + 1;
        int64_t ci = s->c / s->groups, per = ci * s->kh * s->kw, places = s->n * oh * ow;
        double t = 4e-6 * (1 + sqrt((double)per)), tw = 4e-6 * (1 + sqrt((double)places)); /* tiles round more */
        const operand forward[] = {IMAGE(INPUT, s->n, s->c, s->h, s->w), IMAGE(PARAM, s->o, ci, s->kh, s->kw),
                                   ROW(PARAM, s->o), IMAGE(ACT, s->n, s->o, oh, ow)};
        const operand bare[] = {forward[0], forward[1], forward[3]};
        const operand input[] = {IMAGE(INPUT, s->n, s->o, oh, ow), forward[1], IMAGE(ACT, s->n, s->c, s->h, s->w)};
        const operand to_param[] = {input[0], forward[1], IMAGE(GRAD, s->n, s->c, s->h, s->w)};
        const operand weight[] = {input[0], forward[0], IMAGE(GRAD, s->o, ci, s->kh, s->kw)};
        const operand to_act[] = {input[0], forward[0], IMAGE(ACT, s->o, ci, s->kh, s->kw)};
        const operand bias[] = {input[0], ROW(GRAD, s->o)};
        single_run(f, DDP_OP_CONV2D, &a, 3, 1, forward, t);
        single_run(f, DDP_OP_CONV2D, &a, 2, 1, bare, t);
        single_run(f, DDP_OP_CONV2D_GRAD_INPUT, &a, 2, 1, input, t * sqrt((double)s->o / (double)s->c + 1));
        single_run(f, DDP_OP_CONV2D_GRAD_INPUT, &a, 2, 1, to_param, t * sqrt((double)s->o / (double)s->c + 1));
        single_run(f, DDP_OP_CONV2D_GRAD_WEIGHT, &a, 2, 1, weight, tw);
        single_run(f, DDP_OP_CONV2D_GRAD_WEIGHT, &a, 2, 1, to_act, tw);
        single_run(f, DDP_OP_CONV2D_GRAD_BIAS, &a, 1, 1, bias, tw);
    }
}

/* ---- pooling ----------------------------------------------------------------------------------------------------- */
static void test_pool(void **state)
{
    static const struct {
        int64_t in[4], kernel[2], stride[2], padding[2];
    } pools[] = {{{1, 1, 1, 1}, {1, 1}, {1, 1}, {0, 0}},    {{2, 3, 4, 6}, {2, 2}, {2, 2}, {0, 0}},
                 {{2, 70, 7, 5}, {3, 3}, {2, 2}, {1, 1}},   {{1, 33, 5, 8}, {3, 2}, {1, 3}, {1, 0}},
                 {{3, 64, 24, 24}, {2, 2}, {2, 2}, {0, 0}}, {{2, 64, 32, 32}, {3, 3}, {2, 2}, {1, 1}},
                 {{1, 5, 9, 9}, {2, 2}, {3, 3}, {1, 1}},    {{1, 2, 31, 17}, {15, 17}, {8, 1}, {7, 8}}};
    static const int64_t adaptive[][6] = {
        {1, 1, 1, 1, 1, 1}, {2, 70, 5, 4, 1, 1}, {2, 3, 5, 4, 2, 3}, {1, 17, 5, 4, 7, 9}, {16, 512, 3, 3, 1, 1}};
    fixture *f = *state;

    for (size_t i = 0; i < DDP_COUNT(pools); i++) {
        const int64_t *in = pools[i].in;
        ddp_attrs a = {.pool = {{pools[i].kernel[0], pools[i].kernel[1]},
                                {pools[i].stride[0], pools[i].stride[1]},
                                {pools[i].padding[0], pools[i].padding[1]}}};
        int64_t out[2];
        for (int k = 0; k < 2; k++)
            out[k] = (in[2 + k] + 2 * pools[i].padding[k] - pools[i].kernel[k]) / pools[i].stride[k] + 1;
        const operand o[] = {IMAGE(INPUT, in[0], in[1], out[0], out[1]), IMAGE(INPUT, in[0], in[1], in[2], in[3]),
                             IMAGE(ACT, in[0], in[1], in[2], in[3]), IMAGE(ACT, in[0], in[1], out[0], out[1])};
        single_run(f, DDP_OP_MAX_POOL2D, &a, 1, 1, (const operand[]){o[1], o[3]}, 1e-9);
        single_run(f, DDP_OP_AVG_POOL2D, &a, 1, 1, (const operand[]){o[1], o[3]}, 2e-6);
        single_run(f, DDP_OP_MAX_POOL2D_GRAD, &a, 2, 1, (const operand[]){o[0], o[1], o[2]}, 2e-6);
        single_run(f, DDP_OP_AVG_POOL2D_GRAD, &a, 1, 1, (const operand[]){o[0], o[2]}, 2e-6);
    }
    for (size_t i = 0; i < DDP_COUNT(adaptive); i++) {
        const int64_t *in = adaptive[i];
        ddp_attrs a = {.adaptive = {{in[4], in[5]}}};
        const operand x = IMAGE(INPUT, in[0], in[1], in[2], in[3]), dx = IMAGE(ACT, in[0], in[1], in[2], in[3]);
        const operand dy = IMAGE(INPUT, in[0], in[1], in[4], in[5]), y = IMAGE(ACT, in[0], in[1], in[4], in[5]);
        single_run(f, DDP_OP_ADAPTIVE_AVG_POOL2D, &a, 1, 1, (const operand[]){x, y}, 2e-6);
        single_run(f, DDP_OP_ADAPTIVE_AVG_POOL2D_GRAD, &a, 1, 1, (const operand[]){dy, dx}, 2e-6);
    }
}

/* ---- batch norm -------------------------------------------------------------------------------------------------- */
static void test_batch_norm(void **state)
{
    static const int64_t sizes[][4] = {{2, 1, 1, 1}, {1, 3, 2, 5}, {2, 16, 7, 7}, {3, 70, 5, 9}, {16, 64, 24, 24}};
    fixture *f = *state;

    for (size_t i = 0; i < DDP_COUNT(sizes); i++) {
        int64_t n = sizes[i][0], c = sizes[i][1], h = sizes[i][2], w = sizes[i][3];
        ddp_attrs a = {.batch_norm = {1e-2, 0.1, 1, 0}};
        const operand forward[] = {IMAGE(INPUT, n, c, h, w), ROW(PARAM, c),          ROW(PARAM, c), ROW(BUFFER, c),
                                   ROW(BUFFER, c),           IMAGE(ACT, n, c, h, w), ROW(ACT, c),   ROW(ACT, c)};
        const operand eval[] = {forward[0], forward[1], forward[2], forward[3], forward[4], forward[5], {0}, {0}};
        const operand gradient[] = {forward[0],    forward[0], ROW(PARAM, c), ROW(INPUT, c),
                                    ROW(INPUT, c), forward[5], ROW(GRAD, c),  ROW(GRAD, c)};
        const operand no_dx[] = {forward[0],    forward[0], ROW(PARAM, c), ROW(INPUT, c),
                                 ROW(INPUT, c), {0},        ROW(ACT, c),   ROW(GRAD, c)};
        double t = 2e-6 * (1 + sqrt((double)(n * h * w)));
        single_run(f, DDP_OP_BATCH_NORM, &a, 5, 3, forward, 1e-5);
        single_run(f, DDP_OP_BATCH_NORM_GRAD, &a, 5, 3, gradient, t);
        single_run(f, DDP_OP_BATCH_NORM_GRAD, &a, 5, 3, no_dx, t);
        a.batch_norm.training = 0;
        single_run(f, DDP_OP_BATCH_NORM, &a, 5, 3, eval, 1e-5);
    }
}

/* ---- networks ---------------------------------------------------------------------------------------------------- */
static void net_run(fixture *f, network net, int64_t batch, bool training)
{
    built b = net_build(f, net, batch, training);

    built_check(&b, (job){.f = f, .seed = &seed, .classes = CLASSES, .tolerance = LAYERS}, 1);
    unbuild(&b);
}

static void test_networks(void **state)
{
    static const network nets[] = {net_lenet, net_resnet, net_odd, net_shared, net_dropped};
    static const int64_t batches[] = {1, 2, 5, 9};

    for (size_t i = 0; i < DDP_COUNT(nets); i++)
        for (size_t b = 0; b < DDP_COUNT(batches); b++) {
            net_run(*state, nets[i], batches[b], true);
            net_run(*state, nets[i], batches[b], false);
        }
}

static void test_recomputed_norm(void **state)
{
    check_recomputed_norm((job){.f = *state, .seed = &seed, .classes = CLASSES, .tolerance = LAYERS}, 1);
}

/* ---- what is fused ----------------------------------------------------------------------------------------------- */
static int kernels_named(fixture *f, network net, bool training, const char *name)
{
    built b = net_build(f, net, 8, training);
    int found = named(f, &b, name);

    unbuild(&b);
    return found;
}

static void test_lowering(void **state)
{
    fixture *f = *state;

    assert_int_equal(kernels_named(f, net_lenet, true, "conv2d+bias+relu"), 1);
    assert_int_equal(kernels_named(f, net_lenet, true, "conv2d+bias"), 1);
    assert_int_equal(kernels_named(f, net_lenet, true, "relu+max_pool2d"), 1);
    assert_int_equal(kernels_named(f, net_lenet, true, "max_pool2d_grad+relu_grad+bias_grad"), 1);
    assert_int_equal(kernels_named(f, net_lenet, true, "relu_grad+bias_grad"), 1);
    assert_int_equal(kernels_named(f, net_lenet, false, "relu+max_pool2d"), 1);
    assert_int_equal(kernels_named(f, net_resnet, true, "relu"), 0);
    assert_int_equal(kernels_named(f, net_resnet, true, "add"), 1);
    assert_int_equal(kernels_named(f, net_resnet, true, "relu_grad"), 0);
    assert_int_equal(kernels_named(f, net_resnet, true, "batch_norm+relu"), 3);
    assert_int_equal(kernels_named(f, net_resnet, true, "batch_norm+add+relu"), 3);
    assert_int_equal(kernels_named(f, net_resnet, true, "add+relu_grad+batch_norm_grad"), 2);
    assert_int_equal(kernels_named(f, net_resnet, true, "relu_grad+batch_norm_grad"), 4);
    assert_int_equal(kernels_named(f, net_resnet, false, "batch_norm+add+relu"), 3);
}

/* By vectors it serves the two convolutions that have tiles enough, in bf16 too unless the library has matrices for
 * that. */
static void test_winograd(void **state)
{
    fixture *f = *state;
    int each;

    each = cpu_kernels_variants[ddp_isa_best()] != &cpu_kernels_portable && !(f->half && cpu_multiplies_matrices());
    assert_int_equal(kernels_named(f, net_tiles, true, "conv2d_winograd+bias"), each);
    assert_int_equal(kernels_named(f, net_tiles, true, "conv2d_winograd"), each);
    assert_int_equal(kernels_named(f, net_tiles, true, "conv2d_winograd_grad_input"), 2 * each);
    assert_int_equal(kernels_named(f, net_tiles, true, "conv2d_winograd_grad_weight"), 2 * each);
    assert_int_equal(kernels_named(f, net_tiles, true, "conv2d"), each ? 2 : 3);
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */
static void refused(fixture *f, uint32_t op, const ddp_attrs *attrs, const operand *o, uint32_t in, uint32_t out,
                    const char *text)
{
    ddp_value values[8];
    ddp_node node = {.op = op, .in_count = in, .out_count = out, .attrs = *attrs, .name = "layer7"};
    ddp_program p = {.struct_size = sizeof(p),
                     .value_size = sizeof(ddp_value),
                     .node_size = sizeof(ddp_node),
                     .batch = 1,
                     .value_count = in + out,
                     .node_count = 1,
                     .values = values,
                     .nodes = &node};
    uint64_t arena = 0, buffers = 0;
    int32_t fields = 0;
    ddp_lowered *l = NULL;

    for (uint32_t i = 0; i < in + out; i++) {
        single_value(&values[i], &o[i], &arena, &buffers, &fields);
        *(i < in ? &node.in[i] : &node.out[i - in]) = (int32_t)i;
    }
    assert_int_equal(f->ops->lower(f->device, &p, &l, &f->err), DDP_ERR_UNSUPPORTED);
    if (strstr(f->err.msg, text) == NULL || strstr(f->err.msg, "layer7") == NULL) fail_msg("%s", f->err.msg);
}

static void test_refusals(void **state)
{
    const ddp_attrs pool = {.pool = {{16, 16}, {1, 1}, {0, 0}}}, norm = {.batch_norm = {1e-5, 0.1, 1, 0}};
    const operand large[] = {IMAGE(INPUT, 1, 1, 16, 16), IMAGE(ACT, 1, 1, 1, 1)};
    const operand one[] = {IMAGE(INPUT, 1, 3, 1, 1), ROW(PARAM, 3),          ROW(PARAM, 3), ROW(BUFFER, 3),
                           ROW(BUFFER, 3),           IMAGE(ACT, 1, 3, 1, 1), ROW(ACT, 3),   ROW(ACT, 3)};

    refused(*state, DDP_OP_MAX_POOL2D, &pool, large, 1, 1, "its windows have more than 255 positions");
    refused(*state, DDP_OP_BATCH_NORM, &norm, one, 5, 3, "one value per channel has no variance");
}

/* ---- the variants of the kernels --------------------------------------------------------------------------------- */
enum { N = 3, C = 70, H = 9, W = 7, OH = 5, OW = 4, ROWS = N * H * W, X_SIZE = ROWS * C, Y_SIZE = N * OH * OW * C };

typedef struct results {
    float rows[N * OH * OW * C * 9], folded[X_SIZE], best[Y_SIZE], relu[Y_SIZE], back[X_SIZE], avg[Y_SIZE],
        avg_back[X_SIZE], normal[4][X_SIZE], masked[X_SIZE], dx[4][X_SIZE], db[C];
    uint8_t at[2][Y_SIZE];
    double sums[10][C];
} results;

static void compute(const cpu_image_kernels *f, const float *x, const float *dy, const float *more, const float *y,
                    results *r)
{
    const cpu_windows w = {C, H, W, OH, OW, {3, 3}, {2, 2}, {1, 1}, C};
    const float *ref = more;

    f->unfold(r->rows, x, &w, 0, N * OH * OW);
    f->fold(r->folded, r->rows, &w, 0, N * H);
    f->max_pool(r->best, r->at[0], x, &w, false, 0, N * OH);
    f->max_pool(r->relu, r->at[1], x, &w, true, 0, N * OH);
    f->max_pool_grad(r->back, y, r->at[1], &w, 0, N * H);
    f->maximum_sums(r->db, y, r->at[1], N * OH * OW, C, 0, C, false);
    f->avg_pool(r->avg, x, &w, 0, N * OH);
    f->avg_pool_grad(r->avg_back, y, &w, 0, N * H);
    f->moments(r->sums[0], r->sums[1], x, ROWS, C, 0, C);
    for (int i = 0; i < 4; i++) {
        const float *m = i & 1 ? more : NULL, *k = i & 2 ? ref : NULL;
        f->normalize(r->normal[i], x, dy, y, m, ROWS, C, (i & 2) != 0);
        f->norm_sums(r->sums[2 + 2 * i], r->sums[3 + 2 * i], i == 3 ? r->masked : NULL, dy, m, k, x, ROWS, C, 0, C);
        f->norm_grad(r->dx[i], dy, m, k, x, y, y + C, y + 2 * C, ROWS, C);
    }
}

static void test_variants_agree(void **state)
{
    const cpu_kernels *const *variants = cpu_kernels_variants + ddp_isa_best();
    int count = DDP_ISA_COUNT - ddp_isa_best();
    float *x = aligned(X_SIZE * 4), *dy = aligned(X_SIZE * 4), *more = aligned(X_SIZE * 4), *y = aligned(Y_SIZE * 4);
    results *r[2] = {aligned(sizeof(results)), aligned(sizeof(results))};

    (void)state;
    for (int i = 0; i < X_SIZE; i++) {
        x[i] = i % 5 == 0 ? 0.25f : random_float(&seed); /* with ties */
        dy[i] = random_float(&seed);
        more[i] = random_float(&seed);
    }
    for (int i = 0; i < Y_SIZE; i++) y[i] = random_float(&seed);
    x[17] = x[4000] = NAN;
    memset(r[0], 0, sizeof(results));
    compute(&variants[0]->image, x, dy, more, y, r[0]);
    for (int v = 1; v < count; v++) {
        memset(r[1], 0, sizeof(results));
        compute(&variants[v]->image, x, dy, more, y, r[1]);
        for (size_t i = 0; i < sizeof(results); i++)
            if (((unsigned char *)r[0])[i] != ((unsigned char *)r[1])[i])
                fail_msg("%s and %s differ at byte %zu of the results", variants[0]->isa, variants[v]->isa, i);
    }
    free(x);
    free(dy);
    free(more);
    free(y);
    free(r[0]);
    free(r[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {BOTH(test_conv),
                                       HALF(test_conv),
                                       BOTH(test_pool),
                                       BOTH(test_batch_norm),
                                       BOTH(test_networks),
                                       ONE(test_recomputed_norm),
                                       ONE(test_lowering),
                                       ONE(test_winograd),
                                       HALF(test_winograd),
                                       ONE(test_refusals),
                                       cmocka_unit_test(test_variants_agree)};

    seed = test_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
