/* plugins/device/cpu/lower.c -- which family of kernels has which op. */
#include "cpu.h"

static const low_family *const families[DDP_OP_END_] = {
    [DDP_OP_LINEAR] = &cpu_family_linear.base,
    [DDP_OP_LINEAR_GRAD_INPUT] = &cpu_family_linear_grad.base,
    [DDP_OP_LINEAR_GRAD_WEIGHT] = &cpu_family_linear_grad.base,
    [DDP_OP_LINEAR_GRAD_BIAS] = &cpu_family_act_grad.base,
    [DDP_OP_RELU] = &cpu_family_pointwise.base,
    [DDP_OP_RELU_GRAD] = &cpu_family_act_grad.base,
    [DDP_OP_LEAKY_RELU] = &cpu_family_leaky_relu.base,
    [DDP_OP_LEAKY_RELU_GRAD] = &cpu_family_leaky_relu.base,
    [DDP_OP_SCALE] = &cpu_family_scale.base,
    [DDP_OP_GELU] = &cpu_family_pointwise.base,
    [DDP_OP_GELU_GRAD] = &cpu_family_act_grad.base,
    [DDP_OP_ADD] = &cpu_family_pointwise.base,
    [DDP_OP_RESHAPE] = &cpu_family_view.base,
    [DDP_OP_CROSS_ENTROPY] = &cpu_family_loss.base,
    [DDP_OP_CROSS_ENTROPY_GRAD] = &cpu_family_loss.base,
    [DDP_OP_MSE] = &cpu_family_loss.base,
    [DDP_OP_MSE_GRAD] = &cpu_family_loss.base,
    [DDP_OP_L1] = &cpu_family_loss.base,
    [DDP_OP_L1_GRAD] = &cpu_family_loss.base,
    [DDP_OP_SMOOTH_L1] = &cpu_family_loss.base,
    [DDP_OP_SMOOTH_L1_GRAD] = &cpu_family_loss.base,
    [DDP_OP_BCE_WITH_LOGITS] = &cpu_family_loss.base,
    [DDP_OP_BCE_WITH_LOGITS_GRAD] = &cpu_family_loss.base,
    [DDP_OP_ACCURACY] = &cpu_family_metric.base,
    [DDP_OP_TOP_K] = &cpu_family_metric.base,
    [DDP_OP_CONFUSION] = &cpu_family_metric.base,
    [DDP_OP_BINARY_CONFUSION] = &cpu_family_metric.base,
    [DDP_OP_REGRESSION] = &cpu_family_metric.base,
    [DDP_OP_CONV2D] = &cpu_family_conv.base,
    [DDP_OP_CONV2D_GRAD_INPUT] = &cpu_family_conv_grad.base,
    [DDP_OP_CONV2D_GRAD_WEIGHT] = &cpu_family_conv_grad.base,
    [DDP_OP_CONV2D_GRAD_BIAS] = &cpu_family_act_grad.base,
    [DDP_OP_BATCH_NORM] = &cpu_family_batch_norm.base,
    [DDP_OP_BATCH_NORM_GRAD] = &cpu_family_batch_norm_grad.base,
    [DDP_OP_MAX_POOL2D] = &cpu_family_max_pool.base,
    [DDP_OP_MAX_POOL2D_GRAD] = &cpu_family_max_pool_grad.base,
    [DDP_OP_AVG_POOL2D] = &cpu_family_avg_pool.base,
    [DDP_OP_AVG_POOL2D_GRAD] = &cpu_family_avg_pool.base,
    [DDP_OP_ADAPTIVE_AVG_POOL2D] = &cpu_family_avg_pool.base,
    [DDP_OP_ADAPTIVE_AVG_POOL2D_GRAD] = &cpu_family_avg_pool.base,
    [DDP_OP_RMS_NORM] = &cpu_family_layer_norm.base,
    [DDP_OP_RMS_NORM_GRAD] = &cpu_family_layer_norm_grad.base,
    [DDP_OP_SILU] = &cpu_family_pointwise.base,
    [DDP_OP_SILU_GRAD] = &cpu_family_act_grad.base,
    [DDP_OP_MUL] = &cpu_family_pointwise.base,
    [DDP_OP_ROPE] = &cpu_family_rope.base,
    [DDP_OP_ROPE_GRAD] = &cpu_family_rope.base,
    [DDP_OP_LAYER_NORM] = &cpu_family_layer_norm.base,
    [DDP_OP_LAYER_NORM_GRAD] = &cpu_family_layer_norm_grad.base,
    [DDP_OP_EMBEDDING] = &cpu_family_embedding.base,
    [DDP_OP_EMBEDDING_GRAD] = &cpu_family_embedding_grad.base,
    [DDP_OP_POSITION] = &cpu_family_position.base,
    [DDP_OP_POSITION_GRAD] = &cpu_family_position.base,
    [DDP_OP_ATTENTION] = &cpu_family_attention.base,
    [DDP_OP_ATTENTION_GRAD] = &cpu_family_attention.base,
    [DDP_OP_DROPOUT] = &cpu_family_dropout.base,
    [DDP_OP_DROPOUT_GRAD] = &cpu_family_dropout.base,
    [DDP_OP_POSITION_AT] = &cpu_family_position_at.base,
    [DDP_OP_ATTENTION_CACHED] = &cpu_family_attention_cached.base,
    [DDP_OP_ATTENTION_APART] = &cpu_family_attention.base,
    [DDP_OP_ATTENTION_APART_GRAD] = &cpu_family_attention.base,
    [DDP_OP_ATTENTION_APART_CACHED] = &cpu_family_attention_cached.base,
    [DDP_OP_SOFTMAX_PARTS] = &cpu_family_softmax_parts.base,
    [DDP_OP_SOFTMAX_PARTS_GRAD] = &cpu_family_softmax_parts.base,
};

static const low_target target = {
    .name = "cpu", .families = families, .alignment = 64, .frozen_dtypes = cpu_frozen_dtypes};

ddp_status cpu_lower(ddp_device *d, const ddp_program *p, ddp_lowered **out, ddp_err *err)
{
    return low_lower(&target, d, p, out, err);
}

void cpu_lowered_free(ddp_device *d, ddp_lowered *l)
{
    (void)d;
    low_free(l);
}
