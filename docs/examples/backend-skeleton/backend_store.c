/* backend_store.c -- a whole backend for ddpengine in one file, to start your own from.
 *
 * It needs no library: the ranks exchange their bytes through the key-value store that the engine gives every backend.
 * That makes it slow (every byte passes rank 0) and complete: any number of ranks on any hosts, same bits on every
 * rank.
 *
 *   1. Options   the plugin's section of the INI file, [backend.store]: a table that the engine parses.
 *   2. State     what open and comm_create make, and close and comm_destroy free.
 *   3. Exchange  the only part that communicates. Replace it by your library's calls.
 *   4. Slots     the collectives. Fill those that you have, and set the capability bit of each.
 *   5. Descriptor   the one exported symbol. Its name is the value in the INI: [group] backend = store.
 *
 * Build and try it as it is:
 *     make                                       with ddpengine installed (pkg-config ddpengine-plugin), or
 *     make CPPFLAGS=-I/path/to/ddpengine/core/include
 *     DDPENGINE_PLUGIN_PATH=$PWD ddpengine -c store.ini --nproc 2
 * Then copy it, rename it, and replace step by step; <ddpengine/backend.h> says what each slot promises. */
#include <ddpengine/backend.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* ---- 1. options -------------------------------------------------------------------------------------------------- */
struct store_config {
    uint64_t chunk;
};

static const ddp_option options[] = {
    {"chunk", "64KiB", "1KiB..512KiB", "Bytes of a rank that are exchanged at once.", DDP_OPT_SIZE, 0,
     offsetof(struct store_config, chunk)},
};

/* ---- 2. state ---------------------------------------------------------------------------------------------------- */
struct ddp_backend {
    const ddp_host *host;
    const struct store_config *config; /* the engine keeps it until close */
};

struct ddp_comm {
    ddp_store store; /* a copy of the table; its ctx is the engine's and lives until comm_destroy */
    uint32_t rank, world;
    int64_t timeout_ms;
    size_t chunk;         /* bytes */
    uint64_t sequence;    /* of the current exchange; the same on every rank, since all make the same calls */
    char *mine, *theirs;  /* `chunk` bytes each */
    pthread_mutex_t lock; /* over `aborted`, which comm_abort sets from other threads */
    int aborted;
};

static ddp_status store_open(const ddp_host *host, const void *config, ddp_backend **out, ddp_err *err)
{
    ddp_backend *b = calloc(1, sizeof(*b));

    if (b == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "store: no memory for the backend");
    b->host = host;
    b->config = config;
    *out = b; /* outputs are written last, and only on success */
    return DDP_OK;
}

static void store_close(ddp_backend *b) { free(b); }

static void comm_destroy(ddp_comm *c)
{
    (void)pthread_mutex_destroy(&c->lock);
    free(c->mine);
    free(c->theirs);
    free(c);
}

static void comm_abort(ddp_comm *c)
{
    (void)pthread_mutex_lock(&c->lock);
    c->aborted = 1;
    (void)pthread_mutex_unlock(&c->lock);
}

static int is_aborted(ddp_comm *c)
{
    int aborted;

    (void)pthread_mutex_lock(&c->lock);
    aborted = c->aborted;
    (void)pthread_mutex_unlock(&c->lock);
    return aborted;
}

/* ---- 3. exchange ------------------------------------------------------------------------------------------------- */
/* Every rank puts `length` bytes under "SEQUENCE.RANK", then reads the others' in the order of the ranks, so that sums
 * have the same bits everywhere. Having all parts of one exchange proves that every rank has finished the one before:
 * only then is the own part of that one removed. */
typedef void (*take_part)(void *ctx, uint32_t rank, const void *part, size_t length);

#define SLICE_MS 50 /* how soon a blocked rank sees an abort */

static ddp_status get_part(ddp_comm *c, uint32_t rank, const char *what, size_t *length, ddp_err *err)
{
    char key[64];
    ddp_status status = DDP_ERR_TIMEOUT;
    int64_t waited;

    (void)snprintf(key, sizeof(key), "%llu.%u", (unsigned long long)c->sequence, rank);
    for (waited = 0; status == DDP_ERR_TIMEOUT; waited += SLICE_MS) {
        if (is_aborted(c)) return ddp_fail(err, DDP_ERR_ABORTED, "store: %s was aborted", what);
        if (waited >= c->timeout_ms) {
            (void)ddp_fail(err, DDP_ERR_TIMEOUT, "store: rank %u has not come to %s (exchange %llu) within %lld ms",
                           rank, what, (unsigned long long)c->sequence, (long long)c->timeout_ms);
            err->rank = (int32_t)rank;
            return err->status;
        }
        status = c->store.get(c->store.ctx, key, c->theirs, c->chunk, length, SLICE_MS, err);
    }
    return status; /* any other error is the engine's, with its message */
}

