/* graph/ops/pointwise.c -- rows of the ops on single elements: relu, leaky_relu, gelu, silu, add, mul, scale, and
 * reshape, which computes nothing.
 * FLOPs: every arithmetic operation or function call of the formula is one. */
#include "graph/internal.h"
#include <math.h>
#include <string.h>

#define SQRT_2_OVER_PI 0.79788456080286535588
#define SQRT_1_2       0.70710678118654752440
#define GELU_CUBE      0.044715 /* torch.nn.GELU(approximate='tanh') */

static uint64_t elements_flops(const ddp_node *node, const ddp_value *values)
{
    return (uint64_t)values[node->out[0]].elements;
}

static ddp_status unary_shape(const ddp_attrs *attrs, uint32_t in_count, const ddp_shape *const *in, ddp_shape *out,
                              ddp_err *err)
{
    (void)attrs;
    (void)in_count;
    DDP_TRY(ddp_shape_need(in[0], DDP_F32, "the input", err));
    *out = *in[0];
    return DDP_OK;
}

/* ---- relu -------------------------------------------------------------------------------------------------------- */
static ddp_status relu_gradient(ddp_grad_context *c, const ddp_node *node, int32_t dy, ddp_err *err)
{
    if (!ddp_grad_wanted(c, node->in[0])) return DDP_OK;
    return ddp_grad_emit(c, node, DDP_OP_RELU_GRAD, node->in[0], dy, node->out[0], err);
}

static void relu_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    (void)node;
    for (int64_t i = 0; i < out->elements; i++)
        out->data[i] = in[0].data[i] <= 0.0 ? 0.0 : in[0].data[i]; /* keeps NaN */
}

static void relu_grad_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    (void)node;
    for (int64_t i = 0; i < out->elements; i++) out->data[i] = in[1].data[i] <= 0.0 ? 0.0 : in[0].data[i];
}

/* ---- leaky_relu -------------------------------------------------------------------------------------------------- */
static ddp_status leaky_relu_shape(const ddp_attrs *attrs, uint32_t in_count, const ddp_shape *const *in,
                                   ddp_shape *out, ddp_err *err)
{
    if (!(attrs->leaky_relu.negative_slope >= 0.0 && attrs->leaky_relu.negative_slope <= 1e30))
        return ddp_fail(err, DDP_ERR_CONFIG, "the slope is %g, it must be from 0 to 1e30",
                        attrs->leaky_relu.negative_slope);
    return unary_shape(attrs, in_count, in, out, err);
}

static ddp_status leaky_relu_gradient(ddp_grad_context *c, const ddp_node *node, int32_t dy, ddp_err *err)
{
    if (!ddp_grad_wanted(c, node->in[0])) return DDP_OK;
    return ddp_grad_emit(c, node, DDP_OP_LEAKY_RELU_GRAD, node->in[0], dy, node->out[0], err);
}

/* Where the last input is above 0 the first one, else the slope times it: of x, x and of dy, y. */
static void leaky_relu_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    const double *sign = in[node->in_count - 1].data;

    for (int64_t i = 0; i < out->elements; i++)
        out->data[i] = sign[i] <= 0.0 ? node->attrs.leaky_relu.negative_slope * in[0].data[i] : in[0].data[i];
}

/* ---- gelu -------------------------------------------------------------------------------------------------------- */
static ddp_status gelu_gradient(ddp_grad_context *c, const ddp_node *node, int32_t dy, ddp_err *err)
{
    if (!ddp_grad_wanted(c, node->in[0])) return DDP_OK;
    return ddp_grad_emit(c, node, DDP_OP_GELU_GRAD, node->in[0], dy, node->in[0], err);
}

static uint64_t gelu_flops(const ddp_node *node, const ddp_value *values)
{
    return elements_flops(node, values) * (node->attrs.gelu.tanh ? 9u : 5u);
}

static uint64_t gelu_grad_flops(const ddp_node *node, const ddp_value *values)
{
    return elements_flops(node, values) * (node->attrs.gelu.tanh ? 18u : 10u);
}

static double gelu_value(double x, bool tanh_form)
{
    if (!tanh_form) return 0.5 * x * (1.0 + erf(x * SQRT_1_2));
    return 0.5 * x * (1.0 + tanh(SQRT_2_OVER_PI * (x + GELU_CUBE * x * x * x)));
}

static double gelu_slope(double x, bool tanh_form)
{
    if (!tanh_form) return 0.5 * (1.0 + erf(x * SQRT_1_2)) + x * exp(-0.5 * x * x) * 0.5 * SQRT_2_OVER_PI;
    double t = tanh(SQRT_2_OVER_PI * (x + GELU_CUBE * x * x * x));

    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * SQRT_2_OVER_PI * (1.0 + 3.0 * GELU_CUBE * x * x);
}

static void gelu_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    for (int64_t i = 0; i < out->elements; i++) out->data[i] = gelu_value(in[0].data[i], node->attrs.gelu.tanh != 0);
}

