/* session/open.c -- opens, in the order of a start, what is local to a rank: plugins, data, graph, layout, device,
 * programs. What fails on the way is the configuration's fault unless the error says otherwise. */
#include "session/open.h"
#include "base/sys.h"
#include "session/affinity.h"
#include "session/devices.h"
#include "session/epoch.h"
#include "session/place.h"
#include "session/groups.h"
#include "session/metrics.h"
#include "session/plugins.h"
#include "session/variants.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Bytes: what --check shows, and a run of one rank has, where [ddp] bucket_size = auto. */
#define DDP_PLANNED_BUCKET (25u << 20)

/* ---- data ------------------------------------------------------------------------------------------------------ */
/* Of [data] without what augments: where there is no [eval], a prediction sees images as an evaluation would. */
static const struct ddp_data_config *without_augmentation(const ddp_session *s, ddp_source *src, ddp_err *err)
{
    struct ddp_data_config *own = ddp_pool_alloc(&src->pool, sizeof(*own), err);

    if (own == NULL) return NULL;
    *own = *s->config->train_data;
    own->flip = 0.0;
    own->padding = 0;
    if (own->random_crop.count > 0) own->center_crop = own->random_crop;
    own->random_crop = own->color_jitter = (ddp_list){0};
    own->random_erasing = own->mixup = own->cutmix = 0.0;
    return own;
}

/* mean and std of [eval] are those of [data] unless it has its own: a model must see both alike. */
static ddp_status open_transform(ddp_session *s, ddp_source *src, const char *section, ddp_err *err)
{
    const struct ddp_data_config *other = s->config->train_data, *own = src != &s->train ? s->config->eval_data
                                                                        : s->launch.purpose == DDP_TO_PREDICT
                                                                            ? without_augmentation(s, src, err)
                                                                            : other;
    ddp_transform_params p = {.config = own,
                              .mean = own != NULL && own->mean.count > 0 ? &own->mean : &other->mean,
                              .std = own != NULL && own->std.count > 0 ? &own->std : &other->std,
                              .seed = s->config->train->seed,
                              .fields = src->fields,
                              .field_count = src->field_count,
                              .length = src->length};

    if (own == NULL) return err->status;
    if (ddp_transform_open(&p, &src->transform, err) != DDP_OK)
        return ddp_fail_context(err, "[%s] plugin = %s", section, src->plugin->desc.name);
    if (src->transform == NULL) return DDP_OK;
    src->fields = ddp_transform_fields(src->transform);
    src->field_count = ddp_transform_field_count(src->transform);
    return DDP_OK;
}

static ddp_status open_source(ddp_session *s, ddp_source *src, const void *config, const void *sampler_config,
                              const char *section, ddp_err *err)
{
    src->ops = src->plugin->ops;
    if (src->ops->open(&s->host, config, &src->dataset, err) != DDP_OK) {
        (void)ddp_fail_as(err, err->status == DDP_ERR_CONFIG ? DDP_EXIT_CONFIG : DDP_EXIT_DATA);
        return ddp_fail_context(err, "[%s.%s]", section, src->plugin->desc.name);
    }
    src->plugin->live++;
    DDP_TRY(ddp_dataset_fields(src->ops, src->dataset, &src->pool, &src->fields, &src->field_count, err));
    src->length = src->ops->length(src->dataset);
    DDP_TRY(open_transform(s, src, section, err));
    if (src->sampler_plugin == NULL) return DDP_OK; /* only its fields are wanted */
    src->sampler_ops = src->sampler_plugin->ops;
    src->sampler_config = sampler_config;
    return session_open_samplers(s, src, err);
}

static void close_source(ddp_source *src)
{
    session_close_samplers(src);
    ddp_transform_close(src->transform);
    ddp_pool_free(&src->pool);
    if (src->dataset != NULL) {
        src->ops->close(src->dataset);
        src->plugin->live--;
    }
}

