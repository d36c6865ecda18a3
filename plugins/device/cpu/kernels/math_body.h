/* plugins/device/cpu/kernels/math_body.h -- exp, the two forms of GELU, SiLU, and sine and cosine, as
 * straight-line float code that a compiler vectorises.
 *
 * Included by kernels_body.h only. Every multiply-add is an explicit fmaf, so that all variants give the same bits. */

static inline float cpu_from_bits(uint32_t bits)
{
    float f;

    memcpy(&f, &bits, sizeof(f));
    return f;
}

static inline uint32_t cpu_to_bits(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof(bits));
    return bits;
}

/* To the nearest number of bf16, ties to even; as AVX512_BF16 takes it, so that a denormal number is 0. */
static inline float cpu_to_bf16(float x)
{
    const uint32_t bits = cpu_to_bits(x), size = bits & 0x7fffffffu;
    const uint32_t nearest = bits + 0x7fffu + (bits >> 16 & 1u),
                   number = size < 0x00800000u ? bits & 0x80000000u : nearest;

    return cpu_from_bits((size > 0x7f800000u ? bits | 0x00400000u : number) & 0xffff0000u);
}

/* e^x to about 1 ulp; 0 below 2^-126, since a CPU takes a hundred times as long for a denormal number; NaN stays
 * NaN. x = n ln 2 + r with |r| <= ln 2 / 2, Taylor to r^7 (5e-9), then times 2^n in two halves so that overflow
 * comes out right. ln 2 is split after Cody and Waite. */
static inline float cpu_exp(float x)
{
    const float magic = 0x1.8p23f; /* adding it rounds to an integer, which then stands in the low bits */
    const float lowest = -87.336f;
    float t, n, r, p, c;
    uint32_t k, half;

    c = x > 89.0f ? 89.0f : x;
    c = c < lowest ? lowest : c;
    t = fmaf(c, 0x1.715476p0f, magic);
    n = t - magic;
    r = fmaf(n, -0x1.62e400p-1f, c);
    r = fmaf(n, -0x1.7f7d1cp-20f, r);
    p = 1.0f / 5040.0f;
    p = fmaf(p, r, 1.0f / 720.0f);
    p = fmaf(p, r, 1.0f / 120.0f);
    p = fmaf(p, r, 1.0f / 24.0f);
    p = fmaf(p, r, 1.0f / 6.0f);
    p = fmaf(p, r, 0.5f);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    k = cpu_to_bits(t) - cpu_to_bits(magic) + 256u; /* n + 256, positive */
    half = k >> 1;                                  /* (n + 256) / 2: exponents n/2 + 127 = half - 1 */
    p = p * cpu_from_bits((half - 1u) << 23) * cpu_from_bits((k - half - 1u) << 23);
    return x < lowest ? 0.0f : p;
}

/* 1 - Phi(t) for t >= 0, the normal distribution's upper tail, with a small relative error also far out:
 * exp(-t^2 / 2) * P(q) / (1 + t) with q = (t - 3) / (t + 3). P is a Chebyshev fit, of degree 10 over 0 <= t <= 14, to
 * erfc(t / sqrt 2) / 2 * exp(t^2 / 2) * (1 + t); its relative error is 5e-9. `gauss` gets exp(-t^2 / 2). */
static inline float cpu_normal_tail(float t, float *gauss)
{
    float square, low, e, q, p;

    t = t > 20.0f ? 20.0f : t; /* where all is 0 already; the square stays finite */
    square = t * t;
    low = fmaf(t, t, -square);
    e = cpu_exp(-0.5f * square);
    e = fmaf(e * -0.5f, low, e); /* the square's rounding error matters where t is large */
    *gauss = e;
    q = (t - 3.0f) / (t + 3.0f);
    p = 4.4894294514299945e-05f;
    p = fmaf(p, q, 8.898131894854319e-06f);
    p = fmaf(p, q, -0.00046991144591161833f);
    p = fmaf(p, q, -0.0003377155641092194f);
    p = fmaf(p, q, 0.0029919735561438456f);
    p = fmaf(p, q, 0.0011543943606032192f);
    p = fmaf(p, q, -0.022726906724390063f);
    p = fmaf(p, q, 0.045164710723317694f);
    p = fmaf(p, q, -0.016432339621028837f);
    p = fmaf(p, q, -0.09652678505116712f);
    p = fmaf(p, q, 0.486055795085674f);
    return e * p / (1.0f + t);
}

