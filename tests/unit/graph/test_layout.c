/* test_layout.c -- arenas and buckets against those of torch's compute_bucket_assignment_by_size, and the first
 * parameters against torch.manual_seed and torch.nn.Linear. The expected numbers are PyTorch 1.13's. */
#include "support/graph_util.h"

static const ddp_field fields[] = {
    {.name = "input", .dtype = DDP_F32, .rank = 1, .dims = {784}, .min = 1, .max = 0},
    {.name = "small", .dtype = DDP_F32, .rank = 1, .dims = {3}, .min = 1, .max = 0},
    {.name = "label", .dtype = DDP_I64, .rank = 0, .min = 1, .max = 0},
};

static ddp_graph *mlp(const char *field, const int64_t *widths)
{
    ddp_graph *g;
    ddp_err err = {0};
    ddp_tensor x;

    ok(ddp_graph_create(fields, DDP_COUNT(fields), &g, &err));
    x = ddp_input(g, field);
    for (int i = 0; widths[i] > 0; i++) x = ddp_linear(g, x, widths[i], 1, "fc%d", i + 1);
    ddp_loss(g, ddp_cross_entropy(g, x, ddp_input(g, "label")));
    ok(ddp_graph_finish(g, &err));
    return g;
}

/* Slices do not overlap, are aligned, lie in the bucket that has them; buckets fill the arena. */
static void check_layout(const ddp_graph *g, const ddp_layout *l, uint32_t world)
{
    const ddp_param_info *p;
    uint32_t count = ddp_graph_params(g, &p), seen = 0;
    uint64_t at = 0;

    assert_int_equal(l->param_count, count);
    for (uint32_t b = 0; b < l->bucket_count; b++) {
        const ddp_bucket *k = &l->buckets[b];

        assert_int_equal(k->first, at);
        assert_int_equal(k->count % (world * 16u), 0);
        assert_int_equal(k->first_param, seen);
        assert_true(k->param_count > 0);
        for (uint32_t i = 0; i < k->param_count; i++) {
            uint32_t q = l->order[seen++];

            assert_int_equal(l->offset[q] % 16, 0);
            assert_true(l->offset[q] >= at);
            at = l->offset[q] + p[q].elements;
        }
        assert_true(at <= k->first + k->count);
        if (b + 1 == l->bucket_count) {
            assert_true(l->extra_offset >= at && l->extra_offset - at < 16);
            assert_true(l->extra_offset + DDP_EXTRA <= k->first + k->count);
        }
        at = k->first + k->count;
    }
    assert_int_equal(seen, count);
    assert_int_equal(at, l->elements);
}

/* `counts`: parameters a bucket, 0 at the end; in all cases the order is the reverse of the declarations. */
static void buckets_are(ddp_graph *g, uint64_t first, uint64_t bytes, const uint32_t *counts)
{
    static const uint32_t worlds[] = {1, 2, 3, 7};
    ddp_err err = {0};

    for (size_t w = 0; w < DDP_COUNT(worlds); w++) {
        ddp_layout *l;
        uint32_t n = 0;

        ok(ddp_layout_create(g, first, bytes, worlds[w], &l, &err));
        while (counts[n] > 0) n++;
        assert_int_equal(l->bucket_count, n);
        for (uint32_t b = 0; b < n; b++) assert_int_equal(l->buckets[b].param_count, counts[b]);
        for (uint32_t i = 0; i < l->param_count; i++) assert_int_equal(l->order[i], l->param_count - 1 - i);
        check_layout(g, l, worlds[w]);
        ddp_layout_free(l);
    }
    ddp_graph_free(g);
}

