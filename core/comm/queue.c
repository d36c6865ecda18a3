/* comm/queue.c -- "ddp-queue", the thread of a communicator that makes every call of the backend plugin but
 * comm_abort: it opens the backend and connects, runs the queued tasks in order, and closes. What submits and waits
 * is communicator.c.
 *
 * An error is final: the first one ends its ticket and all later ones, because the ranks no longer agree on what is
 * next. */
#include "comm/queue.h"
#include "comm/fallback.h"
#include "comm/works.h"
#include <stdlib.h>

enum { WATCH_MS = 100 };

static const char *what_of(const ddp_queue_slot *s)
{
    switch (s->task.what) {
    case DDP_COLL_ALL_REDUCE: return "all_reduce";
    case DDP_COLL_BROADCAST: return "broadcast";
    case DDP_COLL_ALL_GATHER: return "all_gather";
    case DDP_COLL_REDUCE_SCATTER: return "reduce_scatter";
    case DDP_COLL_BARRIER: return "barrier";
    case DDP_COLL_CALL: return "hook";
    case DDP_COLL_SEND: return "send";
    case DDP_COLL_RECV: return "recv";
    case DDP_TASK_ALLOC: return "mem_alloc";
    case DDP_TASK_PEER: return "mem_peer";
    default: return "mem_free";
    }
}

static size_t bytes_of(const ddp_queue_slot *s)
{
    if (s->task.what == DDP_TASK_ALLOC) return s->bytes;
    if (s->task.what == DDP_COLL_CALL) return s->task.bytes;
    if (s->task.what == DDP_TASK_FREE || s->task.what == DDP_TASK_PEER || s->task.what == DDP_COLL_BARRIER) return 0;
    return s->task.coll.count * ddp_dtype_size(s->task.coll.dtype);
}

ddp_task_name comm_queue_name(const ddp_communicator *c, uint64_t ticket)
{
    const ddp_queue_slot *s = &c->queue.ring[ticket % DDP_QUEUE_RING];

    return (ddp_task_name){.what = what_of(s), .ticket = ticket, .bytes = bytes_of(s)};
}

/* ---- the run ends for what was left ------------------------------------------------------------------------------ */
/* `lock` held on entry and return: ends the run, and with it the communicator, so that streams go on. */
static void end_run(ddp_communicator *c, const ddp_err *err)
{
    int64_t limit = ddp_now_ns() + (int64_t)DDP_CAUSE_GRACE_MS * 1000000;

    if (c->queue.failed == 0) {
        c->queue.failed = c->queue.submitted + 1;
        c->queue.cause = *err;
    }
    while (err->status != DDP_ERR_TIMEOUT && !c->queue.run_failed && !c->queue.stop && ddp_now_ns() < limit)
        (void)ddp_cond_wait_until(&c->queue.work, &c->queue.lock,
                                  DDP_MIN_OF(limit, ddp_now_ns() + 20 * INT64_C(1000000)));
    if (c->queue.run_failed) return;
    pthread_mutex_unlock(&c->queue.lock);
    ddp_group_abort(c->group, err->status == DDP_ERR_TIMEOUT ? DDP_EXIT_TIMEOUT : DDP_EXIT_PEER, err->msg);
    pthread_mutex_lock(&c->queue.lock);
}

/* The thread has nothing to do; `lock` held on entry and return. */
static void watch(ddp_communicator *c)
{
    ddp_err err = {.status = DDP_OK};
    ddp_status st;

    pthread_mutex_unlock(&c->queue.lock);
    st = comm_works_watch(c, &err);
    pthread_mutex_lock(&c->queue.lock);
    if (st != DDP_OK && st != DDP_IN_PROGRESS && !c->queue.abandoned) end_run(c, &err);
}

