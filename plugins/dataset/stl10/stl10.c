/* plugins/dataset/stl10/stl10.c -- STL-10 in its binary version, as its authors distribute it.
 *
 * SPLIT_X.bin holds images of 3 x 96 x 96 bytes, each channel column by column; SPLIT_y.bin a byte from 1 to 10 for each.
 * A sample is "image", u8 (3, 96, 96) row by row, which the core turns into floats, and "label", i64 () from 0 to 9, as
 * torchvision has it. Images are read from the file when they are wanted; at the start all bytes are read once for the
 * fingerprint (138 MB of training images: about 0.1 s from the page cache). */
#include "common/file.h"
#include <ddpengine/dataset.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

enum { CHANNELS = 3, SIDE = 96, PLANE = SIDE * SIDE, IMAGE = CHANNELS * PLANE, CLASSES = 10 };
enum { CHUNK = 16 /* images read at once at the start */ };
#define ADVICE "; set folder to where STL-10's binary version (stl10_binary) was unpacked"

struct config {
    const char *folder;
    int32_t split;
    uint64_t limit;
};

struct ddp_dataset {
    ddp_field fields[2];
    data_file images;
    uint64_t length, fingerprint;
    uint8_t *labels; /* by sample, 0 to 9 */
};

static const ddp_option options[] = {
    {.key = "folder",
     .dflt = "",
     .doc = "Folder with train_X.bin, train_y.bin, test_X.bin and test_y.bin: stl10_binary.",
     .type = DDP_OPT_PATH,
     .offset = offsetof(struct config, folder)},
    {.key = "split",
     .dflt = "train",
     .range = "train|test",
     .doc = "Which of the files to read.",
     .type = DDP_OPT_ENUM,
     .offset = offsetof(struct config, split)},
    {.key = "limit",
     .dflt = "0",
     .range = "0..",
     .doc = "At most this many samples, from the start of the files; 0 takes all.",
     .type = DDP_OPT_UINT,
     .offset = offsetof(struct config, limit)},
};

/* ---- open ------------------------------------------------------------------------------------------------------------ */
static ddp_status check_sizes(const data_file *images, const data_file *labels, ddp_err *err)
{
    if (images->size % IMAGE != 0)
        return ddp_fail(err, DDP_ERR_DATA,
                        "dataset stl10: \"%s\" has %" PRIu64 " bytes, which is not a multiple of the %d that an image "
                        "takes (%" PRIu64 " would be %" PRIu64 " images); download the file again",
                        images->path, images->size, IMAGE, images->size / IMAGE * IMAGE, images->size / IMAGE);
    if (images->size / IMAGE != labels->size)
        return ddp_fail(err, DDP_ERR_DATA,
                        "dataset stl10: \"%s\" holds %" PRIu64 " images, so \"%s\" must have %" PRIu64
                        " bytes, a label for each; it has %" PRIu64 ". Name two files of one download",
                        images->path, images->size / IMAGE, labels->path, images->size / IMAGE, labels->size);
    return DDP_OK;
}

static ddp_status read_labels(ddp_dataset *d, const data_file *file, ddp_err *err)
{
    ddp_status status;

    d->labels = malloc((size_t)d->length);
    if (d->labels == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "dataset stl10: out of memory");
    status = data_file_read(file, d->labels, (size_t)d->length, 0, err);
    if (status != DDP_OK) return status;
    for (uint64_t i = 0; i < d->length; i++) {
        if (d->labels[i] < 1 || d->labels[i] > CLASSES)
            return ddp_fail(err, DDP_ERR_DATA,
                            "dataset stl10: \"%s\": sample %" PRIu64
                            " has the label %u, not one from 1 to %d; the file "
                            "is damaged, download it again",
                            file->path, i, d->labels[i], CLASSES);
        d->labels[i]--;
    }
    return DDP_OK;
}

static ddp_status hash_all(ddp_dataset *d, ddp_err *err)
{
    uint8_t *buffer = malloc((size_t)CHUNK * IMAGE);
    XXH3_state_t *hash = XXH3_createState();
    ddp_status status = DDP_OK;

    if (buffer == NULL || hash == NULL) {
        status = ddp_fail(err, DDP_ERR_NOMEM, "dataset stl10: out of memory");
        goto free_all;
    }
    (void)XXH3_64bits_reset(hash);
    (void)XXH3_64bits_update(hash, d->labels, (size_t)d->length);
    for (uint64_t i = 0; i < d->length && status == DDP_OK; i += CHUNK) {
        uint64_t count = d->length - i < CHUNK ? d->length - i : CHUNK;

        status = data_file_read(&d->images, buffer, (size_t)count * IMAGE, i * IMAGE, err);
        if (status == DDP_OK) (void)XXH3_64bits_update(hash, buffer, (size_t)count * IMAGE);
    }
    d->fingerprint = XXH3_64bits_digest(hash);
free_all:
    (void)XXH3_freeState(hash);
    free(buffer);
    return status;
}

