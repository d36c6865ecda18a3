/* data/resize.c -- see resize.h. Scales are float and positions double where PyTorch's are, so that weights have its
 * rounding. */
#include "data/resize.h"
#include <math.h>

static int64_t clamp(int64_t v, int64_t low, int64_t high) { return v < low ? low : v > high ? high : v; }

/* Two neighbours, whatever the scale. */
static void plan_plain(ddp_resize *r, float scale, int64_t i, int64_t k)
{
    float *w = r->weights + k * r->taps, part;
    double at = (double)scale * ((double)i + 0.5) - 0.5;

    if (at < 0) at = 0;
    r->first[k] = clamp((int64_t)at, 0, r->in - 1);
    part = (float)DDP_MIN_OF(at - (double)r->first[k], 1.0);
    r->count[k] = r->first[k] + 1 < r->in ? 2 : 1;
    w[0] = r->count[k] == 2 ? 1.0f - part : 1.0f;
    if (r->count[k] == 2) w[1] = part;
}

/* A triangle over what the output covers, where it covers more than one input. */
static void plan_smooth(ddp_resize *r, float scale, int64_t i, int64_t at)
{
    float support = scale >= 1.0f ? scale : 1.0f;
    float inverse = scale >= 1.0f ? 1.0f / scale : 1.0f, center = scale * ((float)i + 0.5f), total = 0.0f;
    float *w = r->weights + at * r->taps;

    r->first[at] = clamp((int64_t)(center - support + 0.5f), 0, r->in - 1);
    r->count[at] = clamp((int64_t)(center + support + 0.5f), r->first[at] + 1, r->in) - r->first[at];
    for (int64_t k = 0; k < r->count[at]; k++) {
        float x = fabsf(((float)(k + r->first[at]) - center + 0.5f) * inverse);

        w[k] = x < 1.0f ? 1.0f - x : 0.0f;
        total += w[k];
    }
    for (int64_t k = 0; k < r->count[at] && total != 0.0f; k++) w[k] /= total;
}

static int64_t taps_of(int64_t in, int64_t out, bool antialias)
{
    float support = in > out ? (float)in / (float)out : 1.0f;

    return antialias ? 2 * (int64_t)ceilf(support) + 2 : 2;
}

size_t data_resize_bytes(int64_t in, int64_t out, int64_t count, bool antialias)
{
    size_t numbers = 2 * sizeof(int64_t), weights = (size_t)taps_of(in, out, antialias) * sizeof(float);

    return (size_t)count * (numbers + weights);
}

void data_resize_fill(ddp_resize *r, void *memory, int64_t in, int64_t out, int64_t from, int64_t count, bool antialias)
{
    float scale = (float)in / (float)out;

    *r = (ddp_resize){.in = in, .out = count, .taps = taps_of(in, out, antialias), .first = memory};
    r->count = r->first + count;
    r->weights = (float *)(void *)(r->count + count);
    for (int64_t i = 0; i < count; i++) {
        if (antialias)
            plan_smooth(r, scale, from + i, i);
        else
            plan_plain(r, scale, from + i, i);
    }
}

ddp_status data_resize_plan(ddp_resize *r, ddp_pool *pool, int64_t in, int64_t out, bool antialias, ddp_err *err)
{
    void *memory = ddp_pool_alloc(pool, data_resize_bytes(in, out, out, antialias), err);

    if (memory == NULL) return err->status;
    data_resize_fill(r, memory, in, out, 0, out, antialias);
    return DDP_OK;
}

void data_resize_row(const ddp_resize *r, const float *in, float *out)
{
    for (int64_t i = 0; i < r->out; i++) {
        const float *from = in + r->first[i], *w = r->weights + i * r->taps;
        float sum = from[0] * w[0];

        for (int64_t k = 1; k < r->count[i]; k++) sum += from[k] * w[k];
        out[i] = sum;
    }
}

void data_resize_columns(const ddp_resize *r, const float *in, int64_t width, float *restrict out)
{
    for (int64_t i = 0; i < r->out; i++) {
        const float *from = in + r->first[i] * width, *w = r->weights + i * r->taps;
        float *to = out + i * width;

        for (int64_t x = 0; x < width; x++) to[x] = from[x] * w[0];
        for (int64_t k = 1; k < r->count[i]; k++)
            for (int64_t x = 0; x < width; x++) to[x] += from[k * width + x] * w[k];
    }
}
