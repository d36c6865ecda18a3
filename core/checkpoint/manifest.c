/* checkpoint/manifest.c -- MANIFEST.json to struct and back. It carries a checksum of itself, so that a flipped digit
 * in the position is found as surely as one in the tensors. Folders and renames are checkpoint.c's affair. */
#include "checkpoint/manifest.h"
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MANIFEST_LIMIT ((size_t)1 << 20)

enum { SETTINGS_MOST = 4096, SETTINGS_BYTES = 1 << 18, KEY_CAPACITY = 256 };

/* Every whole number of ddp_checkpoint_meta, in the order of the file. */
static const struct {
    const char *key;
    size_t offset;
    bool optional; /* files of earlier versions lack it: then 0 */
} numbers[] = {
    {"step", offsetof(ddp_checkpoint_meta, step), false},
    {"epoch", offsetof(ddp_checkpoint_meta, epoch), false},
    {"cursor", offsetof(ddp_checkpoint_meta, cursor), false},
    {"seed", offsetof(ddp_checkpoint_meta, seed), false},
    {"world_size", offsetof(ddp_checkpoint_meta, world_size), false},
    {"bucket_size", offsetof(ddp_checkpoint_meta, bucket_size), false},
    {"first_bucket_size", offsetof(ddp_checkpoint_meta, first_bucket_size), false},
    {"batch_size", offsetof(ddp_checkpoint_meta, batch_size), false},
    {"accumulate", offsetof(ddp_checkpoint_meta, accumulate), false},
    {"global_batch", offsetof(ddp_checkpoint_meta, global_batch), true},
    {"uneven", offsetof(ddp_checkpoint_meta, uneven), true},
    {"micro_steps", offsetof(ddp_checkpoint_meta, micro_steps), true},
    {"hook_version", offsetof(ddp_checkpoint_meta, hook_version), true},
};

const char *checkpoint_part_file(int part)
{
    static const char *const names[DDP_PARTS] = {"model.safetensors", "optimizer.safetensors", "hook.safetensors",
                                                 "ema.safetensors", "local_steps.safetensors"};

    return names[part];
}

void checkpoint_shard_file(char name[DDP_FILE_NAME], uint32_t shard, uint32_t of)
{
    (void)snprintf(name, DDP_FILE_NAME, "optimizer-%05" PRIu32 "-of-%05" PRIu32 ".safetensors", shard + 1, of);
}

const ddp_file_facts *checkpoint_manifest_file(const ddp_manifest *m, uint32_t *i, char name[DDP_FILE_NAME])
{
    for (; *i < DDP_PARTS; (*i)++)
        if (m->parts[*i].bytes > 0) {
            ddp_copy_text(name, DDP_FILE_NAME, checkpoint_part_file((int)*i));
            return &m->parts[(*i)++];
        }
    if (*i - DDP_PARTS >= m->shard_count) return NULL;
    checkpoint_shard_file(name, *i - DDP_PARTS, m->shard_count);
    return &m->shards[(*i)++ - DDP_PARTS];
}

static uint64_t number_of(const ddp_checkpoint_meta *m, size_t i)
{
    uint64_t n;

    memcpy(&n, (const char *)m + numbers[i].offset, sizeof(n));
    return n;
}