static void buckets_of_torch(void **state)
{
    static const int64_t usual[] = {512, 512, 10, 0}, wide[] = {4096, 4096, 10, 0}, toy[] = {5, 2, 0};

    (void)state;
    buckets_are(mlp("input", usual), 1 << 20, 25 << 20, (uint32_t[]){4, 2, 0});
    buckets_are(mlp("input", usual), 1, 1, (uint32_t[]){1, 1, 1, 1, 1, 1, 0});
    buckets_are(mlp("input", usual), 0, 0, (uint32_t[]){1, 1, 1, 1, 1, 1, 0});
    buckets_are(mlp("input", usual), 20480, 1 << 20, (uint32_t[]){2, 2, 2, 0});
    buckets_are(mlp("input", usual), 20520, 1048576, (uint32_t[]){2, 2, 2, 0}); /* exactly full */
    buckets_are(mlp("input", usual), 20521, 1050624, (uint32_t[]){3, 2, 1, 0}); /* a byte more than that */
    buckets_are(mlp("input", usual), 1 << 30, 1, (uint32_t[]){6, 0});
    buckets_are(mlp("input", wide), 1 << 20, 25 << 20, (uint32_t[]){4, 2, 0});
    buckets_are(mlp("small", toy), 48, 200, (uint32_t[]){2, 2, 0});
}

static void offsets_by_hand(void **state)
{
    static const int64_t toy[] = {5, 2, 0};
    ddp_graph *g = mlp("small", toy); /* fc1 (5, 3) and (5); fc2 (2, 5) and (2) */
    ddp_err err = {0};
    ddp_layout *l;

    (void)state;
    ok(ddp_layout_create(g, 1, 1000, 3, &l, &err));
    assert_int_equal(l->bucket_count, 2);
    assert_int_equal(l->offset[3], 0); /* fc2.bias alone: 16 padded to 48 for three ranks */
    assert_int_equal(l->buckets[0].count, 48);
    assert_int_equal(l->offset[2], 48);
    assert_int_equal(l->offset[1], 64);
    assert_int_equal(l->offset[0], 80);
    assert_int_equal(l->extra_offset, 96);
    assert_int_equal(l->buckets[1].count, 96); /* 48 and the extras make 64 */
    assert_int_equal(l->elements, 144);
    ddp_layout_free(l);
    assert_int_equal(ddp_layout_create(g, 1, 1, 0, &l, &err), DDP_ERR_INTERNAL);
    ddp_graph_free(g);
}

/* Not the declaration but the first use on the way to the loss decides, and a metric is not on it. */
static void order_is_first_use(void **state)
{
    ddp_graph *g;
    ddp_err err = {0};
    ddp_layout *l;
    ddp_init_spec init = {.kind = DDP_INIT_CONSTANT};
    int64_t dims[2] = {3, 3};
    ddp_tensor x, label, w[3], in[2];
    const ddp_param_info *p;

    (void)state;
    ok(ddp_graph_create(fields, DDP_COUNT(fields), &g, &err));
    x = ddp_input(g, "small");
    label = ddp_input(g, "label");
    w[0] = g->api->param(g, "last", 2, dims, &init);
    w[1] = g->api->param(g, "first", 2, dims, &init);
    w[2] = g->api->param(g, "middle", 2, dims, &init);
    in[0] = x;
    in[1] = w[0];
    ddp_metric(g, "early", ddp_accuracy(g, g->api->op(g, DDP_OP_LINEAR, NULL, 2, in, "probe"), label));
    for (int i = 1; i <= 4; i++) { /* first, middle, last, first again */
        in[0] = x;
        in[1] = w[i % 3 == 0 ? 0 : i == 4 ? 1 : i];
        x = g->api->op(g, DDP_OP_LINEAR, NULL, 2, in, "fc");
    }
    ddp_loss(g, ddp_cross_entropy(g, x, label));
    ok(ddp_graph_finish(g, &err));
    assert_int_equal(ddp_graph_params(g, &p), 3);
    assert_true(p[1].first_use < p[2].first_use && p[2].first_use < p[0].first_use);
    ok(ddp_layout_create(g, 1, 1, 1, &l, &err));
    assert_int_equal(l->order[0], 0);
    assert_int_equal(l->order[1], 2);
    assert_int_equal(l->order[2], 1);
    ddp_layout_free(l);
    ddp_graph_free(g);
}

