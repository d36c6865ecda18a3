/* train/reduce/shards.c -- see shards.h.
 *
 * Direct (backend shm): ranks see each other's memory. When all have their gradients, each takes the mean of
 * everyone's over its shards, updates, and stores the parameters to every rank, in one pass; with clipping in two,
 * the norm between them. Nothing is sent. Ranks wait for each other before the pass, when all gradients are final,
 * and after it, when all parameters are: between the two a rank writes its shard of everyone's parameters and reads
 * everyone's gradients, and nobody runs the model.
 *
 * By collectives ([ddp] zero = 1 elsewhere): a reduce_scatter for each bucket, as the reducer sends them, the update
 * of the shard as it arrives, and an all_gather of the parameters after it. */
#include "train/reduce/shards.h"
#include "train/reduce/clip.h"
#include "train/reduce/spans.h"
#include <stdlib.h>

struct ddp_shards {
    uint32_t world, rank;
    bool direct;
    bool whole_states; /* the shards of the states lie where those of the parameters do, in arenas that all have */
    float **params, **grads; /* direct, by rank: their arenas, as this process sees them */
    float **slice_params;    /* the same at the slice in hand */
    const void **slice_grads;
    bool has_mean; /* the gradients are the mean already: they are clipped */
    ddp_optim_peers peers;
    uint64_t *not_finite;    /* by bucket, or by part of its update: host memory that the device sees */
    uint64_t *tickets;       /* by bucket, of the parameters on their way */
    ddp_comm_stream *stream; /* of the parameters, where they are not in host memory and go by collectives; else NULL */
};

static bool sees_peers(const ddp_trainer *t)
{
    uint64_t backend = DDP_CAP_MEM_ALLOC | DDP_CAP_MEM_PEER;

    return t->mem.of_backend && t->s->config->ddp->overlap != DDP_OVERLAP_YES &&
           (ddp_communicator_caps(t->comm) & backend) == backend && ddp_device_can(&t->s->device, DDP_DEVICE_CAP_PEERS);
}

static bool can_be_direct(const ddp_trainer *t)
{
    return sees_peers(t) && (t->mem.mapped_bytes == 0 || t->mem.one_copy);
}

/* A rank whose copy of a parameter has changed gets another's with the next update, or gives its own to all: where
 * replicas are compared, each makes all of the update, so that a difference stays until it is found. */
static bool wanted(const ddp_trainer *t, bool direct)
{
    if (ddp_group_world(t->group) == 1 || t->s->hook != NULL || t->s->devices.rank_stages > 1 || t->s->model.head.on)
        return false;
    if (t->s->config->ddp->local_steps > 0) return false; /* each has its own parameters and states */
    if (t->s->config->ddp->zero == 1) return true;
    return t->s->config->ddp->shard_update != DDP_SHARD_NO && t->s->config->train->check_replicas_every == 0 && direct;
}

bool reduce_shards_need_one_copy(const ddp_trainer *t)
{
    return sees_peers(t) && wanted(t, true) && t->s->config->optimizer->ema == 0.0 && !ddp_trainer_rejoins(t) &&
           ddp_session_devices(t->s) == 1 && ddp_group_local_size(t->group) == ddp_group_world(t->group);
}

static ddp_status find_peers(ddp_trainer *t, ddp_shards *s, ddp_err *err)
{
    for (uint32_t r = 0; r < s->world; r++) {
        void *params = t->mem.params, *grads;

        if (!t->mem.one_copy) DDP_TRY(ddp_communicator_peer(t->comm, t->mem.params, r, &params, err));
        DDP_TRY(ddp_communicator_peer(t->comm, t->mem.grads, r, &grads, err));
        s->params[r] = params;
        s->grads[r] = grads;
    }
    return DDP_OK;
}

