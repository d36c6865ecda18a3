/* graph/ops/linear.c -- rows of torch.nn.functional.linear and its gradients: y = x w^T + b over any leading
 * dimensions. */
#include "graph/internal.h"

enum { X, W, B };

static ddp_status linear_shape(const ddp_attrs *attrs, uint32_t in_count, const ddp_shape *const *in, ddp_shape *out,
                               ddp_err *err)
{
    const ddp_shape *x = in[X], *w = in[W], *b = in_count > B ? in[B] : NULL;
    char sx[DDP_SHAPE_TEXT], sw[DDP_SHAPE_TEXT], sb[DDP_SHAPE_TEXT];
    bool t = attrs->linear.transposed != 0; /* the weight is (in, out) */

    DDP_TRY(ddp_shape_need(x, DDP_F32, "the input", err));
    DDP_TRY(ddp_shape_need(w, DDP_F32, "the weight", err));
    (void)ddp_shape_text(x, sx, sizeof(sx));
    (void)ddp_shape_text(w, sw, sizeof(sw));
    if (x->rank <= (x->batched ? 1u : 0u))
        return ddp_fail(err, DDP_ERR_CONFIG, "input %s has no feature dimension; reshape it to (N, features)", sx);
    if (w->batched || w->rank != 2)
        return ddp_fail(err, DDP_ERR_CONFIG, "input %s, weight %s: the weight must be (out, in) without a batch", sx,
                        sw);
    if (x->dims[x->rank - 1] != w->dims[t ? 0 : 1])
        return ddp_fail(err, DDP_ERR_CONFIG, "input %s and weight %s: the %s must be equal", sx, sw,
                        t ? "last dimension and the first" : "last dimensions");
    if (b != NULL) {
        DDP_TRY(ddp_shape_need(b, DDP_F32, "the bias", err));
        if (b->batched || b->rank != 1 || b->dims[0] != w->dims[t ? 1 : 0])
            return ddp_fail(err, DDP_ERR_CONFIG, "weight %s and bias %s: the bias must be (out)", sw,
                            ddp_shape_text(b, sb, sizeof(sb)));
    }
    *out = *x;
    out->dims[x->rank - 1] = w->dims[t ? 1 : 0];
    return DDP_OK;
}

/* Bias and weight first: they complete buckets, and the input's gradient is what the next layer down waits for
 * anyway. */
static ddp_status linear_gradient(ddp_grad_context *c, const ddp_node *node, int32_t dy, ddp_err *err)
{
    if (node->in_count > B && ddp_grad_wanted(c, node->in[B]))
        DDP_TRY(ddp_grad_emit(c, node, DDP_OP_LINEAR_GRAD_BIAS, node->in[B], dy, -1, err));
    if (ddp_grad_wanted(c, node->in[W]))
        DDP_TRY(ddp_grad_emit(c, node, DDP_OP_LINEAR_GRAD_WEIGHT, node->in[W], dy, node->in[X], err));
    if (ddp_grad_wanted(c, node->in[X]))
        DDP_TRY(ddp_grad_emit(c, node, DDP_OP_LINEAR_GRAD_INPUT, node->in[X], dy, node->in[W], err));
    return DDP_OK;
}

static int64_t last_dim(const ddp_value *v) { return v->dims[v->rank - 1]; }

static uint64_t linear_flops(const ddp_node *node, const ddp_value *values)
{
    uint64_t out = (uint64_t)values[node->out[0]].elements;

    return out * (uint64_t)last_dim(&values[node->in[X]]) * 2 + (node->in_count > B ? out : 0);
}

/* Rows times in times out, as the weight's or its gradient's elements are in times out. */
static uint64_t grad_input_flops(const ddp_node *node, const ddp_value *values)
{
    const ddp_value *dy = &values[node->in[0]];

    return 2 * (uint64_t)(dy->elements / last_dim(dy)) * (uint64_t)values[node->in[1]].elements;
}

static uint64_t grad_weight_flops(const ddp_node *node, const ddp_value *values)
{
    const ddp_value *dy = &values[node->in[0]];

    return 2 * (uint64_t)(dy->elements / last_dim(dy)) * (uint64_t)values[node->out[0]].elements;
}

static uint64_t grad_bias_flops(const ddp_node *node, const ddp_value *values)
{
    return (uint64_t)values[node->in[0]].elements;
}

/* Of the weight's element for output o and input i. */
static int64_t weight_at(const ddp_node *node, int64_t o, int64_t i, int64_t outer, int64_t inner)
{
    return node->attrs.linear.transposed ? i * outer + o : o * inner + i;
}

/* x (R, I), w (O, I), b (O) -> y (R, O) */
static void linear_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    int64_t inner = in[X].dims[in[X].rank - 1], outer = in[W].elements / inner, rows = in[X].elements / inner;

    for (int64_t r = 0; r < rows; r++)
        for (int64_t o = 0; o < outer; o++) {
            double sum = node->in_count > B ? in[B].data[o] : 0.0;

            for (int64_t i = 0; i < inner; i++)
                sum += in[X].data[r * inner + i] * in[W].data[weight_at(node, o, i, outer, inner)];
            out->data[r * outer + o] = sum;
        }
}

/* dy (R, O), w (O, I) -> dx (R, I) */
static void grad_input_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    int64_t outer = in[0].dims[in[0].rank - 1], inner = in[1].elements / outer, rows = in[0].elements / outer;

    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < inner; i++) {
            double sum = 0.0;

            for (int64_t o = 0; o < outer; o++)
                sum += in[0].data[r * outer + o] * in[1].data[weight_at(node, o, i, outer, inner)];
            out->data[r * inner + i] = sum;
        }
}

/* dy (R, O), x (R, I) -> dw (O, I) */
static void grad_weight_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    int64_t outer = in[0].dims[in[0].rank - 1], inner = in[1].dims[in[1].rank - 1], rows = in[0].elements / outer;

    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < inner; i++) {
            double sum = 0.0;

            for (int64_t r = 0; r < rows; r++) sum += in[0].data[r * outer + o] * in[1].data[r * inner + i];
            out->data[weight_at(node, o, i, outer, inner)] = sum;
        }
}

/* dy (R, O) -> db (O) */
static void grad_bias_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    int64_t outer = in[0].dims[in[0].rank - 1], rows = in[0].elements / outer;

    (void)node;
    for (int64_t o = 0; o < outer; o++) {
        double sum = 0.0;

        for (int64_t r = 0; r < rows; r++) sum += in[0].data[r * outer + o];
        out->data[o] = sum;
    }
}

DDP_OP_ROW(LINEAR, linear, 2, 3, .shape = linear_shape, .gradient = linear_gradient, .flops = linear_flops,
           .reference = linear_reference);
DDP_OP_ROW(LINEAR_GRAD_INPUT, linear_grad_input, 2, 2, .flops = grad_input_flops, .reference = grad_input_reference);
DDP_OP_ROW(LINEAR_GRAD_WEIGHT, linear_grad_weight, 2, 2, .flops = grad_weight_flops,
           .reference = grad_weight_reference);
DDP_OP_ROW(LINEAR_GRAD_BIAS, linear_grad_bias, 1, 1, .flops = grad_bias_flops, .reference = grad_bias_reference);
