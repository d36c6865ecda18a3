/* plugins/device/cpu/families/pool.c -- poolings and their gradients:
 *
 *   relu + max_pool2d                                 relu's output does not exist
 *   max_pool2d_grad + relu_grad + conv2d_grad_bias    one pass over the gradient
 *
 * A max pooling whose gradient is wanted keeps, for each output, the offset of its maximum in the window, one byte. */
#include "cpu.h"

#include <stdlib.h>
#include <string.h>

typedef struct pool_state {
    cpu_windows windows;
    int64_t x_lines, y_lines; /* of all images */
} pool_state;

static ddp_status pool_make_state(low_lowering *w, low_kernel *k, const ddp_node *n, int32_t x, int32_t y, ddp_err *err)
{
    const ddp_value *vx = low_value(w->p, x), *vy = low_value(w->p, y);
    bool adaptive = n->op == DDP_OP_ADAPTIVE_AVG_POOL2D || n->op == DDP_OP_ADAPTIVE_AVG_POOL2D_GRAD;
    pool_state *t = k->state = calloc(1, sizeof(*t));

    if (t == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "device \"cpu\": out of memory while lowering");
    t->x_lines = vx->dims[0] * vx->dims[2];
    t->y_lines = vy->dims[0] * vy->dims[2];
    t->windows = (cpu_windows){.channels = vx->dims[1],
                               .height = vx->dims[2],
                               .width = vx->dims[3],
                               .out_height = vy->dims[2],
                               .out_width = vy->dims[3]};
    for (int i = 0; i < 2 && !adaptive; i++) {
        t->windows.kernel[i] = n->attrs.pool.kernel[i];
        t->windows.stride[i] = n->attrs.pool.stride[i];
        t->windows.padding[i] = n->attrs.pool.padding[i];
    }
    return DDP_OK;
}

static const cpu_windows *windows_of(const cpu_call *c) { return &((const pool_state *)c->k->state)->windows; }

/* fn over lines of width x channels elements */
static void over_lines(const cpu_call *c, bool x, void (*fn)(void *ctx, int64_t first, int64_t last))
{
    const pool_state *t = c->k->state;
    const cpu_windows *w = &t->windows;
    cpu_call mine = *c;

    cpu_parallel(c->device->threads, x ? t->x_lines : t->y_lines,
                 CPU_GRAIN / ((x ? w->width : w->out_width) * w->channels) + 1, fn, &mine);
}

/* ---- max pooling ------------------------------------------------------------------------------------------------- */
/* Who reads v, besides `but`: the node, -1 for none, -2 for several. */
static int64_t other_reader(const low_lowering *w, int32_t v, uint32_t op)
{
    int64_t found = -1;

    for (uint32_t i = 0; i < w->p->node_count; i++) {
        const ddp_node *n = low_node(w->p, i);
        for (uint32_t j = 0; j < n->in_count; j++)
            if (n->in[j] == v && n->op == op) found = found == -1 ? (int64_t)i : -2;
    }
    return found;
}

/* The nodes around a relu whose output nobody reads but a max pooling, and their gradients. */
typedef struct pool_chain {
    int64_t pool, pool_grad, relu_grad; /* the gradients -1 where the program has none */
} pool_chain;

static bool find_chain(const low_lowering *w, uint32_t relu, pool_chain *out)
{
    int32_t v = low_node(w->p, relu)->out[0];
    uint32_t readers;

    out->pool = other_reader(w, v, DDP_OP_MAX_POOL2D);
    out->pool_grad = other_reader(w, v, DDP_OP_MAX_POOL2D_GRAD);
    out->relu_grad = other_reader(w, v, DDP_OP_RELU_GRAD);
    readers = (uint32_t)(out->pool >= 0) + (uint32_t)(out->pool_grad >= 0) + (uint32_t)(out->relu_grad >= 0);
    if (out->pool < 0 || w->kept[v] || w->readers[v] != readers || low_value(w->p, v)->rank != 4) return false;
    if (w->taken[out->pool] || (out->pool_grad < 0) != (out->relu_grad < 0)) return false;
    if (out->pool_grad < 0) return true;
    v = low_node(w->p, (uint32_t)out->pool_grad)->out[0];
    return low_node(w->p, (uint32_t)out->relu_grad)->in[0] == v && low_read_once(w, v);
}

