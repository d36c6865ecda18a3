/* checkpoint/safetensors/read.c -- maps a safetensors file and believes nothing in it before it is checked.
 * The tensors point into the mapping: nothing is copied. Hashes over whole files are the manifest's affair.
 *
 * The header is read in place, by scan.c: memory is taken for the tensors that were accepted, and what is
 * wrong is refused where it stands. */
#include "checkpoint/safetensors/file.h"
#include "checkpoint/safetensors/scan.h"
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { METADATA_MAX = 16384, DTYPE_NAME_MAX = 20, KEY_SHOWN = 40 };

/* What is being read. */
struct reader {
    const char *path;
    const unsigned char *data; /* after the header */
    uint64_t data_bytes;
    ddp_safetensors *s;
    size_t capacity; /* of s->entries */
    safetensors_scan scan;
    bool has_metadata;
};

/* What an object of the header holds, member after member; `to` is what it is read into. */
typedef ddp_status read_member(struct reader *r, const safetensors_string *key, void *to, ddp_err *err);

static ddp_status read_members(struct reader *r, read_member *member, void *to, ddp_err *err)
{
    bool more = true;

    DDP_TRY(checkpoint_scan_expect(&r->scan, '{', "'{' is missing", err));
    if (checkpoint_scan_take(&r->scan, '}')) return DDP_OK;
    while (more) {
        safetensors_string key;

        DDP_TRY(checkpoint_scan_string(&r->scan, &key, err));
        DDP_TRY(checkpoint_scan_expect(&r->scan, ':', "':' is missing", err));
        DDP_TRY(member(r, &key, to, err));
        DDP_TRY(checkpoint_scan_more(&r->scan, '}', &more, err));
    }
    return DDP_OK;
}

/* Decoded, in the pool. */
static char *keep_text(struct reader *r, const safetensors_string *text, ddp_err *err)
{
    char *kept = ddp_pool_alloc(&r->s->pool, text->decoded + 1, err);

    if (kept != NULL) checkpoint_string_decode(text, kept);
    return kept;
}

/* ---- one tensor -------------------------------------------------------------------------------------------------- */
/* What its object holds. */
struct fields {
    const char *name;
    ddp_named_tensor *tensor;
    int64_t begin, end;
    bool has_dtype, has_shape, has_range;
};

static ddp_status bad_tensor(const struct reader *r, const char *name, ddp_err *err, const char *what)
{
    return ddp_fail(err, DDP_ERR_DATA, "%s: tensor \"%.100s\": %s", r->path, name, what);
}

static ddp_status read_dtype(struct reader *r, struct fields *f, ddp_err *err)
{
    char name[DTYPE_NAME_MAX] = "";
    safetensors_string text;

    if (checkpoint_scan_peek(&r->scan) != '"') return bad_tensor(r, f->name, err, "no dtype, or one that is not text");
    DDP_TRY(checkpoint_scan_string(&r->scan, &text, err));
    if (text.decoded < sizeof(name)) checkpoint_string_decode(&text, name);
    f->tensor->dtype = checkpoint_safetensors_dtype(name);
    f->has_dtype = true;
    if (f->tensor->dtype != 0) return DDP_OK;
    return ddp_fail(err, DDP_ERR_DATA, "%s: tensor \"%.100s\": dtype %.*s is not one of the safetensors format",
                    r->path, f->name, (int)DDP_MIN_OF(text.bytes, (size_t)DTYPE_NAME_MAX), (const char *)text.at);
}

static ddp_status read_shape(struct reader *r, struct fields *f, ddp_err *err)
{
    ddp_named_tensor *t = f->tensor;
    bool more = true;

    if (!checkpoint_scan_take(&r->scan, '['))
        return bad_tensor(r, f->name, err, "no shape, or one that is not an array");
    f->has_shape = true;
    if (checkpoint_scan_take(&r->scan, ']')) return DDP_OK;
    while (more) {
        if (t->rank == DDP_MAX_DIMS) return bad_tensor(r, f->name, err, "more than 8 dimensions");
        if (!checkpoint_scan_integer(&r->scan, &t->dims[t->rank]) || t->dims[t->rank] < 0)
            return bad_tensor(r, f->name, err, "a dimension that is not a whole number from 0 to 2^63 - 1");
        t->rank++;
        DDP_TRY(checkpoint_scan_more(&r->scan, ']', &more, err));
    }
    return DDP_OK;
}

static ddp_status read_range(struct reader *r, struct fields *f, ddp_err *err)
{
    safetensors_scan *s = &r->scan;

    if (!checkpoint_scan_take(s, '[') || !checkpoint_scan_integer(s, &f->begin) || !checkpoint_scan_take(s, ',') ||
        !checkpoint_scan_integer(s, &f->end) || !checkpoint_scan_take(s, ']'))
        return bad_tensor(r, f->name, err, "no data_offsets, or not two whole numbers up to 2^63 - 1");
    f->has_range = true;
    return DDP_OK;
}

