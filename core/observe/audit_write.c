/* observe/audit_write.c -- a rank's own file of an audit. The trainer's thread fills one buffer while the thread
 * "ddp-audit" writes the other; it waits only where the disk is two buffers behind, since a record that is lost is a
 * proof that is lost. */
#include "observe/audit.h"
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define WAKE_NS INT64_C(1000000000) /* how long a record may wait in a buffer that is not half full */
enum { BUFFER = 256 << 10 };

struct ddp_audit {
    char path[4096];
    int fd;
    ddp_log *log;
    size_t capacity; /* of each buffer */
    uint8_t *filling, *writing;

    pthread_t thread;
    pthread_mutex_t lock; /* guards everything below, and which buffer is which */
    pthread_cond_t wake;  /* for the thread */
    pthread_cond_t done;  /* for the trainer: a buffer has been written, or could not be */
    size_t used;          /* of `filling` */
    bool running, busy, asked, stop;
    ddp_err failure; /* the first one; status DDP_OK: none */
};

/* ---- the thread -------------------------------------------------------------------------------------------------- */
static void write_out(ddp_audit *a) /* with the lock held */
{
    uint8_t *full = a->filling;
    size_t length = a->used;
    bool broken = a->failure.status != DDP_OK; /* behind half a record nothing can be read */
    ddp_err err = {0};

    a->filling = a->writing;
    a->writing = full;
    a->used = 0;
    a->busy = true;
    pthread_mutex_unlock(&a->lock);
    if (!broken) (void)ddp_write_all(a->fd, full, length, a->path, &err);
    pthread_mutex_lock(&a->lock);
    if (err.status != DDP_OK && a->failure.status == DDP_OK) a->failure = err;
    a->busy = false;
    pthread_cond_broadcast(&a->done);
}

