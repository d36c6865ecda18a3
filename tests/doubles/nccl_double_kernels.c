/* tests/doubles/nccl_double_kernels.c -- of the double of NCCL: what collectives do, on the threads of the ranks'
 * streams. Every one is messages to and from the other ranks, and then, where it reduces, a sum in the order of the
 * ranks, in double, which is the same on all. */
#include "nccl_double_parts.h"
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

size_t double_size(ncclDataType_t t)
{
    switch (t) {
    case ncclUint8: return 1;
    case ncclBfloat16: return 2;
    case ncclInt32:
    case ncclFloat32: return 4;
    case ncclInt64:
    case ncclFloat64: return 8;
    default: cuda_double_misused("a type that no dtype of the engine is"); return 1;
    }
}

void double_extents(const struct ncclComm *c, const double_op *o, size_t *send, size_t *recv)
{
    size_t bytes = o->count * double_size(o->type), all = bytes * (size_t)c->world;
    bool root = o->root == c->rank;

    *send = o->kind == DOUBLE_RECV || (o->kind == DOUBLE_BROADCAST && !root) ? 0
            : o->kind == DOUBLE_REDUCE_SCATTER                               ? all
                                                                             : bytes;
    *recv = o->kind == DOUBLE_SEND || (o->kind == DOUBLE_REDUCE && !root) ? 0
            : o->kind == DOUBLE_ALL_GATHER                                ? all
                                                                          : bytes;
}

/* ---- arithmetic, in double --------------------------------------------------------------------------------------- */
static double load(const void *p, size_t i, ncclDataType_t t)
{
    uint32_t bits;
    float f;

    switch (t) {
    case ncclUint8: return ((const uint8_t *)p)[i];
    case ncclInt32: return ((const int32_t *)p)[i];
    case ncclInt64: return (double)((const int64_t *)p)[i];
    case ncclFloat32: return (double)((const float *)p)[i];
    case ncclFloat64: return ((const double *)p)[i];
    default:
        bits = (uint32_t)((const uint16_t *)p)[i] << 16;
        memcpy(&f, &bits, sizeof(f));
        return (double)f;
    }
}

