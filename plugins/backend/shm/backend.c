/* plugins/backend/shm/backend.c -- backend shm: its option table and its function table.
 *
 * Collectives between the processes of one host through memory that they share, blocking; no sockets, no threads.
 * What lies there and which file does what is at the top of shm.h. */
#include "common/arguments.h"
#include "shm.h"
#include <stdlib.h>
#include <unistd.h>

typedef struct shm_config {
    uint64_t staging_bytes, spin_us;
} shm_config;

static const ddp_option options[] = {
    {"staging", "128KiB", "4KiB..16MiB",
     "Size of each of a rank's four staging buffers, for data outside the memory that the backend allocated.",
     DDP_OPT_SIZE, 0, offsetof(shm_config, staging_bytes)},
    {"spin", "20", "0..1000",
     "Microseconds that a waiting rank spins before it sleeps; "
     "it does not spin if there are fewer processors than ranks.",
     DDP_OPT_UINT, DDP_OPT_F_PER_RANK, offsetof(shm_config, spin_us)},
};

static ddp_status open_backend(const ddp_host *host, const void *config, ddp_backend **out, ddp_err *err)
{
    const shm_config *given = config;
    ddp_backend *b = calloc(1, sizeof(*b));

    if (b == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "shm: out of memory");
    b->host = host;
    b->staging = given->staging_bytes & ~(uint64_t)4095; /* whole pages, which SHM_MAX_WORLD lines fit into */
    b->spin_us = given->spin_us;
    *out = b;
    return DDP_OK;
}

static void close_backend(ddp_backend *b) { free(b); }

static void comm_destroy(ddp_comm *c)
{
    ddp_shm_disconnect(c);
    free(c);
}

static ddp_status check_params(const ddp_comm_params *p, ddp_err *err)
{
    if (p->world_size == 0 || p->rank >= p->world_size)
        return ddp_fail(err, DDP_ERR_INVALID, "shm: rank %u of world_size %u", p->rank, p->world_size);
    if (p->local_size != 0 && p->local_size != p->world_size)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "shm: all ranks must be on one host, and of world_size %u there are %u on this one; "
                        "use gloo-tcp between hosts",
                        p->world_size, p->local_size);
    if (p->world_size > SHM_MAX_WORLD)
        return ddp_fail(err, DDP_ERR_UNSUPPORTED,
                        "shm: world_size %u, at most %d ranks; use [group] backend = gloo-tcp", p->world_size,
                        SHM_MAX_WORLD);
    return DDP_OK;
}

static ddp_status check(const ddp_host *host, const void *config, const ddp_comm_params *p, ddp_err *err)
{
    (void)host, (void)config;
    return check_params(p, err);
}

/* Shared memory is memory without a name: it needs no room in /dev/shm. */
static void preflight(const ddp_host *host, const void *config, const ddp_preflight *p)
{
    ddp_err err = {0};

    (void)host, (void)config;
    if (ddp_shm_room(p->shared_bytes * p->world_size, &err) != DDP_OK)
        p->report(p->ctx, DDP_FINDING_PROBLEM, "shared memory",
                  "%s; lower the size of the model or the number of ranks, or use gloo-tcp", err.msg);
    else
        p->report(p->ctx, DDP_FINDING_OK, "shared memory", "%.3g MiB for the gradients and parameters of all ranks",
                  (double)(p->shared_bytes * p->world_size) / (1 << 20));
}

/* From where the inputs and results of a rank's part fill its own cache. */
static size_t choose_stream(void)
{
    long cache = sysconf(_SC_LEVEL2_CACHE_SIZE);

    return cache > 0 ? (size_t)cache / 2 : (size_t)1 << 20;
}

static ddp_status comm_create(ddp_backend *b, const ddp_comm_params *p, ddp_comm **out, ddp_err *err)
{
    ddp_comm *c;
    ddp_status st = check_params(p, err);

    if (st != DDP_OK) return st;
    c = calloc(1, sizeof(*c));
    if (c == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "shm: out of memory");
    c->kernels = ddp_kernels_best();
    c->stream_bytes = choose_stream();
    c->rank = p->rank;
    c->world = p->world_size;
    c->timeout_ns = p->timeout_ms * 1000000;
    c->name = "comm_create";
    st = ddp_shm_connect(c, p, b, err);
    if (st != DDP_OK) {
        comm_destroy(c);
        return st;
    }
    *out = c;
    return DDP_OK;
}

