/* plugins/device/cpu/families/linear.c -- linear layers: the product with bias and activation in one kernel, and the
 * gradients of input and weight.
 *
 *   linear + bias + relu or gelu   the pre-activation has no storage unless somebody else reads it (gelu's gradient
 *                                  does)
 *   one row                        kernels of our own, which read each weight once, as memory gives them
 *
 * A weight may be (O, I), torch's, or transposed (I, O), Conv1D's: then the gradient of the input is the forward
 * product's form and the other way round. */
#include "cpu.h"

#include <stdlib.h>

enum { X, W, B };                                           /* forward: in */
enum { Y, ACTIVATED };                                      /* forward: out */
enum { FORWARD = 0, GRAD_INPUT, GRAD_WEIGHT, FORWARD_ROW }; /* kind; FORWARD_ROW: one row, in f32 */

static const char *forward_name(bool bias, uint32_t act)
{
    static const char *const names[2][4] = {
        {"linear", "linear+relu", "linear+gelu", "linear+gelu"},
        {"linear+bias", "linear+bias+relu", "linear+bias+gelu", "linear+bias+gelu"}};

    return names[bias][act];
}

static bool transposed(const low_lowering *w, const low_kernel *k)
{
    return low_node(w->p, k->nodes[0])->attrs.linear.transposed != 0;
}

static ddp_status group_forward(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    static const uint32_t acts[] = {DDP_OP_RELU, DDP_OP_GELU};
    const ddp_value *weight = low_value(w->p, k->in[W]);
    bool t = transposed(w, k);
    int64_t act = low_find_reader(w, node, k->out[Y], 0, acts, 2);
    cpu_product p;

    (void)err;
    k->kind = FORWARD;
    k->plain = true;
    k->inner = weight->dims[t ? 0 : 1];
    k->cols = weight->dims[t ? 1 : 0];
    k->rows = low_value(w->p, k->out[Y])->elements / k->cols;
    if (act < 0 && cpu_narrow_group(w, k, node)) return DDP_OK;
    if (act >= 0) {
        const ddp_node *a = low_node(w->p, (uint32_t)act);
        k->act = a->op == DDP_OP_RELU ? CPU_ACT_RELU : a->attrs.gelu.tanh ? CPU_ACT_GELU_TANH : CPU_ACT_GELU_ERF;
        k->out[ACTIVATED] = a->out[0];
        w->inner[k->out[Y]] = low_read_once(w, k->out[Y]);
        low_take(w, k, (uint32_t)act);
    }
    k->name = forward_name(k->in[B] >= 0, k->act);
    if (k->rows == 1 && !w->device->bf16) {
        k->kind = FORWARD_ROW;
        return DDP_OK;
    }
    p = cpu_product_forward(k->rows, k->inner, k->cols, t, NULL, NULL);
    p.right.half = weight->dtype == DDP_BF16;
    k->scratch_bytes = cpu_product_scratch(w->device, &p);
    return DDP_OK;
}

/* Where the product goes: the pre-activation's storage, or the activation's when the former is inner. */
static float *product_target(const cpu_call *c)
{
    return cpu_out(c, Y) != NULL ? cpu_out(c, Y) : cpu_out(c, ACTIVATED);
}

typedef struct rows_job {
    const cpu_call *c;
    float *y;
} rows_job;

static bool is_half(const cpu_call *c, uint32_t slot)
{
    return low_value(c->program, c->k->in[slot])->dtype == DDP_BF16;
}

static void run_product(const cpu_call *c)
{
    const low_kernel *k = c->k;
    const bool is_transposed = low_node(c->program, k->nodes[0])->attrs.linear.transposed != 0;
    cpu_product p = cpu_product_forward(k->rows, k->inner, k->cols, is_transposed, cpu_in(c, X), cpu_in(c, W));

    p.right.half = is_half(c, W);
    p.bias = cpu_in(c, B);
    p.plain = cpu_out(c, Y);
    p.activated = cpu_out(c, ACTIVATED);
    p.act = k->act;
    cpu_product_run(c->device, &p, c->scratch);
}

