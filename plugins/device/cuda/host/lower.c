/* plugins/device/cuda/host/lower.c -- which family of kernels has which op, and what families share while nodes are
 * grouped. */
#include "cu.h"

#include <stdlib.h>
#include <string.h>

_Static_assert((int)CU_F32 == (int)LOW_F32 && (int)CU_BF16 == (int)LOW_BF16, "types of kernels.h are those of lower.h");

static const low_family *const families[DDP_OP_END_] = {
    [DDP_OP_LINEAR] = &cu_family_linear.base,
    [DDP_OP_LINEAR_GRAD_INPUT] = &cu_family_linear_grad_input.base,
    [DDP_OP_LINEAR_GRAD_WEIGHT] = &cu_family_linear_grad_weight.base,
    [DDP_OP_LINEAR_GRAD_BIAS] = &cu_family_column_sums.base,
    [DDP_OP_RELU] = &cu_family_act.base,
    [DDP_OP_RELU_GRAD] = &cu_family_act_grad.base,
    [DDP_OP_LEAKY_RELU] = &cu_family_leaky_relu.base,
    [DDP_OP_LEAKY_RELU_GRAD] = &cu_family_leaky_relu.base,
    [DDP_OP_SCALE] = &cu_family_scale.base,
    [DDP_OP_GELU] = &cu_family_act.base,
    [DDP_OP_GELU_GRAD] = &cu_family_act_grad.base,
    [DDP_OP_ADD] = &cu_family_add.base,
    [DDP_OP_RESHAPE] = &cu_family_view.base,
    [DDP_OP_CROSS_ENTROPY] = &cu_family_loss.base,
    [DDP_OP_CROSS_ENTROPY_GRAD] = &cu_family_loss.base,
    [DDP_OP_MSE] = &cu_family_loss.base,
    [DDP_OP_MSE_GRAD] = &cu_family_loss.base,
    [DDP_OP_L1] = &cu_family_loss.base,
    [DDP_OP_L1_GRAD] = &cu_family_loss.base,
    [DDP_OP_SMOOTH_L1] = &cu_family_loss.base,
    [DDP_OP_SMOOTH_L1_GRAD] = &cu_family_loss.base,
    [DDP_OP_BCE_WITH_LOGITS] = &cu_family_loss.base,
    [DDP_OP_BCE_WITH_LOGITS_GRAD] = &cu_family_loss.base,
    [DDP_OP_ACCURACY] = &cu_family_metric.base,
    [DDP_OP_TOP_K] = &cu_family_metric.base,
    [DDP_OP_CONFUSION] = &cu_family_metric.base,
    [DDP_OP_BINARY_CONFUSION] = &cu_family_metric.base,
    [DDP_OP_REGRESSION] = &cu_family_metric.base,
    [DDP_OP_CONV2D] = &cu_family_conv.base,
    [DDP_OP_CONV2D_GRAD_INPUT] = &cu_family_conv_grad.base,
    [DDP_OP_CONV2D_GRAD_WEIGHT] = &cu_family_conv_grad.base,
    [DDP_OP_CONV2D_GRAD_BIAS] = &cu_family_column_sums.base,
    [DDP_OP_BATCH_NORM] = &cu_family_batch_norm.base,
    [DDP_OP_BATCH_NORM_GRAD] = &cu_family_batch_norm_grad.base,
    [DDP_OP_MAX_POOL2D] = &cu_family_pool.base,
    [DDP_OP_MAX_POOL2D_GRAD] = &cu_family_pool_grad.base,
    [DDP_OP_AVG_POOL2D] = &cu_family_pool.base,
    [DDP_OP_AVG_POOL2D_GRAD] = &cu_family_pool_grad.base,
    [DDP_OP_ADAPTIVE_AVG_POOL2D] = &cu_family_pool.base,
    [DDP_OP_ADAPTIVE_AVG_POOL2D_GRAD] = &cu_family_pool_grad.base,
    [DDP_OP_RMS_NORM] = &cu_family_layer_norm.base,
    [DDP_OP_RMS_NORM_GRAD] = &cu_family_layer_norm_grad.base,
    [DDP_OP_SILU] = &cu_family_act.base,
    [DDP_OP_SILU_GRAD] = &cu_family_act_grad.base,
    [DDP_OP_MUL] = &cu_family_mul.base,
    [DDP_OP_ROPE] = &cu_family_rope.base,
    [DDP_OP_ROPE_GRAD] = &cu_family_rope.base,
    [DDP_OP_LAYER_NORM] = &cu_family_layer_norm.base,
    [DDP_OP_LAYER_NORM_GRAD] = &cu_family_layer_norm_grad.base,
    [DDP_OP_EMBEDDING] = &cu_family_embedding.base,
    [DDP_OP_EMBEDDING_GRAD] = &cu_family_embedding_grad.base,
    [DDP_OP_POSITION] = &cu_family_position.base,
    [DDP_OP_POSITION_GRAD] = &cu_family_position_grad.base,
    [DDP_OP_ATTENTION] = &cu_family_attention.base,
    [DDP_OP_ATTENTION_GRAD] = &cu_family_attention_grad.base,
    [DDP_OP_ATTENTION_APART] = &cu_family_attention_apart.base,
    [DDP_OP_ATTENTION_APART_GRAD] = &cu_family_attention_apart_grad.base,
    [DDP_OP_DROPOUT] = &cu_family_dropout.base,
    [DDP_OP_DROPOUT_GRAD] = &cu_family_dropout.base,
};

static const low_target target = {
    .name = "cuda", .families = families, .alignment = CU_ALIGNMENT, .shares = true, .choose_types = cu_choose_types};

/* ---- for the families -------------------------------------------------------------------------------------------- */
void *cu_state(low_kernel *k, size_t bytes, ddp_err *err)
{
    k->state = calloc(1, bytes);
    if (k->state == NULL) (void)ddp_fail(err, DDP_ERR_NOMEM, "device \"cuda\": out of memory while lowering");
    return k->state;
}

ddp_status cu_in_kernel(const low_kernel *k, ddp_status status, ddp_err *err)
{
    char why[sizeof(err->msg)];

    if (status == DDP_OK) return DDP_OK;
    memcpy(why, err->msg, sizeof(why));
    (void)ddp_fail(err, status, "device \"cuda\", kernel \"%.40s\" of layer \"%.60s\": %.240s", k->name, k->layer, why);
    return status;
}

uint32_t cu_act_of(const ddp_node *n)
{
    if (n->op == DDP_OP_RELU || n->op == DDP_OP_RELU_GRAD) return CU_ACT_RELU;
    if (n->op == DDP_OP_SILU || n->op == DDP_OP_SILU_GRAD) return CU_ACT_SILU;
    return n->attrs.gelu.tanh ? CU_ACT_GELU_TANH : CU_ACT_GELU_ERF;
}

/* ---- slots of ddp_device_ops ------------------------------------------------------------------------------------- */
ddp_status cu_lower(ddp_device *d, const ddp_program *p, ddp_lowered **out, ddp_err *err)
{
    ddp_status status = cu_enter(d, err);

    return status == DDP_OK ? low_lower(&target, d, p, out, err) : status;
}

void cu_lowered_free(ddp_device *d, ddp_lowered *l)
{
    (void)d;
    low_free(l);
}
