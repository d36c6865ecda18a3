/* comm/hierarchy/wire.c -- see wire.h. */
#include "comm/hierarchy/wire.h"
#include "comm/hierarchy/sides.h"
#include <ddpengine/reduce.h>

/* ---- a call ------------------------------------------------------------------------------------------------------ */
ddp_status hierarchy_call(const hierarchy_side *side, ddp_collective call, const ddp_coll *a, ddp_err *err)
{
    const ddp_backend_ops *ops = side->ops;
    ddp_work *work = NULL;
    ddp_status st = call == NULL ? ops->barrier(side->comm, &work, err) : call(side->comm, a, &work, err);

    if (st != DDP_OK || work == NULL || (ops->caps & DDP_CAP_ASYNC) == 0) return st;
    st = ops->work_wait(work, side->timeout_ms, err);
    ops->work_free(work);
    return st;
}

static ddp_status run(const hierarchy_job *job, ddp_err *err)
{
    ddp_status st = hierarchy_call(job->side, job->call, &job->coll, err);

    if (st == DDP_OK && job->divide > 0)
        ddp_reduce_divide(job->coll.dtype, job->coll.recv, job->coll.count, job->divide);
    return st;
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */
/* `lock` held on entry and return. */
static void run_jobs(hierarchy_wire *w)
{
    while (!w->stop || w->done < w->posted) {
        const hierarchy_job *job = &w->ring[(w->done + 1) % HIERARCHY_AHEAD];

        if (w->done == w->posted) {
            (void)pthread_cond_wait(&w->work, &w->lock);
            continue;
        }
        if (w->status == DDP_OK) {
            ddp_err err = {0};
            ddp_status st;

            pthread_mutex_unlock(&w->lock);
            st = run(job, &err);
            pthread_mutex_lock(&w->lock);
            w->status = st;
            if (st != DDP_OK) w->err = err;
        }
        w->done++;
        pthread_cond_signal(&w->progress);
    }
}

static void *wire_main(void *arg)
{
    hierarchy_comm *c = arg;
    hierarchy_wire *w = &c->wire;
    ddp_backend *remote = NULL;
    ddp_err err = {0};
    ddp_status st = hierarchy_connect_remote(c, &remote, &err);

    pthread_mutex_lock(&w->lock);
    w->status = st;
    w->err = err;
    w->opened = true;
    pthread_cond_signal(&w->progress);
    if (st == DDP_OK) run_jobs(w);
    pthread_mutex_unlock(&w->lock);
    if (st == DDP_OK) hierarchy_disconnect_remote(c, remote);
    return NULL;
}

/* ---- the queue thread's side ------------------------------------------------------------------------------------- */
ddp_status hierarchy_wire_open(hierarchy_comm *c, ddp_err *err)
{
    hierarchy_wire *w = &c->wire;
    ddp_status st;

    pthread_mutex_init(&w->lock, NULL);
    ddp_cond_init(&w->work);
    ddp_cond_init(&w->progress);
    st = ddp_thread_start(&w->thread, "ddp-wire", wire_main, c, err);
    w->started = st == DDP_OK;
    if (st != DDP_OK) return st;
    pthread_mutex_lock(&w->lock);
    while (!w->opened) (void)pthread_cond_wait(&w->progress, &w->lock);
    st = w->status;
    if (st != DDP_OK) *err = w->err;
    pthread_mutex_unlock(&w->lock);
    return st;
}

void hierarchy_wire_close(hierarchy_comm *c)
{
    hierarchy_wire *w = &c->wire;

    if (!w->started) return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_signal(&w->work);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    w->started = false;
    pthread_cond_destroy(&w->progress);
    pthread_cond_destroy(&w->work);
    pthread_mutex_destroy(&w->lock);
}

uint64_t hierarchy_wire_post(hierarchy_comm *c, const hierarchy_job *job)
{
    hierarchy_wire *w = &c->wire;
    uint64_t ticket;

    pthread_mutex_lock(&w->lock);
    ticket = ++w->posted;
    w->ring[ticket % HIERARCHY_AHEAD] = *job;
    pthread_cond_signal(&w->work);
    pthread_mutex_unlock(&w->lock);
    return ticket;
}

/* A half refuses wrong arguments before it sends anything: the ranks still agree on what is next. */
static bool refused(ddp_status st) { return st == DDP_ERR_INVALID || st == DDP_ERR_UNSUPPORTED; }

ddp_status hierarchy_wire_wait(hierarchy_comm *c, uint64_t ticket, ddp_err *err)
{
    hierarchy_wire *w = &c->wire;
    ddp_status st;

    if (ticket == 0) return DDP_OK;
    pthread_mutex_lock(&w->lock);
    while (w->done < ticket) (void)pthread_cond_wait(&w->progress, &w->lock);
    st = w->status;
    if (st != DDP_OK) *err = w->err;
    if (refused(st) && w->done == w->posted) w->status = DDP_OK;
    pthread_mutex_unlock(&w->lock);
    return st;
}

void hierarchy_wire_drain(hierarchy_comm *c)
{
    hierarchy_wire *w = &c->wire;
    ddp_err ignored;

    if (!w->started || (c->all.ops->caps & DDP_CAP_ABORT) == 0) return;
    hierarchy_abort_remote(c);
    (void)hierarchy_wire_wait(c, w->posted, &ignored); /* posted: this thread alone writes it */
}
