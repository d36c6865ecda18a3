/* config/config.c -- a run's configuration: the file, the overrides, the core's sections and the rules that tie keys
 * together. Options of plugins come in when the plugin has been loaded (ddp_config_plugin). */
#include "config/private.h"
#include "config/sections.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* "backend.NAME" and the like hold the options of a plugin, chosen or not. */
static const char *const plugin_sections[] = {"backend", "init", "device", "model", "data", "eval", "sampler", "hook"};

/* ---- names of sections ------------------------------------------------------------------------------------------- */
static ddp_status fail_section(const ddp_ini_section *s, ddp_err *err)
{
    const char *dot = strchr(s->name, '.'), *nearest, *const * names;
    char prefix[64];
    size_t count;

    if (dot != NULL && dot[1] == '\0')
        return ddp_fail(err, DDP_ERR_CONFIG, "%s: section [%s] names no plugin, as [%sNAME] would", s->where, s->name,
                        s->name);
    ddp_copy_text(prefix, dot != NULL ? DDP_MIN_OF((size_t)(dot - s->name) + 1, sizeof(prefix)) : sizeof(prefix),
                  s->name);
    if (dot != NULL) {
        nearest = ddp_nearest(prefix, plugin_sections, DDP_COUNT(plugin_sections));
    } else {
        count = ddp_config_sections(&names);
        nearest = ddp_nearest(prefix, names, count);
    }
    if (nearest != NULL)
        return ddp_fail(err, DDP_ERR_CONFIG, "%s: unknown section [%s]; did you mean [%s%s]?", s->where, s->name,
                        nearest, dot != NULL ? dot : "");
    return ddp_fail(
        err, DDP_ERR_CONFIG,
        "%s: unknown section [%s]; sections are those of plugins, as in [backend.NAME], and what `ddpengine help` lists",
        s->where, s->name);
}

static bool section_is_known(const char *name)
{
    if (config_core_section_find(name) != NULL) return true;
    for (size_t i = 0; i < DDP_COUNT(plugin_sections); i++) {
        size_t length = strlen(plugin_sections[i]);

        if (strncmp(name, plugin_sections[i], length) == 0 && name[length] == '.' && name[length + 1] != '\0')
            return true;
    }
    return false;
}

/* ---- rules between keys ------------------------------------------------------------------------------------------ */
static ddp_status check_schedule(const ddp_config *c, const struct ddp_optimizer_config *o, ddp_err *err)
{
    const int64_t *at = o->milestones.items;

    if (o->schedule == DDP_SCHEDULE_MULTI_STEP && o->milestones.count == 0)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "%s: [optimizer] schedule = multi_step needs milestones, the updates after which lr drops",
                        where_of(c, "optimizer", "schedule"));
    for (size_t i = 1; i < o->milestones.count; i++)
        if (at[i] <= at[i - 1])
            return ddp_fail(err, DDP_ERR_CONFIG,
                            "%s: [optimizer] milestones must rise, but %" PRId64 " comes after %" PRId64,
                            where_of(c, "optimizer", "milestones"), at[i], at[i - 1]);
    if (o->schedule == DDP_SCHEDULE_PLATEAU && c->eval[0] == '\0')
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "%s: [optimizer] schedule = plateau looks at evaluations, but [eval] plugin is not set",
                        where_of(c, "optimizer", "schedule"));
    if (o->schedule == DDP_SCHEDULE_PLATEAU && o->gamma >= 1)
        return ddp_fail(err, DDP_ERR_CONFIG, "%s: [optimizer] schedule = plateau needs a gamma below 1, not %g",
                        where_of(c, "optimizer", "gamma"), o->gamma);
    if (o->schedule == DDP_SCHEDULE_LR_RANGE && (o->min_lr <= 0 || o->min_lr >= o->lr))
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "%s: [optimizer] schedule = lr_range rises from min_lr, above 0, to a larger lr; set both",
                        where_of(c, "optimizer", "schedule"));
    if (o->schedule != DDP_SCHEDULE_ONE_CYCLE) return DDP_OK;
    if (o->warmup_steps > 0)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "%s: [optimizer] schedule = one_cycle has a rise of its own, pct_start; remove warmup_steps",
                        where_of(c, "optimizer", "warmup_steps"));
    if (o->cycle_momentum && o->algorithm == DDP_ALGORITHM_SGD && o->momentum == 0)
        return ddp_fail(
            err, DDP_ERR_CONFIG,
            "%s: [optimizer] schedule = one_cycle also moves the momentum, and that of sgd is 0: set momentum = 0.9, or cycle_momentum = no",
            where_of(c, "optimizer", "schedule"));
    if (o->cycle_momentum && (o->max_momentum >= 1 || o->base_momentum > o->max_momentum))
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "%s: [optimizer] base_momentum = %g must be at most max_momentum = %g, and that below 1",
                        where_of(c, "optimizer", "max_momentum"), o->base_momentum, o->max_momentum);
    return DDP_OK;
}

