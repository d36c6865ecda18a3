/* comm/hierarchy/state.h -- the structs behind a hierarchy's ddp_backend and ddp_comm. No functions. */
#pragma once

#include "base/sys.h"
#include "comm/hierarchy/hierarchy.h"
#include "comm/hierarchy/layout.h"
#include <stdatomic.h>

enum {
    HIERARCHY_LOCAL = 0,
    HIERARCHY_REMOTE,
    HIERARCHY_AHEAD = 16,             /* parts that may be under way between the hosts */
    HIERARCHY_BLOCKS = 2 << 20,       /* bytes of a buffer of blocks.c */
    HIERARCHY_SMALL = 64 << 10,       /* bytes that are not cut up */
    HIERARCHY_PART_LEAST = 512 << 10, /* of one part, bytes */
    HIERARCHY_PART_MOST = 8 << 20
};

/* make.c: what the users of the hierarchy pass to it as its config. */
typedef struct hierarchy_config {
    ddp_half halves[2]; /* HIERARCHY_LOCAL, HIERARCHY_REMOTE */
    const char *name;   /* "shm+gloo-tcp" */
} hierarchy_config;

/* A store of the same ranks under keys of its own; scope.c */
typedef struct hierarchy_scope {
    ddp_store store;
    const ddp_store *under;
    char prefix[24];
} hierarchy_scope;

/* A communicator of one of the halves. */
typedef struct hierarchy_side {
    const ddp_backend_ops *ops;
    ddp_comm *comm; /* NULL: this rank is in none */
    int64_t timeout_ms;
    hierarchy_scope scope;
    char group[96];
} hierarchy_side;

typedef struct hierarchy_job {
    hierarchy_side *side;
    ddp_collective call; /* NULL: the barrier */
    ddp_coll coll;
    uint32_t divide; /* what the result is divided by; 0: it is not */
} hierarchy_job;

/* wire.c; under `lock` */
typedef struct hierarchy_wire {
    pthread_t thread;
    bool started; /* queue thread */
    pthread_mutex_t lock;
    pthread_cond_t work, progress;
    bool opened, stop;
    uint64_t posted, done; /* tickets 1, 2, ... */
    ddp_status status;     /* of the first job that failed, or of connecting */
    ddp_err err;
    hierarchy_job ring[HIERARCHY_AHEAD];
} hierarchy_wire;

typedef struct hierarchy_backend {
    const ddp_host *host;
    const hierarchy_config *config;
    ddp_backend *local; /* opened; of the remote half each communicator opens its own, on its thread */
} hierarchy_backend;

typedef struct hierarchy_comm {
    hierarchy_backend *backend;
    ddp_comm_params params;
    int64_t connect_by_ms;
    hierarchy_layout layout;
    uint32_t supported[DDP_DTYPE_END_]; /* a bit for each operation */
    bool splits;                        /* parts are scattered; else they go to one channel whole */
    bool broken;                        /* a collective has failed: queue thread */
    atomic_bool aborted;
    /* `within` this host; `channel`: the ranks of all hosts that have this one's channel; `all` ranks by the remote
     * half. Where all ranks share a host there is `within` alone, where no two do `all` alone: that does everything. */
    hierarchy_side within, channel, all;
    struct {
        char *all[2], *near[2]; /* NULL: blocks are not composed */
    } blocks;
    hierarchy_wire wire;
} hierarchy_comm;

static inline bool hierarchy_one_host(const hierarchy_comm *c) { return c->layout.hosts == 1; }
static inline bool hierarchy_all_apart(const hierarchy_comm *c) { return c->layout.hosts == c->layout.world; }
