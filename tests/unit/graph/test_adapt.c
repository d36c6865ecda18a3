/* test_adapt.c -- low-rank adapters on linear layers: which layers get one, what is added to the graph, what is trained
 * and what the gradients cost. The expected draws are torch's. */
#include "support/graph_util.h"
#include "base/mt19937.h"

static const ddp_field fields[] = {
    {.name = "input", .dtype = DDP_F32, .rank = 1, .dims = {6}, .min = 1, .max = 0},
    {.name = "label", .dtype = DDP_I64, .rank = 0, .min = 1, .max = 0},
};
#define A(layer) "base_model.model." layer ".lora_A.weight"
#define B(layer) "base_model.model." layer ".lora_B.weight"

/* body.fc1 (6, 5), Conv1D body.fc2 (5, 5), norm, then head (5, 3), or one that shares fc2's weight. */
static ddp_graph *model(const ddp_adapter_spec *spec, bool tied)
{
    ddp_graph *g;
    ddp_err err = {0};
    ddp_tensor x, weight;

    ok(ddp_graph_create(fields, DDP_COUNT(fields), &g, &err));
    if (spec != NULL) ok(ddp_graph_adapt(g, spec, &err));
    ddp_scope(g, "body");
    x = ddp_relu(g, ddp_linear(g, ddp_input(g, "input"), 5, 1, "fc1"));
    x = ddp_conv1d(g, x, 5, 0.02, &weight, "fc2");
    x = ddp_layer_norm(g, x, "norm");
    ddp_scope_end(g);
    x = tied ? ddp_linear_tied(g, x, weight, "head") : ddp_linear(g, x, 3, 0, "head");
    ddp_loss(g, ddp_cross_entropy(g, x, ddp_input(g, "label")));
    ok(ddp_graph_finish(g, &err));
    return g;
}

static const char *const both[] = {"body.fc1", "body.fc2"};
static const ddp_adapter_spec spec = {.layers = both, .layer_count = 2, .rank = 2, .scale = 1.5};

static uint32_t find(const ddp_graph *g, const char *name)
{
    const ddp_param_info *params;
    uint32_t count = ddp_graph_params(g, &params);

    for (uint32_t i = 0; i < count; i++)
        if (strcmp(params[i].name, name) == 0) return i;
    fail_msg("no parameter %s", name);
    return 0;
}

static void shape_is(const ddp_graph *g, const char *name, int64_t rows, int64_t columns)
{
    const ddp_param_info *params;
    uint32_t p = find(g, name);

    (void)ddp_graph_params(g, &params);
    assert_int_equal(params[p].rank, 2);
    assert_int_equal(params[p].dims[0], rows);
    assert_int_equal(params[p].dims[1], columns);
    assert_true(params[p].adapter);
}

static void lists_layers(void **state)
{
    ddp_graph *g = model(NULL, false);
    const ddp_linear_layer *layers;
    ddp_pool pool = {0};
    ddp_err err = {0};
    uint32_t count;

    (void)state;
    ok(ddp_graph_linear_layers(g, &pool, &layers, &count, &err));
    assert_int_equal(count, 3);
    assert_string_equal(layers[0].name, "body.fc1");
    assert_string_equal(layers[1].name, "body.fc2");
    assert_string_equal(layers[2].name, "head");
    assert_false(layers[0].output || layers[1].output);
    assert_true(layers[2].output);
    ddp_pool_free(&pool);
    ddp_graph_free(g);

    g = model(NULL, true); /* one without a weight of its own is none */
    ok(ddp_graph_linear_layers(g, &pool, &layers, &count, &err));
    assert_int_equal(count, 2);
    ddp_pool_free(&pool);
    ddp_graph_free(g);
}

static void patterns_are_ends(void **state)
{
    (void)state;
    assert_true(ddp_layer_named("fc1", "body.fc1"));
    assert_true(ddp_layer_named("body.fc1", "body.fc1"));
    assert_true(ddp_layer_named("body.*", "body.fc1"));
    assert_true(ddp_layer_named("h.*.fc?", "body.h.3.fc1"));
    assert_false(ddp_layer_named("c1", "body.fc1"));
    assert_false(ddp_layer_named("body", "body.fc1"));
}

static void adds_two_matrices(void **state)
{
    ddp_graph *g = model(&spec, false);
    const ddp_adapted *adapted;

    (void)state;
    shape_is(g, A("body.fc1"), 2, 6);
    shape_is(g, B("body.fc1"), 5, 2);
    shape_is(g, A("body.fc2"), 2, 5); /* of a Conv1D, too */
    shape_is(g, B("body.fc2"), 5, 2);
    assert_int_equal(ddp_graph_adapted(g, &adapted), 2);
    assert_int_equal(adapted[1].weight, find(g, "body.fc2.weight"));
    assert_int_equal(adapted[1].a, find(g, A("body.fc2")));
    assert_int_equal(adapted[1].b, find(g, B("body.fc2")));
    assert_true(adapted[1].transposed && !adapted[0].transposed && adapted[0].scale == 1.5);
    ddp_graph_free(g);
}

