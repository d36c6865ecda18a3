/* data/loader.h -- batches ready ahead of the trainer, made by worker threads ("ddp-loader-N").
 *
 * The order of the samples is the sampler's; the workers' number does not change the data. Batch k of an epoch is in
 * slot k % prefetch. A slot holds one buffer for each field and part, 64-byte aligned, in the loader's own memory; a
 * batch is one part, or one part for each of several devices. The dataset writes each sample straight into the slot; an
 * image that is transformed goes through a buffer of its worker, which stays in the cache. */
#pragma once

#include "base/log.h"
#include "data/split.h"
#include "data/transform.h"
#include <ddpengine/dataset.h>
#include <ddpengine/sampler.h>

typedef struct ddp_loader ddp_loader;

/* Gives the memory of the slots, 64-byte aligned; `free` takes NULL. alloc NULL: the heap. */
typedef struct ddp_loader_allocator {
    ddp_status (*alloc)(const void *ctx, size_t bytes, void **out, ddp_err *err);
    void (*free)(const void *ctx, void *p);
    const void *ctx;
} ddp_loader_allocator;

/* The fields of a dataset in this engine's struct, whatever the plugin's has; `pool` owns *out. */
ddp_status ddp_dataset_fields(const ddp_dataset_ops *ops, const ddp_dataset *d, ddp_pool *pool, const ddp_field **out,
                              uint32_t *count, ddp_err *err);

typedef struct ddp_loader_params {
    const ddp_dataset_ops *dataset_ops;
    const ddp_dataset *dataset;
    const ddp_transform *transform; /* of its image, NULL: the fields stay as the dataset gives them */
    const ddp_sampler_ops *sampler_ops;
    ddp_sampler *sampler; /* called by the loader, from the thread that calls ddp_loader_begin */
    int64_t batch_size;   /* samples; the last batch of an epoch holds what is left */
    ddp_split split;      /* total above 0: batches are those of rank `share` in it, of batch_size at most */
    uint64_t share;
    int64_t hold;     /* batches that stay valid, the newest among them; 0 is 1 */
    uint32_t parts;   /* of a batch, see ddp_batch_part; divides batch_size, 0 is 1 */
    int64_t workers;  /* 0: batches are made in ddp_loader_next itself */
    int64_t prefetch; /* slots, at least 2 with workers */
    ddp_loader_allocator allocator;
} ddp_loader_params;

typedef struct ddp_batch {
    int64_t count;           /* samples; with a split it may be 0 within an epoch */
    void *const *buffers;    /* by field, of the first part; valid until `hold` more have been taken, or _begin */
    const uint64_t *indices; /* `count` dataset indices; valid until _begin */
    uint64_t position;       /* of the first of them in this rank's samples of the epoch */
} ddp_batch;

ddp_status ddp_loader_open(const ddp_loader_params *p, ddp_loader **out, ddp_err *err);
void ddp_loader_close(ddp_loader *l);
/* Starts an epoch at batch `first` (0, or the cursor of a checkpoint); allocates nothing after the first epoch. */
ddp_status ddp_loader_begin(ddp_loader *l, uint64_t epoch, uint64_t first, ddp_err *err);
/* The next batch, DDP_IN_PROGRESS at the epoch's end (out->count 0). Allocates nothing. A sample that cannot be read is
 * DDP_ERR_DATA with its index. */
ddp_status ddp_loader_next(ddp_loader *l, ddp_batch *out, ddp_err *err);

/* Part `part` of a batch, of `parts`: as even as they can be, the first ones a sample longer where that is needed, in
 * the order of the samples. Its buffers are aligned as the batch's are. It may be empty. */
ddp_batch ddp_batch_part(const ddp_loader *l, const ddp_batch *batch, uint32_t part);
