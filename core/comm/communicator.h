/* comm/communicator.h -- collectives of one backend plugin over the ranks of a group, in the order in which they are
 * submitted. The plugin is called by one thread, "ddp-queue"; all functions here come from one thread, the owner. */
#pragma once

#include "comm/task.h"

/* Starts the queue thread, opens the backend there and connects all ranks; where that takes longer than
 * rendezvous_timeout the run is aborted with DDP_EXIT_RENDEZVOUS; in a generation after the first it is rejoin_timeout,
 * and DDP_EXIT_PEER. `backend` and `config` live until close.
 * `device_ordinal`: of the device whose memory it is to take, -1: the host's. All functions but abort come from one
 * thread. */
ddp_status ddp_communicator_open(ddp_group *g, ddp_loaded *backend, const ddp_host *host, const void *config,
                                 int32_t device_ordinal, int64_t step_timeout_ms, ddp_communicator **out, ddp_err *err);
/* The same among some ranks alone, this one among them; each of those calls it, and no other. Queue threads of several
 * communicators work side by side. */
ddp_status ddp_communicator_open_part(ddp_group *g, ddp_loaded *backend, const ddp_host *host, const void *config,
                                      int64_t step_timeout_ms, const ddp_comm_part *part, ddp_communicator **out,
                                      ddp_err *err);
/* False after a failed run whose plugin call does not return: the queue thread is left behind, and whatever it was
 * given (buffers, `before_ctx`) must stay until the process ends. */
bool ddp_communicator_close(ddp_communicator *c);
/* Whether a backend can do all that training asks of one; the error names what is missing. `takes_device`: it reduces
 * the device's memory; else it must reduce the host's, where gradients are copied. */
ddp_status ddp_backend_check(const ddp_loaded *backend, bool takes_device, ddp_err *err);
/* Queues a collective (at most DDP_MAX_PENDING that have not ended) and returns its ticket, 1, 2, ...; allocates
 * nothing. */
ddp_status ddp_communicator_submit(ddp_communicator *c, const ddp_task *task, uint64_t *ticket, ddp_err *err);
/* Waits until it is done: DDP_OK or its error. After step_timeout the run is aborted with DDP_EXIT_TIMEOUT and the
 * text names collective, sequence number, bytes and rank. */
ddp_status ddp_communicator_wait(ddp_communicator *c, uint64_t ticket, ddp_err *err);
/* Whether it has ended, well or not; waits for nothing. */
bool ddp_communicator_is_done(ddp_communicator *c, uint64_t ticket);
/* submit and wait */
ddp_status ddp_communicator_run(ddp_communicator *c, const ddp_task *task, ddp_err *err);
/* It was opened to reduce the device's memory. */
bool ddp_communicator_takes_device(const ddp_communicator *c);
uint64_t ddp_communicator_caps(const ddp_communicator *c);
/* Collectives for the `call` of a task; valid until close. */
const ddp_hook_group *ddp_communicator_group(ddp_communicator *c);
/* Between two ranks (CAP_SEND_RECV), within a `call` of both: root is the other one's number. Queue thread. */
ddp_status ddp_communicator_send(ddp_communicator *c, const ddp_coll *a, ddp_err *err);
ddp_status ddp_communicator_recv(ddp_communicator *c, const ddp_coll *a, ddp_err *err);
/* The queue thread works only while the calling thread waits: it gets that one's processors, where the caches are
 * warm. */
void ddp_communicator_stay_near(ddp_communicator *c);
/* Memory of the backend (CAP_MEM_ALLOC), through the queue thread; collective. */
ddp_status ddp_communicator_alloc(ddp_communicator *c, size_t bytes, void **out, ddp_err *err);
void ddp_communicator_free(ddp_communicator *c, void *p);
/* Where the memory that `rank` got when this rank got `p` lies in this process (CAP_MEM_PEER); not collective. */
ddp_status ddp_communicator_peer(ddp_communicator *c, void *p, uint32_t rank, void **out, ddp_err *err);
