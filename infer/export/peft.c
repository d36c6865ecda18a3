/* infer/export/peft.c -- adapters in the layout of PEFT's save_pretrained; see export.h. */
#include "infer/export/export.h"
#include "infer/export/base.h"
#include "infer/export/folder.h"
#include "train/state/memory.h"
#include "train/state/tensors.h"
#include <jansson.h>
#include <math.h>
#include <string.h>

#define PREFIX "base_model.model."

/* ---- adapter_config.json ----------------------------------------------------------------------------------------- */
static json_t *target_modules(const ddp_session *s)
{
    const ddp_adapter_spec *spec = &s->model.lora.spec;
    json_t *list = json_array();

    for (uint32_t i = 0; i < spec->layer_count; i++) (void)json_array_append_new(list, json_string(spec->layers[i]));
    return list;
}

/* The names of those that are trained whole, each once. */
static json_t *modules_to_save(const ddp_session *s)
{
    json_t *list = json_array();

    for (uint32_t p = 0; p < s->model.param_count; p++) {
        const ddp_param_info *i = &s->model.params[p];
        const char *dot = strrchr(i->name, '.');
        size_t length = dot != NULL ? (size_t)(dot - i->name) : strlen(i->name), k, known = 0;
        json_t *other;

        if (i->frozen || i->adapter) continue;
        json_array_foreach(list, k, other) known +=
            json_string_length(other) == length && memcmp(json_string_value(other), i->name, length) == 0;
        if (known == 0) (void)json_array_append_new(list, json_stringn(i->name, length));
    }
    if (json_array_size(list) > 0) return list;
    json_decref(list);
    return json_null();
}

/* Hugging Face's Conv1D has its weight as (in, out). */
static bool has_transposed(const ddp_session *s)
{
    const ddp_adapted *adapted;
    uint32_t count = ddp_graph_adapted(s->model.graph, &adapted);
    bool any = false;

    for (uint32_t i = 0; i < count; i++) any |= adapted[i].transposed;
    return any;
}

static json_t *number(double x) { return x == floor(x) && x < 1e15 ? json_integer((json_int_t)x) : json_real(x); }

static json_t *describe(const ddp_session *s, const char *base, const json_t *config)
{
    const struct ddp_lora_config *c = s->config->lora;
    double alpha = c->alpha > 0.0 ? c->alpha : 2.0 * (double)c->rank;

    return json_pack("{s:s, s:s?, s:s?, s:I, s:o, s:f, s:s, s:b, s:b, s:b, s:b, s:o, s:o}", "peft_type", "LORA",
                     "base_model_name_or_path", base[0] != '\0' ? base : NULL, "task_type",
                     export_base_is_causal(config) ? "CAUSAL_LM" : NULL, "r", (json_int_t)c->rank, "lora_alpha",
                     number(alpha), "lora_dropout", c->dropout, "bias", "none", "fan_in_fan_out", has_transposed(s),
                     "use_rslora", c->rslora, "inference_mode", 1, "init_lora_weights", 1, "target_modules",
                     target_modules(s), "modules_to_save", modules_to_save(s));
}

/* ---- adapter_model.safetensors ----------------------------------------------------------------------------------- */
static bool is_buffer(const ddp_session *s, const char *name)
{
    for (uint32_t b = 0; b < s->model.buffer_count; b++)
        if (strcmp(s->model.buffers[b].name, name) == 0) return true;
    return false;
}

/* Without buffers, which PEFT leaves to the base, and with its names. */
static ddp_status rename_all(const ddp_session *s, ddp_views *v, ddp_err *err)
{
    size_t kept = 0;

    for (size_t i = 0; i < v->count; i++) {
        ddp_named_tensor t = v->tensors[i];

        if (is_buffer(s, t.name)) continue;
        if (strncmp(t.name, PREFIX, strlen(PREFIX)) != 0) t.name = ddp_pool_printf(&v->pool, err, PREFIX "%s", t.name);
        if (t.name == NULL) return err->status;
        v->tensors[kept++] = t;
    }
    v->count = kept;
    return DDP_OK;
}

static ddp_status write_adapters(infer_model *m, const char *folder, ddp_err *err)
{
    ddp_views views = {0};
    ddp_state_arenas a;
    ddp_status st;

    DDP_TRY(state_pull(&m->t, DDP_ARENA_PARAMS | DDP_ARENA_BUFFERS, err));
    a = state_arenas(&m->t);
    st = state_model_views(&m->t, &a, STATE_SAVED, &views, err);
    if (st == DDP_OK) st = rename_all(m->t.s, &views, err);
    if (st == DDP_OK) st = export_write_tensors(folder, "adapter_model.safetensors", views.tensors, views.count, err);
    state_views_free(&views);
    ddp_staging_close(&m->t);
    return st;
}

ddp_status infer_export_peft(infer_model *m, const ddp_export_request *q, ddp_err *err)
{
    const ddp_session *s = m->t.s;
    char base[EXPORT_PATH];
    json_t *config = NULL;
    ddp_status st;

    if (!s->model.lora.on)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "export peft writes adapters, and the model has none: [lora] rank is 0; use export torch");
    export_base_folder(s->config, base);
    st = export_base_config(base, &config, err);
    if (st == DDP_OK) st = export_make_folder(q->path, err);
    if (st == DDP_OK) st = write_adapters(m, q->path, err);
    if (st == DDP_OK) st = export_write_json(q->path, "adapter_config.json", describe(s, base, config), err);
    json_decref(config);
    return st == DDP_OK ? st : ddp_fail_as(err, DDP_EXIT_CHECKPOINT);
}
