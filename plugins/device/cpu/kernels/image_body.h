/* plugins/device/cpu/kernels/image_body.h -- the kernels of image.h, included by kernels_body.h only. Loops over
 * channels are the inner ones. */

/* Of an output's window along axis i: the part of [0, size) that it sees. */
static inline void window_span(const cpu_windows *w, int i, int64_t at, int64_t *first, int64_t *last)
{
    int64_t size = i == 0 ? w->height : w->width, out = i == 0 ? w->out_height : w->out_width;

    if (w->kernel[i] == 0) {
        *first = at * size / out;
        *last = ((at + 1) * size + out - 1) / out;
        return;
    }
    *first = at * w->stride[i] - w->padding[i];
    *last = *first + w->kernel[i] < size ? *first + w->kernel[i] : size;
    *first = *first > 0 ? *first : 0;
}

/* The outputs whose windows see `at`: first .. last-1. */
static inline void seen_by(const cpu_windows *w, int i, int64_t at, int64_t *first, int64_t *last)
{
    int64_t size = i == 0 ? w->height : w->width, out = i == 0 ? w->out_height : w->out_width;

    if (w->kernel[i] == 0) {
        *first = at * out / size;
        *last = ((at + 1) * out + size - 1) / size;
    } else {
        int64_t from = at + w->padding[i] - w->kernel[i] + 1;
        *first = from > 0 ? (from + w->stride[i] - 1) / w->stride[i] : 0;
        *last = (at + w->padding[i]) / w->stride[i] + 1;
    }
    *last = *last < out ? *last : out;
}

/* ---- rows of windows --------------------------------------------------------------------------------------------- */
static void unfold_place(float *row, const float *image, const cpu_windows *w, int64_t top, int64_t left)
{
    int64_t taps = w->kernel[0] * w->kernel[1];

    for (int64_t i = 0; i < w->kernel[0]; i++)
        for (int64_t j = 0; j < w->kernel[1]; j++) {
            int64_t y = top + i, x = left + j;
            bool inside = y >= 0 && y < w->height && x >= 0 && x < w->width;
            const float *from = image + (inside ? (y * w->width + x) * w->channels : 0);
            float *to = row + i * w->kernel[1] + j;
            if (taps == 1 && inside) {
                memcpy(to, from, (size_t)w->channels * sizeof(*to));
            } else if (inside) {
                for (int64_t c = 0; c < w->channels; c++) to[c * taps] = from[c];
            } else {
                for (int64_t c = 0; c < w->channels; c++) to[c * taps] = 0.0f;
            }
        }
}

static void unfold(float *rows, const float *x, const cpu_windows *w, int64_t first, int64_t last)
{
    int64_t positions = w->out_height * w->out_width, wide = w->channels * w->kernel[0] * w->kernel[1];

    for (int64_t r = first; r < last; r++) {
        const float *image = x + r / positions * w->height * w->width * w->channels;
        int64_t row = r % positions / w->out_width, col = r % w->out_width;
        unfold_place(rows + r * wide, image, w, row * w->stride[0] - w->padding[0], col * w->stride[1] - w->padding[1]);
    }
}

CPU_INLINE int64_t within(int64_t x, int64_t low, int64_t high) { return x < low ? low : x > high ? high : x; }

CPU_INLINE void copy_run(float *to, const float *from, int64_t n)
{
    if (n < 16)
        for (int64_t i = 0; i < n; i++) to[i] = from[i];
    else
        memcpy(to, from, (size_t)n * sizeof(*to));
}

/* Of one place. A line of the window is one run of the image, but for what is padding; of a group of channels, a run
 * for each pixel. */
