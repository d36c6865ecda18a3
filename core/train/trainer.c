/* train/trainer.c -- see trainer.h. */
#include "train/trainer.h"
#include "session/metrics.h"
#include "train/schedule.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

void trainer_optimizer(ddp_trainer *t)
{
    static const uint32_t algorithms[] = {[DDP_ALGORITHM_SGD] = DDP_OPTIM_SGD,
                                          [DDP_ALGORITHM_ADAM] = DDP_OPTIM_ADAM,
                                          [DDP_ALGORITHM_ADAMW] = DDP_OPTIM_ADAMW};
    const struct ddp_optimizer_config *o = t->s->config->optimizer;
    const double *betas = o->betas.items;

    t->optim = (ddp_optim){.struct_size = sizeof(t->optim),
                           .algorithm = algorithms[o->algorithm],
                           .nesterov = (uint32_t)o->nesterov,
                           .lr = o->lr,
                           .momentum = o->momentum,
                           .beta1 = betas[0],
                           .beta2 = betas[1],
                           .eps = o->eps,
                           .weight_decay = o->weight_decay,
                           .grad_scale = 1.0};
    t->lr_steps = ddp_session_steps(t->s);
}

void ddp_trainer_begin_update(ddp_trainer *t, uint64_t micros)
{
    const struct ddp_optimizer_config *o = t->s->config->optimizer;

    t->optim.step = t->progress.step + 1;
    t->optim.lr =
        train_schedule_lr(o, t->progress.step, t->lr_steps) * train_plateau_scale(&t->progress.history.plateau);
    if (o->algorithm == DDP_ALGORITHM_SGD)
        t->optim.momentum = train_schedule_momentum(o, t->progress.step, t->lr_steps, o->momentum);
    else
        t->optim.beta1 = train_schedule_momentum(o, t->progress.step, t->lr_steps, *(const double *)o->betas.items);
    /* the gradients are a mean over the ranks, of which some may have several shares */
    t->optim.grad_scale =
        (double)t->s->launch.world / ((double)micros * (double)t->s->shares.count * (double)t->s->devices.rank_stages);
}

double ddp_trainer_token_scale(const ddp_trainer *t, double counted)
{
    return t->s->train.mean.divisor * (double)t->s->devices.replicas / counted;
}

void ddp_trainer_reduced(ddp_trainer *t, ddp_step *step)
{
    ddp_reducer_result(t->reduce.reducer, &step->reduced);
    if (ddp_loss_is_sum(&t->s->train.mean) && step->reduced.finite)
        t->optim.grad_scale = ddp_trainer_token_scale(t, step->reduced.counted);
}

ddp_optim_slice ddp_trainer_slice(const ddp_trainer *t, uint64_t first, uint64_t state, uint64_t count)
{
    return (ddp_optim_slice){.grad_dtype = DDP_F32,
                             .state_dtype = DDP_F32,
                             .param = t->mem.params + first,
                             .grad = t->mem.grads + first,
                             .state1 = t->mem.state1 == NULL ? NULL : t->mem.state1 + state,
                             .state2 = t->mem.state2 == NULL ? NULL : t->mem.state2 + state,
                             .count = count};
}

bool ddp_trainer_rejoins(const ddp_trainer *t)
{
    const ddp_candidate *b = t->s->backend;

    return t->s->config->run->restarts > 0 && t->s->launch.purpose == DDP_TO_TRAIN && t->s->shares.count > 1 &&
           (b == NULL || ((const ddp_backend_ops *)b->plugin->ops)->launcher == NULL);
}

ddp_status ddp_trainer_still_runs(ddp_trainer *t, ddp_err *err)
{
    ddp_failure ignored;

    return ddp_group_failed(t->group, &ignored) ? ddp_fail(err, DDP_ERR_ABORTED, "the run has failed") : DDP_OK;
}

