/* train/session.c -- opens, in the order of a start, what is local to a rank: plugins, data, graph, layout, device,
 * programs. Each step sets the phase, which is the exit code if it fails. */
#include "train/session.h"
#include "base/sys.h"
#include "group/group.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- plugins and their options ---------------------------------------------------------------------------------------- */
/* Puts in front of an error where the key that led to it stands, when somebody wrote it. */
static ddp_status at_key(const ddp_session *s, const char *section, const char *key, ddp_err *err)
{
    const ddp_setting *t = ddp_settings_find(&s->config->settings, section, key);

    if (t == NULL || strcmp(t->where, "default") == 0) return err->status;
    return ddp_fail_context(err, "%s", t->where);
}

/* The same for the key that names a plugin. */
static ddp_status at_choice(const ddp_session *s, uint32_t kind, const char *section_kind, ddp_err *err)
{
    switch (kind) {
    case DDP_KIND_BACKEND: return at_key(s, "group", "backend", err);
    case DDP_KIND_INIT: return at_key(s, "group", "init_method", err);
    case DDP_KIND_DEVICE: return at_key(s, "train", "device", err);
    default: return at_key(s, section_kind, "plugin", err);
    }
}

static ddp_status load_plugin(ddp_session *s, uint32_t kind, const char *name, const char *section_kind,
                              ddp_loaded **out, const void **config, ddp_err *err)
{
    char section[128];
    ddp_loaded *p;

    s->phase = DDP_EXIT_PLUGIN;
    if (ddp_registry_load(s->registry, kind, name, &p, err) != DDP_OK) return at_choice(s, kind, section_kind, err);
    s->phase = DDP_EXIT_CONFIG;
    (void)snprintf(section, sizeof(section), "%s.%s", section_kind, p->desc.name);
    DDP_TRY(ddp_config_plugin(s->config, section, &p->desc, config, err));
    *out = p;
    return DDP_OK;
}

/* "cpu:1" -> "cpu" and 1 */
static ddp_status split_device(const char *text, char *name, size_t capacity, uint32_t *ordinal, ddp_err *err)
{
    const char *colon = strchr(text, ':');
    size_t length = colon == NULL ? strlen(text) : (size_t)(colon - text);
    char *end = NULL;
    unsigned long n = 0;

    if (colon != NULL) n = strtoul(colon + 1, &end, 10);
    if (length == 0 || length >= capacity || (colon != NULL && (end == colon + 1 || *end != '\0' || n > 1023)))
        return ddp_fail(err, DDP_ERR_CONFIG, "[train] device = %s is not a device; write \"cpu\" or \"cpu:1\"", text);
    memcpy(name, text, length);
    name[length] = '\0';
    *ordinal = (uint32_t)n;
    return DDP_OK;
}

static ddp_status load_init(ddp_session *s, ddp_err *err)
{
    const char *url = s->config->group->init_method;
    char scheme[32];
    size_t length = strcspn(url, ":");

    s->phase = DDP_EXIT_CONFIG;
    ddp_copy_text(s->url, sizeof(s->url), url);
    if (s->launch.world == 1 || s->launch.introduced) return DDP_OK;
    if (url[0] == '\0')
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "[group] init_method is not set, so the ranks cannot find each other; write for example "
                        "init_method = tcp://127.0.0.1:29500, or start all ranks of one host with --nproc %d",
                        s->launch.world);
    if (length == 0 || length >= sizeof(scheme) || strncmp(url + length, "://", 3) != 0) {
        (void)ddp_fail(err, DDP_ERR_CONFIG, "[group] init_method = %s is not a URL; write for example tcp://host:port",
                       url);
        return at_key(s, "group", "init_method", err);
    }
    memcpy(scheme, url, length);
    scheme[length] = '\0';
    DDP_TRY(load_plugin(s, DDP_KIND_INIT, scheme, "init", &s->init, &s->init_config, err));
    s->init_ops = s->init->ops;
    s->phase = DDP_EXIT_CONFIG;
    if (s->init_ops->open(&s->host, s->init_config, url, &s->init_handle, err) != DDP_OK)
        return at_key(s, "group", "init_method", err);
    s->init->live++;
    return DDP_OK;
}

struct plugin_configs {
    const void *model, *data, *eval, *sampler, *eval_sampler, *device;
    uint32_t ordinal;
};

