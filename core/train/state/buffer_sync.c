/* train/state/buffer_sync.c -- state of the model that is not trained: running statistics, and counts of training
 * batches.
 *
 * In training every rank updates its own running statistics, and rank 0's are those of the model. PyTorch's
 * DistributedDataParallel broadcasts rank 0's before each forward pass; as no training pass reads them, it is enough
 * to do so before what does, an evaluation: rank 0's are the same either way. */
#include "train/state/buffer_sync.h"
#include "train/reduce/comm_stream.h"
#include "train/state/memory.h"
#include <stdlib.h>
#include <string.h>

static ddp_status copy_buffers(const ddp_trainer *t, float *to, const float *from, ddp_err *err)
{
    return ddp_device_copy(&t->s->device, to, from, t->s->model.buffer_elements * sizeof(float), DDP_COPY_ON_DEVICE,
                           err);
}

ddp_status ddp_trainer_buffers_open(ddp_trainer *t, ddp_err *err)
{
    bool kept = t->s->launch.purpose == DDP_TO_TRAIN && t->s->devices.own == 0 &&
                (t->s->config->train->non_finite == DDP_NON_FINITE_SKIP || ddp_trainer_rejoins(t));
    size_t bytes = t->s->model.buffer_elements * sizeof(float);

    t->mem.counts = ddp_alloc((t->s->model.buffer_count + 1) * sizeof(*t->mem.counts), err);
    if (t->mem.counts == NULL) return err->status;
    if (t->s->model.buffer_elements == 0) return DDP_OK;
    if (kept) DDP_TRY(ddp_device_alloc(&t->s->device, bytes, &t->mem.kept_buffers, err));
    return ddp_device_alloc(&t->s->device, bytes, &t->mem.buffers, err);
}

ddp_status ddp_trainer_buffers_keep(ddp_trainer *t, ddp_err *err)
{
    return t->mem.kept_buffers == NULL ? DDP_OK : copy_buffers(t, t->mem.kept_buffers, t->mem.buffers, err);
}

ddp_status ddp_trainer_buffers_undo(ddp_trainer *t, uint64_t micros, ddp_err *err)
{
    for (uint32_t b = 0; b < t->s->model.buffer_count; b++)
        if (t->s->model.buffers[b].dtype == DDP_I64) t->mem.counts[b] -= (int64_t)micros;
    return t->mem.kept_buffers == NULL ? DDP_OK : copy_buffers(t, t->mem.buffers, t->mem.kept_buffers, err);
}

void ddp_trainer_buffers_count(ddp_trainer *t)
{
    t->progress.micro_steps++;
    for (uint32_t b = 0; b < t->s->model.buffer_count; b++) t->mem.counts[b] += t->s->model.buffers[b].dtype == DDP_I64;
}

ddp_random ddp_trainer_random(const ddp_trainer *t, uint32_t share)
{
    return (ddp_random){.seed = t->s->config->train->seed,
                        .stream = t->progress.micro_steps * ddp_session_parts(t->s) +
                                  (uint64_t)t->s->shares.list[share] * t->s->devices.replicas +
                                  (t->s->devices.replicas > 1 ? t->s->devices.own : 0)};
}

ddp_status ddp_trainer_broadcast_buffers_of(ddp_trainer *t, uint32_t root, ddp_err *err)
{
    ddp_task task = ddp_task_of(DDP_COLL_BROADCAST, DDP_SUM, NULL, NULL, t->s->model.buffer_elements);

    if (t->mem.buffers == NULL) return DDP_OK;
    DDP_TRY(state_pull(t, DDP_ARENA_BUFFERS, err));
    task.coll.recv = t->mem.host.buffers;
    task.coll.root = root;
    DDP_TRY_AS(DDP_EXIT_PEER, err, ddp_host_collective(&t->s->device, t->comm, &task, err));
    return ddp_push(t, DDP_ARENA_BUFFERS, err);
}

ddp_status ddp_trainer_broadcast_buffers(ddp_trainer *t, ddp_err *err)
{
    return ddp_trainer_broadcast_buffers_of(t, 0, err);
}

ddp_status ddp_trainer_take_counts(ddp_trainer *t, int32_t root, ddp_err *err)
{
    int32_t world = ddp_group_world(t->group);
    size_t bytes = t->s->model.buffer_count * sizeof(t->mem.counts[0]);
    const void *parts[world];
    size_t lengths[world];
    void *block = NULL;

    if (bytes == 0) return DDP_OK;
    DDP_TRY_AS(DDP_EXIT_PEER, err,
               ddp_group_gather(t->group, "counts of batches", t->mem.counts, t->s->launch.rank == root ? bytes : 0,
                                &block, parts, lengths, t->s->config->group->step_timeout_ms, err));
    if (lengths[root] == bytes) memcpy(t->mem.counts, parts[root], bytes);
    free(block);
    return DDP_OK;
}

ddp_status ddp_trainer_hash_buffers(ddp_trainer *t, char sha256[DDP_SHA256_HEX], ddp_err *err)
{
    ddp_sha256 h;

    sha256[0] = '\0';
    if (t->s->model.buffer_count == 0) return DDP_OK;
    DDP_TRY(state_pull(t, DDP_ARENA_BUFFERS, err));
    DDP_TRY(ddp_sha256_begin(&h, err));
    for (uint32_t b = 0; b < t->s->model.buffer_count; b++) {
        const ddp_buffer_info *i = &t->s->model.buffers[b];

        if (i->dtype == DDP_I64)
            ddp_sha256_add(&h, &t->mem.counts[b], sizeof(t->mem.counts[b]));
        else
            ddp_sha256_add(&h, t->mem.host.buffers + i->offset, i->elements * sizeof(float));
    }
    ddp_sha256_end(&h, sha256);
    return DDP_OK;
}
