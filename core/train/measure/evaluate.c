/* train/measure/evaluate.c -- loss and metrics over the evaluation data. Every rank takes its part, none is padded; the
 * sums are gathered over the control plane and added in rank order, so that all ranks have the same bits. */
#include "train/measure/evaluate.h"
#include "session/plugins.h"
#include "train/ema.h"
#include "train/head/head.h"
#include "train/local/replicas.h"
#include "train/measure/evaluated.h"
#include "train/ranks/arenas.h"
#include "train/ranks/pipeline.h"
#include "train/state/buffer_sync.h"
#include "train/state/survivor.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 120000 }; /* doubles of a gather, which has 1 MiB for each rank */

typedef struct head {
    double loss, samples, counted;
    int32_t stop;
} head;

static ddp_status gather(ddp_trainer *t, const void *own, size_t length, void **block, const void **parts, ddp_err *err)
{
    size_t lengths[ddp_group_world(t->group)];

    DDP_TRY_AS(DDP_EXIT_PEER, err,
               ddp_group_gather(t->group, "evaluation", own, length, block, parts, lengths,
                                t->s->config->group->step_timeout_ms, err));
    return DDP_OK;
}

static ddp_status gather_metrics(ddp_trainer *t, ddp_sums *sums, ddp_err *err)
{
    int32_t world = ddp_group_world(t->group);
    const void *parts[world];
    void *block = NULL;

    for (uint64_t at = 0; at < sums->count; at += PIECE) {
        uint64_t count = DDP_MIN_OF(sums->count - at, (uint64_t)PIECE);

        DDP_TRY(gather(t, sums->metrics + at, count * sizeof(double), &block, parts, err));
        memset(sums->metrics + at, 0, count * sizeof(double));
        for (int32_t r = 0; r < world; r++)
            for (uint64_t i = 0; i < count; i++) {
                double part;

                memcpy(&part, (const char *)parts[r] + i * sizeof(part), sizeof(part));
                sums->metrics[at + i] += part;
            }
        free(block);
    }
    return DDP_OK;
}

static ddp_status gather_sums(ddp_trainer *t, ddp_sums *sums, ddp_err *err)
{
    int32_t world = ddp_group_world(t->group);
    const void *parts[world];
    head own = {sums->loss, sums->samples, sums->counted, sums->stop}, part;
    void *block = NULL;

    DDP_TRY(gather(t, &own, sizeof(own), &block, parts, err));
    sums->loss = sums->samples = sums->counted = 0.0;
    for (int32_t r = 0; r < world; r++) {
        memcpy(&part, parts[r], sizeof(part));
        sums->loss += part.loss;
        sums->samples += part.samples;
        sums->counted += part.counted;
        if (part.stop != 0) t->progress.stopping = part.stop;
    }
    free(block);
    return gather_metrics(t, sums, err);
}

static void report(ddp_trainer *t)
{
    bool alone = t->s->launch.purpose == DDP_TO_EVALUATE;
    char loss[32] = "null", accuracy[32] = "null";
    ddp_text members = {0}, text = {0};

    if (t->observer == NULL) return;
    if (isfinite(t->result.eval_loss)) (void)snprintf(loss, sizeof(loss), "%.9g", t->result.eval_loss);
    if (isfinite(t->result.eval_accuracy)) (void)snprintf(accuracy, sizeof(accuracy), "%.6f", t->result.eval_accuracy);
    ddp_text_printf(&members, "\"step\": %" PRIu64 ", \"epoch\": %" PRIu64 ", \"eval_loss\": %s, \"eval_accuracy\": %s",
                    t->progress.step, t->progress.epoch, loss, accuracy);
    ddp_evaluated_members(&t->evaluated, false, &members);
    ddp_text_printf(&members, ", \"samples\": %.0f", t->result.eval_samples);
    ddp_text_printf(&text, "step %" PRIu64 ": eval loss %.4f", t->progress.step, t->result.eval_loss);
    ddp_evaluated_text(&t->evaluated, 4, &text);
    if (members.data != NULL) ddp_observe_event(t->observer, "eval", members.data, alone ? NULL : text.data);
    ddp_text_free(&members);
    ddp_text_free(&text);
}

/* Where no memory outlives the generation, the next one would not know of this pass: then it is not cut short. */
static int asked_to_stop(const ddp_trainer *t)
{
    int stop = ddp_trainer_asked_to_stop(t);

    return stop == DDP_STOP_TO_GROW && !ddp_survivor_has_all(t) ? 0 : stop;
}

static ddp_status evaluate_share(ddp_trainer *t, ddp_loader *loader, ddp_sums *sums, ddp_err *err)
{
    ddp_batch batch;
    ddp_status st = DDP_OK;

    DDP_TRY_AS(DDP_EXIT_DATA, err, ddp_loader_begin(loader, 0, 0, err));
    /* long passes must not outlast the patience of who asked: a pass that one rank cuts short counts for nobody */
    while ((sums->stop = asked_to_stop(t)) == 0 && (st = ddp_loader_next(loader, &batch, err)) == DDP_OK) {
        DDP_TRY(t->way.eval_batch(t, &batch, sums, err));
        DDP_TRY(ddp_trainer_still_runs(t, err));
    }
    return st == DDP_OK || st == DDP_IN_PROGRESS ? DDP_OK : ddp_fail_as(err, DDP_EXIT_DATA);
}

