/* fam_layer_norm.c -- layer norm and its gradient:
 *   add + layer_norm        the sum of a residual connection is normalised while it is at hand
 *   layer_norm_grad + add   what else flows into the input, by the residual connection, is added on the way */
#include "host/cu.h"

enum { X, W, B, RESIDUAL };                                  /* forward: in */
enum { Y, MEAN, INVSTD, SUM };                               /* forward: out; SUM with a residual */
enum { DY, GRAD_X, GRAD_W, GRAD_MEAN, GRAD_INVSTD, PASSED }; /* gradient: in; PASSED: is added */
enum { DX, DW, DB };                                         /* gradient: out */

/* ---- forward -------------------------------------------------------------------------------------------------------- */
static ddp_status group_forward(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    (void)node;
    (void)err;
    cu_rows(w, k, k->in[X]);
    low_may_replace(k, k->out[Y], k->in[X]);
    return DDP_OK;
}

bool cu_join_layer_norm(low_lowering *w, low_kernel *k, uint32_t add)
{
    static const uint32_t ops[] = {DDP_OP_LAYER_NORM};
    const ddp_node *a = low_node(w->p, add), *n;
    int64_t norm = low_find_reader(w, add, a->out[0], X, ops, 1);

    n = norm >= 0 ? low_node(w->p, (uint32_t)norm) : NULL;
    if (n == NULL || !low_outside(low_value(w->p, n->in[W])) || !low_outside(low_value(w->p, n->in[B]))) return false;
    if (low_value(w->p, a->out[0])->kind != DDP_VALUE_ACT) return false;
    k->in[RESIDUAL] = a->in[1];
    k->in[W] = n->in[W];
    k->in[B] = n->in[B];
    for (uint32_t i = 0; i < 3; i++) k->out[i] = n->out[i];
    k->out[SUM] = a->out[0];
    k->family = &cu_family_layer_norm.base;
    k->name = "add+layer_norm";
    cu_rows(w, k, a->out[0]);
    low_may_replace(k, k->out[SUM], k->in[X]);
    low_may_replace(k, k->out[SUM], k->in[RESIDUAL]);
    low_take(w, k, (uint32_t)norm);
    return true;
}

static ddp_status run_forward(const cu_call *c, ddp_err *err)
{
    const low_kernel *k = c->k;
    const ddp_attrs *a = cu_attrs(c, k->node_count - 1); /* the last node is the norm */

    return cu_started(c,
                      cu_layer_norm(c->stream, c->in[X], c->in[RESIDUAL], c->out[SUM], c->in[W].at, c->in[B].at,
                                    c->out[Y], c->out[MEAN].at, c->out[INVSTD].at, k->rows, k->cols, a->layer_norm.eps),
                      err);
}

const cu_family cu_family_layer_norm = {.base.group = group_forward, .run = run_forward};

/* ---- gradient ------------------------------------------------------------------------------------------------------- */
/* The node that adds to dx what else flows into the input; it comes right behind, so that nothing else waits for it. */
static void take_add(low_lowering *w, low_kernel *k, uint32_t node)
{
    static const uint32_t ops[] = {DDP_OP_ADD};

    if (k->out[DX] < 0 || !low_read_once(w, k->out[DX])) return;
    for (uint32_t slot = 0; slot < 2; slot++) {
        int64_t add = low_find_reader(w, node, k->out[DX], slot, ops, 1);
        const ddp_node *a = add == (int64_t)node + 1 ? low_node(w->p, node + 1) : NULL;
        if (a == NULL || a->in[0] == a->in[1] || low_value(w->p, a->out[0])->kind != DDP_VALUE_ACT) continue;
        w->inner[k->out[DX]] = true;
        k->in[PASSED] = a->in[1 - slot];
        k->out[DX] = a->out[0];
        k->name = "layer_norm_grad+add";
        low_take(w, k, node + 1);
        return;
    }
}

static ddp_status group_gradient(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    (void)err;
    cu_rows(w, k, k->in[GRAD_X]);
    k->writes_grad = 1u << DX | 1u << DW | 1u << DB;
    k->scratch_bytes = cu_layer_norm_grad_scratch(k->rows, k->cols);
    take_add(w, k, node);
    low_may_replace(k, k->out[DX], k->in[DY]);
    low_may_replace(k, k->out[DX], k->in[PASSED]);
    return DDP_OK;
}

static ddp_status run_gradient(const cu_call *c, ddp_err *err)
{
    const low_kernel *k = c->k;

    return cu_started(c,
                      cu_layer_norm_grad(c->stream, c->in[DY], c->in[GRAD_X], c->in[GRAD_W].at, c->in[GRAD_MEAN].at,
                                         c->in[GRAD_INVSTD].at, c->in[PASSED], c->out[DX], c->out[DW].at, c->out[DB].at,
                                         k->rows, k->cols, cu_adds(c, DX), cu_adds(c, DW), cu_adds(c, DB), c->scratch),
                      err);
}

const cu_family cu_family_layer_norm_grad = {.base.group = group_gradient, .run = run_gradient};
