/* train/state/resume.c -- the start of a run: rank 0 alone reads, everything that is loaded is broadcast and its hash
 * compared. The files are checkpoint/'s affair. */
#include "train/state/resume.h"
#include "train/head/pieces.h"
#include "train/ranks/arenas.h"
#include "train/reduce/comm_stream.h"
#include "train/reduce/hook_state.h"
#include "train/state/buffer_sync.h"
#include "train/state/local_states.h"
#include "train/state/memory.h"
#include "train/state/optim_state.h"
#include "train/state/resume_hook.h"
#include "train/state/resume_settings.h"
#include "train/state/survivor.h"
#include "train/state/tensors.h"
#include "train/state/weights/weights.h"
#include "train/watch.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { RETRY_NS = 50000000 };

/* ---- loading, rank 0 ------------------------------------------------------------------------------------------- */
static ddp_status another(const char *path, const char *what, const char *name, const char *there, const char *here,
                          ddp_err *err)
{
    return ddp_fail(
        err, DDP_ERR_CONFIG,
        "checkpoint %s is of another %s: %s is %s there and %s in this run; set [checkpoint] dir to another folder, or resume = never; init_from takes the parameters alone",
        path, what, name, there, here);
}

/* Copies every tensor of the part into the views; the first difference between the two tables is the error. */
static ddp_status fill_views(ddp_trainer *t, const ddp_checkpoint *c, int part, const char *what, const ddp_views *v,
                             ddp_err *err)
{
    char a[128], b[128];
    uint64_t first;
    uint32_t which;

    for (size_t i = 0; i < v->count; i++) {
        const ddp_named_tensor *here = &v->tensors[i], *found = ddp_checkpoint_find(c, part, here->name);

        state_tensor_text(found, a, sizeof(a));
        state_tensor_text(here, b, sizeof(b));
        if (found == NULL || !state_tensor_alike(found, here)) return another(c->path, what, here->name, a, b, err);
        if (head_finds(t, v->data[i], &which, &first))
            DDP_TRY(head_load(t, c, part, found, v->data[i], err));
        else if (v->data[i] != NULL)
            ddp_checkpoint_copy(c, part, found, v->data[i]);
    }
    for (size_t i = 0; i < ddp_checkpoint_count(c, part); i++) {
        const ddp_named_tensor *there = ddp_checkpoint_at(c, part, i);
        bool known = false;

        for (size_t k = 0; k < v->count && !known; k++) known = strcmp(v->tensors[k].name, there->name) == 0;
        state_tensor_text(there, a, sizeof(a));
        if (!known) return another(c->path, what, there->name, a, "absent", err);
    }
    return DDP_OK;
}

ddp_status state_check_model(ddp_trainer *t, const ddp_checkpoint *c, ddp_err *err)
{
    const ddp_state_arenas none = {0};
    ddp_views model = {0};
    ddp_status st = state_model_views(t, &none, STATE_SAVED, &model, err);

    if (st == DDP_OK) st = fill_views(t, c, DDP_PART_MODEL, "model", &model, err);
    if (st == DDP_OK) st = state_check_settings(t, c, err);
    state_views_free(&model);
    return st;
}

/* The average of the parameters; a run that has one, and a checkpoint that has none, begin a new one. */
static ddp_status fill_average(ddp_trainer *t, const ddp_checkpoint *c, ddp_err *err)
{
    const ddp_state_arenas a = state_arenas(t);
    ddp_views average = {0};
    ddp_status st;

    if ((a.ema != NULL) != (c->parts[DDP_PART_EMA] != NULL))
        ddp_log_line(t->s->log, DDP_LOG_INFO, "checkpoint %s has %s", c->path,
                     a.ema != NULL ? "no average of the parameters: [optimizer] ema begins with the next update"
                                   : "an average of the parameters, which is left out: [optimizer] ema is 0");
    if (a.ema == NULL || c->parts[DDP_PART_EMA] == NULL) return DDP_OK;
    st = state_ema_views(t, &a, STATE_SAVED, &average, err);
    if (st == DDP_OK) st = fill_views(t, c, DDP_PART_EMA, "model", &average, err);
    state_views_free(&average);
    return st;
}

