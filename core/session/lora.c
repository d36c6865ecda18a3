/* session/lora.c -- [lora] on this model: which of its linear layers get an adapter, and what is trained. */
#include "session/groups.h"
#include <math.h>
#include <string.h>

enum { SHOWN = 8 };
#define ALL_LINEAR "all-linear"

static ddp_status at_key(const ddp_session *s, const char *key, ddp_err *err)
{
    (void)ddp_fail_context(err, "[lora] %s", key);
    return session_at_key(s, "lora", key, err);
}

static ddp_status fits_nothing(const char *pattern, const ddp_linear_layer *layers, uint32_t count, ddp_err *err)
{
    ddp_text names = {0};

    for (uint32_t i = 0; i < count && i <= SHOWN; i++)
        ddp_text_printf(&names, "%s%s", i > 0 ? ", " : "", i < SHOWN ? layers[i].name : "..");
    (void)ddp_fail(err, DDP_ERR_CONFIG, "\"%s\" names no linear layer; there are %s; * is any text", pattern,
                   names.data != NULL ? names.data : "none");
    ddp_text_free(&names);
    return err->status;
}

/* As PEFT's: the output layer only by its own name. */
static bool fits(const char *pattern, const ddp_linear_layer *l)
{
    return strcmp(pattern, ALL_LINEAR) == 0 ? !l->output : ddp_layer_named(pattern, l->name);
}

static ddp_status check_patterns(const ddp_session *s, const ddp_linear_layer *layers, uint32_t count, ddp_err *err)
{
    const char *const *items = s->config->lora->target.items;

    for (size_t k = 0; k < s->config->lora->target.count; k++) {
        bool any = false;

        for (uint32_t i = 0; i < count; i++) any |= fits(items[k], &layers[i]);
        if (!any) return fits_nothing(items[k], layers, count, err);
    }
    return s->config->lora->target.count > 0 ? DDP_OK : fits_nothing("", layers, count, err);
}

/* rank = 0 by itself says that there are to be none. */
ddp_status session_lora_check(const ddp_session *s, ddp_err *err)
{
    const ddp_settings *all = &s->config->settings;
    const ddp_setting *rank = ddp_settings_find(all, "lora", "rank"), *first = NULL;

    for (size_t i = 0; i < all->count && first == NULL; i++)
        if (strcmp(all->items[i].section, "lora") == 0 && strcmp(all->items[i].where, "default") != 0)
            first = &all->items[i];
    if (first == NULL || (rank != NULL && strcmp(rank->where, "default") != 0)) return DDP_OK;
    (void)ddp_fail(
        err, DDP_ERR_CONFIG,
        "[lora] %s is set and rank is not, so that there would be no adapters; set [lora] rank, such as 8, or rank = 0 for a run without them",
        first->key);
    return session_at_key(s, "lora", first->key, err);
}

static double scale_of(const struct ddp_lora_config *c)
{
    double rank = (double)c->rank, alpha = c->alpha > 0.0 ? c->alpha : 2.0 * rank;

    return alpha / (c->rslora ? sqrt(rank) : rank);
}

/* Values within their ranges with which no adapter learns. */
static ddp_status check_values(const ddp_session *s, ddp_err *err)
{
    const struct ddp_lora_config *c = s->config->lora;

    if (c->dropout >= 1.0) {
        (void)ddp_fail(err, DDP_ERR_CONFIG,
                       "1 drops all that the adapters read, so that they learn nothing; give less than 1");
        return at_key(s, "dropout", err);
    }
    if (c->plus_ratio <= 0.0) {
        (void)ddp_fail(err, DDP_ERR_CONFIG,
                       "with 0 the matrices B, which are zero at first, never learn; give 1 for LoRA, 16 for LoRA+");
        return at_key(s, "plus_ratio", err);
    }
    return DDP_OK;
}

ddp_status session_lora_choose(ddp_session *s, const ddp_graph *plain, ddp_err *err)
{
    const struct ddp_lora_config *c = s->config->lora;
    const char *const *items = c->target.items;
    ddp_session_lora *own = &s->model.lora;
    const ddp_linear_layer *layers = NULL;
    uint32_t count = 0;
    const char **chosen;

    DDP_TRY(check_values(s, err));
    DDP_TRY(ddp_graph_linear_layers(plain, &own->pool, &layers, &count, err));
    if (check_patterns(s, layers, count, err) != DDP_OK) return at_key(s, "target", err);
    chosen = ddp_pool_alloc(&own->pool, (count + 1) * sizeof(*chosen), err);
    if (chosen == NULL) return err->status;
    own->spec = (ddp_adapter_spec){.layers = chosen, .rank = c->rank, .scale = scale_of(c), .dropout = c->dropout};
    for (uint32_t i = 0; i < count; i++) {
        bool wanted = false;

        for (size_t k = 0; k < c->target.count; k++) wanted |= fits(items[k], &layers[i]);
        if (wanted) chosen[own->spec.layer_count++] = layers[i].name;
    }
    own->on = true;
    return DDP_OK;
}

ddp_status session_lora_freeze(ddp_session *s, ddp_err *err)
{
    if (!s->model.lora.on) return DDP_OK;
    if (ddp_graph_train_adapters(s->model.graph, &s->config->lora->modules_to_save, err) == DDP_OK) return DDP_OK;
    return at_key(s, "modules_to_save", err);
}

/* A rank that goes on after others are lost gives its parameters to them in f32. */
void session_lora_hold_half(ddp_session *s)
{
    const ddp_device_handle *d = &s->device;
    ddp_session_lora *own = &s->model.lora;

    /* models that leave the engine are those of the base's file */
    own->rounds = own->on && s->config->train->precision == DDP_PRECISION_BF16 && s->launch.purpose != DDP_TO_INFER;
    if (!own->rounds || s->launch.purpose != DDP_TO_TRAIN || s->config->run->restarts > 0 ||
        ddp_session_devices(s) != 1 || ddp_device_has_memory(d) || d->ops->frozen_dtypes == NULL ||
        (d->ops->frozen_dtypes(d->device) >> DDP_BF16 & 1u) == 0)
        return;
    own->half = ddp_graph_hold_half(s->model.graph);
}

void session_lora_free(ddp_session *s)
{
    ddp_pool_free(&s->model.lora.pool);
    s->model.lora = (ddp_session_lora){0};
}
