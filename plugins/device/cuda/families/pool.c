/* plugins/device/cuda/families/pool.c -- poolings and their gradients, over images channels last. */
#include "host/cu.h"

#include <stdlib.h>

enum { DY, GRAD_X };                 /* gradients: in; x of a max pooling */
enum { MAX = 0, AVERAGE, ADAPTIVE }; /* kind */

typedef struct pool_state {
    cu_image in;
    cu_window window;
    int64_t oh, ow;
} pool_state;

static ddp_status describe(low_lowering *w, low_kernel *k, const ddp_node *n, int32_t x, int32_t y, ddp_err *err)
{
    const ddp_value *vx = low_value(w->p, x), *vy = low_value(w->p, y);
    pool_state *t = cu_state(k, sizeof(*t), err);

    if (t == NULL) return err->status;
    k->kind = n->op == DDP_OP_MAX_POOL2D || n->op == DDP_OP_MAX_POOL2D_GRAD   ? MAX
              : n->op == DDP_OP_AVG_POOL2D || n->op == DDP_OP_AVG_POOL2D_GRAD ? AVERAGE
                                                                              : ADAPTIVE;
    t->in = (cu_image){.n = vx->dims[0], .h = vx->dims[2], .w = vx->dims[3], .c = vx->dims[1]};
    t->oh = vy->dims[2];
    t->ow = vy->dims[3];
    for (int i = 0; i < 2 && k->kind != ADAPTIVE; i++) {
        t->window.kernel[i] = n->attrs.pool.kernel[i];
        t->window.stride[i] = n->attrs.pool.stride[i];
        t->window.padding[i] = n->attrs.pool.padding[i];
    }
    return DDP_OK;
}

static ddp_status group_pool(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    return describe(w, k, low_node(w->p, node), k->in[0], k->out[0], err);
}

static ddp_status run_pool(const cu_call *c, ddp_err *err)
{
    const pool_state *t = c->k->state;
    cu_view x = c->in[0], y = c->out[0];
    cudaError_t result;

    if (c->k->kind == MAX)
        result = cu_max_pool(c->stream, x, y, t->in, t->window, t->oh, t->ow);
    else if (c->k->kind == AVERAGE)
        result = cu_avg_pool(c->stream, x, y, t->in, t->window, t->oh, t->ow);
    else
        result = cu_adaptive_pool(c->stream, x, y, t->in, t->oh, t->ow);
    return cu_started(c, result, err);
}

const cu_family cu_family_pool = {.base.group = group_pool, .run = run_pool, .base.release = free};

static ddp_status group_gradient(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    return describe(w, k, low_node(w->p, node), k->out[0], k->in[DY], err);
}

static ddp_status run_gradient(const cu_call *c, ddp_err *err)
{
    const pool_state *t = c->k->state;
    cu_view dy = c->in[DY], dx = c->out[0];
    cudaError_t result;

    if (c->k->kind == MAX)
        result = cu_max_pool_grad(c->stream, dy, c->in[GRAD_X], dx, t->in, t->window, t->oh, t->ow, false);
    else if (c->k->kind == AVERAGE)
        result = cu_avg_pool_grad(c->stream, dy, dx, t->in, t->window, t->oh, t->ow, false);
    else
        result = cu_adaptive_pool_grad(c->stream, dy, dx, t->in, t->oh, t->ow, false);
    return cu_started(c, result, err);
}

const cu_family cu_family_pool_grad = {.base.group = group_gradient, .run = run_gradient, .base.release = free};
