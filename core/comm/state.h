/* comm/state.h -- the struct behind ddp_communicator, in parts. No functions. */
#pragma once

#include "base/sys.h"
#include "comm/task.h"
#include <stdatomic.h>

enum {
    DDP_QUEUE_RING = DDP_MAX_PENDING,
    DDP_TASK_ALLOC = 100, /* beside DDP_COLL_*: memory of the backend */
    DDP_TASK_FREE,
    DDP_TASK_PEER,
    DDP_END_GRACE_MS = 2000, /* of the queue thread after a failure, before it is left behind */
    DDP_STUCK_MS = 200,      /* the same where nothing can wake it; the first cause reaches all ranks within that */
    /* What breaks in a backend is often the echo of a rank that has died: so long the control plane gets to name it. */
    DDP_CAUSE_GRACE_MS = 500
};

typedef struct ddp_queue_slot {
    ddp_task task;
    size_t bytes;  /* DDP_TASK_ALLOC */
    void *memory;  /* DDP_TASK_FREE, DDP_TASK_PEER */
    uint32_t rank; /* DDP_TASK_PEER */
} ddp_queue_slot;

/* A task as messages name it. */
typedef struct ddp_task_name {
    const char *what; /* "all_reduce" */
    uint64_t ticket;
    size_t bytes; /* of one rank */
} ddp_task_name;

/* A work that was left in a stream, where no wait has a deadline for it. */
typedef struct ddp_left_work {
    ddp_work *work; /* NULL: none */
    ddp_task_name name;
    int64_t since_ns;
} ddp_left_work;

/* works.c; queue thread */
typedef struct ddp_works {
    ddp_task_name task;    /* the one in hand */
    void *stream;          /* that it is left in; NULL: it is waited for */
    ddp_left_work left[2]; /* one that may not have ended, and the newest after it */
} ddp_works;

/* Between the owner (communicator.c) and the thread (queue.c); under `lock`. */
typedef struct ddp_queue {
    pthread_mutex_t lock;
    pthread_cond_t work, progress;
    bool idle, waiting; /* the queue thread sleeps on `work`; the owner on `progress` */
    bool opened, stop, ended, run_failed;
    bool abandoned;        /* the owner waits no longer: the thread frees all, and calls the plugin no more */
    uint64_t submitted;    /* ticket of the last task in the ring */
    _Atomic uint64_t done; /* ticket of the last one finished; written under `lock` */
    int64_t began_ns;      /* when the running task began; 0: none runs */
    uint64_t failed;       /* ticket of the first that failed, 0: none; `cause` says why */
    ddp_err cause;
    ddp_status alloc_status; /* of the last DDP_TASK_ALLOC or DDP_TASK_PEER, with alloc_err or `allocated` */
    ddp_err alloc_err;
    void *allocated;
    ddp_queue_slot ring[DDP_QUEUE_RING]; /* by ticket */
} ddp_queue;

struct ddp_communicator {
    /* set before the thread begins */
    ddp_group *group;
    ddp_loaded *loaded;
    const ddp_backend_ops *ops;
    const ddp_host *host;
    const void *config;
    const ddp_store *store;
    char name[48];         /* unique among the communicators of the run */
    int32_t rank, home;    /* of the run; home: by the config, for messages */
    ddp_comm_part members; /* count 0: all ranks */
    uint32_t number, size; /* this rank's number among them, and how many there are */
    int64_t step_timeout_ns;
    int32_t device_ordinal; /* -1: none */
    ddp_hook_group table;   /* fallback.c; its functions are the thread's */
    pthread_t thread;

    ddp_backend *backend; /* queue thread */
    pthread_mutex_t abort_lock;
    ddp_comm *comm; /* queue thread; under `abort_lock` it appears, is aborted, and goes */

    ddp_works works;
    ddp_queue queue;
};
