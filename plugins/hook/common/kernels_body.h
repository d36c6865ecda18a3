/* plugins/hook/common/kernels_body.h -- the kernels, compiled once for each instruction set by the file that
 * includes it, which defines HOOK_ISA_NAME, HOOK_ISA_TABLE and HOOK_LINE, the floats of a register, and has included
 * math.h, string.h and kernels.h. Loops are written so that the compiler vectorises them; no multiplication is fused
 * with an addition (-ffp-contract=off). */

/* A register of floats, anywhere in memory. Never passed to a function: that would be another ABI on each
 * instruction set. */
typedef float line __attribute__((vector_size(HOOK_LINE * 4), aligned(4), may_alias));

enum {
    LINE = HOOK_LINE,
    COLS = 2048
}; /* COLS: of a matrix at a time, so that the factor's part stays in the L2 cache */

/* ---- bf16 -------------------------------------------------------------------------------------------------------- */
static void to_bf16(uint16_t *restrict y, const float *restrict x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits, nan, even;

        memcpy(&bits, &x[i], sizeof(bits));
        nan = (bits >> 16) | 0x40u;
        even = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
        y[i] = (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : even);
    }
}

static void from_bf16(float *restrict y, const uint16_t *restrict x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)x[i] << 16;

        memcpy(&y[i], &bits, sizeof(bits));
    }
}

/* ---- int8 -------------------------------------------------------------------------------------------------------- */
/* Below this the quotient would not be finite: the block stays in `error`. */
#define SMALLEST 1e-30f

static inline __attribute__((always_inline)) void quantise_block(int8_t *restrict q, float *restrict scale,
                                                                 float *restrict v)
{
    float highest[LINE] = {0}, most = 0.0f, by, step;

    for (int i = 0; i < HOOK_BLOCK; i += LINE)
        for (int l = 0; l < LINE; l++) {
            float a = fabsf(v[i + l]);

            highest[l] = a > highest[l] ? a : highest[l];
        }
    for (int l = 0; l < LINE; l++) most = highest[l] > most ? highest[l] : most;
    step = most < SMALLEST ? 0.0f : most / 127.0f;
    by = most < SMALLEST ? 0.0f : 127.0f / most;
    *scale = step;
    for (int i = 0; i < HOOK_BLOCK; i++) {
        /* adding and taking away 1.5 x 2^23 rounds to the nearest integer, ties to even */
        float r = v[i] * by + 12582912.0f - 12582912.0f;

        q[i] = (int8_t)(int32_t)r;
        v[i] -= r * step;
    }
}

static void quantise(int8_t *restrict q, float *restrict scale, const float *restrict x, float *restrict error,
                     size_t n)
{
    for (size_t at = 0; at < n; at += HOOK_BLOCK, q += HOOK_BLOCK, scale++) {
        size_t m = n - at < HOOK_BLOCK ? n - at : HOOK_BLOCK;
        float v[HOOK_BLOCK];

        if (m < HOOK_BLOCK) memset(v, 0, sizeof(v));
        for (size_t i = 0; i < m; i++) v[i] = error[at + i] + x[at + i];
        quantise_block(q, scale, v);
        memcpy(error + at, v, m * sizeof(*v));
    }
}

static void dequantise(float *restrict y, const int8_t *restrict q, const float *restrict scale, size_t n)
{
    for (size_t at = 0; at < n; at += HOOK_BLOCK, q += HOOK_BLOCK, scale++) {
        size_t m = n - at < HOOK_BLOCK ? n - at : HOOK_BLOCK;
        const float step = *scale;

        for (size_t i = 0; i < m; i++) y[at + i] = (float)q[i] * step;
    }
}

