/* cuda_double.c -- the half of the double that stands in for the CUDA runtime. Each stream is a thread with a queue. */
#include "double.h"
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

nccl_double_control double_control = {.devices = 4, .driver_version = 13000, .launch_polls = 2, .async_rank = -1};
static _Thread_local int current_device;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* events */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

DOUBLE_EXPORT nccl_double_control *nccl_double(void);
nccl_double_control *nccl_double(void) { return &double_control; }

bool double_fails(void)
{
    int n = atomic_load(&double_control.fail_at);

    return n > 0 && atomic_fetch_sub(&double_control.fail_at, 1) == 1;
}

void double_misuse(const char *what)
{
    if (atomic_fetch_add(&double_control.misuse, 1) == 0)
        (void)snprintf(double_control.misuse_text, sizeof(double_control.misuse_text), "%s", what);
}

/* ---- streams --------------------------------------------------------------------------------------------------------- */
typedef struct task {
    void (*run)(void *);
    void *arg;
    struct task *next;
} task;

struct CUstream_st {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    task *first, **last;
    bool stop, busy;
    int device;
    struct CUstream_st *next;
};
static struct CUstream_st *streams;

static void *stream_main(void *arg)
{
    struct CUstream_st *s = arg;

    (void)pthread_mutex_lock(&s->lock);
    while (s->first != NULL || !s->stop) {
        task *t = s->first;
        if (t == NULL) {
            (void)pthread_cond_wait(&s->changed, &s->lock);
            continue;
        }
        s->first = t->next;
        if (s->first == NULL) s->last = &s->first;
        s->busy = true;
        (void)pthread_mutex_unlock(&s->lock);
        t->run(t->arg);
        free(t);
        (void)pthread_mutex_lock(&s->lock);
        s->busy = false;
        (void)pthread_cond_broadcast(&s->changed);
    }
    (void)pthread_mutex_unlock(&s->lock);
    return NULL;
}

void double_enqueue(cudaStream_t s, void (*run)(void *), void *arg)
{
    task *t = calloc(1, sizeof(*t));

    t->run = run;
    t->arg = arg;
    (void)pthread_mutex_lock(&s->lock);
    *s->last = t;
    s->last = &t->next;
    (void)pthread_cond_broadcast(&s->changed);
    (void)pthread_mutex_unlock(&s->lock);
}

DOUBLE_EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority)
{
    struct CUstream_st *s;
    sigset_t all, before;

    if (double_fails()) return cudaErrorMemoryAllocation;
    if (flags != cudaStreamNonBlocking || priority != -5) double_misuse("a stream that is not of the highest priority");
    s = calloc(1, sizeof(*s));
    s->last = &s->first;
    s->device = current_device;
    (void)pthread_mutex_init(&s->lock, NULL);
    (void)pthread_cond_init(&s->changed, NULL);
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    (void)pthread_create(&s->thread, NULL, stream_main, s);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    (void)atomic_fetch_add(&double_control.streams, 1);
    (void)pthread_mutex_lock(&lock);
    s->next = streams;
    streams = s;
    (void)pthread_mutex_unlock(&lock);
    *out = s;
    return cudaSuccess;
}

/* What is queued still runs, as CUDA promises. */
DOUBLE_EXPORT cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    (void)pthread_mutex_lock(&lock);
    for (struct CUstream_st **at = &streams; *at != NULL; at = &(*at)->next)
        if (*at == s) {
            *at = s->next;
            break;
        }
    (void)pthread_mutex_unlock(&lock);
    (void)pthread_mutex_lock(&s->lock);
    s->stop = true;
    (void)pthread_cond_broadcast(&s->changed);
    (void)pthread_mutex_unlock(&s->lock);
    (void)pthread_join(s->thread, NULL);
    (void)pthread_cond_destroy(&s->changed);
    (void)pthread_mutex_destroy(&s->lock);
    free(s);
    (void)atomic_fetch_sub(&double_control.streams, 1);
    return cudaSuccess;
}

DOUBLE_EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    (void)pthread_mutex_lock(&s->lock);
    while (s->first != NULL || s->busy) (void)pthread_cond_wait(&s->changed, &s->lock);
    (void)pthread_mutex_unlock(&s->lock);
    return cudaSuccess;
}

static void run_hold(void *arg)
{
    const struct timespec pause = {0, 100000};
    atomic_int *released = arg;

    while (!atomic_load(released)) (void)nanosleep(&pause, NULL);
}

DOUBLE_EXPORT void nccl_double_hold(void *stream, atomic_int *released);
void nccl_double_hold(void *stream, atomic_int *released) { double_enqueue(stream, run_hold, released); }

/* ---- events ---------------------------------------------------------------------------------------------------------- */
struct CUevent_st {
    unsigned long recorded, completed;
    int references; /* of its owner and of what is queued */
};

typedef struct mark {
    struct CUevent_st *event;
    unsigned long at;
} mark;

static void let_go(struct CUevent_st *e) /* `lock` held */
{
    if (--e->references == 0) free(e);
}

static mark *mark_of(struct CUevent_st *e) /* `lock` held */
{
    mark *m = calloc(1, sizeof(*m));

    m->event = e;
    m->at = e->recorded;
    e->references++;
    return m;
}

static void run_complete(void *arg)
{
    mark *m = arg;

    (void)pthread_mutex_lock(&lock);
    if (m->event->completed < m->at) m->event->completed = m->at;
    let_go(m->event);
    (void)pthread_cond_broadcast(&changed);
    (void)pthread_mutex_unlock(&lock);
    free(m);
}

