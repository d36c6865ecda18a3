/* tests/unit/support/until.h -- waiting for what another thread or process does. */
#pragma once

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define HANG_S 60  /* which no good run comes near: it only ends a hang, and measures nothing */
#define END_S  600 /* the same for the end of a thread or a process, which may have a whole test to do */

static inline void until_later(time_t end, const char *condition, const char *file, int line)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    if (now.tv_sec > end) {
        (void)fprintf(stderr, "%s:%d: not so within its limit: %s\n", file, line, condition);
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

/* The kernel lists a thread for a moment more after it has been joined. A count that has stood for 40 ms is right;
 * compare it later by THREADS_BECOME. */
static inline size_t listed_threads(void)
{
    DIR *tasks = opendir("/proc/self/task");
    size_t count = 0;

    while (tasks != NULL && readdir(tasks) != NULL) count++;
    if (tasks != NULL) (void)closedir(tasks);
    return count;
}

static inline size_t settled_threads(void)
{
    size_t count = listed_threads();

    for (int same = 0; same < 20; same++) {
        size_t now;
        (void)usleep(2000);
        now = listed_threads();
        if (now != count) same = 0;
        count = now;
    }
    return count;
}

#define THREADS_BECOME(count) UNTIL(listed_threads() == (size_t)(count))

/* pthread_join and waitpid with a limit; they return what those do. */
static inline int until_joined(pthread_t thread)
{
    struct timespec end;
    int rc;

    (void)clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += END_S;
    rc = pthread_timedjoin_np(thread, NULL, &end);
    if (rc == ETIMEDOUT) {
        (void)fprintf(stderr, "a thread of the test has not ended within %d s\n", END_S);
        abort();
    }
    return rc;
}

static inline pid_t until_exited(pid_t child, int *status)
{
    time_t end = until_end() + END_S - HANG_S;
    pid_t pid;

    while ((pid = waitpid(child, status, WNOHANG)) == 0) until_later(end, "the process has ended", __FILE__, __LINE__);
    return pid;
}
