/* base/log.h -- lines for people, on stderr. One write(2) a line, so that ranks do not interleave within one. In a
 * library they go to the caller's function instead. */
#pragma once

#include "base/base.h"
#include <stdatomic.h>

typedef struct ddp_log {
    int fd;          /* stderr; -1: none */
    int level;       /* lines below it are dropped; DDP_LOG_INFO by default */
    atomic_int rank; /* -1: no prefix */
    bool terminal;   /* the last line of the terminal may be a progress line: other lines clear it first */
    atomic_bool progress_shown;
    void (*sink)(void *ctx, int level, const char *line); /* gets the lines instead of fd, from any thread; or NULL */
    void *sink_ctx;
} ddp_log;

void ddp_log_init(ddp_log *log);
/* One that writes nothing by itself; `sink` may be NULL. */
void base_log_init_sink(ddp_log *log, void (*sink)(void *ctx, int level, const char *line), void *ctx);
/* "ddpengine[1]: error: TEXT". Any thread. */
void ddp_log_line(ddp_log *log, int level, const char *fmt, ...) DDP_PRINTF_(3, 4);
void base_log_vline(ddp_log *log, int level, const char *fmt, va_list ap);
/* Replaces the progress line (terminal only); an empty text takes it away. */
void ddp_log_progress(ddp_log *log, const char *text);
/* The host table over this log, for plugins; `log` outlives it. */
ddp_host ddp_log_host(ddp_log *log);