static void comm_abort(ddp_comm *c)
{
    uint32_t none = 0, after = atomic_load(&c->header->lost) != 0 ? SHM_AFTER_LOSS : 0;

    atomic_store(&c->aborted, true);
    (void)atomic_compare_exchange_strong(&c->header->aborted, &none, (c->rank + 1) | after);
    ddp_shm_wake_all(c);
}

static ddp_status supports(ddp_comm *c, uint32_t dtype, uint32_t op)
{
    (void)c;
    return ddp_reduces(dtype, op) ? DDP_OK : DDP_ERR_UNSUPPORTED;
}

/* ---- slots ------------------------------------------------------------------------------------------------------- */
static ddp_status call(ddp_comm *c, ddp_args_slot slot, uint32_t what, const ddp_coll *a, ddp_err *err)
{
    ddp_status st = ddp_args_check("shm", c->rank, c->world, slot, a, err);

    return st == DDP_OK ? ddp_shm_collective(c, what, a, err) : st;
}

#define SLOT(NAME, WHAT)                                                                                               \
    static ddp_status NAME(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)                               \
    {                                                                                                                  \
        (void)out;                                                                                                     \
        return call(c, DDP_ARGS_##WHAT, SHM_##WHAT, a, err);                                                           \
    }

SLOT(all_reduce, ALL_REDUCE)
SLOT(broadcast, BROADCAST)
SLOT(all_gather, ALL_GATHER)
SLOT(reduce_scatter, REDUCE_SCATTER)
SLOT(reduce, REDUCE)
SLOT(gather, GATHER)
SLOT(scatter, SCATTER)
SLOT(all_to_all, ALL_TO_ALL)

static ddp_status barrier(ddp_comm *c, ddp_work **out, ddp_err *err)
{
    const ddp_coll none = {.struct_size = sizeof(none), .dtype = DDP_U8};

    (void)out;
    return ddp_shm_collective(c, SHM_BARRIER, &none, err);
}

static ddp_status send(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    ddp_status st = ddp_args_check("shm", c->rank, c->world, DDP_ARGS_SEND, a, err);

    (void)out;
    return st == DDP_OK ? ddp_shm_send(c, a, err) : st;
}

static ddp_status recv(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    ddp_status st = ddp_args_check("shm", c->rank, c->world, DDP_ARGS_RECV, a, err);

    (void)out;
    return st == DDP_OK ? ddp_shm_recv(c, a, err) : st;
}

static const ddp_backend_ops ops = {
    .struct_size = sizeof(ops),
    .caps = DDP_CAP_ALL_REDUCE | DDP_CAP_BROADCAST | DDP_CAP_ALL_GATHER | DDP_CAP_REDUCE_SCATTER | DDP_CAP_BARRIER |
            DDP_CAP_REDUCE | DDP_CAP_GATHER | DDP_CAP_SCATTER | DDP_CAP_ALL_TO_ALL | DDP_CAP_SEND_RECV |
            DDP_CAP_MEM_ALLOC | DDP_CAP_MEM_PEER | DDP_CAP_ABORT,
    .open = open_backend,
    .close = close_backend,
    .comm_create = comm_create,
    .comm_abort = comm_abort,
    .comm_destroy = comm_destroy,
    .supports = supports,
    .all_reduce = all_reduce,
    .broadcast = broadcast,
    .all_gather = all_gather,
    .reduce_scatter = reduce_scatter,
    .barrier = barrier,
    .reduce = reduce,
    .gather = gather,
    .scatter = scatter,
    .all_to_all = all_to_all,
    .send = send,
    .recv = recv,
    .mem_alloc = ddp_shm_mem_alloc,
    .mem_free = ddp_shm_mem_free,
    .check = check,
    .mem_peer = ddp_shm_mem_peer,
    .preflight = preflight,
};

DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(BACKEND, 0),
    .priority = 20,
    .reach = DDP_REACH_HOST,
    .memory = DDP_MEMORY_HOST,
    DDP_PLUGIN_TAIL("shm", "0.1.0", "collectives between the processes of one host through shared memory",
                    DDP_OPTIONS(options, shm_config), ops),
};
