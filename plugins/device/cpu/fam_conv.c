/* fam_conv.c -- convolutions, and the gradients of their input and weight:
 *
 *   conv2d + bias + relu   the library adds the bias; with relu, one pass of our own over its result does both
 *
 * The library's convolution reorders the weight in every call. Where there are few places for each weight, a matrix product over
 * unfolded windows reads or writes the weight where it lies and is faster:
 *
 *   forward       y (places, O) = rows (places, C KH KW) w^T
 *   grad input    rows = dy w, folded to dx
 *   grad weight   dw = or += dy^T rows
 *
 * The rule goes by shape alone, from measurements over ResNet-18's layers. A kernel of one pixel needs no unfolding. */
#include "cpu.h"

#include <stdlib.h>

enum { X, W, B };                              /* forward: in */
enum { Y, ACTIVATED };                         /* forward: out */
enum { DY, OTHER };                            /* gradients: in; the weight or x */
enum { FORWARD = 0, GRAD_INPUT, GRAD_WEIGHT }; /* kind, and CPU_CONV_* */

typedef struct conv_state {
    cpu_windows windows;
    cpu_conv *conv;       /* of the library; NULL: by a matrix product */
    cpu_product *product; /* forward by a matrix product */
    bool direct;          /* x is its own rows */
    int64_t lines;        /* of all images of x */
    uint64_t rows_bytes;  /* at the start of the scratch */
} conv_state;

/* ---- shapes --------------------------------------------------------------------------------------------------------- */
static bool lies_last(const cpu_lowering *w, int32_t v) { return w->layout[v] == CPU_CHANNELS_LAST; }

static cpu_conv_shape shape_of(const cpu_lowering *w, const ddp_node *n, int32_t x, int32_t weight, int32_t y)
{
    const ddp_value *vx = cpu_value(w->p, x), *vw = cpu_value(w->p, weight), *vy = cpu_value(w->p, y);
    cpu_conv_shape s = {.images = vx->dims[0],
                        .channels = vx->dims[1],
                        .height = vx->dims[2],
                        .width = vx->dims[3],
                        .out = vy->dims[1],
                        .out_height = vy->dims[2],
                        .out_width = vy->dims[3],
                        .groups = n->attrs.conv.groups,
                        .weight_last = lies_last(w, weight)};

    for (int i = 0; i < 2; i++) {
        s.kernel[i] = vw->dims[2 + i];
        s.stride[i] = n->attrs.conv.stride[i];
        s.padding[i] = n->attrs.conv.padding[i];
    }
    return s;
}

static bool is_direct(const cpu_conv_shape *s)
{
    return s->kernel[0] * s->kernel[1] * s->stride[0] * s->stride[1] == 1 && s->padding[0] + s->padding[1] == 0;
}

/* Measured on ResNet-18's layers (oneDNN 2.6, AVX-512), each way with its reorders or unfolding: the product wins where places are
 * few for the weights, earlier where a stride spreads them, and for a kernel of one pixel over up to some thousand of them. */
static bool by_product(const cpu_conv_shape *s, uint32_t kind)
{
    int64_t places = s->images * s->out_height * s->out_width;
    bool strided = s->stride[0] * s->stride[1] > 1;

    if (s->groups != 1 || s->weight_last) return false;
    if (s->kernel[0] * s->kernel[1] == 1) return places <= 4096;
    return places <= (strided && kind != FORWARD ? 600 : 160);
}

static ddp_status make_state(cpu_lowering *w, cpu_kernel *k, const cpu_conv_shape *s, ddp_err *err)
{
    conv_state *t = k->state = calloc(1, sizeof(*t));
    ddp_status status;

    if (t == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "device \"cpu\": out of memory while lowering");
    t->windows = (cpu_windows){.channels = s->channels,
                               .height = s->height,
                               .width = s->width,
                               .out_height = s->out_height,
                               .out_width = s->out_width,
                               .kernel = {s->kernel[0], s->kernel[1]},
                               .stride = {s->stride[0], s->stride[1]},
                               .padding = {s->padding[0], s->padding[1]}};
    t->direct = is_direct(s);
    t->lines = s->images * s->height;
    k->rows = s->images * s->out_height * s->out_width;
    k->inner = s->channels / s->groups * s->kernel[0] * s->kernel[1];
    k->cols = s->out;
    if (!by_product(s, k->kind)) {
        status = cpu_conv_create(w->device->library, (int)k->kind, s, &t->conv, err);
        if (status == DDP_OK) k->scratch_bytes = cpu_conv_scratch(t->conv);
        return status;
    }
    if (!t->direct) t->rows_bytes = ((uint64_t)(k->rows * k->inner) * sizeof(float) + 63) / 64 * 64;
    k->scratch_bytes = t->rows_bytes;
    if (k->kind != FORWARD) return DDP_OK;
    status = cpu_product_create(w->device->library, k->rows, k->inner, k->cols, false, false, &t->product, err);
    if (status == DDP_OK) k->scratch_bytes += cpu_product_scratch(t->product);
    return status;
}

