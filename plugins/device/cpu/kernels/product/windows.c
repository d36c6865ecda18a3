/* plugins/device/cpu/kernels/product/windows.c -- see windows.h. Groups go one after the other, each over its
 * channels of the images where they lie. */
#include "windows.h"
#include "cpu.h"

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
/* Of one image. */
static int64_t places(const cpu_window_conv *c) { return c->x.out_height * c->x.out_width; }

enum { ROWS_BYTES = 4 << 20 }; /* of rows that are added up, at least those of one image */

/* Images whose rows are written and added up together. */
static int64_t together(const cpu_window_conv *c)
{
    const int64_t image = places(c) * c->inner * (int64_t)sizeof(float);

    return image >= ROWS_BYTES ? 1 : least(c->images, ROWS_BYTES / image);
}

static int64_t rows_size(const cpu_window_conv *c)
{
    return c->reads ? 0 : (together(c) * places(c) * c->inner + 15) / 16 * 16;
}

static float *offset(float *x, int64_t n) { return x != NULL ? x + n : NULL; }

/* A gradient of the input with stride 1 is a convolution of dy by the turned kernel. */
static bool is_turned(const cpu_windows *x)
{
    return x->stride[0] * x->stride[1] == 1 && x->padding[0] < x->kernel[0] && x->padding[1] < x->kernel[1];
}

/* A kernel of one pixel sees a matrix. */
static bool is_matrix(const cpu_windows *w)
{
    return w->kernel[0] * w->kernel[1] * w->stride[0] * w->stride[1] == 1 && w->padding[0] + w->padding[1] == 0;
}

cpu_windows cpu_windows_of(const cpu_conv_shape *s)
{
    return (cpu_windows){.channels = s->channels / s->groups,
                         .pitch = s->channels,
                         .height = s->height,
                         .width = s->width,
                         .out_height = s->out_height,
                         .out_width = s->out_width,
                         .kernel = {s->kernel[0], s->kernel[1]},
                         .stride = {s->stride[0], s->stride[1]},
                         .padding = {s->padding[0], s->padding[1]}};
}

static cpu_windows windows_back(const cpu_windows *x, int64_t out, int64_t groups)
{
    return (cpu_windows){.channels = out / groups,
                         .pitch = out,
                         .height = x->out_height,
                         .width = x->out_width,
                         .out_height = x->height,
                         .out_width = x->width,
                         .kernel = {x->kernel[0], x->kernel[1]},
                         .stride = {1, 1},
                         .padding = {x->kernel[0] - 1 - x->padding[0], x->kernel[1] - 1 - x->padding[1]}};
}

/* Of group g of so many images: x, y and the weight are those of all groups, the rows its own. */
static cpu_product product_of(const cpu_window_conv *c, int64_t g, int64_t images, float *x, float *w, float *y,
                              float *rows, bool add)
{
    const int64_t in = c->x.channels, out = c->out / c->groups;
    const cpu_windows *read = c->reads && !is_matrix(&c->read) ? &c->read : NULL;
    float *own_x = offset(x, g * in), *own_y = offset(y, g * out), *own_w = offset(w, g * out * c->inner);
    cpu_product p;

    switch (c->kind) {
    case CPU_CONV_FORWARD:
        p = cpu_product_forward(images * places(c), c->inner, out, false, own_x, own_w);
        p.left.stride = c->x.pitch;
        p.left.windows = read;
        p.stride = c->out;
        break;
    case CPU_CONV_GRAD_WEIGHT:
        p = cpu_product_grad_weight(images * places(c), c->inner, out, false, own_y, own_x, own_w, add);
        p.left.stride = c->out;
        p.right.stride = c->x.pitch;
        p.right.windows = read;
        break;
    default:
        if (c->reads) {
            p = cpu_product_forward(images * c->x.height * c->x.width, out * c->taps, in, true, own_y, own_w);
            p.left.windows = read;
            p.stride = c->x.pitch;
            p.plain = own_x;
        } else {
            p = cpu_product_grad_input(images * places(c), c->inner, out, false, own_y, own_w, rows);
        }
        p.left.stride = c->out;
        break;
    }
    return p;
}

void cpu_window_conv_init(cpu_window_conv *c, const ddp_device *d, int kind, const cpu_conv_shape *s)
{
    cpu_product p;

    *c = (cpu_window_conv){.x = cpu_windows_of(s),
                           .images = s->images,
                           .groups = s->groups,
                           .out = s->out,
                           .taps = s->kernel[0] * s->kernel[1],
                           .kind = kind,
                           .last = s->weight_last};
    c->inner = c->x.channels * c->taps;
    c->reads = kind != CPU_CONV_GRAD_INPUT || is_turned(&c->x);
    c->read = kind == CPU_CONV_GRAD_INPUT && c->reads ? windows_back(&c->x, s->out, s->groups) : c->x;
    if (kind == CPU_CONV_GRAD_INPUT)
        c->lies = c->taps == 1 || (!c->reads && !c->last);
    else
        c->lies = c->taps == 1 || c->last;
    if (!c->lies) c->weight_bytes = ((uint64_t)(c->out * c->inner) * sizeof(float) + 63) / 64 * 64;
    p = product_of(c, 0, c->reads ? c->images : together(c), NULL, NULL, NULL, NULL, false);
    c->scratch_bytes = c->weight_bytes + (uint64_t)rows_size(c) * sizeof(float) + cpu_product_scratch(d, &p);
}

