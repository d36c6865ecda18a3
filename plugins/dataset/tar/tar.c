/* plugins/dataset/tar/tar.c -- images in .tar files, named as WebDataset has it: NAME.jpg (.jpeg, .png, .webp) and
 * NAME.cls, one after the other, are a sample.
 *
 * Where the members lie is found once, at the start; an image is read by pread when it is wanted. A sample is "image",
 * u8 (3, -1, -1), and "label", i64 (). shard.c reads .tar files, the catalog has what all datasets of images do. */
#include "common/image/catalog.h"
#include "shard.h"
#include <glob.h>
#include <jansson.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { LABEL_MAX = 4096, JSON_MAX = 1 << 20 };
enum { LABEL_CLS = 0, LABEL_JSON };

typedef struct tar_config {
    ddp_list files;
    uint64_t unpack_limit;
    int32_t label;
    const char *json_key;
    catalog_config images;
} tar_config;

struct ddp_dataset {
    catalog catalog;
    shard *shards;
    uint32_t shard_count, room;
    char **paths;
    texts names; /* of the shard that is being indexed */
};

static const ddp_option options[] = {
    {.key = "files",
     .dflt = "",
     .doc =
         ".tar files, also .tar.gz and .tar.zst; a name with *, ? or [] stands for all files that match, in alphabetical order.",
     .type = DDP_OPT_PATH,
     .flags = DDP_OPT_F_LIST,
     .offset = offsetof(tar_config, files)},
    {.key = "label",
     .dflt = "cls",
     .range = "cls|json",
     .doc = "The member that holds the label: NAME.cls, a number or the class's name; NAME.json, an object.",
     .type = DDP_OPT_ENUM,
     .offset = offsetof(tar_config, label)},
    {.key = "json_key",
     .dflt = "label",
     .doc = "With label = json: the key of the label in the object.",
     .type = DDP_OPT_STRING,
     .offset = offsetof(tar_config, json_key)},
    {.key = "unpack_limit",
     .dflt = "8GiB",
     .range = "0..1000TiB",
     .doc = "Most bytes that .tar.gz and .tar.zst files take in TMPDIR, where each rank unpacks them at the start.",
     .type = DDP_OPT_SIZE,
     .offset = offsetof(tar_config, unpack_limit)},
    CATALOG_OPTIONS(tar_config),
};

/* ---- a shard's samples ------------------------------------------------------------------------------------------- */
typedef struct indexer {
    ddp_dataset *d;
    const tar_config *config;
    uint32_t shard;
    char key[CATALOG_NAME_MAX + 1]; /* of the sample that is being collected */
    bool has_image, has_label;
    catalog_entry image;
    char name[CATALOG_NAME_MAX + 1]; /* of the image */
    char label[LABEL_MAX + 1];
    size_t label_length;
} indexer;

static ddp_status fail_member(const indexer *x, const char *name, const char *why, ddp_err *err)
{
    return ddp_fail(err, DDP_ERR_DATA, "dataset tar: \"%s\": \"%.200s\" %s", x->d->shards[x->shard].path, name, why);
}

/* The sample is complete: its name is new, and it has both parts or is no image. */
static ddp_status finish_sample(indexer *x, ddp_err *err)
{
    uint32_t code, count = x->d->names.count;

    if (x->key[0] == '\0') return DDP_OK;
    if (!texts_add(&x->d->names, x->key, (uint32_t)strlen(x->key), &code)) return data_no_memory("tar", err);
    if (code != count)
        return fail_member(x, x->key, "comes twice, with other samples between; each sample needs a name of its own",
                           err);
    if (!x->has_image) return DDP_OK;
    if (!x->has_label)
        return fail_member(x, x->name,
                           x->config->label == LABEL_CLS ? "has no .cls member after or before it, for the label"
                                                         : "has no .json member after or before it",
                           err);
    return catalog_add(&x->d->catalog, x->name, x->label, x->label_length, x->image, err);
}

static ddp_status read_json(indexer *x, const char *name, const char *text, size_t length, ddp_err *err)
{
    json_error_t error;
    json_t *root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error), *value;

    value = root != NULL ? json_object_get(root, x->config->json_key) : NULL;
    x->label_length = 0;
    if (json_is_integer(value))
        x->label_length =
            (size_t)snprintf(x->label, sizeof(x->label), "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else if (json_is_string(value) && json_string_length(value) <= LABEL_MAX)
        memcpy(x->label, json_string_value(value), x->label_length = json_string_length(value));
    json_decref(root);
    if (x->label_length > 0) return DDP_OK;
    return fail_member(x, name, "is no JSON object with a number or text under json_key", err);
}

