/* graph/op_loss.c -- rows of the ops that give one number for a batch: cross_entropy, mse, accuracy.
 * The label of a row is an index below C; whoever runs a reference has checked that. */
#include "graph/internal.h"
#include <math.h>

/* ---- cross_entropy ------------------------------------------------------------------------------------------------------ */
static ddp_status labelled_shape(const ddp_attrs *attrs, uint32_t in_count, const ddp_shape *const *in, ddp_shape *out,
                                 ddp_err *err)
{
    const ddp_shape *x = in[0], *label = in[1];
    char a[DDP_SHAPE_TEXT], b[DDP_SHAPE_TEXT];

    (void)attrs;
    (void)in_count;
    DDP_TRY(ddp_shape_need(x, DDP_F32, "the logits", err));
    DDP_TRY(ddp_shape_need(label, DDP_I64, "the label", err));
    if (x->rank != 2 || label->rank != 1 || x->batched != label->batched || x->dims[0] != label->dims[0])
        return ddp_fail(err, DDP_ERR_CONFIG, "logits %s and label %s: they must be (N, classes) and (N)",
                        ddp_shape_text(x, a, sizeof(a)), ddp_shape_text(label, b, sizeof(b)));
    ddp_shape_scalar(out);
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

static void cross_entropy_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    int64_t rows = in[0].dims[0], classes = in[0].dims[1];
    double sum = 0.0;

    (void)node;
    for (int64_t r = 0; r < rows; r++) {
        const double *x = in[0].data + r * classes;
        double max = row_max(x, classes);

        sum += log(row_sum_exp(x, classes, max)) + (max - x[(int64_t)in[1].data[r]]);
    }
    out->data[0] = sum / (double)rows;
}

/* (softmax - one_hot) / rows */
static void cross_entropy_grad_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    int64_t rows = in[0].dims[0], classes = in[0].dims[1];

    (void)node;
    for (int64_t r = 0; r < rows; r++) {
        const double *x = in[0].data + r * classes;
        double max = row_max(x, classes), sum = row_sum_exp(x, classes, max);
        int64_t label = (int64_t)in[1].data[r];

        for (int64_t i = 0; i < classes; i++)
            out->data[r * classes + i] = (exp(x[i] - max) / sum - (i == label ? 1.0 : 0.0)) / (double)rows;
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

/* ---- mse -------------------------------------------------------------------------------------------------------------- */
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

/* ---- accuracy --------------------------------------------------------------------------------------------------------- */
/* torch.argmax: the first largest, a NaN being larger than all. */
static int64_t first_largest(const double *x, int64_t n)
{
    int64_t best = 0;

    for (int64_t i = 1; i < n; i++)
        if (!isnan(x[best]) && (x[i] > x[best] || isnan(x[i]))) best = i;
    return best;
}

static void accuracy_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    int64_t rows = in[0].dims[0], classes = in[0].dims[1], right = 0;

    (void)node;
    for (int64_t r = 0; r < rows; r++)
        right += first_largest(in[0].data + r * classes, classes) == (int64_t)in[1].data[r];
    out->data[0] = (double)right;
}

static uint64_t accuracy_flops(const ddp_node *node, const ddp_value *values)
{
    return (uint64_t)values[node->in[0]].elements;
}

/* ---- rows ------------------------------------------------------------------------------------------------------------- */
const ddp_op_row ddp_row_cross_entropy = {.op = DDP_OP_CROSS_ENTROPY,
                                          .name = "cross_entropy",
                                          .min_in = 2,
                                          .max_in = 2,
                                          .shape = labelled_shape,
                                          .gradient = cross_entropy_gradient,
                                          .flops = cross_entropy_flops,
                                          .reference = cross_entropy_reference};
const ddp_op_row ddp_row_cross_entropy_grad = {.op = DDP_OP_CROSS_ENTROPY_GRAD,
                                               .name = "cross_entropy_grad",
                                               .min_in = 2,
                                               .max_in = 2,
                                               .flops = cross_entropy_grad_flops,
                                               .reference = cross_entropy_grad_reference};
const ddp_op_row ddp_row_mse = {.op = DDP_OP_MSE,
                                .name = "mse",
                                .min_in = 2,
                                .max_in = 2,
                                .shape = mse_shape,
                                .gradient = mse_gradient,
                                .flops = mse_flops,
                                .reference = mse_reference};
const ddp_op_row ddp_row_mse_grad = {.op = DDP_OP_MSE_GRAD,
                                     .name = "mse_grad",
                                     .min_in = 2,
                                     .max_in = 2,
                                     .flops = mse_grad_flops,
                                     .reference = mse_grad_reference};
const ddp_op_row ddp_row_accuracy = {.op = DDP_OP_ACCURACY,
                                     .name = "accuracy",
                                     .min_in = 2,
                                     .max_in = 2,
                                     .shape = labelled_shape,
                                     .flops = accuracy_flops,
                                     .reference = accuracy_reference};
