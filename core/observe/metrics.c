/* observe/metrics.c -- metrics.jsonl and ranks.jsonl: complete lines of valid JSON, whatever happens to the disk or to
 * the run before. */
#include "observe/internal.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

const char *observe_json_number(double v, const char *fmt, char buf[32])
{
    (void)snprintf(buf, 32, isfinite(v) ? fmt : "null", v);
    return buf;
}

/* A run that was killed may have left half a line: cut it off, so that the file stays one object a line. */
static ddp_status cut_torn_line(ddp_metrics *m, int64_t size, ddp_err *err)
{
    char *tail = m->buffer;
    int64_t from = size > (int64_t)m->capacity ? size - (int64_t)m->capacity : 0, keep;
    ssize_t n = pread(m->fd, tail, m->capacity, from);

    if (n < 0) return ddp_fail_errno(err, "cannot read %s", m->path);
    while (n > 0 && tail[n - 1] != '\n') n--;
    keep = from + n;
    if (keep != size && ftruncate(m->fd, keep) != 0)
        return ddp_fail_errno(err, "cannot cut the last line of %s", m->path);
    m->size = keep;
    return DDP_OK;
}

ddp_status observe_metrics_open(ddp_metrics *m, const char *dir, const char *name, size_t line, bool append,
                                ddp_log *log, ddp_err *err)
{
    int flags = O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | (append ? 0 : O_TRUNC);
    struct stat facts;

    m->fd = -1;
    m->log = log;
    if (dir[0] == '\0') return DDP_OK;
    if ((size_t)snprintf(m->path, sizeof(m->path), "%s/%s", dir, name) >= sizeof(m->path))
        return ddp_fail(err, DDP_ERR_CONFIG, "[output] dir %.200s... is too long", dir);
    m->capacity = DDP_MAX_OF(line, (size_t)DDP_METRICS_BUFFER);
    m->buffer = ddp_alloc(m->capacity, err);
    if (m->buffer == NULL) return err->status;
    if (ddp_make_folders(dir, err) != DDP_OK) return ddp_fail_context(err, "[output] dir");
    m->fd = open(m->path, flags, 0666);
    if (m->fd < 0) return ddp_fail_errno(err, "cannot open %s ([output] dir)", m->path);
    if (fstat(m->fd, &facts) != 0) return ddp_fail_errno(err, "cannot stat %s", m->path);
    return S_ISREG(facts.st_mode) && facts.st_size > 0 ? cut_torn_line(m, facts.st_size, err) : DDP_OK;
}

void observe_metrics_lock(ddp_metrics *m)
{
    int number = m->fd >= 0 ? ddp_file_lock(m->fd) : 0;

    if (number != EAGAIN && number != EACCES) return; /* a file system without locks is as good as one with them */
    ddp_log_line(
        m->log, DDP_LOG_WARN,
        "another run, which has not ended, writes %s too, and the lines of both will be mixed: end one of them, or give it an [output] dir of its own",
        m->path);
}

/* The file is gone from its folder, and what is written into it would be read by nobody. */
static bool was_removed(const ddp_metrics *m)
{
    struct stat now;

    return m->fd >= 0 && (fstat(m->fd, &now) == 0 ? S_ISREG(now.st_mode) && now.st_nlink == 0 : errno == ESTALE);
}

static int open_again(const ddp_metrics *m, int64_t *size, ddp_err *err)
{
    char folder[sizeof(m->path)];
    struct stat facts;
    int fd;

    ddp_copy_text(folder, sizeof(folder), m->path);
    *strrchr(folder, '/') = '\0';
    if (folder[0] != '\0' && ddp_make_folders(folder, err) != DDP_OK) return -1;
    fd = open(m->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0 || fstat(fd, &facts) != 0) {
        (void)ddp_fail_errno(err, "cannot make %s again", m->path);
        if (fd >= 0) (void)close(fd);
        return -1;
    }
    *size = facts.st_size;
    return fd;
}

