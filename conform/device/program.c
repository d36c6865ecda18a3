/* conform/device/program.c -- a device runs small networks, forward and backward, and is held against the op table's
 * references in double: loss, metric, buffers and every gradient, set and added, whole and cut in two; then whole
 * steps. */
#include "conform/device/program.h"
#include "graph/graph.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FEATURES = 20, CLASSES = 10, FIELDS = 2 };

typedef struct trial {
    ddp_rank_process *a;
    const char *network;
    const ddp_device_ops *ops;
    ddp_device *d;
    const ddp_program *p;
    const ddp_layout *layout;
    ddp_ref_tensor *ref; /* by value */
    void *inputs[FIELDS];
    float *params, *grads, *buffers, *arena; /* of the device */
    float *host, *before;                    /* layout->elements each */
    float *buffers_host;
    uint64_t buffer_elements;
    ddp_lowered *lowered;
    ddp_planned *planned;
    ddp_exec *exec;
    ddp_instance *instance;
    uint64_t random;
    ddp_err err;
} trial;

static const ddp_random no_random = {0}; /* the network draws nothing */

typedef struct network {
    const char *name;
    ddp_field fields[FIELDS];
    ddp_tensor (*build)(ddp_graph *g);
} network;

static ddp_tensor build_linear(ddp_graph *g)
{
    ddp_tensor x = ddp_relu(g, ddp_linear(g, ddp_input(g, "input"), 32, 1, "fc1"));

    x = ddp_add(g, x, ddp_gelu(g, ddp_linear(g, x, 32, 1, "fc2"), 0));
    return ddp_linear(g, x, CLASSES, 0, "head");
}

static ddp_tensor conv(ddp_graph *g, ddp_tensor x, int64_t out, int64_t stride, int bias, const char *name)
{
    const ddp_conv_spec s = {.out = out, .kernel = 3, .stride = stride, .padding = 1, .bias = bias};

    return ddp_conv2d(g, x, &s, NULL, "%s", name);
}

/* Two blocks: one that adds what it has read, and one that halves the image; odd sizes. */
static ddp_tensor build_images(ddp_graph *g)
{
    ddp_tensor x = ddp_max_pool2d(g, ddp_relu(g, conv(g, ddp_input(g, "input"), 6, 1, 1, "conv1")), 3, 2, 1), y;

    y = ddp_relu(g, ddp_batch_norm2d(g, conv(g, x, 6, 1, 0, "conv2"), NULL, "bn2"));
    x = ddp_relu(g, ddp_add(g, ddp_batch_norm2d(g, conv(g, y, 6, 1, 0, "conv3"), NULL, "bn3"), x));
    y = ddp_batch_norm2d(g, conv(g, x, 9, 2, 0, "conv4"), NULL, "bn4");
    x = ddp_relu(g, ddp_add(g, y, ddp_batch_norm2d(g, conv(g, x, 9, 2, 0, "conv5"), NULL, "bn5")));
    x = ddp_adaptive_avg_pool2d(g, ddp_avg_pool2d(g, x, 2, 1, 1), 1, 2);
    return ddp_linear(g, ddp_flatten(g, x), CLASSES, 1, "head");
}

#define LABEL                                                                                                          \
    {                                                                                                                  \
        .name = "label", .dtype = DDP_I64, .rank = 0, .min = 0, .max = CLASSES - 1                                     \
    }
static const network networks[] = {
    {"linear",
     {{.name = "input", .dtype = DDP_F32, .rank = 1, .dims = {FEATURES}, .min = 1, .max = 0}, LABEL},
     build_linear},
    {"images",
     {{.name = "input", .dtype = DDP_F32, .rank = 3, .dims = {3, 9, 7}, .min = 1, .max = 0}, LABEL},
     build_images},
};

static ddp_status build(const network *n, ddp_graph *g, ddp_err *err)
{
    ddp_tensor x = n->build(g);

    ddp_loss(g, ddp_cross_entropy(g, x, ddp_input(g, "label")));
    ddp_metric(g, "accuracy", ddp_accuracy(g, x, ddp_input(g, "label")));
    DDP_TRY(ddp_graph_status(g, err));
    return ddp_graph_finish(g, err);
}

