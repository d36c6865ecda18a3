/* train/state/survivor.c -- see survivor.h. */
#include "train/state/survivor.h"
#include "train/local/batch.h"
#include "train/reduce/buckets.h"
#include "train/reduce/hook_state.h"
#include "train/state/buffer_sync.h"
#include "train/state/memory.h"
#include "train/state/tensors.h"
#include <stdlib.h>
#include <string.h>

/* ---- while training ---------------------------------------------------------------------------------------------- */
static ddp_status micro_steps(ddp_trainer *t, ddp_step *step, ddp_err *err)
{
    t->survivor->micro_steps = t->progress.micro_steps;
    t->survivor->in_step = true;
    return ddp_batch_micro_steps(t, step, err);
}

static ddp_status update(ddp_trainer *t, ddp_step *step, ddp_err *err)
{
    DDP_TRY(ddp_buckets_update(t, step, err));
    t->survivor->in_step = false;
    return DDP_OK;
}

bool ddp_survivor_has_all(const ddp_trainer *t)
{
    const ddp_hook_state *ignored;
    bool hooks = t->reduce.hooked != NULL && ddp_hooked_states(t->reduce.hooked, &ignored) > 0;

    return t->reduce.shards == NULL && t->local.replicas == NULL && t->local.pipeline == NULL &&
           t->mem.outer.params == NULL && !hooks;
}

/* Running statistics are rank 0's alone. */
static bool is_whole(const ddp_trainer *t)
{
    return ddp_survivor_has_all(t) && (t->s->model.buffer_count == 0 || t->s->launch.rank == 0);
}

void ddp_survivor_watch(ddp_trainer *t)
{
    ddp_survivor *v = t->survivor;

    if (v == NULL) return;
    v->in_step = false;
    v->watched = ddp_trainer_rejoins(t) && is_whole(t);
    if (!v->watched) return;
    t->way.micro_steps = micro_steps;
    t->way.update = update;
    if (t->reduce.clip == NULL) t->way.reduced = ddp_bucket_reduced_last;
}

/* ---- after a failure --------------------------------------------------------------------------------------------- */
static void drop(ddp_survivor *v)
{
    free(v->bytes);
    v->bytes = NULL;
    v->length = 0;
}

void ddp_survivor_free(ddp_survivor *v) { drop(v); }

static size_t bytes_of(const ddp_named_tensor *n) { return state_tensor_elements(n) * ddp_dtype_size(n->dtype); }

/* Between the kept bytes and the arenas; `keep`: from those. */
static size_t copy(const ddp_views *v, char *bytes, bool keep)
{
    size_t at = 0;

    for (size_t i = 0; i < v->count; i++) {
        size_t n = bytes_of(&v->tensors[i]);

        if (bytes != NULL && keep) memcpy(bytes + at, v->data[i], n);
        if (bytes != NULL && !keep) memcpy(v->data[i], bytes + at, n);
        at += n;
    }
    return at;
}

enum { MODEL, STATES, AVERAGE, KINDS }; /* of what is kept, in this order */

static ddp_status open_views(ddp_trainer *t, ddp_views all[KINDS], ddp_err *err)
{
    ddp_state_arenas a;

    DDP_TRY(state_pull(t, DDP_ARENA_PARAMS | DDP_ARENA_BUFFERS | DDP_ARENA_STATES | DDP_ARENA_EMA, err));
    a = state_arenas(t);
    DDP_TRY(state_model_views(t, &a, STATE_ALL, &all[MODEL], err));
    DDP_TRY(state_views(t, &a, &all[STATES], err));
    return state_ema_views(t, &a, STATE_SAVED, &all[AVERAGE], err);
}

static void close_views(ddp_views all[KINDS])
{
    for (int k = 0; k < KINDS; k++) state_views_free(&all[k]);
}

/* All of it; `bytes` NULL: how many there are. */
static size_t copy_all(const ddp_views all[KINDS], char *bytes, bool keep)
{
    size_t at = 0;

    for (int k = 0; k < KINDS; k++) at += copy(&all[k], bytes == NULL ? NULL : bytes + at, keep);
    return at;
}

