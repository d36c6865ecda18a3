/* infer/export/torch.c -- a state_dict by PyTorch's names, and config.json beside it; see export.h. */
#include "infer/export/export.h"
#include "infer/export/folder.h"
#include "train/state/memory.h"
#include "train/state/tensors.h"
#include <jansson.h>
#include <string.h>

/* ---- config.json ------------------------------------------------------------------------------------------------- */
static json_t *shape_of(const ddp_field *f)
{
    json_t *shape = json_pack("[s]", "N");

    for (uint32_t k = 0; k < f->rank; k++) (void)json_array_append_new(shape, json_integer(f->dims[k]));
    return shape;
}

static json_t *inputs_of(const ddp_session *s)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < s->train.field_count; i++) {
        const ddp_field *f = &s->train.fields[i];

        (void)json_array_append_new(list, json_pack("{s:s, s:s, s:o}", "name", f->name, "dtype",
                                                    ddp_dtype_name(f->dtype), "shape", shape_of(f)));
    }
    return list;
}

/* The settings of some sections: what made the model, and what is done to images before it sees them. */
static json_t *settings_of(const ddp_session *s, const char *section)
{
    const ddp_settings *all = &s->config->settings;
    json_t *out = json_object();

    for (size_t i = 0; i < all->count; i++)
        if (strcmp(all->items[i].section, section) == 0)
            (void)json_object_set_new(out, all->items[i].key, json_string(all->items[i].value));
    return out;
}

static json_t *describe(const ddp_session *s)
{
    char section[128];

    (void)snprintf(section, sizeof(section), "model.%s", s->model.plugin->desc.name);
    return json_pack("{s:s, s:i, s:s, s:o, s:o, s:o, s:o, s:I}", "format", "ddpengine model", "version", 1, "model",
                     s->model.plugin->desc.name, "options", settings_of(s, section), "fields", inputs_of(s), "data",
                     settings_of(s, "data"), "eval", settings_of(s, "eval"), "parameters",
                     (json_int_t)s->model.param_elements);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */
static ddp_status write_weights(infer_model *m, const char *folder, ddp_err *err)
{
    ddp_views views = {0};
    ddp_state_arenas a;
    ddp_status st;

    DDP_TRY(state_pull(&m->t, DDP_ARENA_PARAMS | DDP_ARENA_BUFFERS, err));
    a = state_arenas(&m->t);
    st = state_model_views(&m->t, &a, STATE_ALL, &views, err);
    if (st == DDP_OK) st = export_write_tensors(folder, "model.safetensors", views.tensors, views.count, err);
    state_views_free(&views);
    ddp_staging_close(&m->t);
    return st;
}

ddp_status infer_export_torch(infer_model *m, const ddp_export_request *q, ddp_err *err)
{
    ddp_status st = export_make_folder(q->path, err);

    if (st == DDP_OK) st = write_weights(m, q->path, err);
    if (st == DDP_OK) st = export_write_json(q->path, "config.json", describe(m->t.s), err);
    return st == DDP_OK ? st : ddp_fail_as(err, DDP_EXIT_CHECKPOINT);
}
