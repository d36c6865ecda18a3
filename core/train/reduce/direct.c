/* train/reduce/direct.c -- see direct.h. */
#include "train/reduce/direct.h"
#include "train/measure/histograms.h"
#include "train/measure/profile.h"
#include "train/reduce/clip.h"

/* All ranks wait for each other and have each other's scalars. */
static ddp_status exchange(ddp_trainer *t, bool finite, ddp_step *step, ddp_err *err)
{
    int64_t from = ddp_now_ns(), traced = ddp_trace_begin(t->trace);

    DDP_TRY_AS(DDP_EXIT_PEER, err, ddp_reducer_exchange(t->reduce.reducer, finite, err));
    step->wait_ms += (double)(ddp_now_ns() - from) * 1e-6;
    ddp_trace_end(t->trace, DDP_TRACK_TRAINER, "wait", -1, 0, traced);
    ddp_trainer_reduced(t, step);
    return step->reduced.finite ? DDP_OK : t->way.not_finite(t, err);
}

static ddp_status update_shards(ddp_trainer *t, ddp_step *step, bool *finite, ddp_err *err)
{
    const ddp_layout *l = t->s->model.layout;
    /* but for the padding of the last shard */
    double elements = (double)l->extra_offset / (double)ddp_session_shards(t->s);
    int64_t traced = ddp_trace_begin(t->trace), from = ddp_profile_begin(t->profile), began = ddp_now_ns();

    DDP_TRY(t->way.update_shards(t, finite, err));
    step->update_ns += ddp_now_ns() - began;
    DDP_TRY(ddp_profile_updated(t->profile, from, l->bucket_count, elements, err));
    ddp_trace_end(t->trace, DDP_TRACK_TRAINER, "update", -1, 0, traced);
    return DDP_OK;
}

ddp_status ddp_direct_clip(ddp_trainer *t, ddp_step *step, bool *finite, ddp_err *err)
{
    int64_t from;

    DDP_TRY(t->way.mean(t, err));
    from = ddp_now_ns();
    DDP_TRY_AS(DDP_EXIT_PEER, err, ddp_clip_gather(t, err));
    step->wait_ms += (double)(ddp_now_ns() - from) * 1e-6;
    return reduce_clip_apply(t, finite, err);
}

ddp_status ddp_direct_no_clip(ddp_trainer *t, ddp_step *step, bool *finite, ddp_err *err)
{
    (void)t;
    (void)step;
    (void)err;
    *finite = true;
    return DDP_OK;
}

ddp_status ddp_direct_update(ddp_trainer *t, ddp_step *step, ddp_err *err)
{
    bool finite;

    DDP_TRY(exchange(t, true, step, err));
    if (!step->reduced.finite) return DDP_OK; /* no rank has read another's gradients */
    DDP_TRY(t->way.clip(t, step, &finite, err));
    if (finite) DDP_TRY(update_shards(t, step, &finite, err));
    if (finite) DDP_TRY(measure_histograms_gradients(t, step, err));
    return exchange(t, finite, step, err);
}
