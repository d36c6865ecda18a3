/* plugins/device/cpu/kernels/product/product_body.h -- the matrix product: packers and the tile whose sums stay in
 * registers, as in GotoBLAS and BLIS (Goto and van de Geijn 2008; Van Zee and van de Geijn 2015). Included by
 * kernels_body.h only.
 *
 * c (rows, cols) is row-major, and vectors lie along its rows. A panel of the left operand is PRODUCT_ROWS wide, one
 * of the right operand PRODUCT_COLS: element (k, i) at k * width + i, zeros where the operand ends. A right panel
 * stays in the first cache while all left panels of a block, which stay in the second, go by. Each sum goes through k
 * in its order, one fused multiply-add after the other: the same bits on every CPU that has the instruction. */

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
#if CPU_VECTOR >= 8 || defined(__ARM_FEATURE_FMA)
#define PRODUCT_DEPTH INT64_C(256)
#else
#define PRODUCT_DEPTH INT64_C(64) /* each step of a sum rounds twice */
#endif
#if defined(__aarch64__) /* where oneDNN has loops that no compiler has vectorised */
#define PRODUCT_WINDOWS CPU_WINDOWS_ALL
#else
#define PRODUCT_WINDOWS (CPU_VECTOR == 8 ? CPU_WINDOWS_MANY_CHANNELS : CPU_WINDOWS_NONE)
#endif
#define PRODUCT_COLS (PRODUCT_VECS * CPU_VECTOR)

#define PACK_AHEAD INT64_C(16) /* rows that are further apart than the hardware's prefetcher follows */

/* ---- packers ----------------------------------------------------------------------------------------------------- */
/* to[k * width + i] = from[k * stride + i], i < count */
CPU_INLINE void pack_along(float *to, const float *from, int64_t stride, int64_t count, int64_t depth,
                           const int64_t width)
{
    for (int64_t k = 0; k < depth; k++)
        for (int64_t i = 0; i < width; i++) to[k * width + i] = i < count ? from[k * stride + i] : 0.0f;
}

/* The same of many panels: a row of all of them at a time. A store has as many numbers as registers have, of which the
 * panel's next one overwrites those that are too many; the last one's lie in the gap before the next panel. */
CPU_INLINE void pack_rows(float *to, const float *from, int64_t stride, int64_t panels, int64_t depth,
                          const int64_t width)
{
    const int64_t next = cpu_product_stride(width, depth), whole = (width + CPU_VECTOR - 1) / CPU_VECTOR * CPU_VECTOR;

    for (int64_t k = 0; k < depth; k++, to += width, from += stride) {
        for (int64_t p = 0; p < panels; p++) {
            __builtin_prefetch(from + p * width + PACK_AHEAD * stride);
            memcpy(to + p * next, from + p * width, (size_t)(p + 1 < panels ? whole : width) * sizeof(*to));
        }
    }
}

/* to[k * width + i] = from[i * stride + k], i < count */
CPU_INLINE void pack_across_part(float *to, const float *from, int64_t stride, int64_t count, int64_t first,
                                 int64_t depth, const int64_t width)
{
    for (int64_t k = first; k < depth; k++)
        for (int64_t i = 0; i < width; i++) to[k * width + i] = i < count ? from[i * stride + k] : 0.0f;
}

#if CPU_VECTOR >= 8
CPU_INLINE __m256 halves(const float *low, const float *high)
{
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(low)), _mm_loadu_ps(high), 1);
}

/* Eight numbers each of eight lines, of which `lines` are there: to[k * width + i] = from[i * stride + k]. Stores eight
 * for each k, upwards. */
