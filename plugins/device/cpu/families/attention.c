/* plugins/device/cpu/families/attention.c -- attention and its gradient, q, k and v packed or apart: the heads of the
 * batch, divided over the threads. The work itself is in attention_body.h. Each thread has scratch of its own. */
#include "cpu.h"

enum { QKV };                                                              /* packed: in */
enum { Y, LSE };                                                           /* out */
enum { DY, GRAD_QKV, GRAD_Y, GRAD_LSE };                                   /* gradient: in */
enum { Q, K, V, SEGMENT };                                                 /* apart: in */
enum { APART_Q = 1, APART_K, APART_V, APART_Y, APART_LSE, APART_SEGMENT }; /* apart, gradient: in behind DY */
enum { DQ, DK, DV };                                                       /* apart, gradient: out */

static bool is_gradient(uint32_t op) { return op == DDP_OP_ATTENTION_GRAD || op == DDP_OP_ATTENTION_APART_GRAD; }
static bool is_apart(uint32_t op) { return op == DDP_OP_ATTENTION_APART || op == DDP_OP_ATTENTION_APART_GRAD; }

static cpu_attention describe(const ddp_device *d, const ddp_program *p, const low_kernel *k)
{
    const ddp_node *n = low_node(p, k->nodes[0]);
    bool gradient = is_gradient(n->op), apart = is_apart(n->op);
    const ddp_value *x = low_value(p, k->in[gradient ? GRAD_QKV : QKV]); /* or q */
    uint32_t heads = n->attrs.attention.heads, kv_heads = n->attrs.attention.kv_heads;
    cpu_attention a = {.length = x->dims[1],
                       .heads = heads,
                       .kv_heads = apart && kv_heads > 0 ? kv_heads : heads,
                       .q_wide = x->dims[2],
                       .kv_wide = x->dims[2],
                       .scale = (float)n->attrs.attention.scale,
                       .causal = n->attrs.attention.causal != 0};

    a.bf16 = d->bf16;
    a.size = x->dims[2] / (apart ? 1 : 3) / a.heads;
    if (apart) a.kv_wide = a.kv_heads * a.size;
    return a;
}

static const cpu_attention_kernels *kernels_of(const ddp_device *d)
{
    return d->half != NULL ? d->half->attention : &d->kernels->attention;
}

static int64_t slots(const low_kernel *k, uint32_t threads)
{
    return k->rows < (int64_t)threads ? k->rows : (int64_t)threads;
}

enum { FORWARD = 0, GRADIENT, BY_HEADS }; /* kind; BY_HEADS: a gradient, rows are heads of q */

/* Whether so few heads of k and v leave threads without work that heads of q would have. */
static bool splits_badly(const cpu_attention *a, int64_t samples, int64_t threads)
{
    int64_t units = samples * a->kv_heads;

    return a->heads > a->kv_heads && units % threads != 0 && units < 4 * threads;
}

/* rows: heads of the batch, for a gradient those of k and v; cols: floats of scratch a thread. By heads the scratch has
 * their parts of dk and dv behind that of the threads. */
static ddp_status group_attention(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    bool gradient = is_gradient(low_node(w->p, node)->op);
    cpu_attention a = describe(w->device, w->p, k);
    int64_t samples = low_value(w->p, k->in[gradient ? GRAD_QKV : QKV])->dims[0];

    (void)err;
    k->plain = true;
    k->kind = !gradient ? FORWARD : splits_badly(&a, samples, w->device->threads) ? BY_HEADS : GRADIENT;
    k->rows = samples * (k->kind == GRADIENT ? a.kv_heads : a.heads);
    k->cols = (kernels_of(w->device)->scratch(&a, gradient) + 15) / 16 * 16;
    k->scratch_bytes = (uint64_t)(slots(k, w->device->threads) * k->cols) * sizeof(float);
    if (k->kind == BY_HEADS) k->scratch_bytes += (uint64_t)(2 * k->rows * a.length * a.size) * sizeof(float);
    return DDP_OK;
}

