/* plugins/device/cuda/families/rope.c -- the rotary position embedding and its gradient, the turn back. */
#include "host/cu.h"

#include <ddpengine/rope.h>
#include <stdlib.h>

enum { X, POSITION }; /* in */

static ddp_status group_rope(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    const ddp_node *n = low_node(w->p, node);
    const ddp_value *x = low_value(w->p, k->in[X]);
    cu_rope *p = cu_state(k, sizeof(*p), err);

    if (p == NULL) return DDP_ERR_NOMEM;
    if (n->attrs.rope.head_dim < 2 || n->attrs.rope.head_dim > INT64_C(2) * CU_ROPE_PAIRS)
        return low_refuse(w, n, "its heads have too many features", err);
    p->n = x->dims[0];
    p->t = x->dims[1];
    p->size = n->attrs.rope.head_dim;
    p->heads = x->dims[2] / p->size;
    p->starts = k->in[POSITION] >= 0 && low_value(w->p, k->in[POSITION])->rank == 1;
    p->scaling = ddp_rope_scaling(&n->attrs);
    p->direction = n->op == DDP_OP_ROPE ? 1.0f : -1.0f;
    for (int64_t i = 0; i < p->size / 2; i++) p->frequency[i] = ddp_rope_frequency(&n->attrs, i);
    low_rows(w, k, k->in[X]);
    k->writes_grad = 1;
    low_may_replace(k, k->out[0], k->in[X]);
    return DDP_OK;
}

static ddp_status run_rope(const cu_call *c, ddp_err *err)
{
    cu_rope p = *(const cu_rope *)c->k->state;

    p.position = c->in[POSITION].at;
    return cu_started(c, cu_rope_turn(c->stream, c->in[X], c->out[0], &p, cu_adds(c, 0)), err);
}

const cu_family cu_family_rope = {.base.group = group_rope, .base.release = free, .run = run_rope};
