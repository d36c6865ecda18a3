/* plugins/device/cpu/kernels/attention_body.h -- attention of one head of one sample, forward and gradient, without a T
 * x T matrix in memory. Included by kernels_body.h only.
 *
 * The head's q, k, v lie strided in qkv; they are packed into scratch first, rows padded with zeros to a multiple of
 * sixteen floats, the number of rows to a multiple of 32; k also transposed, in panels of 32 keys. All products then
 * go through one small kernel of eight rows whose sums stay in registers. Forward: a strip of 32 queries against all
 * keys that they see, in L1 or L2. Gradient: blocks of 64 queries x 64 keys, the weights again from the log-sum-exp.
 * What lies above the diagonal is skipped by eight rows. Each element's sum has one order, whatever the registers:
 * the same bits on every CPU. */

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

/* ---- packing ----------------------------------------------------------------------------------------------------- */
typedef struct head_shape {
    int64_t length, size;   /* T, d */
    int64_t rows, cols;     /* the same, padded */
    int64_t wide, out_wide; /* floats from a row of qkv, and of y, to the next */
    const float *q, *k, *v; /* in qkv */
    int64_t out;            /* of the head's first element in y */
    uint64_t first;         /* element of the dropout of its first weight */
    float scale;
    bool causal;
} head_shape;

/* Keys that query t sees. */
CPU_INLINE int64_t keys_of(const head_shape *s, int64_t t) { return s->causal ? t + 1 : s->length; }

static head_shape shape_of(const cpu_attention *a, const float *qkv, int64_t number)
{
    int64_t e = a->heads * a->size, n = number / a->heads, h = number % a->heads;
    head_shape s = {.length = a->length,
                    .size = a->size,
                    .rows = (a->length + PANEL - 1) / PANEL * PANEL,
                    .cols = (a->size + 15) / 16 * 16,
                    .wide = 3 * e,
                    .out_wide = e,
                    .q = qkv + n * a->length * 3 * e + h * a->size,
                    .out = n * a->length * e + h * a->size,
                    .first = (uint64_t)number * (uint64_t)a->length * (uint64_t)a->length,
                    .scale = a->scale,
                    .causal = a->causal};

    s.k = s.q + e;
    s.v = s.k + e;
    return s;
}

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

/* ---- forward ----------------------------------------------------------------------------------------------------- */
/* A row of x, n numbers of `all`, with room and finite numbers after it, becomes exp(x - max) with zeros after it, in
 * three passes that a CPU does for several rows at once. Whole registers throughout: what they have too much is
 * another first number for the maximum and 0 for the sum. */
CPU_INLINE float softmax_max(float *x, int64_t n)
{
    f16 m = f16_set(-INFINITY);
    int64_t whole = (n + 15) / 16 * 16;

    for (int64_t i = n; i < whole; i++) x[i] = x[0];
    for (int64_t i = 0; i < whole; i += 16) m = f16_max(f16_load(x + i), m);
    return f16_highest(m);
}

CPU_INLINE void softmax_exp(float *x, int64_t n, int64_t all, const float max)
{
    int64_t i = 0;

    for (; i < n; i += 16) {
        float *p = x + i;
        SIXTEEN(p[l] = cpu_exp(p[l] - max))
    }
    if (i > n) zero_from(x + i - 16, n - i + 16);
    for (; i < all; i += 16) f16_store(x + i, f16_set(0));
}

CPU_INLINE float softmax_sum(const float *x, int64_t all)
{
    f16 a = f16_set(0), b = f16_set(0);

    for (int64_t i = 0; i < all; i += 32) {
        a = f16_add(a, f16_load(x + i));
        b = f16_add(b, f16_load(x + i + 16));
    }
    return f16_sum(f16_add(a, b));
}

/* The strip's scores become weights, not yet divided by their sum. */
static void softmax_strip(const cpu_attention *a, const head_shape *s, float *scores, int64_t t0, int64_t keys,
                          float *inverse, float *lse)
{
    int64_t rows = s->length - t0 < STRIP ? s->length - t0 : STRIP;
    float max[STRIP] = {0};

    for (int64_t r = 0; r < rows; r++) max[r] = softmax_max(scores + r * s->rows, keys_of(s, t0 + r));
    for (int64_t r = 0; r < rows; r++) softmax_exp(scores + r * s->rows, keys_of(s, t0 + r), keys, max[r]);
    for (int64_t r = 0; r < rows; r++) {
        float *row = scores + r * s->rows, sum = softmax_sum(row, keys);
        inverse[r] = 1.0f / sum;
        if (lse != NULL) lse[t0 + r] = max[r] + (float)log((double)sum);
        if (a->mask.threshold > 0)
            dropout(row, row, &a->mask, s->first + (uint64_t)((t0 + r) * s->length), keys_of(s, t0 + r));
    }
}

