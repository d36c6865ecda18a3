/* plugins/backend/nccl/comm.c -- how a communicator comes to be, is aborted, and ends. */
#include "comm.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The run can fail on another rank while NCCL waits for that rank. A get of the store ends then: this key never
 * exists. */
#define KEY_ID    "nccl-id"
#define KEY_NEVER "nccl-never"

enum { ABORT_GRACE_MS = 50, FINALIZE_MS = 10000, SOON_MS = 20, PROBE_MS = 50 };

static void sleep_ms(long ms)
{
    struct timespec t = {.tv_nsec = ms * 1000000};

    (void)nanosleep(&t, NULL);
}

void ddp_nccl_use_device(const ddp_comm *c) { (void)c->runtime->cudaSetDevice(c->device); }

/* ---- what it owns on the device ---------------------------------------------------------------------------------- */
static ddp_status open_device(ddp_comm *c, ddp_err *err)
{
    const ddp_nccl_runtime *r = c->runtime;
    int least, greatest;
    cudaError_t e = r->cudaSetDevice(c->device);

    if (e == cudaSuccess) e = r->cudaDeviceGetStreamPriorityRange(&least, &greatest);
    if (e == cudaSuccess) e = r->cudaStreamCreateWithPriority(&c->stream, cudaStreamNonBlocking, greatest);
    if (e == cudaSuccess) e = r->cudaEventCreateWithFlags(&c->input, cudaEventDisableTiming);
    if (e == cudaSuccess) e = r->cudaMalloc(&c->barrier_cell, sizeof(int32_t));
    if (e == cudaSuccess) e = r->cudaMemsetAsync(c->barrier_cell, 0, sizeof(int32_t), c->stream);
    if (e != cudaSuccess) return ddp_nccl_fail_cuda(r, e, err, "nccl: CUDA device %d on rank %u", c->device, c->rank);
    return ddp_nccl_pool_open(c, err);
}

static void close_device(ddp_comm *c)
{
    const ddp_nccl_runtime *r = c->runtime;

    ddp_nccl_use_device(c);
    if (c->barrier_cell != NULL) (void)r->cudaFree(c->barrier_cell); /* waits for the device: the next does not */
    ddp_nccl_free_all(c);
    ddp_nccl_pool_close(c);
    if (c->input != NULL) (void)r->cudaEventDestroy(c->input);
    if (c->stream != NULL) (void)r->cudaStreamDestroy(c->stream);
}

/* ---- rendezvous ------------------------------------------------------------------------------------------------ */
typedef struct rendezvous {
    int64_t timeout_ms, deadline_ns;
} rendezvous;

static void key_of(uint32_t rank, char key[32]) { (void)snprintf(key, 32, "nccl-here-%u", rank); }

/* After the time-out: names a rank that is missing, or says that all are there and NCCL does not connect them. */
static ddp_status not_connected(const ddp_comm *c, const rendezvous *m, ddp_err *err)
{
    for (uint32_t r = 0; r < c->world; r++) {
        char key[32], there;
        size_t length;

        key_of(r, key);
        if (r == c->rank || c->store->get(c->store->ctx, key, &there, 1, &length, 1, err) == DDP_OK) continue;
        if (err->status != DDP_ERR_TIMEOUT) return err->status;
        (void)ddp_fail(err, DDP_ERR_TIMEOUT, "nccl: rank %u has not come to connect to rank %u within %lld ms", r,
                       c->rank, (long long)m->timeout_ms);
        err->rank = (int32_t)r;
        return err->status;
    }
    return ddp_fail(err, DDP_ERR_TIMEOUT,
                    "nccl: all ranks are there, but NCCL has not connected rank %u of %u within %lld ms; "
                    "NCCL_DEBUG=INFO shows how far it came",
                    c->rank, c->world, (long long)m->timeout_ms);
}

static ddp_status share_id(ddp_comm *c, const rendezvous *m, ncclUniqueId *id, ddp_err *err)
{
    char key[32];
    size_t length = 0;
    ncclResult_t r;
    ddp_status st;

    key_of(c->rank, key);
    st = c->store->set(c->store->ctx, key, "", 1, err);
    if (st != DDP_OK) return st;
    if (c->rank == 0) {
        r = c->runtime->ncclGetUniqueId(id);
        if (r != ncclSuccess) return ddp_nccl_fail(c->runtime, NULL, r, err, "nccl: the unique id of rank 0");
        return c->store->set(c->store->ctx, KEY_ID, id, sizeof(*id), err);
    }
    st = c->store->get(c->store->ctx, KEY_ID, id, sizeof(*id), &length, m->timeout_ms, err);
    if (st == DDP_ERR_TIMEOUT) return not_connected(c, m, err);
    if (st == DDP_OK && length != sizeof(*id))
        return ddp_fail(err, DDP_ERR_PEER,
                        "nccl: rank 0's unique id has %zu bytes, not %zu: another version of the plugin?", length,
                        sizeof(*id));
    return st;
}

/* Sleeps a little; fails when the run has failed meanwhile. */
static ddp_status probe(const ddp_comm *c, int looks, ddp_err *err)
{
    char none;
    size_t length;
    ddp_status st;

    if (looks < SOON_MS) {
        sleep_ms(1);
        return DDP_OK;
    }
    st = c->store->get(c->store->ctx, KEY_NEVER, &none, sizeof(none), &length, PROBE_MS, err);
    return st == DDP_ERR_TIMEOUT || st == DDP_OK ? DDP_OK : st;
}

