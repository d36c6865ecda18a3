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
        "%s: unknown section [%s]; sections are those of plugins, as in [backend.NAME], and: "
        "group, train, model, data, eval, sampler, optimizer, ddp, hook, loader, checkpoint, output, plugins",
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
/* Where a key was written, "default" otherwise. */
static const char *where_of(const ddp_config *c, const char *section, const char *key)
{
    const ddp_setting *s = ddp_settings_find(&c->settings, section, key);

    return s != NULL ? s->where : "default";
}

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
    return DDP_OK;
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

/* ---- batches ----------------------------------------------------------------------------------------------------- */
/* "batch_size 64 (node1.ini:4)" for those of the three that were given. */
static ddp_status fail_batches(const ddp_config *c, int64_t world, const char *why, ddp_err *err)
{
    const struct ddp_train_config *t = c->train;
    ddp_text given = {0};

    if (t->batch_size > 0)
        ddp_text_printf(&given, "batch_size %" PRId64 " (%s), ", t->batch_size, where_of(c, "train", "batch_size"));
    if (t->accumulate > 0)
        ddp_text_printf(&given, "accumulate %" PRId64 " (%s), ", t->accumulate, where_of(c, "train", "accumulate"));
    if (t->global_batch > 0)
        ddp_text_printf(&given, "global_batch %" PRId64 " (%s), ", t->global_batch,
                        where_of(c, "train", "global_batch"));
    (void)ddp_fail(err, DDP_ERR_CONFIG,
                   "[train] %sworld_size %" PRId64 ": %s; batch_size x accumulate x world_size must be global_batch",
                   given.data != NULL ? given.data : "", world, why);
    ddp_text_free(&given);
    return err->status;
}

ddp_status ddp_config_batches(const ddp_config *c, int64_t world, ddp_batches *out, ddp_err *err)
{
    const struct ddp_train_config *t = c->train;
    ddp_batches b = {t->batch_size, t->accumulate, t->global_batch};
    int64_t product;
    char why[128];

    if (world < 1) return ddp_fail(err, DDP_ERR_INVALID, "world_size %" PRId64 " has no ranks", world);
    if (b.global_batch == 0 && b.batch_size == 0) b.batch_size = 64;
    if (b.accumulate == 0 && (b.global_batch == 0 || b.batch_size == 0)) b.accumulate = 1;
    /* at most one of the three is missing now */
    product = world * (b.batch_size > 0 ? b.batch_size : 1); /* below 2^47, and below 2^67 with accumulate */
    if (b.accumulate > 0 && __builtin_mul_overflow(product, b.accumulate, &product))
        return fail_batches(c, world, "their product is over 64 bits", err);
    if (b.global_batch == 0) {
        b.global_batch = product;
    } else if (b.global_batch % product != 0) {
        (void)snprintf(why, sizeof(why), "%" PRId64 " cannot be divided by %" PRId64, b.global_batch, product);
        return fail_batches(c, world, why, err);
    } else if (b.batch_size == 0) {
        b.batch_size = b.global_batch / product;
    } else if (b.accumulate == 0) {
        b.accumulate = b.global_batch / product;
    } else if (b.global_batch != product) {
        (void)snprintf(why, sizeof(why), "that makes %" PRId64, product);
        return fail_batches(c, world, why, err);
    }
    *out = b;
    return DDP_OK;
}
