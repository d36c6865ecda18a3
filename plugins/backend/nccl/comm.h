/* plugins/backend/nccl/comm.h -- the inside of backend nccl: its communicator, its works, and who may touch what.
 *
 * Stream-ordered: every collective runs on the communicator's own stream of high priority, after what the caller's
 * stream had when it was issued (an event, no wait of the host), and ends with an event of its own, which is the work.
 * So a work is finished when its event is, and a caller's stream can be made to wait for it.
 *
 * The NCCL communicator is non-blocking, so that no call of the library blocks while a peer is missing: each is polled
 * until the library has put its kernel on the stream. `lock` is held while a thread is inside the library, never while
 * one sleeps. comm_abort sets `aborted`, which all polls see, and ends the library's communicator under `lock`; if a
 * thread stays inside the library, that thread does it on its way out (ddp_nccl_leave). After that `nccl` is NULL.
 *
 * Files: backend.c tables and check; comm.c create, abort, destroy; launch.c from a call to its event; collective.c the
 * collectives; work.c test, wait, free; memory.c mem_alloc; interface.c NCCL_SOCKET_IFNAME; runtime.c the libraries. */
#pragma once

#include "runtime.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

/* Works that may be pending at once: with their copies and waits well below what a CUDA stream queues before a
 * launch blocks. */
#define DDP_NCCL_WORKS 256

typedef struct ddp_nccl_config {
    const char *library, *cuda_library, *driver_library;
    int32_t registration;
} ddp_nccl_config;

struct ddp_backend {
    const ddp_host *host;
    ddp_nccl_config config;
    ddp_nccl_runtime runtime;
};

struct ddp_work {
    ddp_comm *comm;
    cudaEvent_t event; /* after the collective on the communicator's stream */
    const char *what;
    uint64_t sequence; /* of the communicator's collectives, from 1 */
    size_t bytes;
    ddp_status status; /* DDP_IN_PROGRESS until it is known; of the thread that owns the handle */
    ddp_work *next;    /* in the pool */
};

typedef struct ddp_nccl_block { /* of mem_alloc */
    void *memory, *handle;      /* handle: of the registration; NULL: not registered */
    struct ddp_nccl_block *next;
} ddp_nccl_block;

struct ddp_comm {
    const ddp_host *host;
    const ddp_nccl_runtime *runtime;
    const ddp_store *store;
    int64_t timeout_ms;
    uint32_t rank, world;
    int device;
    bool registration;
    cudaStream_t stream;
    cudaEvent_t input;    /* what the caller's stream had; recorded again for each collective */
    void *barrier_cell;   /* 4 bytes of device memory that a barrier adds up */
    uint64_t sequence;    /* of the thread that issues collectives */
    cudaError_t own_copy; /* failure of a copy within a collective; the same thread's */
    ddp_nccl_block *blocks;

    atomic_bool aborted;
    pthread_mutex_t lock; /* of the next two, and of every call of NCCL with `nccl` */
    ncclComm_t nccl;      /* NULL before init and after the abort */
    ddp_err cause;        /* why the communicator is broken; status 0 while it is not */

    pthread_mutex_t pool_lock;
    ddp_work *pool;
    ddp_work works[DDP_NCCL_WORKS];
};

/* ---- launch.c ---- */
/* Growing pauses between two looks at something that another device or rank changes. */
typedef struct ddp_nccl_pause {
    unsigned looks;
} ddp_nccl_pause;
void ddp_nccl_pause_once(ddp_nccl_pause *p);
int64_t ddp_nccl_now_ns(void);
int64_t ddp_nccl_deadline_ns(int64_t timeout_ms); /* from now; negative counts as 0 */

/* Takes `lock`; fails, without it, when the communicator is aborted or broken. */
ddp_status ddp_nccl_enter(ddp_comm *c, const char *what, ddp_err *err);
/* Gives `lock` back, and does what an abort had to leave to this thread. */
void ddp_nccl_leave(ddp_comm *c);
/* `lock` held: ends the library's communicator, once. */
void ddp_nccl_abort_now(ddp_comm *c);
/* `lock` held: keeps the first error as the cause, for all later calls. Returns its status. */
ddp_status ddp_nccl_break(ddp_comm *c, const ddp_err *err);
/* `lock` held, given up while it sleeps: waits until the library has done what it answered `result` to. */
ddp_status ddp_nccl_settle(ddp_comm *c, ncclResult_t result, int64_t timeout_ms, const char *what, ddp_err *err);

/* Issues a collective's calls of NCCL on c->stream; `lock` is held. */
typedef ncclResult_t (*ddp_nccl_issue)(ddp_comm *c, const ddp_coll *a);
/* From arguments that are checked to a work. `issue` NULL: nothing to do, the work is finished from the start. */
ddp_status ddp_nccl_start(ddp_comm *c, const char *what, const ddp_coll *a, size_t bytes, ddp_nccl_issue issue,
                          ddp_work **out, ddp_err *err);

/* ---- work.c ---- */
ddp_status ddp_nccl_work_test(ddp_work *w, ddp_err *err);
ddp_status ddp_nccl_work_wait(ddp_work *w, int64_t timeout_ms, ddp_err *err);
ddp_status ddp_nccl_work_stream_wait(ddp_work *w, void *stream, ddp_err *err);
void ddp_nccl_work_free(ddp_work *w);
ddp_status ddp_nccl_pool_open(ddp_comm *c, ddp_err *err);
void ddp_nccl_pool_close(ddp_comm *c);
ddp_work *ddp_nccl_pool_take(ddp_comm *c);

/* ---- comm.c ---- */
ddp_status ddp_nccl_comm_create(ddp_backend *b, const ddp_comm_params *p, ddp_comm **out, ddp_err *err);
void ddp_nccl_comm_abort(ddp_comm *c);
void ddp_nccl_comm_destroy(ddp_comm *c);
/* Makes the communicator's device the current one of the thread, and leaves it so: going back to one that the
 * process does not use would make a context there, some 500 MB. The threads that call are the backend's alone. */
void ddp_nccl_use_device(const ddp_comm *c);

/* ---- collective.c ---- */
ddp_status ddp_nccl_supports(ddp_comm *c, uint32_t dtype, uint32_t op);
ddp_status ddp_nccl_all_reduce(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err);
ddp_status ddp_nccl_broadcast(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err);
ddp_status ddp_nccl_all_gather(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err);
ddp_status ddp_nccl_reduce_scatter(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err);
ddp_status ddp_nccl_reduce(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err);
ddp_status ddp_nccl_gather(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err);
ddp_status ddp_nccl_scatter(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err);
ddp_status ddp_nccl_all_to_all(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err);
ddp_status ddp_nccl_send(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err);
ddp_status ddp_nccl_recv(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err);
ddp_status ddp_nccl_barrier(ddp_comm *c, ddp_work **out, ddp_err *err);

/* ---- memory.c ---- */
ddp_status ddp_nccl_mem_alloc(ddp_comm *c, size_t bytes, void **out, ddp_err *err);
void ddp_nccl_mem_free(ddp_comm *c, void *p);
void ddp_nccl_deregister_all(ddp_comm *c); /* before the communicator ends */
void ddp_nccl_free_all(ddp_comm *c);       /* after it has */

/* ---- interface.c ---- */
/* Sets NCCL's network interface: `interface`, else that of `address` unless the environment names one.
 * Either may be NULL or empty. */
void ddp_nccl_use_interface(const ddp_host *host, const char *interface, const char *address);
