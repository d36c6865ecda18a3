/* plugins/dataset/idx/file.h -- reading one IDX file, plain or gzip, and checking it.
 *
 * IDX is MNIST's format: 0 0 TYPE NDIMS, then NDIMS big-endian 32-bit sizes, then the elements in row-major order. */
#pragma once

#include "common/file.h"
#include <stdbool.h>

enum { IDX_MAX_DIMS = 3 };

typedef struct idx_file {
    uint32_t dims[IDX_MAX_DIMS]; /* dims[0] is the number of samples */
    const uint8_t *data;         /* the elements, one byte each; NULL: they are read from the file */
    size_t size;                 /* bytes of them, the product of the dims */
    void *map;                   /* what idx_file_close unmaps: anonymous memory, in which `data` lies */
    size_t map_size;
    data_file source; /* a plain file that is not resident, else not open */
    uint64_t offset;  /* of the elements in it */
} idx_file;

/* Reads PATH, or PATH.gz, or PATH without its .gz, whichever is there first; its first bytes say whether it is gzip.
 * `plugin` names plugin and option in messages ("idx: images"). The file must have `rank` dimensions of unsigned
 * bytes, none of them 0, and hold exactly what its header says: else DDP_ERR_DATA, naming the file. The elements
 * come into memory where the file is gzip or `resident` is asked for. *out is zeroed before, and closed by the
 * caller also where this fails. */
ddp_status idx_file_open(const char *path, const char *plugin, uint32_t rank, bool resident, idx_file *out,
                         ddp_err *err);
/* `bytes` elements from `at` on: a pointer to them in memory, or `buffer`, read from the file. NULL: err says why. */
const uint8_t *idx_file_get(const idx_file *f, uint64_t at, size_t bytes, uint8_t *buffer, ddp_err *err);
/* Gives back the memory of samples from `count` on, as far as whole pages allow. */
void idx_file_truncate(idx_file *f, uint32_t count);
void idx_file_close(idx_file *f);
