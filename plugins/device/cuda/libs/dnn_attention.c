/* plugins/device/cuda/libs/dnn_attention.c -- attention by cuDNN's fused kernels: the graphs that it recognises as
 * attention and runs as one kernel, forward, or three, backward.
 *
 * The order of the operations and the layouts between them are a pattern: cuDNN 9 has kernels for this one, and none
 * for others that compute the same. Dimensions are (n, heads, t, size); q, k and v are views of the packed qkv. A
 * transposed matrix is the same memory with its last two dimensions exchanged. The single operation
 * CUDNN_BACKEND_OPERATION_SDPA_FWD has no causal mask before 9.21. */
#include "dnn_graph.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Older ones need a padding mask where t is not a multiple of 128, or have known errors. */
#define LEAST_VERSION 91600
#define MAX_WORKSPACE ((size_t)2 << 30) /* the gradient keeps the gradients of all scores in bf16 */
#define BF16          CUDNN_DATA_BFLOAT16
#define F32           CUDNN_DATA_FLOAT
enum { Q = 1, K, V, Y, LSE, DY, DQ, DK, DV, DELTA, DQ_SUM, SCALE, MINUS_INFINITY, ONE, OPERANDS };

struct cu_dnn_attention {
    cu_attention a; /* of a part */
    int64_t parts;  /* of the batch, one after the other: as few as the limit of workspace allows */
    bool training;
    bool sums;                        /* dq is summed up in memory */
    float scale, minus_infinity, one; /* operands in host memory */
    cu_dnn_graph forward, backward;
};

/* ---- shapes ------------------------------------------------------------------------------------------------------ */
static cu_shape exchanged(cu_shape s)
{
    return (cu_shape){{s.dims[0], s.dims[1], s.dims[3], s.dims[2]},
                      {s.strides[0], s.strides[1], s.strides[3], s.strides[2]}};
}

static cu_shape packed(const cu_attention *a) /* q, k, v */
{
    const int64_t e = a->heads * a->size;

    return (cu_shape){{a->n, a->heads, a->t, a->size}, {a->t * 3 * e, a->size, 3 * e, 1}};
}

static cu_shape alone(const cu_attention *a) /* y */
{
    const int64_t e = a->heads * a->size;

    return (cu_shape){{a->n, a->heads, a->t, a->size}, {a->t * e, a->size, e, 1}};
}

static cu_shape by_head(const cu_attention *a)
{
    return (cu_shape){{a->n, a->heads, a->t, a->size}, {a->heads * a->t * a->size, a->t * a->size, a->size, 1}};
}

static cu_shape scores(const cu_attention *a)
{
    return (cu_shape){{a->n, a->heads, a->t, a->t}, {a->heads * a->t * a->t, a->t * a->t, a->t, 1}};
}

static cu_shape per_row(const cu_attention *a)
{
    return (cu_shape){{a->n, a->heads, a->t, 1}, {a->heads * a->t, a->t, 1, 1}};
}

/* ---- what both graphs have --------------------------------------------------------------------------------------- */
/* A new virtual tensor that is `mode` of x and b. */
static cu_dnn_node apply(cu_dnn_graph *g, cudnnPointwiseMode_t mode, cu_dnn_node x, cu_dnn_node b, const cu_shape *s)
{
    cu_dnn_node y = cu_dnn_graph_virtual(g, F32, s);

    cu_dnn_graph_pointwise(g, mode, F32, -1, x, b, NULL, y);
    return y;
}

