/* plugins/device/cuda/families/metric.c -- what an evaluation adds up over its batches, a kernel for each op. */
#include "host/cu.h"

enum { X, TARGET }; /* in */

static cu_labels labels_of(const low_kernel *k, const ddp_attrs *a)
{
    cu_labels l = {.rows = k->rows, .cols = k->cols, .classes = k->cols};

    if (k->kind == DDP_OP_ACCURACY) return l;
    l.ignores = a->metric.ignores;
    l.ignore_index = a->metric.ignore_index;
    if (a->metric.classes > 0) l.classes = a->metric.classes;
    return l;
}

static ddp_status group_metric(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    const ddp_node *n = low_node(w->p, node);
    cu_labels l;

    (void)err;
    low_rows(w, k, k->in[X]);
    k->kind = n->op;
    l = labels_of(k, &n->attrs);
    k->limit = l.classes;
    if (k->kind == DDP_OP_ACCURACY) k->scratch_bytes = cu_accuracy_scratch(k->rows);
    if (k->kind == DDP_OP_TOP_K) k->scratch_bytes = cu_top_k_scratch(&l);
    if (k->kind == DDP_OP_CONFUSION) k->scratch_bytes = cu_confusion_scratch(&l);
    return DDP_OK;
}

static cudaError_t start(const cu_call *c)
{
    const low_kernel *k = c->k;
    const ddp_attrs *a = cu_attrs(c, 0);
    int64_t n = k->rows * k->cols, samples = low_value(c->program, k->in[TARGET])->dims[0], columns;
    cu_labels l = labels_of(k, a);

    l.label = c->in[TARGET].at;
    l.fault = c->fault;
    l.kernel = c->site;
    switch (k->kind) {
    case DDP_OP_ACCURACY:
        return cu_accuracy(c->stream, c->in[X], l.label, c->out[0].at, k->rows, k->cols,
                           (double)k->rows / (double)samples, c->scratch, c->fault, c->site);
    case DDP_OP_TOP_K: return cu_top_k(c->stream, c->in[X], &l, a->metric.k, c->out[0].at, c->scratch);
    case DDP_OP_CONFUSION: return cu_confusion(c->stream, c->in[X], &l, c->out[0].at, c->scratch);
    case DDP_OP_BINARY_CONFUSION: return cu_binary_confusion(c->stream, c->in[X], c->in[TARGET], c->out[0].at, n);
    default:
        columns = low_value(c->program, k->out[0])->dims[1];
        return cu_regression(c->stream, c->in[X], c->in[TARGET], c->out[0].at, n / columns, columns);
    }
}

static ddp_status run_metric(const cu_call *c, ddp_err *err) { return cu_started(c, start(c), err); }

const cu_family cu_family_metric = {.base.group = group_metric, .run = run_metric};
