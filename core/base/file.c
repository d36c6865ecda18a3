/* base/file.c -- reading and writing, folders and what makes them durable. Formats and the order of a checkpoint's
 * renames are the checkpoint's. */
#include "base/sys.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { READ_FIRST = 4096 };

ddp_status ddp_allow_open_files(unsigned count, ddp_err *err)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return ddp_fail_errno(err, "cannot read the limit of open files");
    if (limit.rlim_cur >= count) return DDP_OK;
    if (limit.rlim_max < count)
        return ddp_fail(
            err, DDP_ERR_SYSTEM,
            "this process may have %llu files open at once and needs %u; raise the limit that ulimit -n shows",
            (unsigned long long)limit.rlim_max, count);
    limit.rlim_cur = count;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return ddp_fail_errno(err, "cannot raise the limit of open files");
    return DDP_OK;
}

/* Until the end of the file or limit + 1 bytes: sizes from stat are wrong for /proc and pipes. */
static ddp_status read_to_end(int fd, const char *path, size_t limit, ddp_text *t, ddp_err *err)
{
    for (;;) {
        size_t room = t->capacity - t->length;
        ssize_t n;

        if (room < 2) {
            char *grown = realloc(t->data, t->capacity * 2);

            if (grown == NULL)
                return ddp_fail(err, DDP_ERR_NOMEM, "%s: out of memory after %zu bytes", path, t->length);
            t->data = grown;
            t->capacity *= 2;
            continue;
        }
        n = read(fd, t->data + t->length, room - 1);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return ddp_fail_errno(err, "%s: cannot read", path);
        if (n == 0) return DDP_OK;
        t->length += (size_t)n;
        if (t->length > limit)
            return ddp_fail(err, DDP_ERR_DATA, "%s: larger than the %zu bytes allowed here", path, limit);
    }
}

static size_t first_capacity(int fd, size_t limit)
{
    struct stat st;
    size_t size = READ_FIRST;

    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0) size = (size_t)st.st_size;
    return DDP_MAX_OF(DDP_MIN_OF(size, limit), (size_t)READ_FIRST) + 2; /* room for the NUL and to see the end */
}

bool ddp_file_is_regular(const char *path)
{
    struct stat facts;

    return stat(path, &facts) == 0 && S_ISREG(facts.st_mode);
}

int ddp_file_lock(int fd)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int result;

    do result = fcntl(fd, F_OFD_SETLK, &whole);
    while (result != 0 && errno == EINTR);
    return result == 0 ? 0 : errno;
}

bool ddp_file_is_still(const char *path, int fd)
{
    struct stat ours, there;

    return fstat(fd, &ours) == 0 && lstat(path, &there) == 0 && ours.st_dev == there.st_dev &&
           ours.st_ino == there.st_ino;
}

ddp_status ddp_file_read(const char *path, size_t limit, char **data, size_t *length, ddp_err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ddp_text t = {0};
    ddp_status status;

    if (fd < 0) return ddp_fail_errno(err, "%s: cannot open", path);
    t.capacity = first_capacity(fd, limit);
    t.data = ddp_alloc(t.capacity, err);
    status = t.data != NULL ? read_to_end(fd, path, limit, &t, err) : DDP_ERR_NOMEM;
    (void)close(fd);
    if (status != DDP_OK) {
        ddp_text_free(&t);
        return status;
    }
    t.data[t.length] = '\0';
    *data = t.data;
    *length = t.length;
    return DDP_OK;
}

ssize_t ddp_read_line(FILE *file, size_t limit, char **line, size_t *capacity)
{
    size_t length = 0;
    int c;

    while ((c = getc_unlocked(file)) != EOF && c != '\n') {
        if (length + 1 >= *capacity && length < limit) { /* room for the NUL */
            size_t more = DDP_MIN_OF(*capacity * 2 + READ_FIRST, limit + 1);
            char *grown = realloc(*line, more);

            if (grown == NULL) return -1;
            *line = grown;
            *capacity = more;
        }
        if (length < limit) (*line)[length] = (char)c;
        length++;
    }
    if (c == EOF && length == 0) return -1;
    if (length > limit) length = 0;
    if (*capacity > 0) (*line)[length] = '\0';
    return (ssize_t)length;
}

ddp_status ddp_write_all(int fd, const void *data, size_t length, const char *what, ddp_err *err)
{
    const char *at = data;

    while (length > 0) {
        ssize_t n = write(fd, at, length);

        if (n < 0 && errno == EINTR) continue;
        if (n == 0) errno = ENOSPC; /* takes nothing and gives no reason: as if it were full */
        if (n <= 0) return ddp_fail_errno(err, "%s: cannot write", what);
        at += n;
        length -= (size_t)n;
    }
    return DDP_OK;
}

static ddp_status make_folder(const char *path, ddp_err *err)
{
    struct stat st;
    int number;

    if (mkdir(path, 0777) == 0) return DDP_OK;
    number = errno;
    if (stat(path, &st) == 0) {
        if (S_ISDIR(st.st_mode)) return DDP_OK;
        return ddp_fail(err, DDP_ERR_SYSTEM, "%s: cannot make a folder here, something else has that name", path);
    }
    errno = number;
    return ddp_fail_errno(err, "%s: cannot make the folder; name one where this user may write", path);
}

ddp_status ddp_make_folders(const char *path, ddp_err *err)
{
    char *prefix = ddp_strdup(path, err);
    ddp_status status = DDP_OK;

    if (prefix == NULL) return err->status;
    for (char *at = prefix + (*prefix != '\0'); status == DDP_OK; at++) {
        char c = *at;

        if (c != '/' && c != '\0') continue;
        *at = '\0';
        status = make_folder(prefix, err);
        *at = c;
        if (c == '\0') break;
        while (at[1] == '/') at++;
        if (at[1] == '\0') break;
    }
    free(prefix);
    return status;
}

ddp_status ddp_fsync_folder(const char *path, ddp_err *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int number = 0;

    if (fd < 0) return ddp_fail_errno(err, "%s: cannot open the folder", path);
    if (fsync(fd) != 0) number = errno;
    (void)close(fd);
    if (number == 0 || number == EINVAL) return DDP_OK; /* EINVAL: a file system that has no fsync of folders */
    errno = number;
    return ddp_fail_errno(err, "%s: cannot fsync the folder", path);
}

static ddp_status remove_entries(DIR *dir, const char *path, ddp_err *err)
{
    const struct dirent *entry;

    while ((void)(errno = 0), (entry = readdir(dir)) != NULL) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        if (unlinkat(dirfd(dir), entry->d_name, 0) != 0 && errno != ENOENT)
            return ddp_fail_errno(err, "%s/%s: cannot remove", path, entry->d_name);
    }
    return errno == 0 ? DDP_OK : ddp_fail_errno(err, "%s: cannot list the folder", path);
}

ddp_status ddp_remove_folder(const char *path, ddp_err *err)
{
    /* a link is not followed: what it points to is not ours to empty */
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    ddp_status status;
    DIR *dir;

    if (fd < 0) return errno == ENOENT ? DDP_OK : ddp_fail_errno(err, "%s: cannot remove the folder", path);
    dir = fdopendir(fd);
    if (dir == NULL) {
        (void)close(fd);
        return ddp_fail_errno(err, "%s: cannot list the folder", path);
    }
    status = remove_entries(dir, path, err);
    (void)closedir(dir);
    if (status != DDP_OK) return status;
    if (rmdir(path) != 0 && errno != ENOENT) return ddp_fail_errno(err, "%s: cannot remove the folder", path);
    return DDP_OK;
}