/* ---- tasks ------------------------------------------------------------------------------------------------------- */
static ddp_status call(ddp_communicator *c, const ddp_queue_slot *s, ddp_err *err)
{
    const ddp_backend_ops *ops = c->ops;
    ddp_work *work = NULL;
    ddp_status st;

    switch (s->task.what) {
    case DDP_COLL_ALL_REDUCE: st = ops->all_reduce(c->comm, &s->task.coll, &work, err); break;
    case DDP_COLL_BROADCAST: st = ops->broadcast(c->comm, &s->task.coll, &work, err); break;
    case DDP_COLL_ALL_GATHER: return comm_compose_all_gather(c, &s->task.coll, err);
    case DDP_COLL_REDUCE_SCATTER: return comm_compose_reduce_scatter(c, &s->task.coll, err);
    case DDP_COLL_CALL: return s->task.call(s->task.call_ctx, err);
    case DDP_COLL_SEND: st = ops->send(c->comm, &s->task.coll, &work, err); break;
    case DDP_COLL_RECV: st = ops->recv(c->comm, &s->task.coll, &work, err); break;
    case DDP_COLL_BARRIER: st = ops->barrier(c->comm, &work, err); break;
    case DDP_TASK_ALLOC: st = ops->mem_alloc(c->comm, s->bytes, &c->queue.allocated, err); break;
    case DDP_TASK_PEER: st = ops->mem_peer(c->comm, s->memory, s->rank, &c->queue.allocated, err); break;
    case DDP_TASK_FREE: ops->mem_free(c->comm, s->memory); return DDP_OK;
    default: return ddp_fail(err, DDP_ERR_INTERNAL, "unknown task %u", s->task.what);
    }
    return comm_works_finish(c, st, work, err);
}

/* Those that every rank makes: who has made fewer is behind. */
static bool is_counted(const ddp_communicator *c, const ddp_queue_slot *s)
{
    uint32_t what = s->task.what;

    return c->members.count == 0 && what != DDP_COLL_CALL && what != DDP_COLL_SEND && what != DDP_COLL_RECV;
}

static ddp_status run_slot(ddp_communicator *c, const ddp_queue_slot *s, uint64_t ticket, ddp_err *err)
{
    void *stream = s->task.enqueue && (c->ops->caps & DDP_CAP_STREAM) != 0 ? s->task.coll.stream : NULL;
    ddp_status st;

    comm_works_begin(c, comm_queue_name(c, ticket), stream);
    if (s->task.before != NULL) s->task.before(s->task.before_ctx);
    if (is_counted(c, s)) ddp_group_count_collective(c->group);
    st = call(c, s, err);
    if (st == DDP_OK && s->task.after != NULL) s->task.after(s->task.before_ctx);
    if (st == DDP_OK) return st;
    return comm_works_failed(c, &c->works.task, err);
}

/* Ends ticket done + 1; `lock` held. A failed mem_alloc or mem_peer fails alone when the run still stands. */
static void end_task(ddp_communicator *c, const ddp_queue_slot *s, ddp_status st, const ddp_err *err)
{
    uint64_t ticket = c->queue.done + 1;

    if (s->task.what == DDP_TASK_ALLOC || s->task.what == DDP_TASK_PEER) {
        c->queue.alloc_status = st;
        if (st != DDP_OK) c->queue.alloc_err = *err;
    } else if (st != DDP_OK && c->queue.failed == 0) {
        c->queue.failed = ticket;
        c->queue.cause = *err;
    }
    c->queue.began_ns = 0;
    atomic_store_explicit(&c->queue.done, ticket, memory_order_release);
    if (c->queue.waiting) pthread_cond_signal(&c->queue.progress);
}

