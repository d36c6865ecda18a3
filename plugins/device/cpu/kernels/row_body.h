/* plugins/device/cpu/kernels/row_body.h -- one row times a matrix, and attention of a few new positions over keys and
 * values that are kept. Included by kernels_body.h only.
 *
 * Such a product reads each weight once, so memory is what it waits for, and memory is fastest in one stream: rows of
 * the matrix one after the other, whole lines at a time (Zen 4: 30 GB/s, next to what a core reads; 22 with eight rows
 * at once). Each element's sum has one order, whatever the registers, and whatever columns a thread has: the same bits
 * on every CPU and with any number of threads. */

#define ABREAST INT64_C(4) /* of sixteen floats */

/* y[j] = x * w[j], or added to y[j] */
CPU_INLINE void scaled_row(float *y, const float x, const float *w, int64_t cols, const bool add)
{
    const f16 factor = f16_set(x);
    int64_t j = 0;

    for (; j + 16 * ABREAST <= cols; j += 16 * ABREAST) {
        CPU_UNROLL for (int64_t v = 0; v < ABREAST; v++)
        {
            f16 s = add ? f16_load(y + j + 16 * v) : f16_set(0);
            f16_store(y + j + 16 * v, f16_fma(factor, f16_load(w + j + 16 * v), s));
        }
    }
    for (; j < cols; j++) y[j] = fmaf(x, w[j], add ? y[j] : 0.0f);
}

static void row_product(float *y, const float *x, const float *w, int64_t stride, int64_t rows, int64_t cols)
{
    scaled_row(y, x[0], w, cols, false);
    for (int64_t r = 1; r < rows; r++) scaled_row(y, x[r], w + r * stride, cols, true);
}

/* The sum of x[i] * w[i] in 64 lanes. */
CPU_INLINE float dot(const float *x, const float *w, int64_t n)
{
    f16 s[ABREAST];
    int64_t i = 0;

    CPU_UNROLL for (int64_t v = 0; v < ABREAST; v++) s[v] = f16_set(0);
    for (; i + 16 * ABREAST <= n; i += 16 * ABREAST) {
        CPU_UNROLL for (int64_t v = 0; v < ABREAST; v++) s[v] =
            f16_fma(f16_load(x + i + 16 * v), f16_load(w + i + 16 * v), s[v]);
    }
    for (; i < n; i += 16) s[0] = f16_fma(f16_load_part(x + i, n - i), f16_load_part(w + i, n - i), s[0]);
    return f16_sum(f16_add(f16_add(s[0], s[1]), f16_add(s[2], s[3])));
}

static void row_dots(float *y, const float *x, const float *w, int64_t stride, int64_t n, int64_t count)
{
    for (int64_t r = 0; r < count; r++) y[r] = dot(x, w + r * stride, n);
}

/* ---- attention over a cache -------------------------------------------------------------------------------------- */
/* One head of one sample. */
typedef struct cached_head {
    int64_t length, size, capacity, start, q_wide, kv_wide, out_wide;
    const float *q, *k, *v; /* (length, size) in rows that are so wide */
    float *keys;            /* (size, capacity) */
    float *values;          /* (capacity, size) */
    float *y;               /* (length, size) */
    float scale;
} cached_head;

/* The first of the heads of q that go with head `number` of k and v. */
static cached_head cached_head_of(const cpu_cached_attention *a, int64_t number, float *y)
{
    int64_t n = number / a->kv_heads, kv = number % a->kv_heads, at = a->heads / a->kv_heads * kv * a->size;
    int64_t rows = n * a->length, e = a->heads * a->size;

    return (cached_head){.length = a->length,
                         .size = a->size,
                         .capacity = a->capacity,
                         .start = a->start[n],
                         .q_wide = a->q_wide,
                         .kv_wide = a->kv_wide,
                         .out_wide = e,
                         .q = a->q + rows * a->q_wide + at,
                         .k = a->k + rows * a->kv_wide + kv * a->size,
                         .v = a->v + rows * a->kv_wide + kv * a->size,
                         .keys = a->keys + number * a->capacity * a->size,
                         .values = a->values + number * a->capacity * a->size,
                         .y = y + rows * e + at,
                         .scale = a->scale};
}

