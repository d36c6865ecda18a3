/* train/pipelined_step.c -- see ahead.h. Nothing here allocates in a step. */
#include "train/pipelined_step.h"
#include "train/reduce/clip.h"
#include "train/state/memory.h"
#include "train/schedule.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

enum { SLOTS = 2 };

typedef struct slot {
    ddp_step_record record; /* its loss and times come when it is finished */
    double samples;
    int64_t began_ns;
    uint64_t micros;
    int64_t *counts;      /* by micro-step, samples */
    float *losses;        /* by micro-step; page-locked, as what follows */
    uint64_t *not_finite; /* by slice */
    double *norm;
    bool pending;
} slot;

struct ddp_pipelined {
    slot slots[SLOTS];       /* by step */
    ddp_optim_slice *slices; /* of all parameters; with clipping one for each bucket, by which the norm is added up */
    uint32_t slice_count;
    uint32_t first_event; /* of one for each slot; then one for each batch that may be on its way */
    uint64_t batches;     /* given out */
    int64_t finished_ns;  /* when the newest step was */
};

/* Nothing between two steps but the device, and no look at each of its kernels. */
static bool possible(const ddp_trainer *t)
{
    const ddp_session *s = t->s;

    return ddp_uses_device_memory(s) && s->device_ops->step != NULL && s->launch.purpose == DDP_TO_TRAIN &&
           s->launch.world == 1 && ddp_session_devices(s) == 1 && ddp_shards_direct(t) && t->trace == NULL &&
           !s->launch.profile;
}

static ddp_status open_slot(ddp_trainer *t, slot *s, ddp_err *err)
{
    size_t micros = (size_t)t->s->batches.accumulate;

    s->counts = ddp_alloc(micros * sizeof(*s->counts), err);
    if (s->counts == NULL) return err->status;
    DDP_TRY(ddp_host_memory(t->s, micros * sizeof(*s->losses), &s->losses, err));
    DDP_TRY(ddp_host_memory(t->s, t->s->layout->bucket_count * sizeof(*s->not_finite), &s->not_finite, err));
    return ddp_host_memory(t->s, sizeof(*s->norm), &s->norm, err);
}

static void fill_slices(const ddp_trainer *t, ddp_pipelined *a)
{
    for (uint32_t b = 0; b < t->s->layout->bucket_count; b++) {
        uint64_t first, count = ddp_shard_of(t->s->layout, b, 0, 1, &first);
        ddp_optim_slice *before = a->slice_count > 0 && t->clip == NULL ? &a->slices[a->slice_count - 1] : NULL;

        if (before != NULL && before->param + before->count == t->params + first)
            before->count += count;
        else
            a->slices[a->slice_count++] = (ddp_optim_slice){.param = t->params + first,
                                                            .grad = t->grads + first,
                                                            .state1 = t->state1 == NULL ? NULL : t->state1 + first,
                                                            .state2 = t->state2 == NULL ? NULL : t->state2 + first,
                                                            .count = count};
    }
}

ddp_status ddp_pipelined_open(ddp_trainer *t, ddp_err *err)
{
    uint32_t buckets = t->s->layout->bucket_count;
    ddp_pipelined *a;

    if (!possible(t)) return DDP_OK;
    t->ahead = a = ddp_alloc(sizeof(*a), err);
    if (a == NULL) return err->status;
    a->slices = ddp_alloc(buckets * sizeof(*a->slices), err);
    if (a->slices == NULL) return err->status;
    fill_slices(t, a);
    a->first_event = 2 * (buckets + 1); /* behind those of the lane */
    for (int i = 0; i < SLOTS; i++) DDP_TRY(open_slot(t, &a->slots[i], err));
    return t->s->device_ops->events(t->s->device, a->first_event + SLOTS + DDP_PIPELINED_BATCHES, err);
}

void ddp_pipelined_close(ddp_trainer *t)
{
    if (t->ahead == NULL) return;
    for (int i = 0; i < SLOTS; i++) {
        free(t->ahead->slots[i].counts);
        ddp_host_free(t->s, t->ahead->slots[i].losses);
        ddp_host_free(t->s, t->ahead->slots[i].not_finite);
        ddp_host_free(t->s, t->ahead->slots[i].norm);
    }
    free(t->ahead->slices);
    free(t->ahead);
    t->ahead = NULL;
}

