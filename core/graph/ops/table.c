/* graph/ops/table.c -- finds the row of an op. A row holds all that the core knows of an op; the rows are in this
 * folder, by family. A new op is a row there, a line here, its code in <ddpengine/program.h>, and a kernel in a device.
 * Also the helpers for shapes. */
#include "graph/internal.h"
#include <string.h>

static const ddp_op_row *const rows[DDP_OP_END_] = {
    [DDP_OP_LINEAR] = &ddp_row_linear,
    [DDP_OP_LINEAR_GRAD_INPUT] = &ddp_row_linear_grad_input,
    [DDP_OP_LINEAR_GRAD_WEIGHT] = &ddp_row_linear_grad_weight,
    [DDP_OP_LINEAR_GRAD_BIAS] = &ddp_row_linear_grad_bias,
    [DDP_OP_RELU] = &ddp_row_relu,
    [DDP_OP_RELU_GRAD] = &ddp_row_relu_grad,
    [DDP_OP_GELU] = &ddp_row_gelu,
    [DDP_OP_GELU_GRAD] = &ddp_row_gelu_grad,
    [DDP_OP_ADD] = &ddp_row_add,
    [DDP_OP_RESHAPE] = &ddp_row_reshape,
    [DDP_OP_CROSS_ENTROPY] = &ddp_row_cross_entropy,
    [DDP_OP_CROSS_ENTROPY_GRAD] = &ddp_row_cross_entropy_grad,
    [DDP_OP_MSE] = &ddp_row_mse,
    [DDP_OP_MSE_GRAD] = &ddp_row_mse_grad,
    [DDP_OP_LEAKY_RELU] = &ddp_row_leaky_relu,
    [DDP_OP_LEAKY_RELU_GRAD] = &ddp_row_leaky_relu_grad,
    [DDP_OP_SCALE] = &ddp_row_scale,
    [DDP_OP_SOFTMAX_PARTS] = &ddp_row_softmax_parts,
    [DDP_OP_SOFTMAX_PARTS_GRAD] = &ddp_row_softmax_parts_grad,
    [DDP_OP_ACCURACY] = &ddp_row_accuracy,
    [DDP_OP_L1] = &ddp_row_l1,
    [DDP_OP_L1_GRAD] = &ddp_row_l1_grad,
    [DDP_OP_SMOOTH_L1] = &ddp_row_smooth_l1,
    [DDP_OP_SMOOTH_L1_GRAD] = &ddp_row_smooth_l1_grad,
    [DDP_OP_BCE_WITH_LOGITS] = &ddp_row_bce_with_logits,
    [DDP_OP_BCE_WITH_LOGITS_GRAD] = &ddp_row_bce_with_logits_grad,
    [DDP_OP_TOP_K] = &ddp_row_top_k,
    [DDP_OP_CONFUSION] = &ddp_row_confusion,
    [DDP_OP_BINARY_CONFUSION] = &ddp_row_binary_confusion,
    [DDP_OP_REGRESSION] = &ddp_row_regression,
    [DDP_OP_RMS_NORM] = &ddp_row_rms_norm,
    [DDP_OP_RMS_NORM_GRAD] = &ddp_row_rms_norm_grad,
    [DDP_OP_SILU] = &ddp_row_silu,
    [DDP_OP_SILU_GRAD] = &ddp_row_silu_grad,
    [DDP_OP_MUL] = &ddp_row_mul,
    [DDP_OP_ROPE] = &ddp_row_rope,
    [DDP_OP_ROPE_GRAD] = &ddp_row_rope_grad,
    [DDP_OP_LAYER_NORM] = &ddp_row_layer_norm,
    [DDP_OP_LAYER_NORM_GRAD] = &ddp_row_layer_norm_grad,
    [DDP_OP_EMBEDDING] = &ddp_row_embedding,
    [DDP_OP_EMBEDDING_GRAD] = &ddp_row_embedding_grad,
    [DDP_OP_POSITION] = &ddp_row_position,
    [DDP_OP_POSITION_GRAD] = &ddp_row_position_grad,
    [DDP_OP_ATTENTION] = &ddp_row_attention,
    [DDP_OP_ATTENTION_GRAD] = &ddp_row_attention_grad,
    [DDP_OP_DROPOUT] = &ddp_row_dropout,
    [DDP_OP_DROPOUT_GRAD] = &ddp_row_dropout_grad,
    [DDP_OP_POSITION_AT] = &ddp_row_position_at,
    [DDP_OP_ATTENTION_CACHED] = &ddp_row_attention_cached,
    [DDP_OP_ATTENTION_APART] = &ddp_row_attention_apart,
    [DDP_OP_ATTENTION_APART_GRAD] = &ddp_row_attention_apart_grad,
    [DDP_OP_ATTENTION_APART_CACHED] = &ddp_row_attention_apart_cached,
    [DDP_OP_CONV2D] = &ddp_row_conv2d,
    [DDP_OP_CONV2D_GRAD_INPUT] = &ddp_row_conv2d_grad_input,
    [DDP_OP_CONV2D_GRAD_WEIGHT] = &ddp_row_conv2d_grad_weight,
    [DDP_OP_CONV2D_GRAD_BIAS] = &ddp_row_conv2d_grad_bias,
    [DDP_OP_BATCH_NORM] = &ddp_row_batch_norm,
    [DDP_OP_BATCH_NORM_GRAD] = &ddp_row_batch_norm_grad,
    [DDP_OP_MAX_POOL2D] = &ddp_row_max_pool2d,
    [DDP_OP_MAX_POOL2D_GRAD] = &ddp_row_max_pool2d_grad,
    [DDP_OP_AVG_POOL2D] = &ddp_row_avg_pool2d,
    [DDP_OP_AVG_POOL2D_GRAD] = &ddp_row_avg_pool2d_grad,
    [DDP_OP_ADAPTIVE_AVG_POOL2D] = &ddp_row_adaptive_avg_pool2d,
    [DDP_OP_ADAPTIVE_AVG_POOL2D_GRAD] = &ddp_row_adaptive_avg_pool2d_grad,
};

