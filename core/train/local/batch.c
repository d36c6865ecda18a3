/* train/local/batch.c -- see batch.h. */
#include "train/local/batch.h"
#include "session/metrics.h"
#include "session/variants.h"
#include "train/measure/noise.h"
#include "train/measure/profile.h"
#include "train/state/buffer_sync.h"
#include "train/state/memory.h"
#include <inttypes.h>

ddp_status local_batch_program(ddp_trainer *t, int64_t count, bool training, ddp_variant **out, ddp_err *err)
{
    *out = ddp_session_variant(t->s, count, training);
    if (*out == NULL) return ddp_fail(err, DDP_ERR_INTERNAL, "no program for a batch of %" PRId64 " samples", count);
    return ddp_variant_ready(t->s, *out, &t->mem.bind, err);
}

/* The parts of a batch lie apart. */
static double counted(const ddp_trainer *t, uint32_t share, const ddp_batch *batch)
{
    double sum = 0.0;

    if (t->s->devices.replicas == 1) return ddp_loss_counted(&t->s->train.mean, batch);
    for (uint32_t i = 0; i < t->s->devices.replicas; i++) {
        ddp_batch part = ddp_batch_part(t->loaders[share], batch, i);

        sum += ddp_loss_counted(&t->s->train.mean, &part);
    }
    return sum;
}

ddp_status local_batch_next(ddp_trainer *t, ddp_step *step, uint32_t share, ddp_batch *out, ddp_err *err)
{
    ddp_taken *taken = &step->taken[share];
    int64_t from = ddp_now_ns();

    DDP_TRY_AS(DDP_EXIT_DATA, err, ddp_loader_next(t->loaders[share], out, err));
    step->data_ns += ddp_now_ns() - from;
    step->samples += (double)out->count;
    step->counted += counted(t, share, out);
    if (taken->count == 0) taken->ids = out->indices; /* those of an epoch's batches lie one after the other */
    taken->count += (uint64_t)out->count;
    taken->position = out->position + (uint64_t)out->count;
    return DDP_OK;
}

/* ---- training -------------------------------------------------------------------------------------------------- */
static ddp_status run_kernels(ddp_trainer *t, const ddp_variant *v, const ddp_run *run, uint32_t first, uint32_t last,
                              ddp_err *err)
{
    int64_t from = ddp_trace_begin(t->trace);

    DDP_TRY(ddp_profile_run(t->profile, t->s, v, run, first, last, err));
    if (last > first) ddp_trace_end(t->trace, DDP_TRACK_TRAINER, "compute", -1, 0, from);
    return DDP_OK;
}

/* The forward pass, as far as parameters of the step before are late; *at: the kernel that comes next. */
static ddp_status run_to_late(ddp_trainer *t, ddp_variant *v, const ddp_run *run, uint32_t *at, ddp_err *err)
{
    while (t->reduce.late_end > 0) {
        uint32_t b = t->reduce.late_end - 1, used = DDP_MAX_OF(v->planned->bucket_used[b], *at);

        DDP_TRY(run_kernels(t, v, run, *at, used, err));
        *at = used;
        DDP_TRY(t->way.late_bucket(t, b, err));
    }
    return DDP_OK;
}

/* Kernels of one micro-step. On the last one, the early buckets may go as soon as their gradients are final. */
static ddp_status run_program(ddp_trainer *t, ddp_variant *v, const ddp_run *run, bool last, ddp_err *err)
{
    uint32_t at = 0, kernels = v->lowered->kernel_count;

    DDP_TRY(run_to_late(t, v, run, &at, err));
    for (uint32_t b = 0; last && b < t->reduce.early_buckets; b++) {
        uint32_t ready = v->planned->bucket_ready[b];

        DDP_TRY(run_kernels(t, v, run, at, ready, err));
        at = ready;
        DDP_TRY(t->way.bucket_ready(t, b, err));
    }
    return run_kernels(t, v, run, at, kernels, err);
}

static ddp_status read_value(ddp_trainer *t, const ddp_variant *v, int32_t value, uint64_t floats, float *out,
                             ddp_err *err)
{
    const char *at = (const char *)t->mem.activations + v->planned->plan.value_offset[value];

    return ddp_device_copy(&t->s->device, out, at, floats * sizeof(*out), DDP_COPY_TO_HOST, err);
}

/* This rank has no sample of the micro-batch; its gradients are 0, or stay. */
static ddp_status train_on_nothing(ddp_trainer *t, bool adds, bool last, ddp_err *err)
{
    while (t->reduce.late_end > 0) DDP_TRY(t->way.late_bucket(t, t->reduce.late_end - 1, err));
    if (!adds) DDP_TRY(ddp_scale_floats(t, t->mem.grads, t->s->model.layout->extra_offset, 0.0, err));
    for (uint32_t b = 0; last && b < t->reduce.early_buckets; b++) DDP_TRY(t->way.bucket_ready(t, b, err));
    ddp_trainer_buffers_count(t);
    return DDP_OK;
}

