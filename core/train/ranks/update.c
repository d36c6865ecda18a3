/* train/ranks/update.c -- gradients become parameters where the stages are ranks: a stage's are reduced among its
 * replicas, one message among all ranks brings what all have to know, and each updates its stage. */
#include "train/ranks/pipeline.h"
#include "train/reduce/buckets.h"
#include "train/reduce/clip.h"
#include "train/reduce/not_finite.h"

/* The gradients of this rank's own micro-batches. */
static ddp_status look(ddp_trainer *t, ddp_err *err)
{
    const ddp_layout *l = t->s->model.layout;
    ddp_flat_result result;

    ddp_reducer_forget(t->reduce.reducer);
    for (uint32_t b = 0; b < l->bucket_count; b++) {
        uint64_t count = ddp_bucket_elements(l, b);

        if (!ranks_has_bucket(t, b)) continue;
        DDP_TRY(
            ddp_device_flat(&t->s->device, DDP_FLAT_FINITE, t->mem.grads + l->buckets[b].first, count, &result, err));
        if (result.index < count) ddp_reducer_found(t->reduce.reducer, b, l->buckets[b].first + (uint64_t)result.index);
    }
    return DDP_OK;
}

/* Among the replicas of this stage. */
static ddp_status reduce(ddp_trainer *t, ddp_step *step, ddp_err *err)
{
    const ddp_layout *l = t->s->model.layout;
    ddp_rank_pipeline *r = t->local.ranks;
    int64_t from = ddp_now_ns();
    uint64_t newest = 0;

    if (r->replicas == NULL) return DDP_OK;
    for (uint32_t b = 0; b < l->bucket_count; b++) {
        float *at = t->mem.grads + l->buckets[b].first;
        ddp_task task = ddp_task_of(DDP_COLL_ALL_REDUCE, DDP_AVG, at, at, ddp_bucket_elements(l, b));

        if (!ranks_has_bucket(t, b)) continue;
        if (b >= DDP_MAX_PENDING && r->tickets[b - DDP_MAX_PENDING] != 0)
            DDP_TRY_AS(DDP_EXIT_PEER, err, ddp_communicator_wait(r->replicas, r->tickets[b - DDP_MAX_PENDING], err));
        DDP_TRY(ddp_communicator_submit(r->replicas, &task, &r->tickets[b], err));
        newest = r->tickets[b];
    }
    DDP_TRY_AS(DDP_EXIT_PEER, err, ddp_communicator_wait(r->replicas, newest, err));
    step->wait_ms += (double)(ddp_now_ns() - from) * 1e-6;
    return DDP_OK;
}

/* The first replica of each stage gives those of its buckets, and so each is given once. */
static ddp_status measure(ddp_trainer *t, ddp_err *err)
{
    uint32_t shards = (uint32_t)ddp_session_shards(t->s), buckets = t->s->model.layout->bucket_count;
    double *out = t->local.ranks->sums + DDP_EXTRA;
    const ddp_clip *c = t->reduce.clip;

    if (c == NULL) return DDP_OK;
    for (uint64_t i = 0; i < t->local.ranks->squares; i++) out[i] = 0.0;
    for (uint32_t b = 0; b < buckets; b++) {
        if (!ranks_has_bucket(t, b) || t->s->shares.list[0] != 0) continue;
        DDP_TRY(reduce_clip_measure(t, b, 0, shards, err));
        for (uint32_t r = 0; r < shards; r++) out[(size_t)r * buckets + b] = c->squares[(size_t)r * buckets + b];
    }
    return DDP_OK;
}

/* All ranks have each other's numbers; the squares are there. */
static ddp_status exchange(ddp_trainer *t, ddp_step *step, ddp_err *err)
{
    ddp_rank_pipeline *r = t->local.ranks;
    ddp_task task = ddp_task_of(DDP_COLL_ALL_REDUCE, DDP_SUM, r->sums, r->sums, DDP_EXTRA + r->squares);
    int64_t from = ddp_now_ns();

    task.coll.dtype = DDP_F64;
    ddp_reducer_own(t->reduce.reducer, r->sums);
    DDP_TRY_AS(DDP_EXIT_PEER, err, ddp_communicator_run(t->comm, &task, err));
    step->wait_ms += (double)(ddp_now_ns() - from) * 1e-6;
    ddp_reducer_set_all(t->reduce.reducer, r->sums, (double)ddp_session_stage_replicas(t->s));
    for (uint64_t i = 0; i < r->squares; i++) t->reduce.clip->squares[i] = r->sums[DDP_EXTRA + i];
    ddp_trainer_reduced(t, step);
    return DDP_OK;
}

static ddp_status update(ddp_trainer *t, ddp_step *step, ddp_err *err)
{
    int64_t from = ddp_now_ns(), traced = ddp_trace_begin(t->trace);

    for (uint32_t b = 0; b < t->s->model.layout->bucket_count; b++)
        if (ranks_has_bucket(t, b)) DDP_TRY(ddp_bucket_update(t, b, err));
    DDP_TRY(ddp_device_sync(&t->s->device, err));
    step->update_ns += ddp_now_ns() - from;
    ddp_trace_end(t->trace, DDP_TRACK_TRAINER, "update", -1, 0, traced);
    return DDP_OK;
}

ddp_status ranks_update(ddp_trainer *t, ddp_step *step, ddp_err *err)
{
    bool finite = true;

    DDP_TRY(look(t, err));
    DDP_TRY(reduce(t, step, err));
    DDP_TRY(measure(t, err));
    DDP_TRY(exchange(t, step, err));
    if (step->reduced.finite && t->reduce.clip != NULL) DDP_TRY(reduce_clip_apply(t, &finite, err));
    step->reduced.finite = step->reduced.finite && finite;
    if (!step->reduced.finite) return ddp_not_finite(t, NULL, err);
    return update(t, step, err);
}

/* There are settings that compare replicas; with this way they are refused (session/pipeline.c). */
ddp_status ranks_check_replicas(ddp_trainer *t, ddp_err *err)
{
    (void)t;
    (void)err;
    return DDP_OK;
}
