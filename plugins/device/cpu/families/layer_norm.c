/* fam_layer_norm.c -- layer norm and its gradient:
 *   add + layer_norm        the sum of a residual connection is normalised while it is in the cache
 *   layer_norm_grad + add   what else flows into the input, by the residual connection, is added on the way
 *
 * The sums over rows of the gradient of weight and bias are made by blocks of rows, then added in the order of the blocks, so
 * that the number of threads changes no bit. */
#include "cpu.h"

#include <string.h>

enum { X, W, B, RESIDUAL };                                  /* forward: in */
enum { Y, MEAN, INVSTD, SUM };                               /* forward: out; SUM with a residual */
enum { DY, GRAD_X, GRAD_W, GRAD_MEAN, GRAD_INVSTD, PASSED }; /* gradient: in; PASSED: is added */
enum { DX, DW, DB };                                         /* gradient: out */
enum { BLOCK_ROWS = 32 };

/* ---- forward -------------------------------------------------------------------------------------------------------- */
/* The sums are those of the kernel's own values, not of the graph's. */
static ddp_status group_forward(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    (void)node;
    (void)err;
    k->plain = true;
    k->cols = low_last_dim(low_value(w->p, k->in[X]));
    k->rows = low_value(w->p, k->in[X])->elements / k->cols;
    low_may_replace(k, k->out[Y], k->in[X]);
    return DDP_OK;
}

bool cpu_join_layer_norm(low_lowering *w, low_kernel *k, uint32_t add)
{
    static const uint32_t ops[] = {DDP_OP_LAYER_NORM};
    const ddp_node *a = low_node(w->p, add), *n;
    int64_t norm = low_find_reader(w, add, a->out[0], X, ops, 1);

    n = norm >= 0 ? low_node(w->p, (uint32_t)norm) : NULL;
    if (n == NULL || !low_outside(low_value(w->p, n->in[W])) || !low_outside(low_value(w->p, n->in[B]))) return false;
    if (low_value(w->p, a->out[0])->kind != DDP_VALUE_ACT) return false;
    k->in[RESIDUAL] = a->in[1];
    k->in[W] = n->in[W];
    k->in[B] = n->in[B];
    for (uint32_t i = 0; i < 3; i++) k->out[i] = n->out[i];
    k->out[SUM] = a->out[0];
    k->family = &cpu_family_layer_norm.base;
    k->name = "add+layer_norm";
    k->plain = true;
    k->cols = low_last_dim(low_value(w->p, a->out[0]));
    k->rows = low_value(w->p, a->out[0])->elements / k->cols;
    low_may_replace(k, k->out[SUM], k->in[X]);
    low_may_replace(k, k->out[SUM], k->in[RESIDUAL]);
    low_take(w, k, (uint32_t)norm);
    return true;
}

static const ddp_attrs *norm_attrs(const cpu_call *c) /* the last node is the norm */
{
    return &low_node(c->program, c->k->nodes[c->k->node_count - 1])->attrs;
}

static void forward_rows(void *ctx, int64_t first, int64_t last)
{
    const cpu_call *c = ctx;
    int64_t n = c->k->cols, at = first * n;
    float *y = cpu_out(c, Y), *mean = cpu_out(c, MEAN), *invstd = cpu_out(c, INVSTD), *sum = cpu_out(c, SUM);
    const float *x = cpu_in(c, X), *residual = cpu_in(c, RESIDUAL);

    c->device->kernels->layer_norm(y + at, mean != NULL ? mean + first : NULL, invstd != NULL ? invstd + first : NULL,
                                   sum != NULL ? sum + at : NULL, x + at, residual != NULL ? residual + at : NULL,
                                   cpu_in(c, W), cpu_in(c, B), last - first, n, norm_attrs(c)->layer_norm.eps);
}

static ddp_status run_forward(const cpu_call *c, ddp_err *err)
{
    cpu_call mine = *c;

    (void)err;
    cpu_parallel(c->device->threads, c->k->rows, (CPU_GRAIN + c->k->cols - 1) / c->k->cols, forward_rows, &mine);
    return DDP_OK;
}

const cpu_family cpu_family_layer_norm = {.base.group = group_forward, .run = run_forward};