static ddp_status exchange(ddp_comm *c, const char *what, const void *data, size_t length, take_part take, void *ctx,
                           ddp_err *err)
{
    char key[64];
    uint32_t r;
    ddp_status status;

    if (is_aborted(c)) return ddp_fail(err, DDP_ERR_ABORTED, "store: %s was aborted", what);
    if (length != 0) memcpy(c->mine, data, length); /* the caller's buffer may be written below: in place */
    (void)snprintf(key, sizeof(key), "%llu.%u", (unsigned long long)c->sequence, c->rank);
    status = c->store.set(c->store.ctx, key, c->mine, length, err);
    if (status != DDP_OK) return status;
    for (r = 0; r < c->world; r++) {
        size_t got = length;
        if (r != c->rank && (status = get_part(c, r, what, &got, err)) != DDP_OK) return status;
        if (take != NULL) take(ctx, r, r == c->rank ? c->mine : c->theirs, got);
    }
    if (c->sequence != 0) {
        (void)snprintf(key, sizeof(key), "%llu.%u", (unsigned long long)(c->sequence - 1), c->rank);
        status = c->store.remove(c->store.ctx, key, err);
        if (status != DDP_OK) return status;
    }
    c->sequence++;
    return DDP_OK;
}

static ddp_status comm_create(ddp_backend *b, const ddp_comm_params *p, ddp_comm **out, ddp_err *err)
{
    ddp_comm *c = calloc(1, sizeof(*c));
    ddp_status status;

    if (c == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "store: no memory for the communicator");
    (void)pthread_mutex_init(&c->lock, NULL);
    c->store = *p->store;
    c->rank = p->rank;
    c->world = p->world_size;
    c->timeout_ms = p->connect_timeout_ms;
    c->chunk = (size_t)b->config->chunk / 8 * 8; /* whole elements of every dtype */
    c->mine = malloc(c->chunk);
    c->theirs = malloc(c->chunk);
    if (c->mine == NULL || c->theirs == NULL)
        status = ddp_fail(err, DDP_ERR_NOMEM, "store: no memory for two chunks of %zu bytes", c->chunk);
    else
        status = exchange(c, "connecting", NULL, 0, NULL, NULL, err);
    if (status != DDP_OK) {
        comm_destroy(c);
        return status;
    }
    c->timeout_ms = p->timeout_ms;
    b->host->log(b->host->ctx, DDP_LOG_DEBUG, __FILE__, __LINE__, "store: %u ranks, chunks of %zu bytes", c->world,
                 c->chunk);
    *out = c;
    return DDP_OK;
}

/* ---- 4. slots ---------------------------------------------------------------------------------------------------- */
static ddp_status supports(ddp_comm *c, uint32_t dtype, uint32_t op)
{
    (void)c;
    if (ddp_dtype_size(dtype) == 0 || op < DDP_SUM || op > DDP_MAX) return DDP_ERR_UNSUPPORTED;
    return op == DDP_AVG && (dtype == DDP_I32 || dtype == DDP_I64 || dtype == DDP_U8) ? DDP_ERR_UNSUPPORTED : DDP_OK;
}

static float from_bf16(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float f;

    memcpy(&f, &bits, sizeof(f));
    return f;
}

static uint16_t to_bf16(float f) /* to nearest, ties to even */
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof(bits));
    if (f != f) return (uint16_t)(bits >> 16 | 0x40); /* NaN stays one */
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* recv[i] = recv[i] op part[i]; integers sum modulo 2^n, hence the unsigned type S. Buffers need not be aligned. */
#define FOLD(name, T, S)                                                                                               \
    static void fold_##name(char *recv, const char *part, size_t count, uint32_t op)                                   \
    {                                                                                                                  \
        size_t i;                                                                                                      \
        for (i = 0; i < count; i++) {                                                                                  \
            T a, b;                                                                                                    \
            memcpy(&a, recv + i * sizeof(T), sizeof(T));                                                               \
            memcpy(&b, part + i * sizeof(T), sizeof(T));                                                               \
            if (op == DDP_MIN)                                                                                         \
                a = b < a || b != b ? b : a;                                                                           \
            else if (op == DDP_MAX)                                                                                    \
                a = b > a || b != b ? b : a;                                                                           \
            else                                                                                                       \
                a = (T)((S)a + (S)b);                                                                                  \
            memcpy(recv + i * sizeof(T), &a, sizeof(T));                                                               \
        }                                                                                                              \
    }
