/* ddpengine/reduce.h -- arithmetic of reductions in host memory, for backends and hooks: two arrays into one, the
 * division of DDP_AVG, and bf16. Buffers need not be aligned; the same bits on every machine. */
#ifndef DDPENGINE_REDUCE_H
#define DDPENGINE_REDUCE_H

#include <ddpengine/backend.h>

#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

static inline float ddp_bf16_to_f32(uint16_t h)
{
    const uint32_t bits = (uint32_t)h << 16;
    float f;

    memcpy(&f, &bits, sizeof(f));
    return f;
}

static inline uint16_t ddp_f32_to_bf16(float f) /* to nearest, ties to even */
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof(bits));
    if (f != f) return (uint16_t)(bits >> 16 | 0x40); /* a NaN stays one */
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Whether the functions below know the dtype with the operation: all of them, but no AVG of integers. */
static inline int ddp_reduce_has(uint32_t dtype, uint32_t op)
{
    if (dtype < DDP_F32 || dtype >= DDP_DTYPE_END_ || op < DDP_SUM || op >= DDP_REDUCE_OP_END_) return 0;
    return op != DDP_AVG || dtype == DDP_F32 || dtype == DDP_BF16 || dtype == DDP_F64;
}

/* T: as stored; V: what is added, an unsigned type where integers sum modulo 2^n. */
#define DDP_REDUCE_LOOP_(name, T, V, get, put)                                                                         \
    static inline void ddp_reduce_##name##_(char *to, const char *x, size_t count, uint32_t op)                        \
    {                                                                                                                  \
        size_t i;                                                                                                      \
                                                                                                                       \
        for (i = 0; i < count; i++) {                                                                                  \
            T a, b;                                                                                                    \
                                                                                                                       \
            memcpy(&a, to + i * sizeof(T), sizeof(T));                                                                 \
            memcpy(&b, x + i * sizeof(T), sizeof(T));                                                                  \
            if (op == DDP_MIN)                                                                                         \
                a = get(b) < get(a) || get(b) != get(b) ? b : a;                                                       \
            else if (op == DDP_MAX)                                                                                    \
                a = get(b) > get(a) || get(b) != get(b) ? b : a;                                                       \
            else                                                                                                       \
                a = put((V)((V)get(a) + (V)get(b)));                                                                   \
            memcpy(to + i * sizeof(T), &a, sizeof(T));                                                                 \
        }                                                                                                              \
    }
DDP_REDUCE_LOOP_(f32, float, float, , )
DDP_REDUCE_LOOP_(f64, double, double, , )
DDP_REDUCE_LOOP_(i32, int32_t, uint32_t, , (int32_t))
DDP_REDUCE_LOOP_(i64, int64_t, uint64_t, , (int64_t))
DDP_REDUCE_LOOP_(u8, uint8_t, uint32_t, , (uint8_t))
DDP_REDUCE_LOOP_(bf16, uint16_t, float, ddp_bf16_to_f32, ddp_f32_to_bf16)
#undef DDP_REDUCE_LOOP_

/* to[i] = to[i] op x[i] for `count` elements; AVG sums. Of MIN and MAX a NaN on either side is the result. bf16 is
 * added in f32 and rounded. */
static inline void ddp_reduce(uint32_t dtype, uint32_t op, void *to, const void *x, size_t count)
{
    switch (dtype) {
    case DDP_F32: ddp_reduce_f32_((char *)to, (const char *)x, count, op); break;
    case DDP_F64: ddp_reduce_f64_((char *)to, (const char *)x, count, op); break;
    case DDP_I32: ddp_reduce_i32_((char *)to, (const char *)x, count, op); break;
    case DDP_I64: ddp_reduce_i64_((char *)to, (const char *)x, count, op); break;
    case DDP_U8: ddp_reduce_u8_((char *)to, (const char *)x, count, op); break;
    default: ddp_reduce_bf16_((char *)to, (const char *)x, count, op); break;
    }
}

/* x[i] /= by, rounded once: the end of AVG, after the sum over `by` ranks. f32, bf16 and f64. */
static inline void ddp_reduce_divide(uint32_t dtype, void *x, size_t count, uint32_t by)
{
    char *at = (char *)x;
    size_t i;

    for (i = 0; i < count; i++, at += ddp_dtype_size(dtype)) {
        float f;
        double d;
        uint16_t h;

        if (dtype == DDP_F32) {
            memcpy(&f, at, sizeof(f));
            f /= (float)by;
            memcpy(at, &f, sizeof(f));
        } else if (dtype == DDP_F64) {
            memcpy(&d, at, sizeof(d));
            d /= (double)by;
            memcpy(at, &d, sizeof(d));
        } else {
            memcpy(&h, at, sizeof(h));
            h = ddp_f32_to_bf16(ddp_bf16_to_f32(h) / (float)by);
            memcpy(at, &h, sizeof(h));
        }
    }
}

#ifdef __cplusplus
}
#endif
#endif
