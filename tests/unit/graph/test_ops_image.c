/* test_ops_image.c -- the scalar references of convolution, pooling and batch norm: by hand, and each gradient
 * against finite differences; the shapes that a graph refuses. PyTorch's numbers are in tests/parity. */
#include "support/graph_util.h"

enum { MOST = 640 };

typedef struct ref {
    ddp_ref_tensor t;
    int64_t dims[DDP_MAX_DIMS];
    double data[MOST];
} ref;

static void image(ref *x, int64_t n, int64_t c, int64_t h, int64_t w)
{
    const int64_t dims[4] = {n, c, h, w};

    memcpy(x->dims, dims, sizeof(dims));
    x->t = (ddp_ref_tensor){.data = x->data, .rank = 4, .dims = x->dims, .elements = n * c * h * w};
    assert_in_range(x->t.elements, 1, MOST);
}

static void vector(ref *x, int64_t n)
{
    x->dims[0] = n;
    x->t = (ddp_ref_tensor){.data = x->data, .rank = 1, .dims = x->dims, .elements = n};
}

static void fill(ref *x, rng *r)
{
    for (int64_t i = 0; i < x->t.elements; i++) x->data[i] = rng_real(r, -2.0, 2.0);
}

static ddp_node node_of(uint32_t op, const ddp_attrs *attrs, uint32_t in_count)
{
    return (ddp_node){
        .op = op, .attrs = *attrs, .in_count = in_count, .out_count = 1, .in = {0, 1, 2, 3, 4, -1}, .name = "test"};
}

static void run_op(uint32_t op, const ddp_attrs *attrs, uint32_t in_count, ref *const *in, uint32_t outs,
                   ref *const *out)
{
    ddp_node n = node_of(op, attrs, in_count);
    ddp_ref_tensor t[DDP_NODE_MAX_IN] = {0}, y[DDP_NODE_MAX_OUT] = {0};

    for (uint32_t i = 0; i < in_count; i++) t[i] = in[i]->t;
    for (uint32_t i = 0; i < outs; i++)
        if (out[i] != NULL) y[i] = out[i]->t;
    ddp_op_find(op)->reference(&n, t, y);
}

typedef struct trial {
    uint32_t op, in_count;
    const ddp_attrs *attrs;
    ref *const *in;
    ref *y, *dy;
} trial;

static double weighted(const trial *t)
{
    double sum = 0.0;

    run_op(t->op, t->attrs, t->in_count, t->in, 1, (ref *[]){t->y});
    for (int64_t i = 0; i < t->y->t.elements; i++) sum += t->y->data[i] * t->dy->data[i];
    return sum;
}

static void check_gradient(const trial *t, uint32_t k, const ref *gradient)
{
    const double h = 1e-6;

    for (int64_t i = 0; i < t->in[k]->t.elements; i++) {
        double kept = t->in[k]->data[i], up, down, slope;

        t->in[k]->data[i] = kept + h;
        up = weighted(t);
        t->in[k]->data[i] = kept - h;
        down = weighted(t);
        t->in[k]->data[i] = kept;
        slope = (up - down) / (2 * h);
        if (!(fabs(slope - gradient->data[i]) <= 2e-7 * (1.0 + fabs(slope))))
            fail_msg("%s, input %u, element %d: %.12g, finite difference %.12g", ddp_op_name(t->op), k, (int)i,
                     gradient->data[i], slope);
    }
}

/* ---- convolution ------------------------------------------------------------------------------------------------- */
typedef struct conv_sizes {
    int64_t n, c, h, w, o, kh, kw, sh, sw, ph, pw, groups;
} conv_sizes;

static ref x, w, b, y, dy, dx, dw, db, mean, invstd, running_mean, running_var;

static void conv_case(const conv_sizes *s, rng *r)
{
    ddp_attrs attrs = {.conv = {{s->sh, s->sw}, {s->ph, s->pw}, s->groups}};
    trial t = {DDP_OP_CONV2D, 3, &attrs, (ref *[]){&x, &w, &b}, &y, &dy};
    int64_t oh = (s->h + 2 * s->ph - s->kh) / s->sh + 1, ow = (s->w + 2 * s->pw - s->kw) / s->sw + 1;

    image(&x, s->n, s->c, s->h, s->w);
    image(&dx, s->n, s->c, s->h, s->w);
    image(&w, s->o, s->c / s->groups, s->kh, s->kw);
    image(&dw, s->o, s->c / s->groups, s->kh, s->kw);
    vector(&b, s->o);
    vector(&db, s->o);
    image(&y, s->n, s->o, oh, ow);
    image(&dy, s->n, s->o, oh, ow);
    fill(&x, r);
    fill(&w, r);
    fill(&b, r);
    fill(&dy, r);
    run_op(DDP_OP_CONV2D_GRAD_INPUT, &attrs, 2, (ref *[]){&dy, &w}, 1, (ref *[]){&dx});
    run_op(DDP_OP_CONV2D_GRAD_WEIGHT, &attrs, 2, (ref *[]){&dy, &x}, 1, (ref *[]){&dw});
    run_op(DDP_OP_CONV2D_GRAD_BIAS, &attrs, 1, (ref *[]){&dy}, 1, (ref *[]){&db});
    for (t.in_count = 2; t.in_count <= 3; t.in_count++) {
        check_gradient(&t, 0, &dx);
        check_gradient(&t, 1, &dw);
    }
    t.in_count = 3;
    check_gradient(&t, 2, &db);
}

