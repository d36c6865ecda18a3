/* tests of graph/cached.c: the reference gives the outputs of a whole context piece by piece, whatever the pieces and
 * whatever the cache had before; what cannot be cut so is refused, with the layer named. */
#include "support/graph_util.h"

enum { T = 7, E = 6, VOCABULARY = 9, LAYERS = 2 };

static const ddp_field fields[] = {
    {.name = "token", .dtype = DDP_I64, .rank = 1, .dims = {T}, .min = 0, .max = VOCABULARY - 1},
    {.name = "label", .dtype = DDP_I64, .rank = 1, .dims = {T}, .min = 0, .max = VOCABULARY - 1},
    {.name = "segment", .dtype = DDP_I64, .rank = 1, .dims = {T}, .min = 0, .max = VOCABULARY - 1},
    {.name = "position", .dtype = DDP_I64, .rank = 1, .dims = {T}, .min = 0, .max = T - 1},
    {.name = "one", .dtype = DDP_F32, .rank = 1, .dims = {E}, .min = 1, .max = 0},
};

typedef ddp_tensor (*change_fn)(ddp_graph *g, ddp_tensor x);

static ddp_tensor attend(ddp_graph *g, ddp_tensor x, bool causal, const char *name)
{
    ddp_attrs attrs = {.attention = {.scale = 0.7, .dropout = 0.2, .heads = 2, .causal = causal}};

    x = ddp_linear(g, x, 3 * E, 1, "c_attn");
    return g->api->op(g, DDP_OP_ATTENTION, &attrs, 1, &x, name);
}

static ddp_tensor same(ddp_graph *g, ddp_tensor x)
{
    (void)g;
    return x;
}

/* Rows without the sample in front, and back; dropout is nothing here. */
static ddp_tensor other_shapes(ddp_graph *g, ddp_tensor x)
{
    const int64_t rows[] = {-T, 2, E / 2}, back[] = {DDP_N, T, E};

    x = ddp_reshape(g, ddp_dropout(g, x, 0.4), 3, rows);
    return ddp_reshape(g, ddp_relu(g, ddp_linear(g, x, E / 2, 1, "halves")), 3, back);
}

static ddp_tensor seen_by_all(ddp_graph *g, ddp_tensor x)
{
    ddp_scope(g, "more");
    x = attend(g, x, false, "sees_all");
    ddp_scope_end(g);
    return x;
}

/* As LLaMA has it: three heads of q and one of k and v. */
static ddp_tensor apart(ddp_graph *g, ddp_tensor x, ddp_tensor position, ddp_tensor segment, int causal)
{
    const ddp_attention_spec spec = {.heads = 3, .kv_heads = 1, .causal = causal, .dropout = 0.2};
    const ddp_rope_spec rope = {.head_dim = E / 3, .theta = 100.0};
    ddp_tensor q = ddp_rope(g, ddp_linear(g, x, E, 0, "q_proj"), position, &rope);
    ddp_tensor k = ddp_rope(g, ddp_linear(g, x, E / 3, 0, "k_proj"), position, &rope);
    ddp_tensor v = ddp_linear(g, x, E / 3, 0, "v_proj");

    x = ddp_rms_norm(g, ddp_add(g, x, ddp_attention_apart(g, q, k, v, segment, &spec)), 1e-5, "norm");
    return ddp_mul(g, ddp_silu(g, ddp_linear(g, x, E, 0, "gate_proj")), x);
}
static ddp_tensor llama(ddp_graph *g, ddp_tensor x) { return apart(g, x, (ddp_tensor){-1}, (ddp_tensor){-1}, 1); }
static ddp_tensor packed(ddp_graph *g, ddp_tensor x)
{
    return apart(g, x, ddp_input(g, "position"), ddp_input(g, "segment"), 1);
}
static ddp_tensor seen_apart(ddp_graph *g, ddp_tensor x)
{
    ddp_scope(g, "more");
    x = apart(g, x, (ddp_tensor){-1}, (ddp_tensor){-1}, 0);
    ddp_scope_end(g);
    return x;
}

static ddp_tensor flat(ddp_graph *g, ddp_tensor x)
{
    const int64_t dims[] = {DDP_N, T, E};

    return ddp_reshape(g, ddp_linear(g, ddp_flatten(g, x), T * E, 1, "mixer"), 3, dims);
}

/* (N, T, E) as (N, E, T): the last dimension is no row of features any more. */
static ddp_tensor turned(ddp_graph *g, ddp_tensor x)
{
    const int64_t dims[] = {DDP_N, E, T}, back[] = {DDP_N, T, E};

    return ddp_reshape(g, ddp_linear(g, ddp_reshape(g, x, 3, dims), T, 1, "mixer"), 3, back);
}