/* As torch's nn.Linear(in, 2), nn.Linear(2, out) and kaiming_uniform_ of the first draw them, from `*generator`. */
static void drawn_is(ddp_mt19937 *generator, const float *a, const float *b, uint64_t in, uint64_t out)
{
    float want[16], ignored[16];
    const double bound = ddp_kaiming_bound_((double)in), other = ddp_kaiming_bound_(2.0);

    ddp_mt19937_uniform(generator, ignored, 2 * in, -bound, bound);
    ddp_mt19937_uniform(generator, ignored, 2 * out, -other, other);
    ddp_mt19937_uniform(generator, want, 2 * in, -bound, bound);
    assert_memory_equal(a, want, 2 * in * sizeof(*a));
    for (uint64_t i = 0; i < 2 * out; i++) assert_true(b[i] == 0.0f);
}

static void draws_as_peft(void **state)
{
    ddp_graph *g = model(&spec, false), *plain = model(NULL, false);
    const ddp_param_info *params;
    ddp_layout *l, *lp;
    ddp_mt19937 generator;
    ddp_err err = {0};
    float *x, *xp;

    (void)state;
    ok(ddp_layout_create(g, 1 << 20, 1 << 20, 1, &l, &err));
    ok(ddp_layout_create(plain, 1 << 20, 1 << 20, 1, &lp, &err));
    x = calloc(l->param_elements, sizeof(*x));
    xp = calloc(lp->param_elements, sizeof(*xp));
    assert_true(x != NULL && xp != NULL);
    ddp_initial_params(g, l, 7, x);
    ddp_initial_params(plain, lp, 7, xp);
    (void)ddp_graph_params(plain, &params);
    for (uint32_t p = 0; p < lp->param_count; p++) /* the model's own are those without adapters */
        assert_memory_equal(x + l->offset[find(g, params[p].name)], xp + lp->offset[p], params[p].elements * 4);
    ddp_mt19937_seed(&generator, 7);
    drawn_is(&generator, x + l->offset[find(g, A("body.fc1"))], x + l->offset[find(g, B("body.fc1"))], 6, 5);
    drawn_is(&generator, x + l->offset[find(g, A("body.fc2"))], x + l->offset[find(g, B("body.fc2"))], 5, 5);
    free(x);
    free(xp);
    ddp_layout_free(l);
    ddp_layout_free(lp);
    ddp_graph_free(g);
    ddp_graph_free(plain);
}

static uint32_t count_ops(const ddp_program *p, uint32_t op, const char *name)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < p->node_count; i++)
        n += p->nodes[i].op == op && (name == NULL || strcmp(p->nodes[i].name, name) == 0);
    return n;
}

/* Gradients for A and B alone, and nothing below the first layer. */
static void trains_adapters_alone(void **state)
{
    ddp_graph *g = model(&spec, false);
    const ddp_param_info *params;
    const ddp_list none = {0};
    ddp_program *p;
    ddp_layout *l;
    ddp_err err = {0};
    uint32_t grads = 0;

    (void)state;
    ok(ddp_graph_train_adapters(g, &none, &err));
    ok(ddp_layout_create(g, 1 << 20, 1 << 20, 1, &l, &err));
    assert_int_equal(l->trained, 4);
    ok(ddp_program_create(g, l, 3, true, &p, &err));
    (void)ddp_graph_params(g, &params);
    for (uint32_t i = 0; i < p->value_count; i++)
        if (p->values[i].kind == DDP_VALUE_GRAD) {
            assert_true(params[p->values[i].index].adapter);
            grads++;
        }
    assert_int_equal(grads, 4);
    assert_int_equal(count_ops(p, DDP_OP_LINEAR_GRAD_WEIGHT, NULL), 4);
    assert_int_equal(count_ops(p, DDP_OP_LINEAR_GRAD_BIAS, NULL), 0);
    assert_int_equal(count_ops(p, DDP_OP_LINEAR_GRAD_INPUT, "body.fc1"), 0);
    assert_int_equal(count_ops(p, DDP_OP_LINEAR_GRAD_INPUT, "base_model.model.body.fc1.lora_A"), 0);
    assert_int_equal(count_ops(p, DDP_OP_LINEAR_GRAD_INPUT, "body.fc2"), 1);
    ddp_program_free(p);
    ddp_layout_free(l);
    ddp_graph_free(g);
}

static void saves_whole_modules(void **state)
{
    ddp_graph *g = model(&spec, false);
    const char *const norm[] = {"norm"}, *const absent[] = {"nrom"};
    const ddp_list list = {.items = norm, .count = 1}, bad = {.items = absent, .count = 1};
    const ddp_param_info *params;
    ddp_err err = {0};

    (void)state;
    ok(ddp_graph_train_adapters(g, &list, &err));
    (void)ddp_graph_params(g, &params);
    assert_false(params[find(g, "body.norm.weight")].frozen || params[find(g, "body.norm.bias")].frozen);
    assert_true(params[find(g, "body.fc1.weight")].frozen && params[find(g, "head.weight")].frozen);
    assert_int_equal(ddp_graph_train_adapters(g, &bad, &err), DDP_ERR_CONFIG);
    assert_has(err.msg, "\"nrom\" names no layer");
    ddp_graph_free(g);
}

