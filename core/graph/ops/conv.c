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
/* A term is of w[o][c][i][j], y[n][o][row][col] and x[n][c][row * stride + i - padding][col * stride + j - padding]:
 * one of them is the sum, the term is the product of the other two. */
typedef enum sum_of { SUM_Y, SUM_X, SUM_W } sum_of;

/* The terms of one row of y and one element of w; x is read at every `step`-th element. */
static void add_line(sum_of which, double *x, int64_t step, double *w, double *y, int64_t count)
{
    double sum = *w;

    switch (which) {
    case SUM_Y:
        for (int64_t k = 0; k < count; k++) y[k] += x[k * step] * *w;
        break;
    case SUM_X:
        for (int64_t k = 0; k < count; k++) x[k * step] += y[k] * *w;
        break;
    case SUM_W:
        for (int64_t k = 0; k < count; k++) sum += y[k] * x[k * step];
        *w = sum;
    }
}

/* *first .. *end - 1: the rows of y, or columns, for which row * stride + shift is not in the padding. */
static void inside(int64_t x_size, int64_t y_size, int64_t stride, int64_t shift, int64_t *first, int64_t *end)
{
    *first = shift < 0 ? (-shift + stride - 1) / stride : 0;
    *end = shift < x_size ? (x_size - shift + stride - 1) / stride : 0;
    if (*end > y_size) *end = y_size;
}

/* The terms of one channel of x and one of y with element (i, j) of their kernel. */
static void add_plane(sum_of which, const ddp_attrs *attrs, const ddp_ref_tensor *x, double *x_plane, double *w,
                      const ddp_ref_tensor *y, double *y_plane, int64_t i, int64_t j)
{
    const int64_t *stride = attrs->conv.stride, down = i - attrs->conv.padding[0], right = j - attrs->conv.padding[1];
    int64_t row, rows, col, cols;

    inside(x->dims[2], y->dims[2], stride[0], down, &row, &rows);
    inside(x->dims[3], y->dims[3], stride[1], right, &col, &cols);
    for (; row < rows; row++)
        add_line(which, x_plane + (row * stride[0] + down) * x->dims[3] + col * stride[1] + right, stride[1], w,
                 y_plane + row * y->dims[3] + col, cols - col);
}

/* Elements of x are summed from the kernel's end, so that each gets its terms in the order of y. */
static void all_terms(sum_of which, const ddp_attrs *attrs, const ddp_ref_tensor *x, const ddp_ref_tensor *w,
                      const ddp_ref_tensor *y)
{
    int64_t x_plane = x->dims[2] * x->dims[3], y_plane = y->dims[2] * y->dims[3], taps = w->dims[2] * w->dims[3];

    for (int64_t n = 0; n < y->dims[0]; n++)
        for (int64_t o = 0; o < y->dims[1]; o++)
            for (int64_t c = 0; c < w->dims[1]; c++)
                for (int64_t k = 0; k < taps; k++) {
                    int64_t group = o / (w->dims[0] / attrs->conv.groups), tap = which == SUM_X ? taps - 1 - k : k;

                    add_plane(which, attrs, x, x->data + (n * x->dims[1] + group * w->dims[1] + c) * x_plane,
                              w->data + (o * w->dims[1] + c) * taps + tap, y, y->data + (n * y->dims[1] + o) * y_plane,
                              tap / w->dims[3], tap % w->dims[3]);
                }
}

static void conv_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    int64_t pixels = out->dims[2] * out->dims[3];

    for (int64_t i = 0; i < out->elements; i++)
        out->data[i] = node->in_count > B ? in[B].data[i / pixels % out->dims[1]] : 0.0;
    all_terms(SUM_Y, &node->attrs, &in[X], &in[W], out);
}

static void grad_input_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    memset(out->data, 0, (size_t)out->elements * sizeof(double));
    all_terms(SUM_X, &node->attrs, out, &in[1], &in[0]);
}

static void grad_weight_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    memset(out->data, 0, (size_t)out->elements * sizeof(double));
    all_terms(SUM_W, &node->attrs, &in[1], out, &in[0]);
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