/* ---- setting up -------------------------------------------------------------------------------------------------- */
static ddp_status device_floats(trial *t, uint64_t count, float **out)
{
    void *p;

    DDP_TRY(t->ops->alloc(t->d, DDP_MAX_OF(count, (uint64_t)1) * sizeof(float), &p, &t->err));
    *out = p;
    return DDP_OK;
}

/* The reference gets doubles, the device the same numbers. */
static ddp_status fill_value(trial *t, uint32_t i)
{
    const ddp_value *v = &t->p->values[i];
    size_t bytes = (size_t)v->elements * ddp_dtype_size(v->dtype);
    unsigned char *raw;
    ddp_status st;

    t->ref[i].data = ddp_alloc(((size_t)v->elements + 1) * sizeof(double), &t->err);
    if (t->ref[i].data == NULL) return DDP_ERR_NOMEM;
    if (v->kind == DDP_VALUE_ACT || v->kind == DDP_VALUE_GRAD) return DDP_OK;
    raw = ddp_alloc(bytes + 1, &t->err);
    if (raw == NULL) return DDP_ERR_NOMEM;
    for (int64_t e = 0; e < v->elements; e++) {
        /* a buffer may be a variance */
        float f = (float)ddp_next_random(&t->random, 2001) / 1000 - (v->kind == DDP_VALUE_BUFFER ? -0.5f : 1.0f);
        int64_t label = (int64_t)ddp_next_random(&t->random, CLASSES);

        t->ref[i].data[e] = v->dtype == DDP_I64 ? (double)label : (double)f;
        memcpy(raw + (size_t)e * ddp_dtype_size(v->dtype), v->dtype == DDP_I64 ? (void *)&label : (void *)&f,
               ddp_dtype_size(v->dtype));
    }
    if (v->kind == DDP_VALUE_INPUT) {
        st = t->ops->alloc(t->d, bytes, &t->inputs[v->index], &t->err);
        if (st == DDP_OK) st = t->ops->copy(t->d, t->inputs[v->index], raw, bytes, DDP_COPY_TO_DEVICE, &t->err);
    } else {
        float *to = v->kind == DDP_VALUE_BUFFER ? t->buffers : t->params;

        st = t->ops->copy(t->d, to + v->offset, raw, bytes, DDP_COPY_TO_DEVICE, &t->err);
    }
    free(raw);
    return st;
}

static ddp_status prepare(trial *t)
{
    ddp_bind bind = {.struct_size = sizeof(bind)};

    t->ref = ddp_alloc(t->p->value_count * sizeof(*t->ref), &t->err);
    t->host = ddp_alloc(t->layout->elements * sizeof(float), &t->err);
    t->before = ddp_alloc(t->layout->elements * sizeof(float), &t->err);
    t->buffers_host = ddp_alloc((t->buffer_elements + 1) * sizeof(float), &t->err);
    if (t->ref == NULL || t->host == NULL || t->before == NULL || t->buffers_host == NULL) return DDP_ERR_NOMEM;
    DDP_TRY(device_floats(t, t->layout->elements, &t->params));
    DDP_TRY(device_floats(t, t->layout->elements, &t->grads));
    DDP_TRY(device_floats(t, t->buffer_elements, &t->buffers));
    for (uint32_t i = 0; i < t->p->value_count; i++) DDP_TRY(fill_value(t, i));
    DDP_TRY(t->ops->lower(t->d, t->p, &t->lowered, &t->err));
    DDP_TRY(ddp_lowered_check(t->p, t->lowered, &t->err));
    DDP_TRY(ddp_plan_create(t->p, t->lowered, t->layout, &t->planned, &t->err));
    DDP_TRY(t->ops->compile(t->d, t->p, t->lowered, &t->planned->plan, &t->exec, &t->err));
    DDP_TRY(device_floats(t, t->planned->plan.arena_bytes / sizeof(float) + 1, &t->arena));
    bind.arena = t->arena;
    bind.params = t->params;
    bind.grads = t->grads;
    bind.buffers = t->buffers;
    return t->ops->instance_create(t->exec, &bind, &t->instance, &t->err);
}

