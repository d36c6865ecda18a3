/* base/new_file.c -- see new_file.h. The locks are of the open file, as a checkpoint folder's: whoever gets one has a
 * file that no living process writes. */
#include "base/new_file.h"
#include "base/sys.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* NAME_MOST: so much of a long name, which may have NAME_MAX bytes itself */
enum { OPEN_TRIES = 16, NAME_MOST = 200, DIGITS = 8 };

static const char infix[] = ".ddp-", suffix[] = ".tmp";

/* "FOLDER/" of the path, "" for the working folder; *name is behind it. */
static int folder_length(const char *path, const char **name)
{
    const char *slash = strrchr(path, '/');

    *name = slash != NULL ? slash + 1 : path;
    return (int)(*name - path);
}

/* ---- what others have left --------------------------------------------------------------------------------------- */
/* Whether `entry` is what a writer of `name` would call its file. */
static bool is_own_name(const char *entry, const char *name)
{
    const size_t length = strnlen(name, NAME_MOST);
    const char *digits = entry + length + sizeof(infix) - 1;

    if (strlen(entry) != length + sizeof(infix) - 1 + DIGITS + sizeof(suffix) - 1) return false;
    return memcmp(entry, name, length) == 0 && memcmp(entry + length, infix, sizeof(infix) - 1) == 0 &&
           strspn(digits, "0123456789abcdef") == DIGITS && strcmp(digits + DIGITS, suffix) == 0;
}

static void remove_if_left(const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    struct stat st;

    if (fd < 0) return;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && ddp_file_lock(fd) == 0 && ddp_file_is_still(path, fd))
        (void)unlink(path);
    (void)close(fd);
}

/* Files that cannot be removed do no harm but take room. */
static void sweep(const char *path)
{
    char folder[PATH_MAX], other[PATH_MAX + NAME_MAX];
    const char *name;
    int length = folder_length(path, &name);
    const struct dirent *entry;
    DIR *dir;

    (void)snprintf(folder, sizeof(folder), "%.*s.", length, path);
    dir = opendir(folder);
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        if (!is_own_name(entry->d_name, name)) continue;
        (void)snprintf(other, sizeof(other), "%.*s%s", length, path, entry->d_name);
        remove_if_left(other);
    }
    if (dir != NULL) (void)closedir(dir);
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */
static ddp_status choose_name(ddp_new_file *f, ddp_err *err)
{
    const char *name;
    int folder = folder_length(f->path, &name), length;
    uint32_t chance;

    if (getrandom(&chance, sizeof(chance), GRND_NONBLOCK) != (ssize_t)sizeof(chance))
        chance = (uint32_t)ddp_now_ns() ^ (uint32_t)getpid() << 16;
    length =
        snprintf(f->own, sizeof(f->own), "%.*s%.*s%s%08x%s", folder, f->path, NAME_MOST, name, infix, chance, suffix);
    if ((size_t)length < sizeof(f->own)) return DDP_OK;
    return ddp_fail(err, DDP_ERR_SYSTEM, "the name %.200s... is too long", f->path);
}

static ddp_status create(ddp_new_file *f, ddp_err *err)
{
    for (int i = 0; i < OPEN_TRIES; i++) {
        int number;

        DDP_TRY(choose_name(f, err));
        f->fd = open(f->own, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (f->fd < 0 && errno == EEXIST) continue;
        if (f->fd < 0) return ddp_fail_errno(err, "%s: cannot create a file beside it", f->path);
        number = ddp_file_lock(f->fd);
        if (number == 0 ? ddp_file_is_still(f->own, f->fd) : number != EAGAIN && number != EACCES) return DDP_OK;
        (void)close(f->fd); /* another process that looks for left-over files has it, and removes it */
    }
    return ddp_fail(err, DDP_ERR_SYSTEM, "%s: another program removes each file that is created beside it", f->path);
}

ddp_status ddp_new_file_open(ddp_new_file *f, const char *path, ddp_err *err)
{
    char target[PATH_MAX];
    struct stat st;

    *f = (ddp_new_file){.fd = -1};
    if (lstat(path, &st) == 0 && S_ISLNK(st.st_mode) && realpath(path, target) != NULL) path = target;
    if (strlen(path) >= sizeof(f->path)) return ddp_fail(err, DDP_ERR_SYSTEM, "the name %.200s... is too long", path);
    ddp_copy_text(f->path, sizeof(f->path), path);
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) /* a rename would put a file in place of a device */
        return ddp_fail(err, DDP_ERR_SYSTEM, "%s: not a regular file, so it is not replaced; name another file", path);
    sweep(path);
    return create(f, err);
}

ddp_status ddp_new_file_close(ddp_new_file *f, ddp_status written, ddp_err *err)
{
    ddp_status st = written;

    if (st == DDP_OK && fsync(f->fd) != 0) st = ddp_fail_errno(err, "cannot flush %s to disk", f->path);
    if (st == DDP_OK && rename(f->own, f->path) != 0)
        st = ddp_fail_errno(err, "cannot rename %s to %s", f->own, f->path);
    if (st != DDP_OK) (void)unlink(f->own);
    if (close(f->fd) != 0 && st == DDP_OK) st = ddp_fail_errno(err, "cannot close %s", f->path);
    f->fd = -1;
    return st;
}

ddp_status ddp_file_replace(const char *path, const void *data, size_t length, ddp_err *err)
{
    ddp_new_file f;

    DDP_TRY(ddp_new_file_open(&f, path, err));
    return ddp_new_file_close(&f, ddp_write_all(f.fd, data, length, f.path, err), err);
}
