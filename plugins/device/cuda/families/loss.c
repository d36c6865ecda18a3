/* fam_loss.c -- ops that give one number for a batch, with their gradient:
 *   cross-entropy or mse + its gradient   one kernel, in the place of the logits when nobody reads them later */
#include "host/cu.h"

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
    cu_rows(w, k, k->in[X]);
    k->limit = k->cols;
    k->kind = n->op == DDP_OP_ACCURACY ? DDP_OP_ACCURACY : is_entropy(n->op) ? DDP_OP_CROSS_ENTROPY : DDP_OP_MSE;
    if (k->kind == DDP_OP_ACCURACY) {
        k->scratch_bytes = cu_accuracy_scratch(k->rows);
        return DDP_OK;
    }
    k->scratch_bytes =
        k->kind == DDP_OP_MSE ? cu_mse_scratch(k->rows * k->cols) : cu_cross_entropy_scratch(k->rows, k->cols);
    if (is_gradient(n->op)) {
        k->out[GRAD] = k->out[LOSS];
        k->out[LOSS] = -1;
        k->adds = k->adds << GRAD;
    }
    k->writes_grad = 1u << GRAD;
    take_partner(w, k, node, n);
    k->name = loss_name(k);
    low_may_replace(k, k->out[GRAD], k->in[X]);
    return DDP_OK;
}

static ddp_status run_loss(const cu_call *c, ddp_err *err)
{
    const low_kernel *k = c->k;
    const ddp_attrs *a = cu_attrs(c, 0);
    const cu_entropy e = {.smoothing = a->cross_entropy.label_smoothing,
                          .ignore_index = a->cross_entropy.ignore_index,
                          .ignores = a->cross_entropy.ignores};
    cudaError_t result;

    if (k->kind == DDP_OP_CROSS_ENTROPY)
        result = cu_cross_entropy(c->stream, c->in[X], c->in[TARGET].at, c->out[LOSS].at, c->out[GRAD], k->rows,
                                  k->cols, &e, cu_adds(c, GRAD), c->scratch, c->fault, c->site);
    else if (k->kind == DDP_OP_MSE)
        result = cu_mse(c->stream, c->in[X], c->in[TARGET], c->out[LOSS].at, c->out[GRAD], k->rows * k->cols,
                        cu_adds(c, GRAD), c->scratch);
    else
        result = cu_accuracy(c->stream, c->in[X], c->in[TARGET].at, c->out[0].at, k->rows, k->cols,
                             (double)k->rows / (double)low_value(c->program, k->in[TARGET])->dims[0], c->scratch,
                             c->fault, c->site);
    return cu_started(c, result, err);
}

const cu_family cu_family_loss = {.base.group = group_loss, .run = run_loss};
