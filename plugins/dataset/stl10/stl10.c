/* plugins/dataset/stl10/stl10.c -- STL-10 in its binary version, as its authors distribute it.
 *
 * SPLIT_X.bin holds images of 3 x 96 x 96 bytes, each channel column by column; SPLIT_y.bin a byte from 1 to 10 for
 * each. A sample is "image", u8 (3, 96, 96) row by row, which the core turns into floats, and "label", i64 () from 0
 * to 9, as torchvision has it. Images are read from the file when they are wanted; at the start all bytes are read
 * once for the fingerprint (138 MB of training images: about 0.1 s from the page cache). */
#include "common/dataset.h"
#include "common/file.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { CHANNELS = 3, SIDE = 96, PLANE = SIDE * SIDE, IMAGE = CHANNELS * PLANE, CLASSES = 10 };
#define ADVICE "; set folder to where STL-10's binary version (stl10_binary) was unpacked"

struct config {
    const char *folder;
    int32_t split;
    uint64_t limit;
};

struct ddp_dataset {
    data_base base;
    data_file images, label_file;
    uint8_t *labels; /* by sample, 0 to 9 */
};

static const ddp_option options[] = {
    {.key = "folder",
     .dflt = "",
     .doc = "Folder stl10_binary, which has train_X.bin, train_y.bin, test_X.bin and test_y.bin.",
     .type = DDP_OPT_PATH,
     .offset = offsetof(struct config, folder)},
    DATA_OPTION_SPLIT(struct config),
    DATA_OPTION_LIMIT(struct config),
};

/* ---- open -------------------------------------------------------------------------------------------------------- */
static ddp_status read_labels(ddp_dataset *d, uint64_t limit, ddp_err *err)
{
    const data_file *file = &d->label_file;
    uint64_t count = d->base.length;

    if (count != file->size)
        return ddp_fail(err, DDP_ERR_DATA,
                        "dataset stl10: \"%s\" holds %" PRIu64 " images, so \"%s\" must have %" PRIu64
                        " bytes, a label for each; it has %" PRIu64 ". Name two files of one download",
                        d->images.path, count, file->path, count, file->size);
    if (limit > 0 && limit < count) d->base.length = count = limit;
    d->labels = malloc((size_t)count);
    if (d->labels == NULL) return data_no_memory("stl10", err);
    DDP_TRY(data_file_read(file, d->labels, (size_t)count, 0, err));
    for (uint64_t i = 0; i < count; i++) {
        if (d->labels[i] < 1 || d->labels[i] > CLASSES)
            return ddp_fail(err, DDP_ERR_DATA,
                            "dataset stl10: \"%s\": sample %" PRIu64
                            " has the label %u, not one from 1 to %d; the file is damaged, download it again",
                            file->path, i, d->labels[i], CLASSES);
        d->labels[i]--;
    }
    return DDP_OK;
}

static ddp_status hash_all(ddp_dataset *d, ddp_err *err)
{
    XXH3_state_t hash;

    data_hash_begin(&hash, 0);
    (void)XXH3_64bits_update(&hash, d->labels, (size_t)d->base.length);
    DDP_TRY(data_file_hash(&d->images, 0, d->base.length * IMAGE, &hash, err));
    d->base.fingerprint = XXH3_64bits_digest(&hash);
    return DDP_OK;
}

static void dataset_close(ddp_dataset *d)
{
    data_file_close(&d->images);
    data_file_close(&d->label_file);
    free(d->labels);
    free(d);
}

static ddp_status fill(ddp_dataset *d, const void *config, ddp_err *err)
{
    const struct config *c = config;

    if (c->folder[0] == '\0') return ddp_fail(err, DDP_ERR_CONFIG, "dataset stl10: folder is not set" ADVICE);
    data_describe_images(&d->base, SIDE, CLASSES);
    DDP_TRY(data_file_open_in(&d->images, "stl10", c->folder, c->split == DATA_TRAIN ? "train_X.bin" : "test_X.bin",
                              ADVICE, err));
    DDP_TRY(data_file_open_in(&d->label_file, "stl10", c->folder, c->split == DATA_TRAIN ? "train_y.bin" : "test_y.bin",
                              ADVICE, err));
    DDP_TRY(data_file_divide(&d->images, IMAGE, "an image", "images", "", &d->base.length, err));
    DDP_TRY(read_labels(d, c->limit, err));
    return hash_all(d, err);
}

static ddp_status dataset_open(const ddp_host *host, const void *config, ddp_dataset **out, ddp_err *err)
{
    (void)host;
    return data_open("stl10", sizeof(struct ddp_dataset), fill, dataset_close, config, out, err);
}

/* ---- use --------------------------------------------------------------------------------------------------------- */
static ddp_status dataset_read(const ddp_dataset *d, uint64_t index, uint64_t epoch, void *const *buffers, ddp_err *err)
{
    uint8_t columns[IMAGE], *rows = buffers[0];
    int64_t label;

    (void)epoch;
    DDP_TRY(data_check_index(d, index, err));
    DDP_TRY(data_file_read(&d->images, columns, IMAGE, index * IMAGE, err));
    for (size_t c = 0; c < CHANNELS; c++)
        for (size_t y = 0; y < SIDE; y++)
            for (size_t x = 0; x < SIDE; x++) rows[c * PLANE + y * SIDE + x] = columns[c * PLANE + x * SIDE + y];
    label = d->labels[index];
    memcpy(buffers[1], &label, sizeof(label));
    return DDP_OK;
}

/* As its class_names.txt has them. */
static const char *dataset_class_name(const ddp_dataset *d, uint32_t field, int64_t value)
{
    static const char *const names[] = {"airplane", "bird",  "car",    "cat",  "deer",
                                        "dog",      "horse", "monkey", "ship", "truck"};

    (void)d;
    return field == 1 && value >= 0 && value < 10 ? names[value] : NULL;
}

static const ddp_dataset_ops ops = {DATA_OPS, .open = dataset_open, .close = dataset_close, .read = dataset_read,
                                    .class_name = dataset_class_name};

DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(DATASET, 0),
    DDP_PLUGIN_TAIL("stl10", "0.1.0", "STL-10, binary version: 96 x 96 colour images of ten classes",
                    DDP_OPTIONS(options, struct config), ops),
};
