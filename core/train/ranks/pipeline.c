/* train/ranks/pipeline.c -- see pipeline.h. Opens the stage and its links, and runs micro-batches and evaluations; the
 * update is in update.c. */
#include "train/ranks/pipeline.h"
#include "session/metrics.h"
#include "session/plugins.h"
#include "train/ranks/link.h"
#include "train/state/buffer_sync.h"
#include <stdlib.h>

/* ---- opening --------------------------------------------------------------------------------------------------- */
static ddp_status check(const ddp_trainer *t, ddp_err *err)
{
    if (ddp_device_has_memory(&t->s->device)) {
        (void)ddp_fail(
            err, DDP_ERR_UNSUPPORTED,
            "[train] parallel = pipeline needs devices whose memory is the host's, which that of \"%s\" is not; write parallel = ddp for a replica on each",
            t->s->devices.name);
        return ddp_fail_as(err, DDP_EXIT_CONFIG);
    }
    if ((ddp_communicator_caps(t->comm) & DDP_CAP_SEND_RECV) != 0) return DDP_OK;
    (void)ddp_fail(
        err, DDP_ERR_UNSUPPORTED,
        "backend \"%s\" has no send and recv, by which the stages of [train] parallel = pipeline give each other activations; name another in [group] backend",
        ddp_session_backend_name(t->s));
    return ddp_fail_as(err, DDP_EXIT_PLUGIN);
}

static ddp_status open_replicas(ddp_trainer *t, ddp_rank_pipeline *r, ddp_err *err)
{
    uint32_t count = ddp_session_stage_replicas(t->s);
    ddp_comm_part part = {.count = count};
    char name[32];

    if (count == 1) return DDP_OK;
    (void)snprintf(name, sizeof(name), "stage-%u", r->stage.number);
    part.name = name;
    for (uint32_t i = 0; i < count; i++) part.ranks[i] = (int32_t)(r->stage.number * count + i);
    DDP_TRY_AS(DDP_EXIT_RENDEZVOUS, err,
               ddp_communicator_open_part(t->group, t->s->backend->plugin, &t->s->host, t->s->backend->config,
                                          t->s->config->group->step_timeout_ms, &part, &r->replicas, err));
    return DDP_OK;
}

/* Every rank connects its links in the same order, so that two of them always wait for each other. */
static ddp_status open_links(ddp_trainer *t, ddp_rank_pipeline *r, ddp_err *err)
{
    DDP_TRY(ddp_stage_links(&r->pipe, r->stage.number, err));
    for (uint32_t i = 0; i < r->pipe.link_count; i++) DDP_TRY(ranks_link_open(t, &r->pipe.links[i], err));
    return open_replicas(t, r, err);
}

ddp_status ddp_rank_pipeline_open(ddp_trainer *t, ddp_err *err)
{
    const ddp_layout *l = t->s->model.layout;
    ddp_rank_pipeline *r;

    if (t->s->devices.rank_stages == 1) return DDP_OK;
    DDP_TRY(check(t, err));
    t->local.ranks = r = ddp_alloc(sizeof(*r), err);
    if (r == NULL) return err->status;
    r->pipe = (ddp_pipeline){
        .t = t, .count = t->s->devices.rank_stages, .stages = &r->stage, .ops = &ranks_link_ops, .of_ranks = true};
    r->stage = (ddp_stage){.pipe = &r->pipe, .number = ddp_session_rank_stage(t->s), .s = t->s, .t = t};
    r->stage.slots = r->pipe.count - r->stage.number;
    r->squares = t->reduce.clip == NULL ? 0 : ddp_session_shards(t->s) * l->bucket_count;
    r->sums = ddp_alloc((DDP_EXTRA + r->squares) * sizeof(*r->sums), err);
    r->tickets = ddp_alloc(l->bucket_count * sizeof(*r->tickets), err);
    if (r->sums == NULL || r->tickets == NULL) return err->status;
    DDP_TRY(open_links(t, r, err));
    return ddp_stage_open(&r->stage, err);
}

