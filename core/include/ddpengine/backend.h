/* ddpengine/backend.h -- kind `backend`: collectives between the ranks of a communicator.
 *
 * Two sorts: blocking (host memory; a call returns when the collective is done, CAP_ASYNC unset) and stream-ordered.
 * Every call of a blocking backend, `open` to `close`, comes from one thread, the core's queue thread of that
 * communicator; only comm_abort comes from others. All ranks issue the same collectives in the same order.
 *
 * `count` is elements per rank: recv of all_gather and gather, send of reduce_scatter, scatter and all_to_all hold
 * count x world. In place is send == recv; for all_gather send == recv + rank * count, for reduce_scatter
 * recv == send + rank * count; any other overlap is DDP_ERR_INVALID. count 0 and world 1 are legal everywhere.
 */
#ifndef DDPENGINE_BACKEND_H
#define DDPENGINE_BACKEND_H

#include <ddpengine/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DDP_BACKEND_ABI 1u

/* Capability bits. A bit is set if and only if its slots are non-NULL; unknown bits are ignored. */
#define DDP_CAP_ALL_REDUCE     (1ull << 0)
#define DDP_CAP_BROADCAST      (1ull << 1)
#define DDP_CAP_ALL_GATHER     (1ull << 2)
#define DDP_CAP_REDUCE_SCATTER (1ull << 3)
#define DDP_CAP_BARRIER        (1ull << 4)
#define DDP_CAP_REDUCE         (1ull << 5)
#define DDP_CAP_GATHER         (1ull << 6)
#define DDP_CAP_SCATTER        (1ull << 7)
#define DDP_CAP_ALL_TO_ALL     (1ull << 8)
#define DDP_CAP_SEND_RECV      (1ull << 9)
#define DDP_CAP_ASYNC          (1ull << 16) /* start returns before completion: work_test, work_wait, work_free */
#define DDP_CAP_STREAM         (1ull << 17) /* honours ddp_coll.stream: work_stream_wait */
#define DDP_CAP_MEM_HOST       (1ull << 18) /* reduces host memory */
#define DDP_CAP_MEM_CUDA       (1ull << 19) /* reduces CUDA memory */
#define DDP_CAP_MEM_ALLOC      (1ull << 20) /* mem_alloc, mem_free: gradients are born in its memory */
#define DDP_CAP_ABORT          (1ull << 21) /* comm_abort wakes a blocked call within 100 ms */

enum { DDP_SUM = 1, DDP_AVG, DDP_MIN, DDP_MAX, DDP_REDUCE_OP_END_ }; /* AVG: sum over the ranks / world_size */

typedef struct ddp_backend ddp_backend; /* these three are defined by the plugin */
typedef struct ddp_comm ddp_comm;
typedef struct ddp_work ddp_work;

typedef struct ddp_comm_params {
    uint32_t struct_size, rank, world_size, local_rank; /* local_rank: among the ranks of this host */
    uint32_t local_size, reserved0;
    int64_t timeout_ms;     /* of connecting and of one collective; the core's own deadlines are shorter */
    const char *group;      /* unique for each communicator */
    const char *address;    /* this rank's own address as rank 0 reaches it, "192.0.2.7" or "127.0.0.1" */
    const ddp_store *store; /* valid until comm_destroy returns */
} ddp_comm_params;

typedef struct ddp_coll {
    uint32_t struct_size, dtype, op, root; /* root: of broadcast, reduce, gather, scatter; peer of send, recv */
    const void *send;
    void *recv;
    size_t count;
    void *stream; /* device stream that the input is produced on, or NULL */
} ddp_coll;

typedef ddp_status (*ddp_collective)(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err);

typedef struct ddp_backend_ops {
    uint32_t struct_size, reserved0;
    uint64_t caps;
    ddp_status (*open)(const ddp_host *host, const void *config, ddp_backend **out, ddp_err *err);
    void (*close)(ddp_backend *b);
    /* Connects all ranks of the communicator; returns when every one is reachable. Cleans up itself on failure. */
    ddp_status (*comm_create)(ddp_backend *b, const ddp_comm_params *p, ddp_comm **out, ddp_err *err);
    /* Any thread, any time before comm_destroy, repeatable; pending and later calls end with DDP_ERR_ABORTED. */
    void (*comm_abort)(ddp_comm *c);
    void (*comm_destroy)(ddp_comm *c); /* never communicates after an abort */
    ddp_status (*supports)(ddp_comm *c, uint32_t dtype, uint32_t op); /* DDP_OK or DDP_ERR_UNSUPPORTED */
    ddp_collective all_reduce;
    ddp_collective broadcast; /* in place on `recv`; `send` is ignored */
    ddp_collective all_gather;
    ddp_collective reduce_scatter;
    ddp_status (*barrier)(ddp_comm *c, ddp_work **out, ddp_err *err);
    ddp_collective reduce;
    ddp_collective gather;
    ddp_collective scatter;
    ddp_collective all_to_all;
    ddp_collective send;
    ddp_collective recv;
    /* Collective: same order and bytes on all ranks, outside steps. 64-byte aligned, zero-filled. */
    ddp_status (*mem_alloc)(ddp_comm *c, size_t bytes, void **out, ddp_err *err);
    void (*mem_free)(ddp_comm *c, void *p);
    /* Of CAP_ASYNC. A blocking backend leaves *out untouched and these NULL. */
    ddp_status (*work_test)(ddp_work *w, ddp_err *err);
    ddp_status (*work_wait)(ddp_work *w, int64_t timeout_ms, ddp_err *err);
    ddp_status (*work_stream_wait)(ddp_work *w, void *stream, ddp_err *err);
    void (*work_free)(ddp_work *w);
} ddp_backend_ops;

#ifdef __cplusplus
}
#endif
#endif
