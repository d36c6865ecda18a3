/* data/resample.c -- see resample.h. A pixel is a vector of four floats, the last one of which is unused: a weight
 * then takes one multiplication for three channels. */
#include "data/resample.h"
#include <string.h>

typedef float pixel __attribute__((vector_size(16), aligned(16)));

/* ---- which part -------------------------------------------------------------------------------------------------- */
static int64_t begin_of(int64_t corner, int64_t out) { return DDP_MIN_OF(DDP_MAX_OF(-corner, 0), out); }

static int64_t end_of(int64_t corner, int64_t out, int64_t size, int64_t begin)
{
    return DDP_MAX_OF(DDP_MIN_OF(out, size - corner), begin);
}

static bool is_resized(const view *v) { return v->size.h != v->box.h || v->size.w != v->box.w; }

static size_t aligned(size_t bytes) { return (size_t)ddp_round_up(bytes, 64); }

size_t resample_bytes(const view *v, bool antialias)
{
    size_t across = data_resize_bytes(v->box.w, v->size.w, v->out.w, antialias);
    size_t down = data_resize_bytes(v->box.h, v->size.h, v->out.h, antialias);
    size_t taps = data_resize_bytes(v->box.h, v->size.h, 1, antialias) / sizeof(float);

    if (!is_resized(v)) return 64;
    return aligned(across) + aligned(down) + aligned((size_t)v->box.w * sizeof(pixel)) +
           taps * aligned((size_t)v->out.w * sizeof(pixel) + 64);
}

/* The inputs that an axis needs, from r->first[0] on; its table then counts from there. */
static int64_t shift(ddp_resize *r, int64_t *from)
{
    int64_t first = r->first[0], end = 0;

    for (int64_t i = 0; i < r->out; i++) {
        end = DDP_MAX_OF(end, r->first[i] + r->count[i]);
        r->first[i] -= first;
    }
    *from = first;
    return end - first;
}

static void plan_resize(resample *r, bool antialias)
{
    const view *v = &r->v;
    int64_t rows = r->end.h - r->begin.h, columns = r->end.w - r->begin.w;
    size_t across = data_resize_bytes(v->box.w, v->size.w, columns, antialias);
    size_t down = data_resize_bytes(v->box.h, v->size.h, rows, antialias);

    data_resize_fill(&r->across, r->work, v->box.w, v->size.w, v->corner.w + r->begin.w, columns, antialias);
    data_resize_fill(&r->down, r->work + aligned(across), v->box.h, v->size.h, v->corner.h + r->begin.h, rows,
                     antialias);
    r->size.w = shift(&r->across, &r->from.w);
    r->size.h = shift(&r->down, &r->from.h);
    r->row_at = aligned(across) + aligned(down);
    r->ring_at = r->row_at + aligned((size_t)r->size.w * sizeof(pixel));
    r->ring = r->down.taps;
    r->stride = (int64_t)ddp_round_up((uint64_t)columns, 4);
}

