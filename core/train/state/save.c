/* train/state/save.c -- a checkpoint of all ranks: rank 0 alone writes, in the step or beside it; named waits. */
#include "train/state/save.h"
#include "checkpoint/shards.h"
#include "checkpoint/writer.h"
#include "net/identity.h"
#include "session/report/report.h"
#include "train/head/pieces.h"
#include "train/measure/audit.h"
#include "train/ranks/arenas.h"
#include "train/reduce/hook_state.h"
#include "train/state/local_states.h"
#include "train/state/memory.h"
#include "train/state/optim_state.h"
#include "train/state/snapshot.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    LOOK_MS = 100,  /* how often who waits for the writer looks whether the run has failed */
    WARN_MS = 1000, /* a wait for the disk that is worth a line */
    ALL_ARENAS = DDP_ARENA_PARAMS | DDP_ARENA_BUFFERS | DDP_ARENA_STATES | DDP_ARENA_EMA | DDP_ARENA_OUTER
};

struct ddp_saver {
    ddp_checkpoint_writer *writer; /* rank 0, and who writes shards; elsewhere NULL, and no snapshot */
    ddp_snapshot snapshot;
    uint64_t step;   /* of the newest save that has begun */
    double stall_ms; /* how long training has waited for it */
    bool warned;     /* that training waits for the disk */
    uint64_t failed_step;
    char failed[sizeof(((ddp_err *)NULL)->msg)]; /* why the save of that step failed, with on_error = warn; "": none */
};

static ddp_retention retention_of(const ddp_trainer *t)
{
    const struct ddp_checkpoint_config *c = t->s->config->checkpoint;

    return (ddp_retention){.newest = (uint64_t)c->keep, .every = (uint64_t)c->keep_every};
}

static void tell(ddp_trainer *t, uint64_t step, uint64_t epoch, double stall_ms, double write_ms)
{
    char members[160];

    if (t->observer == NULL) return;
    (void)snprintf(members, sizeof(members),
                   "\"step\": %" PRIu64 ", \"epoch\": %" PRIu64 ", \"ms\": %.1f, \"write_ms\": %.1f", step, epoch,
                   stall_ms, write_ms);
    ddp_observe_event(t->observer, "checkpoint", members, NULL);
}

static double ms_since(int64_t from_ns) { return (double)(ddp_now_ns() - from_ns) * 1e-6; }

/* A write that has failed ends the run on all ranks. */
static ddp_status end_run(ddp_trainer *t, const char *why, ddp_err *err)
{
    ddp_group_abort(t->group, DDP_EXIT_CHECKPOINT, why);
    (void)ddp_fail(err, DDP_ERR_SYSTEM, "%s", why);
    return ddp_fail_as(err, DDP_EXIT_CHECKPOINT);
}

/* Whether training goes on without a checkpoint that could not be saved. */
static bool goes_on(const ddp_trainer *t) { return t->s->config->checkpoint->on_error == DDP_SAVE_WARN; }

static void warn_of_failure(ddp_trainer *t, uint64_t step, const char *why)
{
    ddp_text members = {0};

    if (t->s->launch.rank != 0) return;
    ddp_log_line(t->s->log, DDP_LOG_WARN,
                 "the checkpoint of step %" PRIu64
                 " is not saved: %s. Training goes on ([checkpoint] on_error = warn), and the next one is tried",
                 step, why);
    ddp_text_printf(&members, "\"step\": %" PRIu64 ", \"text\": \"the checkpoint is not saved\"", step);
    if (t->observer != NULL && !members.failed) ddp_observe_event(t->observer, "warning", members.data, NULL);
    ddp_text_free(&members);
}

/* What other ranks have of the state, on rank 0. */
static ddp_status collect(ddp_trainer *t, ddp_err *err)
{
    if (ranks_are_stages(t)) {
        DDP_TRY(ranks_arenas_collect(t, DDP_ARENA_PARAMS | DDP_ARENA_STATES, err));
        return ranks_buffers_collect(t, err);
    }
    if (!state_is_saved_in_shards(t)) {
        if (t->mem.state_parts > 1) DDP_TRY(state_pull(t, DDP_ARENA_STATES, err));
        DDP_TRY(states_gather(t, err));
    }
    DDP_TRY(state_local_gather(t, err));
    return t->reduce.hooked == NULL ? DDP_OK : ddp_hooked_gather(t->reduce.hooked, err);
}

