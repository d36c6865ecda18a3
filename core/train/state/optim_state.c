/* train/state/optim_state.c -- the optimiser's state: a rank keeps all of it, or, where the update is made in shards,
 * that of its own. A checkpoint holds the whole, so that it does not depend on how many ranks there are: rank 0
 * collects it to save, and gives every rank its part after loading. */
#include "train/state/optim_state.h"
#include "train/reduce/comm_stream.h"
#include "train/state/memory.h"
#include <string.h>

ddp_status ddp_states_open(ddp_trainer *t, ddp_err *err)
{
    uint32_t states = ddp_optimizer_states(t->s->config);
    size_t bytes = states_elements(t) * sizeof(float);

    if (states > 0) DDP_TRY(ddp_device_alloc(&t->s->device, bytes, &t->mem.state1, err));
    return states > 1 ? ddp_device_alloc(&t->s->device, bytes, &t->mem.state2, err) : DDP_OK;
}

/* They are the trainer's until ddp_states_free: after a failure a collective may still be writing there. */
ddp_status states_whole(ddp_trainer *t, ddp_err *err)
{
    float *own[2] = {t->mem.state1, t->mem.state2};
    uint64_t most = 0;

    DDP_TRY(ddp_staging_open(t, DDP_ARENA_STATES, err));
    if (t->mem.state_parts <= 1 || own[0] == NULL) return DDP_OK;
    for (uint32_t b = 0; b < t->s->model.layout->bucket_count; b++)
        most = DDP_MAX_OF(most, t->s->model.layout->buckets[b].count);
    if (ddp_group_rank(t->group) != 0)
        return ddp_device_host_alloc(&t->s->device, most * sizeof(float), &t->mem.bounce, err);
    for (int k = 0; k < 2; k++)
        if (own[k] != NULL)
            DDP_TRY(ddp_device_host_alloc(&t->s->device, t->s->model.layout->elements * sizeof(float), &t->mem.whole[k],
                                          err));
    return DDP_OK;
}

void ddp_states_free(ddp_trainer *t)
{
    float **own[3] = {&t->mem.whole[0], &t->mem.whole[1], &t->mem.bounce};

    for (size_t k = 0; k < DDP_COUNT(own); k++) {
        ddp_device_host_free(&t->s->device, *own[k]);
        *own[k] = NULL;
    }
}

static ddp_status gather(ddp_trainer *t, const float *own, float *whole, ddp_err *err)
{
    uint64_t world = (uint64_t)ddp_group_world(t->group);

    for (uint32_t b = 0; b < t->s->model.layout->bucket_count; b++) {
        const ddp_bucket *k = &t->s->model.layout->buckets[b];
        ddp_task task = ddp_task_of(DDP_COLL_ALL_GATHER, DDP_SUM, own + k->first / world,
                                    whole != NULL ? whole + k->first : t->mem.bounce, k->count / world);

        DDP_TRY_AS(DDP_EXIT_PEER, err, ddp_host_collective(&t->s->device, t->comm, &task, err));
    }
    return DDP_OK;
}

ddp_status states_gather(ddp_trainer *t, ddp_err *err)
{
    float *own[2] = {t->mem.host.state1, t->mem.host.state2};

    for (int k = 0; k < 2 && t->mem.state_parts > 1; k++)
        if (own[k] != NULL) DDP_TRY(gather(t, own[k], t->mem.whole[k], err));
    return DDP_OK;
}

/* Bucket by bucket, whose bytes every rank hashes as they come. */
static ddp_status spread(ddp_trainer *t, float *own, float *whole, uint32_t root, uint64_t *hash, ddp_err *err)
{
    uint64_t world = (uint64_t)ddp_group_world(t->group), rank = (uint64_t)ddp_group_rank(t->group);

    for (uint32_t b = 0; b < t->s->model.layout->bucket_count; b++) {
        const ddp_bucket *k = &t->s->model.layout->buckets[b];
        float *at = whole != NULL ? whole + k->first : t->mem.bounce;
        uint64_t shard = k->count / world;
        ddp_task task = ddp_task_of(DDP_COLL_BROADCAST, DDP_SUM, NULL, at, k->count);

        task.coll.root = root;
        DDP_TRY_AS(DDP_EXIT_PEER, err, ddp_host_collective(&t->s->device, t->comm, &task, err));
        *hash = ddp_hash64(at, k->count * sizeof(float), *hash);
        if (t->mem.state_parts > 1) memcpy(own + k->first / world, at + rank * shard, shard * sizeof(float));
    }
    return DDP_OK;
}

ddp_status states_spread(ddp_trainer *t, uint32_t root, uint64_t *hash, ddp_err *err)
{
    float *own[2] = {t->mem.host.state1, t->mem.host.state2};

    *hash = 0;
    for (int k = 0; k < 2; k++)
        if (own[k] != NULL)
            DDP_TRY(spread(t, own[k], t->mem.state_parts <= 1 ? own[k] : t->mem.whole[k], root, hash, err));
    return DDP_OK;
}
