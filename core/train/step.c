/* train/step.c -- one update: accumulate x (forward, backward), buckets reduced in index order, optimiser a bucket at a time.
 * Nothing here allocates, opens or compares strings; a program met for the first time is compiled before its run. */
#include "train/pipelined_step.h"
#include "train/reduce/clip.h"
#include "train/local/device_group.h"
#include "train/local/replicas.h"
#include "train/local/pipeline.h"
#include "train/measure/profile.h"
#include "train/schedule.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void ddp_trainer_optimizer(ddp_trainer *t)
{
    static const uint32_t algorithms[] = {[DDP_ALGORITHM_SGD] = DDP_OPTIM_SGD,
                                          [DDP_ALGORITHM_ADAM] = DDP_OPTIM_ADAM,
                                          [DDP_ALGORITHM_ADAMW] = DDP_OPTIM_ADAMW};
    const struct ddp_optimizer_config *o = t->s->config->optimizer;
    const double *betas = o->betas.items;

    t->optim = (ddp_optim){.struct_size = sizeof(t->optim),
                           .algorithm = algorithms[o->algorithm],
                           .nesterov = (uint32_t)o->nesterov,
                           .lr = o->lr,
                           .momentum = o->momentum,
                           .beta1 = betas[0],
                           .beta2 = betas[1],
                           .eps = o->eps,
                           .weight_decay = o->weight_decay,
                           .grad_scale = 1.0};
}

static ddp_status run_kernels(ddp_trainer *t, const ddp_variant *v, const ddp_run *run, uint32_t first, uint32_t last,
                              ddp_err *err)
{
    int64_t from = ddp_trace_begin(t->trace);

    DDP_TRY(t->profile != NULL ? ddp_profile_run(t->profile, v, run, first, last, err)
                               : t->s->device_ops->run(v->instance, run, first, last, err));
    if (last > first) ddp_trace_end(t->trace, DDP_TRACK_TRAINER, "compute", -1, 0, from);
    return DDP_OK;
}

static ddp_status launch_bucket(ddp_trainer *t, uint32_t b, ddp_err *err)
{
    if (t->profile != NULL) return ddp_profile_launch(t->profile, t->reducer, b, t->step + 1, err);
    return ddp_reducer_launch(t->reducer, b, t->step + 1, err);
}

/* Kernels of one micro-step. On the last one, a bucket goes out as soon as its gradients are final (overlap), or all go out
 * at the end. */
static ddp_status run_program(ddp_trainer *t, ddp_variant *v, const ddp_run *run, bool last, ddp_err *err)
{
    uint32_t at = 0, kernels = v->lowered->kernel_count;

    for (uint32_t b = 0; last && t->overlap && b + 1 < t->s->layout->bucket_count; b++) {
        uint32_t ready = v->planned->bucket_ready[b];

        DDP_TRY(run_kernels(t, v, run, at, ready, err));
        at = ready;
        DDP_TRY(launch_bucket(t, b, err));
    }
    return run_kernels(t, v, run, at, kernels, err);
}

static ddp_status read_loss(ddp_trainer *t, const ddp_variant *v, float *loss, ddp_err *err)
{
    const char *at = (const char *)t->arena + v->planned->plan.value_offset[v->program->loss];

    DDP_TRY(t->s->device_ops->sync(t->s->device, err));
    return t->s->device_ops->copy(t->s->device, loss, at, sizeof(*loss), DDP_COPY_TO_HOST, err);
}

ddp_status ddp_trainer_micro_step(ddp_trainer *t, const ddp_batch *batch, uint64_t micro, bool last, double *loss_sum,
                                  ddp_err *err)
{
    ddp_variant *v = ddp_session_variant(t->s, batch->count, true);
    ddp_run run = {.struct_size = sizeof(run),
                   .flags = micro > 0 ? DDP_RUN_GRAD_ADD : 0,
                   .inputs = batch->buffers,
                   .random = ddp_trainer_random(t)};
    float loss;

    if (v == NULL)
        return ddp_fail(err, DDP_ERR_INTERNAL, "no program for a batch of %" PRId64 " samples", batch->count);
    DDP_TRY(ddp_variant_ready(t->s, v, &t->bind, err));
    if (run_program(t, v, &run, last, err) != DDP_OK || read_loss(t, v, &loss, err) != DDP_OK)
        return ddp_run_failed(err);
    *loss_sum += (double)loss * (double)batch->count;
    ddp_trainer_buffers_count(t);
    return DDP_OK;
}

