/* plugins/device/cpu/kernels/product/half_body.h -- numbers of bf16 in registers for half_avx512.c: rounding, pairs,
 * transposing. Opens the instruction set for what follows; HALF_END closes it. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "half.h"
#include "kernels/kernels.h"
#include "kernels/loops.h"

#include <immintrin.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512bf16,avx512f,avx512bw,avx512vl,avx512dq,avx2,fma"))),        \
                             apply_to = function)
#else
#pragma GCC target("avx512bf16,avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,prefer-vector-width=512")
#endif
#include "kernels/math_body.h"
#include "kernels/turn_body.h"

#define PANEL CPU_HALF_PANEL
#define ROWS  INT64_C(6)
#define VECS  INT64_C(4)

CPU_INLINE int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
CPU_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* ---- bf16 -------------------------------------------------------------------------------------------------------- */
CPU_INLINE __m256i to_half(__m512 x) { return (__m256i)_mm512_cvtneps_pbh(x); }

static inline void round_row(uint16_t *y, const float *x, int64_t n)
{
    int64_t i = 0;

    for (; i + 32 <= n; i += 32)
        _mm512_storeu_si512(y + i, (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + i + 16), _mm512_loadu_ps(x + i)));
    for (; i < n; i += 16) {
        __mmask16 m = (__mmask16)(n - i >= 16 ? 0xffff : (1u << (n - i)) - 1);
        _mm256_mask_storeu_epi16(y + i, m, to_half(_mm512_maskz_loadu_ps(m, x + i)));
    }
}

/* ---- packing ----------------------------------------------------------------------------------------------------- */
CPU_INLINE int64_t size_of(bool half) { return half ? (int64_t)sizeof(uint16_t) : (int64_t)sizeof(float); }

CPU_INLINE const char *row_of(const cpu_side *s, bool half, int64_t r)
{
    return (const char *)s->at + r * s->stride * size_of(half);
}

/* Thirty-two numbers of a row from element i, of which n are there and the others 0. */
CPU_INLINE __m512i load32(const char *at, bool half, int64_t i, int64_t n)
{
    __mmask32 m = n >= 32 ? 0xffffffffu : n <= 0 ? 0 : (1u << n) - 1;
    const float *row = (const float *)(const void *)at;

    if (half) return _mm512_maskz_loadu_epi16(m, at + i * size_of(half));
    return (__m512i)_mm512_cvtne2ps_pbh(_mm512_maskz_loadu_ps((__mmask16)(m >> 16), row + i + 16),
                                        _mm512_maskz_loadu_ps((__mmask16)m, row + i));
}

/* What is wanted soon lies further apart than the hardware's prefetcher follows; it may lie past the end of the
 * matrix. */
CPU_INLINE void ask_for(const cpu_side *s, bool half, int64_t r, int64_t i)
{
    const char *at = row_of(s, half, r) + i * size_of(half);

    _mm_prefetch(at, _MM_HINT_T0);
    if (!half) _mm_prefetch(at + 64, _MM_HINT_T0);
}

/* Two rows of k, the second NULL for zeros, 32 columns from c, n of which are there: the pairs of columns 0 .. 15
 * and 16 .. 31. */
CPU_INLINE void interleave(const char *even, const char *odd, bool half, int64_t c, int64_t n, __m512i pairs[2])
{
    static const uint16_t low[32] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                     8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    __m512i first = _mm512_loadu_si512(low), second = _mm512_add_epi16(first, _mm512_set1_epi16(16));
    __m512i a = load32(even, half, c, n);
    __m512i b = odd != NULL ? load32(odd, half, c, n) : _mm512_setzero_si512();

    pairs[0] = _mm512_permutex2var_epi16(a, first, b);
    pairs[1] = _mm512_permutex2var_epi16(a, second, b);
}

#define SIXES INT64_C(16) /* panels of six rows that are packed together: 96 rows */

/* 96 words to `count` rows, six each, `stride` apart. A store has sixteen words, of which the next one there
 * overwrites ten. From register to register: a load across two stores would wait for both. */
CPU_INLINE void store_sixes(uint32_t *to, int64_t stride, const __m512i x[6], int64_t count)
{
    const __m512i upwards = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);

    CPU_UNROLL for (int64_t q = 0; q < SIXES; q++)
    {
        const int64_t first = q * 6 / 16;
        if (q < count)
            _mm512_storeu_si512(
                to + q * stride,
                _mm512_permutex2var_epi32(x[first], _mm512_add_epi32(upwards, _mm512_set1_epi32((int)(q * 6 % 16))),
                                          x[first < 5 ? first + 1 : 5]));
    }
}

#if defined(__clang__)
#define HALF_END _Pragma("clang attribute pop")
#else
#define HALF_END
#endif
