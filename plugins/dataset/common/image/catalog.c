/* plugins/dataset/common/image/catalog.c -- see catalog.h. verify.c finds broken files. */
#include "catalog.h"
#include "common/file.h"
#include "verify.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    FORMAT = 1, /* into the fingerprint: bump it when the same files and options give other samples */
    HASHED_FILES = 4096,
    HASHED_BYTES = 65536
};

/* ---- collecting -------------------------------------------------------------------------------------------------- */
ddp_status catalog_begin(catalog *c, const catalog_config *config, catalog_read_bytes read_bytes, ddp_err *err)
{
    const char *const *names = config->classes.items;
    uint32_t code;

    c->config = config;
    c->read_bytes = read_bytes;
    c->fixed_classes = config->classes.count > 0;
    if (config->split != SPLIT_ALL && config->validation <= 0.0)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "dataset %s: split = %s needs the share of the validation part, as in validation = 0.1",
                        c->base.plugin, config->split == SPLIT_TRAIN ? "train" : "validation");
    for (size_t i = 0; i < config->classes.count; i++) {
        if (!texts_add(&c->classes, names[i], (uint32_t)strlen(names[i]), &code))
            return data_no_memory(c->base.plugin, err);
        if (code != i)
            return ddp_fail(err, DDP_ERR_CONFIG, "dataset %s: classes has \"%s\" twice", c->base.plugin, names[i]);
    }
    return DDP_OK;
}

static ddp_status grow(catalog *c, size_t name_bytes, ddp_err *err)
{
    void *memory;

    if (c->count == c->room) {
        memory = realloc(c->entries, (c->room * 2 + 64) * sizeof(*c->entries));
        if (memory == NULL) return data_no_memory(c->base.plugin, err);
        c->entries = memory;
        c->room = c->room * 2 + 64;
    }
    if (c->names_room - c->names_used < name_bytes) {
        memory = realloc(c->names, c->names_room * 2 + name_bytes);
        if (memory == NULL) return data_no_memory(c->base.plugin, err);
        c->names = memory;
        c->names_room = c->names_room * 2 + name_bytes;
    }
    return DDP_OK;
}

static ddp_status find_class(catalog *c, const char *name, const char *label, size_t length, uint32_t *code,
                             ddp_err *err)
{
    if (length > CATALOG_NAME_MAX) length = CATALOG_NAME_MAX;
    if (c->fixed_classes) {
        *code = texts_find(&c->classes, label, (uint32_t)length);
        if (*code != TEXTS_NONE) return DDP_OK;
        return ddp_fail(err, DDP_ERR_DATA, "dataset %s: \"%s\" has the label \"%.*s\", which is not one of classes",
                        c->base.plugin, name, (int)(length < 60 ? length : 60), label);
    }
    if (!texts_add(&c->classes, label, (uint32_t)length, code)) return data_no_memory(c->base.plugin, err);
    if (c->classes.count <= CATALOG_LABEL_MAX) return DDP_OK;
    return ddp_fail(err, DDP_ERR_DATA, "dataset %s: \"%s\": there are more than %d different labels", c->base.plugin,
                    name, CATALOG_LABEL_MAX);
}

ddp_status catalog_add(catalog *c, const char *name, const char *label, size_t label_length, catalog_entry entry,
                       ddp_err *err)
{
    size_t length = strlen(name);

    if (length > CATALOG_NAME_MAX)
        return ddp_fail(err, DDP_ERR_DATA, "dataset %s: \"%.60s..\" is a name of %zu bytes; %d are allowed",
                        c->base.plugin, name, length, CATALOG_NAME_MAX);
    DDP_TRY(find_class(c, name, label, label_length, &entry.label, err));
    DDP_TRY(grow(c, length + 1, err));
    entry.name = c->names_used;
    memcpy(c->names + c->names_used, name, length + 1);
    c->names_used += length + 1;
    c->entries[c->count++] = entry;
    return DDP_OK;
}

