/* train/dp.c -- see dp.h. A replica is a trainer without group, loader and observer, over a copy of the session that has another
 * device: its thread runs the same functions that a rank does. */
#include "train/dp.h"
#include "train/pin.h"
#include "train/team.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { JOB_OPEN, JOB_CLOSE, JOB_SHARE_ALL, JOB_SHARE_BUFFERS, JOB_MICRO, JOB_EVAL, JOB_MEAN, JOB_UPDATE, JOB_HASH };

typedef struct replica {
    ddp_session session; /* the trainer's, with a device and variants of this replica */
    ddp_trainer trainer;
    char name[96]; /* "cpu:1" */
    /* by its thread, for the trainer's after the wait */
    double loss_sum;
    ddp_sums sums;
    bool finite;
    uint64_t hash;
} replica;

struct ddp_dp {
    ddp_trainer *t; /* replica 0 */
    ddp_team *team;
    uint32_t count;
    replica *replicas;    /* count of them; that of the trainer is not used */
    ddp_trainer **all;    /* by replica */
    ddp_batch batch;      /* of the job in hand */
    ddp_loader *loader;   /* that it comes from */
    uint64_t micro;       /* of the step */
    bool last, abandoned; /* abandoned: a thread has not come back */
};

/* ---- on each replica's thread ------------------------------------------------------------------------------------------------- */
static ddp_status bind_threads(ddp_session *s, ddp_err *err)
{
    const int32_t *list;

    (void)ddp_processors(&list);
    if (!s->pin.pinned || s->device_ops->pin(s->device, list + s->pin.first, err) == DDP_OK) return DDP_OK;
    s->pin.pinned = false;
    if (s->config->train->pin == DDP_PIN_YES) return ddp_fail_context(err, "[train] pin = yes");
    *err = (ddp_err){.status = DDP_OK};
    return DDP_OK;
}

static ddp_status alloc_floats(const ddp_session *s, uint64_t bytes, float **out, ddp_err *err)
{
    void *p;

    DDP_TRY(s->device_ops->alloc(s->device, bytes, &p, err));
    *out = p;
    return DDP_OK;
}

static ddp_status open_replica(replica *r, ddp_err *err)
{
    ddp_session *s = &r->session;
    ddp_trainer *t = &r->trainer;
    uint64_t bytes = s->layout->elements * sizeof(float);

    DDP_TRY(ddp_session_open_device(s, err));
    DDP_TRY(bind_threads(s, err)); /* before memory is touched */
    DDP_TRY(ddp_variants_plan(s, err));
    s->phase = DDP_EXIT_INTERNAL;
    DDP_TRY(alloc_floats(s, bytes, &t->params, err));
    if (s->launch.purpose == DDP_TO_TRAIN) DDP_TRY(alloc_floats(s, bytes, &t->grads, err));
    DDP_TRY(s->device_ops->alloc(s->device, s->arena_bytes, &t->arena, err));
    DDP_TRY(ddp_trainer_buffers_open(t, err));
    t->bind = (ddp_bind){.struct_size = sizeof(t->bind),
                         .arena = t->arena,
                         .params = t->params,
                         .grads = t->grads,
                         .buffers = t->buffers};
    return DDP_OK;
}

static void close_replica(replica *r)
{
    ddp_session *s = &r->session;
    void *own[] = {r->trainer.params, r->trainer.grads, r->trainer.buffers, r->trainer.arena};

    ddp_variants_free(s);
    for (size_t i = 0; i < DDP_COUNT(own); i++)
        if (own[i] != NULL) s->device_ops->free(s->device, own[i]);
    free(r->trainer.counts);
    ddp_session_close_device(s);
}

static ddp_status share(const ddp_dp *d, replica *r, bool params, ddp_err *err)
{
    const ddp_session *s = &r->session;

    if (params)
        DDP_TRY(s->device_ops->copy(s->device, r->trainer.params, d->t->params, s->layout->elements * sizeof(float),
                                    DDP_COPY_ON_DEVICE, err));
    if (r->trainer.buffers != NULL)
        DDP_TRY(s->device_ops->copy(s->device, r->trainer.buffers, d->t->buffers, s->buffer_elements * sizeof(float),
                                    DDP_COPY_ON_DEVICE, err));
    return s->device_ops->sync(s->device, err);
}

