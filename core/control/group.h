/* control/group.h -- the ranks of a run: rendezvous, agreement, named waits, the store, failure.
 *
 * group.c      join, leave, abort             request.h    the store and the named waits
 * params.h     what a rank knows before       run.h        failure of the run, warning, signal to stop
 * failure.h    why a run ends                 straggler.h  the times of steps
 *
 * Inside: one control thread a rank ("ddp-control", control.c) owns the sockets; other threads post frames to it and
 * wait with a deadline. Rank 0 listens at one port, every other rank has one connection to it (peer.c). What rank 0
 * does for all is in rank0/, what every rank does in client.c; heartbeat.c has signs of life, state.h the data. */
#pragma once

#include "control/request.h"
#include "control/run.h"
#include "control/straggler.h"
#include "control/times/collect.h"
#include "control/times/times.h"

/* Returns when the rendezvous is complete and all ranks agree. While waiting, rank 0 names the missing ranks every 5
 * s, the others log that rank 0 is missing. On failure err carries the exit code (DDP_EXIT_RENDEZVOUS for a
 * time-out, a rank twice or out of range, a difference), and *failure the same as all ranks hear it. world 1: no
 * socket. DDP_IN_PROGRESS: the run has ended well, and has not needed this spare. */
ddp_status ddp_group_join(const ddp_group_params *p, ddp_group **out, ddp_failure *failure, ddp_err *err);
/* Says goodbye and waits (bounded) until all ranks have; after a failure just closes. *failure (may be NULL): that of
 * the run, where there is one by then. */
void ddp_group_leave(ddp_group *g, ddp_failure *failure);
/* Whether the run has ended, well or not: waits so long for that. */
bool ddp_group_wait_over(ddp_group *g, int64_t ms);
/* After a failure: the rank keeps what it has and joins again, for which it gets half a minute instead of a second. */
void ddp_group_returning(ddp_group *g);
/* Ends the run on all ranks: the first call of any rank wins and becomes everyone's ddp_failure. Any thread. */
void ddp_group_abort(ddp_group *g, int exit_code, const char *message);

/* Of this generation: where ranks are missing, those that are there have the numbers from 0 on, in the order of their
 * ranks by the config, but that the server is 0. */
int32_t ddp_group_rank(const ddp_group *g);
int32_t ddp_group_world(const ddp_group *g);
int32_t ddp_group_helper(const ddp_group *g);             /* of a helper: its number, from 0 on */
const char *ddp_group_host(const ddp_group *g);           /* name of this host */
const char *ddp_group_address(const ddp_group *g);        /* by which others reach it */
int32_t ddp_group_home(const ddp_group *g, int32_t rank); /* the rank of the config */
/* Rank 0, when the generation has ended: ranks that were not in it and can be in the next one. */
int32_t ddp_group_knocks(const ddp_group *g);
uint32_t ddp_group_generation(const ddp_group *g);      /* from 0 */
const char *ddp_group_timeout_name(const ddp_group *g); /* the key that its rendezvous was bound by */
uint64_t ddp_group_start(const ddp_group *g);           /* of the run: params.h */
/* Among the ranks on the same host (by host id: boot id and network namespace, exchanged at hello). */
int32_t ddp_group_local_rank(const ddp_group *g);
int32_t ddp_group_local_size(const ddp_group *g);
int32_t ddp_group_hosts(const ddp_group *g);                     /* how many hosts the ranks are on */
bool ddp_group_same_host(const ddp_group *g, int32_t rank);      /* as this rank */
const char *ddp_group_host_of(const ddp_group *g, int32_t rank); /* host name */
/* What a backend learns of this rank; `name` is unique among the communicators of the run. */
void ddp_group_comm_params(const ddp_group *g, const char *name, const ddp_store *store, int64_t timeout_ms,
                           ddp_comm_params *out);
