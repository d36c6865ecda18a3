/* graph/ops/loss.c -- rows of the ops that give one number for a batch: cross_entropy, mse, accuracy.
 * The label of a row is an index below C; whoever runs a reference has checked that. */
#include "graph/internal.h"
#include <math.h>

/* ---- cross_entropy ----------------------------------------------------------------------------------------------- */
static ddp_status labelled_shape(const ddp_attrs *attrs, uint32_t in_count, const ddp_shape *const *in, ddp_shape *out,
                                 ddp_err *err)
{
    const ddp_shape *x = in[0], *label = in[1];
    char a[DDP_SHAPE_TEXT], b[DDP_SHAPE_TEXT];
    ddp_shape rows = *x;

    (void)attrs;
    (void)in_count;
    DDP_TRY(ddp_shape_need(x, DDP_F32, "the logits", err));
    DDP_TRY(ddp_shape_need(label, DDP_I64, "the label", err));
    if (rows.rank > 0) rows.rank--;
    if (x->rank < 2 || !ddp_shape_equal(&rows, label))
        return ddp_fail(err, DDP_ERR_CONFIG, "logits %s and label %s: they must be (N, .., classes) and (N, ..)",
                        ddp_shape_text(x, a, sizeof(a)), ddp_shape_text(label, b, sizeof(b)));
    ddp_shape_scalar(out);
    return DDP_OK;
}

static ddp_status cross_entropy_shape(const ddp_attrs *attrs, uint32_t in_count, const ddp_shape *const *in,
                                      ddp_shape *out, ddp_err *err)
{
    double s = attrs->cross_entropy.label_smoothing;

    DDP_TRY(labelled_shape(attrs, in_count, in, out, err));
    if (attrs->cross_entropy.classes < 0 || attrs->cross_entropy.classes > in[0]->dims[in[0]->rank - 1])
        return ddp_fail(err, DDP_ERR_CONFIG, "%lld classes of %lld logits: there cannot be more, or fewer than 0",
                        (long long)attrs->cross_entropy.classes, (long long)in[0]->dims[in[0]->rank - 1]);
    if (!(s >= 0.0 && s <= 1.0))
        return ddp_fail(err, DDP_ERR_CONFIG, "label smoothing is %g, it must be from 0 to 1", s);
    if (attrs->cross_entropy.ignores && attrs->cross_entropy.ignore_index >= 0 &&
        attrs->cross_entropy.ignore_index < in[0]->dims[in[0]->rank - 1])
        return ddp_fail(err, DDP_ERR_CONFIG, "label %lld is to be ignored, but it is one of the classes",
                        (long long)attrs->cross_entropy.ignore_index);
    return DDP_OK;
}

static int64_t columns_of(const ddp_ref_tensor *logits) { return logits->dims[logits->rank - 1]; }

static bool is_entropy(const ddp_node *node)
{
    return node->op == DDP_OP_CROSS_ENTROPY || node->op == DDP_OP_CROSS_ENTROPY_GRAD;
}

/* Those of the columns that are no padding. */
static int64_t classes_of(const ddp_node *node, const ddp_ref_tensor *logits)
{
    return is_entropy(node) && node->attrs.cross_entropy.classes > 0 ? node->attrs.cross_entropy.classes
                                                                     : columns_of(logits);
}

static bool ignored(const ddp_node *node, double label)
{
    return is_entropy(node) && node->attrs.cross_entropy.ignores &&
           label == (double)node->attrs.cross_entropy.ignore_index;
}

static ddp_status check_label(const ddp_node *node, const ddp_ref_tensor *in, ddp_err *err)
{
    for (int64_t r = 0; r < in[1].elements; r++)
        if (!(in[1].data[r] >= 0.0 && in[1].data[r] < (double)classes_of(node, &in[0])) &&
            !ignored(node, in[1].data[r]))
            return ddp_fail(err, DDP_ERR_DATA, "%s \"%s\": row %lld has label %.0f, there are %lld classes",
                            ddp_op_name(node->op), node->name, (long long)r, in[1].data[r],
                            (long long)classes_of(node, &in[0]));
    return DDP_OK;
}

