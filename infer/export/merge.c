/* infer/export/merge.c -- a model with its adapters in its weights, as a folder of Hugging Face's; see export.h. */
#include "infer/export/merge.h"
#include "infer/export/base.h"
#include "infer/export/export.h"
#include "infer/export/folder.h"
#include "base/log.h"
#include "train/state/memory.h"
#include "train/state/tensors.h"
#include <dirent.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define INDEX "model.safetensors.index.json"
#define NEW   ".new" /* a file that is to be in place of an earlier one, at its end */
enum { FILE_NAME = 64, SHARD_NAME = sizeof("model-00001-of-00001.safetensors") - 1, PIECE = 256 };

/* ---- weights ----------------------------------------------------------------------------------------------------- */
/* Columns first .. first + PIECE - 1 of row o of W += scale B A, summed in doubles; w is (out, in), or (in, out) where
 * it is transposed. */
static void add_piece(const ddp_adapted *d, float *w, const float *a, const float *b, const uint64_t dims[3],
                      uint64_t o, uint64_t first)
{
    const uint64_t in = dims[0], out = dims[1], rank = dims[2], count = DDP_MIN_OF((uint64_t)PIECE, in - first);
    double sum[PIECE] = {0};

    for (uint64_t r = 0; r < rank; r++)
        for (uint64_t i = 0; i < count; i++) sum[i] += (double)b[o * rank + r] * (double)a[r * in + first + i];
    for (uint64_t i = 0; i < count; i++) {
        float *to = &w[d->transposed ? (first + i) * out + o : o * in + first + i];

        *to = (float)((double)*to + d->scale * sum[i]);
    }
}

void export_add_adapters(const ddp_session *s, float *params)
{
    const ddp_session_model *m = &s->model;
    const ddp_adapted *adapted;
    uint32_t count = ddp_graph_adapted(m->graph, &adapted);

    for (uint32_t i = 0; i < count; i++) {
        const ddp_adapted *d = &adapted[i];
        const int64_t *a = m->params[d->a].dims, *b = m->params[d->b].dims;
        const uint64_t dims[] = {(uint64_t)a[1], (uint64_t)b[0], (uint64_t)a[0]};

        for (uint64_t o = 0; o < dims[1]; o++)
            for (uint64_t first = 0; first < dims[0]; first += PIECE)
                add_piece(d, params + m->layout->offset[d->weight], params + m->layout->offset[d->a],
                          params + m->layout->offset[d->b], dims, o, first);
    }
}

/* ---- shards ------------------------------------------------------------------------------------------------------ */
typedef struct sharding {
    const ddp_views *views;
    uint32_t *of; /* by tensor */
    uint32_t count, dtype;
    const char *folder;
    json_t *map; /* tensor -> file */
    uint64_t bytes;
} sharding;

/* Of a tensor as it is written: counts stay as they are. */
static uint32_t dtype_of(const sharding *h, size_t i)
{
    return h->views->tensors[i].dtype == DDP_F32 ? h->dtype : h->views->tensors[i].dtype;
}
static uint64_t bytes_of(const sharding *h, size_t i)
{
    return state_tensor_elements(&h->views->tensors[i]) * ddp_dtype_size(dtype_of(h, i));
}

/* In order, each as full as it may be; a tensor that is larger than a shard has one to itself. */
static void divide(sharding *h, uint64_t most)
{
    uint64_t held = 0;

    h->count = 1;
    for (size_t i = 0; i < h->views->count; i++) {
        uint64_t bytes = bytes_of(h, i);

        if (held > 0 && held + bytes > most) {
            h->count++;
            held = 0;
        }
        held += bytes;
        h->of[i] = h->count - 1;
        h->bytes += bytes;
    }
}

static void name_shard(const sharding *h, uint32_t k, char name[FILE_NAME])
{
    if (h->count == 1)
        ddp_copy_text(name, FILE_NAME, "model.safetensors");
    else
        (void)snprintf(name, FILE_NAME, "model-%05" PRIu32 "-of-%05" PRIu32 ".safetensors", k + 1, h->count);
}

