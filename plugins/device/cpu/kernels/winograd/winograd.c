/* plugins/device/cpu/kernels/winograd/winograd.c -- blocks of tiles through the kernels of winograd_body.h.
 *
 * Waking threads costs as much as a block: each has a part of its own from the first block to the last. Forward and
 * gradient of the input that is a range of tiles, once the points of the weight are there for all. The gradient of
 * the weight sums over all tiles, so there it is a range of channels and one of outputs, whose points the others
 * that share one of them make too. */
#include "kernels/winograd/winograd.h"
#include "parallel.h"

enum {
    POINTS = 36,
    STEP = 6,
    FEWEST = 12,
    GROUP = 16,
    FEWEST_POSITIONS = 6 /* of a tile's 16 */,
    BLOCK_FLOATS = 160 << 10 /* of a core's L2 */,
    APART = 16,
    SHARED_WEIGHTS = 4
};
#define SERIAL_FLOPS 2e6 /* of fewer one thread is done before others have woken */

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
                   .weight_tap = s->weight_last ? s->channels : 1};

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
                        .weight_tap = t.weight_tap,
                        .turned = true};
    t.high = (t.out_height + 3) / 4;
    t.wide = (t.out_width + 3) / 4;
    t.count = s->images * t.high * t.wide;
    return t;
}

bool cpu_winograd_suits(int what, const cpu_conv_shape *s, uint32_t threads)
{
    int64_t many = s->channels < s->out ? s->out : s->channels, tiles, groups = s->channels / GROUP * (s->out / GROUP),
            positions = s->images * s->out_height * s->out_width;

    if (s->groups != 1 || s->stride[0] * s->stride[1] > 1 || s->kernel[0] != 3 || s->kernel[1] != 3) return false;
    if (s->channels % GROUP != 0 || s->out % GROUP != 0 || s->padding[0] > 2 || s->padding[1] > 2) return false;
    if (what == CPU_CONV_GRAD_WEIGHT && groups < (int64_t)threads) return false;
    tiles = tiles_of(what, s).count;
    return tiles >= many && positions >= FEWEST_POSITIONS * tiles;
}

/* Of `groups` of 16 the first one of part i of n. */
static int64_t part_start(int64_t groups, int64_t i, int64_t n) { return groups * i / n * GROUP; }

static int64_t largest_part(int64_t size, int64_t n) { return (size / GROUP + n - 1) / n * GROUP; }

/* The split with the least work for a thread: points of a channel cost about what 8 multiply-adds for it do. */
static void split_weight(cpu_winograd *w)
{
    int64_t least = INT64_MAX, threads = w->threads;

    for (int64_t in = 1; in <= threads && in <= w->sizes[0] / GROUP; in++) {
        int64_t out = threads / in < w->sizes[1] / GROUP ? threads / in : w->sizes[1] / GROUP;
        int64_t c = largest_part(w->sizes[0], in), o = largest_part(w->sizes[1], out), cost = 8 * (c + o) + c * o;

        if (cost >= least) continue;
        least = cost;
        w->parts[0] = in;
        w->parts[1] = out;
    }
    w->threads = (uint32_t)(w->parts[0] * w->parts[1]);
    w->tiles.channels = largest_part(w->sizes[0], w->parts[0]);
    w->tiles.out = largest_part(w->sizes[1], w->parts[1]);
}

static int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/* A block is what the L2 cache holds, but large enough that the points of the weight, which it goes through as a whole,
 * take no longer than its own; those of all threads together are at most a few times the weight's. Points lie apart
 * by a little more than a block: 36 streams whose addresses differ by a multiple of 4 KiB would share a set of the
 * cache. */
static void choose_block(cpu_winograd *w)
{
    cpu_tiles *t = &w->tiles;
    bool back = w->what == CPU_CONV_GRAD_WEIGHT; /* each thread has all tiles, but not all of the weight */
    int64_t threads = back ? 1 : w->threads, most = round_up((t->count + threads - 1) / threads, STEP);
    int64_t balanced = t->channels * t->out / (t->channels + t->out);

    if (threads > SHARED_WEIGHTS) balanced = balanced * SHARED_WEIGHTS / threads;
    w->block = BLOCK_FLOATS / (POINTS * (t->channels + t->out)) / STEP * STEP;
    if (w->block < balanced) w->block = balanced / STEP * STEP;
    if (w->block < FEWEST) w->block = FEWEST;
    if (w->block > most) w->block = most;
    t->x_stride = w->block * t->channels + APART;
    t->y_stride = w->block * t->out + APART;
    t->weight_stride = t->channels * t->out + APART;
}

