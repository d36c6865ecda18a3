/* plugins/device/common/norm.c -- what joins a batch norm, forward and backward:
 *
 *   batch_norm + add + relu             statistics in one pass over x, everything else in another
 *   add + relu_grad + batch_norm_grad   sums in one pass, dx in another; what comes out of relu_grad is written
 *                                       only where a residual branch needs it too */
#include "lower.h"

/* ---- forward ----------------------------------------------------------------------------------------------------- */
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
        if (n->op == DDP_OP_BATCH_NORM && (n->in[LOW_NORM_RUNNING_MEAN] == k->in[LOW_NORM_RUNNING_MEAN] ||
                                           n->in[LOW_NORM_RUNNING_VAR] == k->in[LOW_NORM_RUNNING_VAR]))
            return true;
    }
    return false;
}

static bool may_pass(const low_lowering *w, const low_kernel *k)
{
    return low_read_once(w, k->out[LOW_NORM_Y]) && low_value(w->p, k->out[LOW_NORM_Y])->kind == DDP_VALUE_ACT;
}

bool low_norm_take_add(low_lowering *w, low_kernel *k, uint32_t node)
{
    uint32_t slot;
    int64_t add = may_pass(w, k) ? free_reader(w, node, k->out[LOW_NORM_Y], DDP_OP_ADD, &slot) : -1;
    const ddp_node *n = add >= 0 ? low_node(w->p, (uint32_t)add) : NULL;

    if (n == NULL || n->accumulate != 0 || used_between(w, k, node, (uint32_t)add)) return false;
    if (low_value(w->p, n->out[0])->kind != DDP_VALUE_ACT) return false;
    w->inner[k->out[LOW_NORM_Y]] = true;
    k->in[LOW_NORM_OTHER] = n->in[1 - slot];
    k->out[LOW_NORM_Y] = n->out[0];
    low_take_and_move(w, k, (uint32_t)add);
    return true;
}

int64_t low_norm_relu(const low_lowering *w, const low_kernel *k, uint32_t node)
{
    uint32_t slot;

    return may_pass(w, k) ? free_reader(w, node, k->out[LOW_NORM_Y], DDP_OP_RELU, &slot) : -1;
}

void low_norm_take_relu(low_lowering *w, low_kernel *k, uint32_t relu)
{
    w->inner[k->out[LOW_NORM_Y]] = true;
    k->out[LOW_NORM_Y] = low_node(w->p, relu)->out[0];
    low_take(w, k, relu);
}

ddp_status low_norm_check(const low_lowering *w, const low_kernel *k, const ddp_node *n, ddp_err *err)
{
    if (!n->attrs.batch_norm.training || k->rows > 1) return DDP_OK;
    return low_refuse(w, n, "one value per channel has no variance; train with larger batches or images", err);
}

/* ---- gradient ---------------------------------------------------------------------------------------------------- */
/* A batch norm's gradient that can move up to where its dy is made: the node, or -1. */
static int64_t norm_after(const low_lowering *w, uint32_t from, int32_t dy)
{
    static const uint32_t ops[] = {DDP_OP_BATCH_NORM_GRAD};
    int64_t norm = low_find_reader(w, from, dy, LOW_NORM_DY, ops, 1);

    /* x may be computed again, in front of the gradient that reads it */
    if (norm >= 0 && low_writer(w, low_node(w->p, (uint32_t)norm)->in[LOW_NORM_GRAD_X]) > (int64_t)from) return -1;
    /* a gradient that accumulates stays where it is: another one must have been set before it */
    if (norm < 0 || low_node(w->p, (uint32_t)norm)->accumulate != 0) return -1;
    return low_value(w->p, dy)->kind == DDP_VALUE_ACT && !w->kept[dy] ? norm : -1;
}

static int64_t relu_after(const low_lowering *w, uint32_t add)
{
    static const uint32_t ops[] = {DDP_OP_RELU_GRAD};
    const ddp_node *n = low_node(w->p, add);

    if (n->accumulate != 0 || !low_read_once(w, n->out[0])) return -1;
    return low_find_reader(w, add, n->out[0], 0, ops, 1);
}

bool low_norm_grad_takes(const low_lowering *w, uint32_t node)
{
    const ddp_node *n = low_node(w->p, node);
    int64_t relu = n->op == DDP_OP_RELU_GRAD ? (int64_t)node : n->op == DDP_OP_ADD ? relu_after(w, node) : -1;

    return relu >= 0 && norm_after(w, node, low_node(w->p, (uint32_t)relu)->out[0]) >= 0;
}

void low_norm_grad_join(low_lowering *w, low_kernel *k, uint32_t node)
{
    const ddp_node *n = low_node(w->p, node), *norm;
    bool add = n->op == DDP_OP_ADD;
    uint32_t relu = add ? (uint32_t)relu_after(w, node) : node;
    int32_t masked = low_node(w->p, relu)->out[0], more = add ? n->in[1] : -1, dy = n->in[0];
    uint32_t next = (uint32_t)norm_after(w, node, masked);

    norm = low_node(w->p, next);
    if (add) {
        w->inner[n->out[0]] = true;
        low_take(w, k, relu);
    }
    low_take(w, k, next);
    for (uint32_t i = 0; i < LOW_MAX_VALUES; i++) {
        k->in[i] = i < norm->in_count ? norm->in[i] : -1;
        k->out[i] = i < norm->out_count ? norm->out[i] : -1;
    }
    k->in[LOW_NORM_DY] = dy;
    k->in[LOW_NORM_MORE] = more;
    k->in[LOW_NORM_REF] = low_node(w->p, relu)->in[1];
    if (low_read_once(w, masked))
        w->inner[masked] = true;
    else
        k->out[LOW_NORM_MASKED] = masked;
    k->name = add ? "add+relu_grad+batch_norm_grad" : "relu_grad+batch_norm_grad";
}

void low_norm_grad_finish(const low_lowering *w, low_kernel *k)
{
    low_matrix(w, k->in[LOW_NORM_GRAD_X], &k->rows, &k->cols);
    k->writes_grad = 1u << LOW_NORM_DW | 1u << LOW_NORM_DB;
    if (k->out[LOW_NORM_MASKED] >= 0)
        low_may_replace(k, k->out[LOW_NORM_MASKED], k->in[LOW_NORM_DY]);
    else
        low_may_replace(k, k->out[LOW_NORM_DX], k->in[LOW_NORM_DY]);
    low_may_replace(k, k->out[LOW_NORM_DX], k->in[LOW_NORM_GRAD_X]);
}