/* ---- in the step ------------------------------------------------------------------------------------------------- */
/* Rank 0 all, or all but the shards of the others; those theirs. */
static ddp_status write_own(ddp_trainer *t, ddp_err *err)
{
    const ddp_state_arenas a = state_arenas(t);
    const ddp_retention keep = retention_of(t);
    ddp_contents c = {0};
    ddp_status st = state_contents_open(t, &a, &c, err);

    state_contents_stamp(t, &c);
    if (st == DDP_OK)
        st = t->s->launch.rank == 0 ? ddp_checkpoint_save(t->lock, &c.what, &keep, t->s->log, err)
                                    : checkpoint_shard_save(t->s->config->checkpoint->dir, &c.what, err);
    state_contents_close(&c);
    return st;
}

/* Ranks wait for rank 0 by name; its error, if any, is the word that they get. `last`: the run needs this checkpoint.
 * DDP_IN_PROGRESS: it is not saved, and training goes on. */
static ddp_status wait_for_rank0(ddp_trainer *t, const char *error, bool last, ddp_err *err)
{
    int32_t world = ddp_group_world(t->group);
    const void *parts[world];
    size_t lengths[world];
    char name[64], theirs[sizeof(err->msg)];
    void *block = NULL;
    bool failed;

    (void)snprintf(name, sizeof(name), "checkpoint of step %" PRIu64 " saved", t->progress.step);
    DDP_TRY_AS(DDP_EXIT_PEER, err,
               ddp_group_gather(t->group, name, error, strlen(error), &block, parts, lengths,
                                t->s->config->group->step_timeout_ms, err));
    failed = lengths[0] > 0;
    if (failed) (void)snprintf(theirs, sizeof(theirs), "%.*s", (int)lengths[0], (const char *)parts[0]);
    free(block);
    if (!failed) return DDP_OK;
    if (last || !goes_on(t)) return end_run(t, theirs, err);
    warn_of_failure(t, t->progress.step, theirs);
    return DDP_IN_PROGRESS;
}

/* Of this rank, where rank 0 has not taken it. */
static void drop_shard(const ddp_trainer *t, uint64_t step)
{
    checkpoint_shard_drop(t->s->config->checkpoint->dir, step, t->shards.token, (uint32_t)ddp_group_rank(t->group));
}

static ddp_status save_in_step(ddp_trainer *t, int64_t from, bool last, ddp_err *err)
{
    char error[sizeof(err->msg)] = "";
    bool sharded = state_is_saved_in_shards(t), rank0 = t->s->launch.rank == 0;
    int64_t write_from;
    ddp_status st;

    if (!sharded) DDP_TRY(states_whole(t, err));
    if (rank0) DDP_TRY(state_pull(t, ALL_ARENAS, err));
    if (!rank0 && sharded) DDP_TRY(state_pull(t, DDP_ARENA_STATES, err));
    if (t->reduce.hooked != NULL) DDP_TRY(ddp_hooked_hold(t->reduce.hooked, err));
    DDP_TRY(state_local_hold(t, err));
    DDP_TRY(collect(t, err));
    write_from = ddp_now_ns();
    if (t->local.head != NULL && !rank0) DDP_TRY(head_serve(t, err));
    if ((rank0 || sharded) && write_own(t, err) != DDP_OK) ddp_copy_text(error, sizeof(error), err->msg);
    if (t->local.head != NULL && rank0) DDP_TRY(head_done(t, err));
    ddp_states_free(t);
    if (ranks_are_stages(t)) ranks_arenas_drop(t);
    if (t->reduce.hooked != NULL) ddp_hooked_drop(t->reduce.hooked);
    state_local_drop(t);
    st = wait_for_rank0(t, error, last, err);
    if (st != DDP_OK && !rank0 && sharded) drop_shard(t, t->progress.step);
    if (st != DDP_OK) return st;
    tell(t, t->progress.step, t->progress.epoch, ms_since(from), ms_since(write_from));
    return DDP_OK;
}

