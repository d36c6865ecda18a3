/* tests/doubles/nccl_double.c -- of the double of NCCL: the library's functions. Communicators are non-blocking, as
 * the backend asks for them, and their state moves when it is looked at. */
#include "nccl_double_parts.h"
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

nccl_double_control double_control = {.launch_polls = 2, .async_rank = -1};
static pthread_mutex_t world = PTHREAD_MUTEX_INITIALIZER; /* all communicators, but what is atomic */
static struct ncclComm *alive;

static _Thread_local int depth;
static _Thread_local double_op *group_first, *group_last;
static _Thread_local struct ncclComm *group_comm;
static _Thread_local cudaStream_t group_stream;

DOUBLE_EXPORT nccl_double_control *nccl_double(void);
nccl_double_control *nccl_double(void) { return &double_control; }

/* ---- communicators; `world` held in all of this ------------------------------------------------------------------ */
static bool known(ncclComm_t comm, const char *what)
{
    for (struct ncclComm *c = alive; c != NULL; c = c->next)
        if (c == comm) return true;
    cuda_double_misused(what);
    return false;
}

/* Its last user may be a kernel that has not left yet. */
static void let_go(ncclComm_t c)
{
    if (--c->references > 0) return;
    double_link_leave(c->link, c->world);
    free(c);
}

static void forget_ops(double_op *ops)
{
    while (ops != NULL) {
        double_op *next = ops->next;
        free(ops);
        ops = next;
    }
}

static void forget_kernel(double_kernel *k)
{
    k->comm->queued--;
    let_go(k->comm);
    forget_ops(k->ops);
    free(k);
}

static void stop_naming(ncclComm_t c)
{
    if (c->names) double_link_forget(&c->id);
    c->names = false;
}

/* On the stream's thread. */
static void run_kernel(void *arg)
{
    double_kernel *k = arg;

    double_run(k);
    (void)pthread_mutex_lock(&world);
    forget_kernel(k);
    (void)pthread_mutex_unlock(&world);
}

static ncclResult_t state_of(struct ncclComm *c)
{
    if (atomic_load(&double_control.async_rank) == c->rank && c->phase != DOUBLE_JOINING)
        return (ncclResult_t)atomic_load(&double_control.async_error);
    switch (c->phase) {
    case DOUBLE_JOINING:
        if (atomic_load(&double_control.init_hangs) || atomic_load(&c->link->joined) < c->world) return ncclInProgress;
        stop_naming(c);
        if (atomic_load(&double_control.init_error)) return (ncclResult_t)atomic_load(&double_control.init_error);
        c->phase = DOUBLE_READY;
        return ncclSuccess;
    case DOUBLE_LAUNCHING:
        if (c->polls-- > 0) return ncclInProgress;
        (void)cudaLaunchHostFunc(c->launch_stream, run_kernel, c->launch);
        c->launch = NULL;
        c->phase = DOUBLE_READY;
        return ncclSuccess;
    case DOUBLE_FINALIZING:
        if (atomic_load(&double_control.finalize_hangs) || c->queued > 0 || atomic_load(&c->link->finalized) < c->world)
            return ncclInProgress;
        c->phase = DOUBLE_FINALIZED;
        return ncclSuccess;
    default: return ncclSuccess;
    }
}

static void remove_comm(ncclComm_t comm)
{
    for (struct ncclComm **at = &alive; *at != NULL; at = &(*at)->next)
        if (*at == comm) {
            *at = comm->next;
            break;
        }
    if (comm->registrations > 0) cuda_double_misused("a communicator that ends with registered memory");
    stop_naming(comm);
    (void)atomic_fetch_sub(&double_control.comms, 1);
    let_go(comm);
}

/* ---- begin and end ----------------------------------------------------------------------------------------------- */
DOUBLE_EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    return !cuda_double_fails() && double_link_name(id) ? ncclSuccess : ncclSystemError;
}

static void check_signals(void)
{
    sigset_t now;

    (void)pthread_sigmask(SIG_SETMASK, NULL, &now);
    if (!sigismember(&now, SIGTERM) || !sigismember(&now, SIGCHLD))
        cuda_double_misused("the library was called with signals that its threads would get");
}

/* Rank 0 is the one that made the id, as the backend has it. */
DOUBLE_EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int ranks, ncclUniqueId id, int rank,
                                                  ncclConfig_t *config)
{
    double_link *link = cuda_double_fails() ? NULL : double_link_join(&id, ranks);
    struct ncclComm *c;

    check_signals();
    if (config->blocking != 0) cuda_double_misused("a communicator that blocks");
    if (link == NULL) {
        if (rank == 0) double_link_forget(&id);
        return ncclSystemError;
    }
    c = calloc(1, sizeof(*c));
    *c = (struct ncclComm){.link = link,
                           .id = id,
                           .rank = rank,
                           .world = ranks,
                           .references = 1,
                           .phase = DOUBLE_JOINING,
                           .names = rank == 0};
    (void)pthread_mutex_lock(&world);
    c->next = alive;
    alive = c;
    (void)pthread_mutex_unlock(&world);
    (void)atomic_fetch_add(&link->joined, 1);
    (void)atomic_fetch_add(&double_control.comms, 1);
    (void)atomic_fetch_add(&double_control.inits, 1);
    *out = c;
    return ncclInProgress;
}

