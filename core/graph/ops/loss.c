/* graph/ops/loss.c -- the rows of cross_entropy. The label of a row is an index below C; whoever runs a reference has
 * checked that. */
#include "graph/internal.h"
#include <math.h>

/* ---- cross_entropy ----------------------------------------------------------------------------------------------- */
static ddp_status check_weights(const ddp_attrs *attrs, const ddp_shape *logits, ddp_err *err)
{
    int64_t classes = attrs->cross_entropy.classes > 0 ? attrs->cross_entropy.classes : logits->dims[logits->rank - 1];

    if (attrs->cross_entropy.weights == 0) return DDP_OK;
    if (attrs->cross_entropy.weights != (uint64_t)classes || attrs->cross_entropy.weight == NULL)
        return ddp_fail(err, DDP_ERR_CONFIG, "%u class weights for %lld classes: each class needs one",
                        attrs->cross_entropy.weights, (long long)classes);
    for (int64_t i = 0; i < classes; i++)
        if (!(attrs->cross_entropy.weight[i] >= 0.0f && attrs->cross_entropy.weight[i] <= 1e30f))
            return ddp_fail(err, DDP_ERR_CONFIG, "the weight of class %lld is %g, it must be from 0 to 1e30",
                            (long long)i, (double)attrs->cross_entropy.weight[i]);
    return DDP_OK;
}

/* The other label of each row, and how much the first one counts. */
static ddp_status check_mixed(const ddp_attrs *attrs, uint32_t in_count, const ddp_shape *const *in, ddp_err *err)
{
    if (in_count == 2) return DDP_OK;
    if (in_count != 4 || in[2] == NULL || in[3] == NULL)
        return ddp_fail(err, DDP_ERR_CONFIG, "mixed labels need the other label and lambda");
    DDP_TRY(ddp_shape_need(in[2], DDP_I64, "the other label", err));
    DDP_TRY(ddp_shape_need(in[3], DDP_F32, "lambda", err));
    if (!ddp_shape_equal(in[2], in[1]) || !ddp_shape_equal(in[3], in[1]))
        return ddp_fail(err, DDP_ERR_CONFIG, "the other label and lambda need the shape of the label");
    if (attrs->cross_entropy.weights > 0)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "there are class weights and mixed labels; take the weights out, or mixup and cutmix");
    return DDP_OK;
}

static ddp_status cross_entropy_shape(const ddp_attrs *attrs, uint32_t in_count, const ddp_shape *const *in,
                                      ddp_shape *out, ddp_err *err)
{
    double s = attrs->cross_entropy.label_smoothing;

    DDP_TRY(ddp_shape_labelled(attrs, in_count, in, out, err));
    DDP_TRY(check_mixed(attrs, in_count, in, err));
    if (attrs->cross_entropy.classes < 0 || attrs->cross_entropy.classes > in[0]->dims[in[0]->rank - 1])
        return ddp_fail(err, DDP_ERR_CONFIG, "%lld classes of %lld logits: there cannot be more, or fewer than 0",
                        (long long)attrs->cross_entropy.classes, (long long)in[0]->dims[in[0]->rank - 1]);
    if (!(s >= 0.0 && s <= 1.0))
        return ddp_fail(err, DDP_ERR_CONFIG, "label smoothing is %g, it must be from 0 to 1", s);
    return check_weights(attrs, in[0], err);
}

static int64_t columns_of(const ddp_ref_tensor *logits) { return logits->dims[logits->rank - 1]; }

static int64_t classes_of(const ddp_node *node, const ddp_ref_tensor *logits)
{
    return ddp_labels_of(node->op, &node->attrs, columns_of(logits)).classes;
}

static bool ignored(const ddp_node *node, double label)
{
    return node->attrs.cross_entropy.ignores && label == (double)node->attrs.cross_entropy.ignore_index;
}

ddp_labels ddp_labels_of(uint32_t op, const ddp_attrs *a, int64_t columns)
{
    ddp_labels l = {.classes = columns};
    int64_t classes = 0;

    if (op == DDP_OP_CROSS_ENTROPY || op == DDP_OP_CROSS_ENTROPY_GRAD) {
        l.ignores = a->cross_entropy.ignores != 0;
        l.ignore_index = a->cross_entropy.ignore_index;
        classes = a->cross_entropy.classes;
    } else if (op == DDP_OP_TOP_K || op == DDP_OP_CONFUSION) {
        l.ignores = a->metric.ignores != 0;
        l.ignore_index = a->metric.ignore_index;
        classes = a->metric.classes;
    }
    if (classes > 0) l.classes = classes;
    return l;
}