static void release(trial *t)
{
    float *mine[] = {t->params, t->grads, t->buffers, t->arena};

    if (t->instance != NULL) t->ops->instance_free(t->instance);
    if (t->exec != NULL) t->ops->exec_free(t->exec);
    if (t->planned != NULL) ddp_plan_free(t->planned);
    if (t->lowered != NULL) t->ops->lowered_free(t->d, t->lowered);
    for (size_t i = 0; i < DDP_COUNT(mine); i++)
        if (mine[i] != NULL) t->ops->free(t->d, mine[i]);
    for (size_t i = 0; i < FIELDS; i++)
        if (t->inputs[i] != NULL) t->ops->free(t->d, t->inputs[i]);
    for (uint32_t i = 0; i < t->p->value_count && t->ref != NULL; i++) free(t->ref[i].data);
    free(t->ref);
    free(t->before);
    free(t->buffers_host);
    free(t->host);
}

/* ---- running and comparing --------------------------------------------------------------------------------------- */
/* The gradient arena starts with 0.5 everywhere: set over it, or added to it. Buffers move on in both. */
static ddp_status run(trial *t, bool add, uint32_t cut)
{
    const ddp_run r = {.struct_size = sizeof(r), .flags = add ? DDP_RUN_GRAD_ADD : 0, .inputs = t->inputs};
    size_t bytes = t->layout->elements * sizeof(float);

    for (uint64_t i = 0; i < t->layout->elements; i++) t->before[i] = 0.5f;
    DDP_TRY(t->ops->copy(t->d, t->grads, t->before, bytes, DDP_COPY_TO_DEVICE, &t->err));
    if (cut > 0) DDP_TRY(t->ops->run(t->instance, &r, 0, cut, &t->err));
    DDP_TRY(t->ops->run(t->instance, &r, cut, t->lowered->kernel_count, &t->err));
    DDP_TRY(t->ops->sync(t->d, &t->err));
    DDP_TRY(ddp_reference_run(t->p, &no_random, t->ref, &t->err));
    bytes = t->buffer_elements * sizeof(float);
    DDP_TRY(t->ops->copy(t->d, t->buffers_host, t->buffers, bytes, DDP_COPY_TO_HOST, &t->err));
    bytes = t->layout->elements * sizeof(float);
    return t->ops->copy(t->d, t->host, t->grads, bytes, DDP_COPY_TO_HOST, &t->err);
}

/* Fails the case, and is false, where `is` is further from `want` than f32's sums are. */
static bool is_near(trial *t, const char *what, const char *name, int64_t e, double is, double want)
{
    return DDP_EXPECT(t->a, fabs(is - want) <= 3e-5 * (1 + fabs(want)),
                      "%s, batch %lld: %s \"%.60s\"[%lld] is %.9g, not %.9g", t->network, (long long)t->p->batch, what,
                      name, (long long)e, is, want);
}

static bool compare_scalar(trial *t, int32_t value, const char *what)
{
    uint64_t at = t->planned->plan.value_offset[value];
    float f;

    if (!DDP_EXPECT(t->a, at != DDP_NO_OFFSET, "the %s has no storage", what)) return false;
    if (t->ops->copy(t->d, &f, (char *)t->arena + at, sizeof(f), DDP_COPY_TO_HOST, &t->err) != DDP_OK)
        return ddp_rank_process_fail_call(t->a, "copy", t->err.status, &t->err);
    return is_near(t, what, "", 0, (double)f, t->ref[value].data[0]);
}

static bool compare(trial *t, bool add)
{
    for (uint32_t i = 0; i < t->p->value_count; i++) {
        const ddp_value *v = &t->p->values[i];

        for (int64_t e = 0; e < v->elements && v->kind == DDP_VALUE_BUFFER; e++)
            if (!is_near(t, "buffer", v->name, e, (double)t->buffers_host[v->offset + (uint64_t)e], t->ref[i].data[e]))
                return false;
        for (int64_t e = 0; e < v->elements && v->kind == DDP_VALUE_GRAD; e++)
            if (!is_near(t, add ? "the added gradient of" : "the gradient of", v->name, e,
                         (double)t->host[v->offset + (uint64_t)e], t->ref[i].data[e] + (add ? 0.5 : 0)))
                return false;
    }
    return compare_scalar(t, t->p->loss, "loss") &&
           (t->p->metric_count == 0 || compare_scalar(t, t->p->metrics[0], "metric"));
}

