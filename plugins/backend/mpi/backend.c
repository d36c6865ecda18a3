/* plugins/backend/mpi/backend.c -- backend mpi: its option table, its function table, and the collectives that are
 * one call of MPI. Blocking, host memory. Nothing wakes a rank that waits inside MPI (DDP_CAP_ABORT is not set): the
 * control plane reports the cause and ends the process. */
#include "common/arguments.h"
#include "collective.h"
#include "leftovers.h"
#include "settings.h"
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

typedef struct mpi_config {
    uint64_t piece_bytes, message_bytes;
} mpi_config;

struct ddp_backend {
    mpi_config config;
};

static const ddp_option options[] = {
    {"piece", "16MiB", "4KiB..1GiB",
     "Reductions are split into pieces of this many bytes, because MPI allocates memory in every call for a large one.",
     DDP_OPT_SIZE, 0, offsetof(mpi_config, piece_bytes)},
    {"message", "1GiB", "4KiB..1GiB",
     "A message of more bytes is sent as one element of a derived type, because MPI counts elements in an int.",
     DDP_OPT_SIZE, 0, offsetof(mpi_config, message_bytes)},
};

static ddp_status check_start(const ddp_host *host, const void *config, const ddp_comm_params *p, ddp_err *err)
{
    (void)host;
    (void)config;
    return ddp_mpi_check_launcher(p, err);
}

/* Open MPI maps a file of each rank there, and a rank that writes where the file system has no room dies by SIGBUS. */
static void preflight(const ddp_host *host, const void *config, const ddp_preflight *p)
{
    const char *folder = ddp_mpi_segment_folder();
    double need = p->local_size * ddp_mpi_segment_mib(), room;
    struct statvfs fs;

    (void)host, (void)config;
    if (p->local_size < 2 || need <= 0 || statvfs(folder, &fs) != 0) return; /* it takes the session folder then */
    room = (double)fs.f_bavail * (double)fs.f_frsize / (1 << 20);
    if (room < need)
        p->report(
            p->ctx, DDP_FINDING_PROBLEM, "shared memory",
            "%.200s has %.3g MiB left, Open MPI needs %.3g for %u ranks: enlarge it (mount -o remount,size=1g; --shm-size of a container)",
            folder, room, need, p->local_size);
    else
        p->report(p->ctx, DDP_FINDING_OK, "shared memory", "%.200s has %.0f MiB left, Open MPI needs %.3g", folder,
                  room, need);
}

static ddp_status open_backend(const ddp_host *host, const void *config, ddp_backend **out, ddp_err *err)
{
    ddp_backend *b = calloc(1, sizeof(*b));

    (void)host;
    if (b == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "mpi: out of memory");
    b->config = *(const mpi_config *)config;
    *out = b;
    return DDP_OK;
}

static void close_backend(ddp_backend *b) { free(b); }

static ddp_status comm_create(ddp_backend *b, const ddp_comm_params *p, ddp_comm **out, ddp_err *err)
{
    ddp_comm *c;

    if (p->world_size == 0 || p->rank >= p->world_size)
        return ddp_fail(err, DDP_ERR_INVALID, "mpi: rank %u of world_size %u", p->rank, p->world_size);
    c = calloc(1, sizeof(*c));
    if (c == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "mpi: out of memory");
    c->rank = p->rank;
    c->world = p->world_size;
    c->store = p->store;
    c->piece = (size_t)b->config.piece_bytes & ~(size_t)63;
    c->message = (size_t)b->config.message_bytes & ~(size_t)63;
    if (ddp_mpi_open(p, &c->mpi, err) != DDP_OK) {
        free(c);
        return err->status;
    }
    *out = c;
    return DDP_OK;
}

/* MPI does not notice a rank that dies while this communicator is in no call; the control plane does. */
static int run_has_failed(const ddp_comm *c)
{
    ddp_err err = {0};

    return c->world > 1 && c->store != NULL && c->store->remove(c->store->ctx, "none", &err) == DDP_ERR_ABORTED;
}

static void comm_destroy(ddp_comm *c)
{
    c->broken |= run_has_failed(c);
    ddp_mpi_close(c->mpi, c->broken);
    free(c->scratch);
    free(c);
}

static ddp_status supports(ddp_comm *c, uint32_t dtype, uint32_t op)
{
    return ddp_mpi_op(dtype, op, c->world) != MPI_OP_NULL ? DDP_OK : DDP_ERR_UNSUPPORTED;
}

