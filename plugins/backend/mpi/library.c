/* plugins/backend/mpi/library.c -- see library.h.
 *
 * MPI cannot be started twice in a process, so closing the last communicator does not end it: the next one could not be
 * opened. It ends with the process, by atexit, for which this shared object stays mapped (DDP_PLUGIN_F_NO_UNLOAD): what
 * was registered last is called first, so that MPI and what it stands on are still whole. In a destructor they are not,
 * and mpiexec of MPICH 4.2 then kills ranks that have not ended yet. MPI_Finalize waits for all ranks, so it is called
 * only when nothing has failed here and every rank has come to its end as well, which a barrier with a deadline finds
 * out. A process that leaves without it has failed anyway, and its launcher says so.
 *
 * Threads: a communicator is used from the thread that opened it, several of them at once need MPI_THREAD_MULTIPLE.
 * With less, one after the other works, from MPI_THREAD_SERIALIZED on: the thread that ends MPI is not the one that
 * has started it. */
#include "library.h"
#include "leftovers.h"
#include "reduce.h"
#include "settings.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { END_MS = 30000 }; /* how long the end of the process waits for the other ranks to come to theirs */

/* What is the process's own: there is one MPI in it, whatever is opened and closed. */
static struct {
    pthread_mutex_t lock;
    pid_t started_by; /* 0: not by this plugin */
    int level, tag_limit;
    uint32_t open; /* communicators */
    int broken;
    MPI_Comm
        all; /* what communicators are made from: the plugin's own copy of MPI_COMM_WORLD; MPI_COMM_NULL: none yet */
    MPI_Group ranks;
    MPI_Op bf16[DDP_REDUCE_OP_END_], average[DDP_DTYPE_END_];
    MPI_Op u8_min, u8_max; /* the library's, or our own */
} mpi = {.lock = PTHREAD_MUTEX_INITIALIZER, .all = MPI_COMM_NULL};

ddp_status ddp_mpi_failed(int code, const char *what, ddp_err *err)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;

    (void)MPI_Error_string(code, text, &length);
    (void)ddp_fail(err, DDP_ERR_LIBRARY, "mpi: %s: %.380s (MPI error %d)", what, length > 0 ? text : "no text", code);
    err->lib_code = code;
    return err->status;
}

/* ---- start and end ----------------------------------------------------------------------------------------------- */
static const char *level_name(int level)
{
    return level == MPI_THREAD_SINGLE       ? "MPI_THREAD_SINGLE"
           : level == MPI_THREAD_FUNNELED   ? "MPI_THREAD_FUNNELED"
           : level == MPI_THREAD_SERIALIZED ? "MPI_THREAD_SERIALIZED"
                                            : "MPI_THREAD_MULTIPLE";
}

/* MPICH 4.0 compares them as if they had a sign. */
static ddp_status make_u8_ops(ddp_err *err)
{
    uint8_t low = 1, high = 255;

    mpi.u8_min = MPI_MIN;
    mpi.u8_max = MPI_MAX;
    DDP_MPI(MPI_Reduce_local(&high, &low, 1, MPI_UINT8_T, MPI_MAX), "MPI_Reduce_local", err);
    if (low == high) return DDP_OK;
    DDP_MPI(MPI_Op_create(ddp_mpi_function(DDP_U8, DDP_MIN, 1), 1, &mpi.u8_min), "MPI_Op_create", err);
    DDP_MPI(MPI_Op_create(ddp_mpi_function(DDP_U8, DDP_MAX, 1), 1, &mpi.u8_max), "MPI_Op_create", err);
    return DDP_OK;
}

static ddp_status make_ops(ddp_err *err)
{
    for (uint32_t op = DDP_SUM; op < DDP_REDUCE_OP_END_; op++)
        DDP_MPI(MPI_Op_create(ddp_mpi_function(DDP_BF16, op, 1), 1, &mpi.bf16[op]), "MPI_Op_create", err);
    for (uint32_t dtype = DDP_F32; dtype < DDP_DTYPE_END_; dtype++)
        DDP_MPI(MPI_Op_create(ddp_mpi_function(dtype, DDP_AVG, 2), 1, &mpi.average[dtype]), "MPI_Op_create", err);
    return DDP_OK;
}