/* x where the key is not after the query, else minus infinity. */
static cu_dnn_node mask(cu_dnn_graph *g, cu_dnn_node x, const cu_shape *s)
{
    cu_dnn_node row = cu_dnn_graph_virtual(g, CUDNN_DATA_INT32, s), col = cu_dnn_graph_virtual(g, CUDNN_DATA_INT32, s),
                seen = cu_dnn_graph_virtual(g, CUDNN_DATA_BOOLEAN, s), y = cu_dnn_graph_virtual(g, F32, s);

    cu_dnn_graph_pointwise(g, CUDNN_POINTWISE_GEN_INDEX, F32, 2, x, NULL, NULL, row);
    cu_dnn_graph_pointwise(g, CUDNN_POINTWISE_GEN_INDEX, F32, 3, x, NULL, NULL, col);
    cu_dnn_graph_pointwise(g, CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, -1, row, col, NULL, seen);
    cu_dnn_graph_pointwise(g, CUDNN_POINTWISE_BINARY_SELECT, F32, -1, x, cu_dnn_graph_value(g, MINUS_INFINITY), seen,
                           y);
    return y;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */
static void build_forward(cu_dnn_graph *g, const cu_attention *a, bool training)
{
    const cu_shape qkv = packed(a), transposed = exchanged(qkv), out = alone(a), s = scores(a), row = per_row(a);
    cu_dnn_node score = cu_dnn_graph_virtual(g, F32, &s), largest, power, sum, weight;

    cu_dnn_graph_matmul(g, cu_dnn_graph_tensor(g, Q, BF16, &qkv), cu_dnn_graph_tensor(g, K, BF16, &transposed), score);
    score = apply(g, CUDNN_POINTWISE_MUL, score, cu_dnn_graph_value(g, SCALE), &s);
    if (a->causal) score = mask(g, score, &s);
    largest = cu_dnn_graph_virtual(g, F32, &row);
    cu_dnn_graph_reduce(g, CUDNN_REDUCE_TENSOR_MAX, score, largest);
    power = apply(g, CUDNN_POINTWISE_EXP, apply(g, CUDNN_POINTWISE_SUB, score, largest, &s), NULL, &s);
    sum = cu_dnn_graph_virtual(g, F32, &row);
    cu_dnn_graph_reduce(g, CUDNN_REDUCE_TENSOR_ADD, power, sum);
    cu_dnn_graph_pointwise(g, CUDNN_POINTWISE_ADD, F32, -1, largest, apply(g, CUDNN_POINTWISE_LOG, sum, NULL, &row),
                           NULL,
                           training ? cu_dnn_graph_tensor(g, LSE, F32, &row) : cu_dnn_graph_virtual(g, F32, &row));
    weight = cu_dnn_graph_virtual(g, BF16, &s);
    cu_dnn_graph_pointwise(g, CUDNN_POINTWISE_DIV, F32, -1, power, sum, NULL, weight);
    cu_dnn_graph_matmul(g, weight, cu_dnn_graph_tensor(g, V, BF16, &qkv), cu_dnn_graph_tensor(g, Y, BF16, &out));
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */
/* DELTA, the sums over the rows of dy * y. */
static cu_dnn_node build_delta(cu_dnn_graph *g, const cu_attention *a, cu_dnn_node dy)
{
    const cu_shape out = alone(a), row = per_row(a);
    const cu_shape between = by_head(a);
    cu_dnn_node sum = cu_dnn_graph_virtual(g, F32, &row), delta = cu_dnn_graph_tensor(g, DELTA, F32, &row);

    cu_dnn_graph_reduce(g, CUDNN_REDUCE_TENSOR_ADD,
                        apply(g, CUDNN_POINTWISE_MUL, dy, cu_dnn_graph_tensor(g, Y, BF16, &out), &between), sum);
    cu_dnn_graph_pointwise(g, CUDNN_POINTWISE_MUL, F32, -1, sum, cu_dnn_graph_value(g, ONE), NULL, delta);
    return delta;
}

/* The weights again, from the scores and their log-sum-exp. */
static cu_dnn_node build_weights(cu_dnn_graph *g, const cu_attention *a, cu_dnn_node q, cu_dnn_node k_transposed,
                                 cu_dnn_node scale)
{
    const cu_shape s = scores(a), row = per_row(a);
    cu_dnn_node score = cu_dnn_graph_virtual(g, F32, &s);

    cu_dnn_graph_matmul(g, q, k_transposed, score);
    score = apply(g, CUDNN_POINTWISE_MUL, score, scale, &s);
    score = apply(g, CUDNN_POINTWISE_SUB, score, cu_dnn_graph_tensor(g, LSE, F32, &row), &s);
    if (a->causal) score = mask(g, score, &s);
    return apply(g, CUDNN_POINTWISE_EXP, score, NULL, &s);
}

/* to = x transposed, times b */
static void transposed_product(cu_dnn_graph *g, const cu_shape *s, cu_dnn_node x, cu_dnn_node b, cu_dnn_node to)
{
    const cu_shape transposed = exchanged(*s);
    cu_dnn_node turned = cu_dnn_graph_virtual(g, BF16, &transposed);

    cu_dnn_graph_reshape(g, x, turned);
    cu_dnn_graph_matmul(g, turned, b, to);
}

/* sums: blocks of keys add up dq in memory, in whichever order they end. Else one product over all keys writes it, the
 * same bits in every run; but that needs the gradients of all scores in the workspace. */
static void build_backward(cu_dnn_graph *g, const cu_attention *a, bool sums)
{
    const cu_shape qkv = packed(a), transposed = exchanged(qkv), out = alone(a), s = scores(a), sum_shape = by_head(a);
    cu_dnn_node q = cu_dnn_graph_tensor(g, Q, BF16, &qkv), k_transposed = cu_dnn_graph_tensor(g, K, BF16, &transposed),
                v_transposed = cu_dnn_graph_tensor(g, V, BF16, &transposed),
                dy = cu_dnn_graph_tensor(g, DY, BF16, &out), scale = cu_dnn_graph_value(g, SCALE),
                delta = build_delta(g, a, dy), weight = build_weights(g, a, q, k_transposed, scale), grad, k, dq, sum;

    transposed_product(g, &s, weight, dy, cu_dnn_graph_tensor(g, DV, BF16, &qkv));
    grad = cu_dnn_graph_virtual(g, F32, &s);
    cu_dnn_graph_matmul(g, dy, v_transposed, grad);
    grad = apply(g, CUDNN_POINTWISE_SUB, grad, delta, &s);
    grad = apply(g, CUDNN_POINTWISE_MUL, grad, weight, &s);
    grad = apply(g, CUDNN_POINTWISE_MUL, grad, scale, &s);
    transposed_product(g, &s, grad, q, cu_dnn_graph_tensor(g, DK, BF16, &qkv));
    k = cu_dnn_graph_virtual(g, F32, &qkv);
    cu_dnn_graph_reshape(g, k_transposed, k);
    dq = cu_dnn_graph_tensor(g, DQ, BF16, &qkv);
    sum = sums ? cu_dnn_graph_tensor(g, DQ_SUM, F32, &sum_shape) : dq;
    cu_dnn_graph_matmul(g, grad, k, sum);
    if (sums) cu_dnn_graph_pointwise(g, CUDNN_POINTWISE_IDENTITY, F32, -1, sum, NULL, NULL, dq);
}

/* ---- create ------------------------------------------------------------------------------------------------------ */
static ddp_status check(const cu_dnn *d, const cu_attention *a, ddp_err *err)
{
    if (d->l->cudnnGetVersion() < LEAST_VERSION)
        return ddp_fail(err, DDP_ERR_UNSUPPORTED, "attention by cuDNN needs cuDNN %d.%d or newer, this is %zu",
                        LEAST_VERSION / 10000, LEAST_VERSION / 100 % 100, d->l->cudnnGetVersion());
    if (a->dropout != 0 || a->size % 8 != 0 || a->size > 128 || a->t < 2)
        return ddp_fail(err, DDP_ERR_UNSUPPORTED,
                        "attention by cuDNN: heads of size %lld, length %lld, dropout %g: "
                        "it takes sizes that are multiples of 8 up to 128, lengths from 2, no dropout",
                        (long long)a->size, (long long)a->t, a->dropout);
    return DDP_OK;
}

/* Elements of a part: of y, and of lse. */
static size_t part_size(const cu_attention *a) { return (size_t)(a->n * a->t * a->heads * a->size); }
static size_t part_rows(const cu_attention *a) { return (size_t)(a->n * a->heads * a->t); }

/* Of a part of the batch. */
static ddp_status make_plans(cu_dnn_attention *c, const cu_dnn *d, ddp_err *err)
{
    const cu_dnn_search how = {.limit = MAX_WORKSPACE, .refused = d->deterministic ? CU_NOTE(NONDETERMINISTIC) : 0};

    cu_dnn_graph_begin(&c->forward, d);
    cu_dnn_graph_begin(&c->backward, d);
    build_forward(&c->forward, &c->a, c->training);
    DDP_TRY(cu_dnn_graph_plan(&c->forward, &how, "attention", err));
    if (!c->training) return DDP_OK;
    c->sums = !d->deterministic;
    build_backward(&c->backward, &c->a, c->sums);
    if (c->sums && cu_dnn_graph_plan(&c->backward, &how, "the gradient of attention", err) == DDP_OK) return DDP_OK;
    if (c->sums) {
        cu_dnn_graph_end(&c->backward);
        cu_dnn_graph_begin(&c->backward, d);
        c->sums = false;
        build_backward(&c->backward, &c->a, false);
    }
    return cu_dnn_graph_plan(&c->backward, &how, "the gradient of attention", err);
}

static bool needs_less(const cu_dnn_attention *c) { return c->forward.over_limit || c->backward.over_limit; }

/* More parts, of one size, each of which begins where a tensor may; `n`: the whole batch. */
static bool smaller_parts(cu_dnn_attention *c, int64_t n)
{
    while (++c->parts <= n) {
        if (n % c->parts != 0) continue;
        c->a.n = n / c->parts;
        if (part_rows(&c->a) * sizeof(float) % CU_GRAPH_ALIGNMENT == 0) return true;
    }
    return false;
}

ddp_status cu_dnn_attention_create(cu_dnn *d, const cu_attention *a, bool training, cu_dnn_attention **out,
                                   ddp_err *err)
{
    cu_dnn_attention *c;
    ddp_status status = check(d, a, err);

    if (status != DDP_OK) return status;
    c = calloc(1, sizeof(*c));
    if (c == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "out of memory for attention by cuDNN");
    c->a = *a;
    c->training = training;
    c->scale = (float)a->scale;
    c->minus_infinity = -INFINITY;
    c->one = 1;
    c->parts = 1;
    while ((status = make_plans(c, d, err)) == DDP_ERR_UNSUPPORTED && needs_less(c) && smaller_parts(c, a->n)) {
        cu_dnn_graph_end(&c->forward);
        cu_dnn_graph_end(&c->backward);
    }
    if (status != DDP_OK) {
        cu_dnn_attention_free(c);
        return status;
    }
    *out = c;
    return DDP_OK;
}

void cu_dnn_attention_free(cu_dnn_attention *c)
{
    if (c == NULL) return;
    cu_dnn_graph_end(&c->forward);
    cu_dnn_graph_end(&c->backward);
    free(c);
}

/* ---- run --------------------------------------------------------------------------------------------------------- */
/* Before the plan's workspace, in the gradient: DELTA, then DQ_SUM. */
static size_t rounded(size_t bytes) { return (bytes + 255) / 256 * 256; }
static size_t delta_bytes(const cu_dnn_attention *c) { return rounded(part_rows(&c->a) * sizeof(float)); }
static size_t sum_bytes(const cu_dnn_attention *c) { return c->sums ? rounded(part_size(&c->a) * sizeof(float)) : 0; }

size_t cu_dnn_attention_workspace(const cu_dnn_attention *c, bool gradient)
{
    return gradient ? delta_bytes(c) + sum_bytes(c) + c->backward.workspace : c->forward.workspace;
}

typedef struct operands {
    int64_t uids[OPERANDS];
    void *at[OPERANDS];
    int64_t count;
} operands;

/* cuDNN's table of operands has no const. */
static void add(operands *o, int64_t uid, const void *at)
{
    o->uids[o->count] = uid;
    memcpy(&o->at[o->count++], &at, sizeof(at));
}

static void add_qkv(operands *o, const cu_attention *a, int64_t first_uid, const void *qkv)
{
    for (int64_t i = 0; i < 3; i++) add(o, first_uid + i, (const uint16_t *)qkv + i * a->heads * a->size);
}

static ddp_status run_part(const cu_dnn_attention *c, cudaStream_t s, const void *qkv, void *y, float *lse,
                           void *workspace, ddp_err *err)
{
    operands o = {.count = 0};

    add_qkv(&o, &c->a, Q, qkv);
    add(&o, Y, y);
    if (c->training) add(&o, LSE, lse);
    add(&o, SCALE, &c->scale);
    if (c->a.causal) add(&o, MINUS_INFINITY, &c->minus_infinity);
    return cu_dnn_graph_run(&c->forward, s, o.uids, o.at, o.count, workspace, "attention", err);
}

ddp_status cu_dnn_attention_run(const cu_dnn_attention *c, cudaStream_t s, const void *qkv, void *y, float *lse,
                                void *workspace, ddp_err *err)
{
    size_t size = part_size(&c->a), rows = part_rows(&c->a);

    for (size_t p = 0; p < (size_t)c->parts; p++)
        DDP_TRY(run_part(c, s, (const uint16_t *)qkv + 3 * p * size, (uint16_t *)y + p * size,
                         lse != NULL ? lse + p * rows : NULL, workspace, err));
    return DDP_OK;
}

typedef struct gradient_operands {
    const uint16_t *dy, *qkv, *y;
    const float *lse;
    uint16_t *dqkv;
} gradient_operands;

static ddp_status run_grad_part(const cu_dnn_attention *c, cudaStream_t s, const gradient_operands *g, void *workspace,
                                ddp_err *err)
{
    operands o = {.count = 0};

    add_qkv(&o, &c->a, Q, g->qkv);
    add_qkv(&o, &c->a, DQ, g->dqkv);
    add(&o, Y, g->y);
    add(&o, LSE, g->lse);
    add(&o, DY, g->dy);
    add(&o, DELTA, workspace);
    if (c->sums) add(&o, DQ_SUM, (unsigned char *)workspace + delta_bytes(c));
    add(&o, SCALE, &c->scale);
    add(&o, ONE, &c->one);
    if (c->a.causal) add(&o, MINUS_INFINITY, &c->minus_infinity);
    return cu_dnn_graph_run(&c->backward, s, o.uids, o.at, o.count,
                            (unsigned char *)workspace + delta_bytes(c) + sum_bytes(c), "the gradient of attention",
                            err);
}

ddp_status cu_dnn_attention_run_grad(const cu_dnn_attention *c, cudaStream_t s, const void *dy, const void *qkv,
                                     const void *y, const float *lse, void *dqkv, void *workspace, ddp_err *err)
{
    gradient_operands g = {.dy = dy, .qkv = qkv, .y = y, .lse = lse, .dqkv = dqkv};
    size_t size = part_size(&c->a), rows = part_rows(&c->a);

    for (int64_t p = 0; p < c->parts; p++) {
        DDP_TRY(run_grad_part(c, s, &g, workspace, err));
        g.dy += size, g.y += size;
        g.qkv += 3 * size, g.dqkv += 3 * size;
        g.lse += rows;
    }
    return DDP_OK;
}
