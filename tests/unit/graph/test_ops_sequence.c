/* test_ops_sequence.c -- the ops of a transformer: their references' gradients, as autodiff puts them together,
 * against finite differences over whole graphs; what they refuse; the mask of dropout. PyTorch's numbers are in
 * tests/parity. */
#include "support/graph_util.h"

enum { T = 5, E = 6, VOCABULARY = 7 };

static const ddp_field fields[] = {
    {.name = "token", .dtype = DDP_I64, .rank = 1, .dims = {T}, .min = 0, .max = VOCABULARY - 1},
    {.name = "x", .dtype = DDP_F32, .rank = 2, .dims = {T, E}, .min = 1, .max = 0},
    {.name = "qkv", .dtype = DDP_F32, .rank = 2, .dims = {T, 3 * E}, .min = 1, .max = 0},
    {.name = "target", .dtype = DDP_F32, .rank = 2, .dims = {T, E}, .min = 1, .max = 0},
    {.name = "position", .dtype = DDP_I64, .rank = 1, .dims = {T}, .min = 0, .max = VOCABULARY - 1},
    {.name = "label", .dtype = DDP_I64, .rank = 1, .dims = {T}, .min = 0, .max = VOCABULARY - 1},
    {.name = "segment", .dtype = DDP_I64, .rank = 1, .dims = {T}, .min = 0, .max = VOCABULARY - 1},
};

typedef struct build_case {
    const char *name;
    ddp_tensor (*build)(ddp_graph *g); /* (N, T, E); the loss is the distance from the target, unless it sets one */
} build_case;

static ddp_tensor x_of(ddp_graph *g) { return ddp_linear(g, ddp_input(g, "x"), E, 1, "below"); }

static ddp_tensor build_layer_norm(ddp_graph *g) { return ddp_layer_norm(g, x_of(g), "ln"); }

/* The normalised value is read twice, the input once more beside it. */
static ddp_tensor build_residual(ddp_graph *g)
{
    ddp_tensor x = x_of(g), y = ddp_layer_norm(g, x, "ln1");

    return ddp_layer_norm(g, ddp_add(g, x, ddp_linear(g, y, E, 1, "mlp")), "ln2");
}

static ddp_tensor build_embedding(ddp_graph *g)
{
    return ddp_position_embedding(g, ddp_embedding(g, ddp_input(g, "token"), VOCABULARY, E, 0.5, NULL, "wte"), T + 2,
                                  0.5, NULL, "wpe");
}

/* The table is the output layer too, so that its gradient has two parts. */
static ddp_tensor build_tied(ddp_graph *g)
{
    ddp_tensor table, x = ddp_embedding(g, ddp_input(g, "token"), VOCABULARY, E, 0.5, &table, "wte");

    x = ddp_linear_tied(g, ddp_layer_norm(g, x, "ln"), table, "head");
    ddp_loss(g, ddp_cross_entropy(g, x, ddp_input(g, "label")));
    return (ddp_tensor){-1};
}

static ddp_tensor attend(ddp_graph *g, uint32_t heads, uint32_t causal, double dropout)
{
    ddp_tensor qkv = ddp_linear(g, ddp_input(g, "qkv"), 3 * E, 1, "c_attn");
    ddp_attrs attrs = {.attention = {.scale = 0.7, .dropout = dropout, .heads = heads, .causal = causal}};

    return g->api->op(g, DDP_OP_ATTENTION, &attrs, 1, &qkv, "attn");
}
static ddp_tensor build_attention(ddp_graph *g) { return attend(g, 2, 1, 0.0); }
static ddp_tensor build_attention_full(ddp_graph *g) { return attend(g, 3, 0, 0.0); }
static ddp_tensor build_attention_dropout(ddp_graph *g) { return attend(g, 2, 1, 0.4); }

