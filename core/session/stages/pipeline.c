/* session/stages/pipeline.c -- see pipeline.h. */
#include "session/stages/pipeline.h"
#include "comm/task.h"
#include "session/stages/place.h"

uint32_t session_pipeline_stages(const ddp_session *s)
{
    const struct ddp_train_config *c = s->config->train;

    if (c->parallel != DDP_PARALLEL_PIPELINE || s->launch.purpose != DDP_TO_TRAIN || c->stages < 2) return 1;
    return s->launch.world % c->stages == 0 ? (uint32_t)c->stages : 1;
}

static ddp_status check_ranks(const ddp_session *s, ddp_err *err)
{
    int64_t stages = s->config->train->stages;

    if (stages < 2) {
        (void)ddp_fail(
            err, DDP_ERR_CONFIG,
            "[train] parallel = pipeline cuts the model over ranks, and stages = %d says over how many; write for example stages = 2 and start 2 ranks, or parallel = ddp",
            (int)stages);
        return session_at_key(s, "train", stages == 0 ? "parallel" : "stages", err);
    }
    if (s->launch.world % stages == 0 && s->launch.world / stages <= DDP_COMM_PART_MAX) return DDP_OK;
    if (s->launch.world % stages != 0)
        (void)ddp_fail(
            err, DDP_ERR_CONFIG,
            "[train] stages = %d does not divide the %d ranks (%s); start %d or a multiple of it, or change stages",
            (int)stages, s->launch.world, s->launch.world_where != NULL ? s->launch.world_where : "world_size",
            (int)stages);
    else
        (void)ddp_fail(
            err, DDP_ERR_CONFIG,
            "[train] parallel = pipeline takes at most %d ranks for a stage, and %d ranks of %d stages are %d; raise stages",
            DDP_COMM_PART_MAX, s->launch.world, (int)stages, (int)(s->launch.world / stages));
    return session_at_key(s, "train", "stages", err);
}

/* What a setting does that a rank with one stage of the model cannot do, and what to write instead. */
typedef struct refused {
    bool is_set;
    const char *section, *key, *why;
} refused;

static ddp_status refuse(const ddp_session *s, const refused *r, ddp_err *err)
{
    (void)ddp_fail(err, DDP_ERR_CONFIG, "[%s] %s: with [train] parallel = pipeline %s", r->section, r->key, r->why);
    return session_at_key(s, r->section, r->key, err);
}

static ddp_status check_settings(const ddp_session *s, ddp_err *err)
{
    const ddp_config *c = s->config;
    const refused all[] = {
        {c->hook[0] != '\0', "hook", "plugin",
         "activations cross the ranks, and hooks compress gradients; leave it out"},
        {c->ddp->zero == 1, "ddp", "zero",
         "a rank has the parameters and the optimiser's state of its stage alone already; set zero = 0"},
        {c->run->restarts > 0, "run", "restarts",
         "no other rank has what a lost one had; set restarts = 0: a new start goes on from the newest checkpoint"},
        {c->train->check_replicas_every > 0, "train", "check_replicas_every",
         "ranks have different parameters; set it to 0"},
        {c->train->non_finite == DDP_NON_FINITE_ROLLBACK, "train", "non_finite",
         "the run cannot go back in the same process; set non_finite = abort or skip"},
        {c->optimizer->ema != 0.0, "optimizer", "ema", "no average of the parameters is kept; set ema = 0"},
        {c->lora->rank != 0, "lora", "rank", "adapters cannot be trained; write parallel = ddp"},
        {c->output->histograms != 0, "output", "histograms", "no rank has all gradients; leave it out"},
        {c->output->audit != 0, "output", "audit", "only stage 0 takes samples; leave it out"},
        {c->checkpoint->sharded != 0, "checkpoint", "sharded", "rank 0 writes all files; leave it out"},
    };

    for (size_t i = 0; i < DDP_COUNT(all); i++)
        if (all[i].is_set) return refuse(s, &all[i], err);
    return DDP_OK;
}

ddp_status session_pipeline_check(const ddp_session *s, ddp_err *err)
{
    if (s->launch.purpose != DDP_TO_TRAIN) return DDP_OK; /* each rank has the whole model */
    DDP_TRY(check_ranks(s, err));
    DDP_TRY(check_settings(s, err));
    if (!s->launch.profile) return DDP_OK;
    return ddp_fail(
        err, DDP_ERR_CONFIG,
        "--profile measures one device, and with [train] parallel = pipeline the model is on %d ranks; add --set train.parallel=ddp --nproc 1 to measure the model on one",
        (int)s->config->train->stages);
}

ddp_status session_pipeline_places(ddp_session *s, ddp_err *err)
{
    uint32_t places, stage;
    const char *name;

    DDP_TRY(session_stages_place(s, err));
    places = ddp_graph_places(s->model.graph);
    if (places != s->devices.rank_stages) {
        (void)ddp_fail(
            err, DDP_ERR_CONFIG,
            "[train] stages = %u are stages 0 to %u, and model \"%s\" has layers for stages 0 to %u; change stages, or [model.%s] place",
            s->devices.rank_stages, s->devices.rank_stages - 1, s->model.plugin->desc.name, places - 1,
            s->model.plugin->desc.name);
        return session_at_key(s, "train", "stages", err);
    }
    for (uint32_t i = 0; i < places; i++) {
        if (ddp_graph_place_trains(s->model.graph, i)) continue;
        (void)ddp_fail(
            err, DDP_ERR_CONFIG,
            "[train] stages = %u: model \"%s\" has no layer for stage %u; give it some with place, or take fewer stages",
            places, s->model.plugin->desc.name, i);
        return session_at_key(s, "train", "stages", err);
    }
    name = ddp_graph_param_of_two_places(s->model.graph, &stage);
    if (name == NULL) return DDP_OK;
    (void)ddp_fail(
        err, DDP_ERR_CONFIG,
        "[train] parallel = pipeline: parameter \"%s\" is used by stage %u too, on another rank, and its gradient would have to cross in every step; untie it with [model.%s] tied = no, or place both layers on one stage",
        name, stage, s->model.plugin->desc.name);
    return session_at_key(s, "train", "parallel", err);
}
