/* plugins/device/cpu/kernels/winograd/winograd_body.h -- convolution with kernels of 3 x 3 by tiles of 4 x 4:
 * Winograd's minimal filtering F(4 x 4, 3 x 3) after Lavin and Gray (arXiv:1509.09308), whose matrices B, G and A stand
 * here as sums. Included by kernels_body.h only.
 *
 * Of 6 x 6 pixels, 36 points are made; point by point tiles are multiplied with weights; of 36 points, 4 x 4 pixels
 * are made. The gradient of the weight goes the same way back. Sixteen channels at a time; sums over channels or
 * tiles have one order. */

enum {
    POINTS = 36,
    MUL_ROWS = 6, /* of a product in registers, by as many vectors: */
    MUL_VECS = CPU_VECTOR == 8 ? 2 : 4,
    MUL_PANEL = MUL_VECS * CPU_VECTOR
};

CPU_INLINE f16 f16_times(float a, f16 x) { return f16_mul(f16_set(a), x); }
CPU_INLINE f16 f16_relu(f16 x)
{
    F16_EACH(x.v[i] = (cpu_vec)(~(cpu_ivec)(x.v[i] <= 0.0f) & (cpu_ivec)x.v[i])) /* NaN passes, as in torch.relu */
    return x;
}
CPU_INLINE f16 f16_more(f16 sum, float a, f16 x) { return f16_fma(f16_set(a), x, sum); }

/* ---- the matrices ------------------------------------------------------------------------------------------------ */
/* Polynomials are taken at 0, +-a, +-b and infinity: 5/8 and 3/2 round less than 1 and 2 of the paper; their powers
 * are exact. */
#define AT_A     0.625f
#define AT_B     1.5f
#define SQUARE_A (AT_A * AT_A)
#define SQUARE_B (AT_B * AT_B)
#define WEIGHT_0 (1.0f / (SQUARE_A * SQUARE_B))
#define WEIGHT_A (0.5f / (SQUARE_A * (SQUARE_A - SQUARE_B)))
#define WEIGHT_B (0.5f / (SQUARE_B * (SQUARE_B - SQUARE_A)))

/* The values at p and -p, from the even part and p times the odd one. */
CPU_INLINE void both_signs(f16 *y, f16 even, f16 odd)
{
    y[0] = f16_add(even, odd);
    y[1] = f16_sub(even, odd);
}

/* B^T x: 6 from 6 */
CPU_INLINE void points_of_pixels(f16 *y, const f16 *x)
{
    y[0] = f16_more(f16_more(x[4], -(SQUARE_A + SQUARE_B), x[2]), SQUARE_A * SQUARE_B, x[0]);
    both_signs(y + 1, f16_more(x[4], -SQUARE_B, x[2]), f16_times(AT_A, f16_more(x[3], -SQUARE_B, x[1])));
    both_signs(y + 3, f16_more(x[4], -SQUARE_A, x[2]), f16_times(AT_B, f16_more(x[3], -SQUARE_A, x[1])));
    y[5] = f16_more(f16_more(x[5], -(SQUARE_A + SQUARE_B), x[3]), SQUARE_A * SQUARE_B, x[1]);
}

/* A^T x: 4 from 6 */
CPU_INLINE void pixels_of_points(f16 *y, const f16 *x)
{
    f16 even_a = f16_add(x[1], x[2]), odd_a = f16_times(AT_A, f16_sub(x[1], x[2])), even_b = f16_add(x[3], x[4]),
        odd_b = f16_times(AT_B, f16_sub(x[3], x[4]));

    y[0] = f16_add(f16_add(x[0], even_a), even_b);
    y[1] = f16_add(odd_a, odd_b);
    y[2] = f16_more(f16_times(SQUARE_A, even_a), SQUARE_B, even_b);
    y[3] = f16_more(f16_more(x[5], SQUARE_A, odd_a), SQUARE_B, odd_b);
}

/* A x: 6 from 4 */
CPU_INLINE void points_of_gradients(f16 *y, const f16 *x)
{
    y[0] = x[0];
    both_signs(y + 1, f16_more(x[0], SQUARE_A, x[2]), f16_times(AT_A, f16_more(x[1], SQUARE_A, x[3])));
    both_signs(y + 3, f16_more(x[0], SQUARE_B, x[2]), f16_times(AT_B, f16_more(x[1], SQUARE_B, x[3])));
    y[5] = x[3];
}

