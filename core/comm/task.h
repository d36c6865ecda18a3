/* comm/task.h -- what a communicator is asked to do: one collective, or a call in place of one. */
#pragma once

#include "control/group.h"
#include "plugin/plugin.h"
#include <ddpengine/hook.h>

typedef struct ddp_communicator ddp_communicator;

/* Some ranks of the run, which have a communicator of their own. */
#define DDP_COMM_PART_MAX 64
typedef struct ddp_comm_part {
    const char *name; /* unique in the run, at most 40 characters; lives for the call that is given it */
    uint32_t count;
    int32_t ranks[DDP_COMM_PART_MAX]; /* in the order of their numbers there */
} ddp_comm_part;

/* ALL_GATHER and REDUCE_SCATTER are composed where the backend lacks them, of a broadcast from each rank and of an
 * all_reduce: a reduce_scatter in place may leave anything in the other ranks' parts. CALL runs `call` in place of a
 * collective. */
enum {
    DDP_COLL_ALL_REDUCE = 1,
    DDP_COLL_BROADCAST,
    DDP_COLL_ALL_GATHER,
    DDP_COLL_REDUCE_SCATTER,
    DDP_COLL_BARRIER,
    DDP_COLL_CALL,
    DDP_COLL_SEND, /* to, and from, the rank of number coll.root (CAP_SEND_RECV) */
    DDP_COLL_RECV,
    DDP_COLL_END_
};

enum { DDP_MAX_PENDING = 256 };

typedef struct ddp_task {
    uint32_t what; /* DDP_COLL_* */
    ddp_coll coll;
    void (*before)(void *ctx); /* on the queue thread just before the collective, or NULL */
    void (*after)(void *ctx);  /* the same when it has succeeded; gets before_ctx */
    void *before_ctx;
    ddp_status (*call)(void *ctx,
                       ddp_err *err); /* CALL: on the queue thread; may use the table of ddp_communicator_group */
    void *call_ctx;
    size_t bytes; /* CALL: of a rank, for messages */
    bool enqueue; /* with coll.stream: done once it stands in that stream's order, whenever it ends */
} ddp_task;