typedef struct made {
    ddp_graph *g;
    ddp_layout *layout;
    uint64_t more; /* features of further keys of a layer */
} made;

static made make(change_fn change)
{
    ddp_err err = {0};
    made m = {.more = change == llama || change == packed ? E / 3 : 0};
    ddp_tensor x, table;

    ok(ddp_graph_create(fields, DDP_COUNT(fields), &m.g, &err));
    x = ddp_embedding(m.g, ddp_input(m.g, "token"), VOCABULARY, E, 0.5, &table, "wte");
    x = ddp_position_embedding(m.g, x, T + 2, 0.5, NULL, "wpe");
    for (int i = 0; i < LAYERS; i++) {
        ddp_scope(m.g, "h.%d", i);
        x = ddp_add(m.g, x, attend(m.g, ddp_layer_norm(m.g, x, "ln_1"), true, "attn"));
        x = change(m.g, ddp_add(m.g, x, ddp_gelu(m.g, ddp_linear(m.g, x, E, 1, "fc"), 1)));
        ddp_scope_end(m.g);
    }
    x = ddp_linear_tied(m.g, x, table, "head");
    ddp_loss(m.g, ddp_cross_entropy(m.g, x, ddp_input(m.g, "label")));
    ddp_output(m.g, "logits", x);
    ok(ddp_graph_status(m.g, &err));
    ok(ddp_graph_finish(m.g, &err));
    ok(ddp_layout_create(m.g, 1 << 20, 1 << 20, 1, &m.layout, &err));
    return m;
}

static void unmake(made *m)
{
    ddp_layout_free(m->layout);
    ddp_graph_free(m->g);
}

static int32_t find(const ddp_program *p, uint32_t kind, int32_t index)
{
    for (uint32_t i = 0; i < p->value_count; i++)
        if (p->values[i].kind == kind && p->values[i].index == index) return (int32_t)i;
    fail();
    return -1;
}

/* ---- the same outputs -------------------------------------------------------------------------------------------- */
/* Runs tokens start .. of the whole row, and compares their logits. The cache goes from one program to the next. */
static void piece(const made *m, const values *whole, double *cache, int64_t start, int64_t positions)
{
    const double *tokens = whole->at[find(whole->p, DDP_VALUE_INPUT, 0)].data;
    ddp_program *p;
    ddp_err err = {0};
    values v;
    uint64_t at = 0;

    ok(ddp_program_create_cached(m->g, m->layout, positions, &p, &err));
    assert_int_equal(p->metric_count, 1);
    v = values_make(p);
    values_fill(&v, 5, VOCABULARY);
    for (uint32_t i = 0; i < p->value_count; i++)
        if (p->values[i].kind == DDP_VALUE_BUFFER) {
            assert_int_equal(p->values[i].offset % 16, 0);
            memcpy(v.at[i].data, cache + p->values[i].offset, (size_t)p->values[i].elements * sizeof(double));
        }
    memcpy(v.at[find(p, DDP_VALUE_INPUT, 0)].data, tokens + start, (size_t)positions * sizeof(double));
    v.at[find(p, DDP_VALUE_INPUT, DDP_COUNT(fields))].data[0] = (double)start;
    ok(ddp_reference_run(p, &(ddp_random){0}, v.at, &err));
    for (int64_t i = 0; i < positions * VOCABULARY; i++) {
        double is = v.at[p->metrics[0]].data[i], want = whole->at[whole->p->metrics[0]].data[start * VOCABULARY + i];
        if (!(fabs(is - want) < 1e-12)) fail_msg("position %d + %d: %g, not %g", (int)start, (int)i, is, want);
    }
    for (uint32_t i = 0; i < p->value_count; i++)
        if (p->values[i].kind == DDP_VALUE_BUFFER) {
            memcpy(cache + p->values[i].offset, v.at[i].data, (size_t)p->values[i].elements * sizeof(double));
            at += ddp_round_up((uint64_t)p->values[i].elements, 16);
        }
    assert_true(at == ddp_program_buffer_elements(p));
    assert_true(at == 2ull * LAYERS * 16 * (E + m->more));
    values_free(&v);
    ddp_program_free(p);
}

