/* checkpoint/safetensors_read.c -- maps a safetensors file and believes nothing in it before it is checked.
 * The tensors point into the mapping: nothing is copied. Hashes over whole files are the manifest's affair. */
#include "checkpoint/safetensors_format.h"
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct entry {
    ddp_named_tensor tensor;
    uint64_t begin, end; /* bytes from the start of the data */
};

struct named {
    const struct entry *entry;
};

struct ddp_safetensors {
    unsigned char *map;
    size_t map_bytes;
    size_t count;
    struct entry *entries; /* by offset in the file */
    struct named *by_name; /* the same, sorted by name */
    ddp_pool pool;         /* names */
};

/* What is being read, for messages. */
struct reader {
    const char *path;
    const unsigned char *data; /* after the header */
    uint64_t data_bytes;
    ddp_safetensors *s;
};

/* ---- one entry of the header ------------------------------------------------------------------------------------- */
static ddp_status bad_tensor(const struct reader *r, const char *name, ddp_err *err, const char *what)
{
    return ddp_fail(err, DDP_ERR_DATA, "%s: tensor \"%.100s\": %s", r->path, name, what);
}

static ddp_status read_shape(const struct reader *r, const char *name, const json_t *shape, ddp_named_tensor *t,
                             ddp_err *err)
{
    if (!json_is_array(shape)) return bad_tensor(r, name, err, "no shape, or one that is not an array");
    if (json_array_size(shape) > DDP_MAX_DIMS) return bad_tensor(r, name, err, "more than 8 dimensions");
    t->rank = (uint32_t)json_array_size(shape);
    for (uint32_t i = 0; i < t->rank; i++) {
        const json_t *dim = json_array_get(shape, i);

        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return bad_tensor(r, name, err, "a dimension that is not a whole number from 0");
        t->dims[i] = json_integer_value(dim);
    }
    return DDP_OK;
}

static ddp_status read_range(const struct reader *r, const char *name, const json_t *offsets, struct entry *e,
                             ddp_err *err)
{
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    uint64_t bytes;

    if (!json_is_array(offsets) || json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end))
        return bad_tensor(r, name, err, "no data_offsets, or not two whole numbers");
    if (json_integer_value(begin) < 0 || json_integer_value(end) < json_integer_value(begin))
        return bad_tensor(r, name, err, "data_offsets are negative or the wrong way round");
    e->begin = (uint64_t)json_integer_value(begin);
    e->end = (uint64_t)json_integer_value(end);
    if (e->end > r->data_bytes) return bad_tensor(r, name, err, "data_offsets are past the end of the file");
    if (!checkpoint_safetensors_bytes(&e->tensor, &bytes))
        return bad_tensor(r, name, err, "the product of its shape overflows");
    if (bytes != e->end - e->begin) return bad_tensor(r, name, err, "its shape and its data_offsets contradict");
    e->tensor.data = r->data + e->begin;
    return DDP_OK;
}

static ddp_status read_entry(const struct reader *r, const char *name, const json_t *value, struct entry *e,
                             ddp_err *err)
{
    const char *dtype = json_string_value(json_object_get(value, "dtype"));

    if (!json_is_object(value)) return bad_tensor(r, name, err, "not a JSON object");
    if (dtype == NULL) return bad_tensor(r, name, err, "no dtype");
    e->tensor.dtype = checkpoint_safetensors_dtype(dtype);
    if (e->tensor.dtype == 0)
        return ddp_fail(err, DDP_ERR_DATA, "%s: tensor \"%.100s\": dtype %.20s is not one of the safetensors format",
                        r->path, name, dtype);
    e->tensor.name = ddp_pool_strdup(&r->s->pool, name, err);
    if (e->tensor.name == NULL) return err->status;
    DDP_TRY(read_shape(r, name, json_object_get(value, "shape"), &e->tensor, err));
    return read_range(r, name, json_object_get(value, "data_offsets"), e, err);
}

static ddp_status check_metadata(const struct reader *r, json_t *metadata, ddp_err *err)
{
    bool good = json_is_object(metadata);

    for (void *i = json_object_iter(metadata); good && i != NULL; i = json_object_iter_next(metadata, i))
        good = json_is_string(json_object_iter_value(i));
    return good ? DDP_OK
                : ddp_fail(err, DDP_ERR_DATA, "%s: " DDP_SAFETENSORS_METADATA " is not an object of strings", r->path);
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */
static int compare_places(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;

    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end) return x->end < y->end ? -1 : 1; /* an empty tensor comes before the one at the same offset */
    return strcmp(x->tensor.name, y->tensor.name);
}

static int compare_names(const void *a, const void *b)
{
    const struct named *x = a, *y = b;

    return strcmp(x->entry->tensor.name, y->entry->tensor.name);
}

/* The format wants the data covered without overlap or hole. */
static ddp_status check_cover(const struct reader *r, ddp_err *err)
{
    uint64_t at = 0;

    for (size_t i = 0; i < r->s->count; i++) {
        const struct entry *e = &r->s->entries[i];

        if (e->begin < at) return bad_tensor(r, e->tensor.name, err, "overlaps the one before it");
        if (e->begin > at) return bad_tensor(r, e->tensor.name, err, "a hole in the data before it");
        at = e->end;
    }
    if (at != r->data_bytes)
        return ddp_fail(err, DDP_ERR_DATA, "%s: %" PRIu64 " bytes after the last tensor belong to none", r->path,
                        r->data_bytes - at);
    return DDP_OK;
}