static void mean_block(float *restrict v, const unsigned char *const *part, uint32_t parts, size_t blocks, size_t block)
{
    for (uint32_t k = 0; k < parts; k++) {
        const int8_t *restrict q = (const int8_t *)part[k] + blocks * sizeof(float) + block * HOOK_BLOCK;
        float step;

        memcpy(&step, part[k] + block * sizeof(float), sizeof(step));
        if (k == 0)
            for (int i = 0; i < HOOK_BLOCK; i++) v[i] = (float)q[i] * step;
        else
            for (int i = 0; i < HOOK_BLOCK; i++) v[i] += (float)q[i] * step;
    }
    for (int i = 0; i < HOOK_BLOCK; i++) v[i] /= (float)parts;
}

static void requantise(int8_t *restrict q, float *restrict scale, const unsigned char *const *part, uint32_t parts,
                       size_t blocks, float *restrict error, size_t n)
{
    for (size_t b = 0; b * HOOK_BLOCK < n; b++) {
        size_t at = b * HOOK_BLOCK, m = n - at < HOOK_BLOCK ? n - at : HOOK_BLOCK;
        float v[HOOK_BLOCK];

        mean_block(v, part, parts, blocks, b);
        quantise_block(q + at, scale + b, v);
        for (size_t i = 0; i < m; i++) error[at + i] += v[i] * (float)parts;
    }
}

/* ---- powersgd ---------------------------------------------------------------------------------------------------- */
#define AT(x) (*(line *)(x))
#define OF(x) (*(const line *)(x))

static inline __attribute__((always_inline)) float total(const line *v)
{
    float sum = 0.0f;

    for (int l = 0; l < LINE; l++) sum += (*v)[l];
    return sum;
}

/* `rows` rows (1 or 4) with `rank` columns of Q (1 or 4), cols from `from` to `to`; P has `p_stride` between its
 * columns, Q `cols`. The first of the columns of Q adds G to M. */
static inline __attribute__((always_inline)) void fold_tile(float *restrict m, const float *restrict g,
                                                            const float *restrict q, float *restrict p, size_t stride,
                                                            size_t cols, size_t from, size_t to, const int rows,
                                                            const int rank)
{
    line acc[4][4];
    size_t c = from;

    for (int i = 0; i < rows; i++)
        for (int k = 0; k < rank; k++) acc[i][k] = (line){0};
    for (; c + LINE <= to; c += LINE) {
        line x[4];

        for (int i = 0; i < rows; i++) {
            x[i] = OF(m + (size_t)i * cols + c);
            if (g != NULL) {
                x[i] += OF(g + (size_t)i * cols + c);
                AT(m + (size_t)i * cols + c) = x[i];
            }
        }
        for (int k = 0; k < rank; k++) {
            line f = OF(q + (size_t)k * cols + c);

            for (int i = 0; i < rows; i++) acc[i][k] += x[i] * f;
        }
    }
    for (; c < to; c++)
        for (int i = 0; i < rows; i++) {
            size_t at = (size_t)i * cols + c;

            if (g != NULL) m[at] += g[at];
            for (int k = 0; k < rank; k++) acc[i][k][c % LINE] += m[at] * q[(size_t)k * cols + c];
        }
    for (int i = 0; i < rows; i++)
        for (int k = 0; k < rank; k++) p[(size_t)k * stride + (size_t)i] += total(&acc[i][k]);
}

/* Four columns of Q at a time while there are four. */
static inline __attribute__((always_inline)) void fold_rows(float *m, const float *g, const float *q, float *p,
                                                            size_t stride, size_t cols, size_t from, size_t to,
                                                            uint32_t rank, const int rows)
{
    uint32_t k = 0;

    for (; k + 4 <= rank; k += 4)
        fold_tile(m, k == 0 ? g : NULL, q + k * cols, p + k * stride, stride, cols, from, to, rows, 4);
    for (; k < rank; k++)
        fold_tile(m, k == 0 ? g : NULL, q + k * cols, p + k * stride, stride, cols, from, to, rows, 1);
}

