/* plugins/init/file/claim.c -- see file.h.
 *
 * The run's text is written and synced under a name of its own and then linked to the file's name: whoever sees the
 * file sees all of it, and of many that link only one succeeds. The file of a dead run is replaced by who first
 * links its own text to FILE.GENERATION, generation being the dead run's: that name is the lock on replacing that
 * one file, and renaming it to FILE replaces the file and gives the lock back in one step. The lock's text is a
 * run's like the file's own, so a taker that dies in between leaves a lock that is taken over in the same way. */
#include "file.h"
#include "common/write.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { TRIES = 100, LOCK_DEPTH = 3, NAME_LIMIT = PATH_LIMIT + 128 };

static ddp_status take(claim *c, const char *own, const char *name, int depth, ddp_err *err);

static void pause_ms(int64_t ms)
{
    (void)nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

/* ---- the run's own text ------------------------------------------------------------------------------------------ */
static ddp_status write_failed(const char *what, const char *path, ddp_err *err)
{
    int error = errno;
    const char *next = error == ENOENT ? "; the folder does not exist on this host: create or mount it"
                       : error == EROFS || error == EACCES || error == EPERM
                           ? "; name a folder in init_method that this user may write on every host"
                       : error == ENOSPC || error == EDQUOT ? "; free some space there, or name another folder"
                                                            : "";

    (void)ddp_fail(err, DDP_ERR_SYSTEM, "init_method: cannot %s %.300s: %s%s", what, path, strerror(error), next);
    err->sys_errno = error;
    return err->status;
}

/* A file system without owners and modes, or one that takes root for nobody. */
static ddp_status unguarded(const char *path, const struct stat *st, ddp_err *err)
{
    return ddp_fail(
        err, DDP_ERR_CONFIG,
        "init_method: other users could read the secret of this run in %.300s, for a file there gets owner %u and mode %04o; give all ranks the same secret_file, or name a folder on another file system",
        path, (unsigned)st->st_uid, (unsigned)st->st_mode & 07777u);
}

static ddp_status write_own(claim *c, const char *own, ddp_err *err)
{
    char text[RECORD_MAX];
    size_t beat_at, length = record_print(&c->self, text, &beat_at);
    struct stat st = {0};

    c->fd = open(own, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, c->self.secret[0] != '\0' ? 0600 : 0644);
    if (c->fd < 0) return write_failed("create", own, err);
    if (c->self.secret[0] != '\0' && (fstat(c->fd, &st) != 0 || !record_is_guarded(&st))) {
        (void)unlink(own);
        return unguarded(own, &st, err);
    }
    if (!write_all(c->fd, text, length, 0) || fsync(c->fd) != 0) {
        (void)write_failed("write", own, err);
        (void)unlink(own);
        return err->status;
    }
    c->beat_at = (off_t)beat_at;
    return DDP_OK;
}

/* ---- somebody is there already ----------------------------------------------------------------------------------- */
static ddp_status two_runs(const claim *c, const record *other, ddp_err *err)
{
    char theirs[224], ours[224];

    return ddp_fail(err, DDP_ERR_PEER,
                    "init_method = file://%.300s is in use by another run (%s), so that this one (%s) cannot use it. "
                    "Give each run a file of its own, or end the other one",
                    c->path, record_who(other, theirs, sizeof(theirs)), record_who(&c->self, ours, sizeof(ours)));
}

/* Waits, if it must, until the other run has shown whether it lives. DDP_IN_PROGRESS: `name` is no longer its. */
static ddp_status examine(const claim *c, const char *name, record *other, state_of_run *out, ddp_err *err)
{
    watch w = {0};
    bool said = false;
    char who[224];
    record now;

    now = *other;
    for (;;) {
        ddp_status status;

        *out = record_check(&c->self, &now, &w);
        if (*out != UNSURE) return DDP_OK;
        if (!said)
            file_log(c->host, DDP_LOG_INFO, __LINE__,
                     "init_method: %s has left %s; looking for a sign of life for %.3g s",
                     record_who(other, who, sizeof(who)), name, (double)(DEAD_BEATS * other->interval_ms) / 1e3);
        said = true;
        pause_ms(now.interval_ms / 4 + 1);
        status = record_read(name, &now, err);
        if (status != DDP_OK) return status;
        if (strcmp(now.generation, other->generation) != 0) return DDP_IN_PROGRESS;
    }
}

static void say_taken(const claim *c, const record *dead)
{
    int64_t age = (int64_t)time(NULL) - dead->beat_time;
    const char *unit = age >= 7200 ? "h" : age >= 120 ? "min" : "s";

    if (age < 0) age = 0; /* the clocks of two hosts */
    file_log(c->host, DDP_LOG_INFO, __LINE__,
             "init_method: %s is of a run that has died (host %s, pid %" PRId64 ", last sign of life %" PRId64
             " %s ago); taking it over",
             c->path, dead->host, dead->pid,
             age >= 7200  ? age / 3600
             : age >= 120 ? age / 60
                          : age,
             unit);
}

/* Replaces the dead run's file, if it still is that. DDP_IN_PROGRESS: somebody else has done so. */
static ddp_status replace(claim *c, const char *own, const char *name, const record *dead, int depth, ddp_err *err)
{
    char lock[NAME_LIMIT];
    record now;
    ddp_status status;

    if (depth == LOCK_DEPTH)
        return ddp_fail(err, DDP_ERR_DATA, "init_method: %.300s has been left by several runs that died; remove it",
                        name);
    (void)snprintf(lock, sizeof(lock), "%s.%s", name, dead->generation);
    status = take(c, own, lock, depth + 1, err);
    if (status != DDP_OK) return status;
    status = record_read(name, &now, err);
    if (status == DDP_OK && strcmp(now.generation, dead->generation) != 0) status = DDP_IN_PROGRESS;
    if (status == DDP_OK && rename(lock, name) != 0) status = write_failed("replace", name, err);
    if (status != DDP_OK) (void)unlink(lock);
    return status;
}

/* Links the text at `own` to `name`, now or when a dead run's has been replaced. */
static ddp_status take(claim *c, const char *own, const char *name, int depth, ddp_err *err)
{
    for (int i = 0; i < TRIES; i++) {
        state_of_run v = UNSURE;
        record other;
        ddp_status status;

        if (link(own, name) == 0) return DDP_OK;
        if (errno == EPERM || errno == EOPNOTSUPP || errno == EMLINK)
            return ddp_fail(err, DDP_ERR_SYSTEM,
                            "init_method: the file system of %.300s has no hard links; "
                            "name a file on another one, or use tcp://HOST:PORT",
                            name);
        if (errno != EEXIST) return write_failed("create", name, err);
        status = record_read(name, &other, err);
        if (status == DDP_OK && strcmp(other.generation, c->self.generation) == 0)
            return DDP_OK; /* an answer of NFS was lost: the second try found the first */
        if (status == DDP_OK) status = examine(c, name, &other, &v, err);
        if (status == DDP_OK && v == LIVE) return two_runs(c, &other, err);
        if (status == DDP_OK) {
            status = replace(c, own, name, &other, depth, err);
            if (status == DDP_OK && depth == 0) say_taken(c, &other);
        }
        if (status != DDP_IN_PROGRESS) return status;
        pause_ms(10); /* it changed while we looked */
    }
    return ddp_fail(err, DDP_ERR_TIMEOUT,
                    "init_method: %.300s is being replaced again and again; do several runs use it?", name);
}

/* ---- the heartbeat ----------------------------------------------------------------------------------------------- */
/* Written in place through our own descriptor: should the file be another run's by now, it is not touched. */
static void beat(claim *c, bool *failed)
{
    char text[RECORD_MAX];
    size_t beat_at, length;

    c->self.beat++;
    c->self.beat_time = time(NULL);
    length = record_print(&c->self, text, &beat_at);
    if (write_all(c->fd, text + beat_at, length - beat_at, c->beat_at) && fsync(c->fd) == 0) return;
    if (!*failed)
        file_log(c->host, DDP_LOG_WARN, __LINE__,
                 "init_method: cannot renew %s: %s; ranks and runs that come now may take this run for dead", c->path,
                 strerror(errno));
    *failed = true;
}

static void check_owner(const claim *c, bool *lost)
{
    char who[224];
    ddp_err err = {0};
    record now;
    ddp_status status = record_read(c->path, &now, &err);

    if (*lost || (status == DDP_OK && strcmp(now.generation, c->self.generation) == 0)) return;
    if (status != DDP_OK && status != DDP_IN_PROGRESS && status != DDP_ERR_DATA) return; /* for a moment, perhaps */
    *lost = true;
    if (status == DDP_OK)
        file_log(
            c->host, DDP_LOG_WARN, __LINE__,
            "init_method: %s has been taken over by another run (%s); ranks of this one that come now will not find it",
            c->path, record_who(&now, who, sizeof(who)));
    else
        file_log(c->host, DDP_LOG_WARN, __LINE__,
                 "init_method: %s has been removed or replaced; ranks that come now will not find this run", c->path);
}

static void *beat_main(void *arg)
{
    claim *c = arg;
    bool failed = false, lost = false;
    struct timespec at;

    (void)pthread_setname_np(pthread_self(), "ddp-init-file");
    (void)clock_gettime(CLOCK_MONOTONIC, &at);
    (void)pthread_mutex_lock(&c->lock);
    while (!c->stop) {
        at.tv_sec += c->self.interval_ms / 1000;
        at.tv_nsec += c->self.interval_ms % 1000 * 1000000;
        if (at.tv_nsec >= 1000000000) {
            at.tv_nsec -= 1000000000;
            at.tv_sec++;
        }
        while (!c->stop && pthread_cond_timedwait(&c->wake, &c->lock, &at) == 0) continue;
        if (c->stop) break;
        (void)pthread_mutex_unlock(&c->lock);
        beat(c, &failed);
        check_owner(c, &lost);
        (void)clock_gettime(CLOCK_MONOTONIC, &at); /* a file system that hung is not made up for */
        (void)pthread_mutex_lock(&c->lock);
    }
    (void)pthread_mutex_unlock(&c->lock);
    return NULL;
}

static ddp_status start_beating(claim *c, ddp_err *err)
{
    sigset_t all, before;
    pthread_condattr_t attr;
    int rc;

    (void)pthread_mutex_init(&c->lock, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&c->wake, &attr);
    (void)pthread_condattr_destroy(&attr);
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&c->thread, NULL, beat_main, c);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0) {
        (void)pthread_cond_destroy(&c->wake);
        (void)pthread_mutex_destroy(&c->lock);
        return ddp_fail(
            err, DDP_ERR_NOMEM,
            "init file: cannot start its thread: %s; raise the limits of threads (ulimit -u, pids.max of the container) and of memory (ulimit -v)",
            strerror(rc));
    }
    c->started = true;
    return DDP_OK;
}