static ddp_status read_label(indexer *x, const shard_member *m, ddp_err *err)
{
    const data_file *f = shard_file(&x->d->shards[x->shard]);
    bool json = x->config->label == LABEL_JSON;
    ddp_status status;
    char *text;

    if (x->has_label) return fail_member(x, m->name, "is the second label of one sample", err);
    if (m->size > (json ? JSON_MAX : LABEL_MAX)) return fail_member(x, m->name, "is too long for a label", err);
    x->has_label = true;
    text = malloc((size_t)m->size + 1);
    if (text == NULL) return data_no_memory("tar", err);
    status = data_file_read(f, text, (size_t)m->size, m->offset, err);
    if (status == DDP_OK && json) status = read_json(x, m->name, text, (size_t)m->size, err);
    if (status == DDP_OK && !json) {
        size_t from = 0, to = (size_t)m->size;

        while (from < to && strchr(" \t\r\n", text[from]) != NULL) from++;
        while (to > from && strchr(" \t\r\n", text[to - 1]) != NULL) to--;
        memcpy(x->label, text + from, x->label_length = to - from);
        if (x->label_length == 0 || memchr(x->label, '\0', x->label_length) != NULL)
            status = fail_member(x, m->name, "holds no label", err);
    }
    free(text);
    return status;
}

/* Whether the extension is the label's, in any case of its letters. */
static bool is_label(const tar_config *c, const char *extension)
{
    return strcasecmp(extension, c->label == LABEL_CLS ? "cls" : "json") == 0;
}

static ddp_status on_member(void *ctx, const shard_member *m, ddp_err *err)
{
    indexer *x = ctx;
    const char *slash = strrchr(m->name, '/'), *base = slash != NULL ? slash + 1 : m->name, *dot;
    size_t key;

    if (base[0] == '.' || base[0] == '\0') return DDP_OK; /* "._NAME" of macOS */
    if (strlen(m->name) > CATALOG_NAME_MAX) return fail_member(x, m->name, "is too long a name", err);
    dot = strchr(base, '.');
    key = dot != NULL ? (size_t)(dot - m->name) : strlen(m->name);
    if (strncmp(x->key, m->name, key) != 0 || x->key[key] != '\0') {
        DDP_TRY(finish_sample(x, err));
        memcpy(x->key, m->name, key);
        x->key[key] = '\0';
        x->has_image = x->has_label = false;
    }
    if (dot == NULL) return DDP_OK;
    if (is_label(x->config, dot + 1)) return read_label(x, m, err);
    /* NAME.seg.png is something else of the sample */
    if (key == 0 || strchr(dot + 1, '.') != NULL || !image_has_suffix(dot - 1, strlen(dot) + 1)) {
        x->d->catalog.other++;
        return DDP_OK;
    }
    if (x->has_image) return fail_member(x, m->name, "is the second image of one sample", err);
    x->has_image = true;
    x->image = (catalog_entry){.offset = m->offset, .size = m->size, .file = x->shard};
    memcpy(x->name, m->name, strlen(m->name) + 1);
    return DDP_OK;
}

/* ---- open -------------------------------------------------------------------------------------------------------- */
static ddp_status grow(ddp_dataset *d, ddp_err *err)
{
    uint32_t room = d->room * 2 + 8;
    void *shards, *paths;

    if (d->shard_count < d->room) return DDP_OK;
    shards = realloc(d->shards, room * sizeof(*d->shards));
    if (shards == NULL) return data_no_memory("tar", err);
    d->shards = shards;
    paths = realloc(d->paths, room * sizeof(*d->paths));
    if (paths == NULL) return data_no_memory("tar", err);
    d->paths = paths;
    d->room = room;
    return DDP_OK;
}

