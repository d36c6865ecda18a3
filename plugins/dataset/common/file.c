/* plugins/dataset/common/file.c -- see file.h. What the bytes mean, the plugin knows. */
#include "file.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static ddp_status fail_errno(const data_file *f, const char *advice, ddp_err *err)
{
    int number = errno;
    ddp_status status =
        ddp_fail(err, DDP_ERR_DATA, "dataset %s: \"%s\": %s%s", f->plugin, f->path, strerror(number), advice);

    err->sys_errno = number;
    return status;
}

static const char *open_advice(int number, const char *absent)
{
    switch (number) {
    case ENOENT: return absent;
    case EACCES: return "; make it readable for this user";
    case EMFILE: return "; raise the limit of open files (ulimit -n), or join files";
    default: return "";
    }
}

ddp_status data_file_open(data_file *f, const char *plugin, const char *path, const char *advice, ddp_err *err)
{
    struct stat st;

    *f = (data_file){.plugin = plugin, .path = strdup(path), .fd = -1};
    if (f->path == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "dataset %s: out of memory", plugin);
    f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not hold the start up: it is refused below */
    if (f->fd < 0) {
        (void)fail_errno(f, open_advice(errno, advice), err);
        goto free_path;
    }
    if (fstat(f->fd, &st) != 0) {
        (void)fail_errno(f, "", err);
        goto close_fd;
    }
    if (!S_ISREG(st.st_mode) || st.st_size == 0) {
        (void)ddp_fail(err, DDP_ERR_DATA, "dataset %s: \"%s\" is %s; name a file that holds data", plugin, path,
                       S_ISREG(st.st_mode) ? "empty" : "not a regular file");
        goto close_fd;
    }
    f->size = (uint64_t)st.st_size;
    return DDP_OK;
close_fd:
    close(f->fd);
free_path:
    free(f->path);
    *f = (data_file){.fd = -1};
    return err->status;
}

bool data_same_file(const char *a, const char *b)
{
    struct stat x, y;

    if (strcmp(a, b) == 0) return true;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

ddp_status data_file_read(const data_file *f, void *out, size_t bytes, uint64_t offset, ddp_err *err)
{
    size_t done = 0;

    while (done < bytes) {
        ssize_t n = pread(f->fd, (char *)out + done, bytes - done, (off_t)(offset + done));

        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fail_errno(f, "; look at the disk it lies on", err);
        if (n == 0)
            return ddp_fail(err, DDP_ERR_DATA,
                            "dataset %s: \"%s\" ends after %" PRIu64 " bytes; it had %" PRIu64
                            " when it was opened. Something has truncated it since: restore it and start again",
                            f->plugin, f->path, offset + done, f->size);
        done += (size_t)n;
    }
    return DDP_OK;
}

ddp_status data_file_open_in(data_file *f, const char *plugin, const char *folder, const char *name, const char *advice,
                             ddp_err *err)
{
    size_t size = strlen(folder) + strlen(name) + 2;
    char *path = malloc(size);
    ddp_status status;

    *f = (data_file){.fd = -1};
    if (path == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "dataset %s: out of memory", plugin);
    (void)snprintf(path, size, "%s/%s", folder, name);
    status = data_file_open(f, plugin, path, advice, err);
    free(path);
    return status;
}

ddp_status data_file_hash(const data_file *f, uint64_t first, uint64_t last, XXH3_state_t *hash, ddp_err *err)
{
    enum { PIECE = 1 << 20 };
    void *buffer = malloc(PIECE);
    ddp_status status = DDP_OK;

    if (buffer == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "dataset %s: out of memory", f->plugin);
    for (uint64_t at = first; at < last && status == DDP_OK; at += PIECE) {
        size_t bytes = last - at < PIECE ? (size_t)(last - at) : PIECE;

        status = data_file_read(f, buffer, bytes, at, err);
        if (status == DDP_OK) (void)XXH3_64bits_update(hash, buffer, bytes);
    }
    free(buffer);
    return status;
}

ddp_status data_file_divide(const data_file *f, uint64_t bytes, const char *piece, const char *pieces,
                            const char *advice, uint64_t *count, ddp_err *err)
{
    *count = f->size / bytes;
    if (f->size % bytes == 0) return DDP_OK;
    return ddp_fail(err, DDP_ERR_DATA,
                    "dataset %s: \"%s\" has %" PRIu64 " bytes, which is not a multiple of the %" PRIu64
                    " that %s takes (%" PRIu64 " would be %" PRIu64 " %s); download the file again%s",
                    f->plugin, f->path, f->size, bytes, piece, *count * bytes, *count, pieces, advice);
}

void data_file_close(data_file *f)
{
    if (f->path == NULL) return;
    close(f->fd);
    free(f->path);
    *f = (data_file){.fd = -1};
}
