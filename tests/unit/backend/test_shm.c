/* tests/unit/backend/test_shm.c -- backend shm: every collective, dtype and operation against a scalar reference, in
 * worlds of 1 to 8, in and out of place, in memory of its own and of others. Inputs are small integers, exact in
 * every dtype. */
#include "shm_util.h"
#include "collective_util.h"

enum { PRIVATE, SHARED, MIXED, MEMORIES }; /* MIXED: rank 0's is shared, the others' is not */

static const uint32_t worlds[] = {1, 2, 3, 4, 8};

typedef struct trial {
    uint32_t what, dtype, op, root;
    size_t n;
    bool in_place;
    int memory;
    size_t skew; /* elements from the buffer's start, so that nothing need be aligned */
} trial;

static size_t send_blocks(const rank_run *r, const trial *t)
{
    if (t->what == BROADCAST || (t->what == SCATTER && r->rank != t->root)) return 0;
    return t->what == REDUCE_SCATTER || t->what == SCATTER || t->what == ALL_TO_ALL ? r->world : 1;
}

static size_t recv_blocks(const rank_run *r, const trial *t)
{
    if ((t->what == REDUCE || t->what == GATHER) && r->rank != t->root) return 0;
    return t->what == ALL_GATHER || t->what == GATHER || t->what == ALL_TO_ALL ? r->world : 1;
}

/* ---- one call ---------------------------------------------------------------------------------------------------- */
static char *shared[2]; /* of this rank, from mem_alloc: large enough for every trial */
static char *own[2];

static void place_buffers(const rank_run *r, const trial *t, char **send, char **recv)
{
    const size_t size = ddp_dtype_size(t->dtype);
    bool use_shared = t->memory == SHARED || (t->memory == MIXED && r->rank == 0);
    char **memory = use_shared ? shared : own;

    *send = memory[0] + t->skew * size;
    *recv = memory[1] + t->skew * size;
    if (!t->in_place) return;
    *recv = *send;
    if (t->what == REDUCE_SCATTER || (t->what == SCATTER && r->rank == t->root)) *recv += r->rank * t->n * size;
    if (t->what == ALL_GATHER || (t->what == GATHER && r->rank == t->root)) *send += r->rank * t->n * size;
}

/* in: what this rank sends, or has where it is not the root of a broadcast; want: what it receives */
static void try_one(rank_run *r, const trial *t, const char *in, const char *want)
{
    const size_t size = ddp_dtype_size(t->dtype), sent = send_blocks(r, t) * t->n, got = recv_blocks(r, t) * t->n;
    char *send, *recv;
    ddp_coll a = {.struct_size = sizeof(a), .dtype = t->dtype, .op = t->op, .root = t->root, .count = t->n};
    int wrongs = atomic_load(&seen->wrongs);

    place_buffers(r, t, &send, &recv);
    if (recv_blocks(r, t) == 0) recv = own[1]; /* not used: stays as it is */
    memset(recv, 0x5a, got * size + 1);
    if (t->what == BROADCAST) memcpy(recv, in, got * size);
    memcpy(send, in, sent * size);
    a.send = sent > 0 ? send : NULL;
    a.recv = got > 0 ? recv : NULL;
    CHECK_OK(r, collective_slot(ops, t->what)(r->comm, &a, NULL, &r->err));
    CHECK(memcmp(recv, want, got * size) == 0);
    CHECK(t->in_place || memcmp(send, in, sent * size) == 0); /* the input is as it was */
    if (wrongs == 0 && atomic_load(&seen->wrongs) > 0)
        (void)snprintf(seen->first + strlen(seen->first), 200,
                       " (rank %u of %u: what %u dtype %u op %u root %u n %zu in_place %d memory %d skew %zu)", r->rank,
                       r->world, t->what, t->dtype, t->op, t->root, t->n, t->in_place, t->memory, t->skew);
}

