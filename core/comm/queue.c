/* comm/queue.c -- "ddp-queue", the thread of a communicator that makes every call of the backend plugin but
 * comm_abort: it opens the backend and connects, runs the queued tasks in order, and closes. What submits and waits
 * is comm.c.
 *
 * An error is final: the first one ends its ticket and all later ones, because the ranks no longer agree on what is
 * next.
 *
 * What is left in a stream is watched while the thread has nothing else to do: its owner may stand in a wait for
 * that stream, which has no deadline. */
#include "comm/queue.h"

/* What breaks is often the echo of a rank that has died: CAUSE_MS the control plane gets to name it. */
enum { WATCH_MS = 100, CAUSE_MS = 500 };

const char *ddp_queue_what(const ddp_queue_slot *s)
{
    switch (s->task.what) {
    case DDP_COLL_ALL_REDUCE: return "all_reduce";
    case DDP_COLL_BROADCAST: return "broadcast";
    case DDP_COLL_ALL_GATHER: return "all_gather";
    case DDP_COLL_REDUCE_SCATTER: return "reduce_scatter";
    case DDP_COLL_BARRIER: return "barrier";
    case DDP_COLL_CALL: return "hook";
    case DDP_TASK_ALLOC: return "mem_alloc";
    case DDP_TASK_PEER: return "mem_peer";
    default: return "mem_free";
    }
}

size_t ddp_queue_bytes(const ddp_queue_slot *s)
{
    if (s->task.what == DDP_TASK_ALLOC) return s->bytes;
    if (s->task.what == DDP_COLL_CALL) return s->task.bytes;
    if (s->task.what == DDP_TASK_FREE || s->task.what == DDP_TASK_PEER || s->task.what == DDP_COLL_BARRIER) return 0;
    return s->task.coll.count * ddp_dtype_size(s->task.coll.dtype);
}

/* Waits for an asynchronous work; when it does not end in time, the communicator is aborted so that it does. */
static ddp_status finish_work(ddp_communicator *c, ddp_work *work, ddp_err *err)
{
    int64_t timeout_ms = c->step_timeout_ns / 1000000;
    ddp_status st = c->ops->work_wait(work, timeout_ms, err);

    if (st == DDP_ERR_TIMEOUT && (c->ops->caps & DDP_CAP_ABORT) != 0) {
        ddp_err ignored;
        c->ops->comm_abort(c->comm);
        (void)c->ops->work_wait(work, DDP_END_GRACE_MS, &ignored);
    }
    c->ops->work_free(work);
    return st;
}

/* ---- works that are left in a stream ----------------------------------------------------------------------------- */
static void forget(ddp_communicator *c, ddp_left_work *left)
{
    if (left->work != NULL) c->ops->work_free(left->work);
    left->work = NULL;
}

static void keep(ddp_communicator *c, ddp_work *work)
{
    uint64_t ticket = atomic_load(&c->done) + 1;
    const ddp_queue_slot *s = &c->ring[ticket % DDP_QUEUE_RING];
    ddp_left_work *at = &c->left[c->left[0].work != NULL];

    forget(c, at);
    *at = (ddp_left_work){.work = work,
                          .what = ddp_queue_what(s),
                          .ticket = ticket,
                          .bytes = ddp_queue_bytes(s),
                          .since_ns = ddp_now_ns()};
}

static ddp_status leave_in_stream(ddp_communicator *c, ddp_work *work, void *stream, ddp_err *err)
{
    ddp_status st = c->ops->work_stream_wait(work, stream, err);

    if (st == DDP_OK)
        keep(c, work);
    else
        c->ops->work_free(work);
    return st;
}

/* DDP_IN_PROGRESS: there is one, within its limit, which runs from when the one before was seen to have ended. */
static ddp_status look(ddp_communicator *c, ddp_err *err)
{
    const ddp_left_work *first = &c->left[0];
    ddp_status st;

    while ((st = c->ops->work_test(first->work, err)) == DDP_OK) {
        forget(c, &c->left[0]);
        c->left[0] = c->left[1];
        c->left[0].since_ns = ddp_now_ns();
        c->left[1].work = NULL;
        if (first->work == NULL) return DDP_OK;
    }
    if (st != DDP_IN_PROGRESS)
        return ddp_fail_context(err, "%s %llu of %zu bytes on rank %d", first->what, (unsigned long long)first->ticket,
                                first->bytes, c->rank);
    if (ddp_now_ns() - first->since_ns < c->step_timeout_ns) return DDP_IN_PROGRESS;
    (void)ddp_fail(err, DDP_ERR_TIMEOUT,
                   "%s %llu of %zu bytes on rank %d did not end within %g s: "
                   "another rank is stuck, or raise [group] step_timeout",
                   first->what, (unsigned long long)first->ticket, first->bytes, c->rank,
                   (double)c->step_timeout_ns * 1e-9);
    err->rank = c->rank;
    return err->status;
}

