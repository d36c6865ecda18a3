/* train/local/replicas.c -- see replicas.h. */
#include "train/local/replicas.h"
#include "session/variants.h"
#include "train/fault.h"
#include "train/local/batch.h"
#include "train/local/device_group.h"
#include "train/measure/evaluated.h"
#include "train/measure/noise.h"
#include "train/reduce/not_finite.h"
#include "train/reduce/shards.h"
#include "train/state/buffer_sync.h"
#include "train/state/memory.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { JOB_BROADCAST_ALL = DDP_JOB_OWN, JOB_BROADCAST_BUFFERS, JOB_MICRO, JOB_EVAL, JOB_HASH };

/* By its thread, for the trainer's after the wait. */
typedef struct replica {
    double loss_sum;
    ddp_sums sums;
    uint64_t hash;
} replica;

struct ddp_replicas {
    ddp_trainer *t; /* replica 0 */
    ddp_device_group *group;
    replica *replicas;  /* by number */
    ddp_batch batch;    /* of the job in hand */
    ddp_loader *loader; /* that it comes from */
    uint64_t micro;     /* of the step */
    bool last;
};

/* ---- on each replica's thread ---------------------------------------------------------------------------------- */
static ddp_status open_replica(ddp_group_device *m, ddp_err *err)
{
    ddp_session *s = &m->session;
    ddp_trainer *t = &m->trainer;

    DDP_TRY(ddp_variants_plan(s, err));
    DDP_TRY(ddp_device_alloc(&s->device, s->model.layout->param_elements * sizeof(float), &t->mem.params, err));
    if (s->launch.purpose == DDP_TO_TRAIN)
        DDP_TRY(ddp_device_alloc(&s->device, s->model.layout->elements * sizeof(float), &t->mem.grads, err));
    DDP_TRY(ddp_device_alloc(&s->device, s->programs.arena_bytes, &t->mem.activations, err));
    DDP_TRY(ddp_trainer_buffers_open(t, err));
    t->mem.bind = (ddp_bind){.struct_size = sizeof(t->mem.bind),
                             .arena = t->mem.activations,
                             .params = t->mem.params,
                             .grads = t->mem.grads,
                             .buffers = t->mem.buffers};
    return DDP_OK;
}

static void close_replica(ddp_group_device *m)
{
    ddp_session *s = &m->session;
    void *own[] = {m->trainer.mem.params, m->trainer.mem.grads, m->trainer.mem.buffers, m->trainer.mem.activations};

    ddp_variants_free(s);
    for (size_t i = 0; i < DDP_COUNT(own); i++) ddp_device_free(&s->device, own[i]);
    free(m->trainer.mem.counts);
}

static ddp_status broadcast(const ddp_replicas *d, ddp_group_device *m, bool params, ddp_err *err)
{
    const ddp_session *s = &m->session;

    if (params)
        DDP_TRY(ddp_device_copy(&s->device, m->trainer.mem.params, d->t->mem.params,
                                s->model.layout->param_elements * sizeof(float), DDP_COPY_ON_DEVICE, err));
    if (m->trainer.mem.buffers != NULL)
        DDP_TRY(ddp_device_copy(&s->device, m->trainer.mem.buffers, d->t->mem.buffers,
                                s->model.buffer_elements * sizeof(float), DDP_COPY_ON_DEVICE, err));
    return ddp_device_sync(&s->device, err);
}

/* Other devices have written into this one's parameters. */
static ddp_status see_params(ddp_trainer *t, ddp_err *err)
{
    if (!ddp_device_has_memory(&t->s->device)) return DDP_OK;
    return ddp_device_params_changed(&t->s->device, t->mem.params, t->s->model.layout->param_elements, err);
}

/* A part's gradient is the mean over its own samples, and the update takes the mean of the parts: where those are not
 * of one size, each counts by its samples. That is so in the last batch of an epoch at most, whose gradients may be
 * added to others. For a mean over labels that count the parts are sums. */
