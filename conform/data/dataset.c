/* conform/data/dataset.c -- a dataset: fields that make sense, samples that are the same from every handle and every
 * thread, and a read that writes a field's bytes and no others. */
#include "conform/data/image.h"
#include "conform/harness/leaks.h"
#include "conform/suites.h"
#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 64, THREADS = 4, GUARD = 64, EPOCHS = 2, FIELDS_MAX = 64 };

typedef struct trial {
    ddp_rank_process *a;
    const ddp_dataset_ops *ops;
    ddp_dataset *d;
    const ddp_field *fields;
    uint32_t field_count;
    size_t bytes[FIELDS_MAX]; /* 0: of an image whose size differs by sample */
    bool differs;             /* there is one: read_image has to be called */
    uint64_t length, hashes[EPOCHS][SAMPLES];
} trial;

/* ---- fields ------------------------------------------------------------------------------------------------------ */
static bool field_makes_sense(trial *t, uint32_t i)
{
    const ddp_field *f = ddp_field_at(t->ops, t->fields, i);
    size_t elements = 1;

    if (!DDP_EXPECT(t->a, f->name != NULL && f->name[0] != '\0', "field %u has no name", i) ||
        !DDP_EXPECT(t->a, ddp_dtype_size(f->dtype) > 0, "field \"%s\" has the unknown dtype %u", f->name, f->dtype) ||
        !DDP_EXPECT(t->a, f->rank < DDP_MAX_DIMS, "field \"%s\" has rank %u, with the batch at most %d fit", f->name,
                    f->rank, DDP_MAX_DIMS))
        return false;
    for (uint32_t k = 0; k < i; k++)
        if (!DDP_EXPECT(t->a, strcmp(ddp_field_at(t->ops, t->fields, k)->name, f->name) != 0,
                        "two fields are called \"%s\"", f->name))
            return false;
    if (image_differs(f)) {
        t->differs = true;
        return true;
    }
    for (uint32_t k = 0; k < f->rank; k++) {
        if (!DDP_EXPECT(t->a, f->dims[k] > 0, "field \"%s\" has the dimension %lld", f->name, (long long)f->dims[k]))
            return false;
        elements *= (size_t)f->dims[k];
    }
    t->bytes[i] = elements * ddp_dtype_size(f->dtype);
    return true;
}

/* Lines to print: text, each with its newline. */
static bool description_is_text(trial *t)
{
    const char *text = t->ops->describe(t->d);
    size_t length = text != NULL ? strlen(text) : 0;

    for (size_t i = 0; i < length; i++)
        if (!DDP_EXPECT(t->a, (unsigned char)text[i] >= ' ' || text[i] == '\n', "describe has the byte %u at %zu",
                        (unsigned char)text[i], i))
            return false;
    return length == 0 || DDP_EXPECT(t->a, text[length - 1] == '\n', "the last line of describe has no newline");
}

static bool open_dataset(trial *t)
{
    ddp_err err = {0};
    ddp_status st = t->ops->open(&t->a->host, t->a->config, &t->d, &err);

    if (st != DDP_OK) {
        t->d = NULL;
        return ddp_rank_process_fail_call(t->a, "open", st, &err);
    }
    t->length = t->ops->length(t->d);
    t->field_count = t->ops->fields(t->d, &t->fields);
    if (!DDP_EXPECT(t->a, t->length > 0, "it has no samples") ||
        !DDP_EXPECT(t->a, t->field_count > 0 && t->field_count <= FIELDS_MAX, "it has %u fields", t->field_count))
        return false;
    for (uint32_t i = 0; i < t->field_count; i++)
        if (!field_makes_sense(t, i)) return false;
    return description_is_text(t);
}

static void close_dataset(trial *t)
{
    if (t->d != NULL) t->ops->close(t->d);
    t->d = NULL;
}

/* ---- samples ----------------------------------------------------------------------------------------------------- */
typedef struct sample {
    unsigned char *base[FIELDS_MAX];
    void *buffers[FIELDS_MAX];
    image_buffer image;
} sample;

static void sample_free(sample *s, uint32_t fields)
{
    for (uint32_t i = 0; i < fields; i++) free(s->base[i]);
    image_free(&s->image);
}

static bool sample_alloc(const trial *t, sample *s)
{
    ddp_err err = {0};

    *s = (sample){.image.a = t->a};
    for (uint32_t i = 0; i < t->field_count; i++) {
        s->base[i] = ddp_alloc_aligned(t->bytes[i] + (size_t)2 * GUARD, &err);
        if (s->base[i] == NULL) {
            sample_free(s, i);
            DDP_SKIP(t->a, "%.200s", err.msg);
            return false;
        }
        s->buffers[i] = s->base[i] + GUARD;
    }
    return true;
}

static bool guards_hold(const unsigned char *base, size_t bytes)
{
    for (size_t i = 0; i < GUARD; i++)
        if (base[i] != 0x5a || base[GUARD + bytes + i] != 0x5a) return false;
    return true;
}

