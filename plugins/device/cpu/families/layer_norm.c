/* plugins/device/cpu/families/layer_norm.c -- layer norm, RMS norm and their gradients, each with the add before or
 * after it: common/join.c.
 *
 * The sums over rows of the gradient of weight and bias are made by blocks of rows, then added in the order of the
 * blocks, so that the number of threads changes no bit. */
#include "cpu.h"

#include <string.h>

enum { X = LOW_LAYER_X, W = LOW_LAYER_W, B = LOW_LAYER_B, RESIDUAL = LOW_LAYER_RESIDUAL };
enum { Y = LOW_LAYER_Y, MEAN = LOW_LAYER_MEAN, INVSTD = LOW_LAYER_INVSTD, SUM = LOW_LAYER_SUM };
enum { DY = LOW_LAYER_DY, GRAD_X = LOW_LAYER_GRAD_X, GRAD_W = LOW_LAYER_GRAD_W, GRAD_MEAN = LOW_LAYER_GRAD_MEAN };
enum { GRAD_INVSTD = LOW_LAYER_GRAD_INVSTD, PASSED = LOW_LAYER_PASSED };
enum { DX = LOW_LAYER_DX, DW = LOW_LAYER_DW, DB = LOW_LAYER_DB };
enum { BLOCK_ROWS = 32 };

/* ---- forward ----------------------------------------------------------------------------------------------------- */
/* The sums are those of the kernel's own values, not of the graph's. */
static ddp_status group_forward(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    (void)err;
    low_layer_norm(w, k, node);
    return DDP_OK;
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

    if (c->k->kind == DDP_OP_RMS_NORM)
        c->device->kernels->rms_norm(y + at, invstd != NULL ? invstd + first : NULL, sum != NULL ? sum + at : NULL,
                                     x + at, residual != NULL ? residual + at : NULL, cpu_in(c, W), last - first, n,
                                     norm_attrs(c)->rms_norm.eps);
    else
        c->device->kernels->layer_norm(y + at, mean != NULL ? mean + first : NULL,
                                       invstd != NULL ? invstd + first : NULL, sum != NULL ? sum + at : NULL, x + at,
                                       residual != NULL ? residual + at : NULL, cpu_in(c, W), cpu_in(c, B),
                                       last - first, n, norm_attrs(c)->layer_norm.eps);
}

static ddp_status run_forward(const cpu_call *c, ddp_err *err)
{
    cpu_call mine = *c;

    (void)err;
    cpu_parallel(c->device->threads, c->k->rows, (CPU_GRAIN + c->k->cols - 1) / c->k->cols, forward_rows, &mine);
    return DDP_OK;
}

const cpu_family cpu_family_layer_norm = {.base.group = group_forward, .run = run_forward};

/* ---- gradient ---------------------------------------------------------------------------------------------------- */
static int64_t padded(const low_kernel *k) { return (k->cols + 15) / 16 * 16; }
static int64_t blocks(const low_kernel *k) { return (k->rows + BLOCK_ROWS - 1) / BLOCK_ROWS; }

static ddp_status group_gradient(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    (void)err;
    low_layer_norm_grad(w, k, node);
    k->scratch_bytes = 2 * (uint64_t)(blocks(k) * padded(k)) * sizeof(float);
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
        if (k->kind == DDP_OP_RMS_NORM_GRAD) {
            c->device->kernels->rms_norm_grad(dx != NULL ? dx + at : NULL, dw, dy + at, x + at, cpu_in(c, GRAD_W),
                                              invstd + r, passed != NULL ? passed + at : NULL, rows, k->cols);
            continue;
        }
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
    cpu_parallel(c->device->threads, k->kind == DDP_OP_RMS_NORM_GRAD ? padded(k) : 2 * padded(k), CPU_GRAIN, sum_blocks,
                 &mine);
    give(c, DW, c->scratch);
    give(c, DB, (float *)c->scratch + padded(k));
    return DDP_OK;
}

const cpu_family cpu_family_layer_norm_grad = {.base.group = group_gradient, .run = run_gradient};