static ddp_status conv_build(const cpu_kernel *k, ddp_err *err)
{
    const conv_state *t = k->state;

    if (t->conv != NULL) return cpu_conv_build(t->conv, err);
    return t->product != NULL ? cpu_product_build(t->product, err) : DDP_OK;
}

static void conv_release(void *state)
{
    conv_state *t = state;

    if (t == NULL) return;
    cpu_conv_free(t->conv);
    cpu_product_free(t->product);
    free(t);
}

/* Either of the two. */
typedef struct conv_bound {
    cpu_conv_bound *conv;
    cpu_bound *product;
} conv_bound;

static void conv_unbind(void *bound)
{
    conv_bound *b = bound;

    if (b == NULL) return;
    cpu_conv_bound_free(b->conv);
    cpu_bound_free(b->product);
    free(b);
}

static ddp_status conv_bind(const cpu_call *c, void **bound, ddp_err *err)
{
    const conv_state *t = c->k->state;
    conv_bound *b = calloc(1, sizeof(*b));

    if (b == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "device \"cpu\": out of memory for an instance");
    *bound = b;
    if (t->conv != NULL) return cpu_conv_bind(t->conv, c->scratch, &b->conv, err);
    if (t->product != NULL) return cpu_product_bind(t->product, (char *)c->scratch + t->rows_bytes, &b->product, err);
    return DDP_OK;
}

/* ---- windows as rows ------------------------------------------------------------------------------------------------ */
typedef struct rows_job {
    const cpu_call *c;
    const float *from;
    float *to;
} rows_job;

static void unfold_piece(void *ctx, int64_t first, int64_t last)
{
    const rows_job *j = ctx;

    j->c->device->kernels->image.unfold(j->to, j->from, &((const conv_state *)j->c->k->state)->windows, first, last);
}

static void fold_piece(void *ctx, int64_t first, int64_t last)
{
    const rows_job *j = ctx;

    j->c->device->kernels->image.fold(j->to, j->from, &((const conv_state *)j->c->k->state)->windows, first, last);
}

/* The rows of x: in the scratch, or x itself. */
static const float *rows_of(const cpu_call *c, const float *x)
{
    const conv_state *t = c->k->state;
    rows_job j = {c, x, c->scratch};

    if (t->direct) return x;
    cpu_parallel(c->device->threads, c->k->rows, CPU_GRAIN / c->k->inner + 1, unfold_piece, &j);
    return c->scratch;
}

/* ---- forward -------------------------------------------------------------------------------------------------------- */
static const char *forward_name(bool bias, bool relu)
{
    static const char *const names[2][2] = {{"conv2d", "conv2d+relu"}, {"conv2d+bias", "conv2d+bias+relu"}};

    return names[bias][relu];
}

static ddp_status group_forward(cpu_lowering *w, cpu_kernel *k, uint32_t node, ddp_err *err)
{
    static const uint32_t acts[] = {DDP_OP_RELU};
    cpu_conv_shape s = shape_of(w, cpu_node(w->p, node), k->in[X], k->in[W], k->out[Y]);
    int64_t act = cpu_find_reader(w, node, k->out[Y], 0, acts, 1);

    k->kind = FORWARD;
    k->reads_any = 1u << W;
    if (act >= 0 && cpu_read_once(w, k->out[Y]) && !cpu_pool_takes_relu(w, (uint32_t)act)) {
        k->act = CPU_ACT_RELU;
        k->out[ACTIVATED] = cpu_node(w->p, (uint32_t)act)->out[0];
        w->inner[k->out[Y]] = true;
        cpu_take(w, k, (uint32_t)act);
    }
    k->name = forward_name(k->in[B] >= 0, k->act != CPU_ACT_NONE);
    s.bias = k->in[B] >= 0 && k->act == CPU_ACT_NONE;
    return make_state(w, k, &s, err);
}

