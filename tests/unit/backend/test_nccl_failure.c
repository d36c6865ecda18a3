/* tests/unit/backend/test_nccl_failure.c -- backend nccl over a double, when things go wrong: libraries, devices,
 * ranks that do not come, aborts, errors of the library, and every call of the two libraries failing in turn. */
#include "nccl_util.h"

#define SHORT_MS 200

/* ---- what is missing --------------------------------------------------------------------------------------------- */
static ddp_status check_with(nccl_options options, int32_t ordinal, ddp_err *err)
{
    ddp_comm_params p = {.struct_size = sizeof(p), .world_size = 1, .device_ordinal = ordinal, .interface = ""};

    *err = (ddp_err){.status = DDP_OK};
    return ops->check(&host, &options, &p, err);
}

static void assert_check(nccl_options options, int32_t ordinal, ddp_status status, const char *const parts[3])
{
    ddp_err err;

    assert_int_equal(check_with(options, ordinal, &err), status);
    for (int i = 0; i < 3 && parts[i] != NULL; i++) assert_contains(err.msg, parts[i]);
    assert_null(strchr(err.msg, '\n'));
}

static void assert_library(nccl_options options, const char *const parts[3])
{
    ddp_err err;
    ddp_backend *b;

    assert_check(options, 0, DDP_ERR_LIBRARY, parts);
    assert_int_equal(ops->open(&host, &options, &b, &err), DDP_ERR_LIBRARY); /* and so says open */
    assert_contains(err.msg, parts[0]);
}

static void each_missing_library_is_named(void **state)
{
    nccl_options o = use_double;

    (void)state;
    NEED_PLUGIN();
    o.library = "libnccl-not-there.so.2";
    assert_library(o, (const char *[3]){"NCCL cannot be loaded", "libnccl-not-there.so.2", "libnccl2"});
    o = use_double, o.cuda_library = "libcudart-not-there.so.13";
    assert_library(o, (const char *[3]){"CUDA runtime cannot be loaded", "libcudart-not-there.so.13", "CUDA Toolkit"});
    o = use_double, o.driver_library = "libcuda-not-there.so.1";
    assert_library(o,
                   (const char *[3]){"NVIDIA driver cannot be loaded", "libcuda-not-there.so.1", "backend = gloo-tcp"});
    o = use_double, o.library = "libdl.so.2";
    assert_library(o, (const char *[3]){"libdl.so.2 has no function ncclGetVersion", "2.19"});
    o = use_double, o.cuda_library = "libdl.so.2";
    assert_library(o, (const char *[3]){"libdl.so.2 has no function cudaRuntimeGetVersion", "12"});
}

static void each_missing_device_is_named(void **state)
{
    ddp_err err;

    (void)state;
    NEED_PLUGIN();
    assert_int_equal(check_with(use_double, 3, &err), DDP_OK);
    assert_check(use_double, 4, DDP_ERR_CONFIG, (const char *[3]){"device 4", "has 4"});
    assert_check(use_double, -1, DDP_ERR_CONFIG,
                 (const char *[3]){"device = cpu is host memory", "gloo-tcp, shm or mpi"});
    cuda.devices(0);
    assert_check(use_double, 0, DDP_ERR_LIBRARY, (const char *[3]){"no CUDA device", "nvidia-smi"});
    cuda.driver(11040);
    assert_check(use_double, 0, DDP_ERR_LIBRARY, (const char *[3]){"serves CUDA 11.4", "runtime is 1", "newer"});
    cuda.driver(0);
    cuda.devices(1);
    cuda.fail_at(1);
    assert_check(use_double, 0, DDP_ERR_LIBRARY, (const char *[3]){"CUDA error 999", "unknown error"});
    cuda.fail_at(1);
    assert_int_equal(check_with(use_double, 0, &err), DDP_ERR_LIBRARY);
    assert_int_equal(err.lib_code, 999);
}

