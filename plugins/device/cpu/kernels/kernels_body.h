/* plugins/device/cpu/kernels/kernels_body.h -- the kernels, compiled once for each instruction set by the file that
 * includes it.
 *
 * The including file defines CPU_ISA_NAME, CPU_ISA_TABLE and CPU_VECTOR and has included math.h, string.h, device.h,
 * kernels.h. Loops are written so that the compiler vectorises them: no branch, no call, constant trip counts where
 * there is an order to keep. */
#include "loops.h"

#include "vector_body.h"

#include "image_body.h"
#include "math_body.h"
#include "optim_body.h"

/* y may be x */
static void round_bf16(float *y, const float *x, int64_t n) { MAP(n, y[i] = cpu_to_bf16(x[i])) }

static void widen_bf16(float *y, const uint16_t *x, int64_t n) { MAP(n, y[i] = cpu_from_bits((uint32_t)x[i] << 16)) }

#define LANES 16   /* of every reduction, on every CPU */
#define TILE  1024 /* columns summed together: their accumulators stay in registers and L1 */
#define BLOCK 128  /* rows summed in float before they join the total: bounds the rounding error */

#include "norm_body.h"
#include "dropout_body.h"
#include "rope_body.h"
#include "attention/head_body.h"
#include "attention/operands_f32_body.h"
#include "attention/attention_body.h"
#include "narrow_body.h"
#include "row_body.h"
#include "peak_body.h"
#include "winograd/winograd_body.h"
#include "product/product_body.h"

static void act_row(float *out, const float *y, int64_t n, uint32_t act)
{
    switch (act) {
    case CPU_ACT_RELU: MAP(n, out[i] = y[i] <= 0.0f ? 0.0f : y[i]) break; /* NaN passes, as in torch.relu */
    case CPU_ACT_GELU_ERF: MAP(n, out[i] = cpu_gelu_erf(y[i])) break;
    case CPU_ACT_GELU_TANH: MAP(n, out[i] = cpu_gelu_tanh(y[i])) break;
    case CPU_ACT_SILU: MAP(n, out[i] = cpu_silu(y[i])) break;
    default: break;
    }
}

static void bias_act(float *out, float *y, const float *bias, int64_t rows, int64_t cols, uint32_t act)
{
    if (bias == NULL) {
        act_row(out, y, rows * cols, act);
        return;
    }
    for (int64_t r = 0; r < rows; r++) {
        float *row = y + r * cols;
        MAP(cols, row[i] += bias[i])
        act_row(out + r * cols, row, cols, act);
    }
}

static void act_grad_row(float *dx, const float *dy, const float *ref, int64_t n, uint32_t act)
{
    switch (act) {
    case CPU_ACT_RELU: MAP(n, dx[i] = ref[i] <= 0.0f ? 0.0f : dy[i]) break;
    case CPU_ACT_GELU_ERF: MAP(n, dx[i] = dy[i] * cpu_gelu_erf_slope(ref[i])) break;
    case CPU_ACT_GELU_TANH: MAP(n, dx[i] = dy[i] * cpu_gelu_tanh_slope(ref[i])) break;
    case CPU_ACT_SILU: MAP(n, dx[i] = dy[i] * cpu_silu_slope(ref[i])) break;
    default: break;
    }
}

static void act_grad(float *dx, const float *dy, const float *ref, float *db, int64_t rows, int64_t cols, int64_t first,
                     int64_t last, uint32_t act, bool add)
{
    for (int64_t c = first; c < last; c += TILE) {
        int64_t n = last - c < TILE ? last - c : TILE;
        float total[TILE] = {0};
        for (int64_t r0 = 0; r0 < rows; r0 += BLOCK) {
            int64_t r1 = r0 + BLOCK < rows ? r0 + BLOCK : rows;
            float part[TILE] = {0};
            for (int64_t r = r0; r < r1; r++) {
                int64_t at = r * cols + c;
                const float *row = act == CPU_ACT_NONE ? dy + at : dx + at;
                if (act != CPU_ACT_NONE) act_grad_row(dx + at, dy + at, ref + at, n, act);
                if (db != NULL) MAP(n, part[i] += row[i])
            }
            MAP(n, total[i] += part[i])
        }
        if (db == NULL) continue;
        if (add) {
            MAP(n, db[c + i] += total[i])
        } else {
            MAP(n, db[c + i] = total[i])
        }
    }
}

static void leaky_relu(float *y, const float *x, const float *sign, float slope, int64_t n)
{
    MAP(n, y[i] = sign[i] <= 0.0f ? slope * x[i] : x[i])
}

