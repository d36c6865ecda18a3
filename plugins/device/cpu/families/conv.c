/* plugins/device/cpu/families/conv.c -- convolutions, and the gradients of their input and weight:
 *
 *   conv2d + bias + relu   the library adds the bias; with relu, one pass of our own over its result does both
 *
 * The library's convolution reorders the weight in every call. Where there are few positions for each weight, a
 * matrix product over unfolded windows reads or writes the weight where it lies and is faster:
 *
 *   forward       y (positions, O) = rows (positions, C KH KW) w^T
 *   grad input    rows = dy w, folded to dx
 *   grad weight   dw = or += dy^T rows
 *
 * Where there are many, and kernels of 3 x 3, Winograd's algorithm (winograd.h) computes a quarter of the products,
 * and adds the bias and does the relu as it writes. Of the rest, those of many channels with AVX2, and all on ARM64 or
 * where there is no library, are a product that reads windows where they lie (windows.h).
 *
 * The rules go by shape alone, from measurements over ResNet-18's layers. A kernel of one pixel needs no unfolding. */
#include "cpu.h"
#include "kernels/product/windows.h"
#include "kernels/winograd/winograd.h"

#include <stdlib.h>

enum { X, W, B };                              /* forward: in */
enum { Y, ACTIVATED };                         /* forward: out */
enum { DY, OTHER };                            /* gradients: in; the weight or x */
enum { FORWARD = 0, GRAD_INPUT, GRAD_WEIGHT }; /* kind, and CPU_CONV_* */

typedef struct conv_state {
    cpu_windows windows;
    bool by_tiles; /* by winograd.h; otherwise */
    cpu_winograd winograd;
    cpu_conv *conv;  /* of the library, or NULL: by a matrix product */
    bool direct;     /* x is its own rows */
    bool by_windows; /* by windows.h */
    cpu_window_conv window_conv;
    int64_t lines;        /* of all images of x */
    uint64_t rows_bytes;  /* at the start of the scratch */
    uint64_t round_bytes; /* where the scratch has what is rounded to bf16, of what is read: x, the weight, y */
    int64_t x_elements, y_elements, w_elements;
    bool shares, first; /* y rounded is privates[0], of both gradients of a convolution: the first of them makes it */
} conv_state;

/* ---- shapes ------------------------------------------------------------------------------------------------------ */
static bool lies_last(const low_lowering *w, int32_t v) { return w->layout[v] == LOW_CHANNELS_LAST; }

