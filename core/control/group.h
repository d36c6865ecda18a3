/* control/group.h -- the ranks of a run: meeting, agreement, named waits, the store, failure, and the communicator.
 *
 * group.c     join, leave and failure; calls.c the store and the named waits
 * control.c   the control plane: rank 0 listens on one port, every other rank has one connection to it. One control
 *             thread ("ddp-control") a rank owns the sockets; other threads post to it and wait with a deadline.
 *             Its inside is in plane.h, meet.c, door.c, server.c, waits.c, deliver.c, pulse.c
 * wire.c      frames; tls.c, identity.c TLS by a pre-shared key; store.c the key-value store on rank 0; agree.c compares the ranks' lines; address.c endpoints
 * comm.c      the communicator: one queue thread ("ddp-queue") makes every call of the backend */
#ifndef DDP_CONTROL_GROUP_H
#define DDP_CONTROL_GROUP_H

#include "base/log.h"
#include "plugin/plugin.h"
#include <ddpengine/hook.h>
#include <stdatomic.h>

typedef struct ddp_group ddp_group;

/* The first failure of the run, the same on every rank. */
typedef struct ddp_failure {
    int exit_code; /* DDP_EXIT_*, 0: none */
    int rank;      /* whose, -1 unknown */
    char msg[512];
} ddp_failure;

typedef struct ddp_group_params {
    int32_t rank, world;
    const char *world_where;      /* where world_size was set, "node1.ini:4", for messages; may be NULL */
    const char *url;              /* init_method, for messages */
    const ddp_init_ops *init_ops; /* with `init`; not used when listen_fd is given or world is 1 */
    ddp_init *init;
    int listen_fd;         /* rank 0: an already listening socket whose ownership passes to the group, or -1 */
    const char *endpoint;  /* other ranks with a supervisor: where rank 0 listens, or NULL: ask `init` */
    int64_t timeout_ms;    /* rendezvous_timeout */
    const char *agreement; /* lines "key = value\twhere\n" that must be equal on all ranks, in this order */
    /* Once ranks have met, a rank from which nothing has come for so long is lost (DDP_EXIT_TIMEOUT); 0: no heartbeats. */
    int64_t peer_timeout_ms;
    const void *secret; /* pre-shared key of the control plane's TLS, the same on all ranks; NULL: in clear */
    size_t secret_length;
    const char *secret_where; /* the file it was read from, for messages; may be NULL */
    bool auth_none; /* [group] auth = none: without a secret too, rank 0 may be at an address that others reach */
    const char *interface; /* network interface by which this rank is reached and reaches rank 0; "": as routes say */
    /* Number of the signal that asks this process to end, 0: none; set by its handler. The control thread looks at it once
     * a second and tells all ranks. May be NULL. */
    const atomic_int *stop_signal;
    ddp_log *log;
    /* Called once when the run has failed and the rank has not left within a second, from the control thread, or by
     * ddp_group_expire. */
    void (*expired)(void *ctx, const ddp_failure *cause); /* the run's first failure */
    void *expired_ctx;
} ddp_group_params;

/* Returns when all ranks have met and agree. While waiting, rank 0 names the missing ranks every 5 s, the others say that
 * rank 0 is missing. Fails with the failure's text (ddp_group_failure has the code: DDP_EXIT_RENDEZVOUS for a time-out, a rank
 * twice or out of range, a difference). world 1: no socket. */
ddp_status ddp_group_join(const ddp_group_params *p, ddp_group **out, ddp_failure *failure, ddp_err *err);
/* Says goodbye and waits (bounded) until all ranks have; after a failure just closes. */
void ddp_group_leave(ddp_group *g);

int32_t ddp_group_rank(const ddp_group *g);
int32_t ddp_group_world(const ddp_group *g);
/* Among the ranks on the same host (by host id: boot id and network namespace, exchanged at hello). */
int32_t ddp_group_local_rank(const ddp_group *g);
int32_t ddp_group_local_size(const ddp_group *g);
bool ddp_group_same_host(const ddp_group *g, int32_t rank);      /* as this rank */
const char *ddp_group_host_of(const ddp_group *g, int32_t rank); /* host name */
/* What a backend is told of this rank; `name` is unique among the communicators of the run. */
void ddp_group_comm_params(const ddp_group *g, const char *name, const ddp_store *store, int64_t timeout_ms,
                           ddp_comm_params *out);

/* A store whose keys start with `scope`; freed with the group. */
const ddp_store *ddp_group_store(ddp_group *g, const char *scope, ddp_err *err);

/* Named waits. A time-out names the wait and the ranks that have not come. DDP_ERR_ABORTED once the run has failed. */
ddp_status ddp_group_barrier(ddp_group *g, const char *name, int64_t timeout_ms, ddp_err *err);
/* Every rank gets every rank's bytes: out[r] points into *block (free()d by the caller), lengths[r] their length; at most
 * 1 MiB a rank. `out` and `lengths` hold world entries. */
ddp_status ddp_group_gather(ddp_group *g, const char *name, const void *data, size_t length, void **block,
                            const void **out, size_t *lengths, int64_t timeout_ms, ddp_err *err);
/* Compares lines as at hello ("key = value\twhere\n"); the first difference is the failure of all ranks, exit code given. */
ddp_status ddp_group_agree(ddp_group *g, const char *name, const char *lines, int exit_code, int64_t timeout_ms,
                           ddp_err *err);

/* Ends the run on all ranks: the first call of any rank wins and becomes everyone's ddp_failure. Any thread. */
void ddp_group_abort(ddp_group *g, int exit_code, const char *message);
/* After a failure, where a thread stands in what nothing can end: the rank's second is over now. Does not return where
 * `expired` ends the process. */
void ddp_group_expire(ddp_group *g);
/* True once the run has failed; fills *out. Any thread. */
bool ddp_group_failed(ddp_group *g, ddp_failure *out);
/* Called once from the control thread as soon as the run has failed (wakes what blocks outside the group). One
 * listener; set before it is needed, NULL takes it away and returns only when no call is running: a call that does not
 * return within a second ends the rank by `expired`. */
void ddp_group_on_failure(ddp_group *g, void (*fn)(void *ctx), void *ctx);
/* For "connection closed at step N". Any thread, a plain atomic store. */
void ddp_group_set_step(ddp_group *g, int64_t step);
/* The same, and where the time of that step went; rank 0 names a rank that is clearly slower than the others. Any thread, plain
 * atomics. */
void ddp_group_report_step(ddp_group *g, int64_t step, double data_ms, double compute_ms, double wait_ms);
/* Counts a collective that is about to begin, so that a time-out can name who has not come to it. Any thread. */
void ddp_group_count_collective(ddp_group *g);
/* Rank 0: a warning about the run that nobody has taken yet. */
bool ddp_group_take_warning(ddp_group *g, char *buf, size_t capacity);
/* The signal that some rank has been asked to end by, 0: none. Any thread. */
int ddp_group_stop_requested(const ddp_group *g);

#endif
