/* plugins/device/cpu/kernels/attention/attention_body.h -- attention of one head of one sample, forward and gradient,
 * without a T x T matrix in memory. Included by kernels_body.h, in f32, and by attention_bf16.c.
 *
 * The head's q, k, v lie strided; they are packed into scratch first, rows padded with zeros to a multiple of sixteen
 * numbers, the number of rows to a multiple of 32; k also transposed, in panels of 32 keys. All products then
 * go through one small kernel of eight rows whose sums stay in registers, in f32; what it multiplies are operands, one
 * number of f32 or two of bf16. Forward: a strip of 32 queries against all keys that they see, in L1 or L2. Gradient:
 * blocks of 64 queries x 64 keys, the weights again from the log-sum-exp. What lies above the diagonal is skipped by
 * eight rows; with segments, what none of a strip or block sees by panels of 32 keys and by blocks. Each element's sum
 * has one order, whatever the registers: in f32 the same bits on every CPU. */

#include "kernels/attention/product_body.h"

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

/* The strip's scores of keys from .. become weights, not yet divided by their sum. */
static void softmax_strip(const cpu_attention *a, const head_shape *s, float *scores, int64_t t0, int64_t from,
                          int64_t keys, float *inverse, float *lse)
{
    int64_t rows = s->length - t0 < STRIP ? s->length - t0 : STRIP;
    float max[STRIP] = {0};

    scores += from;
    for (int64_t p = from; s->segment != NULL && p < keys; p += PANEL)
        for (int64_t r = 0; r < rows && !alike(s, t0, STRIP, p, PANEL); r++)
            hide(s, scores + r * s->rows + p - from, t0 + r, p, s->length - p < PANEL ? s->length - p : PANEL,
                 -INFINITY);
    for (int64_t r = 0; r < rows; r++) max[r] = softmax_max(scores + r * s->rows, seen_of(s, t0 + r, keys) - from);
    for (int64_t r = 0; r < rows; r++)
        softmax_exp(scores + r * s->rows, seen_of(s, t0 + r, keys) - from, keys - from, max[r]);
    for (int64_t r = 0; r < rows; r++) {
        float *row = scores + r * s->rows, sum = softmax_sum(row, keys - from);
        inverse[r] = 1.0f / sum;
        if (lse != NULL) lse[t0 + r] = max[r] + (float)log((double)sum);
        if (a->mask.threshold > 0)
            dropout(row, row, &a->mask, s->first + (uint64_t)((t0 + r) * s->length + from),
                    seen_of(s, t0 + r, keys) - from);
    }
}

/* Of the whole head, packed. */
CPU_INLINE int64_t operands_of(const head_shape *s) { return s->rows * s->cols / DEEP; }

static void strip_forward(const cpu_attention *a, const head_shape *s, const operand *q, const operand *kt,
                          const operand *v, float *scores, float *y, int64_t t0, float *out, float *lse)
{
    int64_t from = 0, keys = s->causal ? t0 + STRIP : s->rows;
    const operand *weights;
    float inverse[STRIP] = {0};

    while (!overlap(s, t0, STRIP, from, PANEL)) from += PANEL;
    while (!overlap(s, t0, STRIP, keys - PANEL, PANEL)) keys -= PANEL;
    for (int64_t p = from; p < keys; p += PANEL)
        for (int64_t g = 0; g < STRIP; g += GROUP)
            group_product(scores + g * s->rows + p, s->rows, q + (t0 + g) * s->cols / DEEP, s->cols / DEEP, 1,
                          kt + p * DEPTH_OF(s->size), PANEL, s->size, PANEL, false);
    softmax_strip(a, s, scores, t0, from, keys, inverse, lse);
    weights = as_left(s, scores + from, STRIP, s->rows, keys - from);
    for (int64_t g = 0; g < STRIP; g += GROUP)
        group_product(y + g * s->cols, s->cols, weights + g * s->rows, s->rows, 1, v + from * s->cols / DEEP, s->cols,
                      (s->causal ? t0 + g + GROUP : keys) - from, s->cols, false);
    for (int64_t r = 0; r < STRIP && t0 + r < s->length; r++) {
        float *to = out + (t0 + r) * s->out_wide, *row = y + r * s->cols;
        MAP(s->size, to[i] = row[i] * inverse[r])
    }
}