static void open_buffers(rank_run *r, size_t bytes)
{
    for (int i = 0; i < 2; i++) {
        void *p = NULL;

        CHECK_OK(r, ops->mem_alloc(r->comm, bytes, &p, &r->err));
        CHECK((uintptr_t)p % 64 == 0);
        shared[i] = p;
        own[i] = calloc(1, bytes);
    }
}

static void close_buffers(rank_run *r)
{
    for (int i = 0; i < 2; i++) {
        ops->mem_free(r->comm, shared[i]);
        free(own[i]);
    }
}

/* ---- the matrix -------------------------------------------------------------------------------------------------- */
static bool reduces(uint32_t what) { return what == ALL_REDUCE || what == REDUCE || what == REDUCE_SCATTER; }

static void each_memory(rank_run *r, trial t)
{
    const size_t size = ddp_dtype_size(t.dtype), got = recv_blocks(r, &t) * t.n;
    const size_t given = t.what == BROADCAST ? got : send_blocks(r, &t) * t.n;
    const ddp_coll a = {.dtype = t.dtype, .op = t.op, .root = t.root, .count = t.n};
    char *in = malloc(given * size + 1), *want = malloc(got * size + 1);

    for (size_t i = 0; i < given; i++) store_value(in, i, t.dtype, input(r->seed, r->rank, i, t.dtype));
    for (size_t i = 0; i < got; i++) store_value(want, i, t.dtype, received(t.what, &a, r->seed, r->rank, r->world, i));
    for (t.memory = PRIVATE; t.memory < MEMORIES; t.memory++)
        for (int in_place = 0; in_place < (t.what == ALL_TO_ALL ? 1 : 2); in_place++) {
            t.in_place = in_place != 0;
            t.skew = (t.n + (size_t)t.memory) % 3;
            try_one(r, &t, in, want);
        }
    free(in);
    free(want);
}

static void body_matrix(rank_run *r)
{
    static const size_t sizes[] = {0, 1, 37, 5003};
    size_t turn = 0;

    open_buffers(r, (5003 + 64) * sizeof(double) * r->world);
    for (uint32_t what = 0; what < COLLECTIVES; what++)
        for (uint32_t dtype = DDP_F32; dtype < DDP_DTYPE_END_; dtype++)
            for (uint32_t op = DDP_SUM; op < (reduces(what) ? DDP_REDUCE_OP_END_ : DDP_SUM + 1); op++)
                for (size_t s = 0; s < DDP_COUNT(sizes); s++)
                    each_memory(r, (trial){.what = what,
                                           .dtype = dtype,
                                           .op = op,
                                           .root = (uint32_t)(turn++ % r->world),
                                           .n = sizes[s]});
    close_buffers(r);
}

static void test_every_collective_dtype_and_op(void **state)
{
    (void)state;
    for (size_t w = 0; w < DDP_COUNT(worlds); w++) run_world(worlds[w], worlds[w] == 3 ? 4096 : 0, 20, body_matrix);
}

static void body_large(rank_run *r)
{
    const uint32_t dtypes[] = {DDP_F32, DDP_BF16, DDP_U8};

    open_buffers(r, ((1 << 20) + 1024) * r->world);
    for (uint32_t what = 0; what < COLLECTIVES; what++)
        for (size_t d = 0; d < DDP_COUNT(dtypes); d++) {
            size_t n = (1 << 20) / ddp_dtype_size(dtypes[d]) + 3;
            if (what != ALL_REDUCE && (r->world > 3 || dtypes[d] != DDP_U8)) continue;
            if (r->world > 3 && dtypes[d] != DDP_F32)
                continue; /* others take the same way, and there the reference takes long */
            each_memory(r, (trial){.what = what,
                                   .dtype = dtypes[d],
                                   .op = dtypes[d] == DDP_U8 ? DDP_MAX : DDP_AVG,
                                   .root = r->world - 1,
                                   .n = n});
        }
    close_buffers(r);
}