FOLD(f32, float, float)
FOLD(f64, double, double)
FOLD(i32, int32_t, uint32_t)
FOLD(i64, int64_t, uint64_t)
FOLD(u8, uint8_t, uint32_t)

static void fold_bf16(char *recv, const char *part, size_t count, uint32_t op)
{
    size_t i;

    for (i = 0; i < count; i++) {
        uint16_t h[2];
        float a, b;

        memcpy(&h[0], recv + 2 * i, 2);
        memcpy(&h[1], part + 2 * i, 2);
        a = from_bf16(h[0]);
        b = from_bf16(h[1]);
        fold_f32((char *)&a, (const char *)&b, 1, op);
        h[0] = to_bf16(a);
        memcpy(recv + 2 * i, &h[0], 2);
    }
}

static void fold(uint32_t dtype, char *recv, const char *part, size_t count, uint32_t op)
{
    switch (dtype) {
    case DDP_F32: fold_f32(recv, part, count, op); break;
    case DDP_F64: fold_f64(recv, part, count, op); break;
    case DDP_I32: fold_i32(recv, part, count, op); break;
    case DDP_I64: fold_i64(recv, part, count, op); break;
    case DDP_U8: fold_u8(recv, part, count, op); break;
    default: fold_bf16(recv, part, count, op); break;
    }
}

static void divide(uint32_t dtype, char *recv, size_t count, uint32_t world)
{
    size_t i;

    for (i = 0; i < count; i++) {
        float f;
        double d;
        uint16_t h;

        if (dtype == DDP_F32) {
            memcpy(&f, recv + 4 * i, 4);
            f /= (float)world;
            memcpy(recv + 4 * i, &f, 4);
        } else if (dtype == DDP_F64) {
            memcpy(&d, recv + 8 * i, 8);
            d /= (double)world;
            memcpy(recv + 8 * i, &d, 8);
        } else {
            memcpy(&h, recv + 2 * i, 2);
            h = to_bf16(from_bf16(h) / (float)world);
            memcpy(recv + 2 * i, &h, 2);
        }
    }
}

/* What happens to a part that arrived. `recv` is where this chunk's result goes. */
typedef struct landing {
    char *recv;
    size_t stride;      /* all_gather: bytes from one rank's result to the next */
    uint32_t dtype, op; /* reductions */
    uint32_t root;      /* broadcast */
} landing;

static void land_reduced(void *ctx, uint32_t rank, const void *part, size_t length)
{
    landing *l = ctx;

    if (rank == 0)
        memcpy(l->recv, part, length);
    else
        fold(l->dtype, l->recv, part, length / ddp_dtype_size(l->dtype), l->op);
}

static void land_from_root(void *ctx, uint32_t rank, const void *part, size_t length)
{
    landing *l = ctx;

    if (rank == l->root && length != 0) memcpy(l->recv, part, length);
}

static void land_in_place_of_rank(void *ctx, uint32_t rank, const void *part, size_t length)
{
    landing *l = ctx;

    memcpy(l->recv + rank * l->stride, part, length);
}

static int overlaps(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
    return (uintptr_t)a < (uintptr_t)b + b_bytes && (uintptr_t)b < (uintptr_t)a + a_bytes;
}

/* Common checks. `in_place`: where recv may lie over send. */
static ddp_status check(ddp_comm *c, const ddp_coll *a, const char *what, size_t send_bytes, size_t recv_bytes,
                        int in_place, ddp_err *err)
{
    if (supports(c, a->dtype, a->op == 0 ? (uint32_t)DDP_SUM : a->op) != DDP_OK)
        return ddp_fail(err, DDP_ERR_UNSUPPORTED, "store: %s cannot do dtype %u with operation %u", what, a->dtype,
                        a->op);
    if (a->count > (size_t)PTRDIFF_MAX / ddp_dtype_size(a->dtype) / c->world)
        return ddp_fail(err, DDP_ERR_INVALID, "store: %s of %llu elements for each of %u ranks: no memory is so large",
                        what, (unsigned long long)a->count, c->world);
    if (!in_place && overlaps(a->send, send_bytes, a->recv, recv_bytes))
        return ddp_fail(err, DDP_ERR_INVALID, "store: %s has overlapping buffers", what);
    return DDP_OK;
}