static void the_interface_reaches_the_library(void **state)
{
    static const char name[] = "NCCL_SOCKET_IFNAME";
    ddp_comm_params p = {.struct_size = sizeof(p), .world_size = 1, .interface = "ddp0"};
    nccl_options o = use_double;
    ddp_err err;

    (void)state;
    NEED_PLUGIN();
    (void)unsetenv(name);
    assert_int_equal(ops->check(&host, &o, &p, &err), DDP_OK);
    assert_string_equal(getenv(name), "=ddp0");
    p.interface = "";
    assert_int_equal(ops->check(&host, &o, &p, &err), DDP_OK);
    assert_string_equal(getenv(name), "=ddp0"); /* the environment is honoured where the key is absent */
    assert_string_equal(last_log, "");
    p.interface = "ddp1";
    assert_int_equal(ops->check(&host, &o, &p, &err), DDP_OK);
    assert_string_equal(getenv(name), "=ddp1");
    assert_contains(last_log, "ddp1 takes the place of NCCL_SOCKET_IFNAME = =ddp0");
}

static void body_nothing(rank_run *r) { (void)r; }

static void without_a_key_the_interface_is_that_of_the_address(void **state)
{
    rank_run r = {.world = 2, .timeout_ms = SHORT_MS, .body = body_nothing};

    (void)state;
    NEED_PLUGIN();
    (void)unsetenv("NCCL_SOCKET_IFNAME");
    run_world(1, body_nothing);
    assert_null(getenv("NCCL_SOCKET_IFNAME")); /* nobody to reach */
    r.store = store_double_new();
    (void)rank_main(&r); /* the other never comes */
    store_double_free(r.store);
    assert_int_equal(r.status, DDP_ERR_TIMEOUT);
    assert_string_equal(getenv("NCCL_SOCKET_IFNAME"), "=lo");
}

/* ---- ranks that do not come -------------------------------------------------------------------------------------- */
static int32_t *cell_of(const rank_run *r) { return (int32_t *)(void *)buffers[r->rank]; }

static ddp_coll one(const rank_run *r)
{
    int32_t *x = cell_of(r);

    return (ddp_coll){
        .struct_size = sizeof(ddp_coll), .dtype = DDP_I32, .op = DDP_SUM, .send = x, .recv = x, .count = 1};
}

static atomic_int may_come;
static void body_late(rank_run *r)
{
    ddp_coll a = one(r);
    ddp_work *w;

    *cell_of(r) = 1;
    UNTIL(r->rank != 1 || atomic_load(&may_come) != 0);
    CHECK(ops->all_reduce(r->comm, &a, &w, &r->err) == DDP_OK);
    if (r->rank == 0) {
        int64_t before = ddp_now_ns();
        CHECK(ops->work_wait(w, SHORT_MS, &r->err) == DDP_ERR_TIMEOUT);
        CHECK(ddp_now_ns() - before >= SHORT_MS * INT64_C(1000000));
        CHECK(contains(r->err.msg, "all_reduce 1 of 4 bytes on rank 0") && contains(r->err.msg, "200 ms"));
        CHECK(r->err.rank == 0);
        CHECK(ops->work_wait(w, 0, &r->err) == DDP_ERR_TIMEOUT && ops->work_test(w, &r->err) == DDP_IN_PROGRESS);
        atomic_store(&may_come, 1);
    }
    CHECK(finish(r, w) == DDP_OK && *cell_of(r) == 2);
}

static void a_wait_ends_at_its_deadline_and_may_be_repeated(void **state)
{
    (void)state;
    NEED_PLUGIN();
    atomic_store(&may_come, 0);
    run_world(2, body_late);
}

static void connecting_ends_at_its_deadline(void **state)
{
    rank_run r[MAX_WORLD];

    (void)state;
    NEED_PLUGIN();
    nccl->init_hangs = 1;
    run_nccl_ranks(r, 2, SHORT_MS, body_nothing);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(r[i].status, DDP_ERR_TIMEOUT);
        assert_contains(r[i].err.msg, "all ranks are there, but NCCL has not connected");
    }
    assert_int_equal(nccl->aborts, 2);
    assert_int_equal(nccl->finalizes, 0);
}

