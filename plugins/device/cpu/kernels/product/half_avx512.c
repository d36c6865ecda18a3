/* plugins/device/cpu/kernels/product/half_avx512.c -- half.h for AVX512_BF16: vdpbf16ps multiplies sixteen pairs of k
 * by sixteen others and adds them in f32.
 *
 * The right side is packed, a block that stays in L2 at a time, in panels of 64 rows of it: (k / 2, 64, 2). The left
 * side is rounded first, a turned one in panels of six rows: (k / 2, 6, 2). Six rows of the left against one panel
 * are a tile, 24 registers of sums. k is never cut but where it is so long that a panel leaves L2; then the result
 * has the partial sums. */
#include "half.h"
#include <ddpengine/isa.h>

#if defined(__x86_64__) && (defined(__clang__) || __GNUC__ >= 11)
#include "half_body.h"

#define BLOCK_BYTES (384 << 10)   /* of packed panels: L2 has 1 MiB or more where there is AVX512_BF16 */
#define LONGEST     INT64_C(3072) /* of k at a time: a panel of it is BLOCK_BYTES */
#define LONGEST_TURNED                                                                                                 \
    INT64_C(768)                /* so that a block takes stretches of 256 numbers from where they lie side by side */
#define AHEAD       INT64_C(16) /* rows */
#define PAST_CACHES (4 << 20)   /* bytes of a result from which it is stored past the caches */

/* Rows r .. r + count - 1 of the right side, k0 .. k0 + k - 1, as one panel; zeros fill it up. */
CPU_INLINE void pack_panel(uint32_t *to, const cpu_side *s, int64_t r, int64_t count, int64_t k0, int64_t k,
                           const bool half)
{
    for (int64_t i = 0; i < PANEL; i += 16)
        for (int64_t j = 0; j < k; j += 32) {
            uint32_t part[16 * 16];
            __m512i x[16];
            for (int64_t l = 0; l < 16; l++) ask_for(s, half, r + i + l + 16, k0 + j);
            for (int64_t l = 0; l < 16; l++)
                x[l] = i + l < count ? load32(row_of(s, half, r + i + l), half, k0 + j, k - j) : _mm512_setzero_si512();
            if (k - j >= 31) {
                turn16(to + j / 2 * PANEL + i, PANEL, x);
                continue;
            }
            turn16(part, 16, x);
            for (int64_t l = 0; l < (k - j + 1) / 2; l++)
                memcpy(to + (j / 2 + l) * PANEL + i, part + l * 16, 16 * sizeof(*part));
        }
}

/* The same of a turned side, `count` rows as so many panels, since they lie side by side. */
CPU_INLINE void pack_panels_turned(uint32_t *to, const cpu_side *s, int64_t r, int64_t count, int64_t k0, int64_t k,
                                   const bool half)
{
    const int64_t panel = (k + 1) / 2 * PANEL;

    for (int64_t j = 0; j < k; j += 2)
        for (int64_t i = 0; i < count; i += 32) {
            uint32_t *at = to + i / PANEL * panel + j / 2 * PANEL + i % PANEL;
            __m512i pairs[2];
            ask_for(s, half, k0 + j + AHEAD, r + i);
            ask_for(s, half, k0 + j + AHEAD + 1, r + i);
            interleave(row_of(s, half, k0 + j), j + 1 < k ? row_of(s, half, k0 + j + 1) : NULL, half, r + i, count - i,
                       pairs);
            _mm512_storeu_si512(at, pairs[0]);
            _mm512_storeu_si512(at + 16, pairs[1]);
        }
}

/* Words from a panel of six rows to the next: with a gap of ten, and an odd number of cache lines, lest all begin in
 * the same set of the cache. */
CPU_INLINE int64_t turned_stride(int64_t pairs) { return ((pairs * ROWS + 10 + 15) / 16 | 1) * 16; }

/* ---- the left side ----------------------------------------------------------------------------------------------- */
static uint64_t left_bytes(const cpu_product *p)
{
    if (p->left.turned) return (uint64_t)((p->m + ROWS - 1) / ROWS * turned_stride((p->k + 1) / 2)) * 4;
    return (uint64_t)(p->m * round_up(p->k, 2)) * 2;
}

static int64_t prepare_count(const cpu_product *p)
{
    return p->left.turned ? (p->m + SIXES * ROWS - 1) / (SIXES * ROWS) : p->m;
}

