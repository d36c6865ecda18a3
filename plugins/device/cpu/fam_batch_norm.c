/* fam_batch_norm.c -- batch norm and its gradient, with what stands between it and the next convolution:
 *
 *   batch_norm + add + relu             statistics in one pass over x, everything else in another
 *   add + relu_grad + batch_norm_grad   sums in one pass, dx in another; what comes out of relu_grad is written only where a
 *                                       residual branch needs it too
 *
 * Images lie channels last: rows of channels. Sums are taken in double, in the order of the rows. */
#include "cpu.h"

#include <math.h>

enum { X, W, B, RUNNING_MEAN, RUNNING_VAR, OTHER }; /* forward: in */
enum { Y, MEAN, INVSTD };                           /* forward: out; Y: of the last node taken */

static const ddp_attrs *attrs_of(const cpu_call *c, uint32_t op)
{
    for (uint32_t i = 0; i < c->k->node_count; i++)
        if (low_node(c->program, c->k->nodes[i])->op == op) return &low_node(c->program, c->k->nodes[i])->attrs;
    return NULL;
}

/* ---- forward: what joins -------------------------------------------------------------------------------------------- */
static int64_t free_reader(const low_lowering *w, uint32_t from, int32_t v, uint32_t op, uint32_t *slot)
{
    for (*slot = 0; *slot < (op == DDP_OP_ADD ? 2u : 1u); (*slot)++) {
        int64_t node = low_find_reader(w, from, v, *slot, &op, 1);
        if (node >= 0) return node;
    }
    return -1;
}

/* The same batch norm used again in between: its running statistics move in program order. */
static bool used_between(const low_lowering *w, const low_kernel *k, uint32_t from, uint32_t to)
{
    for (uint32_t i = from + 1; i < to; i++) {
        const ddp_node *n = low_node(w->p, i);
        if (n->op == DDP_OP_BATCH_NORM &&
            (n->in[RUNNING_MEAN] == k->in[RUNNING_MEAN] || n->in[RUNNING_VAR] == k->in[RUNNING_VAR]))
            return true;
    }
    return false;
}

static bool may_pass(const low_lowering *w, const low_kernel *k)
{
    return low_read_once(w, k->out[Y]) && low_value(w->p, k->out[Y])->kind == DDP_VALUE_ACT;
}

static bool take_add(low_lowering *w, low_kernel *k, uint32_t node)
{
    uint32_t slot;
    int64_t add = may_pass(w, k) ? free_reader(w, node, k->out[Y], DDP_OP_ADD, &slot) : -1;
    const ddp_node *n = add >= 0 ? low_node(w->p, (uint32_t)add) : NULL;

    if (n == NULL || n->accumulate != 0 || used_between(w, k, node, (uint32_t)add)) return false;
    if (low_value(w->p, n->out[0])->kind != DDP_VALUE_ACT) return false;
    w->inner[k->out[Y]] = true;
    k->in[OTHER] = n->in[1 - slot];
    k->out[Y] = n->out[0];
    low_take_and_move(w, k, (uint32_t)add);
    return true;
}

static bool take_relu(low_lowering *w, low_kernel *k, uint32_t node)
{
    uint32_t slot;
    int64_t relu = may_pass(w, k) ? free_reader(w, node, k->out[Y], DDP_OP_RELU, &slot) : -1;

    if (relu < 0 || cpu_pool_takes_relu(w, (uint32_t)relu)) return false;
    w->inner[k->out[Y]] = true;
    k->out[Y] = low_node(w->p, (uint32_t)relu)->out[0];
    k->act = CPU_ACT_RELU;
    low_take(w, k, (uint32_t)relu);
    return true;
}

static ddp_status check_count(const low_lowering *w, const low_kernel *k, const ddp_node *n, ddp_err *err)
{
    if (!n->attrs.batch_norm.training || k->rows > 1) return DDP_OK;
    return low_refuse(w, n, "one value per channel has no variance; train with larger batches or images", err);
}

static ddp_status group_forward(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    static const char *const names[2][2] = {{"batch_norm", "batch_norm+relu"},
                                            {"batch_norm+add", "batch_norm+add+relu"}};
    const ddp_node *n = low_node(w->p, node);
    bool add;

    low_matrix(w, k->in[X], &k->rows, &k->cols);
    add = take_add(w, k, node);
    k->name = names[add][take_relu(w, k, node)];
    k->kind = n->attrs.batch_norm.training;
    k->scratch_bytes = (uint64_t)k->cols * (2 * sizeof(double) + 2 * sizeof(float));
    if (add) low_may_replace(k, k->out[Y], k->in[OTHER]);
    low_may_replace(k, k->out[Y], k->in[X]);
    return check_count(w, k, n, err);
}