static void store(void *p, size_t i, ncclDataType_t t, double v)
{
    float f = (float)v;
    uint32_t bits;

    switch (t) {
    case ncclUint8: ((uint8_t *)p)[i] = (uint8_t)v; break;
    case ncclInt32: ((int32_t *)p)[i] = (int32_t)v; break;
    case ncclInt64: ((int64_t *)p)[i] = (int64_t)v; break;
    case ncclFloat32: ((float *)p)[i] = f; break;
    case ncclFloat64: ((double *)p)[i] = v; break;
    default:
        memcpy(&bits, &f, sizeof(bits));
        ((uint16_t *)p)[i] = (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
    }
}

static double both(ncclRedOp_t op, double v, double x)
{
    if (op == ncclMin) return x < v ? x : v;
    if (op == ncclMax) return x > v ? x : v;
    return v + x;
}

/* Each rank's part is at parts + its rank * bytes. */
static void reduce(const double_op *o, const char *parts, int world)
{
    size_t bytes = o->count * double_size(o->type);

    for (size_t i = 0; i < o->count; i++) {
        double v = load(parts, i, o->type);
        for (int r = 1; r < world; r++) v = both(o->op, v, load(parts + (size_t)r * bytes, i, o->type));
        store(o->recv, i, o->type, o->op == ncclAvg ? v / world : v);
    }
}

/* ---- a kernel's messages ----------------------------------------------------------------------------------------- */
typedef struct run {
    double_kernel *k;
    double_transfer *transfers;
    size_t count;
    char *parts; /* of all ranks, to be reduced */
} run;

static void add(run *r, const double_op *o, bool sends, int peer, const void *at)
{
    ncclComm_t c = r->k->comm;
    int from = sends ? c->rank : peer, to = sends ? peer : c->rank;
    double_letter letter;

    memset(&letter, 0, sizeof(letter));
    letter.bytes = o->count * double_size(o->type);
    if (o->kind < DOUBLE_SEND) {
        letter.sequence = r->k->sequence;
        letter.kind = o->kind;
        letter.type = (int)o->type;
        letter.op = (int)o->op;
        letter.root = o->root;
    }
    r->transfers[r->count++] = (double_transfer){
        .channel = &c->link->channels[from * c->world + to], .letter = letter, .at = (char *)at, .sends = sends};
}

/* Nowhere: the op sends, or takes, nothing with this peer. */
static const void *goes_to(const double_op *o, int rank, int peer, size_t bytes)
{
    switch (o->kind) {
    case DOUBLE_BROADCAST: return rank == o->root ? o->send : NULL;
    case DOUBLE_REDUCE: return peer == o->root ? o->send : NULL;
    case DOUBLE_REDUCE_SCATTER: return (const char *)o->send + (size_t)peer * bytes;
    default: return o->send;
    }
}

static void *comes_from(const run *r, const double_op *o, int rank, int peer, size_t bytes)
{
    switch (o->kind) {
    case DOUBLE_BROADCAST: return peer == o->root ? o->recv : NULL;
    case DOUBLE_REDUCE: return rank == o->root ? r->parts + (size_t)peer * bytes : NULL;
    case DOUBLE_ALL_GATHER: return (char *)o->recv + (size_t)peer * bytes;
    default: return r->parts + (size_t)peer * bytes;
    }
}

static void list(run *r)
{
    const double_op *o = r->k->ops;
    ncclComm_t c = r->k->comm;
    size_t bytes = o->count * double_size(o->type);

    for (; o != NULL && o->kind >= DOUBLE_SEND; o = o->next)
        add(r, o, o->kind == DOUBLE_SEND, o->root, o->kind == DOUBLE_SEND ? o->send : o->recv);
    for (int peer = 0; o != NULL && peer < c->world; peer++) {
        const void *to = peer == c->rank ? NULL : goes_to(o, c->rank, peer, bytes);
        void *from = peer == c->rank ? NULL : comes_from(r, o, c->rank, peer, bytes);
        if (to != NULL) add(r, o, true, peer, to);
        if (from != NULL) add(r, o, false, peer, from);
    }
}

/* All has come and gone: the rank's own part, and the sum. */
static void conclude(const run *r)
{
    const double_op *o = r->k->ops;
    ncclComm_t c = r->k->comm;
    size_t bytes = o->count * double_size(o->type), mine = (size_t)c->rank * bytes;
    bool root = o->root == c->rank;

    cuda_double_open();
    if (o->kind == DOUBLE_BROADCAST && root && o->recv != o->send) memmove(o->recv, o->send, bytes);
    if (o->kind == DOUBLE_ALL_GATHER) memmove((char *)o->recv + mine, o->send, bytes);
    if (o->kind == DOUBLE_ALL_REDUCE || o->kind == DOUBLE_REDUCE_SCATTER || (o->kind == DOUBLE_REDUCE && root)) {
        memcpy(r->parts + mine, (const char *)o->send + (o->kind == DOUBLE_REDUCE_SCATTER ? mine : 0), bytes);
        reduce(o, r->parts, c->world);
    }
    cuda_double_close();
}

static bool all_ended(const run *r)
{
    for (size_t i = 0; i < r->count; i++)
        if (!r->transfers[i].ended) return false;
    return true;
}

/* What the other ranks change wakes nobody, so it is looked at again and again. */
static void pause_once(unsigned *idle)
{
    static const struct timespec t = {0, 50000};

    if ((*idle)++ < 32)
        (void)sched_yield();
    else
        (void)nanosleep(&t, NULL);
}

void double_run(double_kernel *k)
{
    run r = {.k = k};
    size_t most = 2 * (size_t)k->comm->world;
    unsigned idle = 0;

    for (const double_op *o = k->ops; o != NULL; o = o->next) most++;
    r.transfers = calloc(most, sizeof(*r.transfers));
    if (k->ops->kind < DOUBLE_SEND)
        r.parts = malloc((size_t)k->comm->world * k->ops->count * double_size(k->ops->type) + 1);
    list(&r);
    while (!atomic_load(&k->comm->aborted) && !all_ended(&r)) {
        if (double_transfer_all(r.transfers, r.count))
            idle = 0;
        else
            pause_once(&idle);
    }
    if (!atomic_load(&k->comm->aborted)) conclude(&r);
    free(r.parts);
    free(r.transfers);
}