/* Groups first .. last - 1 of sixteen panels of six rows. A store has sixteen words, of which the next one of the
 * panel overwrites ten; the last one's lie in the gap before the next panel. */
static void prepare_turned(const cpu_product *p, int64_t first, int64_t last)
{
    const int64_t pairs = (p->k + 1) / 2, stride = turned_stride(pairs), panels = (p->m + ROWS - 1) / ROWS;
    const cpu_side *s = &p->left;

    for (int64_t g = first; g < last; g++) {
        const int64_t r = g * SIXES * ROWS, count = least(SIXES, panels - g * SIXES),
                      rows = least(p->m - r, SIXES * ROWS);
        uint32_t *to = (uint32_t *)(void *)p->left_packed + g * SIXES * stride;
        for (int64_t j = 0; j < pairs; j++, to += ROWS) {
            const char *even = row_of(s, false, 2 * j), *odd = 2 * j + 1 < p->k ? row_of(s, false, 2 * j + 1) : NULL;
            __m512i x[6];
            CPU_UNROLL for (int64_t i = 0; i < 96; i += 32)
            {
                ask_for(s, false, 2 * j + AHEAD, r + i);
                ask_for(s, false, 2 * j + AHEAD + 1, r + i);
                interleave(even, odd, false, r + i, rows - i, x + i / 16);
            }
            store_sixes(to, stride, x, count);
        }
    }
}

static void prepare(const cpu_product *p, int64_t first, int64_t last)
{
    const int64_t k = round_up(p->k, 2);

    if (p->left.turned) {
        prepare_turned(p, first, last);
        return;
    }
    for (int64_t r = first; r < last; r++) {
        uint16_t *to = p->left_packed + r * k;
        round_row(to, (const float *)p->left.at + r * p->left.stride, p->k);
        if (k > p->k) to[p->k] = 0;
    }
}

/* ---- tiles ------------------------------------------------------------------------------------------------------- */
/* How a tile begins: from zeros, from the same 64 numbers in each row, or from what stands there. */
typedef enum start { FROM_ZERO, FROM_BIAS, FROM_PLACE } start;

/* c (rows, 64), rows `wide` apart, = its start + the sum over `pairs` of a[r * ar + i * ak] . b[i * 64 ..]; past:
 * stored past the caches. */
CPU_INLINE void tile(float *c, int64_t wide, const uint32_t *a, int64_t ar, int64_t ak, const uint32_t *b,
                     int64_t pairs, start how, const float *bias, bool past, const int64_t rows)
{
    __m512 s[ROWS][VECS];

    CPU_UNROLL for (int64_t r = 0; r < rows; r++)
    {
        CPU_UNROLL for (int64_t v = 0; v < VECS; v++) s[r][v] = how == FROM_ZERO ? _mm512_setzero_ps()
                                                                : how == FROM_BIAS
                                                                    ? _mm512_loadu_ps(bias + v * 16)
                                                                    : _mm512_loadu_ps(c + r * wide + v * 16);
    }
    for (int64_t i = 0; i < pairs; i++, a += ak, b += PANEL) {
        __m512bh x[VECS];
        CPU_UNROLL for (int64_t v = 0; v < VECS; v++) x[v] = (__m512bh)_mm512_loadu_si512(b + v * 16);
        CPU_UNROLL for (int64_t r = 0; r < rows; r++)
        {
            __m512bh y = (__m512bh)_mm512_set1_epi32((int)a[r * ar]);
            CPU_UNROLL for (int64_t v = 0; v < VECS; v++) s[r][v] = _mm512_dpbf16_ps(s[r][v], y, x[v]);
        }
    }
    if (past) {
        CPU_UNROLL for (int64_t r = 0; r < rows; r++)
        {
            CPU_UNROLL for (int64_t v = 0; v < VECS; v++) _mm512_stream_ps(c + r * wide + v * 16, s[r][v]);
        }
        return;
    }
    CPU_UNROLL for (int64_t r = 0; r < rows; r++)
    {
        CPU_UNROLL for (int64_t v = 0; v < VECS; v++) _mm512_storeu_ps(c + r * wide + v * 16, s[r][v]);
    }
}

