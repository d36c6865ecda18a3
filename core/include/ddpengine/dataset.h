/* ddpengine/dataset.h -- kind `dataset`: samples by index. */
#ifndef DDPENGINE_DATASET_H
#define DDPENGINE_DATASET_H

#include <ddpengine/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DDP_DATASET_ABI 1u

/* One field of a sample. Names by convention: "image" (C, H, W), "label" () i64; "input" and "target", f32 of any
 * shape or, for language models, i64 (T). An image is f32, or u8 as it lies on disk: the core then makes f32 of it,
 * from 0 to 1, and does what [data] asks for (resize, random_crop, flip, mean, std ..), so that a dataset need not.
 * An image whose size differs by sample is u8 with the dimensions (3, -1, -1): the dataset then has read_image. */
typedef struct ddp_field {
    const char *name;
    uint32_t dtype, rank;
    int64_t dims[DDP_MAX_DIMS]; /* of one sample, without the batch dimension; rank 0 is a scalar */
    int64_t min, max;           /* smallest and largest value of an integer field where known, else min > max */
} ddp_field;

typedef struct ddp_dataset ddp_dataset; /* defined by the plugin */

/* Of an integer field that is to be predicted, where a file of open_file does not have it; of an f32 it is NaN. The
 * losses of PyTorch and of this engine's models ignore it. A dataset whose samples have it among their labels says so
 * by the field's `min`: the loss is then a mean over the labels that count, see [train] loss_mean. */
#define DDP_NO_LABEL (-100)

/* Fields that [data] mixup and cutmix add to the dataset's: the label that a sample's own was mixed with, i64 (), and
 * how much its own counts, f32 (). A cross_entropy of field "label" then takes them by itself. */
#define DDP_FIELD_MIX_LABEL  "mix_label"
#define DDP_FIELD_MIX_LAMBDA "mix_lambda"

/* ---- images whose size differs by sample ----
 * In read_image the dataset learns the size of an image from the header of its file and asks the engine, by `place`,
 * which part of it is wanted and where it shall lie. Then it decodes that part, once, to there. */
typedef struct ddp_image {
    uint32_t struct_size;  /* of the dataset's, sizeof(ddp_image) */
    uint32_t scales;       /* bit n: can be decoded at n/8 of its size as well, 1 <= n < 8; 0: at full size only */
    int64_t height, width; /* of the whole image, upright, in pixels */

    /* Filled by `place`. The image at scale n/8 has ceil(height * n / 8) rows and ceil(width * n / 8) columns. */
    uint32_t scale;                   /* n: 8, or one of `scales` */
    uint32_t reserved;                /* 0 */
    int64_t top, left, rows, columns; /* the part that is wanted, of the image at this scale; inside it, not empty */
    uint8_t *pixels;                  /* (rows, columns, 3): red, green, blue; for the dataset to write */
} ddp_image;

/* Given to read_image; used by the thread that it was called on, until it returns. */
typedef struct ddp_image_sink {
    uint32_t struct_size;
    void *ctx;
    /* Memory for the dataset's own use in this call, 64-byte aligned: block 0 (a file's bytes) or 1 (what a decoder
     * needs beside them). It stays with the thread and grows where more is asked for than before; a block is valid
     * until it is asked for again. NULL: out of memory, and err says so. */
    void *(*memory)(void *ctx, uint32_t block, size_t bytes, ddp_err *err);
    /* Once a call, before the first pixel is decoded. An error ends the call: the image does not fit what [data]
     * wants. */
    ddp_status (*place)(void *ctx, ddp_image *image, ddp_err *err);
} ddp_image_sink;