static void *audit_main(void *arg)
{
    ddp_audit *a = arg;

    pthread_mutex_lock(&a->lock);
    while (!a->stop || a->used > 0) {
        int64_t until = ddp_now_ns() + WAKE_NS;

        while (!a->asked && !a->stop && ddp_cond_wait_until(&a->wake, &a->lock, until)) continue;
        a->asked = false;
        if (a->used > 0) write_out(a);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

/* ---- the trainer ------------------------------------------------------------------------------------------------- */
static void ask(ddp_audit *a) /* with the lock held */
{
    a->asked = true;
    pthread_cond_signal(&a->wake);
}

static ddp_status failed(const ddp_audit *a, ddp_err *err)
{
    if (a->failure.status == DDP_OK) return DDP_OK;
    *err = a->failure;
    (void)ddp_fail_as(err, DDP_EXIT_INTERNAL);
    return ddp_fail_context(err, "[output] audit: samples cannot be recorded; make room, or set audit = no");
}

ddp_status ddp_audit_write(ddp_audit *a, const ddp_audit_record *r, const uint64_t *ids, ddp_err *err)
{
    size_t bytes = ddp_audit_bytes(r->count);
    ddp_status st;

    pthread_mutex_lock(&a->lock);
    while (a->used + bytes > a->capacity && a->failure.status == DDP_OK) {
        ask(a);
        pthread_cond_wait(&a->done, &a->lock);
    }
    st = failed(a, err);
    if (st == DDP_OK) {
        observe_audit_encode(r, ids, a->filling + a->used);
        a->used += bytes;
        if (a->used > a->capacity / 2) ask(a);
    }
    pthread_mutex_unlock(&a->lock);
    return st;
}

ddp_status ddp_audit_push(ddp_audit *a, ddp_err *err)
{
    ddp_status st;

    pthread_mutex_lock(&a->lock);
    while (a->busy) pthread_cond_wait(&a->done, &a->lock);
    if (a->used > 0) write_out(a); /* by this thread, which need not wake another for a few hundred bytes */
    st = failed(a, err);
    pthread_mutex_unlock(&a->lock);
    return st;
}

ddp_status ddp_audit_flush(ddp_audit *a, ddp_err *err)
{
    ddp_status st = ddp_audit_push(a, err);

    if (st == DDP_OK && fdatasync(a->fd) != 0) return ddp_fail_errno(err, "cannot write %s to the disk", a->path);
    return st;
}

/* ---- life -------------------------------------------------------------------------------------------------------- */
/* The highest run of the file, and where its last whole record ends. */
static ddp_status read_back(ddp_audit *a, uint64_t *newest, uint64_t *end, ddp_err *err)
{
    ddp_audit_reader f = {.path = a->path, .fd = a->fd};
    ddp_audit_record r;
    bool torn;
    ddp_status st;

    *newest = 0;
    while ((st = observe_audit_next(&f, &r, &torn, err)) == DDP_OK) *newest = DDP_MAX_OF(*newest, r.run);
    *end = f.offset;
    f.fd = -1; /* which stays open */
    observe_audit_reader_free(&f);
    return st == DDP_IN_PROGRESS || st == DDP_ERR_DATA ? DDP_OK : st;
}

/* A run that was killed, or lost power, may have left a part of a record. */
static ddp_status cut(ddp_audit *a, uint64_t *newest, ddp_err *err)
{
    struct stat facts;
    uint64_t end;

    DDP_TRY(read_back(a, newest, &end, err));
    if (fstat(a->fd, &facts) != 0) return ddp_fail_errno(err, "cannot stat %s", a->path);
    if ((uint64_t)facts.st_size == end) return DDP_OK;
    ddp_log_line(a->log, DDP_LOG_WARN, "%s: the last %" PRIu64 " bytes are no whole record and are cut off", a->path,
                 (uint64_t)facts.st_size - end);
    return ftruncate(a->fd, (off_t)end) == 0 ? DDP_OK : ddp_fail_errno(err, "cannot cut %s", a->path);
}

static ddp_status start(ddp_audit *a, const char *dir, int32_t rank, uint64_t *newest, ddp_err *err)
{
    if ((size_t)snprintf(a->path, sizeof(a->path), "%s/audit-rank%d.bin", dir, (int)rank) >= sizeof(a->path))
        return ddp_fail(err, DDP_ERR_CONFIG, "[output] dir %.200s... is too long", dir);
    DDP_TRY(ddp_make_folders(dir, err));
    a->fd = open(a->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (a->fd < 0) return ddp_fail_errno(err, "cannot open %s", a->path);
    DDP_TRY(cut(a, newest, err));
    a->filling = ddp_alloc(a->capacity, err);
    a->writing = ddp_alloc(a->capacity, err);
    if (a->filling == NULL || a->writing == NULL) return err->status;
    DDP_TRY(ddp_thread_start(&a->thread, "ddp-audit", audit_main, a, err));
    a->running = true;
    return DDP_OK;
}

ddp_status ddp_audit_open(const char *dir, int32_t rank, uint64_t most, ddp_log *log, ddp_audit **out, uint64_t *newest,
                          ddp_err *err)
{
    ddp_audit *a;

    if (most > DDP_AUDIT_MOST_IDS)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "[output] audit takes at most %d samples of a rank in a step, not %" PRIu64
                        "; choose a smaller batch, or audit = no",
                        DDP_AUDIT_MOST_IDS, most);
    a = ddp_alloc(sizeof(*a), err);
    if (a == NULL) return err->status;
    a->fd = -1;
    a->log = log;
    a->capacity = DDP_MAX_OF((size_t)BUFFER, ddp_audit_bytes((uint32_t)most));
    pthread_mutex_init(&a->lock, NULL);
    ddp_cond_init(&a->wake);
    ddp_cond_init(&a->done);
    if (start(a, dir, rank, newest, err) != DDP_OK) {
        ddp_audit_close(a);
        return ddp_fail_context(err, "[output] audit");
    }
    *out = a;
    return DDP_OK;
}

ddp_status ddp_audit_empty(ddp_audit *a, ddp_err *err)
{
    return ftruncate(a->fd, 0) == 0 ? DDP_OK : ddp_fail_errno(err, "cannot empty %s", a->path);
}

void ddp_audit_close(ddp_audit *a)
{
    if (a == NULL) return;
    if (a->running) {
        pthread_mutex_lock(&a->lock);
        a->stop = true;
        pthread_cond_signal(&a->wake);
        pthread_mutex_unlock(&a->lock);
        pthread_join(a->thread, NULL);
    }
    if (a->fd >= 0) (void)close(a->fd);
    pthread_cond_destroy(&a->done);
    pthread_cond_destroy(&a->wake);
    pthread_mutex_destroy(&a->lock);
    free(a->writing);
    free(a->filling);
    free(a);
}
