/* plugins/dataset/common/image/catalog.h -- what datasets of image files have in common: the list of the images and
 * their classes, the split, broken files, the fingerprint, and reading one of them. Where the bytes of an image come
 * from, the dataset knows. */
#pragma once

#include "common/dataset.h"
#include "common/split.h"
#include "common/texts.h"
#include "image.h"

enum { CATALOG_NAME_MAX = 4095, CATALOG_LABEL_MAX = 1 << 20 };

typedef struct catalog_config {
    ddp_list classes; /* of const char * */
    int32_t split, skip_bad, exif_orientation;
    double validation;
    uint64_t max_pixels;
} catalog_config;

typedef struct catalog_entry {
    size_t name; /* where it begins in catalog.names */
    uint64_t offset, size;
    uint32_t file;  /* for the dataset: which file it is in */
    uint32_t label; /* code of its class */
} catalog_entry;

typedef struct catalog catalog;
/* The first `size` bytes of an image; any number of threads at once. */
typedef ddp_status (*catalog_read_bytes)(const catalog *c, const catalog_entry *e, void *out, size_t size,
                                         ddp_err *err);

struct catalog {
    data_base base;
    const catalog_config *config;
    const ddp_host *host; /* for warnings; may be NULL */
    catalog_read_bytes read_bytes;
    const char *root; /* what the names are relative to, for messages; NULL: nothing */
    const char *(*container)(const catalog *c, const catalog_entry *e); /* the file that it is in; NULL: itself */
    catalog_entry *entries;
    size_t count, room;
    char *names;
    size_t names_used, names_room;
    texts classes;
    bool is_file;       /* of catalog_open_file */
    bool fixed_classes; /* by the option */
    bool numbered;      /* labels are numbers, without names */
    uint32_t class_count;
    uint64_t all, bad, other; /* images found; those that are left out; files that are no image */
    char first_bad[400];
    char *description;
};

/* The names of the classes, where the option gives them. */
ddp_status catalog_begin(catalog *c, const catalog_config *config, catalog_read_bytes read_bytes, ddp_err *err);
ddp_status catalog_add(catalog *c, const char *name, const char *label, size_t label_length, catalog_entry entry,
                       ddp_err *err);
/* Sorts out labels (`numbers`: whole numbers are labels as they are, else names in the order of their bytes), the
 * split and broken files. `what` names the source for messages. DDP_ERR_DATA where nothing is left. */
ddp_status catalog_finish(catalog *c, const char *what, bool numbers, ddp_err *err);
void catalog_free(catalog *c);
/* One warning where files were left out; others go to `host` later. */
void catalog_warn(catalog *c, const ddp_host *host);
/* Of two datasets that read the images of one source, `what`: see data_split_agrees. */
ddp_status catalog_split_agrees(const catalog *c, const catalog *eval, const char *what, ddp_err *err);

static inline const char *catalog_name(const catalog *c, const catalog_entry *e) { return c->names + e->name; }

/* Slots of ddp_dataset_ops; a dataset's struct begins with its catalog. */
ddp_status catalog_read(const ddp_dataset *d, uint64_t index, uint64_t epoch, void *const *buffers, ddp_err *err);
ddp_status catalog_read_image(const ddp_dataset *d, uint64_t index, uint64_t epoch, const ddp_image_sink *sink,
                              void *const *buffers, ddp_err *err);
const char *catalog_class_name(const ddp_dataset *d, uint32_t field, int64_t value);
const char *catalog_describe(const ddp_dataset *d);

/* The slot open_file: a dataset of `size` bytes, zeroed but for its catalog, which has one image, the file `path`. Its
 * label is DDP_NO_LABEL. */
ddp_status catalog_open_file(const ddp_dataset *d, size_t size, const char *path, ddp_dataset **out, ddp_err *err);

#define CATALOG_OPTIONS(config)                                                                                        \
    {.key = "classes",                                                                                                 \
     .dflt = "",                                                                                                       \
     .doc = "Names of the classes, in the order of their labels. Empty: those that are found, sorted.",                \
     .type = DDP_OPT_STRING,                                                                                           \
     .flags = DDP_OPT_F_LIST,                                                                                          \
     .offset = offsetof(config, images.classes)},                                                                      \
        {.key = "split",                                                                                               \
         .dflt = "all",                                                                                                \
         .range = "all|train|validation",                                                                              \
         .doc = "Which images to read; a hash of the image's name says to which part it belongs.",                     \
         .type = DDP_OPT_ENUM,                                                                                         \
         .offset = offsetof(config, images.split)},                                                                    \
        {.key = "validation",                                                                                          \
         .dflt = "0",                                                                                                  \
         .range = "0..1",                                                                                              \
         .doc = "Share of the images that is the validation part; the same in [data] and [eval].",                     \
         .type = DDP_OPT_FLOAT,                                                                                        \
         .offset = offsetof(config, images.validation)},                                                               \
        {.key = "skip_bad",                                                                                            \
         .dflt = "no",                                                                                                 \
         .doc = "Whether broken images are left out, with one warning, instead of ending the run. "                    \
                "Each image is decoded once at the start.",                                                            \
         .type = DDP_OPT_BOOL,                                                                                         \
         .offset = offsetof(config, images.skip_bad)},                                                                 \
        {.key = "max_pixels",                                                                                          \
         .dflt = "89478485",                                                                                           \
         .range = "1..4294836225",                                                                                     \
         .doc = "Most pixels of an image; one with more is a broken image. The default is Pillow's.",                  \
         .type = DDP_OPT_UINT,                                                                                         \
         .offset = offsetof(config, images.max_pixels)},                                                               \
    {                                                                                                                  \
        .key = "exif_orientation", .dflt = "yes",                                                                      \
        .doc = "Whether a photograph is turned upright as its EXIF orientation says; "                                 \
               "torchvision's ImageFolder leaves it as it lies.",                                                      \
        .type = DDP_OPT_BOOL, .offset = offsetof(config, images.exif_orientation)                                      \
    }
