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
 * from 0 to 1, and does what [data] asks for (resize, random_crop, flip, mean, std ..), so that a dataset need not. */
typedef struct ddp_field {
    const char *name;
    uint32_t dtype, rank;
    int64_t dims[DDP_MAX_DIMS]; /* of one sample, without the batch dimension; rank 0 is a scalar */
    int64_t min, max;           /* smallest and largest value of an integer field where known, else min > max */
} ddp_field;

typedef struct ddp_dataset ddp_dataset; /* defined by the plugin */

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
