/* plugins/device/cpu/families/batch_norm.c -- batch norm and its gradient, with what stands between it and the next
 * convolution:
 *
 *   batch_norm + add + relu             statistics in one pass over x, everything else in another
 *   add + relu_grad + batch_norm_grad   sums in one pass, dx in another; what comes out of relu_grad is written
 *                                       only where a residual branch needs it too
 *
 * Images lie channels last: rows of channels. Sums are taken in double, in the order of the rows. */
#include "cpu.h"

#include <math.h>

enum { X = LOW_NORM_X, W = LOW_NORM_W, B = LOW_NORM_B, RUNNING_MEAN = LOW_NORM_RUNNING_MEAN };
enum { RUNNING_VAR = LOW_NORM_RUNNING_VAR, OTHER = LOW_NORM_OTHER };
enum { Y = LOW_NORM_Y, MEAN = LOW_NORM_MEAN, INVSTD = LOW_NORM_INVSTD };

static const ddp_attrs *attrs_of(const cpu_call *c, uint32_t op)
{
    for (uint32_t i = 0; i < c->k->node_count; i++)
        if (low_node(c->program, c->k->nodes[i])->op == op) return &low_node(c->program, c->k->nodes[i])->attrs;
    return NULL;
}

/* ---- forward: grouping ------------------------------------------------------------------------------------------- */
static bool take_relu(low_lowering *w, low_kernel *k, uint32_t node)
{
    int64_t relu = low_norm_relu(w, k, node);

    if (relu < 0 || cpu_pool_takes_relu(w, (uint32_t)relu)) return false;
    low_norm_take_relu(w, k, (uint32_t)relu);
    k->act = CPU_ACT_RELU;
    return true;
}

static ddp_status group_forward(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    static const char *const names[2][2] = {{"batch_norm", "batch_norm+relu"},
                                            {"batch_norm+add", "batch_norm+add+relu"}};
    const ddp_node *n = low_node(w->p, node);
    bool add;

    low_matrix(w, k->in[X], &k->rows, &k->cols);
    add = low_norm_take_add(w, k, node);
    k->name = names[add][take_relu(w, k, node)];
    k->kind = n->attrs.batch_norm.training;
    k->scratch_bytes = (uint64_t)k->cols * (2 * sizeof(double) + 2 * sizeof(float));
    if (add) low_may_replace(k, k->out[Y], k->in[OTHER]);
    low_may_replace(k, k->out[Y], k->in[X]);
    return low_norm_check(w, k, n, err);
}

/* ---- forward: running -------------------------------------------------------------------------------------------- */
typedef struct norm_job {
    const cpu_call *c;
    double *sum, *square;
    float *scale, *shift, *bias;
} norm_job;

/* The scratch: two sums and up to three numbers for each channel. */
static norm_job job_of(const cpu_call *c)
{
    norm_job j = {.c = c, .sum = c->scratch};

    j.square = j.sum + c->k->cols;
    j.scale = (float *)(void *)(j.square + c->k->cols);
    j.shift = j.scale + c->k->cols;
    j.bias = j.shift + c->k->cols;
    return j;
}

static void sum_columns(void *ctx, int64_t first, int64_t last)
{
    const norm_job *j = ctx;
    const low_kernel *k = j->c->k;

    j->c->device->kernels->image.moments(j->sum, j->square, cpu_in(j->c, X), k->rows, k->cols, first, last);
}

/* What moves towards the batch's statistic: as PyTorch computes it, in double. */
static float moved(float running, double momentum, double batch)
{
    return (float)(momentum * batch + (1.0 - momentum) * (double)running);
}

/* Mean and variance of each channel, from which scale and shift follow. */
static void finish_statistics(const norm_job *j)
{
    const cpu_call *c = j->c;
    const ddp_attrs *attrs = attrs_of(c, DDP_OP_BATCH_NORM);
    const float *weight = cpu_in(c, W), *bias = cpu_in(c, B);
    float *running_mean = cpu_in(c, RUNNING_MEAN), *running_var = cpu_in(c, RUNNING_VAR);
    float *out_mean = cpu_out(c, MEAN), *out_invstd = cpu_out(c, INVSTD);
    double n = (double)c->k->rows, momentum = attrs->batch_norm.momentum;

    for (int64_t i = 0; i < c->k->cols; i++) {
        double mean = (double)running_mean[i], var = (double)running_var[i], invstd;
        if (attrs->batch_norm.training) {
            mean = j->sum[i] / n;
            var = j->square[i] / n - mean * mean;
            var = var < 0.0 ? 0.0 : var; /* by rounding; a NaN stays */
            running_mean[i] = moved(running_mean[i], momentum, mean);
            running_var[i] = moved(running_var[i], momentum, var * n / (n - 1.0));
        }
        invstd = 1.0 / sqrt(var + attrs->batch_norm.eps);
        if (out_mean != NULL) out_mean[i] = (float)mean;
        if (out_invstd != NULL) out_invstd[i] = (float)invstd;
        j->scale[i] = (float)(invstd * (double)weight[i]);
        j->shift[i] = (float)((double)bias[i] - mean * invstd * (double)weight[i]);
    }
}

static void normalize_rows(void *ctx, int64_t first, int64_t last)
{
    const norm_job *j = ctx;
    const low_kernel *k = j->c->k;
    const float *x = cpu_in(j->c, X), *other = cpu_in(j->c, OTHER);
    float *y = cpu_out(j->c, Y);
    int64_t from = first * k->cols;

    j->c->device->kernels->image.normalize(y + from, x + from, j->scale, j->shift, other != NULL ? other + from : NULL,
                                           last - first, k->cols, k->act == CPU_ACT_RELU);
}