static void tile_rows(float *c, int64_t wide, const uint32_t *a, int64_t ar, int64_t ak, const uint32_t *b,
                      int64_t pairs, start how, const float *bias, bool past, int64_t rows)
{
    switch (rows) {
    case 1: tile(c, wide, a, ar, ak, b, pairs, how, bias, past, 1); break;
    case 2: tile(c, wide, a, ar, ak, b, pairs, how, bias, past, 2); break;
    case 3: tile(c, wide, a, ar, ak, b, pairs, how, bias, past, 3); break;
    case 4: tile(c, wide, a, ar, ak, b, pairs, how, bias, past, 4); break;
    case 5: tile(c, wide, a, ar, ak, b, pairs, how, bias, past, 5); break;
    default: tile(c, wide, a, ar, ak, b, pairs, how, bias, past, 6); break;
    }
}

/* ---- what becomes of a tile that cannot stay where it is summed -------------------------------------------------- */
static void act_row(float *restrict to, const float *restrict x, uint32_t act)
{
    switch (act) {
    case CPU_ACT_RELU: MAP_LOOP for (int64_t i = 0; i < PANEL; i++) to[i] = x[i] <= 0.0f ? 0.0f : x[i]; break;
    case CPU_ACT_GELU_ERF: MAP_LOOP for (int64_t i = 0; i < PANEL; i++) to[i] = cpu_gelu_erf(x[i]); break;
    case CPU_ACT_GELU_TANH: MAP_LOOP for (int64_t i = 0; i < PANEL; i++) to[i] = cpu_gelu_tanh(x[i]); break;
    default: memcpy(to, x, PANEL * sizeof(*to)); break;
    }
}

static void finish_tile(const cpu_product *p, float c[ROWS][PANEL], int64_t row, int64_t rows, int64_t col, int64_t n)
{
    _Alignas(64) float y[PANEL];

    for (int64_t r = 0; r < rows; r++) {
        int64_t at = (row + r) * p->n + col;
        if (p->plain != NULL) memcpy(p->plain + at, c[r], (size_t)n * sizeof(float));
        act_row(y, c[r], p->act);
        memcpy(p->activated + at, y, (size_t)n * sizeof(float));
    }
}

/* ---- the product ------------------------------------------------------------------------------------------------- */
/* What of the product is done at a time. */
typedef struct block {
    int64_t k0, k, col, cols;
    bool first, last; /* of the parts of k */
    bool past;        /* the result is too large for the caches and 64-byte aligned */
} block;

static int64_t part_of_k(const cpu_product *p)
{
    return least(round_up(p->k, 2), p->right.turned ? LONGEST_TURNED : LONGEST);
}

static int64_t block_columns(const cpu_product *p)
{
    int64_t k = part_of_k(p), cols = BLOCK_BYTES / (k * 2) / PANEL * PANEL;

    return cols < PANEL ? PANEL : least(cols, round_up(p->n, PANEL));
}

static uint64_t right_bytes(const cpu_product *p) { return (uint64_t)(part_of_k(p) * block_columns(p)) * 2; }

/* A whole panel of a result in f32 that nothing more becomes of is summed where it belongs. */
static void run_tile(const cpu_product *p, const block *b, const uint32_t *panel, int64_t col, int64_t row)
{
    const int64_t rows = least(ROWS, p->m - row), n = least(PANEL, p->n - col), pairs = (p->k + 1) / 2,
                  part = (b->k + 1) / 2;
    const bool more = b->last && p->activated != NULL, placed = p->add || !b->first;
    const start how = placed ? FROM_PLACE : p->bias != NULL ? FROM_BIAS : FROM_ZERO;
    float *to = (p->plain != NULL ? p->plain : p->activated) + row * p->n + col; /* partial sums too */
    _Alignas(64) float c[ROWS][PANEL], bias[PANEL];
    const float *begin = p->bias != NULL ? p->bias + col : NULL;
    const uint32_t *left = (const uint32_t *)(const void *)p->left_packed, *a;
    int64_t ar = 1, ak = ROWS;

    if (p->left.turned) {
        a = left + (row / ROWS * turned_stride(pairs) + b->k0 / 2 * ROWS);
    } else {
        a = left + (row * pairs + b->k0 / 2);
        ar = pairs;
        ak = 1;
    }
    if (n == PANEL && !more) {
        tile_rows(to, p->n, a, ar, ak, panel, part, how, begin, b->past, rows);
        return;
    }
    for (int64_t r = 0; r < rows && placed; r++) memcpy(c[r], to + r * p->n, (size_t)n * sizeof(float));
    if (how == FROM_BIAS && n < PANEL) begin = memcpy(bias, begin, (size_t)n * sizeof(float));
    tile_rows(c[0], PANEL, a, ar, ak, panel, part, how, begin, false, rows);
    if (more)
        finish_tile(p, c, row, rows, col, n);
    else
        for (int64_t r = 0; r < rows; r++) memcpy(to + r * p->n, c[r], (size_t)n * sizeof(float));
}