/* ---- begin and end ----------------------------------------------------------------------------------------------- */
ddp_status claim_take(claim *c, ddp_err *err)
{
    char own[NAME_LIMIT];
    ddp_status status;

    (void)snprintf(own, sizeof(own), "%s.%s.new", c->path, c->self.generation);
    status = write_own(c, own, err);
    if (status != DDP_OK) return status;
    status = take(c, own, c->path, 0, err);
    (void)unlink(own);
    c->owned = status == DDP_OK;
    return c->owned ? start_beating(c, err) : status;
}

/* Whether the file is still the one that this process wrote: by its text, or where that cannot be read by its inode. */
static bool is_own(const claim *c)
{
    struct stat own, there;
    record now;
    ddp_err err = {0};

    if (record_read(c->path, &now, &err) == DDP_OK) return strcmp(now.generation, c->self.generation) == 0;
    return fstat(c->fd, &own) == 0 && stat(c->path, &there) == 0 && own.st_dev == there.st_dev &&
           own.st_ino == there.st_ino;
}

void claim_drop(claim *c)
{
    bool own;

    if (c->started) {
        (void)pthread_mutex_lock(&c->lock);
        c->stop = true;
        (void)pthread_cond_signal(&c->wake);
        (void)pthread_mutex_unlock(&c->lock);
        (void)pthread_join(c->thread, NULL);
        (void)pthread_cond_destroy(&c->wake);
        (void)pthread_mutex_destroy(&c->lock);
    }
    own = c->owned && is_own(c);
    if (c->fd >= 0) (void)close(c->fd); /* before it is removed: over NFS an open file would stay under another name */
    if (own && unlink(c->path) != 0 && errno != ENOENT)
        file_log(c->host, DDP_LOG_WARN, __LINE__, "init_method: cannot remove %s: %s", c->path, strerror(errno));
    c->fd = -1;
    c->owned = c->started = false;
}