static int64_t row_grain(const low_kernel *k) { return (CPU_GRAIN + k->cols - 1) / k->cols; }

/* Threads share columns; a cache line's worth at least, and so many that there is work for another thread. */
static int64_t column_grain(const low_kernel *k) { return (CPU_GRAIN / k->rows + 32) / 32 * 32; }

static ddp_status run_forward(const cpu_call *c, ddp_err *err)
{
    norm_job j = job_of(c);

    (void)err;
    if (c->k->kind != 0) cpu_parallel(c->device->threads, c->k->cols, column_grain(c->k), sum_columns, &j);
    finish_statistics(&j);
    cpu_parallel(c->device->threads, c->k->rows, row_grain(c->k), normalize_rows, &j);
    return DDP_OK;
}

const cpu_family cpu_family_batch_norm = {.base.group = group_forward, .run = run_forward};

/* ---- gradient ---------------------------------------------------------------------------------------------------- */
enum { G_DY = LOW_NORM_DY, G_X = LOW_NORM_GRAD_X, G_W = LOW_NORM_GRAD_W, G_MEAN = LOW_NORM_GRAD_MEAN };
enum { G_INVSTD = LOW_NORM_GRAD_INVSTD, G_MORE = LOW_NORM_MORE, G_REF = LOW_NORM_REF };
enum { G_DX = LOW_NORM_DX, G_DW = LOW_NORM_DW, G_DB = LOW_NORM_DB, G_MASKED = LOW_NORM_MASKED };

static ddp_status group_gradient(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    (void)node;
    (void)err;
    low_norm_grad_finish(w, k);
    k->scratch_bytes = (uint64_t)k->cols * (2 * sizeof(double) + 3 * sizeof(float));
    return DDP_OK;
}

ddp_status cpu_batch_norm_group(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    low_norm_grad_join(w, k, node);
    k->family = &cpu_family_batch_norm_grad.base;
    return group_gradient(w, k, node, err);
}

/* Where the gradient that reaches the batch norm is read from in the second pass. */
typedef struct gradient_source {
    const float *dy, *more, *ref;
} gradient_source;

static gradient_source source_of(const cpu_call *c)
{
    if (cpu_out(c, G_MASKED) != NULL) return (gradient_source){.dy = cpu_out(c, G_MASKED)};
    return (gradient_source){cpu_in(c, G_DY), cpu_in(c, G_MORE), cpu_in(c, G_REF)};
}

static void gradient_columns(void *ctx, int64_t first, int64_t last)
{
    const norm_job *j = ctx;
    const cpu_call *c = j->c;

    c->device->kernels->image.norm_sums(j->sum, j->square, cpu_out(c, G_MASKED), cpu_in(c, G_DY), cpu_in(c, G_MORE),
                                        cpu_in(c, G_REF), cpu_in(c, G_X), c->k->rows, c->k->cols, first, last);
}

static void put(float *to, double value, bool add)
{
    if (to != NULL) *to = add ? *to + (float)value : (float)value;
}

/* dx = scale g + shift x + bias, see op_batch_norm.c in core/graph. */
static void finish_sums(const norm_job *j)
{
    const cpu_call *c = j->c;
    const float *weight = cpu_in(c, G_W), *mean = cpu_in(c, G_MEAN), *invstd = cpu_in(c, G_INVSTD);
    float *dw = cpu_out(c, G_DW), *db = cpu_out(c, G_DB);
    double n = (double)c->k->rows;

    for (int64_t i = 0; i < c->k->cols; i++) {
        double s = (double)invstd[i], m = (double)mean[i], a = (double)weight[i] * s;
        double dot = (j->square[i] - m * j->sum[i]) * s, slope = -a * s * dot / n;
        put(dw != NULL ? dw + i : NULL, dot, cpu_adds(c, G_DW));
        put(db != NULL ? db + i : NULL, j->sum[i], cpu_adds(c, G_DB));
        j->scale[i] = (float)a;
        j->shift[i] = (float)slope;
        j->bias[i] = (float)(-a * j->sum[i] / n - slope * m);
    }
}

static void gradient_rows(void *ctx, int64_t first, int64_t last)
{
    const norm_job *j = ctx;
    const cpu_call *c = j->c;
    gradient_source s = source_of(c);
    const float *x = cpu_in(c, G_X);
    float *dx = cpu_out(c, G_DX);
    int64_t from = first * c->k->cols;

    c->device->kernels->image.norm_grad(dx + from, s.dy + from, s.more != NULL ? s.more + from : NULL,
                                        s.ref != NULL ? s.ref + from : NULL, x + from, j->scale, j->shift, j->bias,
                                        last - first, c->k->cols);
}

static ddp_status run_gradient(const cpu_call *c, ddp_err *err)
{
    norm_job j = job_of(c);

    (void)err;
    cpu_parallel(c->device->threads, c->k->cols, column_grain(c->k), gradient_columns, &j);
    finish_sums(&j);
    if (c->k->out[G_DX] >= 0) cpu_parallel(c->device->threads, c->k->rows, row_grain(c->k), gradient_rows, &j);
    return DDP_OK;
}

const cpu_family cpu_family_batch_norm_grad = {.base.group = group_gradient, .run = run_gradient};
