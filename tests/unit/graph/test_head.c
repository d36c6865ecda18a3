/* tests/unit/graph/test_head.c -- an output layer whose classes are divided: the slices together give what the whole
 * gives, by the scalar references; which models have one; and the same first numbers, slice by slice. */
#include "support/graph_util.h"

enum { CLASSES = 11, WIDTH = 5, BATCH = 6, SLICES = 3 };

static const ddp_field fields[] = {
    {.name = "input", .dtype = DDP_F32, .rank = 1, .dims = {7}, .min = 1, .max = 0},
    {.name = "label", .dtype = DDP_I64, .rank = 0, .min = 0, .max = CLASSES - 1},
};

typedef struct model {
    ddp_graph *g;
    ddp_layout *l;
    ddp_program *p;
    ddp_head head;
} model;

static ddp_graph *build(bool bias, double smoothing)
{
    ddp_err err = {0};
    ddp_graph *g;
    ddp_tensor x, label;

    ok(ddp_graph_create(fields, DDP_COUNT(fields), &g, &err));
    label = ddp_input(g, "label");
    x = ddp_gelu(g, ddp_linear(g, ddp_input(g, "input"), WIDTH, 1, "fc1"), 0);
    x = ddp_linear(g, x, CLASSES, bias, "fc2");
    ddp_loss(g, ddp_cross_entropy_smoothed(g, x, label, smoothing));
    ddp_metric(g, "accuracy", ddp_accuracy(g, x, label));
    ok(ddp_graph_finish(g, &err));
    return g;
}

static model make(bool bias)
{
    model m = {.g = build(bias, 0.0)};
    ddp_err err = {0};

    ok(ddp_graph_head(m.g, &m.head, &err));
    ok(ddp_layout_create(m.g, 1, 1, SLICES, &m.l, &err));
    ok(ddp_program_create(m.g, m.l, BATCH, true, &m.p, &err));
    return m;
}

static void model_free(model *m)
{
    ddp_program_free(m->p);
    ddp_layout_free(m->l);
    ddp_graph_free(m->g);
}

/* ---- values ------------------------------------------------------------------------------------------------------ */
static double *of_param(const values *v, uint32_t kind, uint32_t param)
{
    for (uint32_t i = 0; i < v->p->value_count; i++)
        if (v->p->values[i].kind == kind && v->p->values[i].index == (int32_t)param) return v->at[i].data;
    fail_msg("no value of parameter %u", param);
    return NULL;
}

static double *input_of(const values *v, int index) { return of_param(v, DDP_VALUE_INPUT, (uint32_t)index); }

/* What the node `op` of fc2 reads or gives. */
static double *of_node(const values *v, uint32_t op, bool out)
{
    for (uint32_t i = 0; i < v->p->node_count; i++) {
        const ddp_node *n = &v->p->nodes[i];

        if (n->op == op && strcmp(n->name, "fc2") == 0) return v->at[out ? n->out[0] : n->in[0]].data;
    }
    fail_msg("no node %u of fc2", op);
    return NULL;
}

typedef struct slice {
    ddp_head_program *p;
    values v;
    int64_t first, count;
} slice;

static slice slice_make(const model *m, int k, const values *whole)
{
    slice s = {.first = CLASSES * k / SLICES, .count = CLASSES * (k + 1) / SLICES - CLASSES * k / SLICES};
    const ddp_head_slice wanted = {.rows = BATCH, .first = s.first, .count = s.count};
    const ddp_param_info *params;
    uint32_t count = ddp_graph_params(m->g, &params);
    ddp_err err = {0};

    ok(ddp_head_program_create(m->l, &m->head, &wanted, count, &s.p, &err));
    s.v = values_make(s.p->program);
    memcpy(input_of(&s.v, DDP_HEAD_FEATURES), of_node(whole, DDP_OP_LINEAR, false), BATCH * WIDTH * sizeof(double));
    for (int r = 0; r < BATCH; r++) input_of(&s.v, DDP_HEAD_LABEL)[r] = input_of(whole, 1)[r] - (double)s.first;
    memcpy(of_param(&s.v, DDP_VALUE_PARAM, m->head.weight),
           of_param(whole, DDP_VALUE_PARAM, m->head.weight) + s.first * WIDTH,
           (size_t)(s.count * WIDTH) * sizeof(double));
    if (m->head.bias >= 0)
        memcpy(of_param(&s.v, DDP_VALUE_PARAM, (uint32_t)m->head.bias),
               of_param(whole, DDP_VALUE_PARAM, (uint32_t)m->head.bias) + s.first, (size_t)s.count * sizeof(double));
    return s;
}

/* The log-sum-exp of each row by the parts of all slices, and the mean loss. */
static double combine(slice *s, double terms[BATCH][2])
{
    double loss = 0.0;

    for (int r = 0; r < BATCH; r++) {
        double max = -INFINITY, sum = 0.0, at_label = -INFINITY;

        for (int k = 0; k < SLICES; k++) max = fmax(max, s[k].v.at[s[k].p->parts].data[r * 4]);
        for (int k = 0; k < SLICES; k++) {
            const double *parts = s[k].v.at[s[k].p->parts].data + (ptrdiff_t)r * 4;

            sum += parts[1] * exp(parts[0] - max);
            at_label = fmax(at_label, parts[2]);
            assert_true(parts[3] >= 0 && parts[3] < (double)s[k].count);
        }
        terms[r][0] = max + log(sum);
        terms[r][1] = 1.0 / BATCH;
        loss += (terms[r][0] - at_label) / BATCH;
    }
    return loss;
}

