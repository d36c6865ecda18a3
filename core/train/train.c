/* train/train.c -- the generations of a rank: the rendezvous, its run, and after the loss of a rank both once more, as
 * [run] restarts says. An error carries its exit code; the first failure of any rank is everyone's. */
#include "train/train.h"
#include "base/losses.h"
#include "session/open.h"
#include "train/join.h"
#include "train/run.h"
#include "train/state/save.h"
#include "train/state/survivor.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    SAVE_GRACE_MS = 500,  /* of the second that a rank has after a failure */
    SAVE_ALONE_MS = 20000 /* of the half minute after ddp_group_returning */
};

/* ---- the end --------------------------------------------------------------------------------------------------- */
/* The run's first failure, which is not always this rank's own error. */
static int failed(ddp_trainer *t, const ddp_err *err, char *message, size_t capacity)
{
    ddp_failure f = {0};
    char own[sizeof(f.msg)];
    int code = ddp_err_exit_code(err);

    if (code == DDP_EXIT_PEER && err->status == DDP_ERR_TIMEOUT) code = DDP_EXIT_TIMEOUT;
    (void)snprintf(own, sizeof(own), "rank %d: %s", t->s->launch.home,
                   err->msg[0] != '\0' ? err->msg : "a plugin failed without giving a reason");
    ddp_group_abort(t->group, code, own); /* does nothing when the run has already failed */
    if (!ddp_group_failed(t->group, &f)) {
        f.exit_code = code;
        ddp_copy_text(f.msg, sizeof(f.msg), own);
    }
    ddp_copy_text(message, capacity, f.msg);
    return f.exit_code;
}

/* The words for a run that a signal has ended in good order. */
static int stopped(const ddp_trainer *t, char *message, size_t capacity)
{
    int n = snprintf(message, capacity, "ended by signal %d (%s) after step %" PRIu64, t->progress.stopping,
                     strsignal(t->progress.stopping), t->progress.step);

    if (n > 0 && (size_t)n < capacity)
        (void)snprintf(message + n, capacity - (size_t)n, "%s",
                       t->progress.saving ? ", which is saved: the same command goes on from there"
                                          : "; nothing is saved, for [checkpoint] dir is not set");
    return 128 + t->progress.stopping;
}

static void expire(void *ctx, const ddp_failure *cause) /* maybe during the rendezvous */
{
    ddp_trainer *t = ctx;

    t->ending->expired(t->ending->ctx, cause->exit_code, cause->msg);
}

/* A rank was lost, and the others may go on without starting again: keeps what they go on with. */
static bool survives(ddp_trainer *t, int code, ddp_losses *losses)
{
    char text[sizeof(t->ending->message) + 160];

    if (!ddp_trainer_rejoins(t) || !ddp_exit_is_loss(code) || !ddp_losses_add(losses, ddp_now_ms())) return false;
    trainer_graceful(t->s, false); /* from now on a signal ends this process at once; one that has come before: */
    if (t->s->launch.stop != NULL && atomic_load(&t->s->launch.stop->signal) != 0) return false;
    ddp_group_returning(t->group);
    (void)snprintf(text, sizeof(text), "%s: the ranks wait for the lost one for %.3g s (rejoin_timeout), then go on",
                   t->ending->message, (double)t->s->config->run->rejoin_timeout_ms / 1e3);
    t->ending->rejoining(t->ending->ctx, ddp_group_generation(t->group), text);
    return true;
}

/* The server was lost before all had met again: it is looked for once more, with the state that this rank has. */
static bool looks_again(const ddp_trainer *t, uint32_t generation, const ddp_failure *failure, ddp_losses *losses)
{
    if (generation == 0 || !ddp_trainer_rejoins(t) || !ddp_exit_is_loss(failure->exit_code) ||
        !ddp_losses_add(losses, ddp_now_ms()))
        return false;
    ddp_log_line(t->s->log, DDP_LOG_WARN, "%s, before all ranks had met again: this rank looks for it", failure->msg);
    return true;
}

/* A checkpoint that is being written when the run fails may become durable in the time that this rank has: where others
 * wait for it, or nobody does, a while; else until the others are gone. */
static int64_t patience_with_save(const ddp_trainer *t, int code, bool over)
{
    if (code == DDP_EXIT_OK) return INT64_MAX;
    if (over) return DDP_MIN_OF(t->s->config->run->rejoin_timeout_ms / 2, SAVE_ALONE_MS);
    if (ddp_group_world(t->group) > 1) return SAVE_GRACE_MS;
    ddp_group_returning(t->group);
    return SAVE_ALONE_MS;
}

