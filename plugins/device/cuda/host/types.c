/* plugins/device/cuda/host/types.c -- which values are stored in bf16, with precision bf16: those that PyTorch's
 * autocast has in bf16.
 *
 *   linear, conv2d, attention                      bf16
 *   relu, gelu, silu, rope, dropout, poolings, batch norm, reshape   as their input
 *   add, mul                                       bf16 where both inputs are
 *   layer norm, rms norm                           computed in f32; bf16 where linear layers alone read it, which round
 *                                                  it anyway
 *   embedding, position, losses, results           f32
 *   a gradient                                     as the value it is the gradient of
 *
 * With residual bf16 embedding and position are bf16 too, and a norm has its input's type; then so is every sum. */
#include "cu.h"

#include <string.h>

/* ---- forward ----------------------------------------------------------------------------------------------------- */
static bool only_products_read(const low_lowering *w, int32_t v)
{
    bool any = false;

    if (w->kept[v]) return false;
    for (uint32_t i = 0; i < w->p->node_count; i++) {
        const ddp_node *n = low_node(w->p, i);
        for (uint32_t j = 0; j < n->in_count; j++) {
            if (n->in[j] != v) continue;
            any = true;
            if (n->op == DDP_OP_LINEAR && j == 0) continue;
            if (n->op == DDP_OP_LINEAR_GRAD_WEIGHT && j == 1) continue;
            if (n->op != DDP_OP_RESHAPE || !only_products_read(w, n->out[0])) return false;
        }
    }
    return any;
}

/* ---- gradients: the type of the value whose gradient it is ------------------------------------------------------- */
/* The input of the forward node that has the same weight and gave values of dy's shape; dx has its shape. */
static uint8_t type_of_layers_input(const low_lowering *w, const ddp_node *grad, uint32_t op)
{
    const ddp_value *dx = low_value(w->p, grad->out[0]);

    for (uint32_t i = 0; i < w->p->node_count; i++) {
        const ddp_node *n = low_node(w->p, i);
        if (n->op != op || n->in[1] != grad->in[1] || low_value(w->p, n->in[0])->elements != dx->elements) continue;
        return w->type[n->in[0]];
    }
    return CU_F32;
}

static uint8_t type_of_dropouts_input(const low_lowering *w, const ddp_node *grad)
{
    for (uint32_t i = 0; i < w->p->node_count; i++) {
        const ddp_node *n = low_node(w->p, i);
        if (n->op == DDP_OP_DROPOUT && n->attrs.dropout.place == grad->attrs.dropout.place) return w->type[n->in[0]];
    }
    return w->type[grad->in[0]];
}

/* With residual bf16: where the stream begins, and what a norm makes of it. Sums of it are bf16 by themselves. */
static bool streams_in_half(const low_lowering *w, const ddp_node *n)
{
    if (!w->device->half_stream) return false;
    switch (n->op) {
    case DDP_OP_EMBEDDING:
    case DDP_OP_POSITION: return true;
    case DDP_OP_RMS_NORM:
    case DDP_OP_LAYER_NORM: return w->type[n->in[0]] == CU_BF16;
    default: return false;
    }
}

/* Of output 0; all others are statistics or slices of arenas, but for gradients of k and v apart, which stay f32. */
static uint8_t type_of_output(const low_lowering *w, const ddp_node *n)
{
    switch (n->op) {
    case DDP_OP_LINEAR:
    case DDP_OP_CONV2D:
    case DDP_OP_ATTENTION:
    case DDP_OP_ATTENTION_APART: return CU_BF16;
    case DDP_OP_RELU:
    case DDP_OP_LEAKY_RELU:
    case DDP_OP_GELU:
    case DDP_OP_SILU:
    case DDP_OP_ROPE:
    case DDP_OP_ROPE_GRAD:
    case DDP_OP_SCALE:
    case DDP_OP_DROPOUT:
    case DDP_OP_RESHAPE:
    case DDP_OP_MAX_POOL2D:
    case DDP_OP_AVG_POOL2D:
    case DDP_OP_ADAPTIVE_AVG_POOL2D:
    case DDP_OP_AVG_POOL2D_GRAD:
    case DDP_OP_ADAPTIVE_AVG_POOL2D_GRAD:
    case DDP_OP_CROSS_ENTROPY_GRAD:
    case DDP_OP_MSE_GRAD:
    case DDP_OP_L1_GRAD:
    case DDP_OP_SMOOTH_L1_GRAD:
    case DDP_OP_BCE_WITH_LOGITS_GRAD:
    case DDP_OP_BATCH_NORM: return w->type[n->in[0]];
    case DDP_OP_MUL:
    case DDP_OP_ADD: return w->type[n->in[0]] == CU_BF16 && w->type[n->in[1]] == CU_BF16 ? CU_BF16 : CU_F32;
    case DDP_OP_RMS_NORM:
    case DDP_OP_LAYER_NORM: return only_products_read(w, n->out[0]) ? CU_BF16 : CU_F32;
    case DDP_OP_RELU_GRAD:
    case DDP_OP_LEAKY_RELU_GRAD:
    case DDP_OP_GELU_GRAD:
    case DDP_OP_SILU_GRAD:
    case DDP_OP_RMS_NORM_GRAD:
    case DDP_OP_MAX_POOL2D_GRAD:
    case DDP_OP_BATCH_NORM_GRAD:
    case DDP_OP_LAYER_NORM_GRAD:
    case DDP_OP_ATTENTION_GRAD:
    case DDP_OP_ATTENTION_APART_GRAD: return w->type[n->in[1]];
    case DDP_OP_LINEAR_GRAD_INPUT: return type_of_layers_input(w, n, DDP_OP_LINEAR);
    case DDP_OP_CONV2D_GRAD_INPUT: return type_of_layers_input(w, n, DDP_OP_CONV2D);
    case DDP_OP_DROPOUT_GRAD: return type_of_dropouts_input(w, n);
    default: return CU_F32;
    }
}

void cu_choose_types(low_lowering *w)
{
    for (uint32_t i = 0; i < w->p->value_count; i++) w->type[i] = CU_F32;
    for (uint32_t i = 0; w->device->half && i < w->p->node_count; i++) {
        const ddp_node *n = low_node(w->p, i);
        const ddp_value *out = n->out[0] >= 0 ? low_value(w->p, n->out[0]) : NULL;
        if (out == NULL || low_outside(out) || out->dtype != DDP_F32 || w->kept[n->out[0]]) continue;
        w->type[n->out[0]] = streams_in_half(w, n) ? CU_BF16 : type_of_output(w, n);
    }
}