static ddp_status check_optimizer(const ddp_config *c, ddp_err *err)
{
    const struct ddp_optimizer_config *o = c->optimizer;
    const double *betas = o->betas.items;

    if (o->betas.count != 2)
        return ddp_fail(err, DDP_ERR_CONFIG, "%s: [optimizer] betas takes two numbers, as in 0.9, 0.999, not %zu",
                        where_of(c, "optimizer", "betas"), o->betas.count);
    if (betas[0] >= 1 || betas[1] >= 1)
        return ddp_fail(err, DDP_ERR_CONFIG, "%s: [optimizer] betas must both be below 1",
                        where_of(c, "optimizer", "betas"));
    if (o->ema >= 1)
        return ddp_fail(
            err, DDP_ERR_CONFIG,
            "%s: [optimizer] ema = %g keeps the first parameters for ever; write a decay below 1, as in 0.999",
            where_of(c, "optimizer", "ema"), o->ema);
    if (o->nesterov && o->momentum == 0)
        return ddp_fail(err, DDP_ERR_CONFIG, "%s: [optimizer] nesterov = yes needs a momentum above 0",
                        where_of(c, "optimizer", "nesterov"));
    if (o->schedule == DDP_SCHEDULE_STEP && o->step_size == 0)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "%s: [optimizer] schedule = step needs step_size, the updates between two drops",
                        where_of(c, "optimizer", "schedule"));
    return check_schedule(c, o, err);
}

static ddp_status check_train(const ddp_config *c, ddp_err *err)
{
    double spike = c->train->loss_spike;

    if (spike == 0.0 || spike > 1.0) return DDP_OK;
    return ddp_fail(err, DDP_ERR_CONFIG,
                    "%s: [train] loss_spike = %g would warn of the usual loss; write a number above 1, as in 3, or 0",
                    where_of(c, "train", "loss_spike"), spike);
}

/* "10-12" */
static ddp_status check_output(ddp_config *c, ddp_err *err)
{
    const char *text = c->output->trace_steps;
    char *end = NULL;
    uint64_t first, last;

    if (c->output->tensorboard && c->output->dir[0] == '\0')
        return ddp_fail(err, DDP_ERR_CONFIG, "%s: [output] tensorboard = yes needs [output] dir, for the event file",
                        where_of(c, "output", "tensorboard"));
    if (c->output->histograms > 0 && !c->output->tensorboard)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "%s: [output] histograms are written for TensorBoard: set tensorboard = yes",
                        where_of(c, "output", "histograms"));
    if (c->output->audit && c->output->dir[0] == '\0')
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "%s: [output] audit = yes needs [output] dir, where each rank records its samples",
                        where_of(c, "output", "audit"));
    if (text[0] == '\0') return DDP_OK;
    first = strtoull(text, &end, 10);
    last = *end == '-' ? strtoull(end + 1, &end, 10) : 0;
    if (*end != '\0' || text[strspn(text, "0123456789-")] != '\0' || strlen(text) > 39 || first == 0 || last < first ||
        last - first >= 10000)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "%s: [output] trace_steps = %.60s is no range of at most 10000 steps, counted from 1; "
                        "write for example 10-12",
                        where_of(c, "output", "trace_steps"), text);
    if (c->output->dir[0] == '\0')
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "%s: [output] trace_steps needs [output] dir, where the traces are written",
                        where_of(c, "output", "trace_steps"));
    c->trace_first = first;
    c->trace_last = last;
    return DDP_OK;
}

