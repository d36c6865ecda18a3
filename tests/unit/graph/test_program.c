/* test_program.c -- what ddp_graph_finish refuses, and the program of an MLP node by node. */
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

/* ---- finish ------------------------------------------------------------------------------------------------------ */
static void finish_fails(ddp_graph *g, ddp_status status, const char *a, const char *b)
{
    ddp_err err = {0};

    ok(ddp_graph_status(g, &err));
    assert_int_equal(ddp_graph_finish(g, &err), status);
    assert_has(err.msg, a);
    assert_has(err.msg, b);
    ddp_graph_free(g);
}

static ddp_tensor logits_of(ddp_graph *g, int64_t classes)
{
    return ddp_linear(g, ddp_flatten(g, ddp_input(g, "image")), classes, 1, "fc");
}

static void finish_needs_a_loss(void **state)
{
    ddp_graph *g = open_graph();
    ddp_tensor x, loss;

    (void)state;
    (void)logits_of(g, 10);
    finish_fails(g, DDP_ERR_CONFIG, "declares no loss", "ddp_loss");
    g = open_graph();
    ddp_scope(g, "open");
    ddp_loss(g, ddp_cross_entropy(g, logits_of(g, 10), ddp_input(g, "label")));
    finish_fails(g, DDP_ERR_CONFIG, "scope \"open.\"", "not closed");
    g = open_graph();
    x = ddp_flatten(g, ddp_input(g, "image"));
    ddp_loss(g, ddp_cross_entropy(g, x, ddp_input(g, "label")));
    finish_fails(g, DDP_ERR_CONFIG, "no parameters", "nothing to train");
    g = open_graph();
    ddp_loss(g, ddp_relu(g, ddp_cross_entropy(g, logits_of(g, 10), ddp_input(g, "label"))));
    finish_fails(g, DDP_ERR_CONFIG, "the loss contains relu \"relu\"", "a sum of such");
    g = open_graph();
    ddp_loss(g, ddp_accuracy(g, logits_of(g, 10), ddp_input(g, "label")));
    finish_fails(g, DDP_ERR_CONFIG, "the loss contains accuracy \"accuracy\"", "a sum of such");
    g = open_graph();
    ddp_loss(g, param(g, "p", 0, 0, 0));
    finish_fails(g, DDP_ERR_CONFIG, "the loss is \"p\" itself", "a sum of such");
    g = open_graph();
    loss = ddp_cross_entropy(g, logits_of(g, 10), ddp_input(g, "label"));
    ddp_loss(g, ddp_add(g, loss, loss));
    finish_fails(g, DDP_ERR_CONFIG, "adds cross_entropy \"cross_entropy\" twice", "once");
    g = open_graph();
    loss = ddp_cross_entropy(g, logits_of(g, 10), ddp_input(g, "label"));
    x = reshaped(g, loss, 1, 1, 0, 0);
    ddp_loss(g, ddp_add(g, loss, ddp_mse(g, x, x)));
    finish_fails(g, DDP_ERR_CONFIG, "reshape \"reshape_1\" reads the loss cross_entropy", "only be added");
    g = open_graph();
    x = reshaped(g, ddp_accuracy(g, logits_of(g, 10), ddp_input(g, "label")), 1, 1, 0, 0);
    ddp_loss(g, ddp_mse(g, x, x));
    finish_fails(g, DDP_ERR_CONFIG, "reshape \"reshape_1\" reads accuracy \"accuracy\"", "no gradient");
}

static void finish_names_the_parameter_without_gradient(void **state)
{
    ddp_graph *g = open_graph();
    ddp_tensor x = ddp_flatten(g, ddp_input(g, "image")), y;

    (void)state;
    y = ddp_linear(g, x, 10, 1, "fc1");
    (void)ddp_linear(g, y, 10, 1, "fc2");
    ddp_loss(g, ddp_cross_entropy(g, y, ddp_input(g, "label")));
    finish_fails(g, DDP_ERR_CONFIG, "parameter \"fc2.weight\" gets no gradient", "the loss does not depend on it");
    g = open_graph(); /* a metric does not help */
    y = logits_of(g, 10);
    ddp_loss(g, ddp_cross_entropy(g, y, ddp_input(g, "label")));
    y = ddp_linear(g, y, 10, 0, "probe");
    ddp_metric(g, "accuracy", ddp_accuracy(g, y, ddp_input(g, "label")));
    finish_fails(g, DDP_ERR_CONFIG, "parameter \"probe.weight\" gets no gradient", "");
}