CPU_INLINE void pack_right(const cpu_product *p, const block *b, uint32_t *packed, const bool half)
{
    const int64_t panel = (b->k + 1) / 2 * PANEL;

    if (p->right.turned)
        pack_panels_turned(packed, &p->right, b->col, b->cols, b->k0, b->k, half);
    else
        for (int64_t c = 0; c < b->cols; c += PANEL)
            pack_panel(packed + c / PANEL * panel, &p->right, b->col + c, least(PANEL, b->cols - c), b->k0, b->k, half);
}

static void pack_f32(const cpu_product *p, const block *b, uint32_t *packed) { pack_right(p, b, packed, false); }
static void pack_half(const cpu_product *p, const block *b, uint32_t *packed) { pack_right(p, b, packed, true); }

static void run_block(const cpu_product *p, const block *b, uint32_t *packed)
{
    const int64_t panel = (b->k + 1) / 2 * PANEL;

    (p->right.half ? pack_half : pack_f32)(p, b, packed);
    for (int64_t row = 0; row < p->m; row += ROWS)
        for (int64_t c = 0; c < b->cols; c += PANEL) run_tile(p, b, packed + c / PANEL * panel, b->col + c, row);
}

static void run(const cpu_product *p, int64_t first, int64_t last, void *scratch)
{
    const int64_t columns = block_columns(p), part = part_of_k(p);
    const bool past =
        p->activated == NULL && p->m * p->n * 4 >= PAST_CACHES && p->n % 16 == 0 && (uintptr_t)p->plain % 64 == 0;

    for (int64_t col = first; col < last; col += columns)
        for (int64_t k = 0; k < p->k; k += part) {
            block b = {.k0 = k,
                       .k = least(part, p->k - k),
                       .col = col,
                       .cols = least(columns, last - col),
                       .first = k == 0,
                       .last = k + part >= p->k,
                       .past = past && k + part >= p->k};
            run_block(p, &b, scratch);
        }
    _mm_sfence();
}

/* ---- measuring --------------------------------------------------------------------------------------------------- */
static double chains(int64_t rounds, float *keep)
{
    const __m512bh a = (__m512bh)_mm512_set1_epi16(0x3f00), b = (__m512bh)_mm512_set1_epi16(0x3f80); /* 0.5, 1 */
    __m512 c[ROWS][VECS];

    CPU_UNROLL for (int64_t r = 0; r < ROWS; r++) CPU_UNROLL for (int64_t v = 0; v < VECS; v++) c[r][v] =
        _mm512_set1_ps(keep[v] + (float)r);
    for (int64_t i = 0; i < rounds; i++)
        CPU_UNROLL for (int64_t r = 0; r < ROWS; r++) CPU_UNROLL for (int64_t v = 0; v < VECS; v++) c[r][v] =
            _mm512_dpbf16_ps(c[r][v], a, b);
    CPU_UNROLL for (int64_t r = 0; r < ROWS; r++) CPU_UNROLL for (int64_t v = 0; v < VECS; v++) keep[16 + v] +=
        _mm512_reduce_add_ps(c[r][v]);
    return (double)(rounds * ROWS * VECS) * 64.0;
}

static const cpu_half_kernels kernels = {.left_bytes = left_bytes,
                                         .right_bytes = right_bytes,
                                         .prepare = prepare,
                                         .prepare_count = prepare_count,
                                         .run = run,
                                         .round = round_row,
                                         .chains = chains,
                                         .attention = &cpu_attention_bf16};

HALF_END

const cpu_half_kernels *cpu_half_available(void) { return ddp_isa_bf16() ? &kernels : NULL; }
#else
const cpu_half_kernels *cpu_half_available(void) { return NULL; }
#endif
