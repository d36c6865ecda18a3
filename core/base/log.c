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

/* Bytes of the UTF-8 character at `text`, 0 when it is none or a control character of C1. */
static size_t utf8_length(const unsigned char *text)
{
    size_t length = text[0] < 0x80                      ? 1
                    : text[0] >= 0xc2 && text[0] < 0xe0 ? 2
                    : text[0] >= 0xe0 && text[0] < 0xf0 ? 3
                                                        : 4;

    if (length == 1) return 1;
    if (text[0] < 0xc2 || text[0] > 0xf4 || (text[0] == 0xc2 && text[1] < 0xa0)) return 0;
    for (size_t i = 1; i < length; i++)
        if ((text[i] & 0xc0) != 0x80) return 0; /* the end of the text as well */
    return length;
}

/* Names from files and from other hosts reach the terminal: control characters are taken out, and what is no UTF-8. */
static void clean(char *text)
{
    while (*text != '\0') {
        size_t length = utf8_length((const unsigned char *)text);

        if (((unsigned char)*text < 0x20 && *text != '\t') || *text == 0x7f) *text = ' ';
        if (length == 0) *text = '?';
        text += length == 0 ? 1 : length;
    }
}

void base_log_vline(ddp_log *log, int level, const char *fmt, va_list ap)
{
    char line[LINE_MAX_BYTES];
    size_t head = 0, length;
    int rank = atomic_load_explicit(&log->rank, memory_order_relaxed);

    if (level < log->level) return;
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
    clean(line + head);
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
    clean(line + head);
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
