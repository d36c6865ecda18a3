/* train/state/buffer_sync.c -- state of the model that is not trained: running statistics, and counts of training
 * batches.
 *
 * In training every rank updates its own running statistics, and rank 0's are those of the model. PyTorch's
 * DistributedDataParallel broadcasts rank 0's before each forward pass; as no training pass reads them, it is enough
 * to do so before what does, an evaluation: rank 0's are the same either way. */
#include "train/state/buffer_sync.h"
#include "train/reduce/comm_stream.h"
#include "train/state/memory.h"

ddp_status ddp_trainer_buffers_open(ddp_trainer *t, ddp_err *err)
{
    t->mem.counts = ddp_alloc((t->s->model.buffer_count + 1) * sizeof(*t->mem.counts), err);
    if (t->mem.counts == NULL) return err->status;
    if (t->s->model.buffer_elements == 0) return DDP_OK;
    return ddp_device_alloc(&t->s->device, t->s->model.buffer_elements * sizeof(float), &t->mem.buffers, err);
}

void ddp_trainer_buffers_count(ddp_trainer *t)
{
    t->progress.micro_steps++;
    for (uint32_t b = 0; b < t->s->model.buffer_count; b++) t->mem.counts[b] += t->s->model.buffers[b].dtype == DDP_I64;
}

ddp_random ddp_trainer_random(const ddp_trainer *t)
{
    return (ddp_random){.seed = t->s->config->train->seed,
                        .stream = t->progress.micro_steps * ddp_session_parts(t->s) +
                                  (uint64_t)t->s->launch.rank * t->s->devices.replicas +
                                  (t->s->devices.replicas > 1 ? t->s->devices.own : 0)};
}

ddp_status ddp_trainer_broadcast_buffers(ddp_trainer *t, ddp_err *err)
{
    ddp_task task = ddp_task_of(DDP_COLL_BROADCAST, DDP_SUM, NULL, NULL, t->s->model.buffer_elements);

    if (t->mem.buffers == NULL) return DDP_OK;
    DDP_TRY(state_pull(t, DDP_ARENA_BUFFERS, err));
    task.coll.recv = t->mem.host.buffers;
    DDP_TRY_AS(DDP_EXIT_PEER, err, ddp_host_collective(&t->s->device, t->comm, &task, err));
    return ddp_push(t, DDP_ARENA_BUFFERS, err);
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
