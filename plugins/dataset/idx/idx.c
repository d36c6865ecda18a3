/* plugins/dataset/idx/idx.c -- images and labels in IDX files (MNIST, Fashion-MNIST, EMNIST, ...), held in memory as bytes
 * where they are gzip, else read from the file when they are wanted.
 *
 * A sample is "image", f32 (1, rows, cols), and "label", i64 (). Images are converted as torchvision's ToTensor followed by
 * Normalize(mean, std) does it, bit for bit, through a table of the 256 possible results. file.c reads the files. */
#include "file.h"
#include <ddpengine/dataset.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#define DEFAULT_FOLDER "/usr/share/datasets/fashion-mnist/"

enum { SPLIT_TRAIN = 0, SPLIT_TEST };

struct config {
    const char *images, *labels; /* "": the split's file of Fashion-MNIST */
    int32_t split;
    double mean, std;
    uint64_t limit;
};

struct ddp_dataset {
    idx_file images, labels;
    ddp_field fields[2];
    uint64_t length, fingerprint;
    float table[256]; /* by pixel */
};

static const ddp_option options[] = {
    {.key = "images",
     .dflt = "",
     .doc = "IDX file of the images, plain or gzip; empty: Fashion-MNIST's in " DEFAULT_FOLDER ".",
     .type = DDP_OPT_PATH,
     .offset = offsetof(struct config, images)},
    {.key = "labels",
     .dflt = "",
     .doc = "IDX file of the labels, plain or gzip; empty: Fashion-MNIST's in " DEFAULT_FOLDER ".",
     .type = DDP_OPT_PATH,
     .offset = offsetof(struct config, labels)},
    {.key = "split",
     .dflt = "train",
     .range = "train|test",
     .doc = "Which of the default files to read, where images and labels do not name others.",
     .type = DDP_OPT_ENUM,
     .offset = offsetof(struct config, split)},
    {.key = "mean",
     .dflt = "0",
     .doc = "Subtracted from each pixel after scaling it to 0..1, as by torchvision's Normalize.",
     .type = DDP_OPT_FLOAT,
     .offset = offsetof(struct config, mean)},
    {.key = "std",
     .dflt = "1",
     .doc = "Each pixel is divided by it after the mean was subtracted, as by torchvision's Normalize.",
     .type = DDP_OPT_FLOAT,
     .offset = offsetof(struct config, std)},
    {.key = "limit",
     .dflt = "0",
     .range = "0..",
     .doc = "At most this many samples, from the start of the files; 0 takes all.",
     .type = DDP_OPT_UINT,
     .offset = offsetof(struct config, limit)},
};

/* Each step in float, as the tensors are: ToTensor divides by 255, Normalize subtracts, then divides. */
static ddp_status fill_table(float table[256], double mean, double std, ddp_err *err)
{
    float m = (float)mean, s = (float)std;

    if (!isfinite(m) || !isfinite(s) || s == 0.0f)
        return ddp_fail(
            err, DDP_ERR_CONFIG,
            "dataset idx: mean = %g, std = %g: pixels cannot be normalised with them; set finite numbers and a std "
            "that is not 0",
            mean, std);
    for (int i = 0; i < 256; i++) table[i] = ((float)i / 255.0f - m) / s;
    return DDP_OK;
}

static ddp_status open_files(const struct config *c, ddp_dataset *d, ddp_err *err)
{
    const char *images =
        c->split == SPLIT_TRAIN ? DEFAULT_FOLDER "train-images-idx3-ubyte" : DEFAULT_FOLDER "t10k-images-idx3-ubyte";
    const char *labels =
        c->split == SPLIT_TRAIN ? DEFAULT_FOLDER "train-labels-idx1-ubyte" : DEFAULT_FOLDER "t10k-labels-idx1-ubyte";
    ddp_status status;

    if (c->images[0] != '\0') images = c->images;
    if (c->labels[0] != '\0') labels = c->labels;
    status = idx_file_open(images, "images", 3, false, &d->images, err);
    if (status != DDP_OK) return status;
    status = idx_file_open(labels, "labels", 1, true, &d->labels, err);
    if (status != DDP_OK) return status;
    if (d->images.dims[0] != d->labels.dims[0])
        return ddp_fail(
            err, DDP_ERR_DATA,
            "dataset idx: images \"%s\" holds %u samples, labels \"%s\" holds %u; name two files of one dataset",
            images, d->images.dims[0], labels, d->labels.dims[0]);
    return DDP_OK;
}

