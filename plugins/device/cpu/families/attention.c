/* plugins/device/cpu/families/attention.c -- attention and its gradient: the heads of the batch, divided over the
 * threads. The work itself is in attention_body.h. Each thread has scratch of its own. */
#include "cpu.h"

enum { QKV };                            /* forward: in */
enum { Y, LSE };                         /* forward: out */
enum { DY, GRAD_QKV, GRAD_Y, GRAD_LSE }; /* gradient: in */

static cpu_attention describe(const ddp_program *p, const low_kernel *k)
{
    const ddp_node *n = low_node(p, k->nodes[0]);
    const ddp_value *qkv = low_value(p, k->in[n->op == DDP_OP_ATTENTION_GRAD ? GRAD_QKV : QKV]);

    return (cpu_attention){.length = qkv->dims[1],
                           .heads = n->attrs.attention.heads,
                           .size = qkv->dims[2] / 3 / n->attrs.attention.heads,
                           .scale = (float)n->attrs.attention.scale,
                           .causal = n->attrs.attention.causal != 0};
}

static int64_t slots(const low_kernel *k, uint32_t threads)
{
    return k->rows < (int64_t)threads ? k->rows : (int64_t)threads;
}

/* rows: heads of the batch; cols: floats of scratch a thread */
static ddp_status group_attention(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    bool gradient = low_node(w->p, node)->op == DDP_OP_ATTENTION_GRAD;
    cpu_attention a = describe(w->p, k);

    (void)err;
    k->plain = true;
    k->kind = gradient;
    k->rows = low_value(w->p, k->in[gradient ? GRAD_QKV : QKV])->dims[0] * a.heads;
    k->cols = (w->device->kernels->attention_scratch(&a, gradient) + 15) / 16 * 16;
    k->scratch_bytes = (uint64_t)(slots(k, w->device->threads) * k->cols) * sizeof(float);
    return DDP_OK;
}

typedef struct heads_job {
    const cpu_call *c;
    cpu_attention a;
} heads_job;

static void run_slots(void *ctx, int64_t first, int64_t last)
{
    const heads_job *j = ctx;
    const cpu_call *c = j->c;
    const cpu_kernels *f = c->device->kernels;
    int64_t count = slots(c->k, c->device->threads);

    for (int64_t s = first; s < last; s++)
        for (int64_t h = c->k->rows * s / count; h < c->k->rows * (s + 1) / count; h++) {
            float *scratch = (float *)c->scratch + s * c->k->cols;
            if (c->k->kind == 0)
                f->attention(&j->a, h, cpu_out(c, Y), cpu_out(c, LSE), cpu_in(c, QKV), scratch);
            else
                f->attention_grad(&j->a, h, cpu_out(c, 0), cpu_in(c, DY), cpu_in(c, GRAD_QKV), cpu_in(c, GRAD_Y),
                                  cpu_in(c, GRAD_LSE), scratch);
        }
}

static ddp_status run_attention(const cpu_call *c, ddp_err *err)
{
    const ddp_attrs *attrs = &low_node(c->program, c->k->nodes[0])->attrs;
    heads_job j = {.c = c, .a = describe(c->program, c->k)};

    (void)err;
    if (attrs->attention.dropout > 0.0) j.a.mask = cpu_mask_of(c, attrs->attention.dropout, attrs->attention.place);
    cpu_parallel(c->device->threads, slots(c->k, c->device->threads), 1, run_slots, &j);
    return DDP_OK;
}

const cpu_family cpu_family_attention = {.base.group = group_attention, .run = run_attention};