/* To nearest even; NaN stays one. */
static uint16_t to_bf16(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* The tensor in place, its values rounded into `room`, which moves on. */
static void round_tensor(ddp_named_tensor *t, uint16_t **room)
{
    uint64_t count = state_tensor_elements(t);
    const float *from = t->data;

    for (uint64_t i = 0; from != NULL && i < count; i++) (*room)[i] = to_bf16(from[i]);
    t->dtype = DDP_BF16;
    t->data = *room;
    *room += count;
}

static ddp_status write_shard(sharding *h, uint32_t k, ddp_err *err)
{
    ddp_named_tensor *own = ddp_alloc((h->views->count + 1) * sizeof(*own), err);
    uint16_t *room = NULL, *at;
    uint64_t rounded = 0;
    size_t count = 0;
    char name[FILE_NAME];
    ddp_status st = own != NULL ? DDP_OK : err->status;

    name_shard(h, k, name);
    for (size_t i = 0; i < h->views->count; i++)
        if (h->of[i] == k && dtype_of(h, i) == DDP_BF16) rounded += bytes_of(h, i);
    if (st == DDP_OK && rounded > 0 && (room = ddp_alloc(rounded, err)) == NULL) st = err->status;
    at = room;
    for (size_t i = 0; st == DDP_OK && i < h->views->count; i++) {
        if (h->of[i] != k) continue;
        own[count] = h->views->tensors[i];
        if (at != NULL && dtype_of(h, i) == DDP_BF16) round_tensor(&own[count], &at);
        (void)json_object_set_new(h->map, own[count++].name, json_string(name));
    }
    ddp_copy_text(name + strlen(name), sizeof(NEW), NEW);
    if (st == DDP_OK) st = export_write_tensors(h->folder, name, own, count, err);
    free(room);
    free(own);
    return st;
}

/* ---- in place of an earlier model -------------------------------------------------------------------------------- */
/* "model-00001-of-00003.safetensors", or what a merge that was killed has left of it. */
static bool is_shard(const char *name)
{
    unsigned k, of;
    int end = 0;

    if (sscanf(name, "model-%5u-of-%5u.safetensors%n", &k, &of, &end) < 2 || end != SHARD_NAME) return false;
    return name[end] == '\0' || strcmp(name + end, NEW) == 0 || strcmp(name + end, NEW ".tmp") == 0;
}

/* The shards of an earlier model, but for the files of this one. */
static void remove_others(const sharding *h)
{
    DIR *dir = opendir(h->folder);
    const struct dirent *e;

    while (dir != NULL && (e = readdir(dir)) != NULL) {
        char name[FILE_NAME];
        bool own = false;

        if (!is_shard(e->d_name)) continue;
        for (uint32_t k = 0; k < h->count; k++) {
            name_shard(h, k, name);
            own |= strcmp(name, e->d_name) == 0;
        }
        if (!own) (void)unlinkat(dirfd(dir), e->d_name, 0);
    }
    if (dir != NULL) (void)closedir(dir);
}

static void remove_file(const sharding *h, const char *name, const char *end)
{
    char path[EXPORT_PATH];

    (void)snprintf(path, sizeof(path), "%s/%s%s", h->folder, name, end);
    (void)unlink(path);
}

static ddp_status rename_shards(const sharding *h, ddp_err *err)
{
    for (uint32_t k = 0; k < h->count; k++) {
        char name[FILE_NAME], from[EXPORT_PATH], to[EXPORT_PATH];

        name_shard(h, k, name);
        (void)snprintf(to, sizeof(to), "%s/%s", h->folder, name);
        (void)snprintf(from, sizeof(from), "%s/%s" NEW, h->folder, name);
        if (rename(from, to) != 0) return ddp_fail_errno(err, "cannot rename %s to %s", from, to);
    }
    return DDP_OK;
}

/* The new files are whole. An index goes before shards that it may name are replaced, so that no mixture is read as a
 * model; model.safetensors is a model until the new one is in its place. */
static ddp_status replace_earlier(const sharding *h, ddp_err *err)
{
    if (h->count > 1) remove_file(h, INDEX, "");
    DDP_TRY(rename_shards(h, err));
    if (h->count > 1) {
        DDP_TRY(export_write_json(
            h->folder, INDEX,
            json_pack("{s:{s:I}, s:O}", "metadata", "total_size", (json_int_t)h->bytes, "weight_map", h->map), err));
        remove_file(h, "model.safetensors", "");
    } else {
        remove_file(h, INDEX, "");
    }
    remove_others(h);
    return DDP_OK;
}

static ddp_status write_shards(sharding *h, ddp_err *err)
{
    ddp_status st = DDP_OK;

    for (uint32_t k = 0; k < h->count && st == DDP_OK; k++) st = write_shard(h, k, err);
    if (st == DDP_OK) st = replace_earlier(h, err);
    for (uint32_t k = 0; k < h->count && st != DDP_OK; k++) {
        char name[FILE_NAME];

        name_shard(h, k, name);
        remove_file(h, name, NEW);
    }
    return st;
}

static ddp_status write_weights(infer_model *m, const ddp_export_request *q, ddp_err *err)
{
    ddp_views views = {0};
    sharding h = {.views = &views, .dtype = q->dtype, .folder = q->path};
    ddp_state_arenas a;
    ddp_status st;

    DDP_TRY(state_pull(&m->t, DDP_ARENA_PARAMS | DDP_ARENA_BUFFERS, err));
    a = state_arenas(&m->t);
    export_add_adapters(m->t.s, a.params);
    st = state_model_views(&m->t, &a, STATE_BASE, &views, err);
    h.of = st == DDP_OK ? ddp_alloc((views.count + 1) * sizeof(*h.of), err) : NULL;
    h.map = json_object();
    if (st == DDP_OK && (h.of == NULL || h.map == NULL)) st = ddp_fail(err, DDP_ERR_NOMEM, "out of memory");
    if (st == DDP_OK) divide(&h, q->shard_bytes);
    if (st == DDP_OK) st = write_shards(&h, err);
    json_decref(h.map);
    free(h.of);
    state_views_free(&views);
    ddp_staging_close(&m->t);
    return st;
}

/* ---- config.json ------------------------------------------------------------------------------------------------- */
/* The base's, with the dtype of these weights under the name that it has there. */
static ddp_status write_config(const ddp_session *s, const ddp_export_request *q, json_t *config, ddp_err *err)
{
    const char *key = json_object_get(config, "dtype") != NULL ? "dtype" : "torch_dtype";

    if (config == NULL) {
        ddp_log_line(s->log, DDP_LOG_WARN,
                     "there is no config.json beside the weights that the model began with ([checkpoint] init_from): "
                     "%s has the weights alone. Add the model's config.json for transformers",
                     q->path);
        return DDP_OK;
    }
    (void)json_object_set_new(config, key, json_string(q->dtype == DDP_BF16 ? "bfloat16" : "float32"));
    return export_write_json(q->path, "config.json", json_incref(config), err);
}

static bool is_same_folder(const char *a, const char *b)
{
    struct stat x, y;

    return a[0] != '\0' && stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

ddp_status infer_export_merged(infer_model *m, const ddp_export_request *q, ddp_err *err)
{
    const ddp_session *s = m->t.s;
    char base[EXPORT_PATH];
    json_t *config = NULL;
    ddp_status st;

    export_base_folder(s->config, base);
    if (is_same_folder(base, q->path))
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "%s is the folder of [checkpoint] init_from: its model, and adapters with it, would be lost. "
                        "Name another folder",
                        q->path);
    st = export_base_config(base, &config, err);
    if (st == DDP_OK) st = export_make_folder(q->path, err);
    if (st == DDP_OK) st = write_weights(m, q, err);
    if (st == DDP_OK) st = write_config(s, q, config, err);
    if (st == DDP_OK) st = export_base_copy(base, q->path, err);
    json_decref(config);
    return st == DDP_OK ? st : ddp_fail_as(err, DDP_EXIT_CHECKPOINT);
}