bool checkpoint_meta_equal(const ddp_checkpoint_meta *a, const ddp_checkpoint_meta *b)
{
    for (size_t i = 0; i < DDP_COUNT(numbers); i++)
        if (number_of(a, i) != number_of(b, i)) return false;
    return strcmp(a->config_hash, b->config_hash) == 0 && strcmp(a->model, b->model) == 0 &&
           strcmp(a->hook, b->hook) == 0 && strcmp(a->base_hash, b->base_hash) == 0 && a->finished == b->finished &&
           checkpoint_history_equal(&a->history, &b->history);
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */
/* A number; as text where jansson's signed 64 bits cannot hold it (a seed may be any 64 bits). */
static json_t *json_number(uint64_t n)
{
    char text[24];

    if (n <= INT64_MAX) return json_integer((json_int_t)n);
    (void)snprintf(text, sizeof(text), "%" PRIu64, n);
    return json_string(text);
}

static json_t *json_files(const ddp_manifest *m)
{
    json_t *files = json_object();
    char name[DDP_FILE_NAME];
    const ddp_file_facts *f;

    for (uint32_t i = 0; (f = checkpoint_manifest_file(m, &i, name)) != NULL;) {
        bool earlier = strlen(f->hash) == DDP_SHA256_HEX - 1; /* it was read from a file of an earlier version */
        json_t *facts = json_pack("{s:I, s:s}", "bytes", (json_int_t)f->bytes, earlier ? "sha256" : "xxh128", f->hash);

        if (json_object_set_new(files, name, facts) == 0) continue;
        json_decref(files);
        return NULL;
    }
    return files;
}

/* SHA-256 of the object without its "checksum", sorted keys, no white space. */
static ddp_status checksum_of(json_t *object, char hex[DDP_SHA256_HEX], ddp_err *err)
{
    json_t *bare = json_copy(object); /* shallow */
    char *text = NULL;
    ddp_sha256 h;
    ddp_status st;

    if (bare != NULL) (void)json_object_del(bare, "checksum");
    if (bare != NULL) text = json_dumps(bare, JSON_COMPACT | JSON_SORT_KEYS);
    if (text == NULL) {
        st = ddp_fail(err, DDP_ERR_NOMEM, "out of memory for " DDP_MANIFEST_FILE);
    } else if ((st = ddp_sha256_begin(&h, err)) == DDP_OK) {
        ddp_sha256_add(&h, text, strlen(text));
        ddp_sha256_end(&h, hex);
    }
    free(text);
    json_decref(bare);
    return st;
}

/* Of a setting, so that a line of it can be taken apart again. */
static bool is_name(const char *key)
{
    size_t length = strlen(key);

    for (const char *c = key; *c != '\0'; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f || *c == '=') return false;
    return length > 0 && length < KEY_CAPACITY;
}

/* {"section.key": "value"}; NULL: no memory, or not UTF-8. No more than what is read again. */
static json_t *json_settings(const char *lines)
{
    json_t *settings = json_object();
    const char *end = lines + DDP_MIN_OF(strlen(lines), (size_t)SETTINGS_BYTES);

    for (const char *next; settings != NULL && lines < end && json_object_size(settings) < SETTINGS_MOST;
         lines = next) {
        size_t n = strcspn(lines, "\n");
        const char *between = memmem(lines, n, " = ", 3);
        char key[KEY_CAPACITY];

        next = lines + n + (lines[n] == '\n');
        if (between == NULL || (size_t)(between - lines) >= sizeof(key)) continue;
        memcpy(key, lines, (size_t)(between - lines));
        key[between - lines] = '\0';
        if (!is_name(key)) continue;
        if (json_object_set_new(settings, key, json_stringn(between + 3, n - (size_t)(between + 3 - lines))) == 0)
            continue;
        json_decref(settings);
        settings = NULL;
    }
    return settings;
}

static ddp_status to_json(const ddp_manifest *m, const char *lines, json_t **out, ddp_err *err)
{
    const ddp_checkpoint_meta *meta = &m->meta;
    json_t *object = json_pack("{s:s, s:i}", "format", DDP_MANIFEST_FORMAT, "version", DDP_MANIFEST_VERSION);
    char hex[DDP_SHA256_HEX];
    bool bad = object == NULL;
    ddp_status st;

    for (size_t i = 0; i < DDP_COUNT(numbers); i++)
        bad |= json_object_set_new(object, numbers[i].key, json_number(number_of(meta, i))) != 0;
    bad |= json_object_set_new(object, "config_hash", json_string(meta->config_hash)) != 0;
    bad |= json_object_set_new(object, "model", json_string(meta->model)) != 0;
    bad |= json_object_set_new(object, "finished", json_boolean(meta->finished)) != 0;
    bad |= json_object_set_new(object, "hook", json_string(meta->hook)) != 0;
    if (meta->base_hash[0] != '\0') bad |= json_object_set_new(object, "base_hash", json_string(meta->base_hash)) != 0;
    bad |= json_object_set_new(object, "files", json_files(m)) != 0;
    if (m->shard_count > 0) bad |= json_object_set_new(object, "shards", json_integer(m->shard_count)) != 0;
    if (!checkpoint_history_is_empty(&meta->history))
        bad |= json_object_set_new(object, "history", checkpoint_history_json(&meta->history)) != 0;
    if (lines != NULL) bad |= json_object_set_new(object, "settings", json_settings(lines)) != 0;
    if (bad) {
        st = ddp_fail(err, DDP_ERR_INVALID,
                      "cannot describe the checkpoint: a name or a setting is not UTF-8, or out of memory");
    } else if ((st = checksum_of(object, hex, err)) == DDP_OK &&
               json_object_set_new(object, "checksum", json_string(hex)) != 0) {
        st = ddp_fail(err, DDP_ERR_NOMEM, "out of memory for " DDP_MANIFEST_FILE);
    }
    if (st == DDP_OK)
        *out = object;
    else
        json_decref(object);
    return st;
}

static ddp_status write_new(const char *path, const char *text, ddp_err *err)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    ddp_status st;

    if (fd < 0) return ddp_fail_errno(err, "cannot create %s", path);
    st = ddp_write_all(fd, text, strlen(text), path, err);
    if (st == DDP_OK) st = ddp_write_all(fd, "\n", 1, path, err);
    if (st == DDP_OK && fsync(fd) != 0) st = ddp_fail_errno(err, "cannot flush %s to disk", path);
    if (close(fd) != 0 && st == DDP_OK) st = ddp_fail_errno(err, "cannot close %s", path);
    if (st != DDP_OK) (void)unlink(path);
    return st;
}

