/* train/local/thread_pool.c -- see thread_pool.h. One mutex guards all that the threads share; it is taken twice a
 * job and worker, never during the work. */
#include "train/local/thread_pool.h"
#include "base/sys.h"
#include <stdlib.h>

typedef struct worker {
    struct ddp_thread_pool *pool;
    pthread_t thread;
    uint32_t number;
    uint64_t done; /* jobs */
    ddp_err err;   /* of the last job */
} worker;

struct ddp_thread_pool {
    ddp_thread_pool_params p;
    worker *workers;
    uint32_t started; /* threads */
    pthread_mutex_t lock;
    pthread_cond_t begin, end; /* a job, or closing; a worker has done its part */
    uint64_t jobs;             /* begun */
    uint32_t job, busy;        /* busy: workers that have not done it */
    bool closing;
};

static void *member_main(void *arg)
{
    worker *m = arg;
    ddp_thread_pool *t = m->pool;

    pthread_mutex_lock(&t->lock);
    for (;;) {
        uint32_t job;

        while (!t->closing && m->done == t->jobs) pthread_cond_wait(&t->begin, &t->lock);
        if (m->done == t->jobs) break;
        job = t->job;
        pthread_mutex_unlock(&t->lock);
        m->err.status = DDP_OK;
        m->err.status = t->p.work(t->p.ctx, m->number, job, &m->err);
        pthread_mutex_lock(&t->lock);
        m->done = t->jobs;
        if (--t->busy == 0) pthread_cond_signal(&t->end);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

static ddp_status start_workers(ddp_thread_pool *t, ddp_err *err)
{
    for (uint32_t i = 0; i < t->p.count; i++) {
        worker *m = &t->workers[i];
        char name[16];

        *m = (worker){.pool = t, .number = t->p.first + i};
        (void)snprintf(name, sizeof(name), "%.12s-%u", t->p.name, m->number % 100);
        DDP_TRY(ddp_thread_start(&m->thread, name, member_main, m, err));
        t->started++;
    }
    return DDP_OK;
}

ddp_status local_thread_pool_open(const ddp_thread_pool_params *p, ddp_thread_pool **out, ddp_err *err)
{
    ddp_thread_pool *t = ddp_alloc(sizeof(*t), err);

    if (t == NULL) return err->status;
    t->p = *p;
    pthread_mutex_init(&t->lock, NULL);
    ddp_cond_init(&t->begin);
    ddp_cond_init(&t->end);
    t->workers = ddp_alloc(p->count * sizeof(*t->workers), err);
    if (t->workers == NULL || start_workers(t, err) != DDP_OK) {
        (void)local_thread_pool_close(t);
        return err->status;
    }
    *out = t;
    return DDP_OK;
}

void local_thread_pool_start(ddp_thread_pool *t, uint32_t job)
{
    pthread_mutex_lock(&t->lock);
    t->job = job;
    t->jobs++;
    t->busy = t->p.count;
    pthread_cond_broadcast(&t->begin);
    pthread_mutex_unlock(&t->lock);
}

static ddp_status late(const ddp_thread_pool *t, const char *name, int64_t timeout_ms, ddp_err *err)
{
    uint32_t i = 0;

    while (t->workers[i].done == t->jobs) i++;
    return ddp_fail(err, DDP_ERR_TIMEOUT, "%s: %s %u has not done its part within %.1f s, [group] step_timeout", name,
                    t->p.what, t->workers[i].number, (double)timeout_ms * 1e-3);
}

ddp_status local_thread_pool_wait(ddp_thread_pool *t, const char *name, int64_t timeout_ms, uint32_t *culprit,
                                  ddp_err *err)
{
    int64_t deadline = ddp_now_ns() + timeout_ms * 1000000;
    ddp_status st = DDP_OK;

    pthread_mutex_lock(&t->lock);
    while (t->busy > 0 && ddp_cond_wait_until(&t->end, &t->lock, deadline)) continue;
    if (t->busy > 0) st = late(t, name, timeout_ms, err);
    for (uint32_t i = 0; st == DDP_OK && i < t->p.count; i++) {
        if (t->workers[i].err.status == DDP_OK) continue;
        *err = t->workers[i].err;
        st = err->status;
        if (culprit != NULL) *culprit = t->workers[i].number;
    }
    pthread_mutex_unlock(&t->lock);
    return st;
}

bool local_thread_pool_close(ddp_thread_pool *t)
{
    bool busy;

    if (t == NULL) return true;
    pthread_mutex_lock(&t->lock);
    t->closing = true;
    busy = t->busy > 0;
    pthread_cond_broadcast(&t->begin);
    pthread_mutex_unlock(&t->lock);
    if (busy) return false;
    for (uint32_t i = 0; i < t->started; i++) pthread_join(t->workers[i].thread, NULL);
    pthread_cond_destroy(&t->begin);
    pthread_cond_destroy(&t->end);
    pthread_mutex_destroy(&t->lock);
    free(t->workers);
    free(t);
    return true;
}