/* The model was built on the training fields; the evaluation must bring the same ones. */
static ddp_status check_eval_fields(const ddp_session *s, ddp_err *err)
{
    const ddp_source *a = &s->train, *b = &s->eval;

    if (a->plugin == b->plugin) DDP_TRY_AS(DDP_EXIT_CONFIG, err, a->ops->agrees(a->dataset, b->dataset, err));
    /* what samples are mixed by is of training alone */
    for (uint32_t i = 0; i < a->field_count && strcmp(a->fields[i].name, DDP_FIELD_MIX_LABEL) != 0; i++) {
        const ddp_field *f = &a->fields[i], *g = i < b->field_count ? &b->fields[i] : NULL;

        if (g == NULL || strcmp(f->name, g->name) != 0 || f->dtype != g->dtype || f->rank != g->rank ||
            memcmp(f->dims, g->dims, f->rank * sizeof(f->dims[0])) != 0)
            return ddp_fail(
                err, DDP_ERR_CONFIG,
                "[eval] plugin = %s does not give field \"%s\" in the shape and dtype of [data] plugin = %s; "
                "both must describe the same samples, after the resize and crop that each section names for itself",
                b->plugin->desc.name, f->name, a->plugin->desc.name);
    }
    return DDP_OK;
}

/* A value that has no name of its own is called by its number. */
static const char *value_name(const ddp_source *src, uint32_t field, int64_t value, char *room, size_t size)
{
    const char *name = src->ops->class_name(src->dataset, field, value);

    if (name != NULL) return name;
    (void)snprintf(room, size, "%" PRId64, value);
    return room;
}

static ddp_status compare_names(const ddp_source *a, const ddp_source *b, uint32_t field, int64_t value, ddp_err *err)
{
    char x_room[24], y_room[24];
    const char *x = value_name(a, field, value, x_room, sizeof(x_room));
    const char *y = value_name(b, field, value, y_room, sizeof(y_room));

    if (strcmp(x, y) == 0) return DDP_OK;
    return ddp_fail(err, DDP_ERR_CONFIG,
                    "%s %" PRId64 " is \"%.60s\"%s in [data] and \"%.60s\"%s in [eval]; both need the same classes. "
                    "Name them in an option of both, such as classes, or add the missing ones",
                    a->fields[field].name, value, x, x == x_room ? ", without a name," : "", y,
                    y == y_room ? ", without a name," : "");
}

/* A class that has one name in training and another in the evaluation would be counted as wrong for ever. */
static ddp_status check_class_names(const ddp_session *s, ddp_err *err)
{
    const ddp_source *a = &s->train, *b = &s->eval;

    for (uint32_t i = 0; i < a->field_count && i < b->field_count; i++) {
        int64_t last = a->fields[i].max < b->fields[i].max ? a->fields[i].max : b->fields[i].max;

        for (int64_t v = 0; a->fields[i].dtype == DDP_I64 && v <= last; v++) {
            if (a->ops->class_name(a->dataset, i, v) == NULL && b->ops->class_name(b->dataset, i, v) == NULL) break;
            DDP_TRY(compare_names(a, b, i, v, err));
        }
    }
    return DDP_OK;
}

static ddp_status open_data(ddp_session *s, const ddp_plugin_configs *pc, ddp_err *err)
{
    s->train.fields = s->launch.fields;
    s->train.field_count = s->launch.field_count;
    if (s->train.plugin != NULL) DDP_TRY(open_source(s, &s->train, pc->data, pc->sampler, "data", err));
    if (s->train.sampler_count > 0) DDP_TRY(session_count_epoch(s, err));
    if (s->train.sampler_count > 0 && session_schedule_check(s->config->optimizer, ddp_session_steps(s), err) != DDP_OK)
        return session_at_key(s, "optimizer", "warmup_steps", err);
    if (s->eval.plugin == NULL) return DDP_OK;
    DDP_TRY(open_source(s, &s->eval, pc->eval, pc->eval_sampler, "eval", err));
    if (s->train.plugin == NULL) return DDP_OK;
    DDP_TRY(check_eval_fields(s, err));
    return check_class_names(s, err);
}

ddp_status ddp_session_open_dataset(ddp_session *s, ddp_err *err)
{
    ddp_plugin_configs pc = {0};

    DDP_TRY(session_plugins_load(s, &pc, err));
    return open_source(s, &s->train, pc.data, NULL, "data", err);
}

/* ---- graph, device, programs ----------------------------------------------------------------------------------- */
static ddp_status measure(ddp_session *s, ddp_graph *g, ddp_err *err)
{
    if (ddp_graph_measure(g, &s->config->eval_data->metrics, err) == DDP_OK) return DDP_OK;
    (void)ddp_fail_context(err, "[eval] metrics");
    return session_at_key(s, "eval", "metrics", err);
}

