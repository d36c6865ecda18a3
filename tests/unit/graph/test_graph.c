/* test_graph.c -- the builder: shapes, names, and errors with everything in them that one needs to put them right. */
#include "support/graph_util.h"

static const ddp_field fields[] = {
    {.name = "image", .dtype = DDP_F32, .rank = 3, .dims = {1, 28, 28}, .min = 1, .max = 0},
    {.name = "label", .dtype = DDP_I64, .rank = 0, .min = 0, .max = 9},
    {.name = "words", .dtype = DDP_I64, .rank = 1, .dims = {6}, .min = 1, .max = 0},
};

static ddp_graph *open_graph(void)
{
    ddp_graph *g;
    ddp_err err = {0};

    ok(ddp_graph_create(fields, DDP_COUNT(fields), &g, &err));
    return g;
}

static void has_dims(const ddp_graph *g, ddp_tensor t, uint32_t rank, int64_t a, int64_t b, int64_t c)
{
    int64_t dims[DDP_MAX_DIMS], want[3] = {a, b, c};

    assert_int_equal(ddp_dims(g, t, dims), rank);
    for (uint32_t i = 0; i < rank && i < 3; i++) assert_int_equal(dims[i], want[i]);
}

static ddp_tensor reshaped(ddp_graph *g, ddp_tensor x, uint32_t rank, int64_t a, int64_t b, int64_t c)
{
    int64_t dims[3] = {a, b, c};

    return ddp_reshape(g, x, rank, dims);
}

static ddp_tensor param(ddp_graph *g, const char *name, uint32_t rank, int64_t a, int64_t b)
{
    int64_t dims[2] = {a, b};
    ddp_init_spec init = {.kind = DDP_INIT_CONSTANT, .a = 0.5};

    return g->api->param(g, name, rank, dims, &init);
}

/* The graph has failed, all parts are in the message, and it stays the same whatever follows. */
static void failed_with(ddp_graph *g, const char *a, const char *b, const char *c)
{
    ddp_err err = {0}, again = {0};
    ddp_tensor t;

    assert_int_equal(ddp_graph_status(g, &err), DDP_ERR_CONFIG);
    assert_has(err.msg, a);
    assert_has(err.msg, b);
    assert_has(err.msg, c);
    t = ddp_linear(g, ddp_flatten(g, ddp_input(g, "image")), 3, 1, "later");
    assert_int_equal(t.id, -1);
    ddp_scope(g, "s");
    ddp_scope_end(g);
    ddp_scope_end(g);
    ddp_loss(g, t);
    ddp_metric(g, "m", t);
    ddp_graph_fail(g, "later");
    assert_int_equal(ddp_dims(g, t, (int64_t[DDP_MAX_DIMS]){0}), 0);
    assert_int_equal(ddp_graph_finish(g, &again), DDP_ERR_CONFIG);
    assert_string_equal(err.msg, again.msg);
    ddp_graph_free(g);
}

/* ---- shapes and names -------------------------------------------------------------------------------------------- */
static void shapes(void **state)
{
    ddp_graph *g = open_graph();
    ddp_tensor x = ddp_input(g, "image"), w = param(g, "w", 2, 6, 4);
    ddp_err err = {0};

    (void)state;
    assert_int_equal(x.id, ddp_input(g, "image").id);
    assert_int_equal(ddp_dims(g, x, (int64_t[DDP_MAX_DIMS]){0}), 4);
    has_dims(g, ddp_input(g, "label"), 1, DDP_N, 0, 0);
    has_dims(g, ddp_flatten(g, x), 2, DDP_N, 784, 0);
    has_dims(g, ddp_flatten(g, ddp_input(g, "label")), 2, DDP_N, 1, 0);
    has_dims(g, ddp_relu(g, x), 4, DDP_N, 1, 28);
    has_dims(g, ddp_linear(g, x, 5, 0, "l"), 4, DDP_N, 1, 28);
    x = reshaped(g, x, 3, DDP_N, 28, -1);
    has_dims(g, x, 3, DDP_N, 28, 28);
    has_dims(g, ddp_linear(g, x, 7, 1, "m"), 3, DDP_N, 28, 7);
    x = reshaped(g, x, 2, -28, -1, 0); /* (28N, 28) */
    has_dims(g, x, 2, -28, 28, 0);
    x = ddp_linear(g, x, 2, 1, "n");
    has_dims(g, x, 2, -28, 2, 0);
    has_dims(g, reshaped(g, x, 3, DDP_N, -1, 2), 3, DDP_N, 28, 2);
    has_dims(g, reshaped(g, x, 1, -56, 0, 0), 1, -56, 0, 0);
    has_dims(g, reshaped(g, w, 1, -1, 0, 0), 1, 24, 0, 0); /* no batch: -1 is what is left */
    has_dims(g, reshaped(g, w, 3, 2, -1, 4), 3, 2, 3, 4);
    ok(ddp_graph_status(g, &err));
    ddp_graph_free(g);
}

