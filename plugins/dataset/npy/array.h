/* plugins/dataset/npy/array.h -- an array of samples, in a .npy file or unpacked from an .npz file, and its elements as
 * the engine has them. */
#pragma once

#include "common/file.h"
#include "header.h"

typedef struct array {
    npy_header header;
    char *name;      /* for messages */
    data_file file;  /* not open: the elements are in `map` */
    uint64_t offset; /* of the elements in the file */
    void *map;
    uint64_t per; /* elements of a sample */
    bool partly;  /* array_scan has seen a part alone: floats are checked when they are read */
} array;

/* PATH; with an `npz`, the array of that name in it. `option` names it. */
ddp_status array_open(array *a, const char *option, const char *npz, const char *path, ddp_err *err);
void array_close(array *a);

/* How a sample is written: converted to `dtype` (f32, i64 or u8). With channels > 0 it is (H, W, C), C of them, and
 * becomes (C, H, W). */
typedef struct array_form {
    uint32_t dtype;
    uint64_t channels;
} array_form;

/* DDP_ERR_DATA for a float that array_scan has not seen and that has no finite value in f32. */
ddp_status array_read(const array *a, uint64_t index, const array_form *form, void *out, ddp_err *err);
/* The bytes of samples first .. last - 1 go into the hash; *least and *most are of integers, unless they are NULL.
 * Where they are NULL and there are more than 256 MiB, 4096 pieces of 64 KiB stand for all, the first and the last
 * among them. DDP_ERR_DATA where a float has no finite value in f32. */
ddp_status array_scan(array *a, uint64_t first, uint64_t last, XXH3_state_t *hash, int64_t *least, int64_t *most,
                      ddp_err *err);
