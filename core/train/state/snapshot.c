/* train/state/snapshot.c -- see snapshot.h. */
#include "train/state/snapshot.h"
#include "session/report/report.h"
#include "train/head/pieces.h"
#include "train/reduce/hook.h"
#include "train/reduce/hook_state.h"
#include "control/group.h"
#include "train/state/local_states.h"
#include "train/state/memory.h"
#include "train/watch.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- what a checkpoint holds ------------------------------------------------------------------------------------- */
void state_contents_stamp(const ddp_trainer *t, ddp_contents *c)
{
    ddp_checkpoint_meta *m = &c->what.meta;

    m->step = t->progress.step;
    m->epoch = t->progress.epoch;
    m->cursor = t->progress.cursor;
    m->micro_steps = t->progress.micro_steps;
    m->finished = ddp_trainer_complete(t);
    m->history = t->progress.history;
    m->history.due = t->progress.evaluates && train_watch_is_on(t);
}

static ddp_status describe(const ddp_trainer *t, ddp_checkpoint_meta *m, ddp_err *err)
{
    *m = (ddp_checkpoint_meta){.seed = t->s->config->train->seed,
                               .world_size = ddp_session_parts(t->s),
                               .bucket_size = t->s->model.bucket_size,
                               .first_bucket_size = t->s->config->ddp->first_bucket_size,
                               .batch_size = (uint64_t)t->s->batches.batch_size,
                               .accumulate = (uint64_t)t->s->batches.accumulate,
                               .global_batch = (uint64_t)t->s->batches.global_batch,
                               .uneven = t->s->batches.uneven};
    ddp_copy_text(m->model, sizeof(m->model), t->s->model.plugin->desc.name);
    ddp_copy_text(m->base_hash, sizeof(m->base_hash), t->mem.base_hash);
    if (t->reduce.hooked != NULL) {
        ddp_copy_text(m->hook, sizeof(m->hook), t->s->hook->desc.name);
        m->hook_version = ddp_hooked_version(t->reduce.hooked);
    }
    return ddp_settings_hash(&t->s->config->settings, m->config_hash, err);
}

bool state_is_saved_in_shards(const ddp_trainer *t)
{
    return t->s->config->checkpoint->sharded && t->mem.state_parts > 1 && t->mem.state1 != NULL;
}

/* ---- shards ------------------------------------------------------------------------------------------------------ */
static ddp_status tell(void *ctx, uint64_t step, uint32_t shard, const char *text, ddp_err *err)
{
    const ddp_store *store = ((const ddp_trainer *)ctx)->shards.store;
    char key[64];

    (void)snprintf(key, sizeof(key), "%" PRIu64 "/%" PRIu32, step, shard);
    return store->set(store->ctx, key, text, strlen(text), err);
}

static int32_t rank_of(void *ctx, uint32_t shard)
{
    return ddp_group_home(((const ddp_trainer *)ctx)->group, (int32_t)shard);
}

static ddp_status hear(void *ctx, uint64_t step, uint32_t shard, char *text, size_t capacity, ddp_err *err)
{
    const ddp_trainer *t = ctx;
    const ddp_store *store = t->shards.store;
    int64_t timeout_ms = t->s->config->group->step_timeout_ms;
    size_t length = 0;
    ddp_status st;
    char key[64];

    (void)snprintf(key, sizeof(key), "%" PRIu64 "/%" PRIu32, step, shard);
    st = store->get(store->ctx, key, text, capacity - 1, &length, timeout_ms, err);
    if (st == DDP_ERR_TIMEOUT)
        return ddp_fail(
            err, st,
            "rank %" PRId32 " has not written its shard of the checkpoint of step %" PRIu64
            " %.3g s after rank 0 had written its own (step_timeout): raise [group] step_timeout if its disk takes longer",
            rank_of(ctx, shard), step, (double)timeout_ms / 1e3);
    if (st != DDP_OK)
        return ddp_fail_context(err, "what rank %" PRId32 " says of its shard of the checkpoint of step %" PRIu64,
                                rank_of(ctx, shard), step);
    text[length] = '\0';
    return store->remove(store->ctx, key, err);
}

