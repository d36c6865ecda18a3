/* plugins/device/cpu/parallel.c -- splits a loop over OpenMP's threads, the same pool that oneDNN uses, and binds
 * those threads to processors. */
#include "parallel.h"
#include "openmp.h"

#include <errno.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PROCESSORS = 65536, NOT_BOUND = -1 };

struct cpu_pins {
    uint32_t count;
    int32_t *processors; /* by thread; NOT_BOUND: back to the mask */
    size_t bytes;
    cpu_set_t *mask; /* that the caller had before */
};

/* OpenMP's pool belongs to the thread that opens the parallel regions, and so does where its threads are bound. */
static _Thread_local const cpu_pins *own_pins;
/* Where this thread is; OpenMP may end a thread and start another, which has its creator's mask, and NOT_BOUND. */
static _Thread_local int32_t bound_to = NOT_BOUND;

/* 0 or errno */
static int stay(const cpu_pins *pins)
{
    int thread = omp_get_thread_num();
    int32_t processor = pins != NULL && thread < (int)pins->count ? pins->processors[thread] : bound_to;
    int rc;

    if (processor == bound_to) return 0;
    if (processor == NOT_BOUND) {
        rc = sched_setaffinity(0, pins->bytes, pins->mask);
    } else {
        size_t bytes = CPU_ALLOC_SIZE((size_t)processor + 1);
        cpu_set_t *set = CPU_ALLOC((size_t)processor + 1);

        if (set == NULL) return ENOMEM;
        CPU_ZERO_S(bytes, set);
        CPU_SET_S((size_t)processor, bytes, set);
        rc = sched_setaffinity(0, bytes, set);
        CPU_FREE(set);
    }
    if (rc != 0) return errno;
    bound_to = processor;
    return 0;
}

typedef struct stays {
    const cpu_pins *pins;
    _Atomic int failed; /* 0, or errno of a thread */
} stays;

static void stay_region(void *data)
{
    stays *all = data;
    int failed = stay(all->pins);

    if (failed != 0) all->failed = failed;
}

static int stay_all(uint32_t threads, const cpu_pins *pins)
{
    stays all = {.pins = pins};

    GOMP_parallel(stay_region, &all, threads, 0);
    return all.failed;
}

static void free_pins(cpu_pins *p)
{
    CPU_FREE(p->mask);
    free(p->processors);
    free(p);
}

/* The caller's mask, in a set as large as the kernel wants it. */
static bool read_mask(cpu_pins *p)
{
    for (size_t cpus = 1024; cpus <= MAX_PROCESSORS; cpus *= 2) {
        p->bytes = CPU_ALLOC_SIZE(cpus);
        p->mask = CPU_ALLOC(cpus);
        if (p->mask == NULL || sched_getaffinity(0, p->bytes, p->mask) == 0) break;
        CPU_FREE(p->mask);
        p->mask = NULL;
    }
    return p->mask != NULL;
}

ddp_status cpu_pin_threads(uint32_t threads, const int32_t *processors, cpu_pins **pins, ddp_err *err)
{
    cpu_pins *p = calloc(1, sizeof(*p));
    int failed;

    if (p == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "device \"cpu\": out of memory while binding threads");
    p->count = threads;
    p->processors = malloc(threads * sizeof(*p->processors));
    if (p->processors == NULL || !read_mask(p)) {
        free_pins(p);
        return ddp_fail(err, DDP_ERR_SYSTEM, "device \"cpu\": the processors of this process cannot be read");
    }
    memcpy(p->processors, processors, threads * sizeof(*processors));
    failed = stay_all(threads, p);
    *pins = p;
    own_pins = p;
    if (failed == 0) return DDP_OK;
    cpu_unpin(threads, pins);
    err->sys_errno = failed;
    return ddp_fail(err, DDP_ERR_SYSTEM, "device \"cpu\": a thread cannot be bound to its processor: %s",
                    strerror(failed));
}

void cpu_unpin(uint32_t threads, cpu_pins **pins)
{
    if (*pins == NULL) return;
    for (uint32_t i = 0; i < (*pins)->count; i++) (*pins)->processors[i] = NOT_BOUND;
    (void)stay_all(threads, *pins);
    own_pins = NULL;
    free_pins(*pins);
    *pins = NULL;
}

typedef struct loop {
    const cpu_pins *pins;
    int64_t count, grain, grains, pieces;
    void (*fn)(void *ctx, int64_t first, int64_t last);
    void *ctx;
} loop;

/* Piece i is thread i's; where OpenMP gives fewer threads than pieces, they take turns. */
static void loop_region(void *data)
{
    const loop *l = data;

    (void)stay(l->pins);
    for (int64_t i = omp_get_thread_num(); i < l->pieces; i += omp_get_num_threads()) {
        int64_t first = l->grains * i / l->pieces * l->grain, last = l->grains * (i + 1) / l->pieces * l->grain;
        l->fn(l->ctx, first, last < l->count ? last : l->count);
    }
}

void cpu_parallel(uint32_t threads, int64_t count, int64_t grain, void (*fn)(void *ctx, int64_t first, int64_t last),
                  void *ctx)
{
    int64_t grains = (count + grain - 1) / grain;
    int64_t pieces = grains < (int64_t)threads ? grains : (int64_t)threads;
    loop l = {
        .pins = own_pins, .count = count, .grain = grain, .grains = grains, .pieces = pieces, .fn = fn, .ctx = ctx};

    if (pieces <= 1) {
        if (count > 0) fn(ctx, 0, count);
        return;
    }
    /* Always all threads, though some may get no piece: GNU's OpenMP ends those that a smaller region leaves out, and
     * the next larger one starts new ones. */
    GOMP_parallel(loop_region, &l, threads, 0);
}