DOUBLE_EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state)
{
    if (cuda_double_fails()) return ncclInternalError;
    (void)pthread_mutex_lock(&world);
    *state = known(comm, "ncclCommGetAsyncError of a communicator that is gone") ? state_of(comm) : ncclInvalidArgument;
    (void)pthread_mutex_unlock(&world);
    return ncclSuccess;
}

DOUBLE_EXPORT ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    if (cuda_double_fails()) return ncclSystemError;
    (void)pthread_mutex_lock(&world);
    if (known(comm, "ncclCommFinalize of a communicator that is gone")) {
        if (comm->phase != DOUBLE_READY) cuda_double_misused("ncclCommFinalize of a communicator that is not ready");
        comm->phase = DOUBLE_FINALIZING;
        (void)atomic_fetch_add(&comm->link->finalized, 1);
    }
    (void)pthread_mutex_unlock(&world);
    (void)atomic_fetch_add(&double_control.finalizes, 1);
    return ncclInProgress;
}

DOUBLE_EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    (void)pthread_mutex_lock(&world);
    if (known(comm, "ncclCommDestroy of a communicator that is gone")) {
        if (comm->phase != DOUBLE_FINALIZED) cuda_double_misused("ncclCommDestroy before the end of ncclCommFinalize");
        remove_comm(comm);
    }
    (void)pthread_mutex_unlock(&world);
    (void)atomic_fetch_add(&double_control.destroys, 1);
    return ncclSuccess;
}

/* Kernels leave, wherever they stand; one that was not launched never is. */
DOUBLE_EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    (void)pthread_mutex_lock(&world);
    if (known(comm, "ncclCommAbort of a communicator that is gone")) {
        atomic_store(&comm->aborted, true);
        if (comm->launch != NULL) forget_kernel(comm->launch);
        comm->launch = NULL;
        (void)atomic_fetch_sub(&double_control.registrations, comm->registrations);
        comm->registrations = 0;
        remove_comm(comm);
    }
    (void)pthread_mutex_unlock(&world);
    (void)atomic_fetch_add(&double_control.aborts, 1);
    return ncclSuccess;
}

/* ---- calls that become kernels ----------------------------------------------------------------------------------- */
static ncclResult_t launch(struct ncclComm *c, double_op *ops, cudaStream_t stream)
{
    double_kernel *k = calloc(1, sizeof(*k));

    k->comm = c;
    k->ops = ops;
    c->references++;
    c->queued++;
    if (ops->kind < DOUBLE_SEND) k->sequence = ++c->sequence;
    c->launch = k;
    c->launch_stream = stream;
    c->polls = atomic_load(&double_control.launch_polls);
    c->phase = DOUBLE_LAUNCHING;
    (void)atomic_fetch_add(&double_control.collectives, 1);
    return c->polls == 0 ? state_of(c) : ncclInProgress;
}

static bool reachable(const void *p, size_t bytes)
{
    return bytes == 0 || cuda_double_is_device(p, bytes) || cuda_double_is_host(p, bytes);
}

/* What is wrong with a call, or NULL. */
static const char *wrong(ncclComm_t comm, cudaStream_t stream, const double_op *op)
{
    enum cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    int least = 0, greatest = 0, priority = 1;
    size_t send, recv;

    if (comm->phase != DOUBLE_READY) return "a collective before the one before was under way";
    if (cudaStreamIsCapturing(stream, &capturing) != cudaSuccess || capturing != cudaStreamCaptureStatusNone)
        return "a collective on a stream that is captured, or is not there";
    (void)cudaDeviceGetStreamPriorityRange(&least, &greatest);
    if (cudaStreamGetPriority(stream, &priority) != cudaSuccess || priority != greatest)
        return "a collective on a stream that is not of the highest priority";
    double_extents(comm, op, &send, &recv);
    if (!reachable(op->send, send) || !reachable(op->recv, recv)) return "a collective with memory that no GPU reaches";
    return NULL;
}

static void append_to_group(ncclComm_t comm, cudaStream_t stream, double_op *o)
{
    if (group_first == NULL)
        group_first = o;
    else
        group_last->next = o;
    group_last = o;
    group_comm = comm;
    group_stream = stream;
}