static void bias_rows(void *ctx, int64_t first, int64_t last)
{
    const rows_job *j = ctx;
    const cpu_kernel *k = j->c->k;
    float *y = j->to + first * k->cols;

    j->c->device->kernels->bias_act(y, y, cpu_in(j->c, B), last - first, k->cols, k->act);
}

static ddp_status run_forward(const cpu_call *c, ddp_err *err)
{
    const cpu_kernel *k = c->k;
    const conv_state *t = k->state;
    conv_bound *b = c->bound;
    rows_job j = {.c = c, .to = k->act != CPU_ACT_NONE ? cpu_out(c, ACTIVATED) : cpu_out(c, Y)};
    bool own_pass = k->act != CPU_ACT_NONE || (t->conv == NULL && k->in[B] >= 0);
    ddp_status status;

    if (t->conv != NULL)
        status = cpu_conv_run(b->conv, cpu_in(c, X), cpu_in(c, W), cpu_in(c, B), j.to, false, err);
    else
        status = cpu_bound_run(b->product, rows_of(c, cpu_in(c, X)), cpu_in(c, W), NULL, j.to, err);
    if (status == DDP_OK && own_pass)
        cpu_parallel(c->device->threads, k->rows, (CPU_GRAIN + k->cols - 1) / k->cols, bias_rows, &j);
    return status;
}

const cpu_family cpu_family_conv = {.group = group_forward,
                                    .build = conv_build,
                                    .bind = conv_bind,
                                    .run = run_forward,
                                    .unbind = conv_unbind,
                                    .release = conv_release};

/* ---- gradients ------------------------------------------------------------------------------------------------------ */
static ddp_status group_gradient(cpu_lowering *w, cpu_kernel *k, uint32_t node, ddp_err *err)
{
    const ddp_node *n = cpu_node(w->p, node);
    cpu_conv_shape s;

    if (n->op == DDP_OP_CONV2D_GRAD_INPUT) {
        k->kind = GRAD_INPUT;
        k->reads_any = 1u << OTHER;
        s = shape_of(w, n, k->out[0], k->in[OTHER], k->in[DY]);
    } else {
        k->kind = GRAD_WEIGHT;
        k->writes_any = k->writes_grad = 1;
        s = shape_of(w, n, k->in[OTHER], k->out[0], k->in[DY]);
    }
    return make_state(w, k, &s, err);
}

static ddp_status run_grad_input(const cpu_call *c, ddp_err *err)
{
    const cpu_kernel *k = c->k;
    const conv_state *t = k->state;
    float *dx = cpu_out(c, 0), *rows = t->direct ? dx : c->scratch;
    rows_job j = {c, rows, dx};
    ddp_status status;

    if (t->conv != NULL)
        return cpu_conv_run(((conv_bound *)c->bound)->conv, dx, cpu_in(c, OTHER), NULL, cpu_in(c, DY), false, err);
    status = cpu_grad_input(c->device->library, k->rows, k->inner, k->cols, false, cpu_in(c, DY), cpu_in(c, OTHER),
                            rows, err);
    if (status == DDP_OK && !t->direct)
        cpu_parallel(c->device->threads, t->lines, CPU_GRAIN / (t->windows.width * t->windows.channels) + 1, fold_piece,
                     &j);
    return status;
}

static ddp_status run_gradient(const cpu_call *c, ddp_err *err)
{
    const cpu_kernel *k = c->k;
    const conv_state *t = k->state;

    if (k->kind == GRAD_INPUT) return run_grad_input(c, err);
    if (t->conv != NULL)
        return cpu_conv_run(((conv_bound *)c->bound)->conv, cpu_in(c, OTHER), cpu_out(c, 0), NULL, cpu_in(c, DY),
                            cpu_adds(c, 0), err);
    return cpu_grad_weight(c->device->library, k->rows, k->inner, k->cols, false, cpu_in(c, DY),
                           rows_of(c, cpu_in(c, OTHER)), cpu_out(c, 0), cpu_adds(c, 0), err);
}

const cpu_family cpu_family_conv_grad = {.group = group_gradient,
                                         .build = conv_build,
                                         .bind = conv_bind,
                                         .run = run_gradient,
                                         .unbind = conv_unbind,
                                         .release = conv_release};
