/* plugins/device/cuda/families/embedding.c -- rows of a table by index, rows added by position, and their gradients. */
#include "host/cu.h"

enum { INDEX, TABLE }; /* embedding: in */
enum { X, W };         /* position: in */
enum { DY, AT };       /* gradients: in */

/* ---- embedding --------------------------------------------------------------------------------------------------- */
static ddp_status group_embedding(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    (void)node;
    (void)err;
    low_rows(w, k, k->out[0]);
    k->limit = low_value(w->p, k->in[TABLE])->dims[0];
    return DDP_OK;
}

static ddp_status run_embedding(const cu_call *c, ddp_err *err)
{
    const low_kernel *k = c->k;

    return cu_started(c,
                      cu_embedding(c->stream, c->in[INDEX].at, c->in[TABLE].at, c->out[0], k->rows, k->cols, k->limit,
                                   c->fault, c->site),
                      err);
}

const cu_family cu_family_embedding = {.base.group = group_embedding, .run = run_embedding};

static ddp_status group_embedding_grad(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    (void)node;
    (void)err;
    low_rows(w, k, k->in[DY]);
    k->writes_grad = 1;
    k->limit = low_value(w->p, k->out[0])->dims[0];
    k->scratch_bytes = cu_embedding_grad_scratch(k->rows, k->cols, k->limit);
    return DDP_OK;
}

static ddp_status run_embedding_grad(const cu_call *c, ddp_err *err)
{
    const low_kernel *k = c->k;

    return cu_started(c,
                      cu_embedding_grad(c->stream, c->in[DY], c->in[AT].at, c->out[0].at, k->rows, k->cols, k->limit,
                                        cu_adds(c, 0), c->scratch),
                      err);
}

const cu_family cu_family_embedding_grad = {.base.group = group_embedding_grad, .run = run_embedding_grad};

/* ---- position ---------------------------------------------------------------------------------------------------- */
static ddp_status group_position(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    const ddp_value *x = low_value(w->p, k->in[0]); /* x or dy, (N, T, E) */

    (void)err;
    k->plain = true;
    k->rows = x->dims[0];
    k->inner = x->dims[1];
    k->cols = x->dims[2];
    if (low_node(w->p, node)->op == DDP_OP_POSITION)
        low_may_replace(k, k->out[0], k->in[X]);
    else
        k->writes_grad = 1;
    return DDP_OK;
}

static ddp_status run_position(const cu_call *c, ddp_err *err)
{
    const low_kernel *k = c->k;

    return cu_started(c, cu_position(c->stream, c->in[X], c->in[W].at, c->out[0], k->rows, k->inner, k->cols), err);
}

const cu_family cu_family_position = {.base.group = group_position, .run = run_position};

static ddp_status run_position_grad(const cu_call *c, ddp_err *err)
{
    const low_kernel *k = c->k;
    int64_t table = low_value(c->program, k->out[0])->dims[0];

    return cu_started(
        c, cu_position_grad(c->stream, c->in[DY], c->out[0].at, k->rows, k->inner, k->cols, table, cu_adds(c, 0)), err);
}

const cu_family cu_family_position_grad = {.base.group = group_position, .run = run_position_grad};
