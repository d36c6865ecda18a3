/* base/sys.c -- clock and threads: POSIX with this project's errors and its deadlines on CLOCK_MONOTONIC. */
#include "base/sys.h"
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { NS_PER_S = 1000000000, MAX_CPUS = 65536 };

static int64_t clock_ns(clockid_t clock)
{
    struct timespec t;

    (void)clock_gettime(clock, &t); /* cannot fail for the clocks used here */
    return (int64_t)t.tv_sec * NS_PER_S + t.tv_nsec;
}

int64_t ddp_now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }

/* Field 22 of /proc/self/stat (proc(5)): start time in clock ticks since boot, on CLOCK_BOOTTIME, which unlike
 * CLOCK_MONOTONIC counts suspended time. Now, where /proc is not mounted. */
int64_t ddp_process_start_ns(void)
{
    int64_t now = ddp_now_ns(), age;
    unsigned long long ticks = 0;
    long per_second = sysconf(_SC_CLK_TCK);
    char *data, *at;
    size_t length;
    ddp_err err = {0};

    if (per_second <= 0 || ddp_file_read("/proc/self/stat", 65536, &data, &length, &err) != DDP_OK) return now;
    at = strrchr(data, ')'); /* field 2, the command's name, may hold blanks and brackets */
    for (int field = 2; at != NULL && field < 22; field++) at = strchr(at + 1, ' ');
    if (at != NULL) ticks = strtoull(at, NULL, 10);
    free(data);
    if (ticks == 0) return now;
    age = clock_ns(CLOCK_BOOTTIME) - (int64_t)ticks * (NS_PER_S / per_second);
    return age > 0 ? now - age : now;
}

ddp_status ddp_thread_start(pthread_t *out, const char *name, void *(*main)(void *), void *arg, ddp_err *err)
{
    char short_name[16];
    sigset_t all, saved;
    pthread_t thread;
    int rc;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &saved);
    rc = pthread_create(&thread, NULL, main, arg);
    (void)pthread_sigmask(SIG_SETMASK, &saved, NULL);
    if (rc != 0) {
        errno = rc;
        return ddp_fail_errno(err, "cannot start thread %s", name);
    }
    ddp_copy_text(short_name, sizeof(short_name), name);
    (void)pthread_setname_np(thread, short_name);
    *out = thread;
    return DDP_OK;
}

void ddp_cond_init(pthread_cond_t *c)
{
    pthread_condattr_t attr;

    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(c, &attr);
    (void)pthread_condattr_destroy(&attr);
}

bool ddp_cond_wait_until(pthread_cond_t *c, pthread_mutex_t *m, int64_t deadline_ns)
{
    struct timespec t;

    if (deadline_ns == INT64_MAX) {
        (void)pthread_cond_wait(c, m);
        return true;
    }
    if (deadline_ns < 0) deadline_ns = 0;
    t.tv_sec = (time_t)(deadline_ns / NS_PER_S);
    t.tv_nsec = (long)(deadline_ns % NS_PER_S);
    return pthread_cond_timedwait(c, m, &t) != ETIMEDOUT;
}

unsigned ddp_cpu_count(void)
{
    unsigned count = 0;

    /* the kernel answers EINVAL while the set is smaller than its own */
    for (size_t cpus = 1024; cpus <= MAX_CPUS && count == 0; cpus *= 2) {
        size_t bytes = CPU_ALLOC_SIZE(cpus);
        cpu_set_t *set = CPU_ALLOC(cpus);

        if (set == NULL) break;
        if (sched_getaffinity(0, bytes, set) == 0) count = (unsigned)CPU_COUNT_S(bytes, set);
        CPU_FREE(set);
    }
    return count > 0 ? count : 1;
}
