/* plugins/backend/common/kernels_body.h -- the kernels, compiled once for each instruction set by the file that
 * includes it.
 *
 * The including file defines DDP_ISA_NAME, DDP_ISA_TABLE and DDP_STREAM(to, v), which stores a `line` to a float *
 * that is a multiple of 64, past the caches where it can; DDP_FENCE() orders such stores before later ones. It has
 * included string.h, bf16.h and reduce.h. Loops are written so that the compiler vectorises them. */

#if defined(__clang__)
#define DDP_IVDEP _Pragma("clang loop vectorize(assume_safety)")
#else
#define DDP_IVDEP _Pragma("GCC ivdep")
#endif

/* 64 bytes of floats, anywhere in memory. Never passed to a function: that would be another ABI on each instruction
 * set. */
typedef float line __attribute__((vector_size(64), may_alias));
typedef float line_anywhere __attribute__((vector_size(64), aligned(4), may_alias));

#define SAME(x)       (x)
#define ADD(a, b)     ((a) + (b))
#define LESSER(a, b)  ((b) < (a) ? (b) : (a))
#define GREATER(a, b) ((b) > (a) ? (b) : (a))

/* T: element, A: accumulator; LOAD: T to A, STORE: A to T (may use n). `out` may be exactly one of the sources, so
 * no iteration depends on another: ivdep. */
#define REDUCTION(NAME, T, A, LOAD, COMBINE, STORE)                                                                    \
    static void NAME(void *out, const void *const *in, uint32_t n, size_t at, size_t count)                            \
    {                                                                                                                  \
        T *const o = out;                                                                                              \
        const T *const x = (const T *)in[0] + at;                                                                      \
        A acc[DDP_REDUCE_BLOCK];                                                                                       \
                                                                                                                       \
        if (n == 2) {                                                                                                  \
            const T *const y = (const T *)in[1] + at;                                                                  \
            DDP_IVDEP for (size_t i = 0; i < count; i++)                                                               \
            {                                                                                                          \
                A v = (A)COMBINE((A)LOAD(x[i]), (A)LOAD(y[i]));                                                        \
                o[i] = (T)STORE(v);                                                                                    \
            }                                                                                                          \
            return;                                                                                                    \
        }                                                                                                              \
        for (size_t i = 0; i < count; i++) acc[i] = (A)LOAD(x[i]);                                                     \
        for (uint32_t k = 1; k < n; k++) {                                                                             \
            const T *const y = (const T *)in[k] + at;                                                                  \
            for (size_t i = 0; i < count; i++) acc[i] = (A)COMBINE(acc[i], (A)LOAD(y[i]));                             \
        }                                                                                                              \
        for (size_t i = 0; i < count; i++) o[i] = (T)STORE(acc[i]);                                                    \
    }

#define OVER_F32(v)  ((v) / (float)n)
#define OVER_F64(v)  ((v) / (double)n)
#define OVER_INT(v)  ((v) / (int64_t)n)
#define OVER_I64(v)  ((int64_t)(v) / (int64_t)n)
#define OVER_BF16(v) ddp_bf16_store(OVER_F32(v))

REDUCTION(f32_sum, float, float, SAME, ADD, SAME)
REDUCTION(f32_avg, float, float, SAME, ADD, OVER_F32)
REDUCTION(f32_min, float, float, SAME, LESSER, SAME)
REDUCTION(f32_max, float, float, SAME, GREATER, SAME)
REDUCTION(bf16_sum, uint16_t, float, ddp_bf16_load, ADD, ddp_bf16_store)
REDUCTION(bf16_avg, uint16_t, float, ddp_bf16_load, ADD, OVER_BF16)
REDUCTION(bf16_min, uint16_t, float, ddp_bf16_load, LESSER, ddp_bf16_store)
REDUCTION(bf16_max, uint16_t, float, ddp_bf16_load, GREATER, ddp_bf16_store)
REDUCTION(f64_sum, double, double, SAME, ADD, SAME)
REDUCTION(f64_avg, double, double, SAME, ADD, OVER_F64)
REDUCTION(f64_min, double, double, SAME, LESSER, SAME)
REDUCTION(f64_max, double, double, SAME, GREATER, SAME)
REDUCTION(i32_sum, int32_t, uint32_t, SAME, ADD, SAME)
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

/* ---- f32, the dtype of gradients: from registers to every destination -------------------------------------------- */
#define IN(k, i)  ((const float *)in[k] + (i))
#define OUT(k, i) ((float *)out[k] + (i))

/* An average multiplies by a half, a quarter .. where it can, which is exact and has the bits of dividing, else it
 * divides; the other of the two is 1. */
typedef struct average_by {
    float scale, divisor;
} average_by;

static average_by average_of(uint32_t n, bool average)
{
    bool exact = (n & (n - 1)) == 0;

    return (average_by){.scale = average && exact ? 1.0f / (float)n : 1.0f,
                        .divisor = average && !exact ? (float)n : 1.0f};
}

static void f32_scalar(void *const *out, uint32_t outs, const void *const *in, uint32_t n, size_t first, size_t last,
                       average_by by)
{
    for (size_t i = first; i < last; i++) {
        float v = *IN(0, i);

        for (uint32_t k = 1; k < n; k++) v += *IN(k, i);
        v *= by.scale;
        if (by.divisor != 1.0f) v /= by.divisor;
        for (uint32_t k = 0; k < outs; k++) *OUT(k, i) = v;
    }
}

