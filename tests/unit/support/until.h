/* tests/unit/support/until.h -- waiting for what another thread or process does. */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define HANG_S 60 /* which no good run comes near: it only ends a hang, and measures nothing */

static inline void until_later(time_t end, const char *condition, const char *file, int line)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    if (now.tv_sec > end) {
        (void)fprintf(stderr, "%s:%d: not so within %d s: %s\n", file, line, HANG_S, condition);
        abort();
    }
    (void)usleep(1000);
}

static inline time_t until_end(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + HANG_S;
}

/* Polls; returns once `condition` is so. */
#define UNTIL(condition)                                                                                               \
    for (time_t until_ = until_end(); !(condition);) until_later(until_, #condition, __FILE__, __LINE__)
