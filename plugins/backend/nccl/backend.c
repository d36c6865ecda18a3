/* plugins/backend/nccl/backend.c -- backend nccl: its options, its function table, and whether this machine can run
 * it. See comm.h. */
#include "comm.h"
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#if CUDART_VERSION >= 13000
#define CUDA_LIBRARY "libcudart.so.13"
#else
#define CUDA_LIBRARY "libcudart.so.12"
#endif

static const ddp_option options[] = {
    {"library", "libnccl.so.2", NULL, "File name or path of the NCCL library.", DDP_OPT_STRING, DDP_OPT_F_PER_RANK,
     offsetof(ddp_nccl_config, library)},
    {"cuda_library", CUDA_LIBRARY, NULL, "File name or path of the CUDA runtime library.", DDP_OPT_STRING,
     DDP_OPT_F_PER_RANK, offsetof(ddp_nccl_config, cuda_library)},
    {"driver_library", "libcuda.so.1", NULL,
     "File name or path of the NVIDIA driver library; it is only checked that it exists.", DDP_OPT_STRING,
     DDP_OPT_F_PER_RANK, offsetof(ddp_nccl_config, driver_library)},
    {"register", "yes", NULL,
     "Whether to register the gradient memory with NCCL, so that NCCL can reduce it without copies.", DDP_OPT_BOOL, 0,
     offsetof(ddp_nccl_config, registration)},
};

static ddp_nccl_libraries libraries_of(const ddp_nccl_config *c)
{
    return (ddp_nccl_libraries){.nccl = c->library, .cuda = c->cuda_library, .driver = c->driver_library};
}

static ddp_status check(const ddp_host *host, const void *config, const ddp_comm_params *p, ddp_err *err)
{
    ddp_nccl_libraries names = libraries_of(config);
    ddp_nccl_runtime runtime;
    ddp_status st;

    if (p->device_ordinal < 0)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "it reduces CUDA memory; [train] device = cpu is host memory: use gloo-tcp, shm or mpi");
    st = ddp_nccl_runtime_open(&names, &runtime, err);
    if (st != DDP_OK) return st;
    st = ddp_nccl_device_check(&runtime, p->device_ordinal, err);
    ddp_nccl_runtime_close(&runtime);
    if (st == DDP_OK) ddp_nccl_use_interface(host, p->interface, NULL); /* while the process has one thread */
    return st;
}

/* Ranks of a host exchange through files there, two of 9.2 MiB for each pair of neighbours (NCCL 2.28). */
static void check_shm(const ddp_preflight *p)
{
    double need = 2.0 * 9637888 * p->local_size / (1 << 20), room;
    struct statvfs fs;

    if (p->local_size < 2 || statvfs("/dev/shm", &fs) != 0) return;
    room = (double)fs.f_bavail * (double)fs.f_frsize / (1 << 20);
    if (room < need)
        p->report(
            p->ctx, DDP_FINDING_PROBLEM, "shared memory",
            "/dev/shm has %.3g MiB left, NCCL needs about %.3g for %u ranks: enlarge it (mount -o remount,size=1g /dev/shm; --shm-size=1g of a container)",
            room, need, p->local_size);
    else
        p->report(p->ctx, DDP_FINDING_OK, "shared memory", "/dev/shm has %.0f MiB left, NCCL needs about %.3g", room,
                  need);
}

/* InfiniBand registers the memory that it reads and writes, which locks it. */
static void check_locked(const ddp_preflight *p)
{
    struct rlimit locked;

    if (access("/sys/class/infiniband", F_OK) != 0 || getrlimit(RLIMIT_MEMLOCK, &locked) != 0) return;
    if (locked.rlim_cur == RLIM_INFINITY)
        p->report(p->ctx, DDP_FINDING_OK, "locked memory", "ulimit -l is unlimited, as InfiniBand wants it");
    else
        p->report(
            p->ctx, DDP_FINDING_WARNING, "locked memory",
            "ulimit -l is %llu KiB, and InfiniBand may need more: set memlock to unlimited in /etc/security/limits.conf, or --ulimit memlock=-1 of a container",
            (unsigned long long)locked.rlim_cur >> 10);
}

static void preflight(const ddp_host *host, const void *config, const ddp_preflight *p)
{
    (void)host, (void)config;
    check_shm(p);
    check_locked(p);
}

static ddp_status open_backend(const ddp_host *host, const void *config, ddp_backend **out, ddp_err *err)
{
    ddp_backend *b = calloc(1, sizeof(*b));
    ddp_nccl_libraries names;
    ddp_status st;

    if (b == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "nccl: out of memory");
    b->host = host;
    b->config = *(const ddp_nccl_config *)config;
    names = libraries_of(&b->config);
    st = ddp_nccl_runtime_open(&names, &b->runtime, err);
    if (st != DDP_OK) {
        free(b);
        return st;
    }
    *out = b;
    return DDP_OK;
}

static void close_backend(ddp_backend *b)
{
    ddp_nccl_runtime_close(&b->runtime);
    free(b);
}

static const ddp_backend_ops ops = {
    .struct_size = sizeof(ops),
    .caps = DDP_CAP_ALL_REDUCE | DDP_CAP_BROADCAST | DDP_CAP_ALL_GATHER | DDP_CAP_REDUCE_SCATTER | DDP_CAP_BARRIER |
            DDP_CAP_REDUCE | DDP_CAP_GATHER | DDP_CAP_SCATTER | DDP_CAP_ALL_TO_ALL | DDP_CAP_SEND_RECV | DDP_CAP_ASYNC |
            DDP_CAP_STREAM | DDP_CAP_MEM_ALLOC | DDP_CAP_ABORT,
    .open = open_backend,
    .close = close_backend,
    .comm_create = ddp_nccl_comm_create,
    .comm_abort = ddp_nccl_comm_abort,
    .comm_destroy = ddp_nccl_comm_destroy,
    .supports = ddp_nccl_supports,
    .all_reduce = ddp_nccl_all_reduce,
    .broadcast = ddp_nccl_broadcast,
    .all_gather = ddp_nccl_all_gather,
    .reduce_scatter = ddp_nccl_reduce_scatter,
    .barrier = ddp_nccl_barrier,
    .reduce = ddp_nccl_reduce,
    .gather = ddp_nccl_gather,
    .scatter = ddp_nccl_scatter,
    .all_to_all = ddp_nccl_all_to_all,
    .send = ddp_nccl_send,
    .recv = ddp_nccl_recv,
    .mem_alloc = ddp_nccl_mem_alloc,
    .mem_free = ddp_nccl_mem_free,
    .work_test = ddp_nccl_work_test,
    .work_wait = ddp_nccl_work_wait,
    .work_stream_wait = ddp_nccl_work_stream_wait,
    .work_free = ddp_nccl_work_free,
    .check = check,
    .preflight = preflight,
};

DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(BACKEND, DDP_PLUGIN_F_NO_UNLOAD),
    .priority = 10,
    .reach = DDP_REACH_NETWORK,
    .memory = "cuda",
    DDP_PLUGIN_TAIL("nccl", "0.1.0", "collectives between NVIDIA GPUs, ordered on CUDA streams, by the NCCL library",
                    DDP_OPTIONS(options, ddp_nccl_config), ops),
};
