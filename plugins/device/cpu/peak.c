/* plugins/device/cpu/peak.c -- what this CPU does at its best with the device's threads: the rates that a profile
 * compares kernels with. */
#include "cpu.h"

#include <time.h>
#include <unistd.h>

#define SPAN_S      4e-3 /* of one measurement: waking the threads is lost in it */
#define REPEATS     5    /* the fastest counts: the others were disturbed */
#define LEAST_BYTES (INT64_C(64) << 20)
#define MOST_BYTES  (INT64_C(512) << 20)
#define GRAIN       INT64_C(16384) /* floats */

/* Of one thread, on lines of its own. */
typedef struct slot {
    _Alignas(64) float keep[32];
    double flops;
} slot;

typedef struct job {
    ddp_device *device;
    slot *slots;
    int64_t rounds, floats, share; /* share: floats of a thread */
    const float *x;
} job;

static double seconds(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void multiply(void *ctx, int64_t first, int64_t last)
{
    const job *j = ctx;

    for (int64_t i = first; i < last; i++)
        j->slots[i].flops = j->device->half != NULL ? j->device->half->chains(j->rounds, j->slots[i].keep)
                                                    : j->device->kernels->fma_chains(j->rounds, j->slots[i].keep);
}

static void read_memory(void *ctx, int64_t first, int64_t last)
{
    const job *j = ctx;

    for (int64_t i = first; i < last; i++) {
        int64_t from = i * j->share, n = j->floats - from < j->share ? j->floats - from : j->share;
        if (n > 0) j->device->kernels->read_through(j->x + from, n, j->slots[i].keep);
    }
}

/* One run on every thread. */
static double time_of(const job *j, void (*fn)(void *ctx, int64_t first, int64_t last))
{
    double from = seconds();

    cpu_parallel(j->device->threads, (int64_t)j->device->threads, 1, fn, (void *)j);
    return seconds() - from;
}

static double least_time(const job *j, void (*fn)(void *ctx, int64_t first, int64_t last))
{
    double best = time_of(j, fn);

    for (int i = 1; i < REPEATS; i++) {
        double t = time_of(j, fn);
        if (t < best) best = t;
    }
    return best;
}

static double flops_per_s(job *j)
{
    double flops = 0.0, time;

    for (j->rounds = 1000; time_of(j, multiply) < SPAN_S; j->rounds *= 2) continue;
    time = least_time(j, multiply);
    for (uint32_t i = 0; i < j->device->threads; i++) flops += j->slots[i].flops;
    return flops / time;
}

static double bytes_per_s(job *j)
{
    int64_t cache = sysconf(_SC_LEVEL3_CACHE_SIZE), bytes = 2 * cache; /* of one die where there are several */
    ddp_err err;
    void *x;
    double time;

    bytes = bytes < LEAST_BYTES ? LEAST_BYTES : bytes > MOST_BYTES ? MOST_BYTES : bytes;
    if (cpu_alloc(j->device, (size_t)bytes, &x, &err) != DDP_OK) return 0.0; /* not known */
    j->x = x;
    j->floats = bytes / 4;
    j->share = (j->floats / j->device->threads + GRAIN) / GRAIN * GRAIN;
    time = least_time(j, read_memory);
    cpu_free(j->device, x);
    return (double)bytes / time;
}

ddp_status cpu_measure(ddp_device *d, ddp_device_peaks *out, ddp_err *err)
{
    job j = {.device = d};
    void *slots;
    ddp_status status = cpu_alloc(d, d->threads * sizeof(slot), &slots, err);

    if (status != DDP_OK) return status;
    j.slots = slots;
    for (uint32_t i = 0; i < d->threads; i++)
        for (int k = 0; k < 16; k++) j.slots[i].keep[k] = 0.5f;
    out->flops_per_s = flops_per_s(&j);
    out->bytes_per_s = bytes_per_s(&j);
    cpu_free(d, slots);
    return DDP_OK;
}
