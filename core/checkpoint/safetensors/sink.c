/* checkpoint/safetensors/sink.c -- see sink.h. */
#include "checkpoint/safetensors/sink.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Bytes hashed and then written in one go: large for a disk, small enough to be in the cache for both. */
#define CHUNK_BYTES ((size_t)1 << 20)
/* Of which offset, length and memory are multiples with O_DIRECT: of a page, which no disk's block is larger than. */
#define BLOCK_BYTES ((size_t)4096)

/* What follows goes through the page cache. */
static void leave_direct(checkpoint_sink *s)
{
    int flags = fcntl(s->fd, F_GETFL);

    if (s->direct && flags >= 0) (void)fcntl(s->fd, F_SETFL, flags & ~O_DIRECT);
    s->direct = false;
}

/* *length bytes are left where the file system refuses: O_DIRECT itself, or blocks of this size. */
static ddp_status write_direct(checkpoint_sink *s, const char **data, size_t *length, ddp_err *err)
{
    while (s->direct && *length >= BLOCK_BYTES) {
        ssize_t n = write(s->fd, *data, *length / BLOCK_BYTES * BLOCK_BYTES);

        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EINVAL) break;
        if (n == 0) errno = ENOSPC; /* takes nothing and gives no reason: as if it were full */
        if (n <= 0) return ddp_fail_errno(err, "%s: cannot write", s->path);
        *data += n;
        *length -= (size_t)n;
        if ((size_t)n % BLOCK_BYTES != 0) break; /* the offset is not a block's any more */
    }
    if (*length > 0) leave_direct(s);
    return DDP_OK;
}

static ddp_status flush(checkpoint_sink *s, ddp_err *err)
{
    const char *data = s->chunk;
    size_t length = s->used;

    if (s->cancelled != NULL && atomic_load_explicit(s->cancelled, memory_order_relaxed))
        return ddp_fail(err, DDP_ERR_ABORTED, "%s is not written to its end: the run has failed", s->path);
    ddp_xxh128_add(&s->hash, data, length);
    s->used = 0;
    DDP_TRY(write_direct(s, &data, &length, err));
    return ddp_write_all(s->fd, data, length, s->path, err);
}

ddp_status checkpoint_sink_put(checkpoint_sink *s, const void *data, uint64_t length, ddp_err *err)
{
    const char *from = data;

    s->bytes += length;
    while (length > 0) {
        size_t room = CHUNK_BYTES - s->used, n = length < room ? (size_t)length : room;

        memcpy(s->chunk + s->used, from, n);
        s->used += n;
        from += n;
        length -= n;
        if (s->used == CHUNK_BYTES) DDP_TRY(flush(s, err));
    }
    return DDP_OK;
}

/* Some file systems refuse O_DIRECT only after they have made the file. */
static int open_new(const char *path, bool *direct)
{
    const int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
    int fd = open(path, flags | O_DIRECT, 0666);

    *direct = fd >= 0;
    if (fd >= 0 || errno != EINVAL) return fd;
    (void)unlink(path);
    return open(path, flags, 0666);
}

ddp_status checkpoint_sink_open(checkpoint_sink *s, const char *path, const atomic_bool *cancelled, ddp_err *err)
{
    *s = (checkpoint_sink){.path = path, .cancelled = cancelled, .fd = -1};
    DDP_TRY(ddp_xxh128_begin(&s->hash, err));
    s->chunk = aligned_alloc(BLOCK_BYTES, CHUNK_BYTES);
    if (s->chunk == NULL) {
        (void)ddp_fail(err, DDP_ERR_NOMEM, "out of memory to write %s", path);
        goto end_hash;
    }
    s->fd = open_new(path, &s->direct);
    if (s->fd >= 0) return DDP_OK;
    (void)ddp_fail_errno(err, "cannot create %s", path);
    free(s->chunk);
end_hash:
    ddp_xxh128_end(&s->hash, (char[DDP_XXH128_HEX]){0});
    return err->status;
}

ddp_status checkpoint_sink_close(checkpoint_sink *s, ddp_status st, char hash[DDP_XXH128_HEX], ddp_err *err)
{
    char hex[DDP_XXH128_HEX];

    if (st == DDP_OK) st = flush(s, err);
    if (st == DDP_OK && fsync(s->fd) != 0) st = ddp_fail_errno(err, "cannot flush %s to disk", s->path);
    ddp_xxh128_end(&s->hash, hex);
    if (close(s->fd) != 0 && st == DDP_OK) st = ddp_fail_errno(err, "cannot close %s", s->path);
    if (st == DDP_OK)
        memcpy(hash, hex, sizeof(hex));
    else
        (void)unlink(s->path);
    free(s->chunk);
    return st;
}
