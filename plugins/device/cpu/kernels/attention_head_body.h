/* plugins/device/cpu/kernels/attention_head_body.h -- of attention: the small product, one head of one sample, which
 * segments see each other, and packing. Included by attention_body.h only, which says how all of it is used. */

#define GROUP  INT64_C(8)
#define PANEL  INT64_C(32)
#define STRIP  INT64_C(32)
#define SQUARE INT64_C(64)

#if CPU_VECTOR == 16
#define TILE_ROWS INT64_C(8) /* with two registers each, sixteen of 32 hold sums */
#else
#define TILE_ROWS INT64_C(4)
#endif
#define TILE_VECS INT64_C(2)

/* c (TILE_ROWS, vecs) = or += sum over k < depth of a[r * ar + k * ak] * b[k * bk ..] */
CPU_INLINE void tile_product(float *c, int64_t cr, const float *a, int64_t ar, int64_t ak, const float *b, int64_t bk,
                             int64_t depth, bool add, const int64_t vecs)
{
    cpu_vec s[TILE_ROWS][TILE_VECS];

    CPU_UNROLL for (int64_t r = 0; r < TILE_ROWS; r++)
    {
        CPU_UNROLL for (int64_t v = 0; v < vecs; v++) s[r][v] =
            add ? vec_load(c + r * cr + v * CPU_VECTOR) : (cpu_vec){0};
    }
    for (int64_t k = 0; k < depth; k++, a += ak, b += bk) {
        cpu_vec x[TILE_VECS];
        CPU_UNROLL for (int64_t v = 0; v < vecs; v++) x[v] = vec_load(b + v * CPU_VECTOR);
        CPU_UNROLL for (int64_t r = 0; r < TILE_ROWS; r++)
        {
            cpu_vec y = a[r * ar] - (cpu_vec){0};
            CPU_UNROLL for (int64_t v = 0; v < vecs; v++) s[r][v] = vec_fma(y, x[v], s[r][v]);
        }
    }
    CPU_UNROLL for (int64_t r = 0; r < TILE_ROWS; r++)
    {
        CPU_UNROLL for (int64_t v = 0; v < vecs; v++) vec_store(c + r * cr + v * CPU_VECTOR, s[r][v]);
    }
}

/* Eight rows of c, n columns, a multiple of sixteen. */
static void group_product(float *c, int64_t cr, const float *a, int64_t ar, int64_t ak, const float *b, int64_t bk,
                          int64_t depth, int64_t n, bool add)
{
    for (int64_t r = 0; r < GROUP; r += TILE_ROWS) {
        int64_t j = 0;
        for (; j + TILE_VECS * CPU_VECTOR <= n; j += TILE_VECS * CPU_VECTOR)
            tile_product(c + r * cr + j, cr, a + r * ar, ar, ak, b + j, bk, depth, add, TILE_VECS);
        for (; j < n; j += CPU_VECTOR) tile_product(c + r * cr + j, cr, a + r * ar, ar, ak, b + j, bk, depth, add, 1);
    }
}

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
    bool causal;
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
                    .causal = a->causal};

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

/* (length, size) at x, rows `wide` apart, times scale -> (rows, cols) padded with zeros */
static void pack_rows(float *to, const head_shape *s, const float *x, int64_t wide, float scale)
{
    for (int64_t t = 0; t < s->length; t++, to += s->cols, x += wide) {
        prefetch_row(s, x, wide, t);
        MAP(s->size, to[i] = x[i] * scale)
        for (int64_t i = s->size; i < s->cols; i++) to[i] = 0.0f;
    }
    memset(to, 0, (size_t)((s->rows - s->length) * s->cols) * sizeof(*to));
}

#if CPU_VECTOR == 16
/* to[j * PANEL + i] = x[i * wide + j], sixteen by sixteen */
CPU_INLINE void turn16(float *to, const float *x, int64_t wide)
{
    __m512 a[16], b[16];

    CPU_UNROLL for (int64_t i = 0; i < 16; i++) a[i] = _mm512_loadu_ps(x + i * wide);
    CPU_UNROLL for (int64_t i = 0; i < 16; i += 2)
    {
        b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    }
    CPU_UNROLL for (int64_t i = 0; i < 16; i += 4)
    {
        CPU_UNROLL for (int64_t j = 0; j < 2; j++)
        {
            __m512d l = _mm512_castps_pd(b[i + j]), h = _mm512_castps_pd(b[i + j + 2]);
            a[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(l, h));
            a[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(l, h));
        }
    }
    CPU_UNROLL for (int64_t i = 0; i < 16; i += 8)
    {
        CPU_UNROLL for (int64_t j = 0; j < 4; j++)
        {
            b[i + j] = _mm512_shuffle_f32x4(a[i + j], a[i + j + 4], 0x88);
            b[i + j + 4] = _mm512_shuffle_f32x4(a[i + j], a[i + j + 4], 0xdd);
        }
    }
    CPU_UNROLL for (int64_t j = 0; j < 8; j++)
    {
        _mm512_storeu_ps(to + j * PANEL, _mm512_shuffle_f32x4(b[j], b[j + 8], 0x88));
        _mm512_storeu_ps(to + (j + 8) * PANEL, _mm512_shuffle_f32x4(b[j], b[j + 8], 0xdd));
    }
}
#endif

/* (length, size) at x -> panels of (size, 32 rows of x) */
static void pack_panels(float *to, const head_shape *s, const float *x, int64_t wide)
{
    for (int64_t p = 0; p < s->rows; p += PANEL, to += PANEL * s->size)
        for (int64_t t0 = 0; t0 < PANEL; t0 += 16) {
            int64_t i = 0, count = s->length - p - t0 < 16 ? s->length - p - t0 : 16;
#if CPU_VECTOR == 16
            for (; count == 16 && i + 16 <= s->size; i += 16)
                turn16(to + i * PANEL + t0, x + (p + t0) * wide + i, wide);
#endif
            for (; i < s->size; i++)
                for (int64_t t = 0; t < 16; t++) to[i * PANEL + t0 + t] = t < count ? x[(p + t0 + t) * wide + i] : 0.0f;
        }
}
