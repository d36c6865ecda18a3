/* conform/backend/backend.c -- the cases of a backend that share one communicator: results, order, memory, growth,
 * and two communicators side by side; and leaks. What breaks communicators on
 * purpose is in failure.c. */
#include "conform/backend/backend.h"
#include "conform/backend/failure.h"
#include "conform/backend/trial.h"
#include "conform/harness/leaks.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    ORDER_STEPS = 60,
    PAIR_STEPS = 30,
    MEMORY_ROUNDS = 8,
    FEW = 16,         /* elements of a call that must be refused */
    REFUSE_MS = 3000, /* until it has been */
    /* forgiven for each open, in bytes: */
    HEAP_BYTES = 512, /* names of scopes, the allocator's own */
    /* what a backend may leave in the store, which rank 0 keeps until the run ends: one value, a mark of each rank */
    STORE_BYTES = 512,
    MARK_BYTES = 192
};

/* ---- the communicator that cases share --------------------------------------------------------------------------- */
void ddp_backend_begin(ddp_rank_process *a)
{
    ddp_trial t;
    ddp_err err = {0};

    a->ops = a->plugin->ops;
    if (a->c->fresh) return;
    if (ddp_trial_open(&t, a, "shared", DDP_TRIAL_TIMEOUT_MS, &err) != DDP_OK) {
        (void)DDP_FAIL(a, "open and comm_create: \"%s\": %.180s", ddp_status_text(err.status), err.msg);
        a->broken = true;
        return;
    }
    a->backend = t.backend;
    a->comm = t.comm;
}

void ddp_backend_end(ddp_rank_process *a)
{
    if (a->comm != NULL) a->ops->comm_destroy(a->comm);
    if (a->backend != NULL) a->ops->close(a->backend);
    a->comm = NULL;
    a->backend = NULL;
}

static void keep_hash(ddp_rank_process *a, const ddp_trial *t)
{
    a->v->hash = t->hash;
    a->v->hashed = t->hash != 0;
}

static void results(ddp_rank_process *a)
{
    ddp_trial t = backend_trial_shared(a);

    if (backend_trial_collective(&t, a->c)) keep_hash(a, &t);
}

/* ---- many in a row ----------------------------------------------------------------------------------------------- */
/* Step i of a row of different kinds and sizes; false when the backend lacks the slot. */
static bool step_case(const ddp_trial *t, uint32_t i, ddp_case *c)
{
    static const uint64_t counts[] = {5, 1, 70000, 0, 333, 4096, 2};
    uint32_t slot = i % DDP_SLOT_END;

    *c = (ddp_case){.suite = t->a->c->suite,
                    .slot = (uint8_t)slot,
                    .dtype = (uint8_t)(DDP_F32 + i / 3 % (DDP_DTYPE_END_ - 1)),
                    .op = ddp_slot_info_of(slot)->reduces ? DDP_SUM : 0,
                    .root = (uint8_t)(ddp_slot_info_of(slot)->rooted ? i % t->world : 0),
                    .in_place = i % 4 == 0 && ddp_slot_info_of(slot)->in_place,
                    .count = counts[i / 2 % DDP_COUNT(counts)],
                    .seed = t->a->c->seed + i * 0x632be59bd9b4e019u};
    return backend_trial_can(t, slot) && (c->op == 0 || t->a->ops->supports(t->comm, c->dtype, c->op) == DDP_OK);
}

static bool row(ddp_trial *t, uint32_t steps)
{
    ddp_case c;

    for (uint32_t i = 0; i < steps; i++)
        if (step_case(t, i, &c) && !backend_trial_collective(t, &c)) {
            t->a->broken = true; /* the others go on with the row */
            return false;
        }
    return true;
}

static void order(ddp_rank_process *a)
{
    ddp_trial t = backend_trial_shared(a);

    if (row(&t, ORDER_STEPS)) keep_hash(a, &t);
}

/* ---- two communicators, two threads ------------------------------------------------------------------------------ */
typedef struct side {
    ddp_rank_process *a;
    uint32_t index;
    uint64_t hash;
} side;

