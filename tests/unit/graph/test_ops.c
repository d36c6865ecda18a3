/* test_ops.c -- each op's scalar reference, by hand, against finite differences, and against PyTorch's numbers. */
#include "support/graph_util.h"

typedef struct ref {
    ddp_ref_tensor t;
    int64_t dims[DDP_MAX_DIMS];
    double data[256];
} ref;

static void ref_shape(ref *x, uint32_t rank, int64_t a, int64_t b, int64_t c)
{
    int64_t dims[3] = {a, b, c};

    x->t.elements = 1;
    for (uint32_t i = 0; i < rank; i++) x->t.elements *= x->dims[i] = dims[i];
    x->t.rank = rank;
    x->t.dims = x->dims;
    x->t.data = x->data;
    assert_true(x->t.elements <= 256);
}

static void ref_random(ref *x, rng *r)
{
    for (int64_t i = 0; i < x->t.elements; i++) x->data[i] = rng_real(r, -2.0, 2.0);
}

static void run_op(uint32_t op, const ddp_attrs *attrs, uint32_t in_count, ref *const *in, ref *out)
{
    ddp_node n = {.op = op, .in_count = in_count, .out_count = 1, .in = {0, 1, 2, -1}, .name = "test"};
    ddp_ref_tensor t[DDP_NODE_MAX_IN] = {0};

    if (attrs != NULL) n.attrs = *attrs;
    for (uint32_t i = 0; i < in_count; i++) t[i] = in[i]->t;
    ddp_op_find(op)->reference(&n, t, &out->t);
}

/* sum over the output of dy * op(in), dy NULL: of the scalar output */
static double weighted(uint32_t op, const ddp_attrs *attrs, uint32_t in_count, ref *const *in, ref *y, const ref *dy)
{
    double sum = 0.0;

    run_op(op, attrs, in_count, in, y);
    for (int64_t i = 0; i < y->t.elements; i++) sum += y->data[i] * (dy != NULL ? dy->data[i] : 1.0);
    return sum;
}

/* Input k's gradient, as the op's gradient row gave it, against central differences. */
static void check_gradient(uint32_t op, const ddp_attrs *attrs, uint32_t in_count, ref *const *in, uint32_t k, ref *y,
                           const ref *dy, const ref *gradient)
{
    const double h = 1e-5;

    assert_int_equal(gradient->t.elements, in[k]->t.elements);
    for (int64_t i = 0; i < in[k]->t.elements; i++) {
        double kept = in[k]->data[i], up, down, slope;

        in[k]->data[i] = kept + h;
        up = weighted(op, attrs, in_count, in, y, dy);
        in[k]->data[i] = kept - h;
        down = weighted(op, attrs, in_count, in, y, dy);
        in[k]->data[i] = kept;
        slope = (up - down) / (2 * h);
        if (!(fabs(slope - gradient->data[i]) <= 1e-8 * (1.0 + fabs(slope))))
            fail_msg("%s, input %u, element %d: %.12g, finite difference %.12g", ddp_op_name(op), k, (int)i,
                     gradient->data[i], slope);
    }
}

static void linear_case(rng *r, uint32_t rank, int64_t a, int64_t b, int64_t inner, int64_t outer)
{
    static ref x, w, bias, y, dy, dx, dw, db;
    ref *in[3] = {&x, &w, &bias};

    ref_shape(&x, rank, rank == 1 ? inner : a, rank == 2 ? inner : b, inner);
    ref_shape(&y, rank, rank == 1 ? outer : a, rank == 2 ? outer : b, outer);
    ref_shape(&dy, rank, rank == 1 ? outer : a, rank == 2 ? outer : b, outer);
    dx = x;
    ref_shape(&dx, rank, rank == 1 ? inner : a, rank == 2 ? inner : b, inner);
    ref_shape(&w, 2, outer, inner, 0);
    ref_shape(&dw, 2, outer, inner, 0);
    ref_shape(&bias, 1, outer, 0, 0);
    ref_shape(&db, 1, outer, 0, 0);
    ref_random(&x, r);
    ref_random(&w, r);
    ref_random(&bias, r);
    ref_random(&dy, r);
    run_op(DDP_OP_LINEAR_GRAD_INPUT, NULL, 2, (ref *[]){&dy, &w}, &dx);
    run_op(DDP_OP_LINEAR_GRAD_WEIGHT, NULL, 2, (ref *[]){&dy, &x}, &dw);
    run_op(DDP_OP_LINEAR_GRAD_BIAS, NULL, 1, (ref *[]){&dy}, &db);
    for (uint32_t count = 2; count <= 3; count++) {
        check_gradient(DDP_OP_LINEAR, NULL, count, in, 0, &y, &dy, &dx);
        check_gradient(DDP_OP_LINEAR, NULL, count, in, 1, &y, &dy, &dw);
    }
    check_gradient(DDP_OP_LINEAR, NULL, 3, in, 2, &y, &dy, &db);
}

