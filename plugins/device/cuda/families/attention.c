/* plugins/device/cuda/families/attention.c -- attention and its gradient: by cuDNN in bf16 without dropout, else by the
 * device's own kernel for tensor cores where that can, else by the one that can do everything.
 *
 * cuDNN's plans take long to make and all layers of a model have one shape: the device keeps them. Over q, k and v
 * apart it is always the last of these. */
#include "host/cu.h"

#include <stdlib.h>

enum { QKV };                            /* forward: in */
enum { Y, LSE };                         /* forward: out */
enum { DY, GRAD_QKV, GRAD_Y, GRAD_LSE }; /* gradient: in */

enum { BY_DNN = 0, BY_FLASH, PLAIN }; /* kind */

struct cu_attention_entry {
    cu_attention_entry *next;
    cu_attention shape;
    bool training;
    cu_dnn_attention *dnn; /* NULL: it has nothing for the shape */
};

typedef struct attention_state {
    cu_attention a; /* but for its params */
    const cu_dnn_attention *dnn;
} attention_state;

void cu_attentions_free(ddp_device *d)
{
    while (d->attentions != NULL) {
        cu_attention_entry *e = d->attentions;
        d->attentions = e->next;
        cu_dnn_attention_free(e->dnn);
        free(e);
    }
}

static bool same_shape(const cu_attention *a, const cu_attention *b)
{
    return a->n == b->n && a->t == b->t && a->heads == b->heads && a->size == b->size && a->scale == b->scale &&
           a->causal == b->causal;
}

void cu_tell_own(ddp_device *d, uint32_t kind, const char *what, const char *layer, const char *why)
{
    CU_LOG(d, d->told_own & kind ? DDP_LOG_DEBUG : DDP_LOG_WARN,
           "device \"cuda\": %s of layer \"%.80s\" by the device's own kernel, not by cuDNN: %.400s", what, layer, why);
    d->told_own |= kind;
}

static ddp_status find_dnn(ddp_device *d, const cu_attention *a, bool training, const char *layer,
                           const cu_dnn_attention **out, ddp_err *err)
{
    cu_attention_entry *e = d->attentions;
    ddp_status status;

    while (e != NULL && !(same_shape(&e->shape, a) && e->training == training)) e = e->next;
    if (e == NULL) {
        e = calloc(1, sizeof(*e));
        if (e == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "device \"cuda\": out of memory while lowering");
        e->shape = *a;
        e->training = training;
        status = cu_dnn_attention_create(d->dnn, a, training, &e->dnn, err);
        if (status != DDP_OK && status != DDP_ERR_UNSUPPORTED) {
            free(e);
            return status;
        }
        if (status == DDP_ERR_UNSUPPORTED) {
            e->dnn = NULL;
            cu_tell_own(d, CU_OWN_ATTENTION, "attention", layer, err->msg);
        }
        e->next = d->attentions;
        d->attentions = e;
    }
    *out = e->dnn;
    return DDP_OK;
}

void cu_tell_slow(ddp_device *d, const char *what, const char *layer, const char *why)
{
    if (!d->half || d->told_slow) return;
    d->told_slow = true;
    CU_LOG(
        d, DDP_LOG_WARN,
        "device \"cuda\": %s of layer \"%.80s\", and what is like it, on f32 cores, many times slower than on tensor cores: %.240s",
        what, layer, why);
}

static const char *kernel_name(bool gradient, uint32_t kind)
{
    static const char *const names[2][3] = {
        {"attention(cudnn)", "attention(flash)", "attention"},
        {"attention_grad(cudnn)", "attention_grad(flash)", "attention_grad"}}; /* by kind */

    return names[gradient][kind];
}

static void tell_plain(const low_lowering *w, const low_kernel *k, const cu_attention *a)
{
    cu_tell_slow(w->device, k->name, k->layer,
                 a->dropout > 0.0
                     ? "the kernels for tensor cores have no dropout; dropout = 0 where that will do"
                     : "cuDNN cannot, or is not there, and the device's own kernel is for heads of 64 and 128");
}

static void log_choice(const low_lowering *w, const low_kernel *k, const cu_attention *a)
{
    static const char *const by[] = {"cuDNN", "the device's flash kernel", "the device's plain kernel"};

    CU_LOG(w->device, DDP_LOG_DEBUG, "device \"cuda\": %s of layer \"%s\", %lld heads of %lld, %lld positions: by %s",
           k->name, k->layer, (long long)a->heads, (long long)a->size, (long long)a->t, by[k->kind]);
}

static ddp_status group_attention(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    const ddp_node *n = low_node(w->p, node);
    bool gradient = n->op == DDP_OP_ATTENTION_GRAD;
    const ddp_value *qkv = low_value(w->p, k->in[gradient ? GRAD_QKV : QKV]);
    attention_state *t = cu_state(k, sizeof(*t), err);
    ddp_status status = DDP_OK;

    if (t == NULL) return err->status;
    t->a = (cu_attention){.n = qkv->dims[0],
                          .t = qkv->dims[1],
                          .heads = n->attrs.attention.heads,
                          .size = qkv->dims[2] / 3 / n->attrs.attention.heads,
                          .scale = n->attrs.attention.scale,
                          .dropout = n->attrs.attention.dropout,
                          .causal = n->attrs.attention.causal,
                          .place = n->attrs.attention.place};
    k->plain = true;
    k->kind = PLAIN;
    if (w->device->half && t->a.dropout == 0.0) {
        if (cu_flash_can(&t->a)) k->kind = BY_FLASH;
        if (w->device->dnn != NULL) status = find_dnn(w->device, &t->a, w->p->training != 0, k->layer, &t->dnn, err);
        if (t->dnn != NULL) k->kind = BY_DNN;
    }
    if (status != DDP_OK) return status;
    if (k->kind != PLAIN) {
        k->in_type[DY] = k->out_type[0] = CU_BF16; /* DY is QKV of the forward kernel */
        if (gradient) k->in_type[GRAD_QKV] = k->in_type[GRAD_Y] = CU_BF16;
    }
    if (k->kind == BY_DNN)
        k->scratch_bytes = cu_dnn_attention_workspace(t->dnn, gradient);
    else if (gradient)
        k->scratch_bytes = k->kind == BY_FLASH ? cu_flash_grad_scratch(&t->a) : cu_attention_plain_grad_scratch(&t->a);
    k->name = kernel_name(gradient, k->kind);
    if (k->kind == PLAIN) tell_plain(w, k, &t->a);
    log_choice(w, k, &t->a);
    return DDP_OK;
}