/* ---- beside training --------------------------------------------------------------------------------------------- */
/* `last`: what has failed is not tried again. */
static ddp_status take_outcome(ddp_trainer *t, bool last, ddp_err *err)
{
    ddp_checkpoint_outcome o;

    if (t->saver == NULL || t->saver->writer == NULL || !ddp_checkpoint_writer_take(t->saver->writer, &o))
        return DDP_OK;
    if (o.err.status == DDP_OK) {
        tell(t, o.step, o.epoch, t->saver->stall_ms, o.write_ms);
        return DDP_OK;
    }
    if (!goes_on(t)) return end_run(t, o.err.msg, err);
    t->saver->failed_step = o.step;
    ddp_copy_text(t->saver->failed, sizeof(t->saver->failed), o.err.msg);
    if (!last) warn_of_failure(t, o.step, o.err.msg);
    return DDP_OK;
}

ddp_status ddp_trainer_save_check(ddp_trainer *t, ddp_err *err) { return take_outcome(t, false, err); }

/* Once a run: there is one copy, and what it holds has to be written before it is free again. */
static void warn_of_wait(ddp_trainer *t)
{
    if (t->saver->warned || t->saver->step == t->progress.step) return;
    t->saver->warned = true;
    ddp_log_line(t->s->log, DDP_LOG_WARN,
                 "the checkpoint of step %" PRIu64 " is due and that of step %" PRIu64
                 " is still being written: training waits for it, now and wherever this happens again. "
                 "Raise [checkpoint] every, or set dir to a faster disk",
                 t->progress.step, t->saver->step);
}

/* Rank 0. Until nothing is being written any more; not longer than the run lasts. */
static ddp_status wait_for_writer(ddp_trainer *t, bool last, ddp_err *err)
{
    int64_t from = ddp_now_ns();
    ddp_failure f;

    while (!ddp_checkpoint_writer_wait(t->saver->writer, ddp_now_ns() + LOOK_MS * INT64_C(1000000))) {
        if (ddp_group_failed(t->group, &f)) {
            (void)ddp_fail(err, DDP_ERR_ABORTED, "%s", f.msg);
            return ddp_fail_as(err, f.exit_code);
        }
        if (ms_since(from) >= WARN_MS) warn_of_wait(t);
    }
    return take_outcome(t, last, err);
}

static ddp_status save_beside(ddp_trainer *t, int64_t from, ddp_err *err)
{
    ddp_saver *v = t->saver;

    DDP_TRY(collect(t, err));
    if (v->writer == NULL) return DDP_OK;
    if (t->s->launch.rank != 0) drop_shard(t, v->step); /* where rank 0 has failed */
    DDP_TRY(state_snapshot_copy(t, &v->snapshot, err));
    v->step = t->progress.step;
    v->stall_ms = ms_since(from);
    ddp_checkpoint_writer_begin(v->writer, &v->snapshot.contents.what);
    return DDP_OK;
}

static ddp_status save_now(ddp_trainer *t, bool last, ddp_err *err)
{
    int64_t from = ddp_now_ns();
    char name[64];
    ddp_status st;

    DDP_TRY(ddp_trainer_audit_flush(t, err)); /* a step that nobody makes again is on record */
    if (t->saver != NULL && t->saver->writer != NULL) DDP_TRY(wait_for_writer(t, false, err));
    (void)snprintf(name, sizeof(name), "checkpoint of step %" PRIu64, t->progress.step);
    DDP_TRY_AS(DDP_EXIT_PEER, err, ddp_group_barrier(t->group, name, t->s->config->group->step_timeout_ms, err));
    st = t->saver != NULL ? save_beside(t, from, err) : save_in_step(t, from, last, err);
    if (st == DDP_IN_PROGRESS) return DDP_OK;
    if (st == DDP_OK) t->progress.saved_step = t->progress.step;
    return st;
}

