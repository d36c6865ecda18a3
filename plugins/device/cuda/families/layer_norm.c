/* plugins/device/cuda/families/layer_norm.c -- layer norm, RMS norm and their gradients, each with the add before or
 * after it: common/join.c. The gradient of the input may go on into a linear layer: it comes in bf16 besides, for that
 * layer's products, and with the sums that are the gradient of its bias. */
#include "host/cu.h"

enum { X = LOW_LAYER_X, W = LOW_LAYER_W, B = LOW_LAYER_B, RESIDUAL = LOW_LAYER_RESIDUAL };
enum { Y = LOW_LAYER_Y, MEAN = LOW_LAYER_MEAN, INVSTD = LOW_LAYER_INVSTD, SUM = LOW_LAYER_SUM };
enum { DY = LOW_LAYER_DY, GRAD_X = LOW_LAYER_GRAD_X, GRAD_W = LOW_LAYER_GRAD_W, GRAD_MEAN = LOW_LAYER_GRAD_MEAN };
enum { GRAD_INVSTD = LOW_LAYER_GRAD_INVSTD, PASSED = LOW_LAYER_PASSED };
enum { DX = LOW_LAYER_DX, DW = LOW_LAYER_DW, DB = LOW_LAYER_DB, SUMS }; /* SUMS: of a bias in front */

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
static bool writes_slice(const low_lowering *w, uint32_t node, const ddp_value *slice)
{
    const ddp_node *n = low_node(w->p, node);

    for (uint32_t i = 0; i < n->out_count; i++) {
        const ddp_value *out = n->out[i] >= 0 ? low_value(w->p, n->out[i]) : NULL;
        if (out != NULL && out->kind == DDP_VALUE_GRAD && out->offset == slice->offset) return true;
    }
    return false;
}

/* The gradient of a bias that sums dx over the rows. It does not move past another one that adds to its slice. */
static void take_bias(low_lowering *w, low_kernel *k)
{
    static const uint32_t ops[] = {DDP_OP_LINEAR_GRAD_BIAS};
    const uint32_t last = k->nodes[k->node_count - 1];
    const bool added = k->in[PASSED] >= 0, rms = k->kind == DDP_OP_RMS_NORM_GRAD;
    int64_t bias = low_find_reader(w, last, k->out[DX], 0, ops, 1);
    const ddp_node *n = bias >= 0 ? low_node(w->p, (uint32_t)bias) : NULL;

    if (n == NULL || low_value(w->p, k->out[DX])->kind != DDP_VALUE_ACT) return;
    for (uint32_t i = last + 1; i < (uint32_t)bias; i++)
        if (writes_slice(w, i, low_value(w->p, n->out[0]))) return;
    k->out[SUMS] = n->out[0];
    k->out_type[SUMS] = CU_F32;
    k->adds |= (n->accumulate & 1u) << SUMS;
    k->writes_grad |= 1u << SUMS;
    if (rms)
        k->name = added ? "rms_norm_grad+add+bias" : "rms_norm_grad+bias";
    else
        k->name = added ? "layer_norm_grad+add+bias" : "layer_norm_grad+bias";
    low_take(w, k, (uint32_t)bias);
}

static ddp_status group_gradient(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    (void)err;
    low_layer_norm_grad(w, k, node);
    k->writes_grad |= 1u << DX;
    if (k->out[DX] >= 0) k->half_of = DX;
    take_bias(w, k);
    k->scratch_bytes = cu_layer_norm_grad_scratch(k->rows, k->cols, k->out[SUMS] >= 0);
    return DDP_OK;
}

static ddp_status run_gradient(const cu_call *c, ddp_err *err)
{
    const low_kernel *k = c->k;
    const cu_norm_grad g = {.dy = c->in[DY],
                            .x = c->in[GRAD_X],
                            .passed = c->in[PASSED],
                            .dx = c->out[DX],
                            .copy = c->copy,
                            .w = c->in[GRAD_W].at,
                            .mean = c->in[GRAD_MEAN].at,
                            .invstd = c->in[GRAD_INVSTD].at,
                            .dw = c->out[DW].at,
                            .db = c->out[DB].at,
                            .sums = c->out[SUMS].at,
                            .rows = k->rows,
                            .cols = k->cols,
                            .add_x = cu_adds(c, DX),
                            .add_w = cu_adds(c, DW),
                            .add_b = cu_adds(c, DB),
                            .add_sums = cu_adds(c, SUMS)};

    return cu_started(c, cu_layer_norm_grad(c->stream, &g, c->scratch), err);
}

const cu_family cu_family_layer_norm_grad = {.base.group = group_gradient, .run = run_gradient};