/* Three heads of q, of k and v as many as asked for, from one layer each. */
static ddp_tensor attend_apart(ddp_graph *g, const ddp_attention_spec *s, bool segments)
{
    ddp_tensor q = ddp_linear(g, ddp_input(g, "x"), E, 1, "q"), segment = {-1};
    ddp_tensor k = ddp_linear(g, ddp_input(g, "x"), s->kv_heads * (E / 3), 1, "k");
    ddp_tensor v = ddp_linear(g, ddp_input(g, "x"), s->kv_heads * (E / 3), 1, "v");

    if (segments) segment = ddp_input(g, "segment");
    return ddp_attention_apart(g, q, k, v, segment, s);
}
static ddp_tensor build_apart(ddp_graph *g)
{
    return attend_apart(g, &(ddp_attention_spec){.heads = 3, .kv_heads = 3, .causal = 1}, false);
}
static ddp_tensor build_apart_shared(ddp_graph *g)
{
    return attend_apart(g, &(ddp_attention_spec){.heads = 3, .kv_heads = 1, .dropout = 0.3, .scale = 0.7}, true);
}
static ddp_tensor build_apart_segments(ddp_graph *g)
{
    return attend_apart(g, &(ddp_attention_spec){.heads = 3, .kv_heads = 1, .causal = 1}, true);
}
/* One value as q, k and v. */
static ddp_tensor build_apart_same(ddp_graph *g)
{
    ddp_tensor x = x_of(g);

    return ddp_attention_apart(g, x, x, x, (ddp_tensor){-1}, &(ddp_attention_spec){.heads = 2, .causal = 1});
}
static ddp_tensor build_dropout(ddp_graph *g) { return ddp_dropout(g, x_of(g), 0.3); }

static ddp_tensor build_rms_norm(ddp_graph *g)
{
    ddp_tensor x = x_of(g);

    return ddp_rms_norm(g, ddp_add(g, x, ddp_rms_norm(g, x, 0.3, "norm1")), 1e-6, "norm%d", 2);
}

/* The product is read on both sides, so that a factor gets two gradients. */
static ddp_tensor build_gate(ddp_graph *g)
{
    ddp_tensor x = x_of(g), up = ddp_linear(g, x, E, 0, "up");

    return ddp_mul(g, ddp_mul(g, ddp_silu(g, ddp_linear(g, x, E, 0, "gate")), up), up);
}

static ddp_tensor turned(ddp_graph *g, int with_position, const ddp_rope_spec *spec)
{
    ddp_tensor position = {-1};

    if (with_position) position = ddp_input(g, "position");
    return ddp_rope(g, x_of(g), position, spec);
}
static ddp_tensor build_rope(ddp_graph *g) { return turned(g, 0, &(ddp_rope_spec){.head_dim = 6, .theta = 1e4}); }
static ddp_tensor build_rope_linear(ddp_graph *g)
{
    return turned(g, 1, &(ddp_rope_spec){.head_dim = 2, .theta = 1e4, .kind = DDP_ROPE_LINEAR, .factor = 3.0});
}
static ddp_tensor build_rope_yarn(ddp_graph *g)
{
    const ddp_rope_spec spec = {
        .head_dim = 6, .theta = 1e4, .kind = DDP_ROPE_YARN, .factor = 4.0, .original_context = 64};

    return turned(g, 1, &spec);
}

static const build_case cases[] = {
    {"rms_norm", build_rms_norm},
    {"gate", build_gate},
    {"rope", build_rope},
    {"rope linear", build_rope_linear},
    {"rope yarn", build_rope_yarn},
    {"layer_norm", build_layer_norm},
    {"residual", build_residual},
    {"embedding", build_embedding},
    {"tied", build_tied},
    {"attention", build_attention},
    {"attention of all", build_attention_full},
    {"attention with dropout", build_attention_dropout},
    {"attention apart", build_apart},
    {"attention apart, one head of k and v", build_apart_shared},
    {"attention apart, segments", build_apart_segments},
    {"attention apart of one value", build_apart_same},
    {"dropout", build_dropout},
};

static const ddp_random step_random = {.seed = 5, .stream = 77};

typedef struct made {
    ddp_graph *g;
    ddp_layout *layout;
    ddp_program *p;
    ddp_err err;
} made;

static void make(made *m, const build_case *c, int64_t batch, bool training)
{
    ddp_err err = {0};
    ddp_tensor y;

    ok(ddp_graph_create(fields, DDP_COUNT(fields), &m->g, &err));
    y = c->build(m->g);
    if (y.id >= 0) ddp_loss(m->g, ddp_mse(m->g, y, ddp_input(m->g, "target")));
    ok(ddp_graph_status(m->g, &err));
    ok(ddp_graph_finish(m->g, &err));
    ok(ddp_layout_create(m->g, 1 << 20, 1 << 20, 1, &m->layout, &err));
    ok(ddp_program_create(m->g, m->layout, batch, training, &m->p, &err));
}