static void describe_shard(const ddp_trainer *t, ddp_checkpoint_contents *c)
{
    c->shards = t->mem.state_parts;
    c->shard = (uint32_t)ddp_group_rank(t->group);
    c->token = t->shards.token;
    c->exchange = (ddp_shard_exchange){.ctx = (void *)t, .tell = tell, .hear = hear, .rank = rank_of};
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */
ddp_status state_contents_open(const ddp_trainer *t, const ddp_state_arenas *a, ddp_contents *out, ddp_err *err)
{
    bool sharded = state_is_saved_in_shards(t);

    if (sharded) describe_shard(t, &out->what);
    DDP_TRY(sharded ? state_shard_views(t, a->states, &out->states, err) : state_views(t, a, &out->states, err));
    head_set_reader(t, &out->states);
    out->what.parts[DDP_PART_OPTIMIZER] = (ddp_part){out->states.tensors, out->states.count};
    if (t->s->launch.rank != 0) return DDP_OK;
    DDP_TRY(state_model_views(t, a, STATE_SAVED, &out->model, err));
    head_set_reader(t, &out->model);
    DDP_TRY(state_hook_views(t, &out->hook, err));
    DDP_TRY(state_ema_views(t, a, STATE_SAVED, &out->ema, err));
    DDP_TRY(state_local_views(t, a, &out->local, err));
    DDP_TRY(describe(t, &out->what.meta, err));
    ddp_session_settings(t->s, &out->settings);
    if (out->settings.failed) return ddp_fail(err, DDP_ERR_NOMEM, "out of memory for a checkpoint's settings");
    out->what.settings = out->settings.data;
    out->what.parts[DDP_PART_MODEL] = (ddp_part){out->model.tensors, out->model.count};
    out->what.parts[DDP_PART_HOOK] = (ddp_part){out->hook.tensors, out->hook.count};
    out->what.parts[DDP_PART_EMA] = (ddp_part){out->ema.tensors, out->ema.count};
    out->what.parts[DDP_PART_LOCAL] = (ddp_part){out->local.tensors, out->local.count};
    return DDP_OK;
}

void state_contents_close(ddp_contents *c)
{
    ddp_text_free(&c->settings);
    state_views_free(&c->local);
    state_views_free(&c->ema);
    state_views_free(&c->hook);
    state_views_free(&c->states);
    state_views_free(&c->model);
}

/* ---- a copy of it ------------------------------------------------------------------------------------------------ */
typedef struct piece {
    const void *from; /* device memory */
    float **to;
    uint64_t elements;
} piece;
enum { PIECES = 6 };

/* By rank 0, of states that are in shards. */
static bool is_gathered(const ddp_trainer *t) { return t->mem.state_parts > 1 && !state_is_saved_in_shards(t); }

/* `s` NULL: for their sizes alone. */
static void list_pieces(const ddp_trainer *t, ddp_snapshot *s, piece out[PIECES])
{
    ddp_state_arenas none = {0}, *own = s != NULL ? &s->own : &none;
    bool gathered = is_gathered(t), rank0 = t->s->launch.rank == 0;
    uint64_t saved = state_saved_elements(t);

    out[0] = (piece){rank0 ? t->mem.params : NULL, &own->params, saved};
    out[1] = (piece){rank0 ? t->mem.buffers : NULL, &own->buffers, t->s->model.buffer_elements};
    out[2] = (piece){gathered ? NULL : t->mem.state1, &own->states[0], states_elements(t)};
    out[3] = (piece){gathered ? NULL : t->mem.state2, &own->states[1], states_elements(t)};
    out[4] = (piece){rank0 ? t->mem.ema : NULL, &own->ema, saved};
    out[5] = (piece){rank0 ? t->mem.outer.momentum : NULL, &own->outer_momentum, t->s->model.layout->elements};
}

static uint64_t gathered_elements(const ddp_trainer *t)
{
    const ddp_hook_state *states = NULL;
    uint32_t count = t->reduce.hooked == NULL ? 0 : ddp_hooked_states(t->reduce.hooked, &states);
    uint64_t n = 0;

    if (t->s->launch.rank != 0) return 0;
    if (is_gathered(t))
        n = t->s->model.layout->elements * (uint64_t)((t->mem.state1 != NULL) + (t->mem.state2 != NULL));
    for (uint32_t i = 0; i < count; i++)
        n += states[i].elements * (states[i].shared ? 1 : (uint64_t)t->s->launch.world);
    return n + state_local_elements(t);
}

uint64_t state_snapshot_bytes(const ddp_trainer *t)
{
    uint64_t elements = gathered_elements(t);
    piece all[PIECES];

    list_pieces(t, NULL, all);
    for (int i = 0; i < PIECES; i++)
        if (all[i].from != NULL) elements += all[i].elements;
    return elements * sizeof(float) + t->s->model.buffer_count * sizeof(int64_t);
}

ddp_status state_snapshot_open(ddp_trainer *t, ddp_snapshot *out, ddp_err *err)
{
    ddp_state_arenas a;
    piece all[PIECES];

    list_pieces(t, out, all);
    for (int i = 0; i < PIECES; i++) {
        if (all[i].from == NULL) continue;
        DDP_TRY(ddp_device_host_alloc(&t->s->device, all[i].elements * sizeof(float), all[i].to, err));
        memset(*all[i].to, 0, all[i].elements * sizeof(float)); /* pages come now, not with the first save */
    }
    out->own.counts = ddp_alloc(t->s->model.buffer_count * sizeof(int64_t), err);
    if (out->own.counts == NULL) return err->status;
    a = out->own;
    if (is_gathered(t))
        for (int k = 0; k < 2; k++) {
            a.states[k] = t->mem.whole[k];
            if (a.states[k] != NULL) memset(a.states[k], 0, t->s->model.layout->elements * sizeof(float));
        }
    return state_contents_open(t, &a, &out->contents, err);
}

ddp_status state_snapshot_copy(ddp_trainer *t, ddp_snapshot *s, ddp_err *err)
{
    piece all[PIECES];

    list_pieces(t, s, all);
    for (int i = 0; i < PIECES; i++) {
        if (all[i].from == NULL) continue;
        if (*all[i].to == NULL) return ddp_fail(err, DDP_ERR_INTERNAL, "there is no memory for a copy of the state");
        if (ddp_device_has_memory(&t->s->device))
            DDP_TRY(ddp_device_copy(&t->s->device, *all[i].to, all[i].from, all[i].elements * sizeof(float),
                                    DDP_COPY_TO_HOST, err));
        else
            memcpy(*all[i].to, all[i].from, all[i].elements * sizeof(float));
    }
    if (t->s->model.buffer_count > 0) memcpy(s->own.counts, t->mem.counts, t->s->model.buffer_count * sizeof(int64_t));
    state_contents_stamp(t, &s->contents);
    return DDP_OK;
}

void state_snapshot_close(ddp_trainer *t, ddp_snapshot *s)
{
    float *own[] = {s->own.params,    s->own.buffers, s->own.states[0],
                    s->own.states[1], s->own.ema,     s->own.outer_momentum};

    state_contents_close(&s->contents);
    for (size_t i = 0; i < DDP_COUNT(own); i++) ddp_device_host_free(&t->s->device, own[i]);
    free(s->own.counts);
}
