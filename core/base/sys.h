/* base/sys.h -- clock, threads, files, hashing: thin covers of POSIX, OpenSSL and xxHash with this project's errors. */
#ifndef DDP_SYS_H
#define DDP_SYS_H

#include "base/base.h"
#include <pthread.h>

/* ---- clock ---------------------------------------------------------------------------------------------------------- */
int64_t ddp_now_ns(void); /* CLOCK_MONOTONIC */
static inline int64_t ddp_now_ms(void) { return ddp_now_ns() / 1000000; }
int64_t ddp_process_start_ns(void); /* CLOCK_MONOTONIC time at which this process started, from /proc/self/stat */

/* ---- threads -------------------------------------------------------------------------------------------------------- */
/* Starts a joinable thread with all signals blocked and a name of at most 15 characters. */
ddp_status ddp_thread_start(pthread_t *out, const char *name, void *(*main)(void *), void *arg, ddp_err *err);
/* A condition variable on CLOCK_MONOTONIC. */
void ddp_cond_init(pthread_cond_t *c);
/* Waits until signalled or the deadline (ddp_now_ns() terms; INT64_MAX = none); false once the deadline has passed. */
bool ddp_cond_wait_until(pthread_cond_t *c, pthread_mutex_t *m, int64_t deadline_ns);
unsigned ddp_cpu_count(void); /* processors this process may use */

/* ---- files ---------------------------------------------------------------------------------------------------------- */
/* Reads a whole file of at most `limit` bytes; *data is free()d by the caller and NUL-terminated beyond its length. */
ddp_status ddp_file_read(const char *path, size_t limit, char **data, size_t *length, ddp_err *err);
ddp_status ddp_write_all(int fd, const void *data, size_t length, const char *what, ddp_err *err);
/* mkdir -p; a component that exists as something else is an error that names it. */
ddp_status ddp_make_folders(const char *path, ddp_err *err);
ddp_status ddp_fsync_folder(const char *path, ddp_err *err);
/* Removes a folder and the plain files in it; one level, no recursion. Absent: ok. */
ddp_status ddp_remove_folder(const char *path, ddp_err *err);

/* ---- hashing -------------------------------------------------------------------------------------------------------- */
#define DDP_SHA256_HEX 65
typedef struct ddp_sha256 {
    void *ctx;
} ddp_sha256;
ddp_status ddp_sha256_begin(ddp_sha256 *h, ddp_err *err);
void ddp_sha256_add(ddp_sha256 *h, const void *data, size_t length);
void ddp_sha256_end(ddp_sha256 *h, char hex[DDP_SHA256_HEX]);        /* frees the context */
uint64_t ddp_hash64(const void *data, size_t length, uint64_t seed); /* XXH3 */

#endif
