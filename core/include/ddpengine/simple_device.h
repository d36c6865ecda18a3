/* ddpengine/simple_device.h -- a device in the host's memory, from one function that says who computes a node.
 *
 * For the author of a device, to start from: write ddp_simple_kernel and ddp_simple_describe, and put DDP_SIMPLE_CAPS
 * and DDP_SIMPLE_SLOTS into the function table. Each node of a program is a kernel of its own, on the thread that
 * calls; parameters are updated in double, rounded once. Grouping nodes, using threads and memory of one's own is what
 * a device gains when it replaces these functions by its own, one after the other. This header defines ddp_device,
 * ddp_exec and ddp_instance, so one file of a plugin includes it. */
#ifndef DDPENGINE_SIMPLE_DEVICE_H
#define DDPENGINE_SIMPLE_DEVICE_H

#include <ddpengine/device.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- what the author writes -------------------------------------------------------------------------------------- */
/* A node with the addresses and shapes of its values; NULL where one is absent. */
typedef struct ddp_simple_node {
    const ddp_node *node;
    const void *in[DDP_NODE_MAX_IN];
    void *out[DDP_NODE_MAX_OUT]; /* to be set, not added to; none lies over an input */
    const ddp_value *in_value[DDP_NODE_MAX_IN], *out_value[DDP_NODE_MAX_OUT];
    const ddp_random *random; /* of this micro-step, for dropout */
} ddp_simple_node;

typedef ddp_status (*ddp_simple_run)(const ddp_simple_node *n, ddp_err *err);

/* What computes `node`, as program.h describes its op; NULL: this device cannot, and the program is refused with the
 * op's number. RESHAPE, CROSS_ENTROPY with its gradient, and ACCURACY need not be there. */
static ddp_simple_run ddp_simple_kernel(const ddp_node *node);

/* Fills name and memory_bytes. */
static void ddp_simple_describe(ddp_device *d, ddp_device_info *out);

/* ---- what this header defines ------------------------------------------------------------------------------------ */
struct ddp_device {
    const ddp_host *host;
    const void *config; /* the plugin's options */
    ddp_device_params params;
};

struct ddp_exec {
    const ddp_program *program;
    const ddp_plan *plan;
    float *before; /* what the gradients of a node were that are added to: as long as those of any node */
};

struct ddp_instance {
    ddp_exec *exec;
    void *values[1]; /* by value; inputs are set in each run */
};

static inline ddp_status ddp_simple_open(const ddp_host *host, const void *config, const ddp_device_params *p,
                                         ddp_device **out, ddp_err *err)
{
    ddp_device *d;

    if (p->precision != DDP_PRECISION_F32) return ddp_fail(err, DDP_ERR_UNSUPPORTED, "this device has f32 alone");
    d = (ddp_device *)calloc(1, sizeof(*d));
    if (d == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "no memory for the device");
    d->host = host;
    d->config = config;
    memcpy(&d->params, p, sizeof(d->params));
    *out = d;
    return DDP_OK;
}

static inline void ddp_simple_close(ddp_device *d) { free(d); }

/* ---- memory ------------------------------------------------------------------------------------------------------ */
/* 64-byte aligned, with the address that malloc gave in front of it. */
static inline ddp_status ddp_simple_alloc(ddp_device *d, size_t bytes, void **out, ddp_err *err)
{
    char *base = bytes < SIZE_MAX - 128 ? (char *)calloc(1, bytes + 128) : NULL, *p;

    (void)d;
    if (base == NULL)
        return ddp_fail(err, DDP_ERR_NOMEM, "no memory for %llu bytes of the device", (unsigned long long)bytes);
    p = base + 128 - (uintptr_t)base % 64;
    memcpy(p - sizeof(base), &base, sizeof(base));
    *out = p;
    return DDP_OK;
}

static inline void ddp_simple_free(ddp_device *d, void *p)
{
    char *base;

    (void)d;
    memcpy(&base, (char *)p - sizeof(base), sizeof(base));
    free(base);
}

