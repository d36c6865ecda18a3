/* kernels_body.h -- the kernels, compiled once for each instruction set by the file that includes it.
 *
 * The including file defines CPU_ISA_NAME and CPU_ISA_TABLE and has included math.h, string.h, device.h, kernels.h. Loops are
 * written so that the compiler vectorises them: no branch, no call, constant trip counts where there is an order to keep. */
#include "math_body.h"
#include "optim_body.h"

#define LANES 16  /* of every reduction, on every CPU */
#define TILE  128 /* columns summed together: their accumulators stay in registers and L1 */
#define BLOCK 128 /* rows summed in float before they join the total: bounds the rounding error */

/* Applies `f` from a to y over i of [0, n); the switch stands outside the loop. */
#define MAP(n, expression)                                                                                             \
    for (int64_t i = 0; i < (n); i++) {                                                                                \
        expression;                                                                                                    \
    }

static void act_row(float *out, const float *y, int64_t n, uint32_t act)
{
    switch (act) {
    case CPU_ACT_RELU: MAP(n, out[i] = y[i] <= 0.0f ? 0.0f : y[i]) break; /* NaN passes, as in torch.relu */
    case CPU_ACT_GELU_ERF: MAP(n, out[i] = cpu_gelu_erf(y[i])) break;
    case CPU_ACT_GELU_TANH: MAP(n, out[i] = cpu_gelu_tanh(y[i])) break;
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

static void add(float *y, const float *a, const float *b, int64_t n) { MAP(n, y[i] = a[i] + b[i]) }

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

static double cross_entropy(float *grad, const float *logits, const int64_t *label, int64_t rows, int64_t cols,
                            float scale)
{
    double loss = 0.0;

    for (int64_t r = 0; r < rows; r++) {
        const float *x = logits + r * cols;
        float *g = grad != NULL ? grad + r * cols : NULL;
        float at_label = x[label[r]], max = row_max(x, cols); /* read before g, which may be x, is written */
        float sum = row_exp_sum(g, x, max, cols), inverse = scale / sum;
        loss += log((double)sum) + ((double)max - (double)at_label);
        if (g == NULL) continue;
        MAP(cols, g[i] *= inverse)
        g[label[r]] -= scale;
    }
    return loss;
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
    .bias_act = bias_act,
    .act_grad = act_grad,
    .add = add,
    .cross_entropy = cross_entropy,
    .mse = mse,
    .accuracy = accuracy,
    .update = update,
    .first_not_finite = first_not_finite,
    .sum_squares = sum_squares,
};
