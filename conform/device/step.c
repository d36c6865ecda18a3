/* conform/device/step.c -- a device's `step`, where it has one: three updates by SGD, clipped to half of the first
 * gradients' norm, against the references of program.c. What changes between them, the learning rate and the
 * parameters, has to be seen. */
#include "conform/device/step.h"
#include <math.h>
#include <stdlib.h>

enum { STEPS = 3 };

typedef struct reported {
    float loss;
    uint64_t not_finite;
    double norm;
} reported;

bool ddp_device_near(ddp_device_trial *t, const char *what, const char *name, int64_t e, double is, double want)
{
    return DDP_EXPECT(t->a, fabs(is - want) <= 3e-5 * (1 + fabs(want)),
                      "%s, batch %lld: %s \"%.60s\"[%lld] is %.9g, not %.9g", t->network, (long long)t->p->batch, what,
                      name, (long long)e, is, want);
}

static double reference_norm(const ddp_device_trial *t)
{
    double sum = 0;

    for (uint32_t i = 0; i < t->p->value_count; i++)
        for (int64_t e = 0; e < t->p->values[i].elements && t->p->values[i].kind == DDP_VALUE_GRAD; e++)
            sum += t->ref[i].data[e] * t->ref[i].data[e];
    return sqrt(sum);
}

/* The reference's parameters are the device's, as they are before the step. */
static ddp_status take_params(ddp_device_trial *t)
{
    size_t bytes = t->layout->elements * sizeof(float);

    DDP_TRY(t->ops->copy(t->d, t->before, t->params, bytes, DDP_COPY_TO_HOST, &t->err));
    for (uint32_t i = 0; i < t->p->value_count; i++)
        for (int64_t e = 0; e < t->p->values[i].elements && t->p->values[i].kind == DDP_VALUE_PARAM; e++)
            t->ref[i].data[e] = (double)t->before[t->p->values[i].offset + (uint64_t)e];
    return DDP_OK;
}

static ddp_status run(ddp_device_trial *t, uint64_t step, double lr, double max_norm, reported *out)
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
static bool compare_params(ddp_device_trial *t, double by)
{
    for (uint32_t i = 0; i < t->p->value_count; i++) {
        const ddp_value *v = &t->p->values[i];

        for (int64_t e = 0; e < v->elements && v->kind == DDP_VALUE_GRAD; e++) {
            uint64_t at = v->offset + (uint64_t)e;
            if (!ddp_device_near(t, "after a step, parameter", v->name, e, (double)t->host[at],
                                 (double)t->before[at] - by * t->ref[i].data[e]))
                return false;
        }
    }
    return true;
}

static bool check_steps(ddp_device_trial *t, reported *out)
{
    double max_norm = 0;

    for (uint64_t step = 1; step <= STEPS; step++) {
        double lr = 0.5 / (double)step, norm;
        ddp_status st = take_params(t);

        if (st == DDP_OK) st = ddp_reference_run(t->p, &(ddp_random){0}, t->ref, &t->err);
        norm = reference_norm(t);
        if (step == 1) max_norm = norm / 2;
        if (st == DDP_OK) st = run(t, step, lr, max_norm, out);
        if (st != DDP_OK) return ddp_rank_process_fail_call(t->a, "step", st, &t->err);
        if (!ddp_device_near(t, "after a step, the loss", "", 0, (double)out->loss, t->ref[t->p->loss].data[0]) ||
            !ddp_device_near(t, "after a step, the norm", "", 0, out->norm, norm) ||
            !DDP_EXPECT(t->a, out->not_finite == t->layout->extra_offset,
                        "after a step, element %llu is reported not to be finite",
                        (unsigned long long)out->not_finite) ||
            !compare_params(t, lr * fmin(1, max_norm / (norm + 1e-6))))
            return false;
    }
    return true;
}

bool ddp_device_step(ddp_device_trial *t)
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