/* ---- gradient ------------------------------------------------------------------------------------------------------- */
static int64_t padded(const low_kernel *k) { return (k->cols + 15) / 16 * 16; }
static int64_t blocks(const low_kernel *k) { return (k->rows + BLOCK_ROWS - 1) / BLOCK_ROWS; }

/* The node that adds to dx what else flows into the input; it comes right behind, so that nothing else waits for it. */
static void take_add(low_lowering *w, low_kernel *k, uint32_t node)
{
    static const uint32_t ops[] = {DDP_OP_ADD};

    if (k->out[DX] < 0 || !low_read_once(w, k->out[DX])) return;
    for (uint32_t slot = 0; slot < 2; slot++) {
        int64_t add = low_find_reader(w, node, k->out[DX], slot, ops, 1);
        const ddp_node *a = add == (int64_t)node + 1 ? low_node(w->p, node + 1) : NULL;
        if (a == NULL || a->in[0] == a->in[1] || low_value(w->p, a->out[0])->kind != DDP_VALUE_ACT) continue;
        w->inner[k->out[DX]] = true;
        k->in[PASSED] = a->in[1 - slot];
        k->out[DX] = a->out[0];
        k->name = "layer_norm_grad+add";
        low_take(w, k, node + 1);
        return;
    }
}

static ddp_status group_gradient(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    (void)err;
    k->plain = true;
    k->cols = low_last_dim(low_value(w->p, k->in[GRAD_X]));
    k->rows = low_value(w->p, k->in[GRAD_X])->elements / k->cols;
    k->writes_grad = 1u << DW | 1u << DB;
    k->scratch_bytes = 2 * (uint64_t)(blocks(k) * padded(k)) * sizeof(float);
    take_add(w, k, node);
    low_may_replace(k, k->out[DX], k->in[DY]);
    low_may_replace(k, k->out[DX], k->in[PASSED]);
    return DDP_OK;
}

static void gradient_blocks(void *ctx, int64_t first, int64_t last)
{
    const cpu_call *c = ctx;
    const low_kernel *k = c->k;
    float *dx = cpu_out(c, DX), *partial = c->scratch;
    const float *dy = cpu_in(c, DY), *x = cpu_in(c, GRAD_X), *mean = cpu_in(c, GRAD_MEAN);
    const float *invstd = cpu_in(c, GRAD_INVSTD), *passed = cpu_in(c, PASSED);

    for (int64_t b = first; b < last; b++) {
        int64_t r = b * BLOCK_ROWS, rows = k->rows - r < BLOCK_ROWS ? k->rows - r : BLOCK_ROWS, at = r * k->cols;
        float *dw = partial + 2 * b * padded(k);
        c->device->kernels->layer_norm_grad(dx != NULL ? dx + at : NULL, dw, dw + padded(k), dy + at, x + at,
                                            cpu_in(c, GRAD_W), mean + r, invstd + r,
                                            passed != NULL ? passed + at : NULL, rows, k->cols);
    }
}

/* Sums the blocks' parts of columns first .. last - 1 into the first block's. */
static void sum_blocks(void *ctx, int64_t first, int64_t last)
{
    const cpu_call *c = ctx;
    float *partial = c->scratch;

    for (int64_t b = 1; b < blocks(c->k); b++)
        c->device->kernels->add(partial + first, partial + first, partial + 2 * b * padded(c->k) + first, last - first);
}

static void give(const cpu_call *c, uint32_t slot, const float *sums)
{
    float *to = cpu_out(c, slot);

    if (to == NULL) return;
    if (cpu_adds(c, slot))
        c->device->kernels->add(to, to, sums, c->k->cols);
    else
        memcpy(to, sums, (size_t)c->k->cols * sizeof(*to));
}

static ddp_status run_gradient(const cpu_call *c, ddp_err *err)
{
    cpu_call mine = *c;
    const low_kernel *k = c->k;

    (void)err;
    cpu_parallel(c->device->threads, blocks(k), (CPU_GRAIN / BLOCK_ROWS + k->cols - 1) / k->cols, gradient_blocks,
                 &mine);
    cpu_parallel(c->device->threads, 2 * padded(k), CPU_GRAIN, sum_blocks, &mine);
    give(c, DW, c->scratch);
    give(c, DB, (float *)c->scratch + padded(k));
    return DDP_OK;
}

const cpu_family cpu_family_layer_norm_grad = {.base.group = group_gradient, .run = run_gradient};