static void test_more_than_a_mebibyte(void **state)
{
    (void)state;
    for (size_t w = 0; w < DDP_COUNT(worlds); w++) run_world(worlds[w], 0, 20, body_large);
}

/* ---- past the caches: 64-byte stores with heads and tails -------------------------------------------------------- */
static void body_streamed(rank_run *r)
{
    enum { N = (12 << 20) / 4 };
    void *p[2] = {NULL};
    bool same = true;

    for (int i = 0; i < 2; i++) CHECK_OK(r, ops->mem_alloc(r->comm, N * sizeof(float), &p[i], &r->err));
    for (size_t skew = 0; skew < 39; skew += 13) { /* the last in place */
        size_t n = N - 2 * skew;
        float *x = p[0], *y = p[skew == 26 ? 0 : 1];
        ddp_coll a = {.dtype = DDP_F32, .op = DDP_AVG, .send = x + skew, .recv = y + skew, .count = n};

        for (size_t i = 0; i < N; i++) x[i] = (float)(i % 1021) * (float)(r->rank + 1);
        for (size_t i = 0; i < N && y != x; i++) y[i] = -1;
        CHECK_OK(r, ops->all_reduce(r->comm, &a, NULL, &r->err));
        for (size_t i = 0; i < N; i++) {
            float v = (float)(i % 1021), sum = 0, around = y == x ? v * (float)(r->rank + 1) : -1;
            for (uint32_t k = 0; k < r->world; k++) sum += v * (float)(k + 1);
            same = same && y[i] == (i < skew || i >= skew + n ? around : sum / (float)r->world);
        }
        CHECK(same);
        CHECK_OK(r, ops->barrier(r->comm, NULL, &r->err));
    }
    for (int i = 0; i < 2; i++) ops->mem_free(r->comm, p[i]);
}

static void test_larger_than_the_caches(void **state)
{
    (void)state;
    run_world(2, 0, 20, body_streamed);
    run_world(3, 0, 20, body_streamed);
}

/* ---- bits: those of adding in the order of the ranks, everywhere ------------------------------------------------- */
static float drawn(unsigned seed, uint32_t rank, size_t i)
{
    return (float)((double)ddp_hash64(&i, sizeof(i), seed * 31 + rank) / 1.8446744073709552e19 - 0.5) * 3.3f;
}

static void body_bits(rank_run *r)
{
    static const size_t sizes[] = {7, 500, 50021};
    float *x, *want = malloc(50021 * sizeof(float)), *mine = malloc(50021 * sizeof(float));
    void *p = NULL;

    CHECK_OK(r, ops->mem_alloc(r->comm, 50021 * sizeof(float), &p, &r->err));
    x = p;
    for (size_t i = 0; i < 50021; i++) {
        want[i] = drawn(r->seed, 0, i);
        for (uint32_t k = 1; k < r->world; k++) want[i] += drawn(r->seed, k, i);
        want[i] /= (float)r->world;
    }
    for (size_t s = 0; s < DDP_COUNT(sizes); s++)
        for (int private = 0; private < 2; private ++) {
            float *at = private != 0 ? mine : x;
            ddp_coll a = {.dtype = DDP_F32, .op = DDP_AVG, .send = at, .recv = at, .count = sizes[s]};
            for (size_t i = 0; i < sizes[s]; i++) at[i] = drawn(r->seed, r->rank, i);
            CHECK_OK(r, ops->all_reduce(r->comm, &a, NULL, &r->err));
            CHECK(memcmp(at, want, sizes[s] * sizeof(float)) == 0);
        }
    ops->mem_free(r->comm, p);
    free(want);
    free(mine);
}

static void test_bits_are_those_of_adding_in_rank_order(void **state)
{
    (void)state;
    for (size_t w = 0; w < DDP_COUNT(worlds); w++) run_world(worlds[w], 0, 20, body_bits);
}

