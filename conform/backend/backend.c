/* conform/backend/backend.c -- the cases of a backend that share one communicator: results, order, memory, growth,
 * and two communicators side by side; and leaks. What must be refused is in refusals.c, what breaks
 * communicators on purpose in failure.c. */
#include "conform/backend/backend.h"
#include "conform/backend/failure.h"
#include "conform/backend/refusals.h"
#include "conform/backend/trial.h"
#include "conform/harness/leaks.h"
#include <stdlib.h>
#include <string.h>

enum {
    ORDER_STEPS = 60,
    PAIR_STEPS = 30,
    MEMORY_ROUNDS = 8,
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
        ddp_rank_process_fail(a, "open and comm_create: \"%s\": %.180s", ddp_status_text(err.status), err.msg);
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
    ddp_trial t = ddp_trial_shared(a);

    if (ddp_trial_collective(&t, a->c)) keep_hash(a, &t);
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
    return ddp_trial_can(t, slot) && (c->op == 0 || t->a->ops->supports(t->comm, c->dtype, c->op) == DDP_OK);
}

static bool row(ddp_trial *t, uint32_t steps)
{
    ddp_case c;

    for (uint32_t i = 0; i < steps; i++)
        if (step_case(t, i, &c) && !ddp_trial_collective(t, &c)) {
            t->a->broken = true; /* the others go on with the row */
            return false;
        }
    return true;
}

static void order(ddp_rank_process *a)
{
    ddp_trial t = ddp_trial_shared(a);

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
        ddp_rank_process_fail(s->a, "open and comm_create beside another communicator: %.170s", err.msg);
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
        ddp_rank_process_skip(a, "%.200s", err.msg);
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

        if (a->ops->mem_alloc(a->comm, bytes, &blocks[i], &err) != DDP_OK) {
            ddp_rank_process_fail(a, "mem_alloc of %zu bytes: %.180s", bytes, err.msg);
            a->broken = true;
            return false;
        }
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
    ddp_trial t = ddp_trial_shared(a);
    ddp_case c = {.suite = a->c->suite,
                  .slot = DDP_SLOT_ALL_REDUCE,
                  .dtype = DDP_F32,
                  .op = DDP_SUM,
                  .in_place = true,
                  .own_memory = true,
                  .count = 300007,
                  .seed = a->c->seed};

    for (uint32_t i = 0; i < MEMORY_ROUNDS; i++)
        if (!memory_round(a, i)) return;
    if ((a->ops->caps & DDP_CAP_MEM_PEER) != 0 && !peers_round(a)) return;
    if (ddp_trial_can(&t, c.slot) && ddp_trial_collective(&t, &c)) keep_hash(a, &t);
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
    ddp_trial t = ddp_trial_shared(a);
    float x = (float)(a->rank + 1), sum = (float)(a->world * (a->world + 1)) / 2;
    const ddp_store *store;
    ddp_err err = {0};
    ddp_status st;

    memset(&params, 0xff, sizeof(params));
    memset(&coll, 0xff, sizeof(coll));
    store = ddp_group_store(a->group, "grown", &err);
    if (store == NULL) return ddp_rank_process_skip(a, "%.200s", err.msg);
    ddp_group_comm_params(a->group, "grown", store, DDP_TRIAL_TIMEOUT_MS, &params.p);
    params.p.struct_size = sizeof(params);
    st = a->ops->comm_create(a->backend, &params.p, &t.comm, &err);
    if (st == DDP_OK) {
        coll.c = (ddp_coll){
            .struct_size = sizeof(coll), .dtype = DDP_F32, .op = DDP_SUM, .send = &x, .recv = &x, .count = 1};
        if (ddp_trial_can(&t, DDP_SLOT_ALL_REDUCE)) st = ddp_trial_call(&t, DDP_SLOT_ALL_REDUCE, &coll.c, &err);
    }
    if (st != DDP_OK) {
        ddp_rank_process_fail(a, "a struct of a later release, with its larger struct_size, is refused: %.140s",
                              err.msg);
        a->broken = true;
        return;
    }
    (void)DDP_EXPECT(a, !ddp_trial_can(&t, DDP_SLOT_ALL_REDUCE) || x == sum, "the sum is %g, not %g", (double)x,
                     (double)sum);
    a->ops->comm_destroy(t.comm);
}

/* ---- leaks ------------------------------------------------------------------------------------------------------- */
static bool open_once(ddp_rank_process *a, uint32_t i)
{
    ddp_case c = {.suite = a->c->suite,
                  .slot = DDP_SLOT_ALL_REDUCE,
                  .dtype = DDP_F32,
                  .op = DDP_SUM,
                  .count = 16,
                  .own_memory = (a->ops->caps & DDP_CAP_MEM_ALLOC) != 0,
                  .seed = a->c->seed + i};
    ddp_err err = {0};
    char name[32];
    ddp_trial t;

    (void)snprintf(name, sizeof(name), "open-%u", i);
    if (ddp_trial_open(&t, a, name, DDP_TRIAL_TIMEOUT_MS, &err) != DDP_OK) {
        ddp_rank_process_fail(a, "open number %u: %.190s", i + 1, err.msg);
        a->broken = true;
        return false;
    }
    if ((a->ops->caps & DDP_CAP_ALL_REDUCE) != 0 && !ddp_trial_collective(&t, &c)) return false;
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
    case DDP_SUITE_REFUSALS: ddp_backend_refusals(a); break;
    case DDP_SUITE_GROWTH: growth_case(a); break;
    case DDP_SUITE_PAIR: pair_case(a); break;
    case DDP_SUITE_ABORT: ddp_backend_abort(a); break;
    case DDP_SUITE_TIMEOUT: ddp_backend_timeout(a); break;
    case DDP_SUITE_LATE: ddp_backend_late(a); break;
    case DDP_SUITE_KILLED: ddp_backend_killed(a); break;
    case DDP_SUITE_LEAKS: leaks_case(a); break;
    default: break; /* connect: begin has done it */
    }
}