typedef struct heads_job {
    const cpu_call *c;
    cpu_attention a;
    cpu_attention_grad g;
} heads_job;

static float *parts_of(const cpu_call *c) { return (float *)c->scratch + slots(c->k, c->device->threads) * c->k->cols; }

static void run_slots(void *ctx, int64_t first, int64_t last)
{
    const heads_job *j = ctx;
    const cpu_call *c = j->c;
    const cpu_attention_kernels *f = kernels_of(c->device);
    int64_t count = slots(c->k, c->device->threads), group = j->a.heads / j->a.kv_heads;

    for (int64_t s = first; s < last; s++) {
        float *scratch = (float *)c->scratch + s * c->k->cols;
        int64_t begin = c->k->rows * s / count, end = c->k->rows * (s + 1) / count;
        for (int64_t h = begin; h < end; h++) {
            bool packed = h > begin && h % group != 0;
            if (c->k->kind == FORWARD)
                f->forward(&j->a, h, packed, cpu_out(c, Y), cpu_out(c, LSE), scratch);
            else if (c->k->kind == GRADIENT)
                f->grad(&j->a, &j->g, h, scratch);
            else
                f->grad_head(&j->a, &j->g, h, packed, parts_of(c), scratch);
        }
    }
}

static void run_sums(void *ctx, int64_t first, int64_t last)
{
    const heads_job *j = ctx;

    for (int64_t h = first; h < last; h++) kernels_of(j->c->device)->grad_sum(&j->a, &j->g, h, parts_of(j->c));
}

static void find_packed(const cpu_call *c, heads_job *j)
{
    const float *qkv = cpu_in(c, c->k->kind == FORWARD ? QKV : GRAD_QKV);
    int64_t e = j->a.heads * j->a.size;

    j->a.q = qkv;
    j->a.k = qkv + e;
    j->a.v = qkv + 2 * e;
    if (c->k->kind == FORWARD) return;
    j->g = (cpu_attention_grad){.dy = cpu_in(c, DY), .y = cpu_in(c, GRAD_Y), .lse = cpu_in(c, GRAD_LSE)};
    j->g.dq = cpu_out(c, 0);
    j->g.dk = j->g.dq + e;
    j->g.dv = j->g.dq + 2 * e;
}

static void find_apart(const cpu_call *c, heads_job *j)
{
    bool gradient = c->k->kind != FORWARD;

    j->a.q = cpu_in(c, gradient ? APART_Q : Q);
    j->a.k = cpu_in(c, gradient ? APART_K : K);
    j->a.v = cpu_in(c, gradient ? APART_V : V);
    j->a.segment = cpu_in(c, gradient ? APART_SEGMENT : SEGMENT);
    if (!gradient) return;
    j->g = (cpu_attention_grad){.dy = cpu_in(c, DY),
                                .y = cpu_in(c, APART_Y),
                                .lse = cpu_in(c, APART_LSE),
                                .dq = cpu_out(c, DQ),
                                .dk = cpu_out(c, DK),
                                .dv = cpu_out(c, DV)};
}

static ddp_status run_attention(const cpu_call *c, ddp_err *err)
{
    const ddp_node *n = low_node(c->program, c->k->nodes[0]);
    heads_job j = {.c = c, .a = describe(c->device, c->program, c->k)};

    (void)err;
    if (is_apart(n->op))
        find_apart(c, &j);
    else
        find_packed(c, &j);
    if (n->attrs.attention.dropout > 0.0)
        j.a.mask = cpu_mask_of(c, n->attrs.attention.dropout, n->attrs.attention.place);
    cpu_parallel(c->device->threads, slots(c->k, c->device->threads), 1, run_slots, &j);
    if (c->k->kind == BY_HEADS)
        cpu_parallel(c->device->threads, c->k->rows / (j.a.heads / j.a.kv_heads), 1, run_sums, &j);
    return DDP_OK;
}

const cpu_family cpu_family_attention = {.base.group = group_attention, .run = run_attention};