int ddp_trainer_asked_to_stop(const ddp_trainer *t)
{
    int sig = t->s->launch.stop == NULL ? 0 : atomic_load(&t->s->launch.stop->signal);

    return sig != 0 ? sig : ddp_group_stop_requested(t->group);
}

/* The buckets that have not gone out yet: the last one, or all of them without overlap. */
static ddp_status launch_rest(ddp_trainer *t, ddp_err *err)
{
    uint32_t buckets = t->s->layout->bucket_count;

    for (uint32_t b = t->overlap ? buckets - 1 : 0; b < buckets; b++) DDP_TRY(launch_bucket(t, b, err));
    return DDP_OK;
}

static ddp_status update_bucket(ddp_trainer *t, uint32_t b, ddp_err *err)
{
    const ddp_layout *l = t->s->layout;
    uint64_t first = l->buckets[b].first;
    ddp_optim_slice slice = {.param = t->params + first,
                             .grad = t->grads + first,
                             .state1 = t->state1 == NULL ? NULL : t->state1 + first,
                             .state2 = t->state2 == NULL ? NULL : t->state2 + first,
                             .count = ddp_bucket_elements(l, b)};
    int64_t from = ddp_trace_begin(t->trace);

    if (t->shards != NULL)
        DDP_TRY(ddp_shards_update_bucket(t, b, err));
    else if (t->profile != NULL)
        DDP_TRY(ddp_profile_update(t->profile, &t->optim, &slice, err));
    else
        DDP_TRY(t->s->device_ops->optim_step(t->s->device, &t->optim, &slice, err));
    ddp_trace_end(t->trace, DDP_TRACK_TRAINER, "update", b, 0, from);
    return DDP_OK;
}

/* All ranks come here in the same step; the lowest rank with a culprit is the cause that everyone names. */
ddp_status ddp_trainer_not_finite(ddp_trainer *t, const char *device, ddp_err *err)
{
    int32_t world = ddp_group_world(t->group), guilty = 0;
    const void *texts[world];
    size_t lengths[world];
    size_t used;
    char own[256], name[64], msg[512];
    void *block = NULL;

    ddp_reducer_culprit(t->reducer, own, sizeof(own));
    used = strlen(own);
    if (device != NULL) (void)snprintf(own + used, sizeof(own) - used, " on %s", device);
    (void)snprintf(name, sizeof(name), "not finite at step %" PRIu64, t->step + 1);
    DDP_TRY_AS(DDP_EXIT_NONFINITE, err,
               ddp_group_gather(t->group, name, own, strlen(own), &block, texts, lengths,
                                t->s->config->group->step_timeout_ms, err));
    while (guilty < world && lengths[guilty] == 0) guilty++;
    if (guilty == world) /* each is finite and their sum is not */
        (void)snprintf(msg, sizeof(msg),
                       "step %" PRIu64 ": the mean of the ranks' gradients is not finite; lower [optimizer] lr",
                       t->step + 1);
    else
        (void)snprintf(msg, sizeof(msg),
                       "step %" PRIu64
                       ": %.*s of rank %d is not finite; lower [optimizer] lr, or look at the data of that step",
                       t->step + 1, (int)lengths[guilty], (const char *)texts[guilty], guilty);
    free(block);
    ddp_group_abort(t->group, DDP_EXIT_NONFINITE, msg);
    (void)ddp_fail(err, DDP_ERR_DATA, "%s", msg);
    return ddp_fail_as(err, DDP_EXIT_NONFINITE);
}

/* Of a bucket that has been reduced: this rank has all of it, or its own share. */
static ddp_status measure_bucket(ddp_trainer *t, uint32_t b, ddp_err *err)
{
    uint32_t rank = (uint32_t)ddp_group_rank(t->group);

    if (t->shards != NULL) return ddp_clip_measure(t, b, rank, rank + 1, err);
    return ddp_clip_measure(t, b, 0, (uint32_t)ddp_group_world(t->group), err);
}

static ddp_status gather_squares(ddp_trainer *t, double *wait_ms, ddp_err *err)
{
    int64_t from = ddp_now_ns();

    DDP_TRY_AS(DDP_EXIT_PEER, err, ddp_clip_gather(t, err));
    *wait_ms += (double)(ddp_now_ns() - from) * 1e-6;
    return DDP_OK;
}