/* ---- giving out --------------------------------------------------------------------------------------------------------------- */
/* The last micro-step, and the update. */
static ddp_status launch_step(ddp_trainer *t, slot *s, const ddp_variant *v, const ddp_run *run, const float *loss,
                              ddp_err *err)
{
    ddp_update u = {.struct_size = sizeof(u),
                    .slice_count = t->ahead->slice_count,
                    .optim = &t->optim,
                    .slices = t->ahead->slices,
                    .not_finite = s->not_finite,
                    .loss = loss,
                    .loss_out = &s->losses[s->micros - 1],
                    .max_norm = t->clip != NULL ? t->clip->max_norm : 0.0,
                    .norm = t->clip != NULL ? s->norm : NULL};

    for (uint32_t i = 0; i < u.slice_count; i++) s->not_finite[i] = u.slices[i].count;
    return t->s->device_ops->step(v->instance, run, &u, err);
}

static ddp_status launch(ddp_trainer *t, slot *s, uint64_t micro, const ddp_batch *batch, ddp_err *err)
{
    const ddp_device_ops *ops = t->s->device_ops;
    ddp_variant *v = ddp_session_variant(t->s, batch->count, true);
    ddp_run run = {.struct_size = sizeof(run),
                   .flags = micro > 0 ? DDP_RUN_GRAD_ADD : 0,
                   .inputs = batch->buffers,
                   .random = ddp_trainer_random(t)};
    const char *arena = t->arena;
    const void *loss;

    if (v == NULL)
        return ddp_fail(err, DDP_ERR_INTERNAL, "no program for a batch of %" PRId64 " samples", batch->count);
    DDP_TRY(ddp_variant_ready(t->s, v, &t->bind, err));
    loss = arena + v->planned->plan.value_offset[v->program->loss];
    if (micro + 1 == s->micros) return launch_step(t, s, v, &run, loss, err);
    DDP_TRY(ops->run(v->instance, &run, 0, v->lowered->kernel_count, err));
    return ops->copy_async(t->s->device, DDP_QUEUE_COMPUTE, &s->losses[micro], loss, sizeof(*s->losses),
                           DDP_COPY_TO_HOST, err);
}

/* The next batch, once the device is done with the one in its place. */
static ddp_status take_batch(ddp_trainer *t, slot *s, uint32_t event, ddp_batch *batch, ddp_err *err)
{
    int64_t from;

    if (t->ahead->batches >= DDP_PIPELINED_BATCHES) DDP_TRY(t->s->device_ops->event_sync(t->s->device, event, err));
    from = ddp_now_ns();
    DDP_TRY_AS(DDP_EXIT_DATA, err, ddp_loader_next(t->loader, batch, err));
    s->record.data_ms += (double)(ddp_now_ns() - from) * 1e-6;
    return DDP_OK;
}

static ddp_status give_out_micros(ddp_trainer *t, slot *s, ddp_err *err)
{
    for (uint64_t micro = 0; micro < s->micros; micro++) {
        uint32_t event = t->ahead->first_event + SLOTS + (uint32_t)(t->ahead->batches % DDP_PIPELINED_BATCHES);
        ddp_batch batch;

        DDP_TRY(take_batch(t, s, event, &batch, err));
        s->counts[micro] = batch.count;
        s->samples += (double)batch.count;
        if (launch(t, s, micro, &batch, err) != DDP_OK) return ddp_run_failed(err);
        DDP_TRY(t->s->device_ops->event_record(t->s->device, DDP_QUEUE_COMPUTE, event, err));
        t->ahead->batches++;
        ddp_trainer_buffers_count(t);
    }
    return DDP_OK;
}