static void finish_checks_labels(void **state)
{
    ddp_graph *g = open_graph();
    ddp_tensor x, label;
    ddp_err err = {0};

    (void)state;
    ddp_loss(g, ddp_cross_entropy(g, logits_of(g, 9), ddp_input(g, "label")));
    finish_fails(g, DDP_ERR_DATA, "field \"label\" has labels from 0 to 9", "the model has 9 classes (0 to 8)");
    g = open_graph(); /* through reshapes, and in a metric alone */
    x = logits_of(g, 10);
    label = reshaped(g, ddp_flatten(g, ddp_input(g, "label")), 1, DDP_N, 0, 0);
    ddp_loss(g, ddp_cross_entropy(g, x, ddp_input(g, "label")));
    x = ddp_input(g, "image");
    ddp_metric(g, "accuracy", ddp_accuracy(g, reshaped(g, x, 2, -196, 4, 0), reshaped(g, label, 1, DDP_N, 0, 0)));
    assert_int_equal(ddp_graph_finish(g, &err), DDP_ERR_CONFIG);
    assert_has(err.msg, "logits (196N, 4) and label (N)");
    ddp_graph_free(g);
    g = open_graph();
    label = reshaped(g, ddp_flatten(g, ddp_input(g, "label")), 1, DDP_N, 0, 0);
    ddp_loss(g, ddp_cross_entropy(g, logits_of(g, 3), label));
    finish_fails(g, DDP_ERR_DATA, "field \"label\"", "3 classes");
}

/* ---- the program of an MLP --------------------------------------------------------------------------------------- */
static ddp_graph *mlp(void)
{
    ddp_graph *g = open_graph();
    ddp_tensor x = ddp_flatten(g, ddp_input(g, "image")), label = ddp_input(g, "label");
    ddp_err err = {0};

    x = ddp_relu(g, ddp_linear(g, x, 32, 1, "fc1"));
    x = ddp_linear(g, x, 10, 1, "fc2");
    ddp_loss(g, ddp_cross_entropy(g, x, label));
    ddp_metric(g, "accuracy", ddp_accuracy(g, x, label));
    ok(ddp_graph_finish(g, &err));
    return g;
}