static ddp_status micro_part(const ddp_replicas *d, ddp_trainer *t, double *loss_sum, ddp_err *err)
{
    ddp_batch part = ddp_batch_part(d->loader, &d->batch, t->s->devices.own);
    uint64_t elements = t->s->model.layout->extra_offset;
    bool even = t->s->train.mean.by_token || d->batch.count % d->group->count == 0;
    double weight = (double)part.count * d->group->count / (double)d->batch.count;

    if (part.count == 0) {
        return d->micro == 0 ? ddp_scale_floats(t, t->mem.grads, elements, 0.0, err) : DDP_OK;
    }
    if (d->micro == 0) DDP_TRY(see_params(t, err));
    if (!even && d->micro > 0) DDP_TRY(ddp_scale_floats(t, t->mem.grads, elements, 1.0 / weight, err));
    DDP_TRY(local_batch_train(t, 0, &part, d->micro > 0, d->last, loss_sum, err));
    if (d->micro == 0) DDP_TRY(measure_noise_first(t, &part, err)); /* of replica 0 */
    return even ? DDP_OK : ddp_scale_floats(t, t->mem.grads, elements, weight, err);
}

static ddp_status eval_part(const ddp_replicas *d, ddp_trainer *t, ddp_sums *sums, ddp_err *err)
{
    ddp_batch part = ddp_batch_part(d->loader, &d->batch, t->s->devices.own);

    DDP_TRY(see_params(t, err));
    return part.count > 0 ? ddp_batch_evaluate(t, &part, sums, err) : DDP_OK;
}

static ddp_status work(void *ctx, ddp_group_device *m, uint32_t job, ddp_err *err)
{
    ddp_replicas *d = ctx;
    replica *r = &d->replicas[m->session.devices.own];

    switch (job) {
    case DDP_JOB_OPEN: return open_replica(m, err);
    case DDP_JOB_CLOSE: close_replica(m); return DDP_OK;
    case JOB_BROADCAST_ALL: return broadcast(d, m, true, err);
    case JOB_BROADCAST_BUFFERS: return broadcast(d, m, false, err);
    case JOB_MICRO: return micro_part(d, &m->trainer, &r->loss_sum, err);
    case JOB_EVAL: return eval_part(d, &m->trainer, &r->sums, err);
    default:
        return ddp_hash_floats(&m->trainer, m->trainer.mem.params, m->session.model.layout->extra_offset, &r->hash,
                               err);
    }
}

/* ---- on the trainer's thread ----------------------------------------------------------------------------------- */
static ddp_status open_all(ddp_trainer *t, ddp_replicas *d, ddp_err *err)
{
    d->replicas = ddp_alloc(t->s->devices.replicas * sizeof(*d->replicas), err);
    if (d->replicas == NULL) return err->status;
    DDP_TRY(local_device_group_open(t, "replica", work, d, err));
    d->group = t->local.group;
    DDP_TRY(local_device_group_run(d->group, DDP_JOB_OPEN, "opening the devices", err));
    if (t->s->launch.purpose != DDP_TO_TRAIN) return DDP_OK;
    for (uint32_t i = 0; i < d->group->count; i++)
        DDP_TRY(ddp_shards_among(d->group->all, d->group->count, i, d->group->count, err));
    return DDP_OK;
}

ddp_status ddp_replicas_open(ddp_trainer *t, ddp_err *err)
{
    ddp_replicas *d;

    if (t->s->devices.replicas == 1) return DDP_OK;
    t->local.replicas = d = ddp_alloc(sizeof(*d), err);
    if (d == NULL) return err->status;
    d->t = t;
    return open_all(t, d, err);
}

bool ddp_replicas_close(ddp_trainer *t)
{
    if (t->local.replicas == NULL) return true;
    if (!local_device_group_close(t)) return false;
    for (uint32_t i = 0; t->local.replicas->replicas != NULL && i < t->s->devices.replicas; i++)
        ddp_sums_close(&t->local.replicas->replicas[i].sums);
    free(t->local.replicas->replicas);
    free(t->local.replicas);
    t->local.replicas = NULL;
    return true;
}

ddp_status ddp_replicas_broadcast_all(ddp_trainer *t, ddp_err *err)
{
    return t->local.replicas == NULL
               ? DDP_OK
               : local_device_group_run(t->local.replicas->group, JOB_BROADCAST_ALL, "parameters of the replicas", err);
}

ddp_status ddp_replicas_broadcast_buffers(ddp_trainer *t, ddp_err *err)
{
    if (t->local.replicas == NULL || t->mem.buffers == NULL) return DDP_OK;
    return local_device_group_run(t->local.replicas->group, JOB_BROADCAST_BUFFERS, "buffers of the replicas", err);
}

