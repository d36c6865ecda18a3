/* fam_batch_norm.c -- batch norm and its gradient:
 *   batch_norm + add + relu   what stands between it and the next convolution, in its second pass over x */
#include "cu.h"

enum { X, W, B, RUNNING_MEAN, RUNNING_VAR, OTHER };  /* forward: in; OTHER: is added */
enum { Y, MEAN, INVSTD };                            /* forward: out; Y: of the last node taken */
enum { DY, GRAD_X, GRAD_W, GRAD_MEAN, GRAD_INVSTD }; /* gradient: in */
enum { DX, DW, DB };                                 /* gradient: out */

/* ---- forward: what joins -------------------------------------------------------------------------------------------- */
static int64_t free_reader(const low_lowering *w, uint32_t from, int32_t v, uint32_t op, uint32_t *slot)
{
    for (*slot = 0; *slot < (op == DDP_OP_ADD ? 2u : 1u); (*slot)++) {
        int64_t node = low_find_reader(w, from, v, *slot, &op, 1);
        if (node >= 0) return node;
    }
    return -1;
}

/* The same batch norm used again in between: its running statistics move in program order. */
static bool used_between(const low_lowering *w, const low_kernel *k, uint32_t from, uint32_t to)
{
    for (uint32_t i = from + 1; i < to; i++) {
        const ddp_node *n = low_node(w->p, i);
        if (n->op == DDP_OP_BATCH_NORM &&
            (n->in[RUNNING_MEAN] == k->in[RUNNING_MEAN] || n->in[RUNNING_VAR] == k->in[RUNNING_VAR]))
            return true;
    }
    return false;
}

static bool may_pass(const low_lowering *w, const low_kernel *k)
{
    return low_read_once(w, k->out[Y]) && low_value(w->p, k->out[Y])->kind == DDP_VALUE_ACT;
}

static bool take_add(low_lowering *w, low_kernel *k, uint32_t node)
{
    uint32_t slot;
    int64_t add = may_pass(w, k) ? free_reader(w, node, k->out[Y], DDP_OP_ADD, &slot) : -1;
    const ddp_node *n = add >= 0 ? low_node(w->p, (uint32_t)add) : NULL;

    if (n == NULL || n->accumulate != 0 || used_between(w, k, node, (uint32_t)add)) return false;
    if (low_value(w->p, n->out[0])->kind != DDP_VALUE_ACT) return false;
    w->inner[k->out[Y]] = true;
    k->in[OTHER] = n->in[1 - slot];
    k->out[Y] = n->out[0];
    low_take_and_move(w, k, (uint32_t)add);
    return true;
}

static bool take_relu(low_lowering *w, low_kernel *k, uint32_t node)
{
    uint32_t slot;
    int64_t relu = may_pass(w, k) ? free_reader(w, node, k->out[Y], DDP_OP_RELU, &slot) : -1;

    if (relu < 0) return false;
    w->inner[k->out[Y]] = true;
    k->out[Y] = low_node(w->p, (uint32_t)relu)->out[0];
    k->act = CU_ACT_RELU;
    low_take(w, k, (uint32_t)relu);
    return true;
}

static ddp_status group_forward(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    static const char *const names[2][2] = {{"batch_norm", "batch_norm+relu"},
                                            {"batch_norm+add", "batch_norm+add+relu"}};
    const ddp_node *n = low_node(w->p, node);
    bool add;

    low_matrix(w, k->in[X], &k->rows, &k->cols);
    if (n->attrs.batch_norm.training && k->rows < 2)
        return low_refuse(w, n, "one value per channel has no variance; train with larger batches or images", err);
    add = take_add(w, k, node);
    k->name = names[add][take_relu(w, k, node)];
    k->kind = n->attrs.batch_norm.training;
    k->scratch_bytes = cu_batch_norm_scratch(k->rows, k->cols);
    low_may_replace(k, k->out[Y], k->in[X]);
    return DDP_OK;
}

static ddp_status run_forward(const cu_call *c, ddp_err *err)
{
    const low_kernel *k = c->k;
    const ddp_attrs *a = cu_attrs(c, 0); /* it stands in front of what it takes */

    return cu_started(c,
                      cu_batch_norm(c->stream, c->in[X], c->in[W].at, c->in[B].at, c->in[RUNNING_MEAN].at,
                                    c->in[RUNNING_VAR].at, c->in[OTHER], c->out[Y], c->out[MEAN].at, c->out[INVSTD].at,
                                    k->rows, k->cols, a->batch_norm.eps, a->batch_norm.momentum, k->kind != 0,
                                    k->act == CU_ACT_RELU, c->scratch),
                      err);
}

const cu_family cu_family_batch_norm = {.base.group = group_forward, .run = run_forward};

/* ---- gradient ------------------------------------------------------------------------------------------------------- */
static ddp_status group_gradient(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    (void)node;
    (void)err;
    low_matrix(w, k->in[GRAD_X], &k->rows, &k->cols);
    k->writes_grad = 1u << DW | 1u << DB;
    k->scratch_bytes = cu_batch_norm_grad_scratch(k->rows, k->cols);
    low_may_replace(k, k->out[DX], k->in[DY]);
    return DDP_OK;
}

static ddp_status run_gradient(const cu_call *c, ddp_err *err)
{
    const low_kernel *k = c->k;

    return cu_started(c,
                      cu_batch_norm_grad(c->stream, c->in[DY], c->in[GRAD_X], c->in[GRAD_W].at, c->in[GRAD_MEAN].at,
                                         c->in[GRAD_INVSTD].at, c->out[DX], c->out[DW].at, c->out[DB].at, k->rows,
                                         k->cols, false, cu_adds(c, DW), cu_adds(c, DB), c->scratch),
                      err);
}

const cu_family cu_family_batch_norm_grad = {.base.group = group_gradient, .run = run_gradient};
