/* plugins/device/cuda/families/loss.c -- ops that give one number for a batch, with their gradient:
 *   cross-entropy, mse or another loss + its gradient   one kernel, over the logits when nobody reads them later */
#include "host/cu.h"

#include <stdlib.h>

enum { X = LOW_LOSS_X, TARGET = LOW_LOSS_TARGET, OTHER = LOW_LOSS_OTHER, LAMBDA = LOW_LOSS_LAMBDA };
enum { LOSS = LOW_LOSS, GRAD = LOW_LOSS_GRAD };

/* Of a cross-entropy with class weights. */
typedef struct loss_state {
    const float *weight; /* the program's */
    uint32_t classes;
    float *at; /* the same on the device, from compile on */
    double sum;
} loss_state;

static void release_loss(void *state)
{
    loss_state *t = state;

    if (t != NULL && t->at != NULL) (void)cudaFree(t->at);
    free(t);
}

static ddp_status keep_weights(low_kernel *k, const ddp_attrs *a, ddp_err *err)
{
    loss_state *t;

    if (a->cross_entropy.weights == 0) return DDP_OK;
    t = cu_state(k, sizeof(*t), err);
    if (t == NULL) return err->status;
    t->weight = a->cross_entropy.weight;
    t->classes = a->cross_entropy.weights;
    for (uint32_t i = 0; i < t->classes; i++) t->sum += (double)t->weight[i];
    return DDP_OK;
}

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
    if (n->attrs.cross_entropy.classes > 0) k->limit = n->attrs.cross_entropy.classes;
    k->scratch_bytes = cu_cross_entropy_scratch(k->rows, k->cols);
    return keep_weights(k, &n->attrs, err);
}

static ddp_status build_loss(const cu_building *b, const low_kernel *k, ddp_err *err)
{
    loss_state *t = k->state;
    void *at;
    cudaError_t result;

    if (t == NULL || t->at != NULL) return DDP_OK;
    if (cu_memory(b->device, t->classes * sizeof(float), "class weights", &at, err) != DDP_OK)
        return cu_in_kernel(k, err->status, err);
    t->at = at;
    result = cudaMemcpyAsync(at, t->weight, t->classes * sizeof(float), cudaMemcpyHostToDevice, cu_compute(b->device));
    if (result == cudaSuccess) result = cudaStreamSynchronize(cu_compute(b->device));
    if (result == cudaSuccess) return DDP_OK;
    return cu_in_kernel(k, ddp_fail(err, DDP_ERR_INTERNAL, "class weights: %s", cudaGetErrorString(result)), err);
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
    const loss_state *t = k->state;
    const cu_entropy e = {.smoothing = a->cross_entropy.label_smoothing,
                          .ignore_index = a->cross_entropy.ignore_index,
                          .ignores = a->cross_entropy.ignores,
                          .classes = a->cross_entropy.classes,
                          .weight = t != NULL ? t->at : NULL,
                          .weight_sum = t != NULL ? t->sum : 0.0,
                          .divisor = a->cross_entropy.divisor,
                          .other = k->kind == DDP_OP_CROSS_ENTROPY ? c->in[OTHER].at : NULL,
                          .lambda = k->kind == DDP_OP_CROSS_ENTROPY ? c->in[LAMBDA].at : NULL};
    cudaError_t result;

    if (k->kind == DDP_OP_CROSS_ENTROPY)
        result = cu_cross_entropy(c->stream, c->in[X], c->in[TARGET].at, c->out[LOSS].at, c->out[GRAD], k->rows,
                                  k->cols, &e, cu_adds(c, GRAD), c->scratch, c->fault, c->site);
    else
        result = cu_pair_loss(c->stream, loss_of(k), a->smooth_l1.beta, c->in[X], c->in[TARGET], c->out[LOSS].at,
                              c->out[GRAD], k->rows * k->cols, cu_adds(c, GRAD), c->scratch);
    return cu_started(c, result, err);
}

const cu_family cu_family_loss = {
    .base.group = group_loss, .build = build_loss, .run = run_loss, .base.release = release_loss};