static ddp_status save(ddp_trainer *t, bool last, ddp_err *err)
{
    int64_t from = ddp_now_ns();
    ddp_status st;

    if (!t->progress.saving || t->progress.saved_step == t->progress.step) return DDP_OK;
    st = save_now(t, last, err);
    ddp_group_times_checkpoint(t->group, ms_since(from));
    return st;
}

ddp_status ddp_trainer_save(ddp_trainer *t, ddp_err *err) { return save(t, false, err); }

static ddp_status wait_until_durable(ddp_trainer *t, bool last, ddp_err *err)
{
    const ddp_saver *v = t->saver;
    int64_t from = ddp_now_ns();
    ddp_status st;

    if (v == NULL) return DDP_OK;
    if (v->writer != NULL) DDP_TRY(wait_for_writer(t, last, err));
    st = wait_for_rank0(t, last && v->failed_step == t->progress.step ? v->failed : "", last, err);
    ddp_group_times_checkpoint(t->group, ms_since(from));
    return st;
}

ddp_status ddp_trainer_save_wait(ddp_trainer *t, ddp_err *err) { return wait_until_durable(t, false, err); }

ddp_status ddp_trainer_save_last(ddp_trainer *t, ddp_err *err)
{
    DDP_TRY(save(t, true, err));
    return wait_until_durable(t, true, err);
}

/* ---- life -------------------------------------------------------------------------------------------------------- */
/* Whether a save will come that training need not wait for: the last one of a run it waits for. */
static bool saves_on_the_way(const ddp_trainer *t)
{
    uint64_t every = (uint64_t)t->s->config->checkpoint->every, step = t->progress.step;
    bool best = t->s->watch.kept.name[0] != '\0' && step + t->s->steps_per_epoch < t->progress.total_steps;

    if (arenas_are_mapped(t)) return false; /* rank 0 has no room for a copy of what the others have */
    return t->progress.saving && t->s->config->checkpoint->async &&
           (best || (every > 0 && step - step % every + every < t->progress.total_steps));
}

/* Memory for a copy, and who writes it. */
static ddp_status open_writer(ddp_trainer *t, ddp_err *err)
{
    ddp_saver *v = t->saver;
    const ddp_retention keep = retention_of(t);
    uint64_t wanted = state_snapshot_bytes(t), there = ddp_memory_available();
    char a[32], b[32];

    if (wanted > there - there / 8) /* the rest of the process, and other processes, need some */
        return ddp_fail(err, DDP_ERR_NOMEM, "a copy of the state takes %s of memory, and %s are available",
                        ddp_format_bytes(wanted, a, sizeof(a)), ddp_format_bytes(there, b, sizeof(b)));
    if (!state_is_saved_in_shards(t)) DDP_TRY(states_whole(t, err));
    if (t->reduce.hooked != NULL) DDP_TRY(ddp_hooked_hold(t->reduce.hooked, err));
    DDP_TRY(state_local_hold(t, err));
    DDP_TRY(state_snapshot_open(t, &v->snapshot, err));
    return ddp_checkpoint_writer_open(t->lock, t->s->config->checkpoint->dir, &keep, t->s->log, &v->writer, err);
}

/* Also of what was made in part. Memory that collectives write to stays until those have ended: the trainer's end. */
static void free_saver(ddp_trainer *t)
{
    if (t->saver == NULL) return;
    ddp_checkpoint_writer_close(t->saver->writer);
    state_snapshot_close(t, &t->saver->snapshot);
    free(t->saver);
    t->saver = NULL;
}

/* Before the first save. */
static void give_up_saver(ddp_trainer *t)
{
    free_saver(t);
    ddp_states_free(t);
    if (t->reduce.hooked != NULL) ddp_hooked_drop(t->reduce.hooked);
    state_local_drop(t);
}

/* Where ranks tell of their shards, and how they name them. */
static ddp_status open_exchange(ddp_trainer *t, ddp_err *err)
{
    const ddp_store *store = ddp_group_store(t->group, "checkpoint", err);

    if (store == NULL) return err->status;
    if (t->s->launch.rank == 0) DDP_TRY(ddp_secret_random(&t->shards.token, sizeof(t->shards.token), err));
    DDP_TRY(ddp_trainer_from_rank0(t, "names of shards", &t->shards.token, sizeof(t->shards.token), err));
    t->shards.store = store;
    return DDP_OK;
}