static cpu_conv_shape shape_of(const low_lowering *w, const ddp_node *n, int32_t x, int32_t weight, int32_t y)
{
    const ddp_value *vx = low_value(w->p, x), *vw = low_value(w->p, weight), *vy = low_value(w->p, y);
    cpu_conv_shape s = {.images = vx->dims[0],
                        .channels = vx->dims[1],
                        .height = vx->dims[2],
                        .width = vx->dims[3],
                        .out = vy->dims[1],
                        .out_height = vy->dims[2],
                        .out_width = vy->dims[3],
                        .groups = n->attrs.conv.groups,
                        .weight_last = lies_last(w, weight),
                        .half = w->device->half != NULL};

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

/* Measured on ResNet-18's layers (oneDNN 2.6, AVX-512), each way with its reorders or unfolding: the product wins
 * where positions are few for the weights, earlier where a stride spreads them (but for the gradient of the input in
 * bf16), and for a kernel of one pixel over up to some thousand of them. */
static bool by_product(const cpu_conv_shape *s, uint32_t kind)
{
    int64_t positions = s->images * s->out_height * s->out_width;
    bool strided = s->stride[0] * s->stride[1] > 1;

    if (s->groups != 1 || s->weight_last) return false;
    if (s->kernel[0] * s->kernel[1] == 1) return positions <= 4096;
    if (kind == FORWARD || (s->half && kind == GRAD_INPUT)) strided = false;
    return positions <= (strided ? 600 : 160);
}

/* Rounded numbers are bf16 where the CPU has instructions for it, f32 otherwise. */
static uint64_t rounded_bytes(const ddp_device *d, int64_t elements)
{
    return ((uint64_t)elements * (d->half != NULL ? sizeof(uint16_t) : sizeof(float)) + 63) / 64 * 64;
}

/* Behind the library's own scratch stand the images that are read, rounded to bf16; it rounds the weight itself where
 * it takes bf16. */
static void measure_conv(const ddp_device *d, low_kernel *k, const cpu_conv_shape *s)
{
    conv_state *t = k->state;

    k->scratch_bytes = (cpu_conv_scratch(t->conv) + 63) / 64 * 64;
    t->round_bytes = k->scratch_bytes;
    if (!d->bf16) return;
    if (k->kind != GRAD_INPUT) t->x_elements = s->images * s->height * s->width * s->channels;
    if (k->kind != FORWARD) t->y_elements = s->images * s->out_height * s->out_width * s->out;
    if (k->kind != GRAD_WEIGHT && d->half == NULL) t->w_elements = k->cols * k->inner;
    k->scratch_bytes += rounded_bytes(d, t->x_elements) + (t->shares ? 0 : rounded_bytes(d, t->y_elements)) +
                        rounded_bytes(d, t->w_elements);
}

/* The kernel of the other gradient of the same dy, if it has been made already; *expected: there is, or will be,
 * such a node. */
static const low_kernel *other_gradient(const low_lowering *w, const low_kernel *k, bool *expected)
{
    const uint32_t op = k->kind == GRAD_INPUT ? DDP_OP_CONV2D_GRAD_WEIGHT : DDP_OP_CONV2D_GRAD_INPUT;

    *expected = false;
    for (uint32_t i = 0; i < w->p->node_count; i++) {
        const ddp_node *n = low_node(w->p, i);
        if (n->op != op || n->in[DY] != k->in[DY]) continue;
        *expected = true;
        return w->taken[i] ? low_kernel_of(w, i) : NULL;
    }
    return NULL;
}

/* dy is rounded once for both gradients: the kernel that comes first keeps it for the other. */
static ddp_status share_rounded(low_lowering *w, low_kernel *k, const cpu_conv_shape *s, ddp_err *err)
{
    conv_state *t = k->state;
    bool expected;
    const low_kernel *other = other_gradient(w, k, &expected);
    const conv_state *o = other != NULL ? other->state : NULL;
    int32_t number;

    if (!w->device->bf16 || k->kind == FORWARD || !expected || (other != NULL && !o->shares)) return DDP_OK;
    t->shares = true;
    t->first = other == NULL;
    if (t->first)
        return low_private_add(w, k, rounded_bytes(w->device, s->images * s->out_height * s->out_width * s->out),
                               &number, err);
    low_private_use(k, other->privates[0]);
    return DDP_OK;
}

/* By the product's own names: rows (positions, C KH KW), the weight, y; two are read, the one that the kernel computes
 * is written. */
static cpu_product product_of(const low_kernel *k, float *rows, float *weight, float *y, bool add)
{
    cpu_product p;

    if (k->kind == GRAD_INPUT) return cpu_product_grad_input(k->rows, k->inner, k->cols, false, y, weight, rows);
    if (k->kind == GRAD_WEIGHT) return cpu_product_grad_weight(k->rows, k->inner, k->cols, false, y, rows, weight, add);
    p = cpu_product_forward(k->rows, k->inner, k->cols, false, rows, weight);
    *(k->act == CPU_ACT_NONE ? &p.plain : &p.activated) = y;
    p.act = k->act;
    return p;
}

static void multiply(const cpu_call *c, cpu_product *p)
{
    const conv_state *t = c->k->state;

    cpu_product_run(c->device, p, (char *)c->scratch + t->rows_bytes);
}

/* Measured on layers of ResNet-18 and -50 and LeNet, with AVX2: 5.8 and 8.5 ms, 10.8 and 14.3, where the library's
 * kernel for few channels, and its gradient of the input, are as fast or faster; with AVX-512 its own are. */
static bool by_windows(const ddp_device *d, const cpu_conv_shape *s, uint32_t kind)
{
    if (d->library == NULL || d->kernels->product.windows == CPU_WINDOWS_ALL) return true;
    return d->kernels->product.windows == CPU_WINDOWS_MANY_CHANNELS && d->half == NULL && s->groups == 1 &&
           kind != GRAD_INPUT && s->kernel[0] * s->kernel[1] > 1 && s->channels >= 64;
}

static ddp_status make_state(low_lowering *w, low_kernel *k, const cpu_conv_shape *s, ddp_err *err)
{
    conv_state *t = k->state = calloc(1, sizeof(*t));
    ddp_status status;
    cpu_product p;

    if (t == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "device \"cpu\": out of memory while lowering");
    t->windows = cpu_windows_of(s);
    t->direct = is_direct(s);
    t->lines = s->images * s->height;
    k->rows = s->images * s->out_height * s->out_width;
    k->inner = s->channels / s->groups * s->kernel[0] * s->kernel[1];
    k->cols = s->out;
    t->by_tiles = w->device->kernels != &cpu_kernels_portable && !(s->half && cpu_multiplies_matrices()) &&
                  cpu_winograd_suits((int)k->kind, s, w->device->threads);
    if (t->by_tiles) {
        cpu_winograd_init(&t->winograd, (int)k->kind, s, w->device->threads);
        k->scratch_bytes = t->winograd.scratch_bytes;
        return DDP_OK;
    }
    t->by_windows = !by_product(s, k->kind) && by_windows(w->device, s, k->kind);
    if (t->by_windows) {
        cpu_window_conv_init(&t->window_conv, w->device, (int)k->kind, s);
        k->scratch_bytes = t->window_conv.scratch_bytes;
        return DDP_OK;
    }
    if (!by_product(s, k->kind)) {
        status = cpu_conv_create(w->device->library, (int)k->kind, s, &t->conv, err);
        if (status == DDP_OK) status = share_rounded(w, k, s, err);
        if (status == DDP_OK) measure_conv(w->device, k, s);
        return status;
    }
    if (!t->direct) t->rows_bytes = ((uint64_t)(k->rows * k->inner) * sizeof(float) + 63) / 64 * 64;
    p = product_of(k, NULL, NULL, NULL, false);
    k->scratch_bytes = t->rows_bytes + cpu_product_scratch(w->device, &p);
    return DDP_OK;
}

static ddp_status conv_build(const low_kernel *k, ddp_err *err)
{
    const conv_state *t = k->state;

    return t->conv != NULL ? cpu_conv_build(t->conv, err) : DDP_OK;
}

static void conv_release(void *state)
{
    conv_state *t = state;

    if (t == NULL) return;
    cpu_conv_free(t->conv);
    free(t);
}

static void conv_unbind(void *bound) { cpu_conv_bound_free(bound); }

static ddp_status conv_bind(const cpu_call *c, void **bound, ddp_err *err)
{
    const conv_state *t = c->k->state;
    cpu_conv_bound *b = NULL;
    ddp_status status = t->conv != NULL ? cpu_conv_bind(t->conv, c->scratch, &b, err) : DDP_OK;

    *bound = b;
    return status;
}

/* ---- windows as rows --------------------------------------------------------------------------------------------- */
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

/* ---- the library's convolution ----------------------------------------------------------------------------------- */
static void round_piece(void *ctx, int64_t first, int64_t last)
{
    const rows_job *j = ctx;

    const ddp_device *d = j->c->device;

    if (d->half != NULL)
        d->half->round((uint16_t *)(void *)j->to + first, j->from + first, last - first);
    else
        d->kernels->round_bf16(j->to + first, j->from + first, last - first);
}

/* x itself where nothing of it is to be rounded. */
static const void *rounded(const cpu_call *c, const float *x, int64_t count, void *to)
{
    rows_job j = {c, x, to};

    if (count == 0) return x;
    cpu_parallel(c->device->threads, count, CPU_GRAIN, round_piece, &j);
    return to;
}

static ddp_status run_conv(const cpu_call *c, const float *x, const float *w, const float *bias, const float *y,
                           bool add, ddp_err *err)
{
    const conv_state *t = c->k->state;
    char *x_to = (char *)c->scratch + t->round_bytes, *w_to = x_to + rounded_bytes(c->device, t->x_elements),
         *y_to = t->shares ? cpu_private(c, 0) : w_to + rounded_bytes(c->device, t->w_elements);
    const void *image_y = t->shares && !t->first ? y_to : rounded(c, y, t->y_elements, y_to);

    return cpu_conv_run(c->bound, rounded(c, x, t->x_elements, x_to), rounded(c, w, t->w_elements, w_to), bias, image_y,
                        add, err);
}

static void run_windows(const cpu_call *c, float *x, float *w, const float *bias, float *y, bool add)
{
    const conv_state *t = c->k->state;

    cpu_window_conv_run(&t->window_conv, c->device, c->scratch, x, w, bias, c->k->act, y, add);
}

static void run_tiles(const cpu_call *c, float *x, float *w, const float *bias, float *y, bool add)
{
    cpu_winograd_run(&((const conv_state *)c->k->state)->winograd, c->device->kernels, c->scratch, x, w, bias, y,
                     c->k->act == CPU_ACT_RELU, add);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */
static const char *forward_name(bool by_tiles, bool bias, bool relu)
{
    static const char *const names[2][2][2] = {
        {{"conv2d", "conv2d+relu"}, {"conv2d+bias", "conv2d+bias+relu"}},
        {{"conv2d_winograd", "conv2d_winograd+relu"}, {"conv2d_winograd+bias", "conv2d_winograd+bias+relu"}}};

    return names[by_tiles][bias][relu];
}

static ddp_status group_forward(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    static const uint32_t acts[] = {DDP_OP_RELU};
    cpu_conv_shape s = shape_of(w, low_node(w->p, node), k->in[X], k->in[W], k->out[Y]);
    int64_t act = low_find_reader(w, node, k->out[Y], 0, acts, 1);
    ddp_status status;

    k->kind = FORWARD;
    k->reads_any = 1u << W;
    if (act >= 0 && low_read_once(w, k->out[Y]) && !cpu_pool_takes_relu(w, (uint32_t)act)) {
        k->act = CPU_ACT_RELU;
        k->out[ACTIVATED] = low_node(w->p, (uint32_t)act)->out[0];
        w->inner[k->out[Y]] = true;
        low_take(w, k, (uint32_t)act);
    }
    s.bias = k->in[B] >= 0 && k->act == CPU_ACT_NONE;
    status = make_state(w, k, &s, err);
    if (status == DDP_OK)
        k->name = forward_name(((const conv_state *)k->state)->by_tiles, k->in[B] >= 0, k->act != CPU_ACT_NONE);
    return status;
}

static void bias_rows(void *ctx, int64_t first, int64_t last)
{
    const rows_job *j = ctx;
    const low_kernel *k = j->c->k;
    float *y = j->to + first * k->cols;

    j->c->device->kernels->bias_act(y, y, cpu_in(j->c, B), last - first, k->cols, k->act);
}

static ddp_status run_forward(const cpu_call *c, ddp_err *err)
{
    const low_kernel *k = c->k;
    const conv_state *t = k->state;
    rows_job j = {.c = c, .to = k->act != CPU_ACT_NONE ? cpu_out(c, ACTIVATED) : cpu_out(c, Y)};
    ddp_status status;

    if (t->by_tiles) {
        run_tiles(c, cpu_in(c, X), cpu_in(c, W), cpu_in(c, B), j.to, false);
        return DDP_OK;
    }
    if (t->by_windows) {
        run_windows(c, cpu_in(c, X), cpu_in(c, W), cpu_in(c, B), j.to, false);
        return DDP_OK;
    }
    if (t->conv == NULL) {
        cpu_product p = product_of(k, (float *)rows_of(c, cpu_in(c, X)), cpu_in(c, W), j.to, false);
        p.bias = cpu_in(c, B);
        multiply(c, &p);
        return DDP_OK;
    }
    status = run_conv(c, cpu_in(c, X), cpu_in(c, W), cpu_in(c, B), j.to, false, err);
    if (status == DDP_OK && k->act != CPU_ACT_NONE)
        cpu_parallel(c->device->threads, k->rows, (CPU_GRAIN + k->cols - 1) / k->cols, bias_rows, &j);
    return status;
}

const cpu_family cpu_family_conv = {.base.group = group_forward,
                                    .build = conv_build,
                                    .bind = conv_bind,
                                    .run = run_forward,
                                    .unbind = conv_unbind,
                                    .base.release = conv_release};

/* ---- gradients --------------------------------------------------------------------------------------------------- */
static ddp_status group_gradient(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    const ddp_node *n = low_node(w->p, node);
    cpu_conv_shape s;
    ddp_status status;

    if (n->op == DDP_OP_CONV2D_GRAD_INPUT) {
        k->kind = GRAD_INPUT;
        k->reads_any = 1u << OTHER;
        s = shape_of(w, n, k->out[0], k->in[OTHER], k->in[DY]);
    } else {
        k->kind = GRAD_WEIGHT;
        k->writes_any = k->writes_grad = 1;
        s = shape_of(w, n, k->in[OTHER], k->out[0], k->in[DY]);
    }
    status = make_state(w, k, &s, err);
    if (status == DDP_OK && ((const conv_state *)k->state)->by_tiles)
        k->name = k->kind == GRAD_INPUT ? "conv2d_winograd_grad_input" : "conv2d_winograd_grad_weight";
    return status;
}

static ddp_status run_grad_input(const cpu_call *c, ddp_err *err)
{
    const low_kernel *k = c->k;
    const conv_state *t = k->state;
    float *dx = cpu_out(c, 0), *rows = t->direct ? dx : c->scratch;
    rows_job j = {c, rows, dx};
    cpu_product p;

    if (t->by_tiles) {
        run_tiles(c, dx, cpu_in(c, OTHER), NULL, cpu_in(c, DY), false);
        return DDP_OK;
    }
    if (t->by_windows) {
        run_windows(c, dx, cpu_in(c, OTHER), NULL, cpu_in(c, DY), false);
        return DDP_OK;
    }
    if (t->conv != NULL) return run_conv(c, dx, cpu_in(c, OTHER), NULL, cpu_in(c, DY), false, err);
    p = product_of(k, rows, cpu_in(c, OTHER), cpu_in(c, DY), false);
    multiply(c, &p);
    if (!t->direct)
        cpu_parallel(c->device->threads, t->lines, CPU_GRAIN / (t->windows.width * t->windows.channels) + 1, fold_piece,
                     &j);
    return DDP_OK;
}

static ddp_status run_gradient(const cpu_call *c, ddp_err *err)
{
    const low_kernel *k = c->k;
    const conv_state *t = k->state;
    cpu_product p;

    if (k->kind == GRAD_INPUT) return run_grad_input(c, err);
    if (t->by_tiles) {
        run_tiles(c, cpu_in(c, OTHER), cpu_out(c, 0), NULL, cpu_in(c, DY), cpu_adds(c, 0));
        return DDP_OK;
    }
    if (t->by_windows) {
        run_windows(c, cpu_in(c, OTHER), cpu_out(c, 0), NULL, cpu_in(c, DY), cpu_adds(c, 0));
        return DDP_OK;
    }
    if (t->conv != NULL) return run_conv(c, cpu_in(c, OTHER), cpu_out(c, 0), NULL, cpu_in(c, DY), cpu_adds(c, 0), err);
    p = product_of(k, (float *)rows_of(c, cpu_in(c, OTHER)), cpu_out(c, 0), cpu_in(c, DY), cpu_adds(c, 0));
    multiply(c, &p);
    return DDP_OK;
}

const cpu_family cpu_family_conv_grad = {.base.group = group_gradient,
                                         .build = conv_build,
                                         .bind = conv_bind,
                                         .run = run_gradient,
                                         .unbind = conv_unbind,
                                         .base.release = conv_release};
