/* plugins/device/cpu/kernels/vector_body.h -- sixteen floats at a time, in as many registers as the instruction set
 * needs: for sums in a fixed order, and for small matrix products. Included by kernels_body.h only.
 *
 * The including file defines CPU_VECTOR, the floats of a register, and has included immintrin.h where that is 8 or
 * 16. A reduction has sixteen lanes on every CPU, or a fixed multiple; element i goes to lane i % 16. */

typedef float cpu_vec __attribute__((vector_size(4 * CPU_VECTOR)));
typedef int32_t cpu_ivec __attribute__((vector_size(4 * CPU_VECTOR))); /* of a comparison: -1 where it holds, else 0 */

CPU_INLINE cpu_vec vec_load(const float *p)
{
    cpu_vec v;

    memcpy(&v, p, sizeof(v));
    return v;
}

CPU_INLINE void vec_store(float *p, cpu_vec v) { memcpy(p, &v, sizeof(v)); }

CPU_INLINE cpu_ivec vec_choose(cpu_ivec where, cpu_ivec a, cpu_ivec b) { return (where & a) | (~where & b); }

CPU_INLINE cpu_vec vec_fma(cpu_vec a, cpu_vec b, cpu_vec c)
{
#if CPU_VECTOR == 16
    return _mm512_fmadd_ps(a, b, c);
#elif CPU_VECTOR == 8
    return _mm256_fmadd_ps(a, b, c);
#else
    for (int64_t i = 0; i < CPU_VECTOR; i++) c[i] = fmaf(a[i], b[i], c[i]);
    return c;
#endif
}

/* a > b ? a : b, so b where one is NaN */
CPU_INLINE cpu_vec vec_max(cpu_vec a, cpu_vec b)
{
#if CPU_VECTOR == 16
    return _mm512_max_ps(a, b);
#elif CPU_VECTOR == 8
    return _mm256_max_ps(a, b);
#else
    for (int64_t i = 0; i < CPU_VECTOR; i++) b[i] = a[i] > b[i] ? a[i] : b[i];
    return b;
#endif
}

enum { VECS = 16 / CPU_VECTOR };
typedef struct f16 {
    cpu_vec v[VECS];
} f16;

#define F16_EACH(expression)                                                                                           \
    CPU_UNROLL for (int64_t i = 0; i < VECS; i++) { expression; }

CPU_INLINE f16 f16_set(float x)
{
    f16 y;

    F16_EACH(y.v[i] = x - (cpu_vec){0})
    return y;
}

CPU_INLINE f16 f16_load(const float *p)
{
    f16 y;

    F16_EACH(y.v[i] = vec_load(p + i * CPU_VECTOR))
    return y;
}

/* The first n, 0 after them. */
CPU_INLINE f16 f16_load_part(const float *p, int64_t n)
{
    float all[16] = {0};

    if (n >= 16) return f16_load(p);
    memcpy(all, p, (size_t)n * sizeof(*p));
    return f16_load(all);
}

CPU_INLINE void f16_store(float *p, f16 x){F16_EACH(vec_store(p + i * CPU_VECTOR, x.v[i]))}

CPU_INLINE f16 f16_add(f16 a, f16 b)
{
    F16_EACH(a.v[i] += b.v[i])
    return a;
}

CPU_INLINE f16 f16_sub(f16 a, f16 b)
{
    F16_EACH(a.v[i] -= b.v[i])
    return a;
}

CPU_INLINE f16 f16_mul(f16 a, f16 b)
{
    F16_EACH(a.v[i] *= b.v[i])
    return a;
}

CPU_INLINE f16 f16_fma(f16 a, f16 b, f16 c)
{
    F16_EACH(c.v[i] = vec_fma(a.v[i], b.v[i], c.v[i]))
    return c;
}

CPU_INLINE f16 f16_max(f16 a, f16 b)
{
    F16_EACH(a.v[i] = vec_max(a.v[i], b.v[i]))
    return a;
}

/* Combines lanes l and l + 8, then l + 4, l + 2, l + 1. */
#define FOLD(half, expression)                                                                                         \
    for (int64_t l = 0; l < (half); l++) {                                                                             \
        float a = lane[l], b = lane[l + (half)];                                                                       \
        lane[l] = (expression);                                                                                        \
    }

CPU_INLINE float f16_sum(f16 x)
{
    float lane[16];

    f16_store(lane, x);
    FOLD(8, a + b)
    FOLD(4, a + b)
    FOLD(2, a + b)
    return lane[0] + lane[1];
}

CPU_INLINE float f16_highest(f16 x)
{
    float lane[16];

    f16_store(lane, x);
    FOLD(8, a > b ? a : b)
    FOLD(4, a > b ? a : b)
    FOLD(2, a > b ? a : b)
    return lane[0] > lane[1] ? lane[0] : lane[1];
}

/* For each l of sixteen; no value depends on another's. */
#define SIXTEEN(expression)                                                                                            \
    MAP_LOOP for (int64_t l = 0; l < 16; l++) { expression; }

/* Elements first .. 15 of sixteen become 0. */
CPU_INLINE void zero_from(float *x, int64_t first)
{
    const int32_t from = (int32_t)first;

    MAP_LOOP for (int32_t l = 0; l < 16; l++) x[l] = l < from ? x[l] : 0.0f;
}