static void attention(const cpu_attention *a, int64_t number, bool packed, float *y, float *lse, float *scratch)
{
    head_shape s = shape_of(a, number);
    float *scores = scratch, *out = scores + STRIP * s.rows;
    operand *q = (operand *)(void *)(out + STRIP * s.cols), *kt = q + operands_of(&s), *v = kt + operands_of(&s);

    segment_ranges(&s, (int64_t *)(void *)(v + operands_of(&s)));
    pack_left(q, &s, s.q, s.q_wide, s.scale);
    if (!packed) pack_right(v, &s, s.v, s.kv_wide, 1.0f);
    if (!packed) pack_panels(kt, &s, s.k, s.kv_wide);
    for (int64_t t0 = 0; t0 < s.rows; t0 += STRIP)
        strip_forward(a, &s, q, kt, v, scores, out, t0, y + s.out, lse != NULL ? lse + number * s.length : NULL);
}

/* ---- gradient ---------------------------------------------------------------------------------------------------- */
typedef struct head_grad {
    head_shape s;
    const cpu_attention *a;
    const float *lse;
    operand *q, *dy, *kt, *vt;             /* packed: left sides and panels; q is scaled */
    operand *q_right, *dy_right, *k_right; /* the first two may be q and dy */
    operand *p_turned, *ds_turned;         /* (SQUARE / DEEP, SQUARE), or not in use */
    float *dq, *dk, *dv;                   /* of a block of queries; of all keys, dv behind dk */
    float *d;                              /* (rows) dy . y */
    float *p, *ds;                         /* (SQUARE, SQUARE) */
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
    const bool mixed = !alike(s, i0, queries, j0, keys);
    const int64_t row = s->cols / DEEP, depth = DEPTH_OF(s->size);

    for (int64_t p = 0; p < keys; p += PANEL)
        for (int64_t g = 0; g < queries; g += GROUP) {
            if (s->causal && j0 + p > i0 + g + GROUP - 1) continue;
            group_product(h->p + g * SQUARE + p, SQUARE, h->q + (i0 + g) * row, row, 1, h->kt + (j0 + p) * depth, PANEL,
                          s->size, PANEL, false);
            group_product(h->ds + g * SQUARE + p, SQUARE, h->dy + (i0 + g) * row, row, 1, h->vt + (j0 + p) * depth,
                          PANEL, s->size, PANEL, false);
        }
    for (int64_t r = 0; r < queries; r++) {
        int64_t t = i0 + r, seen = t >= s->length ? 0 : keys_of(s, t) - j0;
        seen = seen < 0 ? 0 : seen > keys ? keys : seen;
        weights_row(h, h->p + r * SQUARE, h->ds + r * SQUARE, t, j0, seen, keys);
        if (mixed && seen > 0) {
            hide(s, h->p + r * SQUARE, t, j0, seen, 0.0f);
            hide(s, h->ds + r * SQUARE, t, j0, seen, 0.0f);
        }
    }
}

/* Queries i0 .. and keys j0 .., at most SQUARE of each. set_keys: of the blocks that see these keys it is the first,
 * set_queries: of these queries. */
static void block_gradient(const head_grad *h, int64_t i0, int64_t queries, int64_t j0, int64_t keys, bool set_keys,
                           bool set_queries)
{
    const head_shape *s = &h->s;

    const operand *p, *ds, *ds_left;

    block_scores(h, i0, queries, j0, keys);
    p = as_turned_left(s, h->p_turned, h->p, queries, SQUARE, keys);
    ds = as_turned_left(s, h->ds_turned, h->ds, queries, SQUARE, keys);
    ds_left = as_left(s, h->ds, queries, SQUARE, keys);
    for (int64_t g = 0; g < keys; g += GROUP) { /* a key is seen by the queries from itself on */
        int64_t from = s->causal && j0 + g > i0 ? j0 + g - i0 : 0, at = (j0 + g) * s->cols;
        if (from >= queries) break;
        group_product(h->dv + at, s->cols, p + from / DEEP * SQUARE + g, 1, SQUARE,
                      h->dy_right + (i0 + from) / DEEP * s->cols, s->cols, queries - from, s->cols, !set_keys);
        group_product(h->dk + at, s->cols, ds + from / DEEP * SQUARE + g, 1, SQUARE,
                      h->q_right + (i0 + from) / DEEP * s->cols, s->cols, queries - from, s->cols, !set_keys);
    }
    for (int64_t g = 0; g < queries; g += GROUP) {
        int64_t last = s->causal && i0 + g + GROUP - j0 < keys ? i0 + g + GROUP - j0 : keys;
        group_product(h->dq + g * s->cols, s->cols, ds_left + g * SQUARE, SQUARE, 1, h->k_right + j0 / DEEP * s->cols,
                      s->cols, last, s->cols, !set_queries);
    }
}