static void gelu_grad_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    for (int64_t i = 0; i < out->elements; i++)
        out->data[i] = in[0].data[i] * gelu_slope(in[1].data[i], node->attrs.gelu.tanh != 0);
}

/* ---- silu -------------------------------------------------------------------------------------------------------- */
static ddp_status silu_gradient(ddp_grad_context *c, const ddp_node *node, int32_t dy, ddp_err *err)
{
    if (!ddp_grad_wanted(c, node->in[0])) return DDP_OK;
    return ddp_grad_emit(c, node, DDP_OP_SILU_GRAD, node->in[0], dy, node->in[0], err);
}

static uint64_t silu_flops(const ddp_node *node, const ddp_value *values) { return 4 * elements_flops(node, values); }
static uint64_t silu_grad_flops(const ddp_node *node, const ddp_value *values)
{
    return 8 * elements_flops(node, values);
}

static void silu_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    (void)node;
    for (int64_t i = 0; i < out->elements; i++) out->data[i] = in[0].data[i] / (1.0 + exp(-in[0].data[i]));
}

/* With s = 1 / (1 + exp(-x)): s (1 + x (1 - s)). */
static void silu_grad_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    (void)node;
    for (int64_t i = 0; i < out->elements; i++) {
        double x = in[1].data[i], s = 1.0 / (1.0 + exp(-x));

        out->data[i] = in[0].data[i] * s * (1.0 + x * (1.0 - s));
    }
}

/* ---- add --------------------------------------------------------------------------------------------------------- */
static ddp_status pair_shape(const ddp_attrs *attrs, uint32_t in_count, const ddp_shape *const *in, ddp_shape *out,
                             ddp_err *err)
{
    char a[DDP_SHAPE_TEXT], b[DDP_SHAPE_TEXT];

    (void)attrs;
    (void)in_count;
    DDP_TRY(ddp_shape_need(in[0], DDP_F32, "the first input", err));
    DDP_TRY(ddp_shape_need(in[1], DDP_F32, "the second input", err));
    if (!ddp_shape_equal(in[0], in[1]))
        return ddp_fail(err, DDP_ERR_CONFIG, "%s and %s: the shapes must be equal, nothing is broadcast",
                        ddp_shape_text(in[0], a, sizeof(a)), ddp_shape_text(in[1], b, sizeof(b)));
    *out = *in[0];
    return DDP_OK;
}

static ddp_status add_gradient(ddp_grad_context *c, const ddp_node *node, int32_t dy, ddp_err *err)
{
    for (uint32_t i = 0; i < 2; i++)
        if (ddp_grad_wanted(c, node->in[i])) DDP_TRY(ddp_grad_pass(c, node, node->in[i], dy, err));
    return DDP_OK;
}

static void add_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    (void)node;
    for (int64_t i = 0; i < out->elements; i++) out->data[i] = in[0].data[i] + in[1].data[i];
}

/* ---- mul --------------------------------------------------------------------------------------------------------- */
/* The gradient of each factor is the other one times dy: the same op again. */
static ddp_status mul_gradient(ddp_grad_context *c, const ddp_node *node, int32_t dy, ddp_err *err)
{
    for (uint32_t i = 0; i < 2; i++)
        if (ddp_grad_wanted(c, node->in[i]))
            DDP_TRY(ddp_grad_emit(c, node, DDP_OP_MUL, node->in[i], dy, node->in[1 - i], err));
    return DDP_OK;
}

static void mul_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    (void)node;
    for (int64_t i = 0; i < out->elements; i++) out->data[i] = in[0].data[i] * in[1].data[i];
}

/* ---- scale ------------------------------------------------------------------------------------------------------- */
static ddp_status scale_shape(const ddp_attrs *attrs, uint32_t in_count, const ddp_shape *const *in, ddp_shape *out,
                              ddp_err *err)
{
    if (!isfinite((float)attrs->scale.factor))
        return ddp_fail(err, DDP_ERR_CONFIG, "the factor is %g, it must be a finite number", attrs->scale.factor);
    return unary_shape(attrs, in_count, in, out, err);
}

static ddp_status scale_gradient(ddp_grad_context *c, const ddp_node *node, int32_t dy, ddp_err *err)
{
    if (!ddp_grad_wanted(c, node->in[0])) return DDP_OK;
    return ddp_grad_emit(c, node, DDP_OP_SCALE, node->in[0], dy, -1, err);
}

static void scale_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    for (int64_t i = 0; i < out->elements; i++) out->data[i] = node->attrs.scale.factor * in[0].data[i];
}

/* ---- reshape ----------------------------------------------------------------------------------------------------- */
/* Fills in the one dimension that is left open and sees to it that the elements are as many as before. */
static ddp_status fit_elements(const ddp_shape *x, ddp_shape *out, uint32_t open, const char *from, const char *to,
                               ddp_err *err)
{
    int64_t have = ddp_shape_elements(x), want = 1;

    for (uint32_t i = 0; i < out->rank; i++)
        if (i != open && __builtin_mul_overflow(want, out->dims[i], &want)) want = INT64_MAX;
    if (open < out->rank && have % want == 0) {
        out->dims[open] = have / want;
        return DDP_OK;
    }
    if (open >= out->rank && have == want) return DDP_OK;
    return ddp_fail(err, DDP_ERR_CONFIG, "%s to %s: %lld elements%s cannot become %s%lld", from, to, (long long)have,
                    x->batched ? " a sample" : "", open < out->rank ? "a multiple of " : "", (long long)want);
}

