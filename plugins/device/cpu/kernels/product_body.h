/* plugins/device/cpu/kernels/product_body.h -- the matrix product: packers and the tile whose sums stay in registers, as in
 * GotoBLAS and BLIS (Goto and van de Geijn 2008; Van Zee and van de Geijn 2015). Included by kernels_body.h only.
 *
 * c (rows, cols) is row-major, and vectors lie along its rows. A panel of the left operand is PRODUCT_ROWS wide, one of the
 * right operand PRODUCT_COLS: element (k, i) at k * width + i, zeros where the operand ends. Each sum goes through k in its
 * order, one fused multiply-add after the other: the same bits on every CPU that has the instruction. */

#if CPU_VECTOR == 16 /* of 32 registers 28 hold sums */
#define PRODUCT_ROWS INT64_C(14)
#define PRODUCT_VECS INT64_C(2)
#elif CPU_VECTOR == 8 /* of 16 registers 12 */
#define PRODUCT_ROWS INT64_C(6)
#define PRODUCT_VECS INT64_C(2)
#elif defined(__aarch64__) /* of 32 registers 24 */
#define PRODUCT_ROWS INT64_C(8)
#define PRODUCT_VECS INT64_C(3)
#else /* of 16 registers 8 */
#define PRODUCT_ROWS INT64_C(4)
#define PRODUCT_VECS INT64_C(2)
#endif
#define PRODUCT_COLS (PRODUCT_VECS * CPU_VECTOR)

/* ---- packers ----------------------------------------------------------------------------------------------------- */
/* to[k * width + i] = from[k * stride + i], i < count */
CPU_INLINE void pack_along(float *to, const float *from, int64_t stride, int64_t count, int64_t depth,
                           const int64_t width)
{
    if (count == width) {
        for (int64_t k = 0; k < depth; k++) memcpy(to + k * width, from + k * stride, (size_t)width * sizeof(*to));
        return;
    }
    for (int64_t k = 0; k < depth; k++)
        for (int64_t i = 0; i < width; i++) to[k * width + i] = i < count ? from[k * stride + i] : 0.0f;
}

/* to[k * width + i] = from[i * stride + k], i < count */
CPU_INLINE void pack_across_part(float *to, const float *from, int64_t stride, int64_t count, int64_t first,
                                 int64_t depth, const int64_t width)
{
    for (int64_t k = first; k < depth; k++)
        for (int64_t i = 0; i < width; i++) to[k * width + i] = i < count ? from[i * stride + k] : 0.0f;
}

