/* refuse_binding.c -- LD_PRELOAD: only the main thread of a process can be bound to processors. */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <unistd.h>

int sched_setaffinity(pid_t pid, size_t bytes, const cpu_set_t *set)
{
    (void)pid;
    (void)bytes;
    (void)set;
    if (gettid() == getpid()) return 0;
    errno = EINVAL;
    return -1;
}