static void add(float *y, const float *a, const float *b, int64_t n) { MAP(n, y[i] = a[i] + b[i]) }
static void mul(float *y, const float *a, const float *b, int64_t n) { MAP(n, y[i] = a[i] * b[i]) }

static void times(float *y, const float *x, float factor, int64_t n) { MAP(n, y[i] = factor * x[i]) }

static inline float lane_sum(const float *lane)
{
    float s = 0.0f;

    for (int l = 0; l < LANES; l++) s += lane[l];
    return s;
}

/* The largest of n >= 1 values; a NaN may be lost, the exponentials bring it back. */
static float row_max(const float *x, int64_t n)
{
    float lane[LANES], m;
    int64_t i = 0;

    for (int l = 0; l < LANES; l++) lane[l] = -INFINITY;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
    m = -INFINITY;
    for (; i < n; i++) m = x[i] > m ? x[i] : m;
    for (int l = 0; l < LANES; l++) m = lane[l] > m ? lane[l] : m;
    return m;
}

/* Sum of exp(x - max), the exponentials written to e unless it is NULL. */
static float row_exp_sum(float *e, const float *x, float max, int64_t n)
{
    float lane[LANES] = {0}, rest = 0.0f;
    int64_t i = 0;

    for (; i + LANES <= n; i += LANES) {
        float v[LANES];
        for (int l = 0; l < LANES; l++) v[l] = cpu_exp(x[i + l] - max);
        for (int l = 0; l < LANES; l++) lane[l] += v[l];
        if (e != NULL) memcpy(e + i, v, sizeof(v));
    }
    for (; i < n; i++) {
        float v = cpu_exp(x[i] - max);
        rest += v;
        if (e != NULL) e[i] = v;
    }
    return lane_sum(lane) + rest;
}

/* ---- (n, c, hw) to (n, hw, c), and back -------------------------------------------------------------------------- */
typedef float eight __attribute__((vector_size(32), aligned(4), may_alias));
#define PAIRS(a, b)                                                                                                    \
    __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13), __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15)
#define QUADS(a, b)                                                                                                    \
    __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13), __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15)
#define HALVES(a, b)                                                                                                   \
    __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11), __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15)

/* y[j][i] = or += x[i][j] for 8 x 8, rows `sx` and `sy` apart. */
static inline void transpose_8(float *y, int64_t sy, const float *x, int64_t sx, bool add)
{
#define ROW(i) (*(const eight *)(const void *)(x + (i)*sx))
    eight p[8] = {PAIRS(ROW(0), ROW(1)), PAIRS(ROW(2), ROW(3)), PAIRS(ROW(4), ROW(5)), PAIRS(ROW(6), ROW(7))};
    eight q[8] = {QUADS(p[0], p[2]), QUADS(p[1], p[3]), QUADS(p[4], p[6]), QUADS(p[5], p[7])};
    eight h[8] = {HALVES(q[0], q[4]), HALVES(q[1], q[5]), HALVES(q[2], q[6]), HALVES(q[3], q[7])};
    static const int order[8] = {0, 2, 4, 6, 1, 3, 5, 7};

    for (int j = 0; j < 8; j++) {
        eight *to = (eight *)(void *)(y + j * sy);
        if (add)
            *to += h[order[j]];
        else
            *to = h[order[j]];
    }
#undef ROW
}

/* (rows, cols) to (cols, rows). The tile is small, so that both sides stay in L1. */
#define EDGE 32
static void transpose(float *y, const float *x, int64_t rows, int64_t cols, bool add)
{
    for (int64_t j0 = 0; j0 < cols; j0 += EDGE)
        for (int64_t i = 0; i < rows; i += 8)
            for (int64_t j = j0; j < cols && j < j0 + EDGE; j += 8) {
                if (i + 8 <= rows && j + 8 <= cols) {
                    transpose_8(y + j * rows + i, rows, x + i * cols + j, cols, add);
                    continue;
                }
                for (int64_t a = i; a < rows && a < i + 8; a++)
                    for (int64_t b = j; b < cols && b < j + 8; b++)
                        y[b * rows + a] = add ? y[b * rows + a] + x[a * cols + b] : x[a * cols + b];
            }
}

static void channels_last(float *y, const float *x, int64_t n, int64_t c, int64_t hw)
{
    for (int64_t i = 0; i < n; i++, x += c * hw, y += c * hw) {
        if (c != 3) {
            transpose(y, x, c, hw, false);
            continue;
        }
        for (int64_t p = 0; p < hw; p++) {
            y[3 * p] = x[p];
            y[3 * p + 1] = x[hw + p];
            y[3 * p + 2] = x[2 * hw + p];
        }
    }
}