static void names(void **state)
{
    ddp_graph *g = open_graph();
    const ddp_param_info *p;
    ddp_err err = {0};
    ddp_tensor x = ddp_flatten(g, ddp_input(g, "image"));

    (void)state;
    for (int i = 0; i < 2; i++) {
        ddp_scope(g, "h.%d", i);
        ddp_scope(g, "attn");
        x = ddp_linear(g, x, 8, 1, "c_attn");
        ddp_scope_end(g);
        x = ddp_linear(g, x, 4, 0, "fc");
        ddp_scope_end(g);
    }
    (void)ddp_linear(g, x, 4, 0, "head");
    ok(ddp_graph_status(g, &err));
    assert_int_equal(ddp_graph_params(g, &p), 7);
    assert_string_equal(p[0].name, "h.0.attn.c_attn.weight");
    assert_string_equal(p[1].name, "h.0.attn.c_attn.bias");
    assert_string_equal(p[2].name, "h.0.fc.weight");
    assert_string_equal(p[5].name, "h.1.fc.weight");
    assert_string_equal(p[6].name, "head.weight");
    assert_int_equal(p[0].rank, 2);
    assert_int_equal(p[0].dims[0], 8);
    assert_int_equal(p[0].dims[1], 784);
    assert_int_equal(p[0].elements, 8 * 784);
    ddp_graph_free(g);
}

/* ---- mistakes in building ---------------------------------------------------------------------------------------- */
static void unknown_field(void **state)
{
    ddp_graph *g = open_graph();

    (void)state;
    assert_int_equal(ddp_input(g, "imagé").id, -1);
    failed_with(g, "input \"imagé\"", "image f32 (1, 28, 28); label i64 (); words i64 (6)", "no such field");
}

static void shape_mistakes(void **state)
{
    ddp_graph *g = open_graph();
    ddp_tensor x = ddp_flatten(g, ddp_input(g, "image")), in[3];

    (void)state;
    in[0] = x;
    in[1] = param(g, "fc1.weight", 2, 512, 780);
    in[2] = param(g, "fc1.bias", 1, 512, 0);
    (void)g->api->op(g, DDP_OP_LINEAR, NULL, 3, in, "fc1");
    failed_with(g, "linear \"fc1\"", "input (N, 784) and weight (512, 780)", "last dimensions must be equal");

    g = open_graph();
    in[0] = ddp_flatten(g, ddp_input(g, "image"));
    in[1] = param(g, "w", 2, 5, 784);
    in[2] = param(g, "b", 1, 4, 0);
    ddp_scope(g, "enc");
    (void)g->api->op(g, DDP_OP_LINEAR, NULL, 3, in, "fc1");
    failed_with(g, "linear \"enc.fc1\"", "weight (5, 784) and bias (4)", "must be (out)");

    g = open_graph();
    x = ddp_flatten(g, ddp_input(g, "image"));
    (void)ddp_add(g, x, ddp_relu(g, ddp_linear(g, x, 3, 1, "fc")));
    failed_with(g, "add \"add\"", "(N, 784) and (N, 3)", "must be equal");

    g = open_graph();
    x = ddp_flatten(g, ddp_input(g, "image"));
    (void)ddp_relu(g, x);
    (void)ddp_cross_entropy(g, x, ddp_flatten(g, ddp_input(g, "label")));
    failed_with(g, "cross_entropy \"cross_entropy\"", "logits (N, 784) and label (N, 1)",
                "(N, .., classes) and (N, ..)");

    g = open_graph();
    (void)ddp_cross_entropy(g, ddp_input(g, "label"), ddp_input(g, "label"));
    failed_with(g, "the logits", "dtype i64", "f32 is needed");

    g = open_graph();
    x = ddp_flatten(g, ddp_input(g, "image"));
    (void)ddp_mse(g, x, ddp_input(g, "image"));
    failed_with(g, "mse", "prediction (N, 784) and target (N, 1, 28, 28)", "nothing is broadcast");

    g = open_graph();
    (void)ddp_relu(g, ddp_relu(g, ddp_relu(g, ddp_input(g, "words"))));
    failed_with(g, "relu \"relu\"", "dtype i64", "f32 is needed");
}