static ddp_status load_all(ddp_session *s, struct plugin_configs *pc, ddp_err *err)
{
    ddp_config *c = s->config;

    s->phase = DDP_EXIT_CONFIG;
    DDP_TRY(ddp_registry_open(s->log, &c->plugin_path, &s->registry, err));
    if (split_device(c->train->device, s->device_name, sizeof(s->device_name), &pc->ordinal, err) != DDP_OK)
        return at_key(s, "train", "device", err);
    DDP_TRY(load_plugin(s, DDP_KIND_BACKEND, c->group->backend, "backend", &s->backend, &s->backend_config, err));
    ddp_copy_text(s->backend_name, sizeof(s->backend_name), s->backend->desc.name); /* the INI may give a path */
    s->phase = DDP_EXIT_PLUGIN;
    DDP_TRY(ddp_backend_check(s->backend, err));
    DDP_TRY(load_init(s, err));
    DDP_TRY(load_plugin(s, DDP_KIND_DEVICE, s->device_name, "device", &s->device_plugin, &pc->device, err));
    s->device_ops = s->device_plugin->ops;
    DDP_TRY(load_plugin(s, DDP_KIND_MODEL, c->model, "model", &s->model, &pc->model, err));
    DDP_TRY(load_plugin(s, DDP_KIND_DATASET, c->data, "data", &s->train.plugin, &pc->data, err));
    DDP_TRY(load_plugin(s, DDP_KIND_SAMPLER, c->sampler, "sampler", &s->train.sampler_plugin, &pc->sampler, err));
    if (c->eval[0] == '\0') return DDP_OK;
    DDP_TRY(load_plugin(s, DDP_KIND_DATASET, c->eval, "eval", &s->eval.plugin, &pc->eval, err));
    if (strcmp(c->sampler, "sequential") == 0) { /* one plugin, one set of options */
        s->eval.sampler_plugin = s->train.sampler_plugin;
        pc->eval_sampler = pc->sampler;
        return DDP_OK;
    }
    return load_plugin(s, DDP_KIND_SAMPLER, "sequential", "sampler", &s->eval.sampler_plugin, &pc->eval_sampler, err);
}

/* One line each, of the first rank on this host: they mostly share the file. */
static void warn_deprecated(const ddp_session *s)
{
    const ddp_settings *all = &s->config->settings;

    for (size_t i = 0; i < all->count && s->launch.local_rank == 0; i++) {
        const ddp_setting *t = &all->items[i];

        if ((t->option->flags & DDP_OPT_F_DEPRECATED) != 0)
            ddp_log_line(s->log, DDP_LOG_WARN, "%s: [%s] %s is deprecated: %s", t->where, t->section, t->key,
                         t->option->doc);
    }
}

ddp_status ddp_session_load_plugins(ddp_session *s, ddp_err *err)
{
    struct plugin_configs pc = {0};

    DDP_TRY(load_all(s, &pc, err));
    warn_deprecated(s);
    return DDP_OK;
}

/* ---- data --------------------------------------------------------------------------------------------------------------- */
static ddp_status open_source(ddp_session *s, ddp_source *src, const void *config, const void *sampler_config,
                              const char *section, ddp_err *err)
{
    ddp_sampler_params sp = {.struct_size = sizeof(sp),
                             .rank = (uint32_t)s->launch.rank,
                             .world_size = (uint32_t)s->launch.world,
                             .seed = s->config->train->seed};

    src->ops = src->plugin->ops;
    src->sampler_ops = src->sampler_plugin->ops;
    s->phase = DDP_EXIT_DATA;
    if (src->ops->open(&s->host, config, &src->dataset, err) != DDP_OK) {
        if (err->status == DDP_ERR_CONFIG) s->phase = DDP_EXIT_CONFIG;
        return ddp_fail_context(err, "[%s.%s]", section, src->plugin->desc.name);
    }
    src->plugin->live++;
    src->field_count = src->ops->fields(src->dataset, &src->fields);
    src->length = src->ops->length(src->dataset);
    s->phase = DDP_EXIT_CONFIG;
    sp.length = src->length;
    if (src->sampler_ops->open(&s->host, sampler_config, &sp, &src->sampler, err) != DDP_OK)
        return ddp_fail_context(err, "[sampler.%s]", src->sampler_plugin->desc.name);
    src->sampler_plugin->live++;
    src->count = src->sampler_ops->count(src->sampler);
    return DDP_OK;
}

static void close_source(ddp_source *src)
{
    if (src->sampler != NULL) {
        src->sampler_ops->close(src->sampler);
        src->sampler_plugin->live--;
    }
    if (src->dataset != NULL) {
        src->ops->close(src->dataset);
        src->plugin->live--;
    }
}