static void conv_gradients(void **state)
{
    static const conv_sizes sizes[] = {{1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 1}, {2, 3, 5, 4, 2, 3, 2, 1, 1, 0, 0, 1},
                                       {2, 2, 5, 6, 3, 3, 3, 2, 1, 1, 2, 1}, {1, 4, 4, 5, 6, 2, 3, 1, 2, 1, 0, 2},
                                       {2, 3, 4, 4, 3, 3, 3, 1, 1, 1, 1, 3}, {1, 2, 7, 7, 2, 1, 1, 3, 2, 0, 0, 1}};
    rng r = rng_make(11);

    (void)state;
    for (size_t i = 0; i < DDP_COUNT(sizes); i++) conv_case(&sizes[i], &r);
}

/* A cross-correlation, not flipped; padding is zeros. */
static void conv_values(void **state)
{
    const double xs[] = {1, 2, 3, 4}, ws[] = {1, 10, 100, 1000}, want[] = {1000.5, 2100.5, 200.5, 3010.5, 4321.5 - 0.0};
    ddp_attrs attrs = {.conv = {{1, 1}, {1, 1}, 1}};

    (void)state;
    image(&x, 1, 1, 2, 2);
    image(&w, 1, 1, 2, 2);
    image(&y, 1, 1, 3, 3);
    vector(&b, 1);
    memcpy(x.data, xs, sizeof(xs));
    memcpy(w.data, ws, sizeof(ws));
    b.data[0] = 0.5;
    run_op(DDP_OP_CONV2D, &attrs, 3, (ref *[]){&x, &w, &b}, 1, (ref *[]){&y});
    for (int i = 0; i < 5; i++)
        if (y.data[i] != want[i]) fail_msg("element %d: %g, not %g", i, y.data[i], want[i]);
}

/* ---- pooling ----------------------------------------------------------------------------------------------------- */
static void pool_case(uint32_t op, const ddp_attrs *attrs, const int64_t in[4], const int64_t out[2], rng *r)
{
    trial t = {op, 1, attrs, (ref *[]){&x}, &y, &dy};

    image(&x, in[0], in[1], in[2], in[3]);
    image(&dx, in[0], in[1], in[2], in[3]);
    image(&y, in[0], in[1], out[0], out[1]);
    image(&dy, in[0], in[1], out[0], out[1]);
    fill(&x, r);
    fill(&dy, r);
    run_op(op + 1, attrs, op == DDP_OP_MAX_POOL2D ? 2 : 1, (ref *[]){&dy, &x}, 1, (ref *[]){&dx});
    check_gradient(&t, 0, &dx);
}

static void pool_gradients(void **state)
{
    static const struct {
        int64_t in[4], kernel[2], stride[2], padding[2];
    } sizes[] = {{{1, 1, 1, 1}, {1, 1}, {1, 1}, {0, 0}},
                 {{2, 3, 4, 6}, {2, 2}, {2, 2}, {0, 0}},
                 {{2, 2, 7, 5}, {3, 3}, {2, 2}, {1, 1}},
                 {{1, 3, 5, 8}, {3, 2}, {1, 3}, {1, 0}}};
    static const int64_t adaptive[][2] = {{1, 1}, {2, 3}, {5, 4}, {7, 9}};
    rng r = rng_make(12);
    ddp_attrs attrs = {0};

    (void)state;
    for (size_t i = 0; i < DDP_COUNT(sizes); i++) {
        int64_t out[2];

        memset(&attrs, 0, sizeof(attrs));
        for (int k = 0; k < 2; k++) {
            attrs.pool.kernel[k] = sizes[i].kernel[k];
            attrs.pool.stride[k] = sizes[i].stride[k];
            attrs.pool.padding[k] = sizes[i].padding[k];
            out[k] = (sizes[i].in[2 + k] + 2 * sizes[i].padding[k] - sizes[i].kernel[k]) / sizes[i].stride[k] + 1;
        }
        pool_case(DDP_OP_MAX_POOL2D, &attrs, sizes[i].in, out, &r);
        pool_case(DDP_OP_AVG_POOL2D, &attrs, sizes[i].in, out, &r);
    }
    for (size_t i = 0; i < DDP_COUNT(adaptive); i++) {
        memset(&attrs, 0, sizeof(attrs));
        memcpy(attrs.adaptive.out, adaptive[i], sizeof(adaptive[i]));
        pool_case(DDP_OP_ADAPTIVE_AVG_POOL2D, &attrs, (const int64_t[]){2, 2, 5, 4}, adaptive[i], &r);
    }
}

