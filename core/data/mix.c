/* data/mix.c -- see mix.h. */
#include "data/mix.h"
#include <math.h>
#include <string.h>

enum { TRIES = 32 /* of a gamma variate; each is taken with at least 95 % */ };

void mix_describe(const mix_plan *p, ddp_text *out)
{
    if (p->mixup > 0) ddp_text_printf(out, " -> mixup %g", p->mixup);
    if (p->cutmix > 0) ddp_text_printf(out, "%s cutmix %g", p->mixup > 0 ? " or" : " ->", p->cutmix);
}

/* ---- what is drawn ----------------------------------------------------------------------------------------------- */
/* Above 0 and below 1. */
static double open_uniform(uint32_t bits) { return (bits + 0.5) * 0x1p-32; }

/* The logarithm of a gamma variate of shape alpha: Marsaglia and Tsang 2000, for alpha below 1 with their factor
 * U^(1/alpha). The first of its places for random numbers: `place`. */
static double log_gamma_variate(double alpha, const ddp_random *random, uint32_t place, uint64_t index)
{
    double d = (alpha < 1.0 ? alpha + 1.0 : alpha) - 1.0 / 3.0, c = 1.0 / sqrt(9.0 * d), boost = 0.0, v = 1.0;

    for (uint32_t k = 0; k < TRIES; k++) {
        uint32_t bits[4];
        double x, u;

        ddp_philox(random, place + k, index, bits);
        x = sqrt(-2.0 * log(open_uniform(bits[0]))) * cos(2.0 * 3.14159265358979323846 * open_uniform(bits[1]));
        u = open_uniform(bits[2]);
        boost = alpha < 1.0 ? log(open_uniform(bits[3])) / alpha : 0.0;
        v = (1.0 + c * x) * (1.0 + c * x) * (1.0 + c * x);
        if (v > 0.0 && log(u) < 0.5 * x * x + d - d * v + d * log(v)) break;
        v = 1.0;
    }
    return log(d * v) + boost;
}

double mix_beta(double alpha, uint64_t seed, uint64_t index, uint64_t epoch)
{
    ddp_random random = {.seed = seed, .stream = epoch};
    double a = log_gamma_variate(alpha, &random, VIEW_PLACE_MIX + 1, index);
    double b = log_gamma_variate(alpha, &random, VIEW_PLACE_MIX + 1 + TRIES, index);

    if (isinf(a) && isinf(b)) { /* alpha is next to 0: in the limit it is 0 or 1, each half of the time */
        uint32_t bits[4];

        ddp_philox(&random, VIEW_PLACE_MIX, index, bits);
        return (double)(bits[3] >> 31);
    }
    return (double)(float)(1.0 / (1.0 + exp(b - a)));
}

mix mix_box(double lambda, int64_t y, int64_t x, view_size image)
{
    double r = 0.5 * sqrt(1.0 - lambda);
    int64_t h = (int64_t)(r * (double)image.h), w = (int64_t)(r * (double)image.w);
    mix m = {.cuts = true, .from = {DDP_MAX_OF(y - h, 0), DDP_MAX_OF(x - w, 0)}};

    m.box = (view_size){DDP_MIN_OF(y + h, image.h) - m.from.h, DDP_MIN_OF(x + w, image.w) - m.from.w};
    lambda = 1.0 - (double)(m.box.h * m.box.w) / (double)(image.h * image.w);
    m.lambda = (float)lambda;
    m.rest = (float)(1.0 - lambda);
    return m;
}

mix mix_draw(const mix_plan *p, uint64_t index, uint64_t epoch, view_size image)
{
    ddp_random random = {.seed = p->seed, .stream = epoch};
    uint32_t bits[4];
    double lambda;
    bool cuts;

    ddp_philox(&random, VIEW_PLACE_MIX, index, bits);
    cuts = p->mixup == 0.0 || (p->cutmix > 0.0 && bits[0] >> 31 == 1);
    lambda = mix_beta(cuts ? p->cutmix : p->mixup, p->seed, index, epoch);
    if (cuts) return mix_box(lambda, view_below(bits[2], image.h), view_below(bits[1], image.w), image);
    return (mix){.lambda = (float)lambda, .rest = (float)(1.0 - lambda)};
}

/* ---- a batch ----------------------------------------------------------------------------------------------------- */
/* In torch's order of rounding: the partner's part, then plus the own. */
static void mix_whole(const mix *m, float *x, const float *partner, int64_t elements)
{
    for (int64_t i = 0; i < elements; i++) {
        float other = partner[i] * m->rest, own = x[i] * m->lambda;

        x[i] = other + own;
    }
}

static void mix_cut(const mix *m, float *x, const float *partner, int64_t channels, view_size image)
{
    for (int64_t c = 0; c < channels; c++)
        for (int64_t y = m->from.h; y < m->from.h + m->box.h; y++) {
            int64_t at = (c * image.h + y) * image.w + m->from.w;

            memcpy(x + at, partner + at, (size_t)m->box.w * sizeof(*x));
        }
}

/* From the last sample on, so that a partner is as it was. */
void mix_images(const mix *m, float *x, int64_t count, int64_t channels, view_size image, float *spare)
{
    int64_t each = channels * image.h * image.w;

    if (count == 0) return;
    memcpy(spare, x + (count - 1) * each, (size_t)each * sizeof(*x));
    for (int64_t i = count; i-- > 0;) {
        const float *partner = i > 0 ? x + (i - 1) * each : spare;

        if (m->cuts)
            mix_cut(m, x + i * each, partner, channels, image);
        else
            mix_whole(m, x + i * each, partner, each);
    }
}

void mix_labels(const mix *m, const int64_t *label, int64_t count, int64_t *other, float *lambda)
{
    for (int64_t i = 0; i < count; i++) {
        other[i] = label[i > 0 ? i - 1 : count - 1];
        lambda[i] = m->lambda;
    }
}