/* The norm of all gradients is needed before the first of them can be used. */
static ddp_status clip_and_update(ddp_trainer *t, double *wait_ms, ddp_err *err)
{
    uint32_t buckets = t->s->layout->bucket_count;
    bool finite;

    if (t->shards != NULL) DDP_TRY(gather_squares(t, wait_ms, err));
    DDP_TRY(ddp_clip_apply(t, &finite, err));
    if (!finite) return ddp_trainer_not_finite(t, NULL, err);
    for (uint32_t b = 0; b < buckets; b++) DDP_TRY(update_bucket(t, b, err));
    return DDP_OK;
}

static ddp_status take_bucket(ddp_trainer *t, uint32_t b, double *wait_ms, ddp_reduced *reduced, ddp_err *err)
{
    bool last = b + 1 == t->s->layout->bucket_count;

    if (last) { /* it brings the verdict on all: a run that ends leaves it unapplied */
        ddp_reducer_result(t->reducer, reduced);
        if (!reduced->finite) return ddp_trainer_not_finite(t, NULL, err);
    }
    DDP_TRY(ddp_reducer_take(t->reducer, b, err));
    if (t->clip == NULL) return update_bucket(t, b, err);
    DDP_TRY(measure_bucket(t, b, err));
    return last ? clip_and_update(t, wait_ms, err) : DDP_OK;
}

static ddp_status reduce_and_update(ddp_trainer *t, double *wait_ms, ddp_reduced *reduced, ddp_err *err)
{
    int64_t waited = 0, from;

    for (uint32_t b = 0; b < t->s->layout->bucket_count; b++) {
        int64_t traced = ddp_trace_begin(t->trace);

        from = ddp_now_ns();
        DDP_TRY_AS(DDP_EXIT_PEER, err, ddp_reducer_wait(t->reducer, b, err));
        waited += ddp_now_ns() - from;
        ddp_trace_end(t->trace, DDP_TRACK_TRAINER, "wait", b, 0, traced);
        DDP_TRY(take_bucket(t, b, wait_ms, reduced, err));
    }
    from = ddp_now_ns();
    if (t->shards != NULL) DDP_TRY_AS(DDP_EXIT_PEER, err, ddp_shards_wait(t, err));
    *wait_ms += (double)(waited + ddp_now_ns() - from) * 1e-6;
    return DDP_OK;
}

/* In the gradients of this rank, or of one of its replicas. */
static ddp_status find_not_finite(ddp_trainer *t, ddp_err *err)
{
    uint32_t arenas = t->dp != NULL ? t->crew->count : 1;
    char own[256];

    for (uint32_t i = 0; i < arenas; i++) {
        DDP_TRY(ddp_reducer_scan(t->reducer, i == 0 ? t->grads : t->crew->all[i]->grads, err));
        ddp_reducer_culprit(t->reducer, own, sizeof(own));
        if (own[0] != '\0') return ddp_trainer_not_finite(t, i == 0 ? NULL : t->crew->members[i].name, err);
    }
    return ddp_trainer_not_finite(t, NULL, err);
}

/* All ranks meet and have each other's scalars; adds the time to *wait_ms. */
static ddp_status exchange(ddp_trainer *t, bool finite, double *wait_ms, ddp_reduced *reduced, ddp_err *err)
{
    int64_t from = ddp_now_ns(), traced = ddp_trace_begin(t->trace);

    DDP_TRY_AS(DDP_EXIT_PEER, err, ddp_reducer_exchange(t->reducer, finite, err));
    *wait_ms += (double)(ddp_now_ns() - from) * 1e-6;
    ddp_trace_end(t->trace, DDP_TRACK_TRAINER, "wait", -1, 0, traced);
    ddp_reducer_result(t->reducer, reduced);
    if (reduced->finite) return DDP_OK;
    return find_not_finite(t, err);
}

static ddp_status run_shards(ddp_trainer *t, bool *finite, ddp_err *err)
{
    int64_t from = ddp_trace_begin(t->trace);
    ddp_status st;

    ddp_device_group_begin_update(t);
    st = t->profile != NULL ? ddp_profile_shards(t->profile, t, finite, err) : ddp_shards_update(t, finite, err);
    DDP_TRY(ddp_device_group_end_update(t, st, finite, err));
    ddp_trace_end(t->trace, DDP_TRACK_TRAINER, "update", -1, 0, from);
    return DDP_OK;
}

/* Ranks read and write each other's memory. */
static ddp_status update_direct(ddp_trainer *t, double *wait_ms, ddp_reduced *reduced, ddp_err *err)
{
    bool finite = true;

    DDP_TRY(exchange(t, true, wait_ms, reduced, err));
    if (t->clip != NULL) {
        ddp_device_group_begin_mean(t);
        DDP_TRY(ddp_device_group_end_mean(t, ddp_shards_mean(t, err), err));
        DDP_TRY(gather_squares(t, wait_ms, err));
        DDP_TRY(ddp_clip_apply(t, &finite, err));
    }
    if (finite) DDP_TRY(run_shards(t, &finite, err));
    return exchange(t, finite, wait_ms, reduced, err);
}

