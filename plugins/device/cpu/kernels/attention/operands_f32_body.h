/* plugins/device/cpu/kernels/attention/operands_f32_body.h -- what attention multiplies, in f32, or in f32 rounded to
 * bf16: an operand is one number, and one packing serves as the left and as the right side of a product. Included
 * between head_body.h and attention_body.h. */
#if CPU_VECTOR == 16
#include "kernels/turn_body.h"
#endif

typedef float operand;
typedef cpu_vec operand_vec;

#define DEEP        INT64_C(1) /* numbers of an operand */
#define ONE_PACKING true       /* left and right sides are packed alike */

CPU_INLINE operand_vec operand_load(const operand *p) { return vec_load(p); }
CPU_INLINE operand_vec operand_spread(operand x) { return x - (cpu_vec){0}; }
CPU_INLINE cpu_vec operand_fma(operand_vec a, operand_vec b, cpu_vec c) { return vec_fma(a, b, c); }

/* (length, size) at x, rows `wide` apart, times scale -> (rows, cols) padded with zeros */
static void pack_left(operand *to, const head_shape *s, const float *x, int64_t wide, float scale)
{
    for (int64_t t = 0; t < s->length; t++, to += s->cols, x += wide) {
        prefetch_row(s, x, wide, t);
        MAP(s->size, to[i] = x[i] * scale)
        for (int64_t i = s->size; i < s->cols; i++) to[i] = 0.0f;
    }
    memset(to, 0, (size_t)((s->rows - s->length) * s->cols) * sizeof(*to));
    if (s->bf16) round_bf16(to - s->length * s->cols, to - s->length * s->cols, s->length * s->cols);
}

CPU_INLINE void pack_right(operand *to, const head_shape *s, const float *x, int64_t wide, float scale)
{
    pack_left(to, s, x, wide, scale);
}

/* Rows p .. p + PANEL - 1 of x as one panel */
CPU_INLINE void pack_panel(operand *to, const head_shape *s, const float *x, int64_t wide, int64_t p)
{
    for (int64_t t0 = 0; t0 < PANEL; t0 += 16) {
        int64_t i = 0, count = s->length - p - t0 < 16 ? s->length - p - t0 : 16;
#if CPU_VECTOR == 16
        for (; count == 16 && i + 16 <= s->size; i += 16) {
            __m512i words[16];
            CPU_UNROLL for (int64_t r = 0; r < 16; r++) words[r] = _mm512_loadu_si512(x + (p + t0 + r) * wide + i);
            turn16((uint32_t *)(void *)(to + i * PANEL + t0), PANEL, words);
        }
#endif
        for (; i < s->size; i++)
            for (int64_t t = 0; t < 16; t++) to[i * PANEL + t0 + t] = t < count ? x[(p + t0 + t) * wide + i] : 0.0f;
    }
}

/* (length, size) at x -> panels of (size, 32 rows of x) */
static void pack_panels(operand *to, const head_shape *s, const float *x, int64_t wide)
{
    for (int64_t p = 0; p < s->rows; p += PANEL, to += PANEL * s->size) {
        pack_panel(to, s, x, wide, p);
        if (s->bf16) round_bf16(to, to, PANEL * s->size);
    }
}

/* Rows of x, n numbers each, as a left side: where they are. */
CPU_INLINE const operand *as_left(const head_shape *s, float *x, int64_t rows, int64_t stride, int64_t n)
{
    for (int64_t r = 0; r < rows && s->bf16; r++) round_bf16(x + r * stride, x + r * stride, n);
    return x;
}

/* Columns of x (rows, stride), of which n are in use, as a left side: where they are. */
CPU_INLINE const operand *as_turned_left(const head_shape *s, operand *to, float *x, int64_t rows, int64_t stride,
                                         int64_t n)
{
    (void)to;
    return as_left(s, x, rows, stride, n);
}