bool cpu_pool_takes_relu(const low_lowering *w, uint32_t relu)
{
    pool_chain chain;

    return find_chain(w, relu, &chain);
}

static ddp_status keep_places(low_lowering *w, low_kernel *k, int32_t y, ddp_err *err)
{
    int32_t number;

    return low_private_add(w, k, (uint64_t)low_value(w->p, y)->elements, &number, err);
}

static ddp_status check_places(const low_lowering *w, const low_kernel *k, const ddp_node *n, ddp_err *err)
{
    const int64_t *kernel = ((const pool_state *)k->state)->windows.kernel;

    if (kernel[0] * kernel[1] <= CPU_POOL_PLACES) return DDP_OK;
    return low_refuse(w, n, "its windows have more than 255 positions; use a smaller kernel", err);
}

ddp_status cpu_pool_group_relu(low_lowering *w, low_kernel *k, uint32_t relu, ddp_err *err)
{
    pool_chain chain;
    const ddp_node *pool;
    ddp_status status;

    if (!find_chain(w, relu, &chain))
        return ddp_fail(err, DDP_ERR_INTERNAL, "device \"cpu\": no pooling after the relu \"%s\"", k->layer);
    pool = low_node(w->p, (uint32_t)chain.pool);
    k->family = &cpu_family_max_pool.base;
    k->name = "relu+max_pool2d";
    k->act = CPU_ACT_RELU;
    w->inner[k->out[0]] = true;
    w->l->storage[k->out[0]].alias_of = DDP_NOT_STORED;
    k->out[0] = pool->out[0];
    low_take(w, k, (uint32_t)chain.pool);
    status = pool_make_state(w, k, pool, pool->in[0], pool->out[0], err);
    if (status == DDP_OK) status = check_places(w, k, pool, err);
    return status == DDP_OK && chain.pool_grad >= 0 ? keep_places(w, k, pool->out[0], err) : status;
}

static ddp_status group_max(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    const ddp_node *n = low_node(w->p, node);
    ddp_status status = pool_make_state(w, k, n, k->in[0], k->out[0], err);
    bool gradient = false;

    if (status == DDP_OK) status = check_places(w, k, n, err);
    for (uint32_t i = node; i < w->p->node_count; i++) {
        const ddp_node *g = low_node(w->p, i);
        gradient = gradient || (g->op == DDP_OP_MAX_POOL2D_GRAD && g->in[1] == k->in[0]);
    }
    return status == DDP_OK && gradient ? keep_places(w, k, k->out[0], err) : status;
}

static void max_lines(void *ctx, int64_t first, int64_t last)
{
    const cpu_call *c = ctx;

    c->device->kernels->image.max_pool(cpu_out(c, 0), c->k->private_count > 0 ? cpu_private(c, 0) : NULL, cpu_in(c, 0),
                                       windows_of(c), c->k->act == CPU_ACT_RELU, first, last);
}

static ddp_status run_max(const cpu_call *c, ddp_err *err)
{
    (void)err;
    over_lines(c, false, max_lines);
    return DDP_OK;
}

static void pool_release(void *state) { free(state); }

const cpu_family cpu_family_max_pool = {.base.group = group_max, .run = run_max, .base.release = pool_release};

/* ---- its gradient ------------------------------------------------------------------------------------------------ */
enum { DX, DB }; /* out */

/* The kernel of the pooling of `x` by the same windows; NULL when the program has only the gradient. */
static const low_kernel *forward_kernel(const low_lowering *w, const ddp_node *n)
{
    for (uint32_t i = 0; i < w->p->node_count; i++) {
        const ddp_node *f = low_node(w->p, i);
        if (f->op == DDP_OP_MAX_POOL2D && f->in[0] == n->in[1] &&
            memcmp(&f->attrs.pool, &n->attrs.pool, sizeof(n->attrs.pool)) == 0)
            return low_kernel_of(w, i);
    }
    return NULL;
}

/* The sum of what comes through the windows is the sum of what goes to x: dy where the gradient goes anywhere. */
static void take_bias(low_lowering *w, low_kernel *k, uint32_t node)
{
    static const uint32_t ops[] = {DDP_OP_CONV2D_GRAD_BIAS};
    int64_t bias = low_find_reader(w, node, k->out[DX], 0, ops, 1);

    if (bias < 0 || low_node(w->p, (uint32_t)bias)->accumulate != 0) return;
    k->out[DB] = low_node(w->p, (uint32_t)bias)->out[0];
    low_take(w, k, (uint32_t)bias);
    k->name = "max_pool2d_grad+relu_grad+bias_grad";
}