/* Of equals the first gets the gradient; a NaN is the largest; padding counts in an average. */
static void pool_edges(void **state)
{
    ddp_attrs attrs = {.pool = {{2, 2}, {2, 2}, {0, 0}}};
    const double xs[] = {1, 3, 3, 3, 5, -1, (double)NAN, 9}, want[] = {0, 7, 0, 0, 0, 0, 7, 0};

    (void)state;
    image(&x, 2, 1, 2, 2);
    image(&dx, 2, 1, 2, 2);
    image(&y, 2, 1, 1, 1);
    image(&dy, 2, 1, 1, 1);
    memcpy(x.data, xs, sizeof(xs));
    dy.data[0] = dy.data[1] = 7;
    run_op(DDP_OP_MAX_POOL2D, &attrs, 1, (ref *[]){&x}, 1, (ref *[]){&y});
    assert_true(y.data[0] == 3 && isnan(y.data[1]));
    run_op(DDP_OP_MAX_POOL2D_GRAD, &attrs, 2, (ref *[]){&dy, &x}, 1, (ref *[]){&dx});
    for (int i = 0; i < 8; i++) assert_true(dx.data[i] == want[i]);
    attrs.pool.padding[0] = attrs.pool.padding[1] = 1;
    image(&y, 2, 1, 2, 2);
    run_op(DDP_OP_AVG_POOL2D, &attrs, 1, (ref *[]){&x}, 1, (ref *[]){&y});
    assert_true(y.data[0] == 0.25 && y.data[3] == 0.75);
}

/* ---- batch norm -------------------------------------------------------------------------------------------------- */
static void norm_sizes(int64_t n, int64_t c, int64_t h, int64_t width, rng *r)
{
    ref *images[] = {&x, &y, &dy, &dx}, *vectors[] = {&w, &b, &dw, &db, &mean, &invstd, &running_mean, &running_var};

    for (size_t i = 0; i < DDP_COUNT(images); i++) image(images[i], n, c, h, width);
    for (size_t i = 0; i < DDP_COUNT(vectors); i++) vector(vectors[i], c);
    for (size_t i = 0; i < DDP_COUNT(images); i++) fill(images[i], r);
    for (size_t i = 0; i < DDP_COUNT(vectors); i++) fill(vectors[i], r);
    for (int64_t i = 0; i < c; i++) running_var.data[i] = fabs(running_var.data[i]) + 0.1;
}

static void norm_gradients(void **state)
{
    static const int64_t sizes[][4] = {{2, 1, 1, 1}, {1, 2, 2, 3}, {3, 4, 3, 2}};
    ddp_attrs attrs = {.batch_norm = {1e-5, 0.1, 1, 0}};
    ref *in[] = {&x, &w, &b, &running_mean, &running_var};
    trial t = {DDP_OP_BATCH_NORM, 5, &attrs, in, &y, &dy};
    rng r = rng_make(13);

    (void)state;
    for (size_t i = 0; i < DDP_COUNT(sizes); i++) {
        norm_sizes(sizes[i][0], sizes[i][1], sizes[i][2], sizes[i][3], &r);
        run_op(DDP_OP_BATCH_NORM, &attrs, 5, in, 3, (ref *[]){&y, &mean, &invstd});
        run_op(DDP_OP_BATCH_NORM_GRAD, &attrs, 5, (ref *[]){&dy, &x, &w, &mean, &invstd}, 3, (ref *[]){&dx, &dw, &db});
        check_gradient(&t, 0, &dx);
        check_gradient(&t, 1, &dw);
        check_gradient(&t, 2, &db);
    }
}

