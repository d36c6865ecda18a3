/* plugins/dataset/idx/idx.c -- images and labels in IDX files (MNIST, Fashion-MNIST, EMNIST, ...), held in memory as
 * bytes where they are gzip, else read from the file when they are wanted.
 *
 * A sample is "image", f32 (1, rows, cols), and "label", i64 (). Images are converted as torchvision's ToTensor
 * followed by Normalize(mean, std) does it, bit for bit, through a table of the 256 possible results. file.c reads
 * the files. */
#include "file.h"
#include "common/dataset.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_FOLDER "/usr/share/datasets/fashion-mnist/"

struct config {
    const char *images, *labels; /* "": the split's file of Fashion-MNIST */
    int32_t split;
    double mean, std;
    uint64_t limit;
};

struct ddp_dataset {
    data_base base;
    idx_file images, labels;
    float table[256]; /* by pixel */
};

static const ddp_option options[] = {
    {.key = "images",
     .dflt = "",
     .doc = "IDX file of the images, plain or gzip; empty: the one of Fashion-MNIST in " DEFAULT_FOLDER ".",
     .type = DDP_OPT_PATH,
     .offset = offsetof(struct config, images)},
    {.key = "labels",
     .dflt = "",
     .doc = "IDX file of the labels, plain or gzip; empty: the one of Fashion-MNIST in " DEFAULT_FOLDER ".",
     .type = DDP_OPT_PATH,
     .offset = offsetof(struct config, labels)},
    {.key = "split",
     .dflt = "train",
     .range = "train|test",
     .doc = "Which split of Fashion-MNIST to read where images or labels is empty.",
     .type = DDP_OPT_ENUM,
     .offset = offsetof(struct config, split)},
    {.key = "mean",
     .dflt = "0",
     .doc = "Mean that is subtracted from each pixel after it was scaled to 0..1, as in torchvision's Normalize.",
     .type = DDP_OPT_FLOAT,
     .offset = offsetof(struct config, mean)},
    {.key = "std",
     .dflt = "1",
     .doc =
         "Standard deviation that each pixel is divided by after the mean was subtracted, as in torchvision's Normalize.",
     .type = DDP_OPT_FLOAT,
     .offset = offsetof(struct config, std)},
    DATA_OPTION_LIMIT(struct config),
};

/* Each step in float, as the tensors are: ToTensor divides by 255, Normalize subtracts, then divides. */
static ddp_status fill_table(float table[256], double mean, double std, ddp_err *err)
{
    float m = (float)mean, s = (float)std;

    if (!isfinite(m) || !isfinite(s) || s == 0.0f)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "dataset idx: mean = %g, std = %g: pixels cannot be normalised with them; "
                        "set finite numbers and a std that is not 0",
                        mean, std);
    for (int i = 0; i < 256; i++) table[i] = ((float)i / 255.0f - m) / s;
    return DDP_OK;
}

static ddp_status open_files(const struct config *c, ddp_dataset *d, ddp_err *err)
{
    const char *images =
        c->split == DATA_TRAIN ? DEFAULT_FOLDER "train-images-idx3-ubyte" : DEFAULT_FOLDER "t10k-images-idx3-ubyte";
    const char *labels =
        c->split == DATA_TRAIN ? DEFAULT_FOLDER "train-labels-idx1-ubyte" : DEFAULT_FOLDER "t10k-labels-idx1-ubyte";

    if (c->images[0] != '\0') images = c->images;
    if (c->labels[0] != '\0') labels = c->labels;
    DDP_TRY(idx_file_open(images, "idx: images", 3, false, &d->images, err));
    DDP_TRY(idx_file_open(labels, "idx: labels", 1, true, &d->labels, err));
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

    for (uint64_t i = 0; i < d->base.length; i++) {
        if (d->labels.data[i] < smallest) smallest = d->labels.data[i];
        if (d->labels.data[i] > largest) largest = d->labels.data[i];
    }
    d->base.fields[0] = (ddp_field){
        .name = "image",
        .dtype = DDP_F32,
        .rank = 3,
        .dims = {1, d->images.dims[1], d->images.dims[2]},
        .min = 1,
    };
    d->base.fields[1] = (ddp_field){.name = "label", .dtype = DDP_I64, .min = smallest, .max = largest};
}

