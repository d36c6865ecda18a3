/* plugins/device/cuda/families/layer_norm.c -- layer norm, RMS norm and their gradients, each with the add before or
 * after it: common/join.c. */
#include "host/cu.h"

enum { X = LOW_LAYER_X, W = LOW_LAYER_W, B = LOW_LAYER_B, RESIDUAL = LOW_LAYER_RESIDUAL };
enum { Y = LOW_LAYER_Y, MEAN = LOW_LAYER_MEAN, INVSTD = LOW_LAYER_INVSTD, SUM = LOW_LAYER_SUM };
enum { DY = LOW_LAYER_DY, GRAD_X = LOW_LAYER_GRAD_X, GRAD_W = LOW_LAYER_GRAD_W, GRAD_MEAN = LOW_LAYER_GRAD_MEAN };
enum { GRAD_INVSTD = LOW_LAYER_GRAD_INVSTD, PASSED = LOW_LAYER_PASSED };
enum { DX = LOW_LAYER_DX, DW = LOW_LAYER_DW, DB = LOW_LAYER_DB };

/* ---- forward ----------------------------------------------------------------------------------------------------- */
static ddp_status group_forward(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    (void)err;
    low_layer_norm(w, k, node);
    return DDP_OK;
}

static ddp_status run_forward(const cu_call *c, ddp_err *err)
{
    const low_kernel *k = c->k;
    const ddp_attrs *a = cu_attrs(c, k->node_count - 1); /* the last node is the norm */
    double eps = k->kind == DDP_OP_RMS_NORM ? a->rms_norm.eps : a->layer_norm.eps;

    return cu_started(c,
                      cu_layer_norm(c->stream, c->in[X], c->in[RESIDUAL], c->out[SUM], c->in[W].at, c->in[B].at,
                                    c->out[Y], c->out[MEAN].at, c->out[INVSTD].at, k->rows, k->cols, eps),
                      err);
}

const cu_family cu_family_layer_norm = {.base.group = group_forward, .run = run_forward};

/* ---- gradient ---------------------------------------------------------------------------------------------------- */
static ddp_status group_gradient(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    (void)err;
    low_layer_norm_grad(w, k, node);
    k->writes_grad |= 1u << DX;
    k->scratch_bytes = cu_layer_norm_grad_scratch(k->rows, k->cols);
    return DDP_OK;
}

static ddp_status run_gradient(const cu_call *c, ddp_err *err)
{
    const low_kernel *k = c->k;

    return cu_started(c,
                      cu_layer_norm_grad(c->stream, c->in[DY], c->in[GRAD_X], c->in[GRAD_W].at, c->in[GRAD_MEAN].at,
                                         c->in[GRAD_INVSTD].at, c->in[PASSED], c->out[DX], c->out[DW].at, c->out[DB].at,
                                         k->rows, k->cols, cu_adds(c, DX), cu_adds(c, DW), cu_adds(c, DB), c->scratch),
                      err);
}

const cu_family cu_family_layer_norm_grad = {.base.group = group_gradient, .run = run_gradient};
