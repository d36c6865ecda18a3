/* plugins/backend/nccl/launch.c -- from a collective's call to the event that says when it has finished, and the
 * rules of `lock`. */
#include "comm.h"
#include <sched.h>
#include <signal.h>
#include <time.h>

int64_t ddp_nccl_now_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t ddp_nccl_deadline_ns(int64_t timeout_ms)
{
    static const int64_t year_ms = INT64_C(1000) * 60 * 60 * 24 * 365;

    if (timeout_ms < 0) timeout_ms = 0;
    return ddp_nccl_now_ns() + (timeout_ms < year_ms ? timeout_ms : year_ms) * 1000000;
}

void ddp_nccl_pause_once(ddp_nccl_pause *p)
{
    enum { YIELDS = 64, SHORTEST_US = 20, LONGEST_US = 500 };
    struct timespec t = {0};
    unsigned doublings;

    if (p->looks++ < YIELDS) {
        (void)sched_yield();
        return;
    }
    doublings = (p->looks - YIELDS) / 8;
    t.tv_nsec = doublings > 4 ? LONGEST_US * 1000L : (long)(SHORTEST_US << doublings) * 1000L;
    (void)nanosleep(&t, NULL);
}

/* ---- lock, abort, cause ------------------------------------------------------------------------------------------ */
ddp_status ddp_nccl_enter(ddp_comm *c, const char *what, ddp_err *err)
{
    ddp_status st = DDP_OK;

    (void)pthread_mutex_lock(&c->lock);
    if (atomic_load(&c->aborted))
        st = ddp_fail(err, DDP_ERR_ABORTED, "nccl: %s on rank %u after the communicator was aborted", what, c->rank);
    else if (c->cause.status != DDP_OK)
        st = (*err = c->cause).status;
    if (st != DDP_OK) ddp_nccl_leave(c);
    return st;
}

void ddp_nccl_leave(ddp_comm *c)
{
    if (atomic_load(&c->aborted)) ddp_nccl_abort_now(c);
    (void)pthread_mutex_unlock(&c->lock);
}

void ddp_nccl_abort_now(ddp_comm *c)
{
    ncclComm_t nccl = c->nccl;

    c->nccl = NULL;
    if (nccl != NULL) (void)c->runtime->ncclCommAbort(nccl);
}

ddp_status ddp_nccl_break(ddp_comm *c, const ddp_err *err)
{
    if (c->cause.status == DDP_OK) c->cause = *err;
    return err->status;
}

/* `lock` held. */
static ddp_status settled(ddp_comm *c, ncclResult_t result, const char *what, ddp_err *err)
{
    if (result == ncclSuccess) return DDP_OK;
    (void)ddp_nccl_fail(c->runtime, c->nccl, result, err, "nccl: %s %llu on rank %u", what,
                        (unsigned long long)c->sequence, c->rank);
    return ddp_nccl_break(c, err);
}

ddp_status ddp_nccl_settle(ddp_comm *c, ncclResult_t result, int64_t timeout_ms, const char *what, ddp_err *err)
{
    int64_t deadline = ddp_nccl_deadline_ns(timeout_ms);
    ddp_nccl_pause pause = {0};

    while (result == ncclInProgress) {
        ncclResult_t state = ncclSuccess, asked = c->runtime->ncclCommGetAsyncError(c->nccl, &state);
        result = asked != ncclSuccess ? asked : state;
        if (result != ncclInProgress) break;
        if (ddp_nccl_now_ns() >= deadline) {
            (void)ddp_fail(
                err, DDP_ERR_TIMEOUT,
                "nccl: %s %llu on rank %u is not through NCCL after %lld ms: another rank has not come to it", what,
                (unsigned long long)c->sequence, c->rank, (long long)timeout_ms);
            err->rank = (int32_t)c->rank;
            return ddp_nccl_break(c, err);
        }
        (void)pthread_mutex_unlock(&c->lock);
        ddp_nccl_pause_once(&pause);
        (void)pthread_mutex_lock(&c->lock);
        if (atomic_load(&c->aborted) || c->nccl == NULL)
            return ddp_fail(err, DDP_ERR_ABORTED, "nccl: %s %llu on rank %u was aborted", what,
                            (unsigned long long)c->sequence, c->rank);
    }
    return settled(c, result, what, err);
}

/* ---- a collective ------------------------------------------------------------------------------------------------ */
static ddp_status cuda_failed(ddp_comm *c, cudaError_t result, const char *what, ddp_err *err)
{
    if (result == cudaSuccess) return DDP_OK;
    (void)ddp_nccl_fail_cuda(c->runtime, result, err, "nccl: %s %llu on rank %u", what, (unsigned long long)c->sequence,
                             c->rank);
    return ddp_nccl_break(c, err);
}

/* `lock` held. The communicator's stream goes on after what the caller's stream has now. */
static ddp_status order_after(ddp_comm *c, void *stream, const char *what, ddp_err *err)
{
    const ddp_nccl_runtime *r = c->runtime;
    ddp_status st;

    if (stream == NULL) return DDP_OK;
    st = cuda_failed(c, r->cudaEventRecord(c->input, stream), what, err);
    if (st != DDP_OK) return st;
    return cuda_failed(c, r->cudaStreamWaitEvent(c->stream, c->input, 0), what, err);
}

/* `lock` held. NCCL may start threads here, which must get none of the process's signals. */
static ddp_status issue_on_stream(ddp_comm *c, const char *what, const ddp_coll *a, ddp_nccl_issue issue,
                                  cudaEvent_t end, ddp_err *err)
{
    sigset_t all, before;
    ncclResult_t result;
    ddp_status st = order_after(c, a->stream, what, err);

    if (st != DDP_OK) return st;
    c->own_copy = cudaSuccess;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    result = issue(c, a);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    st = cuda_failed(c, c->own_copy, what, err);
    if (st == DDP_OK) st = ddp_nccl_settle(c, result, c->timeout_ms, what, err);
    if (st != DDP_OK) return st;
    return cuda_failed(c, c->runtime->cudaEventRecord(end, c->stream), what, err);
}

ddp_status ddp_nccl_start(ddp_comm *c, const char *what, const ddp_coll *a, size_t bytes, ddp_nccl_issue issue,
                          ddp_work **out, ddp_err *err)
{
    ddp_work *w;
    ddp_status st = ddp_nccl_enter(c, what, err);

    if (st != DDP_OK) return st;
    w = ddp_nccl_pool_take(c);
    if (w == NULL) {
        st = ddp_fail(err, DDP_ERR_INVALID, "nccl: more than %d collectives are pending; wait for some first",
                      DDP_NCCL_WORKS);
        goto leave;
    }
    w->what = what;
    w->sequence = ++c->sequence;
    w->bytes = bytes;
    w->status = DDP_OK;
    if (issue != NULL) {
        st = issue_on_stream(c, what, a, issue, w->event, err);
        w->status = DDP_IN_PROGRESS;
    }
    if (st == DDP_OK)
        *out = w;
    else
        ddp_nccl_work_free(w);
leave:
    ddp_nccl_leave(c);
    return st;
}