/* Samples whose texts must not see each other, and a model that would let them. */
static ddp_status check_segments(const ddp_source *src, const ddp_graph *g, ddp_err *err)
{
    bool has = false;

    for (uint32_t i = 0; i < src->field_count; i++) has = has || strcmp(src->fields[i].name, "segment") == 0;
    if (!has || ddp_graph_reads(g, "segment")) return DDP_OK;
    return ddp_fail(
        err, DDP_ERR_CONFIG,
        "the texts of a sample must not see each other (field \"segment\"), which this model does not support; "
        "set packing to yes or no, or take a model that does");
}

/* The graph on a source's fields; a label that the model has no class for is the data's fault. */
static ddp_status describe(ddp_session *s, const ddp_source *src, const char *section, const void *model_config,
                           ddp_graph **out, ddp_err *err)
{
    const ddp_model_ops *ops = s->model.plugin->ops;
    ddp_graph *g;

    DDP_TRY(ddp_graph_create(src->fields, src->field_count, &g, err));
    if ((!s->model.lora.on || ddp_graph_adapt(g, &s->model.lora.spec, err) == DDP_OK) &&
        ops->build(g, model_config, err) == DDP_OK && measure(s, g, err) == DDP_OK &&
        check_segments(src, g, err) == DDP_OK && ddp_graph_finish(g, err) == DDP_OK) {
        *out = g;
        return DDP_OK;
    }
    ddp_graph_free(g);
    if (err->status == DDP_ERR_DATA) (void)ddp_fail_as(err, DDP_EXIT_DATA);
    if (src->plugin == NULL) return ddp_fail_context(err, "model \"%s\"", s->model.plugin->desc.name);
    return ddp_fail_context(err, "model \"%s\" on [%s] plugin = %s", s->model.plugin->desc.name, section,
                            src->plugin->desc.name);
}

/* The model without adapters says which linear layers there are. */
static ddp_status choose_adapters(ddp_session *s, const void *model_config, ddp_err *err)
{
    bool eval = s->train.fields == NULL;
    ddp_graph *plain = NULL;
    ddp_status st;

    if (s->config->lora->rank == 0) return session_lora_check(s, err);
    DDP_TRY(describe(s, eval ? &s->eval : &s->train, eval ? "eval" : "data", model_config, &plain, err));
    st = session_lora_choose(s, plain, err);
    ddp_graph_free(plain);
    return st;
}

static ddp_status describe_all(ddp_session *s, const void *model_config, ddp_err *err)
{
    ddp_graph *trial = NULL;

    DDP_TRY(choose_adapters(s, model_config, err));
    if (s->train.fields == NULL) return describe(s, &s->eval, "eval", model_config, &s->model.graph, err);
    DDP_TRY(describe(s, &s->train, "data", model_config, &s->model.graph, err));
    if (s->eval.plugin != NULL) { /* the same graph; built to check the evaluation's fields and labels */
        DDP_TRY(describe(s, &s->eval, "eval", model_config, &trial, err));
        ddp_graph_free(trial);
    }
    return DDP_OK;
}

static ddp_status check_mixed(const ddp_session *s, ddp_err *err)
{
    if (!ddp_transform_mixes(s->train.transform) || s->launch.purpose != DDP_TO_TRAIN ||
        ddp_graph_reads(s->model.graph, DDP_FIELD_MIX_LABEL))
        return DDP_OK;
    (void)ddp_fail(
        err, DDP_ERR_CONFIG,
        "[data] mixup and cutmix need a loss that is the cross_entropy of field \"label\", which model \"%s\" does not have; take them out",
        s->model.plugin->desc.name);
    return session_at_key(s, "data", s->config->train_data->mixup > 0 ? "mixup" : "cutmix", err);
}