static void scale(float *x, uint64_t count, double by)
{
    for (uint64_t i = 0; i < count; i++) x[i] = (float)((double)x[i] * by);
}

/* A part's gradient is the mean over its own samples, and the update takes the mean of the parts: where those are not of one size,
 * each counts by its samples. That is so in the last batch of an epoch at most, whose gradients may be added to others. */
static ddp_status micro_part(const ddp_dp *d, ddp_trainer *t, double *loss_sum, ddp_err *err)
{
    ddp_batch part = ddp_batch_part(d->loader, &d->batch, t->s->replica);
    uint64_t elements = t->s->layout->extra_offset;
    bool even = d->batch.count % d->count == 0;
    double weight = (double)part.count * d->count / (double)d->batch.count;

    if (part.count == 0) {
        if (d->micro == 0) memset(t->grads, 0, elements * sizeof(*t->grads));
        return DDP_OK;
    }
    if (!even && d->micro > 0) scale(t->grads, elements, 1.0 / weight);
    DDP_TRY(ddp_trainer_micro_step(t, &part, d->micro, d->last, loss_sum, err));
    if (!even) scale(t->grads, elements, weight);
    return DDP_OK;
}

static ddp_status eval_part(const ddp_dp *d, ddp_trainer *t, ddp_sums *sums, ddp_err *err)
{
    ddp_batch part = ddp_batch_part(d->loader, &d->batch, t->s->replica);

    return part.count > 0 ? ddp_trainer_eval_batch(t, &part, sums, err) : DDP_OK;
}

static ddp_status do_job(ddp_dp *d, replica *r, uint32_t job, ddp_err *err)
{
    const ddp_session *s = &r->session;

    switch (job) {
    case JOB_OPEN: return open_replica(r, err);
    case JOB_CLOSE: close_replica(r); return DDP_OK;
    case JOB_SHARE_ALL: return share(d, r, true, err);
    case JOB_SHARE_BUFFERS: return share(d, r, false, err);
    case JOB_MICRO: return micro_part(d, &r->trainer, &r->loss_sum, err);
    case JOB_EVAL: return eval_part(d, &r->trainer, &r->sums, err);
    case JOB_MEAN: return ddp_shards_mean(&r->trainer, err);
    case JOB_UPDATE: return ddp_shards_update(&r->trainer, &r->finite, err);
    default: r->hash = ddp_hash64(r->trainer.params, s->layout->extra_offset * sizeof(float), 0); return DDP_OK;
    }
}

static ddp_status work(void *ctx, uint32_t member, uint32_t job, ddp_err *err)
{
    ddp_dp *d = ctx;
    replica *r = &d->replicas[member];

    return do_job(d, r, job, err) == DDP_OK ? DDP_OK : ddp_fail_context(err, "replica %u on %s", member, r->name);
}

/* ---- on the trainer's thread --------------------------------------------------------------------------------------------------- */
/* `own`: how replica 0's part went, whose error `err` holds then. All have come back when this returns, but for a time-out. */
static ddp_status finish(ddp_dp *d, const char *name, ddp_status own, ddp_err *err)
{
    ddp_err others = {0};
    uint32_t culprit = 0;
    ddp_status st = ddp_team_wait(d->team, name, d->t->s->config->group->step_timeout_ms, &culprit, &others);

    d->abandoned = st == DDP_ERR_TIMEOUT && culprit == 0;
    if (own != DDP_OK || st == DDP_OK) return own;
    d->t->s->phase = d->abandoned ? DDP_EXIT_TIMEOUT : d->replicas[culprit].session.phase;
    *err = others;
    return st;
}

static ddp_status run_job(ddp_dp *d, uint32_t job, const char *name, ddp_err *err)
{
    ddp_team_start(d->team, job);
    return finish(d, name, DDP_OK, err);
}

