/* graph_util.h -- shared by the tests of core/graph: a fixed stream of random numbers, values for the reference
 * runner, and random models built with the public builder. */
#pragma once

#include "graph/graph.h" /* before cmocka.h, whose macro fail() would take the name of a slot */
#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define UNUSED_OK __attribute__((unused))

/* ---- random numbers: xorshift64*, the same on every machine ------------------------------------------------------ */
typedef struct rng {
    uint64_t state;
} rng;

UNUSED_OK static uint64_t rng_next(rng *r)
{
    r->state ^= r->state >> 12;
    r->state ^= r->state << 25;
    r->state ^= r->state >> 27;
    return r->state * UINT64_C(2685821657736338717);
}
UNUSED_OK static rng rng_make(uint64_t seed)
{
    rng r = {seed * UINT64_C(0x9e3779b97f4a7c15) + 1};

    for (int i = 0; i < 4; i++) (void)rng_next(&r);
    return r;
}
UNUSED_OK static uint32_t rng_below(rng *r, uint32_t n) { return (uint32_t)((rng_next(r) >> 32) % n); }
UNUSED_OK static double rng_real(rng *r, double from, double to)
{
    return from + (to - from) * (double)(rng_next(r) >> 11) * 0x1p-53;
}

#define ok(call)                                                                                                       \
    do {                                                                                                               \
        if ((call) != DDP_OK) fail_msg("%s: %s", #call, err.msg);                                                      \
    } while (0)

#define assert_has(text, part)                                                                                         \
    do {                                                                                                               \
        if (strstr(text, part) == NULL) fail_msg("\"%s\" does not contain \"%s\"", text, part);                        \
    } while (0)

/* ---- values of a program ----------------------------------------------------------------------------------------- */
typedef struct values {
    const ddp_program *p;
    ddp_ref_tensor *at;
} values;

UNUSED_OK static values values_make(const ddp_program *p)
{
    values v = {p, calloc(p->value_count, sizeof(ddp_ref_tensor))};

    assert_non_null(v.at);
    for (uint32_t i = 0; i < p->value_count; i++) {
        v.at[i].data = malloc((size_t)p->values[i].elements * sizeof(double));
        assert_non_null(v.at[i].data);
        for (int64_t k = 0; k < p->values[i].elements; k++) v.at[i].data[k] = (double)NAN;
    }
    return v;
}
UNUSED_OK static void values_free(values *v)
{
    for (uint32_t i = 0; i < v->p->value_count; i++) free(v->at[i].data);
    free(v->at);
}
/* INPUT and PARAM by kind and index, so that two programs of one graph get the same numbers. */
UNUSED_OK static void values_fill(values *v, uint64_t seed, uint32_t classes)
{
    for (uint32_t i = 0; i < v->p->value_count; i++) {
        const ddp_value *d = &v->p->values[i];
        rng r = rng_make(seed * 1000 + (uint64_t)d->kind * 200 + (uint64_t)(d->index + 1));

        if (d->kind != DDP_VALUE_INPUT && d->kind != DDP_VALUE_PARAM) continue;
        for (int64_t k = 0; k < d->elements; k++)
            v->at[i].data[k] = d->dtype == DDP_I64 ? (double)rng_below(&r, classes) : rng_real(&r, -1.2, 1.2);
    }
}
UNUSED_OK static double values_loss(const values *v) { return v->at[v->p->loss].data[0]; }

/* ---- random models ----------------------------------------------------------------------------------------------- */
#define MODEL_CLASSES 3

static const ddp_field model_fields[] = {
    {.name = "image", .dtype = DDP_F32, .rank = 3, .dims = {1, 2, 3}, .min = 1, .max = 0},
    {.name = "label", .dtype = DDP_I64, .rank = 0, .min = 0, .max = MODEL_CLASSES - 1},
    {.name = "target", .dtype = DDP_F32, .rank = 1, .dims = {MODEL_CLASSES}, .min = 1, .max = 0},
    {.name = "unused", .dtype = DDP_U8, .rank = 1, .dims = {4}, .min = 1, .max = 0},
};

enum { MODEL_MAX = 64 };

typedef struct model_maker {
    ddp_graph *g;
    rng r;
    ddp_tensor live[MODEL_MAX]; /* (N, width), in order of making */
    bool used[MODEL_MAX];
    uint32_t count;
    ddp_tensor weights[MODEL_MAX]; /* of the layers so far, to share */
    uint32_t weight_count, names;
} model_maker;

UNUSED_OK static int64_t width_of(const model_maker *m, ddp_tensor t)
{
    int64_t dims[DDP_MAX_DIMS];

    assert_int_equal(ddp_dims(m->g, t, dims), 2);
    assert_int_equal(dims[0], DDP_N);
    return dims[1];
}

UNUSED_OK static ddp_tensor param_of(model_maker *m, const char *what, uint32_t rank, int64_t a, int64_t b)
{
    int64_t dims[2] = {a, b};
    ddp_init_spec init = {.kind = DDP_INIT_UNIFORM, .a = -0.5, .b = 0.5};
    char name[32];

    (void)snprintf(name, sizeof(name), "%s%u", what, m->names++);
    return m->g->api->param(m->g, name, rank, dims, &init);
}

/* A weight (out, in): new, one of an earlier layer, or computed from parameters. */
UNUSED_OK static ddp_tensor weight_of(model_maker *m, int64_t out, int64_t in)
{
    ddp_tensor w;

    for (uint32_t i = 0; i < m->weight_count && rng_below(&m->r, 2) == 0; i++) {
        int64_t dims[DDP_MAX_DIMS];
        ddp_tensor t = m->weights[rng_below(&m->r, m->weight_count)];

        if (ddp_dims(m->g, t, dims) == 2 && dims[0] == out && dims[1] == in) return t;
    }
    switch (rng_below(&m->r, 10)) {
    case 0: w = ddp_add(m->g, param_of(m, "wa", 2, out, in), param_of(m, "wb", 2, out, in)); break;
    case 1: w = ddp_gelu(m->g, param_of(m, "wg", 2, out, in), 0); break;
    case 2: {
        int64_t dims[2] = {out, -1};

        w = ddp_reshape(m->g, param_of(m, "wr", 1, out * in, 0), 2, dims);
        break;
    }
    case 3: w = param_of(m, "wd", 2, out, in), w = ddp_add(m->g, w, w); break;
    default: w = param_of(m, "w", 2, out, in);
    }
    if (m->weight_count < MODEL_MAX) m->weights[m->weight_count++] = w;
    return w;
}

UNUSED_OK static ddp_tensor linear_of(model_maker *m, ddp_tensor x, int64_t in, int64_t out)
{
    ddp_tensor t[3] = {x, weight_of(m, out, in), {-1}};
    char name[32];

    if (rng_below(&m->r, 3) > 0) t[2] = param_of(m, "b", 1, out, 0);
    (void)snprintf(name, sizeof(name), "fc%u", m->names++);
    return m->g->api->op(m->g, DDP_OP_LINEAR, NULL, 3, t, name);
}

/* (N, w) as (N, a, w/a) or (N*a, w/a), through a layer that keeps the width, and back. */
UNUSED_OK static ddp_tensor folded_of(model_maker *m, ddp_tensor x, int64_t width)
{
    int64_t a = width % 2 == 0 ? 2 : width % 3 == 0 ? 3 : 1, inner = width / a, back[2] = {DDP_N, width};
    int64_t deep[3] = {DDP_N, a, -1}, folded[2] = {-a, inner};

    x = rng_below(&m->r, 2) ? ddp_reshape(m->g, x, 3, deep) : ddp_reshape(m->g, x, 2, folded);
    x = linear_of(m, x, inner, inner);
    if (rng_below(&m->r, 2)) x = ddp_relu(m->g, x);
    return ddp_reshape(m->g, x, 2, back);
}

UNUSED_OK static void keep(model_maker *m, ddp_tensor t)
{
    assert_true(t.id >= 0);
    m->live[m->count++] = t;
}

/* Often the newest, so that models are deep, else any, so that values are shared. */
UNUSED_OK static uint32_t pick(model_maker *m)
{
    return rng_below(&m->r, 3) ? m->count - 1 : rng_below(&m->r, m->count);
}

UNUSED_OK static void grow_model(model_maker *m)
{
    uint32_t i = pick(m), k;
    ddp_tensor x = m->live[i];
    int64_t width = width_of(m, x);

    m->used[i] = true;
    switch (rng_below(&m->r, 8)) {
    case 0:
    case 1: keep(m, linear_of(m, x, width, 1 + rng_below(&m->r, 6))); break;
    case 2: keep(m, ddp_relu(m->g, x)); break;
    case 3: keep(m, ddp_gelu(m->g, x, 0)); break;
    case 4: keep(m, ddp_gelu(m->g, x, 1)); break;
    case 5: keep(m, folded_of(m, x, width)); break;
    default: /* residual: to a value of its width, or to itself */
        k = pick(m);
        if (width_of(m, m->live[k]) != width) k = i;
        m->used[k] = true;
        keep(m, ddp_add(m->g, x, m->live[k]));
    }
}

/* Every loose end goes through a layer into the sum that the loss is made of. */
UNUSED_OK static void end_model(model_maker *m)
{
    ddp_tensor sum = {-1}, label = ddp_input(m->g, "label"), loss;

    for (uint32_t i = 0; i < m->count; i++) {
        if (m->used[i]) continue;
        ddp_tensor y = linear_of(m, m->live[i], width_of(m, m->live[i]), MODEL_CLASSES);

        sum = sum.id < 0 ? y : ddp_add(m->g, sum, y);
    }
    switch (rng_below(&m->r, 4)) {
    case 0: loss = ddp_cross_entropy(m->g, sum, label); break;
    case 1: loss = ddp_mse(m->g, sum, ddp_input(m->g, "target")); break;
    case 2: loss = ddp_mse(m->g, ddp_input(m->g, "target"), sum); break;
    default:
        loss = ddp_add(m->g, ddp_cross_entropy(m->g, sum, label), ddp_mse(m->g, sum, ddp_input(m->g, "target")));
        loss = ddp_add(m->g, ddp_mse(m->g, ddp_gelu(m->g, sum, 0), ddp_relu(m->g, sum)), loss);
    }
    ddp_loss(m->g, loss);
    ddp_metric(m->g, "accuracy", ddp_accuracy(m->g, ddp_add(m->g, sum, sum), label));
}

/* A random model of some 5 to 60 nodes, finished. */
UNUSED_OK static ddp_graph *random_model(uint64_t seed)
{
    model_maker m = {.r = rng_make(seed)};
    ddp_err err = {0};

    ok(ddp_graph_create(model_fields, DDP_COUNT(model_fields), &m.g, &err));
    keep(&m, ddp_flatten(m.g, ddp_input(m.g, "image")));
    for (uint32_t i = 0, n = 2 + rng_below(&m.r, 18); i < n; i++) grow_model(&m);
    end_model(&m);
    ok(ddp_graph_status(m.g, &err));
    ok(ddp_graph_finish(m.g, &err));
    return m.g;
}