static void describe(ddp_dataset *d)
{
    uint8_t smallest = UINT8_MAX, largest = 0;

    for (uint64_t i = 0; i < d->length; i++) {
        if (d->labels.data[i] < smallest) smallest = d->labels.data[i];
        if (d->labels.data[i] > largest) largest = d->labels.data[i];
    }
    d->fields[0] = (ddp_field){
        .name = "image",
        .dtype = DDP_F32,
        .rank = 3,
        .dims = {1, d->images.dims[1], d->images.dims[2]},
        .min = 1,
    };
    d->fields[1] = (ddp_field){.name = "label", .dtype = DDP_I64, .min = smallest, .max = largest};
}

/* The hash of the elements, wherever they lie: XXH3 of all of them. */
static ddp_status hash_elements(const idx_file *f, uint64_t *out, ddp_err *err)
{
    enum { PIECE = 1 << 20 };
    uint8_t *buffer = malloc(PIECE);
    XXH3_state_t *hash = XXH3_createState();
    ddp_status status = DDP_OK;

    if (buffer == NULL || hash == NULL) {
        status = ddp_fail(err, DDP_ERR_NOMEM, "dataset idx: out of memory");
        goto free_all;
    }
    (void)XXH3_64bits_reset(hash);
    for (size_t at = 0; at < f->size && status == DDP_OK; at += PIECE) {
        size_t bytes = f->size - at < PIECE ? f->size - at : PIECE;
        const uint8_t *from = idx_file_get(f, at, bytes, buffer, err);

        if (from == NULL)
            status = err->status;
        else
            (void)XXH3_64bits_update(hash, from, bytes);
    }
    *out = XXH3_64bits_digest(hash);
free_all:
    (void)XXH3_freeState(hash);
    free(buffer);
    return status;
}

/* Of the samples in use, their shape, and what is done to them (the table stands for mean and std). */
static ddp_status hash_all(ddp_dataset *d, ddp_err *err)
{
    uint64_t parts[5] = {d->length, d->images.dims[1], d->images.dims[2], 0, 0};
    ddp_status status = hash_elements(&d->images, &parts[3], err);

    if (status != DDP_OK) return status;
    parts[4] = XXH3_64bits(d->labels.data, d->labels.size);
    d->fingerprint = XXH3_64bits_withSeed(parts, sizeof(parts), XXH3_64bits(d->table, sizeof(d->table)));
    return DDP_OK;
}

static void dataset_close(ddp_dataset *d)
{
    if (d == NULL) return;
    idx_file_close(&d->images);
    idx_file_close(&d->labels);
    free(d);
}

static ddp_status dataset_open(const ddp_host *host, const void *config, ddp_dataset **out, ddp_err *err)
{
    const struct config *c = config;
    ddp_dataset *d = calloc(1, sizeof(*d));
    ddp_status status;

    (void)host;
    if (d == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "dataset idx: out of memory");
    status = fill_table(d->table, c->mean, c->std, err);
    if (status != DDP_OK) goto close_dataset;
    status = open_files(c, d, err);
    if (status != DDP_OK) goto close_dataset;
    if (c->limit > 0 && c->limit < d->images.dims[0]) {
        idx_file_truncate(&d->images, (uint32_t)c->limit);
        idx_file_truncate(&d->labels, (uint32_t)c->limit);
    }
    d->length = d->images.dims[0];
    describe(d);
    status = hash_all(d, err);
    if (status != DDP_OK) goto close_dataset;
    *out = d;
    return DDP_OK;
close_dataset:
    dataset_close(d);
    return status;
}

static uint64_t dataset_length(const ddp_dataset *d) { return d->length; }

static uint32_t dataset_fields(const ddp_dataset *d, const ddp_field **out)
{
    *out = d->fields;
    return 2;
}

static uint64_t dataset_fingerprint(const ddp_dataset *d) { return d->fingerprint; }

static ddp_status dataset_read(const ddp_dataset *d, uint64_t index, uint64_t epoch, void *const *buffers, ddp_err *err)
{
    size_t pixels = (size_t)d->images.dims[1] * d->images.dims[2];
    const uint8_t *from;
    float *image = buffers[0];
    int64_t label;

    (void)epoch;
    if (index >= d->length)
        return ddp_fail(err, DDP_ERR_INVALID, "dataset idx: there is no sample %" PRIu64 " of %" PRIu64, index,
                        d->length);
    /* read from the file, the bytes come into the last quarter of the floats: they are used up before they are written over */
    from = idx_file_get(&d->images, index * pixels, pixels, (uint8_t *)image + 3 * pixels, err);
    if (from == NULL) return err->status;
    for (size_t i = 0; i < pixels; i++) image[i] = d->table[from[i]];
    label = d->labels.data[index];
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
    .name = "idx",
    .version = "0.1.0",
    .summary = "images and labels in IDX files: MNIST, Fashion-MNIST and their kin",
    .options = options,
    .option_count = sizeof(options) / sizeof(options[0]),
    .option_size = sizeof(ddp_option),
    .config_size = sizeof(struct config),
    .ops = &ops,
};
