/* nccl_double.c -- the half of the double that stands in for NCCL: communicators, their groups and their end. What a kernel
 * does is in nccl_double_kernels.c. Communicators are non-blocking, as the backend asks for them. */
#include "nccl_double_comm.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

pthread_mutex_t double_world = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t double_moved = PTHREAD_COND_INITIALIZER;
static double_clique *cliques;
static struct ncclComm *alive;
static unsigned ids;

static _Thread_local int depth;
static _Thread_local double_op *group_first, *group_last;
static _Thread_local struct ncclComm *group_comm;
static _Thread_local cudaStream_t group_stream;

/* ---- communicators; double_world held in all of this --------------------------------------------------------------- */
static bool known(ncclComm_t comm, const char *what)
{
    for (struct ncclComm *c = alive; c != NULL; c = c->next)
        if (c == comm) return true;
    double_misuse(what);
    return false;
}

static void leave_clique(double_clique *q)
{
    if (--q->references > 0) return;
    for (double_clique **at = &cliques; *at != NULL; at = &(*at)->next)
        if (*at == q) {
            *at = q->next;
            break;
        }
    double_forget_meetings(q);
    free(q);
}

void double_let_go(ncclComm_t c)
{
    if (--c->references > 0) return;
    leave_clique(c->clique);
    free(c);
}

static double_clique *join_clique(const ncclUniqueId *id, int world)
{
    double_clique *q;
    unsigned number;

    memcpy(&number, id->internal, sizeof(number));
    for (q = cliques; q != NULL && q->number != number; q = q->next) continue;
    if (q == NULL) {
        q = calloc(1, sizeof(*q));
        q->number = number;
        q->world = world;
        q->next = cliques;
        cliques = q;
    }
    if (q->world != world) double_misuse("ranks that do not agree on how many they are");
    q->references++;
    q->joined++;
    return q;
}

DOUBLE_EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    if (double_fails()) return ncclSystemError;
    memset(id, 0x77, sizeof(*id));
    (void)pthread_mutex_lock(&double_world);
    ids++;
    memcpy(id->internal, &ids, sizeof(ids));
    (void)pthread_mutex_unlock(&double_world);
    return ncclSuccess;
}

static void check_signals(void)
{
    sigset_t now;

    (void)pthread_sigmask(SIG_SETMASK, NULL, &now);
    if (!sigismember(&now, SIGTERM) || !sigismember(&now, SIGCHLD))
        double_misuse("the library was called with signals that its threads would get");
}

DOUBLE_EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int world, ncclUniqueId id, int rank,
                                                  ncclConfig_t *config)
{
    struct ncclComm *c;

    if (double_fails()) return ncclSystemError;
    check_signals();
    if (config->blocking != 0) double_misuse("a communicator that blocks");
    c = calloc(1, sizeof(*c));
    c->rank = rank;
    c->world = world;
    c->references = 1;
    c->phase = DOUBLE_JOINING;
    (void)pthread_mutex_lock(&double_world);
    c->clique = join_clique(&id, world);
    c->next = alive;
    alive = c;
    (void)pthread_mutex_unlock(&double_world);
    (void)atomic_fetch_add(&double_control.comms, 1);
    (void)atomic_fetch_add(&double_control.inits, 1);
    *out = c;
    return ncclInProgress;
}

/* The communicator's state moves when it is looked at. */
static ncclResult_t state_of(struct ncclComm *c)
{
    if (atomic_load(&double_control.async_rank) == c->rank && c->phase != DOUBLE_JOINING)
        return (ncclResult_t)atomic_load(&double_control.async_error);
    switch (c->phase) {
    case DOUBLE_JOINING:
        if (atomic_load(&double_control.init_hangs) || c->clique->joined < c->world) return ncclInProgress;
        if (atomic_load(&double_control.init_error)) return (ncclResult_t)atomic_load(&double_control.init_error);
        c->phase = DOUBLE_READY;
        return ncclSuccess;
    case DOUBLE_LAUNCHING:
        if (c->polls-- > 0) return ncclInProgress;
        double_enqueue(c->launch_stream, double_run_kernel, c->launch);
        c->launch = NULL;
        c->phase = DOUBLE_READY;
        return ncclSuccess;
    case DOUBLE_FINALIZING:
        if (atomic_load(&double_control.finalize_hangs) || c->queued > 0 || c->clique->finalized < c->world)
            return ncclInProgress;
        c->phase = DOUBLE_FINALIZED;
        return ncclSuccess;
    default: return ncclSuccess;
    }
}

DOUBLE_EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state)
{
    if (double_fails()) return ncclInternalError;
    (void)pthread_mutex_lock(&double_world);
    *state = known(comm, "ncclCommGetAsyncError of a communicator that is gone") ? state_of(comm) : ncclInvalidArgument;
    (void)pthread_mutex_unlock(&double_world);
    return ncclSuccess;
}

