/* conform/model.c -- a model: it builds a graph that the core can finish, the same every time, and complains about
 * data that do not fit instead of crashing. Its fields are offered as the project's datasets have them; --set says
 * what else it needs. */
#include "conform/suites.h"
#include "conform/harness/leaks.h"
#include "graph/graph.h"
#include <stdlib.h>
#include <string.h>

enum { BATCHES = 3, FIELDS = 5 };

/* What a model of numbers or images asks for, and what a language model does. */
static const ddp_field numbers[FIELDS] = {
    {.name = "image", .dtype = DDP_F32, .rank = 3, .dims = {1, 28, 28}, .min = 1, .max = 0},
    {.name = "label", .dtype = DDP_I64, .rank = 0, .min = 1, .max = 0},
    {.name = "input", .dtype = DDP_F32, .rank = 1, .dims = {10}, .min = 1, .max = 0},
    {.name = "target", .dtype = DDP_F32, .rank = 1, .dims = {2}, .min = 1, .max = 0},
    {.name = "tokens", .dtype = DDP_I64, .rank = 1, .dims = {64}, .min = 1, .max = 0},
};
static const ddp_field text[FIELDS] = {
    {.name = "image", .dtype = DDP_F32, .rank = 3, .dims = {3, 32, 32}, .min = 1, .max = 0},
    {.name = "label", .dtype = DDP_I64, .rank = 0, .min = 1, .max = 0},
    {.name = "input", .dtype = DDP_I64, .rank = 1, .dims = {64}, .min = 1, .max = 0},
    {.name = "target", .dtype = DDP_I64, .rank = 1, .dims = {64}, .min = 1, .max = 0},
    {.name = "tokens", .dtype = DDP_I64, .rank = 1, .dims = {64}, .min = 1, .max = 0},
};
static const ddp_field strange[FIELDS] = {
    {.name = "image", .dtype = DDP_U8, .rank = 0, .min = 1, .max = 0},
    {.name = "label", .dtype = DDP_F32, .rank = 2, .dims = {3, 1}, .min = 1, .max = 0},
    {.name = "input", .dtype = DDP_I64, .rank = 0, .min = 1, .max = 0},
    {.name = "target", .dtype = DDP_U8, .rank = 3, .dims = {2, 1, 2}, .min = 1, .max = 0},
    {.name = "tokens", .dtype = DDP_F32, .rank = 0, .min = 1, .max = 0},
};

static ddp_status build(ddp_rank_process *a, const ddp_field *fields, uint32_t count, ddp_graph **out, ddp_err *err)
{
    const ddp_model_ops *ops = a->plugin->ops;

    DDP_TRY(ddp_graph_create(fields, count, out, err));
    if (ops->build(*out, a->config, err) == DDP_OK && ddp_graph_finish(*out, err) == DDP_OK) return DDP_OK;
    ddp_graph_free(*out);
    *out = NULL;
    return err->status;
}

/* Of the fields on offer those that it takes. */
static ddp_status build_fitting(ddp_rank_process *a, ddp_graph **out, ddp_err *err)
{
    ddp_err other = {0};

    if (build(a, text, FIELDS, out, &other) == DDP_OK) return DDP_OK;
    return build(a, numbers, FIELDS, out, err);
}

static bool same_params(ddp_rank_process *a, const ddp_graph *x, const ddp_graph *y)
{
    const ddp_param_info *p, *q;
    uint32_t n = ddp_graph_params(x, &p), m = ddp_graph_params(y, &q);

    if (!DDP_EXPECT(a, n == m && n > 0, "it has %u parameters, built again %u", n, m)) return false;
    for (uint32_t i = 0; i < n; i++)
        if (!DDP_EXPECT(a,
                        strcmp(p[i].name, q[i].name) == 0 && p[i].rank == q[i].rank &&
                            memcmp(p[i].dims, q[i].dims, p[i].rank * sizeof(p[i].dims[0])) == 0,
                        "parameter %u, \"%.60s\", is another one when it is built again", i, p[i].name))
            return false;
    return DDP_EXPECT(a, ddp_initial_equal(x, y), "its parameters start otherwise when it is built again");
}

/* Programs for several batch sizes, with and without gradients. */
static bool programs(ddp_rank_process *a, const ddp_graph *g)
{
    static const int64_t batches[BATCHES] = {1, 2, 7};
    ddp_layout *layout = NULL;
    ddp_err err = {0};
    bool good = ddp_layout_create(g, 1 << 20, 25 << 20, 2, &layout, &err) == DDP_OK;

    for (uint32_t i = 0; i < 2 * BATCHES && good; i++) {
        ddp_program *p = NULL;

        good = ddp_program_create(g, layout, batches[i / 2], i % 2 == 0, &p, &err) == DDP_OK;
        if (good) ddp_program_free(p);
    }
    if (!good) DDP_FAIL(a, "no program comes of it: %.180s", err.msg);
    if (layout != NULL) ddp_layout_free(layout);
    return good;
}

static void graph(ddp_rank_process *a)
{
    ddp_graph *g, *again;
    ddp_err err = {0};
    ddp_status st = build_fitting(a, &g, &err);

    if (st != DDP_OK) {
        (void)ddp_rank_process_fail_call(a, "build", st, &err);
        return;
    }
    st = build_fitting(a, &again, &err);
    if (st != DDP_OK) {
        (void)ddp_rank_process_fail_call(a, "build for the second time", st, &err);
    } else {
        if (same_params(a, g, again)) (void)programs(a, g);
        ddp_graph_free(again);
    }
    ddp_graph_free(g);
}

/* Data that do not fit: an error with words, never a crash. */
static void refuses(ddp_rank_process *a)
{
    ddp_graph *g;
    ddp_err err = {0};

    if (DDP_EXPECT(a, build(a, numbers, 0, &g, &err) != DDP_OK, "it builds on a dataset without fields"))
        (void)DDP_EXPECT(a, err.msg[0] != '\0', "a dataset without fields is refused without a reason");
    memset(&err, 0, sizeof(err));
    if (build(a, strange, FIELDS, &g, &err) == DDP_OK)
        ddp_graph_free(g);
    else
        (void)DDP_EXPECT(a, err.msg[0] != '\0', "fields of other shapes are refused without a reason");
}

static bool build_once(ddp_rank_process *a, uint32_t i)
{
    ddp_graph *g;
    ddp_err err = {0};
    ddp_status st = build_fitting(a, &g, &err);

    (void)i;
    if (st != DDP_OK) return ddp_rank_process_fail_call(a, "build", st, &err);
    ddp_graph_free(g);
    return true;
}

void conform_model_case(ddp_rank_process *a)
{
    switch (a->c->suite) {
    case DDP_SUITE_RESULTS: graph(a); break;
    case DDP_SUITE_REFUSALS: refuses(a); break;
    default: ddp_leaks_check(a, build_once, 256);
    }
}