static void channels_first(float *y, const float *x, int64_t n, int64_t c, int64_t hw, bool add)
{
    for (int64_t i = 0; i < n; i++, x += c * hw, y += c * hw) transpose(y, x, hw, c, add);
}

static double row_sum(const float *x, int64_t n)
{
    double lane[LANES] = {0}, sum = 0.0;
    int64_t i = 0;

    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) lane[l] += (double)x[i + l];
    for (; i < n; i++) sum += (double)x[i];
    for (int l = 0; l < LANES; l++) sum += lane[l];
    return sum;
}

/* The sum over the classes of weight (log_sum - x). */
static double weighted_sum(const float *x, const float *weight, int64_t n, double log_sum)
{
    double sum = 0.0;

    for (int64_t i = 0; i < n; i++) sum += (double)weight[i] * (log_sum - (double)x[i]);
    return sum;
}

/* One row with weights; g has exp(x - max), which adds up to `sum`, and becomes the gradient. x and g may be the same:
 * then only x[label], which is given, and what `smooth` was made of are known. */
static double weighted_row(float *g, float at_label, int64_t label, const cpu_entropy *e, float sum, double log_sum,
                           double smooth)
{
    float one = (1.0f - e->smoothing) * e->weight[label], even = e->smoothing / (float)e->classes;
    float inverse = (one + even * (float)e->weight_sum) * e->scale / sum, scale = e->scale;
    double loss = (double)one * (log_sum - (double)at_label) + (double)even * smooth;

    if (g == NULL) return loss;
    if (even == 0.0f) {
        MAP(e->classes, g[i] *= inverse)
    } else {
        MAP(e->classes, g[i] = g[i] * inverse - even * e->weight[i] * scale)
    }
    g[label] -= one * scale;
    return loss;
}

static double cross_entropy(float *grad, const float *logits, const int64_t *label, int64_t rows, int64_t cols,
                            const cpu_entropy *e)
{
    float s = e->smoothing, even = s / (float)e->classes * e->scale;
    int64_t classes = e->classes;
    double loss = 0.0;

    for (int64_t r = 0; r < rows; r++) {
        const float *x = logits + r * cols;
        float *g = grad != NULL ? grad + r * cols : NULL;
        float at_label, max, sum, inverse;
        double mean, log_sum;
        if (label[r] < 0 || label[r] >= classes || label[r] == e->ignored) {
            if (g != NULL) memset(g, 0, (size_t)cols * sizeof(*g));
            continue;
        }
        at_label = x[label[r]]; /* read before g, which may be x, is written */
        if (e->lambda != NULL) at_label = e->lambda[r] * at_label + (1.0f - e->lambda[r]) * x[e->other[r]];
        max = row_max(x, classes);
        mean = s != 0.0f && e->weight == NULL ? row_sum(x, classes) / (double)classes : 0.0;
        if (s != 0.0f && e->weight != NULL) mean = weighted_sum(x, e->weight, classes, (double)max);
        sum = row_exp_sum(g, x, max, classes);
        log_sum = log((double)sum) + (double)max;
        for (int64_t i = classes; g != NULL && i < cols; i++) g[i] = 0.0f;
        if (e->weight != NULL) {
            mean += (log_sum - (double)max) * e->weight_sum; /* of log_sum - x */
            loss += weighted_row(g, at_label, label[r], e, sum, log_sum, mean);
            continue;
        }
        loss += log_sum - (1.0 - (double)s) * (double)at_label - (double)s * mean;
        if (g == NULL) continue;
        inverse = e->scale / sum;
        if (s == 0.0f) {
            MAP(classes, g[i] *= inverse)
        } else {
            MAP(classes, g[i] = g[i] * inverse - even)
        }
        g[label[r]] -= (1.0f - s) * (e->lambda != NULL ? e->lambda[r] : 1.0f) * e->scale;
        if (e->lambda != NULL) g[e->other[r]] -= (1.0f - s) * (1.0f - e->lambda[r]) * e->scale;
    }
    return loss;
}

static void softmax_parts(float parts[4], const float *x, int64_t label, int64_t cols)
{
    float max = row_max(x, cols);
    int64_t first = 0;

    while (first + 1 < cols && x[first] != max) first++;
    parts[0] = max;
    parts[1] = row_exp_sum(NULL, x, max, cols);
    parts[2] = label >= 0 ? x[label] : -INFINITY;
    parts[3] = (float)first;
}