static void window_row(float *to, const float *image, const cpu_windows *w, int64_t top, int64_t left, int64_t first,
                       int64_t last)
{
    const int64_t pixels = w->pitch == w->channels ? w->kernel[1] : 1, run = pixels * w->channels;
    const int64_t runs = w->kernel[1] / pixels;

    for (int64_t i = first / run; i * run < last; i++) {
        const int64_t a = within(first - i * run, 0, run), b = within(last - i * run, 0, run), y = top + i / runs;
        const int64_t x = left + i % runs, begin = -x * w->channels, end = (w->width - x) * w->channels;
        const bool inside = y >= 0 && y < w->height;
        const int64_t p = inside ? within(begin, a, b) : b, q = inside ? within(end, p, b) : b;
        for (int64_t n = a; n < p; n++) to[i * run - first + n] = 0.0f;
        if (q > p) copy_run(to + i * run - first + p, image + (y * w->width + x) * w->pitch + p, q - p);
        for (int64_t n = q; n < b; n++) to[i * run - first + n] = 0.0f;
    }
}

static void windows(float *to, int64_t stride, const float *x, const cpu_windows *w, int64_t place, int64_t count,
                    int64_t first, int64_t last)
{
    const int64_t places = w->out_height * w->out_width;

    for (int64_t i = 0; i < count; i++) {
        const int64_t at = place + i, row = at % places / w->out_width, col = at % w->out_width;
        window_row(to + i * stride, x + at / places * w->height * w->width * w->pitch, w,
                   row * w->stride[0] - w->padding[0], col * w->stride[1] - w->padding[1], first, last);
    }
}

static void fold(float *x, const float *rows, const cpu_windows *w, int64_t first, int64_t last)
{
    int64_t taps = w->kernel[0] * w->kernel[1], positions = w->out_height * w->out_width;

    for (int64_t line = first; line < last; line++) {
        int64_t row = line % w->height, r0, r1;
        const float *image = rows + line / w->height * positions * w->channels * taps;
        seen_by(w, 0, row, &r0, &r1);
        for (int64_t col = 0; col < w->width; col++) {
            float *to = x + (line * w->width + col) * w->pitch;
            int64_t c0, c1;
            seen_by(w, 1, col, &c0, &c1);
            memset(to, 0, (size_t)w->channels * sizeof(*to));
            for (int64_t i = r0; i < r1; i++)
                for (int64_t j = c0; j < c1; j++) {
                    int64_t tap = (row + w->padding[0] - i * w->stride[0]) * w->kernel[1] + col + w->padding[1] -
                                  j * w->stride[1];
                    const float *from = image + (i * w->out_width + j) * w->channels * taps + tap;
                    for (int64_t c = 0; c < w->channels; c++) to[c] += from[c * taps];
                }
        }
    }
}

/* ---- pooling ----------------------------------------------------------------------------------------------------- */
#define POOL_TILE 64 /* channels whose sums stay in registers or L1 */
#define POOL_VECS 4  /* registers of channels that are searched together */
enum { POOL_STEP = POOL_VECS * CPU_VECTOR };

/* A window's part of the image: rows h0 .. h1-1 and columns w0 .. w1-1; its corner may lie in the padding. */
typedef struct pool_window {
    int64_t h0, h1, w0, w1, top, left;
} pool_window;

/* The largest of the window over n <= POOL_VECS registers of channels, and the offsets, which count from the window's
 * corner. */