static inline ddp_status ddp_simple_copy(ddp_device *d, void *dst, const void *src, size_t bytes, uint32_t direction,
                                         ddp_err *err)
{
    (void)d, (void)direction, (void)err;
    if (bytes > 0) memmove(dst, src, bytes);
    return DDP_OK;
}

static inline ddp_status ddp_simple_sync(ddp_device *d, ddp_err *err)
{
    (void)d, (void)err;
    return DDP_OK; /* run has returned, so all is done */
}

/* ---- lower and compile ------------------------------------------------------------------------------------------- */
static inline ddp_status ddp_simple_reshape_(const ddp_simple_node *n, ddp_err *err)
{
    (void)err;
    memcpy(n->out[0], n->in[0], (size_t)n->out_value[0]->elements * ddp_dtype_size(n->out_value[0]->dtype));
    return DDP_OK;
}

/* x (rows, C), label (rows) -> the mean over the rows, or its gradient dx, or how many rows are right. */
static inline ddp_status ddp_simple_classify_(const ddp_simple_node *n, ddp_err *err)
{
    const uint32_t op = n->node->op;
    const int64_t *label = (const int64_t *)n->in[1];
    const int64_t classes = n->in_value[0]->dims[n->in_value[0]->rank - 1];
    const int ignores = op != DDP_OP_ACCURACY && n->node->attrs.cross_entropy.ignores != 0;
    float *out = (float *)n->out[0];
    double loss = 0, divisor = ignores ? n->node->attrs.cross_entropy.divisor : (double)n->in_value[1]->elements;
    int64_t r, c, right = 0, rows = n->in_value[1]->elements;

    if (op == DDP_OP_CROSS_ENTROPY_GRAD) memset(out, 0, (size_t)(rows * classes) * sizeof(*out));
    for (r = 0; r < rows; r++)
        if (ignores && n->node->attrs.cross_entropy.divisor <= 0)
            divisor += label[r] != n->node->attrs.cross_entropy.ignore_index;
    for (r = 0; r < rows; r++) {
        const float *x = (const float *)n->in[0] + r * classes;
        double sum = 0;
        int64_t best = 0;

        if (ignores && label[r] == n->node->attrs.cross_entropy.ignore_index) continue;
        if (label[r] < 0 || label[r] >= classes)
            return ddp_fail(err, DDP_ERR_DATA, "\"%.100s\": row %lld has label %lld, there are %lld classes",
                            n->node->name, (long long)r, (long long)label[r], (long long)classes);
        for (c = 1; c < classes; c++)
            if (x[c] > x[best]) best = c;
        right += best == label[r];
        for (c = 0; c < classes; c++) sum += exp((double)x[c] - (double)x[best]);
        loss += log(sum) + (double)x[best] - (double)x[label[r]];
        for (c = 0; c < classes && op == DDP_OP_CROSS_ENTROPY_GRAD; c++)
            out[r * classes + c] =
                (float)((exp((double)x[c] - (double)x[best]) / sum - (c == label[r] ? 1 : 0)) / divisor);
    }
    if (op == DDP_OP_CROSS_ENTROPY) out[0] = (float)(loss / divisor);
    rows /= n->in_value[0]->dims[0]; /* of one sample */
    if (op == DDP_OP_ACCURACY) out[0] = (float)((double)right / (double)rows);
    return DDP_OK;
}

static inline ddp_simple_run ddp_simple_kernel_(const ddp_node *node)
{
    const ddp_simple_run own = ddp_simple_kernel(node);

    if (own != NULL) return own;
    if (node->op == DDP_OP_RESHAPE) return ddp_simple_reshape_;
    if (node->op == DDP_OP_ACCURACY) return ddp_simple_classify_;
    if (node->op != DDP_OP_CROSS_ENTROPY && node->op != DDP_OP_CROSS_ENTROPY_GRAD) return NULL;
    return node->in_count > 2 || node->attrs.cross_entropy.weights > 0 || node->attrs.cross_entropy.classes > 0 ||
                   node->attrs.cross_entropy.label_smoothing > 0
               ? NULL
               : ddp_simple_classify_;
}