static void run_wait(void *arg)
{
    mark *m = arg;

    (void)pthread_mutex_lock(&lock);
    while (m->event->completed < m->at) (void)pthread_cond_wait(&changed, &lock);
    let_go(m->event);
    (void)pthread_mutex_unlock(&lock);
    free(m);
}

DOUBLE_EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    if (double_fails()) return cudaErrorMemoryAllocation;
    if (flags != cudaEventDisableTiming) double_misuse("an event that takes times");
    *out = calloc(1, sizeof(**out));
    (*out)->references = 1;
    (void)atomic_fetch_add(&double_control.events, 1);
    return cudaSuccess;
}

DOUBLE_EXPORT cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    (void)pthread_mutex_lock(&lock);
    let_go(e);
    (void)pthread_mutex_unlock(&lock);
    (void)atomic_fetch_sub(&double_control.events, 1);
    return cudaSuccess;
}

DOUBLE_EXPORT cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    mark *m;

    if (double_fails()) return cudaErrorInvalidResourceHandle;
    (void)pthread_mutex_lock(&lock);
    e->recorded++;
    m = mark_of(e);
    (void)pthread_mutex_unlock(&lock);
    double_enqueue(s, run_complete, m);
    return cudaSuccess;
}

DOUBLE_EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags)
{
    mark *m;

    (void)flags;
    if (double_fails()) return cudaErrorInvalidResourceHandle;
    (void)pthread_mutex_lock(&lock);
    m = mark_of(e);
    (void)pthread_mutex_unlock(&lock);
    double_enqueue(s, run_wait, m);
    return cudaSuccess;
}

DOUBLE_EXPORT cudaError_t cudaEventQuery(cudaEvent_t e)
{
    bool done;

    if (double_fails()) return cudaErrorLaunchFailure;
    (void)pthread_mutex_lock(&lock);
    done = e->completed >= e->recorded;
    (void)pthread_mutex_unlock(&lock);
    return done ? cudaSuccess : cudaErrorNotReady;
}

/* ---- memory ---------------------------------------------------------------------------------------------------------- */
typedef struct change { /* from NULL: fill */
    void *to;
    const void *from;
    size_t bytes;
    int value;
} change;

static void run_change(void *arg)
{
    change *c = arg;

    if (c->from == NULL)
        memset(c->to, c->value, c->bytes);
    else
        memcpy(c->to, c->from, c->bytes);
    free(c);
}

static cudaError_t queue_change(cudaStream_t s, change wanted)
{
    change *c;

    if (double_fails()) return cudaErrorInvalidValue;
    c = malloc(sizeof(*c));
    *c = wanted;
    double_enqueue(s, run_change, c);
    return cudaSuccess;
}

DOUBLE_EXPORT cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t s)
{
    return queue_change(s, (change){to, NULL, bytes, value});
}

DOUBLE_EXPORT cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                                          cudaStream_t s)
{
    (void)kind;
    return queue_change(s, (change){to, from, bytes, 0});
}

DOUBLE_EXPORT cudaError_t cudaMalloc(void **out, size_t bytes)
{
    if (double_fails()) return cudaErrorMemoryAllocation;
    *out = malloc(bytes);
    memset(*out, 0x5a, bytes);
    (void)atomic_fetch_add(&double_control.memory, 1);
    return cudaSuccess;
}

/* Waits for the device, as CUDA does; a stream that the caller uses is not destroyed meanwhile. */
DOUBLE_EXPORT cudaError_t cudaFree(void *p)
{
    struct CUstream_st *mine[16];
    int n = 0;

    (void)pthread_mutex_lock(&lock);
    for (struct CUstream_st *s = streams; s != NULL && n < 16; s = s->next)
        if (s->device == current_device) mine[n++] = s;
    (void)pthread_mutex_unlock(&lock);
    while (n > 0) (void)cudaStreamSynchronize(mine[--n]);
    free(p);
    (void)atomic_fetch_sub(&double_control.memory, 1);
    return cudaSuccess;
}

/* ---- devices --------------------------------------------------------------------------------------------------------- */
DOUBLE_EXPORT cudaError_t cudaGetDeviceCount(int *count)
{
    int e = atomic_load(&double_control.count_error);

    *count = e == 0 ? atomic_load(&double_control.devices) : 0;
    return (cudaError_t)e;
}

DOUBLE_EXPORT cudaError_t cudaSetDevice(int device)
{
    if (double_fails()) return cudaErrorDevicesUnavailable;
    if (device < 0 || device >= atomic_load(&double_control.devices)) return cudaErrorInvalidDevice;
    current_device = device;
    return cudaSuccess;
}

DOUBLE_EXPORT cudaError_t cudaGetDevice(int *device)
{
    *device = current_device;
    return cudaSuccess;
}

DOUBLE_EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return double_fails() ? cudaErrorUnknown : cudaSuccess;
}

DOUBLE_EXPORT cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = 13000;
    return cudaSuccess;
}

DOUBLE_EXPORT cudaError_t cudaDriverGetVersion(int *version)
{
    *version = atomic_load(&double_control.driver_version);
    return cudaSuccess;
}

DOUBLE_EXPORT const char *cudaGetErrorName(cudaError_t e)
{
    return e == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaErrorOfTheDouble";
}

DOUBLE_EXPORT const char *cudaGetErrorString(cudaError_t e)
{
    return e == cudaErrorMemoryAllocation ? "out of memory" : "the double was told to fail";
}