/* ---- labels ------------------------------------------------------------------------------------------------------ */
/* "12" -> 12; TEXTS_NONE: no whole number, or one that is too large. */
static uint32_t number_of(const char *text, uint32_t length)
{
    uint32_t n = 0;

    if (length == 0 || length > 7) return TEXTS_NONE;
    for (uint32_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9') return TEXTS_NONE;
        n = n * 10 + (uint32_t)(text[i] - '0');
    }
    return n < CATALOG_LABEL_MAX ? n : TEXTS_NONE;
}

/* Each text's number; how many have one, and the first that has none. */
static uint32_t read_numbers(const texts *t, uint32_t *codes, uint32_t *first_text)
{
    uint32_t count = 0;

    *first_text = TEXTS_NONE;
    for (uint32_t i = 0; i < t->count; i++) {
        codes[i] = number_of(t->bytes + t->entries[i].at, t->entries[i].length);
        count += codes[i] != TEXTS_NONE;
        if (codes[i] == TEXTS_NONE && *first_text == TEXTS_NONE) *first_text = i;
    }
    return count;
}

/* One that is mistyped would make names of all the others, and other classes of them. */
static ddp_status fail_mixed(const catalog *c, uint32_t label, ddp_err *err)
{
    size_t i = 0;

    while (i + 1 < c->count && c->entries[i].label != label) i++;
    return ddp_fail(err, DDP_ERR_DATA,
                    "dataset %s: \"%s\" has the label \"%.60s\", other images have whole numbers below %d; "
                    "correct it, or name all labels in classes",
                    c->base.plugin, catalog_name(c, &c->entries[i]), c->classes.bytes + c->classes.entries[label].at,
                    CATALOG_LABEL_MAX);
}

/* codes[i]: the class of label i, by the labels' order. */
static ddp_status sort_names(catalog *c, uint32_t *codes, ddp_err *err)
{
    texts *t = &c->classes;
    uint32_t count = t->count;
    texts_entry *before = malloc((count + 1) * sizeof(*before));

    if (before == NULL) return data_no_memory(c->base.plugin, err);
    memcpy(before, t->entries, count * sizeof(*before));
    texts_sort(t, false);
    for (uint32_t i = 0; i < count; i++) codes[i] = texts_find(t, t->bytes + before[i].at, before[i].length);
    free(before);
    return DDP_OK;
}

/* The labels as they came become those of the sorted classes, or the numbers that they are. */
static ddp_status sort_labels(catalog *c, bool numbers, ddp_err *err)
{
    const texts *t = &c->classes;
    uint32_t *codes = calloc(t->count + 1u, sizeof(*codes)), first_text = TEXTS_NONE, found;
    ddp_status status = DDP_OK;

    if (codes == NULL) return data_no_memory(c->base.plugin, err);
    found = numbers ? read_numbers(t, codes, &first_text) : 0;
    c->numbered = found > 0;
    if (c->numbered && first_text != TEXTS_NONE)
        status = fail_mixed(c, first_text, err);
    else if (!c->numbered)
        status = sort_names(c, codes, err);
    if (status == DDP_OK) {
        c->class_count = c->numbered ? 0 : t->count;
        for (uint32_t i = 0; i < t->count; i++)
            if (codes[i] >= c->class_count) c->class_count = codes[i] + 1;
        for (size_t i = 0; i < c->count; i++) c->entries[i].label = codes[c->entries[i].label];
    }
    free(codes);
    return status;
}

/* ---- which are read ---------------------------------------------------------------------------------------------- */
static void split(catalog *c)
{
    size_t kept = 0;

    for (size_t i = 0; i < c->count && c->config->split != SPLIT_ALL; i++) {
        const char *name = catalog_name(c, &c->entries[i]);
        uint64_t hash = XXH3_64bits(name, strlen(name));
        bool validation = (double)(hash >> 11) * 0x1p-53 < c->config->validation;

        if (validation == (c->config->split == SPLIT_VALIDATION)) c->entries[kept++] = c->entries[i];
    }
    if (c->config->split != SPLIT_ALL) c->count = kept;
}