bool ddp_trainer_goes_on(const ddp_trainer *t)
{
    return t->s->launch.restarted || ddp_group_generation(t->group) > 0 || t->progress.rollback.wanted;
}

bool ddp_trainer_stops_early(const ddp_trainer *t)
{
    return t->s->watch.stopping.name[0] != '\0' && t->progress.history.stopping.since >= t->s->watch.patience;
}

bool ddp_trainer_complete(const ddp_trainer *t)
{
    const struct ddp_train_config *c = t->s->config->train;

    return ddp_trainer_stops_early(t) || t->progress.epoch >= (uint64_t)c->epochs ||
           (c->max_steps > 0 && t->progress.step >= (uint64_t)c->max_steps);
}

int ddp_trainer_asked_to_stop(const ddp_trainer *t)
{
    int sig = t->s->launch.stop == NULL ? 0 : atomic_load(&t->s->launch.stop->signal);

    return sig != 0 ? sig : ddp_group_stop_requested(t->group);
}

void ddp_trainer_record(ddp_trainer *t, const ddp_step_record *r, double update_ms)
{
    const double work_ms = r->step_ms - r->data_ms - r->wait_ms - t->gradients.watched_ms;
    const double ms[DDP_TIMES] = {[DDP_TIME_DATA] = r->data_ms,
                                  [DDP_TIME_COMPUTE] = work_ms - update_ms,
                                  [DDP_TIME_WAIT] = r->wait_ms,
                                  [DDP_TIME_UPDATE] = update_ms};
    char warning[512];

    if (isnan(t->result.first_step_s) && r->step == t->progress.start_step + 1 && ddp_group_generation(t->group) == 0)
        t->result.first_step_s = (double)(ddp_now_ns() - t->s->launch.began_ns) * 1e-9;
    /* a rank with the samples of two takes twice as long, and is no slower for that */
    ddp_group_report_step(t->group, (int64_t)r->step, r->data_ms / t->s->shares.own, work_ms / t->s->shares.own,
                          r->wait_ms);
    ddp_group_times_step(t->group, r->step, ms);
    t->gradients.watched_ms = 0.0;
    if (t->s->config->optimizer->schedule == DDP_SCHEDULE_LR_RANGE) train_ramp_take(&t->progress.ramp, r->loss);
    if (t->observer == NULL) return;
    ddp_observe_step(t->observer, r);
    if (ddp_group_take_warning(t->group, warning, sizeof(warning)))
        ddp_observe_event(t->observer, "warning", warning, NULL);
}

ddp_status ddp_trainer_largest(ddp_trainer *t, const char *name, uint64_t *value, ddp_err *err)
{
    int32_t world = ddp_group_world(t->group);
    uint64_t own = *value, its;
    const void *parts[world];
    size_t lengths[world];
    void *block = NULL;

    DDP_TRY_AS(DDP_EXIT_PEER, err,
               ddp_group_gather(t->group, name, &own, sizeof(own), &block, parts, lengths,
                                t->s->config->group->step_timeout_ms, err));
    for (int32_t r = 0; r < world; r++) {
        if (lengths[r] != sizeof(its)) continue;
        memcpy(&its, parts[r], sizeof(its));
        *value = DDP_MAX_OF(*value, its);
    }
    free(block);
    return DDP_OK;
}

ddp_status ddp_trainer_from_rank0(ddp_trainer *t, const char *name, void *data, size_t bytes, ddp_err *err)
{
    int32_t world = ddp_group_world(t->group);
    const void *parts[world];
    size_t lengths[world];
    void *block = NULL;

    DDP_TRY_AS(DDP_EXIT_PEER, err,
               ddp_group_gather(t->group, name, data, t->s->launch.rank == 0 ? bytes : 0, &block, parts, lengths,
                                t->s->config->group->step_timeout_ms, err));
    if (lengths[0] == bytes) memcpy(data, parts[0], bytes);
    free(block);
    return DDP_OK;
}