/* gelu(x) = x Phi(x). */
static inline float cpu_gelu_erf(float x)
{
    float gauss, tail = cpu_normal_tail(fabsf(x), &gauss);

    return x * (x < 0.0f ? tail : 1.0f - tail);
}

/* gelu'(x) = Phi(x) + x phi(x). */
static inline float cpu_gelu_erf_slope(float x)
{
    float gauss, tail = cpu_normal_tail(fabsf(x), &gauss);

    return fmaf(x * gauss, 0.3989422804014327f, x < 0.0f ? tail : 1.0f - tail);
}

/* gelu(x) = x / 2 (1 + tanh u) = x / (1 + exp(-2u)), u = sqrt(2 / pi) (x + 0.044715 x^3). */
static inline float cpu_gelu_tanh_power(float x)
{
    return -2.0f * 0.7978845608028654f * x * fmaf(x * x, 0.044715f, 1.0f); /* -2u */
}

static inline float cpu_gelu_tanh(float x) { return x / (1.0f + cpu_exp(cpu_gelu_tanh_power(x))); }

static inline float cpu_gelu_tanh_slope(float x)
{
    float v, e, s, du2;

    x = x > 15.0f ? 15.0f : x; /* beyond, the slope is 0 or 1; no inf * 0 */
    x = x < -15.0f ? -15.0f : x;
    v = cpu_gelu_tanh_power(x);
    e = cpu_exp(v > 87.0f ? 87.0f : v);
    s = 1.0f / (1.0f + e);
    du2 = 2.0f * 0.7978845608028654f * fmaf(x * x, 3.0f * 0.044715f, 1.0f); /* d(2u)/dx */
    return fmaf(x * s * (e * s), du2, s);
}

/* silu(x) = x s with s = 1 / (1 + exp(-x)). */
static inline float cpu_silu(float x) { return x / (1.0f + cpu_exp(-x)); }

/* silu'(x) = s (1 + x (1 - s)). */
static inline float cpu_silu_slope(float x)
{
    float s;

    x = x > 88.0f ? 88.0f : x; /* beyond, the slope is 1 or 0; no inf * 0 */
    x = x < -88.0f ? -88.0f : x;
    s = 1.0f / (1.0f + cpu_exp(-x));
    return fmaf(x, 1.0f - s, 1.0f) * s;
}

/* sin x and cos x for |x| < 2^22, to about 1e-7. x = n pi / 2 + r with |r| <= pi / 4, pi / 2 in three parts after Cody
 * and Waite; the polynomials of r are those of Cephes' sinf and cosf. */
static inline float cpu_sin_cos(float x, float *cosine)
{
    const float magic = 0x1.8p23f; /* as in cpu_exp */
    float t = fmaf(x, 0x1.45f306p-1f, magic), n = t - magic, r, z, s, c, sine;
    uint32_t quarter = cpu_to_bits(t) - cpu_to_bits(magic);

    r = fmaf(n, -0x1.921fb6p0f, x);
    r = fmaf(n, 0x1.777a5cp-25f, r);
    r = fmaf(n, 0x1.ee59dap-50f, r);
    z = r * r;
    s = fmaf(fmaf(-1.9515295891e-4f, z, 8.3321608736e-3f), z, -1.6666654611e-1f);
    s = fmaf(s, z * r, r);
    c = fmaf(fmaf(2.443315711809948e-5f, z, -1.388731625493765e-3f), z, 4.166664568298827e-2f);
    c = fmaf(c, z * z, fmaf(-0.5f, z, 1.0f));
    sine = quarter & 1u ? c : s;
    c = quarter & 1u ? s : c;
    *cosine = cpu_from_bits(cpu_to_bits(c) ^ ((quarter + 1u) & 2u) << 30);
    return cpu_from_bits(cpu_to_bits(sine) ^ (quarter & 2u) << 30);
}