/* Runs tasks until stop; `lock` held on entry and return. Freeing is done even after a failure. */
static void run_tasks(ddp_communicator *c)
{
    for (;;) {
        const ddp_queue_slot *s;
        ddp_status st = DDP_OK;
        ddp_err err = {.status = DDP_OK};

        while (c->queue.done == c->queue.submitted && !c->queue.stop) {
            bool left = comm_works_are_left(c) && !c->queue.abandoned, called;

            c->queue.idle = true;
            called = ddp_cond_wait_until(&c->queue.work, &c->queue.lock,
                                         left ? ddp_now_ns() + (int64_t)WATCH_MS * 1000000 : INT64_MAX);
            c->queue.idle = false;
            if (left && !called && c->queue.done == c->queue.submitted && !c->queue.stop) watch(c);
        }
        if (c->queue.done == c->queue.submitted) return;
        s = &c->queue.ring[(c->queue.done + 1) % DDP_QUEUE_RING];
        if ((s->task.what != DDP_TASK_FREE || c->queue.abandoned) && (c->queue.failed != 0 || c->queue.run_failed)) {
            st = c->queue.failed != 0 ? c->queue.cause.status : DDP_ERR_ABORTED;
            err = c->queue.cause;
        } else {
            uint64_t ticket = c->queue.done + 1;
            c->queue.began_ns = ddp_now_ns();
            pthread_mutex_unlock(&c->queue.lock);
            st = run_slot(c, s, ticket, &err);
            pthread_mutex_lock(&c->queue.lock);
        }
        end_task(c, s, st, &err);
    }
}

void comm_queue_params(const ddp_communicator *c, int64_t timeout_ms, ddp_comm_params *out)
{
    ddp_group_comm_params(c->group, c->name, c->store, timeout_ms, out);
    if (c->members.count == 0) return;
    out->rank = c->number;
    out->world_size = c->size;
    out->local_rank = out->local_size = 0;
    for (uint32_t i = 0; i < c->size; i++) {
        bool here = ddp_group_same_host(c->group, c->members.ranks[i]);

        out->local_size += here;
        out->local_rank += here && i < c->number;
    }
}

static ddp_status open_backend(ddp_communicator *c, ddp_err *err)
{
    int64_t timeout_ms = c->step_timeout_ns / 1000000 * 2; /* ours speaks first */
    ddp_comm_params p;
    ddp_comm *comm;
    ddp_status st = c->ops->open(c->host, c->config, &c->backend, err);

    if (st != DDP_OK) return st;
    comm_queue_params(c, timeout_ms, &p);
    p.device_ordinal = c->device_ordinal;
    st = c->ops->comm_create(c->backend, &p, &comm, err);
    if (st != DDP_OK) {
        c->ops->close(c->backend);
        return st;
    }
    pthread_mutex_lock(&c->abort_lock);
    c->comm = comm;
    pthread_mutex_unlock(&c->abort_lock);
    return DDP_OK;
}

static void close_backend(ddp_communicator *c)
{
    ddp_comm *comm = c->comm;

    pthread_mutex_lock(&c->abort_lock);
    c->comm = NULL;
    pthread_mutex_unlock(&c->abort_lock);
    comm_works_forget(c);
    c->ops->comm_destroy(comm);
    c->ops->close(c->backend);
}

/* `lock` held on entry and return. */
static void serve(ddp_communicator *c)
{
    run_tasks(c);
    if (c->queue.abandoned) return;
    pthread_mutex_unlock(&c->queue.lock);
    close_backend(c);
    pthread_mutex_lock(&c->queue.lock);
}

void comm_queue_free(ddp_communicator *c)
{
    pthread_cond_destroy(&c->queue.progress);
    pthread_cond_destroy(&c->queue.work);
    pthread_mutex_destroy(&c->queue.lock);
    pthread_mutex_destroy(&c->abort_lock);
    free(c);
}

void *comm_queue_main(void *arg)
{
    ddp_communicator *c = arg;
    ddp_err err = {.status = DDP_OK};
    ddp_status st = open_backend(c, &err);
    bool abandoned;

    pthread_mutex_lock(&c->queue.lock);
    if (st != DDP_OK) {
        c->queue.failed = 1;
        c->queue.cause = err;
    }
    c->queue.opened = true;
    pthread_cond_signal(&c->queue.progress);
    if (st == DDP_OK) serve(c);
    c->queue.ended = true;
    abandoned = c->queue.abandoned;
    pthread_cond_signal(&c->queue.progress);
    pthread_mutex_unlock(&c->queue.lock);
    if (abandoned) comm_queue_free(c);
    return NULL;
}