/* G x: 6 from 3 */
CPU_INLINE void points_of_weights(f16 *y, const f16 *x)
{
    y[0] = f16_times(WEIGHT_0, x[0]);
    both_signs(y + 1, f16_times(WEIGHT_A, f16_more(x[0], SQUARE_A, x[2])), f16_times(WEIGHT_A * AT_A, x[1]));
    both_signs(y + 3, f16_times(WEIGHT_B, f16_more(x[0], SQUARE_B, x[2])), f16_times(WEIGHT_B * AT_B, x[1]));
    y[5] = x[2];
}

/* G^T x: 3 from 6 */
CPU_INLINE void weights_of_points(f16 *y, const f16 *x)
{
    f16 even_a = f16_times(WEIGHT_A, f16_add(x[1], x[2])), odd_a = f16_times(WEIGHT_A * AT_A, f16_sub(x[1], x[2])),
        even_b = f16_times(WEIGHT_B, f16_add(x[3], x[4])), odd_b = f16_times(WEIGHT_B * AT_B, f16_sub(x[3], x[4]));

    y[0] = f16_more(f16_add(even_a, even_b), WEIGHT_0, x[0]);
    y[1] = f16_add(odd_a, odd_b);
    y[2] = f16_more(f16_more(x[5], SQUARE_A, even_a), SQUARE_B, even_b);
}

/* T x T^T, of from x from values by `load` of (i, j) to to x to by `store` of (i, j, value). Narrow vectors are too
 * many for the registers anyway: their outer loops stay rolled, which keeps the code small. */
#if CPU_VECTOR < 8
#define TILE_LINES CPU_ROLLED
#else
#define TILE_LINES CPU_UNROLL
#endif
#define BOTH_WAYS(from, to, transform, load, store)                                                                    \
    {                                                                                                                  \
        f16 between[POINTS], in[6], out[6];                                                                            \
        TILE_LINES for (int64_t j = 0; j < (from); j++)                                                                \
        {                                                                                                              \
            CPU_UNROLL for (int64_t i = 0; i < (from); i++) in[i] = load(i, j);                                        \
            transform(out, in);                                                                                        \
            CPU_UNROLL for (int64_t i = 0; i < (to); i++) between[i * 6 + j] = out[i];                                 \
        }                                                                                                              \
        TILE_LINES for (int64_t i = 0; i < (to); i++)                                                                  \
        {                                                                                                              \
            transform(out, between + i * 6);                                                                           \
            CPU_UNROLL for (int64_t j = 0; j < (to); j++) store(i, j, out[j]);                                         \
        }                                                                                                              \
    }

/* ---- pixels to points, and back ---------------------------------------------------------------------------------- */
/* The pixels of a tile; one outside of the image is read as `nothing`, wherever the channel. */
typedef struct tile_pixels {
    const float *at[POINTS];
    int64_t keep[POINTS]; /* -1, or 0 outside */
} tile_pixels;

static const float nothing[16];

static void find_pixels(tile_pixels *p, const float *x, const cpu_tiles *s, int64_t tile, int64_t size, int64_t height,
                        int64_t width, int64_t pitch, const int64_t *before)
{
    int64_t image = tile / (s->high * s->wide), top = tile / s->wide % s->high * 4 - before[0],
            left = tile % s->wide * 4 - before[1], line = ((image * height + top) * width + left) * pitch;

    for (int64_t i = 0; i < size; i++, line += width * pitch) {
        bool on_line = top + i >= 0 && top + i < height;
        for (int64_t j = 0; j < size; j++) {
            bool inside = on_line && left + j >= 0 && left + j < width;
            p->at[i * 6 + j] = inside ? x + (line + j * pitch) : nothing;
            p->keep[i * 6 + j] = inside ? -1 : 0;
        }
    }
}

#define LOAD_PIXEL(i, j)         f16_load(p.at[(i)*6 + (j)] + (p.keep[(i)*6 + (j)] & c))
#define LOAD_POINT(i, j)         f16_load(from + ((i)*6 + (j)) * apart)
#define STORE_POINT(i, j, value) f16_store(to + ((i)*6 + (j)) * apart, value)

static void winograd_pixels(float *points, const float *x, const cpu_tiles *s, int64_t base, int64_t count)
{
    const int64_t apart = s->x_stride;
    tile_pixels p;

    for (int64_t t = 0; t < count; t++) {
        find_pixels(&p, x, s, base + t, 6, s->height, s->width, s->x_pitch, s->padding);
        for (int64_t c = 0; c < s->channels; c += 16) {
            float *to = points + t * s->channels + c;
            BOTH_WAYS(6, 6, points_of_pixels, LOAD_PIXEL, STORE_POINT)
        }
    }
}