static ddp_status cross_entropy_gradient(ddp_grad_context *c, const ddp_node *node, int32_t dy, ddp_err *err)
{
    DDP_TRY(ddp_grad_require_one(node, dy, err));
    if (!ddp_grad_wanted(c, node->in[0])) return DDP_OK;
    return ddp_grad_emit(c, node, DDP_OP_CROSS_ENTROPY_GRAD, node->in[0], node->in[0], node->in[1], err);
}

static double row_max(const double *x, int64_t n)
{
    double max = x[0];

    for (int64_t i = 1; i < n; i++) max = x[i] > max || isnan(x[i]) ? x[i] : max;
    return max;
}

static double row_sum_exp(const double *x, int64_t n, double max)
{
    double sum = 0.0;

    for (int64_t i = 0; i < n; i++) sum += exp(x[i] - max);
    return sum;
}

static double counted_rows(const ddp_node *node, const ddp_ref_tensor *label)
{
    double n = 0.0;

    for (int64_t r = 0; r < label->elements; r++) n += ignored(node, label->data[r]) ? 0.0 : 1.0;
    return n;
}

/* (1 - s) * -log p[label] + s / C * sum of -log p; the mean of no rows is 0 / 0, as in torch. */
static void cross_entropy_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    int64_t classes = classes_of(node, &in[0]);
    double sum = 0.0, smooth = node->attrs.cross_entropy.label_smoothing;

    for (int64_t r = 0; r < in[1].elements; r++) {
        const double *x = in[0].data + r * columns_of(&in[0]);
        double max = row_max(x, classes), lse = log(row_sum_exp(x, classes, max)), all = 0.0; /* lse: of x - max */

        if (ignored(node, in[1].data[r])) continue;
        for (int64_t i = 0; i < classes; i++) all += lse + (max - x[i]);
        sum += (1.0 - smooth) * (lse + (max - x[(int64_t)in[1].data[r]])) + smooth / (double)classes * all;
    }
    out->data[0] = sum / counted_rows(node, &in[1]);
}

/* (softmax - (1 - s) one_hot - s / C) / rows */
static void cross_entropy_grad_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    int64_t classes = classes_of(node, &in[0]), columns = columns_of(&in[0]);
    double rows = counted_rows(node, &in[1]), smooth = node->attrs.cross_entropy.label_smoothing;

    for (int64_t r = 0; r < in[1].elements; r++) {
        const double *x = in[0].data + r * columns;
        double max = row_max(x, classes), sum = row_sum_exp(x, classes, max), *dx = out->data + r * columns;

        for (int64_t i = classes; i < columns; i++) dx[i] = 0.0;
        for (int64_t i = 0; i < classes; i++) {
            double target = (i == (int64_t)in[1].data[r] ? 1.0 - smooth : 0.0) + smooth / (double)classes;

            dx[i] = ignored(node, in[1].data[r]) ? 0.0 : (exp(x[i] - max) / sum - target) / rows;
        }
    }
}

static uint64_t cross_entropy_flops(const ddp_node *node, const ddp_value *values)
{
    return 4 * (uint64_t)values[node->in[0]].elements; /* max, subtract, exp, add */
}

static uint64_t cross_entropy_grad_flops(const ddp_node *node, const ddp_value *values)
{
    return 6 * (uint64_t)values[node->in[0]].elements; /* and divide twice */
}