static void reshape_mistake(int64_t a, int64_t b, int64_t c, const char *part, const char *other)
{
    ddp_graph *g = open_graph();

    (void)reshaped(g, ddp_flatten(g, ddp_input(g, "image")), 3, a, b, c);
    failed_with(g, "reshape \"reshape_1\"", part, other);
}

static void reshape_mistakes(void **state)
{
    ddp_graph *g;

    (void)state;
    reshape_mistake(DDP_N, 28, 27, "(N, 784) to (N, 28, 27)", "784 elements a sample cannot become 756");
    reshape_mistake(DDP_N, 28, 0, "(N, 784) to (N, 28, 0)", "must be positive");
    reshape_mistake(DDP_N, -1, -1, "(N, 784)", "one may be -1");
    reshape_mistake(DDP_N, -1, 5, "(N, 784)", "a multiple of 5");
    reshape_mistake(7, 28, 4, "(N, 784) to (7, 28, 4)", "must keep the batch, DDP_N");
    reshape_mistake(INT64_MIN, 1, 1, "(N, 784)", "must keep the batch");
    reshape_mistake(DDP_N, INT64_MAX, INT64_MAX, "(N, 784)", "cannot become");
    g = open_graph();
    (void)ddp_reshape(g, ddp_input(g, "image"), 9, (int64_t[9]){1});
    failed_with(g, "9 dimensions", "(N, 1, 28, 28)", "at most 8");
}

static void op_mistakes(void **state)
{
    ddp_graph *g = open_graph();
    ddp_tensor x = ddp_input(g, "image"), wrong = {99}, in[5] = {x, x, x, x, x};

    (void)state;
    (void)ddp_relu(g, wrong);
    failed_with(g, "relu \"relu\"", "input 0", "not a tensor of this graph");
    g = open_graph();
    in[0] = ddp_input(g, "image");
    (void)g->api->op(g, DDP_OP_RELU, NULL, 2, in, "act");
    failed_with(g, "relu \"act\"", "2 inputs", "from 1 to 1");
    g = open_graph();
    (void)g->api->op(g, DDP_OP_RELU, NULL, 0, in, "act");
    failed_with(g, "relu \"act\"", "0 inputs", "from 1 to 1");
    g = open_graph();
    (void)g->api->op(g, DDP_OP_RELU_GRAD, NULL, 2, in, "act");
    failed_with(g, "op number 6", "\"act\"", "not one that a model can use");
    g = open_graph();
    (void)g->api->op(g, 0, NULL, 1, in, "act");
    failed_with(g, "op number 0", "\"act\"", "not one");
    g = open_graph();
    (void)g->api->op(g, DDP_OP_END_, NULL, 1, in, "act");
    failed_with(g, "not one", "\"act\"", "op number");
    g = open_graph();
    ddp_graph_fail(g, "heads must divide width");
    failed_with(g, "heads must divide width", "", "");
}

static void param_mistakes(void **state)
{
    ddp_graph *g = open_graph();
    ddp_init_spec init = {.kind = 9, .b = 1.0};

    (void)state;
    ddp_scope(g, "a");
    (void)ddp_linear(g, ddp_flatten(g, ddp_input(g, "image")), 5, 1, "fc");
    (void)param(g, "fc.bias", 1, 5, 0);
    failed_with(g, "\"a.fc.bias\"", "declared twice", "share");
    g = open_graph();
    (void)param(g, "w", 2, 5, 0);
    failed_with(g, "\"w\"", "(5, 0)", "no usable size");
    g = open_graph();
    (void)param(g, "w", 2, INT64_MAX, INT64_MAX);
    failed_with(g, "\"w\"", "no usable size", "");
    g = open_graph();
    (void)param(g, "w", 9, 1, 1);
    failed_with(g, "\"w\"", "9 dimensions", "at most 8");
    g = open_graph();
    (void)param(g, "", 1, 1, 0);
    failed_with(g, "has no name", "", "");
    g = open_graph();
    (void)g->api->param(g, "w", 0, NULL, &init);
    failed_with(g, "\"w\"", "no such initialisation", "kind 9");
    g = open_graph(); /* a layer on a scalar a sample */
    (void)ddp_linear(g, ddp_input(g, "label"), 5, 1, "fc");
    failed_with(g, "\"fc.weight\"", "(5, N)", "reshape the layer's input to (N, features)");
}