/* A key that rules out [ddp] wire_order = forward, or local_steps; key NULL: none does. */
typedef struct excluding_key {
    const char *section, *key, *why;
} excluding_key;

/* Every key that is set so needs all gradients before the first update, or all parameters at the end of a step. */
static excluding_key needs_fifo(const ddp_config *c)
{
    static const char norm[] = "needs the norm of all gradients before the first update",
                      all[] = "needs all parameters at the end of every step";
    const struct {
        bool set;
        excluding_key why;
    } keys[] = {
        {c->train->parallel != DDP_PARALLEL_DDP, {"train", "parallel", "is not ddp"}},
        {c->optimizer->clip_norm > 0.0, {"optimizer", "clip_norm", norm}},
        {c->train->noise_scale != 0, {"train", "noise_scale", norm}},
        {c->train->non_finite == DDP_NON_FINITE_SKIP,
         {"train", "non_finite", "needs all gradients to be finite before the first update"}},
        {c->optimizer->ema > 0.0, {"optimizer", "ema", all}},
        {c->output->histograms > 0, {"output", "histograms", all}},
        {c->run->restarts > 0, {"run", "restarts", all}},
        {c->hook[0] != '\0', {"hook", "plugin", "takes the buckets in the order in which they are ready"}},
        {c->ddp->zero == 1, {"ddp", "zero", "sends the parameters once all gradients are there"}},
        {c->ddp->overlap == DDP_OVERLAP_NO, {"ddp", "overlap", "sends nothing before the end of the backward pass"}},
        {c->ddp->local_steps > 0, {"ddp", "local_steps", "sends no gradients"}},
        {c->train->split_head != 0, {"train", "split_head", "needs all features before the output layer"}},
    };

    for (size_t i = 0; i < DDP_COUNT(keys); i++)
        if (keys[i].set) return keys[i].why;
    return (excluding_key){0};
}

bool ddp_config_needs_fifo(const ddp_config *c) { return needs_fifo(c).key != NULL; }

static ddp_status check_wire_order(const ddp_config *c, ddp_err *err)
{
    excluding_key k = needs_fifo(c);

    if (c->ddp->wire_order != DDP_WIRE_ORDER_FORWARD || k.key == NULL) return DDP_OK;
    return ddp_fail(err, DDP_ERR_CONFIG,
                    "%s: wire_order = forward lets a step end before all parameters are there, but [%s] %s (%s) %s; "
                    "set wire_order = fifo, or change %s",
                    where_of(c, "ddp", "wire_order"), k.section, k.key, where_of(c, k.section, k.key), k.why, k.key);
}

double ddp_config_outer_lr(const struct ddp_ddp_config *c)
{
    if (c->outer_lr > 0.0) return c->outer_lr;
    return c->outer_momentum > 0.0 ? 0.7 : 1.0; /* DiLoCo's; the average of local SGD */
}

static excluding_key excludes_local_steps(const ddp_config *c)
{
    static const char each[] = "is decided by all ranks in every step; set it to abort";
    const struct {
        bool set;
        excluding_key why;
    } keys[] = {
        {c->train->parallel != DDP_PARALLEL_DDP, {"train", "parallel", "has no ranks that do so; set it to ddp"}},
        {c->train->split_head != 0, {"train", "split_head", "leaves it some of the classes alone; set it to no"}},
        {c->ddp->zero == 1, {"ddp", "zero", "leaves it a shard of the optimiser's state alone; set it to 0"}},
        {c->run->min_world > 0,
         {"run", "min_world", "gives it the samples of lost ranks, and the average weighs all alike; leave it out"}},
        {c->train->non_finite != DDP_NON_FINITE_ABORT, {"train", "non_finite", each}},
        {c->train->noise_scale != 0,
         {"train", "noise_scale", "compares its gradient with that of all ranks; set it to no"}},
        {c->optimizer->schedule == DDP_SCHEDULE_LR_RANGE,
         {"optimizer", "schedule", "= lr_range follows the loss of all ranks; choose another one"}},
    };

    for (size_t i = 0; i < DDP_COUNT(keys); i++)
        if (keys[i].set) return keys[i].why;
    return (excluding_key){0};
}