static ddp_status all_reduce(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    size_t bytes = a->count * ddp_dtype_size(a->dtype), at, n;
    landing l = {NULL, 0, a->dtype, a->op, 0};
    ddp_status status = check(c, a, "all_reduce", bytes, bytes, a->send == a->recv, err);

    (void)out; /* a blocking backend has no work handles */
    for (at = 0; status == DDP_OK && at < bytes; at += n) {
        n = bytes - at < c->chunk ? bytes - at : c->chunk;
        l.recv = (char *)a->recv + at;
        status = exchange(c, "all_reduce", (const char *)a->send + at, n, land_reduced, &l, err);
        if (status == DDP_OK && a->op == DDP_AVG) divide(a->dtype, l.recv, n / ddp_dtype_size(a->dtype), c->world);
    }
    return status;
}

static ddp_status broadcast(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    size_t bytes = a->count * ddp_dtype_size(a->dtype), at, n;
    landing l = {NULL, 0, 0, 0, a->root};
    ddp_status status = check(c, a, "broadcast", bytes, bytes, 1, err);

    (void)out;
    if (status == DDP_OK && a->root >= c->world)
        return ddp_fail(err, DDP_ERR_INVALID, "store: broadcast from rank %u of %u", a->root, c->world);
    for (at = 0; status == DDP_OK && at < bytes; at += n) {
        n = bytes - at < c->chunk ? bytes - at : c->chunk;
        l.recv = (char *)a->recv + at;
        /* the others take part with nothing: the root may not run ahead and remove what they have not read */
        status = exchange(c, "broadcast", l.recv, c->rank == a->root ? n : 0, land_from_root, &l, err);
    }
    return status;
}

static ddp_status all_gather(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    size_t bytes = a->count * ddp_dtype_size(a->dtype), at, n;
    landing l = {NULL, bytes, 0, 0, 0};
    ddp_status status = check(c, a, "all_gather", bytes, bytes * c->world,
                              (const char *)a->send == (char *)a->recv + c->rank * bytes, err);

    (void)out;
    for (at = 0; status == DDP_OK && at < bytes; at += n) {
        n = bytes - at < c->chunk ? bytes - at : c->chunk;
        l.recv = (char *)a->recv + at;
        status = exchange(c, "all_gather", (const char *)a->send + at, n, land_in_place_of_rank, &l, err);
    }
    return status;
}

/* Block r of everybody's input is reduced for rank r; the other ranks' blocks pass by. */
static ddp_status reduce_scatter(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)
{
    size_t bytes = a->count * ddp_dtype_size(a->dtype), at, n;
    landing l = {NULL, 0, a->dtype, a->op, 0};
    uint32_t r;
    ddp_status status = check(c, a, "reduce_scatter", bytes * c->world, bytes,
                              (char *)a->recv == (const char *)a->send + c->rank * bytes, err);

    (void)out;
    for (r = 0; r < c->world; r++)
        for (at = 0; status == DDP_OK && at < bytes; at += n) {
            n = bytes - at < c->chunk ? bytes - at : c->chunk;
            l.recv = (char *)a->recv + at;
            status = exchange(c, "reduce_scatter", (const char *)a->send + r * bytes + at, n,
                              r == c->rank ? land_reduced : NULL, &l, err);
            if (status == DDP_OK && r == c->rank && a->op == DDP_AVG)
                divide(a->dtype, l.recv, n / ddp_dtype_size(a->dtype), c->world);
        }
    return status;
}

static ddp_status barrier(ddp_comm *c, ddp_work **out, ddp_err *err)
{
    (void)out;
    return exchange(c, "barrier", NULL, 0, NULL, NULL, err);
}

static const ddp_backend_ops ops = {
    .struct_size = sizeof(ops),
    .caps = DDP_CAP_ABORT | DDP_CAP_ALL_REDUCE | DDP_CAP_BROADCAST | DDP_CAP_ALL_GATHER | DDP_CAP_REDUCE_SCATTER |
            DDP_CAP_BARRIER,
    .open = store_open,
    .close = store_close,
    .comm_create = comm_create,
    .comm_abort = comm_abort,
    .comm_destroy = comm_destroy,
    .supports = supports,
    .all_reduce = all_reduce,
    .broadcast = broadcast,
    .all_gather = all_gather,
    .reduce_scatter = reduce_scatter,
    .barrier = barrier,
};

/* ---- 5. descriptor ----------------------------------------------------------------------------------------------- */
DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(BACKEND, 0),
    .reach = DDP_REACH_NETWORK,
    .memory = DDP_MEMORY_HOST,
    /* the file is backend_store.so */
    DDP_PLUGIN_TAIL("store", "1.0", "collectives through the engine's key-value store: slow, complete, to learn from",
                    DDP_OPTIONS(options, struct store_config), ops),
};