/* The model was built on the training fields; the evaluation must bring the same ones. */
static ddp_status check_eval_fields(ddp_session *s, ddp_err *err)
{
    const ddp_source *a = &s->train, *b = &s->eval;

    s->phase = DDP_EXIT_CONFIG;
    for (uint32_t i = 0; i < a->field_count; i++) {
        const ddp_field *f = &a->fields[i], *g = i < b->field_count ? &b->fields[i] : NULL;

        if (g == NULL || strcmp(f->name, g->name) != 0 || f->dtype != g->dtype || f->rank != g->rank ||
            memcmp(f->dims, g->dims, f->rank * sizeof(f->dims[0])) != 0)
            return ddp_fail(
                err, DDP_ERR_CONFIG,
                "[eval] plugin = %s does not give field \"%s\" in the shape and dtype of [data] plugin = %s; "
                "both must describe the same samples",
                b->plugin->desc.name, f->name, a->plugin->desc.name);
    }
    return DDP_OK;
}

static uint64_t micro_batches(const ddp_session *s, uint64_t samples)
{
    uint64_t batch = (uint64_t)s->batches.batch_size;

    return samples / batch + (samples % batch != 0);
}

/* What the sampler gives rank `rank` in an epoch. */
static ddp_status share_of(const ddp_session *s, const void *sampler_config, int32_t rank, uint64_t *samples,
                           ddp_err *err)
{
    ddp_sampler_params sp = {.struct_size = sizeof(sp),
                             .rank = (uint32_t)rank,
                             .world_size = (uint32_t)s->launch.world,
                             .length = s->train.length,
                             .seed = s->config->train->seed};
    ddp_sampler *trial;

    DDP_TRY(s->train.sampler_ops->open(&s->host, sampler_config, &sp, &trial, err));
    *samples = s->train.sampler_ops->count(trial);
    s->train.sampler_ops->close(trial);
    return DDP_OK;
}

/* Every rank must have samples, and as many micro-batches as the others. The first and the last rank tell for the
 * samplers there are, so that each rank, and --check, sees it alone; the agreement of the ranks looks at all. */
static ddp_status check_shares(const ddp_session *s, const void *sampler_config, ddp_err *err)
{
    const int32_t ranks[] = {0, s->launch.world - 1};
    uint64_t batches[DDP_COUNT(ranks)];

    for (size_t i = 0; i < DDP_COUNT(ranks); i++) {
        uint64_t samples = s->train.count;

        if (ranks[i] != s->launch.rank) DDP_TRY(share_of(s, sampler_config, ranks[i], &samples, err));
        batches[i] = micro_batches(s, samples);
        if (samples == 0)
            return ddp_fail(err, DDP_ERR_CONFIG,
                            "rank %d gets no samples: the dataset has %" PRIu64
                            " for %d ranks; lower world_size or use more data",
                            ranks[i], s->train.length, s->launch.world);
    }
    if (batches[0] == batches[1]) return DDP_OK;
    return ddp_fail(err, DDP_ERR_CONFIG,
                    "sampler \"%s\" gives rank 0 %" PRIu64 " batches an epoch and rank %d %" PRIu64 " (%" PRIu64
                    " samples, batch %" PRId64
                    "), but ranks train in step; write [sampler] plugin = distributed, which makes the shares equal",
                    s->train.sampler_plugin->desc.name, batches[0], ranks[1], batches[1], s->train.length,
                    s->batches.batch_size);
}

static ddp_status open_data(ddp_session *s, const struct plugin_configs *pc, ddp_err *err)
{
    uint64_t accumulate = (uint64_t)s->batches.accumulate;

    DDP_TRY(open_source(s, &s->train, pc->data, pc->sampler, "data", err));
    s->batches_per_epoch = micro_batches(s, s->train.count);
    DDP_TRY(check_shares(s, pc->sampler, err));
    s->steps_per_epoch = (s->batches_per_epoch + accumulate - 1) / accumulate;
    if (s->eval.plugin == NULL) return DDP_OK;
    DDP_TRY(open_source(s, &s->eval, pc->eval, pc->eval_sampler, "eval", err));
    return check_eval_fields(s, err);
}