static void near(const double *x, const double *want, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (!(fabs(x[i] - want[i]) < 1e-12)) fail_msg("element %d is %.17g, not %.17g", (int)i, x[i], want[i]);
}

static void run_slices(slice *s, double terms[BATCH][2])
{
    const ddp_random random = {0};
    ddp_err err = {0};

    for (int k = 0; k < SLICES; k++) {
        memcpy(input_of(&s[k].v, DDP_HEAD_TERMS), terms, BATCH * 2 * sizeof(double));
        ok(ddp_reference_run(s[k].p->program, &random, s[k].v.at, &err));
    }
}

static void slices_give_what_the_whole_gives(bool bias)
{
    const ddp_random random = {0};
    model m = make(bias);
    values whole = values_make(m.p);
    double terms[BATCH][2] = {0}, dfeatures[BATCH * WIDTH] = {0};
    slice s[SLICES];
    ddp_err err = {0};

    values_fill(&whole, 5, CLASSES);
    ok(ddp_reference_run(m.p, &random, whole.at, &err));
    for (int k = 0; k < SLICES; k++) s[k] = slice_make(&m, k, &whole);
    run_slices(s, terms);
    assert_true(fabs(combine(s, terms) - values_loss(&whole)) < 1e-12);
    run_slices(s, terms);
    for (int k = 0; k < SLICES; k++) {
        near(of_param(&s[k].v, DDP_VALUE_GRAD, m.head.weight),
             of_param(&whole, DDP_VALUE_GRAD, m.head.weight) + s[k].first * WIDTH, s[k].count * WIDTH);
        if (bias)
            near(of_param(&s[k].v, DDP_VALUE_GRAD, (uint32_t)m.head.bias),
                 of_param(&whole, DDP_VALUE_GRAD, (uint32_t)m.head.bias) + s[k].first, s[k].count);
        for (int i = 0; i < BATCH * WIDTH; i++) dfeatures[i] += s[k].v.at[s[k].p->dfeatures].data[i];
    }
    near(dfeatures, of_node(&whole, DDP_OP_LINEAR_GRAD_INPUT, true), BATCH * WIDTH);
    for (int k = 0; k < SLICES; k++) {
        values_free(&s[k].v);
        ddp_head_program_free(s[k].p);
    }
    values_free(&whole);
    model_free(&m);
}

static void test_slices(void **state)
{
    (void)state;
    slices_give_what_the_whole_gives(true);
    slices_give_what_the_whole_gives(false);
}

static void test_what_has_none(void **state)
{
    ddp_graph *g = build(true, 0.1);
    ddp_head head;
    ddp_err err = {0};

    (void)state;
    assert_int_equal(ddp_graph_head(g, &head, &err), DDP_ERR_CONFIG);
    assert_has(err.msg, "label smoothing");
    ddp_graph_free(g);
}

/* A weight of `rows` by 7 and a bias that is drawn after it. */
static ddp_graph *drawn(int64_t rows, uint32_t kind)
{
    const ddp_init_spec init = {.kind = kind, .a = -1.0, .b = 2.0};
    const int64_t dims[] = {rows, 7};
    ddp_err err = {0};
    ddp_graph *g;
    ddp_tensor t[3];

    ok(ddp_graph_create(fields, DDP_COUNT(fields), &g, &err));
    t[0] = ddp_input(g, "input");
    t[1] = g->api->param(g, "w", 2, dims, &init);
    t[2] = g->api->param(g, "b", 1, dims, &init);
    ddp_loss(g, ddp_cross_entropy(g, g->api->op(g, DDP_OP_LINEAR, NULL, 3, t, "fc"), ddp_input(g, "label")));
    ok(ddp_graph_finish(g, &err));
    return g;
}

static void draws_in_pieces(int64_t rows, uint32_t kind)
{
    ddp_graph *g = drawn(rows, kind);
    const uint64_t elements = (uint64_t)rows * 7;
    ddp_kept_elements kept = {.param = 0};
    ddp_err err = {0};
    ddp_layout *l;
    float *x, *y;

    ok(ddp_layout_create(g, 1, 1, 1, &l, &err));
    x = calloc(l->param_elements, sizeof(*x));
    y = calloc(l->param_elements, sizeof(*y));
    assert_true(x != NULL && y != NULL);
    ddp_initial_params(g, l, 3, x);
    for (; kept.first < elements; kept.first = kept.end) {
        kept.end = DDP_MIN_OF(kept.first + 1 + elements / 3, elements);
        ddp_initial_params_kept(g, l, 3, &kept, 1, y);
    }
    assert_memory_equal(x, y, l->param_elements * sizeof(*x));
    free(x);
    free(y);
    ddp_layout_free(l);
    ddp_graph_free(g);
}

/* Uniform and normal numbers, of which a draw ends with a block of its own. */
static void test_first_numbers(void **state)
{
    static const int64_t rows[] = {11, 147, 149, 160, 715, 720};

    (void)state;
    for (size_t i = 0; i < DDP_COUNT(rows); i++) {
        draws_in_pieces(rows[i], DDP_INIT_UNIFORM);
        draws_in_pieces(rows[i], DDP_INIT_NORMAL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_slices), cmocka_unit_test(test_what_has_none),
                                       cmocka_unit_test(test_first_numbers)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