static void *run_side(void *arg)
{
    side *s = arg;
    ddp_trial t;
    ddp_err err = {0};

    if (ddp_trial_open(&t, s->a, s->index == 0 ? "one" : "two", DDP_TRIAL_TIMEOUT_MS, &err) != DDP_OK) {
        (void)DDP_FAIL(s->a, "open and comm_create beside another communicator: %.170s", err.msg);
        s->a->broken = true;
        return NULL;
    }
    t.index = s->index;
    (void)row(&t, PAIR_STEPS);
    s->hash = t.hash;
    if (!s->a->broken) ddp_trial_close(&t);
    return NULL;
}

static void pair_case(ddp_rank_process *a)
{
    side one = {.a = a}, two = {.a = a, .index = 1};
    ddp_err err = {0};
    pthread_t thread;

    if (ddp_thread_start(&thread, "conform-two", run_side, &two, &err) != DDP_OK) {
        DDP_SKIP(a, "%.200s", err.msg);
        a->broken = true;
        return;
    }
    (void)run_side(&one);
    (void)pthread_join(thread, NULL);
    a->v->hash = one.hash ^ two.hash * 3;
    a->v->hashed = true;
}

/* ---- memory of the backend --------------------------------------------------------------------------------------- */
static bool all_zero(const unsigned char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != 0) return false;
    return true;
}

static bool memory_round(ddp_rank_process *a, uint32_t round)
{
    static const size_t sizes[] = {1, 4096, ((size_t)1 << 20) + 3, 64, 100000};
    void *blocks[2] = {NULL, NULL};
    ddp_err err = {0};
    bool good = true;

    for (uint32_t i = 0; i < 2 && good; i++) {
        size_t bytes = sizes[(round + i) % DDP_COUNT(sizes)];

        if (a->ops->mem_alloc(a->comm, bytes, &blocks[i], &err) != DDP_OK)
            return DDP_BREAK(a, "mem_alloc of %zu bytes: %.180s", bytes, err.msg);
        good = DDP_EXPECT(a, (uintptr_t)blocks[i] % 64 == 0, "mem_alloc of %zu bytes is not 64-byte aligned", bytes) &&
               DDP_EXPECT(a, all_zero(blocks[i], bytes), "mem_alloc of %zu bytes is not zero-filled", bytes);
        memset(blocks[i], 0xee, bytes); /* the next round must not see it */
    }
    for (uint32_t i = 0; i < 2; i++)
        if (blocks[i] != NULL) a->ops->mem_free(a->comm, blocks[i]);
    return good;
}

/* Each rank finds in its memory what all others have stored there, and in theirs what they have. */
static bool peers_round(ddp_rank_process *a)
{
    enum { WORDS = 1000 };
    void *own = NULL, *peer;
    ddp_err err = {0};
    bool good = a->ops->mem_alloc(a->comm, WORDS * sizeof(uint32_t), &own, &err) == DDP_OK;

    if (!good) return ddp_rank_process_fail_call(a, "mem_alloc", err.status, &err);
    for (uint32_t r = 0; r < a->world && good; r++) {
        good = a->ops->mem_peer(a->comm, own, r, &peer, &err) == DDP_OK ||
               ddp_rank_process_fail_call(a, "mem_peer", err.status, &err);
        for (uint32_t i = a->rank; i < WORDS && good; i += a->world) ((uint32_t *)peer)[i] = i ^ r;
    }
    good = ddp_rank_process_barrier(a, "all have stored") && good;
    for (uint32_t r = 0; r < a->world && good; r++) {
        good = a->ops->mem_peer(a->comm, own, r, &peer, &err) == DDP_OK;
        for (uint32_t i = 0; i < WORDS && good; i++)
            good = DDP_EXPECT(a, ((uint32_t *)peer)[i] == (i ^ r),
                              "word %u of rank %u's memory is not what rank %u stored there", i, r, i % a->world);
    }
    good = good &&
           DDP_EXPECT(a, a->ops->mem_peer(a->comm, own, a->world, &peer, &err) != DDP_OK,
                      "mem_peer of a rank that is none") &&
           DDP_EXPECT(a, a->ops->mem_peer(a->comm, &err, 0, &peer, &err) != DDP_OK,
                      "mem_peer of memory that is not its own");
    good = ddp_rank_process_barrier(a, "all have read") && good;
    a->ops->mem_free(a->comm, own);
    return good;
}

