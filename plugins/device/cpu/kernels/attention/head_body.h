/* plugins/device/cpu/kernels/attention/head_body.h -- of attention: one head of one sample, and which segments see each
 * other. Included before the operands and attention_body.h, which says how all of it is used. */

#define GROUP  INT64_C(8)
#define PANEL  INT64_C(32)
#define STRIP  INT64_C(32)
#define SQUARE INT64_C(64)

#define DEPTH_OF(numbers) (((numbers) + DEEP - 1) / DEEP) /* operands of so many numbers */

/* ---- a head ------------------------------------------------------------------------------------------------------ */
typedef struct head_shape {
    int64_t length, size;              /* T, d */
    int64_t rows, cols;                /* the same, padded */
    int64_t q_wide, kv_wide, out_wide; /* floats from a row of q, of k and v, of y to the next */
    const float *q, *k, *v;            /* of this head */
    int64_t q_at, kv_at, out;          /* offsets of its first element in the whole of q, of k and v, of y */
    uint64_t first;                    /* element of the dropout of its first weight */
    const int64_t *segment;            /* (length); NULL: all are of one */
    int64_t *low, *high;               /* by panel: the least and the largest of its segments, 0 above all */
    float scale;
    bool causal, bf16;
} head_shape;

/* Keys that query t sees. */
CPU_INLINE int64_t keys_of(const head_shape *s, int64_t t) { return s->causal ? t + 1 : s->length; }
/* The same of keys below `end`. */
CPU_INLINE int64_t seen_of(const head_shape *s, int64_t t, int64_t end)
{
    return keys_of(s, t) < end ? keys_of(s, t) : end;
}

static head_shape shape_of(const cpu_attention *a, int64_t number)
{
    int64_t n = number / a->heads, h = number % a->heads, e = a->heads * a->size;
    head_shape s = {.length = a->length,
                    .size = a->size,
                    .rows = (a->length + PANEL - 1) / PANEL * PANEL,
                    .cols = (a->size + 15) / 16 * 16,
                    .q_wide = a->q_wide,
                    .kv_wide = a->kv_wide,
                    .out_wide = e,
                    .q_at = n * a->length * a->q_wide + h * a->size,
                    .kv_at = n * a->length * a->kv_wide + h / (a->heads / a->kv_heads) * a->size,
                    .out = n * a->length * e + h * a->size,
                    .first = (uint64_t)number * (uint64_t)a->length * (uint64_t)a->length,
                    .segment = a->segment != NULL ? a->segment + n * a->length : NULL,
                    .scale = a->scale,
                    .causal = a->causal,
                    .bf16 = a->bf16};

    s.q = a->q + s.q_at;
    s.k = a->k + s.kv_at;
    s.v = a->v + s.kv_at;
    return s;
}

/* ---- segments ---------------------------------------------------------------------------------------------------- */
/* Of packed samples they rise, with the padding 0 at the end, so that a panel's lie between its least and largest;
 * of others more is looked at than need be. */
CPU_INLINE int64_t rank_of(int64_t segment) { return segment == 0 ? INT64_MAX : segment; }

/* Into 2 rows / PANEL numbers. */
static void segment_ranges(head_shape *s, int64_t *to)
{
    s->low = to;
    s->high = to + s->rows / PANEL;
    for (int64_t p = 0; p < s->rows && s->segment != NULL; p += PANEL) {
        int64_t low = INT64_MAX, high = INT64_MIN;
        for (int64_t t = p; t < p + PANEL && t < s->length; t++) {
            int64_t r = rank_of(s->segment[t]);
            low = r < low ? r : low;
            high = r > high ? r : high;
        }
        s->low[p / PANEL] = low;
        s->high[p / PANEL] = high;
    }
}

/* Whether one of positions i .. i + n - 1 may see one of j .. j + m - 1, panels of both. */
static bool overlap(const head_shape *s, int64_t i, int64_t n, int64_t j, int64_t m)
{
    if (s->segment == NULL) return true;
    for (int64_t a = i / PANEL; a * PANEL < i + n; a++)
        for (int64_t b = j / PANEL; b * PANEL < j + m; b++)
            if (s->low[a] <= s->high[b] && s->low[b] <= s->high[a]) return true;
    return false;
}

/* Whether all of them see each other, but for what is causal. */
static bool alike(const head_shape *s, int64_t i, int64_t n, int64_t j, int64_t m)
{
    if (s->segment == NULL) return true;
    for (int64_t a = i / PANEL; a * PANEL < i + n; a++)
        for (int64_t b = j / PANEL; b * PANEL < j + m; b++)
            if (s->low[a] != s->high[a] || s->low[b] != s->high[b] || s->low[a] != s->low[b]) return false;
    return true;
}

/* x[i] = value for the keys j + i, i < n, that query t does not see. */
CPU_INLINE void hide(const head_shape *s, float *x, int64_t t, int64_t j, int64_t n, const float value)
{
    const int64_t own = s->segment[t], *of = s->segment + j;

    for (int64_t i = 0; i < n; i++) x[i] = of[i] == own ? x[i] : value;
}

/* ---- packing ----------------------------------------------------------------------------------------------------- */
/* What lies further apart than the hardware's prefetcher follows is asked for this many rows before. */
#define AHEAD INT64_C(8)

CPU_INLINE void prefetch_row(const head_shape *s, const float *x, int64_t wide, int64_t t)
{
    if (t + AHEAD >= s->length) return;
    for (int64_t i = 0; i < s->size; i += 16) __builtin_prefetch(x + AHEAD * wide + i);
}
