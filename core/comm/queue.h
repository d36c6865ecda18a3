/* comm/queue.h -- what comm.c (the owner's side of a communicator) and queue.c (its thread) share. */
#ifndef DDP_COMM_QUEUE_H
#define DDP_COMM_QUEUE_H

#include "base/sys.h"
#include "comm/communicator.h"

enum {
    DDP_QUEUE_RING = DDP_MAX_PENDING,
    DDP_TASK_ALLOC = 100, /* beside DDP_COLL_*: memory of the backend */
    DDP_TASK_FREE,
    DDP_TASK_PEER,
    DDP_END_GRACE_MS = 2000, /* of the queue thread after a failure, before it is left behind */
    DDP_STUCK_MS = 200       /* the same where nothing can wake it; the first cause is told to all within that */
};

typedef struct ddp_queue_slot {
    ddp_task task;
    size_t bytes;  /* DDP_TASK_ALLOC */
    void *memory;  /* DDP_TASK_FREE, DDP_TASK_PEER */
    uint32_t rank; /* DDP_TASK_PEER */
} ddp_queue_slot;

/* A work that was left in a stream, where no wait has a deadline for it. */
typedef struct ddp_left_work {
    ddp_work *work; /* NULL: none */
    const char *what;
    uint64_t ticket;
    size_t bytes;
    int64_t since_ns;
} ddp_left_work;

struct ddp_communicator {
    ddp_group *group;
    ddp_loaded *loaded;
    const ddp_backend_ops *ops;
    const ddp_host *host;
    const void *config;
    const ddp_store *store;
    char name[48]; /* unique among the communicators of the run */
    int32_t rank;
    int64_t step_timeout_ns;
    int32_t cuda_device; /* -1: none */
    pthread_t thread;

    ddp_backend *backend; /* queue thread */
    pthread_mutex_t abort_lock;
    ddp_comm *comm; /* queue thread; under `abort_lock` it appears, is aborted, and goes */

    pthread_mutex_t lock; /* guards all that follows */
    pthread_cond_t work, progress;
    bool idle, waiting; /* the queue thread sleeps on `work`; the owner on `progress` */
    bool opened, stop, ended, run_failed;
    bool abandoned;        /* the owner waits no longer: the thread frees this, and calls the plugin no more */
    uint64_t submitted;    /* ticket of the last task in the ring */
    _Atomic uint64_t done; /* ticket of the last one finished; written under `lock` */
    int64_t began_ns;      /* when the running task began; 0: none runs */
    uint64_t failed;       /* ticket of the first that failed, 0: none; `cause` says why */
    ddp_err cause;
    ddp_status alloc_status; /* of the last DDP_TASK_ALLOC or DDP_TASK_PEER, with alloc_err or `allocated` */
    ddp_err alloc_err;
    void *allocated;
    void *stream;                        /* queue thread: that the task in hand is left in; NULL: it is waited for */
    ddp_left_work left[2];               /* queue thread: one that may not have ended, and the newest behind it */
    ddp_hook_group table;                /* set before the thread begins, whose its functions are */
    ddp_queue_slot ring[DDP_QUEUE_RING]; /* by ticket */
};

/* Owner, before the thread begins: fills c->table, whose functions, for that thread alone, make a collective of the
 * backend or compose it of others. */
void ddp_compose_table(ddp_communicator *c);
ddp_status ddp_compose_all_gather(void *communicator, const ddp_coll *a, ddp_err *err);
ddp_status ddp_compose_reduce_scatter(void *communicator, const ddp_coll *a, ddp_err *err);
/* Of an asynchronous one: left in c->stream, or waited for. */
ddp_status ddp_queue_finish(ddp_communicator *c, ddp_status st, ddp_work *work, ddp_err *err);
const char *ddp_queue_what(const ddp_queue_slot *s); /* "all_reduce" */
size_t ddp_queue_bytes(const ddp_queue_slot *s);     /* of one rank */
void *ddp_queue_main(void *communicator);            /* the thread */
void ddp_communicator_destroy(ddp_communicator *c);  /* the memory alone */

#endif