static void linear_gradients(void **state)
{
    rng r = rng_make(1);

    (void)state;
    linear_case(&r, 2, 1, 0, 1, 1);
    linear_case(&r, 2, 1, 0, 7, 3);
    linear_case(&r, 2, 5, 0, 3, 4);
    linear_case(&r, 3, 3, 2, 5, 2);
    linear_case(&r, 1, 0, 0, 4, 3);
}

static void linear_values(void **state)
{
    static ref x, w, b, y;
    const double xs[] = {1, 2, 3, 4, 5, 6}, ws[] = {1, 0, -1, 2, 1, 0.5}, want[] = {-1.5, 5.25, -1.5, 15.75};

    (void)state;
    ref_shape(&x, 2, 2, 3, 0);
    ref_shape(&w, 2, 2, 3, 0);
    ref_shape(&b, 1, 2, 0, 0);
    ref_shape(&y, 2, 2, 2, 0);
    memcpy(x.data, xs, sizeof(xs));
    memcpy(w.data, ws, sizeof(ws));
    b.data[0] = 0.5;
    b.data[1] = -0.25;
    run_op(DDP_OP_LINEAR, NULL, 3, (ref *[]){&x, &w, &b}, &y);
    for (int i = 0; i < 4; i++) assert_true(y.data[i] == want[i]);
}

static void pointwise_case(rng *r, uint32_t op, uint32_t grad_op, const ddp_attrs *attrs, bool reads_output)
{
    static ref x, y, dy, dx;

    ref_shape(&x, 2, 5, 7, 0);
    ref_shape(&y, 2, 5, 7, 0);
    ref_shape(&dy, 2, 5, 7, 0);
    ref_shape(&dx, 2, 5, 7, 0);
    ref_random(&x, r);
    ref_random(&dy, r);
    run_op(op, attrs, 1, (ref *[]){&x}, &y);
    run_op(grad_op, attrs, 2, (ref *[]){&dy, reads_output ? &y : &x}, &dx);
    check_gradient(op, attrs, 1, (ref *[]){&x}, 0, &y, &dy, &dx);
}

static void pointwise_gradients(void **state)
{
    rng r = rng_make(2);
    ddp_attrs attrs = {0};

    (void)state;
    pointwise_case(&r, DDP_OP_RELU, DDP_OP_RELU_GRAD, NULL, true);
    pointwise_case(&r, DDP_OP_GELU, DDP_OP_GELU_GRAD, &attrs, false);
    attrs.leaky_relu.negative_slope = 0.1;
    pointwise_case(&r, DDP_OP_LEAKY_RELU, DDP_OP_LEAKY_RELU_GRAD, &attrs, true);
    memset(&attrs, 0, sizeof(attrs));
    attrs.gelu.tanh = 1;
    pointwise_case(&r, DDP_OP_GELU, DDP_OP_GELU_GRAD, &attrs, false);
}

/* The gradient of scale is scale. */
static void scale_gradients(void **state)
{
    static ref x, y, dy, dx;
    const ddp_attrs attrs = {.scale = {-2.5}};
    rng r = rng_make(7);

    (void)state;
    ref_shape(&x, 2, 5, 7, 0);
    ref_shape(&y, 2, 5, 7, 0);
    ref_shape(&dy, 2, 5, 7, 0);
    ref_shape(&dx, 2, 5, 7, 0);
    ref_random(&x, &r);
    ref_random(&dy, &r);
    run_op(DDP_OP_SCALE, &attrs, 1, (ref *[]){&x}, &y);
    for (int i = 0; i < 35; i++) assert_true(y.data[i] == -2.5 * x.data[i]);
    run_op(DDP_OP_SCALE, &attrs, 1, (ref *[]){&dy}, &dx);
    check_gradient(DDP_OP_SCALE, &attrs, 1, (ref *[]){&x}, 0, &y, &dy, &dx);
}