CPU_INLINE void max_vectors(float *y, uint8_t *at, const float *image, const cpu_windows *w, const pool_window *p,
                            int64_t n, bool relu)
{
    cpu_vec best[POOL_VECS];
    cpu_ivec offset[POOL_VECS];
    int32_t first = (int32_t)((p->h0 - p->top) * w->kernel[1] + p->w0 - p->left);

    CPU_UNROLL for (int64_t v = 0; v < n; v++)
    {
        best[v] = (cpu_vec){0} - INFINITY;
        offset[v] = (cpu_ivec){0} + first;
    }
    for (int64_t i = p->h0; i < p->h1; i++)
        for (int64_t j = p->w0; j < p->w1; j++) {
            const float *from = image + (i * w->width + j) * w->channels;
            cpu_ivec here = (cpu_ivec){0} + (int32_t)((i - p->top) * w->kernel[1] + j - p->left);
            CPU_UNROLL for (int64_t v = 0; v < n; v++)
            { /* a NaN is larger than all, and is never left */
                cpu_vec x = vec_load(from + v * CPU_VECTOR);
                cpu_ivec more = (x > best[v]) | ~((x < 0.0f) | (x >= 0.0f));
                best[v] = (cpu_vec)vec_choose(more, (cpu_ivec)x, (cpu_ivec)best[v]);
                offset[v] = vec_choose(more, here, offset[v]);
            }
        }
    CPU_UNROLL for (int64_t v = 0; v < n; v++)
    {
        uint8_t bytes[CPU_VECTOR];
        if (relu) {
            cpu_ivec none = best[v] <= 0.0f;
            offset[v] |= none & CPU_POOL_NOWHERE;
            best[v] = (cpu_vec)(~none & (cpu_ivec)best[v]);
        }
        vec_store(y + v * CPU_VECTOR, best[v]);
        for (int64_t c = 0; c < CPU_VECTOR; c++) bytes[c] = (uint8_t)offset[v][c];
        if (at != NULL) memcpy(at + v * CPU_VECTOR, bytes, sizeof(bytes));
    }
}

/* The same for n channels, one by one. */
static void max_channels(float *y, uint8_t *at, const float *image, const cpu_windows *w, const pool_window *p,
                         int64_t n, bool relu)
{
    for (int64_t c = 0; c < n; c++) {
        float best = -INFINITY;
        int32_t offset = (int32_t)((p->h0 - p->top) * w->kernel[1] + p->w0 - p->left);
        for (int64_t i = p->h0; i < p->h1; i++)
            for (int64_t j = p->w0; j < p->w1; j++) {
                float x = image[(i * w->width + j) * w->channels + c];
                bool more = (x > best) | (x != x);
                best = more ? x : best;
                offset = more ? (int32_t)((i - p->top) * w->kernel[1] + j - p->left) : offset;
            }
        if (relu && best <= 0.0f) {
            best = 0.0f;
            offset = CPU_POOL_NOWHERE;
        }
        y[c] = best;
        if (at != NULL) at[c] = (uint8_t)offset;
    }
}

static void max_pool(float *y, uint8_t *at, const float *x, const cpu_windows *w, bool relu, int64_t first,
                     int64_t last)
{
    for (int64_t line = first; line < last; line++) {
        const float *image = x + line / w->out_height * w->height * w->width * w->channels;
        int64_t row = line % w->out_height;
        for (int64_t col = 0; col < w->out_width; col++) {
            pool_window p = {.top = row * w->stride[0] - w->padding[0], .left = col * w->stride[1] - w->padding[1]};
            int64_t to = (line * w->out_width + col) * w->channels, c = 0;
            window_span(w, 0, row, &p.h0, &p.h1);
            window_span(w, 1, col, &p.w0, &p.w1);
            for (; c + POOL_STEP <= w->channels; c += POOL_STEP)
                max_vectors(y + to + c, at != NULL ? at + to + c : NULL, image + c, w, &p, POOL_VECS, relu);
            for (; c + CPU_VECTOR <= w->channels; c += CPU_VECTOR)
                max_vectors(y + to + c, at != NULL ? at + to + c : NULL, image + c, w, &p, 1, relu);
            max_channels(y + to + c, at != NULL ? at + to + c : NULL, image + c, w, &p, w->channels - c, relu);
        }
    }
}

