/* reduce.c -- sum, average, minimum and maximum of n vectors, for each dtype.
 *
 * Sources are taken in the order given and rounded once at the end (bf16 adds in f32), so every rank that reduces the same
 * vectors gets the same bits. Averages divide within the same pass. Integers: sums wrap, averages truncate towards zero. */
#include "collective.h"
#include <string.h>

enum { BLOCK = 512 }; /* elements of the accumulator for n > 2: stays in the L1 cache */

static inline float bf16_load(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float f;

    memcpy(&f, &bits, sizeof(f));
    return f;
}

/* round to nearest even; a NaN stays one */
static inline uint16_t bf16_store(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof(bits));
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

#define SAME(x)       (x)
#define ADD(a, b)     ((a) + (b))
#define LESSER(a, b)  ((b) < (a) ? (b) : (a))
#define GREATER(a, b) ((b) > (a) ? (b) : (a))

/* T: element, A: accumulator; LOAD: T to A, STORE: A to T (may use n). In place `out` is exactly one of the sources, so no
 * iteration depends on another: ivdep. */
#define REDUCTION(NAME, T, A, LOAD, COMBINE, STORE)                                                                    \
    static void NAME(void *out, const void *const *in, uint32_t n, size_t count)                                       \
    {                                                                                                                  \
        T *const o = out;                                                                                              \
        A acc[BLOCK];                                                                                                  \
                                                                                                                       \
        if (n == 2) {                                                                                                  \
            const T *const x = in[0], *const y = in[1];                                                                \
            _Pragma("GCC ivdep") for (size_t i = 0; i < count; i++)                                                    \
            {                                                                                                          \
                A v = (A)COMBINE((A)LOAD(x[i]), (A)LOAD(y[i]));                                                        \
                o[i] = (T)STORE(v);                                                                                    \
            }                                                                                                          \
            return;                                                                                                    \
        }                                                                                                              \
        for (size_t at = 0; at < count; at += BLOCK) {                                                                 \
            size_t m = count - at < BLOCK ? count - at : BLOCK;                                                        \
            for (size_t i = 0; i < m; i++) acc[i] = (A)LOAD(((const T *)in[0])[at + i]);                               \
            for (uint32_t k = 1; k < n; k++) {                                                                         \
                const T *const x = (const T *)in[k] + at;                                                              \
                for (size_t i = 0; i < m; i++) acc[i] = (A)COMBINE(acc[i], (A)LOAD(x[i]));                             \
            }                                                                                                          \
            for (size_t i = 0; i < m; i++) o[at + i] = (T)STORE(acc[i]);                                               \
        }                                                                                                              \
    }

#define OVER_F32(v)  ((v) / (float)n)
#define TIMES_F32(v) ((v) * (1.0f / (float)n)) /* exact for a power of two, and so equal to the division */
#define OVER_F64(v)  ((v) / (double)n)
#define OVER_INT(v)  ((v) / (int64_t)n)
#define OVER_I64(v)  ((int64_t)(v) / (int64_t)n)
#define OVER_BF16(v) bf16_store(OVER_F32(v))

REDUCTION(f32_sum, float, float, SAME, ADD, SAME)
REDUCTION(f32_avg, float, float, SAME, ADD, OVER_F32)
REDUCTION(f32_avg_exact, float, float, SAME, ADD, TIMES_F32)
REDUCTION(f32_min, float, float, SAME, LESSER, SAME)
REDUCTION(f32_max, float, float, SAME, GREATER, SAME)
REDUCTION(bf16_sum, uint16_t, float, bf16_load, ADD, bf16_store)
REDUCTION(bf16_avg, uint16_t, float, bf16_load, ADD, OVER_BF16)
REDUCTION(bf16_min, uint16_t, float, bf16_load, LESSER, bf16_store)
REDUCTION(bf16_max, uint16_t, float, bf16_load, GREATER, bf16_store)
REDUCTION(f64_sum, double, double, SAME, ADD, SAME)
REDUCTION(f64_avg, double, double, SAME, ADD, OVER_F64)
REDUCTION(f64_min, double, double, SAME, LESSER, SAME)
REDUCTION(f64_max, double, double, SAME, GREATER, SAME)
REDUCTION(i32_sum, int32_t, int64_t, SAME, ADD, SAME)
REDUCTION(i32_avg, int32_t, int64_t, SAME, ADD, OVER_INT)
REDUCTION(i32_min, int32_t, int32_t, SAME, LESSER, SAME)
REDUCTION(i32_max, int32_t, int32_t, SAME, GREATER, SAME)
REDUCTION(i64_sum, int64_t, uint64_t, SAME, ADD, SAME)
REDUCTION(i64_avg, int64_t, uint64_t, SAME, ADD, OVER_I64)
REDUCTION(i64_min, int64_t, int64_t, SAME, LESSER, SAME)
REDUCTION(i64_max, int64_t, int64_t, SAME, GREATER, SAME)
REDUCTION(u8_sum, uint8_t, uint32_t, SAME, ADD, SAME)
REDUCTION(u8_avg, uint8_t, int64_t, SAME, ADD, OVER_INT)
REDUCTION(u8_min, uint8_t, uint8_t, SAME, LESSER, SAME)
REDUCTION(u8_max, uint8_t, uint8_t, SAME, GREATER, SAME)

ddp_gloo_reduction ddp_gloo_reduction_of(uint32_t dtype, uint32_t op, uint32_t world)
{
    static const ddp_gloo_reduction table[DDP_DTYPE_END_][DDP_REDUCE_OP_END_] = {
        [DDP_F32] = {NULL, f32_sum, f32_avg, f32_min, f32_max},
        [DDP_BF16] = {NULL, bf16_sum, bf16_avg, bf16_min, bf16_max},
        [DDP_F64] = {NULL, f64_sum, f64_avg, f64_min, f64_max},
        [DDP_I32] = {NULL, i32_sum, i32_avg, i32_min, i32_max},
        [DDP_I64] = {NULL, i64_sum, i64_avg, i64_min, i64_max},
        [DDP_U8] = {NULL, u8_sum, u8_avg, u8_min, u8_max},
    };

    if (dtype >= DDP_DTYPE_END_ || op >= DDP_REDUCE_OP_END_) return NULL;
    if (dtype == DDP_F32 && op == DDP_AVG && (world & (world - 1)) == 0) return f32_avg_exact;
    return table[dtype][op];
}
