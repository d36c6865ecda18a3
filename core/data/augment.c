/* data/augment.c -- see augment.h. Floats where torchvision's tensors are, so that rounding is alike. */
#include "data/augment.h"
#include <math.h>
#include <string.h>

/* ---- the settings ------------------------------------------------------------------------------------------------ */
ddp_status augment_plan_read(augment_plan *p, const struct ddp_data_config *c, int64_t channels, uint64_t seed,
                             ddp_err *err)
{
    const double *items = c->color_jitter.items;

    *p = (augment_plan){.erasing = c->random_erasing, .seed = seed};
    if (c->color_jitter.count == 0) return DDP_OK;
    if (c->color_jitter.count > 4)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "color_jitter takes brightness, contrast, saturation and hue, not %zu numbers",
                        c->color_jitter.count);
    memcpy(p->jitter, items, c->color_jitter.count * sizeof(*items));
    for (int i = 0; i < 4; i++) p->jitters = p->jitters || p->jitter[i] > 0;
    if (p->jitter[AUGMENT_HUE] > 0.5)
        return ddp_fail(err, DDP_ERR_CONFIG, "the hue of color_jitter is at most 0.5, not %g", p->jitter[AUGMENT_HUE]);
    if (p->jitters && channels != 3)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "color_jitter is for images of red, green and blue; those of this dataset have %lld channels",
                        (long long)channels);
    return DDP_OK;
}

void augment_describe_jitter(const augment_plan *p, ddp_text *out)
{
    if (p->jitters)
        ddp_text_printf(out, " -> color jitter %g, %g, %g, %g", p->jitter[0], p->jitter[1], p->jitter[2], p->jitter[3]);
}

void augment_describe_erasing(const augment_plan *p, ddp_text *out)
{
    if (p->erasing > 0) ddp_text_printf(out, " -> random erasing %g", p->erasing);
}

/* ---- color_jitter ------------------------------------------------------------------------------------------------ */
static float clamp(float v) { return v < 0.0f ? 0.0f : v > 1.0f ? 1.0f : v; }

static float gray(float r, float g, float b) { return 0.2989f * r + 0.587f * g + 0.114f * b; }

/* The hue alone: to HSV and back, as _rgb2hsv and _hsv2rgb of torchvision. */
static void turn_hue(float factor, float *r, float *g, float *b)
{
    float high = fmaxf(fmaxf(*r, *g), *b), low = fminf(fminf(*r, *g), *b), range = high - low;
    float s = range / (high == low ? 1.0f : high), divisor = high == low ? 1.0f : range;
    float rc = (high - *r) / divisor, gc = (high - *g) / divisor, bc = (high - *b) / divisor;
    float h = high == *r ? bc - gc : high == *g ? 2.0f + rc - bc : 4.0f + gc - rc, f, p, q, t;
    int sector;

    h = fmodf(h / 6.0f + 1.0f, 1.0f) + factor;
    h -= floorf(h);
    f = h * 6.0f - floorf(h * 6.0f);
    sector = (int)floorf(h * 6.0f) % 6;
    p = clamp(high * (1.0f - s));
    q = clamp(high * (1.0f - s * f));
    t = clamp(high * (1.0f - s * (1.0f - f)));
    *r = (const float[]){high, q, p, p, t, high}[sector];
    *g = (const float[]){t, high, high, q, p, p}[sector];
    *b = (const float[]){p, p, t, high, high, q}[sector];
}

static float mean_gray(const float *x, int64_t pixels)
{
    double sum = 0;

    for (int64_t i = 0; i < pixels; i++) sum += (double)gray(x[i], x[pixels + i], x[2 * pixels + i]);
    return (float)(sum / (double)pixels);
}

void augment_adjust(int what, float factor, float *x, int64_t pixels)
{
    float rest = 1.0f - factor, other = what == AUGMENT_CONTRAST ? mean_gray(x, pixels) : 0.0f;
    float *r = x, *g = x + pixels, *b = x + 2 * pixels;

    for (int64_t i = 0; i < pixels; i++) {
        if (what == AUGMENT_HUE) {
            turn_hue(factor, &r[i], &g[i], &b[i]);
            continue;
        }
        if (what == AUGMENT_SATURATION) other = gray(r[i], g[i], b[i]);
        r[i] = clamp(factor * r[i] + rest * other);
        g[i] = clamp(factor * g[i] + rest * other);
        b[i] = clamp(factor * b[i] + rest * other);
    }
}

void augment_jitter(const augment_plan *p, uint64_t index, uint64_t epoch, float *x, int64_t pixels)
{
    ddp_random random = {.seed = p->seed, .stream = epoch};
    uint32_t order[4], bits[4];
    int turn[4] = {0, 1, 2, 3};

    ddp_philox(&random, VIEW_PLACE_JITTER, index, order);
    ddp_philox(&random, VIEW_PLACE_JITTER + 1, index, bits);
    for (int i = 3; i > 0; i--) {
        int64_t k = view_below(order[i], i + 1);
        int other = turn[k];

        turn[k] = turn[i];
        turn[i] = other;
    }
    for (int i = 0; i < 4; i++) {
        int what = turn[i];
        double range = p->jitter[what], low = what == AUGMENT_HUE ? -range : fmax(0.0, 1.0 - range);

        if (range > 0)
            augment_adjust(what, (float)view_uniform(bits[what], low, what == AUGMENT_HUE ? range : 1.0 + range), x,
                           pixels);
    }
}

/* ---- random_erasing ---------------------------------------------------------------------------------------------- */
static bool draw_box(const ddp_random *random, uint64_t index, view_size size, view_size *from, view_size *box)
{
    double area = (double)size.h * (double)size.w;

    for (uint32_t k = 1; k <= 10; k++) {
        uint32_t bits[4];
        double target, aspect;

        ddp_philox(random, VIEW_PLACE_ERASE + k, index, bits);
        target = area * view_uniform(bits[0], 0.02, 0.33);
        aspect = exp(view_uniform(bits[1], log(0.3), log(3.3)));
        *box = (view_size){(int64_t)rint(sqrt(target * aspect)), (int64_t)rint(sqrt(target / aspect))};
        if (box->h >= size.h || box->w >= size.w) continue;
        *from = (view_size){view_below(bits[2], size.h - box->h + 1), view_below(bits[3], size.w - box->w + 1)};
        return true;
    }
    return false;
}

void augment_erase(const augment_plan *p, uint64_t index, uint64_t epoch, float *x, int64_t channels, view_size size)
{
    ddp_random random = {.seed = p->seed, .stream = epoch};
    view_size from, box;
    uint32_t bits[4];

    ddp_philox(&random, VIEW_PLACE_ERASE, index, bits);
    if (bits[0] >= (uint64_t)(p->erasing * 0x1p32) || !draw_box(&random, index, size, &from, &box)) return;
    for (int64_t c = 0; c < channels; c++)
        for (int64_t y = from.h; y < from.h + box.h; y++)
            memset(x + (c * size.h + y) * size.w + from.w, 0, (size_t)box.w * sizeof(*x));
}
