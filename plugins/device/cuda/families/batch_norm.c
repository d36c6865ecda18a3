/* plugins/device/cuda/families/batch_norm.c -- batch norm and its gradient, with what stands between it and the next
 * convolution: ../common/norm.c. */
#include "host/cu.h"

enum { X = LOW_NORM_X, W = LOW_NORM_W, B = LOW_NORM_B, RUNNING_MEAN = LOW_NORM_RUNNING_MEAN };
enum { RUNNING_VAR = LOW_NORM_RUNNING_VAR, OTHER = LOW_NORM_OTHER };
enum { Y = LOW_NORM_Y, MEAN = LOW_NORM_MEAN, INVSTD = LOW_NORM_INVSTD };
enum { DY = LOW_NORM_DY, GRAD_X = LOW_NORM_GRAD_X, GRAD_W = LOW_NORM_GRAD_W, GRAD_MEAN = LOW_NORM_GRAD_MEAN };
enum { GRAD_INVSTD = LOW_NORM_GRAD_INVSTD, MORE = LOW_NORM_MORE, REF = LOW_NORM_REF, SHIFT }; /* SHIFT: or REF */
enum { DX = LOW_NORM_DX, DW = LOW_NORM_DW, DB = LOW_NORM_DB, MASKED = LOW_NORM_MASKED };

/* ---- forward ----------------------------------------------------------------------------------------------------- */
static bool take_relu(low_lowering *w, low_kernel *k, uint32_t node)
{
    int64_t relu = low_norm_relu(w, k, node);

    if (relu < 0) return false;
    low_norm_take_relu(w, k, (uint32_t)relu);
    k->act = CU_ACT_RELU;
    return true;
}

static ddp_status group_forward(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    static const char *const names[2][2] = {{"batch_norm", "batch_norm+relu"},
                                            {"batch_norm+add", "batch_norm+add+relu"}};
    const ddp_node *n = low_node(w->p, node);
    bool add;

    low_matrix(w, k->in[X], &k->rows, &k->cols);
    add = low_norm_take_add(w, k, node);
    k->name = names[add][take_relu(w, k, node)];
    k->kind = n->attrs.batch_norm.training;
    k->scratch_bytes = cu_batch_norm_scratch(k->rows, k->cols);
    low_may_replace(k, k->out[Y], k->in[X]);
    return low_norm_check(w, k, n, err);
}

static ddp_status run_forward(const cu_call *c, ddp_err *err)
{
    const low_kernel *k = c->k;
    const ddp_attrs *a = cu_attrs(c, 0); /* it stands in front of what it takes */

    return cu_started(c,
                      cu_batch_norm(c->stream, c->in[X], c->in[W].at, c->in[B].at, c->in[RUNNING_MEAN].at,
                                    c->in[RUNNING_VAR].at, c->in[OTHER], c->out[Y], c->out[MEAN].at, c->out[INVSTD].at,
                                    k->rows, k->cols, a->batch_norm.eps, a->batch_norm.momentum, k->kind != 0,
                                    k->act == CU_ACT_RELU, c->scratch),
                      err);
}

const cu_family cu_family_batch_norm = {.base.group = group_forward, .run = run_forward};

/* ---- gradient ---------------------------------------------------------------------------------------------------- */
static ddp_status group_gradient(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    (void)node;
    (void)err;
    low_norm_grad_finish(w, k);
    k->scratch_bytes = cu_batch_norm_grad_scratch(k->rows, k->cols);
    return DDP_OK;
}

/* Whether the relu's output is that of this batch norm's alone: then its sign follows from x, and it is not read. */
static void take_sign_of_x(const low_lowering *w, low_kernel *k)
{
    int64_t relu = low_writer(w, k->in[REF]);
    int64_t norm = relu >= 0 && low_node(w->p, (uint32_t)relu)->op == DDP_OP_RELU
                       ? low_writer(w, low_node(w->p, (uint32_t)relu)->in[0])
                       : -1;
    const ddp_node *n = norm >= 0 ? low_node(w->p, (uint32_t)norm) : NULL;

    if (n == NULL || n->op != DDP_OP_BATCH_NORM || n->in[X] != k->in[GRAD_X] || n->in[W] != k->in[GRAD_W]) return;
    if (n->out[MEAN] != k->in[GRAD_MEAN] || n->out[INVSTD] != k->in[GRAD_INVSTD]) return;
    k->in[REF] = -1;
    k->in[SHIFT] = n->in[B];
}

ddp_status cu_batch_norm_group(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    low_norm_grad_join(w, k, node);
    take_sign_of_x(w, k);
    k->family = &cu_family_batch_norm_grad.base;
    return group_gradient(w, k, node, err);
}

static ddp_status run_gradient(const cu_call *c, ddp_err *err)
{
    const low_kernel *k = c->k;

    return cu_started(c,
                      cu_batch_norm_grad(c->stream, c->in[DY], c->in[MORE], c->in[REF], c->out[MASKED], c->in[GRAD_X],
                                         c->in[GRAD_W].at, c->in[SHIFT].at, c->in[GRAD_MEAN].at, c->in[GRAD_INVSTD].at,
                                         c->out[DX], c->out[DW].at, c->out[DB].at, k->rows, k->cols, false,
                                         cu_adds(c, DW), cu_adds(c, DB), c->scratch),
                      err);
}

const cu_family cu_family_batch_norm_grad = {.base.group = group_gradient, .run = run_gradient};