static void max_pool_grad(float *dx, const float *dy, const uint8_t *at, const cpu_windows *w, int64_t first,
                          int64_t last)
{
    for (int64_t line = first; line < last; line++) {
        int64_t row = line % w->height, r0, r1, base = line / w->height * w->out_height;
        seen_by(w, 0, row, &r0, &r1);
        for (int64_t col = 0; col < w->width; col++) {
            float *to = dx + (line * w->width + col) * w->channels;
            int64_t c0, c1;
            seen_by(w, 1, col, &c0, &c1);
            memset(to, 0, (size_t)w->channels * sizeof(*to));
            for (int64_t i = r0; i < r1; i++)
                for (int64_t j = c0; j < c1; j++) {
                    int64_t from = ((base + i) * w->out_width + j) * w->channels;
                    const float *d = dy + from;
                    const uint8_t *p = at + from;
                    uint8_t here = (uint8_t)((row + w->padding[0] - i * w->stride[0]) * w->kernel[1] + col +
                                             w->padding[1] - j * w->stride[1]);
                    for (int64_t c = 0; c < w->channels; c++) to[c] += p[c] == here ? d[c] : 0.0f;
                }
        }
    }
}

static void maximum_sums(float *db, const float *dy, const uint8_t *at, int64_t rows, int64_t cols, int64_t first,
                         int64_t last, bool add)
{
    for (int64_t c = first; c < last; c += POOL_TILE) {
        int64_t n = last - c < POOL_TILE ? last - c : POOL_TILE;
        double s[POOL_TILE] = {0};
        for (int64_t r = 0; r < rows; r++)
            for (int64_t i = 0; i < n; i++)
                s[i] += at[r * cols + c + i] == CPU_POOL_NOWHERE ? 0.0 : (double)dy[r * cols + c + i];
        for (int64_t i = 0; i < n; i++) db[c + i] = add ? db[c + i] + (float)s[i] : (float)s[i];
    }
}

/* What a window's sum is multiplied with. */
static inline float window_share(const cpu_windows *w, int64_t h0, int64_t h1, int64_t w0, int64_t w1)
{
    int64_t all = w->kernel[0] == 0 ? (h1 - h0) * (w1 - w0) : w->kernel[0] * w->kernel[1];

    return 1.0f / (float)all;
}

static void avg_pool(float *y, const float *x, const cpu_windows *w, int64_t first, int64_t last)
{
    for (int64_t line = first; line < last; line++) {
        const float *image = x + line / w->out_height * w->height * w->width * w->channels;
        int64_t h0, h1;
        window_span(w, 0, line % w->out_height, &h0, &h1);
        for (int64_t col = 0; col < w->out_width; col++) {
            float *to = y + (line * w->out_width + col) * w->channels, share;
            int64_t w0, w1;
            window_span(w, 1, col, &w0, &w1);
            share = window_share(w, h0, h1, w0, w1);
            memset(to, 0, (size_t)w->channels * sizeof(*to));
            for (int64_t i = h0; i < h1; i++)
                for (int64_t j = w0; j < w1; j++) {
                    const float *from = image + (i * w->width + j) * w->channels;
                    for (int64_t c = 0; c < w->channels; c++) to[c] += from[c];
                }
            for (int64_t c = 0; c < w->channels; c++) to[c] *= share;
        }
    }
}

static void avg_pool_grad(float *dx, const float *dy, const cpu_windows *w, int64_t first, int64_t last)
{
    for (int64_t line = first; line < last; line++) {
        int64_t r0, r1, base = line / w->height * w->out_height;
        seen_by(w, 0, line % w->height, &r0, &r1);
        for (int64_t col = 0; col < w->width; col++) {
            float *to = dx + (line * w->width + col) * w->channels;
            int64_t c0, c1;
            seen_by(w, 1, col, &c0, &c1);
            memset(to, 0, (size_t)w->channels * sizeof(*to));
            for (int64_t i = r0; i < r1; i++)
                for (int64_t j = c0; j < c1; j++) {
                    const float *d = dy + ((base + i) * w->out_width + j) * w->channels;
                    int64_t h0, h1, w0, w1;
                    float share;
                    window_span(w, 0, i, &h0, &h1);
                    window_span(w, 1, j, &w0, &w1);
                    share = window_share(w, h0, h1, w0, w1);
                    for (int64_t c = 0; c < w->channels; c++) to[c] = fmaf(d[c], share, to[c]);
                }
        }
    }
}

