/* plugins/backend/gloo_tcp/backend.c -- backend gloo-tcp: its option table, its function table, and what comes before
 * each collective.
 *
 * Collectives over TCP between hosts, host memory, blocking. Messages travel by Gloo (shim.cc); the algorithms over
 * them are in collective.c, the arithmetic in ../common. */
#include "common/arguments.h"
#include "collective.h"
#include <stdlib.h>
#include <string.h>

typedef struct gloo_config {
    uint64_t chunk_bytes, small_bytes;
} gloo_config;

struct ddp_backend {
    const ddp_host *host;
    gloo_config config;
};

static const ddp_option options[] = {
    {"chunk", "128KiB", "4KiB..4MiB",
     "Largest message in bytes; it is lowered to an eighth of the socket buffers that the kernel grants.", DDP_OPT_SIZE,
     0, offsetof(gloo_config, chunk_bytes)},
    {"small", "64KiB", "0..4MiB",
     "An all-reduce in which each rank sends at most this many bytes takes one round of messages instead of two.",
     DDP_OPT_SIZE, 0, offsetof(gloo_config, small_bytes)},
};

static ddp_status open_backend(const ddp_host *host, const void *config, ddp_backend **out, ddp_err *err)
{
    ddp_backend *b = calloc(1, sizeof(*b));

    if (b == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "gloo-tcp: out of memory");
    b->host = host;
    b->config = *(const gloo_config *)config;
    *out = b;
    return DDP_OK;
}

static void close_backend(ddp_backend *b) { free(b); }

/* Before the rendezvous: a name in GLOO_SOCKET_IFNAME that no interface has. */
static ddp_status check_here(const ddp_host *host, const void *config, const ddp_comm_params *p, ddp_err *err)
{
    char address[DDP_GLOO_ADDRESS_MAX];

    (void)host, (void)config;
    return ddp_gloo_own_address(p->interface, "", address, err);
}

static void comm_destroy(ddp_comm *c)
{
    if (c->mesh != NULL) ddp_gloo_close(c->mesh);
    free(c->sources);
    free(c);
}

/* Chunks are multiples of 64 B, so that no element is cut. */
static void choose_sizes(const ddp_backend *b, ddp_comm *c)
{
    size_t room = ddp_gloo_room(c->mesh) / 8;

    c->chunk = b->config.chunk_bytes & ~(size_t)63;
    if (room < c->chunk) {
        c->chunk = room < 4096 ? 4096 : room & ~(size_t)63;
        if (c->rank == 0)
            b->host->log(b->host->ctx, DDP_LOG_DEBUG, __FILE__, __LINE__,
                         "gloo-tcp: chunk cut from %llu to %zu bytes; a larger net.core.wmem_max lets it be larger",
                         (unsigned long long)b->config.chunk_bytes, c->chunk);
    }
    c->small = b->config.small_bytes / (c->world - 1);
    if (c->small > c->chunk) c->small = c->chunk;
}

static ddp_status comm_create(ddp_backend *b, const ddp_comm_params *p, ddp_comm **out, ddp_err *err)
{
    char address[DDP_GLOO_ADDRESS_MAX];
    ddp_gloo_params mesh = {.rank = p->rank,
                            .world = p->world_size,
                            .timeout_ms = p->timeout_ms,
                            .connect_timeout_ms = p->connect_timeout_ms,
                            .group = p->group,
                            .address = address,
                            .host = b->host,
                            .store = p->store,
                            .inbox_bytes = b->config.chunk_bytes};
    ddp_comm *c;
    ddp_status st;

    if (p->world_size == 0 || p->rank >= p->world_size)
        return ddp_fail(err, DDP_ERR_INVALID, "gloo-tcp: rank %u of world_size %u", p->rank, p->world_size);
    st = ddp_gloo_own_address(p->interface, p->address, address, err);
    if (st != DDP_OK) return st;
    c = calloc(1, sizeof(*c));
    if (c == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "gloo-tcp: out of memory");
    c->rank = p->rank;
    c->world = p->world_size;
    c->kernels = ddp_kernels_best();
    c->sources = calloc(p->world_size, sizeof(*c->sources));
    st = c->sources == NULL ? ddp_fail(err, DDP_ERR_NOMEM, "gloo-tcp: out of memory") : DDP_OK;
    if (st == DDP_OK && c->world > 1) st = ddp_gloo_open(&mesh, &c->mesh, err);
    if (st != DDP_OK) {
        comm_destroy(c);
        return st;
    }
    if (c->mesh != NULL) choose_sizes(b, c);
    *out = c;
    return DDP_OK;
}