/* The gradients of a batch are a mean over its samples, and where batches differ each counts by its samples. `before`:
 * it adds to those that are there, which have been weighed already. */
static ddp_status weigh(ddp_trainer *t, const ddp_batch *batch, bool before, ddp_err *err)
{
    double weight = (double)batch->count / t->s->train.mean.divisor;

    if (!t->s->train.mean.by_sample || weight == 1.0) return DDP_OK;
    return ddp_scale_floats(t, t->mem.grads, t->s->model.layout->extra_offset, before ? 1.0 / weight : weight, err);
}

ddp_status local_batch_train(ddp_trainer *t, uint32_t share, const ddp_batch *batch, bool adds, bool last,
                             double *loss_sum, ddp_err *err)
{
    ddp_run run = {.struct_size = sizeof(run),
                   .flags = adds ? DDP_RUN_GRAD_ADD : 0,
                   .inputs = batch->buffers,
                   .random = ddp_trainer_random(t, share)};
    ddp_variant *v;
    float loss;

    if (batch->count == 0) return train_on_nothing(t, adds, last, err);
    if (adds) DDP_TRY(weigh(t, batch, true, err));
    DDP_TRY(local_batch_program(t, batch->count, true, &v, err));
    if (run_program(t, v, &run, last, err) != DDP_OK || ddp_device_sync(&t->s->device, err) != DDP_OK ||
        read_value(t, v, v->program->loss, 1, &loss, err) != DDP_OK)
        return ddp_run_failed(err);
    *loss_sum += (double)loss * ddp_loss_factor(&t->s->train.mean, batch->count);
    ddp_trainer_buffers_count(t);
    return weigh(t, batch, false, err);
}

/* The rank's first share comes last. What another one leaves in running statistics goes: they are of one share. */
ddp_status ddp_batch_micro_steps(ddp_trainer *t, ddp_step *step, ddp_err *err)
{
    uint32_t shares = t->s->shares.own;

    for (uint32_t share = shares; share-- > 0;) {
        for (uint64_t micro = 0; micro < step->micros; micro++) {
            bool adds = micro > 0 || share + 1 < shares, last = share == 0 && micro + 1 == step->micros;
            ddp_batch batch;

            DDP_TRY(ddp_trainer_still_runs(t, err));
            DDP_TRY(local_batch_next(t, step, share, &batch, err));
            DDP_TRY(local_batch_train(t, share, &batch, adds, last, &step->loss_sum, err));
            if (!adds) DDP_TRY(measure_noise_first(t, &batch, err));
        }
        if (share == 0) break;
        t->progress.micro_steps -= step->micros;
        DDP_TRY(ddp_trainer_buffers_undo(t, step->micros, err));
    }
    return DDP_OK;
}

/* ---- evaluation ------------------------------------------------------------------------------------------------ */
static ddp_status read_metrics(ddp_trainer *t, const ddp_variant *v, ddp_sums *sums, ddp_err *err)
{
    const ddp_program *p = v->program;
    double *to = sums->metrics;
    ddp_metric_info m;

    for (uint32_t i = 0; i < p->metric_count; i++) {
        ddp_metric_of(p, i, &m);
        DDP_TRY(read_value(t, v, m.value, m.floats, sums->batch, err));
        ddp_metric_add(&m, sums->batch, to);
        to += m.sums;
    }
    return DDP_OK;
}

ddp_status ddp_batch_evaluate(ddp_trainer *t, const ddp_batch *batch, ddp_sums *sums, ddp_err *err)
{
    ddp_run run = {.struct_size = sizeof(run), .inputs = batch->buffers};
    ddp_variant *v;
    float loss;

    DDP_TRY(local_batch_program(t, batch->count, false, &v, err));
    if (ddp_device_run(&t->s->device, v->instance, &run, 0, v->lowered->kernel_count, err) != DDP_OK ||
        ddp_device_sync(&t->s->device, err) != DDP_OK)
        return ddp_run_failed(err);
    DDP_TRY(read_value(t, v, v->program->loss, 1, &loss, err));
    DDP_TRY(read_metrics(t, v, sums, err));
    sums->loss += (double)loss * ddp_loss_factor(&t->s->eval.mean, batch->count);
    sums->counted += ddp_loss_counted(&t->s->eval.mean, batch);
    sums->samples += (double)batch->count;
    return DDP_OK;
}
