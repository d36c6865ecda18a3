/* comm/works.h -- works of the backend that go on after the call: waited for, or left in a stream and watched. Queue
 * thread. */
#pragma once

#include "comm/state.h"

/* The task in hand, and the stream that its works are left in; NULL: they are waited for. */
void comm_works_begin(ddp_communicator *c, ddp_task_name task, void *stream);
/* Ends a call of the backend that has returned `st` and maybe a work. */
ddp_status comm_works_finish(ddp_communicator *c, ddp_status st, ddp_work *work, ddp_err *err);
bool comm_works_are_left(const ddp_communicator *c);
/* DDP_IN_PROGRESS: one is left, within its limit; an error ends all that are left. */
ddp_status comm_works_watch(ddp_communicator *c, ddp_err *err);
void comm_works_forget(ddp_communicator *c);
/* Puts the task in front of an error. */
ddp_status comm_works_failed(const ddp_communicator *c, const ddp_task_name *task, ddp_err *err);
/* Any thread: the error of a task that has not ended in time, with DDP_EXIT_TIMEOUT. */
ddp_status comm_works_timed_out(const ddp_communicator *c, const ddp_task_name *task, ddp_err *err);