/* Where it has them: one segment, and positions from 0 on. */
static void one_text(values *v)
{
    for (uint32_t i = 0; i < v->p->value_count; i++)
        for (int64_t t = 0; v->p->values[i].kind == DDP_VALUE_INPUT && t < T; t++) {
            if (strcmp(v->p->values[i].name, "segment") == 0) v->at[i].data[t] = 1.0;
            if (strcmp(v->p->values[i].name, "position") == 0) v->at[i].data[t] = (double)t;
        }
}

static void pieces(change_fn change)
{
    static const int64_t cuts[][T + 1] = {{7}, {1, 1, 1, 1, 1, 1, 1}, {3, 4}, {5, 1, 1}, {1, 2, 3, 1}};
    made m = make(change);
    ddp_program *p;
    ddp_err err = {0};
    values whole;

    ok(ddp_program_create_outputs(m.g, m.layout, 1, &p, &err));
    whole = values_make(p);
    values_fill(&whole, 5, VOCABULARY);
    one_text(&whole);
    ok(ddp_reference_run(p, &(ddp_random){0}, whole.at, &err));
    for (size_t i = 0; i < DDP_COUNT(cuts); i++) {
        double cache[2 * LAYERS * 16 * 2 * E];
        int64_t start = 0;

        for (size_t e = 0; e < DDP_COUNT(cache); e++) cache[e] = (double)NAN; /* nothing of it may be seen */
        for (size_t k = 0; k <= T && cuts[i][k] > 0; start += cuts[i][k++]) piece(&m, &whole, cache, start, cuts[i][k]);
        assert_int_equal(start, T);
        piece(&m, &whole, cache, 2, 3); /* again, from a position that is known */
    }
    values_free(&whole);
    ddp_program_free(p);
    unmake(&m);
}

static void test_pieces(void **state)
{
    (void)state;
    pieces(same);
    pieces(other_shapes);
    pieces(llama);
    pieces(packed);
}

/* ---- what is refused --------------------------------------------------------------------------------------------- */
static void refuses(change_fn change, const char *layer)
{
    made m = make(change);
    ddp_program *p = NULL;
    ddp_err err = {0};

    assert_int_equal(ddp_program_create_cached(m.g, m.layout, 1, &p, &err), DDP_ERR_UNSUPPORTED);
    assert_has(err.msg, layer);
    assert_has(err.msg, "other positions");
    unmake(&m);
}

static void test_refused(void **state)
{
    (void)state;
    refuses(seen_by_all, "attention \"h.0.more.sees_all\"");
    refuses(seen_apart, "attention_apart \"h.0.more.attention_apart\"");
    refuses(flat, "reshape \"h.0.");
    refuses(turned, "reshape \"h.0.");
}

/* A field that is no row of tokens. */
static void test_no_tokens(void **state)
{
    ddp_err err = {0};
    made m;
    ddp_program *p = NULL;
    ddp_tensor x;

    (void)state;
    ok(ddp_graph_create(fields + 4, 1, &m.g, &err));
    x = ddp_linear(m.g, ddp_input(m.g, "one"), E, 1, "fc");
    ddp_loss(m.g, ddp_mse(m.g, x, ddp_input(m.g, "one")));
    ddp_output(m.g, "y", x);
    ok(ddp_graph_finish(m.g, &err));
    ok(ddp_layout_create(m.g, 1 << 20, 1 << 20, 1, &m.layout, &err));
    assert_int_equal(ddp_program_create_cached(m.g, m.layout, 1, &p, &err), DDP_ERR_UNSUPPORTED);
    assert_has(err.msg, "linear \"fc\"");
    unmake(&m);
}

/* A run that does not fit, and more positions than there are: the context is all there is. */
static void test_bounds(void **state)
{
    made m = make(same);
    ddp_program *p;
    ddp_err err = {0};
    values v;

    (void)state;
    ok(ddp_program_create_cached(m.g, m.layout, 1000, &p, &err));
    assert_int_equal(p->values[find(p, DDP_VALUE_INPUT, 0)].dims[1], T);
    v = values_make(p);
    values_fill(&v, 5, VOCABULARY);
    v.at[find(p, DDP_VALUE_INPUT, DDP_COUNT(fields))].data[0] = 3.0; /* 3 .. 9 of the 9 positions that wpe has */
    assert_int_equal(ddp_reference_run(p, &(ddp_random){0}, v.at, &err), DDP_ERR_DATA);
    assert_has(err.msg, "position_at");
    assert_has(err.msg, "7 positions from 3 on, there are 9");
    values_free(&v);
    ddp_program_free(p);
    unmake(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pieces), cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_no_tokens), cmocka_unit_test(test_bounds)};

    return cmocka_run_group_tests_name("cached programs", tests, NULL, NULL);
}
