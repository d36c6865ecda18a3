/* ddpengine/backend.h -- kind `backend`: collectives between the ranks of a communicator.
 *
 * Its descriptor says which kinds of memory it reduces, how far it reaches, and its priority for `auto`. Two sorts:
 * blocking (host memory; a call returns when the collective is done; CAP_ASYNC unset) and stream-ordered (CAP_ASYNC,
 * CAP_STREAM). One thread, the core's queue thread of that communicator, makes all calls from `open` to `close`; only
 * comm_abort comes from others. All ranks make the same collectives in the same order.
 *
 * `count` is elements per rank: recv of all_gather and gather, send of reduce_scatter, scatter and all_to_all hold
 * count x world; recv of reduce and gather and send of scatter are used at the root alone. count 0 and world 1 are
 * legal everywhere. A count whose bytes times world are more than PTRDIFF_MAX is DDP_ERR_INVALID on every rank.
 *
 * In place means these addresses. Any other overlap of a rank's buffers is DDP_ERR_INVALID on that rank.
 *     all_reduce, reduce          send == recv (reduce: at the root)
 *     all_gather, gather          send == recv + rank * count (gather: at the root)
 *     reduce_scatter, scatter     recv == send + rank * count (scatter: at the root)
 *     all_to_all                  none
 *     broadcast                   always: on recv, send is ignored
 * */
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
#define DDP_CAP_MEM_ALLOC      (1ull << 18) /* mem_alloc, mem_free: gradients are kept in its memory */
#define DDP_CAP_ABORT          (1ull << 19) /* comm_abort wakes a blocked call within 100 ms */
#define DDP_CAP_MEM_PEER       (1ull << 20) /* mem_peer: ranks load and store in each other's mem_alloc */

enum { DDP_SUM = 1, DDP_AVG, DDP_MIN, DDP_MAX, DDP_REDUCE_OP_END_ }; /* AVG: sum over the ranks / world_size */

typedef struct ddp_backend ddp_backend; /* these three are defined by the plugin */
typedef struct ddp_comm ddp_comm;
typedef struct ddp_work ddp_work;

typedef struct ddp_comm_params {
    uint32_t struct_size, rank, world_size, local_rank; /* local_rank: among the ranks of this host */
    uint32_t local_size, reserved0;
    int64_t timeout_ms;     /* of one collective; the core's own deadlines are shorter */
    const char *group;      /* name of the communicator, unique in the run */
    const char *address;    /* this rank's own address as rank 0 reaches it, "192.0.2.7" or "127.0.0.1" */
    const ddp_store *store; /* valid until comm_destroy returns */
    const char *interface;  /* [group] interface of this rank, "eth0"; "": not given, go by `address` */
    int32_t device_ordinal; /* of this rank's device, where the backend reduces that device's memory; -1: the host's */
    int32_t reserved1;
    int64_t connect_timeout_ms; /* of comm_create: by then all ranks are connected, or the error names one missing */
} ddp_comm_params;

/* The struct lives for the call, the buffers until the collective has ended. */
typedef struct ddp_coll {
    uint32_t struct_size, dtype, op, root; /* root: of broadcast, reduce, gather, scatter; peer of send, recv */
    const void *send;
    void *recv;
    size_t count;
    void *stream; /* of CAP_STREAM: the device's stream whose earlier work makes the input; NULL: it is ready */
} ddp_coll;

/* For a backend whose ranks must be started by a launcher such as mpirun. */
typedef struct ddp_launcher_ops {
    uint32_t struct_size, reserved0;
    /* The command line, with "%n" for the number of ranks: "mpirun --bind-to none -np %n". NAME=value words in front
     * of it are environment variables, set unless the user has set them. Each rank learns its number from the
     * launcher's variables. The launcher's exit code must be that of the first rank that failed. */
    const char *command;
    const char *install; /* Optional. The package that has the launcher: "Debian package NAME" */
    /* Optional. Removes from this host the files that the launcher, process `pid`, and its ranks have left, and no
     * others; what cannot be removed stays. Called in the process that started the launcher, on its only thread,
     * after the launcher and all ranks of this host have ended, for whatever reason. `open` has not been called. */
    void (*clean)(uint64_t pid);
} ddp_launcher_ops;

/* For a backend whose ranks can be helped by hosts that have neither model nor data: `ddpengine aggregate` runs `serve`
 * there. How ranks and helpers find each other is the backend's own: both have the store of the run, in which keys that
 * begin with '/' are the same for all. */
typedef struct ddp_helper_params {
    uint32_t struct_size, index, world_size, reserved0; /* index: 0, 1, .. in the order in which helpers have come */
    const char *address;    /* this host's own address as rank 0 reaches it */
    const char *interface;  /* [group] interface of this host; "": not given */
    const ddp_store *store; /* valid until `serve` returns */
    int stop_fd;            /* readable: `serve` is to return, since the run is over */
    int32_t reserved1;
} ddp_helper_params;

