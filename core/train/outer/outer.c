/* train/outer/outer.c -- see outer.h. Everything on the trainer's thread. */
#include "train/outer/outer.h"
#include "train/measure/histograms.h"
#include "train/measure/profile.h"
#include "train/reduce/buckets.h"
#include "train/reduce/clip.h"
#include "train/reduce/not_finite.h"

ddp_status ddp_outer_open(ddp_trainer *t, ddp_err *err)
{
    size_t bytes = t->s->model.layout->elements * sizeof(float);

    if (t->s->config->ddp->local_steps == 0) return DDP_OK;
    DDP_TRY(ddp_device_alloc(&t->s->device, bytes, &t->mem.outer.params, err));
    if (t->s->config->ddp->outer_momentum == 0.0) return DDP_OK;
    return ddp_device_alloc(&t->s->device, bytes, &t->mem.outer.momentum, err);
}

ddp_optim ddp_outer_optimizer(const struct ddp_ddp_config *c)
{
    return (ddp_optim){.struct_size = sizeof(ddp_optim),
                       .algorithm = DDP_OPTIM_SGD,
                       .nesterov = c->outer_momentum > 0.0,
                       .step = 2, /* the momentum begins with zeros, which gives what a first step does */
                       .lr = ddp_config_outer_lr(c),
                       .momentum = c->outer_momentum,
                       .grad_scale = 1.0};
}

/* ---- a step of this rank ----------------------------------------------------------------------------------------- */
static ddp_status clip(ddp_trainer *t, bool *finite, ddp_err *err)
{
    *finite = true;
    if (t->reduce.clip == NULL) return DDP_OK;
    for (uint32_t b = 0; b < t->s->model.layout->bucket_count; b++) DDP_TRY(ddp_bucket_measure(t, b, err));
    return reduce_clip_apply(t, finite, err);
}

/* Sets step->reduced, of this rank alone. One that has nothing that counts leaves its update out. */
static ddp_status look(ddp_trainer *t, ddp_step *step, ddp_err *err)
{
    double own[DDP_EXTRA];
    bool foreign;

    DDP_TRY(ddp_reducer_scan(t->reduce.reducer, t->mem.grads, 0, 1, &foreign, err));
    ddp_reducer_own(t->reduce.reducer, own);
    ddp_trainer_reduced(t, step);
    step->reduced.stop = 0; /* which the others do not know */
    return step->reduced.finite || step->counted == 0.0 ? DDP_OK : ddp_not_finite_alone(t, err);
}

static ddp_status step_alone(ddp_trainer *t, ddp_step *step, ddp_err *err)
{
    int64_t from = ddp_now_ns(), traced = ddp_trace_begin(t->trace);
    bool finite;

    DDP_TRY(look(t, step, err));
    if (!step->reduced.finite) return DDP_OK;
    DDP_TRY(clip(t, &finite, err));
    if (!finite) return ddp_not_finite_alone(t, err);
    for (uint32_t b = 0; b < t->s->model.layout->bucket_count; b++) DDP_TRY(ddp_bucket_update(t, b, err));
    step->update_ns += ddp_now_ns() - from;
    ddp_trace_end(t->trace, DDP_TRACK_TRAINER, "update", -1, 0, traced);
    return measure_histograms_gradients(t, step, err);
}

/* ---- a step of all ranks ----------------------------------------------------------------------------------------- */
static ddp_status copy(ddp_trainer *t, float *to, const float *from, ddp_err *err)
{
    return ddp_device_copy(&t->s->device, to, from, t->s->model.layout->extra_offset * sizeof(float),
                           DDP_COPY_ON_DEVICE, err);
}

/* grads = outer parameters - parameters: plain SGD on the former, whose gradient are the latter. So each device does
 * it, with all of its threads. Then the parameters are those that the move starts from. */
static ddp_status subtract(ddp_trainer *t, ddp_err *err)
{
    const ddp_optim minus = {
        .struct_size = sizeof(minus), .algorithm = DDP_OPTIM_SGD, .step = 1, .lr = 1.0, .grad_scale = 1.0};
    const ddp_optim_slice all = {.param = t->mem.grads,
                                 .grad = t->mem.params,
                                 .count = t->s->model.layout->extra_offset,
                                 .grad_dtype = DDP_F32,
                                 .state_dtype = DDP_F32};

    DDP_TRY(copy(t, t->mem.grads, t->mem.outer.params, err));
    DDP_TRY(ddp_device_update(&t->s->device, &minus, &all, err));
    return copy(t, t->mem.params, t->mem.outer.params, err);
}

static ddp_status move_bucket(ddp_trainer *t, const ddp_optim *o, uint32_t b, ddp_err *err)
{
    uint64_t first = t->s->model.layout->buckets[b].first;
    const ddp_optim_slice slice = {.param = t->mem.params + first,
                                   .grad = t->mem.grads + first,
                                   .state1 = t->mem.outer.momentum == NULL ? NULL : t->mem.outer.momentum + first,
                                   .count = ddp_bucket_elements(t->s->model.layout, b),
                                   .grad_dtype = DDP_F32,
                                   .state_dtype = DDP_F32};

    return ddp_device_update(&t->s->device, o, &slice, err);
}

static ddp_status outer_step(ddp_trainer *t, ddp_step *step, ddp_err *err)
{
    const ddp_optim o = ddp_outer_optimizer(t->s->config->ddp);
    uint32_t buckets = t->s->model.layout->bucket_count;

    DDP_TRY(subtract(t, err));
    for (uint32_t b = 0; b < buckets; b++) DDP_TRY(ddp_bucket_send(t, b, err));
    for (uint32_t b = 0; b < buckets; b++) {
        int64_t from;

        DDP_TRY(reduce_bucket_wait(t, step, b, err));
        if (b + 1 == buckets) ddp_trainer_reduced(t, step);
        if (b + 1 == buckets && !step->reduced.finite) return ddp_not_finite(t, NULL, err);
        from = ddp_now_ns();
        DDP_TRY(reducer_take(t->reduce.reducer, b, err));
        DDP_TRY(move_bucket(t, &o, b, err));
        step->update_ns += ddp_now_ns() - from;
    }
    return DDP_OK;
}

/* ---- rounds ------------------------------------------------------------------------------------------------------ */
/* Whether the step in hand, number `made` of its round, is the last of it: from what all ranks have alike. */
static bool ends_round(const ddp_trainer *t, uint64_t made, uint64_t micros)
{
    const struct ddp_train_config *c = t->s->config->train;
    uint64_t epoch = t->progress.epoch + 1;

    if (made >= (uint64_t)t->s->config->ddp->local_steps) return true;
    if (c->max_steps > 0 && t->progress.step + 1 >= (uint64_t)c->max_steps) return true;
    if (t->progress.cursor + micros < t->s->batches_per_epoch) return false;
    return epoch >= (uint64_t)c->epochs ||
           (t->s->eval.sampler_count > 0 && c->eval_every > 0 && epoch % (uint64_t)c->eval_every == 0);
}

ddp_status ddp_outer_update(ddp_trainer *t, ddp_step *step, ddp_err *err)
{
    uint64_t made = t->progress.apart + 1;

    if (made == 1) DDP_TRY(copy(t, t->mem.outer.params, t->mem.params, err));
    DDP_TRY(step_alone(t, step, err));
    t->progress.apart = made;
    if (!ends_round(t, made, step->micros)) return DDP_OK;
    DDP_TRY(outer_step(t, step, err));
    t->progress.round = made - 1;
    t->progress.apart = 0;
    return DDP_OK;
}