static void strip_forward(const cpu_attention *a, const head_shape *s, const float *q, const float *kt, const float *v,
                          float *scores, float *y, int64_t t0, float *out, float *lse)
{
    int64_t keys = s->causal ? t0 + STRIP : s->rows;
    float inverse[STRIP] = {0};

    for (int64_t p = 0; p < keys; p += PANEL)
        for (int64_t g = 0; g < STRIP; g += GROUP)
            group_product(scores + g * s->rows + p, s->rows, q + (t0 + g) * s->cols, s->cols, 1, kt + p * s->size,
                          PANEL, s->size, PANEL, false);
    softmax_strip(a, s, scores, t0, keys, inverse, lse);
    for (int64_t g = 0; g < STRIP; g += GROUP)
        group_product(y + g * s->cols, s->cols, scores + g * s->rows, s->rows, 1, v, s->cols,
                      s->causal ? t0 + g + GROUP : keys, s->cols, false);
    for (int64_t r = 0; r < STRIP && t0 + r < s->length; r++) {
        float *to = out + (t0 + r) * s->out_wide, *from = y + r * s->cols;
        MAP(s->size, to[i] = from[i] * inverse[r])
    }
}

static void attention(const cpu_attention *a, int64_t number, float *y, float *lse, const float *qkv, float *scratch)
{
    head_shape s = shape_of(a, qkv, number);
    float *q = scratch, *kt = q + s.rows * s.cols, *v = kt + s.rows * s.cols, *out = v + s.rows * s.cols;
    float *scores = out + STRIP * s.cols;

    pack_rows(q, &s, s.q, s.wide, s.scale);
    pack_rows(v, &s, s.v, s.wide, 1.0f);
    pack_panels(kt, &s, s.k, s.wide);
    for (int64_t t0 = 0; t0 < s.rows; t0 += STRIP)
        strip_forward(a, &s, q, kt, v, scores, out, t0, y + s.out, lse != NULL ? lse + number * s.length : NULL);
}

/* ---- gradient ---------------------------------------------------------------------------------------------------- */
typedef struct head_grad {
    head_shape s;
    const cpu_attention *a;
    const float *lse;
    float *q, *k, *kt, *vt, *dy; /* packed; q is scaled */
    float *dq, *dk, *dv;         /* of a block of queries; of all keys */
    float *d;                    /* (rows) dy . y */
    float *p, *ds;               /* (SQUARE, SQUARE) */
} head_grad;

/* The weights of one query for a block of keys, of which it sees `seen`; p is that times the mask, ds the scores'
 * gradient. The scores are there for whole registers. */
CPU_INLINE void weights_row(const head_grad *h, float *p, float *ds, int64_t t, int64_t j0, int64_t seen, int64_t keys)
{
    float mask[SQUARE], lse, d;

    if (seen > 0) { /* a row of padding has neither of these */
        lse = h->lse[t];
        d = h->d[t];
        if (h->a->mask.threshold > 0) {
            MAP(SQUARE, mask[i] = 1.0f)
            dropout(mask, mask, &h->a->mask, h->s.first + (uint64_t)(t * h->s.length + j0), seen);
        }
        for (int64_t i = 0; i < seen; i += 16) {
            float *to = p + i, *grad = ds + i;
            const float *m = mask + i;
            float w[16];
            SIXTEEN(w[l] = cpu_exp(to[l] - lse))
            if (h->a->mask.threshold > 0) {
                SIXTEEN(grad[l] = w[l] * (m[l] * grad[l] - d))
                SIXTEEN(to[l] = w[l] * m[l])
            } else {
                SIXTEEN(grad[l] = w[l] * (grad[l] - d))
                memcpy(to, w, sizeof(w));
            }
            if (i + 16 > seen) {
                zero_from(to, seen - i);
                zero_from(grad, seen - i);
            }
        }
    }
    for (int64_t i = (seen + 15) / 16 * 16; i < keys; i += 16) {
        f16_store(p + i, f16_set(0));
        f16_store(ds + i, f16_set(0));
    }
}

static void block_scores(const head_grad *h, int64_t i0, int64_t queries, int64_t j0, int64_t keys)
{
    const head_shape *s = &h->s;

    for (int64_t p = 0; p < keys; p += PANEL)
        for (int64_t g = 0; g < queries; g += GROUP) {
            if (s->causal && j0 + p > i0 + g + GROUP - 1) continue;
            group_product(h->p + g * SQUARE + p, SQUARE, h->q + (i0 + g) * s->cols, s->cols, 1,
                          h->kt + (j0 + p) * s->size, PANEL, s->size, PANEL, false);
            group_product(h->ds + g * SQUARE + p, SQUARE, h->dy + (i0 + g) * s->cols, s->cols, 1,
                          h->vt + (j0 + p) * s->size, PANEL, s->size, PANEL, false);
        }
    for (int64_t r = 0; r < queries; r++) {
        int64_t t = i0 + r, seen = t >= s->length ? 0 : keys_of(s, t) - j0;
        seen = seen < 0 ? 0 : seen > keys ? keys : seen;
        weights_row(h, h->p + r * SQUARE, h->ds + r * SQUARE, t, j0, seen, keys);
    }
}