static ddp_status create(ddp_trainer *t, uint32_t world, uint32_t rank, ddp_err *err)
{
    ddp_shards *s;

    t->reduce.shards = s = ddp_alloc(sizeof(*s), err);
    if (s == NULL) return err->status;
    s->world = world;
    s->rank = rank;
    s->has_mean = t->reduce.clip != NULL;
    s->params = ddp_alloc(world * sizeof(*s->params), err);
    s->grads = ddp_alloc(world * sizeof(*s->grads), err);
    s->slice_params = ddp_alloc(world * sizeof(*s->slice_params), err);
    s->slice_grads = ddp_alloc(world * sizeof(*s->slice_grads), err);
    s->tickets = ddp_alloc(t->s->model.layout->bucket_count * sizeof(*s->tickets), err);
    if (s->params == NULL || s->grads == NULL || s->slice_params == NULL || s->slice_grads == NULL ||
        s->tickets == NULL)
        return err->status;
    DDP_TRY(ddp_device_host_alloc(&t->s->device,
                                  (t->s->model.layout->bucket_count + t->reduce.spans->count) * sizeof(*s->not_finite),
                                  &s->not_finite, err));
    s->peers = (ddp_optim_peers){.struct_size = sizeof(s->peers), .count = world, .params = s->slice_params};
    return DDP_OK;
}

/* A rank by itself: the pass that updates also sees what is not finite, so that gradients are read once. */
static bool alone(const ddp_trainer *t)
{
    return ddp_group_world(t->group) == 1 && ddp_session_devices(t->s) == 1 && t->s->hook == NULL &&
           t->s->config->ddp->local_steps == 0 && t->s->config->ddp->shard_update != DDP_SHARD_NO &&
           t->s->config->ddp->overlap != DDP_OVERLAP_YES && ddp_device_can(&t->s->device, DDP_DEVICE_CAP_PEERS);
}

static ddp_status open_stream(ddp_trainer *t, ddp_comm_stream **out, ddp_err *err)
{
    const ddp_layout *l = t->s->model.layout;
    ddp_comm_stream_params p = {.device = &t->s->device,
                                .comm = t->comm,
                                .arena = t->mem.params,
                                .elements = l->param_elements,
                                .count = l->bucket_count};

    return ddp_comm_stream_open(&p, out, err);
}

ddp_status ddp_shards_open(ddp_trainer *t, ddp_err *err)
{
    if (alone(t)) return ddp_shards_among(&t, 1, 0, 1, err);
    if (!wanted(t, can_be_direct(t))) return DDP_OK;
    DDP_TRY(create(t, (uint32_t)ddp_group_world(t->group), (uint32_t)ddp_group_rank(t->group), err));
    t->mem.state_parts = t->reduce.shards->world;
    t->reduce.shards->direct = can_be_direct(t);
    if (t->reduce.shards->direct) return find_peers(t, t->reduce.shards, err);
    return ddp_device_has_memory(&t->s->device) ? open_stream(t, &t->reduce.shards->stream, err) : DDP_OK;
}

ddp_status ddp_shards_among(ddp_trainer *const *all, uint32_t count, uint32_t own, uint32_t arenas, ddp_err *err)
{
    DDP_TRY(create(all[own], count, own, err));
    all[own]->reduce.shards->peers.count = arenas;
    all[own]->reduce.shards->direct = all[own]->reduce.shards->whole_states = true;
    for (uint32_t r = 0; r < count; r++) {
        all[own]->reduce.shards->params[r] = all[r]->mem.params;
        all[own]->reduce.shards->grads[r] = all[r]->mem.grads;
    }
    return DDP_OK;
}

void ddp_shards_close(ddp_trainer *t)
{
    ddp_shards *s = t->reduce.shards;

    t->reduce.shards = NULL;
    if (s == NULL) return;
    free(s->params);
    free(s->grads);
    free(s->slice_params);
    free(s->slice_grads);
    free(s->tickets);
    ddp_device_host_free(&t->s->device, s->not_finite);
    ddp_comm_stream_close(s->stream);
    free(s);
}

