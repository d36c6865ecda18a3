/* plugins/device/cuda/families/pointwise.c -- ops that take each element by itself: relu, gelu, silu and their
 * gradients, add, mul, dropout, reshape. */
#include "host/cu.h"

/* ---- relu, gelu -------------------------------------------------------------------------------------------------- */
static ddp_status group_act(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    (void)err;
    k->cols = low_value(w->p, k->out[0])->elements;
    k->act = cu_act_of(low_node(w->p, node));
    low_may_replace(k, k->out[0], k->in[0]);
    return DDP_OK;
}

static ddp_status run_act(const cu_call *c, ddp_err *err)
{
    return cu_started(c, cu_act(c->stream, c->k->act, c->in[0], c->out[0], c->k->cols), err);
}

const cu_family cu_family_act = {.base.group = group_act, .run = run_act};

/* ---- leaky_relu and its gradient --------------------------------------------------------------------------------- */
static ddp_status group_leaky_relu(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    (void)err;
    k->kind = low_node(w->p, node)->op;
    k->cols = low_value(w->p, k->out[0])->elements;
    k->writes_grad = 1;
    low_may_replace(k, k->out[0], k->in[0]);
    if (k->kind == DDP_OP_LEAKY_RELU_GRAD) low_may_replace(k, k->out[0], k->in[1]);
    return DDP_OK;
}

static ddp_status run_leaky_relu(const cu_call *c, ddp_err *err)
{
    cu_view sign = c->k->kind == DDP_OP_LEAKY_RELU_GRAD ? c->in[1] : c->in[0];

    return cu_started(c,
                      cu_leaky_relu(c->stream, c->in[0], sign, cu_attrs(c, 0)->leaky_relu.negative_slope, c->out[0],
                                    c->k->cols, cu_adds(c, 0)),
                      err);
}

const cu_family cu_family_leaky_relu = {.base.group = group_leaky_relu, .run = run_leaky_relu};

/* ---- scale ------------------------------------------------------------------------------------------------------- */
static ddp_status group_scale(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    (void)node;
    (void)err;
    k->cols = low_value(w->p, k->out[0])->elements;
    k->writes_grad = 1;
    low_may_replace(k, k->out[0], k->in[0]);
    return DDP_OK;
}

static ddp_status run_scale(const cu_call *c, ddp_err *err)
{
    return cu_started(
        c, cu_times(c->stream, c->in[0], cu_attrs(c, 0)->scale.factor, c->out[0], c->k->cols, cu_adds(c, 0)), err);
}

const cu_family cu_family_scale = {.base.group = group_scale, .run = run_scale};

/* ---- their gradients: dy, what was kept -> dx, and the sums of its columns, which a linear layer's bias wants ---- */
enum { DX, DB }; /* out */

/* The sums come right after, so that they move past nothing that adds to the same slice. */
static void take_bias(low_lowering *w, low_kernel *k, uint32_t node)
{
    static const uint32_t ops[] = {DDP_OP_LINEAR_GRAD_BIAS};
    int64_t bias = low_find_reader(w, node, k->out[DX], 0, ops, 1);

    if (bias != (int64_t)node + 1 || low_value(w->p, k->out[DX])->kind != DDP_VALUE_ACT) return;
    low_rows(w, k, k->out[DX]);
    k->out[DB] = low_node(w->p, (uint32_t)bias)->out[0];
    k->out_type[DB] = CU_F32;
    k->writes_grad |= 1u << DB;
    k->adds |= (low_node(w->p, (uint32_t)bias)->accumulate & 1u) << DB;
    k->scratch_bytes = cu_column_sums_scratch(k->rows, k->cols);
    k->name = k->act == CU_ACT_RELU ? "relu_grad+bias" : k->act == CU_ACT_SILU ? "silu_grad+bias" : "gelu_grad+bias";
    low_take(w, k, (uint32_t)bias);
}

static ddp_status group_act_grad(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    if (low_norm_grad_takes(w, node)) return cu_batch_norm_group(w, k, node, err);
    k->writes_grad = 1;
    (void)group_act(w, k, node, err);
    low_may_replace(k, k->out[0], k->in[1]);
    take_bias(w, k, node);
    return DDP_OK;
}

static ddp_status run_act_grad(const cu_call *c, ddp_err *err)
{
    const low_kernel *k = c->k;

    if (k->out[DB] >= 0)
        return cu_started(c,
                          cu_act_grad_sums(c->stream, k->act, c->in[0], c->in[1], c->out[DX], c->out[DB].at, k->rows,
                                           k->cols, cu_adds(c, DB), c->scratch),
                          err);
    return cu_started(c, cu_act_grad(c->stream, c->k->act, c->in[0], c->in[1], c->out[0], c->k->cols, cu_adds(c, 0)),
                      err);
}

const cu_family cu_family_act_grad = {.base.group = group_act_grad, .run = run_act_grad};