/* ---- forward: running ----------------------------------------------------------------------------------------------- */
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

/* ---- gradient ------------------------------------------------------------------------------------------------------- */
enum { G_DY, G_X, G_W, G_MEAN, G_INVSTD, G_MORE, G_REF }; /* in: gradient, and its second term; relu's output */
enum { G_DX, G_DW, G_DB, G_MASKED };                      /* out; MASKED: what reaches the batch norm, for others */

/* A batch norm's gradient that can move up to where its dy is made: the node, or -1. */
static int64_t norm_behind(const low_lowering *w, uint32_t from, int32_t dy)
{
    static const uint32_t ops[] = {DDP_OP_BATCH_NORM_GRAD};
    int64_t norm = low_find_reader(w, from, dy, G_DY, ops, 1);

    /* a gradient that accumulates stays where it is: another one must have been set before it */
    if (norm < 0 || low_node(w->p, (uint32_t)norm)->accumulate != 0) return -1;
    return low_value(w->p, dy)->kind == DDP_VALUE_ACT && !w->kept[dy] ? norm : -1;
}

static int64_t relu_behind(const low_lowering *w, uint32_t add)
{
    static const uint32_t ops[] = {DDP_OP_RELU_GRAD};
    const ddp_node *n = low_node(w->p, add);

    if (n->accumulate != 0 || !low_read_once(w, n->out[0])) return -1;
    return low_find_reader(w, add, n->out[0], 0, ops, 1);
}

bool cpu_batch_norm_takes(const low_lowering *w, uint32_t node)
{
    const ddp_node *n = low_node(w->p, node);
    int64_t relu = n->op == DDP_OP_RELU_GRAD ? (int64_t)node : n->op == DDP_OP_ADD ? relu_behind(w, node) : -1;

    return relu >= 0 && norm_behind(w, node, low_node(w->p, (uint32_t)relu)->out[0]) >= 0;
}

static ddp_status finish_group(low_lowering *w, low_kernel *k)
{
    k->family = &cpu_family_batch_norm_grad.base;
    low_matrix(w, k->in[G_X], &k->rows, &k->cols);
    k->writes_grad = 1u << G_DW | 1u << G_DB;
    k->scratch_bytes = (uint64_t)k->cols * (2 * sizeof(double) + 3 * sizeof(float));
    if (k->out[G_MASKED] >= 0) {
        low_may_replace(k, k->out[G_MASKED], k->in[G_DY]);
        low_may_replace(k, k->out[G_DX], k->in[G_X]);
    } else {
        low_may_replace(k, k->out[G_DX], k->in[G_DY]);
        low_may_replace(k, k->out[G_DX], k->in[G_X]);
    }
    return DDP_OK;
}

/* `node` is the add or the gradient of the relu that cpu_batch_norm_takes has found. */
ddp_status cpu_batch_norm_group(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    const ddp_node *n = low_node(w->p, node), *norm;
    int64_t relu = n->op == DDP_OP_ADD ? relu_behind(w, node) : (int64_t)node;
    int64_t behind = relu >= 0 ? norm_behind(w, node, low_node(w->p, (uint32_t)relu)->out[0]) : -1;
    int32_t masked, more = n->op == DDP_OP_ADD ? n->in[1] : -1, dy = n->in[0];

    if (behind < 0) return ddp_fail(err, DDP_ERR_INTERNAL, "device \"cpu\": no batch norm behind \"%s\"", k->layer);
    norm = low_node(w->p, (uint32_t)behind);
    masked = low_node(w->p, (uint32_t)relu)->out[0];
    if (n->op == DDP_OP_ADD) {
        w->inner[n->out[0]] = true;
        low_take(w, k, (uint32_t)relu);
    }
    low_take(w, k, (uint32_t)behind);
    for (uint32_t i = 0; i < LOW_MAX_VALUES; i++) {
        k->in[i] = i < norm->in_count ? norm->in[i] : -1;
        k->out[i] = i < norm->out_count ? norm->out[i] : -1;
    }
    k->in[G_DY] = dy;
    k->in[G_MORE] = more;
    k->in[G_REF] = low_node(w->p, (uint32_t)relu)->in[1];
    if (low_read_once(w, masked))
        w->inner[masked] = true;
    else
        k->out[G_MASKED] = masked;
    k->name = n->op == DDP_OP_ADD ? "add+relu_grad+batch_norm_grad" : "relu_grad+batch_norm_grad";
    return finish_group(w, k);
}

static ddp_status group_gradient(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    (void)node;
    (void)err;
    return finish_group(w, k);
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
