/* plugins/device/common/join.c -- what joins a layer norm or an RMS norm, and a loss:
 *
 *   add + layer_norm        the sum of a residual connection is normalised while it is at hand
 *   layer_norm_grad + add   what else flows into the input, by the residual connection, is added on the way
 *   add + rms_norm, rms_norm_grad + add, the same: an RMS norm is a layer norm without a mean and a bias
 *   loss + its gradient     one pass over the logits */
#include "lower.h"

/* ---- layer norm and RMS norm ------------------------------------------------------------------------------------- */
/* The values of an RMS norm where a layer norm has them. */
static void place_forward(low_kernel *k, const ddp_node *n)
{
    bool rms = n->op == DDP_OP_RMS_NORM;

    k->kind = n->op;
    k->in[LOW_LAYER_W] = n->in[LOW_LAYER_W];
    k->in[LOW_LAYER_B] = rms ? -1 : n->in[LOW_LAYER_B];
    k->out[LOW_LAYER_Y] = n->out[0];
    k->out[LOW_LAYER_MEAN] = rms ? -1 : n->out[LOW_LAYER_MEAN];
    k->out[LOW_LAYER_INVSTD] = n->out[rms ? 1 : LOW_LAYER_INVSTD];
}

void low_layer_norm(low_lowering *w, low_kernel *k, uint32_t node)
{
    place_forward(k, low_node(w->p, node));
    low_rows(w, k, k->in[LOW_LAYER_X]);
    low_may_replace(k, k->out[LOW_LAYER_Y], k->in[LOW_LAYER_X]);
}

bool low_layer_norm_join(low_lowering *w, low_kernel *k, uint32_t add, const low_family *family)
{
    static const uint32_t ops[] = {DDP_OP_LAYER_NORM, DDP_OP_RMS_NORM};
    const ddp_node *a = low_node(w->p, add), *n;
    int64_t norm = low_find_reader(w, add, a->out[0], LOW_LAYER_X, ops, 2);

    n = norm >= 0 ? low_node(w->p, (uint32_t)norm) : NULL;
    if (n == NULL || !low_outside(low_value(w->p, n->in[LOW_LAYER_W]))) return false;
    if (n->op == DDP_OP_LAYER_NORM && !low_outside(low_value(w->p, n->in[LOW_LAYER_B]))) return false;
    if (low_value(w->p, a->out[0])->kind != DDP_VALUE_ACT) return false;
    k->in[LOW_LAYER_RESIDUAL] = a->in[1];
    place_forward(k, n);
    k->out[LOW_LAYER_SUM] = a->out[0];
    k->family = family;
    k->name = n->op == DDP_OP_RMS_NORM ? "add+rms_norm" : "add+layer_norm";
    low_rows(w, k, a->out[0]);
    low_may_replace(k, k->out[LOW_LAYER_SUM], k->in[LOW_LAYER_X]);
    low_may_replace(k, k->out[LOW_LAYER_SUM], k->in[LOW_LAYER_RESIDUAL]);
    low_take(w, k, (uint32_t)norm);
    return true;
}

/* The node that adds to dx what else flows into the input; it comes right after, so that nothing else waits for it. */
static void take_add(low_lowering *w, low_kernel *k, uint32_t node)
{
    static const uint32_t ops[] = {DDP_OP_ADD};

    if (k->out[LOW_LAYER_DX] < 0 || !low_read_once(w, k->out[LOW_LAYER_DX])) return;
    for (uint32_t slot = 0; slot < 2; slot++) {
        int64_t add = low_find_reader(w, node, k->out[LOW_LAYER_DX], slot, ops, 1);
        const ddp_node *a = add == (int64_t)node + 1 ? low_node(w->p, node + 1) : NULL;
        if (a == NULL || a->in[0] == a->in[1] || low_value(w->p, a->out[0])->kind != DDP_VALUE_ACT) continue;
        w->inner[k->out[LOW_LAYER_DX]] = true;
        k->in[LOW_LAYER_PASSED] = a->in[1 - slot];
        k->out[LOW_LAYER_DX] = a->out[0];
        k->name = k->kind == DDP_OP_RMS_NORM_GRAD ? "rms_norm_grad+add" : "layer_norm_grad+add";
        low_take(w, k, node + 1);
        return;
    }
}

