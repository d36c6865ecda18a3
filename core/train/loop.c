/* train/loop.c -- the epochs of a run: steps, what is due between them, evaluations, and the way back to a
 * checkpoint. */
#include "train/loop.h"
#include "train/measure/evaluate.h"
#include "train/rollback.h"
#include "train/state/save.h"
#include "train/state/survivor.h"
#include "train/step.h"
#include "train/watch.h"

static bool step_limit(const ddp_trainer *t)
{
    return t->progress.ramp.over ||
           (t->s->config->train->max_steps > 0 && t->progress.step >= (uint64_t)t->s->config->train->max_steps);
}

static bool is_multiple(uint64_t step, int64_t every) { return every > 0 && step % (uint64_t)every == 0; }

/* What comes every so many steps, where all ranks have the same parameters: with local steps at the first outer step
 * from then on. */
static bool comes_due(const ddp_progress *p, int64_t every)
{
    uint64_t before = p->step > p->round ? p->step - p->round - 1 : 0;

    if (every <= 0 || p->apart > 0) return false;
    return p->step == 0 || p->step / (uint64_t)every > before / (uint64_t)every;
}

static ddp_status check_replicas(ddp_trainer *t, ddp_err *err)
{
    if (t->progress.rollback.wanted || t->progress.compared_step == t->progress.step) return DDP_OK;
    DDP_TRY(t->way.check_replicas(t, err));
    if (!t->progress.rollback.wanted) t->progress.compared_step = t->progress.step;
    return DDP_OK;
}

/* Where replicas are compared at all, every checkpoint is of replicas that were equal: any of them can be gone back
 * to. `how`: ddp_trainer_save, or that of the last one. */
static ddp_status save(ddp_trainer *t, ddp_status (*how)(ddp_trainer *t, ddp_err *err), ddp_err *err)
{
    bool saves = t->progress.saving && t->progress.saved_step != t->progress.step;

    if (saves && t->s->config->train->check_replicas_every > 0) DDP_TRY(check_replicas(t, err));
    return t->progress.rollback.wanted ? DDP_OK : how(t, err);
}

static ddp_status run_epoch(ddp_trainer *t, ddp_err *err)
{
    int64_t every = t->s->config->checkpoint->every, check = t->s->config->train->check_replicas_every;
    ddp_status st = DDP_OK;

    for (uint32_t i = 0; i < t->s->shares.own && t->loaders[i] != NULL; i++) /* of stages, the first has one */
        DDP_TRY_AS(DDP_EXIT_DATA, err, ddp_loader_begin(t->loaders[i], t->progress.epoch, t->progress.cursor, err));
    while (!step_limit(t) && t->progress.stopping == 0 && !t->progress.rollback.wanted &&
           (st = trainer_step(t, err)) == DDP_OK) {
        bool checks = comes_due(&t->progress, check),
             saves = comes_due(&t->progress, every) && t->progress.cursor < t->s->batches_per_epoch;

        DDP_TRY(ddp_trainer_save_check(t, err));
        if (checks || saves) DDP_TRY(t->way.finish(t, err));
        if (checks) DDP_TRY(check_replicas(t, err));
        if (saves) DDP_TRY(save(t, ddp_trainer_save, err));
    }
    if (st != DDP_OK && st != DDP_IN_PROGRESS) return st;
    DDP_TRY(t->way.finish(t, err));
    if (t->progress.rollback.wanted) return DDP_OK;
    if (t->progress.cursor < t->s->batches_per_epoch) return DDP_OK; /* the step limit came first */
    t->progress.epoch++;
    t->progress.cursor = 0;
    t->progress.evaluates =
        t->s->eval.sampler_count > 0 && is_multiple(t->progress.epoch, t->s->config->train->eval_every);
    if (t->progress.evaluates && train_watch_is_on(t)) return DDP_OK; /* what it brings is part of the checkpoint */
    return comes_due(&t->progress, every) ? save(t, ddp_trainer_save, err) : DDP_OK;
}

/* Ranks that wait do so for an evaluation that is due where no memory would tell the next generation of it. */
static bool evaluates_now(const ddp_trainer *t)
{
    int stopping = t->progress.stopping;

    return t->progress.evaluates && (stopping == 0 || (stopping == DDP_STOP_TO_GROW && !ddp_survivor_has_all(t)));
}

/* Whether an evaluation belongs here, however far the run goes. */
static bool is_due(const ddp_trainer *t)
{
    return t->progress.cursor == 0 && t->progress.epoch > 0 &&
           is_multiple(t->progress.epoch, t->s->config->train->eval_every);
}

/* What the evaluation was looked at for, and the checkpoint that waited for it. */
static ddp_status take_evaluation(ddp_trainer *t, ddp_err *err)
{
    bool best;

    if (!train_watch_is_on(t)) return DDP_OK;
    train_watch_take(t, is_due(t), &best);
    t->progress.saved_step = UINT64_MAX; /* one of this step does not have it */
    if (best || comes_due(&t->progress, t->s->config->checkpoint->every)) return save(t, ddp_trainer_save, err);
    return DDP_OK;
}

/* One that is cut short is made again by the next generation, or where something depends on it by the next run. */
static ddp_status evaluate(ddp_trainer *t, ddp_err *err)
{
    int stopping = t->progress.stopping;
    bool again;

    t->progress.stopping = 0;
    DDP_TRY(trainer_evaluate(t, err));
    again = t->progress.stopping == DDP_STOP_TO_GROW || (t->progress.stopping != 0 && train_watch_is_on(t));
    t->progress.evaluates = again;
    if (t->progress.stopping != 0) return DDP_OK;
    t->progress.stopping = stopping;
    return take_evaluation(t, err);
}

static ddp_status run_epochs(ddp_trainer *t, ddp_err *err)
{
    uint64_t epochs = (uint64_t)t->s->config->train->epochs, evaluated = UINT64_MAX; /* step of the newest evaluation */

    for (;;) {
        if (evaluates_now(t)) { /* at first where the ranks were lost in its midst */
            DDP_TRY(evaluate(t, err));
            evaluated = t->progress.step;
        }
        if (t->progress.epoch >= epochs || step_limit(t) || t->progress.stopping != 0 || ddp_trainer_stops_early(t))
            break;
        DDP_TRY(run_epoch(t, err));
        if (t->progress.rollback.wanted) return DDP_OK;
    }
    if (t->s->eval.sampler_count > 0 && t->progress.stopping == 0 && evaluated != t->progress.step)
        DDP_TRY(evaluate(t, err));
    /* for the next generation it is in memory */
    if (t->progress.stopping == DDP_STOP_TO_GROW && ddp_survivor_has_all(t)) return ddp_trainer_save_wait(t, err);
    return save(t, ddp_trainer_save_last, err);
}

ddp_status train_loop(ddp_trainer *t, ddp_err *err)
{
    DDP_TRY(run_epochs(t, err));
    while (t->progress.rollback.wanted) {
        DDP_TRY(train_roll_back(t, err));
        DDP_TRY(run_epochs(t, err));
    }
    return DDP_OK;
}
