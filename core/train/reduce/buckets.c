/* train/reduce/buckets.c -- see buckets.h. */
#include "train/reduce/buckets.h"
#include "train/measure/histograms.h"
#include "train/measure/profile.h"
#include "train/reduce/clip.h"
#include "train/reduce/not_finite.h"
#include "train/reduce/spans.h"

ddp_status ddp_bucket_send(ddp_trainer *t, uint32_t b, ddp_err *err)
{
    int64_t from = ddp_profile_begin(t->profile);

    DDP_TRY(reducer_launch(t->reduce.reducer, b, t->progress.step + 1, err));
    ddp_profile_sent(t->profile, from);
    return DDP_OK;
}

ddp_status ddp_bucket_update(ddp_trainer *t, uint32_t b, ddp_err *err)
{
    uint64_t first = t->s->model.layout->buckets[b].first;
    ddp_optim_slice slice = ddp_trainer_slice(t, first, first, ddp_bucket_elements(t->s->model.layout, b));
    int64_t from = ddp_profile_begin(t->profile);

    DDP_TRY(reduce_spans_update(t, &slice, err));
    return ddp_profile_updated(t->profile, from, 1, (double)slice.count, err);
}

ddp_status ddp_bucket_measure(ddp_trainer *t, uint32_t b, ddp_err *err)
{
    return reduce_clip_measure(t, b, 0, (uint32_t)ddp_group_world(t->group), err);
}

ddp_status ddp_buckets_nothing(ddp_trainer *t, ddp_err *err)
{
    (void)t;
    (void)err;
    return DDP_OK;
}

static ddp_status update_bucket(ddp_trainer *t, ddp_step *step, uint32_t b, ddp_err *err)
{
    int64_t traced = ddp_trace_begin(t->trace), from = ddp_now_ns();

    DDP_TRY(t->way.update_bucket(t, b, err));
    step->update_ns += ddp_now_ns() - from;
    ddp_trace_end(t->trace, DDP_TRACK_TRAINER, "update", b, 0, traced);
    return DDP_OK;
}

static ddp_status update_all(ddp_trainer *t, ddp_step *step, ddp_err *err)
{
    for (uint32_t b = 0; b < t->s->model.layout->bucket_count; b++) DDP_TRY(update_bucket(t, step, b, err));
    return DDP_OK;
}

ddp_status ddp_bucket_reduced(ddp_trainer *t, ddp_step *step, uint32_t b, ddp_err *err)
{
    return update_bucket(t, step, b, err);
}

ddp_status reduce_bucket_wait(ddp_trainer *t, ddp_step *step, uint32_t b, ddp_err *err)
{
    int64_t traced = ddp_trace_begin(t->trace), from = ddp_now_ns();

    DDP_TRY_AS(DDP_EXIT_PEER, err, reducer_wait(t->reduce.reducer, b, err));
    step->wait_ms += (double)(ddp_now_ns() - from) * 1e-6;
    ddp_trace_end(t->trace, DDP_TRACK_TRAINER, "wait", b, 0, traced);
    return DDP_OK;
}

/* Nothing is updated before all buckets are there. */
ddp_status ddp_bucket_reduced_last(ddp_trainer *t, ddp_step *step, uint32_t b, ddp_err *err)
{
    return b + 1 < t->s->model.layout->bucket_count ? DDP_OK : update_all(t, step, err);
}

ddp_status ddp_bucket_reduced_clip(ddp_trainer *t, ddp_step *step, uint32_t b, ddp_err *err)
{
    int64_t from;
    bool finite;

    DDP_TRY(t->way.measure_bucket(t, b, err));
    if (b + 1 < t->s->model.layout->bucket_count) return DDP_OK;
    from = ddp_now_ns();
    DDP_TRY_AS(DDP_EXIT_PEER, err, t->way.squares(t, err));
    step->wait_ms += (double)(ddp_now_ns() - from) * 1e-6;
    DDP_TRY(reduce_clip_apply(t, &finite, err));
    if (!finite) {
        step->reduced.finite = false;
        return ddp_not_finite(t, NULL, err);
    }
    return update_all(t, step, err);
}

static ddp_status take_bucket(ddp_trainer *t, ddp_step *step, uint32_t b, ddp_err *err)
{
    bool last = b + 1 == t->s->model.layout->bucket_count;

    if (last) { /* it brings the result of all: a run that ends leaves it unapplied */
        ddp_trainer_reduced(t, step);
        if (!step->reduced.finite) DDP_TRY(ddp_not_finite(t, NULL, err));
    }
    DDP_TRY(reducer_take(t->reduce.reducer, b, err));
    if (last && !step->reduced.finite) return DDP_OK; /* nor has any other bucket been applied: they wait for it */
    return t->way.reduced(t, step, b, err);
}

ddp_status ddp_buckets_update(ddp_trainer *t, ddp_step *step, ddp_err *err)
{
    uint32_t buckets = t->s->model.layout->bucket_count;
    int64_t from;

    for (uint32_t b = t->reduce.early_buckets; b < buckets; b++) DDP_TRY(ddp_bucket_send(t, b, err));
    for (uint32_t b = 0; b < buckets; b++) {
        DDP_TRY(reduce_bucket_wait(t, step, b, err));
        DDP_TRY(take_bucket(t, step, b, err));
    }
    from = ddp_now_ns();
    if (step->reduced.finite) DDP_TRY_AS(DDP_EXIT_PEER, err, t->way.parameters(t, err));
    step->wait_ms += (double)(ddp_now_ns() - from) * 1e-6;
    return step->reduced.finite ? measure_histograms_gradients(t, step, err) : DDP_OK;
}