/* ---- order and arrival ------------------------------------------------------------------------------------------- */
/* Ranks come early and late, in turn; every call has its own values, so that none can be mistaken for another. */
static void body_unequal(rank_run *r)
{
    void *p = NULL;
    float *x, y[700];

    CHECK_OK(r, ops->mem_alloc(r->comm, 4096 * sizeof(float), &p, &r->err));
    x = p;
    for (uint32_t i = 0; i < 120; i++) {
        uint64_t draw = ddp_hash64(&i, sizeof(i), r->seed + r->rank);
        size_t n = i % 3 == 0 ? 1 : i % 3 == 1 ? 700 : 4096;
        float *at = i % 3 == 1 ? y : x, want = 0;
        ddp_coll a = {.dtype = DDP_F32, .op = DDP_SUM, .send = at, .recv = at, .count = n};

        if (draw % 4 == 0) (void)usleep((useconds_t)(draw >> 8) % 3000);
        for (size_t k = 0; k < n; k++) at[k] = (float)(i * (r->rank + 1) + k % 5);
        for (uint32_t k = 0; k < r->world; k++) want += (float)(i * (k + 1) + (n - 1) % 5);
        CHECK_OK(r, ops->all_reduce(r->comm, &a, NULL, &r->err));
        CHECK(at[n - 1] == want);
    }
    ops->mem_free(r->comm, p);
}

static void test_ranks_that_come_early_or_late(void **state)
{
    (void)state;
    for (uint32_t world = 2; world <= MAX_WORLD; world *= 2) {
        run_world(world, 4096, 20, body_unequal);
        run_world(world, 0, 0, body_unequal); /* every wait sleeps */
    }
}

static void body_barrier(rank_run *r)
{
    for (int i = 1; i <= 20; i++) {
        if (r->rank == 1) (void)usleep(500);
        (void)atomic_fetch_add(&seen->flags[0], 1);
        CHECK_OK(r, ops->barrier(r->comm, NULL, &r->err));
        CHECK(atomic_load(&seen->flags[0]) >= i * (int)r->world);
        CHECK_OK(r, ops->barrier(r->comm, NULL, &r->err));
    }
}

