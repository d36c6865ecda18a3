/* fam_loss.c -- ops that give one number for a batch, with their gradient:
 *   cross-entropy or mse + its gradient   one pass over the logits, in their place when nobody reads them later */
#include "cpu.h"

enum { X, TARGET };  /* in */
enum { LOSS, GRAD }; /* out */

static bool is_entropy(uint32_t op) { return op == DDP_OP_CROSS_ENTROPY || op == DDP_OP_CROSS_ENTROPY_GRAD; }
static bool is_gradient(uint32_t op) { return op == DDP_OP_CROSS_ENTROPY_GRAD || op == DDP_OP_MSE_GRAD; }

static const char *loss_name(const low_kernel *k)
{
    static const char *const names[2][3] = {{"mse", "mse_grad", "mse+grad"},
                                            {"cross_entropy", "cross_entropy_grad", "cross_entropy+grad"}};

    return names[k->kind == DDP_OP_CROSS_ENTROPY][k->out[GRAD] < 0 ? 0 : k->out[LOSS] < 0 ? 1 : 2];
}

/* A gradient that accumulates stays where it is: another one must have been set before it. */
static void take_partner(low_lowering *w, low_kernel *k, uint32_t node, const ddp_node *n)
{
    uint32_t forward = is_entropy(n->op) ? DDP_OP_CROSS_ENTROPY : DDP_OP_MSE;
    uint32_t partner = is_gradient(n->op) ? forward : forward + 1; /* X_GRAD follows X in the list of ops */
    int64_t other = low_find_reader(w, node, n->in[X], X, &partner, 1);
    const ddp_node *o = other >= 0 ? low_node(w->p, (uint32_t)other) : NULL;

    if (o == NULL || o->in[TARGET] != n->in[TARGET] || o->accumulate != 0) return;
    k->out[is_gradient(o->op) ? GRAD : LOSS] = o->out[0];
    low_take(w, k, (uint32_t)other);
}

static ddp_status group_loss(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    const ddp_node *n = low_node(w->p, node);

    (void)err;
    k->plain = true;
    k->kind = n->op == DDP_OP_ACCURACY ? DDP_OP_ACCURACY : is_entropy(n->op) ? DDP_OP_CROSS_ENTROPY : DDP_OP_MSE;
    if (k->kind == DDP_OP_MSE) {
        k->rows = 1;
        k->cols = low_value(w->p, k->in[X])->elements;
    } else {
        k->cols = low_last_dim(low_value(w->p, k->in[X]));
        k->rows = low_value(w->p, k->in[X])->elements / k->cols;
    }
    if (k->kind == DDP_OP_ACCURACY) return DDP_OK;
    if (is_gradient(n->op)) {
        k->out[GRAD] = k->out[LOSS];
        k->out[LOSS] = -1;
        k->adds = k->adds << GRAD;
    }
    take_partner(w, k, node, n);
    k->name = loss_name(k);
    low_may_replace(k, k->out[GRAD], k->in[X]);
    return DDP_OK;
}

/* Counts the labels that are not ignored. */
static ddp_status check_labels(const cpu_call *c, const int64_t *label, int64_t *counted, ddp_err *err)
{
    const low_kernel *k = c->k;
    const ddp_attrs *attrs = &low_node(c->program, k->nodes[0])->attrs;
    bool ignores = k->kind == DDP_OP_CROSS_ENTROPY && attrs->cross_entropy.ignores;

    *counted = 0;
    for (int64_t r = 0; r < k->rows; r++) {
        if (label[r] >= 0 && label[r] < k->cols)
            (*counted)++;
        else if (!ignores || label[r] != attrs->cross_entropy.ignore_index)
            return ddp_fail(
                err, DDP_ERR_DATA,
                "device \"cpu\": label %lld of row %lld of the batch is not one of the model's %lld classes (0 "
                "to %lld); check the data set's labels against the model's number of classes",
                (long long)label[r], (long long)r, (long long)k->cols, (long long)(k->cols - 1));
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
        sum = f->cross_entropy(cpu_out(c, GRAD), cpu_in(c, X), target, k->rows, k->cols, (float)(1.0 / (double)counted),
                               (float)smooth) /
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
