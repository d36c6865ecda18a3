/* plugins/device/cpu/kernels/attention/operands_bf16_body.h -- what attention multiplies, in bf16: an operand is two
 * numbers of neighbouring k, rounded to nearest, ties to even; vdpbf16ps multiplies sixteen by sixteen others and adds
 * them in f32. Included between head_body.h and attention_body.h. */
#include "kernels/turn_body.h"

typedef uint32_t operand;
typedef __m512i operand_vec;

#define DEEP        INT64_C(2)
#define ONE_PACKING false /* a left side has pairs of its row, a right side pairs of two rows */

CPU_INLINE operand_vec operand_load(const operand *p) { return _mm512_loadu_si512(p); }
CPU_INLINE operand_vec operand_spread(operand x) { return _mm512_set1_epi32((int)x); }
CPU_INLINE cpu_vec operand_fma(operand_vec a, operand_vec b, cpu_vec c)
{
    return (cpu_vec)_mm512_dpbf16_ps((__m512)c, (__m512bh)a, (__m512bh)b);
}

/* Numbers i .. i + 15 of a row of n, times scale; 0 from n on. */
CPU_INLINE __m512 row_part(const float *x, int64_t i, int64_t n, __m512 scale)
{
    const __mmask16 m = (__mmask16)(n - i >= 16 ? 0xffffu : n <= i ? 0u : (1u << (n - i)) - 1u);

    return _mm512_mul_ps(_mm512_maskz_loadu_ps(m, x + i), scale);
}

/* The pairs of two rows of sixteen. */
CPU_INLINE __m512i pairs_of(__m512 even, __m512 odd)
{
    static const uint16_t order[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                       8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};

    return _mm512_permutexvar_epi16(_mm512_loadu_si512(order), (__m512i)_mm512_cvtne2ps_pbh(odd, even));
}

/* (length, size) at x, rows `wide` apart, times scale -> (rows, cols / 2), padded with zeros */
static void pack_left(operand *to, const head_shape *s, const float *x, int64_t wide, float scale)
{
    const __m512 factor = _mm512_set1_ps(scale);

    for (int64_t t = 0; t < s->length; t++, to += s->cols / 2, x += wide) {
        prefetch_row(s, x, wide, t);
        for (int64_t i = 0; i < s->cols; i += 16)
            _mm256_storeu_si256((__m256i *)(void *)(to + i / 2),
                                (__m256i)_mm512_cvtneps_pbh(row_part(x, i, s->size, factor)));
    }
    memset(to, 0, (size_t)((s->rows - s->length) * s->cols / 2) * sizeof(*to));
}

/* The same -> (rows / 2, cols) */
static void pack_right(operand *to, const head_shape *s, const float *x, int64_t wide, float scale)
{
    const __m512 factor = _mm512_set1_ps(scale);

    for (int64_t t = 0; t < s->rows; t += 2, to += s->cols, x += 2 * wide) {
        const int64_t even = t < s->length ? s->size : 0, odd = t + 1 < s->length ? s->size : 0;
        if (odd > 0) prefetch_row(s, x, wide, t);
        if (odd > 0) prefetch_row(s, x + wide, wide, t + 1);
        for (int64_t i = 0; i < s->cols; i += 16)
            _mm512_storeu_si512(to + i, pairs_of(row_part(x, i, even, factor), row_part(x + wide, i, odd, factor)));
    }
}

/* (length, size) at x -> panels of (size / 2, 32 rows of x) */
static void pack_panels(operand *to, const head_shape *s, const float *x, int64_t wide)
{
    const __m512 one = _mm512_set1_ps(1.0f);
    const int64_t pairs = DEPTH_OF(s->size);

    for (int64_t p = 0; p < s->rows; p += PANEL, to += PANEL * pairs)
        for (int64_t t = 0; t < PANEL; t += 16)
            for (int64_t i = 0; i < pairs; i += 16) {
                __m512i words[16];
                uint32_t turned[16 * 16];
                for (int64_t r = 0; r < 16; r++) {
                    const float *row = x + (p + t + r) * wide;
                    int64_t n = p + t + r < s->length ? s->size : 0;
                    words[r] =
                        (__m512i)_mm512_cvtne2ps_pbh(row_part(row, 2 * i + 16, n, one), row_part(row, 2 * i, n, one));
                }
                if (pairs - i >= 16) {
                    turn16(to + i * PANEL + t, PANEL, words);
                    continue;
                }
                turn16(turned, 16, words);
                for (int64_t l = 0; l < pairs - i; l++)
                    memcpy(to + (i + l) * PANEL + t, turned + l * 16, 16 * sizeof(*to));
            }
}

/* Rows of x, n numbers each, a multiple of sixteen, become a left side in their place, with the same stride. */
CPU_INLINE const operand *as_left(const head_shape *s, float *x, int64_t rows, int64_t stride, int64_t n)
{
    (void)s;
    for (int64_t r = 0; r < rows; r++, x += stride)
        for (int64_t i = 0; i < n; i += 16)
            _mm256_storeu_si256((__m256i *)(void *)(x + i / 2), (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(x + i)));
    return (const operand *)(const void *)(x - rows * stride);
}

/* Columns of x (rows, stride), of which n are in use, as a left side: (rows / 2, stride) at `to`. */
CPU_INLINE const operand *as_turned_left(const head_shape *s, operand *to, float *x, int64_t rows, int64_t stride,
                                         int64_t n)
{
    (void)s;
    for (int64_t r = 0; r < rows; r += 2, x += 2 * stride)
        for (int64_t i = 0; i < n; i += 16)
            _mm512_storeu_si512(to + r / 2 * stride + i,
                                pairs_of(_mm512_loadu_ps(x + i), _mm512_loadu_ps(x + stride + i)));
    return to;
}
