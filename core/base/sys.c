/* base/sys.c -- clock and threads: POSIX with this project's errors and its deadlines on CLOCK_MONOTONIC. */
#include "base/sys.h"
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
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

/* Both clocks at one moment: a busy machine may let milliseconds pass between two calls. */
static int64_t now_and_since_boot(int64_t *since_boot)
{
    int64_t now;

    do {
        now = ddp_now_ns();
        *since_boot = clock_ns(CLOCK_BOOTTIME);
    } while (ddp_now_ns() - now > NS_PER_S / 1000);
    return now;
}

/* Field 22 of /proc/self/stat (proc(5)): start time in clock ticks since boot, on CLOCK_BOOTTIME, which unlike
 * CLOCK_MONOTONIC counts suspended time. Now, where /proc is not mounted. */
int64_t ddp_process_start_ns(void)
{
    int64_t since_boot, now = now_and_since_boot(&since_boot), age;
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
    age = since_boot - (int64_t)ticks * (NS_PER_S / per_second);
    return age > 0 ? now - age : now;
}

/* ---- processors -------------------------------------------------------------------------------------------------- */
typedef struct cpu_mask {
    cpu_set_t *set;
    size_t bytes, cpus; /* of the set */
    size_t count;       /* of processors in it; 0: not known */
} cpu_mask;

static cpu_mask first_mask;
static int32_t *first_list;
static pthread_once_t first_once = PTHREAD_ONCE_INIT;

/* Of the calling thread; the caller frees out->set. */
static bool read_mask(cpu_mask *out)
{
    /* the kernel answers EINVAL while the set is smaller than its own */
    for (size_t cpus = 1024; cpus <= MAX_CPUS; cpus *= 2) {
        cpu_mask m = {.set = CPU_ALLOC(cpus), .bytes = CPU_ALLOC_SIZE(cpus), .cpus = cpus};

        if (m.set == NULL) return false;
        if (sched_getaffinity(0, m.bytes, m.set) == 0) {
            m.count = (size_t)CPU_COUNT_S(m.bytes, m.set);
            *out = m;
            return true;
        }
        CPU_FREE(m.set);
    }
    return false;
}

static void read_first(void)
{
    size_t n = 0;

    if (!read_mask(&first_mask)) return;
    first_list = malloc(first_mask.count * sizeof(*first_list));
    for (size_t cpu = 0; first_list != NULL && cpu < first_mask.cpus; cpu++)
        if (CPU_ISSET_S(cpu, first_mask.bytes, first_mask.set)) first_list[n++] = (int32_t)cpu;
}

static const cpu_mask *started_with(void)
{
    (void)pthread_once(&first_once, read_first);
    return &first_mask;
}

size_t ddp_processors(const int32_t **out)
{
    size_t count = started_with()->count;

    *out = first_list;
    return first_list != NULL ? count : 0;
}

unsigned ddp_cpu_count(void) { return (unsigned)DDP_MAX_OF(started_with()->count, 1); }

bool ddp_processors_are_own(void)
{
    const cpu_mask *first = started_with();
    cpu_mask now;
    bool own;

    if (first->count == 0 || !read_mask(&now)) return false;
    own = now.bytes == first->bytes && CPU_EQUAL_S(now.bytes, now.set, first->set);
    CPU_FREE(now.set);
    return own;
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */
/* EAGAIN stands for both: no room for the stack, and too many threads. */
static const char *lack_of(int rc, const pthread_attr_t *attr)
{
    size_t stack = 0;
    void *room;

    if (rc != EAGAIN || pthread_attr_getstacksize(attr, &stack) != 0) return "";
    room = mmap(NULL, stack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (room == MAP_FAILED)
        return ": there is no memory for its stack; raise the limit that ulimit -v shows, or lower that of ulimit -s";
    (void)munmap(room, stack);
    return ": there are too many threads; raise the limit that ulimit -u shows, or pids.max of the container";
}

ddp_status ddp_thread_start(pthread_t *out, const char *name, void *(*main)(void *), void *arg, ddp_err *err)
{
    const cpu_mask *mask = started_with();
    char short_name[16];
    pthread_attr_t attr;
    sigset_t all, saved;
    pthread_t thread;
    int rc;

    (void)pthread_attr_init(&attr);
    if (mask->count > 0) (void)pthread_attr_setaffinity_np(&attr, mask->bytes, mask->set);
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &saved);
    rc = pthread_create(&thread, &attr, main, arg);
    if (rc == EINVAL) rc = pthread_create(&thread, NULL, main, arg); /* those processors have been taken away since */
    (void)pthread_sigmask(SIG_SETMASK, &saved, NULL);
    if (rc != 0) {
        (void)ddp_fail(err, DDP_ERR_SYSTEM, "cannot start thread %s: %s%s", name, strerror(rc), lack_of(rc, &attr));
        err->sys_errno = rc;
    }
    (void)pthread_attr_destroy(&attr);
    if (rc != 0) return ddp_fail_as(err, DDP_EXIT_INTERNAL); /* whatever it was for */
    ddp_copy_text(short_name, sizeof(short_name), name);
    (void)pthread_setname_np(thread, short_name);
    *out = thread;
    return DDP_OK;
}

void ddp_thread_share_processors(pthread_t thread)
{
    cpu_mask own;

    if (!read_mask(&own)) return; /* it keeps what it has */
    (void)pthread_setaffinity_np(thread, own.bytes, own.set);
    CPU_FREE(own.set);
}

/* On Linux a nice value is a thread's own, whatever POSIX says of processes. */
void ddp_thread_lower_priority(int by)
{
    int now;

    errno = 0;
    now = getpriority(PRIO_PROCESS, 0);
    if (errno == 0) (void)setpriority(PRIO_PROCESS, 0, now + by); /* the system cuts it off at the lowest */
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