static void winograd_gradients(float *points, const float *dy, const cpu_tiles *s, int64_t base, int64_t count)
{
    static const int64_t before[2];
    const int64_t apart = s->y_stride;
    tile_pixels p;

    for (int64_t t = 0; t < count; t++) {
        find_pixels(&p, dy, s, base + t, 4, s->out_height, s->out_width, s->y_pitch, before);
        for (int64_t c = 0; c < s->out; c += 16) {
            float *to = points + t * s->out + c;
            BOTH_WAYS(4, 6, points_of_gradients, LOAD_PIXEL, STORE_POINT)
        }
    }
}

#define STORE_PIXEL(i, j, value)                                                                                       \
    if ((i) < high && (j) < wide) {                                                                                    \
        f16 v = f16_add(value, b);                                                                                     \
        f16_store(to + ((i)*s->out_width + (j)) * s->y_pitch + c, relu ? f16_relu(v) : v);                             \
    }

static void winograd_images(float *y, const float *points, const float *bias, bool relu, const cpu_tiles *s,
                            int64_t base, int64_t count)
{
    const int64_t apart = s->y_stride;

    for (int64_t t = 0; t < count; t++) {
        int64_t tile = base + t, image = tile / (s->high * s->wide), top = tile / s->wide % s->high * 4,
                left = tile % s->wide * 4, high = s->out_height - top, wide = s->out_width - left;
        float *to = y + ((image * s->out_height + top) * s->out_width + left) * s->y_pitch;

        for (int64_t c = 0; c < s->out; c += 16) {
            const float *from = points + t * s->out + c;
            f16 b = bias != NULL ? f16_load(bias + c) : f16_set(0.0f);
            BOTH_WAYS(6, 4, pixels_of_points, LOAD_POINT, STORE_PIXEL)
        }
    }
}

/* ---- weights to points, and back --------------------------------------------------------------------------------- */
#define LOAD_WEIGHT(i, j)         f16_load(g[(i)*3 + (j)])
#define STORE_WEIGHT(i, j, value) f16_store(g[(i)*3 + (j)], value)

/* Inputs first .. last-1 of points (36, panels of outputs, inputs, outputs of the panel). */
static void winograd_weights(float *points, const float *w, const cpu_tiles *s, int64_t first, int64_t last)
{
    const int64_t apart = s->weight_stride;

    for (int64_t in = first; in < last; in++)
        for (int64_t o = 0; o < s->out; o += 16) {
            int64_t panel = o / MUL_PANEL * MUL_PANEL, wide = s->out - panel < MUL_PANEL ? s->out - panel : MUL_PANEL;
            float *to = points + panel * s->channels + in * wide + (o - panel);
            float g[9][16];

            for (int64_t l = 0; l < 16; l++)
                for (int64_t k = 0; k < 9; k++)
                    g[s->turned ? 8 - k : k][l] = w[(o + l) * s->weight_out + in * s->weight_in + k * s->weight_tap];
            BOTH_WAYS(3, 6, points_of_weights, LOAD_WEIGHT, STORE_POINT)
        }
}

/* From points (36, inputs, outputs). */
static void winograd_weight_gradients(float *dw, const float *points, const cpu_tiles *s, bool add)
{
    const int64_t apart = s->weight_stride;

    for (int64_t in = 0; in < s->channels; in++)
        for (int64_t o = 0; o < s->out; o += 16) {
            const float *from = points + in * s->out + o;
            float g[9][16];

            BOTH_WAYS(6, 3, weights_of_points, LOAD_POINT, STORE_WEIGHT)
            for (int64_t l = 0; l < 16; l++)
                for (int64_t k = 0; k < 9; k++) {
                    float *to = dw + (o + l) * s->weight_out + in * s->weight_in + k * s->weight_tap;
                    *to = add ? *to + g[k][l] : g[k][l];
                }
        }
}

/* ---- products ---------------------------------------------------------------------------------------------------- */
/* c (rows, vecs) = or += a b over `depth`: element (r, k) of a at a[r * row_a + k * step_a], rows of b and c so far
 * apart. */