static void random_layouts(void **state)
{
    ddp_err err = {0};

    (void)state;
    for (uint64_t seed = 1; seed <= 100; seed++) {
        ddp_graph *g = random_model(seed);
        ddp_layout *l;
        rng r = rng_make(seed);
        uint32_t world = 1 + rng_below(&r, 9);
        uint64_t first = rng_below(&r, 200), bytes = rng_below(&r, 600);

        ok(ddp_layout_create(g, first, bytes, world, &l, &err));
        check_layout(g, l, world);
        ddp_layout_free(l);
        ddp_graph_free(g);
    }
}

/* torch.manual_seed(5); Linear(3, 2); Linear(2, 2) */
static void initial_values_of_torch(void **state)
{
    static const float want[][6] = {
        {0x1.867e84p-2f, -0x1.ba1768p-2f, 0x1.e1cc30p-2f, 0x1.7a4936p-2f, 0x1.f0bc64p-2f, -0x1.c548a8p-2f},
        {-0x1.8cd3f4p-2f, 0x1.1951aep-2f},
        {-0x1.51f3d6p-1f, 0x1.65d3f6p-1f, 0x1.344002p-3f, 0x1.760964p-4f},
        {-0x1.359b4cp-1f, 0x1.cd7eb2p-3f}};
    static const int64_t widths[] = {2, 2, 0};
    ddp_graph *g = mlp("small", widths);
    const ddp_param_info *p;
    ddp_err err = {0};
    ddp_layout *l;
    float *arena;
    uint64_t held = 0, set = 0;

    (void)state;
    ok(ddp_layout_create(g, 1, 1, 2, &l, &err));
    arena = malloc(l->elements * sizeof(*arena));
    assert_non_null(arena);
    memset(arena, 0xff, l->elements * sizeof(*arena));
    ddp_initial_params(g, l, 5, arena);
    assert_int_equal(ddp_graph_params(g, &p), 4);
    for (uint32_t i = 0; i < 4; i++) {
        assert_memory_equal(arena + l->offset[i], want[i], p[i].elements * sizeof(float));
        held += p[i].elements;
    }
    for (uint64_t i = 0; i < l->elements; i++) set += arena[i] != 0.0f; /* a NaN counts too: padding is zero */
    assert_int_equal(set, held);
    free(arena);
    ddp_layout_free(l);
    ddp_graph_free(g);
}

static void constants_draw_nothing(void **state)
{
    ddp_init_spec half = {.kind = DDP_INIT_CONSTANT, .a = 0.5}, uniform = {.kind = DDP_INIT_UNIFORM, .a = -1, .b = 1};
    int64_t dims[2] = {3, 3};
    float first[9];

    (void)state;
    for (int with = 0; with < 2; with++) {
        ddp_graph *g;
        ddp_err err = {0};
        ddp_layout *l;
        ddp_tensor t[3];
        float arena[256];

        ok(ddp_graph_create(fields, DDP_COUNT(fields), &g, &err));
        t[0] = ddp_input(g, "small");
        t[2].id = -1;
        if (with) t[2] = g->api->param(g, "b", 1, dims, &half);
        t[1] = g->api->param(g, "w", 2, dims, &uniform);
        ddp_loss(g, ddp_cross_entropy(g, g->api->op(g, DDP_OP_LINEAR, NULL, 3, t, "fc"), ddp_input(g, "label")));
        ok(ddp_graph_finish(g, &err));
        ok(ddp_layout_create(g, 1, 1, 1, &l, &err));
        assert_true(l->elements <= 256);
        ddp_initial_params(g, l, 3, arena);
        if (with) {
            assert_true(arena[l->offset[0]] == 0.5f && arena[l->offset[0] + 2] == 0.5f);
            assert_memory_equal(arena + l->offset[1], first, sizeof(first));
        } else {
            memcpy(first, arena + l->offset[0], sizeof(first));
        }
        ddp_layout_free(l);
        ddp_graph_free(g);
    }
}