static ddp_status wait_connected(ddp_comm *c, const rendezvous *m, ncclResult_t result, ddp_err *err)
{
    ddp_status st = DDP_OK;

    for (int looks = 0; result == ncclInProgress && st == DDP_OK; looks++) {
        ncclResult_t state = ncclSuccess, asked = c->runtime->ncclCommGetAsyncError(c->nccl, &state);
        result = asked != ncclSuccess ? asked : state;
        if (result == ncclInProgress && ddp_nccl_now_ns() >= m->deadline_ns)
            st = not_connected(c, m, err);
        else if (result == ncclInProgress)
            st = probe(c, looks, err);
    }
    if (st != DDP_OK || result == ncclSuccess) return st;
    return ddp_nccl_fail(c->runtime, c->nccl, result, err, "nccl: connecting rank %u of %u on CUDA device %d", c->rank,
                         c->world, c->device);
}

/* NCCL starts threads here, which inherit this mask, so that they get none of the process's signals. */
static ddp_status connect_ranks(ddp_comm *c, int64_t timeout_ms, ddp_err *err)
{
    const rendezvous m = {.timeout_ms = timeout_ms, .deadline_ns = ddp_nccl_deadline_ns(timeout_ms)};
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;
    sigset_t all, before;
    ncclResult_t r;
    ddp_status st;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    st = share_id(c, &m, &id, err);
    if (st != DDP_OK) goto unmask;
    config.blocking = 0;
    r = c->runtime->ncclCommInitRankConfig(&c->nccl, (int)c->world, id, (int)c->rank, &config);
    st = wait_connected(c, &m, r, err);
unmask:
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return st;
}

static void log_connected(const ddp_comm *c)
{
    int nccl = 0, cuda = 0, driver = 0;

    (void)c->runtime->ncclGetVersion(&nccl);
    (void)c->runtime->cudaRuntimeGetVersion(&cuda);
    (void)c->runtime->cudaDriverGetVersion(&driver);
    c->host->log(c->host->ctx, DDP_LOG_DEBUG, __FILE__, __LINE__,
                 "nccl: NCCL %d.%d.%d, CUDA runtime %d.%d, driver for %d.%d, rank %u of %u on CUDA device %d",
                 nccl / 10000, nccl / 100 % 100, nccl % 100, cuda / 1000, cuda % 100 / 10, driver / 1000,
                 driver % 100 / 10, c->rank, c->world, c->device);
}

static void release(ddp_comm *c)
{
    ddp_nccl_abort_now(c);
    close_device(c);
    (void)pthread_mutex_destroy(&c->pool_lock);
    (void)pthread_mutex_destroy(&c->lock);
    free(c);
}

ddp_status ddp_nccl_comm_create(ddp_backend *b, const ddp_comm_params *p, ddp_comm **out, ddp_err *err)
{
    ddp_comm *c;
    ddp_status st;

    if (p->world_size == 0 || p->rank >= p->world_size || p->world_size > INT32_MAX)
        return ddp_fail(err, DDP_ERR_INVALID, "nccl: rank %u of world_size %u", p->rank, p->world_size);
    st = ddp_nccl_device_check(&b->runtime, p->device_ordinal, err);
    if (st != DDP_OK) return st;
    ddp_nccl_use_interface(b->host, p->interface, p->world_size > 1 ? p->address : NULL);
    c = calloc(1, sizeof(*c));
    if (c == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "nccl: out of memory");
    c->host = b->host;
    c->runtime = &b->runtime;
    c->store = p->store;
    c->timeout_ms = p->timeout_ms;
    c->rank = p->rank;
    c->world = p->world_size;
    c->device = p->device_ordinal;
    c->registration = b->config.registration != 0;
    (void)pthread_mutex_init(&c->lock, NULL);
    (void)pthread_mutex_init(&c->pool_lock, NULL);
    st = open_device(c, err);
    if (st == DDP_OK) st = connect_ranks(c, p->connect_timeout_ms, err);
    if (st == DDP_OK) log_connected(c);
    if (st != DDP_OK) {
        release(c);
        return st;
    }
    *out = c;
    return DDP_OK;
}

/* ---- end --------------------------------------------------------------------------------------------------------- */
void ddp_nccl_comm_abort(ddp_comm *c)
{
    if (atomic_exchange(&c->aborted, true)) return;
    /* A thread inside the library leaves it soon, for the communicator is non-blocking, and then one of the two ends
     * the communicator; both at once would free it twice. */
    for (int ms = 0; ms < ABORT_GRACE_MS; ms++) {
        if (pthread_mutex_trylock(&c->lock) == 0) {
            ddp_nccl_leave(c);
            return;
        }
        sleep_ms(1);
    }
}

/* Finishes what is under way and disconnects from the other ranks. */
static void part(ddp_comm *c)
{
    int64_t limit = c->timeout_ms < FINALIZE_MS ? c->timeout_ms : FINALIZE_MS;
    ncclComm_t nccl;
    ddp_err err = {.status = DDP_OK};

    if (ddp_nccl_settle(c, c->runtime->ncclCommFinalize(c->nccl), limit, "closing, after collective", &err) != DDP_OK) {
        c->host->log(c->host->ctx, DDP_LOG_WARN, __FILE__, __LINE__, "%s", err.msg);
        return;
    }
    nccl = c->nccl;
    c->nccl = NULL;
    (void)c->runtime->ncclCommDestroy(nccl);
}

void ddp_nccl_comm_destroy(ddp_comm *c)
{
    if (ddp_nccl_enter(c, "closing", &(ddp_err){.status = DDP_OK}) == DDP_OK) {
        ddp_nccl_deregister_all(c);
        part(c);
        ddp_nccl_leave(c);
    }
    release(c); /* aborts what has not parted */
}