/* ---- what comes before and after each ---------------------------------------------------------------------------- */
static ddp_status check_broken(const ddp_comm *c, const char *name, ddp_err *err)
{
    if (!c->broken) return DDP_OK;
    return ddp_fail(err, DDP_ERR_LIBRARY, "mpi: %s after a call of MPI has failed", name);
}

static ddp_status check(const ddp_comm *c, ddp_args_slot slot, const ddp_coll *a, ddp_err *err)
{
    ddp_status st = check_broken(c, ddp_args_name(slot), err);

    return st == DDP_OK ? ddp_args_check("mpi", c->rank, c->world, slot, a, err) : st;
}

/* The elements of a collective that moves them. */
static ddp_status begin(const ddp_comm *c, ddp_args_slot slot, const ddp_coll *a, ddp_mpi_elements *e, ddp_err *err)
{
    ddp_status st = check(c, slot, a, err);

    return st == DDP_OK && a->count > 0 ? ddp_mpi_elements_of(c, a->dtype, a->count, e, err) : st;
}

/* After a failed call of the library the ranks no longer agree: the communicator is broken. */
static ddp_status end(ddp_comm *c, ddp_status st)
{
    if (st == DDP_ERR_LIBRARY) c->broken = 1;
    return st;
}

/* `code`: of the call that `begin` has prepared. */
static ddp_status end_call(ddp_comm *c, ddp_mpi_elements *e, int code, const char *what, ddp_err *err)
{
    ddp_mpi_elements_free(e);
    return code == MPI_SUCCESS ? DDP_OK : end(c, ddp_mpi_failed(code, what, err));
}

/* ---- reductions -------------------------------------------------------------------------------------------------- */
static ddp_status all_reduce(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    ddp_status st = check(c, DDP_ARGS_ALL_REDUCE, a, err);

    (void)out;
    return st == DDP_OK ? end(c, ddp_mpi_reduce(c, a, a->send, a->recv, DDP_MPI_ALL, err)) : st;
}

static ddp_status reduce(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    ddp_status st = check(c, DDP_ARGS_REDUCE, a, err);

    (void)out;
    return st == DDP_OK ? end(c, ddp_mpi_reduce(c, a, a->send, a->recv, (int)a->root, err)) : st;
}

static ddp_status reduce_scatter(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    ddp_status st = check(c, DDP_ARGS_REDUCE_SCATTER, a, err);

    (void)out;
    return st == DDP_OK && a->count > 0 ? end(c, ddp_mpi_reduce_scatter(c, a, err)) : st;
}

/* ---- what is only moved ------------------------------------------------------------------------------------------ */
static ddp_status broadcast(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    ddp_mpi_elements e = {.made = 0};
    ddp_status st = begin(c, DDP_ARGS_BROADCAST, a, &e, err);

    (void)out;
    if (st != DDP_OK || a->count == 0) return st;
    return end_call(c, &e, MPI_Bcast(a->recv, e.count, e.type, (int)a->root, c->mpi), "MPI_Bcast", err);
}

/* This rank's block of `all`. */
static const void *own(const ddp_comm *c, const ddp_coll *a, const void *all)
{
    return (const char *)all + c->rank * ddp_args_bytes(a);
}

static ddp_status all_gather(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    ddp_mpi_elements e = {.made = 0};
    ddp_status st = begin(c, DDP_ARGS_ALL_GATHER, a, &e, err);
    const void *from = a->send;

    (void)out;
    if (st != DDP_OK || a->count == 0) return st;
    if (from == own(c, a, a->recv)) from = MPI_IN_PLACE;
    return end_call(c, &e, MPI_Allgather(from, e.count, e.type, a->recv, e.count, e.type, c->mpi), "MPI_Allgather",
                    err);
}

static ddp_status gather(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    ddp_mpi_elements e = {.made = 0};
    ddp_status st = begin(c, DDP_ARGS_GATHER, a, &e, err);
    const void *from = a->send;
    int code;

    (void)out;
    if (st != DDP_OK || a->count == 0) return st;
    if (a->root == c->rank && from == own(c, a, a->recv)) from = MPI_IN_PLACE;
    code = MPI_Gather(from, e.count, e.type, a->recv, e.count, e.type, (int)a->root, c->mpi);
    return end_call(c, &e, code, "MPI_Gather", err);
}

