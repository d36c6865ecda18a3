/* graph/ops/pair_loss.c -- rows of the losses that compare a prediction with a target element by element and give the
 * mean: mse, l1, smooth_l1, bce_with_logits. */
#include "graph/internal.h"
#include <math.h>

ddp_status ddp_shape_pair(const ddp_attrs *attrs, uint32_t in_count, const ddp_shape *const *in, ddp_shape *out,
                          ddp_err *err)
{
    char a[DDP_SHAPE_TEXT], b[DDP_SHAPE_TEXT];

    (void)in_count;
    (void)attrs;
    DDP_TRY(ddp_shape_need(in[0], DDP_F32, "the prediction", err));
    DDP_TRY(ddp_shape_need(in[1], DDP_F32, "the target", err));
    if (!ddp_shape_equal(in[0], in[1]))
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "prediction %s and target %s: the shapes must be equal, nothing is broadcast",
                        ddp_shape_text(in[0], a, sizeof(a)), ddp_shape_text(in[1], b, sizeof(b)));
    ddp_shape_scalar(out);
    return DDP_OK;
}

static ddp_status smooth_l1_shape(const ddp_attrs *attrs, uint32_t in_count, const ddp_shape *const *in, ddp_shape *out,
                                  ddp_err *err)
{
    if (!(attrs->smooth_l1.beta >= 0.0 && attrs->smooth_l1.beta <= 1e30))
        return ddp_fail(err, DDP_ERR_CONFIG, "beta is %g, it must be from 0 to 1e30", attrs->smooth_l1.beta);
    return ddp_shape_pair(attrs, in_count, in, out, err);
}

/* Symmetric: the gradient of the target is that of the prediction with the two swapped. X_GRAD follows X in the list
 * of ops. */
static ddp_status pair_gradient(ddp_grad_context *c, const ddp_node *node, int32_t dy, ddp_err *err)
{
    DDP_TRY(ddp_grad_require_one(node, dy, err));
    for (uint32_t i = 0; i < 2; i++)
        if (ddp_grad_wanted(c, node->in[i]))
            DDP_TRY(ddp_grad_emit(c, node, node->op + 1, node->in[i], node->in[i], node->in[1 - i], err));
    return DDP_OK;
}

static ddp_status bce_gradient(ddp_grad_context *c, const ddp_node *node, int32_t dy, ddp_err *err)
{
    DDP_TRY(ddp_grad_require_one(node, dy, err));
    if (ddp_grad_wanted(c, node->in[1]))
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "bce_with_logits \"%s\": its target depends on a parameter, only its logits may", node->name);
    if (!ddp_grad_wanted(c, node->in[0])) return DDP_OK;
    return ddp_grad_emit(c, node, DDP_OP_BCE_WITH_LOGITS_GRAD, node->in[0], node->in[0], node->in[1], err);
}

/* ---- one element ------------------------------------------------------------------------------------------------- */
static double loss_of(const ddp_node *node, double p, double t)
{
    double d = p - t, beta = node->attrs.smooth_l1.beta;

    switch (node->op) {
    case DDP_OP_MSE: return d * d;
    case DDP_OP_L1: return fabs(d);
    case DDP_OP_SMOOTH_L1: return fabs(d) < beta ? 0.5 * d * d / beta : fabs(d) - 0.5 * beta;
    default: return (p > 0.0 || isnan(p) ? p : 0.0) - p * t + log1p(exp(-fabs(p)));
    }
}

static double sign(double d) { return d > 0.0 ? 1.0 : d < 0.0 ? -1.0 : d; } /* of a NaN, NaN */

static double slope_of(const ddp_node *node, double p, double t)
{
    double d = p - t, beta = node->attrs.smooth_l1.beta;

    switch (node->op) {
    case DDP_OP_MSE_GRAD: return 2.0 * d;
    case DDP_OP_L1_GRAD: return sign(d);
    case DDP_OP_SMOOTH_L1_GRAD: return fabs(d) < beta ? d / beta : sign(d);
    default: return 1.0 / (1.0 + exp(-p)) - t;
    }
}

static void pair_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    double sum = 0.0;

    for (int64_t i = 0; i < in[0].elements; i++) sum += loss_of(node, in[0].data[i], in[1].data[i]);
    out->data[0] = sum / (double)in[0].elements;
}

static void pair_grad_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    for (int64_t i = 0; i < out->elements; i++)
        out->data[i] = slope_of(node, in[0].data[i], in[1].data[i]) / (double)out->elements;
}

/* Every arithmetic operation or function call of the formula is one. */
static uint64_t pair_flops(const ddp_node *node, const ddp_value *values)
{
    bool bce = node->op == DDP_OP_BCE_WITH_LOGITS;

    return (uint64_t)(bce ? 7 : node->op == DDP_OP_SMOOTH_L1 ? 5 : 3) * (uint64_t)values[node->in[0]].elements;
}

static uint64_t pair_grad_flops(const ddp_node *node, const ddp_value *values)
{
    bool bce = node->op == DDP_OP_BCE_WITH_LOGITS_GRAD;

    return (uint64_t)(bce ? 5 : node->op == DDP_OP_SMOOTH_L1_GRAD ? 3 : 2) * (uint64_t)values[node->in[0]].elements;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */
#define PAIR_ROW(NAME, name_, shape_, gradient_)                                                                       \
    DDP_OP_ROW(NAME, name_, 2, 2, .shape = shape_, .gradient = gradient_, .loss = true, .flops = pair_flops,           \
               .reference = pair_reference)
#define PAIR_GRAD_ROW(NAME, name_)                                                                                     \
    DDP_OP_ROW(NAME, name_, 2, 2, .flops = pair_grad_flops, .reference = pair_grad_reference)

PAIR_ROW(MSE, mse, ddp_shape_pair, pair_gradient);
PAIR_GRAD_ROW(MSE_GRAD, mse_grad);
PAIR_ROW(L1, l1, ddp_shape_pair, pair_gradient);
PAIR_GRAD_ROW(L1_GRAD, l1_grad);
PAIR_ROW(SMOOTH_L1, smooth_l1, smooth_l1_shape, pair_gradient);
PAIR_GRAD_ROW(SMOOTH_L1_GRAD, smooth_l1_grad);
PAIR_ROW(BCE_WITH_LOGITS, bce_with_logits, ddp_shape_pair, bce_gradient);
PAIR_GRAD_ROW(BCE_WITH_LOGITS_GRAD, bce_with_logits_grad);
