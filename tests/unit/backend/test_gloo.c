/* tests/unit/backend/test_gloo.c -- backend gloo-tcp alone: all_reduce, broadcast, barrier, failures, resources.
 * Every slot in every dtype is in test_gloo_slots.c, how the ranks connect in test_gloo_connect.c. */
#include "gloo_util.h"

/* ---- collectives against computed results ------------------------------------------------------------------------ */
static void all_reduce_one(rank_run *r, uint32_t dtype, uint32_t op, size_t n, bool in_place)
{
    size_t size = ddp_dtype_size(dtype), bytes = n * size;
    char *in = malloc(bytes + 1), *out = in_place ? in : malloc(bytes + 1), *want = malloc(bytes + 1);
    ddp_coll a = {.struct_size = sizeof(a), .dtype = dtype, .op = op, .send = in, .recv = out, .count = n};

    for (size_t i = 0; i < n; i++) {
        store_value(in, i, dtype, input(r->seed, r->rank, i, dtype));
        store_value(want, i, dtype, reduced(r->seed, r->world, i, dtype, op));
    }
    CHECK(ops->supports(r->comm, dtype, op) == DDP_OK);
    CHECK(ops->all_reduce(r->comm, &a, NULL, &r->err) == DDP_OK);
    CHECK(memcmp(out, want, bytes) == 0);
    if (!in_place) free(out);
    free(in);
    free(want);
}

static void body_all_reduce(rank_run *r)
{
    static const size_t sizes[] = {0, 1, 1237, 20011};

    for (uint32_t dtype = DDP_F32; dtype < DDP_DTYPE_END_; dtype++)
        for (uint32_t op = DDP_SUM; op < DDP_REDUCE_OP_END_; op++)
            for (size_t s = 0; s < DDP_COUNT(sizes); s++) all_reduce_one(r, dtype, op, sizes[s], (s & 1) != 0);
    for (int in_place = 0; in_place < 2; in_place++) all_reduce_one(r, DDP_F32, DDP_AVG, 262144 + 3, in_place != 0);
}

static void test_all_reduce(void **state)
{
    (void)state;
    NEED_PLUGIN();
    for (uint32_t world = 1; world <= MAX_WORLD; world++) {
        run_world(world, 0, 0, body_all_reduce);
        run_world(world, 4096, 0, body_all_reduce); /* no short way: many blocks, slices that are empty */
    }
}

static void body_others(rank_run *r)
{
    static const size_t sizes[] = {0, 1, 1237, 262144 + 3};

    for (size_t s = 0; s < DDP_COUNT(sizes); s++) {
        size_t n = sizes[s];
        float *all = malloc((n * r->world + 1) * sizeof(float)), *own = malloc((n + 1) * sizeof(float));
        ddp_coll a = {.struct_size = sizeof(a), .dtype = DDP_F32, .recv = own, .count = n};

        for (a.root = 0; a.root < r->world; a.root++) {
            bool same = true;
            for (size_t i = 0; i < n; i++) own[i] = (float)input(r->seed, r->rank, i, DDP_F32);
            CHECK(ops->broadcast(r->comm, &a, NULL, &r->err) == DDP_OK);
            for (size_t i = 0; i < n; i++) same = same && own[i] == (float)input(r->seed, a.root, i, DDP_F32);
            CHECK(same);
        }
        for (int in_place = 0; in_place < 2; in_place++) {
            bool same = true;
            ddp_coll g = {.struct_size = sizeof(g), .dtype = DDP_F32, .send = own, .recv = all, .count = n};
            if (in_place != 0) g.send = all + r->rank * n;
            for (size_t i = 0; i < n * r->world; i++) all[i] = -1;
            for (size_t i = 0; i < n; i++) ((float *)(uintptr_t)g.send)[i] = (float)input(r->seed, r->rank, i, DDP_F32);
            CHECK(ops->all_gather(r->comm, &g, NULL, &r->err) == DDP_OK);
            for (size_t i = 0; i < n * r->world; i++)
                same = same && all[i] == (float)input(r->seed, (uint32_t)(i / n), i % n, DDP_F32);
            CHECK(same);
        }
        CHECK(ops->barrier(r->comm, NULL, &r->err) == DDP_OK);
        free(all);
        free(own);
    }
}

static void test_broadcast_all_gather_barrier(void **state)
{
    (void)state;
    NEED_PLUGIN();
    for (uint32_t world = 1; world <= MAX_WORLD; world++) run_world(world, world == 3 ? 4096 : 0, 0, body_others);
}

static atomic_int inside, released_early;
static void body_barrier(rank_run *r)
{
    for (int i = 1; i <= 20; i++) {
        if (r->rank == 1) (void)usleep(500);
        (void)atomic_fetch_add(&inside, 1);
        CHECK(ops->barrier(r->comm, NULL, &r->err) == DDP_OK);
        if (atomic_load(&inside) < i * (int)r->world) (void)atomic_fetch_add(&released_early, 1);
        CHECK(ops->barrier(r->comm, NULL, &r->err) == DDP_OK);
    }
}

