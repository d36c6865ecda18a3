/* graph/ops/conv.c -- rows of torch.nn.functional.conv2d and its gradients; also the shape rule that it shares with
 * pooling.
 *
 * Channel o of group g = o / (O / groups) sees the channels of x from g * (C / groups) on. */
#include "graph/internal.h"
#include <string.h>

enum { X, W, B };

/* ---- shapes ------------------------------------------------------------------------------------------------------ */
ddp_status ddp_shape_image(const ddp_shape *x, ddp_err *err)
{
    char text[DDP_SHAPE_TEXT];

    DDP_TRY(ddp_shape_need(x, DDP_F32, "the input", err));
    if (x->rank == 4) return DDP_OK;
    return ddp_fail(err, DDP_ERR_CONFIG, "input %s is no image; reshape it to (N, channels, height, width)",
                    ddp_shape_text(x, text, sizeof(text)));
}

ddp_status ddp_shape_windows(const ddp_shape *x, const int64_t kernel[2], const int64_t stride[2],
                             const int64_t padding[2], ddp_shape *out, ddp_err *err)
{
    const int64_t most = INT64_C(1) << 30;
    char text[DDP_SHAPE_TEXT];

    (void)ddp_shape_text(x, text, sizeof(text));
    for (int i = 0; i < 2; i++) {
        int64_t size = x->dims[2 + i];

        if (kernel[i] < 1 || stride[i] < 1 || padding[i] < 0 || kernel[i] > most || stride[i] > most ||
            padding[i] > most || size > most)
            return ddp_fail(err, DDP_ERR_CONFIG,
                            "input %s, kernel %lld, stride %lld, padding %lld: "
                            "kernel and stride must be positive, the padding not negative",
                            text, (long long)kernel[i], (long long)stride[i], (long long)padding[i]);
        if (kernel[i] > size + 2 * padding[i])
            return ddp_fail(err, DDP_ERR_CONFIG,
                            "input %s: a kernel of %lld is larger than the image with its padding of %lld; "
                            "use larger images, or fewer layers that shrink them",
                            text, (long long)kernel[i], (long long)padding[i]);
        out->dims[2 + i] = (size + 2 * padding[i] - kernel[i]) / stride[i] + 1;
    }
    return DDP_OK;
}

static ddp_status check_weight(const ddp_attrs *attrs, const ddp_shape *x, const ddp_shape *w, ddp_err *err)
{
    int64_t groups = attrs->conv.groups;
    char sx[DDP_SHAPE_TEXT], sw[DDP_SHAPE_TEXT];

    (void)ddp_shape_text(x, sx, sizeof(sx));
    (void)ddp_shape_text(w, sw, sizeof(sw));
    DDP_TRY(ddp_shape_need(w, DDP_F32, "the weight", err));
    if (w->batched || w->rank != 4)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "input %s, weight %s: the weight must be (out, in / groups, height, width) without a batch", sx,
                        sw);
    if (groups < 1 || x->dims[1] % groups != 0 || w->dims[0] % groups != 0)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "input %s, weight %s: both numbers of channels must be multiples of the %lld groups", sx, sw,
                        (long long)groups);
    if (w->dims[1] != x->dims[1] / groups)
        return ddp_fail(err, DDP_ERR_CONFIG, "input %s, weight %s, %lld groups: the weight must have %lld channels in",
                        sx, sw, (long long)groups, (long long)(x->dims[1] / groups));
    return DDP_OK;
}

static ddp_status conv_shape(const ddp_attrs *attrs, uint32_t in_count, const ddp_shape *const *in, ddp_shape *out,
                             ddp_err *err)
{
    const ddp_shape *x = in[X], *w = in[W], *b = in_count > B ? in[B] : NULL;
    char sw[DDP_SHAPE_TEXT], sb[DDP_SHAPE_TEXT];

    DDP_TRY(ddp_shape_image(x, err));
    DDP_TRY(check_weight(attrs, x, w, err));
    if (b != NULL) {
        DDP_TRY(ddp_shape_need(b, DDP_F32, "the bias", err));
        if (b->batched || b->rank != 1 || b->dims[0] != w->dims[0])
            return ddp_fail(err, DDP_ERR_CONFIG, "weight %s and bias %s: the bias must be (out)",
                            ddp_shape_text(w, sw, sizeof(sw)), ddp_shape_text(b, sb, sizeof(sb)));
    }
    *out = *x;
    out->dims[1] = w->dims[0];
    return ddp_shape_windows(x, w->dims + 2, attrs->conv.stride, attrs->conv.padding, out, err);
}

/* ---- gradient, FLOPs --------------------------------------------------------------------------------------------- */
/* Bias and weight first, as a linear layer has it. */
static ddp_status conv_gradient(ddp_grad_context *c, const ddp_node *node, int32_t dy, ddp_err *err)
{
    if (node->in_count > B && ddp_grad_wanted(c, node->in[B]))
        DDP_TRY(ddp_grad_emit(c, node, DDP_OP_CONV2D_GRAD_BIAS, node->in[B], dy, -1, err));
    if (ddp_grad_wanted(c, node->in[W]))
        DDP_TRY(ddp_grad_emit(c, node, DDP_OP_CONV2D_GRAD_WEIGHT, node->in[W], dy, node->in[X], err));
    if (ddp_grad_wanted(c, node->in[X]))
        DDP_TRY(ddp_grad_emit(c, node, DDP_OP_CONV2D_GRAD_INPUT, node->in[X], dy, node->in[W], err));
    return DDP_OK;
}

