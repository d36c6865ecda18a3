/* session/stages/head.c -- see head.h. */
#include "session/stages/head.h"

enum { MOST_CLASSES = 1 << 24 }; /* of a rank: a class's number is said in a float */

/* What a setting does that ranks with different classes cannot do, and what to write instead. */
typedef struct refused {
    bool is_set;
    const char *section, *key, *why;
} refused;

static ddp_status refuse(const ddp_session *s, const refused *r, ddp_err *err)
{
    (void)ddp_fail(err, DDP_ERR_CONFIG, "[%s] %s: with [train] split_head = yes %s", r->section, r->key, r->why);
    return session_at_key(s, r->section, r->key, err);
}

ddp_status session_head_check(const ddp_session *s, ddp_err *err)
{
    const ddp_config *c = s->config;
    const refused all[] = {
        {c->train->parallel != DDP_PARALLEL_DDP, "train", "parallel",
         "each rank has one device and all other layers; write parallel = ddp"},
        {c->hook[0] != '\0', "hook", "plugin",
         "the largest gradient is not sent at all, and the others go as they are; leave it out"},
        {c->ddp->zero == 1, "ddp", "zero",
         "the largest layer and its optimiser's state are divided already; set zero = 0"},
        {c->run->restarts > 0, "run", "restarts",
         "no other rank has the classes of a lost one; set restarts = 0: a new start goes on from the newest save"},
        {c->run->min_world > 0, "run", "min_world", "no other rank has the classes of a lost one; leave it out"},
        {c->train->check_replicas_every > 0, "train", "check_replicas_every",
         "ranks have different classes; set it to 0"},
        {c->train->non_finite == DDP_NON_FINITE_ROLLBACK, "train", "non_finite",
         "the run cannot go back in the same process; set non_finite = abort or skip"},
        {c->train->noise_scale != 0, "train", "noise_scale", "no rank has all gradients; leave it out"},
        {c->optimizer->ema != 0.0, "optimizer", "ema", "no average of the parameters is kept; set ema = 0"},
        {c->lora->rank != 0, "lora", "rank", "adapters cannot be trained; leave one of them out"},
        {c->output->histograms != 0, "output", "histograms", "no rank has all gradients; leave it out"},
        {c->checkpoint->sharded != 0, "checkpoint", "sharded", "rank 0 writes all files; leave it out"},
    };

    if (!c->train->split_head || s->launch.purpose != DDP_TO_TRAIN) return DDP_OK;
    for (size_t i = 0; i < DDP_COUNT(all); i++)
        if (all[i].is_set) return refuse(s, &all[i], err);
    if (!s->launch.profile) return DDP_OK;
    return ddp_fail(
        err, DDP_ERR_CONFIG,
        "--profile measures a whole model, and with [train] split_head = yes a rank has some of the classes; add --set train.split_head=no");
}

ddp_status session_head_place(ddp_session *s, ddp_err *err)
{
    uint32_t first[2] = {0};

    if (!s->config->train->split_head || s->launch.purpose != DDP_TO_TRAIN || s->launch.world == 1) return DDP_OK;
    if (ddp_graph_head(s->model.graph, &s->model.head.of, err) != DDP_OK) {
        (void)ddp_fail_context(err, "[train] split_head: model \"%s\"", s->model.plugin->desc.name);
        return session_at_key(s, "train", "split_head", err);
    }
    if (s->model.head.of.classes < s->launch.world || ddp_graph_places(s->model.graph) > 1) {
        (void)ddp_fail(err, DDP_ERR_CONFIG,
                       "[train] split_head: %lld classes of layer \"%s\" cannot be divided among %d ranks%s",
                       (long long)s->model.head.of.classes, s->model.head.of.layer, (int)s->launch.world,
                       ddp_graph_places(s->model.graph) > 1 ? " by a model that places its layers; leave place out"
                                                            : "; start fewer, or leave it out");
        return session_at_key(s, "train", "split_head", err);
    }
    if (s->model.head.of.classes / s->launch.world >= MOST_CLASSES) {
        (void)ddp_fail(err, DDP_ERR_CONFIG,
                       "[train] split_head: %lld classes on %d ranks are %d or more on one; start more ranks",
                       (long long)s->model.head.of.classes, (int)s->launch.world, MOST_CLASSES);
        return session_at_key(s, "train", "split_head", err);
    }
    first[1] = s->model.head.of.node;
    ddp_graph_place_nodes(s->model.graph, first, 2);
    s->model.head.on = true;
    return DDP_OK;
}
