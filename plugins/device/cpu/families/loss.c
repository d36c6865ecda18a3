/* plugins/device/cpu/families/loss.c -- ops that give one number for a batch, with their gradient: one pass over the
 * logits, over them when nobody reads them later. */
#include "cpu.h"

enum { X = LOW_LOSS_X, TARGET = LOW_LOSS_TARGET, OTHER = LOW_LOSS_OTHER, LAMBDA = LOW_LOSS_LAMBDA };
enum { LOSS = LOW_LOSS, GRAD = LOW_LOSS_GRAD };

static ddp_status group_loss(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    (void)err;
    low_loss_group(w, k, node);
    if (k->kind != DDP_OP_CROSS_ENTROPY) {
        k->cols *= k->rows;
        k->rows = 1;
    }
    return DDP_OK;
}

static int64_t classes_of(const low_kernel *k, const ddp_attrs *attrs)
{
    return attrs->cross_entropy.classes > 0 ? attrs->cross_entropy.classes : k->cols;
}

/* Adds up the weights of the labels that are not ignored, each 1 without weights. */
static ddp_status count_labels(const cpu_call *c, const int64_t *label, double *counted, ddp_err *err)
{
    const low_kernel *k = c->k;
    const ddp_attrs *attrs = &low_node(c->program, k->nodes[0])->attrs;
    const float *weight = attrs->cross_entropy.weights > 0 ? attrs->cross_entropy.weight : NULL;
    int64_t classes = classes_of(k, attrs);

    *counted = 0.0;
    for (int64_t r = 0; r < k->rows; r++) {
        if (attrs->cross_entropy.ignores && label[r] == attrs->cross_entropy.ignore_index) continue;
        if (label[r] < 0 || label[r] >= classes) return cpu_bad_label(label[r], r, classes, err);
        *counted += weight != NULL ? (double)weight[label[r]] : 1.0;
    }
    return DDP_OK;
}

ddp_status cpu_bad_label(int64_t label, int64_t row, int64_t classes, ddp_err *err)
{
    return ddp_fail(
        err, DDP_ERR_DATA,
        "device \"cpu\": label %lld of row %lld of the batch is not one of the model's %lld classes (0 to %lld); check the data set's labels against the model's number of classes",
        (long long)label, (long long)row, (long long)classes, (long long)(classes - 1));
}

static ddp_status check_other(const cpu_call *c, const int64_t *other, int64_t classes, ddp_err *err)
{
    for (int64_t r = 0; other != NULL && r < c->k->rows; r++)
        if (other[r] < 0 || other[r] >= classes) return cpu_bad_label(other[r], r, classes, err);
    return DDP_OK;
}

/* The sum of the rows' losses, and what it is to be divided by. */
static ddp_status run_entropy(const cpu_call *c, double *sum, double *counted, ddp_err *err)
{
    const low_kernel *k = c->k;
    const ddp_attrs *attrs = &low_node(c->program, k->nodes[0])->attrs;
    const int64_t *label = cpu_in(c, TARGET);
    cpu_entropy e = {
        .classes = classes_of(k, attrs), .ignored = -1, .smoothing = (float)attrs->cross_entropy.label_smoothing};
    ddp_status status = count_labels(c, label, counted, err);

    e.other = k->in[OTHER] >= 0 ? cpu_in(c, OTHER) : NULL;
    e.lambda = k->in[OTHER] >= 0 ? cpu_in(c, LAMBDA) : NULL;

    if (status == DDP_OK) status = check_other(c, e.other, e.classes, err);
    if (status != DDP_OK) return status;
    if (attrs->cross_entropy.divisor > 0.0) *counted = attrs->cross_entropy.divisor;
    if (attrs->cross_entropy.ignores) e.ignored = attrs->cross_entropy.ignore_index;
    e.scale = (float)(1.0 / *counted);
    if (attrs->cross_entropy.weights > 0) e.weight = attrs->cross_entropy.weight;
    for (int64_t i = 0; e.weight != NULL && i < e.classes; i++) e.weight_sum += (double)e.weight[i];
    *sum = c->device->kernels->cross_entropy(cpu_out(c, GRAD), cpu_in(c, X), label, k->rows, k->cols, &e);
    return DDP_OK;
}

static double run_pair(const cpu_call *c)
{
    const cpu_kernels *f = c->device->kernels;
    const low_kernel *k = c->k;
    float beta = (float)low_node(c->program, k->nodes[0])->attrs.smooth_l1.beta;
    uint32_t loss = k->kind == DDP_OP_L1          ? CPU_LOSS_L1
                    : k->kind == DDP_OP_SMOOTH_L1 ? CPU_LOSS_SMOOTH_L1
                                                  : CPU_LOSS_BCE;

    if (k->kind == DDP_OP_MSE)
        return f->mse(cpu_out(c, GRAD), cpu_in(c, X), cpu_in(c, TARGET), k->cols, (float)(2.0 / (double)k->cols));
    return f->pair_loss(cpu_out(c, GRAD), cpu_in(c, X), cpu_in(c, TARGET), k->cols, (float)(1.0 / (double)k->cols),
                        loss, beta);
}

static ddp_status run_loss(const cpu_call *c, ddp_err *err)
{
    float *loss = cpu_out(c, LOSS);
    double sum = 0.0, counted = (double)c->k->cols;
    ddp_status status = DDP_OK;

    if (c->k->kind == DDP_OP_CROSS_ENTROPY)
        status = run_entropy(c, &sum, &counted, err);
    else
        sum = run_pair(c);
    if (status == DDP_OK && loss != NULL) *loss = (float)(sum / counted);
    return status;
}

const cpu_family cpu_family_loss = {.base.group = group_loss, .run = run_loss};