static ddp_status build_graph(ddp_session *s, const void *model_config, ddp_err *err)
{
    DDP_TRY(describe_all(s, model_config, err));
    DDP_TRY(session_lora_freeze(s, err));
    DDP_TRY(check_mixed(s, err));
    if (s->launch.purpose == DDP_TO_TRAIN &&
        ddp_graph_freeze(s->model.graph, &s->config->train->freeze, err) != DDP_OK) {
        (void)ddp_fail_context(err, "[train] freeze");
        return session_at_key(s, "train", "freeze", err);
    }
    DDP_TRY(session_check_places(s, err));
    s->model.param_count = ddp_graph_params(s->model.graph, &s->model.params);
    for (uint32_t i = 0; i < s->model.param_count; i++) s->model.param_elements += s->model.params[i].elements;
    s->model.buffer_count = ddp_graph_buffers(s->model.graph, &s->model.buffers);
    s->model.buffer_elements = ddp_graph_buffer_elements(s->model.graph);
    s->model.bucket_size = s->config->ddp->bucket_size > 0 ? s->config->ddp->bucket_size : DDP_PLANNED_BUCKET;
    DDP_TRY(session_groups_choose(s, err));
    return session_create_layout(s, err);
}

static uint32_t compute_threads(const ddp_session *s)
{
    if (s->config->train->threads > 0) return (uint32_t)s->config->train->threads;
    return DDP_MAX_OF(ddp_cpu_count() / ((unsigned)s->launch.local_size * ddp_session_devices(s)), 1);
}

static ddp_status open_device(ddp_session *s, ddp_err *err)
{
    ddp_device_params p = {.struct_size = sizeof(p),
                           .ordinal = s->devices.ordinals[s->devices.own],
                           .threads = compute_threads(s),
                           .precision = (uint32_t)s->config->train->precision,
                           .local_rank = (uint32_t)s->launch.local_rank,
                           .local_size = (uint32_t)s->launch.local_size,
                           .deterministic = (uint32_t)s->config->train->deterministic};

    s->device.ordinal = p.ordinal;
    s->device.threads = p.threads;
    if (p.precision != DDP_PRECISION_F32 && !ddp_device_can(&s->device, DDP_DEVICE_CAP_BF16))
        return ddp_fail(err, DDP_ERR_UNSUPPORTED,
                        "device \"%s\" knows no [train] precision = bf16; set it to f32, or name another device",
                        s->devices.text);
    if (s->device.ops->open(&s->host, s->device.config, &p, &s->device.device, err) != DDP_OK) {
        if (err->status == DDP_ERR_CONFIG) (void)ddp_fail_as(err, DDP_EXIT_CONFIG);
        return ddp_fail_context(err, "device \"%s\"", s->devices.text);
    }
    s->device.info.struct_size = sizeof(s->device.info);
    s->device.ops->describe(s->device.device, &s->device.info);
    s->device.events = 0;
    return DDP_OK;
}

ddp_status ddp_session_open_device(ddp_session *s, ddp_err *err)
{
    DDP_TRY_AS(DDP_EXIT_PLUGIN, err, open_device(s, err));
    return DDP_OK;
}

static ddp_status count_device(ddp_session *s, ddp_status opened)
{
    if (s->device.device != NULL) s->devices.plugin->live++;
    return opened;
}

/* For --check, which starts no threads: the devices that others than the first one will open. */
static ddp_status try_devices(const ddp_session *s, ddp_err *err)
{
    for (uint32_t i = 1; i < ddp_session_devices(s); i++) {
        ddp_session other = *s;
        char name[sizeof(s->devices.name) + 16];

        (void)snprintf(name, sizeof(name), "%s:%u", s->devices.name, s->devices.ordinals[i]);
        other.device.device = NULL;
        other.programs.count = 0;
        other.devices.text = name;
        other.devices.own = i;
        DDP_TRY(ddp_session_open_device(&other, err));
        ddp_session_close_device(&other);
    }
    return DDP_OK;
}

ddp_status ddp_session_open(ddp_session *s, ddp_log *log, ddp_config *config, const ddp_launch *launch, ddp_err *err)
{
    ddp_plugin_configs pc = {0};

    log->level = config->output->log_level;
    *s = (ddp_session){.log = log, .host = ddp_log_host(log), .config = config, .launch = *launch};
    session_share_alone(s);
    if (session_plugins_load(s, &pc, err) != DDP_OK) goto close;
    if (session_check_missing(s, err) != DDP_OK) goto close;
    if (session_resolve_batches(s, err) != DDP_OK) goto close;
    if (session_noise_check(s, err) != DDP_OK) goto close;
    if (open_data(s, &pc, err) != DDP_OK) goto close;
    if (build_graph(s, pc.model, err) != DDP_OK) goto close;
    if (session_loss_mean_choose(s, err) != DDP_OK) goto close;
    s->device.config = pc.device;
    if (count_device(s, ddp_session_open_device(s, err)) != DDP_OK) goto close;
    if (session_plan_pin(s, err) != DDP_OK) goto close;
    session_lora_hold_half(s);
    if (ddp_variants_plan(s, err) != DDP_OK) goto close;
    if (session_metrics_choose(s, err) != DDP_OK) goto close;
    if (s->launch.planning && try_devices(s, err) != DDP_OK) goto close;
    return DDP_OK;

close:
    (void)ddp_fail_as(err, DDP_EXIT_CONFIG);
    if (err->status == DDP_OK) {
        err->status = DDP_ERR_INTERNAL;
        ddp_copy_text(err->msg, sizeof(err->msg), "a plugin failed without giving a reason");
    }
    ddp_session_close(s);
    return err->status;
}

