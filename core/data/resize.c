/* data/resize.c -- see resize.h. Scales are float and positions double where PyTorch's are, so that weights have its
 * rounding. */
#include "data/resize.h"
#include <math.h>

static int64_t clamp(int64_t v, int64_t low, int64_t high) { return v < low ? low : v > high ? high : v; }

/* Two neighbours, whatever the scale. */
static void plan_plain(ddp_resize *r, int64_t i)
{
    float scale = (float)r->in / (float)r->out, *w = r->weights + i * r->taps, part;
    double at = (double)scale * ((double)i + 0.5) - 0.5;

    if (at < 0) at = 0;
    r->first[i] = clamp((int64_t)at, 0, r->in - 1);
    part = (float)DDP_MIN_OF(at - (double)r->first[i], 1.0);
    r->count[i] = r->first[i] + 1 < r->in ? 2 : 1;
    w[0] = r->count[i] == 2 ? 1.0f - part : 1.0f;
    if (r->count[i] == 2) w[1] = part;
}

/* A triangle over what the output covers, where it covers more than one input. */
static void plan_smooth(ddp_resize *r, int64_t i)
{
    float scale = (float)r->in / (float)r->out, support = scale >= 1.0f ? scale : 1.0f;
    float inverse = scale >= 1.0f ? 1.0f / scale : 1.0f, center = scale * ((float)i + 0.5f), total = 0.0f;
    float *w = r->weights + i * r->taps;

    r->first[i] = clamp((int64_t)(center - support + 0.5f), 0, r->in - 1);
    r->count[i] = clamp((int64_t)(center + support + 0.5f), r->first[i] + 1, r->in) - r->first[i];
    for (int64_t k = 0; k < r->count[i]; k++) {
        float x = fabsf(((float)(k + r->first[i]) - center + 0.5f) * inverse);

        w[k] = x < 1.0f ? 1.0f - x : 0.0f;
        total += w[k];
    }
    for (int64_t k = 0; k < r->count[i] && total != 0.0f; k++) w[k] /= total;
}

ddp_status data_resize_plan(ddp_resize *r, ddp_pool *pool, int64_t in, int64_t out, bool antialias, ddp_err *err)
{
    float support = in > out ? (float)in / (float)out : 1.0f;

    *r = (ddp_resize){.in = in, .out = out, .taps = antialias ? 2 * (int64_t)ceilf(support) + 2 : 2};
    r->first = ddp_pool_alloc(pool, (size_t)out * sizeof(*r->first), err);
    r->count = ddp_pool_alloc(pool, (size_t)out * sizeof(*r->count), err);
    r->weights = ddp_pool_alloc(pool, (size_t)(out * r->taps) * sizeof(*r->weights), err);
    if (r->first == NULL || r->count == NULL || r->weights == NULL) return err->status;
    for (int64_t i = 0; i < out; i++) {
        if (antialias)
            plan_smooth(r, i);
        else
            plan_plain(r, i);
    }
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