static void program_of_an_mlp(void **state)
{
    static const uint32_t train_ops[] = {DDP_OP_RESHAPE,
                                         DDP_OP_LINEAR,
                                         DDP_OP_RELU,
                                         DDP_OP_LINEAR,
                                         DDP_OP_CROSS_ENTROPY,
                                         DDP_OP_CROSS_ENTROPY_GRAD,
                                         DDP_OP_LINEAR_GRAD_BIAS,
                                         DDP_OP_LINEAR_GRAD_WEIGHT,
                                         DDP_OP_LINEAR_GRAD_INPUT,
                                         DDP_OP_RELU_GRAD,
                                         DDP_OP_LINEAR_GRAD_BIAS,
                                         DDP_OP_LINEAR_GRAD_WEIGHT};
    static const uint32_t eval_ops[] = {DDP_OP_RESHAPE, DDP_OP_LINEAR,        DDP_OP_RELU,
                                        DDP_OP_LINEAR,  DDP_OP_CROSS_ENTROPY, DDP_OP_ACCURACY};
    static const char *const names[] = {"reshape", "fc1", "relu", "fc2",  "cross_entropy", "cross_entropy",
                                        "fc2",     "fc2", "fc2",  "relu", "fc1",           "fc1"};
    ddp_graph *g = mlp();
    ddp_err err = {0};
    ddp_layout *l;
    ddp_program *p;

    (void)state;
    ok(ddp_layout_create(g, 1, 1, 1, &l, &err));
    ok(ddp_program_create(g, l, 5, true, &p, &err));
    assert_int_equal(p->batch, 5);
    assert_int_equal(p->training, 1);
    assert_int_equal(p->param_count, 4);
    assert_int_equal(p->metric_count, 0);
    assert_int_equal(p->node_count, DDP_COUNT(train_ops));
    for (uint32_t i = 0; i < p->node_count; i++) {
        assert_int_equal(p->nodes[i].op, train_ops[i]);
        assert_string_equal(p->nodes[i].name, names[i]);
        assert_int_equal(p->nodes[i].accumulate, 0);
    }
    assert_int_equal(p->nodes[0].attrs.reshape.dims[0], 5);
    assert_int_equal(p->nodes[0].attrs.reshape.dims[1], 784);
    assert_int_equal(p->values[p->nodes[3].out[0]].dims[0], 5);
    assert_int_equal(p->values[p->nodes[3].out[0]].elements, 50);
    assert_int_equal(p->loss, p->nodes[4].out[0]);
    for (uint32_t i = 0; i < p->value_count; i++)
        if (p->values[i].kind == DDP_VALUE_PARAM || p->values[i].kind == DDP_VALUE_GRAD)
            assert_int_equal(p->values[i].offset, l->offset[p->values[i].index]);
    /* multiply-adds of fc1 forward and weight, fc2 forward, weight and input, biases, pointwise */
    assert_int_equal(ddp_program_flops(p), 2 * 2 * 5 * 784 * 32 + 3 * 2 * 5 * 32 * 10 + 2 * (5 * 32 + 5 * 10) +
                                               2 * 5 * 32 + (4 + 6) * 5 * 10);
    ddp_program_free(p);
    ok(ddp_program_create(g, l, 1, false, &p, &err));
    assert_int_equal(p->node_count, DDP_COUNT(eval_ops));
    for (uint32_t i = 0; i < p->node_count; i++) assert_int_equal(p->nodes[i].op, eval_ops[i]);
    assert_int_equal(p->metric_count, 1);
    assert_string_equal(p->metric_names[0], "accuracy");
    assert_int_equal(p->metrics[0], p->nodes[5].out[0]);
    for (uint32_t i = 0; i < p->value_count; i++) assert_int_not_equal(p->values[i].kind, DDP_VALUE_GRAD);
    /* fc1: x, w, b, y; relu; fc2; loss: logits and one label; accuracy the same; a view costs nothing */
    assert_int_equal(ddp_program_bytes(p),
                     4 * (784 + 784 * 32 + 32 + 32) + 4 * 64 + 4 * (32 + 320 + 10 + 10) + 2 * (4 * 10 + 8 + 4));
    ddp_program_free(p);
    assert_int_equal(ddp_program_create(g, l, INT64_MAX / 4, true, &p, &err), DDP_ERR_CONFIG);
    assert_has(err.msg, "lower batch_size");
    assert_int_equal(ddp_program_create(g, l, 0, true, &p, &err), DDP_ERR_INTERNAL);
    ddp_layout_free(l);
    ddp_graph_free(g);
}