static void dataset_close(ddp_dataset *d)
{
    if (d == NULL) return;
    data_file_close(&d->images);
    free(d->labels);
    free(d);
}

static ddp_status dataset_open(const ddp_host *host, const void *config, ddp_dataset **out, ddp_err *err)
{
    const struct config *c = config;
    ddp_dataset *d;
    data_file labels = {.fd = -1};
    ddp_status status;

    (void)host;
    if (c->folder[0] == '\0') return ddp_fail(err, DDP_ERR_CONFIG, "dataset stl10: folder is not set" ADVICE);
    d = calloc(1, sizeof(*d));
    if (d == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "dataset stl10: out of memory");
    d->fields[0] =
        (ddp_field){.name = "image", .dtype = DDP_U8, .rank = 3, .dims = {CHANNELS, SIDE, SIDE}, .max = UINT8_MAX};
    d->fields[1] = (ddp_field){.name = "label", .dtype = DDP_I64, .max = CLASSES - 1};
    status =
        data_file_open_in(&d->images, "stl10", c->folder, c->split == 0 ? "train_X.bin" : "test_X.bin", ADVICE, err);
    if (status != DDP_OK) goto close_dataset;
    status = data_file_open_in(&labels, "stl10", c->folder, c->split == 0 ? "train_y.bin" : "test_y.bin", ADVICE, err);
    if (status != DDP_OK) goto close_dataset;
    status = check_sizes(&d->images, &labels, err);
    if (status != DDP_OK) goto close_labels;
    d->length = d->images.size / IMAGE;
    if (c->limit > 0 && c->limit < d->length) d->length = c->limit;
    status = read_labels(d, &labels, err);
    if (status != DDP_OK) goto close_labels;
    status = hash_all(d, err);
close_labels:
    data_file_close(&labels);
close_dataset:
    if (status != DDP_OK)
        dataset_close(d);
    else
        *out = d;
    return status;
}

/* ---- use ------------------------------------------------------------------------------------------------------------- */
static uint64_t dataset_length(const ddp_dataset *d) { return d->length; }

static uint32_t dataset_fields(const ddp_dataset *d, const ddp_field **out)
{
    *out = d->fields;
    return 2;
}

static uint64_t dataset_fingerprint(const ddp_dataset *d) { return d->fingerprint; }

static ddp_status dataset_read(const ddp_dataset *d, uint64_t index, uint64_t epoch, void *const *buffers, ddp_err *err)
{
    uint8_t columns[IMAGE], *rows = buffers[0];
    int64_t label;
    ddp_status status;

    (void)epoch;
    if (index >= d->length)
        return ddp_fail(err, DDP_ERR_INVALID, "dataset stl10: there is no sample %" PRIu64 " of %" PRIu64, index,
                        d->length);
    status = data_file_read(&d->images, columns, IMAGE, index * IMAGE, err);
    if (status != DDP_OK) return status;
    for (size_t c = 0; c < CHANNELS; c++)
        for (size_t y = 0; y < SIDE; y++)
            for (size_t x = 0; x < SIDE; x++) rows[c * PLANE + y * SIDE + x] = columns[c * PLANE + x * SIDE + y];
    label = d->labels[index];
    memcpy(buffers[1], &label, sizeof(label));
    return DDP_OK;
}

static const ddp_dataset_ops ops = {
    .struct_size = sizeof(ops),
    .open = dataset_open,
    .close = dataset_close,
    .length = dataset_length,
    .fields = dataset_fields,
    .fingerprint = dataset_fingerprint,
    .read = dataset_read,
};

DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(DDP_KIND_DATASET, DDP_DATASET_ABI, 0),
    .name = "stl10",
    .version = "0.1.0",
    .summary = "STL-10, binary version: 96 x 96 colour images of ten classes",
    .options = options,
    .option_count = sizeof(options) / sizeof(options[0]),
    .option_size = sizeof(ddp_option),
    .config_size = sizeof(struct config),
    .ops = &ops,
};
