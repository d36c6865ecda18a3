/* nccl_double_kernels.c -- what the double's collectives do, on the threads of the ranks' streams: they wait for each other,
 * then one of them moves the data of all. A rank that is aborted leaves at once and touches no memory any more. */
#include "nccl_double_comm.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct double_meeting {
    unsigned long sequence;
    int arrived, left;
    bool done;
    double_meeting *next;
    double_op *ops[]; /* by rank */
};

struct double_letter {
    int from, to;
    const void *data;
    size_t bytes;
    bool taken;
    double_letter *next;
};

/* Until something moves; the wishes of a test move nothing, so they are looked at every few milliseconds. */
static void wait_a_little(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_REALTIME, &t);
    t.tv_nsec += 2000000;
    if (t.tv_nsec >= 1000000000) t.tv_sec++, t.tv_nsec -= 1000000000;
    (void)pthread_cond_timedwait(&double_moved, &double_world, &t);
}

static size_t size_of(ncclDataType_t t)
{
    switch (t) {
    case ncclUint8: return 1;
    case ncclBfloat16: return 2;
    case ncclInt32:
    case ncclFloat32: return 4;
    case ncclInt64:
    case ncclFloat64: return 8;
    default: double_misuse("a type that no dtype of the engine is"); return 1;
    }
}

/* ---- arithmetic, in double ------------------------------------------------------------------------------------------- */
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

static void reduce(const double_meeting *m, int world, size_t first, size_t count, void *out)
{
    const double_op *o = m->ops[0];

    for (size_t i = 0; i < count; i++) {
        double v = load(o->send, first + i, o->type);
        for (int r = 1; r < world; r++) {
            double x = load(m->ops[r]->send, first + i, o->type);
            v = o->op == ncclMin ? (x < v ? x : v) : o->op == ncclMax ? (x > v ? x : v) : v + x;
        }
        store(out, i, o->type, o->op == ncclAvg ? v / world : v);
    }
}

/* Results go through a copy, so that in place is no special case. */
static void perform(const double_meeting *m, int world)
{
    const double_op *o = m->ops[0];
    size_t bytes = o->count * size_of(o->type);
    char *result = malloc(bytes * (size_t)world + 1);

    for (int r = 0; r < world; r++) {
        if (o->kind == DOUBLE_ALL_GATHER) memcpy(result + (size_t)r * bytes, m->ops[r]->send, bytes);
        if (o->kind == DOUBLE_REDUCE_SCATTER)
            reduce(m, world, (size_t)r * o->count, o->count, result + (size_t)r * bytes);
    }
    if (o->kind == DOUBLE_ALL_REDUCE || o->kind == DOUBLE_REDUCE) reduce(m, world, 0, o->count, result);
    if (o->kind == DOUBLE_BROADCAST) memcpy(result, m->ops[o->root]->send, bytes);
    for (int r = 0; r < world; r++) {
        void *to = m->ops[r]->recv;
        if (o->kind == DOUBLE_ALL_GATHER)
            memcpy(to, result, bytes * (size_t)world);
        else if (o->kind == DOUBLE_REDUCE_SCATTER)
            memcpy(to, result + (size_t)r * bytes, bytes);
        else if (o->kind != DOUBLE_REDUCE || r == o->root)
            memcpy(to, result, bytes);
    }
    free(result);
}

/* ---- collectives ----------------------------------------------------------------------------------------------------- */
static double_meeting *meeting_of(double_clique *q, unsigned long sequence)
{
    double_meeting *m;

    for (m = q->meetings; m != NULL && m->sequence != sequence; m = m->next) continue;
    if (m != NULL) return m;
    m = calloc(1, sizeof(*m) + (size_t)q->world * sizeof(m->ops[0]));
    m->sequence = sequence;
    m->next = q->meetings;
    q->meetings = m;
    return m;
}

static void end_meeting(double_clique *q, double_meeting *m)
{
    for (double_meeting **at = &q->meetings; *at != NULL; at = &(*at)->next)
        if (*at == m) {
            *at = m->next;
            free(m);
            return;
        }
}

