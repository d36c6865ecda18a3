/* base/normal.c -- normal draws from the generator, as torch.Tensor.normal_ of float32 makes them on the CPU's AVX2
 * path.
 *
 * From 16 values on: uniforms in blocks of 16 become normals by Box and Muller's transform, the first eight of a block
 * give radii and the second eight angles. Logarithm, sine and cosine are Cephes' single-precision polynomials, in the
 * order and with the fused operations of that path; here every fused operation is written out, so that the bits do not
 * depend on the CPU. Below 16 values: pairs of doubles, of which the generator keeps the second one for the next such
 * draw.
 *
 * Sources: G. Box and M. Muller, "A Note on the Generation of Random Normal Deviates" (1958); S. Moshier's Cephes
 * library (logf, sinf, cosf); the behaviour of PyTorch 1.13, stored by tests/parity/make/make_vectors.py. */
#include "base/mt19937.h"
#include <ddpengine/isa.h>
#include <math.h>
#include <string.h>

enum { BLOCK = DDP_NORMAL_BLOCK, HALF = BLOCK / 2, PIECE = 64 * BLOCK };

/* ---- blocks of 16 ------------------------------------------------------------------------------------------------ */
#define INLINE static inline __attribute__((always_inline))

INLINE uint32_t bits_of(float x)
{
    uint32_t b;

    memcpy(&b, &x, sizeof(b));
    return b;
}
INLINE float of_bits(uint32_t b)
{
    float x;

    memcpy(&x, &b, sizeof(x));
    return x;
}

/* Cephes' logf of x = m 2^e with m from sqrt(1/2) to sqrt(2); x is normal and above 0. */
INLINE float log_of(float x)
{
    uint32_t mantissa = (bits_of(x) & 0x007fffffu) | 0x3f000000u, low = mantissa < 0x3f3504f3u; /* below sqrt(1/2) */
    float e = (float)((int32_t)(bits_of(x) >> 23) - 126 - (int32_t)low);
    float m = of_bits(mantissa), z, y;

    x = (m - 1.0f) + (low ? m : 0.0f);
    z = x * x;
    y = fmaf(7.0376836292e-2f, x, -1.1514610310e-1f);
    y = fmaf(y, x, 1.1676998740e-1f);
    y = fmaf(y, x, -1.2420140846e-1f);
    y = fmaf(y, x, 1.4249322787e-1f);
    y = fmaf(y, x, -1.6668057665e-1f);
    y = fmaf(y, x, 2.0000714765e-1f);
    y = fmaf(y, x, -2.4999993993e-1f);
    y = fmaf(y, x, 3.3333331174e-1f);
    y = fmaf(y * x, z, e * -2.12194440e-4f);
    y = fmaf(z, -0.5f, y);
    return fmaf(e, 0.693359375f, x + y);
}

/* Cephes' sinf and cosf: x less a multiple of pi / 4 in three parts, then the polynomial that its octant asks for; x >=
 * 0. */
INLINE void sine_cosine(float x, float *sine, float *cosine)
{
    int32_t octant = ((int32_t)(x * 1.27323954473516f) + 1) & ~1;
    float k = (float)octant, z, s, c;
    uint32_t swap = (uint32_t)(octant & 2) >> 1;

    x = fmaf(k, -0.78515625f, x);
    x = fmaf(k, -2.4187564849853515625e-4f, x);
    x = fmaf(k, -3.77489497744594108e-8f, x);
    z = x * x;
    c = fmaf(2.443315711809948e-5f, z, -1.388731625493765e-3f);
    c = fmaf(c, z, 4.166664568298827e-2f);
    c = fmaf(c * z, z, z * -0.5f) + 1.0f;
    s = fmaf(-1.9515295891e-4f, z, 8.3321608736e-3f);
    s = fmaf(s, z, -1.6666654611e-1f);
    s = fmaf(s * z, x, x);
    *sine = of_bits(bits_of(swap ? c : s) ^ (uint32_t)(octant & 4) << 29);
    *cosine = of_bits(bits_of(swap ? s : c) ^ (uint32_t)(~(octant - 2) & 4) << 29);
}

INLINE void blocks_body(float *data, uint64_t count, float mean, float std)
{
    for (float *x = data; x < data + count; x += BLOCK)
        for (int i = 0; i < HALF; i++) {
            float radius = sqrtf(-2.0f * log_of(1.0f - x[i])), sine, cosine;

            sine_cosine(6.28318530717958647692f * x[i + HALF], &sine, &cosine);
            x[i] = fmaf(radius * cosine, std, mean);
            x[i + HALF] = fmaf(radius * sine, std, mean);
        }
}

/* A library call for each fused operation, of which a block has some 400, would cost seconds on a large model. */
#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static void blocks_avx2(float *data, uint64_t count, float mean, float std)
{
    blocks_body(data, count, mean, std);
}
#endif

void base_normal_blocks(float *data, uint64_t count, float mean, float std, int portable)
{
#if defined(__x86_64__)
    if (!portable && ddp_isa_best() <= DDP_ISA_AVX2) {
        blocks_avx2(data, count, mean, std);
        return;
    }
#endif
    (void)portable;
    blocks_body(data, count, mean, std);
}

/* ---- fewer than 16 ----------------------------------------------------------------------------------------------- */
static double uniform53(ddp_mt19937 *g)
{
    uint64_t high = base_mt19937_next(g);

    return (double)((high << 32 | base_mt19937_next(g)) & 0x1fffffffffffffu) * 0x1p-53;
}

static double one_normal(ddp_mt19937 *g)
{
    double angle, radius;

    if (g->has_kept) {
        g->has_kept = 0;
        return g->kept;
    }
    angle = 6.28318530717958647692 * uniform53(g);
    radius = sqrt(-2.0 * log1p(-uniform53(g)));
    g->kept = radius * sin(angle);
    g->has_kept = 1;
    return radius * cos(angle);
}

static void fill_uniform(ddp_mt19937 *g, float *out, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) out[i] = (float)(base_mt19937_next(g) & 0xffffffu) * 0x1p-24f;
}

/* ---- the draw ---------------------------------------------------------------------------------------------------- */
void ddp_mt19937_normal(ddp_mt19937 *g, float *out, uint64_t count, double mean, double std)
{
    uint64_t whole = count - count % BLOCK;

    if (count < BLOCK) {
        for (uint64_t i = 0; i < count; i++) out[i] = (float)fma(one_normal(g), std, mean);
        return;
    }
    for (uint64_t at = 0; at < count; at += PIECE) { /* a piece at a time, for the cache */
        uint64_t n = count - at < PIECE ? count - at : PIECE;

        fill_uniform(g, out + at, n);
        base_normal_blocks(out + at, at + n <= whole ? n : whole - at, (float)mean, (float)std, 0);
    }
    if (whole == count) return;
    /* the last 16 values once more, from new uniforms, the ones of the last whole block among them */
    fill_uniform(g, out + count - BLOCK, BLOCK);
    base_normal_blocks(out + count - BLOCK, BLOCK, (float)mean, (float)std, 0);
}

void ddp_mt19937_skip_normal(ddp_mt19937 *g, uint64_t count)
{
    float few[BLOCK];

    if (count < BLOCK)
        ddp_mt19937_normal(g, few, count, 0.0, 1.0);
    else
        ddp_mt19937_skip(g, count % BLOCK == 0 ? count : count + BLOCK);
}
