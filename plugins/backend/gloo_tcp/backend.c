/* backend.c -- backend gloo-tcp: its option table, its function table, and the checks of arguments.
 *
 * Collectives over TCP between hosts, host memory, blocking. Messages travel by Gloo (shim.cc); the algorithms over them
 * are in collective.c, the arithmetic in reduce.c. */
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
     "Bytes of the largest message; cut to an eighth of the sockets' buffers where the kernel allows less.",
     DDP_OPT_SIZE, 0, offsetof(gloo_config, chunk_bytes)},
    {"small", "64KiB", "0..4MiB",
     "An all-reduce takes one round of messages instead of two while each rank sends at most this many bytes in it.",
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
    ddp_gloo_params mesh = {.rank = p->rank,
                            .world = p->world_size,
                            .timeout_ms = p->timeout_ms,
                            .group = p->group,
                            .address = p->address,
                            .store = p->store,
                            .inbox_bytes = b->config.chunk_bytes};
    ddp_comm *c;
    ddp_status st;

    if (p->world_size == 0 || p->rank >= p->world_size)
        return ddp_fail(err, DDP_ERR_INVALID, "gloo-tcp: rank %u of world_size %u", p->rank, p->world_size);
    c = calloc(1, sizeof(*c));
    if (c == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "gloo-tcp: out of memory");
    c->rank = p->rank;
    c->world = p->world_size;
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
    return ddp_gloo_reduction_of(dtype, op, c->world) != NULL ? DDP_OK : DDP_ERR_UNSUPPORTED;
}

/* ---- arguments ------------------------------------------------------------------------------------------------------- */
static int overlap(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
    return a < b + b_bytes && b < a + a_bytes;
}

/* What holds for every collective. `send` and `recv` are sizes in bytes, `in_place` where send may stand within recv. */
static ddp_status check(ddp_comm *c, const char *name, const ddp_coll *a, size_t send, size_t recv,
                        const void *in_place, ddp_err *err)
{
    if (atomic_load(&c->aborted))
        return ddp_fail(err, DDP_ERR_ABORTED, "gloo-tcp: %s after the communicator was aborted", name);
    if (ddp_dtype_size(a->dtype) == 0)
        return ddp_fail(err, DDP_ERR_UNSUPPORTED, "gloo-tcp: %s: unknown dtype %u", name, a->dtype);
    if (a->count == 0) return DDP_OK;
    if (a->recv == NULL || (send > 0 && a->send == NULL))
        return ddp_fail(err, DDP_ERR_INVALID, "gloo-tcp: %s of %zu elements without a buffer", name, a->count);
    if (send > 0 && a->send != in_place && overlap(a->send, send, a->recv, recv))
        return ddp_fail(err, DDP_ERR_INVALID, "gloo-tcp: %s: send and recv overlap and are not in place", name);
    return DDP_OK;
}

static ddp_status all_reduce(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    size_t bytes = a->count * ddp_dtype_size(a->dtype);
    ddp_status st = check(c, "all_reduce", a, bytes, bytes, a->recv, err);

    (void)out;
    if (st != DDP_OK) return st;
    if (supports(c, a->dtype, a->op) != DDP_OK)
        return ddp_fail(err, DDP_ERR_UNSUPPORTED, "gloo-tcp: all_reduce: unknown operation %u", a->op);
    if (a->count == 0) return DDP_OK;
    if (c->world > 1) return ddp_gloo_all_reduce(c, a, err);
    if (a->send != a->recv) memcpy(a->recv, a->send, bytes);
    return DDP_OK;
}

static ddp_status broadcast(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    ddp_status st = check(c, "broadcast", a, 0, 0, NULL, err);

    (void)out;
    if (st != DDP_OK) return st;
    if (a->root >= c->world)
        return ddp_fail(err, DDP_ERR_INVALID, "gloo-tcp: broadcast from rank %u of %u", a->root, c->world);
    return c->world > 1 && a->count > 0 ? ddp_gloo_broadcast(c, a, err) : DDP_OK;
}

static ddp_status all_gather(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    size_t bytes = a->count * ddp_dtype_size(a->dtype);
    ddp_status st = check(c, "all_gather", a, bytes, bytes * c->world, (char *)a->recv + c->rank * bytes, err);

    (void)out;
    if (st != DDP_OK || a->count == 0) return st;
    if (c->world > 1) return ddp_gloo_all_gather(c, a, err);
    if (a->send != a->recv) memcpy(a->recv, a->send, bytes);
    return DDP_OK;
}

static ddp_status barrier(ddp_comm *c, ddp_work **out, ddp_err *err)
{
    const ddp_coll none = {.struct_size = sizeof(none), .dtype = DDP_U8};
    ddp_status st = check(c, "barrier", &none, 0, 0, NULL, err);

    (void)out;
    return st == DDP_OK && c->world > 1 ? ddp_gloo_barrier(c, err) : st;
}

static const ddp_backend_ops ops = {
    .struct_size = sizeof(ops),
    .caps = DDP_CAP_ALL_REDUCE | DDP_CAP_BROADCAST | DDP_CAP_ALL_GATHER | DDP_CAP_BARRIER | DDP_CAP_MEM_HOST |
            DDP_CAP_ABORT,
    .open = open_backend,
    .close = close_backend,
    .comm_create = comm_create,
    .comm_abort = comm_abort,
    .comm_destroy = comm_destroy,
    .supports = supports,
    .all_reduce = all_reduce,
    .broadcast = broadcast,
    .all_gather = all_gather,
    .barrier = barrier,
};

DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(DDP_KIND_BACKEND, DDP_BACKEND_ABI, 0),
    .name = "gloo-tcp",
    .version = "0.1.0",
    .summary = "collectives over TCP between hosts, by the Gloo library",
    .options = options,
    .option_count = sizeof(options) / sizeof(options[0]),
    .option_size = sizeof(ddp_option),
    .config_size = sizeof(gloo_config),
    .ops = &ops,
};
