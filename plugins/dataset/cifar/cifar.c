/* plugins/dataset/cifar/cifar.c -- CIFAR-10 and CIFAR-100 in their binary version, as the authors distribute it.
 *
 * A file is a row of records: for CIFAR-10 one byte of label, for CIFAR-100 a coarse and a fine one, then 3072 bytes
 * of image, (3, 32, 32) in row-major order. A sample is "image", u8 (3, 32, 32), which the core turns into floats,
 * and "label", i64 (). Images are read from the files when they are wanted; labels are checked and kept at the
 * start, when all bytes are read once for the fingerprint (150 MB: about 0.1 s from the page cache). */
#include "common/dataset.h"
#include "common/file.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { IMAGE = 3 * 32 * 32, FILES_MAX = 5, CHUNK = 64 /* records read at once at the start */ };
enum { CLASSES_10 = 0, CLASSES_100, CLASSES_20 };
#define ADVICE                                                                                                         \
    "; set folder to where the binary version of CIFAR-10 (cifar-10-batches-bin) or CIFAR-100 (cifar-100-binary, with classes = 100) was unpacked"

struct config {
    const char *folder;
    int32_t classes, split;
    uint64_t limit;
};

/* One of the two datasets, as its authors wrote it. */
struct layout {
    uint32_t labels, label_at, classes; /* label bytes of a record, and which of them counts */
    const char *const *names[2];        /* by split, NULL after the last */
};

static const char *const ten_train[] = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                                        "data_batch_4.bin", "data_batch_5.bin", NULL};
static const char *const ten_test[] = {"test_batch.bin", NULL};
static const char *const hundred_train[] = {"train.bin", NULL};
static const char *const hundred_test[] = {"test.bin", NULL};
static const struct layout layouts[] = {
    [CLASSES_10] = {.labels = 1, .label_at = 0, .classes = 10, .names = {ten_train, ten_test}},
    [CLASSES_100] = {.labels = 2, .label_at = 1, .classes = 100, .names = {hundred_train, hundred_test}},
    [CLASSES_20] = {.labels = 2, .label_at = 0, .classes = 20, .names = {hundred_train, hundred_test}},
};

struct ddp_dataset {
    data_base base;
    const struct layout *layout;
    data_file files[FILES_MAX];
    uint64_t first[FILES_MAX + 1]; /* sample with which each file begins */
    uint32_t file_count;
    uint8_t *labels; /* by sample */
};

static const ddp_option options[] = {
    {.key = "folder",
     .dflt = "",
     .doc = "Folder with the .bin files, cifar-10-batches-bin or cifar-100-binary.",
     .type = DDP_OPT_PATH,
     .offset = offsetof(struct config, folder)},
    {.key = "classes",
     .dflt = "10",
     .range = "10|100|20",
     .doc = "10: CIFAR-10; 100: CIFAR-100 with its fine labels; 20: CIFAR-100 with its coarse labels.",
     .type = DDP_OPT_ENUM,
     .offset = offsetof(struct config, classes)},
    DATA_OPTION_SPLIT(struct config),
    DATA_OPTION_LIMIT(struct config),
};

static uint64_t record_bytes(const ddp_dataset *d) { return d->layout->labels + (uint64_t)IMAGE; }

/* ---- open -------------------------------------------------------------------------------------------------------- */
static ddp_status open_file(ddp_dataset *d, const char *folder, const char *name, ddp_err *err)
{
    data_file *f = &d->files[d->file_count];
    uint64_t records;

    DDP_TRY(data_file_open_in(f, "cifar", folder, name, ADVICE, err));
    d->file_count++;
    DDP_TRY(data_file_divide(f, record_bytes(d), "a record", "records", ", and check classes", &records, err));
    d->base.length += records;
    d->first[d->file_count] = d->base.length;
    return DDP_OK;
}

/* Records `from` .. `to` of one file: their labels, and all their bytes into the hash. */
static ddp_status scan_records(ddp_dataset *d, uint32_t file, uint64_t from, uint64_t to, uint8_t *buffer,
                               XXH3_state_t *hash, ddp_err *err)
{
    const struct layout *l = d->layout;
    uint64_t record = record_bytes(d);

    DDP_TRY(data_file_read(&d->files[file], buffer, (size_t)((to - from) * record), from * record, err));
    (void)XXH3_64bits_update(hash, buffer, (size_t)((to - from) * record));
    for (uint64_t i = from; i < to; i++) {
        uint8_t label = buffer[(i - from) * record + l->label_at];

        if (label >= l->classes)
            return ddp_fail(
                err, DDP_ERR_DATA,
                "dataset cifar: \"%s\": record %" PRIu64
                " has the label %u, of %u classes (0 to %u); the file is damaged, or classes does not fit it",
                d->files[file].path, i, label, l->classes, l->classes - 1);
        d->labels[d->first[file] + i] = label;
    }
    return DDP_OK;
}