typedef struct ddp_helper_ops {
    uint32_t struct_size, reserved0;
    uint32_t (*count)(const void *config); /* how many helpers the ranks wait for; 0: none. Any thread */
    /* How many times as fast an all-reduce of large buffers is as without helpers, in theory; 1: no gain. Any thread */
    double (*gain)(const void *config, uint32_t world_size);
    /* On a thread of its own, without `open`. Returns DDP_OK soon after stop_fd has become readable. A rank that fails
     * is no error: the run says so by stop_fd. */
    ddp_status (*serve)(const ddp_host *host, const void *config, const ddp_helper_params *p, ddp_err *err);
} ddp_helper_ops;

typedef ddp_status (*ddp_collective)(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err);

typedef struct ddp_backend_ops {
    uint32_t struct_size, reserved0;
    uint64_t caps;

    /* ---- the plugin: `check` on the main thread, before `open`; open and close on the queue thread */
    /* Optional. On each rank, before the rendezvous: an error if this process cannot take part (a library or a driver
     * is missing, the launcher did not start it). Only rank, world_size, interface and device_ordinal of `p` are set.
     * Keeps nothing open. DDP_ERR_CONFIG ends the run with exit code 2, any other error with 3. */
    ddp_status (*check)(const ddp_host *host, const void *config, const ddp_comm_params *p, ddp_err *err);
    const ddp_launcher_ops *launcher; /* of DDP_PLUGIN_F_LAUNCHER: --nproc starts the ranks by it; else NULL */
    ddp_status (*open)(const ddp_host *host, const void *config, ddp_backend **out, ddp_err *err);
    void (*close)(ddp_backend *b);

    /* ---- a communicator: the queue thread, except comm_abort */
    /* Connects all ranks; returns when every one is connected. On failure it frees what it has made. comm_abort cannot
     * reach it: a get of the store ends when the run does, every other wait must end by connect_timeout_ms. */
    ddp_status (*comm_create)(ddp_backend *b, const ddp_comm_params *p, ddp_comm **out, ddp_err *err);
    /* Any thread, any number of times, after comm_create has returned and before comm_destroy is called. Pending and
     * later calls end with DDP_ERR_ABORTED. */
    void (*comm_abort)(ddp_comm *c);
    void (*comm_destroy)(ddp_comm *c);                                /* must not communicate after an abort */
    ddp_status (*supports)(ddp_comm *c, uint32_t dtype, uint32_t op); /* DDP_OK or DDP_ERR_UNSUPPORTED */

    /* ---- collectives: the queue thread, in the same order on all ranks */
    ddp_collective all_reduce;
    ddp_collective broadcast; /* in place on `recv`; `send` is ignored */
    ddp_collective all_gather;
    ddp_collective reduce_scatter;
    ddp_collective reduce;
    ddp_collective gather;
    ddp_collective scatter;
    ddp_collective all_to_all;
    ddp_collective send;
    ddp_collective recv;
    ddp_status (*barrier)(ddp_comm *c, ddp_work **out, ddp_err *err);

    /* ---- works, the queue thread. With CAP_ASYNC each collective gives one in *out; a blocking backend leaves *out
     * untouched. The core frees every work once, before comm_destroy. */
    /* DDP_OK: has ended. DDP_IN_PROGRESS: not yet. Else the collective's error, the same at each call. */
    ddp_status (*work_test)(ddp_work *w, ddp_err *err);
    /* DDP_ERR_TIMEOUT leaves the work as it is: it can be waited for again. */
    ddp_status (*work_wait)(ddp_work *w, int64_t timeout_ms, ddp_err *err);
    /* Of CAP_STREAM. Makes `stream` wait for the work; the caller does not. */
    ddp_status (*work_stream_wait)(ddp_work *w, void *stream, ddp_err *err);
    void (*work_free)(ddp_work *w); /* never blocks; the collective may still run, and goes on */

    /* ---- memory, of CAP_MEM_ALLOC and CAP_MEM_PEER: the queue thread, outside steps */
    /* Collective: same order and bytes on all ranks. 64-byte aligned, zero-filled. */
    ddp_status (*mem_alloc)(ddp_comm *c, size_t bytes, void **out, ddp_err *err);
    void (*mem_free)(ddp_comm *c, void *p);
    /* One mem_alloc gave memory to every rank, `p` to this one. *out is the address in this process of the memory that
     * `rank` got; valid until mem_free of `p`. Not collective. After a collective that both ranks call, each sees what
     * the other stored before it. */
    ddp_status (*mem_peer)(ddp_comm *c, const void *p, uint32_t rank, void **out, ddp_err *err);

    /* Optional. The main thread, before `open`, after `check`: looks at what of this host would be in its way, such as
     * room, limits and drivers, and reports it. Keeps nothing open and connects to nobody. */
    void (*preflight)(const ddp_host *host, const void *config, const ddp_preflight *p);

    const ddp_helper_ops *helper; /* Optional. Other hosts can help */
} ddp_backend_ops;

/* The tables that the engine hands to a plugin of this kind. */
#define DDP_BACKEND_SERVICES                                                                                           \
    (sizeof(ddp_host) + sizeof(ddp_store) + sizeof(ddp_comm_params) + sizeof(ddp_coll) +            \
     sizeof(ddp_preflight) + sizeof(ddp_helper_params))

#ifdef __cplusplus
}
#endif
#endif
