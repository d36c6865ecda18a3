/* plugins/backend/nccl/work.c -- works: one event each, made once and used again. */
#include "comm.h"
#include <string.h>

/* ---- pool -------------------------------------------------------------------------------------------------------- */
ddp_status ddp_nccl_pool_open(ddp_comm *c, ddp_err *err)
{
    for (size_t i = 0; i < DDP_NCCL_WORKS; i++) {
        ddp_work *w = &c->works[i];
        cudaError_t made = c->runtime->cudaEventCreateWithFlags(&w->event, cudaEventDisableTiming);

        if (made != cudaSuccess) return ddp_nccl_fail_cuda(c->runtime, made, err, "nccl: an event on rank %u", c->rank);
        w->comm = c;
        w->next = c->pool;
        c->pool = w;
    }
    return DDP_OK;
}

void ddp_nccl_pool_close(ddp_comm *c)
{
    for (size_t i = 0; i < DDP_NCCL_WORKS; i++)
        if (c->works[i].event != NULL) (void)c->runtime->cudaEventDestroy(c->works[i].event);
}

ddp_work *ddp_nccl_pool_take(ddp_comm *c)
{
    ddp_work *w;

    (void)pthread_mutex_lock(&c->pool_lock);
    w = c->pool;
    if (w != NULL) c->pool = w->next;
    (void)pthread_mutex_unlock(&c->pool_lock);
    return w;
}

/* Never waits: the event of a collective that still runs may be recorded again, and streams that wait for it go on
 * waiting. */
void ddp_nccl_work_free(ddp_work *w)
{
    ddp_comm *c = w->comm;

    (void)pthread_mutex_lock(&c->pool_lock);
    w->next = c->pool;
    c->pool = w;
    (void)pthread_mutex_unlock(&c->pool_lock);
}

/* ---- test and wait ----------------------------------------------------------------------------------------------- */
/* The status of a work that has ended, the same each time. */
static ddp_status finish(ddp_work *w, ddp_err *err)
{
    ddp_comm *c = w->comm;

    if (w->status == DDP_OK) return DDP_OK;
    if (w->status == DDP_ERR_ABORTED)
        return ddp_fail(err, DDP_ERR_ABORTED, "nccl: %s %llu of %zu bytes on rank %u was aborted", w->what,
                        (unsigned long long)w->sequence, w->bytes, c->rank);
    (void)pthread_mutex_lock(&c->lock);
    *err = c->cause;
    ddp_nccl_leave(c);
    return err->status;
}

/* The event has not come: whether it still can. Does not wait for a thread that is inside the library. */
static ddp_status look_for_failure(ddp_work *w)
{
    ddp_comm *c = w->comm;
    ncclResult_t state = ncclSuccess, asked = ncclSuccess;
    ddp_status st;
    ddp_err err = {.status = DDP_OK};

    if (pthread_mutex_trylock(&c->lock) != 0) return DDP_IN_PROGRESS;
    if (c->cause.status == DDP_OK && c->nccl != NULL && !atomic_load(&c->aborted)) {
        asked = c->runtime->ncclCommGetAsyncError(c->nccl, &state);
        if (asked != ncclSuccess) state = asked;
        if (state != ncclSuccess && state != ncclInProgress) {
            (void)ddp_nccl_fail(c->runtime, c->nccl, state, &err, "nccl: %s %llu of %zu bytes on rank %u", w->what,
                                (unsigned long long)w->sequence, w->bytes, c->rank);
            (void)ddp_nccl_break(c, &err);
        }
    }
    st = c->cause.status != DDP_OK ? c->cause.status : DDP_IN_PROGRESS;
    ddp_nccl_leave(c);
    return st;
}

static void event_failed(ddp_work *w, cudaError_t result)
{
    ddp_comm *c = w->comm;
    ddp_err err = {.status = DDP_OK};

    (void)ddp_nccl_fail_cuda(c->runtime, result, &err, "nccl: %s %llu of %zu bytes on rank %u", w->what,
                             (unsigned long long)w->sequence, w->bytes, c->rank);
    (void)pthread_mutex_lock(&c->lock);
    (void)ddp_nccl_break(c, &err);
    w->status = c->cause.status;
    ddp_nccl_leave(c);
}

ddp_status ddp_nccl_work_test(ddp_work *w, ddp_err *err)
{
    if (w->status == DDP_IN_PROGRESS) {
        cudaError_t event = w->comm->runtime->cudaEventQuery(w->event);

        /* in this order: an abort makes the kernel leave, and then its event comes although the data are not there */
        if (atomic_load(&w->comm->aborted))
            w->status = DDP_ERR_ABORTED;
        else if (event == cudaSuccess)
            w->status = DDP_OK;
        else if (event == cudaErrorNotReady)
            w->status = look_for_failure(w);
        else
            event_failed(w, event);
    }
    return w->status == DDP_IN_PROGRESS ? DDP_IN_PROGRESS : finish(w, err);
}

ddp_status ddp_nccl_work_wait(ddp_work *w, int64_t timeout_ms, ddp_err *err)
{
    int64_t deadline = ddp_nccl_deadline_ns(timeout_ms);
    ddp_nccl_pause pause = {0};
    ddp_status st;

    while ((st = ddp_nccl_work_test(w, err)) == DDP_IN_PROGRESS) {
        if (ddp_nccl_now_ns() >= deadline) {
            (void)ddp_fail(err, DDP_ERR_TIMEOUT,
                           "nccl: %s %llu of %zu bytes on rank %u has not ended within %lld ms: "
                           "another rank is stuck, or raise [group] step_timeout",
                           w->what, (unsigned long long)w->sequence, w->bytes, w->comm->rank, (long long)timeout_ms);
            err->rank = (int32_t)w->comm->rank;
            return err->status;
        }
        ddp_nccl_pause_once(&pause);
    }
    return st;
}

ddp_status ddp_nccl_work_stream_wait(ddp_work *w, void *stream, ddp_err *err)
{
    ddp_comm *c = w->comm;
    cudaError_t queued;

    if (atomic_load(&c->aborted) && w->status == DDP_IN_PROGRESS) w->status = DDP_ERR_ABORTED;
    if (w->status != DDP_IN_PROGRESS) return finish(w, err);
    queued = c->runtime->cudaStreamWaitEvent(stream, w->event, 0);
    if (queued == cudaSuccess) return DDP_OK;
    return ddp_nccl_fail_cuda(c->runtime, queued, err, "nccl: a stream waiting for %s %llu on rank %u", w->what,
                              (unsigned long long)w->sequence, c->rank);
}