static void near_all(const ref *x, const double *want, double tolerance)
{
    for (int64_t i = 0; i < x->t.elements; i++)
        if (!(fabs(x->data[i] - want[i]) <= tolerance))
            fail_msg("element %d: %.17g, not %.17g", (int)i, x->data[i], want[i]);
}

/* What torch.nn.functional gives for the same numbers in float64. */
static void torch_values(void **state)
{
    static ref x, y, one, dx, l, t, s, g, p, q;
    static const double xs[] = {-3, -1, -0.5, 0, 0.25, 1, 2.5};
    static const double gelu[] = {-0.00404969409489031, -0.15865525393145702, -0.15426876936299344, 0,
                                  0.14967658142073093,  0.841344746068543,    2.4844758366855597};
    static const double gelu_g[] = {-0.01194564720418392, -0.08331547058768635, 0.13250487534383712, 0.5,
                                    0.695373354883636,    1.0833154705876864,   1.037611085908145};
    static const double tanh_[] = {-0.0036373920817729943, -0.15880800939172324, -0.15428599017485606, 0,
                                   0.149675350701685,      0.8411919906082768,   2.484915733910001};
    static const double tanh_g[] = {-0.011584166630969648, -0.08296408384578252, 0.13263009646535764, 0.5,
                                    0.6953540951510604,    1.0829640838457826,   1.037951576212666};
    static const double ls[] = {1, 2, 0.5, 1000, -1000, 999, -3, -3, -3}, ts[] = {0, 2, 1};
    static const double ce_g[] = {
        -0.256258700792617,  0.20951057307058746, 0.04674812772202949, 0.2436861928766683, 0.0,
        -0.2436861928766683, 0.1111111111111111,  -0.2222222222222222, 0.1111111111111111};
    static const double ps[] = {1, 2, 3, -4}, qs[] = {0.5, 2.5, 1, 1}, mse_g[] = {0.25, -0.25, 1, -2.5};
    ddp_attrs attrs = {0};

    (void)state;
    ref_shape(&x, 1, 7, 0, 0);
    ref_shape(&y, 1, 7, 0, 0);
    ref_shape(&one, 1, 7, 0, 0);
    ref_shape(&dx, 1, 7, 0, 0);
    memcpy(x.data, xs, sizeof(xs));
    for (int i = 0; i < 7; i++) one.data[i] = 1.0;
    for (uint32_t form = 0; form < 2; form++) {
        attrs.gelu.tanh = form;
        run_op(DDP_OP_GELU, &attrs, 1, (ref *[]){&x}, &y);
        near_all(&y, form ? tanh_ : gelu, 1e-15);
        run_op(DDP_OP_GELU_GRAD, &attrs, 2, (ref *[]){&one, &x}, &dx);
        near_all(&dx, form ? tanh_g : gelu_g, 1e-15);
    }
    ref_shape(&l, 2, 3, 3, 0);
    ref_shape(&g, 2, 3, 3, 0);
    ref_shape(&t, 1, 3, 0, 0);
    ref_shape(&s, 0, 0, 0, 0);
    memcpy(l.data, ls, sizeof(ls));
    memcpy(t.data, ts, sizeof(ts));
    run_op(DDP_OP_CROSS_ENTROPY, NULL, 2, (ref *[]){&l, &t}, &s);
    assert_true(fabs(s.data[0] - 1.2920809200980925) < 1e-15);
    run_op(DDP_OP_CROSS_ENTROPY_GRAD, NULL, 2, (ref *[]){&l, &t}, &g);
    near_all(&g, ce_g, 1e-15);
    ref_shape(&p, 2, 2, 2, 0);
    ref_shape(&q, 2, 2, 2, 0);
    ref_shape(&g, 2, 2, 2, 0);
    memcpy(p.data, ps, sizeof(ps));
    memcpy(q.data, qs, sizeof(qs));
    run_op(DDP_OP_MSE, NULL, 2, (ref *[]){&p, &q}, &s);
    assert_true(s.data[0] == 7.375);
    run_op(DDP_OP_MSE_GRAD, NULL, 2, (ref *[]){&p, &q}, &g);
    near_all(&g, mse_g, 0.0);
}