static void fold(float *m, const float *g, const float *q, float *p, size_t rows, size_t cols, uint32_t rank)
{
    memset(p, 0, rows * rank * sizeof(*p));
    for (size_t from = 0; from < cols; from += COLS) {
        size_t to = cols - from < COLS ? cols : from + COLS, i = 0;

        for (; i + 4 <= rows; i += 4) fold_rows(m + i * cols, g + i * cols, q, p + i, rows, cols, from, to, rank, 4);
        for (; i < rows; i++) fold_rows(m + i * cols, g + i * cols, q, p + i, rows, cols, from, to, rank, 1);
    }
}

/* Q's column k gains the rows' parts: 1 or 4 rows of M at a time. */
static inline __attribute__((always_inline)) void back_tile(const float *restrict m, const float *restrict p,
                                                            float *restrict q, size_t stride, size_t cols, size_t from,
                                                            size_t to, uint32_t rank, const int rows)
{
    size_t c = from;

    for (; c + LINE <= to; c += LINE) {
        line x[4];

        for (int i = 0; i < rows; i++) x[i] = OF(m + (size_t)i * cols + c);
        for (uint32_t k = 0; k < rank; k++) {
            line sum = OF(q + k * cols + c);

            for (int i = 0; i < rows; i++) sum += x[i] * p[k * stride + (size_t)i];
            AT(q + k * cols + c) = sum;
        }
    }
    for (; c < to; c++)
        for (uint32_t k = 0; k < rank; k++)
            for (int i = 0; i < rows; i++) q[k * cols + c] += m[(size_t)i * cols + c] * p[k * stride + (size_t)i];
}

static void back(const float *m, const float *p, float *q, size_t rows, size_t cols, uint32_t rank)
{
    memset(q, 0, cols * rank * sizeof(*q));
    for (size_t from = 0; from < cols; from += COLS) {
        size_t to = cols - from < COLS ? cols : from + COLS, i = 0;

        for (; i + 4 <= rows; i += 4) back_tile(m + i * cols, p + i, q, rows, cols, from, to, rank, 4);
        for (; i < rows; i++) back_tile(m + i * cols, p + i, q, rows, cols, from, to, rank, 1);
    }
}

static inline __attribute__((always_inline)) void expand_tile(float *restrict g, float *restrict m,
                                                              const float *restrict p, const float *restrict q,
                                                              size_t stride, size_t cols, size_t from, size_t to,
                                                              uint32_t rank, const int rows)
{
    size_t c = from;

    for (; c + LINE <= to; c += LINE) {
        line sum[4];

        for (int i = 0; i < rows; i++) sum[i] = (line){0};
        for (uint32_t k = 0; k < rank; k++) {
            line f = OF(q + k * cols + c);

            for (int i = 0; i < rows; i++) sum[i] += f * p[k * stride + (size_t)i];
        }
        for (int i = 0; i < rows; i++) {
            size_t at = (size_t)i * cols + c;

            AT(g + at) = sum[i];
            AT(m + at) -= sum[i];
        }
    }
    for (; c < to; c++)
        for (int i = 0; i < rows; i++) {
            size_t at = (size_t)i * cols + c;
            float sum = 0.0f;

            for (uint32_t k = 0; k < rank; k++) sum += q[k * cols + c] * p[k * stride + (size_t)i];
            g[at] = sum;
            m[at] -= sum;
        }
}

static void expand(float *g, float *m, const float *p, const float *q, size_t rows, size_t cols, uint32_t rank)
{
    for (size_t from = 0; from < cols; from += COLS) {
        size_t to = cols - from < COLS ? cols : from + COLS, i = 0;

        for (; i + 4 <= rows; i += 4) expand_tile(g + i * cols, m + i * cols, p + i, q, rows, cols, from, to, rank, 4);
        for (; i < rows; i++) expand_tile(g + i * cols, m + i * cols, p + i, q, rows, cols, from, to, rank, 1);
    }
}

const hook_kernels HOOK_ISA_TABLE = {
    .isa = HOOK_ISA_NAME,
    .to_bf16 = to_bf16,
    .from_bf16 = from_bf16,
    .quantise = quantise,
    .dequantise = dequantise,
    .requantise = requantise,
    .fold = fold,
    .back = back,
    .expand = expand,
};