static void test_barrier_waits_for_all(void **state)
{
    (void)state;
    run_world(3, 0, 20, body_barrier);
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */
static void body_messages(rank_run *r)
{
    static const size_t sizes[] = {0, 1, 4095, 4096, 8193, 300007};
    uint32_t next = (r->rank + 1) % r->world, last = (r->rank + r->world - 1) % r->world;
    unsigned char *out = malloc(300007), *in = malloc(300007);

    for (size_t s = 0; s < DDP_COUNT(sizes); s++) {
        ddp_coll to = {.dtype = DDP_U8, .root = next, .send = out, .count = sizes[s]};
        ddp_coll from = {.dtype = DDP_U8, .root = last, .recv = in, .count = sizes[s]};
        bool same = true;

        for (size_t i = 0; i < sizes[s]; i++) out[i] = (unsigned char)(i * 7 + r->rank + s);
        if (r->rank != 0) CHECK_OK(r, ops->recv(r->comm, &from, NULL, &r->err));
        CHECK_OK(r, ops->send(r->comm, &to, NULL, &r->err));
        if (r->rank == 0) CHECK_OK(r, ops->recv(r->comm, &from, NULL, &r->err));
        for (size_t i = 0; i < sizes[s]; i++) same = same && in[i] == (unsigned char)(i * 7 + last + s);
        CHECK(same);
        if (s == 2) CHECK_OK(r, ops->barrier(r->comm, NULL, &r->err));
    }
    free(out);
    free(in);
}

static void body_one_to_all(rank_run *r) /* receivers wait before, while and after others are served */
{
    int32_t x[3000];

    for (int round = 0; round < 20; round++) {
        for (uint32_t k = 1; k < r->world && r->rank == 0; k++) {
            ddp_coll a = {.dtype = DDP_I32, .root = k, .send = x, .count = 3000};
            for (int i = 0; i < 3000; i++) x[i] = i + round * (int)k;
            CHECK_OK(r, ops->send(r->comm, &a, NULL, &r->err));
        }
        if (r->rank != 0) {
            ddp_coll a = {.dtype = DDP_I32, .root = 0, .recv = x, .count = 3000};
            CHECK_OK(r, ops->recv(r->comm, &a, NULL, &r->err));
            CHECK(x[0] == round * (int)r->rank && x[2999] == 2999 + round * (int)r->rank);
        }
    }
}

static void body_wrong_message(rank_run *r)
{
    char x[20000] = {0};
    ddp_coll a = {.dtype = DDP_U8, .root = 1 - r->rank, .send = x, .recv = x, .count = r->rank == 0 ? 20000 : 10};

    for (int i = 0; i < 3; i++) {
        ddp_status st = r->rank == 0 ? ops->send(r->comm, &a, NULL, &r->err) : ops->recv(r->comm, &a, NULL, &r->err);
        CHECK(st == (i == 1 ? DDP_OK : DDP_ERR_INVALID));
        a.count = i == 0 ? 20000 : r->rank == 0 ? 1 : 2;
    }
    a.root = r->rank;
    CHECK(ops->send(r->comm, &a, NULL, &r->err) == DDP_ERR_INVALID && contains(r->err.msg, "itself"));
}

static void test_messages(void **state)
{
    (void)state;
    for (uint32_t world = 2; world <= 4; world++) {
        run_world(world, 4096, 20, body_messages);
        run_world(world, 0, 0, body_messages);
        run_world(world, 4096, world == 3 ? 0 : 20, body_one_to_all);
    }
    run_world(2, 4096, 20, body_wrong_message);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */
static void body_memory(rank_run *r)
{
    static const size_t sizes[] = {0, 1, 4097, 3 << 20};
    void *p[4] = {NULL};

    for (int round = 0; round < 3; round++) {
        for (size_t s = 0; s < DDP_COUNT(sizes); s++) {
            bool zero = true;
            CHECK_OK(r, ops->mem_alloc(r->comm, sizes[s], &p[s], &r->err));
            CHECK((uintptr_t)p[s] % 64 == 0);
            for (size_t i = 0; i < sizes[s]; i++) zero = zero && ((char *)p[s])[i] == 0;
            CHECK(zero);
            memset(p[s], 0xff, sizes[s]);
        }
        for (size_t s = 0; s < DDP_COUNT(sizes); s++) ops->mem_free(r->comm, p[(s + 2) % 4]);
    }
    CHECK(ops->mem_alloc(r->comm, (size_t)1 << 46, &p[0], &r->err) == DDP_ERR_NOMEM);
    CHECK(contains(r->err.msg, "MiB left") && contains(r->err.msg, "on rank 0"));
    CHECK(ops->mem_alloc(r->comm, SIZE_MAX - 5, &p[0], &r->err) == DDP_ERR_NOMEM);
    CHECK_OK(r, ops->barrier(r->comm, NULL, &r->err));
    CHECK_OK(r, ops->mem_alloc(r->comm, 64, &p[0], &r->err)); /* comm_destroy frees what is left */
}

static void test_memory_is_zeroed_aligned_and_never_too_much(void **state)
{
    (void)state;
    for (uint32_t world = 1; world <= 3; world++) run_world(world, 0, 20, body_memory);
}

/* ---- rendezvous ------------------------------------------------------------------------------------------------ */
/* The store ends with the run alone: what each communicator left there would add up. */
static void test_connecting_leaves_nothing_in_the_store(void **state)
{
    (void)state;
    for (uint32_t world = 1; world <= 4; world++) {
        store_double *store = store_double_new();
        rank_run r[MAX_WORLD];
        pid_t child[MAX_WORLD];

        for (uint32_t i = 0; i < world; i++) r[i] = rank_of(i, world, store, NULL);
        start_world(r, child);
        end_world(child, world);
        for (uint32_t i = 0; i < world; i++)
            if (seen->status[i] != DDP_OK) fail_msg("rank %u: %s", i, seen->err[i].msg);
        for (size_t i = 0; i < STORE_DOUBLE_ENTRIES; i++)
            if (store->entries[i].used) fail_msg("world %u: \"%s\" is left in the store", world, store->entries[i].key);
        store_double_free(store);
    }
}

/* ---- arguments --------------------------------------------------------------------------------------------------- */
static void body_arguments(rank_run *r)
{
    float x[32] = {0};
    ddp_coll a = {.struct_size = sizeof(a), .dtype = DDP_F32, .op = DDP_SUM, .send = x, .recv = x + 4, .count = 8};

    CHECK(ops->all_reduce(r->comm, &a, NULL, &r->err) == DDP_ERR_INVALID && contains(r->err.msg, "overlap"));
    CHECK(ops->all_gather(r->comm, &a, NULL, &r->err) == DDP_ERR_INVALID);
    CHECK(ops->all_to_all(r->comm, &a, NULL, &r->err) == DDP_ERR_INVALID);
    CHECK(ops->reduce_scatter(r->comm, &a, NULL, &r->err) == DDP_ERR_INVALID);
    a.recv = NULL;
    CHECK(ops->all_reduce(r->comm, &a, NULL, &r->err) == DDP_ERR_INVALID && contains(r->err.msg, "without a buffer"));
    a.recv = x;
    a.root = r->world;
    CHECK(ops->broadcast(r->comm, &a, NULL, &r->err) == DDP_ERR_INVALID && contains(r->err.msg, "rank 2 of 2"));
    a.op = 77;
    CHECK(ops->all_reduce(r->comm, &a, NULL, &r->err) == DDP_ERR_UNSUPPORTED && contains(r->err.msg, "77"));
    a.dtype = 55;
    CHECK(ops->all_reduce(r->comm, &a, NULL, &r->err) == DDP_ERR_UNSUPPORTED && contains(r->err.msg, "55"));
    CHECK(ops->supports(r->comm, 55, DDP_SUM) == DDP_ERR_UNSUPPORTED);
    CHECK(ops->supports(r->comm, DDP_U8, 0) == DDP_ERR_UNSUPPORTED);
    CHECK_OK(r, ops->barrier(r->comm, NULL, &r->err)); /* none of these broke it */

    a = (ddp_coll){.dtype = DDP_F32, .op = DDP_SUM, .send = x, .recv = x, .count = 8 + r->rank};
    CHECK(ops->all_reduce(r->comm, &a, NULL, &r->err) == DDP_ERR_INVALID);
    CHECK(contains(r->err.msg, "of 8 elements") && contains(r->err.msg, "of 9 elements"));
    CHECK((r->rank == 0 ? ops->broadcast : ops->all_reduce)(r->comm, &a, NULL, &r->err) == DDP_ERR_INVALID);
    CHECK(contains(r->err.msg, "broadcast of 8") && contains(r->err.msg, "all_reduce of 9"));
    CHECK_OK(r, ops->barrier(r->comm, NULL, &r->err));
}

static void test_bad_and_unlike_arguments_are_refused(void **state)
{
    (void)state;
    run_world(2, 0, 20, body_arguments);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_collective_dtype_and_op),
        cmocka_unit_test(test_more_than_a_mebibyte),
        cmocka_unit_test(test_larger_than_the_caches),
        cmocka_unit_test(test_bits_are_those_of_adding_in_rank_order),
        cmocka_unit_test(test_ranks_that_come_early_or_late),
        cmocka_unit_test(test_barrier_waits_for_all),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_memory_is_zeroed_aligned_and_never_too_much),
        cmocka_unit_test(test_connecting_leaves_nothing_in_the_store),
        cmocka_unit_test(test_bad_and_unlike_arguments_are_refused),
    };

    return cmocka_run_group_tests(tests, load, NULL);
}