static ddp_status read_field(struct reader *r, const safetensors_string *key, void *to, ddp_err *err)
{
    struct fields *f = to;

    if (!f->has_dtype && checkpoint_string_is(key, "dtype")) return read_dtype(r, f, err);
    if (!f->has_shape && checkpoint_string_is(key, "shape")) return read_shape(r, f, err);
    if (!f->has_range && checkpoint_string_is(key, "data_offsets")) return read_range(r, f, err);
    return ddp_fail(err, DDP_ERR_DATA,
                    "%s: tensor \"%.100s\": the key \"%.*s\" is there twice, or not one of the safetensors format",
                    r->path, f->name, (int)DDP_MIN_OF(key->bytes, (size_t)KEY_SHOWN), (const char *)key->at);
}

static ddp_status check_fields(const struct reader *r, const struct fields *f, struct safetensors_entry *e,
                               ddp_err *err)
{
    uint64_t bytes;

    if (!f->has_dtype) return bad_tensor(r, f->name, err, "no dtype, or one that is not text");
    if (!f->has_shape) return bad_tensor(r, f->name, err, "no shape, or one that is not an array");
    if (!f->has_range) return bad_tensor(r, f->name, err, "no data_offsets, or not two whole numbers up to 2^63 - 1");
    if (f->begin < 0 || f->end < f->begin)
        return bad_tensor(r, f->name, err, "data_offsets are negative or the wrong way round");
    e->begin = (uint64_t)f->begin;
    e->end = (uint64_t)f->end;
    if (e->end > r->data_bytes) return bad_tensor(r, f->name, err, "data_offsets are past the end of the file");
    if (!checkpoint_safetensors_bytes(&e->tensor, &bytes))
        return bad_tensor(r, f->name, err, "the product of its shape overflows");
    if (bytes != e->end - e->begin) return bad_tensor(r, f->name, err, "its shape and its data_offsets contradict");
    e->tensor.data = r->data + e->begin;
    return DDP_OK;
}

/* ---- metadata ---------------------------------------------------------------------------------------------------- */
struct metadata {
    const char **keys;
    size_t count;
};

static ddp_status bad_metadata(const struct reader *r, const char *what, ddp_err *err)
{
    return ddp_fail(err, DDP_ERR_DATA, "%s: " DDP_SAFETENSORS_METADATA " %s", r->path, what);
}