CPU_INLINE void turn8(float *to, int64_t width, const float *from, int64_t stride, const int64_t lines)
{
    static const float none[8] = {0};

    for (int64_t half = 0; half < 8; half += 4) {
        __m256 x[4], y[4];
        CPU_UNROLL for (int64_t i = 0; i < 4; i++) x[i] =
            halves(i < lines ? from + i * stride + half : none, i + 4 < lines ? from + (i + 4) * stride + half : none);
        CPU_UNROLL for (int64_t i = 0; i < 4; i += 2)
        {
            y[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
            y[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
        }
        CPU_UNROLL for (int64_t k = 0; k < 4; k++)
        {
            const __m256 z = k % 2 == 0 ? _mm256_shuffle_ps(y[k / 2], y[k / 2 + 2], 0x44)
                                        : _mm256_shuffle_ps(y[k / 2], y[k / 2 + 2], 0xee);
            _mm256_storeu_ps(to + (half + k) * width, z);
        }
    }
}

/* What a register has of the last lines, `wide` of them, goes to its place alone. */
CPU_INLINE void turn8_last(float *to, int64_t width, const float *from, int64_t stride, int64_t lines, int64_t wide)
{
    float turned[64];

    turn8(turned, 8, from, stride, lines);
    for (int64_t k = 0; k < 8; k++)
        for (int64_t i = 0; i < wide; i++) to[k * width + i] = turned[k * 8 + i];
}

/* Numbers k .. k + some - 1 of each line, `some` a multiple of eight. From the last lines to the first, whose stores
 * overwrite what those of the last have too much. */
CPU_INLINE void pack_some(float *to, const float *from, int64_t stride, int64_t count, int64_t k, const int64_t some,
                          const int64_t width)
{
    CPU_UNROLL for (int64_t i = (width - 1) / 8 * 8; i >= 0; i -= 8)
        CPU_UNROLL for (int64_t h = k; h < k + some; h += 8)
    {
        if (count == width)
            turn8(to + h * width + i, width, from + i * stride + h, stride, width - i);
        else
            turn8_last(to + h * width + i, width, from + i * stride + h, stride, count - i,
                       width - i < 8 ? width - i : 8);
    }
}

/* A line of the cache is used up at once: those of lines that are a power of two apart drive each other out. */
CPU_INLINE void pack_across(float *to, const float *from, int64_t stride, int64_t count, int64_t depth,
                            const int64_t width)
{
    int64_t k = 0;

    for (; k + 16 <= depth; k += 16) pack_some(to, from, stride, count, k, 16, width);
    if (k + 8 <= depth) {
        pack_some(to, from, stride, count, k, 8, width);
        k += 8;
    }
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
    const int64_t next = cpu_product_stride(width, depth);
    int64_t i = 0;

    if (along == 1) {
        i = count / width * width;
        pack_rows(to, from, down, count / width, depth, width);
    }
    for (to += i / width * next; i < count; i += width, to += next) {
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

/* Past the caches; `to` is as aligned as a register is long. */
CPU_INLINE void product_store_past(float *to, cpu_vec x)
{
#if CPU_VECTOR == 16
    _mm512_stream_ps(to, x);
#elif CPU_VECTOR == 8
    _mm256_stream_ps(to, x);
#else
    vec_store(to, x);
#endif
}

/* c (PRODUCT_ROWS, PRODUCT_COLS) = or += the product of a left and a right panel. */
CPU_INLINE void product_tile(float *c, int64_t stride, const float *left, const float *right, int64_t depth, int how)
{
    cpu_vec s[PRODUCT_ROWS][PRODUCT_VECS];

    CPU_UNROLL for (int64_t r = 0; r < PRODUCT_ROWS; r++)
    {
        if (how != CPU_PRODUCT_PAST) {
            __builtin_prefetch(c + r * stride, 1);
            __builtin_prefetch(c + r * stride + PRODUCT_COLS - 1, 1);
        }
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
        if (how == CPU_PRODUCT_PAST)
            product_store_past(to, s[r][v]);
        else
            vec_store(to, how == CPU_PRODUCT_ADD ? vec_load(to) + s[r][v] : s[r][v]);
    }
}

/* The last rows, or columns, of a block: as many as there are. */
static void product_edge(float *c, int64_t stride, const float *left, const float *right, int64_t depth, int64_t rows,
                         int64_t cols, bool add)
{
    float edge[PRODUCT_ROWS * PRODUCT_COLS];

    product_tile(edge, PRODUCT_COLS, left, right, depth, CPU_PRODUCT_SET);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < cols; i++) {
            float *to = c + r * stride + i;
            *to = add ? *to + edge[r * PRODUCT_COLS + i] : edge[r * PRODUCT_COLS + i];
        }
}

static void product_panels(float *c, int64_t stride, const float *left, const float *right, int64_t depth, int64_t rows,
                           int64_t cols, int how)
{
    const int64_t next_left = cpu_product_stride(PRODUCT_ROWS, depth),
                  next_right = cpu_product_stride(PRODUCT_COLS, depth);

    for (int64_t i = 0; i < rows; i += PRODUCT_ROWS, left += next_left)
        for (int64_t j = 0; j < cols; j += PRODUCT_COLS) {
            const float *panel = right + j / PRODUCT_COLS * next_right;
            float *to = c + i * stride + j;
            if (rows - i < PRODUCT_ROWS || cols - j < PRODUCT_COLS)
                product_edge(to, stride, left, panel, depth, rows - i < PRODUCT_ROWS ? rows - i : PRODUCT_ROWS,
                             cols - j < PRODUCT_COLS ? cols - j : PRODUCT_COLS, how == CPU_PRODUCT_ADD);
            else if (how == CPU_PRODUCT_PAST)
                product_tile(to, stride, left, panel, depth, CPU_PRODUCT_PAST);
            else
                product_tile(to, stride, left, panel, depth, how);
        }
#if CPU_VECTOR >= 8
    if (how == CPU_PRODUCT_PAST) _mm_sfence(); /* before anybody is told that they are there */
#endif
}
