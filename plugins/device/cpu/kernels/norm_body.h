/* plugins/device/cpu/kernels/norm_body.h -- layer norm, RMS norm and their gradients, row by row; the
 * words of ddp_philox as masks. Included by kernels_body.h only.
 *
 * A row is read from memory once and stays in L1 for the passes over it. Sums have 64 lanes, four registers of
 * sixteen. */

#define WAYS INT64_C(4)

CPU_INLINE float ways_sum(const f16 *s) { return f16_sum(f16_add(f16_add(s[0], s[1]), f16_add(s[2], s[3]))); }

CPU_INLINE float row_total(const float *x, int64_t n)
{
    f16 s[WAYS] = {f16_set(0), f16_set(0), f16_set(0), f16_set(0)};
    int64_t i = 0;

    for (; i + 16 * WAYS <= n; i += 16 * WAYS) {
        CPU_UNROLL for (int64_t w = 0; w < WAYS; w++) s[w] = f16_add(s[w], f16_load(x + i + 16 * w));
    }
    CPU_UNROLL for (int64_t w = 0; w < WAYS; w++, i += 16) /* a constant index, or s would lie in memory */
    {
        if (i < n) s[w] = f16_add(s[w], f16_load_part(x + i, n - i));
    }
    return ways_sum(s);
}

/* The first n of x - mean, 0 after them. */
CPU_INLINE f16 rest_minus(const float *x, float mean, int64_t n)
{
    float rest[16] = {0};

    for (int64_t l = 0; l < 16 && l < n; l++) rest[l] = x[l] - mean;
    return f16_load(rest);
}

/* Sum of (x - mean)^2. */
CPU_INLINE float row_spread(const float *x, float mean, int64_t n)
{
    f16 s[WAYS] = {f16_set(0), f16_set(0), f16_set(0), f16_set(0)}, m = f16_set(mean);
    int64_t i = 0;

    for (; i + 16 * WAYS <= n; i += 16 * WAYS) {
        CPU_UNROLL for (int64_t w = 0; w < WAYS; w++)
        {
            f16 d = f16_sub(f16_load(x + i + 16 * w), m);
            s[w] = f16_fma(d, d, s[w]);
        }
    }
    CPU_UNROLL for (int64_t w = 0; w < WAYS; w++, i += 16)
    {
        if (i < n) {
            f16 d = rest_minus(x + i, mean, n - i);
            s[w] = f16_fma(d, d, s[w]);
        }
    }
    return ways_sum(s);
}

static void layer_norm(float *y, float *mean, float *invstd, float *sum, const float *x, const float *residual,
                       const float *w, const float *b, int64_t rows, int64_t n, double eps)
{
    for (int64_t r = 0; r < rows; r++) {
        const float *row = x + r * n;
        float *out = y + r * n, m, k;
        if (residual != NULL) {
            const float *other = residual + r * n;
            float *to = sum + r * n;
            MAP(n, to[i] = row[i] + other[i])
            row = to;
        }
        m = row_total(row, n) / (float)n;
        k = (float)(1.0 / sqrt((double)(row_spread(row, m, n) / (float)n) + eps));
        MAP(n, out[i] = fmaf((row[i] - m) * k, w[i], b[i]))
        if (mean != NULL) mean[r] = m;
        if (invstd != NULL) invstd[r] = k;
    }
}

/* Of sixteen elements, g = dy w and h = (x - mean) invstd: adds g and g h to the sums; dw and db, which have room
 * for all sixteen, get dy h and dy. */
typedef struct grad_row {
    f16 mean, invstd, g, gh;
} grad_row;

CPU_INLINE void grad_sixteen(grad_row *s, float *dw, float *db, f16 dy, f16 x, f16 w)
{
    f16 h = f16_mul(f16_sub(x, s->mean), s->invstd), g = f16_mul(dy, w);

    s->g = f16_add(s->g, g);
    s->gh = f16_fma(g, h, s->gh);
    f16_store(dw, f16_fma(dy, h, f16_load(dw)));
    f16_store(db, f16_add(dy, f16_load(db)));
}

CPU_INLINE void grad_sums(float *dw, float *db, const float *dy, const float *x, const float *w, float mean,
                          float invstd, int64_t n, float out[2])
{
    grad_row a = {f16_set(mean), f16_set(invstd), f16_set(0), f16_set(0)}, b = a;
    int64_t i = 0;

    for (; i + 32 <= n; i += 32) {
        int64_t k = i + 16;
        grad_sixteen(&a, dw + i, db + i, f16_load(dy + i), f16_load(x + i), f16_load(w + i));
        grad_sixteen(&b, dw + k, db + k, f16_load(dy + k), f16_load(x + k), f16_load(w + k));
    }
    for (; i < n; i += 16)
        grad_sixteen(&a, dw + i, db + i, f16_load_part(dy + i, n - i), f16_load_part(x + i, n - i),
                     f16_load_part(w + i, n - i));
    out[0] = f16_sum(f16_add(a.g, b.g));
    out[1] = f16_sum(f16_add(a.gh, b.gh));
}