/* y = W x + b + B (scale A x), by the references. */
static void computes_the_sum(void **state)
{
    ddp_graph *g = model(&spec, false), *plain = model(NULL, false);
    const ddp_adapted *adapted;
    ddp_program *p, *q;
    ddp_layout *l, *lq;
    ddp_err err = {0};
    values v, w;

    (void)state;
    ok(ddp_layout_create(g, 1 << 20, 1 << 20, 1, &l, &err));
    ok(ddp_layout_create(plain, 1 << 20, 1 << 20, 1, &lq, &err));
    ok(ddp_program_create(g, l, 3, false, &p, &err));
    ok(ddp_program_create(plain, lq, 3, false, &q, &err));
    v = values_make(p);
    w = values_make(q);
    values_fill(&v, 3, 3);
    for (uint32_t i = 0; i < q->value_count; i++) /* the same, with B A added to the weights */
        for (uint32_t k = 0; k < p->value_count; k++)
            if (q->values[i].kind == p->values[k].kind && strcmp(q->values[i].name, p->values[k].name) == 0 &&
                (q->values[i].kind == DDP_VALUE_PARAM || q->values[i].kind == DDP_VALUE_INPUT))
                memcpy(w.at[i].data, v.at[k].data, (size_t)q->values[i].elements * sizeof(double));
    for (uint32_t n = 0; n < ddp_graph_adapted(g, &adapted); n++) {
        const ddp_value *weight = NULL;
        const double *a = NULL, *b = NULL;
        double *to = NULL;

        for (uint32_t k = 0; k < p->value_count; k++) {
            if (p->values[k].kind != DDP_VALUE_PARAM) continue;
            if (p->values[k].index == (int32_t)adapted[n].a) a = v.at[k].data;
            if (p->values[k].index == (int32_t)adapted[n].b) b = v.at[k].data;
            if (p->values[k].index == (int32_t)adapted[n].weight) weight = &p->values[k];
        }
        assert_non_null(weight);
        for (uint32_t i = 0; i < q->value_count; i++)
            if (strcmp(q->values[i].name, weight->name) == 0) to = w.at[i].data;
        assert_true(a != NULL && b != NULL && to != NULL);
        for (int64_t o = 0; o < weight->dims[adapted[n].transposed ? 1 : 0]; o++)
            for (int64_t i = 0, in = weight->dims[adapted[n].transposed ? 0 : 1]; i < in; i++)
                for (int64_t r = 0; r < 2; r++)
                    to[adapted[n].transposed ? i * weight->dims[1] + o : o * in + i] +=
                        adapted[n].scale * b[o * 2 + r] * a[r * in + i];
    }
    ok(ddp_reference_run(p, NULL, v.at, &err));
    ok(ddp_reference_run(q, NULL, w.at, &err));
    assert_true(fabs(values_loss(&v) - values_loss(&w)) < 1e-12);
    values_free(&v);
    values_free(&w);
    ddp_program_free(p);
    ddp_program_free(q);
    ddp_layout_free(l);
    ddp_layout_free(lq);
    ddp_graph_free(g);
    ddp_graph_free(plain);
}

/* Dropout is before A alone, and in a training program alone. */
static void drops_what_adapters_read(void **state)
{
    const ddp_adapter_spec dropped = {.layers = both, .layer_count = 1, .rank = 2, .scale = 1.0, .dropout = 0.25};
    ddp_graph *g = model(&dropped, true);
    ddp_program *p;
    ddp_layout *l;
    ddp_err err = {0};

    (void)state;
    ok(ddp_layout_create(g, 1 << 20, 1 << 20, 1, &l, &err));
    ok(ddp_program_create(g, l, 3, true, &p, &err));
    assert_int_equal(count_ops(p, DDP_OP_DROPOUT, "base_model.model.body.fc1.lora_dropout"), 1);
    ddp_program_free(p);
    ok(ddp_program_create(g, l, 3, false, &p, &err));
    assert_int_equal(count_ops(p, DDP_OP_DROPOUT, NULL), 0);
    ddp_program_free(p);
    ddp_layout_free(l);
    ddp_graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_layers),          cmocka_unit_test(patterns_are_ends),
        cmocka_unit_test(adds_two_matrices),     cmocka_unit_test(draws_as_peft),
        cmocka_unit_test(trains_adapters_alone), cmocka_unit_test(saves_whole_modules),
        cmocka_unit_test(computes_the_sum),      cmocka_unit_test(drops_what_adapters_read),
    };

    return cmocka_run_group_tests_name("adapt", tests, NULL, NULL);
}
