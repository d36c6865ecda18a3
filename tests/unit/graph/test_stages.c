/* tests/unit/graph/test_stages.c -- a program cut up by places: the stages together compute what the whole does,
 * over random graphs with shared values, shared parameters and connections that leave stages out; and where forward
 * ends. */
#include "support/graph_util.h"
#include "graph/internal.h"

enum { CLASSES = 3, BATCH = 4 };

typedef struct cut {
    ddp_graph *g;
    ddp_layout *layout;
    ddp_program *whole;
    ddp_stages *stages;
} cut;

/* The nodes of the graph in order, in `count` parts. */
static cut cut_make(uint64_t seed, uint32_t count)
{
    cut c = {.g = random_model(seed)};
    ddp_graph_core *core = ddp_graph_of(c.g);
    ddp_err err = {0};

    for (uint32_t i = 0; i < core->node_count; i++) core->nodes[i].device = i * count / core->node_count;
    ok(ddp_layout_create(c.g, 1, 1, 1, &c.layout, &err));
    ok(ddp_program_create(c.g, c.layout, BATCH, true, &c.whole, &err));
    return c;
}

static bool every_stage_has_nodes(const cut *c, uint32_t count)
{
    for (uint32_t s = 0; s < count; s++) {
        bool any = false;

        for (uint32_t i = 0; i < c->whole->node_count; i++) any |= c->whole->nodes[i].device == s;
        if (!any) return false;
    }
    return true;
}

static void cut_free(cut *c)
{
    ddp_stages_free(c->stages);
    ddp_program_free(c->whole);
    ddp_layout_free(c->layout);
    ddp_graph_free(c->g);
}

static void copy_tensor(values *to, int32_t v, const values *from, int32_t w)
{
    assert_int_equal(to->p->values[v].elements, from->p->values[w].elements);
    memcpy(to->at[v].data, from->at[w].data, (size_t)to->p->values[v].elements * sizeof(double));
}

static int32_t input_of(const ddp_program *p, uint32_t index)
{
    for (uint32_t v = 0; v < p->value_count; v++)
        if (p->values[v].kind == DDP_VALUE_INPUT && p->values[v].index == (int32_t)index) return (int32_t)v;
    return -1;
}

/* One message: to the field that the reader has for it, from the sender's result, or the batch. */
static void copy_across(const ddp_stages *s, const ddp_crossing *x, values *at, const values *whole)
{
    int32_t v = input_of(s->programs[x->to], x->input);

    assert_true(v >= 0);
    assert_int_equal(x->bytes,
                     (uint64_t)at[x->to].p->values[v].elements * ddp_dtype_size(at[x->to].p->values[v].dtype));
    if (x->sent >= 0)
        copy_tensor(&at[x->to], v, &at[x->from], x->sent);
    else
        copy_tensor(&at[x->to], v, whole, x->value);
}

static void zero_received(values *v, uint32_t fields)
{
    for (uint32_t i = 0; i < v->p->value_count; i++)
        if (v->p->values[i].kind == DDP_VALUE_INPUT && v->p->values[i].index >= (int32_t)fields)
            memset(v->at[i].data, 0, (size_t)v->p->values[i].elements * sizeof(double));
}

/* The sum of what all stages have written of a parameter's gradient. */
static double gradient_sum(const ddp_stages *s, const values *at, int32_t param, int64_t element, uint32_t *writers)
{
    double sum = 0.0;

    *writers = 0;
    for (uint32_t k = 0; k < s->count; k++)
        for (uint32_t v = 0; v < at[k].p->value_count; v++)
            if (at[k].p->values[v].kind == DDP_VALUE_GRAD && at[k].p->values[v].index == param) {
                sum += at[k].at[v].data[element];
                ++*writers;
            }
    return sum;
}

static void compare_gradients(const cut *c, const values *whole, const values *at)
{
    uint32_t extras = 0;

    for (uint32_t v = 0; v < c->whole->value_count; v++) {
        const ddp_value *d = &c->whole->values[v];
        uint32_t writers = 0;

        if (d->kind != DDP_VALUE_GRAD) continue;
        for (int64_t e = 0; e < d->elements; e++) {
            double expected = whole->at[v].data[e], got = gradient_sum(c->stages, at, d->index, e, &writers);

            if (!(fabs(got - expected) <= 1e-9 * (1.0 + fabs(expected)))) /* NaN is none of it */
                fail_msg("gradient of parameter %d, element %d: %g, not %g", d->index, (int)e, got, expected);
        }
        extras += writers - 1;
    }
    assert_int_equal(extras, c->stages->extra_count);
}