/* Of y or its gradient, and the weight or its gradient: a multiply and an add for each element of y and weight of its
 * channel; those in the padding count too. */
static uint64_t products(const ddp_value *y, const ddp_value *w)
{
    return 2 * (uint64_t)y->elements * (uint64_t)(w->elements / w->dims[0]);
}

static uint64_t conv_flops(const ddp_node *node, const ddp_value *values)
{
    const ddp_value *y = &values[node->out[0]];

    return products(y, &values[node->in[W]]) + (node->in_count > B ? (uint64_t)y->elements : 0);
}

static uint64_t grad_input_flops(const ddp_node *node, const ddp_value *values)
{
    return products(&values[node->in[0]], &values[node->in[1]]);
}

static uint64_t grad_weight_flops(const ddp_node *node, const ddp_value *values)
{
    return products(&values[node->in[0]], &values[node->out[0]]);
}

static uint64_t grad_bias_flops(const ddp_node *node, const ddp_value *values)
{
    return (uint64_t)values[node->in[0]].elements;
}

/* ---- references -------------------------------------------------------------------------------------------------- */
/* One term of the sum: y[out] += x[in] * w[weight], by index. */
typedef void (*term)(const double *a, const double *b, double *out, int64_t x, int64_t w, int64_t y);

static void term_output(const double *x, const double *w, double *y, int64_t ix, int64_t iw, int64_t iy)
{
    y[iy] += x[ix] * w[iw];
}

static void term_input(const double *dy, const double *w, double *dx, int64_t ix, int64_t iw, int64_t iy)
{
    dx[ix] += dy[iy] * w[iw];
}

static void term_weight(const double *dy, const double *x, double *dw, int64_t ix, int64_t iw, int64_t iy)
{
    dw[iw] += dy[iy] * x[ix];
}

typedef struct sizes {
    const ddp_attrs *attrs;
    const int64_t *x, *w, *y; /* dims */
} sizes;

/* All terms of one element of one channel of y. */
static void window(const sizes *s, int64_t n, int64_t o, int64_t row, int64_t col, term f, const double *a,
                   const double *b, double *out)
{
    int64_t group = o / (s->w[0] / s->attrs->conv.groups);
    int64_t iy = ((n * s->y[1] + o) * s->y[2] + row) * s->y[3] + col;

    for (int64_t c = 0; c < s->w[1]; c++)
        for (int64_t i = 0; i < s->w[2]; i++)
            for (int64_t j = 0; j < s->w[3]; j++) {
                int64_t h = row * s->attrs->conv.stride[0] - s->attrs->conv.padding[0] + i;
                int64_t w = col * s->attrs->conv.stride[1] - s->attrs->conv.padding[1] + j;

                if (h < 0 || h >= s->x[2] || w < 0 || w >= s->x[3]) continue;
                f(a, b, out, ((n * s->x[1] + group * s->w[1] + c) * s->x[2] + h) * s->x[3] + w,
                  ((o * s->w[1] + c) * s->w[2] + i) * s->w[3] + j, iy);
            }
}

static void all_terms(const sizes *s, term f, const double *a, const double *b, double *out)
{
    for (int64_t n = 0; n < s->y[0]; n++)
        for (int64_t o = 0; o < s->y[1]; o++)
            for (int64_t row = 0; row < s->y[2]; row++)
                for (int64_t col = 0; col < s->y[3]; col++) window(s, n, o, row, col, f, a, b, out);
}

static void conv_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    sizes s = {&node->attrs, in[X].dims, in[W].dims, out->dims};
    int64_t pixels = out->dims[2] * out->dims[3];

    for (int64_t i = 0; i < out->elements; i++)
        out->data[i] = node->in_count > B ? in[B].data[i / pixels % out->dims[1]] : 0.0;
    all_terms(&s, term_output, in[X].data, in[W].data, out->data);
}

static void grad_input_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    sizes s = {&node->attrs, out->dims, in[1].dims, in[0].dims};

    memset(out->data, 0, (size_t)out->elements * sizeof(double));
    all_terms(&s, term_input, in[0].data, in[1].data, out->data);
}

static void grad_weight_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    sizes s = {&node->attrs, in[1].dims, out->dims, in[0].dims};

    memset(out->data, 0, (size_t)out->elements * sizeof(double));
    all_terms(&s, term_weight, in[0].data, in[1].data, out->data);
}

static void grad_bias_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    int64_t pixels = in[0].dims[2] * in[0].dims[3];

    (void)node;
    memset(out->data, 0, (size_t)out->elements * sizeof(double));
    for (int64_t i = 0; i < in[0].elements; i++) out->data[i / pixels % in[0].dims[1]] += in[0].data[i];
}

DDP_OP_ROW(CONV2D, conv2d, 2, 3, .shape = conv_shape, .gradient = conv_gradient, .flops = conv_flops,
           .reference = conv_reference);
DDP_OP_ROW(CONV2D_GRAD_INPUT, conv2d_grad_input, 2, 2, .flops = grad_input_flops, .reference = grad_input_reference);
DDP_OP_ROW(CONV2D_GRAD_WEIGHT, conv2d_grad_weight, 2, 2, .flops = grad_weight_flops,
           .reference = grad_weight_reference);
DDP_OP_ROW(CONV2D_GRAD_BIAS, conv2d_grad_bias, 1, 1, .flops = grad_bias_flops, .reference = grad_bias_reference);