static ddp_status group_max_grad(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    const ddp_node *n = low_node(w->p, node);
    const low_kernel *forward = forward_kernel(w, n);
    ddp_status status = pool_make_state(w, k, n, k->out[DX], k->in[0], err);

    if (status != DDP_OK) return status;
    k->writes_grad = 1u << DB;
    if (forward == NULL) { /* finds the maxima again */
        status = check_places(w, k, n, err);
        k->scratch_bytes = (uint64_t)low_value(w->p, k->in[0])->elements * (1 + sizeof(float)) + 4;
        return status;
    }
    low_private_use(k, forward->privates[0]);
    k->in[1] = -1; /* x is not read */
    if (forward->act == CPU_ACT_RELU) {
        static const uint32_t ops[] = {DDP_OP_RELU_GRAD};
        int64_t relu = low_find_reader(w, node, k->out[DX], 0, ops, 1);
        w->inner[k->out[DX]] = true;
        k->out[DX] = low_node(w->p, (uint32_t)relu)->out[0];
        k->name = "max_pool2d_grad+relu_grad";
        low_take(w, k, (uint32_t)relu);
        take_bias(w, k, node);
    }
    return DDP_OK;
}

static const uint8_t *offsets_of(const cpu_call *c) { return c->k->private_count > 0 ? cpu_private(c, 0) : c->scratch; }

static void max_grad_lines(void *ctx, int64_t first, int64_t last)
{
    const cpu_call *c = ctx;

    c->device->kernels->image.max_pool_grad(cpu_out(c, DX), cpu_in(c, 0), offsets_of(c), windows_of(c), first, last);
}

static void find_lines(void *ctx, int64_t first, int64_t last)
{
    const cpu_call *c = ctx;
    int64_t elements = low_value(c->program, c->k->in[0])->elements;
    uint8_t *at = c->scratch;

    c->device->kernels->image.max_pool((float *)(void *)(at + (elements + 3) / 4 * 4), at, cpu_in(c, 1), windows_of(c),
                                       false, first, last);
}

static void bias_columns(void *ctx, int64_t first, int64_t last)
{
    const cpu_call *c = ctx;
    int64_t cols = windows_of(c)->channels;

    c->device->kernels->image.maximum_sums(cpu_out(c, DB), cpu_in(c, 0), offsets_of(c),
                                           low_value(c->program, c->k->in[0])->elements / cols, cols, first, last,
                                           cpu_adds(c, DB));
}

static ddp_status run_max_grad(const cpu_call *c, ddp_err *err)
{
    cpu_call mine = *c;

    (void)err;
    if (c->k->private_count == 0) over_lines(c, false, find_lines);
    over_lines(c, true, max_grad_lines);
    if (c->k->out[DB] >= 0) cpu_parallel(c->device->threads, windows_of(c)->channels, 16, bias_columns, &mine);
    return DDP_OK;
}

const cpu_family cpu_family_max_pool_grad = {
    .base.group = group_max_grad, .run = run_max_grad, .base.release = pool_release};

/* ---- averages, and their gradients: kind 1 ----------------------------------------------------------------------- */
static ddp_status group_avg(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    const ddp_node *n = low_node(w->p, node);

    k->kind = n->op == DDP_OP_AVG_POOL2D_GRAD || n->op == DDP_OP_ADAPTIVE_AVG_POOL2D_GRAD;
    return pool_make_state(w, k, n, k->kind ? k->out[0] : k->in[0], k->kind ? k->in[0] : k->out[0], err);
}

static void avg_lines(void *ctx, int64_t first, int64_t last)
{
    const cpu_call *c = ctx;
    const cpu_image_kernels *f = &c->device->kernels->image;

    (c->k->kind ? f->avg_pool_grad : f->avg_pool)(cpu_out(c, 0), cpu_in(c, 0), windows_of(c), first, last);
}

static ddp_status run_avg(const cpu_call *c, ddp_err *err)
{
    (void)err;
    over_lines(c, c->k->kind != 0, avg_lines);
    return DDP_OK;
}

const cpu_family cpu_family_avg_pool = {.base.group = group_avg, .run = run_avg, .base.release = pool_release};
