/* graph/ops/rms_norm.c -- rows of torch.nn.functional.rms_norm and its gradient. "Root Mean Square Layer Normalization"
 * (Zhang and Sennrich, 2019). */
#include "graph/internal.h"
#include <math.h>

enum { X, W };                /* in */
enum { Y, INVSTD };           /* out */
enum { DY, GX, GW, GINVSTD }; /* in of the gradient */

static ddp_status rms_norm_shape(const ddp_attrs *attrs, uint32_t in_count, const ddp_shape *const *in, ddp_shape *out,
                                 ddp_err *err)
{
    const ddp_shape *x = in[X], *w = in[W];
    char text[DDP_SHAPE_TEXT], weight[DDP_SHAPE_TEXT];

    (void)in_count;
    DDP_TRY(ddp_shape_need(x, DDP_F32, "the input", err));
    DDP_TRY(ddp_shape_need(w, DDP_F32, "the weight", err));
    (void)ddp_shape_text(x, text, sizeof(text));
    if (x->rank <= (x->batched ? 1u : 0u))
        return ddp_fail(err, DDP_ERR_CONFIG, "input %s has no dimension to normalise over; reshape it to (N, features)",
                        text);
    if (!(attrs->rms_norm.eps >= 0.0))
        return ddp_fail(err, DDP_ERR_CONFIG, "eps is %g, it must not be negative", attrs->rms_norm.eps);
    if (w->batched || w->rank != 1 || w->dims[0] != x->dims[x->rank - 1])
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "input %s and the weight %s: it must have as many elements as the last dimension", text,
                        ddp_shape_text(w, weight, sizeof(weight)));
    out[Y] = out[INVSTD] = *x;
    out[INVSTD].rank--;
    return DDP_OK;
}

static ddp_status rms_norm_gradient(ddp_grad_context *c, const ddp_node *node, int32_t dy, ddp_err *err)
{
    const int32_t in[] = {dy, node->in[X], node->in[W], node->out[INVSTD]};

    return ddp_grad_emit_all(c, node, DDP_OP_RMS_NORM_GRAD, 4, in, 2, node->in, err);
}

/* Square and add, then scale and weight. */
static uint64_t rms_norm_flops(const ddp_node *node, const ddp_value *values)
{
    return 4 * (uint64_t)values[node->in[X]].elements;
}

static uint64_t rms_norm_grad_flops(const ddp_node *node, const ddp_value *values)
{
    return 10 * (uint64_t)values[node->in[GX]].elements;
}

/* x (R, E), w (E) -> y (R, E), 1 / sqrt(mean of x^2 + eps) (R) */
static void rms_norm_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    int64_t n = in[W].elements, rows = in[X].elements / n;

    for (int64_t r = 0; r < rows; r++) {
        const double *x = in[X].data + r * n;
        double square = 0.0, invstd;

        for (int64_t i = 0; i < n; i++) square += x[i] * x[i];
        invstd = 1.0 / sqrt(square / (double)n + node->attrs.rms_norm.eps);
        for (int64_t i = 0; i < n; i++) out[Y].data[r * n + i] = x[i] * invstd * in[W].data[i];
        if (out[INVSTD].data != NULL) out[INVSTD].data[r] = invstd;
    }
}

/* With h = x invstd and g = dy w: dx = invstd (g - h mean(g h)), dw = sum of dy h. */
static void rms_norm_grad_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    int64_t n = in[GW].elements, rows = in[GX].elements / n;
    const double *w = in[GW].data;
    double *dx = out[0].data, *dw = out[1].data;

    (void)node;
    for (int64_t i = 0; i < n && dw != NULL; i++) dw[i] = 0.0;
    for (int64_t r = 0; r < rows; r++) {
        const double *dy = in[DY].data + r * n, *x = in[GX].data + r * n;
        double invstd = in[GINVSTD].data[r], mean = 0.0;

        for (int64_t i = 0; i < n; i++) mean += dy[i] * w[i] * x[i] * invstd / (double)n;
        for (int64_t i = 0; i < n; i++) {
            if (dw != NULL) dw[i] += dy[i] * x[i] * invstd;
            if (dx != NULL) dx[r * n + i] = invstd * (dy[i] * w[i] - x[i] * invstd * mean);
        }
    }
}

DDP_OP_ROW(RMS_NORM, rms_norm, 2, 2, .outs = 2, .shape = rms_norm_shape, .gradient = rms_norm_gradient,
           .flops = rms_norm_flops, .reference = rms_norm_reference);
DDP_OP_ROW(RMS_NORM_GRAD, rms_norm_grad, 4, 4, .outs = 2, .flops = rms_norm_grad_flops,
           .reference = rms_norm_grad_reference);