/* ---- whole steps ------------------------------------------------------------------------------------------------- */
/* By the device's `step`, where it has one: three updates by SGD, clipped to half of the first gradients' norm,
 * against the same references. What changes between them, the learning rate and the parameters, has to be seen. */
enum { STEPS = 3 };

typedef struct reported {
    float loss;
    uint64_t not_finite;
    double norm;
} reported;

static double reference_norm(const trial *t)
{
    double sum = 0;

    for (uint32_t i = 0; i < t->p->value_count; i++)
        for (int64_t e = 0; e < t->p->values[i].elements && t->p->values[i].kind == DDP_VALUE_GRAD; e++)
            sum += t->ref[i].data[e] * t->ref[i].data[e];
    return sqrt(sum);
}

/* The reference's parameters are the device's, as they are before the step. */
static ddp_status take_params(trial *t)
{
    size_t bytes = t->layout->elements * sizeof(float);

    DDP_TRY(t->ops->copy(t->d, t->before, t->params, bytes, DDP_COPY_TO_HOST, &t->err));
    for (uint32_t i = 0; i < t->p->value_count; i++)
        for (int64_t e = 0; e < t->p->values[i].elements && t->p->values[i].kind == DDP_VALUE_PARAM; e++)
            t->ref[i].data[e] = (double)t->before[t->p->values[i].offset + (uint64_t)e];
    return DDP_OK;
}

static ddp_status run_step(trial *t, uint64_t step, double lr, double max_norm, reported *out)
{
    const ddp_optim o = {.struct_size = sizeof(o), .algorithm = DDP_OPTIM_SGD, .step = step, .lr = lr, .grad_scale = 1};
    const ddp_optim_slice s = {.grad_dtype = DDP_F32,
                               .state_dtype = DDP_F32,
                               .param = t->params,
                               .grad = t->grads,
                               .count = t->layout->extra_offset};
    const ddp_run r = {.struct_size = sizeof(r), .inputs = t->inputs};
    const ddp_update u = {
        .struct_size = sizeof(u),
        .slice_count = 1,
        .optim = &o,
        .slice_size = sizeof(s),
        .slices = &s,
        .not_finite = &out->not_finite,
        .loss = (const float *)(const void *)((const char *)t->arena + t->planned->plan.value_offset[t->p->loss]),
        .loss_out = &out->loss,
        .max_norm = max_norm,
        .norm = &out->norm};
    size_t bytes = t->layout->elements * sizeof(float);

    out->not_finite = s.count;
    DDP_TRY(t->ops->step(t->instance, &r, &u, &t->err));
    DDP_TRY(t->ops->sync(t->d, &t->err));
    return t->ops->copy(t->d, t->host, t->params, bytes, DDP_COPY_TO_HOST, &t->err);
}

/* A gradient has its parameter's offset, in another arena. */
static bool compare_params(trial *t, double by)
{
    for (uint32_t i = 0; i < t->p->value_count; i++) {
        const ddp_value *v = &t->p->values[i];

        for (int64_t e = 0; e < v->elements && v->kind == DDP_VALUE_GRAD; e++) {
            uint64_t at = v->offset + (uint64_t)e;
            if (!is_near(t, "after a step, parameter", v->name, e, (double)t->host[at],
                         (double)t->before[at] - by * t->ref[i].data[e]))
                return false;
        }
    }
    return true;
}