ddp_status checkpoint_manifest_write(const char *path, const ddp_manifest *m, const char *settings, ddp_err *err)
{
    json_t *object = NULL;
    char *text;
    ddp_status st;

    DDP_TRY(to_json(m, settings, &object, err));
    text = json_dumps(object, JSON_INDENT(2));
    st = text == NULL ? ddp_fail(err, DDP_ERR_NOMEM, "out of memory for " DDP_MANIFEST_FILE)
                      : write_new(path, text, err);
    free(text);
    json_decref(object);
    return st;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */
static bool read_number(const json_t *v, uint64_t *out)
{
    const char *text = json_string_value(v);
    char again[24];

    if (json_is_integer(v) && json_integer_value(v) >= 0) {
        *out = (uint64_t)json_integer_value(v);
        return true;
    }
    if (text == NULL) return false;
    *out = strtoull(text, NULL, 10);
    (void)snprintf(again, sizeof(again), "%" PRIu64, *out);
    return strcmp(text, again) == 0;
}

/* One that is printed, and stands in a line: see ddp_clean_text. */
static bool read_text(const json_t *v, char *out, size_t capacity)
{
    const char *text = json_string_value(v);

    if (text == NULL || strlen(text) >= capacity) return false;
    ddp_copy_text(out, capacity, text);
    ddp_clean_text(out);
    return true;
}

static bool read_file(const json_t *files, const char *name, ddp_file_facts *f)
{
    const json_t *v = json_object_get(files, name);

    const json_t *xxh128 = json_object_get(v, "xxh128"); /* files of earlier versions lack it */
    size_t digits = (xxh128 != NULL ? DDP_XXH128_HEX : DDP_SHA256_HEX) - 1;

    return read_number(json_object_get(v, "bytes"), &f->bytes) && f->bytes > 0 &&
           read_text(xxh128 != NULL ? xxh128 : json_object_get(v, "sha256"), f->hash, sizeof(f->hash)) &&
           strlen(f->hash) == digits;
}

/* Of one that has them in place of the optimiser's file. */
static ddp_status read_shards(const char *path, const json_t *object, ddp_manifest *m, ddp_err *err)
{
    const json_t *files = json_object_get(object, "files");
    char name[DDP_FILE_NAME];
    uint64_t count = 0;

    if (!read_number(json_object_get(object, "shards"), &count) || count < 1 || count > DDP_SHARDS_MOST)
        return ddp_fail(err, DDP_ERR_DATA, "%s: \"shards\" is missing or not a number from 1 to %d", path,
                        DDP_SHARDS_MOST);
    m->shards = ddp_alloc(count * sizeof(*m->shards), err);
    if (m->shards == NULL) return err->status;
    m->shard_count = (uint32_t)count;
    for (uint32_t i = 0; i < m->shard_count; i++) {
        checkpoint_shard_file(name, i, m->shard_count);
        if (!read_file(files, name, &m->shards[i]))
            return ddp_fail(err, DDP_ERR_DATA, "%s: \"files\" lacks bytes and hash of %s", path, name);
    }
    return DDP_OK;
}

static ddp_status read_fields(const char *path, const json_t *object, ddp_manifest *m, ddp_err *err)
{
    const json_t *files = json_object_get(object, "files"), *finished = json_object_get(object, "finished");

    for (size_t i = 0; i < DDP_COUNT(numbers); i++) {
        const json_t *v = json_object_get(object, numbers[i].key);
        uint64_t n;

        if (v == NULL && numbers[i].optional) continue;
        if (!read_number(v, &n))
            return ddp_fail(err, DDP_ERR_DATA, "%s: \"%s\" is missing or not a whole number", path, numbers[i].key);
        memcpy((char *)&m->meta + numbers[i].offset, &n, sizeof(n));
    }
    if (!read_text(json_object_get(object, "config_hash"), m->meta.config_hash, sizeof(m->meta.config_hash)) ||
        !read_text(json_object_get(object, "model"), m->meta.model, sizeof(m->meta.model)) ||
        !json_is_boolean(finished))
        return ddp_fail(err, DDP_ERR_DATA,
                        "%s: \"config_hash\", \"model\" or \"finished\" is missing or of a wrong type", path);
    m->meta.finished = json_is_true(finished);
    if (json_object_get(object, "hook") != NULL && /* files of earlier versions lack it */
        !read_text(json_object_get(object, "hook"), m->meta.hook, sizeof(m->meta.hook)))
        return ddp_fail(err, DDP_ERR_DATA, "%s: \"hook\" is of a wrong type", path);
    if (json_object_get(object, "base_hash") != NULL && /* of adapters alone */
        !read_text(json_object_get(object, "base_hash"), m->meta.base_hash, sizeof(m->meta.base_hash)))
        return ddp_fail(err, DDP_ERR_DATA, "%s: \"base_hash\" is of a wrong type", path);
    if (!checkpoint_history_read(json_object_get(object, "history"), &m->meta.history))
        return ddp_fail(err, DDP_ERR_DATA, "%s: \"history\" has what is no number, or lacks one", path);
    for (int i = 0; i < DDP_PARTS; i++) {
        if (i >= DDP_PART_HOOK && json_object_get(files, checkpoint_part_file(i)) == NULL) continue;
        if (i == DDP_PART_OPTIMIZER && m->shard_count > 0) continue;
        if (!read_file(files, checkpoint_part_file(i), &m->parts[i]))
            return ddp_fail(err, DDP_ERR_DATA, "%s: \"files\" lacks bytes and hash of %s", path,
                            checkpoint_part_file(i));
    }
    return DDP_OK;
}

/* A value of a file that others may have written: it is printed, and stands in a line. */
static void append_clean(ddp_text *out, const char *text)
{
    for (; *text != '\0'; text++) ddp_text_append(out, (unsigned char)*text < 0x20 || *text == 0x7f ? "?" : text, 1);
}

/* Optional: files of earlier versions lack it. */
static ddp_status read_settings(const char *path, json_t *object, ddp_manifest *m, ddp_err *err)
{
    json_t *settings = json_object_get(object, "settings");
    ddp_text lines = {0};

    if (settings == NULL) return DDP_OK;
    if (!json_is_object(settings) || json_object_size(settings) > SETTINGS_MOST)
        return ddp_fail(err, DDP_ERR_DATA, "%s: \"settings\" is not an object of at most %d texts", path,
                        SETTINGS_MOST);
    ddp_text_printf(&lines, "%s", "");
    for (void *i = json_object_iter(settings); i != NULL; i = json_object_iter_next(settings, i)) {
        const char *value = json_string_value(json_object_iter_value(i)), *key = json_object_iter_key(i);

        if (value == NULL || !is_name(key) || lines.length >= SETTINGS_BYTES) {
            ddp_text_free(&lines);
            return ddp_fail(err, DDP_ERR_DATA, "%s: \"settings\" has what is no setting, or too much", path);
        }
        ddp_text_append(&lines, key, strlen(key));
        ddp_text_append(&lines, " = ", 3);
        append_clean(&lines, value);
        ddp_text_append(&lines, "\n", 1);
    }
    m->settings = lines.data;
    return lines.failed ? ddp_fail(err, DDP_ERR_NOMEM, "out of memory for " DDP_MANIFEST_FILE) : DDP_OK;
}

static ddp_status check_object(const char *path, json_t *object, ddp_manifest *m, ddp_err *err)
{
    const char *format = json_string_value(json_object_get(object, "format"));
    const char *stated = json_string_value(json_object_get(object, "checksum"));
    const json_t *version = json_object_get(object, "version");
    char hex[DDP_SHA256_HEX];

    if (format == NULL || strcmp(format, DDP_MANIFEST_FORMAT) != 0 || !json_is_integer(version))
        return ddp_fail(err, DDP_ERR_DATA, "%s is not the manifest of a ddpengine checkpoint", path);
    if (json_integer_value(version) < 1 || json_integer_value(version) > DDP_MANIFEST_VERSION)
        return ddp_fail(err, DDP_ERR_UNSUPPORTED,
                        "%s is of format version %lld, this ddpengine reads 1 to %d: use the version that wrote it",
                        path, (long long)json_integer_value(version), DDP_MANIFEST_VERSION);
    DDP_TRY(checksum_of(object, hex, err));
    if (stated == NULL || strcmp(stated, hex) != 0)
        return ddp_fail(err, DDP_ERR_DATA, "%s: its contents do not match its checksum: damaged or edited", path);
    if (json_object_get(object, "shards") != NULL) DDP_TRY(read_shards(path, object, m, err));
    DDP_TRY(read_fields(path, object, m, err));
    return read_settings(path, object, m, err);
}

ddp_status checkpoint_manifest_read(const char *path, ddp_manifest *m, ddp_err *err)
{
    ddp_manifest found = {0};
    size_t length = 0;
    char *text = NULL;
    json_error_t why;
    json_t *object;
    ddp_status st;

    DDP_TRY(ddp_file_read(path, MANIFEST_LIMIT, &text, &length, err));
    object = json_loadb(text, length, JSON_REJECT_DUPLICATES, &why);
    st = object == NULL ? ddp_fail(err, DDP_ERR_DATA, "%s is not valid JSON: %s at line %d", path, why.text, why.line)
                        : check_object(path, object, &found, err);
    if (st == DDP_OK)
        *m = found;
    else
        checkpoint_manifest_free(&found);
    json_decref(object);
    free(text);
    return st;
}

void checkpoint_manifest_free(ddp_manifest *m)
{
    free(m->settings);
    m->settings = NULL;
    free(m->shards);
    m->shards = NULL;
    m->shard_count = 0;
}