static bool alike(const double_op *a, const double_op *b)
{
    return a->kind == b->kind && a->count == b->count && a->type == b->type && a->op == b->op && a->root == b->root;
}

static void run_collective(double_kernel *k)
{
    ncclComm_t c = k->comm;
    double_meeting *m;

    while (atomic_load(&double_control.kernels_hang) && !c->aborted) wait_a_little();
    if (c->aborted) return;
    m = meeting_of(c->clique, k->sequence);
    m->ops[c->rank] = k->ops;
    if (++m->arrived == c->world) {
        for (int r = 1; r < c->world; r++)
            if (!alike(m->ops[0], m->ops[r])) double_misuse("ranks that call different collectives");
        perform(m, c->world);
        m->done = true;
        (void)pthread_cond_broadcast(&double_moved);
    }
    while (!m->done && !c->aborted) wait_a_little();
    if (!m->done) m->arrived = -c->world; /* it has left: the others never meet it */
    if (++m->left == c->world && m->done) end_meeting(c->clique, m);
}

/* ---- sends and receives ---------------------------------------------------------------------------------------------- */
static double_letter *find_letter(double_clique *q, int from, int to)
{
    double_letter *l;

    for (l = q->letters; l != NULL && (l->taken || l->from != from || l->to != to); l = l->next) continue;
    return l;
}

static void post(double_clique *q, int from, const double_op *o)
{
    double_letter **at = &q->letters;
    double_letter *l = calloc(1, sizeof(*l));

    *l = (double_letter){from, o->root, o->send, o->count * size_of(o->type), false, NULL};
    while (*at != NULL) at = &(*at)->next;
    *at = l;
}

static void take(ncclComm_t c, const double_op *o)
{
    double_letter *l;

    while ((l = find_letter(c->clique, o->root, c->rank)) == NULL && !c->aborted) wait_a_little();
    if (l == NULL || c->aborted) return;
    if (l->bytes != o->count * size_of(o->type)) double_misuse("a send and a receive of different sizes");
    memcpy(o->recv, l->data, l->bytes);
    l->taken = true;
    (void)pthread_cond_broadcast(&double_moved);
}

/* A send ends when it was received; what an aborted rank has not sent is taken back. */
static void collect(ncclComm_t c)
{
    double_letter **at = &c->clique->letters;

    while (*at != NULL) {
        double_letter *l = *at;
        if (l->from == c->rank && !l->taken && !c->aborted) {
            wait_a_little();
            at = &c->clique->letters;
        } else if (l->from == c->rank) {
            *at = l->next;
            free(l);
        } else {
            at = &l->next;
        }
    }
}

static void run_letters(double_kernel *k)
{
    while (atomic_load(&double_control.kernels_hang) && !k->comm->aborted) wait_a_little();
    if (k->comm->aborted) return;
    for (const double_op *o = k->ops; o != NULL; o = o->next)
        if (o->kind == DOUBLE_SEND) post(k->comm->clique, k->comm->rank, o);
    (void)pthread_cond_broadcast(&double_moved);
    for (const double_op *o = k->ops; o != NULL; o = o->next)
        if (o->kind == DOUBLE_RECV) take(k->comm, o);
    collect(k->comm);
}

/* ---- kernels --------------------------------------------------------------------------------------------------------- */
void double_forget_ops(double_op *ops)
{
    while (ops != NULL) {
        double_op *next = ops->next;
        free(ops);
        ops = next;
    }
}

void double_forget_kernel(double_kernel *k)
{
    k->comm->queued--;
    double_let_go(k->comm);
    double_forget_ops(k->ops);
    free(k);
}

void double_forget_meetings(double_clique *q)
{
    while (q->meetings != NULL) end_meeting(q, q->meetings);
    while (q->letters != NULL) {
        double_letter *l = q->letters;
        q->letters = l->next;
        free(l);
    }
}

void double_run_kernel(void *arg)
{
    double_kernel *k = arg;

    (void)pthread_mutex_lock(&double_world);
    if (k->ops->kind < DOUBLE_SEND)
        run_collective(k);
    else
        run_letters(k);
    double_forget_kernel(k);
    (void)pthread_cond_broadcast(&double_moved);
    (void)pthread_mutex_unlock(&double_world);
}
