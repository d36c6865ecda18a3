/* plugins/device/cpu/families/cached.c -- what a program has that goes on where an earlier run has stopped: positions
 * from a start on, and attention over keys and values that are kept. The work itself is in row_body.h. */
#include "cpu.h"

enum { X, W, START };                                                 /* position: in */
enum { QKV, KEYS, VALUES, CACHED_START };                             /* attention: in */
enum { APART_K = 1, APART_V, APART_KEYS, APART_VALUES, APART_START }; /* attention over q, k and v apart: in behind q */

/* `count` positions from each sample's start on, of `all`. */
static ddp_status check_start(const cpu_call *c, const int64_t *start, int64_t samples, int64_t count, int64_t all,
                              ddp_err *err)
{
    for (int64_t n = 0; n < samples; n++)
        if (start[n] < 0 || start[n] > all - count)
            return ddp_fail(err, DDP_ERR_DATA,
                            "device \"cpu\": layer \"%s\" has %lld positions, %lld from position %lld on are not there",
                            c->k->layer, (long long)all, (long long)count, (long long)start[n]);
    return DDP_OK;
}

/* ---- position ---------------------------------------------------------------------------------------------------- */
static ddp_status group_position_at(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    const ddp_value *x = low_value(w->p, k->in[X]);

    (void)node;
    (void)err;
    k->plain = true;
    k->rows = x->dims[0];
    k->cols = x->dims[1] * x->dims[2]; /* of one sample */
    low_may_replace(k, k->out[0], k->in[X]);
    return DDP_OK;
}

static ddp_status run_position_at(const cpu_call *c, ddp_err *err)
{
    const low_kernel *k = c->k;
    const ddp_value *x = low_value(c->program, k->in[X]);
    const int64_t *start = cpu_in(c, START);
    const float *from = cpu_in(c, X), *table = cpu_in(c, W);
    float *y = cpu_out(c, 0);
    ddp_status status = check_start(c, start, k->rows, x->dims[1], low_value(c->program, k->in[W])->dims[0], err);

    for (int64_t n = 0; status == DDP_OK && n < k->rows; n++)
        c->device->kernels->add(y + n * k->cols, from + n * k->cols, table + start[n] * x->dims[2], k->cols);
    return status;
}

const cpu_family cpu_family_position_at = {.base.group = group_position_at, .run = run_position_at};

/* ---- attention --------------------------------------------------------------------------------------------------- */
typedef struct cached_slots {
    uint32_t keys, values, start; /* of the inputs, which begin with qkv, or with q, k and v */
} cached_slots;

static bool is_apart(const ddp_node *n) { return n->op == DDP_OP_ATTENTION_APART_CACHED; }
static cached_slots slots_of(const ddp_node *n)
{
    return is_apart(n) ? (cached_slots){APART_KEYS, APART_VALUES, APART_START}
                       : (cached_slots){KEYS, VALUES, CACHED_START};
}

static cpu_cached_attention describe(const ddp_program *p, const low_kernel *k)
{
    const ddp_node *n = low_node(p, k->nodes[0]);
    const ddp_value *x = low_value(p, k->in[QKV]), *values = low_value(p, k->in[slots_of(n).values]); /* x: qkv, or q */
    cpu_cached_attention a = {.length = x->dims[1],
                              .heads = n->attrs.attention.heads,
                              .kv_heads = values->dims[1],
                              .size = values->dims[3],
                              .capacity = values->dims[2],
                              .q_wide = x->dims[2],
                              .kv_wide = x->dims[2],
                              .scale = (float)n->attrs.attention.scale};

    if (is_apart(n)) a.kv_wide = a.kv_heads * a.size;
    return a;
}

static int64_t slots(const low_kernel *k, uint32_t threads)
{
    return k->rows < (int64_t)threads ? k->rows : (int64_t)threads;
}

/* rows: heads of k and v of the batch; cols: floats of scratch a thread */
static ddp_status group_attention(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    cpu_cached_attention a = describe(w->p, k);

    (void)node;
    (void)err;
    k->plain = true;
    k->rows = low_value(w->p, k->in[QKV])->dims[0] * a.kv_heads;
    k->cols = (w->device->kernels->cached_attention_scratch(&a) + 15) / 16 * 16;
    k->scratch_bytes = (uint64_t)(slots(k, w->device->threads) * k->cols) * sizeof(float);
    return DDP_OK;
}

typedef struct heads_job {
    const cpu_call *c;
    cpu_cached_attention a;
} heads_job;

static void run_slots(void *ctx, int64_t first, int64_t last)
{
    const heads_job *j = ctx;
    const cpu_call *c = j->c;
    int64_t count = slots(c->k, c->device->threads);

    for (int64_t s = first; s < last; s++)
        for (int64_t h = c->k->rows * s / count; h < c->k->rows * (s + 1) / count; h++)
            c->device->kernels->cached_attention(&j->a, h, cpu_out(c, 0), (float *)c->scratch + s * c->k->cols);
}

static ddp_status run_attention(const cpu_call *c, ddp_err *err)
{
    const ddp_node *n = low_node(c->program, c->k->nodes[0]);
    heads_job j = {.c = c, .a = describe(c->program, c->k)};
    int64_t e = j.a.heads * j.a.size;

    j.a.q = cpu_in(c, QKV);
    j.a.k = is_apart(n) ? cpu_in(c, APART_K) : j.a.q + e;
    j.a.v = is_apart(n) ? cpu_in(c, APART_V) : j.a.q + 2 * e;
    j.a.keys = cpu_in(c, slots_of(n).keys);
    j.a.values = cpu_in(c, slots_of(n).values);
    j.a.start = cpu_in(c, slots_of(n).start);
    DDP_TRY(check_start(c, j.a.start, c->k->rows / j.a.kv_heads, j.a.length, j.a.capacity, err));
    cpu_parallel(c->device->threads, slots(c->k, c->device->threads), 1, run_slots, &j);
    return DDP_OK;
}

const cpu_family cpu_family_attention_cached = {.base.group = group_attention, .run = run_attention};
