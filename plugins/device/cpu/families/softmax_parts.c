/* plugins/device/cpu/families/softmax_parts.c -- an output layer with some of the classes: what each row says of them,
 * and the gradient of the logits. The rows are divided among the threads. */
#include "cpu.h"

enum { X, LABEL, TERMS };
enum { PARTS = 4, TERM_COUNT = 2 };

static ddp_status group_parts(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    (void)err;
    low_rows(w, k, k->in[X]);
    k->kind = low_node(w->p, node)->op;
    if (k->kind == DDP_OP_SOFTMAX_PARTS_GRAD) low_may_replace(k, k->out[0], k->in[X]);
    return DDP_OK;
}

static void run_rows(void *ctx, int64_t first, int64_t last)
{
    const cpu_call *c = ctx;
    const cpu_kernels *f = c->device->kernels;
    const int64_t *label = cpu_in(c, LABEL);
    int64_t cols = c->k->cols;

    for (int64_t r = first; r < last; r++) {
        const float *x = (const float *)cpu_in(c, X) + r * cols;
        int64_t own = label[r] >= 0 && label[r] < cols ? label[r] : -1;

        if (c->k->kind == DDP_OP_SOFTMAX_PARTS)
            f->softmax_parts((float *)cpu_out(c, 0) + r * PARTS, x, own, cols);
        else
            f->softmax_parts_grad((float *)cpu_out(c, 0) + r * cols, x, own,
                                  (const float *)cpu_in(c, TERMS) + r * TERM_COUNT, cols);
    }
}

static ddp_status run_parts(const cpu_call *c, ddp_err *err)
{
    (void)err;
    cpu_parallel(c->device->threads, c->k->rows, (CPU_GRAIN + c->k->cols - 1) / c->k->cols, run_rows, (void *)c);
    return DDP_OK;
}

const cpu_family cpu_family_softmax_parts = {.base.group = group_parts, .run = run_parts};