/* Columns first .. last - 1 of the only row. */
static void row_columns(void *ctx, int64_t first, int64_t last)
{
    const rows_job *j = ctx;
    const low_kernel *k = j->c->k;
    const cpu_kernels *f = j->c->device->kernels;
    const float *x = cpu_in(j->c, X), *w = cpu_in(j->c, W), *bias = cpu_in(j->c, B);
    float *out = k->out[ACTIVATED] >= 0 ? cpu_out(j->c, ACTIVATED) : j->y;

    if (low_node(j->c->program, k->nodes[0])->attrs.linear.transposed != 0)
        f->row_product(j->y + first, x, w + first, k->cols, k->inner, last - first);
    else
        f->row_dots(j->y + first, x, w + first * k->inner, k->inner, k->inner, last - first);
    if (bias == NULL && k->act == CPU_ACT_NONE) return;
    f->bias_act(out + first, j->y + first, bias != NULL ? bias + first : NULL, 1, last - first, k->act);
}

static void run_forward_row(const cpu_call *c)
{
    rows_job j = {.c = c, .y = product_target(c)};
    int64_t grain = (CPU_GRAIN / c->k->inner + 64) / 64 * 64; /* whole lines of memory */

    cpu_parallel(c->device->threads, c->k->cols, grain, row_columns, &j);
}

static ddp_status run_forward(const cpu_call *c, ddp_err *err)
{
    (void)err;
    if (c->k->kind == FORWARD_ROW)
        run_forward_row(c);
    else
        run_product(c);
    return DDP_OK;
}

const cpu_family cpu_family_linear = {.base.group = group_forward, .run = run_forward};

/* ---- gradients --------------------------------------------------------------------------------------------------- */
enum { DY, OTHER }; /* in: dy, and the weight or the input */

static cpu_product gradient_of(const low_kernel *k, const float *dy, const void *other, float *out, bool add)
{
    if (k->kind == GRAD_INPUT) return cpu_product_grad_input(k->rows, k->inner, k->cols, k->act != 0, dy, other, out);
    return cpu_product_grad_weight(k->rows, k->inner, k->cols, k->act != 0, dy, other, out, add);
}

/* act holds whether the weight is transposed. */
static ddp_status group_gradient(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    const ddp_value *dy = low_value(w->p, k->in[DY]);
    cpu_product p;

    (void)err;
    k->kind = low_node(w->p, node)->op == DDP_OP_LINEAR_GRAD_INPUT ? GRAD_INPUT : GRAD_WEIGHT;
    k->plain = true;
    k->act = transposed(w, k);
    k->cols = low_last_dim(dy);
    k->rows = dy->elements / k->cols;
    k->inner = low_value(w->p, k->kind == GRAD_INPUT ? k->out[0] : k->in[OTHER])->elements / k->rows;
    if (k->kind == GRAD_WEIGHT) k->writes_grad = 1;
    if (cpu_narrow_group(w, k, node)) return DDP_OK;
    p = gradient_of(k, NULL, NULL, NULL, false);
    p.right.half = low_value(w->p, k->in[OTHER])->dtype == DDP_BF16;
    k->scratch_bytes = cpu_product_scratch(w->device, &p);
    return DDP_OK;
}

static ddp_status run_gradient(const cpu_call *c, ddp_err *err)
{
    cpu_product p = gradient_of(c->k, cpu_in(c, DY), cpu_in(c, OTHER), cpu_out(c, 0), cpu_adds(c, 0));

    (void)err;
    p.right.half = is_half(c, OTHER);
    cpu_product_run(c->device, &p, c->scratch);
    return DDP_OK;
}

const cpu_family cpu_family_linear_grad = {.base.group = group_gradient, .run = run_gradient};