static ddp_status read_metadata_member(struct reader *r, const safetensors_string *key, void *to, ddp_err *err)
{
    struct metadata *m = to;
    safetensors_string value;

    if (m->count == METADATA_MAX) return bad_metadata(r, "has more than 16384 keys", err);
    if ((m->keys[m->count] = keep_text(r, key, err)) == NULL) return err->status;
    m->count++;
    if (checkpoint_scan_peek(&r->scan) != '"') return bad_metadata(r, "is not an object of strings", err);
    return checkpoint_scan_string(&r->scan, &value, err);
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Its values are of no use here; it must be one object of strings all the same. */
static ddp_status read_metadata(struct reader *r, ddp_err *err)
{
    struct metadata m = {0};
    ddp_status st;

    if (r->has_metadata) return bad_metadata(r, "is there twice", err);
    r->has_metadata = true;
    if (checkpoint_scan_peek(&r->scan) != '{') return bad_metadata(r, "is not an object of strings", err);
    if ((m.keys = ddp_alloc(METADATA_MAX * sizeof(*m.keys), err)) == NULL) return err->status;
    st = read_members(r, read_metadata_member, &m, err);
    if (st == DDP_OK) qsort(m.keys, m.count, sizeof(*m.keys), compare_texts);
    for (size_t i = 1; i < m.count && st == DDP_OK; i++)
        if (strcmp(m.keys[i - 1], m.keys[i]) == 0) st = bad_metadata(r, "has a key twice", err);
    free(m.keys);
    return st;
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */
static int compare_places(const void *a, const void *b)
{
    const struct safetensors_entry *x = a, *y = b;

    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end) return x->end < y->end ? -1 : 1; /* an empty tensor comes before the one at the same offset */
    return strcmp(x->tensor.name, y->tensor.name);
}

static int compare_names(const void *a, const void *b)
{
    const struct safetensors_named *x = a, *y = b;

    return strcmp(x->entry->tensor.name, y->entry->tensor.name);
}

/* The format wants the data covered without overlap or hole. */
static ddp_status check_cover(const struct reader *r, ddp_err *err)
{
    uint64_t at = 0;

    for (size_t i = 0; i < r->s->count; i++) {
        const struct safetensors_entry *e = &r->s->entries[i];

        if (e->begin < at) return bad_tensor(r, e->tensor.name, err, "overlaps the one before it");
        if (e->begin > at) return bad_tensor(r, e->tensor.name, err, "a hole in the data before it");
        at = e->end;
    }
    if (at != r->data_bytes)
        return ddp_fail(err, DDP_ERR_DATA, "%s: %" PRIu64 " bytes after the last tensor belong to none", r->path,
                        r->data_bytes - at);
    return DDP_OK;
}

/* Room for one entry more. */
static ddp_status grow_entries(struct reader *r, ddp_err *err)
{
    size_t capacity = r->capacity == 0 ? 64 : 2 * r->capacity;
    struct safetensors_entry *grown;

    if (r->s->count < r->capacity) return DDP_OK;
    if (r->s->count == DDP_SAFETENSORS_MAX_TENSORS)
        return ddp_fail(err, DDP_ERR_DATA, "%s: the header has more than %u tensors", r->path,
                        DDP_SAFETENSORS_MAX_TENSORS);
    grown = realloc(r->s->entries, capacity * sizeof(*grown));
    if (grown == NULL)
        return ddp_fail(err, DDP_ERR_NOMEM, "%s: out of memory for the header's %zu tensors", r->path, r->s->count);
    r->s->entries = grown;
    r->capacity = capacity;
    return DDP_OK;
}

static ddp_status read_tensor(struct reader *r, const safetensors_string *key, void *to, ddp_err *err)
{
    struct safetensors_entry e = {0};
    struct fields f = {.tensor = &e.tensor};

    (void)to;
    if (checkpoint_string_is(key, DDP_SAFETENSORS_METADATA)) return read_metadata(r, err);
    DDP_TRY(grow_entries(r, err));
    if ((e.tensor.name = f.name = keep_text(r, key, err)) == NULL) return err->status;
    if (checkpoint_scan_peek(&r->scan) != '{') return bad_tensor(r, f.name, err, "not a JSON object");
    DDP_TRY(read_members(r, read_field, &f, err));
    DDP_TRY(check_fields(r, &f, &e, err));
    r->s->entries[r->s->count++] = e;
    return DDP_OK;
}

ddp_status checkpoint_safetensors_sort(ddp_safetensors *s, const char **twice, ddp_err *err)
{
    *twice = NULL;
    if ((s->by_name = ddp_alloc((s->count + 1) * sizeof(*s->by_name), err)) == NULL) return err->status;
    for (size_t i = 0; i < s->count; i++) s->by_name[i].entry = &s->entries[i];
    qsort(s->by_name, s->count, sizeof(*s->by_name), compare_names);
    for (size_t i = 1; i < s->count && *twice == NULL; i++)
        if (compare_names(&s->by_name[i - 1], &s->by_name[i]) == 0) *twice = s->by_name[i].entry->tensor.name;
    return DDP_OK;
}

static ddp_status sort_entries(struct reader *r, ddp_err *err)
{
    ddp_safetensors *s = r->s;
    const char *twice;

    if (s->count > 0) qsort(s->entries, s->count, sizeof(*s->entries), compare_places);
    DDP_TRY(checkpoint_safetensors_sort(s, &twice, err));
    return twice == NULL ? DDP_OK : bad_tensor(r, twice, err, "is there twice");
}

static ddp_status read_header(struct reader *r, ddp_err *err)
{
    ddp_safetensors *s = r->s;
    uint64_t length = 0;

    for (int i = 0; i < 8; i++) length |= (uint64_t)s->map[i] << (8 * i);
    if (length > s->map_bytes - 8 || length > DDP_SAFETENSORS_MAX_HEADER)
        return ddp_fail(err, DDP_ERR_DATA,
                        "%s: a header of %" PRIu64 " bytes in a file of %zu: damaged, or not a safetensors file",
                        r->path, length, s->map_bytes);
    if (length == 0 || s->map[8] != '{')
        return ddp_fail(err, DDP_ERR_DATA, "%s: the header does not start with '{': not a safetensors file", r->path);
    r->data = s->map + 8 + length;
    r->data_bytes = s->map_bytes - 8 - length;
    r->scan = (safetensors_scan){.path = r->path, .begin = s->map + 8, .at = s->map + 8, .end = r->data};
    DDP_TRY(read_members(r, read_tensor, NULL, err));
    if (checkpoint_scan_peek(&r->scan) != 0 || r->scan.at != r->scan.end)
        return checkpoint_scan_fail(&r->scan, "something follows its end", err);
    DDP_TRY(sort_entries(r, err));
    return check_cover(r, err);
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
        s->of_file = true;
    }
    (void)close(fd);
    return st;
}

