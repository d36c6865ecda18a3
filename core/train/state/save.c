/* train/state/save.c -- a checkpoint of all ranks: rank 0 alone writes, named waits before and after. */
#include "train/state/save.h"
#include "train/reduce/hook.h"
#include "train/reduce/hook_state.h"
#include "train/state/memory.h"
#include "train/state/optim_state.h"
#include "train/state/tensors.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static ddp_status rank0_save(ddp_trainer *t, ddp_err *err)
{
    const struct ddp_checkpoint_config *c = t->s->config->checkpoint;
    ddp_checkpoint_meta meta = {.step = t->progress.step,
                                .epoch = t->progress.epoch,
                                .cursor = t->progress.cursor,
                                .seed = t->s->config->train->seed,
                                .world_size = ddp_session_parts(t->s),
                                .bucket_size = t->s->model.bucket_size,
                                .first_bucket_size = t->s->config->ddp->first_bucket_size,
                                .batch_size = (uint64_t)t->s->batches.batch_size,
                                .accumulate = (uint64_t)t->s->batches.accumulate,
                                .micro_steps = t->progress.micro_steps,
                                .finished = ddp_trainer_complete(t)};
    ddp_views model, states = {0}, hook = {0};
    ddp_status st = state_model_views(t, &model, err);

    ddp_copy_text(meta.model, sizeof(meta.model), t->s->model.plugin->desc.name);
    if (t->reduce.hooked != NULL) {
        ddp_copy_text(meta.hook, sizeof(meta.hook), t->s->hook->desc.name);
        meta.hook_version = ddp_hooked_version(t->reduce.hooked);
    }
    if (st == DDP_OK) st = state_views(t, &states, err);
    if (st == DDP_OK) st = state_hook_views(t, &hook, err);
    if (st == DDP_OK) st = ddp_settings_hash(&t->s->config->settings, meta.config_hash, err);
    if (st == DDP_OK)
        st = ddp_checkpoint_save(c->dir, &meta,
                                 (const ddp_part[DDP_PARTS]){[DDP_PART_MODEL] = {model.tensors, model.count},
                                                             [DDP_PART_OPTIMIZER] = {states.tensors, states.count},
                                                             [DDP_PART_HOOK] = {hook.tensors, hook.count}},
                                 (uint64_t)c->keep, t->s->log, err);
    state_views_free(&hook);
    state_views_free(&states);
    state_views_free(&model);
    return st;
}

/* Ranks wait for rank 0 by name before and after; its error, if any, is the word that they get. */
ddp_status ddp_trainer_save(ddp_trainer *t, ddp_err *err)
{
    int32_t world = ddp_group_world(t->group);
    const void *parts[world];
    size_t lengths[world];
    char name[64], error[sizeof(err->msg)] = "", members[128];
    int64_t timeout = t->s->config->group->step_timeout_ms, from = ddp_now_ns();
    void *block = NULL;

    if (!t->progress.saving || t->progress.saved_step == t->progress.step) return DDP_OK;
    (void)snprintf(name, sizeof(name), "checkpoint of step %" PRIu64, t->progress.step);
    DDP_TRY_AS(DDP_EXIT_PEER, err, ddp_group_barrier(t->group, name, timeout, err));
    DDP_TRY(states_whole(t, err));
    if (t->s->launch.rank == 0) DDP_TRY(state_pull(t, DDP_ARENA_PARAMS | DDP_ARENA_BUFFERS, err));
    if (t->s->launch.rank == 0 || t->mem.state_parts > 1) DDP_TRY(state_pull(t, DDP_ARENA_STATES, err));
    DDP_TRY(states_gather(t, err));
    if (t->reduce.hooked != NULL) {
        DDP_TRY(ddp_hooked_hold(t->reduce.hooked, err));
        DDP_TRY(ddp_hooked_gather(t->reduce.hooked, err));
    }
    if (t->s->launch.rank == 0 && rank0_save(t, err) != DDP_OK) ddp_copy_text(error, sizeof(error), err->msg);
    ddp_states_free(t);
    if (t->reduce.hooked != NULL) ddp_hooked_drop(t->reduce.hooked);
    (void)snprintf(name, sizeof(name), "checkpoint of step %" PRIu64 " saved", t->progress.step);
    DDP_TRY_AS(DDP_EXIT_PEER, err,
               ddp_group_gather(t->group, name, error, strlen(error), &block, parts, lengths, timeout, err));
    if (lengths[0] > 0) {
        (void)snprintf(error, sizeof(error), "%.*s", (int)lengths[0], (const char *)parts[0]);
        free(block);
        ddp_group_abort(t->group, DDP_EXIT_CHECKPOINT, error);
        (void)ddp_fail(err, DDP_ERR_SYSTEM, "%s", error);
        return ddp_fail_as(err, DDP_EXIT_CHECKPOINT);
    }
    free(block);
    t->progress.saved_step = t->progress.step;
    if (t->observer != NULL) {
        (void)snprintf(members, sizeof(members), "\"step\": %" PRIu64 ", \"epoch\": %" PRIu64 ", \"ms\": %.1f",
                       t->progress.step, t->progress.epoch, (double)(ddp_now_ns() - from) * 1e-6);
        ddp_observe_event(t->observer, "checkpoint", members, NULL);
    }
    return DDP_OK;
}

ddp_status ddp_trainer_hash(ddp_trainer *t, char sha256[DDP_SHA256_HEX], ddp_err *err)
{
    ddp_sha256 h;

    DDP_TRY(state_pull(t, DDP_ARENA_PARAMS, err));
    DDP_TRY(ddp_sha256_begin(&h, err));
    for (uint32_t p = 0; p < t->s->model.param_count; p++)
        ddp_sha256_add(&h, t->mem.host.params + t->s->model.layout->offset[p],
                       t->s->model.params[p].elements * sizeof(float));
    ddp_sha256_end(&h, sha256);
    return DDP_OK;
}