void resample_plan(resample *r, const view *v, bool antialias, void *work)
{
    *r = (resample){.v = *v, .resized = is_resized(v), .work = work};
    r->begin = (view_size){begin_of(v->corner.h, v->out.h), begin_of(v->corner.w, v->out.w)};
    r->end = (view_size){end_of(v->corner.h, v->out.h, v->size.h, r->begin.h),
                         end_of(v->corner.w, v->out.w, v->size.w, r->begin.w)};
    if (r->begin.h == r->end.h || r->begin.w == r->end.w) { /* nothing but black; a decoder decodes one pixel */
        r->begin = r->end = (view_size){0, 0};
        r->size = (view_size){1, 1};
    } else if (r->resized) {
        plan_resize(r, antialias);
    } else {
        r->from = (view_size){v->corner.h + r->begin.h, v->corner.w + r->begin.w};
        r->size = (view_size){r->end.h - r->begin.h, r->end.w - r->begin.w};
    }
    r->from.h += v->from.h;
    r->from.w += v->from.w;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */
/* One row in its new width, to its place in the ring. */
static void widen(const resample *r, const resample_values *values, const uint8_t *bytes, int64_t y)
{
    const ddp_resize *a = &r->across;
    const float *unit = values->unit;
    pixel *row = (pixel *)(void *)(r->work + r->row_at);
    pixel *out = (pixel *)(void *)(r->work + r->ring_at) + y % r->ring * r->stride;

    for (int64_t x = 0; x < r->size.w; x++)
        row[x] = (pixel){unit[bytes[3 * x]], unit[bytes[3 * x + 1]], unit[bytes[3 * x + 2]], 0.0f};
    for (int64_t i = 0; i < a->out; i++) {
        const pixel *from = row + a->first[i];
        const float *w = a->weights + i * a->taps;
        pixel sum = from[0] * w[0];

        for (int64_t k = 1; k < a->count[i]; k++) sum += from[k] * w[k];
        out[r->v.mirrored ? a->out - 1 - i : i] = sum;
    }
}

/* Four pixels of a column sum, by channel. */
static void store(const pixel p[4], const resample_values *values, float *const planes[3], int64_t at, int64_t count)
{
    for (int c = 0; c < 3; c++) {
        pixel v = {p[0][c], p[1][c], p[2][c], p[3][c]};

        v = (v - values->mean[c]) / values->std[c];
        if (count >= 4)
            memcpy(planes[c] + at, &v, sizeof(v));
        else
            for (int64_t i = 0; i < count; i++) planes[c][at + i] = v[i];
    }
}

/* Row i of the resized ones, from the ring's rows. */
static void sum_rows(const resample *r, const resample_values *values, int64_t i, float *const planes[3])
{
    const ddp_resize *d = &r->down;
    const pixel *ring = (const pixel *)(const void *)(r->work + r->ring_at);
    const float *w = d->weights + i * d->taps;

    for (int64_t x = 0; x < r->across.out; x += 4) {
        const pixel *from = ring + d->first[i] % r->ring * r->stride + x;
        pixel sum[4] = {from[0] * w[0], from[1] * w[0], from[2] * w[0], from[3] * w[0]};

        for (int64_t k = 1; k < d->count[i]; k++) {
            from = ring + (d->first[i] + k) % r->ring * r->stride + x;
            for (int j = 0; j < 4; j++) sum[j] += from[j] * w[k];
        }
        store(sum, values, planes, x, r->across.out - x);
    }
}

static void copy_row(const resample *r, const resample_values *values, const uint8_t *bytes, float *const planes[3])
{
    int64_t last = r->size.w - 1, step = r->v.mirrored ? -1 : 1, from = r->v.mirrored ? last : 0;

    for (int c = 0; c < 3; c++) {
        const float *table = values->table + (ptrdiff_t)256 * c;
        float *out = planes[c];

        for (int64_t x = 0, at = from; x <= last; x++, at += step) out[at] = table[bytes[3 * x + c]];
    }
}

/* ---- a sample ---------------------------------------------------------------------------------------------------- */
static void blacken(const resample *r, const resample_values *values, float *out)
{
    int64_t left = r->v.mirrored ? r->v.out.w - r->end.w : r->begin.w;
    int64_t right = left + r->end.w - r->begin.w;

    if (r->begin.h == 0 && r->begin.w == 0 && r->end.h == r->v.out.h && r->end.w == r->v.out.w) return;
    for (int c = 0; c < 3; c++)
        for (int64_t y = 0; y < r->v.out.h; y++, out += r->v.out.w) {
            bool beside = y < r->begin.h || y >= r->end.h;

            for (int64_t x = 0; x < r->v.out.w; x++)
                if (beside || x < left || x >= right) out[x] = values->fill[c];
        }
}

void resample_apply(const resample *r, const resample_values *values, const uint8_t *pixels, int64_t stride, float *out)
{
    int64_t plane = r->v.out.h * r->v.out.w, left = r->v.mirrored ? r->v.out.w - r->end.w : r->begin.w, made = 0;

    blacken(r, values, out);
    for (int64_t y = r->begin.h, i = 0; y < r->end.h; y++, i++) {
        float *at = out + y * r->v.out.w + left, *planes[3] = {at, at + plane, at + 2 * plane};

        if (!r->resized) {
            copy_row(r, values, pixels + i * stride, planes);
            continue;
        }
        for (; made < r->down.first[i] + r->down.count[i]; made++) widen(r, values, pixels + made * stride, made);
        sum_rows(r, values, i, planes);
    }
}
