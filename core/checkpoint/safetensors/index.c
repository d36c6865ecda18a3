/* checkpoint/safetensors/index.c -- a model in several safetensors files, as Hugging Face splits large ones:
 * model.safetensors.index.json says which file has which tensor. All files are mapped, none is read before its tensors
 * are. Strangers write these: an index names files of its own folder only, and has to agree with them. */
#include "base/sys.h"
#include "checkpoint/safetensors/file.h"
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { INDEX_LIMIT = 16 << 20, PARTS_MAX = 4096 };

/* What is being read: `whole` is made of its parts. */
struct index {
    const char *path;
    json_t *map; /* of tensors to files */
    ddp_safetensors *whole;
};

static ddp_status bad_index(const struct index *x, ddp_err *err, const char *what)
{
    return ddp_fail(err, DDP_ERR_DATA, "%s: %s", x->path, what);
}

static bool is_index(const char *path)
{
    size_t length = strlen(path);

    return length > 5 && strcmp(path + length - 5, ".json") == 0;
}

/* ---- the files --------------------------------------------------------------------------------------------------- */
/* A plain name: of this folder, and no hidden file. */
static bool is_plain(const char *name) { return name[0] != '\0' && name[0] != '.' && strchr(name, '/') == NULL; }

static const char *name_of(const ddp_safetensors *part)
{
    const char *slash = strrchr(part->path, '/');

    return slash != NULL ? slash + 1 : part->path;
}

static const ddp_safetensors *opened(const struct index *x, const char *name)
{
    for (size_t i = x->whole->part_count; i-- > 0;) /* tensors of one file stand together */
        if (strcmp(name_of(x->whole->parts[i]), name) == 0) return x->whole->parts[i];
    return NULL;
}

static ddp_status open_part(struct index *x, const char *name, ddp_err *err)
{
    const char *slash = strrchr(x->path, '/');
    ddp_safetensors *part;
    ddp_text path = {0};
    ddp_status st;

    if (x->whole->part_count == PARTS_MAX) return bad_index(x, err, "it names more than 4096 files");
    ddp_text_printf(&path, "%.*s%s", slash != NULL ? (int)(slash + 1 - x->path) : 0, x->path, name);
    st = path.failed ? ddp_fail(err, DDP_ERR_NOMEM, "%s: out of memory", x->path)
                     : ddp_safetensors_open(path.data, &part, err);
    ddp_text_free(&path);
    if (st != DDP_OK) return ddp_fail_context(err, "%s", x->path);
    x->whole->parts[x->whole->part_count++] = part;
    return DDP_OK;
}

static ddp_status open_parts(struct index *x, ddp_err *err)
{
    const char *tensor;
    json_t *file;

    x->whole->parts = ddp_alloc(PARTS_MAX * sizeof(ddp_safetensors *), err);
    if (x->whole->parts == NULL) return err->status;
    json_object_foreach(x->map, tensor, file)
    {
        const char *name = json_string_value(file);

        if (name == NULL || !is_plain(name))
            return ddp_fail(err, DDP_ERR_DATA,
                            "%s: weight_map: tensor \"%.100s\" is not in a file of this folder, but in \"%.60s\"",
                            x->path, tensor, name != NULL ? name : "(no text)");
        if (opened(x, name) == NULL) DDP_TRY(open_part(x, name, err));
    }
    return DDP_OK;
}

/* ---- its tensors ------------------------------------------------------------------------------------------------- */
/* The index and the files name the same tensors. */
static ddp_status check_tensors(const struct index *x, ddp_err *err)
{
    const char *tensor;
    json_t *file;

    json_object_foreach(x->map, tensor, file)
    {
        const char *name = json_string_value(file);

        if (ddp_safetensors_find(opened(x, name), tensor) == NULL)
            return ddp_fail(err, DDP_ERR_DATA, "%s: %.60s has no tensor \"%.100s\"", x->path, name, tensor);
    }
    return DDP_OK;
}

static ddp_status check_named(const struct index *x, const ddp_safetensors *part, ddp_err *err)
{
    for (size_t i = 0; i < part->count; i++) {
        const char *file = json_string_value(json_object_get(x->map, part->entries[i].tensor.name));

        if (file == NULL || strcmp(file, name_of(part)) != 0)
            return ddp_fail(err, DDP_ERR_DATA,
                            "%s: tensor \"%.100s\" of %.60s is not in weight_map, or in another file", x->path,
                            part->entries[i].tensor.name, name_of(part));
    }
    return DDP_OK;
}

static ddp_status join(struct index *x, ddp_err *err)
{
    ddp_safetensors *s = x->whole;
    const char *twice;
    size_t count = 0;

    for (size_t p = 0; p < s->part_count; p++) {
        DDP_TRY(check_named(x, s->parts[p], err));
        count += s->parts[p]->count;
    }
    s->entries = ddp_alloc((count + 1) * sizeof(*s->entries), err);
    if (s->entries == NULL || (s->path = ddp_pool_strdup(&s->pool, x->path, err)) == NULL) return err->status;
    for (size_t p = 0; p < s->part_count; p++)
        for (size_t i = 0; i < s->parts[p]->count; i++) s->entries[s->count++] = s->parts[p]->entries[i];
    return checkpoint_safetensors_sort(s, &twice, err); /* none is: weight_map has each once */
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */
static ddp_status read_index(struct index *x, const json_t *root, ddp_err *err)
{
    x->map = json_object_get(root, "weight_map");
    if (!json_is_object(x->map) || json_object_size(x->map) == 0)
        return bad_index(x, err, "it has no weight_map, from tensors to files");
    DDP_TRY(open_parts(x, err));
    DDP_TRY(check_tensors(x, err));
    return join(x, err);
}

static ddp_status open_index(const char *path, ddp_safetensors *whole, ddp_err *err)
{
    struct index x = {.path = path, .whole = whole};
    json_error_t why;
    size_t length;
    json_t *root;
    ddp_status st;
    char *text;

    DDP_TRY(ddp_file_read(path, INDEX_LIMIT, &text, &length, err));
    root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &why);
    free(text);
    if (root == NULL) return ddp_fail(err, DDP_ERR_DATA, "%s:%d: not JSON: %.100s", path, why.line, why.text);
    st = read_index(&x, root, err);
    json_decref(root);
    return st;
}

ddp_status checkpoint_safetensors_open_model(const char *path, ddp_safetensors **out, ddp_err *err)
{
    ddp_safetensors *s;
    ddp_status st;

    if (!is_index(path)) return ddp_safetensors_open(path, out, err);
    if ((s = ddp_alloc(sizeof(*s), err)) == NULL) return err->status;
    st = open_index(path, s, err);
    if (st != DDP_OK) {
        checkpoint_safetensors_defuse(err->msg);
        ddp_safetensors_close(s);
        return st;
    }
    *out = s;
    return DDP_OK;
}