static void scope_mistakes(void **state)
{
    ddp_graph *g = open_graph();
    char name[DDP_NAME_MAX + 1];

    (void)state;
    ddp_scope_end(g);
    failed_with(g, "ddp_scope_end without an open scope", "", "");
    g = open_graph();
    ddp_scope(g, "%s", "");
    failed_with(g, "has no name", "scope", "");
    g = open_graph();
    for (int i = 0; i < 40; i++) ddp_scope(g, "s");
    failed_with(g, "scopes nest at most 32 deep", "\"s.s.", "");
    memset(name, 'x', DDP_NAME_MAX);
    name[DDP_NAME_MAX - 1] = '\0';
    g = open_graph();
    ddp_scope(g, "%s", name);
    failed_with(g, "191 characters", "xxx", "scope");
    g = open_graph();
    ddp_scope(g, "s");
    (void)param(g, name, 1, 1, 0);
    failed_with(g, "longer than 191 characters", "\"s.xxx", "shorten");
}

static void result_mistakes(void **state)
{
    ddp_graph *g = open_graph();
    ddp_tensor x = ddp_flatten(g, ddp_input(g, "image")), loss;

    (void)state;
    ddp_loss(g, ddp_linear(g, x, 1, 1, "fc"));
    failed_with(g, "the loss \"fc\"", "(N, 1)", "scalar is needed");
    g = open_graph();
    ddp_loss(g, (ddp_tensor){-1});
    failed_with(g, "the loss", "not a tensor", "");
    g = open_graph();
    x = ddp_linear(g, ddp_flatten(g, ddp_input(g, "image")), 10, 1, "fc");
    loss = ddp_cross_entropy(g, x, ddp_input(g, "label"));
    ddp_metric(g, "accuracy", ddp_accuracy(g, x, ddp_input(g, "label")));
    ddp_metric(g, "accuracy", loss);
    failed_with(g, "metric \"accuracy\"", "twice", "");
    g = open_graph();
    ddp_output(g, "logits", ddp_input(g, "image"));
    failed_with(g, "output \"logits\"", "computes", "");
    g = open_graph();
    x = ddp_flatten(g, ddp_input(g, "image"));
    ddp_output(g, "logits", x);
    ddp_output(g, "logits", x);
    failed_with(g, "output \"logits\"", "twice", "");
    g = open_graph();
    x = ddp_linear(g, ddp_flatten(g, ddp_input(g, "image")), 10, 1, "fc");
    ddp_loss(g, ddp_cross_entropy(g, x, ddp_input(g, "label")));
    ddp_loss(g, ddp_cross_entropy(g, x, ddp_input(g, "label")));
    failed_with(g, "declared twice", "\"cross_entropy\" and \"cross_entropy_1\"", "ddp_add");
}

/* Asking adds nothing to the graph, and harms none that has failed. */
static void optional_field(void **state)
{
    ddp_graph *g = open_graph();

    (void)state;
    assert_int_equal(ddp_has_input(g, "words"), 1);
    assert_int_equal(ddp_has_input(g, "word"), 0);
    ddp_graph_fail(g, "stop");
    assert_int_equal(ddp_has_input(g, "words"), 1);
    ddp_graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes),           cmocka_unit_test(names),
        cmocka_unit_test(unknown_field),    cmocka_unit_test(shape_mistakes),
        cmocka_unit_test(reshape_mistakes), cmocka_unit_test(op_mistakes),
        cmocka_unit_test(param_mistakes),   cmocka_unit_test(scope_mistakes),
        cmocka_unit_test(result_mistakes),  cmocka_unit_test(optional_field),
    };

    return cmocka_run_group_tests_name("graph", tests, NULL, NULL);
}
