/* base/log.c -- lines for people on stderr. What is worth a line is the caller's affair; metrics.jsonl is observe's. */
#include "base/log.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 4096 };

#define CLEAR_LINE "\r\033[K"

void ddp_log_init(ddp_log *log)
{
    const char *terminal = getenv("TERM");

    log->fd = STDERR_FILENO;
    log->level = DDP_LOG_INFO;
    atomic_init(&log->rank, -1);
    log->terminal = isatty(STDERR_FILENO) == 1 && terminal != NULL && strcmp(terminal, "dumb") != 0;
    atomic_init(&log->progress_shown, false);
    log->sink = NULL;
    log->sink_ctx = NULL;
}

void base_log_init_sink(ddp_log *log, void (*sink)(void *ctx, int level, const char *line), void *ctx)
{
    log->fd = -1;
    log->level = DDP_LOG_INFO;
    atomic_init(&log->rank, -1);
    log->terminal = false;
    atomic_init(&log->progress_shown, false);
    log->sink = sink;
    log->sink_ctx = ctx;
}

/* A line that cannot be written has nowhere to be reported: the rest is dropped. */
static void write_line(int fd, const char *data, size_t length)
{
    while (length > 0) {
        ssize_t n = write(fd, data, length);

        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return;
        data += n;
        length -= (size_t)n;
    }
}

static const char *level_text(int level)
{
    switch (level) {
    case DDP_LOG_DEBUG: return "debug: ";
    case DDP_LOG_WARN: return "warning: ";
    case DDP_LOG_ERROR: return "error: ";
    default: return "";
    }
}

static void to_sink(ddp_log *log, int level, const char *fmt, va_list ap)
{
    char line[LINE_MAX_BYTES];

    if (log->sink == NULL) return;
    (void)vsnprintf(line, sizeof(line), fmt, ap);
    ddp_clean_text(line);
    log->sink(log->sink_ctx, level, line);
}

void base_log_vline(ddp_log *log, int level, const char *fmt, va_list ap)
{
    char line[LINE_MAX_BYTES];
    size_t head = 0, length;
    int rank = atomic_load_explicit(&log->rank, memory_order_relaxed);

    if (level < log->level) return;
    if (log->fd < 0) {
        to_sink(log, level, fmt, ap);
        return;
    }
    if (log->terminal && atomic_exchange(&log->progress_shown, false)) {
        memcpy(line, CLEAR_LINE, sizeof(CLEAR_LINE) - 1);
        head = sizeof(CLEAR_LINE) - 1;
    }
    if (rank >= 0)
        length = head + (size_t)snprintf(line + head, sizeof(line) - head, "ddpengine[%d]: ", rank);
    else
        length = head + (size_t)snprintf(line + head, sizeof(line) - head, "ddpengine: ");
    length += (size_t)snprintf(line + length, sizeof(line) - length, "%s", level_text(level));
    (void)vsnprintf(line + length, sizeof(line) - length - 1, fmt, ap); /* one byte is kept for the newline */
    ddp_clean_text(line + head);
    length = strlen(line);
    line[length] = '\n';
    write_line(log->fd, line, length + 1);
}

void ddp_log_line(ddp_log *log, int level, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    base_log_vline(log, level, fmt, ap);
    va_end(ap);
}

void ddp_log_progress(ddp_log *log, const char *text)
{
    char line[LINE_MAX_BYTES] = CLEAR_LINE;
    size_t head = sizeof(CLEAR_LINE) - 1;

    if (!log->terminal) return;
    if (!atomic_exchange(&log->progress_shown, text[0] != '\0') && text[0] == '\0') return;
    ddp_copy_text(line + head, sizeof(line) - head, text);
    ddp_clean_text(line + head);
    write_line(log->fd, line, strlen(line));
}

static void host_log(void *ctx, int level, const char *file, int line, const char *fmt, ...) DDP_PRINTF_(5, 6);
static void host_log(void *ctx, int level, const char *file, int line, const char *fmt, ...)
{
    ddp_log *log = ctx;
    char text[LINE_MAX_BYTES];
    va_list ap;

    if (level < log->level) return;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (level <= DDP_LOG_DEBUG && file != NULL)
        ddp_log_line(log, level, "%s:%d: %s", file, line, text);
    else
        ddp_log_line(log, level, "%s", text);
}

ddp_host ddp_log_host(ddp_log *log)
{
    return (ddp_host){.struct_size = (uint32_t)sizeof(ddp_host), .ctx = log, .log = host_log};
}
