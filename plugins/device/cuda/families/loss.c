/* plugins/device/cuda/families/loss.c -- ops that give one number for a batch, with their gradient:
 *   cross-entropy or mse + its gradient   one kernel, over the logits when nobody reads them later */
#include "host/cu.h"

enum { X = LOW_LOSS_X, TARGET = LOW_LOSS_TARGET };
enum { LOSS = LOW_LOSS, GRAD = LOW_LOSS_GRAD };

static ddp_status group_loss(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    const ddp_node *n = low_node(w->p, node);

    (void)err;
    low_loss_group(w, k, node);
    k->limit = k->cols;
    if (k->kind == DDP_OP_CROSS_ENTROPY && n->attrs.cross_entropy.classes > 0)
        k->limit = n->attrs.cross_entropy.classes;
    k->writes_grad = 1u << GRAD;
    if (k->kind == DDP_OP_ACCURACY)
        k->scratch_bytes = cu_accuracy_scratch(k->rows);
    else if (k->kind == DDP_OP_MSE)
        k->scratch_bytes = cu_mse_scratch(k->rows * k->cols);
    else
        k->scratch_bytes = cu_cross_entropy_scratch(k->rows, k->cols);
    return DDP_OK;
}

static ddp_status run_loss(const cu_call *c, ddp_err *err)
{
    const low_kernel *k = c->k;
    const ddp_attrs *a = cu_attrs(c, 0);
    const cu_entropy e = {.smoothing = a->cross_entropy.label_smoothing,
                          .ignore_index = a->cross_entropy.ignore_index,
                          .ignores = a->cross_entropy.ignores,
                          .classes = a->cross_entropy.classes};
    cudaError_t result;

    if (k->kind == DDP_OP_CROSS_ENTROPY)
        result = cu_cross_entropy(c->stream, c->in[X], c->in[TARGET].at, c->out[LOSS].at, c->out[GRAD], k->rows,
                                  k->cols, &e, cu_adds(c, GRAD), c->scratch, c->fault, c->site);
    else if (k->kind == DDP_OP_MSE)
        result = cu_mse(c->stream, c->in[X], c->in[TARGET], c->out[LOSS].at, c->out[GRAD], k->rows * k->cols,
                        cu_adds(c, GRAD), c->scratch);
    else
        result = cu_accuracy(c->stream, c->in[X], c->in[TARGET].at, c->out[0].at, k->rows, k->cols,
                             (double)k->rows / (double)low_value(c->program, k->in[TARGET])->dims[0], c->scratch,
                             c->fault, c->site);
    return cu_started(c, result, err);
}

const cu_family cu_family_loss = {.base.group = group_loss, .run = run_loss};