static ddp_status scatter(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    ddp_mpi_elements e = {.made = 0};
    ddp_status st = begin(c, DDP_ARGS_SCATTER, a, &e, err);
    void *to = a->recv;
    int code;

    (void)out;
    if (st != DDP_OK || a->count == 0) return st;
    if (a->root == c->rank && to == own(c, a, a->send)) to = MPI_IN_PLACE;
    code = MPI_Scatter(a->send, e.count, e.type, to, e.count, e.type, (int)a->root, c->mpi);
    return end_call(c, &e, code, "MPI_Scatter", err);
}

static ddp_status all_to_all(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    ddp_mpi_elements e = {.made = 0};
    ddp_status st = begin(c, DDP_ARGS_ALL_TO_ALL, a, &e, err);
    int code;

    (void)out;
    if (st != DDP_OK || a->count == 0) return st;
    code = MPI_Alltoall(a->send, e.count, e.type, a->recv, e.count, e.type, c->mpi);
    return end_call(c, &e, code, "MPI_Alltoall", err);
}

/* ---- from one rank to another, and a barrier --------------------------------------------------------------------- */
static ddp_status send_to(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    ddp_mpi_elements e = {.made = 0};
    ddp_status st = begin(c, DDP_ARGS_SEND, a, &e, err);

    (void)out;
    if (st != DDP_OK || a->count == 0) return st;
    return end_call(c, &e, MPI_Send(a->send, e.count, e.type, (int)a->root, 0, c->mpi), "MPI_Send", err);
}

static ddp_status recv_from(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    ddp_mpi_elements e = {.made = 0};
    ddp_status st = begin(c, DDP_ARGS_RECV, a, &e, err);
    int code;

    (void)out;
    if (st != DDP_OK || a->count == 0) return st;
    code = MPI_Recv(a->recv, e.count, e.type, (int)a->root, 0, c->mpi, MPI_STATUS_IGNORE);
    return end_call(c, &e, code, "MPI_Recv", err);
}

static ddp_status barrier(ddp_comm *c, ddp_work **out, ddp_err *err)
{
    ddp_status st = check_broken(c, "barrier", err);
    int code;

    (void)out;
    if (st != DDP_OK) return st;
    code = MPI_Barrier(c->mpi);
    return code == MPI_SUCCESS ? DDP_OK : end(c, ddp_mpi_failed(code, "MPI_Barrier", err));
}

/* The same words for mpirun of Open MPI 4 to 6 and of MPICH, whatever plugin and mpirun were built with. `localhost`
 * here has as many slots as a run may have ranks: versions after 4 refuse more ranks than slots, of which a host has
 * one unless it is written. mpirun also refuses root unless told. All ranks are on this host, whatever Slurm or a hostfile
 * offers: without what is excluded here each would listen at all addresses of it, and anyone could send them
 * messages. */
static const ddp_launcher_ops launcher = {
    .struct_size = sizeof(launcher),
    .command = DDP_MPI_LAUNCHER_SETTINGS "mpirun --host localhost:65536 --bind-to none -np %n",
    .install = DDP_MPI_PACKAGE,
    .clean = ddp_mpi_clean,
};

static const ddp_backend_ops ops = {
    .struct_size = sizeof(ops),
    .caps = DDP_CAP_ALL_REDUCE | DDP_CAP_BROADCAST | DDP_CAP_ALL_GATHER | DDP_CAP_REDUCE_SCATTER | DDP_CAP_BARRIER |
            DDP_CAP_REDUCE | DDP_CAP_GATHER | DDP_CAP_SCATTER | DDP_CAP_ALL_TO_ALL | DDP_CAP_SEND_RECV,
    .open = open_backend,
    .close = close_backend,
    .comm_create = comm_create,
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
    .check = check_start,
    .launcher = &launcher,
    .preflight = preflight,
};

DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(BACKEND, DDP_PLUGIN_F_NO_UNLOAD | DDP_PLUGIN_F_LAUNCHER),
    .reach = DDP_REACH_NETWORK,
    .memory = DDP_MEMORY_HOST,
    .install = DDP_MPI_PACKAGE,
    DDP_PLUGIN_TAIL("mpi", "0.1.0", "collectives by MPI, started by mpirun", DDP_OPTIONS(options, mpi_config), ops),
};
