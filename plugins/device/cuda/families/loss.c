/* plugins/device/cuda/families/loss.c -- ops that give one number for a batch, with their gradient:
 *   cross-entropy, mse or another loss + its gradient   one kernel, over the logits when nobody reads them later */
#include "host/cu.h"

enum { X = LOW_LOSS_X, TARGET = LOW_LOSS_TARGET };
enum { LOSS = LOW_LOSS, GRAD = LOW_LOSS_GRAD };

static ddp_status group_loss(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    const ddp_node *n = low_node(w->p, node);

    low_loss_group(w, k, node);
    k->limit = k->cols;
    k->writes_grad = 1u << GRAD;
    if (k->kind != DDP_OP_CROSS_ENTROPY) {
        k->scratch_bytes = cu_pair_loss_scratch(k->rows * k->cols);
        return DDP_OK;
    }
    if (n->attrs.cross_entropy.weights > 0)
        return low_refuse(w, n, "it has no class weights on this device; train with device = cpu, or without weights",
                          err);
    if (n->attrs.cross_entropy.classes > 0) k->limit = n->attrs.cross_entropy.classes;
    k->scratch_bytes = cu_cross_entropy_scratch(k->rows, k->cols);
    return DDP_OK;
}

static uint32_t loss_of(const low_kernel *k)
{
    switch (k->kind) {
    case DDP_OP_MSE: return CU_LOSS_MSE;
    case DDP_OP_L1: return CU_LOSS_L1;
    case DDP_OP_SMOOTH_L1: return CU_LOSS_SMOOTH_L1;
    default: return CU_LOSS_BCE;
    }
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
    else
        result = cu_pair_loss(c->stream, loss_of(k), a->smooth_l1.beta, c->in[X], c->in[TARGET], c->out[LOSS].at,
                              c->out[GRAD], k->rows * k->cols, cu_adds(c, GRAD), c->scratch);
    return cu_started(c, result, err);
}

const cu_family cu_family_loss = {.base.group = group_loss, .run = run_loss};