#if CPU_VECTOR >= 8
/* Eight numbers each of `lines` lines: to[k * width + i] = from[i * stride + k]. */
CPU_INLINE void turn8(float *to, int64_t width, const float *from, int64_t stride, const int64_t lines)
{
    __m256 x[8], y[8];

    CPU_UNROLL for (int64_t i = 0; i < 8; i++) x[i] =
        i < lines ? _mm256_loadu_ps(from + i * stride) : _mm256_setzero_ps();
    CPU_UNROLL for (int64_t i = 0; i < 8; i += 2)
    {
        y[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
        y[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
    }
    CPU_UNROLL for (int64_t i = 0; i < 8; i += 4)
    {
        x[i] = _mm256_shuffle_ps(y[i], y[i + 2], 0x44);
        x[i + 1] = _mm256_shuffle_ps(y[i], y[i + 2], 0xee);
        x[i + 2] = _mm256_shuffle_ps(y[i + 1], y[i + 3], 0x44);
        x[i + 3] = _mm256_shuffle_ps(y[i + 1], y[i + 3], 0xee);
    }
    CPU_UNROLL for (int64_t k = 0; k < 4; k++)
    {
        const __m256 low = _mm256_permute2f128_ps(x[k], x[k + 4], 0x20),
                     high = _mm256_permute2f128_ps(x[k], x[k + 4], 0x31);
        memcpy(to + k * width, &low, (size_t)lines * sizeof(*to));
        memcpy(to + (k + 4) * width, &high, (size_t)lines * sizeof(*to));
    }
}

CPU_INLINE void pack_across(float *to, const float *from, int64_t stride, int64_t count, int64_t depth,
                            const int64_t width)
{
    int64_t k = 0;

    if (count == width)
        for (; k + 8 <= depth; k += 8)
            CPU_UNROLL for (int64_t i = 0; i < width; i += 8)
                turn8(to + k * width + i, width, from + i * stride + k, stride, width - i < 8 ? width - i : 8);
    pack_across_part(to, from, stride, count, k, depth, width);
}
#else
CPU_INLINE void pack_across(float *to, const float *from, int64_t stride, int64_t count, int64_t depth,
                            const int64_t width)
{
    pack_across_part(to, from, stride, count, 0, depth, width);
}
#endif

/* Panels of `width` of an operand of `count` lines: element (i, k) at i * along + k * down, one of which is 1. */
CPU_INLINE void product_pack(float *to, const float *from, int64_t along, int64_t down, int64_t count, int64_t depth,
                            const int64_t width)
{
    for (int64_t i = 0; i < count; i += width, to += width * depth) {
        const int64_t n = count - i < width ? count - i : width;

        if (along == 1)
            pack_along(to, from + i, down, n, depth, width);
        else
            pack_across(to, from + i * along, along, n, depth, width);
    }
}

static void product_pack_left(float *to, const float *from, int64_t along, int64_t down, int64_t count, int64_t depth)
{
    product_pack(to, from, along, down, count, depth, PRODUCT_ROWS);
}

static void product_pack_right(float *to, const float *from, int64_t along, int64_t down, int64_t count, int64_t depth)
{
    product_pack(to, from, along, down, count, depth, PRODUCT_COLS);
}

/* ---- the tile ---------------------------------------------------------------------------------------------------- */
CPU_INLINE cpu_vec product_step(cpu_vec a, cpu_vec b, cpu_vec c)
{
#if CPU_VECTOR >= 8 || defined(__ARM_FEATURE_FMA)
    return vec_fma(a, b, c);
#else
    return c + a * b; /* without the instruction fmaf is a function of the C library */
#endif
}

/* c = or += the product of a left and a right panel. */
CPU_INLINE void product_tile(float *c, int64_t stride, const float *left, const float *right, int64_t depth, bool add)
{
    cpu_vec s[PRODUCT_ROWS][PRODUCT_VECS];

    CPU_UNROLL for (int64_t r = 0; r < PRODUCT_ROWS; r++)
    {
        __builtin_prefetch(c + r * stride, 1);
        __builtin_prefetch(c + r * stride + PRODUCT_COLS - 1, 1);
        CPU_UNROLL for (int64_t v = 0; v < PRODUCT_VECS; v++) s[r][v] = (cpu_vec){0};
    }
    for (int64_t k = 0; k < depth; k++, left += PRODUCT_ROWS, right += PRODUCT_COLS) {
        cpu_vec x[PRODUCT_VECS];
        CPU_UNROLL for (int64_t v = 0; v < PRODUCT_VECS; v++) x[v] = vec_load(right + v * CPU_VECTOR);
        CPU_UNROLL for (int64_t r = 0; r < PRODUCT_ROWS; r++)
        {
            const cpu_vec y = left[r] - (cpu_vec){0};
            CPU_UNROLL for (int64_t v = 0; v < PRODUCT_VECS; v++) s[r][v] = product_step(y, x[v], s[r][v]);
        }
    }
    CPU_UNROLL for (int64_t r = 0; r < PRODUCT_ROWS; r++) CPU_UNROLL for (int64_t v = 0; v < PRODUCT_VECS; v++)
    {
        float *to = c + r * stride + v * CPU_VECTOR;
        vec_store(to, add ? vec_load(to) + s[r][v] : s[r][v]);
    }
}

/* c (rows, cols), rows <= PRODUCT_ROWS, = or += the product of one left panel and the right panels. */
static void product_row(float *c, int64_t stride, const float *left, const float *right, int64_t depth, int64_t rows,
                        int64_t cols, bool add)
{
    float edge[PRODUCT_ROWS * PRODUCT_COLS];

    for (int64_t j = 0; j < cols; j += PRODUCT_COLS, right += PRODUCT_COLS * depth) {
        const int64_t n = cols - j < PRODUCT_COLS ? cols - j : PRODUCT_COLS;

        if (rows == PRODUCT_ROWS && n == PRODUCT_COLS) {
            product_tile(c + j, stride, left, right, depth, add);
            continue;
        }
        product_tile(edge, PRODUCT_COLS, left, right, depth, false);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t i = 0; i < n; i++) {
                float *to = c + r * stride + j + i;
                *to = add ? *to + edge[r * PRODUCT_COLS + i] : edge[r * PRODUCT_COLS + i];
            }
    }
}
