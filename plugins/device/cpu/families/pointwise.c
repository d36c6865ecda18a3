/* plugins/device/cpu/families/pointwise.c -- ops that take each element by itself: relu, leaky_relu, gelu, silu,
 * add, mul, scale, reshape; and gradients of activations with the bias gradient of the layer below:
 *   gradient of relu, gelu or silu + bias gradient   one pass over dy */
#include "cpu.h"

#include <string.h>

static uint32_t act_of(const ddp_node *n)
{
    if (n->op == DDP_OP_RELU || n->op == DDP_OP_RELU_GRAD) return CPU_ACT_RELU;
    if (n->op == DDP_OP_SILU || n->op == DDP_OP_SILU_GRAD) return CPU_ACT_SILU;
    return n->attrs.gelu.tanh ? CPU_ACT_GELU_TANH : CPU_ACT_GELU_ERF;
}

/* ---- relu, gelu, silu, add, mul ---------------------------------------------------------------------------------- */
static ddp_status group_pointwise(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    const ddp_node *n = low_node(w->p, node);

    if (n->op == DDP_OP_RELU && cpu_pool_takes_relu(w, node)) return cpu_pool_group_relu(w, k, node, err);
    if (low_norm_grad_takes(w, node)) return cpu_batch_norm_group(w, k, node, err);
    if (n->op == DDP_OP_ADD && low_layer_norm_join(w, k, node, &cpu_family_layer_norm.base)) return DDP_OK;
    k->kind = n->op;
    k->cols = low_value(w->p, k->out[0])->elements;
    low_may_replace(k, k->out[0], k->in[0]);
    if (n->op == DDP_OP_ADD || n->op == DDP_OP_MUL)
        low_may_replace(k, k->out[0], k->in[1]);
    else
        k->act = act_of(n);
    return DDP_OK;
}

static void act_piece(void *ctx, int64_t first, int64_t last)
{
    const cpu_call *c = ctx;
    float *y = cpu_out(c, 0), *x = cpu_in(c, 0);

    c->device->kernels->bias_act(y + first, x + first, NULL, 1, last - first, c->k->act);
}

static void add_piece(void *ctx, int64_t first, int64_t last)
{
    const cpu_call *c = ctx;
    float *y = cpu_out(c, 0), *a = cpu_in(c, 0), *b = cpu_in(c, 1);

    c->device->kernels->add(y + first, a + first, b + first, last - first);
}

static void mul_piece(void *ctx, int64_t first, int64_t last)
{
    const cpu_call *c = ctx;
    float *y = cpu_out(c, 0), *a = cpu_in(c, 0), *b = cpu_in(c, 1);

    c->device->kernels->mul(y + first, a + first, b + first, last - first);
}

static ddp_status run_pointwise(const cpu_call *c, ddp_err *err)
{
    cpu_call mine = *c;
    void (*piece)(void *ctx, int64_t first, int64_t last) = act_piece;

    (void)err;
    if (c->k->kind == DDP_OP_ADD) piece = add_piece;
    if (c->k->kind == DDP_OP_MUL) piece = mul_piece;
    cpu_parallel(c->device->threads, c->k->cols, CPU_GRAIN, piece, &mine);
    return DDP_OK;
}

const cpu_family cpu_family_pointwise = {.base.group = group_pointwise, .run = run_pointwise};

/* ---- leaky_relu and its gradient --------------------------------------------------------------------------------- */
static ddp_status group_leaky_relu(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    (void)err;
    k->kind = low_node(w->p, node)->op;
    k->cols = low_value(w->p, k->out[0])->elements;
    low_may_replace(k, k->out[0], k->in[0]);
    if (k->kind == DDP_OP_LEAKY_RELU_GRAD) low_may_replace(k, k->out[0], k->in[1]);
    return DDP_OK;
}

static void leaky_relu_piece(void *ctx, int64_t first, int64_t last)
{
    const cpu_call *c = ctx;
    float *y = cpu_out(c, 0), *x = cpu_in(c, 0), *sign = c->k->kind == DDP_OP_LEAKY_RELU_GRAD ? cpu_in(c, 1) : x;
    float slope = (float)low_node(c->program, c->k->nodes[0])->attrs.leaky_relu.negative_slope;

    c->device->kernels->leaky_relu(y + first, x + first, sign + first, slope, last - first);
}

static ddp_status run_leaky_relu(const cpu_call *c, ddp_err *err)
{
    cpu_call mine = *c;

    (void)err;
    cpu_parallel(c->device->threads, c->k->cols, CPU_GRAIN, leaky_relu_piece, &mine);
    return DDP_OK;
}

const cpu_family cpu_family_leaky_relu = {.base.group = group_leaky_relu, .run = run_leaky_relu};

/* ---- scale ------------------------------------------------------------------------------------------------------- */
static ddp_status group_scale(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    (void)node;
    (void)err;
    k->cols = low_value(w->p, k->out[0])->elements;
    low_may_replace(k, k->out[0], k->in[0]);
    return DDP_OK;
}

static void scale_piece(void *ctx, int64_t first, int64_t last)
{
    const cpu_call *c = ctx;
    float *y = cpu_out(c, 0), *x = cpu_in(c, 0);

    c->device->kernels->times(y + first, x + first, (float)low_node(c->program, c->k->nodes[0])->attrs.scale.factor,
                              last - first);
}

