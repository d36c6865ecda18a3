/* graph/ops/batch_norm.c -- rows of torch.nn.functional.batch_norm over images, and its gradient.
 *
 * Training: mean and variance of each channel over the batch and all pixels. The running mean and variance, buffers of
 * the model, move towards them; the variance is the unbiased estimate (divided by the count less one). Otherwise the
 * running ones are used, and there is no gradient. */
#include "graph/internal.h"
#include <math.h>

enum { X, W, B, RUNNING_MEAN, RUNNING_VAR }; /* in */
enum { Y, MEAN, INVSTD };                    /* out */

static ddp_status batch_norm_shape(const ddp_attrs *attrs, uint32_t in_count, const ddp_shape *const *in,
                                   ddp_shape *out, ddp_err *err)
{
    static const char *const names[] = {"input", "weight", "bias", "running mean", "running variance"};
    char sx[DDP_SHAPE_TEXT], si[DDP_SHAPE_TEXT];

    (void)in_count;
    DDP_TRY(ddp_shape_image(in[X], err));
    if (!(attrs->batch_norm.eps >= 0.0) || !(attrs->batch_norm.momentum >= 0.0) || attrs->batch_norm.momentum > 1.0)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "eps %g, momentum %g: eps must not be negative, the momentum be from 0 to 1",
                        attrs->batch_norm.eps, attrs->batch_norm.momentum);
    for (uint32_t i = W; i <= RUNNING_VAR; i++) {
        DDP_TRY(ddp_shape_need(in[i], DDP_F32, names[i], err));
        if (in[i]->batched || in[i]->rank != 1 || in[i]->dims[0] != in[X]->dims[1])
            return ddp_fail(err, DDP_ERR_CONFIG, "input %s and %s %s: it must be one number for each channel",
                            ddp_shape_text(in[X], sx, sizeof(sx)), names[i], ddp_shape_text(in[i], si, sizeof(si)));
    }
    out[Y] = *in[X];
    out[MEAN] = out[INVSTD] = (ddp_shape){.dtype = DDP_F32, .rank = 1, .dims = {in[X]->dims[1]}};
    return DDP_OK;
}

static ddp_status batch_norm_gradient(ddp_grad_context *c, const ddp_node *node, int32_t dy, ddp_err *err)
{
    const int32_t in[] = {dy, node->in[X], node->in[W], node->out[MEAN], node->out[INVSTD]};
    const int32_t targets[] = {node->in[X], node->in[W], node->in[B]};

    if (!ddp_grad_wanted(c, targets[0]) && !ddp_grad_wanted(c, targets[1]) && !ddp_grad_wanted(c, targets[2]))
        return DDP_OK;
    return ddp_grad_emit_all(c, node, DDP_OP_BATCH_NORM_GRAD, DDP_COUNT(in), in, DDP_COUNT(targets), targets, err);
}

/* Sum, squared distance, its sum; then a multiply and an add for each element. */
static uint64_t batch_norm_flops(const ddp_node *node, const ddp_value *values)
{
    return (uint64_t)values[node->in[X]].elements * (node->attrs.batch_norm.training ? 6u : 2u);
}

/* Two sums, one of them of products of a difference; then two multiply-adds for each element. */
static uint64_t gradient_flops(const ddp_node *node, const ddp_value *values)
{
    return (uint64_t)values[node->in[0]].elements * 8u;
}

static ddp_status batch_norm_check(const ddp_node *node, const ddp_ref_tensor *in, ddp_err *err)
{
    if (!node->attrs.batch_norm.training || in[X].elements > in[X].dims[1]) return DDP_OK;
    return ddp_fail(err, DDP_ERR_DATA,
                    "batch_norm \"%s\": one value per channel has no variance; train with larger batches or images",
                    node->name);
}

/* ---- references -------------------------------------------------------------------------------------------------- */
typedef struct sizes {
    int64_t images, channels, pixels;
    double count; /* values of a channel */
} sizes;