/* Nothing where `to` is NULL. */
static void unpack_rows(float *to, int64_t wide, const head_shape *s, const float *x, int64_t rows, float scale)
{
    for (int64_t t = 0; to != NULL && t < rows; t++, to += wide, x += s->cols) {
        MAP(s->size, to[i] = x[i] * scale)
    }
}

static void add_rows(float *to, int64_t to_wide, const float *x, int64_t wide, int64_t rows, int64_t size)
{
    for (int64_t t = 0; to != NULL && t < rows; t++, to += to_wide, x += wide) {
        MAP(size, to[i] += x[i])
    }
}

/* The head's q and dy, and dy . y of each row. */
static void pack_queries(head_grad *h, const cpu_attention_grad *g)
{
    const head_shape *s = &h->s;
    const float *dy = g->dy + s->out, *y = g->y + s->out;

    pack_left(h->q, s, s->q, s->q_wide, s->scale);
    pack_left(h->dy, s, dy, s->out_wide, 1.0f);
    if (!ONE_PACKING) pack_right(h->q_right, s, s->q, s->q_wide, s->scale);
    if (!ONE_PACKING) pack_right(h->dy_right, s, dy, s->out_wide, 1.0f);
    for (int64_t t = 0; t < s->length; t++, dy += s->out_wide, y += s->out_wide) {
        f16 sum = f16_set(0);
        prefetch_row(s, y, s->out_wide, t);
        for (int64_t i = 0; i < s->size; i += 16)
            sum = f16_fma(f16_load_part(dy + i, s->size - i), f16_load_part(y + i, s->size - i), sum);
        h->d[t] = f16_sum(sum);
    }
}

/* dq is written, and all of dk and dv of this head of q. */
static void blocks_gradient(const head_grad *h, const cpu_attention_grad *g)
{
    const head_shape *s = &h->s;
    float *to = g->dq != NULL ? g->dq + s->q_at : NULL;
    const bool set = s->segment == NULL || s->causal; /* else no block is the first of all keys */

    if (!set) memset(h->dk, 0, (size_t)(2 * s->rows * s->cols) * sizeof(*h->dk));
    for (int64_t i0 = 0; i0 < s->rows; i0 += SQUARE) {
        int64_t queries = s->rows - i0 < SQUARE ? s->rows - i0 : SQUARE, last = s->causal ? i0 + queries : s->rows;
        bool first = true;
        for (int64_t j0 = 0; j0 < last; j0 += SQUARE) {
            int64_t keys = last - j0 < SQUARE ? last - j0 : SQUARE;
            if (!overlap(s, i0, queries, j0, keys)) continue;
            block_gradient(h, i0, queries, j0, keys, set && (s->causal ? i0 == j0 : i0 == 0), first);
            first = false;
        }
        unpack_rows(to != NULL ? to + i0 * s->q_wide : NULL, s->q_wide, s, h->dq,
                    s->length - i0 < queries ? s->length - i0 : queries, s->scale);
    }
}

/* The scratch of a gradient, in parts. */
static void place_gradient(head_grad *h, float *scratch)
{
    const head_shape *s = &h->s;
    int64_t all = s->rows * s->cols;
    operand **const parts[] = {&h->q, &h->dy, &h->kt, &h->vt, &h->k_right, &h->q_right, &h->dy_right};
    operand *at;

    h->p = scratch;
    h->ds = h->p + SQUARE * SQUARE;
    h->dq = h->ds + SQUARE * SQUARE;
    h->dk = h->dq + SQUARE * s->cols;
    h->dv = h->dk + all;
    h->d = h->dv + all;
    at = (operand *)(void *)(h->d + s->rows);
    for (size_t i = 0; i < (ONE_PACKING ? 5 : 7); i++, at += operands_of(s)) *parts[i] = at;
    if (ONE_PACKING) {
        h->q_right = h->q;
        h->dy_right = h->dy;
    } else {
        h->p_turned = at;
        h->ds_turned = h->p_turned + SQUARE * SQUARE / DEEP;
        at = h->ds_turned + SQUARE * SQUARE / DEEP;
    }
    segment_ranges(&h->s, (int64_t *)(void *)at);
}