void low_layer_norm_grad(low_lowering *w, low_kernel *k, uint32_t node)
{
    k->kind = low_node(w->p, node)->op;
    if (k->kind == DDP_OP_RMS_NORM_GRAD) {
        k->in[LOW_LAYER_GRAD_INVSTD] = k->in[LOW_LAYER_GRAD_MEAN];
        k->in[LOW_LAYER_GRAD_MEAN] = -1;
    }
    low_rows(w, k, k->in[LOW_LAYER_GRAD_X]);
    k->writes_grad = 1u << LOW_LAYER_DW | 1u << LOW_LAYER_DB;
    take_add(w, k, node);
    low_may_replace(k, k->out[LOW_LAYER_DX], k->in[LOW_LAYER_DY]);
    low_may_replace(k, k->out[LOW_LAYER_DX], k->in[LOW_LAYER_PASSED]);
}

/* ---- loss -------------------------------------------------------------------------------------------------------- */
static const struct {
    uint32_t op; /* its gradient follows it in the list of ops */
    const char *names[3];
} losses[] = {
    {DDP_OP_CROSS_ENTROPY, {"cross_entropy", "cross_entropy_grad", "cross_entropy+grad"}},
    {DDP_OP_MSE, {"mse", "mse_grad", "mse+grad"}},
    {DDP_OP_L1, {"l1", "l1_grad", "l1+grad"}},
    {DDP_OP_SMOOTH_L1, {"smooth_l1", "smooth_l1_grad", "smooth_l1+grad"}},
    {DDP_OP_BCE_WITH_LOGITS, {"bce_with_logits", "bce_with_logits_grad", "bce_with_logits+grad"}},
};

static uint32_t loss_of(uint32_t op)
{
    uint32_t i = 0;

    while (i + 1 < sizeof(losses) / sizeof(losses[0]) && op != losses[i].op && op != losses[i].op + 1) i++;
    return i;
}

static const char *loss_name(const low_kernel *k)
{
    return losses[loss_of(k->kind)].names[k->out[LOW_LOSS_GRAD] < 0 ? 0 : k->out[LOW_LOSS] < 0 ? 1 : 2];
}

/* A gradient that accumulates is not moved: another one must have been set before it. */
static void take_partner(low_lowering *w, low_kernel *k, uint32_t node, const ddp_node *n)
{
    uint32_t partner = n->op == k->kind ? k->kind + 1 : k->kind;
    int64_t other = low_find_reader(w, node, n->in[LOW_LOSS_X], LOW_LOSS_X, &partner, 1);
    const ddp_node *o = other >= 0 ? low_node(w->p, (uint32_t)other) : NULL;

    if (o == NULL || o->in[LOW_LOSS_TARGET] != n->in[LOW_LOSS_TARGET] || o->accumulate != 0) return;
    k->out[o->op != k->kind ? LOW_LOSS_GRAD : LOW_LOSS] = o->out[0];
    low_take(w, k, (uint32_t)other);
}

void low_loss_group(low_lowering *w, low_kernel *k, uint32_t node)
{
    const ddp_node *n = low_node(w->p, node);

    low_rows(w, k, k->in[LOW_LOSS_X]);
    k->kind = losses[loss_of(n->op)].op;
    if (n->op != k->kind) {
        k->out[LOW_LOSS_GRAD] = k->out[LOW_LOSS];
        k->out[LOW_LOSS] = -1;
        k->adds = k->adds << LOW_LOSS_GRAD;
    }
    take_partner(w, k, node, n);
    k->name = loss_name(k);
    low_may_replace(k, k->out[LOW_LOSS_GRAD], k->in[LOW_LOSS_X]);
}