static ddp_status run_scale(const cpu_call *c, ddp_err *err)
{
    cpu_call mine = *c;

    (void)err;
    cpu_parallel(c->device->threads, c->k->cols, CPU_GRAIN, scale_piece, &mine);
    return DDP_OK;
}

const cpu_family cpu_family_scale = {.base.group = group_scale, .run = run_scale};

/* ---- gradient of an activation, with or without the bias gradient after it;  the bias gradient alone ------------- */
enum { DX, DB }; /* out */

static ddp_status group_act_grad(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    static const char *const names[2][5] = {
        {"", "relu_grad", "gelu_grad", "gelu_grad", "silu_grad"},
        {"", "relu_grad+bias_grad", "gelu_grad+bias_grad", "gelu_grad+bias_grad", "silu_grad+bias_grad"}};
    const ddp_node *n = low_node(w->p, node), *bias_node = NULL;
    bool image = low_value(w->p, k->in[0])->rank == 4;
    const uint32_t bias_ops[] = {image ? DDP_OP_CONV2D_GRAD_BIAS : DDP_OP_LINEAR_GRAD_BIAS};
    bool linear = n->op == DDP_OP_LINEAR_GRAD_BIAS, alone = linear || n->op == DDP_OP_CONV2D_GRAD_BIAS;
    int64_t bias;

    if (low_norm_grad_takes(w, node)) return cpu_batch_norm_group(w, k, node, err);
    if (linear) { /* over its last dimension */
        k->plain = true;
        k->cols = low_last_dim(low_value(w->p, k->in[0]));
        k->rows = low_value(w->p, k->in[0])->elements / k->cols;
    } else {
        low_matrix(w, k->in[0], &k->rows, &k->cols);
    }
    k->writes_grad = 1u << DB;
    if (alone) {
        k->out[DB] = k->out[DX];
        k->out[DX] = -1;
        k->adds = k->adds << DB;
    } else {
        k->act = act_of(n);
        low_may_replace(k, k->out[DX], k->in[0]);
        low_may_replace(k, k->out[DX], k->in[1]);
        bias = low_find_reader(w, node, k->out[DX], 0, bias_ops, 1);
        bias_node = bias >= 0 ? low_node(w->p, (uint32_t)bias) : NULL;
        /* a gradient that accumulates stays where it is: another one must have been set before it */
        if (bias_node != NULL && bias_node->accumulate == 0) {
            k->out[DB] = bias_node->out[0];
            low_take(w, k, (uint32_t)bias);
        }
    }
    if (!alone) k->name = names[k->out[DB] >= 0][k->act];
    return DDP_OK;
}

static void grad_piece(void *ctx, int64_t first, int64_t last) /* columns */
{
    const cpu_call *c = ctx;
    const low_kernel *k = c->k;

    c->device->kernels->act_grad(cpu_out(c, DX), cpu_in(c, 0), cpu_in(c, 1), cpu_out(c, DB), k->rows, k->cols, first,
                                 last, k->act, cpu_adds(c, DB));
}

static ddp_status run_act_grad(const cpu_call *c, ddp_err *err)
{
    cpu_call mine = *c;
    int64_t grain = (CPU_GRAIN / c->k->rows + 128) / 128 * 128; /* whole tiles of columns */

    (void)err;
    cpu_parallel(c->device->threads, c->k->cols, grain, grad_piece, &mine);
    return DDP_OK;
}

const cpu_family cpu_family_act_grad = {.base.group = group_act_grad, .run = run_act_grad};

/* ---- reshape: nothing to do, or a copy where the two sides lie differently --------------------------------------- */
static ddp_status group_view(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    const ddp_value *x = low_value(w->p, k->in[0]), *y = low_value(w->p, k->out[0]);
    bool from_image = w->layout[k->in[0]] == LOW_CHANNELS_LAST && w->l->storage[k->out[0]].alias_of < 0;
    bool to_image = w->layout[k->out[0]] == LOW_CHANNELS_LAST && w->l->storage[k->out[0]].alias_of < 0;

    (void)node;
    (void)err;
    k->reads_any = k->writes_any = k->writes_grad = 1;
    k->cols = y->elements;
    k->kind = (from_image ? 1u : 0u) | (to_image ? 2u : 0u);
    if (x->rank != 4) k->kind &= ~1u;
    if (k->kind == 3) k->scratch_bytes = (uint64_t)y->elements * sizeof(float);
    return DDP_OK;
}

static ddp_status run_view(const cpu_call *c, ddp_err *err)
{
    const cpu_kernels *f = c->device->kernels;
    const ddp_value *x = low_value(c->program, c->k->in[0]), *y = low_value(c->program, c->k->out[0]);
    float *to = cpu_out(c, 0);
    const float *from = cpu_in(c, 0);
    bool add = cpu_adds(c, 0);

    (void)err;
    if (to == from) return DDP_OK;
    if (c->k->kind == 0 && add) {
        f->add(to, to, from, c->k->cols);
    } else if (c->k->kind == 0) {
        memcpy(to, from, (size_t)c->k->cols * ddp_dtype_size(x->dtype));
    } else {
        if (c->k->kind & 1u) {
            float *plain = c->k->kind == 1 ? to : c->scratch;
            f->channels_first(plain, from, x->dims[0], x->dims[1], x->dims[2] * x->dims[3], add);
            from = plain;
        }
        if (c->k->kind & 2u) f->channels_last(to, from, y->dims[0], y->dims[1], y->dims[2] * y->dims[3]);
    }
    return DDP_OK;
}

const cpu_family cpu_family_view = {.base.group = group_view, .run = run_view};