static void prepare(ddp_dp *d, uint32_t index)
{
    replica *r = &d->replicas[index];
    ddp_session *s = &r->session;

    *s = *d->t->s;
    s->device = NULL;
    s->variant_count = 0;
    memset(s->variants, 0, sizeof(s->variants));
    s->replica = index;
    s->pin.first += index * s->threads;
    (void)snprintf(r->name, sizeof(r->name), "%s:%u", s->device_name, s->ordinals[index]);
    s->device_text = r->name;
    r->trainer = (ddp_trainer){.s = s, .state1 = d->t->state1, .state2 = d->t->state2, .clip = d->t->clip};
    d->all[index] = &r->trainer;
}

static ddp_status open_all(ddp_dp *d, ddp_err *err)
{
    ddp_session *s = d->t->s;
    ddp_team_params p = {.name = "ddp-replica", .what = "replica", .first = 1, .work = work, .ctx = d};
    ddp_status st;

    d->replicas = ddp_alloc(d->count * sizeof(*d->replicas), err);
    d->all = ddp_alloc(d->count * sizeof(ddp_trainer *), err);
    if (d->replicas == NULL || d->all == NULL) return err->status;
    d->all[0] = d->t;
    for (uint32_t i = 1; i < d->count; i++) prepare(d, i);
    p.count = d->count - 1;
    DDP_TRY(ddp_team_open(&p, &d->team, err));
    st = run_job(d, JOB_OPEN, "opening the devices", err);
    s->device_plugin->live += d->count - 1;
    if (st != DDP_OK || s->launch.purpose != DDP_TO_TRAIN) return st;
    for (uint32_t i = 0; i < d->count; i++) DDP_TRY(ddp_shards_among(d->all, d->count, i, err));
    return DDP_OK;
}

ddp_status ddp_dp_open(ddp_trainer *t, ddp_err *err)
{
    ddp_dp *d;

    if (t->s->replicas == 1) return DDP_OK;
    t->s->phase = DDP_EXIT_PLUGIN;
    if ((t->s->device_ops->caps & DDP_DEVICE_CAP_PEERS) == 0)
        return ddp_fail(err, DDP_ERR_UNSUPPORTED,
                        "device \"%s\" cannot update the parameters of several replicas together "
                        "(DDP_DEVICE_CAP_PEERS), which [train] parallel = dp needs; write parallel = ddp",
                        t->s->device_name);
    t->s->phase = DDP_EXIT_INTERNAL;
    d = ddp_alloc(sizeof(*d), err);
    if (d == NULL) return err->status;
    t->dp = d;
    d->t = t;
    d->count = t->s->replicas;
    return open_all(d, err);
}

bool ddp_dp_close(ddp_trainer *t)
{
    ddp_dp *d = t->dp;
    ddp_err err = {0};

    if (d == NULL) return true;
    if (d->abandoned) return false;
    if (d->team != NULL) {
        (void)run_job(d, JOB_CLOSE, "closing the devices", &err);
        if (!ddp_team_close(d->team)) return false;
        t->s->device_plugin->live -= d->count - 1;
    }
    for (uint32_t i = 1; d->all != NULL && i < d->count && d->all[i] != NULL; i++) ddp_shards_close(d->all[i]);
    free(d->all);
    free(d->replicas);
    free(d);
    t->dp = NULL;
    return true;
}

ddp_status ddp_dp_share_all(ddp_trainer *t, ddp_err *err)
{
    return t->dp == NULL ? DDP_OK : run_job(t->dp, JOB_SHARE_ALL, "parameters of the replicas", err);
}

ddp_status ddp_dp_share_buffers(ddp_trainer *t, ddp_err *err)
{
    if (t->dp == NULL || t->buffers == NULL) return DDP_OK;
    return run_job(t->dp, JOB_SHARE_BUFFERS, "buffers of the replicas", err);
}

