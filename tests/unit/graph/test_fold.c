/* tests of graph/fold.c: a program with its batch norms in the convolutions gives the outputs of the one before, by the
 * reference, and what cannot go there stays. */
#include "support/graph_util.h"

enum { C = 3, H = 5, CLASSES = 4 };

static const ddp_field fields[] = {
    {.name = "image", .dtype = DDP_F32, .rank = 3, .dims = {C, H, H}, .min = 1, .max = 0},
    {.name = "label", .dtype = DDP_I64, .rank = 0, .min = 0, .max = CLASSES - 1},
};

static const ddp_conv_spec wide = {.out = 6, .kernel = 3, .padding = 1, .bias = 1},
                           bare = {.out = 6, .kernel = 3, .stride = 2, .groups = 3};

typedef ddp_tensor (*body)(ddp_graph *g, ddp_tensor x);

/* Two norms that go into their convolutions, one of which has a bias. */
static ddp_tensor chain(ddp_graph *g, ddp_tensor x)
{
    x = ddp_relu(g, ddp_batch_norm2d(g, ddp_conv2d(g, x, &wide, NULL, "a"), NULL, "an"));
    return ddp_batch_norm2d(g, ddp_conv2d(g, x, &bare, NULL, "b"), NULL, "bn");
}

/* A residual branch reads the convolution too. */
static ddp_tensor read_twice(ddp_graph *g, ddp_tensor x)
{
    ddp_tensor y = ddp_conv2d(g, x, &wide, NULL, "a");

    return ddp_add(g, ddp_batch_norm2d(g, y, NULL, "an"), y);
}

/* No convolution before it. */
static ddp_tensor first(ddp_graph *g, ddp_tensor x)
{
    return ddp_relu(g, ddp_conv2d(g, ddp_batch_norm2d(g, x, NULL, "an"), &wide, NULL, "a"));
}

/* Something between the two. */
static ddp_tensor apart(ddp_graph *g, ddp_tensor x)
{
    return ddp_batch_norm2d(g, ddp_relu(g, ddp_conv2d(g, x, &wide, NULL, "a")), NULL, "an");
}

/* The arenas of parameters and buffers go into the values. */
static void fill(values *v, const float *params, const float *buffers)
{
    values_fill(v, 3, CLASSES);
    for (uint32_t i = 0; i < v->p->value_count; i++) {
        const ddp_value *d = &v->p->values[i];

        for (int64_t k = 0; k < d->elements; k++) {
            if (d->kind == DDP_VALUE_PARAM) v->at[i].data[k] = (double)params[d->offset + (uint64_t)k];
            if (d->kind == DDP_VALUE_BUFFER) v->at[i].data[k] = (double)buffers[d->offset + (uint64_t)k];
        }
    }
}

static void run(const ddp_program *p, const float *params, const float *buffers, double *out, int64_t count)
{
    values v = values_make(p);
    ddp_err err = {0};

    fill(&v, params, buffers);
    ok(ddp_reference_run(p, &(ddp_random){0}, v.at, &err));
    memcpy(out, v.at[p->metrics[0]].data, (size_t)count * sizeof(*out));
    values_free(&v);
}

static void check(body make, uint32_t expected)
{
    enum { N = 3, COUNT = N * CLASSES };
    ddp_program *before, *after;
    ddp_fold folds[16];
    double plain[COUNT], folded[COUNT];
    ddp_err err = {0};
    ddp_graph *g;
    ddp_layout *l;
    rng r = rng_make(9);
    float *params, *buffers;
    ddp_tensor x;
    uint32_t count;

    ok(ddp_graph_create(fields, DDP_COUNT(fields), &g, &err));
    x = ddp_linear(g, ddp_flatten(g, make(g, ddp_input(g, "image"))), CLASSES, 1, "fc");
    ddp_loss(g, ddp_cross_entropy(g, x, ddp_input(g, "label")));
    ddp_output(g, "logits", x);
    ok(ddp_graph_status(g, &err));
    ok(ddp_graph_finish(g, &err));
    ok(ddp_layout_create(g, 1 << 20, 1 << 20, 1, &l, &err));
    params = calloc(l->param_elements, sizeof(*params));
    buffers = calloc(ddp_graph_buffer_elements(g) + 1, sizeof(*buffers));
    assert_non_null(params);
    assert_non_null(buffers);
    for (uint64_t i = 0; i < l->param_elements; i++) params[i] = (float)rng_real(&r, -1, 1);
    for (uint64_t i = 0; i < ddp_graph_buffer_elements(g); i++) buffers[i] = (float)rng_real(&r, 0.1, 2);
    ok(ddp_program_create_outputs(g, l, N, &before, &err));
    ok(ddp_program_create_outputs(g, l, N, &after, &err));
    run(before, params, buffers, plain, COUNT);
    count = ddp_program_fold(after, folds);
    assert_int_equal(count, expected);
    assert_int_equal(after->node_count, before->node_count - expected);
    for (uint32_t i = 0; i < count; i++) ddp_fold_params(&folds[i], params, buffers);
    run(after, params, buffers, folded, COUNT);
    for (int i = 0; i < COUNT; i++) assert_true(fabs(plain[i] - folded[i]) < 1e-5 * (1 + fabs(plain[i])));
    ddp_program_free(after);
    ddp_program_free(before);
    free(buffers);
    free(params);
    ddp_layout_free(l);
    ddp_graph_free(g);
}

static void test_goes_into_the_convolution(void **state)
{
    (void)state;
    check(chain, 2);
}

static void test_stays(void **state)
{
    (void)state;
    check(read_twice, 0);
    check(first, 0);
    check(apart, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_goes_into_the_convolution), cmocka_unit_test(test_stays)};

    return cmocka_run_group_tests_name("fold", tests, NULL, NULL);
}