const ddp_op_row *ddp_op_find(uint32_t op) { return op < DDP_OP_END_ ? rows[op] : NULL; }

const char *ddp_op_name(uint32_t op)
{
    const ddp_op_row *row = ddp_op_find(op);

    return row != NULL ? row->name : "?";
}

void ddp_op_place(uint32_t op, uint32_t place, ddp_attrs *attrs)
{
    if (op == DDP_OP_DROPOUT) attrs->dropout.place = place;
    if (op == DDP_OP_ATTENTION || op == DDP_OP_ATTENTION_APART) attrs->attention.place = place;
}

static bool seen_before(const ddp_node *node, uint32_t k)
{
    for (uint32_t i = 0; i < k; i++)
        if (node->in[i] == node->in[k]) return true;
    return false;
}

uint64_t ddp_node_bytes(const ddp_node *node, const ddp_value *values)
{
    const ddp_op_row *row = ddp_op_find(node->op);
    uint64_t bytes = 0;

    /* a view costs nothing, except where it has to put its elements into the gradient arena */
    if (row == NULL || (row->view && values[node->out[0]].kind != DDP_VALUE_GRAD)) return 0;
    for (uint32_t i = 0; i < node->in_count; i++)
        if (node->in[i] >= 0 && !seen_before(node, i))
            bytes += (uint64_t)values[node->in[i]].elements * ddp_dtype_size(values[node->in[i]].dtype);
    for (uint32_t i = 0; i < node->out_count; i++) {
        const ddp_value *v = node->out[i] >= 0 ? &values[node->out[i]] : NULL;
        uint64_t out = v != NULL ? (uint64_t)v->elements * ddp_dtype_size(v->dtype) : 0;

        bytes += node->accumulate >> i & 1u ? 2 * out : out;
    }
    return bytes;
}

/* ---- shapes ------------------------------------------------------------------------------------------------------ */
int64_t ddp_shape_elements(const ddp_shape *s)
{
    int64_t n = 1;

    for (uint32_t i = 0; i < s->rank; i++) n *= s->dims[i];
    return n;
}

bool ddp_shape_equal(const ddp_shape *a, const ddp_shape *b)
{
    return a->rank == b->rank && a->batched == b->batched &&
           memcmp(a->dims, b->dims, a->rank * sizeof(a->dims[0])) == 0;
}

ddp_status ddp_shape_need(const ddp_shape *s, uint32_t dtype, const char *what, ddp_err *err)
{
    if (s->dtype == dtype) return DDP_OK;
    return ddp_fail(err, DDP_ERR_CONFIG, "%s has dtype %s, %s is needed", what, ddp_dtype_name(s->dtype),
                    ddp_dtype_name(dtype));
}

void ddp_shape_scalar(ddp_shape *out)
{
    memset(out, 0, sizeof(*out));
    out->dtype = DDP_F32;
}

/* A dimension is appended to buf at *at; -f means f times N. */
static void dim_text(int64_t dim, char *buf, size_t capacity, size_t *at)
{
    int n = dim >= 0    ? snprintf(buf + *at, capacity - *at, "%lld", (long long)dim)
            : dim == -1 ? snprintf(buf + *at, capacity - *at, "N")
                        : snprintf(buf + *at, capacity - *at, "%lluN", 0ull - (unsigned long long)dim);

    if (n > 0) *at = DDP_MIN_OF(*at + (size_t)n, capacity - 1);
}

const char *ddp_dims_text(uint32_t rank, const int64_t *dims, char *buf, size_t capacity)
{
    size_t at = 1;

    ddp_copy_text(buf, capacity, "(");
    for (uint32_t i = 0; i < rank; i++) {
        if (i > 0) at = DDP_MIN_OF(at + (size_t)snprintf(buf + at, capacity - at, ", "), capacity - 1);
        dim_text(dims[i], buf, capacity, &at);
    }
    (void)snprintf(buf + at, capacity - at, ")");
    return buf;
}

const char *ddp_shape_text(const ddp_shape *s, char *buf, size_t capacity)
{
    int64_t dims[DDP_MAX_DIMS];

    memcpy(dims, s->dims, sizeof(dims));
    if (s->batched) dims[0] = -dims[0];
    return ddp_dims_text(s->rank, dims, buf, capacity);
}