/* ---- mse --------------------------------------------------------------------------------------------------------- */
static ddp_status mse_shape(const ddp_attrs *attrs, uint32_t in_count, const ddp_shape *const *in, ddp_shape *out,
                            ddp_err *err)
{
    char a[DDP_SHAPE_TEXT], b[DDP_SHAPE_TEXT];

    (void)attrs;
    (void)in_count;
    DDP_TRY(ddp_shape_need(in[0], DDP_F32, "the prediction", err));
    DDP_TRY(ddp_shape_need(in[1], DDP_F32, "the target", err));
    if (!ddp_shape_equal(in[0], in[1]))
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "prediction %s and target %s: the shapes must be equal, nothing is broadcast",
                        ddp_shape_text(in[0], a, sizeof(a)), ddp_shape_text(in[1], b, sizeof(b)));
    ddp_shape_scalar(out);
    return DDP_OK;
}

/* Symmetric: the gradient of the target is that of the prediction with the two swapped. */
static ddp_status mse_gradient(ddp_grad_context *c, const ddp_node *node, int32_t dy, ddp_err *err)
{
    DDP_TRY(ddp_grad_require_one(node, dy, err));
    for (uint32_t i = 0; i < 2; i++)
        if (ddp_grad_wanted(c, node->in[i]))
            DDP_TRY(ddp_grad_emit(c, node, DDP_OP_MSE_GRAD, node->in[i], node->in[i], node->in[1 - i], err));
    return DDP_OK;
}

static void mse_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    double sum = 0.0;

    (void)node;
    for (int64_t i = 0; i < in[0].elements; i++) {
        double d = in[0].data[i] - in[1].data[i];

        sum += d * d;
    }
    out->data[0] = sum / (double)in[0].elements;
}

static void mse_grad_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    (void)node;
    for (int64_t i = 0; i < out->elements; i++)
        out->data[i] = 2.0 * (in[0].data[i] - in[1].data[i]) / (double)out->elements;
}

static uint64_t mse_flops(const ddp_node *node, const ddp_value *values)
{
    return 3 * (uint64_t)values[node->in[0]].elements;
}

static uint64_t mse_grad_flops(const ddp_node *node, const ddp_value *values)
{
    return 2 * (uint64_t)values[node->in[0]].elements;
}

/* ---- accuracy ---------------------------------------------------------------------------------------------------- */
/* torch.argmax: the first largest, a NaN being larger than all. */
static int64_t first_largest(const double *x, int64_t n)
{
    int64_t best = 0;

    for (int64_t i = 1; i < n; i++)
        if (!isnan(x[best]) && (x[i] > x[best] || isnan(x[i]))) best = i;
    return best;
}

/* An evaluation adds it up over samples: a sample of several rows counts by its fraction of right ones. */
static void accuracy_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    int64_t classes = columns_of(&in[0]), rows = in[1].elements, right = 0;

    (void)node;
    for (int64_t r = 0; r < rows; r++)
        right += first_largest(in[0].data + r * classes, classes) == (int64_t)in[1].data[r];
    out->data[0] = (double)right / ((double)rows / (double)in[1].dims[0]);
}

static uint64_t accuracy_flops(const ddp_node *node, const ddp_value *values)
{
    return (uint64_t)values[node->in[0]].elements;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */
DDP_OP_ROW(CROSS_ENTROPY, cross_entropy, 2, 2, .shape = cross_entropy_shape, .gradient = cross_entropy_gradient,
           .flops = cross_entropy_flops, .check = check_label, .reference = cross_entropy_reference);
DDP_OP_ROW(CROSS_ENTROPY_GRAD, cross_entropy_grad, 2, 2, .flops = cross_entropy_grad_flops, .check = check_label,
           .reference = cross_entropy_grad_reference);
DDP_OP_ROW(MSE, mse, 2, 2, .shape = mse_shape, .gradient = mse_gradient, .flops = mse_flops,
           .reference = mse_reference);
DDP_OP_ROW(MSE_GRAD, mse_grad, 2, 2, .flops = mse_grad_flops, .reference = mse_grad_reference);
DDP_OP_ROW(ACCURACY, accuracy, 2, 2, .shape = labelled_shape, .flops = accuracy_flops, .check = check_label,
           .reference = accuracy_reference);
