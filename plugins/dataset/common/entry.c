/* plugins/dataset/common/entry.c -- see entry.h. */
#include "entry.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { WAIT_SECONDS = 3600 };

static bool find(const cache_entry *e, data_file *out)
{
    int fd = open(e->name, O_RDONLY | O_CLOEXEC);
    struct stat info;

    if (fd < 0) return false;
    if (fstat(fd, &info) != 0 || !e->is_whole(e->ctx, fd, (uint64_t)info.st_size) ||
        (out->path = strdup(e->name)) == NULL) {
        (void)close(fd);
        return false;
    }
    out->plugin = e->plugin;
    out->fd = fd;
    out->size = (uint64_t)info.st_size;
    return true;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */
static ddp_status fail_file(const cache_entry *e, const char *what, const char *name, ddp_err *err)
{
    int number = errno;
    ddp_status status = ddp_fail(
        err, DDP_ERR_DATA,
        "dataset %s: the tokens of the text go to \"%.200s\", which cannot be %s: %s; set cache to a folder that can be written",
        e->plugin, name, what, strerror(number));

    err->sys_errno = number;
    return status;
}

ddp_status entry_write(cache_entry *e, const void *data, size_t size, ddp_err *err)
{
    for (size_t done = 0; done < size;) {
        ssize_t n = write(e->fd, (const char *)data + done, size - done);

        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fail_file(e, "written", e->part, err);
        done += (size_t)n;
    }
    return DDP_OK;
}

ddp_status entry_write_at(cache_entry *e, const void *data, size_t size, uint64_t offset, ddp_err *err)
{
    if (pwrite(e->fd, data, size, (off_t)offset) == (ssize_t)size) return DDP_OK;
    return fail_file(e, "written", e->part, err);
}

/* The name's folder knows of the name only once it is synced itself. */
static ddp_status sync_folder(const cache_entry *e, ddp_err *err)
{
    const char *name = e->name, *slash = strrchr(name, '/');
    char folder[ENTRY_NAME];
    int fd, code;

    (void)snprintf(folder, sizeof(folder), "%.*s",
                   slash == NULL   ? 1
                   : slash == name ? 1
                                   : (int)(slash - name),
                   slash == NULL ? "." : name);
    fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    code = fd < 0 ? -1 : fsync(fd);
    if (fd >= 0) (void)close(fd);
    return code == 0 || errno == EINVAL ? DDP_OK : fail_file(e, "synced", name, err);
}

static ddp_status write_entry(cache_entry *e, ddp_err *err)
{
    if (ftruncate(e->fd, 0) != 0 || lseek(e->fd, 0, SEEK_SET) != 0) return fail_file(e, "written", e->part, err);
    DDP_TRY(e->make(e->ctx, e, err));
    if (fsync(e->fd) != 0) return fail_file(e, "written", e->part, err);
    if (rename(e->part, e->name) != 0) return fail_file(e, "renamed", e->part, err);
    return sync_folder(e, err);
}

/* Until no other process holds the file: it goes on when that has written it, or was killed. */
static ddp_status lock(const cache_entry *e, int fd, ddp_err *err)
{
    const struct timespec pause = {.tv_nsec = 50000000L};

    for (int i = 0; i < WAIT_SECONDS * 20; i++) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) return DDP_OK;
        if (errno != EWOULDBLOCK && errno != EINTR) return fail_file(e, "locked", e->part, err);
        (void)nanosleep(&pause, NULL);
    }
    return ddp_fail(
        err, DDP_ERR_DATA,
        "dataset %s: another process has been writing \"%.200s\" for %d minutes; end it, or set cache to another folder",
        e->plugin, e->part, WAIT_SECONDS / 60);
}

/* Whether the open file is still the one that has the name: another process may have renamed or removed it. */
static bool is_in_place(const cache_entry *e, int fd)
{
    struct stat open_one, named;

    return fstat(fd, &open_one) == 0 && stat(e->part, &named) == 0 && open_one.st_ino == named.st_ino &&
           open_one.st_dev == named.st_dev;
}

/* What was written goes with its failure: nobody would take it up, and a full disk would stay full. */
static ddp_status write_locked(cache_entry *e, int fd, data_file *out, ddp_err *err)
{
    ddp_status status;

    e->fd = fd;
    status = write_entry(e, err);
    if (status != DDP_OK) {
        (void)unlink(e->part);
    } else if (!find(e, out)) {
        errno = EIO;
        status = fail_file(e, "read back", e->name, err);
    }
    return status;
}

static ddp_status make(cache_entry *e, data_file *out, ddp_err *err)
{
    ddp_status status = DDP_OK;
    bool done = false;

    while (status == DDP_OK && !done && !find(e, out)) {
        int fd = open(e->part, O_RDWR | O_CREAT | O_CLOEXEC, 0666);

        if (fd < 0) return fail_file(e, "made", e->part, err);
        status = lock(e, fd, err);
        done = status == DDP_OK && is_in_place(e, fd);
        if (done) status = find(e, out) ? DDP_OK : write_locked(e, fd, out, err);
        (void)close(fd);
    }
    return status;
}

bool entry_is_one(const char *path, const char *end)
{
    enum { KEY = 16 };
    size_t length = strlen(path), tail = strlen(end);

    if (length > 5 && strcmp(path + length - 5, ".part") == 0) length -= 5;
    if (length < KEY + 1 + tail || path[length - tail - 1] != '.' || memcmp(path + length - tail, end, tail) != 0)
        return false;
    length -= tail + 1 + KEY;
    if (length > 0 && path[length - 1] != '.' && path[length - 1] != '/') return false;
    return strspn(path + length, "0123456789abcdef") == KEY;
}

/* With those above it. What cannot be made is named by the one that writes into it. */
static void make_folder(const char *folder)
{
    char path[ENTRY_NAME];

    if (snprintf(path, sizeof(path), "%s", folder) >= ENTRY_NAME) return;
    for (char *at = path; *at != '\0'; at++) {
        if (*at != '/' || at == path) continue;
        *at = '\0';
        (void)mkdir(path, 0777);
        *at = '/';
    }
    (void)mkdir(path, 0777);
}

ddp_status entry_set_name(cache_entry *e, const char *folder, const char *beside, uint64_t key, const char *end,
                          ddp_err *err)
{
    if (folder[0] != '\0') make_folder(folder);
    if (snprintf(e->name, ENTRY_NAME, "%s%s%016" PRIx64 ".%s", folder[0] != '\0' ? folder : beside,
                 folder[0] != '\0' ? "/" : ".", key, end) >= ENTRY_NAME - 8)
        return ddp_fail(err, DDP_ERR_CONFIG, "dataset %s: the path of cache is too long", e->plugin);
    (void)snprintf(e->part, ENTRY_NAME, "%.4080s.part", e->name);
    return DDP_OK;
}

ddp_status entry_open(cache_entry *e, data_file *out, ddp_err *err)
{
    return find(e, out) ? DDP_OK : make(e, out, err);
}
