/* plugins/dataset/npy/header.h -- the header of a .npy file, versions 1 to 3.
 *
 * "\x93NUMPY", two bytes of version, the length of what follows (2 bytes, from version 2 on 4, little-endian), then a
 * Python dictionary: {'descr': '<f4', 'fortran_order': False, 'shape': (60000, 28, 28), }. */
#pragma once

#include <ddpengine/plugin.h>
#include <stdbool.h>

enum { NPY_START = 12, NPY_TEXT_MAX = 65536 };

typedef struct npy_header {
    char kind;                  /* 'f', 'i', 'u' or 'b' */
    bool swapped;               /* big-endian */
    uint32_t width, rank;       /* bytes of an element */
    int64_t dims[DDP_MAX_DIMS]; /* all above 0 */
    uint64_t bytes;             /* of all elements, below 2^63 */
} npy_header;

/* From the first NPY_START bytes of a file, or fewer: where its text begins and how long that is. `name` is for
 * messages. */
ddp_status npy_header_start(const char *name, const uint8_t *start, size_t have, size_t *at, size_t *length,
                            ddp_err *err);
ddp_status npy_header_parse(const char *name, const char *text, size_t length, npy_header *out, ddp_err *err);