/* dims[0] = -f keeps f times N, DDP_N being f = 1; one other dimension may be -1, what is left. Without a batch
 * dimension in x, dims[0] may be that one. */
static ddp_status reshape_shape(const ddp_attrs *attrs, uint32_t in_count, const ddp_shape *const *in, ddp_shape *out,
                                ddp_err *err)
{
    const ddp_shape *x = in[0];
    const int64_t *dims = attrs->reshape.dims;
    uint32_t rank = attrs->reshape.rank, open = UINT32_MAX;
    ddp_shape y = {.dtype = x->dtype, .rank = rank, .batched = x->batched};
    char from[DDP_SHAPE_TEXT], to[DDP_SHAPE_TEXT];

    (void)in_count;
    (void)ddp_shape_text(x, from, sizeof(from));
    if (rank > DDP_MAX_DIMS)
        return ddp_fail(err, DDP_ERR_CONFIG, "%s to %u dimensions: at most %d are possible", from, rank, DDP_MAX_DIMS);
    (void)ddp_dims_text(rank, dims, to, sizeof(to));
    if (x->batched && (rank == 0 || dims[0] >= 0 || dims[0] == INT64_MIN))
        return ddp_fail(err, DDP_ERR_CONFIG, "%s to %s: the first dimension must keep the batch, DDP_N", from, to);
    for (uint32_t i = 0; i < rank; i++) {
        y.dims[i] = i == 0 && x->batched ? -dims[i] : dims[i];
        if (y.dims[i] >= 1) continue;
        if (y.dims[i] != -1 || open != UINT32_MAX)
            return ddp_fail(err, DDP_ERR_CONFIG, "%s to %s: a dimension must be positive, one may be -1", from, to);
        open = i;
        y.dims[i] = 1;
    }
    DDP_TRY(fit_elements(x, &y, open, from, to, err));
    *out = y;
    return DDP_OK;
}

static ddp_status reshape_gradient(ddp_grad_context *c, const ddp_node *node, int32_t dy, ddp_err *err)
{
    if (!ddp_grad_wanted(c, node->in[0])) return DDP_OK;
    return ddp_grad_emit(c, node, DDP_OP_RESHAPE, node->in[0], dy, -1, err);
}

static uint64_t reshape_flops(const ddp_node *node, const ddp_value *values)
{
    (void)node;
    (void)values;
    return 0;
}

static void reshape_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    (void)node;
    memcpy(out->data, in[0].data, (size_t)out->elements * sizeof(double));
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */
DDP_OP_ROW(RELU, relu, 1, 1, .shape = unary_shape, .gradient = relu_gradient, .flops = elements_flops,
           .reference = relu_reference);
DDP_OP_ROW(RELU_GRAD, relu_grad, 2, 2, .flops = elements_flops, .reference = relu_grad_reference);
DDP_OP_ROW(LEAKY_RELU, leaky_relu, 1, 1, .shape = leaky_relu_shape, .gradient = leaky_relu_gradient,
           .flops = elements_flops, .reference = leaky_relu_reference);
DDP_OP_ROW(LEAKY_RELU_GRAD, leaky_relu_grad, 2, 2, .flops = elements_flops, .reference = leaky_relu_reference);
DDP_OP_ROW(GELU, gelu, 1, 1, .shape = unary_shape, .gradient = gelu_gradient, .flops = gelu_flops,
           .reference = gelu_reference);
DDP_OP_ROW(GELU_GRAD, gelu_grad, 2, 2, .flops = gelu_grad_flops, .reference = gelu_grad_reference);
DDP_OP_ROW(SILU, silu, 1, 1, .shape = unary_shape, .gradient = silu_gradient, .flops = silu_flops,
           .reference = silu_reference);
DDP_OP_ROW(SILU_GRAD, silu_grad, 2, 2, .flops = silu_grad_flops, .reference = silu_grad_reference);
DDP_OP_ROW(ADD, add, 2, 2, .shape = pair_shape, .gradient = add_gradient, .flops = elements_flops,
           .reference = add_reference);
DDP_OP_ROW(MUL, mul, 2, 2, .shape = pair_shape, .gradient = mul_gradient, .flops = elements_flops,
           .reference = mul_reference);
DDP_OP_ROW(SCALE, scale, 1, 1, .shape = scale_shape, .gradient = scale_gradient, .flops = elements_flops,
           .reference = scale_reference);
DDP_OP_ROW(RESHAPE, reshape, 1, 1, .view = true, .shape = reshape_shape, .gradient = reshape_gradient,
           .flops = reshape_flops, .reference = reshape_reference);
