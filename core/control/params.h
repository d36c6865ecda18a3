/* control/params.h -- what a rank needs to know before it joins its group. */
#pragma once

#include "base/log.h"
#include "control/failure.h"
#include <ddpengine/init.h>
#include <stdatomic.h>

typedef struct ddp_group ddp_group;

/* A process that waits for the place of a rank that is missing. */
enum { DDP_RANK_OF_SPARE = -2 };
/* A process that is no rank and helps them: rank0/helpers.h. */
enum { DDP_RANK_OF_HELPER = -3 };

/* Who has to come to a rendezvous. */
typedef struct ddp_quorum {
    int32_t server; /* the rank that serves the others: 0, or another one where that is lost */
    /* With so many ranks the run goes on where the others have not come in time; 0: none may be missing. */
    int32_t min_world;
    int32_t enough; /* with so many it does so at once; 0: all */
    /* Other ranks: the server may be elsewhere, so one attempt is made, of so long at most. Where it fails the join is
     * DDP_ERR_TIMEOUT, or DDP_ERR_PEER if this rank has waited for a place at a server and is to look again; neither is
     * a failure of the run. 0: until the time-out of the rendezvous. */
    int64_t attempt_ms;
    /* Server: how long ranks of a later generation than its own wait for it; 0: as long as it does for them. */
    int64_t rejoin_ms;
} ddp_quorum;

/* What a process has been in before it joins. */
typedef struct ddp_past {
    /* Each rendezvous of the ranks makes a generation of the run, whose number is the same on all of them; this process
     * has been in so many. */
    uint32_t generation;
    /* And each start of the run has a number, a later one a higher; 0: this process has been in no generation. Where
     * processes of several starts come together, the latest counts for all of them (ddp_group_start). */
    uint64_t start;
    bool restarted;  /* server: a process before this one has served, so the other ranks may be in the run already */
    bool *displaced; /* in and out: this process has waited for a place that another one had; may be NULL */
} ddp_past;

typedef struct ddp_group_params {
    int32_t rank, world; /* by the config; rank may be DDP_RANK_OF_SPARE or DDP_RANK_OF_HELPER */
    ddp_quorum quorum;
    const char *world_where;      /* where world_size was set, "node1.ini:4", for messages; may be NULL */
    const char *url;              /* init_method, for messages */
    const ddp_init_ops *init_ops; /* with `init`; not used when listen_fd is given or world is 1 */
    ddp_init *init;
    int listen_fd;            /* rank 0: an already listening socket whose ownership passes to the group, or -1 */
    const char *endpoint;     /* other ranks with a supervisor: where rank 0 listens, or NULL: ask `init` */
    int64_t timeout_ms;       /* of the rendezvous */
    const char *timeout_name; /* the key it comes from, for messages; NULL: rendezvous_timeout */
    ddp_past past;
    /* A rank that is lost while the others wait is waited for; a process that comes too early for the next generation
     * is told to try again. */
    bool rejoins;
    const char *agreement; /* lines "key = value\twhere\n" that must be equal on all ranks, in this order */
    /* After the rendezvous, a rank from which nothing has come for so long is lost (DDP_EXIT_TIMEOUT); 0: no
     * heartbeats. */
    int64_t peer_timeout_ms;
    const void *secret; /* pre-shared key of the control plane's TLS, the same on all ranks; NULL: in clear */
    size_t secret_length;
    const char *secret_where; /* the file it was read from, for messages; may be NULL */
    bool auth_none; /* [group] auth = none: without a secret too, rank 0 may be at an address that others reach */
    const char
        *interface; /* network interface by which this rank is reached and reaches rank 0; "": as the routes choose */
    /* Number of the signal that asks this process to end, 0: none; set by its handler. The control thread looks at
     * it twice a second and passes it on to all ranks. May be NULL. */
    const atomic_int *stop_signal;
    int32_t ranks_per_hub; /* rank 0's counts; 0: all ranks speak to rank 0 itself */
    ddp_log *log;
    /* Called once when the run has failed and the rank has not left within a second, from the control thread, or by
     * ddp_group_expire. */
    void (*expired)(void *ctx, const ddp_failure *cause); /* the run's first failure */
    void *expired_ctx;
} ddp_group_params;