bool ddp_config_takes_local_steps(const ddp_config *c) { return excludes_local_steps(c).key == NULL; }

static ddp_status check_local_steps(const ddp_config *c, ddp_err *err)
{
    excluding_key k = excludes_local_steps(c);

    if (c->ddp->outer_momentum >= 1.0)
        return ddp_fail(err, DDP_ERR_CONFIG, "%s: [ddp] outer_momentum must be below 1, as in 0.9",
                        where_of(c, "ddp", "outer_momentum"));
    if (c->ddp->local_steps == 0) return DDP_OK;
    if (k.key == NULL) return DDP_OK;
    return ddp_fail(err, DDP_ERR_CONFIG, "%s: with [ddp] local_steps a rank makes steps by itself, but [%s] %s (%s) %s",
                    where_of(c, "ddp", "local_steps"), k.section, k.key, where_of(c, k.section, k.key), k.why);
}

/* Keys of [ddp] and [hook] that exclude each other. */
static ddp_status check_ddp(const ddp_config *c, ddp_err *err)
{
    if (c->ddp->bucket_size == 0 && c->train->deterministic)
        return ddp_fail(
            err, DDP_ERR_CONFIG,
            "%s: [ddp] bucket_size = auto depends on a measurement, which [train] deterministic = yes (%s) rules out; "
            "write a size, such as 25MiB",
            where_of(c, "ddp", "bucket_size"), where_of(c, "train", "deterministic"));
    if (c->ddp->zero == 1 && c->hook[0] != '\0')
        return ddp_fail(
            err, DDP_ERR_CONFIG,
            "%s: [ddp] zero = 1 gives each rank the mean of its shard alone, but a hook gives all of it to every rank; "
            "remove one of the two, [ddp] zero or [hook] plugin (%s)",
            where_of(c, "ddp", "zero"), where_of(c, "hook", "plugin"));
    DDP_TRY(check_local_steps(c, err));
    return check_wire_order(c, err);
}

static ddp_status check_group(ddp_config *c, ddp_err *err)
{
    const struct ddp_group_config *g = c->group;
    char *end;

    if (strcmp(g->rank, "auto") == 0) {
        c->rank = DDP_RANK_AUTO;
        return DDP_OK;
    }
    if (strcmp(g->rank, "spare") == 0) {
        c->rank = DDP_RANK_SPARE;
        return DDP_OK;
    }
    c->rank = strtoll(g->rank, &end, 10);
    if (end == g->rank || *end != '\0' || c->rank < 0 || c->rank > 4095)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "%s: [group] rank = %s is no rank; write a number from 0 to 4095, auto, or spare",
                        where_of(c, "group", "rank"), g->rank);
    if (g->world_size > 0 && c->rank >= g->world_size)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "%s: [group] rank = %" PRId64 " does not exist in world_size = %" PRId64
                        " (%s); ranks are 0..%" PRId64,
                        where_of(c, "group", "rank"), c->rank, g->world_size, where_of(c, "group", "world_size"),
                        g->world_size - 1);
    return DDP_OK;
}

/* What a run without all of its ranks needs. */
static ddp_status check_missing(const ddp_config *c, ddp_err *err)
{
    const char *key = c->run->min_world > 0 ? "min_world" : "rank", *section = c->run->min_world > 0 ? "run" : "group";

    if (c->run->min_world == 0 && c->rank != DDP_RANK_SPARE) return DDP_OK;
    if (c->run->restarts == 0)
        return ddp_fail(
            err, DDP_ERR_CONFIG,
            "%s: [%s] %s is for a run that goes on without a rank, but [run] restarts = 0 ends it with the first loss; set restarts",
            where_of(c, section, key), section, key);
    if (c->group->world_size > 0 && c->run->min_world > c->group->world_size)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "%s: [run] min_world = %" PRId64 " is more than world_size = %" PRId64 " (%s)",
                        where_of(c, "run", "min_world"), c->run->min_world, c->group->world_size,
                        where_of(c, "group", "world_size"));
    if (c->rank == DDP_RANK_SPARE && c->group->world_size == 0 && c->group->nodes.count == 0)
        return ddp_fail(
            err, DDP_ERR_CONFIG,
            "%s: [group] rank = spare, but world_size is not set; set it to the number of ranks, without spares",
            where_of(c, "group", "rank"));
    return DDP_OK;
}

