/* plugins/device/cpu/families/loss.c -- ops that give one number for a batch, with their gradient:
 *   cross-entropy or mse + its gradient   one pass over the logits, over them when nobody reads them later */
#include "cpu.h"

enum { X = LOW_LOSS_X, TARGET = LOW_LOSS_TARGET };
enum { LOSS = LOW_LOSS, GRAD = LOW_LOSS_GRAD };

static ddp_status group_loss(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    (void)err;
    low_loss_group(w, k, node);
    if (k->kind == DDP_OP_MSE) {
        k->cols *= k->rows;
        k->rows = 1;
    }
    return DDP_OK;
}

static int64_t classes_of(const low_kernel *k, const ddp_attrs *attrs)
{
    return k->kind == DDP_OP_CROSS_ENTROPY && attrs->cross_entropy.classes > 0 ? attrs->cross_entropy.classes : k->cols;
}

/* Counts the labels that are not ignored. */
static ddp_status check_labels(const cpu_call *c, const int64_t *label, int64_t *counted, ddp_err *err)
{
    const low_kernel *k = c->k;
    const ddp_attrs *attrs = &low_node(c->program, k->nodes[0])->attrs;
    bool ignores = k->kind == DDP_OP_CROSS_ENTROPY && attrs->cross_entropy.ignores;
    int64_t classes = classes_of(k, attrs);

    *counted = 0;
    for (int64_t r = 0; r < k->rows; r++) {
        if (label[r] >= 0 && label[r] < classes)
            (*counted)++;
        else if (!ignores || label[r] != attrs->cross_entropy.ignore_index)
            return ddp_fail(
                err, DDP_ERR_DATA,
                "device \"cpu\": label %lld of row %lld of the batch is not one of the model's %lld classes (0 to %lld); check the data set's labels against the model's number of classes",
                (long long)label[r], (long long)r, (long long)classes, (long long)(classes - 1));
    }
    return DDP_OK;
}

static ddp_status run_loss(const cpu_call *c, ddp_err *err)
{
    const cpu_kernels *f = c->device->kernels;
    const low_kernel *k = c->k;
    const ddp_node *n = low_node(c->program, k->nodes[0]);
    const void *target = cpu_in(c, TARGET);
    float *loss = cpu_out(c, LOSS);
    double sum, smooth = n->attrs.cross_entropy.label_smoothing;
    int64_t counted = k->cols;
    ddp_status status = DDP_OK;

    if (k->kind != DDP_OP_MSE) status = check_labels(c, target, &counted, err);
    if (status != DDP_OK) return status;
    if (k->kind == DDP_OP_CROSS_ENTROPY)
        sum = f->cross_entropy(cpu_out(c, GRAD), cpu_in(c, X), target, k->rows, k->cols, classes_of(k, &n->attrs),
                               (float)(1.0 / (double)counted), (float)smooth) /
              (double)counted;
    else if (k->kind == DDP_OP_MSE)
        sum = f->mse(cpu_out(c, GRAD), cpu_in(c, X), target, counted, (float)(2.0 / (double)counted)) / (double)counted;
    else
        sum = (double)f->accuracy(cpu_in(c, X), target, k->rows, k->cols) /
              ((double)k->rows / (double)low_value(c->program, k->in[TARGET])->dims[0]);
    if (loss != NULL) *loss = (float)sum;
    return DDP_OK;
}

const cpu_family cpu_family_loss = {.base.group = group_loss, .run = run_loss};