static void softmax_parts_grad(float *dx, const float *x, int64_t label, const float terms[2], int64_t cols)
{
    float weight = terms[1];

    (void)row_exp_sum(dx, x, terms[0], cols);
    MAP(cols, dx[i] *= weight)
    if (label >= 0) dx[label] -= weight;
}

static double mse(float *grad, const float *p, const float *t, int64_t n, float scale)
{
    double lane[LANES] = {0}, sum = 0.0;
    int64_t i = 0;

    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) {
            float d = p[i + l] - t[i + l];
            lane[l] += (double)d * (double)d;
            if (grad != NULL) grad[i + l] = d * scale;
        }
    for (; i < n; i++) {
        float d = p[i] - t[i];
        sum += (double)d * (double)d;
        if (grad != NULL) grad[i] = d * scale;
    }
    for (int l = 0; l < LANES; l++) sum += lane[l];
    return sum;
}

static inline float sign_of(float d) { return d > 0.0f ? 1.0f : d < 0.0f ? -1.0f : d; } /* of a NaN, NaN */

/* max(x, 0) - x t + log(1 + e^-|x|), and its slope; e^-|x| overflows nowhere. */
static inline double bce(double x, double t, double *slope)
{
    double e = exp(-fabs(x));

    *slope = (x >= 0.0 ? 1.0 : e) / (1.0 + e) - t;
    return (x > 0.0 ? x : 0.0) - x * t + log1p(e);
}

static double pair_loss(float *grad, const float *p, const float *t, int64_t n, float scale, uint32_t loss, float beta)
{
    double sum = 0.0;

    for (int64_t i = 0; i < n; i++) {
        float d = p[i] - t[i], size = fabsf(d);
        double slope = (double)sign_of(d);
        if (loss == CPU_LOSS_BCE) {
            sum += bce((double)p[i], (double)t[i], &slope);
        } else if (loss == CPU_LOSS_SMOOTH_L1 && size < beta) {
            slope = (double)(d / beta);
            sum += 0.5 * (double)d * (double)d / (double)beta;
        } else {
            sum += (double)size - (loss == CPU_LOSS_SMOOTH_L1 ? 0.5 * (double)beta : 0.0);
        }
        if (grad != NULL) grad[i] = (float)slope * scale;
    }
    return sum;
}

static int64_t accuracy(const float *logits, const int64_t *label, int64_t rows, int64_t cols)
{
    int64_t right = 0;

    for (int64_t r = 0; r < rows; r++) {
        const float *x = logits + r * cols;
        int64_t best = 0;
        for (int64_t i = 1; i < cols && x[best] == x[best]; i++)
            if (x[i] > x[best] || x[i] != x[i]) best = i;
        right += best == label[r];
    }
    return right;
}

const cpu_kernels CPU_ISA_TABLE = {
    .isa = CPU_ISA_NAME,
    .product = {.rows = PRODUCT_ROWS,
                .cols = PRODUCT_COLS,
                .depth = PRODUCT_DEPTH,
                .windows = PRODUCT_WINDOWS,
                .pack_left = product_pack_left,
                .pack_right = product_pack_right,
                .panels = product_panels},
    .image = CPU_IMAGE_KERNELS,
    .winograd = CPU_WINOGRAD_KERNELS,
    .bias_act = bias_act,
    .act_grad = act_grad,
    .leaky_relu = leaky_relu,
    .add = add,
    .mul = mul,
    .times = times,
    .channels_last = channels_last,
    .channels_first = channels_first,
    .cross_entropy = cross_entropy,
    .softmax_parts = softmax_parts,
    .softmax_parts_grad = softmax_parts_grad,
    .mse = mse,
    .pair_loss = pair_loss,
    .accuracy = accuracy,
    .layer_norm = layer_norm,
    .layer_norm_grad = layer_norm_grad,
    .rms_norm = rms_norm,
    .rms_norm_grad = rms_norm_grad,
    .rope = rope,
    .dropout = dropout,
    .attention = ATTENTION_TABLE,
    .narrow_in = narrow_in,
    .narrow_out = narrow_out,
    .narrow_outer = narrow_outer,
    .cached_attention = cached_attention,
    .cached_attention_scratch = cached_attention_scratch,
    .row_product = row_product,
    .row_dots = row_dots,
    .update = update,
    .round_bf16 = round_bf16,
    .widen_bf16 = widen_bf16,
    .mean = mean,
    .copy_past = copy_past,
    .first_not_finite = first_not_finite,
    .sum_squares = sum_squares,
    .fma_chains = fma_chains,
    .read_through = read_through,
};