static ddp_status read_entries(struct reader *r, json_t *header, ddp_err *err)
{
    ddp_safetensors *s = r->s;
    size_t most = json_object_size(header);

    if ((s->entries = ddp_alloc((most + 1) * sizeof(*s->entries), err)) == NULL) return err->status;
    if ((s->by_name = ddp_alloc((most + 1) * sizeof(*s->by_name), err)) == NULL) return err->status;
    for (void *i = json_object_iter(header); i != NULL; i = json_object_iter_next(header, i)) {
        const char *name = json_object_iter_key(i);

        if (strcmp(name, DDP_SAFETENSORS_METADATA) == 0) {
            DDP_TRY(check_metadata(r, json_object_iter_value(i), err));
            continue;
        }
        DDP_TRY(read_entry(r, name, json_object_iter_value(i), &s->entries[s->count], err));
        s->count++;
    }
    qsort(s->entries, s->count, sizeof(*s->entries), compare_places);
    for (size_t i = 0; i < s->count; i++) s->by_name[i].entry = &s->entries[i];
    qsort(s->by_name, s->count, sizeof(*s->by_name), compare_names);
    return check_cover(r, err);
}

static ddp_status read_header(struct reader *r, ddp_err *err)
{
    ddp_safetensors *s = r->s;
    uint64_t length = 0;
    json_error_t why;
    json_t *header;
    ddp_status st;

    for (int i = 0; i < 8; i++) length |= (uint64_t)s->map[i] << (8 * i);
    if (length > s->map_bytes - 8 || length > DDP_SAFETENSORS_MAX_HEADER)
        return ddp_fail(err, DDP_ERR_DATA,
                        "%s: a header of %" PRIu64 " bytes in a file of %zu: damaged, or not a safetensors file",
                        r->path, length, s->map_bytes);
    if (length == 0 || s->map[8] != '{')
        return ddp_fail(err, DDP_ERR_DATA, "%s: the header does not start with '{': not a safetensors file", r->path);
    header = json_loadb((const char *)s->map + 8, (size_t)length, JSON_REJECT_DUPLICATES, &why);
    if (header == NULL)
        return ddp_fail(err, DDP_ERR_DATA, "%s: the header is not valid JSON: %s at byte %d", r->path, why.text,
                        why.position);
    r->data = s->map + 8 + length;
    r->data_bytes = s->map_bytes - 8 - length;
    st = read_entries(r, header, err);
    json_decref(header);
    return st;
}

static ddp_status map_file(const char *path, ddp_safetensors *s, ddp_err *err)
{
    struct stat facts;
    ddp_status st = DDP_OK;
    void *map;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not block */

    if (fd < 0) return ddp_fail_errno(err, "cannot open %s", path);
    if (fstat(fd, &facts) != 0) {
        st = ddp_fail_errno(err, "cannot stat %s", path);
    } else if (!S_ISREG(facts.st_mode)) {
        st = ddp_fail(err, DDP_ERR_DATA, "%s is not a plain file", path);
    } else if (facts.st_size < 8) {
        st = ddp_fail(err, DDP_ERR_DATA, "%s has %lld bytes: too short for a safetensors file", path,
                      (long long)facts.st_size);
    } else if ((map = mmap(NULL, (size_t)facts.st_size, PROT_READ, MAP_PRIVATE, fd, 0)) == MAP_FAILED) {
        st = ddp_fail_errno(err, "cannot map %s", path);
    } else {
        s->map = map;
        s->map_bytes = (size_t)facts.st_size;
    }
    (void)close(fd);
    return st;
}

/* Names and JSON from a strange file end up in messages: no control character may reach the terminal. */
static void defuse(char *text)
{
    for (; *text != '\0'; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f) *text = '?';
}

ddp_status ddp_safetensors_open(const char *path, ddp_safetensors **out, ddp_err *err)
{
    ddp_safetensors *s = ddp_alloc(sizeof(*s), err);
    struct reader r = {.path = path, .s = s};
    ddp_status st = s == NULL ? DDP_ERR_NOMEM : map_file(path, s, err);

    if (st == DDP_OK) st = read_header(&r, err);
    if (st != DDP_OK) {
        defuse(err->msg);
        ddp_safetensors_close(s);
        return st;
    }
    *out = s;
    return DDP_OK;
}

void ddp_safetensors_close(ddp_safetensors *s)
{
    if (s == NULL) return;
    if (s->map != NULL) (void)munmap(s->map, s->map_bytes);
    ddp_pool_free(&s->pool);
    free(s->by_name);
    free(s->entries);
    free(s);
}

size_t ddp_safetensors_count(const ddp_safetensors *s) { return s->count; }

const ddp_named_tensor *ddp_safetensors_at(const ddp_safetensors *s, size_t i)
{
    return i < s->count ? &s->entries[i].tensor : NULL;
}

const ddp_named_tensor *ddp_safetensors_find(const ddp_safetensors *s, const char *name)
{
    const struct entry key = {.tensor.name = name};
    const struct named wanted = {&key}, *found;

    if (s->count == 0) return NULL;
    found = bsearch(&wanted, s->by_name, s->count, sizeof(*s->by_name), compare_names);
    return found == NULL ? NULL : &found->entry->tensor;
}