static void memory_case(ddp_rank_process *a)
{
    ddp_trial t = backend_trial_shared(a);
    ddp_case c = backend_trial_sum(a, 300007);

    c.in_place = c.own_memory = true;
    for (uint32_t i = 0; i < MEMORY_ROUNDS; i++)
        if (!memory_round(a, i)) return;
    if ((a->ops->caps & DDP_CAP_MEM_PEER) != 0 && !peers_round(a)) return;
    if (backend_trial_can(&t, c.slot) && backend_trial_collective(&t, &c)) keep_hash(a, &t);
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */
/* What must be refused, with a reason, before anything is written or sent: overlaps, counts that overflow, roots,
 * dtypes and operations that are none. */
/* A call that every rank makes alike and every rank must refuse; nothing of `data` may change. */
static bool refused(ddp_trial *t, uint32_t slot, const ddp_coll *args, uint32_t *data, size_t words, const char *what,
                    ddp_status want)
{
    ddp_rank_process *a = t->a;
    uint64_t before = ddp_hash64(data, words * sizeof(*data), 0);
    ddp_err err;
    ddp_status status;

    if (!backend_trial_can(t, slot)) return true;
    status = backend_trial_call(t, slot, args, &err);
    if (status == DDP_OK) return DDP_BREAK(a, "%s: %s is accepted", ddp_slot_info_of(slot)->name, what);
    return DDP_EXPECT(a, want == DDP_OK || status == want, "%s: %s answers \"%s\", not \"%s\": %.100s",
                      ddp_slot_info_of(slot)->name, what, ddp_status_text(status), ddp_status_text(want), err.msg) &&
           DDP_EXPECT(a, err.msg[0] != '\0' && err.status == status,
                      "%s: %s is refused without ddp_fail(): no reason, or another status in ddp_err",
                      ddp_slot_info_of(slot)->name, what) &&
           DDP_EXPECT(a, ddp_hash64(data, words * sizeof(*data), 0) == before,
                      "%s: %s is refused, but memory was written", ddp_slot_info_of(slot)->name, what);
}

static ddp_coll sum_of(uint32_t *send, uint32_t *recv)
{
    return (ddp_coll){
        .struct_size = sizeof(ddp_coll), .dtype = DDP_F32, .op = DDP_SUM, .send = send, .recv = recv, .count = FEW};
}

static bool overlap(ddp_trial *t, uint32_t *data, size_t words)
{
    static const uint8_t slots[] = {DDP_SLOT_ALL_REDUCE, DDP_SLOT_ALL_GATHER, DDP_SLOT_REDUCE_SCATTER,
                                    DDP_SLOT_ALL_TO_ALL};

    for (size_t i = 0; i < DDP_COUNT(slots); i++) {
        size_t shift = slots[i] == DDP_SLOT_ALL_REDUCE ? 3 : FEW * t->rank + 3;
        ddp_coll forth = sum_of(data, data + shift), back = sum_of(data + shift, data);

        if (!ddp_slot_info_of(slots[i])->reduces) forth.op = back.op = 0;
        if (!refused(t, slots[i], slots[i] == DDP_SLOT_ALL_GATHER ? &back : &forth, data, words,
                     "an overlap that is not in place", DDP_ERR_INVALID))
            return false;
        back = sum_of(data, data); /* in place for rank 0 alone, whose block is the first; in all_to_all for nobody */
        if (!ddp_slot_info_of(slots[i])->reduces) back.op = 0;
        if (slots[i] == DDP_SLOT_ALL_TO_ALL &&
            !refused(t, slots[i], &back, data, words, "send == recv, for which there is no in place,", DDP_ERR_INVALID))
            return false;
        if (t->rank > 0 && (slots[i] == DDP_SLOT_ALL_GATHER || slots[i] == DDP_SLOT_REDUCE_SCATTER) &&
            !refused(t, slots[i], &back, data, words, "send == recv, which is not this rank's block,", DDP_ERR_INVALID))
            return false;
    }
    return true;
}

/* gather and scatter: only the root has both buffers, so it alone calls, and must answer without the others. */
static bool overlap_at_root(ddp_trial *t, uint32_t *data, size_t words)
{
    const uint32_t root = t->world - 1;
    uint32_t *apart = data + (size_t)FEW * root + 3;
    ddp_coll a = {.struct_size = sizeof(a), .dtype = DDP_F32, .root = root, .count = FEW};

    if (t->rank != root) return true;
    a.send = apart, a.recv = data;
    if (!refused(t, DDP_SLOT_GATHER, &a, data, words, "an overlap that is not in place", DDP_ERR_INVALID)) return false;
    a.send = data, a.recv = apart;
    if (!refused(t, DDP_SLOT_SCATTER, &a, data, words, "an overlap that is not in place", DDP_ERR_INVALID))
        return false;
    a.recv = data;
    return root == 0 || (refused(t, DDP_SLOT_GATHER, &a, data, words, "send == recv, which is not the root's block,",
                                 DDP_ERR_INVALID) &&
                         refused(t, DDP_SLOT_SCATTER, &a, data, words, "send == recv, which is not the root's block,",
                                 DDP_ERR_INVALID));
}

/* Overlaps are refused without the other ranks: a call that waits for them does not return, and another thread
 * reports that. */
typedef struct patience {
    ddp_rank_process *a;
    atomic_bool over;
} patience;

static void *patience_main(void *arg)
{
    patience *p = arg;
    int64_t deadline = ddp_now_ms() + REFUSE_MS;

    while (!atomic_load(&p->over) && ddp_now_ms() < deadline) (void)usleep(2000);
    if (atomic_load(&p->over)) return NULL;
    (void)DDP_FAIL(p->a, "an overlap that is not in place is not refused within %d ms", REFUSE_MS);
    _exit(DDP_EXIT_PLUGIN);
}

static bool refuses_overlaps(ddp_trial *t, uint32_t *data, size_t words)
{
    patience p = {.a = t->a};
    ddp_err err = {0};
    pthread_t thread;
    bool good;

    if (ddp_thread_start(&thread, "conform-watch", patience_main, &p, &err) != DDP_OK) {
        DDP_SKIP(t->a, "%.200s", err.msg);
        return false;
    }
    good = overlap(t, data, words) && overlap_at_root(t, data, words);
    atomic_store(&p.over, true);
    (void)pthread_join(thread, NULL);
    return good && ddp_rank_process_barrier(t->a, "refused");
}

/* Counts whose bytes are no size: of one rank, of all, and just beyond what memory can hold. */
static bool refuses_overflow(ddp_trial *t, uint32_t *data, size_t words)
{
    const size_t element = sizeof(float);
    const size_t counts[] = {SIZE_MAX / element + 2, SIZE_MAX / element / t->world + 2,
                             (size_t)PTRDIFF_MAX / element / t->world + 1};

    for (uint32_t slot = 0; slot < DDP_SLOT_END; slot++)
        for (size_t i = 0; i < DDP_COUNT(counts) && slot != DDP_SLOT_BARRIER; i++) {
            ddp_coll a = sum_of(data, data + words / 2);
            char what[96];

            a.count = counts[i];
            if (!ddp_slot_info_of(slot)->reduces) a.op = 0;
            (void)snprintf(what, sizeof(what), "a count of %zu f32, more than memory can hold,", a.count);
            if (!refused(t, slot, &a, data, words, what, DDP_ERR_INVALID)) return false;
        }
    return true;
}

static bool refuses_nonsense(ddp_trial *t, uint32_t *data, size_t words)
{
    ddp_coll a = sum_of(data, data + words / 2), root = a, dtype = a, op = a;

    dtype.dtype = 99;
    op.op = 99;
    root.root = t->world;
    return refused(t, DDP_SLOT_ALL_REDUCE, &dtype, data, words, "dtype 99", DDP_OK) &&
           refused(t, DDP_SLOT_ALL_REDUCE, &op, data, words, "operation 99", DDP_OK) &&
           refused(t, DDP_SLOT_BROADCAST, &root, data, words, "a root that is no rank", DDP_ERR_INVALID) &&
           refused(t, DDP_SLOT_REDUCE, &root, data, words, "a root that is no rank", DDP_ERR_INVALID) &&
           DDP_EXPECT(t->a, t->a->ops->supports(t->comm, 99, DDP_SUM) == DDP_ERR_UNSUPPORTED, "supports dtype 99") &&
           DDP_EXPECT(t->a, t->a->ops->supports(t->comm, DDP_F32, 99) == DDP_ERR_UNSUPPORTED, "supports operation 99");
}

static void refusals(ddp_rank_process *a)
{
    ddp_trial t = backend_trial_shared(a);
    size_t words = (size_t)4 * FEW * (a->world + 1);
    ddp_case after = backend_trial_sum(a, 100);
    ddp_err err = {0};
    uint32_t *data = ddp_alloc_aligned(words * sizeof(*data), &err);

    if (data == NULL) {
        DDP_SKIP(a, "%.200s", err.msg);
        return;
    }
    if (refuses_overlaps(&t, data, words) && refuses_overflow(&t, data, words) && refuses_nonsense(&t, data, words) &&
        backend_trial_can(&t, after.slot))
        (void)backend_trial_collective(&t, &after); /* a refusal costs nothing else */
    if (!a->broken) free(data);
}

/* ---- structs that have grown ------------------------------------------------------------------------------------- */
/* An engine of a later release gives larger structs, whose size says so. */
static void growth_case(ddp_rank_process *a)
{
    struct {
        ddp_comm_params p;
        unsigned char later[64];
    } params;
    struct {
        ddp_coll c;
        unsigned char later[64];
    } coll;
    ddp_trial t = backend_trial_shared(a);
    float x = (float)(a->rank + 1), sum = (float)(a->world * (a->world + 1)) / 2;
    const ddp_store *store;
    ddp_err err = {0};
    ddp_status st;

    memset(&params, 0xff, sizeof(params));
    memset(&coll, 0xff, sizeof(coll));
    store = ddp_group_store(a->group, "grown", &err);
    if (store == NULL) return DDP_SKIP(a, "%.200s", err.msg);
    ddp_group_comm_params(a->group, "grown", store, DDP_TRIAL_TIMEOUT_MS, &params.p);
    params.p.struct_size = sizeof(params);
    st = a->ops->comm_create(a->backend, &params.p, &t.comm, &err);
    if (st == DDP_OK) {
        coll.c = (ddp_coll){
            .struct_size = sizeof(coll), .dtype = DDP_F32, .op = DDP_SUM, .send = &x, .recv = &x, .count = 1};
        if (backend_trial_can(&t, DDP_SLOT_ALL_REDUCE)) st = backend_trial_call(&t, DDP_SLOT_ALL_REDUCE, &coll.c, &err);
    }
    if (st != DDP_OK) {
        (void)DDP_FAIL(a, "a struct of a later release, with its larger struct_size, is refused: %.140s", err.msg);
        a->broken = true;
        return;
    }
    (void)DDP_EXPECT(a, !backend_trial_can(&t, DDP_SLOT_ALL_REDUCE) || x == sum, "the sum is %g, not %g", (double)x,
                     (double)sum);
    a->ops->comm_destroy(t.comm);
}

/* ---- leaks ------------------------------------------------------------------------------------------------------- */
static bool open_once(ddp_rank_process *a, uint32_t i)
{
    ddp_case c = backend_trial_sum(a, 16);
    ddp_err err = {0};
    char name[32];
    ddp_trial t;

    c.own_memory = (a->ops->caps & DDP_CAP_MEM_ALLOC) != 0;
    c.seed += i;
    (void)snprintf(name, sizeof(name), "open-%u", i);
    if (ddp_trial_open(&t, a, name, DDP_TRIAL_TIMEOUT_MS, &err) != DDP_OK)
        return DDP_BREAK(a, "open number %u: %.190s", i + 1, err.msg);
    if ((a->ops->caps & DDP_CAP_ALL_REDUCE) != 0 && !backend_trial_collective(&t, &c)) return false;
    ddp_trial_close(&t);
    return true;
}

static void leaks_case(ddp_rank_process *a)
{
    ddp_leaks_check(a, open_once, HEAP_BYTES + (a->rank == 0 ? STORE_BYTES + (size_t)MARK_BYTES * a->world : 0));
}

/* ---- by name ----------------------------------------------------------------------------------------------------- */
void ddp_backend_case(ddp_rank_process *a)
{
    switch (a->c->suite) {
    case DDP_SUITE_RESULTS: results(a); break;
    case DDP_SUITE_ORDER: order(a); break;
    case DDP_SUITE_MEMORY: memory_case(a); break;
    case DDP_SUITE_REFUSALS: refusals(a); break;
    case DDP_SUITE_GROWTH: growth_case(a); break;
    case DDP_SUITE_PAIR: pair_case(a); break;
    case DDP_SUITE_ABORT: backend_abort(a); break;
    case DDP_SUITE_TIMEOUT: backend_timeout(a); break;
    case DDP_SUITE_LATE: backend_late(a); break;
    case DDP_SUITE_KILLED: backend_killed(a); break;
    case DDP_SUITE_LEAKS: leaks_case(a); break;
    default: break; /* connect: begin has done it */
    }
}
