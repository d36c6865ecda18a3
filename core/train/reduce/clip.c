/* train/reduce/clip.c -- see clip.h. */
#include "train/reduce/clip.h"
#include "train/reduce/comm_stream.h"
#include <math.h>
#include <stdlib.h>

enum { OWED_MOST = 512 }; /* sums that are not known yet; then they are waited for */

ddp_status ddp_clip_open(ddp_trainer *t, ddp_err *err)
{
    size_t parts = ddp_session_shards(t->s) * t->s->model.layout->bucket_count;
    double max_norm = t->s->config->optimizer->clip_norm;
    const struct ddp_train_config *train = t->s->config->train;
    bool waits = train->non_finite == DDP_NON_FINITE_SKIP || train->noise_scale;
    ddp_clip *c;

    if (max_norm == 0.0 && !waits) return DDP_OK;
    if (max_norm == 0.0) max_norm = INFINITY;
    t->reduce.clip = c = ddp_alloc(sizeof(*c), err);
    if (c == NULL) return err->status;
    *c = (ddp_clip){.max_norm = max_norm, .squares = ddp_alloc(parts * sizeof(double), err)};
    if (c->squares == NULL) return err->status;
    if (!ddp_device_can(&t->s->device, DDP_DEVICE_CAP_QUEUES)) return DDP_OK;
    c->positions = ddp_alloc(OWED_MOST * sizeof(*c->positions), err);
    return c->positions == NULL ? err->status
                                : ddp_device_host_alloc(&t->s->device, OWED_MOST * sizeof(*c->owed), &c->owed, err);
}

void ddp_clip_close(ddp_trainer *t)
{
    if (t->reduce.clip == NULL) return;
    ddp_device_host_free(&t->s->device, t->reduce.clip->owed);
    free(t->reduce.clip->positions);
    free(t->reduce.clip->squares);
    free(t->reduce.clip);
    t->reduce.clip = NULL;
}

uint64_t ddp_shard_of(const ddp_layout *l, uint32_t b, uint32_t rank, uint32_t world, uint64_t *first)
{
    uint64_t shard = l->buckets[b].count / world, end;

    *first = l->buckets[b].first + rank * shard;
    end = DDP_MIN_OF(*first + shard, l->extra_offset);
    return end > *first ? end - *first : 0;
}

static ddp_status take_owed(ddp_trainer *t, ddp_err *err)
{
    ddp_clip *c = t->reduce.clip;

    if (c->owed_count == 0) return DDP_OK;
    DDP_TRY(ddp_device_sync(&t->s->device, err));
    for (uint32_t i = 0; i < c->owed_count; i++) c->squares[c->positions[i]] = c->owed[i].value;
    c->owed_count = 0;
    return DDP_OK;
}

static ddp_status sum_squares(ddp_trainer *t, uint32_t at, const float *x, uint64_t count, ddp_err *err)
{
    ddp_clip *c = t->reduce.clip;
    ddp_flat_result result = {0};

    if (count > 0 && c->owed != NULL) {
        if (c->owed_count == OWED_MOST) DDP_TRY(take_owed(t, err));
        c->positions[c->owed_count] = at;
        return ddp_device_flat_async(&t->s->device, DDP_FLAT_SUM_SQUARES, x, count, &c->owed[c->owed_count++], err);
    }
    if (count > 0) DDP_TRY(ddp_device_flat(&t->s->device, DDP_FLAT_SUM_SQUARES, x, count, &result, err));
    c->squares[at] = result.value;
    return DDP_OK;
}

ddp_status reduce_clip_measure(ddp_trainer *t, uint32_t b, uint32_t first, uint32_t end, ddp_err *err)
{
    for (uint32_t r = first; r < end; r++) {
        uint64_t from, count = ddp_shard_of(t->s->model.layout, b, r, (uint32_t)ddp_session_shards(t->s), &from);
        DDP_TRY(sum_squares(t, r * t->s->model.layout->bucket_count + b, t->mem.grads + from, count, err));
    }
    return DDP_OK;
}

ddp_status ddp_clip_gather(ddp_trainer *t, ddp_err *err)
{
    uint32_t buckets = t->s->model.layout->bucket_count;
    ddp_task task =
        ddp_task_of(DDP_COLL_ALL_GATHER, DDP_SUM, t->reduce.clip->squares + (size_t)ddp_group_rank(t->group) * buckets,
                    t->reduce.clip->squares, buckets);

    task.coll.dtype = DDP_F64;
    DDP_TRY(take_owed(t, err));
    return ddp_host_collective(&t->s->device, t->comm, &task, err);
}

ddp_status reduce_clip_apply(ddp_trainer *t, bool *finite, ddp_err *err)
{
    uint32_t buckets = t->s->model.layout->bucket_count, world = (uint32_t)ddp_session_shards(t->s);
    ddp_clip *c = t->reduce.clip;
    double sum = 0.0, coefficient;

    DDP_TRY(take_owed(t, err));
    for (uint32_t b = 0; b < buckets; b++)
        for (uint32_t r = 0; r < world; r++) sum += c->squares[(size_t)r * buckets + b];
    t->result.grad_norm = sqrt(sum) * t->optim.grad_scale;
    *finite = isfinite(t->result.grad_norm);
    if (!*finite) return DDP_OK;
    coefficient = c->max_norm / (t->result.grad_norm + 1e-6);
    if (coefficient < 1.0) t->optim.grad_scale *= coefficient;
    return DDP_OK;
}
