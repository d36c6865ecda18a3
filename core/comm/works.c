/* comm/works.c -- works of the backend that go on after the call. One that is waited for has a deadline. One that is
 * left in a stream is watched while the thread has nothing else to do: the owner may stand in a wait for that
 * stream, which has none. */
#include "comm/works.h"

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
static void forget(const ddp_communicator *c, ddp_left_work *left)
{
    if (left->work != NULL) c->ops->work_free(left->work);
    left->work = NULL;
}

static void keep(ddp_communicator *c, ddp_work *work)
{
    ddp_works *s = &c->works;
    ddp_left_work *at = &s->left[s->left[0].work != NULL];

    forget(c, at);
    *at = (ddp_left_work){.work = work, .name = s->task, .since_ns = ddp_now_ns()};
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

ddp_status comm_works_failed(const ddp_communicator *c, const ddp_task_name *task, ddp_err *err)
{
    return ddp_fail_context(err, "%s %llu of %zu bytes on rank %d", task->what, (unsigned long long)task->ticket,
                            task->bytes, c->home);
}

ddp_status comm_works_timed_out(const ddp_communicator *c, const ddp_task_name *task, ddp_err *err)
{
    (void)ddp_fail(err, DDP_ERR_TIMEOUT,
                   "%s %llu of %zu bytes on rank %d did not end within %g s: "
                   "another rank%s is stuck, or raise [group] step_timeout",
                   task->what, (unsigned long long)task->ticket, task->bytes, c->home,
                   (double)c->step_timeout_ns * 1e-9, c->ops->helper != NULL ? " or an aggregator" : "");
    err->rank = c->home;
    return ddp_fail_as(err, DDP_EXIT_TIMEOUT);
}

/* DDP_IN_PROGRESS: there is one, within its limit, which runs from when the one before was seen to have ended. */
static ddp_status look(ddp_communicator *c, ddp_err *err)
{
    const ddp_left_work *first = &c->works.left[0];
    ddp_status st;

    while ((st = c->ops->work_test(first->work, err)) == DDP_OK) {
        forget(c, &c->works.left[0]);
        c->works.left[0] = c->works.left[1];
        c->works.left[0].since_ns = ddp_now_ns();
        c->works.left[1].work = NULL;
        if (first->work == NULL) return DDP_OK;
    }
    if (st != DDP_IN_PROGRESS) return comm_works_failed(c, &first->name, err);
    if (ddp_now_ns() - first->since_ns < c->step_timeout_ns) return DDP_IN_PROGRESS;
    return comm_works_timed_out(c, &first->name, err);
}

bool comm_works_are_left(const ddp_communicator *c) { return c->works.left[0].work != NULL; }

void comm_works_forget(ddp_communicator *c)
{
    for (int i = 0; i < 2; i++) forget(c, &c->works.left[i]);
}

ddp_status comm_works_watch(ddp_communicator *c, ddp_err *err)
{
    ddp_status st = look(c, err);

    if (st != DDP_OK && st != DDP_IN_PROGRESS) comm_works_forget(c);
    return st;
}

void comm_works_begin(ddp_communicator *c, ddp_task_name task, void *stream)
{
    c->works.task = task;
    c->works.stream = stream;
}

ddp_status comm_works_finish(ddp_communicator *c, ddp_status st, ddp_work *work, ddp_err *err)
{
    if (st != DDP_OK || work == NULL || (c->ops->caps & DDP_CAP_ASYNC) == 0) return st;
    return c->works.stream != NULL ? leave_in_stream(c, work, c->works.stream, err) : finish_work(c, work, err);
}