static ddp_status hash_content(const catalog *c, XXH3_state_t *hash, ddp_err *err)
{
    size_t taken = c->count < HASHED_FILES ? c->count : HASHED_FILES;
    void *buffer = malloc(HASHED_BYTES);
    ddp_status status = DDP_OK;

    if (buffer == NULL) return data_no_memory(c->base.plugin, err);
    for (size_t i = 0; i < taken && status == DDP_OK; i++) {
        const catalog_entry *e = &c->entries[taken < 2 ? 0 : i * (c->count - 1) / (taken - 1)];
        size_t bytes = e->size < HASHED_BYTES ? (size_t)e->size : HASHED_BYTES;

        status = c->read_bytes(c, e, buffer, bytes, err);
        if (status == DDP_OK) (void)XXH3_64bits_update(hash, buffer, bytes);
    }
    free(buffer);
    return status;
}

/* Names, sizes and labels of all, and the beginning of some. */
static ddp_status hash_all(catalog *c, ddp_err *err)
{
    uint64_t head[] = {FORMAT, c->count, c->class_count, (uint64_t)c->config->exif_orientation};
    XXH3_state_t hash;

    XXH3_INITSTATE(&hash);
    (void)XXH3_64bits_reset_withSeed(&hash, 0);
    (void)XXH3_64bits_update(&hash, head, sizeof(head));
    for (size_t i = 0; i < c->count; i++) {
        const catalog_entry *e = &c->entries[i];
        uint64_t numbers[] = {e->size, e->label};

        (void)XXH3_64bits_update(&hash, catalog_name(c, e), strlen(catalog_name(c, e)) + 1);
        (void)XXH3_64bits_update(&hash, numbers, sizeof(numbers));
    }
    for (uint32_t i = 0; i < c->classes.count && !c->numbered; i++)
        (void)XXH3_64bits_update(&hash, c->classes.bytes + c->classes.entries[i].at, c->classes.entries[i].length + 1u);
    DDP_TRY(hash_content(c, &hash, err));
    c->base.fingerprint = XXH3_64bits_digest(&hash);
    return DDP_OK;
}

ddp_status catalog_finish(catalog *c, const char *what, bool numbers, ddp_err *err)
{
    const char *plugin = c->base.plugin;

    c->class_count = c->classes.count;
    if (!c->fixed_classes) DDP_TRY(sort_labels(c, numbers, err));
    c->all = c->count;
    split(c);
    if (c->config->skip_bad) DDP_TRY(catalog_leave_out_bad(c, err));
    if (c->count == 0)
        return ddp_fail(err, DDP_ERR_DATA,
                        "dataset %s: \"%s\": none of %" PRIu64
                        " images is left%s; look at split, validation = %g and the warnings",
                        plugin, what, c->all, c->bad > 0 ? ", broken ones are left out" : "", c->config->validation);
    c->base.length = c->count;
    c->base.fields[0] = (ddp_field){.name = "image", .dtype = DDP_U8, .rank = 3, .dims = {3, -1, -1}, .max = UINT8_MAX};
    c->base.fields[1] = (ddp_field){.name = "label", .dtype = DDP_I64, .max = (int64_t)c->class_count - 1};
    DDP_TRY(hash_all(c, err));
    c->description = catalog_description(c, what);
    return c->description != NULL ? DDP_OK : data_no_memory(plugin, err);
}

void catalog_free(catalog *c)
{
    texts_free(&c->classes);
    free(c->entries);
    free(c->names);
    free(c->description);
}

