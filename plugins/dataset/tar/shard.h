/* plugins/dataset/tar/shard.h -- one .tar file: where its members lie, by libarchive. A compressed one is unpacked
 * once into a file without a name. Nothing is ever extracted by its name, so that a name can do no harm. */
#pragma once

#include "common/temp.h"

typedef struct shard_member {
    const char *name;      /* until the next call */
    uint64_t offset, size; /* of its bytes in the shard */
} shard_member;

typedef struct shard {
    temp_file temp;  /* of a compressed one */
    data_file plain; /* of another one */
    const char *path;
} shard;

static inline const data_file *shard_file(const shard *s) { return s->plain.path != NULL ? &s->plain : &s->temp.file; }

/* *left: bytes that may still be unpacked; what this one takes is taken off. */
ddp_status shard_open(shard *s, const char *path, uint64_t *left, ddp_err *err);
/* Calls `member` for each regular file in it, in order. */
ddp_status shard_index(const shard *s, ddp_status (*member)(void *ctx, const shard_member *m, ddp_err *err), void *ctx,
                       ddp_err *err);
void shard_close(shard *s);