static void test_barrier_waits_for_all(void **state)
{
    (void)state;
    NEED_PLUGIN();
    atomic_store(&inside, 0);
    run_world(3, 0, 0, body_barrier);
    assert_int_equal(atomic_load(&released_early), 0);
}

/* ---- random floats: the bits are the same on all ranks, and near the sum in double ------------------------------- */
static float rounded[MAX_WORLD][50021];
static size_t random_count;
static float drawn(unsigned seed, uint32_t rank, size_t i)
{
    return (float)((double)ddp_hash64(&i, sizeof(i), seed * 31 + rank) / 1.8446744073709552e19 - 0.5) * 3.3f;
}

static void body_random(rank_run *r)
{
    size_t n = random_count;
    float *x = rounded[r->rank];
    ddp_coll a = {.struct_size = sizeof(a), .dtype = DDP_F32, .op = DDP_AVG, .send = x, .recv = x, .count = n};

    for (size_t i = 0; i < n; i++) x[i] = drawn(r->seed, r->rank, i);
    CHECK(ops->all_reduce(r->comm, &a, NULL, &r->err) == DDP_OK);
    for (size_t i = 0; i < n; i++) {
        double sum = 0;
        for (uint32_t k = 0; k < r->world; k++) sum += drawn(r->seed, k, i);
        if (fabs(x[i] - sum / r->world) > 1e-6) {
            CHECK(!"near the average in double");
            break;
        }
    }
}

static void test_same_bits_on_all_ranks(void **state)
{
    (void)state;
    NEED_PLUGIN();
    for (uint32_t world = 2; world <= MAX_WORLD; world++)
        for (int way = 0; way < 3; way++) { /* one round; blocks; many blocks */
            random_count = way == 0 ? 1009 : DDP_COUNT(rounded[0]);
            run_world(world, way == 2 ? 4096 : 0, 0, body_random);
            for (uint32_t k = 1; k < world; k++)
                assert_memory_equal(rounded[0], rounded[k], random_count * sizeof(float));
        }
}

/* ---- arguments --------------------------------------------------------------------------------------------------- */
static void body_arguments(rank_run *r)
{
    float x[32] = {0};
    ddp_coll a = {.struct_size = sizeof(a), .dtype = DDP_F32, .op = DDP_SUM, .send = x, .recv = x + 4, .count = 8};

    CHECK(ops->all_reduce(r->comm, &a, NULL, &r->err) == DDP_ERR_INVALID && contains(r->err.msg, "overlap"));
    CHECK(ops->all_gather(r->comm, &a, NULL, &r->err) == DDP_ERR_INVALID);
    a.recv = NULL;
    CHECK(ops->all_reduce(r->comm, &a, NULL, &r->err) == DDP_ERR_INVALID);
    a.recv = x;
    a.root = r->world;
    CHECK(ops->broadcast(r->comm, &a, NULL, &r->err) == DDP_ERR_INVALID && contains(r->err.msg, "rank 2 of 2"));
    a.op = 77;
    CHECK(ops->all_reduce(r->comm, &a, NULL, &r->err) == DDP_ERR_UNSUPPORTED && contains(r->err.msg, "77"));
    a.dtype = 55;
    CHECK(ops->all_reduce(r->comm, &a, NULL, &r->err) == DDP_ERR_UNSUPPORTED && contains(r->err.msg, "55"));
    CHECK(ops->supports(r->comm, 55, DDP_SUM) == DDP_ERR_UNSUPPORTED);
    CHECK(ops->barrier(r->comm, NULL, &r->err) == DDP_OK); /* none of these broke it */
}

