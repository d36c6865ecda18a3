/* graph/ops/softmax_parts.c -- cross-entropy whose classes are divided among ranks: what a rank says of its classes,
 * and the gradient once the log-sum-exp of all is known. Autodiff knows nothing of them: head.c makes the programs. */
#include "graph/internal.h"
#include <math.h>

enum { PARTS = 4, TERMS = 2 };

static ddp_status softmax_parts_shape(const ddp_attrs *attrs, uint32_t in_count, const ddp_shape *const *in,
                                      ddp_shape *out, ddp_err *err)
{
    DDP_TRY(ddp_shape_labelled(attrs, in_count, in, out, err));
    *out = *in[0];
    out->dims[out->rank - 1] = PARTS;
    return DDP_OK;
}

static int64_t columns_of(const ddp_ref_tensor *logits) { return logits->dims[logits->rank - 1]; }

/* -1: of other classes. */
static int64_t label_of(const ddp_ref_tensor *label, int64_t row, int64_t classes)
{
    double at = label->data[row];

    return at >= 0.0 && at < (double)classes ? (int64_t)at : -1;
}

static void softmax_parts_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    int64_t classes = columns_of(&in[0]);

    (void)node;
    for (int64_t r = 0; r < in[1].elements; r++) {
        const double *x = in[0].data + r * classes;
        double *parts = out->data + r * PARTS, sum = 0.0;
        int64_t label = label_of(&in[1], r, classes), first = 0;

        for (int64_t i = 1; i < classes; i++) first = x[i] > x[first] ? i : first;
        for (int64_t i = 0; i < classes; i++) sum += exp(x[i] - x[first]);
        parts[0] = x[first];
        parts[1] = sum;
        parts[2] = label >= 0 ? x[label] : -INFINITY;
        parts[3] = (double)first;
    }
}

static void softmax_parts_grad_reference(const ddp_node *node, const ddp_ref_tensor *in, ddp_ref_tensor *out)
{
    int64_t classes = columns_of(&in[0]);

    (void)node;
    for (int64_t r = 0; r < in[1].elements; r++) {
        const double *x = in[0].data + r * classes, *terms = in[2].data + r * TERMS;
        int64_t label = label_of(&in[1], r, classes);

        for (int64_t i = 0; i < classes; i++)
            out->data[r * classes + i] = (exp(x[i] - terms[0]) - (i == label ? 1.0 : 0.0)) * terms[1];
    }
}

static uint64_t softmax_parts_flops(const ddp_node *node, const ddp_value *values)
{
    return 4 * (uint64_t)values[node->in[0]].elements; /* max, subtract, exp, add */
}

static uint64_t softmax_parts_grad_flops(const ddp_node *node, const ddp_value *values)
{
    return 3 * (uint64_t)values[node->in[0]].elements;
}

DDP_OP_ROW(SOFTMAX_PARTS, softmax_parts, 2, 2, .shape = softmax_parts_shape, .flops = softmax_parts_flops,
           .reference = softmax_parts_reference);
DDP_OP_ROW(SOFTMAX_PARTS_GRAD, softmax_parts_grad, 3, 3, .flops = softmax_parts_grad_flops,
           .reference = softmax_parts_grad_reference);