ddp_status ddp_dp_micro_step(ddp_trainer *t, const ddp_batch *batch, uint64_t micro, bool last, double *loss_sum,
                             ddp_err *err)
{
    ddp_dp *d = t->dp;
    ddp_status own;

    d->batch = *batch;
    d->loader = t->loader;
    d->micro = micro;
    d->last = last;
    for (uint32_t i = 1; i < d->count; i++) {
        d->replicas[i].loss_sum = 0.0;
        d->all[i]->micro_steps = t->micro_steps; /* of which the random numbers are made */
    }
    ddp_team_start(d->team, JOB_MICRO);
    own = micro_part(d, t, loss_sum, err);
    DDP_TRY(finish(d, "a micro-step", own, err));
    for (uint32_t i = 1; i < d->count; i++) *loss_sum += d->replicas[i].loss_sum;
    return DDP_OK;
}

ddp_status ddp_dp_eval_batch(ddp_trainer *t, const ddp_batch *batch, ddp_sums *sums, ddp_err *err)
{
    ddp_dp *d = t->dp;
    ddp_status own;

    d->batch = *batch;
    d->loader = t->eval_loader;
    for (uint32_t i = 1; i < d->count; i++) d->replicas[i].sums = (ddp_sums){0};
    ddp_team_start(d->team, JOB_EVAL);
    own = eval_part(d, t, sums, err);
    DDP_TRY(finish(d, "a batch of the evaluation", own, err));
    for (uint32_t i = 1; i < d->count; i++) {
        sums->loss += d->replicas[i].sums.loss;
        sums->correct += d->replicas[i].sums.correct;
        sums->samples += d->replicas[i].sums.samples;
    }
    return DDP_OK;
}

void ddp_dp_begin_mean(ddp_trainer *t)
{
    if (t->dp == NULL) return;
    ddp_team_start(t->dp->team, JOB_MEAN);
}

ddp_status ddp_dp_end_mean(ddp_trainer *t, ddp_status own, ddp_err *err)
{
    return t->dp == NULL ? own : finish(t->dp, "the mean gradients", own, err);
}

void ddp_dp_begin_update(ddp_trainer *t)
{
    if (t->dp == NULL) return;
    for (uint32_t i = 1; i < t->dp->count; i++) t->dp->all[i]->optim = t->optim;
    ddp_team_start(t->dp->team, JOB_UPDATE);
}

ddp_status ddp_dp_end_update(ddp_trainer *t, ddp_status own, bool *finite, ddp_err *err)
{
    if (t->dp == NULL) return own;
    DDP_TRY(finish(t->dp, "an update", own, err));
    for (uint32_t i = 1; i < t->dp->count; i++) *finite = *finite && t->dp->replicas[i].finite;
    return DDP_OK;
}

static ddp_status diverged(const ddp_dp *d, uint32_t index, ddp_err *err)
{
    const ddp_session *s = d->t->s;
    const char *name = "the padding between parameters";

    for (uint32_t p = s->param_count; p-- > 0;)
        if (memcmp(d->t->params + s->layout->offset[p], d->all[index]->params + s->layout->offset[p],
                   s->params[p].elements * sizeof(float)) != 0)
            name = s->params[p].name;
    d->t->s->phase = DDP_EXIT_DIVERGED;
    return ddp_fail(err, DDP_ERR_DATA,
                    "step %" PRIu64 ": the parameters of replica %u on %s are not those of replica 0, first in %s; "
                    "replicas must be equal bit for bit. Look for faulty memory or a faulty device, and resume from an "
                    "earlier checkpoint",
                    d->t->step, index, d->replicas[index].name, name);
}

ddp_status ddp_dp_check(ddp_trainer *t, ddp_err *err)
{
    ddp_dp *d = t->dp;
    uint64_t own;

    if (d == NULL) return DDP_OK;
    ddp_team_start(d->team, JOB_HASH);
    own = ddp_hash64(t->params, t->s->layout->extra_offset * sizeof(float), 0);
    DDP_TRY(finish(d, "comparison of the replicas", DDP_OK, err));
    for (uint32_t i = 1; i < d->count; i++)
        if (d->replicas[i].hash != own) return diverged(d, i, err);
    return DDP_OK;
}