static ddp_status give_out(ddp_trainer *t, slot *s, uint32_t event, uint64_t micros, ddp_err *err)
{
    t->optim.step = t->step + 1;
    t->optim.lr = ddp_schedule_lr(t->s->config->optimizer, t->step, t->lr_steps);
    t->optim.grad_scale = 1.0 / (double)micros;
    s->record = (ddp_step_record){.step = t->step + 1, .epoch = t->epoch + 1, .lr = t->optim.lr};
    s->micros = micros;
    s->samples = 0.0;
    s->began_ns = ddp_now_ns();
    DDP_TRY(give_out_micros(t, s, err));
    DDP_TRY(t->s->device_ops->event_record(t->s->device, DDP_QUEUE_COMPUTE, event, err));
    s->pending = true;
    t->step++;
    t->cursor += micros;
    return DDP_OK;
}

/* ---- finishing ---------------------------------------------------------------------------------------------------------------- */
/* Element `at` of the arena is not finite. */
static void tell_not_finite(ddp_trainer *t, uint64_t at)
{
    const ddp_layout *l = t->s->layout;
    uint32_t b = 0;

    while (b + 1 < l->bucket_count && at >= l->buckets[b + 1].first) b++;
    ddp_reducer_found(t->reducer, b, at);
}

/* Tells the reducer what the step has brought; *finite: of the gradients. */
static void report(ddp_trainer *t, const slot *s, bool *finite)
{
    const ddp_pipelined *a = t->ahead;
    double loss = 0.0;

    for (uint64_t m = 0; m < s->micros; m++) loss += (double)s->losses[m] * (double)s->counts[m];
    ddp_reducer_set_own(t->reducer, loss, s->samples, ddp_trainer_asked_to_stop(t));
    *finite = true;
    for (uint32_t i = 0; i < a->slice_count; i++) {
        if (s->not_finite[i] >= a->slices[i].count) continue;
        tell_not_finite(t, (uint64_t)(a->slices[i].grad - t->grads) + s->not_finite[i]);
        *finite = false;
    }
}

static void record(ddp_trainer *t, slot *s)
{
    int64_t now = ddp_now_ns(), from = DDP_MAX_OF(t->ahead->finished_ns, s->began_ns);
    double step_s = (double)(now - from) * 1e-9;

    t->ahead->finished_ns = now;
    s->record.loss = t->loss;
    s->record.grad_norm = t->clip == NULL ? NAN : *s->norm;
    s->record.step_ms = step_s * 1e3;
    s->record.samples_per_s = s->samples / step_s;
    ddp_trainer_record(t, &s->record);
}

static ddp_status finish(ddp_trainer *t, slot *s, uint32_t event, ddp_err *err)
{
    ddp_reduced reduced = {0};
    bool finite;

    if (!s->pending) return DDP_OK;
    s->pending = false;
    DDP_TRY(t->s->device_ops->event_sync(t->s->device, event, err));
    report(t, s, &finite);
    DDP_TRY(ddp_reducer_exchange(t->reducer, finite, err));
    ddp_reducer_result(t->reducer, &reduced);
    if (!reduced.finite) {
        t->step = s->record.step - 1;
        return ddp_trainer_not_finite(t, NULL, err);
    }
    t->loss = reduced.loss;
    t->stopping = reduced.stop;
    record(t, s);
    return DDP_OK;
}

static ddp_status finish_step(ddp_trainer *t, uint64_t step, ddp_err *err)
{
    uint32_t i = (uint32_t)(step % SLOTS);

    return finish(t, &t->ahead->slots[i], t->ahead->first_event + i, err);
}

ddp_status ddp_pipelined_step(ddp_trainer *t, ddp_err *err)
{
    uint64_t left = t->s->batches_per_epoch - t->cursor;
    uint32_t i = (uint32_t)(t->step % SLOTS);

    if (left == 0) return DDP_IN_PROGRESS;
    DDP_TRY(give_out(t, &t->ahead->slots[i], t->ahead->first_event + i,
                     DDP_MIN_OF((uint64_t)t->s->batches.accumulate, left), err));
    return finish_step(t, i + 1, err);
}

ddp_status ddp_pipelined_finish(ddp_trainer *t, ddp_err *err)
{
    if (t->ahead == NULL) return DDP_OK;
    for (uint64_t i = 0; i < SLOTS; i++) DDP_TRY(finish_step(t, t->step + i, err)); /* the older one first */
    if (t->s->device_ops->sync(t->s->device, err) != DDP_OK) return ddp_run_failed(err);
    return DDP_OK;
}