void cpu_winograd_init(cpu_winograd *w, int what, const cpu_conv_shape *s, uint32_t threads)
{
    cpu_tiles *t = &w->tiles;
    bool back = what == CPU_CONV_GRAD_WEIGHT;
    int64_t weight, steps;

    *w = (cpu_winograd){.tiles = tiles_of(what, s), .what = what, .all_threads = threads, .threads = threads};
    w->sizes[0] = t->x_pitch = t->channels;
    w->sizes[1] = t->y_pitch = t->out;
    steps = (t->count + STEP - 1) / STEP;
    if ((double)t->count * POINTS * 2.0 * (double)(t->channels * t->out) < SERIAL_FLOPS)
        w->all_threads = w->threads = 1;
    if (back)
        split_weight(w);
    else if ((int64_t)w->threads > steps)
        w->threads = (uint32_t)steps;
    choose_block(w);
    weight = POINTS * t->weight_stride;
    w->y_points = POINTS * t->x_stride;
    w->weight_points = w->y_points + POINTS * t->y_stride;
    w->own = round_up(w->weight_points + (back ? weight : 0), GROUP);
    w->scratch_bytes = (uint64_t)(w->own * w->threads + (back ? 0 : weight)) * sizeof(float);
}

/* ---- running ----------------------------------------------------------------------------------------------------- */
typedef struct job {
    const cpu_winograd *w;
    const cpu_winograd_kernels *kernels;
    float *scratch, *x, *weight, *y;
    const float *bias;
    bool relu, add;
} job;

/* Of all threads, after their own. */
static float *shared_weight(const job *j) { return j->scratch + j->w->own * j->w->threads; }

static void weights(void *ctx, int64_t first, int64_t last)
{
    const job *j = ctx;

    j->kernels->weights(shared_weight(j), j->weight, &j->w->tiles, first, last);
}

static void images(void *ctx, int64_t part, int64_t end)
{
    const job *j = ctx;
    const cpu_winograd *w = j->w;
    const cpu_tiles *t = &w->tiles;

    for (; part < end; part++) {
        float *x = j->scratch + part * w->own, *y = x + w->y_points;
        int64_t base = t->count * part / w->threads, last = t->count * (part + 1) / w->threads;

        for (; base < last; base += w->block) {
            int64_t n = last - base < w->block ? last - base : w->block;
            j->kernels->pixels(x, j->x, t, base, n);
            j->kernels->multiply(y, x, shared_weight(j), t, n);
            j->kernels->images(j->y, y, j->bias, j->relu, t, base, n);
        }
    }
}

static void weight_gradients(void *ctx, int64_t part, int64_t end)
{
    const job *j = ctx;
    const cpu_winograd *w = j->w;

    for (; part < end; part++) {
        cpu_tiles t = w->tiles;
        float *x = j->scratch + part * w->own, *y = x + w->y_points, *weight = x + w->weight_points;
        int64_t i = part / w->parts[1], k = part % w->parts[1];
        int64_t in = part_start(w->sizes[0] / GROUP, i, w->parts[0]),
                out = part_start(w->sizes[1] / GROUP, k, w->parts[1]);

        t.channels = part_start(w->sizes[0] / GROUP, i + 1, w->parts[0]) - in;
        t.out = part_start(w->sizes[1] / GROUP, k + 1, w->parts[1]) - out;
        for (int64_t base = 0; base < t.count; base += w->block) {
            int64_t n = t.count - base < w->block ? t.count - base : w->block;
            j->kernels->pixels(x, j->x + in, &t, base, n);
            j->kernels->gradients(y, j->y + out, &t, base, n);
            j->kernels->correlate(weight, x, y, &t, n, base > 0);
        }
        j->kernels->weight_gradients(j->weight + in * t.weight_in + out * t.weight_out, weight, &t, j->add);
    }
}

void cpu_winograd_run(const cpu_winograd *w, const cpu_kernels *kernels, float *scratch, float *x, float *weight,
                      const float *bias, float *y, bool relu, bool add)
{
    bool turned = w->what == CPU_CONV_GRAD_INPUT;
    job j = {.w = w,
             .kernels = &kernels->winograd,
             .scratch = scratch,
             .x = turned ? y : x,
             .weight = weight,
             .y = turned ? x : y,
             .bias = bias,
             .relu = relu,
             .add = add};

    if (w->what == CPU_CONV_GRAD_WEIGHT) {
        cpu_parallel(w->all_threads, w->threads, 1, weight_gradients, &j);
        return;
    }
    cpu_parallel(w->all_threads, w->tiles.channels, 1, weights, &j);
    cpu_parallel(w->all_threads, w->threads, 1, images, &j);
}