static ddp_status scan(ddp_dataset *d, ddp_err *err)
{
    uint8_t *buffer = malloc((size_t)record_bytes(d) * CHUNK);
    XXH3_state_t hash;
    ddp_status status = DDP_OK;

    d->labels = malloc((size_t)d->base.length);
    if (buffer == NULL || d->labels == NULL) {
        free(buffer);
        return data_no_memory("cifar", err);
    }
    data_hash_begin(&hash, d->layout->classes);
    for (uint32_t f = 0; f < d->file_count && status == DDP_OK; f++) {
        uint64_t count = (d->first[f + 1] < d->base.length ? d->first[f + 1] : d->base.length) - d->first[f];

        for (uint64_t i = 0; i < count && status == DDP_OK; i += CHUNK)
            status = scan_records(d, f, i, i + CHUNK < count ? i + CHUNK : count, buffer, &hash, err);
    }
    d->base.fingerprint = XXH3_64bits_digest(&hash);
    free(buffer);
    return status;
}

static ddp_status open_files(const struct config *c, ddp_dataset *d, ddp_err *err)
{
    if (c->folder[0] == '\0') return ddp_fail(err, DDP_ERR_CONFIG, "dataset cifar: folder is not set" ADVICE);
    for (const char *const *name = d->layout->names[c->split]; *name != NULL; name++)
        DDP_TRY(open_file(d, c->folder, *name, err));
    if (c->limit == 0 || c->limit >= d->base.length) return DDP_OK;
    d->base.length = c->limit;
    while (d->first[d->file_count - 1] >= d->base.length) data_file_close(&d->files[--d->file_count]);
    return DDP_OK;
}

static void dataset_close(ddp_dataset *d)
{
    for (uint32_t f = 0; f < d->file_count; f++) data_file_close(&d->files[f]);
    free(d->labels);
    free(d);
}

static ddp_status fill(ddp_dataset *d, const void *config, ddp_err *err)
{
    const struct config *c = config;

    d->layout = &layouts[c->classes];
    data_describe_images(&d->base, 32, d->layout->classes);
    DDP_TRY(open_files(c, d, err));
    return scan(d, err);
}

static ddp_status dataset_open(const ddp_host *host, const void *config, ddp_dataset **out, ddp_err *err)
{
    (void)host;
    return data_open("cifar", sizeof(struct ddp_dataset), fill, dataset_close, config, out, err);
}

/* ---- use --------------------------------------------------------------------------------------------------------- */
static ddp_status dataset_read(const ddp_dataset *d, uint64_t index, uint64_t epoch, void *const *buffers, ddp_err *err)
{
    int64_t label;
    uint32_t f = 0;

    (void)epoch;
    DDP_TRY(data_check_index(d, index, err));
    label = d->labels[index];
    memcpy(buffers[1], &label, sizeof(label));
    while (index >= d->first[f + 1]) f++;
    return data_file_read(&d->files[f], buffers[0], IMAGE, (index - d->first[f]) * record_bytes(d) + d->layout->labels,
                          err);
}

/* Of CIFAR-10, as its batches.meta.txt has them. */
static const char *dataset_class_name(const ddp_dataset *d, uint32_t field, int64_t value)
{
    static const char *const names[] = {"airplane", "automobile", "bird",  "cat",  "deer",
                                        "dog",      "frog",       "horse", "ship", "truck"};

    return field == 1 && d->layout == &layouts[CLASSES_10] && value >= 0 && value < 10 ? names[value] : NULL;
}

static const ddp_dataset_ops ops = {DATA_OPS, .open = dataset_open, .close = dataset_close, .read = dataset_read,
                                    .class_name = dataset_class_name};

DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(DATASET, 0),
    DDP_PLUGIN_TAIL("cifar", "0.1.0", "CIFAR-10 and CIFAR-100, binary version", DDP_OPTIONS(options, struct config),
                    ops),
};