static void loss_gradients(void **state)
{
    static ref x, t, y, g;
    static const int64_t shapes[][2] = {{1, 1}, {1, 5}, {4, 3}, {7, 10}};
    static const uint32_t pairs[] = {DDP_OP_L1, DDP_OP_SMOOTH_L1, DDP_OP_BCE_WITH_LOGITS};
    rng r = rng_make(3);

    (void)state;
    ref_shape(&y, 0, 0, 0, 0);
    for (size_t i = 0; i < DDP_COUNT(shapes); i++) {
        ref_shape(&x, 2, shapes[i][0], shapes[i][1], 0);
        ref_shape(&g, 2, shapes[i][0], shapes[i][1], 0);
        ref_random(&x, &r);
        ref_shape(&t, 1, shapes[i][0], 0, 0);
        for (int64_t k = 0; k < shapes[i][0]; k++) t.data[k] = rng_below(&r, (uint32_t)shapes[i][1]);
        run_op(DDP_OP_CROSS_ENTROPY_GRAD, NULL, 2, (ref *[]){&x, &t}, &g);
        check_gradient(DDP_OP_CROSS_ENTROPY, NULL, 2, (ref *[]){&x, &t}, 0, &y, NULL, &g);
        ref_shape(&t, 2, shapes[i][0], shapes[i][1], 0);
        ref_random(&t, &r);
        run_op(DDP_OP_MSE_GRAD, NULL, 2, (ref *[]){&x, &t}, &g);
        check_gradient(DDP_OP_MSE, NULL, 2, (ref *[]){&x, &t}, 0, &y, NULL, &g);
        run_op(DDP_OP_MSE_GRAD, NULL, 2, (ref *[]){&t, &x}, &g);
        check_gradient(DDP_OP_MSE, NULL, 2, (ref *[]){&x, &t}, 1, &y, NULL, &g);
        for (uint32_t k = 0; k < DDP_COUNT(pairs); k++) {
            ddp_attrs attrs = {.smooth_l1.beta = 0.4};

            run_op(pairs[k] + 1, &attrs, 2, (ref *[]){&x, &t}, &g);
            check_gradient(pairs[k], &attrs, 2, (ref *[]){&x, &t}, 0, &y, NULL, &g);
        }
    }
}

/* Class weights, label smoothing, a class that is ignored, columns that are no class. */
static void weighted_gradients(void **state)
{
    static ref x, t, y, g;
    static const float weight[] = {0.5f, 2.0f, 0.0f, 1.25f};
    rng r = rng_make(4);

    (void)state;
    ref_shape(&y, 0, 0, 0, 0);
    ref_shape(&x, 2, 6, 5, 0);
    ref_shape(&g, 2, 6, 5, 0);
    ref_shape(&t, 1, 6, 0, 0);
    ref_random(&x, &r);
    for (int64_t k = 0; k < 6; k++) t.data[k] = (double)(k % 4);
    for (int form = 0; form < 4; form++) {
        ddp_attrs attrs = {.cross_entropy = {.label_smoothing = form % 2 ? 0.3 : 0.0,
                                             .ignores = form > 1,
                                             .ignore_index = 3,
                                             .classes = 4,
                                             .weights = 4,
                                             .weight = weight}};

        run_op(DDP_OP_CROSS_ENTROPY_GRAD, &attrs, 2, (ref *[]){&x, &t}, &g);
        check_gradient(DDP_OP_CROSS_ENTROPY, &attrs, 2, (ref *[]){&x, &t}, 0, &y, NULL, &g);
        for (int64_t k = 0; k < 6; k++) assert_true(g.data[5 * k + 4] == 0.0);
    }
}