static void layer_norm_grad(float *dx, float *dw, float *db, const float *dy, const float *x, const float *w,
                            const float *mean, const float *invstd, const float *residual, int64_t rows, int64_t n)
{
    int64_t padded = (n + 15) / 16 * 16;

    memset(dw, 0, (size_t)padded * sizeof(*dw));
    memset(db, 0, (size_t)padded * sizeof(*db));
    for (int64_t r = 0; r < rows; r++) {
        const float *d = dy + r * n, *in = x + r * n, m = mean[r], k = invstd[r];
        float sums[2], a, b, *out = dx != NULL ? dx + r * n : NULL;
        grad_sums(dw, db, d, in, w, m, k, n, sums);
        if (out == NULL) continue;
        /* invstd (g - mean(g) - h mean(g h)) */
        a = -sums[0] / (float)n;
        b = -sums[1] / (float)n * k;
        if (residual == NULL) {
            MAP(n, out[i] = fmaf(in[i] - m, b, fmaf(d[i], w[i], a)) * k)
        } else {
            const float *other = residual + r * n;
            MAP(n, out[i] = fmaf(fmaf(in[i] - m, b, fmaf(d[i], w[i], a)), k, other[i]))
        }
    }
}

/* ---- RMS norm ---------------------------------------------------------------------------------------------------- */
static void rms_norm(float *y, float *invstd, float *sum, const float *x, const float *residual, const float *w,
                     int64_t rows, int64_t n, double eps)
{
    for (int64_t r = 0; r < rows; r++) {
        const float *row = x + r * n;
        float *out = y + r * n, k;
        if (residual != NULL) {
            const float *other = residual + r * n;
            float *to = sum + r * n;
            MAP(n, to[i] = row[i] + other[i])
            row = to;
        }
        k = (float)(1.0 / sqrt((double)(row_spread(row, 0.0f, n) / (float)n) + eps));
        MAP(n, out[i] = row[i] * k * w[i])
        if (invstd != NULL) invstd[r] = k;
    }
}

/* Adds dy h to dw, which has room for sixteen, and gives dy w h, with h = x invstd. */
CPU_INLINE f16 rms_sixteen(float *dw, f16 dy, f16 x, f16 w, f16 invstd)
{
    f16 h = f16_mul(x, invstd);

    f16_store(dw, f16_fma(dy, h, f16_load(dw)));
    return f16_mul(f16_mul(dy, w), h);
}

/* The sum of dy w h over a row. */
CPU_INLINE float rms_grad_sum(float *dw, const float *dy, const float *x, const float *w, float invstd, int64_t n)
{
    f16 a = f16_set(0), b = a, s = f16_set(invstd);
    int64_t i = 0;

    for (; i + 32 <= n; i += 32) {
        int64_t k = i + 16;
        a = f16_add(a, rms_sixteen(dw + i, f16_load(dy + i), f16_load(x + i), f16_load(w + i), s));
        b = f16_add(b, rms_sixteen(dw + k, f16_load(dy + k), f16_load(x + k), f16_load(w + k), s));
    }
    for (; i < n; i += 16)
        a = f16_add(a, rms_sixteen(dw + i, f16_load_part(dy + i, n - i), f16_load_part(x + i, n - i),
                                   f16_load_part(w + i, n - i), s));
    return f16_sum(f16_add(a, b));
}

static void rms_norm_grad(float *dx, float *dw, const float *dy, const float *x, const float *w, const float *invstd,
                          const float *residual, int64_t rows, int64_t n)
{
    memset(dw, 0, (size_t)((n + 15) / 16 * 16) * sizeof(*dw));
    for (int64_t r = 0; r < rows; r++) {
        const float *d = dy + r * n, *in = x + r * n, k = invstd[r];
        float sum = rms_grad_sum(dw, d, in, w, k, n), *out = dx != NULL ? dx + r * n : NULL;
        const float b = -sum / (float)n * k;
        if (out == NULL) continue;
        /* invstd (g - h mean(g h)) */
        if (residual == NULL) {
            MAP(n, out[i] = fmaf(in[i], b, d[i] * w[i]) * k)
        } else {
            const float *other = residual + r * n;
            MAP(n, out[i] = fmaf(fmaf(in[i], b, d[i] * w[i]), k, other[i]))
        }
    }
}