static inline void ddp_simple_lowered_free(ddp_device *d, ddp_lowered *l)
{
    (void)d;
    free(l->device_data);
    free(l);
}

/* A kernel for each node; storage for what is neither the batch's nor a parameter's. */
static inline ddp_status ddp_simple_lower(ddp_device *d, const ddp_program *p, ddp_lowered **out, ddp_err *err)
{
    const size_t kernel_bytes = p->node_count * sizeof(ddp_kernel),
                 storage_bytes = p->value_count * sizeof(ddp_storage);
    ddp_lowered *l = (ddp_lowered *)calloc(1, sizeof(*l));
    char *memory = (char *)calloc(1, kernel_bytes + storage_bytes + p->node_count * sizeof(uint32_t) + 1);
    ddp_kernel *kernels;
    ddp_storage *storage;
    uint32_t *nodes, i;

    if (l == NULL || memory == NULL) {
        free(l);
        free(memory);
        return ddp_fail(err, DDP_ERR_NOMEM, "no memory for a program of %u nodes", p->node_count);
    }
    kernels = (ddp_kernel *)(void *)memory;
    storage = (ddp_storage *)(void *)(memory + kernel_bytes);
    nodes = (uint32_t *)(void *)(memory + kernel_bytes + storage_bytes);
    l->struct_size = (uint32_t)sizeof(*l);
    l->kernel_count = p->node_count;
    l->kernel_size = (uint32_t)sizeof(ddp_kernel);
    l->storage_size = (uint32_t)sizeof(ddp_storage);
    l->private_size = (uint32_t)sizeof(ddp_private);
    l->kernels = kernels;
    l->storage = storage;
    l->device_data = memory;
    for (i = 0; i < p->node_count; i++) {
        const ddp_node *node = ddp_node_at(p, i);

        if (ddp_simple_kernel_(node) == NULL) {
            ddp_simple_lowered_free(d, l);
            return ddp_fail(err, DDP_ERR_UNSUPPORTED, "this device has no op %u, or not as layer \"%.100s\" wants it",
                            node->op, node->name);
        }
        nodes[i] = i;
        kernels[i].nodes = &nodes[i];
        kernels[i].node_count = 1;
        kernels[i].name = node->name;
    }
    for (i = 0; i < p->value_count; i++) {
        const ddp_value *v = ddp_value_at(p, i);

        storage[i].alias_of = -1;
        if (v->kind == DDP_VALUE_ACT) storage[i].bytes = (uint64_t)v->elements * ddp_dtype_size(v->dtype);
    }
    *out = l;
    return DDP_OK;
}

/* Elements of the gradients that the node writes. */
static inline size_t ddp_simple_grads_(const ddp_program *p, const ddp_node *node)
{
    size_t count = 0;
    uint32_t k;

    for (k = 0; k < node->out_count; k++)
        if (node->out[k] >= 0 && ddp_value_at(p, (uint32_t)node->out[k])->kind == DDP_VALUE_GRAD)
            count += (size_t)ddp_value_at(p, (uint32_t)node->out[k])->elements;
    return count;
}

static inline ddp_status ddp_simple_compile(ddp_device *d, const ddp_program *p, const ddp_lowered *l,
                                            const ddp_plan *plan, ddp_exec **out, ddp_err *err)
{
    ddp_exec *e = (ddp_exec *)calloc(1, sizeof(*e));
    size_t most = 1;
    uint32_t i;

    (void)d, (void)l;
    for (i = 0; i < p->node_count; i++)
        if (ddp_simple_grads_(p, ddp_node_at(p, i)) > most) most = ddp_simple_grads_(p, ddp_node_at(p, i));
    if (e != NULL) e->before = (float *)calloc(most, sizeof(*e->before));
    if (e == NULL || e->before == NULL) {
        free(e);
        return ddp_fail(err, DDP_ERR_NOMEM, "no memory for a program of %u nodes", p->node_count);
    }
    e->program = p;
    e->plan = plan;
    *out = e;
    return DDP_OK;
}