static void unmake(made *m)
{
    ddp_program_free(m->p);
    ddp_layout_free(m->layout);
    ddp_graph_free(m->g);
}

static double loss_of(values *v)
{
    ddp_err err = {0};

    ok(ddp_reference_run(v->p, &step_random, v->at, &err));
    return values_loss(v);
}

/* Every parameter's gradient against central differences. */
static void check_case(const build_case *c, int64_t batch)
{
    const double h = 1e-5;
    made m;
    values v, w;

    make(&m, c, batch, true);
    v = values_make(m.p);
    w = values_make(m.p);
    values_fill(&v, 3, VOCABULARY);
    values_fill(&w, 3, VOCABULARY);
    (void)loss_of(&v);
    for (uint32_t i = 0; i < m.p->value_count; i++) {
        uint32_t param = 0;

        if (m.p->values[i].kind != DDP_VALUE_GRAD) continue;
        while (m.p->values[param].kind != DDP_VALUE_PARAM || m.p->values[param].index != m.p->values[i].index) param++;
        for (int64_t e = 0; e < m.p->values[i].elements; e++) {
            double kept = w.at[param].data[e], up, down, slope;

            w.at[param].data[e] = kept + h;
            up = loss_of(&w);
            w.at[param].data[e] = kept - h;
            down = loss_of(&w);
            w.at[param].data[e] = kept;
            slope = (up - down) / (2 * h);
            if (!(fabs(slope - v.at[i].data[e]) <= 1e-8 * (1.0 + fabs(slope))))
                fail_msg("%s, batch %d, \"%s\"[%d]: %.12g, finite difference %.12g", c->name, (int)batch,
                         m.p->values[i].name, (int)e, v.at[i].data[e], slope);
        }
    }
    values_free(&v);
    values_free(&w);
    unmake(&m);
}

static void gradients(void **state)
{
    (void)state;
    for (size_t i = 0; i < DDP_COUNT(cases); i++) {
        check_case(&cases[i], 1);
        check_case(&cases[i], 3);
    }
}

/* A program that does not train draws nothing and has no outputs that only gradients read. */
static void evaluation(void **state)
{
    (void)state;
    for (size_t i = 0; i < DDP_COUNT(cases); i++) {
        made m;

        make(&m, &cases[i], 2, false);
        for (uint32_t n = 0; n < m.p->node_count; n++) {
            const ddp_node *node = &m.p->nodes[n];

            assert_int_not_equal(node->op, DDP_OP_DROPOUT);
            if (node->op == DDP_OP_ATTENTION || node->op == DDP_OP_ATTENTION_APART)
                assert_true(node->attrs.attention.dropout == 0.0);
            for (uint32_t k = 1; k < node->out_count; k++) assert_int_equal(node->out[k], -1);
        }
        values v = values_make(m.p);
        values_fill(&v, 3, VOCABULARY);
        assert_true(isfinite(loss_of(&v)));
        values_free(&v);
        unmake(&m);
    }
}