/* `lock` held on entry and return: ends the run, and with it the communicator, so that streams go on. */
static void end_run(ddp_communicator *c, const ddp_err *err)
{
    int64_t limit = ddp_now_ns() + (int64_t)CAUSE_MS * 1000000;

    if (c->failed == 0) {
        c->failed = c->submitted + 1;
        c->cause = *err;
    }
    while (err->status != DDP_ERR_TIMEOUT && !c->run_failed && !c->stop && ddp_now_ns() < limit)
        (void)ddp_cond_wait_until(&c->work, &c->lock, DDP_MIN_OF(limit, ddp_now_ns() + 20 * INT64_C(1000000)));
    if (c->run_failed) return;
    pthread_mutex_unlock(&c->lock);
    ddp_group_abort(c->group, err->status == DDP_ERR_TIMEOUT ? DDP_EXIT_TIMEOUT : DDP_EXIT_PEER, err->msg);
    pthread_mutex_lock(&c->lock);
}

/* The thread has nothing to do; `lock` held on entry and return. */
static void watch(ddp_communicator *c)
{
    ddp_err err = {.status = DDP_OK};
    ddp_status st;

    pthread_mutex_unlock(&c->lock);
    st = look(c, &err);
    if (st != DDP_OK && st != DDP_IN_PROGRESS)
        for (int i = 0; i < 2; i++) forget(c, &c->left[i]);
    pthread_mutex_lock(&c->lock);
    if (st != DDP_OK && st != DDP_IN_PROGRESS && !c->abandoned) end_run(c, &err);
}

ddp_status ddp_queue_finish(ddp_communicator *c, ddp_status st, ddp_work *work, ddp_err *err)
{
    if (st != DDP_OK || work == NULL || (c->ops->caps & DDP_CAP_ASYNC) == 0) return st;
    return c->stream != NULL ? leave_in_stream(c, work, c->stream, err) : finish_work(c, work, err);
}

static ddp_status call(ddp_communicator *c, const ddp_queue_slot *s, ddp_err *err)
{
    const ddp_backend_ops *ops = c->ops;
    ddp_work *work = NULL;
    ddp_status st;

    switch (s->task.what) {
    case DDP_COLL_ALL_REDUCE: st = ops->all_reduce(c->comm, &s->task.coll, &work, err); break;
    case DDP_COLL_BROADCAST: st = ops->broadcast(c->comm, &s->task.coll, &work, err); break;
    case DDP_COLL_ALL_GATHER: return ddp_compose_all_gather(c, &s->task.coll, err);
    case DDP_COLL_REDUCE_SCATTER: return ddp_compose_reduce_scatter(c, &s->task.coll, err);
    case DDP_COLL_CALL: return s->task.call(s->task.call_ctx, err);
    case DDP_COLL_BARRIER: st = ops->barrier(c->comm, &work, err); break;
    case DDP_TASK_ALLOC: st = ops->mem_alloc(c->comm, s->bytes, &c->allocated, err); break;
    case DDP_TASK_PEER: st = ops->mem_peer(c->comm, s->memory, s->rank, &c->allocated, err); break;
    case DDP_TASK_FREE: ops->mem_free(c->comm, s->memory); return DDP_OK;
    default: return ddp_fail(err, DDP_ERR_INTERNAL, "unknown task %u", s->task.what);
    }
    return ddp_queue_finish(c, st, work, err);
}

