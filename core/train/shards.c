/* train/shards.c -- the update where ranks see each other's memory (backend shm): no all-reduce and no gradient copied.
 *
 * When all ranks have their gradients, each takes its share of every bucket: the mean of all ranks' gradients, the update, and the
 * new parameters to every rank, in one pass. What that costs is 1/N of the update, and each gradient is read once in all. A
 * rank's optimiser state is of its shares alone; a checkpoint gathers it first.
 *
 * Ranks meet twice in a step: before the pass, when all gradients are final, and behind it, when all parameters are. Between the
 * two a rank writes its share of everyone's parameters and reads everyone's gradients, and nobody runs the model. */
#include "train/trainer.h"
#include <stdlib.h>

struct ddp_shards {
    uint32_t world, rank;
    float **params, **grads; /* by rank: their arenas, as this process sees them */
    float **slice_params;    /* the same at the slice in hand */
    const float **slice_grads;
    ddp_optim_peers peers;
    uint64_t not_finite;
};

static bool wanted(const ddp_trainer *t)
{
    uint64_t backend = DDP_CAP_MEM_ALLOC | DDP_CAP_MEM_PEER | DDP_CAP_ALL_GATHER;

    return t->comm_memory && ddp_group_world(t->group) > 1 && t->s->config->ddp->shard_update != DDP_SHARD_NO &&
           t->s->config->ddp->overlap != DDP_OVERLAP_YES && (ddp_communicator_caps(t->comm) & backend) == backend &&
           (t->s->device_ops->caps & DDP_DEVICE_CAP_PEERS) != 0;
}

static ddp_status find_peers(ddp_trainer *t, ddp_shards *s, ddp_err *err)
{
    for (uint32_t r = 0; r < s->world; r++) {
        void *params, *grads;

        DDP_TRY(ddp_communicator_peer(t->comm, t->params, r, &params, err));
        DDP_TRY(ddp_communicator_peer(t->comm, t->grads, r, &grads, err));
        s->params[r] = params;
        s->grads[r] = grads;
    }
    return DDP_OK;
}

static ddp_status create(ddp_trainer *t, uint32_t world, uint32_t rank, ddp_err *err)
{
    ddp_shards *s;

    t->shards = s = ddp_alloc(sizeof(*s), err);
    if (s == NULL) return err->status;
    s->world = world;
    s->rank = rank;
    s->params = ddp_alloc(world * sizeof(*s->params), err);
    s->grads = ddp_alloc(world * sizeof(*s->grads), err);
    s->slice_params = ddp_alloc(world * sizeof(*s->slice_params), err);
    s->slice_grads = ddp_alloc(world * sizeof(*s->slice_grads), err);
    if (s->params == NULL || s->grads == NULL || s->slice_params == NULL || s->slice_grads == NULL) return err->status;
    s->peers = (ddp_optim_peers){.struct_size = sizeof(s->peers),
                                 .count = world,
                                 .grads = s->slice_grads,
                                 .params = s->slice_params,
                                 .not_finite = &s->not_finite};
    return DDP_OK;
}

ddp_status ddp_shards_open(ddp_trainer *t, ddp_err *err)
{
    if (!wanted(t)) return DDP_OK;
    DDP_TRY(create(t, (uint32_t)ddp_group_world(t->group), (uint32_t)ddp_group_rank(t->group), err));
    return find_peers(t, t->shards, err);
}

ddp_status ddp_shards_among(ddp_trainer *const *all, uint32_t count, uint32_t own, ddp_err *err)
{
    DDP_TRY(create(all[own], count, own, err));
    for (uint32_t r = 0; r < count; r++) {
        all[own]->shards->params[r] = all[r]->params;
        all[own]->shards->grads[r] = all[r]->grads;
    }
    return DDP_OK;
}

void ddp_shards_close(ddp_trainer *t)
{
    ddp_shards *s = t->shards;

    t->shards = NULL;
    if (s == NULL) return;
    free(s->params);
    free(s->grads);
    free(s->slice_params);
    free(s->slice_grads);
    free(s);
}

/* This rank's share of bucket b, without the extras behind the last parameter. */
static uint64_t share_of(const ddp_trainer *t, uint32_t b, uint64_t *first)
{
    const ddp_layout *l = t->s->layout;
    uint64_t share = l->buckets[b].count / t->shards->world, end;

    *first = l->buckets[b].first + t->shards->rank * share;
    end = DDP_MIN_OF(*first + share, l->extra_offset);
    return end > *first ? end - *first : 0;
}

ddp_status ddp_shards_update(ddp_trainer *t, bool *finite, ddp_err *err)
{
    ddp_shards *s = t->shards;

    *finite = true;
    t->optim.peers = &s->peers;
    for (uint32_t b = 0; b < t->s->layout->bucket_count; b++) {
        uint64_t first, count = share_of(t, b, &first);
        ddp_optim_slice slice = {.param = t->params + first,
                                 .grad = t->grads + first,
                                 .state1 = t->state1 == NULL ? NULL : t->state1 + first,
                                 .state2 = t->state2 == NULL ? NULL : t->state2 + first,
                                 .count = count};

        if (count == 0) continue;
        for (uint32_t r = 0; r < s->world; r++) {
            s->slice_params[r] = s->params[r] + first;
            s->slice_grads[r] = s->grads[r] + first;
        }
        DDP_TRY(t->s->device_ops->optim_step(t->s->device, &t->optim, &slice, err));
        *finite = *finite && s->not_finite >= count;
    }
    return t->s->device_ops->sync(t->s->device, err);
}

static ddp_status gather(ddp_trainer *t, float *state, ddp_err *err)
{
    const ddp_layout *l = t->s->layout;

    for (uint32_t b = 0; state != NULL && b < l->bucket_count; b++) {
        uint64_t share = l->buckets[b].count / t->shards->world;
        float *at = state + l->buckets[b].first;
        ddp_task task = {.what = DDP_COLL_ALL_GATHER,
                         .coll = {.struct_size = sizeof(ddp_coll),
                                  .dtype = DDP_F32,
                                  .send = at + t->shards->rank * share,
                                  .recv = at,
                                  .count = share}};

        DDP_TRY(ddp_communicator_run(t->comm, &task, err));
    }
    return DDP_OK;
}

ddp_status ddp_shards_gather_state(ddp_trainer *t, ddp_err *err)
{
    if (t->shards == NULL || t->dp != NULL) return DDP_OK; /* replicas have one arena of states */
    DDP_TRY(gather(t, t->state1, err));
    return gather(t, t->state2, err);
}