static ddp_status fill_from(ddp_trainer *t, const ddp_checkpoint *c, ddp_err *err)
{
    ddp_views model, states = {0};
    ddp_state_arenas a = state_arenas(t);
    ddp_status st = state_model_views(t, &a, STATE_SAVED, &model, err);

    if (st == DDP_OK) st = fill_average(t, c, err); /* with the buffers, which are the model's */
    if (st == DDP_OK) st = fill_views(t, c, DDP_PART_MODEL, "model", &model, err);
    if (st == DDP_OK) st = state_check_settings(t, c, err);
    if (st == DDP_OK) st = states_whole(t, err);
    a = state_arenas(t);
    if (st == DDP_OK) st = state_views(t, &a, &states, err);
    if (st == DDP_OK) st = fill_views(t, c, DDP_PART_OPTIMIZER, "optimiser", &states, err);
    state_views_free(&states);
    state_views_free(&model);
    return st;
}

/* What rank 0 sends the others; the same program runs on all, so a struct is its own wire format. */
struct resume_report {
    int32_t found, failed, saving, hooked; /* hooked: what hooks remember is there too */
    state_local_found local;               /* what is there of local steps */
    ddp_checkpoint_meta meta;
    char path[512], error[sizeof(((ddp_err *)NULL)->msg)];
};