static ddp_status update(ddp_trainer *t, uint64_t micros, double loss_sum, double samples, double *wait_ms,
                         ddp_reduced *reduced, ddp_err *err)
{
    t->optim.step = t->step + 1;
    t->optim.lr = ddp_schedule_lr(t->s->config->optimizer, t->step, t->lr_steps);
    t->optim.grad_scale = 1.0 / (double)micros;
    ddp_reducer_set_own(t->reducer, loss_sum, samples, ddp_trainer_asked_to_stop(t));
    if (ddp_shards_direct(t)) return update_direct(t, wait_ms, reduced, err);
    DDP_TRY(launch_rest(t, err));
    return reduce_and_update(t, wait_ms, reduced, err);
}

void ddp_trainer_record(ddp_trainer *t, const ddp_step_record *r)
{
    char warning[512];

    if (r->step == t->start_step + 1) t->first_step_s = (double)(ddp_now_ns() - t->s->launch.began_ns) * 1e-9;
    ddp_group_report_step(t->group, (int64_t)r->step, r->data_ms, r->step_ms - r->data_ms - r->wait_ms, r->wait_ms);
    if (t->observer == NULL) return;
    ddp_observe_step(t->observer, r);
    if (ddp_group_take_warning(t->group, warning, sizeof(warning)))
        ddp_observe_event(t->observer, "warning", warning, NULL);
}

static void record_step(ddp_trainer *t, int64_t from, double data_ms, double wait_ms, double samples)
{
    double step_s = (double)(ddp_now_ns() - from) * 1e-9;
    ddp_step_record r = {.step = t->step,
                         .epoch = t->epoch + 1,
                         .loss = t->loss,
                         .lr = t->optim.lr,
                         .grad_norm = t->clip == NULL ? NAN : t->clip->norm,
                         .step_ms = step_s * 1e3,
                         .data_ms = data_ms,
                         .wait_ms = wait_ms,
                         .samples_per_s = samples * ddp_group_world(t->group) / step_s};

    ddp_trainer_record(t, &r);
}

/* Forward and backward of `micros` micro-batches. */
static ddp_status run_micros(ddp_trainer *t, uint64_t micros, double *loss_sum, double *samples, int64_t *data_ns,
                             ddp_err *err)
{
    if (t->pipeline != NULL) return ddp_pipeline_run(t, micros, loss_sum, samples, data_ns, err);
    for (uint64_t micro = 0; micro < micros; micro++) {
        ddp_batch batch;
        int64_t waiting = ddp_now_ns();

        DDP_TRY_AS(DDP_EXIT_DATA, err, ddp_loader_next(t->loader, &batch, err));
        *data_ns += ddp_now_ns() - waiting;
        DDP_TRY((t->dp != NULL ? ddp_replicas_micro_step : ddp_trainer_micro_step)(t, &batch, micro,
                                                                                   micro + 1 == micros, loss_sum, err));
        *samples += (double)batch.count;
    }
    return DDP_OK;
}

ddp_status ddp_trainer_step(ddp_trainer *t, ddp_err *err)
{
    uint64_t left = t->s->batches_per_epoch - t->cursor, micros = (uint64_t)t->s->batches.accumulate;
    int64_t from = ddp_now_ns(), data_ns = 0;
    double loss_sum = 0.0, samples = 0.0, wait_ms = 0.0;
    ddp_reduced reduced = {0};

    if (t->ahead != NULL) return ddp_pipelined_step(t, err);
    micros = DDP_MIN_OF(micros, left);
    if (micros == 0) return DDP_IN_PROGRESS;
    ddp_trace_step(t->trace, t->step + 1);
    DDP_TRY(run_micros(t, micros, &loss_sum, &samples, &data_ns, err));
    DDP_TRY(update(t, micros, loss_sum, samples, &wait_ms, &reduced, err));
    t->loss = reduced.loss;
    t->stopping = reduced.stop;
    t->step++;
    t->cursor += micros;
    record_step(t, from, (double)data_ns * 1e-6, wait_ms, samples);
    if (t->profile != NULL) ddp_profile_step(t->profile, from, data_ns, micros, wait_ms);
    return DDP_OK;
}