/* ---- the weight -------------------------------------------------------------------------------------------------- */
typedef struct weight_job {
    const cpu_window_conv *c;
    const cpu_kernels *f;
    const float *from;
    float *to;
    bool add;
} weight_job;

/* Of output o: (C, KH, KW), or with its channels last, to the turned kernel's (KH, KW, O, C) of its group. */
static void turn_weight(const weight_job *j, int64_t o)
{
    const cpu_window_conv *c = j->c;
    const int64_t out = c->out / c->groups, in = c->x.channels;
    float *group = j->to + o / out * out * c->inner;

    for (int64_t tap = 0; tap < c->taps; tap++) {
        const float *from = j->from + o * c->inner + (c->last ? tap * in : tap);
        float *to = group + ((c->taps - 1 - tap) * out + o % out) * in;
        for (int64_t i = 0; i < in; i++) to[i] = from[c->last ? i : i * c->taps];
    }
}

/* Of the outputs first .. last - 1. */
static void weight_piece(void *ctx, int64_t first, int64_t last)
{
    const weight_job *j = ctx;
    const cpu_window_conv *c = j->c;
    const int64_t at = first * c->inner, in = c->x.channels;

    if (c->kind == CPU_CONV_FORWARD)
        j->f->channels_last(j->to + at, j->from + at, last - first, in, c->taps);
    else if (c->kind == CPU_CONV_GRAD_WEIGHT)
        j->f->channels_first(j->to + at, j->from + at, last - first, in, c->taps, j->add);
    else if (!c->reads)
        j->f->channels_first(j->to + at, j->from + at, last - first, in, c->taps, false);
    else
        for (int64_t o = first; o < last; o++) turn_weight(j, o);
}

static void lay_weight(const cpu_window_conv *c, const ddp_device *d, const float *from, float *to, bool add)
{
    weight_job j = {.c = c, .f = d->kernels, .from = from, .to = to, .add = add};

    cpu_parallel(d->threads, c->out, CPU_GRAIN / c->inner + 1, weight_piece, &j);
}

/* ---- running ----------------------------------------------------------------------------------------------------- */
typedef struct fold_job {
    const cpu_window_conv *c;
    const cpu_kernels *f;
    const float *rows;
    float *x;
} fold_job;

static void fold_piece(void *ctx, int64_t first, int64_t last)
{
    const fold_job *j = ctx;

    j->f->image.fold(j->x, j->rows, &j->c->x, first, last);
}

/* A part of the images after the other. */
static void run_folds(const cpu_window_conv *c, const ddp_device *d, int64_t g, float *x, float *w, float *y,
                      float *rows)
{
    const int64_t part = together(c), lines = c->x.height, line = c->x.width * c->x.pitch;

    for (int64_t i = 0; i < c->images; i += part) {
        const int64_t images = least(part, c->images - i);
        cpu_product p = product_of(c, g, images, NULL, w, y + i * places(c) * c->out, rows, false);
        fold_job j = {.c = c, .f = d->kernels, .rows = rows, .x = x + i * lines * line + g * c->x.channels};

        cpu_product_run(d, &p, rows + rows_size(c));
        cpu_parallel(d->threads, images * lines, CPU_GRAIN / (c->x.width * c->x.channels) + 1, fold_piece, &j);
    }
}

void cpu_window_conv_run(const cpu_window_conv *c, const ddp_device *d, void *scratch, float *x, float *w,
                         const float *bias, uint32_t act, float *y, bool add)
{
    const bool written = c->kind == CPU_CONV_GRAD_WEIGHT;
    const int64_t out = c->out / c->groups;
    float *weight = c->lies ? w : scratch, *rest = (float *)(void *)((char *)scratch + c->weight_bytes);

    if (!c->lies && !written) lay_weight(c, d, w, weight, false);
    for (int64_t g = 0; g < c->groups; g++) {
        cpu_product p;

        if (!c->reads) {
            run_folds(c, d, g, x, weight, y, rest);
            continue;
        }
        p = product_of(c, g, c->images, x, weight, y, NULL, add && c->lies);
        if (c->kind == CPU_CONV_FORWARD) {
            p.bias = bias != NULL ? bias + g * out : NULL;
            *(act == CPU_ACT_NONE ? &p.plain : &p.activated) = y + g * out;
            p.act = act;
        }
        cpu_product_run(d, &p, rest);
    }
    if (!c->lies && written) lay_weight(c, d, weight, w, add);
}