static inline void ddp_simple_exec_free(ddp_exec *e)
{
    free(e->before);
    free(e);
}

static inline ddp_status ddp_simple_instance_create(ddp_exec *e, const ddp_bind *bind, ddp_instance **out, ddp_err *err)
{
    const ddp_program *p = e->program;
    ddp_instance *it = (ddp_instance *)calloc(1, sizeof(*it) + p->value_count * sizeof(it->values[0]));
    uint32_t i;

    if (it == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "no memory for %u values", p->value_count);
    it->exec = e;
    for (i = 0; i < p->value_count; i++) {
        const ddp_value *v = ddp_value_at(p, i);
        const uint64_t at = e->plan->value_offset[i];

        switch (v->kind) {
        case DDP_VALUE_PARAM: it->values[i] = (float *)bind->params + v->offset; break;
        case DDP_VALUE_GRAD: it->values[i] = bind->grads + v->offset; break;
        case DDP_VALUE_BUFFER: it->values[i] = bind->buffers + v->offset; break;
        case DDP_VALUE_ACT: it->values[i] = at != DDP_NO_OFFSET ? (char *)bind->arena + at : NULL; break;
        default: break; /* an input */
        }
    }
    *out = it;
    return DDP_OK;
}

static inline void ddp_simple_instance_free(ddp_instance *i) { free(i); }

/* ---- run --------------------------------------------------------------------------------------------------------- */
/* Of out[k] where bit k of `add` is set: what was there is kept, and added to what the node writes. */
static inline ddp_status ddp_simple_node_run_(const ddp_exec *e, const ddp_simple_node *n, uint32_t add, ddp_err *err)
{
    float *before = e->before;
    uint32_t k;
    int64_t i;

    for (k = 0; k < n->node->out_count; k++) {
        if ((add >> k & 1) == 0) continue;
        memcpy(before, n->out[k], (size_t)n->out_value[k]->elements * sizeof(*before));
        before += n->out_value[k]->elements;
    }
    DDP_TRY(ddp_simple_kernel_(n->node)(n, err));
    for (k = 0, before = e->before; k < n->node->out_count; k++) {
        if ((add >> k & 1) == 0) continue;
        for (i = 0; i < n->out_value[k]->elements; i++) ((float *)n->out[k])[i] += before[i];
        before += n->out_value[k]->elements;
    }
    return DDP_OK;
}

static inline ddp_status ddp_simple_run_nodes(ddp_instance *it, const ddp_run *r, uint32_t first, uint32_t last,
                                              ddp_err *err)
{
    const ddp_program *p = it->exec->program;
    uint32_t i, k;

    for (i = 0; i < p->value_count; i++)
        if (ddp_value_at(p, i)->kind == DDP_VALUE_INPUT) it->values[i] = r->inputs[ddp_value_at(p, i)->index];
    for (i = first; i < last; i++) {
        ddp_simple_node n;
        uint32_t add;

        memset(&n, 0, sizeof(n));
        n.node = ddp_node_at(p, i);
        n.random = &r->random;
        add = n.node->accumulate;
        for (k = 0; k < n.node->in_count; k++) {
            if (n.node->in[k] < 0) continue;
            n.in[k] = it->values[n.node->in[k]];
            n.in_value[k] = ddp_value_at(p, (uint32_t)n.node->in[k]);
        }
        for (k = 0; k < n.node->out_count; k++) {
            if (n.node->out[k] < 0) continue;
            n.out[k] = it->values[n.node->out[k]];
            n.out_value[k] = ddp_value_at(p, (uint32_t)n.node->out[k]);
            if ((r->flags & DDP_RUN_GRAD_ADD) != 0 && n.out_value[k]->kind == DDP_VALUE_GRAD) add |= 1u << k;
        }
        DDP_TRY(ddp_simple_node_run_(it->exec, &n, add, err));
    }
    return DDP_OK;
}

