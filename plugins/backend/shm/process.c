/* plugins/backend/shm/process.c -- what /proc and the scheduler know of processes. No descriptor is kept. */
#include "shm.h"
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Field 3 of /proc/PID/stat is the state, 20 the number of threads, 22 the start; the name before them may hold
 * anything. */
uint64_t ddp_shm_started(uint32_t pid)
{
    char path[40], text[1024], *at, *save = NULL;
    uint64_t threads = 0;
    bool ended = false;
    ssize_t n;
    int fd;

    (void)snprintf(path, sizeof(path), "/proc/%u/stat", pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return errno == ENOENT || errno == ESRCH ? 0 : UINT64_MAX;
    n = read(fd, text, sizeof(text) - 1);
    (void)close(fd);
    if (n <= 0) return n < 0 && errno == ESRCH ? 0 : UINT64_MAX;
    text[n] = '\0';
    at = strrchr(text, ')');
    if (at == NULL) return UINT64_MAX;
    at = strtok_r(at + 1, " ", &save);
    for (int field = 3; at != NULL; field++, at = strtok_r(NULL, " ", &save)) {
        if (field == 3) ended = *at == 'Z' || *at == 'X';
        if (field == 20) threads = strtoull(at, NULL, 10);
        if (field == 22) return ended && threads <= 1 ? 0 : strtoull(at, NULL, 10); /* a first thread may end alone */
    }
    return UINT64_MAX;
}

/* Not getpid(): in a pid namespace whose /proc is another's, the number that its peers see. */
uint32_t ddp_shm_self(void)
{
    char text[24] = "";

    if (readlink("/proc/self", text, sizeof(text) - 1) <= 0) return (uint32_t)getpid();
    return (uint32_t)strtoul(text, NULL, 10);
}

void ddp_shm_cpus(uint64_t mask[SHM_CPU_WORDS])
{
    cpu_set_t set;

    memset(mask, 0, SHM_CPU_WORDS * sizeof(*mask));
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) != 0) return;
    for (size_t i = 0; i < (size_t)SHM_CPU_WORDS * 64 && i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &set)) mask[i / 64] |= (uint64_t)1 << (i % 64);
}