bool ddp_shards_direct(const ddp_trainer *t) { return t->reduce.shards != NULL && t->reduce.shards->direct; }

void ddp_shards_own(const ddp_trainer *t, uint32_t *shard, uint32_t *of)
{
    if (t->reduce.shards == NULL) return;
    *shard = t->reduce.shards->rank;
    *of = t->reduce.shards->world;
}

/* This rank's shard of bucket b; a state arena holds its shards of all buckets one after the other. */
static ddp_optim_slice slice_of(const ddp_trainer *t, uint32_t b)
{
    const ddp_shards *s = t->reduce.shards;
    uint64_t first, count = ddp_shard_of(t->s->model.layout, b, s->rank, s->world, &first);
    uint64_t state = s->whole_states ? first : t->s->model.layout->buckets[b].first / s->world;

    return ddp_trainer_slice(t, first, state, count);
}

/* ---- direct ---------------------------------------------------------------------------------------------------- */
static void point_peers(ddp_trainer *t, const ddp_optim_slice *slice, bool mean)
{
    ddp_shards *s = t->reduce.shards;
    uint64_t first = (uint64_t)(slice->param - t->mem.params);

    for (uint32_t r = 0; r < s->world; r++) {
        s->slice_params[r] = s->params[r] + first;
        s->slice_grads[r] = s->grads[r] + first;
    }
    s->peers.grads = mean ? s->slice_grads : NULL;
}

static void point_result(ddp_shards *s, uint64_t *not_finite, uint64_t count)
{
    s->peers.not_finite = not_finite;
    *not_finite = count;
}

ddp_status ddp_shards_mean(ddp_trainer *t, ddp_err *err)
{
    ddp_shards *s = t->reduce.shards;
    const ddp_optim mean = {.struct_size = sizeof(mean), .algorithm = DDP_OPTIM_MEAN, .peers = &s->peers};

    for (uint32_t b = 0; b < t->s->model.layout->bucket_count; b++) {
        ddp_optim_slice slice = slice_of(t, b);

        point_peers(t, &slice, true);
        point_result(s, &s->not_finite[b], slice.count);
        slice.param = t->mem.grads + (slice.param - t->mem.params);
        if (slice.count > 0) DDP_TRY(ddp_device_update(&t->s->device, &mean, &slice, err));
        DDP_TRY(reduce_clip_measure(t, b, s->rank, s->rank + 1, err));
    }
    return DDP_OK;
}

/* `count` elements of all arenas from `first` on, their mean. */
static ddp_status read_mean(ddp_trainer *t, uint64_t first, uint64_t count, float *out, float *part, ddp_err *err)
{
    const ddp_shards *s = t->reduce.shards;
    uint32_t arenas = s->peers.count;

    for (uint32_t r = 0; r < arenas; r++) {
        float *into = r == 0 ? out : part;

        DDP_TRY(
            ddp_device_copy(&t->s->device, into, s->grads[r] + first, count * sizeof(float), DDP_COPY_TO_HOST, err));
        DDP_TRY(ddp_device_sync(&t->s->device, err));
        for (uint64_t i = 0; r > 0 && i < count; i++) out[i] += part[i];
    }
    for (uint64_t i = 0; arenas > 1 && i < count; i++) out[i] *= 1.0f / (float)arenas;
    return DDP_OK;
}

ddp_status reduce_shards_read_mean(ddp_trainer *t, uint32_t b, float *out, float *part, ddp_err *err)
{
    const ddp_shards *s = t->reduce.shards;
    const ddp_layout *l = t->s->model.layout;

    if (!s->has_mean) return read_mean(t, l->buckets[b].first, ddp_bucket_elements(l, b), out, part, err);
    for (uint32_t r = 0; r < s->world; r++) {
        uint64_t first, count = ddp_shard_of(l, b, r, s->world, &first);

        if (count > 0)
            DDP_TRY(ddp_device_copy(&t->s->device, out + (first - l->buckets[b].first), s->grads[r] + first,
                                    count * sizeof(float), DDP_COPY_TO_HOST, err));
    }
    return ddp_device_sync(&t->s->device, err);
}

