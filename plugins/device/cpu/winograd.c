/* winograd.c -- blocks of tiles through the kernels of winograd_body.h. */
#include "winograd.h"
#include "cpu.h"

enum { POINTS = 36, STEP = 6, FEWEST = 12, BLOCK_FLOATS = 160 << 10 /* of a core's L2 */, APART = 16 };
#define SERIAL_FLOPS 4e6 /* of fewer one thread is done before others have woken for each of the three passes */

bool cpu_winograd_suits(const cpu_conv_shape *s)
{
    int64_t tiles = s->images * ((s->out_height + 3) / 4) * ((s->out_width + 3) / 4);
    int64_t many = s->channels < s->out ? s->out : s->channels;

    if (s->groups != 1 || s->stride[0] * s->stride[1] > 1 || s->kernel[0] != 3 || s->kernel[1] != 3) return false;
    return s->channels % 16 == 0 && s->out % 16 == 0 && s->padding[0] <= 2 && s->padding[1] <= 2 && tiles >= many;
}

/* The gradient of the input is the convolution of dy with the kernels turned, from outputs to channels. */
static cpu_tiles tiles_of(int what, const cpu_conv_shape *s)
{
    int64_t to_out = s->channels * 9, to_in = s->weight_last ? 1 : 9;
    cpu_tiles t = {.channels = s->channels,
                   .height = s->height,
                   .width = s->width,
                   .out = s->out,
                   .out_height = s->out_height,
                   .out_width = s->out_width,
                   .padding = {s->padding[0], s->padding[1]},
                   .weight_out = to_out,
                   .weight_in = to_in,
                   .weight_place = s->weight_last ? s->channels : 1};

    if (what == CPU_CONV_GRAD_INPUT)
        t = (cpu_tiles){.channels = s->out,
                        .height = s->out_height,
                        .width = s->out_width,
                        .out = s->channels,
                        .out_height = s->height,
                        .out_width = s->width,
                        .padding = {2 - s->padding[0], 2 - s->padding[1]},
                        .weight_out = to_in,
                        .weight_in = to_out,
                        .weight_place = t.weight_place,
                        .turned = true};
    t.high = (t.out_height + 3) / 4;
    t.wide = (t.out_width + 3) / 4;
    t.count = s->images * t.high * t.wide;
    return t;
}

/* A block is what the L2 cache holds, but large enough that the points of the weight, which it meets as a whole, take no longer than
 * its own. Points lie apart by a little more than a block: 36 streams whose addresses differ by 4 KiB would share a set of the cache. */
void cpu_winograd_init(cpu_winograd *w, int what, const cpu_conv_shape *s, uint32_t threads)
{
    cpu_tiles *t = &w->tiles;
    int64_t all, few = s->channels * s->out / (s->channels + s->out);

    *w = (cpu_winograd){.tiles = tiles_of(what, s), .what = what, .threads = threads};
    all = (t->count + STEP - 1) / STEP * STEP;
    w->block = BLOCK_FLOATS * (int64_t)threads / (POINTS * (t->channels + t->out)) / STEP * STEP;
    if (w->block < FEWEST * (int64_t)threads) w->block = FEWEST * (int64_t)threads;
    if (w->block < few) w->block = few / STEP * STEP;
    if (w->block > all) w->block = all;
    if ((double)t->count * POINTS * 2.0 * (double)(t->channels * t->out) < SERIAL_FLOPS) w->threads = 1;
    t->x_stride = w->block * t->channels + APART;
    t->y_stride = w->block * t->out + APART;
    w->y_points = POINTS * t->x_stride;
    w->weight_points = w->y_points + POINTS * t->y_stride;
    w->scratch_bytes = (uint64_t)(w->weight_points + POINTS * t->channels * t->out) * sizeof(float);
}

/* ---- running ---------------------------------------------------------------------------------------------------------- */
typedef struct job {
    const cpu_winograd *w;
    const cpu_winograd_kernels *kernels;
    float *scratch, *x, *weight, *y;
    const float *bias;
    bool relu, add;
    int64_t base, tiles; /* of the block */
} job;

static float *x_points(const job *j) { return j->scratch; }
static float *y_points(const job *j) { return j->scratch + j->w->y_points; }
static float *weight_points(const job *j) { return j->scratch + j->w->weight_points; }

static void weights(void *ctx, int64_t first, int64_t last)
{
    const job *j = ctx;

    j->kernels->weights(weight_points(j), j->weight, &j->w->tiles, first, last);
}

static void pixels(void *ctx, int64_t first, int64_t last)
{
    const job *j = ctx;

    j->kernels->pixels(x_points(j), j->x, &j->w->tiles, j->base, first, last);
}

static void multiply(void *ctx, int64_t first, int64_t last)
{
    const job *j = ctx;

    j->kernels->multiply(y_points(j), x_points(j), weight_points(j), &j->w->tiles, j->tiles, first, last);
}

static void images(void *ctx, int64_t first, int64_t last)
{
    const job *j = ctx;

    j->kernels->images(j->y, y_points(j), j->bias, j->relu, &j->w->tiles, j->base, first, last);
}

static void gradients(void *ctx, int64_t first, int64_t last)
{
    const job *j = ctx;

    j->kernels->gradients(y_points(j), j->y, &j->w->tiles, j->base, first, last);
}

static void correlate(void *ctx, int64_t first, int64_t last)
{
    const job *j = ctx;

    j->kernels->correlate(weight_points(j), x_points(j), y_points(j), &j->w->tiles, j->tiles, j->base > 0, first, last);
}

static void weight_gradients(void *ctx, int64_t first, int64_t last)
{
    const job *j = ctx;

    j->kernels->weight_gradients(j->weight, weight_points(j), &j->w->tiles, j->add, first, last);
}

void cpu_winograd_run(const cpu_winograd *w, const cpu_kernels *kernels, float *scratch, float *x, float *weight,
                      const float *bias, float *y, bool relu, bool add)
{
    const cpu_tiles *t = &w->tiles;
    bool back = w->what == CPU_CONV_GRAD_WEIGHT, turned = w->what == CPU_CONV_GRAD_INPUT;
    job j = {.w = w,
             .kernels = &kernels->winograd,
             .scratch = scratch,
             .x = turned ? y : x,
             .weight = weight,
             .y = turned ? x : y,
             .bias = bias,
             .relu = relu,
             .add = add};

    if (!back) cpu_parallel(w->threads, t->channels, 1, weights, &j);
    for (; j.base < t->count; j.base += w->block) {
        j.tiles = t->count - j.base < w->block ? t->count - j.base : w->block;
        cpu_parallel(w->threads, j.tiles, 1, pixels, &j);
        if (back) cpu_parallel(w->threads, j.tiles, 1, gradients, &j);
        cpu_parallel(w->threads, POINTS, 1, back ? correlate : multiply, &j);
        if (!back) cpu_parallel(w->threads, j.tiles, 1, images, &j);
    }
    if (back) cpu_parallel(w->threads, t->channels, 1, weight_gradients, &j);
}