/* ---- batch norm -------------------------------------------------------------------------------------------------- */
/* The pointers that may be NULL, and full tiles, are known where these are inlined: no loop has a branch. */
#define INLINED   static inline __attribute__((always_inline))
#define NORM_TILE 64 /* columns whose sums stay in registers or L1; the product of two floats is exact in double */

INLINED void moments_columns(double *s, double *q, const float *x, int64_t rows, int64_t cols, int64_t n)
{
    int64_t r = 0;

    for (; r + 4 <= rows; r += 4) {
        const float *x0 = x + r * cols, *x1 = x0 + cols, *x2 = x1 + cols, *x3 = x2 + cols;
        for (int64_t i = 0; i < n; i++) {
            double a = (double)x0[i], b = (double)x1[i], c = (double)x2[i], d = (double)x3[i];
            s[i] += (a + b) + (c + d);
            q[i] += (a * a + b * b) + (c * c + d * d);
        }
    }
    for (; r < rows; r++)
        for (int64_t i = 0; i < n; i++) {
            double v = (double)x[r * cols + i];
            s[i] += v;
            q[i] += v * v;
        }
}

static void moments(double *sum, double *square, const float *x, int64_t rows, int64_t cols, int64_t first,
                    int64_t last)
{
    for (int64_t c = first; c < last; c += NORM_TILE) {
        int64_t n = last - c < NORM_TILE ? last - c : NORM_TILE;
        double s[NORM_TILE] = {0}, q[NORM_TILE] = {0};
        if (n == NORM_TILE)
            moments_columns(s, q, x + c, rows, cols, NORM_TILE);
        else
            moments_columns(s, q, x + c, rows, cols, n);
        memcpy(sum + c, s, (size_t)n * sizeof(*s));
        memcpy(square + c, q, (size_t)n * sizeof(*q));
    }
}

INLINED void normalize_rows(float *y, const float *x, const float *scale, const float *shift, const float *other,
                            int64_t rows, int64_t cols, bool relu)
{
    for (int64_t r = 0; r < rows; r++, x += cols, y += cols)
        for (int64_t i = 0; i < cols; i++) {
            float v = fmaf(x[i], scale[i], shift[i]);
            v = other != NULL ? v + other[r * cols + i] : v;
            y[i] = relu && v <= 0.0f ? 0.0f : v;
        }
}

static void normalize(float *y, const float *x, const float *scale, const float *shift, const float *other,
                      int64_t rows, int64_t cols, bool relu)
{
    if (other == NULL && relu)
        normalize_rows(y, x, scale, shift, NULL, rows, cols, true);
    else if (other == NULL)
        normalize_rows(y, x, scale, shift, NULL, rows, cols, false);
    else
        normalize_rows(y, x, scale, shift, other, rows, cols, relu);
}

/* The gradient that reaches the batch norm: dy + more, after a relu whose output was ref. */
INLINED float norm_g(const float *dy, const float *more, const float *ref, int64_t i)
{
    float g = more != NULL ? dy[i] + more[i] : dy[i];

    return ref != NULL && ref[i] <= 0.0f ? 0.0f : g;
}