static ddp_status run_slot(ddp_communicator *c, const ddp_queue_slot *s, uint64_t ticket, ddp_err *err)
{
    ddp_status st;

    c->stream = s->task.enqueue && (c->ops->caps & DDP_CAP_STREAM) != 0 ? s->task.coll.stream : NULL;
    if (s->task.before != NULL) s->task.before(s->task.before_ctx);
    if (s->task.what != DDP_COLL_CALL) ddp_group_count_collective(c->group);
    st = call(c, s, err);
    if (st == DDP_OK && s->task.after != NULL) s->task.after(s->task.before_ctx);
    if (st == DDP_OK) return st;
    return ddp_fail_context(err, "%s %llu of %zu bytes on rank %d", ddp_queue_what(s), (unsigned long long)ticket,
                            ddp_queue_bytes(s), c->rank);
}

/* Ends ticket done + 1; `lock` held. A failed mem_alloc or mem_peer fails alone when the run still stands. */
static void end_task(ddp_communicator *c, const ddp_queue_slot *s, ddp_status st, const ddp_err *err)
{
    uint64_t ticket = c->done + 1;

    if (s->task.what == DDP_TASK_ALLOC || s->task.what == DDP_TASK_PEER) {
        c->alloc_status = st;
        if (st != DDP_OK) c->alloc_err = *err;
    } else if (st != DDP_OK && c->failed == 0) {
        c->failed = ticket;
        c->cause = *err;
    }
    c->began_ns = 0;
    atomic_store_explicit(&c->done, ticket, memory_order_release);
    if (c->waiting) pthread_cond_signal(&c->progress);
}

/* Runs tasks until stop; `lock` held on entry and return. Freeing is done even after a failure. */
static void run_tasks(ddp_communicator *c)
{
    for (;;) {
        const ddp_queue_slot *s;
        ddp_status st = DDP_OK;
        ddp_err err = {.status = DDP_OK};

        while (c->done == c->submitted && !c->stop) {
            bool left = c->left[0].work != NULL && !c->abandoned, called;

            c->idle = true;
            called =
                ddp_cond_wait_until(&c->work, &c->lock, left ? ddp_now_ns() + (int64_t)WATCH_MS * 1000000 : INT64_MAX);
            c->idle = false;
            if (left && !called && c->done == c->submitted && !c->stop) watch(c);
        }
        if (c->done == c->submitted) return;
        s = &c->ring[(c->done + 1) % DDP_QUEUE_RING];
        if ((s->task.what != DDP_TASK_FREE || c->abandoned) && (c->failed != 0 || c->run_failed)) {
            st = c->failed != 0 ? c->cause.status : DDP_ERR_ABORTED;
            err = c->cause;
        } else {
            uint64_t ticket = c->done + 1;
            c->began_ns = ddp_now_ns();
            pthread_mutex_unlock(&c->lock);
            st = run_slot(c, s, ticket, &err);
            pthread_mutex_lock(&c->lock);
        }
        end_task(c, s, st, &err);
    }
}

static ddp_status open_backend(ddp_communicator *c, ddp_err *err)
{
    int64_t timeout_ms = c->step_timeout_ns / 1000000 * 2; /* ours speaks first */
    ddp_comm_params p;
    ddp_comm *comm;
    ddp_status st = c->ops->open(c->host, c->config, &c->backend, err);

    if (st != DDP_OK) return st;
    ddp_group_comm_params(c->group, c->name, c->store, timeout_ms, &p);
    if ((c->ops->caps & DDP_CAP_MEM_CUDA) != 0) p.device_ordinal = c->cuda_device;
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
    for (int i = 0; i < 2; i++) forget(c, &c->left[i]);
    c->ops->comm_destroy(comm);
    c->ops->close(c->backend);
}

/* `lock` held on entry and return. */
static void serve(ddp_communicator *c)
{
    run_tasks(c);
    if (c->abandoned) return;
    pthread_mutex_unlock(&c->lock);
    close_backend(c);
    pthread_mutex_lock(&c->lock);
}

void *ddp_queue_main(void *arg)
{
    ddp_communicator *c = arg;
    ddp_err err = {.status = DDP_OK};
    ddp_status st = open_backend(c, &err);
    bool abandoned;

    pthread_mutex_lock(&c->lock);
    if (st != DDP_OK) {
        c->failed = 1;
        c->cause = err;
    }
    c->opened = true;
    pthread_cond_signal(&c->progress);
    if (st == DDP_OK) serve(c);
    c->ended = true;
    abandoned = c->abandoned;
    pthread_cond_signal(&c->progress);
    pthread_mutex_unlock(&c->lock);
    if (abandoned) ddp_communicator_destroy(c);
    return NULL;
}