static sizes sizes_of(const ddp_ref_tensor *x)
{
    sizes s = {x->dims[0], x->dims[1], x->dims[2] * x->dims[3], 0.0};

    s.count = (double)(s.images * s.pixels);
    return s;
}

static int64_t element(const sizes *s, int64_t n, int64_t c, int64_t p)
{
    return (n * s->channels + c) * s->pixels + p;
}

/* Mean of the channel, and its variance divided by the count. */
static void moments(const sizes *s, const double *x, int64_t c, double *mean, double *var)
{
    *mean = *var = 0.0;
    for (int64_t n = 0; n < s->images; n++)
        for (int64_t p = 0; p < s->pixels; p++) *mean += x[element(s, n, c, p)] / s->count;
    for (int64_t n = 0; n < s->images; n++)
        for (int64_t p = 0; p < s->pixels; p++) {
            double d = x[element(s, n, c, p)] - *mean;
            *var += d * d / s->count;
        }
}

static void batch_norm_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    sizes s = sizes_of(&in[X]);
    double momentum = node->attrs.batch_norm.momentum;

    for (int64_t c = 0; c < s.channels; c++) {
        double *running_mean = &in[RUNNING_MEAN].data[c], *running_var = &in[RUNNING_VAR].data[c];
        double mean = *running_mean, var = *running_var, invstd;

        if (node->attrs.batch_norm.training) {
            moments(&s, in[X].data, c, &mean, &var);
            *running_mean += momentum * (mean - *running_mean);
            *running_var += momentum * (var * s.count / (s.count - 1.0) - *running_var);
        }
        invstd = 1.0 / sqrt(var + node->attrs.batch_norm.eps);
        if (out[MEAN].data != NULL) out[MEAN].data[c] = mean;
        if (out[INVSTD].data != NULL) out[INVSTD].data[c] = invstd;
        for (int64_t n = 0; n < s.images; n++)
            for (int64_t p = 0; p < s.pixels; p++) {
                int64_t i = element(&s, n, c, p);
                out[Y].data[i] = (in[X].data[i] - mean) * invstd * in[W].data[c] + in[B].data[c];
            }
    }
}

/* dy, x, w, mean, invstd -> dx, dw, db. With u = (x - mean) invstd: db = sum dy, dw = sum dy u,
 * dx = w invstd (dy - db / count - u dw / count). */
static void batch_norm_grad_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    const double *dy = in[0].data, *x = in[1].data;
    sizes s = sizes_of(&in[0]);

    (void)node;
    for (int64_t c = 0; c < s.channels; c++) {
        double w = in[2].data[c], mean = in[3].data[c], invstd = in[4].data[c], dw = 0.0, db = 0.0;

        for (int64_t n = 0; n < s.images; n++)
            for (int64_t p = 0; p < s.pixels; p++) {
                int64_t i = element(&s, n, c, p);
                db += dy[i];
                dw += dy[i] * (x[i] - mean) * invstd;
            }
        if (out[1].data != NULL) out[1].data[c] = dw;
        if (out[2].data != NULL) out[2].data[c] = db;
        for (int64_t n = 0; out[0].data != NULL && n < s.images; n++)
            for (int64_t p = 0; p < s.pixels; p++) {
                int64_t i = element(&s, n, c, p);
                out[0].data[i] = w * invstd * (dy[i] - db / s.count - (x[i] - mean) * invstd * dw / s.count);
            }
    }
}

DDP_OP_ROW(BATCH_NORM, batch_norm, 5, 5, .outs = 3, .shape = batch_norm_shape, .gradient = batch_norm_gradient,
           .flops = batch_norm_flops, .check = batch_norm_check, .reference = batch_norm_reference);
DDP_OP_ROW(BATCH_NORM_GRAD, batch_norm_grad, 5, 5, .outs = 3, .flops = gradient_flops,
           .reference = batch_norm_grad_reference);