/* Of head `number` of q. `packed`: as of attention. */
static head_grad head_gradient(const cpu_attention *a, const cpu_attention_grad *g, int64_t number, bool packed,
                               float *scratch)
{
    head_grad h = {.s = shape_of(a, number), .a = a, .lse = g->lse + number * a->length};
    const head_shape *s = &h.s;

    place_gradient(&h, scratch);
    if (!packed) {
        pack_right(h.k_right, s, s->k, s->kv_wide, 1.0f);
        pack_panels(h.kt, s, s->k, s->kv_wide);
        pack_panels(h.vt, s, s->v, s->kv_wide);
    }
    pack_queries(&h, g);
    blocks_gradient(&h, g);
    return h;
}

static void attention_grad(const cpu_attention *a, const cpu_attention_grad *g, int64_t number, float *scratch)
{
    int64_t group = a->heads / a->kv_heads;

    for (int64_t i = 0; i < group; i++) {
        const head_grad h = head_gradient(a, g, number * group + i, i > 0, scratch);
        const head_shape *s = &h.s;
        float *dk = g->dk != NULL ? g->dk + s->kv_at : NULL, *dv = g->dv != NULL ? g->dv + s->kv_at : NULL;
        if (i == 0) {
            unpack_rows(dk, s->kv_wide, s, h.dk, s->length, 1.0f);
            unpack_rows(dv, s->kv_wide, s, h.dv, s->length, 1.0f);
        } else {
            add_rows(dk, s->kv_wide, h.dk, s->cols, s->length, s->size);
            add_rows(dv, s->kv_wide, h.dv, s->cols, s->length, s->size);
        }
    }
}

/* Head `number`'s part of `parts`: dk and dv, (length, size) each. */
static void attention_grad_head(const cpu_attention *a, const cpu_attention_grad *g, int64_t number, bool packed,
                                float *parts, float *scratch)
{
    const head_grad h = head_gradient(a, g, number, packed, scratch);
    int64_t count = a->length * a->size;
    float *to = parts + 2 * number * count;

    unpack_rows(to, a->size, &h.s, h.dk, a->length, 1.0f);
    unpack_rows(to + count, a->size, &h.s, h.dv, a->length, 1.0f);
}

static void attention_grad_sum(const cpu_attention *a, const cpu_attention_grad *g, int64_t number, const float *parts)
{
    int64_t group = a->heads / a->kv_heads, count = a->length * a->size;
    const head_shape s = shape_of(a, number * group);

    for (int64_t k = 0; k < 2; k++) {
        float *whole = k == 0 ? g->dk : g->dv, *to = whole != NULL ? whole + s.kv_at : NULL;
        const float *from = parts + (2 * number * group + k) * count;
        for (int64_t t = 0; to != NULL && t < a->length; t++)
            memcpy(to + t * s.kv_wide, from + t * a->size, (size_t)a->size * sizeof(*to));
        for (int64_t i = 1; i < group; i++) add_rows(to, s.kv_wide, from + 2 * i * count, a->size, a->length, a->size);
    }
}

/* Words of 32 bits for one head; with the ranges of segments, two numbers of 64 bits a panel. */
static int64_t attention_scratch(const cpu_attention *a, bool gradient)
{
    int64_t rows = (a->length + PANEL - 1) / PANEL * PANEL, cols = (a->size + 15) / 16 * 16, ranges = 4 * rows / PANEL,
            all = rows * cols;

    if (!gradient) return STRIP * (rows + cols) + 3 * all / DEEP + ranges;
    return 2 * SQUARE * SQUARE + SQUARE * cols + 2 * all + rows +
           (ONE_PACKING ? 5 * all : (7 * all + 2 * SQUARE * SQUARE) / DEEP) + ranges;
}

#define ATTENTION_TABLE                                                                                                \
    {                                                                                                                  \
        .forward = attention, .grad = attention_grad, .grad_head = attention_grad_head,                                \
        .grad_sum = attention_grad_sum, .scratch = attention_scratch                                                   \
    }