static ddp_status run_forward(const cu_call *c, ddp_err *err)
{
    const attention_state *t = c->k->state;
    cu_attention a = t->a;
    float *lse = c->out[LSE].at;

    a.params = c->params;
    if (c->k->kind == BY_DNN)
        return cu_dnn_attention_run(t->dnn, c->stream, c->in[QKV].at, c->out[Y].at, lse, c->scratch, err);
    if (c->k->kind == BY_FLASH) return cu_started(c, cu_flash(c->stream, &a, c->in[QKV], c->out[Y], lse), err);
    return cu_started(c, cu_attention_plain(c->stream, &a, c->in[QKV], c->out[Y], lse), err);
}

const cu_family cu_family_attention = {.base.group = group_attention, .run = run_forward, .base.release = free};

static ddp_status run_gradient(const cu_call *c, ddp_err *err)
{
    const attention_state *t = c->k->state;
    cu_view dy = c->in[DY], qkv = c->in[GRAD_QKV], y = c->in[GRAD_Y], dqkv = c->out[0];
    const float *lse = c->in[GRAD_LSE].at;
    cu_attention a = t->a;

    a.params = c->params;
    if (c->k->kind == BY_DNN)
        return cu_dnn_attention_run_grad(t->dnn, c->stream, dy.at, qkv.at, y.at, lse, dqkv.at, c->scratch, err);
    if (c->k->kind == BY_FLASH)
        return cu_started(c, cu_flash_grad(c->stream, &a, dy, qkv, y, lse, dqkv, c->scratch), err);
    return cu_started(c, cu_attention_plain_grad(c->stream, &a, dy, qkv, y, lse, dqkv, false, c->scratch), err);
}

const cu_family cu_family_attention_grad = {.base.group = group_attention, .run = run_gradient, .base.release = free};

/* ---- q, k and v apart -------------------------------------------------------------------------------------------- */
enum { Q, K, V, SEGMENT };                                                 /* forward: in */
enum { APART_Q = 1, APART_K, APART_V, APART_Y, APART_LSE, APART_SEGMENT }; /* gradient: in behind DY */
enum { DQ, DK, DV };                                                       /* gradient: out */

/* By the plain kernel, which reads and writes any type. */
static ddp_status group_apart(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err)
{
    const ddp_node *n = low_node(w->p, node);
    bool gradient = n->op == DDP_OP_ATTENTION_APART_GRAD;
    const ddp_value *q = low_value(w->p, k->in[gradient ? APART_Q : Q]);
    attention_state *t = cu_state(k, sizeof(*t), err);

    if (t == NULL) return err->status;
    t->a = (cu_attention){.n = q->dims[0],
                          .t = q->dims[1],
                          .heads = n->attrs.attention.heads,
                          .kv_heads = n->attrs.attention.kv_heads,
                          .size = q->dims[2] / n->attrs.attention.heads,
                          .scale = n->attrs.attention.scale,
                          .dropout = n->attrs.attention.dropout,
                          .causal = n->attrs.attention.causal,
                          .place = n->attrs.attention.place};
    k->plain = true;
    k->kind = PLAIN;
    if (gradient) k->scratch_bytes = cu_attention_plain_grad_scratch(&t->a);
    cu_tell_slow(w->device, k->name, k->layer, "q, k and v are apart, which the kernels for tensor cores do not take");
    log_choice(w, k, &t->a);
    return DDP_OK;
}

static ddp_status run_apart(const cu_call *c, ddp_err *err)
{
    const attention_state *t = c->k->state;
    cu_attention a = t->a;

    a.params = c->params;
    a.segment = c->in[SEGMENT].at;
    return cu_started(c, cu_attention_apart(c->stream, &a, c->in[Q], c->in[K], c->in[V], c->out[Y], c->out[LSE].at),
                      err);
}

const cu_family cu_family_attention_apart = {.base.group = group_apart, .run = run_apart, .base.release = free};

static ddp_status run_apart_grad(const cu_call *c, ddp_err *err)
{
    const attention_state *t = c->k->state;
    const cu_apart_grad g = {.dy = c->in[DY],
                             .q = c->in[APART_Q],
                             .k = c->in[APART_K],
                             .v = c->in[APART_V],
                             .y = c->in[APART_Y],
                             .lse = c->in[APART_LSE].at,
                             .dq = c->out[DQ],
                             .dk = c->out[DK],
                             .dv = c->out[DV]};
    cu_attention a = t->a;

    a.params = c->params;
    a.segment = c->in[APART_SEGMENT].at;
    return cu_started(c, cu_attention_apart_grad(c->stream, &a, &g, c->scratch), err);
}

const cu_family cu_family_attention_apart_grad = {
    .base.group = group_apart, .run = run_apart_grad, .base.release = free};