/* Four rows at once: each column's sums are touched once for them. */
INLINED void sum_columns(double *s, double *d, float *g, const float *dy, const float *more, const float *ref,
                         const float *x, int64_t rows, int64_t cols, int64_t n)
{
    float v[4][NORM_TILE];
    int64_t r = 0;

    for (; r + 4 <= rows; r += 4) {
        const float *x0 = x + r * cols, *x1 = x0 + cols, *x2 = x1 + cols, *x3 = x2 + cols;
        for (int64_t k = 0; k < 4; k++) {
            for (int64_t i = 0; i < n; i++) v[k][i] = norm_g(dy, more, ref, (r + k) * cols + i);
            if (g != NULL) memcpy(g + (r + k) * cols, v[k], (size_t)n * sizeof(**v));
        }
        for (int64_t i = 0; i < n; i++) {
            double a = (double)v[0][i], b = (double)v[1][i], c = (double)v[2][i], e = (double)v[3][i];
            s[i] += (a + b) + (c + e);
            d[i] += (a * (double)x0[i] + b * (double)x1[i]) + (c * (double)x2[i] + e * (double)x3[i]);
        }
    }
    for (; r < rows; r++) {
        for (int64_t i = 0; i < n; i++) v[0][i] = norm_g(dy, more, ref, r * cols + i);
        if (g != NULL) memcpy(g + r * cols, v[0], (size_t)n * sizeof(**v));
        for (int64_t i = 0; i < n; i++) {
            s[i] += (double)v[0][i];
            d[i] += (double)v[0][i] * (double)x[r * cols + i];
        }
    }
}

static const float *offset(const float *p, int64_t n) { return p != NULL ? p + n : NULL; }

static void norm_sums(double *sum, double *dot, float *g, const float *dy, const float *more, const float *ref,
                      const float *x, int64_t rows, int64_t cols, int64_t first, int64_t last)
{
    for (int64_t c = first; c < last; c += NORM_TILE) {
        int64_t n = last - c < NORM_TILE ? last - c : NORM_TILE;
        double s[NORM_TILE] = {0}, d[NORM_TILE] = {0};
        float *to = g != NULL ? g + c : NULL;
        if (n < NORM_TILE)
            sum_columns(s, d, to, dy + c, offset(more, c), offset(ref, c), x + c, rows, cols, n);
        else if (more == NULL && ref == NULL)
            sum_columns(s, d, to, dy + c, NULL, NULL, x + c, rows, cols, NORM_TILE);
        else if (more == NULL)
            sum_columns(s, d, to, dy + c, NULL, ref + c, x + c, rows, cols, NORM_TILE);
        else if (ref == NULL)
            sum_columns(s, d, to, dy + c, more + c, NULL, x + c, rows, cols, NORM_TILE);
        else
            sum_columns(s, d, to, dy + c, more + c, ref + c, x + c, rows, cols, NORM_TILE);
        memcpy(sum + c, s, (size_t)n * sizeof(*s));
        memcpy(dot + c, d, (size_t)n * sizeof(*d));
    }
}

INLINED void grad_rows(float *dx, const float *dy, const float *more, const float *ref, const float *x, const float *a,
                       const float *b, const float *c, int64_t rows, int64_t cols)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < cols; i++) {
            int64_t at = r * cols + i;
            dx[at] = fmaf(norm_g(dy, more, ref, at), a[i], fmaf(x[at], b[i], c[i]));
        }
}

static void norm_grad(float *dx, const float *dy, const float *more, const float *ref, const float *x, const float *a,
                      const float *b, const float *c, int64_t rows, int64_t cols)
{
    if (more == NULL && ref == NULL)
        grad_rows(dx, dy, NULL, NULL, x, a, b, c, rows, cols);
    else if (more == NULL)
        grad_rows(dx, dy, NULL, ref, x, a, b, c, rows, cols);
    else if (ref == NULL)
        grad_rows(dx, dy, more, NULL, x, a, b, c, rows, cols);
    else
        grad_rows(dx, dy, more, ref, x, a, b, c, rows, cols);
}

#define CPU_IMAGE_KERNELS                                                                                              \
    {                                                                                                                  \
        .unfold = unfold, .windows = windows, .fold = fold, .max_pool = max_pool, .max_pool_grad = max_pool_grad,      \
        .maximum_sums = maximum_sums, .avg_pool = avg_pool, .avg_pool_grad = avg_pool_grad, .moments = moments,        \
        .normalize = normalize, .norm_sums = norm_sums, .norm_grad = norm_grad                                         \
    }
