/* conform/data/image.h -- read_image of a dataset whose images differ in size: it asks where the image shall lie
 * exactly once, and writes those pixels and no others. One thread at a time for each buffer. */
#pragma once

#include "conform/harness/rank_process.h"
#include <ddpengine/dataset.h>

typedef struct image_buffer {
    ddp_rank_process *a;
    void *blocks[2]; /* of the dataset's own use */
    unsigned char *base;
    size_t bytes; /* of the pixels, which are between two guards */
    int before;   /* what they are filled with */
    int placed;   /* how often the dataset has asked in this call */
} image_buffer;

/* Whether field `f` is such an image. */
static inline bool image_differs(const ddp_field *f)
{
    return f->rank == 3 && f->dims[0] == 3 && f->dims[1] == -1 && f->dims[2] == -1 && f->dtype == DDP_U8;
}

/* Sample `index`, its image filled with `before` at first; the other fields go to `buffers`. *hash is of the pixels and
 * the size. False: the case has failed. */
bool image_read(image_buffer *b, const ddp_dataset_ops *ops, const ddp_dataset *d, uint64_t index, uint64_t epoch,
                int before, void *const *buffers, uint64_t *hash);
void image_free(image_buffer *b);