DOUBLE_EXPORT ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    if (double_fails()) return ncclSystemError;
    (void)pthread_mutex_lock(&double_world);
    if (known(comm, "ncclCommFinalize of a communicator that is gone")) {
        if (comm->phase != DOUBLE_READY) double_misuse("ncclCommFinalize of a communicator that is not ready");
        comm->phase = DOUBLE_FINALIZING;
        comm->clique->finalized++;
    }
    (void)pthread_mutex_unlock(&double_world);
    (void)atomic_fetch_add(&double_control.finalizes, 1);
    return ncclInProgress;
}

static void remove_comm(ncclComm_t comm)
{
    for (struct ncclComm **at = &alive; *at != NULL; at = &(*at)->next)
        if (*at == comm) {
            *at = comm->next;
            break;
        }
    if (comm->registrations > 0) double_misuse("a communicator that ends with registered memory");
    (void)atomic_fetch_sub(&double_control.comms, 1);
    double_let_go(comm);
}

DOUBLE_EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    (void)pthread_mutex_lock(&double_world);
    if (known(comm, "ncclCommDestroy of a communicator that is gone")) {
        if (comm->phase != DOUBLE_FINALIZED) double_misuse("ncclCommDestroy before the end of ncclCommFinalize");
        remove_comm(comm);
    }
    (void)pthread_mutex_unlock(&double_world);
    (void)atomic_fetch_add(&double_control.destroys, 1);
    return ncclSuccess;
}

DOUBLE_EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    (void)pthread_mutex_lock(&double_world);
    if (known(comm, "ncclCommAbort of a communicator that is gone")) {
        comm->aborted = true;
        if (comm->launch != NULL) double_forget_kernel(comm->launch);
        comm->launch = NULL;
        (void)atomic_fetch_sub(&double_control.registrations, comm->registrations);
        comm->registrations = 0;
        remove_comm(comm);
        (void)pthread_cond_broadcast(&double_moved);
    }
    (void)pthread_mutex_unlock(&double_world);
    (void)atomic_fetch_add(&double_control.aborts, 1);
    return ncclSuccess;
}

/* ---- calls that become kernels --------------------------------------------------------------------------------------- */
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

static ncclResult_t append(ncclComm_t comm, cudaStream_t stream, double_op op)
{
    ncclResult_t r = ncclSuccess;
    double_op *o;

    if (double_fails()) return ncclInvalidArgument;
    check_signals();
    (void)pthread_mutex_lock(&double_world);
    if (!known(comm, "a collective of a communicator that is gone")) r = ncclInvalidArgument;
    if (r == ncclSuccess && comm->phase != DOUBLE_READY) {
        double_misuse("a collective before the one before was under way");
        r = ncclInvalidArgument;
    }
    if (r == ncclSuccess) {
        o = malloc(sizeof(*o));
        *o = op;
        if (depth == 0) {
            r = launch(comm, o, stream);
        } else {
            if (group_first == NULL)
                group_first = o;
            else
                group_last->next = o;
            group_last = o;
            group_comm = comm;
            group_stream = stream;
        }
    }
    (void)pthread_mutex_unlock(&double_world);
    return r;
}

DOUBLE_EXPORT ncclResult_t ncclGroupStart(void)
{
    if (double_fails()) return ncclInternalError;
    depth++;
    return ncclSuccess;
}

DOUBLE_EXPORT ncclResult_t ncclGroupEnd(void)
{
    double_op *ops = group_first;
    bool failed = double_fails();
    ncclResult_t r = failed ? ncclSystemError : ncclSuccess;

    if (depth-- != 1) double_misuse("groups that are not paired");
    group_first = NULL;
    (void)atomic_fetch_add(&double_control.groups, 1);
    if (ops == NULL) return r;
    (void)pthread_mutex_lock(&double_world);
    if (failed)
        double_forget_ops(ops);
    else
        r = launch(group_comm, ops, group_stream);
    (void)pthread_mutex_unlock(&double_world);
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

/* ---- memory and words ------------------------------------------------------------------------------------------------ */
DOUBLE_EXPORT ncclResult_t ncclMemAlloc(void **out, size_t bytes)
{
    if (double_fails()) return ncclUnhandledCudaError;
    *out = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    memset(*out, 0x5a, bytes);
    (void)atomic_fetch_add(&double_control.memory, 1);
    return ncclSuccess;
}

DOUBLE_EXPORT ncclResult_t ncclMemFree(void *p)
{
    free(p);
    (void)atomic_fetch_sub(&double_control.memory, 1);
    return ncclSuccess;
}

DOUBLE_EXPORT ncclResult_t ncclCommRegister(const ncclComm_t comm, void *p, size_t bytes, void **handle)
{
    (void)bytes;
    if (double_fails()) return ncclInternalError;
    (void)pthread_mutex_lock(&double_world);
    if (known(comm, "ncclCommRegister with a communicator that is gone")) comm->registrations++;
    (void)pthread_mutex_unlock(&double_world);
    (void)atomic_fetch_add(&double_control.registrations, 1);
    *handle = p;
    return ncclSuccess;
}

DOUBLE_EXPORT ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
{
    (void)handle;
    (void)pthread_mutex_lock(&double_world);
    if (known(comm, "ncclCommDeregister with a communicator that is gone")) comm->registrations--;
    (void)pthread_mutex_unlock(&double_world);
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