/* ---- updates and reductions -------------------------------------------------------------------------------------- */
/* torch.optim.SGD, Adam and AdamW, for one element. */
static inline void ddp_simple_update_(const ddp_optim *o, float *param, float *state1, float *state2, double g)
{
    const double c1 = 1 - pow(o->beta1, (double)o->step), c2 = 1 - pow(o->beta2, (double)o->step);
    double p = *param, m, v;

    if (o->algorithm == DDP_OPTIM_ADAMW)
        p *= 1 - o->lr * o->weight_decay;
    else
        g += o->weight_decay * p;
    if (o->algorithm == DDP_OPTIM_SGD) {
        if (state1 != NULL) {
            m = o->step == 1 ? g : o->momentum * *state1 + g;
            *state1 = (float)m;
            g = o->nesterov != 0 ? g + o->momentum * m : m;
        }
        *param = (float)(p - o->lr * g);
        return;
    }
    m = o->beta1 * *state1 + (1 - o->beta1) * g;
    v = o->beta2 * *state2 + (1 - o->beta2) * g * g;
    *state1 = (float)m;
    *state2 = (float)v;
    *param = (float)(p - o->lr * (m / c1) / (sqrt(v / c2) + o->eps));
}

static inline ddp_status ddp_simple_optim_step(ddp_device *d, const ddp_optim *o, const ddp_optim_slice *s,
                                               ddp_err *err)
{
    float *state1 = (float *)s->state1, *state2 = (float *)s->state2;
    const float *grad = (const float *)s->grad;
    uint64_t i;

    (void)d;
    if (o->algorithm < DDP_OPTIM_SGD || o->algorithm > DDP_OPTIM_ADAMW || s->grad_dtype != DDP_F32 ||
        s->state_dtype != DDP_F32)
        return ddp_fail(err, DDP_ERR_UNSUPPORTED, "this device has no update %u with gradients of dtype %u",
                        o->algorithm, s->grad_dtype);
    for (i = 0; i < s->count; i++)
        ddp_simple_update_(o, &s->param[i], state1 != NULL ? &state1[i] : NULL, state2 != NULL ? &state2[i] : NULL,
                           grad[i] * o->grad_scale);
    return DDP_OK;
}

static inline ddp_status ddp_simple_flat(ddp_device *d, uint32_t what, const float *x, uint64_t count,
                                         ddp_flat_result *out, ddp_err *err)
{
    double sum = 0;
    uint64_t i;

    (void)d;
    if (what != DDP_FLAT_FINITE && what != DDP_FLAT_SUM_SQUARES)
        return ddp_fail(err, DDP_ERR_UNSUPPORTED, "this device has no reduction %u", what);
    for (i = 0; i < count && (what == DDP_FLAT_SUM_SQUARES || x[i] - x[i] == 0); i++)
        sum += (double)x[i] * (double)x[i];
    if (what == DDP_FLAT_FINITE)
        out->index = i;
    else
        out->value = sum;
    return DDP_OK;
}

/* For the function table; struct_size stands in front of them. */
#define DDP_SIMPLE_CAPS DDP_DEVICE_CAP_HOST_MEMORY
#define DDP_SIMPLE_SLOTS                                                                                               \
    .open = ddp_simple_open, .close = ddp_simple_close, .describe = ddp_simple_describe, .alloc = ddp_simple_alloc,    \
    .free = ddp_simple_free, .copy = ddp_simple_copy, .lower = ddp_simple_lower,                                       \
    .lowered_free = ddp_simple_lowered_free, .compile = ddp_simple_compile, .exec_free = ddp_simple_exec_free,         \
    .instance_create = ddp_simple_instance_create, .instance_free = ddp_simple_instance_free,                          \
    .run = ddp_simple_run_nodes, .sync = ddp_simple_sync, .optim_step = ddp_simple_optim_step, .flat = ddp_simple_flat

#ifdef __cplusplus
}
#endif
#endif