/* Whether the checkpoint at `path` lies directly in `dir`. */
static bool lies_in(const char *path, const char *dir)
{
    char parent[sizeof(((ddp_checkpoint *)NULL)->path) + 4];
    struct stat a, b;

    (void)snprintf(parent, sizeof(parent), "%s/..", path);
    return stat(parent, &a) == 0 && stat(dir, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/* A run that starts afresh or goes back leaves the folder to itself: see ddp_checkpoint_set_aside. */
static ddp_status set_aside(const ddp_trainer *t, ddp_err *err)
{
    const struct ddp_checkpoint_config *c = t->s->config->checkpoint;
    uint64_t from = 0;

    if (t->s->launch.rank != 0 || c->dir[0] == '\0' || strcmp(c->resume, "auto") == 0 || ddp_trainer_goes_on(t))
        return DDP_OK;
    if (strcmp(c->resume, "never") != 0 && lies_in(c->resume, c->dir)) from = t->progress.step + 1;
    return ddp_checkpoint_set_aside(t->lock, from, t->s->log, err);
}

/* Nobody else writes there from now on. The process that had this rank before may still be ending: it is waited for. */
static ddp_status lock_folder(ddp_trainer *t, ddp_err *err)
{
    int64_t wait_ms = ddp_trainer_goes_on(t) ? t->s->config->run->rejoin_timeout_ms : 0, from = ddp_now_ms();

    for (bool first = true;; first = false) {
        ddp_status st = ddp_checkpoint_lock_take(t->s->config->checkpoint->dir, t->s->log, &t->lock, err);

        if (st == DDP_OK || err->exit_code != DDP_EXIT_CHECKPOINT || ddp_now_ms() - from >= wait_ms) return st;
        if (first)
            ddp_log_line(t->s->log, DDP_LOG_WARN, "%s; if it is ending it is waited for, for %.3g s (rejoin_timeout)",
                         err->msg, (double)wait_ms / 1e3);
        *err = (ddp_err){0};
        DDP_TRY(ddp_trainer_still_runs(t, err));
        (void)nanosleep(&(struct timespec){.tv_nsec = RETRY_NS}, NULL);
    }
}

static ddp_status open_folder(ddp_trainer *t, ddp_err *err)
{
    DDP_TRY(lock_folder(t, err));
    return ddp_checkpoint_prepare(t->lock, err);
}

/* For a run that does not train. */
static ddp_status rank0_use(ddp_trainer *t, struct resume_report *report, ddp_err *err)
{
    ddp_weights w;

    DDP_TRY(ddp_trainer_read_weights(t, &w, err));
    report->meta = w.meta;
    ddp_copy_text(report->path, sizeof(report->path), w.path);
    return DDP_OK;
}

static ddp_status rank0_load(ddp_trainer *t, struct resume_report *report, ddp_err *err)
{
    const struct ddp_checkpoint_config *c = t->s->config->checkpoint;
    ddp_checkpoint ck;
    bool hooked = false;
    ddp_status st = DDP_IN_PROGRESS;

    if (t->s->launch.purpose != DDP_TO_TRAIN) return rank0_use(t, report, err);
    if (c->dir[0] != '\0' && t->lock == NULL) DDP_TRY(open_folder(t, err));
    if (c->dir[0] != '\0' && (ddp_trainer_goes_on(t) || strcmp(c->resume, "auto") == 0))
        st = ddp_checkpoint_newest(c->dir, &ck, t->s->log, err);
    if (st == DDP_IN_PROGRESS && strcmp(c->resume, "never") != 0 && strcmp(c->resume, "auto") != 0) {
        st = ddp_checkpoint_open(c->resume, &ck, err);
        if (st != DDP_OK) return ddp_fail_context(err, "[checkpoint] resume, which takes auto, never or a checkpoint");
    }
    if (st == DDP_IN_PROGRESS) return state_trainer_first(t, err);
    if (st != DDP_OK) return st;
    st = state_trainer_base(t, ck.path, &ck.meta, err);
    if (st == DDP_OK) st = fill_from(t, &ck, err);
    if (st == DDP_OK) st = state_trainer_fill_hook(t, &ck, &hooked, err);
    if (st == DDP_OK) st = state_local_fill(t, &ck, &report->local, err);
    report->hooked = hooked;
    report->found = 1;
    report->meta = ck.meta;
    if (t->mem.ema == NULL || ck.parts[DDP_PART_EMA] == NULL) report->meta.history.averaged = 0;
    ddp_copy_text(report->path, sizeof(report->path), ck.path);
    ddp_checkpoint_close(&ck);
    return st;
}

/* A hook that carries something to the next step has it of a state that is not to be used. */
static ddp_status check_hook(const ddp_trainer *t, const struct resume_report *report, ddp_err *err)
{
    const ddp_hook_state *states;

    if (!t->progress.rollback.wanted || report->hooked || t->reduce.hooked == NULL ||
        ddp_hooked_states(t->reduce.hooked, &states) == 0)
        return DDP_OK;
    return ddp_fail(
        err, DDP_ERR_CONFIG,
        "the run cannot go back: no checkpoint has what hook \"%s\" carries to the next step; start it again",
        t->s->hook->desc.name);
}

/* ---- what every rank gets -------------------------------------------------------------------------------------- */
static ddp_status broadcast(ddp_trainer *t, float *arena, uint64_t elements, uint32_t root, ddp_err *err)
{
    ddp_task task = ddp_task_of(DDP_COLL_BROADCAST, DDP_SUM, NULL, arena, elements);

    task.coll.root = root;
    DDP_TRY_AS(DDP_EXIT_PEER, err, ddp_host_collective(&t->s->device, t->comm, &task, err));
    return DDP_OK;
}

/* To all from rank `root`, which has it; `averaged` 0: there is none. */
static ddp_status spread_average(ddp_trainer *t, uint64_t averaged, uint32_t root, ddp_err *err)
{
    if (t->mem.ema == NULL || averaged == 0) return DDP_OK;
    DDP_TRY(broadcast(t, t->mem.host.ema, state_saved_elements(t), root, err));
    return ddp_push(t, DDP_ARENA_EMA, err);
}

static ddp_status compare_hashes(ddp_trainer *t, uint64_t states, uint64_t averaged, ddp_err *err)
{
    uint64_t first = head_elements(t); /* before it ranks have different classes */
    size_t bytes = (t->s->model.layout->param_elements - first) * sizeof(float);
    ddp_text lines = {0};
    ddp_status st;

    if (t->s->launch.rank == 0) DDP_TRY(state_base_hash(t, t->mem.host.params, false, t->mem.base_hash, err));
    ddp_text_printf(&lines, "hash of parameters = %016" PRIx64 "\tafter the broadcast at the start\n",
                    ddp_hash64(t->mem.host.params + first, bytes, 0));
    if (t->mem.state1 != NULL)
        ddp_text_printf(&lines, "hash of optimiser state = %016" PRIx64 "\tafter the broadcast at the start\n", states);
    if (t->mem.ema != NULL && averaged > 0)
        ddp_text_printf(&lines, "hash of averaged parameters = %016" PRIx64 "\tafter the broadcast at the start\n",
                        ddp_hash64(t->mem.host.ema, state_saved_elements(t) * sizeof(float), 0));
    if (t->mem.buffers != NULL)
        ddp_text_printf(&lines, "hash of buffers = %016" PRIx64 "\tafter the broadcast at the start\n",
                        ddp_hash64(t->mem.host.buffers, t->s->model.buffer_elements * sizeof(float), 0));
    st = lines.failed ? ddp_fail(err, DDP_ERR_NOMEM, "out of memory for what the ranks compare")
                      : ddp_group_agree(t->group, "parameters at the start", lines.data, DDP_EXIT_CHECKPOINT,
                                        t->s->config->group->step_timeout_ms, err);
    ddp_text_free(&lines);
    return st == DDP_OK ? DDP_OK : ddp_fail_as(err, DDP_EXIT_PEER);
}

/* Rank 0's report to all; its failure is everyone's. */
static ddp_status broadcast_report(ddp_trainer *t, struct resume_report *report, ddp_err *err)
{
    DDP_TRY(ddp_trainer_from_rank0(t, "checkpoint to load", report, sizeof(*report), err));
    if (!report->failed) return DDP_OK;
    ddp_group_abort(t->group, DDP_EXIT_CHECKPOINT, report->error);
    (void)ddp_fail(err, DDP_ERR_DATA, "%s", report->error);
    return ddp_fail_as(err, DDP_EXIT_CHECKPOINT);
}

static void take_position(ddp_trainer *t, const struct resume_report *report, bool *done)
{
    t->progress.step = t->progress.start_step = report->meta.step;
    t->progress.epoch = report->meta.epoch;
    t->progress.cursor = state_cursor(t, &report->meta);
    t->progress.micro_steps = state_micro_steps(t, &report->meta);
    t->progress.saved_step = t->progress.compared_step = report->meta.step;
    t->progress.history = report->meta.history;
    train_watch_resume(t);
    t->progress.evaluates = report->meta.history.due != 0;
    *done = ddp_trainer_complete(t);
    if (t->s->launch.rank != 0) return;
    if (t->progress.rollback.wanted)
        ddp_log_line(t->s->log, DDP_LOG_INFO, "going back to %s: step %" PRIu64 ", epoch %" PRIu64, report->path,
                     t->progress.step, t->progress.epoch + 1);
    else if (*done && ddp_trainer_stops_early(t))
        ddp_log_line(
            t->s->log, DDP_LOG_INFO,
            "%s: the run is already complete (step %" PRIu64 ", %" PRIu64
            " epochs), ended by early stopping. Raise its patience, or remove [train] early_stopping, to go on",
            report->path, t->progress.step, t->progress.epoch);
    else if (*done)
        ddp_log_line(t->s->log, DDP_LOG_INFO,
                     "%s: the run is already complete (step %" PRIu64 ", %" PRIu64
                     " epochs). Raise [train] epochs or max_steps to go on, or set [checkpoint] resume = never",
                     report->path, t->progress.step, t->progress.epoch);
    else
        ddp_log_line(t->s->log, DDP_LOG_INFO, "resuming from %s: step %" PRIu64 ", epoch %" PRIu64, report->path,
                     t->progress.step, t->progress.epoch + 1);
}

/* From the memory of rank `source`, which was in the run before this generation met. */
static ddp_status restore_from(ddp_trainer *t, int32_t source, const ddp_progress *at, ddp_err *err)
{
    struct resume_report report = {.saving = 1};
    uint64_t states = 0;

    DDP_TRY(ddp_staging_open(t, DDP_ARENA_PARAMS | DDP_ARENA_BUFFERS | DDP_ARENA_STATES | DDP_ARENA_EMA, err));
    if (t->s->launch.rank == 0 && open_folder(t, err) != DDP_OK) {
        report.failed = 1;
        ddp_copy_text(report.error, sizeof(report.error), err->msg);
    }
    DDP_TRY(broadcast_report(t, &report, err));
    if (t->s->launch.rank == source) DDP_TRY(ddp_survivor_fill(t, err));
    DDP_TRY(broadcast(t, t->mem.host.params, t->s->model.layout->param_elements, (uint32_t)source, err));
    DDP_TRY(ddp_push(t, DDP_ARENA_PARAMS | DDP_ARENA_BUFFERS, err));
    DDP_TRY(ddp_trainer_broadcast_buffers_of(t, (uint32_t)source, err));
    DDP_TRY(ddp_trainer_take_counts(t, source, err));
    DDP_TRY(states_spread(t, (uint32_t)source, &states, err));
    DDP_TRY(ddp_push(t, DDP_ARENA_STATES, err));
    DDP_TRY(spread_average(t, at->history.averaged, (uint32_t)source, err));
    DDP_TRY(compare_hashes(t, states, at->history.averaged, err));
    DDP_TRY(state_base_pack(t, err));
    t->progress = *at;
    t->progress.start_step = at->step;
    t->progress.saved_step = UINT64_MAX; /* what was being written may have been given up */
    t->progress.saving = true;
    if (t->s->launch.rank == 0)
        ddp_log_line(t->s->log, DDP_LOG_INFO, "going on from the memory of rank %d: step %" PRIu64 ", epoch %" PRIu64,
                     (int)ddp_group_home(t->group, source), at->step, at->epoch + 1);
    return DDP_OK;
}

static ddp_status restore(ddp_trainer *t, bool *done, ddp_err *err)
{
    struct resume_report report = {0};
    uint64_t states = 0;
    bool training = t->s->launch.purpose == DDP_TO_TRAIN;

    t->progress.saved_step = t->progress.compared_step = UINT64_MAX;
    DDP_TRY_AS(DDP_EXIT_CHECKPOINT, err,
               ddp_staging_open(t, DDP_ARENA_PARAMS | DDP_ARENA_BUFFERS | DDP_ARENA_EMA | DDP_ARENA_OUTER, err));
    if (t->local.head != NULL && t->s->launch.rank != 0) DDP_TRY(head_serve(t, err));
    if (t->s->launch.rank == 0 && (rank0_load(t, &report, err) != DDP_OK || check_hook(t, &report, err) != DDP_OK)) {
        report.failed = 1;
        ddp_copy_text(report.error, sizeof(report.error), err->msg);
    }
    if (t->local.head != NULL && t->s->launch.rank == 0) DDP_TRY(head_done(t, err));
    report.saving = training && t->s->config->checkpoint->dir[0] != '\0';
    DDP_TRY(broadcast_report(t, &report, err));
    t->progress.saving = report.saving != 0; /* rank 0's folder decides; the others need none */
    if (ranks_are_stages(t))
        DDP_TRY(ranks_arenas_spread(t, DDP_ARENA_PARAMS | (report.found ? DDP_ARENA_STATES : 0), err));
    else if (t->local.head != NULL)
        DDP_TRY(head_spread(t, report.found != 0, err));
    else
        DDP_TRY(broadcast(t, t->mem.host.params, t->s->model.layout->param_elements, 0, err));
    DDP_TRY(ddp_push(t, DDP_ARENA_PARAMS | DDP_ARENA_BUFFERS, err));
    DDP_TRY(ddp_trainer_broadcast_buffers(t, err)); /* whatever [ddp] broadcast_buffers says, as in PyTorch */
    if (report.found) {
        if (t->s->launch.rank != 0) DDP_TRY(states_whole(t, err));
        if (!arenas_are_mapped(t)) DDP_TRY(states_spread(t, 0, &states, err));
        DDP_TRY(ddp_push(t, DDP_ARENA_STATES, err));
        DDP_TRY(spread_average(t, report.meta.history.averaged, 0, err));
        take_position(t, &report, done);
        DDP_TRY(state_local_spread(t, &report.local, err));
    }
    if (report.hooked) {
        if (t->s->launch.rank != 0) DDP_TRY(ddp_hooked_hold(t->reduce.hooked, err));
        DDP_TRY(ddp_hooked_spread(t->reduce.hooked, err));
    }
    if (t->reduce.hooked != NULL) ddp_hooked_drop(t->reduce.hooked);
    state_local_drop(t);
    ddp_states_free(t);
    if (!ranks_are_stages(t)) DDP_TRY(compare_hashes(t, states, report.meta.history.averaged, err));
    DDP_TRY(state_base_pack(t, err));
    if (training && !*done) DDP_TRY_AS(DDP_EXIT_CHECKPOINT, err, set_aside(t, err));
    if (training) return DDP_OK;
    t->progress.step = report.meta.step;
    t->progress.epoch = report.meta.epoch;
    ddp_copy_text(t->weights, sizeof(t->weights), report.path);
    return DDP_OK;
}

/* What the files of a checkpoint do not set, as it was before step 0. */
static ddp_status start_again(ddp_trainer *t, ddp_err *err)
{
    float *states[2] = {t->mem.state1, t->mem.state2};

    for (int k = 0; k < 2; k++)
        if (states[k] != NULL) DDP_TRY(ddp_scale_floats(t, states[k], states_elements(t), 0.0, err));
    if (t->mem.outer.momentum != NULL)
        DDP_TRY(ddp_scale_floats(t, t->mem.outer.momentum, t->s->model.layout->elements, 0.0, err));
    for (uint32_t b = 0; b < t->s->model.buffer_count; b++) t->mem.counts[b] = 0;
    t->progress.step = t->progress.epoch = t->progress.cursor = t->progress.micro_steps = 0;
    t->progress.left_out = t->progress.apart = t->progress.round = 0;
    t->progress.evaluates = false;
    t->progress.history = (ddp_history){0};
    return DDP_OK;
}

ddp_status ddp_trainer_restore_again(ddp_trainer *t, ddp_err *err)
{
    bool done = false;

    DDP_TRY(start_again(t, err));
    DDP_TRY(restore(t, &done, err));
    if (t->progress.step == 0 && t->s->launch.rank == 0)
        ddp_log_line(t->s->log, DDP_LOG_INFO, "going back to the parameters that the run began with: step 0");
    return DDP_OK;
}

ddp_status ddp_trainer_restore(ddp_trainer *t, bool *done, ddp_err *err)
{
    ddp_progress at;
    int32_t source = -1;

    *done = false;
    if (ddp_group_generation(t->group) > 0) DDP_TRY(ddp_survivor_find(t, &source, &at, err));
    DDP_TRY(source >= 0 ? restore_from(t, source, &at, err) : restore(t, done, err));
    t->progress.restored = true;
    if (t->survivor != NULL) ddp_survivor_free(t->survivor); /* until here another failure would have needed it */
    return DDP_OK;
}