static bool values_fit(const trial *t, uint32_t field, const void *data)
{
    const ddp_field *f = ddp_field_at(t->ops, t->fields, field);
    const unsigned char *at = data;

    if (f->min > f->max || (f->dtype != DDP_I64 && f->dtype != DDP_I32 && f->dtype != DDP_U8)) return true;
    for (size_t i = 0; i < t->bytes[field]; i += ddp_dtype_size(f->dtype)) {
        int64_t v = at[i];
        int32_t narrow;

        if (f->dtype == DDP_I64) memcpy(&v, at + i, sizeof(v));
        if (f->dtype == DDP_I32) {
            memcpy(&narrow, at + i, sizeof(narrow));
            v = narrow;
        }
        if (!DDP_EXPECT(t->a, v >= f->min && v <= f->max, "field \"%s\" says %lld .. %lld and holds %lld", f->name,
                        (long long)f->min, (long long)f->max, (long long)v))
            return false;
    }
    return true;
}

/* Sample `index` into `s`, filled with `before`; *hash is of what came. */
static bool read_sample(const trial *t, sample *s, uint64_t index, uint64_t epoch, int before, uint64_t *hash)
{
    ddp_err err = {0};
    ddp_status st;

    for (uint32_t i = 0; i < t->field_count; i++) {
        memset(s->base[i], 0x5a, t->bytes[i] + (size_t)2 * GUARD);
        memset(s->buffers[i], before, t->bytes[i]);
    }
    *hash = 0;
    if (t->differs) {
        if (!image_read(&s->image, t->ops, t->d, index, epoch, before, s->buffers, hash)) return false;
    } else if ((st = t->ops->read(t->d, index, epoch, s->buffers, &err)) != DDP_OK) {
        return ddp_rank_process_fail_call(t->a, "read", st, &err);
    }
    for (uint32_t i = 0; i < t->field_count; i++) {
        if (!DDP_EXPECT(t->a, guards_hold(s->base[i], t->bytes[i]), "read of sample %llu wrote outside field \"%s\"",
                        (unsigned long long)index, t->fields[i].name) ||
            !values_fit(t, i, s->buffers[i]))
            return false;
        *hash = ddp_hash64(s->buffers[i], t->bytes[i], *hash);
    }
    return true;
}

static uint64_t index_of(const trial *t, uint32_t i)
{
    return t->length <= SAMPLES ? i % t->length : i * (t->length - 1) / (SAMPLES - 1);
}

/* All samples of the trial; with `compare` they must be what t->hashes holds. */
static bool read_all(trial *t, int before, bool compare)
{
    sample s;
    bool good = sample_alloc(t, &s);

    if (!good) return false;
    for (uint32_t e = 0; e < EPOCHS && good; e++)
        for (uint32_t i = 0; i < SAMPLES && good; i++) {
            uint64_t hash = 0, index = index_of(t, i);

            good = read_sample(t, &s, index, e, before, &hash) &&
                   DDP_EXPECT(t->a, !compare || hash == t->hashes[e][i],
                              "sample %llu of epoch %u is not the same every time", (unsigned long long)index, e);
            if (!compare) t->hashes[e][i] = hash;
        }
    sample_free(&s, t->field_count);
    return good;
}

/* Twice from one handle, over different bytes, and once more from another: a field that is not written whole shows. */
static void samples(trial *t)
{
    trial other = *t;
    uint64_t mark;

    if (!open_dataset(t) || !read_all(t, 0, false) || !read_all(t, 0xff, true)) return;
    mark = t->ops->fingerprint(t->d);
    if (open_dataset(&other)) {
        memcpy(other.hashes, t->hashes, sizeof(other.hashes));
        if (DDP_EXPECT(t->a, other.length == t->length && other.ops->fingerprint(other.d) == mark,
                       "two handles have different lengths or fingerprints"))
            (void)read_all(&other, 0, true);
    }
    close_dataset(&other);
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */
static void *read_main(void *arg)
{
    (void)read_all(arg, 0, true);
    return NULL;
}

static void threads(trial *t)
{
    pthread_t thread[THREADS];
    uint32_t started = 0;
    ddp_err err = {0};

    if (!open_dataset(t) || !read_all(t, 0, false)) return;
    while (started < THREADS && ddp_thread_start(&thread[started], "conform-read", read_main, t, &err) == DDP_OK)
        started++;
    for (uint32_t i = 0; i < started; i++) (void)pthread_join(thread[i], NULL);
    if (started < THREADS) DDP_SKIP(t->a, "%.200s", err.msg);
}

/* ---- by name ----------------------------------------------------------------------------------------------------- */
static bool open_once(ddp_rank_process *a, uint32_t i)
{
    trial t = {.a = a, .ops = a->plugin->ops};
    sample s;
    uint64_t hash;
    bool good = open_dataset(&t) && sample_alloc(&t, &s);

    if (good) {
        good = read_sample(&t, &s, i % t.length, 0, 0, &hash);
        sample_free(&s, t.field_count);
    }
    close_dataset(&t);
    return good;
}

void ddp_dataset_case(ddp_rank_process *a)
{
    trial t = {.a = a, .ops = a->plugin->ops};

    switch (a->c->suite) {
    case DDP_SUITE_OPEN: (void)open_dataset(&t); break;
    case DDP_SUITE_RESULTS: samples(&t); break;
    case DDP_SUITE_THREADS: threads(&t); break;
    default: ddp_leaks_check(a, open_once, 256);
    }
    close_dataset(&t);
}