static ncclResult_t append(ncclComm_t comm, cudaStream_t stream, double_op op)
{
    ncclResult_t r = ncclInvalidArgument;

    if (cuda_double_fails()) return r;
    check_signals();
    (void)pthread_mutex_lock(&world);
    if (known(comm, "a collective of a communicator that is gone")) {
        const char *what = wrong(comm, stream, &op);
        if (what != NULL) {
            cuda_double_misused(what);
        } else {
            double_op *o = malloc(sizeof(*o));
            *o = op;
            r = ncclSuccess;
            if (depth == 0)
                r = launch(comm, o, stream);
            else
                append_to_group(comm, stream, o);
        }
    }
    (void)pthread_mutex_unlock(&world);
    return r;
}

DOUBLE_EXPORT ncclResult_t ncclGroupStart(void)
{
    if (cuda_double_fails()) return ncclInternalError;
    depth++;
    return ncclSuccess;
}

DOUBLE_EXPORT ncclResult_t ncclGroupEnd(void)
{
    double_op *ops = group_first;
    bool failed = cuda_double_fails();
    ncclResult_t r = failed ? ncclSystemError : ncclSuccess;

    if (depth-- != 1) cuda_double_misused("groups that are not paired");
    group_first = NULL;
    (void)atomic_fetch_add(&double_control.groups, 1);
    if (ops == NULL) return r;
    (void)pthread_mutex_lock(&world);
    if (failed)
        forget_ops(ops);
    else
        r = launch(group_comm, ops, group_stream);
    (void)pthread_mutex_unlock(&world);
    return r;
}

DOUBLE_EXPORT ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
                                         ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    int ms = atomic_load(&double_control.inside_ms);
    struct timespec t = {ms / 1000, ms % 1000 * 1000000L};

    if (ms > 0) (void)nanosleep(&t, NULL);
    return append(comm, stream, (double_op){DOUBLE_ALL_REDUCE, send, recv, count, type, op, 0, NULL});
}

DOUBLE_EXPORT ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type, int root,
                                         ncclComm_t comm, cudaStream_t stream)
{
    return append(comm, stream, (double_op){DOUBLE_BROADCAST, send, recv, count, type, ncclSum, root, NULL});
}

DOUBLE_EXPORT ncclResult_t ncclReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                      int root, ncclComm_t comm, cudaStream_t stream)
{
    return append(comm, stream, (double_op){DOUBLE_REDUCE, send, recv, count, type, op, root, NULL});
}

DOUBLE_EXPORT ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type,
                                         ncclComm_t comm, cudaStream_t stream)
{
    return append(comm, stream, (double_op){DOUBLE_ALL_GATHER, send, recv, count, type, ncclSum, 0, NULL});
}

DOUBLE_EXPORT ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t type,
                                             ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return append(comm, stream, (double_op){DOUBLE_REDUCE_SCATTER, send, recv, count, type, op, 0, NULL});
}

DOUBLE_EXPORT ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                                    cudaStream_t stream)
{
    return append(comm, stream, (double_op){DOUBLE_SEND, send, NULL, count, type, ncclSum, peer, NULL});
}

DOUBLE_EXPORT ncclResult_t ncclRecv(void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                                    cudaStream_t stream)
{
    return append(comm, stream, (double_op){DOUBLE_RECV, NULL, recv, count, type, ncclSum, peer, NULL});
}

/* ---- memory and words -------------------------------------------------------------------------------------------- */
DOUBLE_EXPORT ncclResult_t ncclMemAlloc(void **out, size_t bytes)
{
    return cudaMalloc(out, bytes) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

DOUBLE_EXPORT ncclResult_t ncclMemFree(void *p)
{
    return cudaFree(p) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

DOUBLE_EXPORT ncclResult_t ncclCommRegister(const ncclComm_t comm, void *p, size_t bytes, void **handle)
{
    (void)bytes;
    if (cuda_double_fails()) return ncclInternalError;
    (void)pthread_mutex_lock(&world);
    if (known(comm, "ncclCommRegister with a communicator that is gone")) comm->registrations++;
    (void)pthread_mutex_unlock(&world);
    (void)atomic_fetch_add(&double_control.registrations, 1);
    *handle = p;
    return ncclSuccess;
}

DOUBLE_EXPORT ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
{
    (void)handle;
    (void)pthread_mutex_lock(&world);
    if (known(comm, "ncclCommDeregister with a communicator that is gone")) comm->registrations--;
    (void)pthread_mutex_unlock(&world);
    (void)atomic_fetch_sub(&double_control.registrations, 1);
    return ncclSuccess;
}

DOUBLE_EXPORT ncclResult_t ncclGetVersion(int *version)
{
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

DOUBLE_EXPORT const char *ncclGetErrorString(ncclResult_t r)
{
    return r == ncclRemoteError ? "remote process exited or there was a network error" : "an error of the double";
}

DOUBLE_EXPORT const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return "words of the double\non two lines\n";
}
