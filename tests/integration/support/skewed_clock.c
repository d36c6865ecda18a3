/* Preloaded: CLOCK_REALTIME is 90 s ahead, as on a host that nobody keeps in time. */
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t id, struct timespec *out)
{
    int rc = (int)syscall(SYS_clock_gettime, id, out);

    if (rc == 0 && id == CLOCK_REALTIME) out->tv_sec += 90;
    return rc;
}
