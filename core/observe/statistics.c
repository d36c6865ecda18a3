/* observe/statistics.c -- step times over the whole run, and the memory of this process. */
#include "observe/internal.h"
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* Between two readings of Pss: this long at least, and a hundred times what the last reading took (the kernel walks all
 * page tables for it). */
#define MEMORY_INTERVAL_NS INT64_C(1000000000)
#define MEMORY_SHARE       100

ddp_status observe_statistics_open(ddp_statistics *s, ddp_err *err)
{
    s->random = 88172645463325252u; /* any but 0 */
    s->step_ms = ddp_alloc(DDP_STEP_SAMPLES * sizeof(*s->step_ms), err);
    return s->step_ms == NULL ? err->status : DDP_OK;
}

void observe_statistics_close(ddp_statistics *s) { free(s->step_ms); }

static uint64_t next_random(ddp_statistics *s) /* Marsaglia's xorshift64 */
{
    s->random ^= s->random << 13;
    s->random ^= s->random >> 7;
    s->random ^= s->random << 17;
    return s->random;
}

void observe_statistics_step(ddp_statistics *s, const ddp_step_record *r)
{
    double seconds = r->step_ms * 1e-3, samples = r->samples_per_s * seconds;
    uint64_t slot;

    if (s->steps++ == 0) {
        s->first_seconds = seconds;
        s->first_samples = samples;
        return;
    }
    s->seconds += seconds;
    s->samples += samples;
    slot = s->steps - 2;
    if (slot >= DDP_STEP_SAMPLES) slot = next_random(s) % (s->steps - 1);
    if (slot < DDP_STEP_SAMPLES) s->step_ms[slot] = (float)r->step_ms;
}

static int compare_floats(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return x < y ? -1 : x > y ? 1 : 0;
}

double observe_statistics_median_ms(ddp_statistics *s)
{
    size_t n = s->steps < 2 ? 0 : (size_t)DDP_MIN_OF(s->steps - 1, (uint64_t)DDP_STEP_SAMPLES);

    if (n == 0) return NAN;
    qsort(s->step_ms, n, sizeof(*s->step_ms), compare_floats);
    return n % 2 == 1 ? (double)s->step_ms[n / 2] : 0.5 * ((double)s->step_ms[n / 2 - 1] + (double)s->step_ms[n / 2]);
}

double observe_statistics_samples_per_s(const ddp_statistics *s)
{
    if (s->seconds > 0.0) return s->samples / s->seconds;
    return s->first_seconds > 0.0 ? s->first_samples / s->first_seconds : NAN;
}

/* "KEY:   123 kB" in a small file under /proc, in bytes; 0 when it is not there. Allocates nothing. */
static uint64_t proc_kilobytes(const char *path, const char *key)
{
    char text[4096];
    const char *at = text;
    size_t length = strlen(key);
    ssize_t n = 0, got;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0) return 0;
    while (n < (ssize_t)sizeof(text) - 1 && (got = read(fd, text + n, sizeof(text) - 1 - (size_t)n)) > 0) n += got;
    (void)close(fd);
    text[n] = '\0';
    while (at != NULL && strncmp(at, key, length) != 0) {
        at = strchr(at, '\n');
        if (at != NULL) at++;
    }
    return at == NULL ? 0 : strtoull(at + length, NULL, 10) * 1024;
}

void observe_statistics_memory(ddp_statistics *s, bool now)
{
    int64_t from = ddp_now_ns(), took;
    uint64_t pss;

    if (!now && from < s->next_memory_ns) return;
    pss = proc_kilobytes("/proc/self/smaps_rollup", "Pss:");
    if (pss > s->peak_pss) s->peak_pss = pss;
    took = ddp_now_ns() - from;
    s->next_memory_ns = from + DDP_MAX_OF(MEMORY_INTERVAL_NS, MEMORY_SHARE * took);
}

uint64_t observe_peak_rss(void)
{
    uint64_t bytes = proc_kilobytes("/proc/self/status", "VmHWM:");
    struct rusage usage;

    if (bytes > 0) return bytes; /* ru_maxrss counts what ran before exec as well */
    return getrusage(RUSAGE_SELF, &usage) == 0 ? (uint64_t)usage.ru_maxrss * 1024 : 0;
}