/* What is lost if this process ends before the ranks have joined again. */
static void note_kept(const ddp_trainer *t)
{
    const ddp_survivor *v = t->survivor;
    const char *dir = t->s->config->checkpoint->dir;
    ddp_stop *stop = t->s->launch.stop;
    ddp_checkpoint_meta newest = {0};
    ddp_err err;

    if (stop == NULL || v->length == 0) return;
    if (dir[0] == '\0' || ddp_checkpoint_newest_meta(dir, &newest, &err) != DDP_OK) newest.step = 0;
    atomic_store(&stop->saved, newest.step);
    atomic_store(&stop->kept, v->progress.step > newest.step ? v->progress.step : 0);
}

/* The run's failure, which comes when this rank is done: its exit code. The loss of a rank ends nothing where all
 * close in order to join again. */
static int ended_by(const ddp_trainer *t, const ddp_failure *f, bool *over)
{
    if (f->exit_code == DDP_EXIT_OK || (*over && ddp_exit_is_loss(f->exit_code))) return DDP_EXIT_OK;
    *over = false;
    ddp_copy_text(t->ending->message, sizeof(t->ending->message), f->msg);
    return f->exit_code;
}

/* From one rendezvous of the ranks to the end of the run, or to that of this generation alone, which *over says: a rank
 * is lost, or another one can join. */
static int run_generation(ddp_trainer *t, uint32_t *generation, ddp_losses *losses, bool *over)
{
    ddp_failure failure = {0};
    ddp_err err = {0};
    int code = DDP_EXIT_OK;
    ddp_status st;

    do {
        failure = (ddp_failure){0};
        st = trainer_join(t, *generation, expire, &failure, &err);
    } while (st != DDP_OK && st != DDP_IN_PROGRESS && looks_again(t, *generation, &failure, losses));
    if (st == DDP_IN_PROGRESS) {
        ddp_log_line(t->s->log, DDP_LOG_INFO, "the run has ended, and has not needed this %s",
                     t->s->launch.spare ? "spare" : "rank");
        return DDP_EXIT_OK;
    }
    if (st != DDP_OK) {
        ddp_copy_text(t->ending->message, sizeof(t->ending->message), failure.exit_code != 0 ? failure.msg : err.msg);
        return failure.exit_code != 0 ? failure.exit_code : DDP_EXIT_RENDEZVOUS;
    }
    *generation = ddp_group_generation(t->group);
    ddp_survivor_met(t);
    if (trainer_run(t, &err) != DDP_OK) {
        code = failed(t, &err, t->ending->message, sizeof(t->ending->message));
        *over = survives(t, code, losses);
        if (*over)
            ddp_survivor_keep(t);
        else if (t->s->launch.purpose == DDP_TO_TRAIN)
            (void)trainer_finish(t, code, &err);
    } else if (t->progress.stopping == DDP_STOP_TO_GROW) {
        *over = true;
        ddp_group_grow(t->group);
        ddp_survivor_keep(t);
    } else if (t->progress.stopping != 0) {
        code = stopped(t, t->ending->message, sizeof(t->ending->message));
    }
    if (*over) note_kept(t);
    ddp_trainer_save_close(t, patience_with_save(t, code, *over));
    if (*over) note_kept(t); /* the save in progress may be durable now */
    ddp_checkpoint_lock_release(t->lock);
    if (!trainer_close(t)) *over = false; /* a thread of a plugin is left: another process has to take this rank */
    t->survivor->expected = ddp_group_world(t->group) + ddp_group_knocks(t->group);
    /* closing, here or on another rank */
    if (code == DDP_EXIT_OK && ddp_group_failed(t->group, &failure)) code = ended_by(t, &failure, over);
    ddp_group_leave(t->group, &failure);
    /* a rank that has not said goodbye yet; a run that is complete, and saved, it does not concern any more */
    if (code == DDP_EXIT_OK && *over) code = ended_by(t, &failure, over);
    return code;
}

int ddp_train(ddp_session *s, ddp_ending *ending)
{
    ddp_losses losses = {.most = s->config->run->restarts, .window_ms = s->config->run->restart_window_ms};
    ddp_survivor survivor = {0};
    uint32_t generation = 0;
    ddp_err err = {0};
    int code;

    for (;;) {
        ddp_trainer t = {
            .s = s,
            .ending = ending,
            .survivor = &survivor,
            .result = {.loss = NAN, .first_step_s = NAN, .eval_loss = NAN, .eval_accuracy = NAN, .grad_norm = NAN}};
        bool over = false;

        code = run_generation(&t, &generation, &losses, &over);
        if (!over) break;
        if (ddp_session_renew(s, &err) != DDP_OK) {
            ddp_copy_text(ending->message, sizeof(ending->message), err.msg);
            code = ddp_err_exit_code(&err);
            break;
        }
        generation++;
    }
    ddp_survivor_free(&survivor);
    return code;
}