/* What a run that restarts goes on from where no rank has it. */
static ddp_status check_run(const ddp_config *c, ddp_err *err)
{
    DDP_TRY(check_missing(c, err));
    if (c->run->restarts == 0 || c->checkpoint->dir[0] != '\0') return DDP_OK;
    return ddp_fail(err, DDP_ERR_CONFIG,
                    "%s: [run] restarts = %" PRId64
                    " needs [checkpoint] dir, and every, for when all ranks are lost: the run goes on from there",
                    where_of(c, "run", "restarts"), c->run->restarts);
}

static ddp_status check_rollback(const ddp_config *c, ddp_err *err)
{
    if (c->train->replicas_differ != DDP_REPLICAS_DIFFER_ROLLBACK || c->train->check_replicas_every > 0) return DDP_OK;
    return ddp_fail(
        err, DDP_ERR_CONFIG,
        "%s: [train] replicas_differ = rollback needs check_replicas_every; without it no replicas are compared",
        where_of(c, "train", "replicas_differ"));
}

/* Names that have a default, so that only an empty value can leave them out. */
static ddp_status check_names(const ddp_config *c, ddp_err *err)
{
    const struct {
        const char *section, *key, *value;
    } names[] = {{"group", "backend", c->group->backend},
                 {"train", "device", c->train->device.count > 0 ? "named" : ""},
                 {"sampler", "plugin", c->sampler},
                 {"checkpoint", "resume", c->checkpoint->resume}};

    for (size_t i = 0; i < DDP_COUNT(names); i++)
        if (names[i].value[0] == '\0')
            return ddp_fail(err, DDP_ERR_CONFIG, "%s: [%s] %s is empty; give it a value, or leave the line out",
                            where_of(c, names[i].section, names[i].key), names[i].section, names[i].key);
    return DDP_OK;
}

bool ddp_config_halves(const char *backend, char local[DDP_HALF_MAX], char remote[DDP_HALF_MAX])
{
    const char *plus = strchr(backend, '+');
    size_t first = plus == NULL ? 0 : (size_t)(plus - backend), second = plus == NULL ? 0 : strlen(plus + 1);

    if (first == 0 || second == 0 || first >= DDP_HALF_MAX || second >= DDP_HALF_MAX || strchr(backend, '/') != NULL ||
        strchr(plus + 1, '+') != NULL)
        return false;
    memcpy(local, backend, first);
    local[first] = '\0';
    ddp_copy_text(remote, DDP_HALF_MAX, plus + 1);
    return strcmp(local, remote) != 0 && strcmp(local, "auto") != 0 && strcmp(remote, "auto") != 0;
}

static ddp_status check_hierarchy(const ddp_config *c, ddp_err *err)
{
    const char *name = c->group->backend;
    char local[DDP_HALF_MAX], remote[DDP_HALF_MAX];

    if (strchr(name, '/') != NULL || strchr(name, '+') == NULL || ddp_config_halves(name, local, remote)) return DDP_OK;
    return ddp_fail(err, DDP_ERR_CONFIG,
                    "%s: [group] backend = %s is not LOCAL+REMOTE, the names of two different backends; "
                    "the first is for the ranks of one host, the second between hosts",
                    where_of(c, "group", "backend"), name);
}

/* ---- loading ----------------------------------------------------------------------------------------------------- */
/* The section's config struct; NULL after a failure. */
static const void *parse_section(ddp_config *c, const char *name, ddp_err *err)
{
    const ddp_core_section *s = config_core_section_find(name);
    const void *config = NULL;

    (void)ddp_options_parse(c->ini, name, s->options, s->count, sizeof(ddp_option), s->config_size, &c->settings,
                            &config, err);
    return config;
}