/* A new file in place of one that somebody has removed, which begins with a word about it. */
static void replace_removed(ddp_metrics *m)
{
    static const char line[] =
        "{\"event\": \"warning\", \"time\": %lld.%03ld, \"text\": \"%s was removed during the run: the lines before this one are lost\"}\n";
    struct timespec now = {0};
    ddp_err err;
    int64_t size;
    int fd = open_again(m, &size, &err);

    if (fd < 0) {
        if (!m->removed)
            ddp_log_line(m->log, DDP_LOG_WARN, "%s was removed, and its lines are lost: %s", m->path, err.msg);
        m->removed = true;
        m->lost += m->pending;
        m->used = 0;
        m->pending = 0;
        return;
    }
    (void)clock_gettime(CLOCK_REALTIME, &now);
    ddp_log_line(m->log, DDP_LOG_WARN,
                 "%s was removed during the run: the lines written so far are lost, what follows goes to a new file",
                 m->path);
    (void)close(m->fd);
    (void)ddp_file_lock(fd);
    m->fd = fd;
    m->size = size;
    m->removed = true;
    if (dprintf(fd, line, (long long)now.tv_sec, now.tv_nsec / 1000000, strrchr(m->path, '/') + 1) > 0 &&
        (size = lseek(fd, 0, SEEK_END)) > 0)
        m->size = size;
}

void observe_metrics_flush(ddp_metrics *m)
{
    ddp_err err;

    if (m->used == 0) return;
    if (was_removed(m)) replace_removed(m);
    if (m->used == 0) return;
    if (ddp_write_all(m->fd, m->buffer, m->used, m->path, &err) == DDP_OK) {
        m->size += (int64_t)m->used;
    } else {
        if (m->lost == 0)
            ddp_log_line(m->log, DDP_LOG_WARN, "%s; the run continues, and lines are lost until there is room",
                         err.msg);
        m->lost += m->pending;
        while (ftruncate(m->fd, m->size) != 0 && errno == EINTR) continue; /* no half line stays */
    }
    m->used = 0;
    m->pending = 0;
}

static void append(ddp_metrics *m, const char *line, size_t length)
{
    if (m->used + length > m->capacity) observe_metrics_flush(m);
    memcpy(m->buffer + m->used, line, length);
    m->used += length;
    m->pending++;
}

void observe_metrics_step(ddp_metrics *m, const ddp_step_record *r)
{
    char line[DDP_METRICS_LINE], norm[64] = "", noise[64] = "", a[32], b[32], c[32], d[32], e[32], f[32];
    int n;

    if (m->fd < 0) return;
    if (!isnan(r->grad_norm))
        (void)snprintf(norm, sizeof(norm), ", \"grad_norm\": %s", observe_json_number(r->grad_norm, "%.9g", a));
    if (r->noise_scale != 0.0)
        (void)snprintf(noise, sizeof(noise), ", \"noise_scale\": %s", observe_json_number(r->noise_scale, "%.6g", b));
    n = snprintf(line, sizeof(line),
                 "{\"event\": \"step\", \"step\": %" PRIu64 ", \"epoch\": %" PRIu64 ", \"loss\": %s, \"lr\":"
                 " %s%s%s, \"step_ms\": %s, \"data_ms\": %s, \"wait_ms\": %s, \"samples_per_s\": %s}\n",
                 r->step, r->epoch, observe_json_number(r->loss, "%.9g", a), observe_json_number(r->lr, "%.9g", b),
                 norm, noise, observe_json_number(r->step_ms, "%.6g", c), observe_json_number(r->data_ms, "%.6g", d),
                 observe_json_number(r->wait_ms, "%.6g", e), observe_json_number(r->samples_per_s, "%.6g", f));
    append(m, line, (size_t)n);
}

void observe_metrics_line(ddp_metrics *m, const char *line)
{
    size_t length = strlen(line);

    if (m->fd < 0) return;
    if (length <= m->capacity) {
        append(m, line, length);
    } else {
        m->lost++;
        ddp_log_line(m->log, DDP_LOG_WARN, "%s: an event of %zu bytes is too long for a line, left out", m->path,
                     length);
    }
}

void observe_metrics_close(ddp_metrics *m)
{
    if (m->fd >= 0) {
        observe_metrics_flush(m);
        if (m->lost > 0)
            ddp_log_line(m->log, DDP_LOG_WARN, "%s lacks %" PRIu64 " lines that could not be written", m->path,
                         m->lost);
        else if (m->removed)
            ddp_log_line(m->log, DDP_LOG_WARN, "%s lacks the lines from before it was removed", m->path);
        (void)close(m->fd);
    }
    m->fd = -1;
    free(m->buffer);
    m->buffer = NULL;
}
