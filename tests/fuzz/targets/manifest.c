/* fuzz/targets/manifest.c -- MANIFEST.json: as it is, and once more with the checksum that fits it, since no chance
 * finds one. */
#include "base/sys.h"
#include "checkpoint/manifest.h"
#include "fuzz.h"
#include "session/fields.h"
#include <jansson.h>
#include <unistd.h>

/* The text with a right "checksum" in file 1; NULL: it is no object. */
static const char *with_checksum(const uint8_t *data, size_t size)
{
    json_t *object = json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES, NULL);
    char hex[DDP_SHA256_HEX], *text = NULL;
    const char *path = NULL;
    ddp_sha256 h;
    ddp_err err;

    if (!json_is_object(object)) goto free_object;
    (void)json_object_del(object, "checksum");
    text = json_dumps(object, JSON_COMPACT | JSON_SORT_KEYS);
    FUZZ_CHECK(text != NULL && ddp_sha256_begin(&h, &err) == DDP_OK);
    ddp_sha256_add(&h, text, strlen(text));
    ddp_sha256_end(&h, hex);
    free(text);
    FUZZ_CHECK(json_object_set_new(object, "checksum", json_string(hex)) == 0);
    text = json_dumps(object, 0);
    FUZZ_CHECK(text != NULL);
    path = fuzz_file(1, text, strlen(text), 0);
free_object:
    free(text);
    json_decref(object);
    return path;
}

/* What was read is written and read again as the same. */
static void round_trip(const ddp_manifest *m, const char *folder)
{
    const ddp_file_facts *f;
    ddp_manifest again;
    ddp_err err = {0};
    char path[128], name[DDP_FILE_NAME];

    (void)snprintf(path, sizeof(path), "%s/again.json", folder);
    for (uint32_t i = 0; (f = checkpoint_manifest_file(m, &i, name)) != NULL;)
        if (f->bytes > INT64_MAX) return; /* json_pack takes signed numbers */
    FUZZ_CHECK(checkpoint_manifest_write(path, m, m->settings, &err) == DDP_OK);
    FUZZ_CHECK(checkpoint_manifest_read(path, &again, &err) == DDP_OK);
    FUZZ_CHECK(checkpoint_meta_equal(&m->meta, &again.meta));
    FUZZ_CHECK(memcmp(m->parts, again.parts, sizeof(m->parts)) == 0);
    FUZZ_CHECK(m->shard_count == again.shard_count && m->shard_count <= DDP_SHARDS_MOST);
    FUZZ_CHECK(m->shard_count == 0 || memcmp(m->shards, again.shards, m->shard_count * sizeof(*m->shards)) == 0);
    FUZZ_CHECK((m->settings == NULL) == (again.settings == NULL));
    FUZZ_CHECK(m->settings == NULL || strcmp(m->settings, again.settings) == 0);
    checkpoint_manifest_free(&again);
    FUZZ_CHECK(unlink(path) == 0);
}

/* What the model reads, if the settings say so: it is written as it was read. */
static void read_fields(const char *settings)
{
    ddp_source source = {.fields = NULL};
    ddp_pool pool = {0};
    ddp_text text = {0};
    ddp_err err = {0};
    ddp_status status = session_fields_parse(settings, "data", &pool, &source.fields, &source.field_count, &err);

    fuzz_check_error(status, &err);
    for (uint32_t i = 0; status == DDP_OK && i < source.field_count; i++) {
        const ddp_field *f = &source.fields[i], *again;
        uint32_t count;

        FUZZ_CHECK(f->name[0] != '\0' && f->rank <= DDP_MAX_DIMS && ddp_dtype_size(f->dtype) > 0);
        for (uint32_t k = 0; k < f->rank; k++) FUZZ_CHECK(f->dims[k] > 0);
        session_fields_text(&source, "data", &text);
        FUZZ_CHECK(session_fields_parse(text.data, "data", &pool, &again, &count, &err) == DDP_OK);
        FUZZ_CHECK(count == source.field_count && strcmp(again[i].name, f->name) == 0 && again[i].dtype == f->dtype);
        FUZZ_CHECK(again[i].rank == f->rank && memcmp(again[i].dims, f->dims, sizeof(f->dims)) == 0);
        ddp_text_free(&text);
    }
    ddp_pool_free(&pool);
}

static void read_one(const char *path)
{
    static const char *folder;
    ddp_manifest m;
    ddp_err err = {0};
    ddp_status status = checkpoint_manifest_read(path, &m, &err);

    fuzz_check_error(status, &err);
    if (status != DDP_OK) return;
    if (folder == NULL) folder = fuzz_folder(0, NULL, 0);
    FUZZ_CHECK(memchr(m.meta.model, '\0', sizeof(m.meta.model)) != NULL);
    FUZZ_CHECK(memchr(m.meta.hook, '\0', sizeof(m.meta.hook)) != NULL);
    round_trip(&m, folder);
    if (m.settings != NULL) read_fields(m.settings);
    checkpoint_manifest_free(&m);
}

FUZZ_TARGET(manifest)
{
    const char *path;

    read_one(fuzz_file(0, data, size, 0));
    path = with_checksum(data, size);
    if (path != NULL) read_one(path);
    return 0;
}