CPU_INLINE void multiply_few(int64_t rows, int64_t vecs, float *c, int64_t row_c, const float *a, int64_t row_a,
                             int64_t step_a, const float *b, int64_t row_b, int64_t depth, bool add)
{
    cpu_vec sum[MUL_ROWS][MUL_VECS];

    CPU_UNROLL for (int64_t r = 0; r < rows; r++) CPU_UNROLL for (int64_t v = 0; v < vecs; v++) sum[r][v] =
        add ? vec_load(c + r * row_c + v * CPU_VECTOR) : (cpu_vec){0};
    for (int64_t k = 0; k < depth; k++) {
        cpu_vec x[MUL_VECS];
        CPU_UNROLL for (int64_t v = 0; v < vecs; v++) x[v] = vec_load(b + k * row_b + v * CPU_VECTOR);
        CPU_UNROLL for (int64_t r = 0; r < rows; r++)
        {
            cpu_vec f = a[r * row_a + k * step_a] - (cpu_vec){0};
            CPU_UNROLL for (int64_t v = 0; v < vecs; v++) sum[r][v] = vec_fma(f, x[v], sum[r][v]);
        }
    }
    CPU_UNROLL for (int64_t r = 0; r < rows; r++) CPU_UNROLL for (int64_t v = 0; v < vecs; v++)
        vec_store(c + r * row_c + v * CPU_VECTOR, sum[r][v]);
}

#define MULTIPLY(rows, vecs) multiply_few(rows, vecs, c, row_c, a, row_a, step_a, b, row_b, depth, add)
#define MULTIPLY_ROWS(vecs)                                                                                            \
    switch (rows) {                                                                                                    \
    case 1: MULTIPLY(1, vecs); break;                                                                                  \
    case 2: MULTIPLY(2, vecs); break;                                                                                  \
    case 3: MULTIPLY(3, vecs); break;                                                                                  \
    case 4: MULTIPLY(4, vecs); break;                                                                                  \
    case 5: MULTIPLY(5, vecs); break;                                                                                  \
    default: MULTIPLY(6, vecs); break;                                                                                 \
    }

/* As above for up to a panel of columns, a multiple of 16, and up to 6 rows. */
static void multiply_panel(int64_t rows, int64_t cols, float *c, int64_t row_c, const float *a, int64_t row_a,
                           int64_t step_a, const float *b, int64_t row_b, int64_t depth, bool add)
{
#if CPU_VECTOR == 16
    switch (cols / 16) {
    case 1: MULTIPLY_ROWS(1) return;
    case 2: MULTIPLY_ROWS(2) return;
    case 3: MULTIPLY_ROWS(3) return;
    default: MULTIPLY_ROWS(4) return;
    }
#else
    (void)cols; /* a panel is 16 */
    MULTIPLY_ROWS(MUL_VECS)
#endif
}

/* y (36, tiles, outputs) from those of x (36, tiles, inputs) and of the weight. */
static void winograd_multiply(float *y, const float *x, const float *weight, const cpu_tiles *s, int64_t tiles)
{
    for (int64_t q = 0; q < POINTS; q++)
        for (int64_t out = 0; out < s->out; out += MUL_PANEL) {
            int64_t cols = s->out - out < MUL_PANEL ? s->out - out : MUL_PANEL;
            for (int64_t t = 0; t < tiles; t += MUL_ROWS)
                multiply_panel(tiles - t < MUL_ROWS ? tiles - t : MUL_ROWS, cols,
                               y + q * s->y_stride + t * s->out + out, s->out, x + q * s->x_stride + t * s->channels,
                               s->channels, 1, weight + q * s->weight_stride + out * s->channels, cols, s->channels,
                               false);
        }
}

/* The weight's gradient (36, inputs, outputs), set or added. */
static void winograd_correlate(float *weight, const float *x, const float *dy, const cpu_tiles *s, int64_t tiles,
                               bool add)
{
    for (int64_t q = 0; q < POINTS; q++)
        for (int64_t out = 0; out < s->out; out += MUL_PANEL) {
            int64_t cols = s->out - out < MUL_PANEL ? s->out - out : MUL_PANEL;
            for (int64_t in = 0; in < s->channels; in += MUL_ROWS)
                multiply_panel(s->channels - in < MUL_ROWS ? s->channels - in : MUL_ROWS, cols,
                               weight + q * s->weight_stride + in * s->out + out, s->out, x + q * s->x_stride + in, 1,
                               s->channels, dy + q * s->y_stride + out, s->out, tiles, add);
        }
}

#define CPU_WINOGRAD_KERNELS                                                                                           \
    {                                                                                                                  \
        .pixels = winograd_pixels, .gradients = winograd_gradients, .images = winograd_images,                         \
        .weights = winograd_weights, .weight_gradients = winograd_weight_gradients, .multiply = winograd_multiply,     \
        .correlate = winograd_correlate,                                                                               \
    }