/* XXH3 of all elements, wherever they lie. */
static ddp_status hash_elements(const idx_file *f, uint64_t *out, ddp_err *err)
{
    XXH3_state_t hash;

    data_hash_begin(&hash, 0);
    if (f->data != NULL)
        (void)XXH3_64bits_update(&hash, f->data, f->size);
    else
        DDP_TRY(data_file_hash(&f->source, f->offset, f->offset + f->size, &hash, err));
    *out = XXH3_64bits_digest(&hash);
    return DDP_OK;
}

/* Of the samples in use, their shape, and what is done to them (the table stands for mean and std). */
static ddp_status hash_all(ddp_dataset *d, ddp_err *err)
{
    uint64_t parts[5] = {d->base.length, d->images.dims[1], d->images.dims[2], 0, 0};

    DDP_TRY(hash_elements(&d->images, &parts[3], err));
    parts[4] = XXH3_64bits(d->labels.data, d->labels.size);
    d->base.fingerprint = XXH3_64bits_withSeed(parts, sizeof(parts), XXH3_64bits(d->table, sizeof(d->table)));
    return DDP_OK;
}

static void dataset_close(ddp_dataset *d)
{
    idx_file_close(&d->images);
    idx_file_close(&d->labels);
    free(d);
}

static ddp_status fill(ddp_dataset *d, const void *config, ddp_err *err)
{
    const struct config *c = config;

    DDP_TRY(fill_table(d->table, c->mean, c->std, err));
    DDP_TRY(open_files(c, d, err));
    if (c->limit > 0 && c->limit < d->images.dims[0]) {
        idx_file_truncate(&d->images, (uint32_t)c->limit);
        idx_file_truncate(&d->labels, (uint32_t)c->limit);
    }
    d->base.length = d->images.dims[0];
    describe(d);
    return hash_all(d, err);
}

static ddp_status dataset_open(const ddp_host *host, const void *config, ddp_dataset **out, ddp_err *err)
{
    (void)host;
    return data_open("idx", sizeof(struct ddp_dataset), fill, dataset_close, config, out, err);
}

static ddp_status dataset_read(const ddp_dataset *d, uint64_t index, uint64_t epoch, void *const *buffers, ddp_err *err)
{
    size_t pixels = (size_t)d->images.dims[1] * d->images.dims[2];
    const uint8_t *from;
    float *image = buffers[0];
    int64_t label;

    (void)epoch;
    DDP_TRY(data_check_index(d, index, err));
    /* read from the file, the bytes come into the last quarter of the floats: they are used up before they are
     * written over */
    from = idx_file_get(&d->images, index * pixels, pixels, (uint8_t *)image + 3 * pixels, err);
    if (from == NULL) return err->status;
    for (size_t i = 0; i < pixels; i++) image[i] = d->table[from[i]];
    label = d->labels.data != NULL ? d->labels.data[index] : DDP_NO_LABEL;
    memcpy(buffers[1], &label, sizeof(label));
    return DDP_OK;
}

static ddp_status dataset_open_file(const ddp_dataset *d, const char *path, ddp_dataset **out, ddp_err *err)
{
    ddp_dataset *f = calloc(1, sizeof(*f));
    const uint32_t *dims;

    if (f == NULL) return data_no_memory("idx", err);
    f->base = d->base;
    memcpy(f->table, d->table, sizeof(f->table));
    if (idx_file_open(path, "idx: file", 3, false, &f->images, err) != DDP_OK) goto close;
    dims = f->images.dims;
    f->base.length = dims[0];
    if (dims[1] != d->images.dims[1] || dims[2] != d->images.dims[2]) {
        (void)ddp_fail(err, DDP_ERR_DATA, "dataset idx: \"%s\" holds images of %u x %u, the model's data are %u x %u",
                       path, dims[1], dims[2], d->images.dims[1], d->images.dims[2]);
        goto close;
    }
    *out = f;
    return DDP_OK;

close:
    dataset_close(f);
    return err->status;
}

static const ddp_dataset_ops ops = {DATA_OPS, .open = dataset_open, .close = dataset_close, .read = dataset_read,
                                    .open_file = dataset_open_file};

DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(DATASET, 0),
    .install = "Debian package zlib1g",
    DDP_PLUGIN_TAIL("idx", "0.1.0", "images and labels in IDX files: MNIST, Fashion-MNIST and others",
                    DDP_OPTIONS(options, struct config), ops),
};