/* ---- add --------------------------------------------------------------------------------------------------------- */
static ddp_status group_add(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    if (low_norm_grad_takes(w, node)) return cu_batch_norm_group(w, k, node, err);
    if (low_layer_norm_join(w, k, node, &cu_family_layer_norm.base)) return DDP_OK;
    k->cols = low_value(w->p, k->out[0])->elements;
    k->writes_grad = 1;
    low_may_replace(k, k->out[0], k->in[0]);
    low_may_replace(k, k->out[0], k->in[1]);
    return DDP_OK;
}

static ddp_status run_add(const cu_call *c, ddp_err *err)
{
    return cu_started(c, cu_add(c->stream, c->in[0], c->in[1], c->out[0], c->k->cols, cu_adds(c, 0)), err);
}

const cu_family cu_family_add = {.base.group = group_add, .run = run_add};

/* ---- mul --------------------------------------------------------------------------------------------------------- */
static ddp_status group_mul(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    (void)node;
    (void)err;
    k->cols = low_value(w->p, k->out[0])->elements;
    k->writes_grad = 1;
    low_may_replace(k, k->out[0], k->in[0]);
    low_may_replace(k, k->out[0], k->in[1]);
    return DDP_OK;
}

static ddp_status run_mul(const cu_call *c, ddp_err *err)
{
    return cu_started(c, cu_mul(c->stream, c->in[0], c->in[1], c->out[0], c->k->cols, cu_adds(c, 0)), err);
}

const cu_family cu_family_mul = {.base.group = group_mul, .run = run_mul};

/* ---- dropout and its gradient: the same mask drawn twice, nothing kept in between -------------------------------- */
static ddp_status group_dropout(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    (void)node;
    (void)err;
    k->plain = true; /* an image's elements are counted in the program's order */
    k->writes_grad = 1;
    k->cols = low_value(w->p, k->in[0])->elements;
    low_may_replace(k, k->out[0], k->in[0]);
    return DDP_OK;
}

static ddp_status run_dropout(const cu_call *c, ddp_err *err)
{
    const ddp_attrs *a = cu_attrs(c, 0);

    return cu_started(c,
                      cu_dropout(c->stream, c->in[0], c->out[0], c->k->cols, a->dropout.p, a->dropout.place, c->params,
                                 cu_adds(c, 0)),
                      err);
}

const cu_family cu_family_dropout = {.base.group = group_dropout, .run = run_dropout};

/* ---- reshape: nothing to do, or a copy where the two sides lie differently or are of two types ------------------- */
enum { FROM_IMAGE = 1, TO_IMAGE = 2 }; /* kind, bits */

static ddp_status group_view(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    const ddp_value *x = low_value(w->p, k->in[0]), *y = low_value(w->p, k->out[0]);
    bool own = w->l->storage[k->out[0]].alias_of < 0;

    (void)node;
    (void)err;
    k->reads_any = k->writes_any = k->writes_grad = 1;
    k->cols = y->elements;
    if (own && w->layout[k->in[0]] == LOW_CHANNELS_LAST && x->rank == 4) k->kind |= FROM_IMAGE;
    if (own && w->layout[k->out[0]] == LOW_CHANNELS_LAST) k->kind |= TO_IMAGE;
    if (k->kind == (FROM_IMAGE | TO_IMAGE)) k->scratch_bytes = low_stored_bytes(x, w->type[k->in[0]]);
    return DDP_OK;
}

static cudaError_t reorder(const cu_call *c, const ddp_value *x, const ddp_value *y, cu_view from, cu_view to, bool add)
{
    cu_view plain = {c->scratch, from.type};
    cudaError_t result;

    if (c->k->kind == FROM_IMAGE)
        return cu_channels_first(c->stream, from, to, x->dims[0], x->dims[1], x->dims[2] * x->dims[3], add);
    if (c->k->kind == TO_IMAGE)
        return cu_channels_last(c->stream, from, to, y->dims[0], y->dims[1], y->dims[2] * y->dims[3], add);
    result = cu_channels_first(c->stream, from, plain, x->dims[0], x->dims[1], x->dims[2] * x->dims[3], false);
    if (result != cudaSuccess) return result;
    return cu_channels_last(c->stream, plain, to, y->dims[0], y->dims[1], y->dims[2] * y->dims[3], add);
}

static ddp_status run_view(const cu_call *c, ddp_err *err)
{
    const ddp_value *x = low_value(c->program, c->k->in[0]), *y = low_value(c->program, c->k->out[0]);
    cu_view from = c->in[0], to = c->out[0];
    size_t bytes = (size_t)c->k->cols * ddp_dtype_size(x->dtype);

    if (to.at == from.at) return DDP_OK;
    if (c->k->kind != 0) return cu_started(c, reorder(c, x, y, from, to, cu_adds(c, 0)), err);
    if (x->dtype != DDP_F32)
        return cu_started(c, cudaMemcpyAsync(to.at, from.at, bytes, cudaMemcpyDeviceToDevice, c->stream), err);
    return cu_started(c, cu_convert(c->stream, from, to, c->k->cols, cu_adds(c, 0)), err);
}

const cu_family cu_family_view = {.base.group = group_view, .run = run_view};
