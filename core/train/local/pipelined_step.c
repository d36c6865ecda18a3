/* train/local/pipelined_step.c -- see pipelined_step.h. Nothing here allocates in a step. */
#include "train/local/pipelined_step.h"
#include "session/metrics.h"
#include "train/ema.h"
#include "train/local/batch.h"
#include "train/measure/audit.h"
#include "train/reduce/clip.h"
#include "train/reduce/not_finite.h"
#include "train/reduce/shards.h"
#include "train/state/buffer_sync.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

enum { SLOTS = 2 };

typedef struct slot {
    ddp_step_record record; /* its loss and times come when it is finished */
    ddp_step step;
    double *factors;      /* by micro-step, of its loss */
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

/* The device updates all slices with the same settings. */
static bool has_one_group(const ddp_trainer *t)
{
    const ddp_param_group plain = {1.0, t->s->config->optimizer->weight_decay};

    return t->reduce.spans->count == 1 && ddp_same_group(&t->reduce.spans->items[0].group, &plain);
}

/* Nothing between two steps but the device, and no look at each of its kernels. The device updates before the host
 * knows whether all is finite, so that no update could be left out. */
bool ddp_pipelined_possible(const ddp_trainer *t)
{
    const ddp_session *s = t->s;

    return ddp_device_has_memory(&s->device) && s->device.ops->step != NULL && s->launch.purpose == DDP_TO_TRAIN &&
           s->shares.count == 1 && ddp_session_devices(s) == 1 && ddp_shards_direct(t) && t->trace == NULL &&
           !s->launch.profile && has_one_group(t) && t->gradients.noise == NULL && t->gradients.histograms == NULL &&
           !s->train.mean.by_sample && s->config->train->non_finite != DDP_NON_FINITE_SKIP;
}

static ddp_status open_slot(ddp_trainer *t, slot *s, ddp_err *err)
{
    size_t micros = (size_t)t->s->batches.accumulate;

    s->factors = ddp_alloc(micros * sizeof(*s->factors), err);
    if (s->factors == NULL) return err->status;
    DDP_TRY(ddp_device_host_alloc(&t->s->device, micros * sizeof(*s->losses), &s->losses, err));
    DDP_TRY(ddp_device_host_alloc(&t->s->device, t->s->model.layout->bucket_count * sizeof(*s->not_finite),
                                  &s->not_finite, err));
    return ddp_device_host_alloc(&t->s->device, sizeof(*s->norm), &s->norm, err);
}

static void fill_slices(const ddp_trainer *t, ddp_pipelined *a)
{
    for (uint32_t b = 0; b < t->s->model.layout->bucket_count; b++) {
        uint64_t first, count = ddp_shard_of(t->s->model.layout, b, 0, 1, &first);
        ddp_optim_slice *before = a->slice_count > 0 && t->reduce.clip == NULL ? &a->slices[a->slice_count - 1] : NULL;

        if (before != NULL && before->param + before->count == t->mem.params + first)
            before->count += count;
        else
            a->slices[a->slice_count++] = ddp_trainer_slice(t, first, first, count);
    }
}

ddp_status ddp_pipelined_open(ddp_trainer *t, ddp_err *err)
{
    uint32_t buckets = t->s->model.layout->bucket_count;
    ddp_pipelined *a;

    t->local.pipelined = a = ddp_alloc(sizeof(*a), err);
    if (a == NULL) return err->status;
    a->slices = ddp_alloc(buckets * sizeof(*a->slices), err);
    if (a->slices == NULL) return err->status;
    fill_slices(t, a);
    for (int i = 0; i < SLOTS; i++) DDP_TRY(open_slot(t, &a->slots[i], err));
    return ddp_device_events(&t->s->device, SLOTS + DDP_PIPELINED_BATCHES, &a->first_event, err);
}

void ddp_pipelined_close(ddp_trainer *t)
{
    if (t->local.pipelined == NULL) return;
    for (int i = 0; i < SLOTS; i++) {
        free(t->local.pipelined->slots[i].factors);
        ddp_device_host_free(&t->s->device, t->local.pipelined->slots[i].losses);
        ddp_device_host_free(&t->s->device, t->local.pipelined->slots[i].not_finite);
        ddp_device_host_free(&t->s->device, t->local.pipelined->slots[i].norm);
    }
    free(t->local.pipelined->slices);
    free(t->local.pipelined);
    t->local.pipelined = NULL;
}

/* ---- giving out ------------------------------------------------------------------------------------------------ */
/* The last micro-step, and the update. */
static ddp_status launch_step(ddp_trainer *t, slot *s, const ddp_variant *v, const ddp_run *run, const float *loss,
                              ddp_err *err)
{
    ddp_update u = {.struct_size = sizeof(u),
                    .slice_count = t->local.pipelined->slice_count,
                    .optim = &t->optim,
                    .slice_size = sizeof(*t->local.pipelined->slices),
                    .slices = t->local.pipelined->slices,
                    .not_finite = s->not_finite,
                    .loss = loss,
                    .loss_out = &s->losses[s->step.micros - 1],
                    .max_norm = t->reduce.clip != NULL ? t->reduce.clip->max_norm : 0.0,
                    .norm = t->reduce.clip != NULL ? s->norm : NULL};

    /* a step in which nothing counts is no step, which finish() finds */
    if (t->s->train.mean.by_token)
        t->optim.grad_scale = s->step.counted > 0.0 ? ddp_trainer_token_scale(t, s->step.counted) : 0.0;
    for (uint32_t i = 0; i < u.slice_count; i++) s->not_finite[i] = u.slices[i].count;
    return t->s->device.ops->step(v->instance, run, &u, err);
}

static ddp_status launch(ddp_trainer *t, slot *s, uint64_t micro, const ddp_batch *batch, ddp_err *err)
{
    ddp_run run = {.struct_size = sizeof(run),
                   .flags = micro > 0 ? DDP_RUN_GRAD_ADD : 0,
                   .inputs = batch->buffers,
                   .random = ddp_trainer_random(t, 0)};
    const char *arena = t->mem.activations;
    const void *loss;
    ddp_variant *v;

    DDP_TRY(local_batch_program(t, batch->count, true, &v, err));
    loss = arena + v->planned->plan.value_offset[v->program->loss];
    if (micro + 1 == s->step.micros) return launch_step(t, s, v, &run, loss, err);
    DDP_TRY(ddp_device_run(&t->s->device, v->instance, &run, 0, v->lowered->kernel_count, err));
    return ddp_device_copy_async(&t->s->device, DDP_QUEUE_COMPUTE, &s->losses[micro], loss, sizeof(*s->losses),
                                 DDP_COPY_TO_HOST, err);
}

static ddp_status launch_micros(ddp_trainer *t, slot *s, ddp_err *err)
{
    const ddp_device_handle *d = &t->s->device;

    for (uint64_t micro = 0; micro < s->step.micros; micro++) {
        uint32_t event =
            t->local.pipelined->first_event + SLOTS + (uint32_t)(t->local.pipelined->batches % DDP_PIPELINED_BATCHES);
        ddp_batch batch;

        /* the device is done with the batch whose memory the next one takes */
        if (t->local.pipelined->batches >= DDP_PIPELINED_BATCHES) DDP_TRY(ddp_device_event_sync(d, event, err));
        DDP_TRY(local_batch_next(t, &s->step, 0, &batch, err));
        s->factors[micro] = ddp_loss_factor(&t->s->train.mean, batch.count);
        if (launch(t, s, micro, &batch, err) != DDP_OK) return ddp_run_failed(err);
        DDP_TRY(ddp_device_event_record(d, DDP_QUEUE_COMPUTE, event, err));
        t->local.pipelined->batches++;
        ddp_trainer_buffers_count(t);
    }
    return DDP_OK;
}

static ddp_status launch_all(ddp_trainer *t, slot *s, uint32_t event, uint64_t micros, ddp_err *err)
{
    ddp_trainer_begin_update(t, micros);
    s->record = (ddp_step_record){.step = t->progress.step + 1, .epoch = t->progress.epoch + 1, .lr = t->optim.lr};
    s->step = (ddp_step){.micros = micros, .began_ns = ddp_now_ns()};
    DDP_TRY(launch_micros(t, s, err));
    DDP_TRY(train_ema_update(t, err));
    DDP_TRY(ddp_device_event_record(&t->s->device, DDP_QUEUE_COMPUTE, event, err));
    s->pending = true;
    t->progress.step++;
    t->progress.cursor += micros;
    return DDP_OK;
}

/* ---- finishing ------------------------------------------------------------------------------------------------- */
/* Element `at` of the arena is not finite. */
static void report_not_finite(ddp_trainer *t, uint64_t at)
{
    const ddp_layout *l = t->s->model.layout;
    uint32_t b = 0;

    while (b + 1 < l->bucket_count && at >= l->buckets[b + 1].first) b++;
    ddp_reducer_found(t->reduce.reducer, b, at);
}

/* Reports to the reducer what the step has brought; *finite: of the gradients. */
static void report(ddp_trainer *t, const slot *s, bool *finite)
{
    const ddp_pipelined *a = t->local.pipelined;
    double loss = 0.0;

    for (uint64_t m = 0; m < s->step.micros; m++) loss += (double)s->losses[m] * s->factors[m];
    ddp_reducer_set_own(t->reduce.reducer, loss, s->step.counted, ddp_trainer_asked_to_stop(t));
    *finite = true;
    for (uint32_t i = 0; i < a->slice_count; i++) {
        if (s->not_finite[i] >= a->slices[i].count) continue;
        report_not_finite(t, (uint64_t)((const float *)a->slices[i].grad - t->mem.grads) + s->not_finite[i]);
        *finite = false;
    }
}

static void record(ddp_trainer *t, slot *s)
{
    int64_t now = ddp_now_ns(), from = DDP_MAX_OF(t->local.pipelined->finished_ns, s->step.began_ns);
    double step_s = (double)(now - from) * 1e-9;

    t->local.pipelined->finished_ns = now;
    s->record.loss = t->result.loss;
    s->record.data_ms = (double)s->step.data_ns * 1e-6;
    s->record.grad_norm = t->reduce.clip == NULL ? NAN : *s->norm;
    s->record.step_ms = step_s * 1e3;
    s->record.samples_per_s = s->step.samples / step_s;
    ddp_trainer_record(t, &s->record, 0.0);
}

static ddp_status finish(ddp_trainer *t, slot *s, uint32_t event, ddp_err *err)
{
    ddp_reduced reduced = {0};
    bool finite;

    if (!s->pending) return DDP_OK;
    s->pending = false;
    DDP_TRY(ddp_device_event_sync(&t->s->device, event, err));
    report(t, s, &finite);
    DDP_TRY(ddp_reducer_exchange(t->reduce.reducer, finite, err));
    ddp_reducer_result(t->reduce.reducer, &reduced);
    if (!reduced.finite) {
        t->progress.step = s->record.step - 1;
        return ddp_not_finite(t, NULL, err);
    }
    t->result.loss = reduced.loss;
    t->progress.stopping = reduced.stop;
    s->step.reduced = reduced;
    record(t, s);
    return ddp_trainer_audit_step(t, &s->step, s->record.step, s->record.epoch, err);
}

static ddp_status finish_step(ddp_trainer *t, uint64_t step, ddp_err *err)
{
    uint32_t i = (uint32_t)(step % SLOTS);

    return finish(t, &t->local.pipelined->slots[i], t->local.pipelined->first_event + i, err);
}

ddp_status ddp_pipelined_step(ddp_trainer *t, uint64_t micros, ddp_err *err)
{
    uint32_t i = (uint32_t)(t->progress.step % SLOTS);

    DDP_TRY(launch_all(t, &t->local.pipelined->slots[i], t->local.pipelined->first_event + i, micros, err));
    return finish_step(t, i + 1, err);
}

ddp_status ddp_pipelined_finish(ddp_trainer *t, ddp_err *err)
{
    for (uint64_t i = 0; i < SLOTS; i++) DDP_TRY(finish_step(t, t->progress.step + i, err)); /* the older one first */
    if (ddp_device_sync(&t->s->device, err) != DDP_OK) return ddp_run_failed(err);
    return DDP_OK;
}