static void a_rank_that_does_not_come_is_named(void **state)
{
    (void)state;
    NEED_PLUGIN();
    for (uint32_t rank = 0; rank < 2; rank++) { /* the other never comes */
        rank_run r = {
            .rank = rank, .world = 2, .timeout_ms = SHORT_MS, .store = store_double_new(), .body = body_nothing};
        (void)rank_main(&r);
        store_double_free(r.store);
        assert_int_equal(r.status, DDP_ERR_TIMEOUT);
        assert_int_equal(r.err.rank, 1 - (int32_t)rank);
        assert_contains(r.err.msg, rank == 0 ? "rank 1 has not come" : "rank 0 has not come");
    }
}

static void connecting_ends_with_the_librarys_words(void **state)
{
    rank_run r[MAX_WORLD];

    (void)state;
    NEED_PLUGIN();
    nccl->init_error = 2;
    run_nccl_ranks(r, 2, LONG_MS, body_nothing);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(r[i].status, DDP_ERR_LIBRARY);
        assert_int_equal(r[i].err.lib_code, 2);
        assert_contains(r[i].err.msg, "CUDA device");
        assert_contains(r[i].err.msg, "NCCL error 2, an error of the double: words of the double on two lines");
    }
}

static void *abort_run(void *store)
{
    (void)usleep(100000);
    store_double_abort(store);
    return NULL;
}

static void connecting_ends_when_the_run_does(void **state)
{
    rank_run r = {.world = 2, .timeout_ms = LONG_MS, .store = store_double_new(), .body = body_nothing};
    int64_t began = ddp_now_ns();
    pthread_t aborter;

    (void)state;
    if (ops == NULL) store_double_free(r.store);
    NEED_PLUGIN();
    assert_int_equal(pthread_create(&aborter, NULL, abort_run, r.store), 0);
    (void)rank_main(&r); /* the other rank never comes */
    assert_int_equal(r.status, DDP_ERR_ABORTED);
    assert_true(ddp_now_ns() - began < LONG_MS * INT64_C(1000000)); /* the run's end, not the deadline */
    assert_int_equal(nccl->aborts, 1);
    assert_int_equal(until_joined(aborter), 0);
    store_double_free(r.store);
}

/* ---- abort ------------------------------------------------------------------------------------------------------- */
static atomic_llong aborted_at;
static void *abort_soon(void *arg)
{
    rank_run *r = arg;

    (void)usleep(50000);
    atomic_store(&aborted_at, ddp_now_ns());
    ops->comm_abort(r->comm);
    ops->comm_abort(r->comm);
    return NULL;
}

#define AFTER_ABORT_MS() ((ddp_now_ns() - atomic_load(&aborted_at)) / 1000000)

static void all_is_aborted(rank_run *r)
{
    ddp_coll a = one(r);
    ddp_work *w;
    void *p;

    CHECK(ops->all_reduce(r->comm, &a, &w, &r->err) == DDP_ERR_ABORTED);
    CHECK(ops->barrier(r->comm, &w, &r->err) == DDP_ERR_ABORTED);
    CHECK(ops->mem_alloc(r->comm, 64, &p, &r->err) == DDP_ERR_ABORTED);
}

/* Only this rank issues: its work can end by the abort alone. */
static void body_abort_wait(rank_run *r)
{
    ddp_coll a = one(r);
    pthread_t aborter;
    ddp_work *w[3];
    void *p;

    if (r->rank != 0) return;
    CHECK(ops->mem_alloc(r->comm, 64, &p, &r->err) == DDP_OK);
    for (int i = 0; i < 3; i++) CHECK(ops->all_reduce(r->comm, &a, &w[i], &r->err) == DDP_OK);
    CHECK(pthread_create(&aborter, NULL, abort_soon, r) == 0);
    CHECK(ops->work_wait(w[0], LONG_MS, &r->err) == DDP_ERR_ABORTED);
    CHECK(AFTER_ABORT_MS() < 1000);
    CHECK(contains(r->err.msg, "all_reduce") && contains(r->err.msg, "was aborted"));
    CHECK(ops->work_wait(w[0], LONG_MS, &r->err) == DDP_ERR_ABORTED);
    CHECK(ops->work_test(w[1], &r->err) == DDP_ERR_ABORTED);
    CHECK(ops->work_stream_wait(w[2], NULL, &r->err) == DDP_ERR_ABORTED);
    CHECK(until_joined(aborter) == 0);
    CHECK(atomic_load(&nccl->aborts) == 1); /* at once, not when the communicator is destroyed */
    for (int i = 0; i < 3; i++) ops->work_free(w[i]);
    all_is_aborted(r);
    ops->mem_free(r->comm, p);
}