ddp_status ddp_trainer_save_open(ddp_trainer *t, ddp_err *err)
{
    bool sharded = state_is_saved_in_shards(t), writes = t->s->launch.rank == 0 || sharded;
    uint64_t in_step = 0; /* 1: some rank cannot write beside training */

    if (sharded && t->progress.saving && t->shards.store == NULL) DDP_TRY(open_exchange(t, err));
    if (!saves_on_the_way(t)) return DDP_OK;
    t->saver = ddp_alloc(sizeof(*t->saver), err);
    if (t->saver == NULL) return err->status;
    if (writes && open_writer(t, err) != DDP_OK) {
        in_step = 1;
        ddp_log_line(t->s->log, DDP_LOG_WARN,
                     "[checkpoint] async: no checkpoint can be written beside training, which waits for each instead: "
                     "%s. Make room on this host, or set async = no, which does the same without this line",
                     err->msg);
        *err = (ddp_err){0};
        give_up_saver(t);
    }
    DDP_TRY(ddp_trainer_largest(t, "how checkpoints are written", &in_step, err));
    if (in_step > 0) give_up_saver(t);
    if (in_step > 0 || writes) return DDP_OK;
    DDP_TRY(states_whole(t, err));
    DDP_TRY(state_local_hold(t, err));
    return t->reduce.hooked == NULL ? DDP_OK : ddp_hooked_hold(t->reduce.hooked, err);
}

ddp_status ddp_trainer_save_pause(ddp_trainer *t, ddp_err *err)
{
    if (t->saver == NULL) return DDP_OK;
    if (t->saver->writer != NULL) DDP_TRY(wait_for_writer(t, false, err));
    give_up_saver(t);
    return DDP_OK;
}

void ddp_trainer_save_close(ddp_trainer *t, int64_t patience_ms)
{
    ddp_checkpoint_writer *w = t->saver == NULL ? NULL : t->saver->writer;
    int64_t until = patience_ms == INT64_MAX ? INT64_MAX : ddp_now_ns() + patience_ms * INT64_C(1000000);
    ddp_checkpoint_outcome o;

    if (w != NULL && !ddp_checkpoint_writer_wait(w, until)) ddp_checkpoint_writer_cancel(w);
    if (w != NULL) (void)ddp_checkpoint_writer_wait(w, INT64_MAX);
    if (w != NULL && ddp_checkpoint_writer_take(w, &o)) {
        if (o.err.status == DDP_OK)
            tell(t, o.step, o.epoch, t->saver->stall_ms, o.write_ms);
        else
            ddp_log_line(t->s->log, DDP_LOG_WARN, "the checkpoint of step %" PRIu64 " is not saved: %s", o.step,
                         o.err.msg);
    }
    if (w != NULL && t->s->launch.rank != 0) drop_shard(t, t->saver->step);
    free_saver(t);
}

/* ---- the hash ---------------------------------------------------------------------------------------------------- */
enum { HASHED = 4096 }; /* elements at a time */

ddp_status ddp_trainer_hash(ddp_trainer *t, char sha256[DDP_SHA256_HEX], ddp_err *err)
{
    float piece[HASHED];
    ddp_sha256 h;

    DDP_TRY(state_pull(t, DDP_ARENA_PARAMS, err));
    DDP_TRY(ddp_sha256_begin(&h, err));
    for (uint32_t p = 0; p < t->s->model.param_count; p++)
        for (uint64_t at = 0, all = t->s->model.params[p].elements; at < all; at += HASHED) {
            uint64_t count = DDP_MIN_OF(all - at, (uint64_t)HASHED);

            state_param_copy(t, p, at, count, piece);
            ddp_sha256_add(&h, piece, count * sizeof(float));
        }
    ddp_sha256_end(&h, sha256);
    return DDP_OK;
}