/* Four values 1 2 3 6: mean 3, variance 3.5, from a sample 14/3. */
static void norm_values(void **state)
{
    ddp_attrs attrs = {.batch_norm = {0.5, 0.1, 1, 0}};
    const double xs[] = {1, 2, 3, 6};
    ref *in[] = {&x, &w, &b, &running_mean, &running_var};
    rng r = rng_make(14);

    (void)state;
    norm_sizes(2, 1, 1, 2, &r);
    memcpy(x.data, xs, sizeof(xs));
    w.data[0] = 4;
    b.data[0] = 1;
    running_mean.data[0] = 1;
    running_var.data[0] = 2;
    run_op(DDP_OP_BATCH_NORM, &attrs, 5, in, 3, (ref *[]){&y, &mean, &invstd});
    assert_true(y.data[0] == -3 && y.data[1] == -1 && y.data[2] == 1 && y.data[3] == 7);
    assert_true(mean.data[0] == 3 && invstd.data[0] == 0.5);
    assert_true(fabs(running_mean.data[0] - 1.2) < 1e-15);
    assert_true(fabs(running_var.data[0] - (0.9 * 2 + 0.1 * 14 / 3)) < 1e-15);
    attrs.batch_norm.training = 0;
    running_mean.data[0] = 2;
    running_var.data[0] = 3.5;
    run_op(DDP_OP_BATCH_NORM, &attrs, 5, in, 1, (ref *[]){&y});
    assert_true(y.data[0] == -1 && y.data[3] == 9 && running_mean.data[0] == 2 && running_var.data[0] == 3.5);
}

static void norm_needs_two_values(void **state)
{
    ddp_attrs attrs = {.batch_norm = {1e-5, 0.1, 1, 0}};
    ddp_node n = node_of(DDP_OP_BATCH_NORM, &attrs, 5);
    ddp_err err = {0};

    (void)state;
    image(&x, 1, 3, 1, 1);
    assert_int_equal(ddp_op_find(n.op)->check(&n, &x.t, &err), DDP_ERR_DATA);
    assert_has(err.msg, "\"test\": one value per channel has no variance");
    n.attrs.batch_norm.training = 0;
    assert_int_equal(ddp_op_find(n.op)->check(&n, &x.t, &err), DDP_OK);
}

/* ---- what a graph refuses ---------------------------------------------------------------------------------------- */
static const ddp_field fields[] = {{.name = "image", .dtype = DDP_F32, .rank = 3, .dims = {4, 6, 5}, .min = 1},
                                   {.name = "flat", .dtype = DDP_F32, .rank = 1, .dims = {6}, .min = 1}};

static void refused(int which, const char *text)
{
    ddp_graph *g;
    ddp_err err = {0};
    ddp_tensor in;
    int64_t dims[DDP_MAX_DIMS];

    ok(ddp_graph_create(fields, DDP_COUNT(fields), &g, &err));
    in = ddp_input(g, which == 0 ? "flat" : "image");
    switch (which) {
    case 0: (void)ddp_max_pool2d(g, in, 2, 2, 0); break;
    case 1: (void)ddp_conv2d(g, in, &(ddp_conv_spec){.out = 6, .kernel = 7}, NULL, "c"); break;
    case 2: (void)ddp_conv2d(g, in, &(ddp_conv_spec){.out = 6, .kernel = 3, .groups = 4}, NULL, "c"); break;
    case 3: (void)ddp_avg_pool2d(g, in, 2, 1, 2); break;
    case 4: (void)ddp_avg_pool2d(g, in, 2, 0, 0); break;
    case 5: (void)ddp_adaptive_avg_pool2d(g, in, 0, 1); break;
    default:
        in = ddp_batch_norm2d(g, ddp_max_pool2d(g, in, 3, 2, 1), NULL, "bn");
        in = ddp_conv2d(g, in, &(ddp_conv_spec){.out = 6, .kernel = 2, .stride = 2, .padding = 1}, NULL, "c");
        assert_int_equal(ddp_dims(g, ddp_adaptive_avg_pool2d(g, in, 5, 1), dims), 4);
        assert_true(dims[0] == DDP_N && dims[1] == 6 && dims[2] == 5 && dims[3] == 1);
        assert_int_equal(ddp_dims(g, in, dims), 4);
        assert_true(dims[2] == 2 && dims[3] == 2);
        ok(ddp_graph_status(g, &err));
        ddp_graph_free(g);
        return;
    }
    assert_int_equal(ddp_graph_status(g, &err), DDP_ERR_CONFIG);
    assert_has(err.msg, text);
    ddp_graph_free(g);
}

static void refusals(void **state)
{
    static const char *const texts[] = {"input (N, 6) is no image",
                                        "a kernel of 7 is larger than the image with its padding of 0",
                                        "must be multiples of the 4 groups",
                                        "a padding of 2 is more than half of the kernel of 2",
                                        "kernel and stride must be positive",
                                        "an output of 0 x 1 is not possible",
                                        ""};

    (void)state;
    for (int i = 0; i < (int)DDP_COUNT(texts); i++) refused(i, texts[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conv_values), cmocka_unit_test(conv_gradients),        cmocka_unit_test(pool_gradients),
        cmocka_unit_test(pool_edges),  cmocka_unit_test(norm_gradients),        cmocka_unit_test(norm_values),
        cmocka_unit_test(refusals),    cmocka_unit_test(norm_needs_two_values),
    };

    return cmocka_run_group_tests_name("ops over images", tests, NULL, NULL);
}