static ddp_status keep(ddp_trainer *t, ddp_err *err)
{
    ddp_survivor *v = t->survivor;
    ddp_views all[KINDS] = {0};
    ddp_status st = DDP_OK;
    size_t length;

    if (v->in_step) st = ddp_trainer_buffers_undo(t, t->progress.micro_steps - v->micro_steps, err);
    if (v->in_step) v->progress.micro_steps = v->micro_steps;
    if (st == DDP_OK) st = open_views(t, all, err);
    length = st == DDP_OK ? copy_all(all, NULL, true) : 0;

    if (st == DDP_OK && (v->bytes = ddp_alloc(length, err)) == NULL) st = err->status;
    if (st == DDP_OK) {
        (void)copy_all(all, v->bytes, true);
        v->length = length;
    }
    close_views(all);
    return st;
}

void ddp_survivor_keep(ddp_trainer *t)
{
    ddp_survivor *v = t->survivor;
    ddp_err err = {0};

    if (v == NULL || !t->progress.restored) return; /* what was kept before is still the newest */
    drop(v);
    if (t->progress.rollback.wanted) return; /* a state that is not to be used: the newest checkpoint is */
    v->progress = t->progress;
    v->progress.stopping = 0;
    v->loss = t->result.loss;
    v->generation = ddp_group_generation(t->group);
    v->bucket_size = t->s->model.bucket_size;
    if (v->watched && keep(t, &err) != DDP_OK)
        ddp_log_line(t->s->log, DDP_LOG_WARN, "the run's state cannot be kept in memory: %s", err.msg);
}

/* ---- the next generation ----------------------------------------------------------------------------------------- */
void ddp_survivor_met(ddp_trainer *t)
{
    ddp_survivor *v = t->survivor;
    uint64_t start = ddp_group_start(t->group);

    if (v == NULL) return;
    if (start != v->start && v->length > 0) {
        ddp_log_line(t->s->log, DDP_LOG_WARN,
                     "the run has been started again since this rank was in it. What it has in memory is not used");
        drop(v);
    }
    if (start != v->start) v->bucket_size = v->kept_batch = 0;
    v->start = start;
    v->server = ddp_group_home(t->group, 0);
}

/* The same program runs on all ranks, so a struct is its own wire format. */
struct offer {
    uint32_t generation; /* of the state that this rank has, and 1; 0: it has none */
    ddp_progress progress;
};

ddp_status ddp_survivor_find(ddp_trainer *t, int32_t *source, ddp_progress *at, ddp_err *err)
{
    const ddp_survivor *v = t->survivor;
    int32_t world = ddp_group_world(t->group);
    struct offer own = {0}, best = {0};
    const void *parts[world];
    size_t lengths[world];
    void *block = NULL;

    *source = -1;
    if (v != NULL && v->length > 0 && ddp_survivor_has_all(t))
        own = (struct offer){.generation = v->generation + 1, .progress = v->progress};
    DDP_TRY_AS(DDP_EXIT_PEER, err,
               ddp_group_gather(t->group, "state that is in memory", &own, sizeof(own), &block, parts, lengths,
                                t->s->config->group->step_timeout_ms, err));
    for (int32_t r = 0; r < world; r++) {
        struct offer o;

        if (lengths[r] != sizeof(o)) continue;
        memcpy(&o, parts[r], sizeof(o));
        if (o.generation <= best.generation) continue;
        best = o;
        *source = r;
    }
    *at = best.progress;
    free(block);
    return DDP_OK;
}

ddp_status ddp_survivor_fill(ddp_trainer *t, ddp_err *err)
{
    ddp_survivor *v = t->survivor;
    ddp_views all[KINDS] = {0};
    ddp_status st = open_views(t, all, err);

    if (st == DDP_OK && copy_all(all, NULL, false) != v->length)
        st = ddp_fail(err, DDP_ERR_INTERNAL, "the state that was kept in memory is of another model");
    if (st == DDP_OK) (void)copy_all(all, v->bytes, false);
    close_views(all);
    t->result.loss = v->loss;
    return st;
}
