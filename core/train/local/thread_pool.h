/* train/local/thread_pool.h -- threads that work side by side for one trainer: "NAME-N", one for each device.
 *
 * The trainer hands all of them a piece of work by its number and waits until each has done it; between the two it
 * does a part of its own. A worker sees what the trainer wrote before the start, the trainer sees what the workers
 * wrote before the wait returned; meanwhile they share nothing but what the work says. All calls come from one
 * thread, the trainer's. */
#pragma once

#include "base/base.h"

typedef struct ddp_thread_pool ddp_thread_pool;

typedef struct ddp_thread_pool_params {
    const char *name;      /* of the threads, at most 12 characters: "ddp-replica" */
    const char *what;      /* of a worker in messages: "replica" */
    uint32_t first, count; /* workers are numbered from `first` on */
    ddp_status (*work)(void *ctx, uint32_t worker, uint32_t job, ddp_err *err); /* on the worker's thread */
    void *ctx;
} ddp_thread_pool_params;

ddp_status local_thread_pool_open(const ddp_thread_pool_params *p, ddp_thread_pool **out, ddp_err *err);
/* All workers begin work(ctx, worker, job). The last job has been waited for. Allocates nothing. */
void local_thread_pool_start(ddp_thread_pool *t, uint32_t job);
/* Until all have done it, or `timeout_ms` is over: DDP_ERR_TIMEOUT with `name` and who is late. Else the error of the
 * lowest worker that failed; *culprit (may be NULL) is its number. */
ddp_status local_thread_pool_wait(ddp_thread_pool *t, const char *name, int64_t timeout_ms, uint32_t *culprit,
                                  ddp_err *err);
/* Joins the threads; takes NULL. False where a worker has not come back from its work: it and what it was given are
 * left until the process ends. */
bool local_thread_pool_close(ddp_thread_pool *t);
