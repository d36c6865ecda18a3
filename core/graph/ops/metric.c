/* graph/ops/metric.c -- rows of the ops that an evaluation adds up over its batches: accuracy, and the counts and sums
 * that graph/metrics.c makes the other metrics of. */
#include "graph/internal.h"
#include <math.h>

ddp_status ddp_shape_labelled(const ddp_attrs *attrs, uint32_t in_count, const ddp_shape *const *in, ddp_shape *out,
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

static int64_t columns_of(const ddp_ref_tensor *logits) { return logits->dims[logits->rank - 1]; }

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

/* ---- counts of labelled rows ------------------------------------------------------------------------------------- */
static ddp_status metric_shape(const ddp_attrs *attrs, uint32_t in_count, const ddp_shape *const *in, ddp_shape *out,
                               int64_t *classes, ddp_err *err)
{
    DDP_TRY(ddp_shape_labelled(attrs, in_count, in, out, err));
    *classes = in[0]->dims[in[0]->rank - 1];
    if (attrs->metric.classes < 0 || attrs->metric.classes > *classes)
        return ddp_fail(err, DDP_ERR_CONFIG, "%lld classes of %lld logits: there cannot be more, or fewer than 0",
                        (long long)attrs->metric.classes, (long long)*classes);
    if (attrs->metric.classes > 0) *classes = attrs->metric.classes;
    return DDP_OK;
}

static ddp_status top_k_shape(const ddp_attrs *attrs, uint32_t in_count, const ddp_shape *const *in, ddp_shape *out,
                              ddp_err *err)
{
    int64_t classes;

    DDP_TRY(metric_shape(attrs, in_count, in, out, &classes, err));
    if (attrs->metric.k == 0) return ddp_fail(err, DDP_ERR_CONFIG, "k is 0, it must be at least 1");
    *out = (ddp_shape){.dtype = DDP_F32, .rank = 1, .dims = {2}};
    return DDP_OK;
}

static ddp_status confusion_shape(const ddp_attrs *attrs, uint32_t in_count, const ddp_shape *const *in, ddp_shape *out,
                                  ddp_err *err)
{
    int64_t classes;

    DDP_TRY(metric_shape(attrs, in_count, in, out, &classes, err));
    if (classes > DDP_CONFUSION_MAX)
        return ddp_fail(err, DDP_ERR_CONFIG, "%lld classes; a confusion matrix has at most %d", (long long)classes,
                        DDP_CONFUSION_MAX);
    *out = (ddp_shape){.dtype = DDP_F32, .rank = 2, .dims = {classes, classes}};
    return DDP_OK;
}

/* Logits that come before the one at `at` when they are sorted from the largest down. */
static int64_t larger_than(const double *x, int64_t n, int64_t at)
{
    int64_t before = 0;

    for (int64_t i = 0; i < n; i++)
        if (isnan(x[at]))
            before += i < at && isnan(x[i]);
        else
            before += isnan(x[i]) || x[i] > x[at] || (i < at && x[i] == x[at]);
    return before;
}

static void top_k_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    int64_t columns = columns_of(&in[0]);
    ddp_labels l = ddp_labels_of(node->op, &node->attrs, columns);

    out->data[0] = out->data[1] = 0.0;
    for (int64_t r = 0; r < in[1].elements; r++) {
        if (l.ignores && in[1].data[r] == (double)l.ignore_index) continue;
        out->data[0] += larger_than(in[0].data + r * columns, l.classes, (int64_t)in[1].data[r]) < node->attrs.metric.k;
        out->data[1] += 1.0;
    }
}

static void confusion_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    int64_t columns = columns_of(&in[0]);
    ddp_labels l = ddp_labels_of(node->op, &node->attrs, columns);

    for (int64_t i = 0; i < out->elements; i++) out->data[i] = 0.0;
    for (int64_t r = 0; r < in[1].elements; r++) {
        if (l.ignores && in[1].data[r] == (double)l.ignore_index) continue;
        out->data[(int64_t)in[1].data[r] * l.classes + first_largest(in[0].data + r * columns, l.classes)] += 1.0;
    }
}

/* ---- a prediction and a target of one shape ---------------------------------------------------------------------- */
static ddp_status binary_confusion_shape(const ddp_attrs *attrs, uint32_t in_count, const ddp_shape *const *in,
                                         ddp_shape *out, ddp_err *err)
{
    DDP_TRY(ddp_shape_pair(attrs, in_count, in, out, err));
    *out = (ddp_shape){.dtype = DDP_F32, .rank = 2, .dims = {2, 2}};
    return DDP_OK;
}

static ddp_status regression_shape(const ddp_attrs *attrs, uint32_t in_count, const ddp_shape *const *in,
                                   ddp_shape *out, ddp_err *err)
{
    int64_t columns = 1;

    DDP_TRY(ddp_shape_pair(attrs, in_count, in, out, err));
    for (uint32_t i = 1; i < in[0]->rank; i++) columns *= in[0]->dims[i];
    if (!in[0]->batched)
        return ddp_fail(err, DDP_ERR_CONFIG, "the prediction does not depend on the batch, there is nothing to add up");
    if (columns > DDP_REGRESSION_MAX)
        return ddp_fail(err, DDP_ERR_CONFIG, "%lld targets for each sample; the metrics have sums for at most %d",
                        (long long)columns, DDP_REGRESSION_MAX);
    *out = (ddp_shape){.dtype = DDP_F32, .rank = 3, .dims = {2, columns, DDP_REGRESSION_SUMS}};
    return DDP_OK;
}

static void binary_confusion_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    (void)node;
    for (int64_t i = 0; i < 4; i++) out->data[i] = 0.0;
    for (int64_t i = 0; i < in[0].elements; i++) out->data[2 * (in[1].data[i] > 0.5) + (in[0].data[i] > 0.0)] += 1.0;
}

static void regression_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    int64_t columns = out->dims[1];

    (void)node;
    for (int64_t i = 0; i < out->elements; i++) out->data[i] = 0.0; /* a double needs no second part */
    for (int64_t i = 0; i < in[0].elements; i++) {
        double t = in[1].data[i], d = in[0].data[i] - t, *sums = out->data + i % columns * DDP_REGRESSION_SUMS;

        sums[0] += 1.0;
        sums[1] += fabs(d);
        sums[2] += d * d;
        sums[3] += t;
        sums[4] += t * t;
    }
}

static uint64_t regression_flops(const ddp_node *node, const ddp_value *values)
{
    return 8 * (uint64_t)values[node->in[0]].elements;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */
DDP_OP_ROW(ACCURACY, accuracy, 2, 2, .shape = ddp_shape_labelled, .flops = accuracy_flops, .check = ddp_check_labels,
           .reference = accuracy_reference);
DDP_OP_ROW(TOP_K, top_k, 2, 2, .shape = top_k_shape, .flops = accuracy_flops, .check = ddp_check_labels,
           .reference = top_k_reference);
DDP_OP_ROW(CONFUSION, confusion, 2, 2, .shape = confusion_shape, .flops = accuracy_flops, .check = ddp_check_labels,
           .reference = confusion_reference);
DDP_OP_ROW(BINARY_CONFUSION, binary_confusion, 2, 2, .shape = binary_confusion_shape, .flops = accuracy_flops,
           .reference = binary_confusion_reference);
DDP_OP_ROW(REGRESSION, regression, 2, 2, .shape = regression_shape, .flops = regression_flops,
           .reference = regression_reference);