bool ddp_rank_pipeline_close(ddp_trainer *t)
{
    ddp_rank_pipeline *r = t->local.ranks;
    bool ended = true;

    if (r == NULL) return true;
    for (uint32_t i = 0; i < r->pipe.link_count; i++) ended = ranks_link_close(&r->pipe.links[i]) && ended;
    if (r->replicas != NULL) ended = ddp_communicator_close(r->replicas) && ended;
    if (!ended) return false;
    ddp_stage_close(&r->stage);
    free(r->pipe.links);
    free(r->tickets);
    free(r->sums);
    free(r);
    t->local.ranks = NULL;
    return true;
}

/* ---- a step ---------------------------------------------------------------------------------------------------- */
ddp_status ranks_micro_steps(ddp_trainer *t, ddp_step *step, ddp_err *err)
{
    ddp_rank_pipeline *r = t->local.ranks;

    r->pipe.step = step;
    r->pipe.random = ddp_trainer_random(t, 0);
    DDP_TRY(ddp_stage_begin(&r->pipe, DDP_LINK_TRAINS, step->micros, err));
    DDP_TRY(ddp_stage_run(&r->stage, err));
    step->loss_sum += r->stage.loss_sum;
    step->wait_ms += (double)r->stage.wait_ns * 1e-6;
    for (uint64_t m = 0; m < step->micros; m++) ddp_trainer_buffers_count(t);
    return DDP_OK;
}

/* ---- an evaluation --------------------------------------------------------------------------------------------- */
/* What the batch in slot number % slots has brought, of this stage. */
static ddp_status add_results(ddp_trainer *t, uint32_t variant, uint64_t number, ddp_sums *sums, ddp_err *err)
{
    const ddp_stage *g = &t->local.ranks->stage;
    const ddp_variant *v = &t->s->programs.variants[variant];
    const ddp_program *own = v->stages->programs[g->number];
    const uint64_t *offset = g->programs[variant].planned->plan.value_offset;
    const char *arena = g->arenas[number % g->slots];
    double *to = sums->metrics;
    ddp_metric_info m;
    float loss;

    if (own->loss >= 0) {
        DDP_TRY(ddp_device_copy(&t->s->device, &loss, arena + offset[own->loss], sizeof(loss), DDP_COPY_TO_HOST, err));
        sums->loss += (double)loss * ddp_loss_factor(&t->s->eval.mean, v->batch);
    }
    for (uint32_t i = 0; i < v->program->metric_count; i++, to += m.sums) {
        const ddp_stage_metric *of = &v->stages->metrics[i];

        ddp_metric_of(v->program, i, &m);
        if (of->stage != g->number) continue;
        DDP_TRY(ddp_device_copy(&t->s->device, sums->batch, arena + offset[of->value], m.floats * sizeof(float),
                                DDP_COPY_TO_HOST, err));
        ddp_metric_add(&m, sums->batch, to);
    }
    return DDP_OK;
}

static ddp_status take(ddp_trainer *t, ddp_batch *batch, ddp_sums *sums, ddp_err *err)
{
    DDP_TRY_AS(DDP_EXIT_DATA, err, ddp_loader_next(t->eval_loaders[0], batch, err));
    sums->counted += ddp_loss_counted(&t->s->eval.mean, batch);
    sums->samples += (double)batch->count;
    return DDP_OK;
}

/* All stages go through all of it: a wish to end is heard after it. */
ddp_status ranks_evaluate(ddp_trainer *t, ddp_sums *sums, ddp_err *err)
{
    uint64_t size = (uint64_t)t->s->batches.batch_size, batches = (t->s->eval.count + size - 1) / size;
    ddp_stage *g = &t->local.ranks->stage;
    ddp_batch batch;
    uint32_t variant;

    DDP_TRY(ddp_stage_begin(&t->local.ranks->pipe, DDP_LINK_EVALUATES, batches, err));
    if (g->number == 0) DDP_TRY_AS(DDP_EXIT_DATA, err, ddp_loader_begin(t->eval_loaders[0], 0, 0, err));
    for (uint64_t i = 0; i < batches; i++) {
        DDP_TRY(ddp_trainer_still_runs(t, err));
        if (g->number == 0) DDP_TRY(take(t, &batch, sums, err));
        DDP_TRY(ddp_stage_evaluate(g, i, g->number == 0 ? &batch : NULL, &variant, err));
        DDP_TRY(add_results(t, variant, i, sums, err));
    }
    sums->stop = ddp_trainer_asked_to_stop(t);
    return DDP_OK;
}
