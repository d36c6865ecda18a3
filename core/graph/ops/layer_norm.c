/* graph/ops/layer_norm.c -- rows of torch.nn.functional.layer_norm over the last dimension and its gradient. */
#include "graph/internal.h"
#include <math.h>

enum { X, W, B };                    /* in */
enum { Y, MEAN, INVSTD };            /* out */
enum { DY, GX, GW, GMEAN, GINVSTD }; /* in of the gradient */

static ddp_status vector_of(const ddp_shape *v, int64_t features, const char *what, const char *input, ddp_err *err)
{
    char text[DDP_SHAPE_TEXT];

    DDP_TRY(ddp_shape_need(v, DDP_F32, what, err));
    if (!v->batched && v->rank == 1 && v->dims[0] == features) return DDP_OK;
    return ddp_fail(err, DDP_ERR_CONFIG, "input %s and %s %s: it must have as many elements as the last dimension",
                    input, what, ddp_shape_text(v, text, sizeof(text)));
}

static ddp_status layer_norm_shape(const ddp_attrs *attrs, uint32_t in_count, const ddp_shape *const *in,
                                   ddp_shape *out, ddp_err *err)
{
    const ddp_shape *x = in[X];
    char text[DDP_SHAPE_TEXT];

    (void)in_count;
    DDP_TRY(ddp_shape_need(x, DDP_F32, "the input", err));
    (void)ddp_shape_text(x, text, sizeof(text));
    if (x->rank <= (x->batched ? 1u : 0u))
        return ddp_fail(err, DDP_ERR_CONFIG, "input %s has no dimension to normalise over; reshape it to (N, features)",
                        text);
    if (!(attrs->layer_norm.eps >= 0.0))
        return ddp_fail(err, DDP_ERR_CONFIG, "eps is %g, it must not be negative", attrs->layer_norm.eps);
    DDP_TRY(vector_of(in[W], x->dims[x->rank - 1], "the weight", text, err));
    DDP_TRY(vector_of(in[B], x->dims[x->rank - 1], "the bias", text, err));
    out[Y] = out[MEAN] = *x;
    out[MEAN].rank--;
    out[INVSTD] = out[MEAN];
    return DDP_OK;
}

static ddp_status layer_norm_gradient(ddp_grad_context *c, const ddp_node *node, int32_t dy, ddp_err *err)
{
    const int32_t in[] = {dy, node->in[X], node->in[W], node->out[MEAN], node->out[INVSTD]};

    return ddp_grad_emit_all(c, node, DDP_OP_LAYER_NORM_GRAD, 5, in, 3, node->in, err);
}

/* Mean and variance in two passes, then shift, scale, weight and bias. */
static uint64_t layer_norm_flops(const ddp_node *node, const ddp_value *values)
{
    return 8 * (uint64_t)values[node->in[X]].elements;
}

static uint64_t layer_norm_grad_flops(const ddp_node *node, const ddp_value *values)
{
    return 14 * (uint64_t)values[node->in[GX]].elements;
}

/* x (R, E), w (E), b (E) -> y (R, E), mean (R), 1 / sqrt(variance + eps) (R) */
static void layer_norm_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    int64_t n = in[W].elements, rows = in[X].elements / n;

    for (int64_t r = 0; r < rows; r++) {
        const double *x = in[X].data + r * n;
        double mean = 0.0, variance = 0.0, invstd;

        for (int64_t i = 0; i < n; i++) mean += x[i];
        mean /= (double)n;
        for (int64_t i = 0; i < n; i++) variance += (x[i] - mean) * (x[i] - mean);
        invstd = 1.0 / sqrt(variance / (double)n + node->attrs.layer_norm.eps);
        for (int64_t i = 0; i < n; i++) out[Y].data[r * n + i] = (x[i] - mean) * invstd * in[W].data[i] + in[B].data[i];
        if (out[MEAN].data != NULL) out[MEAN].data[r] = mean;
        if (out[INVSTD].data != NULL) out[INVSTD].data[r] = invstd;
    }
}

/* With h = (x - mean) invstd and g = dy w: dx = invstd (g - mean(g) - h mean(g h)), dw = sum of dy h, db = sum of
 * dy. */
static void row_gradient(const double *dy, const double *x, const double *w, double mean, double invstd, int64_t n,
                         double *dx)
{
    double g_mean = 0.0, gh_mean = 0.0;

    for (int64_t i = 0; i < n; i++) {
        g_mean += dy[i] * w[i] / (double)n;
        gh_mean += dy[i] * w[i] * (x[i] - mean) * invstd / (double)n;
    }
    for (int64_t i = 0; i < n; i++) dx[i] = invstd * (dy[i] * w[i] - g_mean - (x[i] - mean) * invstd * gh_mean);
}

static void layer_norm_grad_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    int64_t n = in[GW].elements, rows = in[GX].elements / n;
    double *dx = out[0].data, *dw = out[1].data, *db = out[2].data;

    (void)node;
    for (int64_t i = 0; i < n; i++) {
        if (dw != NULL) dw[i] = 0.0;
        if (db != NULL) db[i] = 0.0;
    }
    for (int64_t r = 0; r < rows; r++) {
        const double *dy = in[DY].data + r * n, *x = in[GX].data + r * n;
        double mean = in[GMEAN].data[r], invstd = in[GINVSTD].data[r];

        for (int64_t i = 0; i < n; i++) {
            if (dw != NULL) dw[i] += dy[i] * (x[i] - mean) * invstd;
            if (db != NULL) db[i] += dy[i];
        }
        if (dx != NULL) row_gradient(dy, x, in[GW].data, mean, invstd, n, dx + r * n);
    }
}

DDP_OP_ROW(LAYER_NORM, layer_norm, 3, 3, .outs = 3, .shape = layer_norm_shape, .gradient = layer_norm_gradient,
           .flops = layer_norm_flops, .reference = layer_norm_reference);
DDP_OP_ROW(LAYER_NORM_GRAD, layer_norm_grad, 5, 5, .outs = 3, .flops = layer_norm_grad_flops,
           .reference = layer_norm_grad_reference);