ddp_status ddp_check_labels(const ddp_node *node, const ddp_ref_tensor *in, ddp_err *err)
{
    ddp_labels l = ddp_labels_of(node->op, &node->attrs, columns_of(&in[0]));

    for (uint32_t k = 1; k < DDP_MIN_OF(node->in_count, 3u); k++) /* of mixed labels the other one too */
        for (int64_t r = 0; r < in[k].elements; r++)
            if (!(in[k].data[r] >= 0.0 && in[k].data[r] < (double)l.classes) &&
                !(l.ignores && in[k].data[r] == (double)l.ignore_index))
                return ddp_fail(err, DDP_ERR_DATA, "%s \"%s\": row %lld has label %.0f, there are %lld classes",
                                ddp_op_name(node->op), node->name, (long long)r, in[k].data[r], (long long)l.classes);
    return DDP_OK;
}

static ddp_status cross_entropy_gradient(ddp_grad_context *c, const ddp_node *node, int32_t dy, ddp_err *err)
{
    DDP_TRY(ddp_grad_require_one(node, dy, err));
    if (!ddp_grad_wanted(c, node->in[0])) return DDP_OK;
    return ddp_grad_emit_all(c, node, DDP_OP_CROSS_ENTROPY_GRAD, node->in_count, node->in, 1, node->in, err);
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

static double weight_of(const ddp_node *node, int64_t class)
{
    return node->attrs.cross_entropy.weights > 0 ? (double)node->attrs.cross_entropy.weight[class] : 1.0;
}

/* What of a row's target is at class i, before smoothing. */
static double target_at(const ddp_node *node, const ddp_ref_tensor *in, int64_t row, int64_t i)
{
    double lambda = node->in_count > 2 ? in[3].data[row] : 1.0, target = 0.0;

    if ((double)i == in[1].data[row]) target += lambda;
    if (node->in_count > 2 && (double)i == in[2].data[row]) target += 1.0 - lambda;
    return target;
}

/* What the sum over the rows is divided by, where it is not given: the weights of the labels that count, which are 1
 * without weights. */
static double counted_rows(const ddp_node *node, const ddp_ref_tensor *label)
{
    double n = 0.0;

    if (node->attrs.cross_entropy.divisor > 0.0) return node->attrs.cross_entropy.divisor;
    for (int64_t r = 0; r < label->elements; r++)
        if (!ignored(node, label->data[r])) n += weight_of(node, (int64_t)label->data[r]);
    return n;
}

/* (1 - s) * w[label] * -log p[label] + s / C * sum of w * -log p; the mean of no rows is 0 / 0, as in torch. */
static void cross_entropy_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    int64_t classes = classes_of(node, &in[0]);
    double sum = 0.0, smooth = node->attrs.cross_entropy.label_smoothing;

    for (int64_t r = 0; r < in[1].elements; r++) {
        const double *x = in[0].data + r * columns_of(&in[0]);
        double max = row_max(x, classes), lse = log(row_sum_exp(x, classes, max)), all = 0.0; /* lse: of x - max */

        if (ignored(node, in[1].data[r])) continue;
        for (int64_t i = 0; i < classes; i++) all += weight_of(node, i) * (lse + (max - x[i]));
        sum += smooth / (double)classes * all;
        for (int64_t i = 0; i < classes; i++)
            if (target_at(node, in, r, i) != 0.0)
                sum += (1.0 - smooth) * target_at(node, in, r, i) * weight_of(node, i) * (lse + (max - x[i]));
    }
    out->data[0] = sum / counted_rows(node, &in[1]);
}

/* (softmax * sum of the target - target) / rows, where target = (1 - s) w one_hot + s w / C */
static void cross_entropy_grad_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    int64_t classes = classes_of(node, &in[0]), columns = columns_of(&in[0]);
    double rows = counted_rows(node, &in[1]), smooth = node->attrs.cross_entropy.label_smoothing, all = 0.0;

    for (int64_t i = 0; i < classes; i++) all += smooth * weight_of(node, i) / (double)classes;
    for (int64_t r = 0; r < in[1].elements; r++) {
        const double *x = in[0].data + r * columns;
        double max = row_max(x, classes), sum = row_sum_exp(x, classes, max), *dx = out->data + r * columns;
        bool counts = !ignored(node, in[1].data[r]);
        double one = counts ? (1.0 - smooth) * weight_of(node, (int64_t)in[1].data[r]) : 0.0;

        for (int64_t i = classes; i < columns; i++) dx[i] = 0.0;
        for (int64_t i = 0; i < classes; i++) {
            double target = one * target_at(node, in, r, i) + smooth * weight_of(node, i) / (double)classes;

            dx[i] = counts ? (exp(x[i] - max) / sum * (one + all) - target) / rows : 0.0;
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

/* ---- rows -------------------------------------------------------------------------------------------------------- */
DDP_OP_ROW(CROSS_ENTROPY, cross_entropy, 2, 4, .shape = cross_entropy_shape, .gradient = cross_entropy_gradient,
           .loss = true, .flops = cross_entropy_flops, .check = ddp_check_labels, .reference = cross_entropy_reference);
DDP_OP_ROW(CROSS_ENTROPY_GRAD, cross_entropy_grad, 2, 4, .flops = cross_entropy_grad_flops, .check = ddp_check_labels,
           .reference = cross_entropy_grad_reference);
