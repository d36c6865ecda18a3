/* plugins/device/cpu/families/metric.c -- what an evaluation adds up over its batches: rows that a classifier has
 * right, counts of labels and predictions, sums of errors. Of an evaluation's time it is little: one thread. */
#include "cpu.h"
#include <math.h>
#include <string.h>

enum { X, TARGET }; /* in */

static ddp_status group_metric(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    (void)err;
    low_rows(w, k, k->in[X]);
    k->kind = low_node(w->p, node)->op;
    return DDP_OK;
}

/* ---- rows with a label ------------------------------------------------------------------------------------------- */
typedef struct labels {
    int64_t classes, ignore_index;
    bool ignores;
} labels;

static labels labels_of(const cpu_call *c)
{
    const ddp_attrs *a = &low_node(c->program, c->k->nodes[0])->attrs;
    labels l = {.classes = c->k->cols};

    if (c->k->kind == DDP_OP_ACCURACY) return l;
    l.ignores = a->metric.ignores != 0;
    l.ignore_index = a->metric.ignore_index;
    if (a->metric.classes > 0) l.classes = a->metric.classes;
    return l;
}

/* Whether the row counts; an error where its label is no class. */
static ddp_status see_row(const labels *l, int64_t label, int64_t row, bool *counts, ddp_err *err)
{
    *counts = !(l->ignores && label == l->ignore_index);
    if (!*counts || (label >= 0 && label < l->classes)) return DDP_OK;
    return cpu_bad_label(label, row, l->classes, err);
}

static ddp_status run_accuracy(const cpu_call *c, ddp_err *err)
{
    const low_kernel *k = c->k;
    const int64_t *label = cpu_in(c, TARGET);
    labels l = labels_of(c);
    float *out = cpu_out(c, 0);
    bool counts;

    for (int64_t r = 0; r < k->rows; r++) DDP_TRY(see_row(&l, label[r], r, &counts, err));
    *out = (float)((double)c->device->kernels->accuracy(cpu_in(c, X), label, k->rows, k->cols) /
                   ((double)k->rows / (double)low_value(c->program, k->in[TARGET])->dims[0]));
    return DDP_OK;
}

/* Logits that come before the one at `at` when they are sorted from the largest down, a NaN before all others. */
static int64_t larger_than(const float *x, int64_t n, int64_t at)
{
    int64_t before = 0;

    if (isnan(x[at])) {
        for (int64_t i = 0; i < at; i++) before += isnan(x[i]) != 0;
        return before;
    }
    for (int64_t i = 0; i < n; i++) before += !(x[i] <= x[at]) || (i < at && x[i] == x[at]);
    return before;
}

static ddp_status run_top_k(const cpu_call *c, ddp_err *err)
{
    const low_kernel *k = c->k;
    const float *x = cpu_in(c, X);
    const int64_t *label = cpu_in(c, TARGET);
    labels l = labels_of(c);
    int64_t most = low_node(c->program, k->nodes[0])->attrs.metric.k, hits = 0, rows = 0;
    float *out = cpu_out(c, 0);
    bool counts;

    for (int64_t r = 0; r < k->rows; r++) {
        DDP_TRY(see_row(&l, label[r], r, &counts, err));
        if (!counts) continue;
        hits += larger_than(x + r * k->cols, l.classes, label[r]) < most;
        rows++;
    }
    out[0] = (float)hits;
    out[1] = (float)rows;
    return DDP_OK;
}

static int64_t first_largest(const float *x, int64_t n)
{
    int64_t best = 0;

    for (int64_t i = 1; i < n && !isnan(x[best]); i++)
        if (x[i] > x[best] || isnan(x[i])) best = i;
    return best;
}

static ddp_status run_confusion(const cpu_call *c, ddp_err *err)
{
    const low_kernel *k = c->k;
    const float *x = cpu_in(c, X);
    const int64_t *label = cpu_in(c, TARGET);
    labels l = labels_of(c);
    float *out = cpu_out(c, 0);
    bool counts;

    memset(out, 0, (size_t)(l.classes * l.classes) * sizeof(*out));
    for (int64_t r = 0; r < k->rows; r++) {
        DDP_TRY(see_row(&l, label[r], r, &counts, err));
        if (counts) out[label[r] * l.classes + first_largest(x + r * k->cols, l.classes)] += 1.0f;
    }
    return DDP_OK;
}

/* ---- a prediction and a target of one shape ---------------------------------------------------------------------- */
static void run_binary(const cpu_call *c)
{
    const float *x = cpu_in(c, X), *t = cpu_in(c, TARGET);
    float *out = cpu_out(c, 0);
    int64_t counts[4] = {0};

    for (int64_t i = 0; i < c->k->rows * c->k->cols; i++) counts[2 * (t[i] > 0.5f) + (x[i] > 0.0f)]++;
    for (int i = 0; i < 4; i++) out[i] = (float)counts[i];
}

static void run_regression(const cpu_call *c)
{
    const float *p = cpu_in(c, X), *t = cpu_in(c, TARGET);
    int64_t columns = low_value(c->program, c->k->out[0])->dims[1], n = c->k->rows * c->k->cols;
    float *out = cpu_out(c, 0);

    for (int64_t j = 0; j < columns; j++) {
        double sums[DDP_REGRESSION_SUMS] = {0};
        for (int64_t i = j; i < n; i += columns) {
            double d = (double)p[i] - (double)t[i];
            sums[0] += 1.0;
            sums[1] += fabs(d);
            sums[2] += d * d;
            sums[3] += (double)t[i];
            sums[4] += (double)t[i] * (double)t[i];
        }
        for (int64_t s = 0; s < DDP_REGRESSION_SUMS; s++) {
            float high = (float)sums[s];
            out[j * DDP_REGRESSION_SUMS + s] = high;
            out[(columns + j) * DDP_REGRESSION_SUMS + s] = (float)(sums[s] - (double)high);
        }
    }
}

static ddp_status run_metric(const cpu_call *c, ddp_err *err)
{
    switch (c->k->kind) {
    case DDP_OP_ACCURACY: return run_accuracy(c, err);
    case DDP_OP_TOP_K: return run_top_k(c, err);
    case DDP_OP_CONFUSION: return run_confusion(c, err);
    case DDP_OP_BINARY_CONFUSION: run_binary(c); return DDP_OK;
    default: run_regression(c); return DDP_OK;
    }
}

const cpu_family cpu_family_metric = {.base.group = group_metric, .run = run_metric};