static void comm_abort(ddp_comm *c)
{
    atomic_store(&c->aborted, true);
    if (c->mesh != NULL) ddp_gloo_abort(c->mesh);
}

static ddp_status supports(ddp_comm *c, uint32_t dtype, uint32_t op)
{
    (void)c;
    return ddp_reduces(dtype, op) ? DDP_OK : DDP_ERR_UNSUPPORTED;
}

/* ---- the slots --------------------------------------------------------------------------------------------------- */
static ddp_status check_aborted(ddp_comm *c, const char *name, ddp_err *err)
{
    if (!atomic_load(&c->aborted)) return DDP_OK;
    return ddp_fail(err, DDP_ERR_ABORTED, "gloo-tcp: %s after the communicator was aborted", name);
}

/* A collective: `run` for world 2 and more, where there is something to do. */
static ddp_status call(ddp_comm *c, ddp_args_slot slot, const ddp_coll *a,
                       ddp_status (*run)(ddp_comm *c, const ddp_coll *a, ddp_err *err), ddp_err *err)
{
    ddp_status st = check_aborted(c, ddp_args_name(slot), err);

    if (st == DDP_OK) st = ddp_args_check("gloo-tcp", c->rank, c->world, slot, a, err);
    if (st != DDP_OK || a->count == 0) return st;
    if (c->world > 1) return run(c, a, err);
    if (slot != DDP_ARGS_BROADCAST && a->send != a->recv) memcpy(a->recv, a->send, ddp_args_bytes(a));
    return DDP_OK;
}

#define SLOT(NAME, ARGS, RUN)                                                                                          \
    static ddp_status NAME(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)                               \
    {                                                                                                                  \
        (void)out;                                                                                                     \
        return call(c, ARGS, a, RUN, err);                                                                             \
    }

SLOT(all_reduce, DDP_ARGS_ALL_REDUCE, ddp_gloo_all_reduce)
SLOT(broadcast, DDP_ARGS_BROADCAST, ddp_gloo_broadcast)
SLOT(all_gather, DDP_ARGS_ALL_GATHER, ddp_gloo_all_gather)
SLOT(reduce_scatter, DDP_ARGS_REDUCE_SCATTER, ddp_gloo_reduce_scatter)
SLOT(reduce, DDP_ARGS_REDUCE, ddp_gloo_reduce)
SLOT(gather, DDP_ARGS_GATHER, ddp_gloo_gather)
SLOT(scatter, DDP_ARGS_SCATTER, ddp_gloo_scatter)
SLOT(all_to_all, DDP_ARGS_ALL_TO_ALL, ddp_gloo_all_to_all)
SLOT(send_to, DDP_ARGS_SEND, ddp_gloo_send_one)
SLOT(recv_from, DDP_ARGS_RECV, ddp_gloo_recv_one)

static ddp_status barrier(ddp_comm *c, ddp_work **out, ddp_err *err)
{
    ddp_status st = check_aborted(c, "barrier", err);

    (void)out;
    return st == DDP_OK && c->world > 1 ? ddp_gloo_barrier(c, err) : st;
}

static const ddp_backend_ops ops = {
    .struct_size = sizeof(ops),
    .caps = DDP_CAP_ALL_REDUCE | DDP_CAP_BROADCAST | DDP_CAP_ALL_GATHER | DDP_CAP_REDUCE_SCATTER | DDP_CAP_BARRIER |
            DDP_CAP_REDUCE | DDP_CAP_GATHER | DDP_CAP_SCATTER | DDP_CAP_ALL_TO_ALL | DDP_CAP_SEND_RECV | DDP_CAP_ABORT,
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
    .send = send_to,
    .recv = recv_from,
    .check = check_here,
};

DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(BACKEND, 0),
    .priority = 10,
    .reach = DDP_REACH_NETWORK,
    .memory = DDP_MEMORY_HOST,
    .install = "Debian package libgloo0",
    DDP_PLUGIN_TAIL("gloo-tcp", "0.1.0", "collectives over TCP between hosts, by the Gloo library",
                    DDP_OPTIONS(options, gloo_config), ops),
};