typedef struct ddp_dataset_ops {
    uint32_t struct_size, field_size; /* field_size: stride of what `fields` gives, sizeof(ddp_field) */

    /* ---- one thread at a time */
    /* Opens and checks everything that can be checked: a damaged file is DDP_ERR_DATA and names the file. */
    ddp_status (*open)(const ddp_host *host, const void *config, ddp_dataset **out, ddp_err *err);
    void (*close)(ddp_dataset *d);
    uint64_t (*length)(const ddp_dataset *d);
    /* *out and what it points to live until close. */
    uint32_t (*fields)(const ddp_dataset *d, const ddp_field **out);
    /* A 64-bit hash of the data and of what the plugin does to them, by which ranks compare them; of very large data a
     * part of the content is enough. Known after open. */
    uint64_t (*fingerprint)(const ddp_dataset *d);

    /* ---- any number of threads at once */
    /* Writes sample `index` of `epoch` into buffers[f], one for each field, of the field's bytes. A file that has
     * changed or gone since open is DDP_ERR_DATA and names the file: read it by pread, since a mapped file that is
     * cut short ends the process. */
    ddp_status (*read)(const ddp_dataset *d, uint64_t index, uint64_t epoch, void *const *buffers, ddp_err *err);

    /* ---- one thread at a time */
    /* Optional. What the plugin has found in its files, for --check: lines, each with its newline and without other
     * control characters; "" or NULL: nothing. They live until close. */
    const char *(*describe)(const ddp_dataset *d);

    /* ---- any number of threads at once */
    /* Mandatory where the field "image" has the dimensions (3, -1, -1), else NULL. As `read`, which is not called
     * then, but the image goes to where sink->place says; buffers[] of the field "image" is not used. */
    ddp_status (*read_image)(const ddp_dataset *d, uint64_t index, uint64_t epoch, const ddp_image_sink *sink,
                             void *const *buffers, ddp_err *err);

    /* ---- one thread at a time */
    /* Optional. The name of a value of an integer field, such as of the class that "label" is; NULL: it has none.
     * UTF-8; it comes from a file or a folder's name and may hold any character. It lives until close. */
    const char *(*class_name)(const ddp_dataset *d, uint32_t field, int64_t value);
    /* Optional. Whether the samples of `eval`, which is of this plugin too, mean the same as those of d where their
     * fields have equal shapes: DDP_ERR_CONFIG with what differs between [data.NAME] and [eval.NAME]. */
    ddp_status (*agrees)(const ddp_dataset *d, const ddp_dataset *eval, ddp_err *err);
    /* Optional. The samples of a file that is none of the dataset's, for a prediction: an image, rows of a table, an
     * array, a text. They are taken as `open` has taken the dataset's own (columns, categories, mean and std, shape),
     * and what is to be predicted need not be in the file. *out has the fields of `d`, and is read and closed as any
     * dataset; `d` outlives it. */
    ddp_status (*open_file)(const ddp_dataset *d, const char *path, ddp_dataset **out, ddp_err *err);

    /* ---- any number of threads at once */
    /* Optional, both or none: the tokens of a text and the text of tokens, of a dataset for language models. *count and
     * *size are what there is in all, of which as many as `capacity` are written; 0 and NULL ask for the number.
     * DDP_ERR_UNSUPPORTED: this one has no tokenizer. A text is UTF-8; what is not counts as U+FFFD. */
    ddp_status (*encode)(const ddp_dataset *d, const char *text, size_t size, int64_t *ids, size_t capacity,
                         size_t *count, ddp_err *err);
    ddp_status (*decode)(const ddp_dataset *d, const int64_t *ids, size_t count, char *text, size_t capacity,
                         size_t *size, ddp_err *err);
} ddp_dataset_ops;

static inline const ddp_field *ddp_field_at(const ddp_dataset_ops *ops, const ddp_field *fields, uint32_t i)
{
    return (const ddp_field *)ddp_at_(fields, ops->field_size, i);
}

/* The tables that the engine hands to a plugin of this kind. */
#define DDP_DATASET_SERVICES (sizeof(ddp_host))

#ifdef __cplusplus
}
#endif
#endif
