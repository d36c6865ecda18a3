/* train/ahead.c -- see ahead.h. Nothing here allocates in a step. */
#include "train/ahead.h"
#include "train/memory.h"
#include "train/schedule.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

enum { SLOTS = 2 };

typedef struct slot {
    ddp_step_record record; /* its loss and times come when it is finished */
    double samples;
    int64_t began_ns;
    float *loss;          /* page-locked, as what follows */
    uint64_t *not_finite; /* by bucket */
    bool pending;
} slot;

struct ddp_ahead {
    slot slots[SLOTS];    /* by step */
    uint32_t first_event; /* of one for each slot */
    int64_t finished_ns;  /* when the newest step was */
};

/* Nothing between two steps but the device, and no look at each of its kernels. */
static bool possible(const ddp_trainer *t)
{
    const ddp_session *s = t->s;

    return ddp_is_far(s) && s->launch.purpose == DDP_TO_TRAIN && s->launch.world == 1 && ddp_session_devices(s) == 1 &&
           ddp_shards_direct(t) && t->clip == NULL && t->trace == NULL && !s->launch.profile &&
           s->batches.accumulate == 1;
}

ddp_status ddp_ahead_open(ddp_trainer *t, ddp_err *err)
{
    uint32_t buckets = t->s->layout->bucket_count;
    ddp_ahead *a;

    if (!possible(t)) return DDP_OK;
    t->ahead = a = ddp_alloc(sizeof(*a), err);
    if (a == NULL) return err->status;
    a->first_event = 2 * (buckets + 1); /* behind those of the lane */
    DDP_TRY(t->s->device_ops->events(t->s->device, a->first_event + SLOTS, err));
    for (int i = 0; i < SLOTS; i++) {
        DDP_TRY(ddp_host_memory(t->s, sizeof(float), &a->slots[i].loss, err));
        DDP_TRY(ddp_host_memory(t->s, buckets * sizeof(uint64_t), &a->slots[i].not_finite, err));
    }
    return DDP_OK;
}

void ddp_ahead_close(ddp_trainer *t)
{
    if (t->ahead == NULL) return;
    for (int i = 0; i < SLOTS; i++) {
        ddp_host_free(t->s, t->ahead->slots[i].loss);
        ddp_host_free(t->s, t->ahead->slots[i].not_finite);
    }
    free(t->ahead);
    t->ahead = NULL;
}

/* ---- giving out --------------------------------------------------------------------------------------------------------------- */
static ddp_status launch(ddp_trainer *t, slot *s, uint32_t event, const ddp_batch *batch, ddp_err *err)
{
    const ddp_device_ops *ops = t->s->device_ops;
    ddp_variant *v = ddp_session_variant(t->s, batch->count, true);
    ddp_run run = {.struct_size = sizeof(run), .inputs = batch->buffers, .random = ddp_trainer_random(t)};
    const char *loss = t->arena;

    if (v == NULL)
        return ddp_fail(err, DDP_ERR_INTERNAL, "no program for a batch of %" PRId64 " samples", batch->count);
    DDP_TRY(ddp_variant_ready(t->s, v, &t->bind, err));
    t->s->phase = DDP_EXIT_INTERNAL;
    DDP_TRY(ops->run(v->instance, &run, 0, v->lowered->kernel_count, err));
    loss += v->planned->plan.value_offset[v->program->loss];
    DDP_TRY(ops->copy_async(t->s->device, DDP_QUEUE_COMPUTE, s->loss, loss, sizeof(*s->loss), DDP_COPY_TO_HOST, err));
    DDP_TRY(ddp_shards_launch(t, s->not_finite, err));
    return ops->event_record(t->s->device, DDP_QUEUE_COMPUTE, event, err);
}

static ddp_status bad_data(ddp_trainer *t, ddp_err *err)
{
    if (err->status == DDP_ERR_DATA) t->s->phase = DDP_EXIT_DATA; /* a label out of range */
    return err->status;
}

static ddp_status give_out(ddp_trainer *t, slot *s, uint32_t event, ddp_err *err)
{
    int64_t from = ddp_now_ns();
    ddp_batch batch;

    t->s->phase = DDP_EXIT_DATA;
    DDP_TRY(ddp_loader_next(t->loader, &batch, err));
    t->optim.step = t->step + 1;
    t->optim.lr = ddp_schedule_lr(t->s->config->optimizer, t->step, t->lr_steps);
    t->optim.grad_scale = 1.0;
    *s = (slot){.record = {.step = t->step + 1,
                           .epoch = t->epoch + 1,
                           .lr = t->optim.lr,
                           .grad_norm = NAN,
                           .data_ms = (double)(ddp_now_ns() - from) * 1e-6},
                .samples = (double)batch.count,
                .began_ns = from,
                .loss = s->loss,
                .not_finite = s->not_finite};
    if (launch(t, s, event, &batch, err) != DDP_OK) return bad_data(t, err);
    s->pending = true;
    ddp_trainer_buffers_count(t);
    t->step++;
    t->cursor++;
    return DDP_OK;
}

/* ---- finishing ---------------------------------------------------------------------------------------------------------------- */
/* Tells the reducer what the step has brought; *finite: of the gradients. */
static void report(ddp_trainer *t, const slot *s, bool *finite)
{
    const ddp_layout *l = t->s->layout;

    ddp_reducer_set_own(t->reducer, (double)*s->loss * s->samples, s->samples, ddp_trainer_asked_to_stop(t));
    *finite = true;
    for (uint32_t b = 0; b < l->bucket_count; b++) {
        if (ddp_shards_finite(t, b, s->not_finite)) continue;
        ddp_reducer_found(t->reducer, b, l->buckets[b].first + s->not_finite[b]);
        *finite = false;
    }
}

static void record(ddp_trainer *t, slot *s)
{
    int64_t now = ddp_now_ns(), from = DDP_MAX_OF(t->ahead->finished_ns, s->began_ns);
    double step_s = (double)(now - from) * 1e-9;

    t->ahead->finished_ns = now;
    s->record.loss = t->loss;
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

ddp_status ddp_ahead_step(ddp_trainer *t, ddp_err *err)
{
    uint32_t i = (uint32_t)(t->step % SLOTS);

    if (t->cursor >= t->s->batches_per_epoch) return DDP_IN_PROGRESS;
    DDP_TRY(give_out(t, &t->ahead->slots[i], t->ahead->first_event + i, err));
    return finish_step(t, i + 1, err);
}

ddp_status ddp_ahead_finish(ddp_trainer *t, ddp_err *err)
{
    if (t->ahead == NULL) return DDP_OK;
    for (uint64_t i = 0; i < SLOTS; i++) DDP_TRY(finish_step(t, t->step + i, err)); /* the older one first */
    if (t->s->device_ops->sync(t->s->device, err) != DDP_OK) return bad_data(t, err);
    return DDP_OK;
}