/* What answers alone: no label, no loss, no dropout; what only the answer needs is in no other program. */
static void program_of_outputs(void **state)
{
    static const uint32_t ops[] = {DDP_OP_RESHAPE, DDP_OP_LINEAR, DDP_OP_RESHAPE, DDP_OP_RELU};
    ddp_graph *g = open_graph();
    ddp_tensor x = ddp_dropout(g, logits_of(g, 10), 0.5), y = ddp_relu(g, x);
    ddp_err err = {0};
    ddp_layout *l;
    ddp_program *p;

    (void)state;
    ddp_output(g, "positive", y);
    ddp_output(g, "logits", x);
    ddp_loss(g, ddp_cross_entropy(g, x, ddp_input(g, "label")));
    ok(ddp_graph_finish(g, &err));
    ok(ddp_layout_create(g, 1, 1, 1, &l, &err));
    ok(ddp_program_create_outputs(g, l, 3, &p, &err));
    assert_int_equal(p->training, 0);
    assert_int_equal(p->loss, -1);
    assert_int_equal(p->node_count, DDP_COUNT(ops));
    for (uint32_t i = 0; i < p->node_count; i++) assert_int_equal(p->nodes[i].op, ops[i]);
    for (uint32_t i = 0; i < p->value_count; i++) assert_string_not_equal(p->values[i].name, "label");
    assert_int_equal(p->metric_count, 2);
    assert_string_equal(p->metric_names[0], "positive");
    assert_int_equal(p->metrics[0], p->nodes[3].out[0]);
    assert_string_equal(p->metric_names[1], "logits");
    assert_int_equal(p->metrics[1], p->nodes[2].out[0]);
    ddp_program_free(p);
    ok(ddp_program_create(g, l, 3, false, &p, &err));
    for (uint32_t i = 0; i < p->node_count; i++) assert_int_not_equal(p->nodes[i].op, DDP_OP_RELU);
    ddp_program_free(p);
    ddp_layout_free(l);
    ddp_graph_free(g);
    g = mlp();
    ok(ddp_layout_create(g, 1, 1, 1, &l, &err));
    assert_int_equal(ddp_program_create_outputs(g, l, 3, &p, &err), DDP_ERR_UNSUPPORTED);
    assert_has(err.msg, "no output");
    ddp_layout_free(l);
    ddp_graph_free(g);
}

/* ---- what the loss is a mean over -------------------------------------------------------------------------------- */
static void loss_labels(void **state)
{
    static const float weight[10] = {1.0f, 0.5f, 2.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 4.0f};
    static const int64_t label[] = {0, 1, -100, 2, 9, -100, 11};
    const ddp_cross_entropy_spec spec = {.ignore_index = -100, .weight = weight, .weights = 10};
    ddp_graph *g = open_graph();
    ddp_loss_labels l;
    ddp_program *p;
    ddp_layout *layout;
    ddp_err err = {0};
    uint32_t set = 0;

    (void)state;
    ddp_loss(g, ddp_cross_entropy_with(g, logits_of(g, 10), ddp_input(g, "label"), &spec));
    ok(ddp_graph_finish(g, &err));
    ddp_graph_loss_labels(g, &l);
    assert_int_equal(l.field, 1);
    assert_int_equal(l.labels, 1);
    assert_true(l.ignores && l.ignore_index == -100 && l.classes == 10);
    assert_true(ddp_loss_labels_counted(&l, label, 7) == 1.0 + 0.5 + 2.0 + 4.0);
    l.weight = NULL;
    assert_true(ddp_loss_labels_counted(&l, label, 6) == 4.0);
    ok(ddp_layout_create(g, 1 << 20, 1 << 20, 1, &layout, &err));
    ok(ddp_program_create(g, layout, 4, true, &p, &err));
    ddp_program_loss_over(p, 32.0);
    for (uint32_t i = 0; i < p->node_count; i++)
        set += p->nodes[i].op == DDP_OP_CROSS_ENTROPY_GRAD && p->nodes[i].attrs.cross_entropy.divisor == 32.0;
    assert_int_equal(set, 1);
    ddp_program_free(p);
    ddp_layout_free(layout);
    ddp_graph_free(g);
    g = open_graph(); /* a sum of two losses is a mean over no labels of one field */
    ddp_loss(g, ddp_add(g, ddp_cross_entropy(g, logits_of(g, 10), ddp_input(g, "label")),
                        ddp_cross_entropy(g, ddp_linear(g, ddp_flatten(g, ddp_input(g, "image")), 10, 1, "other"),
                                          ddp_input(g, "label"))));
    ok(ddp_graph_finish(g, &err));
    ddp_graph_loss_labels(g, &l);
    assert_int_equal(l.field, -1);
    ddp_graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finish_needs_a_loss),  cmocka_unit_test(finish_names_the_parameter_without_gradient),
        cmocka_unit_test(finish_checks_labels), cmocka_unit_test(program_of_an_mlp),
        cmocka_unit_test(loss_labels),          cmocka_unit_test(program_of_outputs),
    };

    return cmocka_run_group_tests_name("program", tests, NULL, NULL);
}