static ddp_status micro_step(ddp_trainer *t, const ddp_batch *batch, uint64_t micro, ddp_step *step, ddp_err *err)
{
    ddp_replicas *d = t->local.replicas;
    ddp_status own;

    d->batch = *batch;
    d->loader = t->loaders[0];
    d->micro = micro;
    d->last = micro + 1 == step->micros;
    for (uint32_t i = 1; i < d->group->count; i++) {
        d->replicas[i].loss_sum = 0.0;
        d->group->all[i]->progress.micro_steps = t->progress.micro_steps; /* of which the random numbers are made */
    }
    local_device_group_start(d->group, JOB_MICRO);
    own = micro_part(d, t, &step->loss_sum, err);
    DDP_TRY(local_device_group_finish(d->group, "a micro-step", own, err));
    for (uint32_t i = 1; i < d->group->count; i++) step->loss_sum += d->replicas[i].loss_sum;
    return DDP_OK;
}

ddp_status ddp_replicas_micro_steps(ddp_trainer *t, ddp_step *step, ddp_err *err)
{
    for (uint64_t micro = 0; micro < step->micros; micro++) {
        ddp_batch batch;

        DDP_TRY(local_batch_next(t, step, 0, &batch, err));
        DDP_TRY(micro_step(t, &batch, micro, step, err));
    }
    return DDP_OK;
}

ddp_status ddp_replicas_not_finite(ddp_trainer *t, ddp_err *err)
{
    char own[256];
    bool shared;

    /* first those that have it outside their shard, which may hold what another has brought */
    for (uint32_t k = 0; k < 2 * t->local.group->count; k++) {
        uint32_t i = k % t->local.group->count;

        DDP_TRY(ddp_not_finite_scan(t, t->local.group->all[i], &shared, err));
        ddp_reducer_culprit(t->reduce.reducer, own, sizeof(own));
        if (own[0] == '\0' || (shared && k == i)) continue;
        return ddp_not_finite(t, i == 0 ? NULL : t->local.group->devices[i].name, err);
    }
    return ddp_not_finite(t, NULL, err);
}

ddp_status ddp_replicas_eval_batch(ddp_trainer *t, const ddp_batch *batch, ddp_sums *sums, ddp_err *err)
{
    ddp_replicas *d = t->local.replicas;
    ddp_status own;

    d->batch = *batch;
    d->loader = t->eval_loaders[0];
    for (uint32_t i = 1; i < d->group->count; i++) {
        if (d->replicas[i].sums.metrics == NULL) DDP_TRY(ddp_sums_open(t->s, &d->replicas[i].sums, err));
        ddp_sums_clear(&d->replicas[i].sums);
    }
    local_device_group_start(d->group, JOB_EVAL);
    own = eval_part(d, t, sums, err);
    DDP_TRY(local_device_group_finish(d->group, "a batch of the evaluation", own, err));
    for (uint32_t i = 1; i < d->group->count; i++) ddp_sums_add(sums, &d->replicas[i].sums);
    return DDP_OK;
}

static ddp_status diverged(const ddp_replicas *d, uint32_t index, ddp_err *err)
{
    const ddp_session *s = d->t->s;
    const char *name = "the padding between parameters";
    char what[320];
    ddp_fault fault = {
        .exit_code = DDP_EXIT_DIVERGED,
        .step = d->t->progress.step,
        .rolls_back = s->config->train->replicas_differ == DDP_REPLICAS_DIFFER_ROLLBACK,
        .what = what,
        .advice =
            "; look for faulty memory or a faulty device. No checkpoint has the difference: resume from the newest"};

    for (uint32_t p = s->model.param_count; p-- > 0;) {
        uint64_t own, other, at = s->model.layout->offset[p], count = s->model.params[p].elements;

        DDP_TRY(ddp_hash_floats(d->t, d->t->mem.params + at, count, &own, err));
        DDP_TRY(ddp_hash_floats(d->t, d->group->all[index]->mem.params + at, count, &other, err));
        if (own != other) name = s->model.params[p].name;
    }
    (void)snprintf(what, sizeof(what), "the parameters of replica %u on %s are not those of replica 0, first in %.128s",
                   index, d->group->devices[index].name, name);
    return train_fault(d->t, &fault, err);
}

ddp_status ddp_replicas_check(ddp_trainer *t, ddp_err *err)
{
    ddp_replicas *d = t->local.replicas;
    uint64_t own = 0;
    ddp_status st;

    local_device_group_start(d->group, JOB_HASH);
    st = ddp_hash_floats(t, t->mem.params, t->s->model.layout->extra_offset, &own, err);
    DDP_TRY(local_device_group_finish(d->group, "comparison of the replicas", st, err));
    for (uint32_t i = 1; i < d->group->count; i++)
        if (d->replicas[i].hash != own) return diverged(d, i, err);
    return DDP_OK;
}