/* Parts lie one behind the other, begin where a bucket may and cover their parameter once; none is much larger than
 * asked. */
static void check_cut(const ddp_graph *g, const ddp_layout *l, uint64_t bytes, uint32_t world)
{
    const ddp_param_info *params;
    int64_t *rows;
    uint64_t at = 0;

    rows = calloc(ddp_graph_params(g, &params), sizeof(*rows));
    for (uint32_t b = 0; b < l->bucket_count; b++) {
        const ddp_bucket *k = &l->buckets[b];
        uint32_t p = l->order[k->first_param];
        uint64_t cols = params[p].elements / (uint64_t)params[p].dims[0], most = bytes / 4 + world * 16 * cols + 16;

        assert_int_equal(k->first, at);
        assert_int_equal(k->count % (world * 16u), 0);
        at += k->count;
        for (uint32_t i = 0; k->rows == 0 && i < k->param_count; i++)
            rows[l->order[k->first_param + i]] += params[l->order[k->first_param + i]].dims[0];
        if (k->rows == 0) continue;
        assert_int_equal(k->param_count, 1);
        assert_int_equal(k->first_row, rows[p]);
        assert_int_equal(k->first, l->offset[p] + (uint64_t)k->first_row * cols);
        rows[p] += k->rows;
        if (rows[p] < params[p].dims[0]) assert_int_equal(k->count, (uint64_t)k->rows * cols);
        assert_true((uint64_t)k->rows * cols <= most);
    }
    assert_int_equal(at, l->elements);
    for (uint32_t p = 0; p < l->param_count; p++) assert_int_equal(rows[p], params[p].dims[0]);
    free(rows);
}

static void cuts_large_parameters(void **state)
{
    ddp_graph *g = mlp("input", (const int64_t[]){517, 1000, 3, 10, 0});

    (void)state;
    for (uint32_t world = 1; world <= 7; world++)
        for (uint64_t bytes = 1 << 10; bytes <= 1 << 24; bytes *= 4) {
            ddp_layout *l;
            ddp_err err = {0};

            ok(ddp_layout_create_cut(g, 1 << 12, bytes, world, &l, &err));
            check_cut(g, l, bytes, world);
            ddp_layout_free(l);
        }
    ddp_graph_free(g);
}

/* What is not trained lies behind what is, in no bucket. */
static void frozen_lie_last(void **state)
{
    ddp_graph *g = mlp("input", (const int64_t[]){24, 17, 10, 0});
    const char *patterns[] = {"fc1.*", "*.bias"};
    const ddp_list list = {.count = 2, .items = patterns};
    const ddp_param_info *params;
    uint32_t count = ddp_graph_params(g, &params), frozen = 0;
    ddp_layout *l;
    ddp_err err = {0};

    (void)state;
    ok(ddp_graph_freeze(g, &list, &err));
    ok(ddp_layout_create_cut(g, 1 << 12, 1 << 12, 3, &l, &err));
    for (uint32_t p = 0; p < count; p++) {
        frozen += params[p].frozen;
        assert_int_equal(params[p].frozen,
                         strcmp(params[p].name, "fc2.weight") != 0 && strcmp(params[p].name, "fc3.weight") != 0);
        assert_int_equal(params[p].frozen, l->offset[p] >= l->elements);
        assert_true(l->offset[p] + params[p].elements <= l->param_elements);
    }
    assert_int_equal(l->trained, count - frozen);
    ddp_layout_free(l);
    ddp_graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cuts_large_parameters),   cmocka_unit_test(frozen_lie_last),
        cmocka_unit_test(buckets_of_torch),        cmocka_unit_test(offsets_by_hand),
        cmocka_unit_test(order_is_first_use),      cmocka_unit_test(random_layouts),
        cmocka_unit_test(initial_values_of_torch), cmocka_unit_test(constants_draw_nothing),
    };

    return cmocka_run_group_tests_name("layout", tests, NULL, NULL);
}