static void append(const cached_head *h)
{
    for (int64_t t = 0; t < h->length; t++) {
        const float *k = h->k + t * h->kv_wide, *v = h->v + t * h->kv_wide;
        for (int64_t i = 0; i < h->size; i++) h->keys[i * h->capacity + h->start + t] = k[i];
        memcpy(h->values + (h->start + t) * h->size, v, (size_t)h->size * sizeof(*v));
    }
}

/* Scores become weights, with zeros after them up to `all`, a multiple of 32; returns one over their sum. */
CPU_INLINE float cached_softmax(float *scores, int64_t seen, int64_t all)
{
    softmax_exp(scores, seen, all, softmax_max(scores, seen));
    return 1.0f / softmax_sum(scores, all);
}

/* Query t alone. scratch: size, then scores up to a multiple of 32. */
static void cached_row(const cached_head *h, int64_t t, float *scratch)
{
    float *q = scratch, *scores = q + (h->size + 15) / 16 * 16, *y = h->y + t * h->out_wide, inverse;
    const float *from = h->q + t * h->q_wide;
    int64_t seen = h->start + t + 1;

    MAP(h->size, q[i] = from[i] * h->scale)
    row_product(scores, q, h->keys, h->capacity, h->size, seen);
    inverse = cached_softmax(scores, seen, (seen + 31) / 32 * 32);
    row_product(y, scores, h->values, h->size, seen, h->size);
    MAP(h->size, y[i] *= inverse)
}

/* Queries t .. t + GROUP - 1, of which there may be fewer. Whole registers of keys are read, and scores of what is not
 * seen are overwritten; of values only rows that are there: 0 times what may stand behind them need not be 0. */
static void cached_group(const cached_head *h, int64_t t, float *scratch)
{
    int64_t rows = h->length - t < GROUP ? h->length - t : GROUP, last = h->start + t + rows;
    int64_t whole = (last + 15) / 16 * 16, all = (last + 31) / 32 * 32, wide = (h->capacity + 31) / 32 * 32;
    float *q = scratch, *out = q + GROUP * h->size, *scores = out + GROUP * h->size, inverse[GROUP] = {0};

    for (int64_t r = 0; r < GROUP; r++) {
        const float *from = h->q + (t + (r < rows ? r : 0)) * h->q_wide;
        MAP(h->size, q[r * h->size + i] = from[i] * h->scale)
    }
    group_product(scores, wide, q, h->size, 1, h->keys, h->capacity, h->size, whole, false);
    for (int64_t r = 0; r < GROUP; r++) {
        int64_t seen = h->start + t + (r < rows ? r : 0) + 1;
        inverse[r] = cached_softmax(scores + r * wide, seen, all);
    }
    group_product(out, h->size, scores, wide, 1, h->values, h->size, last, h->size, false);
    for (int64_t r = 0; r < rows; r++) {
        float *y = h->y + (t + r) * h->out_wide;
        const float *from = out + r * h->size;
        MAP(h->size, y[i] = from[i] * inverse[r])
    }
}

static void cached_attention(const cpu_cached_attention *a, int64_t number, float *y, float *scratch)
{
    cached_head h = cached_head_of(a, number, y);
    bool groups = h.length > 1 && h.size % 16 == 0 && h.capacity % 16 == 0;

    append(&h);
    for (int64_t i = 0; i < a->heads / a->kv_heads; i++, h.q += h.size, h.y += h.size)
        for (int64_t t = 0; t < h.length; t += groups ? GROUP : 1)
            if (groups)
                cached_group(&h, t, scratch);
            else
                cached_row(&h, t, scratch);
}

/* Floats for one head. */
static int64_t cached_attention_scratch(const cpu_cached_attention *a)
{
    return GROUP * (2 * ((a->size + 15) / 16 * 16) + (a->capacity + 31) / 32 * 32);
}
