/* base/sys.h -- clock, threads, files, hashing: thin covers of POSIX, OpenSSL and xxHash with this project's errors. */
#pragma once

#include "base/base.h"
#include <pthread.h>
#include <stdio.h>
#include <sys/types.h>

/* ---- clock ------------------------------------------------------------------------------------------------------- */
int64_t ddp_now_ns(void); /* CLOCK_MONOTONIC */
static inline int64_t ddp_now_ms(void) { return ddp_now_ns() / 1000000; }
int64_t ddp_process_start_ns(void); /* CLOCK_MONOTONIC time at which this process started, from /proc/self/stat */

/* ---- threads ----------------------------------------------------------------------------------------------------- */
/* Starts a joinable thread with all signals blocked, a name of at most 15 characters, and all of ddp_processors, though
 * its creator be pinned to some of them. A failure has its exit code: it is not a mistake of what it is for. */
ddp_status ddp_thread_start(pthread_t *out, const char *name, void *(*main)(void *), void *arg, ddp_err *err);
/* Lets a running thread use the calling thread's processors and no other. */
void ddp_thread_share_processors(pthread_t thread);
/* The calling thread gets a processor that others want, too, less often: its nice value rises by so much. */
void ddp_thread_lower_priority(int by);
/* A condition variable on CLOCK_MONOTONIC. */
void ddp_cond_init(pthread_cond_t *c);
/* Waits until signalled or the deadline (ddp_now_ns() terms; INT64_MAX = none); false once the deadline has passed. */
bool ddp_cond_wait_until(pthread_cond_t *c, pthread_mutex_t *m, int64_t deadline_ns);
/* The numbers of the processors that this process was started with, ascending; the count. Asked for the first time
 * before anything is pinned: main does. 0 and NULL if the system does not report them. */
size_t ddp_processors(const int32_t **out);
unsigned ddp_cpu_count(void); /* of them, at least 1 */
/* How many processors' time the control groups of this process allow it, such as 1.5; HUGE_VAL: they set no limit. */
double ddp_processors_allowed(void);
double base_processors_allowed_at(const char *root); /* the same below a folder with proc and sys, for tests */
/* Whether the calling thread may still run on all of them and on no other: OpenMP, for one, has variables that bind
 * it. */
bool ddp_processors_are_own(void);

/* ---- files ------------------------------------------------------------------------------------------------------- */
/* Raises the soft limit of open files to `count` where it is lower, for this process and its children; DDP_ERR_SYSTEM
 * where the hard limit does not allow it. */
ddp_status ddp_allow_open_files(unsigned count, ddp_err *err);
/* Whether the name is that of a file, or a link to one: to open a pipe would wait for who writes to it. */
bool ddp_file_is_regular(const char *path);
/* Locks an open file against others that ask for the lock, without waiting: 0, or the errno, of which EAGAIN and EACCES
 * mean that another has it, and others that the file system has no locks. It lasts until the file is closed. An
 * open-file-description lock: unlike one of POSIX it does not go when another part of this process closes the same
 * file, and unlike flock it reaches other hosts over NFSv4. */
int ddp_file_lock(int fd);
/* Whether the open file still has that name: somebody may have removed it between our open and our lock. */
bool ddp_file_is_still(const char *path, int fd);
/* Reads a whole file of at most `limit` bytes; *data is free()d by the caller and NUL-terminated beyond its length. */
ddp_status ddp_file_read(const char *path, size_t limit, char **data, size_t *length, ddp_err *err);
/* A line of at most `limit` bytes without its end, as getline() reads it: *line is free()d by the caller, and may be
 * NULL for an empty one. A longer one is passed over, its length is 0. -1: the file's end; neither feof() nor ferror():
 * no memory. */
ssize_t ddp_read_line(FILE *file, size_t limit, char **line, size_t *capacity);
ddp_status ddp_write_all(int fd, const void *data, size_t length, const char *what, ddp_err *err);
/* The whole file, as by new_file.h. */
ddp_status ddp_file_replace(const char *path, const void *data, size_t length, ddp_err *err);
/* mkdir -p; a component that exists as something else is an error that names it. */
ddp_status ddp_make_folders(const char *path, ddp_err *err);
ddp_status ddp_fsync_folder(const char *path, ddp_err *err);
/* Removes a folder and the plain files in it; one level, no recursion. Absent: ok. */
ddp_status ddp_remove_folder(const char *path, ddp_err *err);

/* ---- memory ------------------------------------------------------------------------------------------------------ */
/* Bytes that this process can still have, of the host and of its control groups; UINT64_MAX: nobody says. */
uint64_t ddp_memory_available(void);
uint64_t base_memory_available_at(const char *root); /* the same below a folder with proc and sys, for tests */

/* ---- hashing ----------------------------------------------------------------------------------------------------- */
#define DDP_SHA256_HEX 65
typedef struct ddp_sha256 {
    void *ctx;
} ddp_sha256;
ddp_status ddp_sha256_begin(ddp_sha256 *h, ddp_err *err);
void ddp_sha256_add(ddp_sha256 *h, const void *data, size_t length);
void ddp_sha256_end(ddp_sha256 *h, char hex[DDP_SHA256_HEX]); /* frees the context */
/* XXH3 of 128 bits, as xxh128sum prints it: against damage, not against forgery; twenty times as fast. */
#define DDP_XXH128_HEX 33
typedef struct ddp_xxh128 {
    void *state;
} ddp_xxh128;
ddp_status ddp_xxh128_begin(ddp_xxh128 *h, ddp_err *err);
void ddp_xxh128_add(ddp_xxh128 *h, const void *data, size_t length);
void ddp_xxh128_end(ddp_xxh128 *h, char hex[DDP_XXH128_HEX]);        /* frees the state */
uint64_t ddp_hash64(const void *data, size_t length, uint64_t seed); /* XXH3 */