/* ---- graph, device, programs ---------------------------------------------------------------------------------------------- */
/* The graph on a source's fields; a label that the model has no class for is the data's fault. */
static ddp_status describe(ddp_session *s, const ddp_source *src, const char *section, const void *model_config,
                           ddp_graph **out, ddp_err *err)
{
    const ddp_model_ops *ops = s->model->ops;
    ddp_graph *g;

    s->phase = DDP_EXIT_CONFIG;
    DDP_TRY(ddp_graph_create(src->fields, src->field_count, &g, err));
    if (ops->build(g, model_config, err) == DDP_OK && ddp_graph_finish(g, err) == DDP_OK) {
        *out = g;
        return DDP_OK;
    }
    ddp_graph_free(g);
    if (err->status == DDP_ERR_DATA) s->phase = DDP_EXIT_DATA;
    return ddp_fail_context(err, "model \"%s\" on [%s] plugin = %s", s->model->desc.name, section,
                            src->plugin->desc.name);
}

static ddp_status build_graph(ddp_session *s, const void *model_config, ddp_err *err)
{
    ddp_graph *trial = NULL;

    DDP_TRY(describe(s, &s->train, "data", model_config, &s->graph, err));
    if (s->eval.plugin != NULL) { /* the same graph; built to check the evaluation's fields and labels */
        DDP_TRY(describe(s, &s->eval, "eval", model_config, &trial, err));
        ddp_graph_free(trial);
    }
    s->param_count = ddp_graph_params(s->graph, &s->params);
    for (uint32_t i = 0; i < s->param_count; i++) s->param_elements += s->params[i].elements;
    return ddp_layout_create(s->graph, s->config->ddp->first_bucket_size, s->config->ddp->bucket_size,
                             (uint32_t)s->launch.world, &s->layout, err);
}

static ddp_status open_device(ddp_session *s, const struct plugin_configs *pc, ddp_err *err)
{
    ddp_device_params p = {.struct_size = sizeof(p),
                           .ordinal = pc->ordinal,
                           .precision = DDP_PRECISION_F32,
                           .local_rank = (uint32_t)s->launch.local_rank,
                           .local_size = (uint32_t)s->launch.local_size};
    int64_t threads = s->config->train->threads;

    if (threads == 0) threads = DDP_MAX_OF((int64_t)ddp_cpu_count() / s->launch.local_size, 1);
    p.threads = s->threads = (uint32_t)threads;
    s->phase = DDP_EXIT_PLUGIN;
    if (s->device_ops->open(&s->host, pc->device, &p, &s->device, err) != DDP_OK) {
        if (err->status == DDP_ERR_CONFIG) s->phase = DDP_EXIT_CONFIG;
        return ddp_fail_context(err, "device \"%s\"", s->config->train->device);
    }
    s->device_plugin->live++;
    if ((s->device_ops->caps & DDP_DEVICE_CAP_HOST_MEMORY) == 0)
        return ddp_fail(err, DDP_ERR_UNSUPPORTED,
                        "device \"%s\": its memory is not the host's, which this engine needs",
                        s->config->train->device);
    s->device_info.struct_size = sizeof(s->device_info);
    s->device_ops->describe(s->device, &s->device_info);
    return DDP_OK;
}

ddp_status ddp_session_open(ddp_session *s, ddp_log *log, ddp_config *config, const ddp_launch *launch, ddp_err *err)
{
    struct plugin_configs pc = {0};

    *s = (ddp_session){.log = log, .host = ddp_log_host(log), .config = config, .launch = *launch};
    if (load_all(s, &pc, err) != DDP_OK) goto close;
    warn_deprecated(s);
    s->phase = DDP_EXIT_CONFIG;
    if (ddp_config_batches(config, launch->world, &s->batches, err) != DDP_OK) goto close;
    if (open_data(s, &pc, err) != DDP_OK) goto close;
    if (build_graph(s, pc.model, err) != DDP_OK) goto close;
    if (open_device(s, &pc, err) != DDP_OK) goto close;
    if (ddp_variants_plan(s, err) != DDP_OK) goto close;
    return DDP_OK;

close:
    if (err->status == DDP_OK) (void)ddp_fail(err, DDP_ERR_INTERNAL, "a plugin failed without giving a reason");
    ddp_session_close(s);
    return err->status;
}

void ddp_session_close(ddp_session *s)
{
    ddp_variants_free(s);
    if (s->device != NULL) {
        s->device_ops->close(s->device);
        s->device_plugin->live--;
    }
    ddp_layout_free(s->layout);
    ddp_graph_free(s->graph);
    close_source(&s->eval);
    close_source(&s->train);
    if (s->init_handle != NULL) {
        s->init_ops->close(s->init_handle);
        s->init->live--;
    }
    if (s->registry != NULL) ddp_registry_close(s->registry);
    *s = (ddp_session){.phase = s->phase};
}