/* Two ranks in place: the case of `f32` without inner loops. Returns the element that it has come to. */
#define PAIR(NAME, STORE)                                                                                              \
    static size_t NAME(void *const *out, const void *const *in, size_t i, size_t count, float scale)                   \
    {                                                                                                                  \
        const float *const x = in[0], *const y = in[1];                                                                \
        float *const a = out[0], *const b = out[1];                                                                    \
                                                                                                                       \
        for (; i + 32 <= count; i += 32) {                                                                             \
            line v = *(const line_anywhere *)(x + i), w = *(const line_anywhere *)(x + i + 16);                        \
            v = (v + *(const line_anywhere *)(y + i)) * scale;                                                         \
            w = (w + *(const line_anywhere *)(y + i + 16)) * scale;                                                    \
            STORE(a + i, v);                                                                                           \
            STORE(a + i + 16, w);                                                                                      \
            STORE(b + i, v);                                                                                           \
            STORE(b + i + 16, w);                                                                                      \
        }                                                                                                              \
        return i;                                                                                                      \
    }

#define MANY(NAME, STORE)                                                                                              \
    static size_t NAME(void *const *out, uint32_t outs, const void *const *in, uint32_t n, size_t i, size_t count,     \
                       average_by by)                                                                                  \
    {                                                                                                                  \
        for (; i + 32 <= count; i += 32) {                                                                             \
            line v = *(const line_anywhere *)IN(0, i), w = *(const line_anywhere *)IN(0, i + 16);                      \
            for (uint32_t k = 1; k < n; k++) {                                                                         \
                v += *(const line_anywhere *)IN(k, i);                                                                 \
                w += *(const line_anywhere *)IN(k, i + 16);                                                            \
            }                                                                                                          \
            v *= by.scale;                                                                                             \
            w *= by.scale;                                                                                             \
            if (by.divisor != 1.0f) {                                                                                  \
                v /= by.divisor;                                                                                       \
                w /= by.divisor;                                                                                       \
            }                                                                                                          \
            for (uint32_t k = 0; k < outs; k++) {                                                                      \
                STORE(OUT(k, i), v);                                                                                   \
                STORE(OUT(k, i + 16), w);                                                                              \
            }                                                                                                          \
        }                                                                                                              \
        return i;                                                                                                      \
    }

#define PLAIN(to, v) (*(line_anywhere *)(to) = (v))

PAIR(pair_plain, PLAIN)
PAIR(pair_stream, DDP_STREAM)
MANY(many_plain, PLAIN)
MANY(many_stream, DDP_STREAM)

/* True when byte `at` of every vector begins a line. */
static bool lines_begin(void *const *out, uint32_t outs, size_t at)
{
    for (uint32_t k = 0; k < outs; k++)
        if ((((uintptr_t)out[k] + at) & 63) != 0) return false;
    return true;
}

static void f32(void *const *out, uint32_t outs, const void *const *in, uint32_t n, size_t count, bool average,
                bool stream)
{
    const average_by by = average_of(n, average);
    size_t i = 0;

    if (stream) {
        i = (64 - ((uintptr_t)out[0] & 63)) / sizeof(float) % 16;
        if (i > count) i = count;
        f32_scalar(out, outs, in, n, 0, i, by);
        stream = lines_begin(out, outs, i * sizeof(float));
    }
    if (n == 2 && outs == 2)
        i = stream ? pair_stream(out, in, i, count, by.scale) : pair_plain(out, in, i, count, by.scale);
    else
        i = stream ? many_stream(out, outs, in, n, i, count, by) : many_plain(out, outs, in, n, i, count, by);
    if (stream) DDP_FENCE();
    if (outs == 1) /* the last few: vectors of any length */
        (average ? f32_avg : f32_sum)(OUT(0, i), in, n, i, count - i);
    else
        f32_scalar(out, outs, in, n, i, count, by);
}

static void spread(void *const *out, uint32_t outs, size_t at, const void *from, size_t bytes, bool stream)
{
    size_t lines = stream && lines_begin(out, outs, at) ? bytes / 64 : 0;

    for (uint32_t k = 0; k < outs; k++) {
        char *to = (char *)out[k] + at;
        float *begin = (void *)to;

        for (size_t i = 0; i < lines; i++) DDP_STREAM(begin + i * 16, ((const line *)from)[i]);
        if (bytes > lines * 64) memcpy(to + lines * 64, (const char *)from + lines * 64, bytes - lines * 64);
    }
    if (lines > 0) DDP_FENCE();
}

const ddp_kernels DDP_ISA_TABLE = {
    .isa = DDP_ISA_NAME,
    .block = {[DDP_F32] = {NULL, f32_sum, f32_avg, f32_min, f32_max},
              [DDP_BF16] = {NULL, bf16_sum, bf16_avg, bf16_min, bf16_max},
              [DDP_F64] = {NULL, f64_sum, f64_avg, f64_min, f64_max},
              [DDP_I32] = {NULL, i32_sum, i32_avg, i32_min, i32_max},
              [DDP_I64] = {NULL, i64_sum, i64_avg, i64_min, i64_max},
              [DDP_U8] = {NULL, u8_sum, u8_avg, u8_min, u8_max}},
    .f32 = f32,
    .spread = spread,
};