static void relu_edges(void **state)
{
    static ref x, y, dy, dx;

    (void)state;
    ref_shape(&x, 1, 3, 0, 0);
    ref_shape(&y, 1, 3, 0, 0);
    ref_shape(&dy, 1, 3, 0, 0);
    ref_shape(&dx, 1, 3, 0, 0);
    x.data[0] = 0.0;
    x.data[1] = (double)NAN;
    x.data[2] = -1e300;
    for (int i = 0; i < 3; i++) dy.data[i] = 2.0;
    run_op(DDP_OP_RELU, NULL, 1, (ref *[]){&x}, &y);
    assert_true(y.data[0] == 0.0 && isnan(y.data[1]) && y.data[2] == 0.0);
    run_op(DDP_OP_RELU_GRAD, NULL, 2, (ref *[]){&dy, &y}, &dx);
    assert_true(dx.data[0] == 0.0 && dx.data[2] == 0.0);
}

static void accuracy_counts(void **state)
{
    static ref x, t, y;
    const double xs[] = {1, 3, 3, (double)NAN, 1, 2, 0, (double)NAN, 9, 5, 4, 4, 5, 4, 4};
    const double right[] = {1, 0, 1, 0, 0}, wrong[] = {2, 2, 2, 1, 2};

    (void)state;
    ref_shape(&x, 2, 5, 3, 0);
    ref_shape(&t, 1, 5, 0, 0);
    ref_shape(&y, 0, 0, 0, 0);
    memcpy(x.data, xs, sizeof(xs));
    memcpy(t.data, right, sizeof(right));
    run_op(DDP_OP_ACCURACY, NULL, 2, (ref *[]){&x, &t}, &y);
    assert_true(y.data[0] == 5.0);
    memcpy(t.data, wrong, sizeof(wrong));
    run_op(DDP_OP_ACCURACY, NULL, 2, (ref *[]){&x, &t}, &y);
    assert_true(y.data[0] == 0.0);
}

/* Each value once; a gradient that is added to is read as well; a view costs nothing unless it is a copy. */
static void bytes_of_nodes(void **state)
{
    ddp_value v[] = {{.kind = DDP_VALUE_ACT, .dtype = DDP_F32, .rank = 1, .dims = {5}, .elements = 5},
                     {.kind = DDP_VALUE_ACT, .dtype = DDP_F32, .rank = 1, .dims = {5}, .elements = 5},
                     {.kind = DDP_VALUE_GRAD, .dtype = DDP_F32, .rank = 1, .dims = {5}, .elements = 5}};
    ddp_node n = {.op = DDP_OP_ADD, .in_count = 2, .out_count = 1, .in = {0, 0, -1, -1}, .out = {1, -1, -1}};

    (void)state;
    assert_int_equal(ddp_node_bytes(&n, v), 40);
    n.in[1] = 1;
    n.out[0] = 2;
    assert_int_equal(ddp_node_bytes(&n, v), 60);
    n.accumulate = 1;
    assert_int_equal(ddp_node_bytes(&n, v), 80);
    n = (ddp_node){.op = DDP_OP_RESHAPE, .in_count = 1, .out_count = 1, .in = {0, -1, -1, -1}, .out = {1, -1, -1}};
    assert_int_equal(ddp_node_bytes(&n, v), 0);
    n.out[0] = 2;
    assert_int_equal(ddp_node_bytes(&n, v), 40);
    assert_null(ddp_op_find(0));
    assert_null(ddp_op_find(DDP_OP_END_));
    assert_string_equal(ddp_op_name(DDP_OP_LINEAR_GRAD_BIAS), "linear_grad_bias");
    for (uint32_t op = 1; op < DDP_OP_END_; op++) assert_int_equal(ddp_op_find(op)->op, op);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_values),      cmocka_unit_test(linear_gradients), cmocka_unit_test(pointwise_gradients),
        cmocka_unit_test(scale_gradients),    cmocka_unit_test(loss_gradients),   cmocka_unit_test(torch_values),
        cmocka_unit_test(relu_edges),         cmocka_unit_test(accuracy_counts),  cmocka_unit_test(bytes_of_nodes),
        cmocka_unit_test(weighted_gradients),
    };

    return cmocka_run_group_tests_name("ops", tests, NULL, NULL);
}