ddp_status catalog_split_agrees(const catalog *c, const catalog *eval, const char *what, ddp_err *err)
{
    data_split a = {c->config->split, c->config->validation, ""},
               b = {eval->config->split, eval->config->validation, ""};

    return data_split_agrees(c->host, c->base.plugin, what, &a, &b, err);
}

void catalog_warn(catalog *c, const ddp_host *host)
{
    c->host = host;
    if (host == NULL || c->bad == 0) return;
    host->log(host->ctx, DDP_LOG_WARN, __FILE__, __LINE__,
              "dataset %s: %" PRIu64 " broken image%s left out; the first: %s", c->base.plugin, c->bad,
              c->bad == 1 ? " is" : "s are", c->first_bad);
}

/* ---- use --------------------------------------------------------------------------------------------------------- */
static const catalog *catalog_of(const ddp_dataset *d) { return (const catalog *)(const void *)d; }

ddp_status catalog_read(const ddp_dataset *d, uint64_t index, uint64_t epoch, void *const *buffers, ddp_err *err)
{
    (void)epoch;
    (void)buffers;
    DDP_TRY(data_check_index(d, index, err));
    return ddp_fail(err, DDP_ERR_UNSUPPORTED, "dataset %s: its images differ in size and are read by read_image",
                    catalog_of(d)->base.plugin);
}

ddp_status catalog_read_image(const ddp_dataset *d, uint64_t index, uint64_t epoch, const ddp_image_sink *sink,
                              void *const *buffers, ddp_err *err)
{
    const catalog *c = catalog_of(d);
    const catalog_entry *e;
    int64_t label;

    (void)epoch;
    DDP_TRY(data_check_index(d, index, err));
    e = &c->entries[index];
    label = e->label == TEXTS_NONE ? DDP_NO_LABEL : (int64_t)e->label;
    DDP_TRY(catalog_decode(c, e, sink, err));
    memcpy(buffers[1], &label, sizeof(label));
    return DDP_OK;
}

const char *catalog_class_name(const ddp_dataset *d, uint32_t field, int64_t value)
{
    const texts *t = &catalog_of(d)->classes;

    if (field != 1 || catalog_of(d)->numbered || value < 0 || value >= (int64_t)t->count) return NULL;
    return t->bytes + t->entries[value].at;
}

const char *catalog_describe(const ddp_dataset *d) { return catalog_of(d)->description; }

/* ---- a file that is none of its own ------------------------------------------------------------------------------ */
static ddp_status read_plain(const catalog *c, const catalog_entry *e, void *out, size_t size, ddp_err *err)
{
    data_file file = {.fd = -1};
    ddp_status status = data_file_open(&file, c->base.plugin, catalog_name(c, e), "", err);

    if (status == DDP_OK) status = data_file_read(&file, out, size, 0, err);
    data_file_close(&file);
    return status;
}

static ddp_status fill_file(catalog *c, const catalog *like, const char *path, ddp_err *err)
{
    catalog_entry entry = {.label = TEXTS_NONE};
    data_file file = {.fd = -1};

    c->base = like->base;
    c->base.length = 1;
    c->is_file = true;
    c->config = like->config;
    c->read_bytes = read_plain;
    DDP_TRY(data_file_open(&file, c->base.plugin, path, "", err));
    entry.size = file.size;
    data_file_close(&file);
    DDP_TRY(grow(c, strlen(path) + 1, err));
    memcpy(c->names, path, strlen(path) + 1);
    c->entries[c->count++] = entry;
    return DDP_OK;
}

ddp_status catalog_open_file(const ddp_dataset *d, size_t size, const char *path, ddp_dataset **out, ddp_err *err)
{
    const catalog *like = catalog_of(d);
    catalog *c = calloc(1, size);

    if (c == NULL) return data_no_memory(like->base.plugin, err);
    if (fill_file(c, like, path, err) != DDP_OK) {
        catalog_free(c);
        free(c);
        return err->status;
    }
    *out = (ddp_dataset *)(void *)c;
    return DDP_OK;
}