static bool check_steps(trial *t, reported *out)
{
    double max_norm = 0;

    for (uint64_t step = 1; step <= STEPS; step++) {
        double lr = 0.5 / (double)step, norm;
        ddp_status st = take_params(t);

        if (st == DDP_OK) st = ddp_reference_run(t->p, &(ddp_random){0}, t->ref, &t->err);
        norm = reference_norm(t);
        if (step == 1) max_norm = norm / 2;
        if (st == DDP_OK) st = run_step(t, step, lr, max_norm, out);
        if (st != DDP_OK) return ddp_rank_process_fail_call(t->a, "step", st, &t->err);
        if (!is_near(t, "after a step, the loss", "", 0, (double)out->loss, t->ref[t->p->loss].data[0]) ||
            !is_near(t, "after a step, the norm", "", 0, out->norm, norm) ||
            !DDP_EXPECT(t->a, out->not_finite == t->layout->extra_offset,
                        "after a step, element %llu is reported not to be finite",
                        (unsigned long long)out->not_finite) ||
            !compare_params(t, lr * fmin(1, max_norm / (norm + 1e-6))))
            return false;
    }
    return true;
}

static bool step(trial *t)
{
    void *out = NULL;
    bool good;

    if (t->ops->step == NULL) return true;
    for (uint64_t i = 0; i < t->layout->elements; i++) t->host[i] = 0; /* what no parameter has counts for the norm */
    if (t->ops->copy(t->d, t->grads, t->host, t->layout->elements * sizeof(float), DDP_COPY_TO_DEVICE, &t->err) !=
        DDP_OK)
        return ddp_rank_process_fail_call(t->a, "copy", t->err.status, &t->err);
    if (t->ops->host_alloc(t->d, sizeof(reported), &out, &t->err) != DDP_OK)
        return ddp_rank_process_fail_call(t->a, "host_alloc", t->err.status, &t->err);
    good = check_steps(t, out);
    t->ops->host_free(t->d, out);
    return good;
}

/* ---- the case ---------------------------------------------------------------------------------------------------- */
static bool check(trial *t)
{
    uint32_t kernels;
    ddp_status st = prepare(t);

    if (st == DDP_ERR_UNSUPPORTED && t->lowered == NULL) {
        DDP_SKIP(t->a, "it cannot run the network of this case: %.150s", t->err.msg);
        return false;
    }
    if (st != DDP_OK) return ddp_rank_process_fail_call(t->a, "preparing the program", st, &t->err);
    kernels = t->lowered->kernel_count;
    for (uint32_t i = 0; i < 4; i++) {
        bool add = i % 2 == 1;

        st = run(t, add, i < 2 ? 0 : kernels / 2);
        if (st != DDP_OK) return ddp_rank_process_fail_call(t->a, "run", st, &t->err);
        if (!compare(t, add)) return false;
    }
    return step(t);
}

static bool check_batch(const trial *common, const ddp_graph *g, int64_t batch)
{
    trial t = *common;
    ddp_program *p;
    bool good;

    t.random = (uint64_t)batch;
    t.buffer_elements = ddp_graph_buffer_elements(g);
    if (ddp_program_create(g, t.layout, batch, true, &p, &t.err) != DDP_OK)
        return ddp_rank_process_fail_call(t.a, "the core's program", t.err.status, &t.err);
    t.p = p;
    good = check(&t);
    release(&t);
    ddp_program_free(p);
    return good;
}

static bool check_network(ddp_rank_process *a, const ddp_device_ops *ops, ddp_device *d, const network *n)
{
    static const int64_t batches[] = {1, 7, 64};
    ddp_layout *layout = NULL;
    ddp_graph *g = NULL;
    ddp_err err = {0};
    trial t = {.a = a, .network = n->name, .ops = ops, .d = d};
    bool good = true;

    if (ddp_graph_create(n->fields, FIELDS, &g, &err) != DDP_OK || build(n, g, &err) != DDP_OK ||
        ddp_layout_create(g, 1 << 20, 25 << 20, 1, &layout, &err) != DDP_OK)
        good = ddp_rank_process_fail_call(a, "the core's graph", err.status, &err);
    t.layout = layout;
    for (size_t i = 0; good && i < DDP_COUNT(batches); i++) good = check_batch(&t, g, batches[i]);
    if (layout != NULL) ddp_layout_free(layout);
    if (g != NULL) ddp_graph_free(g);
    return good;
}

void device_program(ddp_rank_process *a, const ddp_device_ops *ops, ddp_device *d)
{
    for (size_t i = 0; i < DDP_COUNT(networks); i++)
        if (!check_network(a, ops, d, &networks[i])) break;
}