static ddp_status make_all(ddp_err *err)
{
    int *limit = NULL, found = 0;

    DDP_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &mpi.all), "MPI_Comm_dup", err);
    DDP_MPI(MPI_Comm_set_errhandler(mpi.all, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler", err);
    DDP_MPI(MPI_Comm_group(mpi.all, &mpi.ranks), "MPI_Comm_group", err);
    DDP_MPI(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &limit, &found), "MPI_Comm_get_attr", err);
    mpi.tag_limit = found ? *limit : 32767; /* the least that the standard allows */
    return make_u8_ops(err) == DDP_OK ? make_ops(err) : err->status;
}

static int initialize(const ddp_comm_params *p)
{
    int alone = !ddp_mpi_by_launcher(), code;
    ddp_mpi_folder folder;

    ddp_mpi_choose_settings(p);
    if (alone) ddp_mpi_enter_folder(&folder);
    code = MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &mpi.level);
    if (alone) ddp_mpi_leave_folder(&folder);
    return code;
}

static int64_t now_ms(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static int all_have_ended(void)
{
    const struct timespec pause = {.tv_nsec = 200000};
    int64_t limit = now_ms() + END_MS;
    MPI_Request request;
    int done = 0;

    if (MPI_Ibarrier(mpi.all, &request) != MPI_SUCCESS) return 0;
    while (MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done && now_ms() < limit)
        (void)nanosleep(&pause, NULL);
    return done;
}

/* The thread that ends the process; the others have ended, or have left a communicator open. */
static void end_with_process(void)
{
    int ended = 0;

    if (mpi.started_by != getpid() || mpi.broken || mpi.open > 0) return; /* a fork's end is not that of the rank */
    (void)MPI_Finalized(&ended);
    if (ended || !all_have_ended()) return;
    for (uint32_t op = DDP_SUM; op < DDP_REDUCE_OP_END_; op++) (void)MPI_Op_free(&mpi.bf16[op]);
    for (uint32_t dtype = DDP_F32; dtype < DDP_DTYPE_END_; dtype++) (void)MPI_Op_free(&mpi.average[dtype]);
    if (mpi.u8_min != MPI_MIN) (void)MPI_Op_free(&mpi.u8_min);
    if (mpi.u8_max != MPI_MAX) (void)MPI_Op_free(&mpi.u8_max);
    (void)MPI_Group_free(&mpi.ranks);
    (void)MPI_Comm_free(&mpi.all);
    (void)MPI_Finalize();
}

/* `lock` held. */
static ddp_status start(const ddp_comm_params *p, ddp_err *err)
{
    int started = 0, ended = 0;

    if (mpi.all != MPI_COMM_NULL) return DDP_OK;
    if (mpi.broken) return ddp_fail(err, DDP_ERR_LIBRARY, "mpi: an earlier start of MPI in this process has failed");
    (void)MPI_Finalized(&ended);
    if (ended) return ddp_fail(err, DDP_ERR_LIBRARY, "mpi: MPI has ended in this process and cannot start again");
    (void)MPI_Initialized(&started);
    mpi.broken = 1; /* until all of it is done */
    if (started) {
        DDP_MPI(MPI_Query_thread(&mpi.level), "MPI_Query_thread", err);
    } else {
        DDP_MPI(initialize(p), "MPI_Init_thread", err);
        mpi.started_by = getpid();
        if (atexit(end_with_process) != 0) return ddp_fail(err, DDP_ERR_NOMEM, "mpi: no memory for the end of MPI");
        DDP_MPI(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler", err);
    }
    if (mpi.level < MPI_THREAD_SERIALIZED)
        return ddp_fail(
            err, DDP_ERR_LIBRARY,
            "mpi: this MPI library gives %s; "
            "MPI_THREAD_SERIALIZED is the least that will do, and MPI_THREAD_MULTIPLE for several communicators at once: use one that was built with threads",
            level_name(mpi.level));
    if (make_all(err) != DDP_OK) return err->status;
    ddp_mpi_forget_settings();
    mpi.broken = 0;
    return DDP_OK;
}

static ddp_status compare(const ddp_comm_params *p, ddp_err *err)
{
    int rank = -1, world = -1;

    DDP_MPI(MPI_Comm_rank(mpi.all, &rank), "MPI_Comm_rank", err);
    DDP_MPI(MPI_Comm_size(mpi.all, &world), "MPI_Comm_size", err);
    if (rank == (int)p->rank && world == (int)p->world_size) return DDP_OK;
    if ((int)p->world_size < world && p->store != NULL)
        return DDP_OK; /* some of them: that the run has all is checked */
    return ddp_fail(err, DDP_ERR_CONFIG,
                    "mpi: this process is rank %d of %d in MPI, but rank %u of %u in the run; "
                    "start it with mpirun -np %u, and leave rank and world_size in [group] to it",
                    rank, world, p->rank, p->world_size, p->world_size);
}

/* `lock` not held. The ranks of a communicator that has not all of them: each says by the store which it is in MPI. */
static ddp_status choose_ranks(const ddp_comm_params *p, MPI_Group *out, ddp_err *err)
{
    int *ranks = calloc(p->world_size, sizeof(*ranks)), code, own;
    ddp_status st = ranks == NULL ? ddp_fail(err, DDP_ERR_NOMEM, "mpi: out of memory") : DDP_OK;
    char key[32];

    (void)MPI_Comm_rank(mpi.all, &own);
    (void)snprintf(key, sizeof(key), "mpi/%u", p->rank);
    if (st == DDP_OK) st = p->store->set(p->store->ctx, key, &own, sizeof(own), err);
    for (uint32_t r = 0; r < p->world_size && st == DDP_OK; r++) {
        size_t length;

        (void)snprintf(key, sizeof(key), "mpi/%u", r);
        st = p->store->get(p->store->ctx, key, &ranks[r], sizeof(*ranks), &length, p->connect_timeout_ms, err);
    }
    if (st == DDP_OK) {
        code = MPI_Group_incl(mpi.ranks, (int)p->world_size, ranks, out);
        if (code != MPI_SUCCESS) st = ddp_mpi_failed(code, "MPI_Group_incl", err);
    }
    free(ranks);
    return st;
}

/* Threads that make communicators at the same time tell theirs by the tag: the same for a name on every rank.
 * FNV-1a. */
static int tag_of(const char *group)
{
    uint32_t hash = 2166136261u;

    for (; *group != '\0'; group++) hash = (hash ^ (unsigned char)*group) * 16777619u;
    return (int)((hash & 0x7fffffffu) % ((uint32_t)mpi.tag_limit + 1u));
}

static int is_part(const ddp_comm_params *p)
{
    int world = 0;

    (void)MPI_Comm_size(mpi.all, &world);
    return (int)p->world_size < world;
}

/* `lock` held: one more communicator, if there may be. */
static ddp_status reserve(const ddp_comm_params *p, ddp_err *err)
{
    if (start(p, err) != DDP_OK || compare(p, err) != DDP_OK) return err->status;
    if (mpi.open > 0 && mpi.level < MPI_THREAD_MULTIPLE)
        return ddp_fail(err, DDP_ERR_UNSUPPORTED,
                        "mpi: this MPI library gives %s, but several communicators at once need MPI_THREAD_MULTIPLE",
                        level_name(mpi.level));
    mpi.open++;
    return DDP_OK;
}

ddp_status ddp_mpi_open(const ddp_comm_params *p, MPI_Comm *out, ddp_err *err)
{
    MPI_Comm comm = MPI_COMM_NULL;
    MPI_Group ranks = MPI_GROUP_NULL;
    const char *what = "MPI_Comm_create_group";
    ddp_status st;
    int code;

    (void)pthread_mutex_lock(&mpi.lock);
    st = reserve(p, err);
    (void)pthread_mutex_unlock(&mpi.lock);
    if (st != DDP_OK) return st;
    if (is_part(p) && choose_ranks(p, &ranks, err) != DDP_OK) {
        ddp_mpi_close(comm, 1);
        return err->status;
    }
    code = MPI_Comm_create_group(mpi.all, ranks != MPI_GROUP_NULL ? ranks : mpi.ranks, tag_of(p->group), &comm);
    if (ranks != MPI_GROUP_NULL) (void)MPI_Group_free(&ranks);
    if (code == MPI_SUCCESS) {
        what = "MPI_Comm_set_errhandler";
        code = MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    }
    if (code != MPI_SUCCESS) {
        ddp_mpi_close(comm, 1);
        return ddp_mpi_failed(code, what, err);
    }
    *out = comm;
    return DDP_OK;
}

void ddp_mpi_close(MPI_Comm comm, int broken)
{
    if (!broken) broken = MPI_Comm_free(&comm) != MPI_SUCCESS;
    (void)pthread_mutex_lock(&mpi.lock);
    mpi.open--;
    mpi.broken |= broken;
    (void)pthread_mutex_unlock(&mpi.lock);
}

/* ---- types and operations ---------------------------------------------------------------------------------------- */
MPI_Datatype ddp_mpi_type(uint32_t dtype)
{
    switch (dtype) {
    case DDP_F32: return MPI_FLOAT;
    case DDP_BF16: return MPI_UINT16_T; /* only moved, and combined by functions of our own */
    case DDP_F64: return MPI_DOUBLE;
    case DDP_I32: return MPI_INT32_T;
    case DDP_I64: return MPI_INT64_T;
    case DDP_U8: return MPI_UINT8_T;
    default: return MPI_DATATYPE_NULL;
    }
}

MPI_Op ddp_mpi_op(uint32_t dtype, uint32_t op, uint32_t world)
{
    if (dtype == 0 || dtype >= DDP_DTYPE_END_) return MPI_OP_NULL;
    if (op == DDP_AVG && world == 2) return mpi.average[dtype];
    if (dtype == DDP_BF16) return op > 0 && op < DDP_REDUCE_OP_END_ ? mpi.bf16[op] : MPI_OP_NULL;
    switch (op) {
    case DDP_SUM:
    case DDP_AVG: return MPI_SUM;
    case DDP_MIN: return dtype == DDP_U8 ? mpi.u8_min : MPI_MIN;
    case DDP_MAX: return dtype == DDP_U8 ? mpi.u8_max : MPI_MAX;
    default: return MPI_OP_NULL;
    }
}

/* ---- before the start -------------------------------------------------------------------------------------------- */
/* What a launcher's variable says against what is to be; absent or no number: MPI itself will report it. */
static ddp_status compare_variable(const char *name, const char *key, uint32_t ours, ddp_err *err)
{
    const char *text = ddp_mpi_variable(name);
    char *end;
    unsigned long n;

    if (text == NULL) return DDP_OK;
    n = strtoul(text, &end, 10);
    if (*end != '\0' || n == ours) return DDP_OK;
    return ddp_fail(err, DDP_ERR_CONFIG,
                    "mpi: the launcher says %s=%lu, but %s is %u; "
                    "leave [group] %s to the launcher, or start as many ranks as the INI says",
                    name, n, key, ours, key);
}

ddp_status ddp_mpi_check_launcher(const ddp_comm_params *p, ddp_err *err)
{
    const char *world = ddp_mpi_variable("OMPI_COMM_WORLD_SIZE") != NULL ? "OMPI_COMM_WORLD_SIZE" : "PMI_SIZE";
    const char *rank = ddp_mpi_variable("OMPI_COMM_WORLD_RANK") != NULL ? "OMPI_COMM_WORLD_RANK" : "PMI_RANK";

    if (p->world_size > 1 && !ddp_mpi_by_launcher() && ddp_mpi_variable("SLURM_STEP_NUM_TASKS") != NULL)
        return ddp_fail(
            err, DDP_ERR_CONFIG,
            "mpi: rank %u of %u was started by srun without PMIx, so MPI cannot find the other ranks; run srun --mpi=pmix (srun --mpi=list shows what this Slurm has), or within the allocation: mpirun --bind-to none -np %u ddpengine -c FILE",
            p->rank, p->world_size, p->world_size);
    if (p->world_size > 1 && !ddp_mpi_by_launcher())
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "mpi: rank %u of %u was not started by mpirun, so MPI cannot find the other ranks; run: "
                        "mpirun --bind-to none -np %u ddpengine -c FILE, or on one host: ddpengine -c FILE --nproc %u",
                        p->rank, p->world_size, p->world_size, p->world_size);
    if (compare_variable(world, "world_size", p->world_size, err) != DDP_OK) return err->status;
    return compare_variable(rank, "rank", p->rank, err);
}