static ddp_status add_shard(ddp_dataset *d, const tar_config *c, const char *path, uint64_t *left, ddp_err *err)
{
    indexer *x;
    char *copy;
    ddp_status status;

    DDP_TRY(grow(d, err));
    copy = strdup(path);
    x = calloc(1, sizeof(*x));
    if (copy == NULL || x == NULL) {
        free(copy);
        free(x);
        return data_no_memory("tar", err);
    }
    d->paths[d->shard_count] = copy;
    *x = (indexer){.d = d, .config = c, .shard = d->shard_count};
    status = shard_open(&d->shards[d->shard_count++], copy, left, err);
    if (status == DDP_OK) status = shard_index(&d->shards[x->shard], on_member, x, err);
    if (status == DDP_OK) status = finish_sample(x, err);
    texts_free(&d->names);
    d->names = (texts){0};
    free(x);
    return status;
}

static ddp_status add_matches(ddp_dataset *d, const tar_config *c, const char *pattern, uint64_t *left, ddp_err *err)
{
    glob_t found;
    ddp_status status = DDP_OK;
    int code;

    if (strpbrk(pattern, "*?[") == NULL) return add_shard(d, c, pattern, left, err);
    code = glob(pattern, 0, NULL, &found);
    if (code != 0)
        return ddp_fail(err, DDP_ERR_DATA, "dataset tar: %s \"%s\"; look at files",
                        code == GLOB_NOMATCH ? "no file matches" : "nothing can be searched for by", pattern);
    for (size_t i = 0; i < found.gl_pathc && status == DDP_OK; i++)
        status = add_shard(d, c, found.gl_pathv[i], left, err);
    globfree(&found);
    return status;
}

static ddp_status read_bytes(const catalog *c, const catalog_entry *e, void *out, size_t size, ddp_err *err)
{
    const ddp_dataset *d = (const ddp_dataset *)(const void *)c;

    return data_file_read(shard_file(&d->shards[e->file]), out, size, e->offset, err);
}

static const char *container(const catalog *c, const catalog_entry *e)
{
    return ((const ddp_dataset *)(const void *)c)->paths[e->file];
}

static void dataset_close(ddp_dataset *d)
{
    for (uint32_t i = 0; i < d->shard_count; i++) {
        shard_close(&d->shards[i]);
        free(d->paths[i]);
    }
    free(d->shards);
    free(d->paths);
    texts_free(&d->names);
    catalog_free(&d->catalog);
    free(d);
}

static ddp_status fill(ddp_dataset *d, const void *config, ddp_err *err)
{
    const tar_config *c = config;
    const char *const *patterns = c->files.items;
    uint64_t left = c->unpack_limit;

    if (c->files.count == 0)
        return ddp_fail(err, DDP_ERR_CONFIG, "dataset tar: files is not set; name one or more .tar files");
    DDP_TRY(catalog_begin(&d->catalog, &c->images, read_bytes, err));
    d->catalog.container = container;
    for (size_t i = 0; i < c->files.count; i++) DDP_TRY(add_matches(d, c, patterns[i], &left, err));
    return catalog_finish(&d->catalog, d->paths[0], true, err);
}

static ddp_status dataset_open(const ddp_host *host, const void *config, ddp_dataset **out, ddp_err *err)
{
    DDP_TRY(data_open("tar", sizeof(struct ddp_dataset), fill, dataset_close, config, out, err));
    catalog_warn(&(*out)->catalog, host);
    return DDP_OK;
}

/* An image in a file of its own. */
static ddp_status dataset_open_file(const ddp_dataset *d, const char *path, ddp_dataset **out, ddp_err *err)
{
    return catalog_open_file(d, sizeof(struct ddp_dataset), path, out, err);
}

/* By the first file that both read. */
static ddp_status dataset_agrees(const ddp_dataset *d, const ddp_dataset *eval, ddp_err *err)
{
    for (uint32_t i = 0; i < d->shard_count; i++)
        for (uint32_t k = 0; k < eval->shard_count; k++)
            if (strcmp(d->paths[i], eval->paths[k]) == 0)
                return catalog_split_agrees(&d->catalog, &eval->catalog, d->paths[i], err);
    return DDP_OK;
}

static const ddp_dataset_ops ops = {DATA_OPS,
                                    .open = dataset_open,
                                    .close = dataset_close,
                                    .read = catalog_read,
                                    .describe = catalog_describe,
                                    .read_image = catalog_read_image,
                                    .agrees = dataset_agrees,
                                    .class_name = catalog_class_name,
                                    .open_file = dataset_open_file};

DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(DATASET, 0),
    .install = "Debian package libarchive13",
    DDP_PLUGIN_TAIL("tar", "0.1.0", "images in .tar files, named as WebDataset has it",
                    DDP_OPTIONS(options, tar_config), ops),
};