static ddp_status evaluate_shares(ddp_trainer *t, ddp_sums *sums, ddp_err *err)
{
    DDP_TRY(ddp_replicas_broadcast_buffers(t, err));
    if (t->local.ranks != NULL) DDP_TRY(ranks_evaluate(t, sums, err));
    if (t->local.head != NULL) DDP_TRY(head_evaluate(t, sums, err));
    for (uint32_t share = 0;
         share < t->s->shares.own && sums->stop == 0 && t->local.ranks == NULL && t->local.head == NULL; share++)
        DDP_TRY(evaluate_share(t, t->eval_loaders[share], sums, err));
    return gather_sums(t, sums, err);
}

/* The parameters are back in their place afterwards, whatever happens. */
static ddp_status evaluate_average(ddp_trainer *t, ddp_sums *sums, ddp_err *err)
{
    ddp_err ignored = {0};
    ddp_status st;

    DDP_TRY(train_ema_exchange(t, err));
    st = evaluate_shares(t, sums, err);
    return st == DDP_OK ? train_ema_exchange(t, err) : (train_ema_exchange(t, &ignored), st);
}

/* There is no loss. By itself that is an error; a training run goes on, and says so. */
static ddp_status nothing_counts(ddp_trainer *t, double samples, ddp_err *err)
{
    char text[256], members[384];

    (void)snprintf(
        text, sizeof(text),
        "evaluation: no label of its %.0f samples counts, so that it has no loss; look at the data of [eval]: all its labels are ignored",
        samples);
    if (t->s->launch.purpose == DDP_TO_EVALUATE) {
        (void)ddp_fail(err, DDP_ERR_DATA, "%s", text);
        return ddp_fail_as(err, DDP_EXIT_DATA);
    }
    if (t->observer == NULL) return DDP_OK;
    ddp_log_line(t->s->log, DDP_LOG_WARN, "%s", text);
    (void)snprintf(members, sizeof(members), "\"step\": %" PRIu64 ", \"text\": \"%s\"", t->progress.step, text);
    ddp_observe_event(t->observer, "warning", members, NULL);
    return DDP_OK;
}

static double mean_of(double sum, double count) { return count > 0.0 && !isnan(sum) ? sum / count : (double)NAN; }

ddp_status trainer_evaluate(ddp_trainer *t, ddp_err *err)
{
    ddp_sums sums;
    ddp_status st;

    if (t->s->config->ddp->broadcast_buffers)
        DDP_TRY(t->local.ranks != NULL ? ranks_buffers_broadcast(t, err) : ddp_trainer_broadcast_buffers(t, err));
    DDP_TRY(ddp_sums_open(t->s, &sums, err));
    st = train_ema_is_evaluated(t) ? evaluate_average(t, &sums, err) : evaluate_shares(t, &sums, err);
    if (st == DDP_OK && t->progress.stopping == 0 && sums.counted <= 0.0) st = nothing_counts(t, sums.samples, err);
    if (st == DDP_OK && t->progress.stopping == 0) {
        t->result.eval_loss = mean_of(sums.loss, sums.counted);
        t->result.eval_samples = sums.samples;
        ddp_evaluated_set(&t->evaluated, t->s, &sums);
        t->result.eval_accuracy = ddp_evaluated_value(&t->evaluated, "accuracy");
        report(t);
    }
    ddp_sums_close(&sums);
    return st;
}

/* ---- an evaluation alone --------------------------------------------------------------------------------------- */
/* Beside what a training run has left in the folder: its summary stays, its metrics get more lines. */
static ddp_status open_observer(ddp_trainer *t, ddp_err *err)
{
    const ddp_session *s = t->s;
    ddp_observe_params p = {.dir = s->config->output->dir,
                            .log_every = s->config->output->log_every,
                            .progress = DDP_PROGRESS_OFF,
                            .append = true,
                            .log = s->log};
    ddp_text members = {0};

    if (s->launch.rank != 0) return DDP_OK;
    DDP_TRY_AS(DDP_EXIT_CONFIG, err, ddp_observer_open(&p, &t->observer, err));
    ddp_text_printf(&members, "\"version\": \"%s\", \"command\": \"eval\", \"world_size\": %d, \"backend\": \"%s\", ",
                    DDP_VERSION, s->launch.world, ddp_session_backend_name(s));
    ddp_text_printf(&members, "\"device\": \"%s\", \"model\": \"%s\", \"parameters\": %" PRIu64 ", \"step\": %" PRIu64,
                    s->devices.text, s->model.plugin->desc.name, s->model.param_elements, t->progress.step);
    ddp_observe_event(t->observer, "start", members.data != NULL ? members.data : "", NULL);
    ddp_text_free(&members);
    return DDP_OK;
}

ddp_status trainer_only_evaluate(ddp_trainer *t, ddp_err *err)
{
    ddp_text text = {0};

    DDP_TRY(open_observer(t, err));
    DDP_TRY(trainer_evaluate(t, err));
    if (t->observer == NULL) return DDP_OK;
    ddp_observe_event(t->observer, "end", "\"exit_code\": 0", NULL);
    ddp_text_printf(&text, "eval loss %.9g", t->result.eval_loss);
    ddp_evaluated_text(&t->evaluated, 6, &text);
    ddp_text_printf(&text, ", %.0f samples, step %" PRIu64 " of %.120s", t->result.eval_samples, t->progress.step,
                    t->weights);
    ddp_evaluated_table(&t->evaluated, &t->s->eval, &text);
    ddp_copy_text(t->ending->result, sizeof(t->ending->result), text.data != NULL ? text.data : "");
    ddp_text_free(&text);
    return DDP_OK;
}