void ddp_session_close_device(ddp_session *s)
{
    ddp_variants_free(s);
    if (s->device.device != NULL) s->device.ops->close(s->device.device);
    s->device.device = NULL;
}

static void close_device(ddp_session *s)
{
    if (s->device.device != NULL) s->devices.plugin->live--;
    ddp_session_close_device(s);
}

ddp_status ddp_session_divide_host(ddp_session *s, int32_t local_rank, int32_t local_size, ddp_err *err)
{
    if (local_size <= s->launch.local_size)
        return DDP_OK; /* the supervisor or launcher knew, whatever hosts are called */
    s->launch.local_rank = local_rank;
    s->launch.local_size = local_size;
    if (compute_threads(s) == s->device.threads) return DDP_OK;
    close_device(s);
    DDP_TRY(count_device(s, ddp_session_open_device(s, err)));
    return ddp_variants_plan(s, err);
}

ddp_status ddp_session_set_bucket_size(ddp_session *s, uint64_t bytes, ddp_err *err)
{
    if (bytes == s->model.bucket_size) return DDP_OK;
    s->model.bucket_size = bytes;
    return session_lay_out(s, err);
}

/* Other micro-batches than before, all that follows from them, and the programs planned again. */
static ddp_status renew_batches(ddp_session *s, ddp_err *err)
{
    ddp_variants_free(s);
    s->programs.arena_bytes = 0;
    DDP_TRY(session_noise_check(s, err));
    DDP_TRY(session_count_epoch(s, err));
    DDP_TRY(session_loss_mean_choose(s, err));
    return ddp_variants_plan(s, err);
}

ddp_status ddp_session_keep_batch(ddp_session *s, uint64_t global_batch, bool uneven, ddp_err *err)
{
    bool other = global_batch != 0 && global_batch != (uint64_t)s->batches.global_batch;

    uneven = uneven && ddp_config_may_be_uneven(s->config);
    if (!other && (!uneven || s->batches.uneven)) return DDP_OK;
    if (other)
        DDP_TRY_AS(DDP_EXIT_CONFIG, err,
                   ddp_config_keep_batch(s->config, (int64_t)ddp_session_parts(s), (int64_t)global_batch,
                                         s->batches.batch_size, &s->batches, err));
    s->batches.uneven = s->batches.uneven || uneven;
    DDP_TRY_AS(DDP_EXIT_CONFIG, err, renew_batches(s, err));
    return DDP_OK;
}

ddp_status ddp_session_renew(ddp_session *s, ddp_err *err)
{
    bool resized = s->launch.world != ddp_session_ranks(s);

    close_device(s);
    DDP_TRY(session_resolve_batches(s, err));
    if (s->train.sampler_count > 0) DDP_TRY(session_count_epoch(s, err));
    DDP_TRY(session_loss_mean_choose(s, err));
    DDP_TRY(count_device(s, ddp_session_open_device(s, err)));
    if (!resized) return ddp_variants_plan(s, err);
    s->launch.world = ddp_session_ranks(s);
    return session_lay_out(s, err);
}

void ddp_session_close(ddp_session *s)
{
    close_device(s);
    ddp_layout_free(s->model.layout);
    session_groups_free(s);
    ddp_graph_free(s->model.graph);
    session_lora_free(s);
    close_source(&s->eval);
    close_source(&s->train);
    ddp_session_close_init(s);
    session_free_hierarchy(s);
    if (s->registry != NULL) ddp_registry_close(s->registry);
    *s = (ddp_session){0};
}