/* In the order in which settings are printed and mistakes reported. */
static ddp_status parse_sections(ddp_config *c, ddp_err *err)
{
    const struct ddp_plugin_config *model, *sampler, *hook;
    const struct ddp_plugins_config *plugins;

    if ((c->group = parse_section(c, "group", err)) == NULL || (c->run = parse_section(c, "run", err)) == NULL ||
        (c->train = parse_section(c, "train", err)) == NULL || (model = parse_section(c, "model", err)) == NULL ||
        (c->train_data = parse_section(c, "data", err)) == NULL ||
        (c->eval_data = parse_section(c, "eval", err)) == NULL ||
        (sampler = parse_section(c, "sampler", err)) == NULL ||
        (c->optimizer = parse_section(c, "optimizer", err)) == NULL ||
        (c->lora = parse_section(c, "lora", err)) == NULL || (c->ddp = parse_section(c, "ddp", err)) == NULL ||
        (hook = parse_section(c, "hook", err)) == NULL || (c->loader = parse_section(c, "loader", err)) == NULL ||
        (c->checkpoint = parse_section(c, "checkpoint", err)) == NULL ||
        (c->output = parse_section(c, "output", err)) == NULL || (plugins = parse_section(c, "plugins", err)) == NULL)
        return err->status;
    c->model = model->plugin;
    c->sampler = sampler->plugin;
    c->hook = hook->plugin;
    c->data = c->train_data->plugin;
    c->eval = c->eval_data->plugin;
    c->plugin_path = plugins->path;
    return DDP_OK;
}

static ddp_status load(const char *path, const char *const *overrides, size_t override_count, ddp_config *c,
                       ddp_err *err)
{
    DDP_TRY(ddp_ini_load(path, &c->ini, err));
    for (size_t i = 0; i < override_count; i++) DDP_TRY(ddp_ini_set(c->ini, overrides[i], err));
    for (const ddp_ini_section *s = c->ini->sections; s != NULL; s = s->next)
        if (!section_is_known(s->name)) return fail_section(s, err);
    DDP_TRY(parse_sections(c, err));
    DDP_TRY(check_names(c, err));
    DDP_TRY(check_hierarchy(c, err));
    DDP_TRY(check_group(c, err));
    DDP_TRY(check_train(c, err));
    DDP_TRY(check_output(c, err));
    DDP_TRY(check_run(c, err));
    DDP_TRY(check_rollback(c, err));
    DDP_TRY(check_ddp(c, err));
    return check_optimizer(c, err);
}

ddp_status ddp_config_load(const char *path, const char *const *overrides, size_t override_count, ddp_config *out,
                           ddp_err *err)
{
    ddp_config c = {0};
    ddp_status status = load(path, overrides, override_count, &c, err);

    if (status != DDP_OK) {
        ddp_config_free(&c);
        return status;
    }
    *out = c;
    return DDP_OK;
}

void ddp_config_free(ddp_config *c)
{
    ddp_settings_free(&c->settings);
    ddp_ini_free(c->ini);
    *c = (ddp_config){0};
}

ddp_status ddp_config_plugin(ddp_config *c, const char *section, const ddp_plugin *plugin, const void **config,
                             ddp_err *err)
{
    return ddp_options_parse(c->ini, section, plugin->options, plugin->option_count, plugin->option_size,
                             plugin->config_size, &c->settings, config, err);
}

const char *ddp_config_unused_section(const ddp_config *c, const char *after)
{
    const ddp_ini_section *s = c->ini->sections;

    if (after != NULL) {
        while (s != NULL && strcmp(s->name, after) != 0) s = s->next;
        if (s != NULL) s = s->next;
    }
    for (; s != NULL; s = s->next) {
        bool parsed = config_core_section_find(s->name) != NULL;

        for (size_t i = 0; i < c->settings.count && !parsed; i++)
            parsed = strcmp(c->settings.items[i].section, s->name) == 0;
        if (!parsed) return s->name;
    }
    return NULL;
}