/* Messages go round until all have come, twice the stages: forward, then back. */
static void run_stages(const cut *c, values *at, const values *whole)
{
    ddp_random random = {.seed = 5, .stream = 9};
    ddp_err err = {0};

    for (uint32_t round = 0; round < 2 * c->stages->count; round++) {
        for (uint32_t s = 0; s < c->stages->count; s++)
            ok(ddp_reference_run(c->stages->programs[s], &random, at[s].at, &err));
        for (uint32_t i = 0; i < c->stages->crossing_count; i++)
            copy_across(c->stages, &c->stages->crossings[i], at, whole);
    }
    for (uint32_t s = 0; s < c->stages->count; s++)
        ok(ddp_reference_run(c->stages->programs[s], &random, at[s].at, &err));
}

static void check_cut(uint64_t seed, uint32_t count)
{
    ddp_random random = {.seed = 5, .stream = 9};
    uint32_t fields = DDP_COUNT(model_fields), losses = 0;
    values whole, at[4];
    ddp_err err = {0};
    cut c = cut_make(seed, count);

    if (!every_stage_has_nodes(&c, count)) {
        cut_free(&c);
        return;
    }
    ok(ddp_stages_create(c.whole, c.layout, count, fields, &c.stages, &err));
    whole = values_make(c.whole);
    values_fill(&whole, seed, CLASSES);
    ok(ddp_reference_run(c.whole, &random, whole.at, &err));
    for (uint32_t s = 0; s < count; s++) {
        at[s] = values_make(c.stages->programs[s]);
        values_fill(&at[s], seed, CLASSES);
        zero_received(&at[s], fields);
    }
    run_stages(&c, at, &whole);
    for (uint32_t s = 0; s < count; s++) {
        int32_t loss = c.stages->programs[s]->loss;

        if (loss < 0) continue;
        losses++;
        assert_true(fabs(at[s].at[loss].data[0] - whole.at[c.whole->loss].data[0]) < 1e-9);
    }
    assert_int_equal(losses, 1);
    compare_gradients(&c, &whole, at);
    for (uint32_t s = 0; s < count; s++) values_free(&at[s]);
    values_free(&whole);
    cut_free(&c);
}

static void test_random_graphs(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 120; seed++)
        for (uint32_t count = 1; count <= 4; count++) check_cut(seed, count);
}

/* The extras lie behind the arena, each aligned, none over another. */
static void test_extras_have_places_of_their_own(void **state)
{
    uint32_t seen = 0;

    (void)state;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        cut c = cut_make(seed, 3);
        ddp_err err = {0};
        uint64_t end = c.layout->elements;

        if (every_stage_has_nodes(&c, 3)) {
            ok(ddp_stages_create(c.whole, c.layout, 3, DDP_COUNT(model_fields), &c.stages, &err));
            for (uint32_t i = 0; i < c.stages->extra_count; i++, seen++) {
                assert_int_equal(c.stages->extras[i].offset % 16, 0);
                assert_true(c.stages->extras[i].offset >= end);
                end = c.stages->extras[i].offset + c.stages->extras[i].elements;
            }
            assert_true(c.stages->grad_elements >= end);
        }
        cut_free(&c);
    }
    if (seen < 10) fail_msg("only %u parts of gradients", seen);
}

static void test_places_cannot_go_backwards(void **state)
{
    const ddp_field field = {.name = "input", .dtype = DDP_F32, .rank = 1, .dims = {4}};
    ddp_graph *g;
    ddp_tensor x;
    ddp_err err = {0};

    (void)state;
    ok(ddp_graph_create(&field, 1, &g, &err));
    x = ddp_input(g, "input");
    assert_int_equal(ddp_graph_places(g), 0);
    ddp_place(g, 1);
    x = ddp_relu(g, x);
    assert_int_equal(ddp_graph_places(g), 2);
    ddp_place(g, 0);
    x = ddp_gelu(g, x, 0);
    assert_int_equal(ddp_graph_status(g, &err), DDP_ERR_CONFIG);
    assert_has(err.msg, "gelu \"gelu\"");
    assert_has(err.msg, "device 0 and reads \"relu\", which device 1 computes");
    ddp_graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_graphs),
        cmocka_unit_test(test_extras_have_places_of_their_own),
        cmocka_unit_test(test_places_cannot_go_backwards),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