static void test_bad_arguments_are_refused(void **state)
{
    (void)state;
    NEED_PLUGIN();
    run_world(2, 0, 0, body_arguments);
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */
static void body_blocked(rank_run *r) /* rank 0 reduces, rank 1 never comes */
{
    static float x[300000];
    ddp_coll a = {.struct_size = sizeof(a), .dtype = DDP_F32, .op = DDP_SUM, .send = x, .recv = x, .count = 300000};

    if (r->rank == 1) {
        UNTIL(atomic_load(&r->entered[1]));
        return;
    }
    atomic_store(&r->entered[0], true);
    r->status = ops->all_reduce(r->comm, &a, NULL, &r->err);
    if (r->status == DDP_ERR_ABORTED) {
        CHECK(ops->barrier(r->comm, NULL, &r->err) == DDP_ERR_ABORTED);
        CHECK(ops->broadcast(r->comm, &a, NULL, &r->err) == DDP_ERR_ABORTED);
    }
    atomic_store(&r->entered[1], true);
    UNTIL(atomic_load(&r->entered[2])); /* comm_abort has returned before comm_destroy begins */
}

/* Two ranks, the second of which stays out of the collective; `abort` ends it, else the time-out does. */
static void run_blocked(int64_t timeout_ms, bool abort, ddp_err *err)
{
    atomic_bool entered[3] = {false, false, false};
    store_double *store = store_double_new();
    rank_run r[2];

    for (uint32_t i = 0; i < 2; i++)
        r[i] = (rank_run){
            .rank = i, .world = 2, .store = store, .timeout_ms = timeout_ms, .body = body_blocked, .entered = entered};
    start_ranks(r, 0, 2);
    UNTIL(atomic_load(&entered[0]));
    if (abort) {
        (void)usleep(30000); /* so that it has entered the call, most likely; right in either case */
        for (int k = 0; k < 3; k++) ops->comm_abort(r[0].comm);
    }
    atomic_store(&entered[2], true);
    join_ranks(r, 0, 2);
    store_double_free(store);
    assert_no_wrongs();
    *err = r[0].err;
    err->status = r[0].status;
}

static void test_abort_wakes_a_blocked_call(void **state)
{
    ddp_err err;

    (void)state;
    NEED_PLUGIN();
    for (int i = 0; i < 3; i++) {
        run_blocked(LONG_MS * 10, true, &err);
        assert_int_equal(err.status, DDP_ERR_ABORTED);
        assert_contains(err.msg, "abort");
    }
}

static void test_deadline_ends_a_call(void **state)
{
    ddp_err err;

    (void)state;
    NEED_PLUGIN();
    run_blocked(300, false, &err);
    assert_int_equal(err.status, DDP_ERR_TIMEOUT);
    assert_contains(err.msg, "rank 1");
}

static void body_loop(rank_run *r)
{
    size_t n = 200000;
    float *x = calloc(n, sizeof(float));
    ddp_coll a = {.struct_size = sizeof(a), .dtype = DDP_F32, .op = DDP_SUM, .send = x, .recv = x, .count = n};

    for (int i = 0; r->status == DDP_OK; i++) {
        r->status = ops->all_reduce(r->comm, &a, NULL, &r->err);
        if (i == 50) atomic_store(r->entered, true);
    }
    free(x);
}

static void test_killed_peer_is_an_error(void **state)
{
    store_double *store = store_double_new();
    atomic_bool *entered = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    rank_run r[2];
    pid_t child;

    (void)state;
    NEED_PLUGIN();
    for (uint32_t i = 0; i < 2; i++)
        r[i] = (rank_run){
            .rank = i, .world = 2, .store = store, .timeout_ms = LONG_MS * 10, .body = body_loop, .entered = entered};
    child = fork();
    if (child == 0) {
        (void)rank_main(&r[1]);
        _exit(1);
    }
    start_ranks(r, 0, 1);
    UNTIL(atomic_load(entered));
    assert_int_equal(kill(child, SIGKILL), 0);
    join_ranks(r, 0, 1);
    assert_int_equal(until_exited(child, NULL), child);
    store_double_free(store);
    (void)munmap(entered, 4096);
    assert_int_equal(r[0].status, DDP_ERR_PEER);
    assert_int_equal(r[0].err.rank, 1);
    assert_contains(r[0].err.msg, "with rank 1");
}

/* ---- resources --------------------------------------------------------------------------------------------------- */
static void body_once(rank_run *r) { CHECK(ops->barrier(r->comm, NULL, &r->err) == DDP_OK); }

static void test_opening_and_closing_leaks_nothing(void **state)
{
    size_t fds, threads;

    (void)state;
    NEED_PLUGIN();
    run_world(2, 0, 0, body_once);
    fds = entries("/proc/self/fd");
    threads = settled_threads();
    for (int i = 0; i < 50; i++) run_world(2, 4096, 0, body_once);
    assert_int_equal(entries("/proc/self/fd"), fds);
    THREADS_BECOME(threads);
}

static void test_two_communicators_at_once(void **state)
{
    store_double *stores[2] = {store_double_new(), store_double_new()};
    rank_run r[4];

    (void)state;
    NEED_PLUGIN();
    for (uint32_t i = 0; i < 4; i++)
        r[i] = (rank_run){.rank = i % 2,
                          .world = 2,
                          .store = stores[i / 2],
                          .timeout_ms = LONG_MS,
                          .seed = 1 + i / 2,
                          .body = body_all_reduce};
    start_ranks(r, 0, 4);
    join_ranks(r, 0, 4);
    store_double_free(stores[0]);
    store_double_free(stores[1]);
    assert_no_wrongs();
    for (uint32_t i = 0; i < 4; i++) assert_int_equal(r[i].status, DDP_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed_peer_is_an_error), /* forks: before any test has left memory behind */
        cmocka_unit_test(test_all_reduce),
        cmocka_unit_test(test_broadcast_all_gather_barrier),
        cmocka_unit_test(test_barrier_waits_for_all),
        cmocka_unit_test(test_same_bits_on_all_ranks),
        cmocka_unit_test(test_bad_arguments_are_refused),
        cmocka_unit_test(test_abort_wakes_a_blocked_call),
        cmocka_unit_test(test_deadline_ends_a_call),
        cmocka_unit_test(test_opening_and_closing_leaks_nothing),
        cmocka_unit_test(test_two_communicators_at_once),
    };

    return cmocka_run_group_tests(tests, load, NULL);
}
