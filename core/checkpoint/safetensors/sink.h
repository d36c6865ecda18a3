/* checkpoint/safetensors/sink.h -- a new file that is hashed while it is written, and written past the page cache
 * where the file system can (O_DIRECT): a save beside training takes about a fifth of the processor time that way, and
 * does not push out what other programs have in the cache. One thread at a time. */
#pragma once

#include "base/sys.h"
#include <stdatomic.h>

typedef struct checkpoint_sink {
    int fd;
    const char *path;             /* the caller's, until close */
    const atomic_bool *cancelled; /* NULL: nobody cancels */
    ddp_xxh128 hash;
    uint64_t bytes; /* put so far */
    char *chunk;    /* of which the first `used` bytes are not written yet */
    size_t used;
    bool direct; /* the file takes whole blocks from aligned memory alone */
} checkpoint_sink;

/* A file that must not be there yet. What has failed leaves none. */
ddp_status checkpoint_sink_open(checkpoint_sink *s, const char *path, const atomic_bool *cancelled, ddp_err *err);
ddp_status checkpoint_sink_put(checkpoint_sink *s, const void *data, uint64_t length, ddp_err *err);
/* Writes what is left, makes the file durable (fsync) and closes it. With `st` not DDP_OK, or where that fails, the
 * file is removed. */
ddp_status checkpoint_sink_close(checkpoint_sink *s, ddp_status st, char hash[DDP_XXH128_HEX], ddp_err *err);