/* Queries i0 .. and keys j0 .., at most SQUARE of each. */
static void block_gradient(const head_grad *h, int64_t i0, int64_t queries, int64_t j0, int64_t keys)
{
    const head_shape *s = &h->s;
    const bool first = s->causal ? i0 == j0 : i0 == 0; /* of the blocks that see these keys */

    block_scores(h, i0, queries, j0, keys);
    for (int64_t g = 0; g < keys; g += GROUP) { /* a key is seen by the queries from itself on */
        int64_t from = s->causal && j0 + g > i0 ? j0 + g - i0 : 0, at = (j0 + g) * s->cols;
        if (from >= queries) break;
        group_product(h->dv + at, s->cols, h->p + from * SQUARE + g, 1, SQUARE, h->dy + (i0 + from) * s->cols, s->cols,
                      queries - from, s->cols, !first);
        group_product(h->dk + at, s->cols, h->ds + from * SQUARE + g, 1, SQUARE, h->q + (i0 + from) * s->cols, s->cols,
                      queries - from, s->cols, !first);
    }
    for (int64_t g = 0; g < queries; g += GROUP) {
        int64_t last = s->causal && i0 + g + GROUP - j0 < keys ? i0 + g + GROUP - j0 : keys;
        group_product(h->dq + g * s->cols, s->cols, h->ds + g * SQUARE, SQUARE, 1, h->k + j0 * s->cols, s->cols, last,
                      s->cols, j0 > 0);
    }
}

static void unpack_rows(float *to, const head_shape *s, const float *x, int64_t rows, float scale)
{
    for (int64_t t = 0; t < rows; t++, to += s->wide, x += s->cols) {
        MAP(s->size, to[i] = x[i] * scale)
    }
}

static void attention_grad(const cpu_attention *a, int64_t number, float *dqkv, const float *dy, const float *qkv,
                           const float *y, const float *lse, float *scratch)
{
    head_grad h = {.s = shape_of(a, qkv, number), .a = a, .lse = lse + number * a->length};
    const head_shape *s = &h.s;
    int64_t all = s->rows * s->cols;
    float **const parts[] = {&h.q, &h.k, &h.kt, &h.vt, &h.dy, &h.dk, &h.dv};
    float *to = dqkv + (s->q - qkv);

    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) *parts[i] = scratch + (int64_t)i * all;
    h.dq = scratch + 7 * all;
    h.p = h.dq + SQUARE * s->cols;
    h.ds = h.p + SQUARE * SQUARE;
    h.d = h.ds + SQUARE * SQUARE;
    pack_rows(h.q, s, s->q, s->wide, s->scale);
    pack_rows(h.k, s, s->k, s->wide, 1.0f);
    pack_rows(h.dy, s, dy + s->out, s->out_wide, 1.0f);
    pack_panels(h.kt, s, s->k, s->wide);
    pack_panels(h.vt, s, s->v, s->wide);
    for (int64_t t = 0; t < s->length; t++) {
        const float *g = h.dy + t * s->cols, *o = y + s->out + t * s->out_wide;
        f16 sum = f16_set(0);
        prefetch_row(s, o, s->out_wide, t);
        for (int64_t i = 0; i < s->size; i += 16)
            sum = f16_fma(f16_load(g + i), f16_load_part(o + i, s->size - i), sum);
        h.d[t] = f16_sum(sum);
    }
    for (int64_t i0 = 0; i0 < s->rows; i0 += SQUARE) {
        int64_t queries = s->rows - i0 < SQUARE ? s->rows - i0 : SQUARE, last = s->causal ? i0 + queries : s->rows;
        for (int64_t j0 = 0; j0 < last; j0 += SQUARE)
            block_gradient(&h, i0, queries, j0, last - j0 < SQUARE ? last - j0 : SQUARE);
        unpack_rows(to + i0 * s->wide, s, h.dq, s->length - i0 < queries ? s->length - i0 : queries, s->scale);
    }
    unpack_rows(to + s->out_wide, s, h.dk, s->length, 1.0f);
    unpack_rows(to + 2 * s->out_wide, s, h.dv, s->length, 1.0f);
}

/* Floats for one head. */
static int64_t attention_scratch(const cpu_attention *a, bool gradient)
{
    int64_t rows = (a->length + PANEL - 1) / PANEL * PANEL, cols = (a->size + 15) / 16 * 16;

    if (!gradient) return 3 * rows * cols + STRIP * (cols + rows);
    return 7 * rows * cols + SQUARE * cols + 2 * SQUARE * SQUARE + rows;
}