/* Part number *k of the shards of all buckets. */
static ddp_status update_part(ddp_trainer *t, const ddp_optim_slice *part, ddp_optim *settings, uint32_t *k,
                              ddp_err *err)
{
    ddp_shards *s = t->reduce.shards;

    settings->peers = &s->peers;
    point_peers(t, part, !s->has_mean);
    point_result(s, &s->not_finite[(*k)++], part->count);
    return ddp_device_update(&t->s->device, settings, part, err);
}

ddp_status ddp_shards_update(ddp_trainer *t, bool *finite, ddp_err *err)
{
    const ddp_shards *s = t->reduce.shards;
    ddp_optim_slice part;
    ddp_optim settings;
    uint32_t k = 0;

    *finite = true;
    for (uint32_t b = 0; b < t->s->model.layout->bucket_count; b++) {
        const ddp_optim_slice slice = slice_of(t, b);

        for (uint64_t at = 0; reduce_span_next(t, &slice, &at, &part, &settings);)
            DDP_TRY(update_part(t, &part, &settings, &k, err));
    }
    DDP_TRY(ddp_device_sync(&t->s->device, err));
    k = 0;
    for (uint32_t b = 0; b < t->s->model.layout->bucket_count; b++) {
        const ddp_optim_slice slice = slice_of(t, b);

        for (uint64_t at = 0; reduce_span_next(t, &slice, &at, &part, &settings); k++)
            *finite = *finite && s->not_finite[k] >= part.count;
    }
    return DDP_OK;
}

/* ---- by collectives -------------------------------------------------------------------------------------------- */
ddp_status ddp_shards_update_bucket(ddp_trainer *t, uint32_t b, ddp_err *err)
{
    ddp_shards *s = t->reduce.shards;
    uint64_t shard = t->s->model.layout->buckets[b].count / s->world;
    float *all = t->mem.params + t->s->model.layout->buckets[b].first;
    ddp_optim_slice slice = slice_of(t, b);
    ddp_task task = ddp_task_of(DDP_COLL_ALL_GATHER, DDP_SUM, all + s->rank * shard, all, shard);

    if (slice.count > 0) DDP_TRY(reduce_spans_update(t, &slice, err));
    if (b >= DDP_MAX_PENDING / 2)
        DDP_TRY_AS(DDP_EXIT_PEER, err, ddp_communicator_wait(t->comm, s->tickets[b - DDP_MAX_PENDING / 2], err));
    if (s->stream != NULL) return reduce_comm_stream_submit(s->stream, b, &task, &s->tickets[b], err);
    DDP_TRY(ddp_device_sync(&t->s->device, err));
    return ddp_communicator_submit(t->comm, &task, &s->tickets[b], err);
}

ddp_status ddp_shards_wait(ddp_trainer *t, ddp_err *err)
{
    const ddp_layout *l = t->s->model.layout;
    uint64_t newest = 0;

    /* not always that of the last bucket, which sends nothing where the step is not finite */
    for (uint32_t b = 0; b < l->bucket_count; b++) newest = DDP_MAX_OF(newest, t->reduce.shards->tickets[b]);
    DDP_TRY(ddp_communicator_wait(t->comm, newest, err));
    for (uint32_t b = 0; t->reduce.shards->stream != NULL && b < l->bucket_count; b++)
        DDP_TRY(reduce_comm_stream_take(t->reduce.shards->stream, b, err));
    if (t->reduce.shards->stream == NULL) return DDP_OK;
    return ddp_device_params_changed(&t->s->device, t->mem.params, l->param_elements, err);
}

ddp_status ddp_shards_measure_bucket(ddp_trainer *t, uint32_t b, ddp_err *err)
{
    return reduce_clip_measure(t, b, t->reduce.shards->rank, t->reduce.shards->rank + 1, err);
}