static void an_abort_wakes_a_wait(void **state)
{
    rank_run r[MAX_WORLD];

    (void)state;
    NEED_PLUGIN();
    nccl->finalize_hangs = 1; /* what an aborted rank does to the other */
    run_nccl_ranks(r, 2, SHORT_MS, body_abort_wait);
    assert_int_equal(nccl->aborts, 2); /* one by comm_abort, one because rank 1 could not part */
    assert_int_equal(nccl->finalizes, 1);
    assert_int_equal(nccl->destroys, 0);
    assert_contains(last_log, "closing");
}

static void body_abort_start(rank_run *r)
{
    ddp_coll a = one(r);
    pthread_t aborter;
    ddp_work *w;

    CHECK(pthread_create(&aborter, NULL, abort_soon, r) == 0);
    CHECK(ops->all_reduce(r->comm, &a, &w, &r->err) == DDP_ERR_ABORTED);
    CHECK(AFTER_ABORT_MS() < 1000);
    CHECK(until_joined(aborter) == 0);
    CHECK(atomic_load(&nccl->aborts) == 1);
    all_is_aborted(r);
}

static void an_abort_wakes_a_launch(void **state)
{
    (void)state;
    NEED_PLUGIN();
    nccl->launch_polls = 1 << 30;
    run_world(1, body_abort_start);
    assert_int_equal(nccl->aborts, 1);
}

/* The library holds the thread 300 ms: comm_abort does not wait so long, and that thread ends the communicator. */
static void an_abort_waits_for_no_call_of_the_library(void **state)
{
    (void)state;
    NEED_PLUGIN();
    nccl->inside_ms = 300;
    nccl->launch_polls = 1 << 30;
    run_world(1, body_abort_start);
    assert_int_equal(nccl->aborts, 1);
}

static void body_launch_deadline(rank_run *r)
{
    ddp_coll a = one(r);
    ddp_work *w;

    CHECK(ops->all_reduce(r->comm, &a, &w, &r->err) == DDP_ERR_TIMEOUT);
    CHECK(contains(r->err.msg, "all_reduce 1 on rank 0") && contains(r->err.msg, "200 ms") && r->err.rank == 0);
    CHECK(ops->barrier(r->comm, &w, &r->err) == DDP_ERR_TIMEOUT);
}

static void a_launch_ends_at_its_deadline(void **state)
{
    rank_run r[1];

    (void)state;
    NEED_PLUGIN();
    nccl->launch_polls = 1 << 30;
    run_nccl_ranks(r, 1, SHORT_MS, body_launch_deadline);
    assert_int_equal(nccl->aborts, 1);
    assert_int_equal(nccl->finalizes, 0);
}

/* ---- errors of the library --------------------------------------------------------------------------------------- */
static void body_async_error(rank_run *r)
{
    ddp_coll a = one(r);
    ddp_work *w;

    if (r->rank != 0) return;
    CHECK(ops->all_reduce(r->comm, &a, &w, &r->err) == DDP_OK);
    atomic_store(&nccl->async_error, 6);
    atomic_store(&nccl->async_rank, 0);
    for (int i = 0; i < 2; i++) {
        r->err = (ddp_err){.status = DDP_OK};
        CHECK(ops->work_wait(w, LONG_MS, &r->err) == DDP_ERR_PEER && r->err.lib_code == 6);
        CHECK(contains(r->err.msg, "all_reduce 1 of 4 bytes on rank 0: NCCL error 6, remote process exited"));
        CHECK(contains(r->err.msg, "words of the double on two lines"));
    }
    ops->work_free(w);
    CHECK(ops->all_reduce(r->comm, &a, &w, &r->err) == DDP_ERR_PEER && r->err.lib_code == 6);
}

