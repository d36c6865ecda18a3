/* plugins/dataset/common/file.h -- a data file that is read while it stays where it is: opened once, then read by
 * pread.
 *
 * Not mapped: a mapped file that is cut short while training would end the process by SIGBUS. Here it is an error
 * that names the file. Compiled into each dataset plugin that reads files. */
#pragma once

#include <ddpengine/plugin.h>
#include <stdbool.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

typedef struct data_file {
    const char *plugin; /* its name for messages, with the option where there are several: "idx: labels" */
    char *path;
    uint64_t size; /* bytes, when it was opened */
    int fd;
} data_file;

/* A regular file that is not empty, or DDP_ERR_DATA. `advice` follows the reason where the file is not there. A file
 * that was not opened may be all zero. */
ddp_status data_file_open(data_file *f, const char *plugin, const char *path, const char *advice, ddp_err *err);
/* Whether two paths lead to the same file or folder. */
bool data_same_file(const char *a, const char *b);
/* Exactly `bytes` from `offset` on; any number of threads at once. A file that has become shorter is DDP_ERR_DATA. */
ddp_status data_file_read(const data_file *f, void *out, size_t bytes, uint64_t offset, ddp_err *err);
/* The same for NAME in a folder. */
ddp_status data_file_open_in(data_file *f, const char *plugin, const char *folder, const char *name, const char *advice,
                             ddp_err *err);
static inline void data_hash_begin(XXH3_state_t *hash, uint64_t seed)
{
    XXH3_INITSTATE(hash);
    (void)XXH3_64bits_reset_withSeed(hash, seed);
}
/* Bytes first .. last - 1 go into the hash. */
ddp_status data_file_hash(const data_file *f, uint64_t first, uint64_t last, XXH3_state_t *hash, ddp_err *err);
/* DDP_ERR_DATA unless the file is a row of pieces ("a record", many of them "records") of `bytes` each; *count of
 * them. */
ddp_status data_file_divide(const data_file *f, uint64_t bytes, const char *piece, const char *pieces,
                            const char *advice, uint64_t *count, ddp_err *err);
void data_file_close(data_file *f);
