/* control/run.h -- what this rank knows of the run: has it failed, is the rendezvous complete, who leaves, which
 * signal asks it to stop; and the frames that wait for the control thread. */
#pragma once

#include "control/params.h"

/* Among the numbers of signals: the generation is to end at a step, because another rank can join the next one. */
enum { DDP_STOP_TO_GROW = 1000 };

/* ---- the owner; any thread --------------------------------------------------------------------------------------- */
/* True once the run has failed; fills *out. */
bool ddp_group_failed(ddp_group *g, ddp_failure *out);
/* After a failure, where a thread stands in what nothing can end: the rank's second is over now. Does not return where
 * `expired` ends the process. */
void ddp_group_expire(ddp_group *g);
/* fn(ctx) is called once from the control thread as soon as the run has failed (wakes what blocks outside the group);
 * one for each ctx, set before it is needed. NULL takes that of ctx away and returns only when no call of it is
 * running: a call that does not return within a second ends the rank by `expired`. False: there are too many. */
bool ddp_group_on_failure(ddp_group *g, void (*fn)(void *ctx), void *ctx);
/* Rank 0: a warning about the run that nobody has taken yet. */
bool ddp_group_take_warning(ddp_group *g, char *buf, size_t capacity);
/* Before this rank leaves in good order: all ranks have agreed to join again, with those that wait. */
void ddp_group_grow(ddp_group *g);
bool ddp_group_is_to_grow(const ddp_group *g);
/* The signal that some rank has been asked to end by, or DDP_STOP_TO_GROW; 0: none. */
int ddp_group_stop_requested(const ddp_group *g);

/* ---- inside the control plane; any thread ------------------------------------------------------------------------ */
ddp_status control_run_open(ddp_group *g, const ddp_group_params *p, ddp_err *err);
void control_run_close(ddp_group *g);
void control_run_wake(ddp_group *g); /* the control thread */
/* Queues a frame for the server; the payload is taken over. */
ddp_status control_run_post(ddp_group *g, uint32_t type, ddp_text *payload, ddp_err *err);
/* The first failure stays. */
void ddp_run_fail(ddp_group *g, const ddp_failure *f);
void control_run_warn(ddp_group *g, const char *text);
/* This rank leaves by itself; false when the run has failed. */
bool control_run_leave(ddp_group *g);
/* After a failure: `expired` is called no earlier than so long from now. */
void control_run_postpone_expiry(ddp_group *g, int64_t ms);
/* The control thread is to end. */
void control_run_stop(ddp_group *g);
/* Waits until the rendezvous is complete or the run has failed; false once the deadline has passed. */
bool control_run_wait_met(ddp_group *g, int64_t deadline_ns);
/* Waits until rank 0 has said farewell or the run has failed; false once the deadline has passed. */
bool control_run_wait_end(ddp_group *g, int64_t deadline_ns);

/* ---- the control thread ------------------------------------------------------------------------------------------ */
struct ddp_post;
struct ddp_post *control_run_take_posts(ddp_group *g); /* oldest first; free() each */
void ddp_run_met(ddp_group *g);                        /* the ranks are known: the rendezvous is complete */
void control_run_farewell(ddp_group *g);
/* The connection to rank 0 is gone; true when that is no failure, because one of the two has taken its leave. */
bool control_run_rank0_gone(ddp_group *g);
void control_run_asked_to_stop(ddp_group *g, int sig);
void control_run_ask_to_grow(ddp_group *g, bool on); /* rank 0 */
bool control_run_is_over(ddp_group *g);              /* failed, or this rank or rank 0 leaves */
bool control_run_has_farewell(ddp_group *g);
bool control_run_stops(ddp_group *g);
/* The owner's callbacks, where they are due; the second returns its deadline. */
void control_run_call_listeners(ddp_group *g);
int64_t control_run_call_expired(ddp_group *g, int64_t now);
/* " at step 17", " before all ranks had met" or nothing. */
void control_run_when(const ddp_group *g, char *buf, size_t capacity);