static void an_asynchronous_error_is_final_and_keeps_its_words(void **state)
{
    rank_run r[MAX_WORLD];

    (void)state;
    NEED_PLUGIN();
    nccl->finalize_hangs = 1;
    run_nccl_ranks(r, 2, SHORT_MS, body_async_error);
    assert_int_equal(nccl->aborts, 2);
}

/* One rank alone; each call that can fail does so once. Whatever fails, an error says so and nothing is left. */
static void body_all_slots(rank_run *r)
{
    float *x = take_buffer(r, 8 * sizeof(*x)), *y = take_buffer(r, 8 * sizeof(*y));
    void *stream, *p;
    ddp_coll a = {.struct_size = sizeof(a), .dtype = DDP_F32, .op = DDP_SUM, .send = x, .recv = y, .count = 8};
    const ddp_collective calls[] = {ops->all_reduce, ops->broadcast,  ops->all_gather, ops->reduce_scatter,
                                    ops->reduce,     ops->all_to_all, ops->gather,     ops->scatter};
    ddp_work *w;
    ddp_status st;

    if (gpu.stream_create(&stream, 1, -5) != 0) {
        r->status = ddp_fail(&r->err, DDP_ERR_LIBRARY, "the test's own stream");
        return;
    }
    a.stream = stream;
    st = ops->mem_alloc(r->comm, 64, &p, &r->err);
    if (st == DDP_OK) ops->mem_free(r->comm, p);
    for (size_t i = 0; i < DDP_COUNT(calls) && st == DDP_OK; i++) {
        st = calls[i](r->comm, &a, &w, &r->err);
        if (st != DDP_OK) break;
        st = ops->work_stream_wait(w, stream, &r->err);
        if (st == DDP_OK) st = ops->work_wait(w, LONG_MS, &r->err);
        ops->work_free(w);
    }
    r->status = st;
    CHECK(gpu.stream_destroy(stream) == 0);
}

static void every_call_fails_in_turn(void **state)
{
    uint64_t turn = 1;
    int failed = 0;
    bool all_passed = false;

    (void)state;
    NEED_PLUGIN();
    for (; !all_passed && turn < 2000; turn++) {
        rank_run r[1];
        cuda_double_counts c;
        cuda.reset();
        cuda.fail_at(turn);
        run_nccl_ranks(r, 1, LONG_MS, body_all_slots);
        cuda.count(&c);
        all_passed = c.calls < turn;
        if (r[0].status != DDP_OK) {
            failed++;
            assert_true(r[0].err.msg[0] != '\0');
        }
        if (!nothing_is_left()) fail_msg("after call %d failed", (int)turn);
    }
    print_message("# %d calls, %d failures\n", (int)turn, failed);
    assert_true(all_passed && failed > 300);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        NCCL_TEST(each_missing_library_is_named),
        NCCL_TEST(each_missing_device_is_named),
        NCCL_TEST(the_interface_reaches_the_library),
        NCCL_TEST(without_a_key_the_interface_is_that_of_the_address),
        NCCL_TEST(a_wait_ends_at_its_deadline_and_may_be_repeated),
        NCCL_TEST(connecting_ends_at_its_deadline),
        NCCL_TEST(a_rank_that_does_not_come_is_named),
        NCCL_TEST(connecting_ends_with_the_librarys_words),
        NCCL_TEST(connecting_ends_when_the_run_does),
        NCCL_TEST(an_abort_wakes_a_wait),
        NCCL_TEST(an_abort_wakes_a_launch),
        NCCL_TEST(an_abort_waits_for_no_call_of_the_library),
        NCCL_TEST(a_launch_ends_at_its_deadline),
        NCCL_TEST(an_asynchronous_error_is_final_and_keeps_its_words),
        NCCL_TEST(every_call_fails_in_turn),
    };
    return cmocka_run_group_tests_name("backend nccl over a double, failing", tests, nccl_load, NULL);
}
