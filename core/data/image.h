/* data/image.h -- reads images whose size differs by sample, for one thread: the dataset decodes the part that the
 * transform needs into memory of the thread, from where it goes to the batch.
 *
 * The memory grows where an image needs more than any before it, and stays. */
#pragma once

#include "data/transform.h"

typedef struct data_image_reader data_image_reader;

ddp_status data_image_reader_open(const ddp_transform *t, data_image_reader **out, ddp_err *err);
void data_image_reader_close(data_image_reader *r);
/* Sample `index` to buffers[f], one for each field, as the transform's fields say. */
ddp_status data_image_read(data_image_reader *r, const ddp_dataset_ops *ops, const ddp_dataset *d, uint64_t index,
                           uint64_t epoch, void *const *buffers, ddp_err *err);
