/* checkpoint/lock.c -- see lock.h. */
#include "checkpoint/lock.h"
#include "checkpoint/folder.h"
#include "checkpoint/shards.h"
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OPEN_TRIES = 16, HOLDER_TEXT = 300 };

struct ddp_checkpoint_lock {
    char dir[DDP_PATH_CAPACITY];
    int fd;
    bool held; /* false: the file system has no locks */
};

const char *checkpoint_lock_dir(const ddp_checkpoint_lock *lock) { return lock->dir; }

/* Makes the new folder's own name durable; its parent may be closed to us, then the file system decides. */
static void fsync_parent(const char *dir)
{
    ddp_err ignored = {0};
    ddp_path copy;

    ddp_copy_text(copy.text, sizeof(copy.text), dir);
    (void)ddp_fsync_folder(dirname(copy.text), &ignored);
}

/* What the file says of its holder. Another host's line may not be there yet: then nobody is named. */
static ddp_status refuse(const char *dir, int fd, ddp_err *err)
{
    char text[HOLDER_TEXT] = "", host[256], pid[24], who[HOLDER_TEXT] = "";
    ssize_t n = pread(fd, text, sizeof(text) - 1, 0);

    for (ssize_t i = 0; i < n; i++)
        if (text[i] != '\n' && !isprint((unsigned char)text[i])) text[i] = '?';
    if (n > 0 && sscanf(text, "%255s %23s\n", host, pid) == 2)
        (void)snprintf(who, sizeof(who), " (process %s on host %.64s)", pid, host);
    (void)ddp_fail(
        err, DDP_ERR_SYSTEM,
        "another run%s writes its checkpoints into %.250s: set [checkpoint] dir to another folder, or end that run first",
        who, dir);
    return ddp_fail_as(err, DDP_EXIT_CHECKPOINT);
}

/* The file system, or the kernel, has no such locks (Lustre without -o flock: ENOSYS). */
static bool knows_no_locks(int number)
{
    return number == ENOLCK || number == ENOTSUP || number == ENOSYS || number == EINVAL;
}

/* For people and for the message above; that nobody can read it is no reason to end. */
static void sign(int fd)
{
    char host[256] = "", line[HOLDER_TEXT];
    int n;

    if (gethostname(host, sizeof(host) - 1) != 0 || host[0] == '\0') ddp_copy_text(host, sizeof(host), "unknown");
    n = snprintf(line, sizeof(line), "%s %ld\n", host, (long)getpid());
    if (pwrite(fd, line, (size_t)n, 0) == n && ftruncate(fd, n) == 0) (void)fsync(fd); /* NFS: for other hosts */
}

/* The open file of `path`, locked or (*number: why not). */
static ddp_status open_locked(const char *dir, const char *path, int *fd, int *number, ddp_err *err)
{
    for (int i = 0; i < OPEN_TRIES; i++) {
        *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
        if (*fd < 0)
            return ddp_fail_errno(err, "cannot open %s, which a run needs to write in %s ([checkpoint] dir)", path,
                                  dir);
        *number = ddp_file_lock(*fd);
        if (*number != 0 || ddp_file_is_still(path, *fd)) return DDP_OK;
        (void)close(*fd);
    }
    return ddp_fail(err, DDP_ERR_SYSTEM, "cannot lock %s: another program removes it again and again", path);
}

static ddp_status take_file(ddp_checkpoint_lock *lock, ddp_log *log, ddp_err *err)
{
    ddp_status st = DDP_OK;
    ddp_path path;
    int number;

    DDP_TRY(checkpoint_path_join(path.text, lock->dir, DDP_LOCK_FILE, err));
    DDP_TRY(open_locked(lock->dir, path.text, &lock->fd, &number, err));
    lock->held = number == 0;
    if (number == 0) {
        sign(lock->fd);
    } else if (number == EAGAIN || number == EACCES) {
        st = refuse(lock->dir, lock->fd, err);
    } else if (knows_no_locks(number)) {
        ddp_log_line(log, DDP_LOG_WARN,
                     "%s has no locks (%s): make sure that no second run uses this folder as [checkpoint] dir",
                     lock->dir, strerror(number));
    } else {
        errno = number;
        st = ddp_fail_errno(err, "cannot lock %s", path.text);
    }
    if (st != DDP_OK) (void)close(lock->fd);
    return st;
}

/* What is left over does no harm but take room: not the run's end. */
static void remove_left_overs(const ddp_checkpoint_lock *lock, ddp_log *log)
{
    ddp_err err = {0};

    if (checkpoint_sweep(lock->dir, ".tmp", &err) != DDP_OK || checkpoint_sweep_trials(lock->dir, &err) != DDP_OK ||
        checkpoint_shards_sweep(lock->dir, NULL, &err) != DDP_OK)
        ddp_log_line(log, DDP_LOG_WARN, "a left-over of an earlier run stays: %s", err.msg);
}

ddp_status ddp_checkpoint_lock_take(const char *dir, ddp_log *log, ddp_checkpoint_lock **out, ddp_err *err)
{
    ddp_checkpoint_lock *lock;
    ddp_status st;

    if (strlen(dir) >= sizeof(lock->dir))
        return ddp_fail(err, DDP_ERR_INVALID, "[checkpoint] dir: the path %.200s... is too long", dir);
    if (ddp_make_folders(dir, err) != DDP_OK) return ddp_fail_context(err, "[checkpoint] dir");
    fsync_parent(dir);
    if ((lock = ddp_alloc(sizeof(*lock), err)) == NULL) return err->status;
    ddp_copy_text(lock->dir, sizeof(lock->dir), dir);
    st = take_file(lock, log, err);
    if (st != DDP_OK) {
        free(lock);
        return st;
    }
    remove_left_overs(lock, log);
    *out = lock;
    return DDP_OK;
}

void ddp_checkpoint_lock_release(ddp_checkpoint_lock *lock)
{
    if (lock == NULL) return;
    if (lock->held) (void)!ftruncate(lock->fd, 0); /* nobody is named any more */
    (void)close(lock->fd);
    free(lock);
}