void checkpoint_safetensors_defuse(char *text)
{
    for (; *text != '\0'; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f) *text = '?';
}

/* `st`: of mapping it. */
static ddp_status finish_open(const char *path, ddp_safetensors *s, ddp_status st, ddp_safetensors **out, ddp_err *err)
{
    struct reader r = {.path = path, .s = s};

    if (st == DDP_OK && (s->path = ddp_pool_strdup(&s->pool, path, err)) == NULL) st = err->status;
    if (st == DDP_OK) st = read_header(&r, err);
    if (st != DDP_OK) {
        checkpoint_safetensors_defuse(err->msg);
        ddp_safetensors_close(s);
        return st;
    }
    *out = s;
    return DDP_OK;
}

ddp_status ddp_safetensors_open(const char *path, ddp_safetensors **out, ddp_err *err)
{
    ddp_safetensors *s = ddp_alloc(sizeof(*s), err);

    return finish_open(path, s, s == NULL ? DDP_ERR_NOMEM : map_file(path, s, err), out, err);
}

ddp_status checkpoint_safetensors_adopt(const char *path, void *map, size_t bytes, ddp_safetensors **out, ddp_err *err)
{
    ddp_safetensors *s = ddp_alloc(sizeof(*s), err);

    if (s == NULL) {
        (void)munmap(map, bytes);
        return err->status;
    }
    s->map = map;
    s->map_bytes = bytes;
    return finish_open(path, s, DDP_OK, out, err);
}

void ddp_safetensors_close(ddp_safetensors *s)
{
    if (s == NULL) return;
    for (size_t i = 0; i < s->part_count; i++) ddp_safetensors_close(s->parts[i]);
    free(s->parts);
    if (s->map != NULL) (void)munmap(s->map, s->map_bytes);
    ddp_pool_free(&s->pool);
    free(s->by_name);
    free(s->entries);
    free(s);
}

/* The file that the tensor is of. */
static const ddp_safetensors *part_of(const ddp_safetensors *s, const ddp_named_tensor *t)
{
    const unsigned char *at = t->data;

    for (size_t i = 0; i < s->part_count; i++)
        if (at >= s->parts[i]->map && at <= s->parts[i]->map + s->parts[i]->map_bytes) {
            const ddp_named_tensor *same = ddp_safetensors_find(s->parts[i], t->name);

            if (same != NULL && same->data == t->data) return s->parts[i];
        }
    return s;
}

const char *checkpoint_safetensors_path(const ddp_safetensors *s, const ddp_named_tensor *t)
{
    return part_of(s, t)->path;
}

void checkpoint_safetensors_release(const ddp_safetensors *whole, const ddp_named_tensor *t)
{
    const ddp_safetensors *s = part_of(whole, t);
    size_t page = (size_t)sysconf(_SC_PAGESIZE), from = (size_t)((const unsigned char *)t->data - s->map), to;
    uint64_t bytes = 0;

    if (!s->of_file || !checkpoint_safetensors_bytes(t, &bytes)) return;
    to = (from + bytes) / page * page; /* pages at its ends are of its neighbours, too */
    from = ddp_round_up(from, page);
    if (from < to) (void)madvise(s->map + from, to - from, MADV_DONTNEED);
}

ddp_status checkpoint_safetensors_pieces(const ddp_safetensors *s, const ddp_named_tensor *t, uint64_t first,
                                         uint64_t most, checkpoint_take_piece take, void *ctx, ddp_err *err)
{
    uint64_t bytes = 0;

    (void)checkpoint_safetensors_bytes(t, &bytes);
    for (uint64_t at = 0; at < bytes; at += most) {
        const ddp_named_tensor piece = {.dtype = DDP_U8,
                                        .rank = 1,
                                        .dims = {(int64_t)DDP_MIN_OF(most, bytes - at)},
                                        .data = (const char *)t->data + at};

        DDP_TRY(take(ctx, first + at, piece.data, (uint64_t)piece.dims[0], err));
        checkpoint_safetensors_release(s, &piece);
    }
    return DDP_OK;
}

size_t ddp_safetensors_count(const ddp_safetensors *s) { return s->count; }

const ddp_named_tensor *ddp_safetensors_at(const ddp_safetensors *s, size_t i)
{
    return i < s->count ? &s->entries[i].tensor : NULL;
}

const ddp_named_tensor *ddp_safetensors_find(const ddp_safetensors *s, const char *name)
{
    const struct safetensors_entry key = {.tensor.name = name};
    const struct safetensors_named wanted = {&key}, *found;

    if (s->count == 0) return NULL;
    found = bsearch(&wanted, s->by_name, s->count, sizeof(*s->by_name), compare_names);
    return found == NULL ? NULL : &found->entry->tensor;
}