/* Words of ddp_philox, known answers of Random123's Philox4x32-10, and where they are used. */
static void masks(void **state)
{
    static const uint32_t zero[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
    const ddp_random none = {0};
    uint32_t word[4];
    double kept = 0.0;

    (void)state;
    ddp_philox(&none, 0, 0, word);
    assert_memory_equal(word, zero, sizeof(zero));
    for (uint64_t e = 0; e < 4; e++) {
        double edge = (double)zero[e] / 4294967296.0;

        assert_true(ddp_dropout_factor(&none, 0, e, edge) != 0.0); /* kept: the word is not below it */
        assert_true(ddp_dropout_factor(&none, 0, e, edge + 0x1p-32) == 0.0);
    }
    assert_true(ddp_dropout_factor(&none, 0, 0, 1.0) == 0.0);
    assert_true(ddp_dropout_factor(&none, 0, 0, 0.0) == 1.0);
    for (uint64_t e = 0; e < 20000; e++) kept += ddp_dropout_factor(&step_random, 3, e, 0.25);
    assert_true(fabs(kept / 20000 - 1.0) < 0.02);
}

/* Two ops that draw differ, and the next step draws again. */
static ddp_tensor build_twice(ddp_graph *g) { return ddp_dropout(g, ddp_dropout(g, x_of(g), 0.5), 0.5); }

static void places(void **state)
{
    const build_case c = {"dropout twice", build_twice};
    const ddp_random next = {.seed = 5, .stream = 78};
    uint32_t place[2], found = 0, differ[2] = {0};
    made m;

    (void)state;
    make(&m, &c, 4, true);
    for (uint32_t n = 0; n < m.p->node_count; n++)
        if (m.p->nodes[n].op == DDP_OP_DROPOUT) place[found++] = m.p->nodes[n].attrs.dropout.place;
    assert_int_equal(found, 2);
    for (uint64_t e = 0; e < 1000; e++) {
        double f = ddp_dropout_factor(&step_random, place[0], e, 0.5);

        differ[0] += f != ddp_dropout_factor(&step_random, place[1], e, 0.5);
        differ[1] += f != ddp_dropout_factor(&next, place[0], e, 0.5);
    }
    for (int i = 0; i < 2; i++) assert_in_range(differ[i], 400, 600);
    unmake(&m);
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */
typedef struct refusal {
    ddp_tensor (*build)(ddp_graph *g);
    const char *text[3];
} refusal;

static ddp_tensor bad_heads(ddp_graph *g) { return attend(g, 4, 1, 0.0); }
static ddp_tensor bad_probability(ddp_graph *g) { return attend(g, 2, 1, 1.5); }
static ddp_tensor bad_dropout(ddp_graph *g) { return ddp_dropout(g, x_of(g), -0.5); }
static ddp_tensor bad_packed(ddp_graph *g)
{
    return ddp_causal_attention(g, ddp_linear(g, x_of(g), 3 * E + 1, 1, "c_attn"), 2, 0.0);
}
static ddp_tensor bad_index(ddp_graph *g) { return ddp_embedding(g, ddp_input(g, "x"), 5, E, 1.0, NULL, "wte"); }
static ddp_tensor bad_length(ddp_graph *g) { return ddp_position_embedding(g, x_of(g), T - 1, 1.0, NULL, "wpe"); }
static ddp_tensor bad_apart(ddp_graph *g, uint32_t heads, uint32_t kv_heads, const char *k, const char *segment)
{
    const ddp_attention_spec s = {.heads = heads, .kv_heads = kv_heads};

    return ddp_attention_apart(g, ddp_input(g, "x"), ddp_input(g, k), ddp_input(g, "x"), ddp_input(g, segment), &s);
}
static ddp_tensor bad_groups(ddp_graph *g) { return bad_apart(g, 3, 2, "x", "segment"); }
static ddp_tensor bad_split(ddp_graph *g) { return bad_apart(g, 4, 2, "x", "segment"); }
static ddp_tensor bad_keys(ddp_graph *g) { return bad_apart(g, 3, 3, "qkv", "segment"); }
static ddp_tensor bad_key_heads(ddp_graph *g) { return bad_apart(g, 3, 1, "x", "segment"); }
static ddp_tensor bad_segment(ddp_graph *g) { return bad_apart(g, 3, 3, "x", "x"); }
static ddp_tensor bad_weight(ddp_graph *g)
{
    ddp_tensor in[3] = {x_of(g), ddp_input(g, "x"), ddp_input(g, "x")};

    return g->api->op(g, DDP_OP_LAYER_NORM, NULL, 3, in, "ln");
}
static ddp_tensor bad_vocabulary(ddp_graph *g)
{
    return ddp_embedding(g, ddp_input(g, "token"), VOCABULARY - 1, E, 1.0, NULL, "wte");
}

static ddp_tensor bad_scale(ddp_graph *g)
{
    ddp_tensor in[2] = {x_of(g), ddp_input(g, "x")};

    return g->api->op(g, DDP_OP_RMS_NORM, NULL, 2, in, "norm");
}
static ddp_tensor bad_pairs(ddp_graph *g) { return turned(g, 0, &(ddp_rope_spec){.head_dim = 3, .theta = 1e4}); }
static ddp_tensor bad_head(ddp_graph *g) { return turned(g, 0, &(ddp_rope_spec){.head_dim = 4, .theta = 1e4}); }
static ddp_tensor bad_factor(ddp_graph *g)
{
    return turned(g, 0, &(ddp_rope_spec){.head_dim = 2, .theta = 1e4, .kind = DDP_ROPE_LINEAR, .factor = 0.5});
}
static ddp_tensor bad_factors(ddp_graph *g)
{
    const ddp_rope_spec spec = {
        .head_dim = 2, .theta = 1e4, .kind = DDP_ROPE_LLAMA3, .factor = 8, .original_context = 64};

    return turned(g, 0, &spec);
}
static ddp_tensor bad_position(ddp_graph *g)
{
    return ddp_rope(g, x_of(g), ddp_input(g, "qkv"), &(ddp_rope_spec){.head_dim = 2, .theta = 1e4});
}
static ddp_tensor bad_pair(ddp_graph *g) { return ddp_mul(g, x_of(g), ddp_input(g, "qkv")); }

static const refusal refusals[] = {
    {bad_scale, {"rms_norm \"norm\"", "the weight (N, 5, 6)", "last dimension"}},
    {bad_pairs, {"rope \"rope\"", "3 features", "even"}},
    {bad_head, {"rope", "(N, 5, 6)", "heads x 4"}},
    {bad_factor, {"rope", "factor is 0.5", "from 1 on"}},
    {bad_factors, {"rope", "low_freq_factor is 0", "larger"}},
    {bad_position, {"rope", "the position has dtype f32", "i64"}},
    {bad_pair, {"mul \"mul\"", "(N, 5, 6) and (N, 5, 18)", "nothing is broadcast"}},
    {bad_heads, {"attention \"attn\"", "(N, 5, 18)", "6 features cannot be split over 4 heads"}},
    {bad_probability, {"attention", "probability", "1.5"}},
    {bad_dropout, {"dropout", "probability", "-0.5"}},
    {bad_packed, {"attention", "(N, 5, 19)", "3 E"}},
    {bad_split, {"attention_apart", "q (N, 5, 6)", "6 features cannot be split over 4 heads"}},
    {bad_groups, {"attention_apart", "3 heads", "among 2 heads of k and v"}},
    {bad_keys, {"attention_apart", "k is (N, 5, 18)", "it must be (N, 5, 6): 3 heads of 2 features"}},
    {bad_key_heads, {"attention_apart", "k is (N, 5, 6)", "it must be (N, 5, 2): 1 heads of 2 features"}},
    {bad_segment, {"attention_apart", "the segment has dtype f32", "i64"}},
    {bad_index, {"embedding \"wte\"", "the index has dtype f32", "i64"}},
    {bad_length, {"position \"wpe\"", "5 positions", "only 4"}},
    {bad_weight, {"layer_norm \"ln\"", "the weight (N, 5, 6)", "last dimension"}},
    {bad_vocabulary, {"embedding \"wte\"", "\"token\" has values from 0 to 6", "vocabulary has 6 (0 to 5)"}},
};

static void refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < DDP_COUNT(refusals); i++) {
        ddp_err err = {0};
        ddp_graph *g;
        ddp_tensor y;
        ddp_status st;

        ok(ddp_graph_create(fields, DDP_COUNT(fields), &g, &err));
        y = refusals[i].build(g);
        ddp_loss(g, ddp_mse(g, y, ddp_input(g, "target")));
        st = ddp_graph_status(g, &err);
        if (st == DDP_OK) st = ddp_graph_finish(g, &err);
        assert_int_not_equal(st, DDP_OK);
        for (int k = 0; k < 3; k++) assert_has(err.msg, refusals[i].text[k]);
        ddp_graph_free(g);
    }
}

/* The reference of an embedding says which index is outside. */
static void bad_indices(void **state)
{
    const build_case c = {"embedding", build_embedding};
    ddp_err err = {0};
    made m;
    values v;

    (void)state;
    make(&m, &c, 2, true);
    v = values_make(m.p);
    values_fill(&v, 3, VOCABULARY);
    for (uint32_t i = 0; i < m.p->value_count; i++)
        if (m.p->values[i].kind == DDP_VALUE_INPUT && m.p->values[i].dtype == DDP_I64) v.at[i].data[4] = VOCABULARY;
    assert_int_equal(ddp_reference_run(m.p, &step_random, v.at, &err), DDP_ERR_DATA);
    assert_has(err.msg, "element 4 has index 7");
    assert_has(err.msg, "wte");
    values_free(&v);
    unmake(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(gradients), cmocka_unit_test(evaluation),
                                       cmocka_unit_test(masks),     cmocka_unit_test(places),
                                       cmocka_unit_test(refused),   cmocka_unit_test(bad_indices)};

    return cmocka_run_group_tests_name("ops of sequences", tests, NULL, NULL);
}
