/* infer/export/torch.c -- a state_dict by PyTorch's names, and config.json beside it; see export.h. */
#include "infer/export/export.h"
#include "train/state/memory.h"
#include "train/state/tensors.h"
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ROOM 4096

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
/* Of PATH/NAME, and while it is written. */
typedef struct target {
    char path[ROOM], tmp[ROOM];
} target;

static ddp_status name_target(target *t, const char *folder, const char *name, ddp_err *err)
{
    if ((size_t)snprintf(t->path, ROOM, "%s/%s", folder, name) >= ROOM ||
        (size_t)snprintf(t->tmp, ROOM, "%s/%s.tmp", folder, name) >= ROOM)
        return ddp_fail(err, DDP_ERR_CONFIG, "the path %.100s... is too long", folder);
    (void)unlink(t->tmp);
    return DDP_OK;
}

static ddp_status put_in_place(const target *t, ddp_err *err)
{
    if (rename(t->tmp, t->path) == 0) return DDP_OK;
    (void)ddp_fail_errno(err, "cannot rename %s to %s", t->tmp, t->path);
    (void)unlink(t->tmp);
    return err->status;
}

static ddp_status write_text(const char *path, const char *text, ddp_err *err)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    ddp_status st;

    if (fd < 0) return ddp_fail_errno(err, "cannot create %s", path);
    st = ddp_write_all(fd, text, strlen(text), path, err);
    if (st == DDP_OK) st = ddp_write_all(fd, "\n", 1, path, err);
    if (close(fd) != 0 && st == DDP_OK) st = ddp_fail_errno(err, "cannot close %s", path);
    if (st != DDP_OK) (void)unlink(path);
    return st;
}

static ddp_status write_config(const ddp_session *s, const char *folder, ddp_err *err)
{
    json_t *object = describe(s);
    char *text = object != NULL ? json_dumps(object, JSON_INDENT(2)) : NULL;
    target t = {.path = ""};
    ddp_status st;

    json_decref(object);
    if (text == NULL)
        return ddp_fail(err, DDP_ERR_INVALID, "config.json: a name or a setting is not UTF-8, or out of memory");
    st = name_target(&t, folder, "config.json", err);
    if (st == DDP_OK) st = write_text(t.tmp, text, err);
    if (st == DDP_OK) st = put_in_place(&t, err);
    free(text);
    return st;
}

static ddp_status write_weights(infer_model *m, const char *folder, ddp_err *err)
{
    static const char *const metadata[] = {"format", "pt", NULL};
    char sha256[DDP_SHA256_HEX];
    ddp_views views = {0};
    ddp_state_arenas a;
    uint64_t bytes;
    target t = {.path = ""};
    ddp_status st;

    DDP_TRY(name_target(&t, folder, "model.safetensors", err));
    DDP_TRY(state_pull(&m->t, DDP_ARENA_PARAMS | DDP_ARENA_BUFFERS, err));
    a = state_arenas(&m->t);
    st = state_model_views(&m->t, &a, STATE_ALL, &views, err);
    if (st == DDP_OK)
        st = checkpoint_safetensors_write(t.tmp, views.tensors, views.count, metadata, NULL, sha256, &bytes, err);
    if (st == DDP_OK) st = put_in_place(&t, err);
    state_views_free(&views);
    ddp_staging_close(&m->t);
    return st;
}

ddp_status infer_export_torch(infer_model *m, const char *path, ddp_err *err)
{
    ddp_status st = DDP_OK;

    if (mkdir(path, 0777) != 0 && errno != EEXIST) st = ddp_fail_errno(err, "cannot create the folder %s", path);
    if (st == DDP_OK) st = write_weights(m, path, err);
    if (st == DDP_OK) st = write_config(m->t.s, path, err);
    return st == DDP_OK ? st : ddp_fail_as(err, DDP_EXIT_CHECKPOINT);
}
