/* tests/unit/backend/test_shm_failure.c -- backend shm when something ends: aborts, deadlines, ranks that die or
 * leave, memory that cannot be opened; what is left open; two communicators at once, also as threads of one process. */
#include "shm_util.h"

static float big[300000];

static ddp_status reduce_big(rank_run *r)
{
    ddp_coll a = {.dtype = DDP_F32, .op = DDP_SUM, .send = big, .recv = big, .count = DDP_COUNT(big)};

    return ops->all_reduce(r->comm, &a, NULL, &r->err);
}

static void wait_flag(int i) { UNTIL(atomic_load(&seen->flags[i]) != 0); }

/* ---- abort ------------------------------------------------------------------------------------------------------- */
static void *abort_soon(void *arg)
{
    rank_run *r = arg;

    (void)usleep(80000); /* so that it sleeps in the call, most likely; right in either case */
    for (int k = 0; k < 3; k++) ops->comm_abort(r->comm);
    return NULL;
}

/* Ranks 0 and 1 reduce, rank 2 never comes; a thread of rank 0 aborts. */
static void body_aborted(rank_run *r)
{
    pthread_t thread;
    ddp_err err;

    if (r->rank == 2) {
        wait_flag(0);
        wait_flag(1);
        CHECK(ops->barrier(r->comm, NULL, &r->err) == DDP_ERR_ABORTED && contains(r->err.msg, "rank 0 has aborted"));
        return;
    }
    if (r->rank == 0) CHECK(pthread_create(&thread, NULL, abort_soon, r) == 0);
    seen->status[r->rank] = reduce_big(r);
    CHECK(seen->status[r->rank] == DDP_ERR_ABORTED);
    if (r->rank == 0) CHECK(until_joined(thread) == 0);
    CHECK(ops->barrier(r->comm, NULL, &err) == DDP_ERR_ABORTED);
    CHECK(ops->mem_alloc(r->comm, 64, &(void *){NULL}, &err) == DDP_ERR_ABORTED);
    atomic_store(&seen->flags[r->rank], 1);
}

static void test_abort_wakes_this_rank_and_its_peers(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        store_double *store = store_double_new();
        rank_run r[3];
        pid_t child[3];

        for (uint32_t k = 0; k < 3; k++) {
            r[k] = rank_of(k, 3, store, body_aborted);
            r[k].spin_us = i == 0 ? 0 : 20;
        }
        start_world(r, child);
        end_world(child, 3);
        store_double_free(store);
        assert_contains(seen->err[0].msg, "was aborted");
        assert_contains(seen->err[1].msg, "rank 0 has aborted");
    }
}

static void body_abort_message(rank_run *r)
{
    pthread_t thread;
    ddp_coll a = {.dtype = DDP_F32, .root = 1, .send = big, .recv = big, .count = DDP_COUNT(big)};

    if (r->rank == 1) {
        wait_flag(0);
        return;
    }
    CHECK(pthread_create(&thread, NULL, abort_soon, r) == 0);
    CHECK(ops->send(r->comm, &a, NULL, &r->err) == DDP_ERR_ABORTED);
    CHECK(until_joined(thread) == 0);
    CHECK(ops->recv(r->comm, &a, NULL, &r->err) == DDP_ERR_ABORTED);
    atomic_store(&seen->flags[0], 1);
}

static void test_abort_wakes_a_message(void **state)
{
    (void)state;
    run_world(2, 4096, 20, body_abort_message);
}

/* ---- deadline ---------------------------------------------------------------------------------------------------- */
static void body_late(rank_run *r)
{
    if (r->rank == 1) {
        wait_flag(0);
        return;
    }
    seen->status[0] = reduce_big(r);
    CHECK(ops->barrier(r->comm, NULL, &(ddp_err){0}) == DDP_ERR_TIMEOUT); /* it is broken */
    atomic_store(&seen->flags[0], 1);
}

static void test_deadline_ends_a_call(void **state)
{
    store_double *store = store_double_new();
    rank_run r[2];
    pid_t child[2];

    (void)state;
    for (uint32_t k = 0; k < 2; k++) {
        r[k] = rank_of(k, 2, store, body_late);
        r[k].timeout_ms = k == 0 ? 300 : LONG_MS;
    }
    r[0].timeout_ms = 1500;
    start_world(r, child);
    end_world(child, 2);
    store_double_free(store);
    assert_int_equal(seen->status[0], DDP_ERR_TIMEOUT);
    assert_int_equal(seen->err[0].rank, 1);
    assert_contains(seen->err[0].msg, "all_reduce 1 of 1200000 bytes on rank 0: rank 1 did not come within 1.5 s");
}

/* ---- a rank that is gone ----------------------------------------------------------------------------------------- */
static void body_loop(rank_run *r)
{
    ddp_status st = DDP_OK;

    for (int i = 0; st == DDP_OK; i++) {
        st = i % 2 == 0 ? reduce_big(r) : ops->barrier(r->comm, NULL, &r->err);
        if (i == 20) atomic_store(&seen->flags[r->rank], 1);
    }
    seen->status[r->rank] = st;
}

static void test_killed_rank_is_named_by_all(void **state)
{
    (void)state;
    for (uint32_t victim = 0; victim < 3; victim++) {
        store_double *store = store_double_new();
        rank_run r[3];
        pid_t child[3];

        for (uint32_t k = 0; k < 3; k++) r[k] = rank_of(k, 3, store, body_loop);
        start_world(r, child);
        for (int k = 0; k < 3; k++) wait_flag(k);
        assert_int_equal(kill(child[victim], SIGKILL), 0); /* and not reaped before the others have noticed */
        for (uint32_t k = 0; k < 3; k++) {
            if (k == victim) continue;
            assert_int_equal(until_exited(child[k], NULL), child[k]);
            assert_int_equal(seen->status[k], DDP_ERR_PEER);
            assert_int_equal(seen->err[k].rank, victim);
            assert_contains(seen->err[k].msg, "has died");
        }
        assert_int_equal(until_exited(child[victim], NULL), child[victim]);
        store_double_free(store);
        assert_no_wrongs();
    }
}

static void body_first_cause(rank_run *r)
{
    CHECK_OK(r, ops->barrier(r->comm, NULL, &r->err));
    if (r->rank == 2) (void)kill(getpid(), SIGKILL);
    if (r->rank == 1) wait_flag(0); /* rank 0 has aborted by then */
    for (int again = 0; again < 2; again++) {
        CHECK(ops->barrier(r->comm, NULL, &r->err) == DDP_ERR_PEER && r->err.rank == 2);
        CHECK(contains(r->err.msg, "has died"));
    }
    ops->comm_abort(r->comm);
    CHECK(ops->barrier(r->comm, NULL, &r->err) == DDP_ERR_ABORTED && contains(r->err.msg, "was aborted"));
    CHECK(r->rank == 1 || (r->err.rank == 2 && contains(r->err.msg, "has died")));
    atomic_store(&seen->flags[r->rank], 1);
}

/* A rank dies, one that waited for it aborts: the others too name the dead one. comm_abort is answered as the header
 * has it, with the cause that was known. */
static void test_an_abort_does_not_hide_why(void **state)
{
    store_double *store = store_double_new();
    rank_run r[3];
    pid_t child[3];

    (void)state;
    for (uint32_t k = 0; k < 3; k++) r[k] = rank_of(k, 3, store, body_first_cause);
    start_world(r, child);
    for (int k = 0; k < 3; k++) assert_int_equal(until_exited(child[k], NULL), child[k]);
    store_double_free(store);
    assert_no_wrongs();
    assert_int_equal(atomic_load(&seen->flags[1]), 1);
}

static void body_leaves(rank_run *r)
{
    CHECK_OK(r, ops->barrier(r->comm, NULL, &r->err));
    if (r->rank == 1) return;
    seen->status[r->rank] = ops->barrier(r->comm, NULL, &r->err);
    CHECK(seen->status[r->rank] == DDP_ERR_PEER && r->err.rank == 1 && contains(r->err.msg, "has left"));
    seen->status[r->rank] = DDP_OK;
}

static void test_rank_that_leaves_is_named(void **state)
{
    (void)state;
    run_world(3, 0, 20, body_leaves);
}

static void body_last_call(rank_run *r) /* a rank may leave while others have not looked yet */
{
    if (r->rank == 2) (void)usleep(20000);
    CHECK_OK(r, reduce_big(r));
    CHECK_OK(r, ops->barrier(r->comm, NULL, &r->err));
}

static void test_leaving_after_the_last_call_harms_nobody(void **state)
{
    (void)state;
    for (int i = 0; i < 10; i++) run_world(4, 0, i % 2 == 0 ? 0 : 20, body_last_call);
}

/* ---- rendezvous ------------------------------------------------------------------------------------------------ */
static void other_user(rank_run *r)
{
    if (r->rank == 1 && (setgid(65534) != 0 || setuid(65534) != 0)) _exit(4);
}

static void test_another_user_is_told_so(void **state)
{
    store_double *store = store_double_new();
    rank_run r[2];
    pid_t child[2];

    (void)state;
    if (geteuid() != 0) skip(); /* only root can become another user */
    for (uint32_t k = 0; k < 2; k++) {
        r[k] = rank_of(k, 2, store, NULL);
        r[k].before = other_user;
    }
    start_world(r, child);
    end_world(child, 2);
    store_double_free(store);
    for (int k = 0; k < 2; k++) {
        assert_int_equal(seen->status[k], DDP_ERR_SYSTEM);
        assert_contains(seen->err[k].msg, "rank 1 cannot open the memory of rank 0");
        assert_contains(seen->err[k].msg, "run all ranks as the same user");
        assert_contains(seen->err[k].msg, "gloo-tcp");
    }
}

static void test_two_hosts_are_refused(void **state)
{
    store_double *store = store_double_new();
    rank_run r = rank_of(0, 4, store, NULL);

    (void)state;
    r.local_size = 2;
    rank_main(&r);
    assert_int_equal(seen->status[0], DDP_ERR_CONFIG);
    assert_contains(r.err.msg, "one host");
    assert_contains(r.err.msg, "gloo-tcp");
    r = rank_of(0, 65, store, NULL);
    rank_main(&r);
    assert_int_equal(seen->status[0], DDP_ERR_UNSUPPORTED);
    assert_contains(r.err.msg, "at most 64");
    store_double_free(store);
}

static void *abort_store(void *arg)
{
    (void)usleep(50000);
    store_double_abort(arg);
    return NULL;
}

static void test_abort_of_the_run_ends_the_rendezvous(void **state)
{
    (void)state;
    for (uint32_t rank = 0; rank < 2; rank++) {
        store_double *store = store_double_new();
        rank_run r = rank_of(rank, 2, store, NULL);
        pthread_t thread;

        assert_int_equal(pthread_create(&thread, NULL, abort_store, store), 0);
        rank_main(&r);
        assert_int_equal(until_joined(thread), 0);
        assert_int_equal(seen->status[rank], DDP_ERR_ABORTED);
        store_double_free(store);
    }
}

/* What stands in the store may be stale or another's: it names a descriptor that is something else by now. */
static void test_what_is_not_rank_0s_memory_is_not_opened(void **state)
{
    store_double *store = store_double_new();
    ddp_store table = store_double_table(store);
    rank_run r = rank_of(0, 2, store, NULL), other = rank_of(1, 2, store, NULL);
    unsigned char invitation[STORE_DOUBLE_BYTES];
    char control[] = "control";
    size_t length = 0;
    uint32_t fd = STDERR_FILENO;
    pid_t child;
    ddp_err err;

    (void)state;
    child = start_rank(&r); /* it waits for rank 1; its invitation is copied and changed */
    assert_int_equal(table.get(table.ctx, control, invitation, sizeof(invitation), &length, LONG_MS, &err), DDP_OK);
    memcpy(invitation + 4, &fd, sizeof(fd));
    assert_int_equal(table.set(table.ctx, control, invitation, length, &err), DDP_OK);
    rank_main(&other);
    assert_int_equal(until_exited(child, NULL), child);
    store_double_free(store);
    for (int k = 0; k < 2; k++) {
        assert_int_equal(seen->status[k], DDP_ERR_SYSTEM);
        assert_contains(seen->err[k].msg, "rank 1 finds no memory of rank 0 at descriptor 2");
    }
}

/* ---- a rendezvous that does not come about ----------------------------------------------------------------------- */
static void test_connecting_ends_by_its_own_deadline(void **state)
{
    store_double *store = store_double_new();
    rank_run r[3];
    pid_t child[2];
    int64_t begin = ddp_now_ms();

    (void)state;
    for (uint32_t k = 0; k < 3; k++) { /* rank 2 never comes */
        r[k] = rank_of(k, 3, store, NULL);
        r[k].connect_timeout_ms = 500;
        if (k < 2) child[k] = start_rank(&r[k]);
    }
    end_world(child, 2);
    assert_true(ddp_now_ms() - begin >= 400);
    store_double_free(store);
    assert_int_equal(seen->status[0], DDP_ERR_TIMEOUT);
    assert_int_equal(seen->err[0].rank, 2);
    for (int k = 0; k < 2; k++)
        assert_contains(seen->err[k].msg, "rank 2 has not come to connect to rank 0 within 0.5 s");

    store = store_double_new();
    r[1].connect_timeout_ms = 100;
    r[1].store = store;
    rank_main(&r[1]); /* nor rank 0 */
    store_double_free(store);
    assert_int_equal(seen->status[1], DDP_ERR_TIMEOUT);
    assert_int_equal(seen->err[1].rank, 0);
    assert_contains(seen->err[1].msg, "rank 0 has not come to connect to rank 1 within 0.1 s");
}

static void body_waits_for_rank_1(rank_run *r)
{
    if (r->rank == 1) (void)usleep(200000); /* so that rank 0 looks at what it knows of rank 1 */
    CHECK_OK(r, ops->barrier(r->comm, NULL, &r->err));
}

/* Who strays into the memory of another run leaves it as it is. */
static void test_another_run_is_not_touched(void **state)
{
    store_double *store = store_double_new(), *strays = store_double_new();
    ddp_store table = store_double_table(store), second = store_double_table(strays);
    rank_run r = rank_of(0, 2, store, body_waits_for_rank_1), stray = rank_of(1, 2, strays, NULL);
    unsigned char invitation[STORE_DOUBLE_BYTES];
    size_t length = 0;
    pid_t child[2];
    ddp_err err;

    (void)state;
    child[0] = start_rank(&r);
    assert_int_equal(table.get(table.ctx, "control", invitation, sizeof(invitation), &length, LONG_MS, &err), DDP_OK);
    invitation[24] ^= 1; /* its nonce */
    assert_int_equal(second.set(second.ctx, "control", invitation, length, &err), DDP_OK);
    rank_main(&stray);
    assert_contains(stray.err.msg, "memory of another run");
    r.rank = 1;
    child[1] = start_rank(&r);
    end_world(child, 2);
    store_double_free(store);
    store_double_free(strays);
}

/* The right kind of memory, of another run. */
static void test_memory_of_another_run_is_refused(void **state)
{
    store_double *store = store_double_new();
    ddp_store table = store_double_table(store);
    rank_run r = rank_of(0, 2, store, NULL), other = rank_of(1, 2, store, NULL);
    unsigned char invitation[STORE_DOUBLE_BYTES];
    size_t length = 0;
    pid_t child;
    ddp_err err;

    (void)state;
    child = start_rank(&r);
    assert_int_equal(table.get(table.ctx, "control", invitation, sizeof(invitation), &length, LONG_MS, &err), DDP_OK);
    invitation[24] ^= 1; /* its nonce */
    assert_int_equal(table.set(table.ctx, "control", invitation, length, &err), DDP_OK);
    rank_main(&other);
    assert_int_equal(until_exited(child, NULL), child);
    store_double_free(store);
    for (int k = 0; k < 2; k++) assert_contains(seen->err[k].msg, "memory of another run");
}

/* ---- resources --------------------------------------------------------------------------------------------------- */
static size_t entries(const char *folder)
{
    DIR *dir = opendir(folder);
    size_t n = 0;

    while (dir != NULL && readdir(dir) != NULL) n++;
    if (dir != NULL) (void)closedir(dir);
    return n;
}

static size_t mappings(void) /* of shared memory; the allocator's own come and go */
{
    FILE *f = fopen("/proc/self/maps", "re");
    char row[512];
    size_t n = 0;

    while (f != NULL && fgets(row, sizeof(row), f) != NULL) n += strstr(row, "ddpengine-shm") != NULL ? 1 : 0;
    if (f != NULL) (void)fclose(f);
    return n;
}

enum { OPENS = 100 };
static store_double *stores[OPENS];

static void body_reopen(rank_run *r) /* beside its first communicator it opens and closes many */
{
    size_t fds = entries("/proc/self/fd"), threads = settled_threads(), maps = mappings();

    CHECK(maps == 1);
    for (int i = 0; i < OPENS; i++) {
        const ddp_store table = store_double_table(stores[i]);
        rank_run again = *r;
        void *p = NULL;

        CHECK(open_rank(&again, &table) == DDP_OK);
        CHECK_OK(&again, ops->mem_alloc(again.comm, 5000, &p, &again.err));
        CHECK_OK(&again, reduce_big(&again));
        if (i % 2 == 0) ops->mem_free(again.comm, p);
        close_rank(&again);
    }
    CHECK(entries("/proc/self/fd") == fds);
    THREADS_BECOME(threads);
    CHECK(mappings() == maps);
}

static void test_opening_and_closing_leaks_nothing(void **state)
{
    (void)state;
    for (int i = 0; i < OPENS; i++) stores[i] = store_double_new();
    run_world(2, 0, 20, body_reopen);
    for (int i = 0; i < OPENS; i++) store_double_free(stores[i]);
}

static void body_no_descriptor(rank_run *r)
{
    size_t fds = entries("/proc/self/fd");
    void *p = NULL;

    CHECK(atomic_load(&seen->flags[r->rank]) == (int)fds); /* none is kept for the communicator */
    CHECK_OK(r, ops->mem_alloc(r->comm, 100, &p, &r->err));
    CHECK(entries("/proc/self/fd") == fds);
}

static void count_descriptors(rank_run *r) { atomic_store(&seen->flags[r->rank], (int)entries("/proc/self/fd")); }

static void test_no_descriptor_is_kept(void **state)
{
    store_double *store = store_double_new();
    rank_run r[2];
    pid_t child[2];

    (void)state;
    for (uint32_t k = 0; k < 2; k++) {
        r[k] = rank_of(k, 2, store, body_no_descriptor);
        r[k].before = count_descriptors;
    }
    start_world(r, child);
    end_world(child, 2);
    store_double_free(store);
}

/* ---- several at once --------------------------------------------------------------------------------------------- */
static void body_sums(rank_run *r)
{
    float *x = malloc(20011 * sizeof(float));
    void *p = NULL;

    CHECK_OK(r, ops->mem_alloc(r->comm, 20011 * sizeof(float), &p, &r->err));
    for (int i = 0; i < 60; i++) {
        float *at = i % 2 == 0 ? x : p;
        ddp_coll a = {.dtype = DDP_F32, .op = DDP_SUM, .send = at, .recv = at, .count = i % 3 == 0 ? 3 : 20011};
        float want = 0;

        for (uint32_t k = 0; k < r->world; k++) want += (float)(k + r->seed + (unsigned)i);
        for (size_t k = 0; k < a.count; k++) at[k] = (float)(r->rank + r->seed + (unsigned)i);
        CHECK_OK(r, ops->all_reduce(r->comm, &a, NULL, &r->err));
        CHECK(at[0] == want && at[a.count - 1] == want);
    }
    ops->mem_free(r->comm, p);
    free(x);
}

static void *sum_beside(void *arg)
{
    rank_run *r = arg;
    const ddp_store table = store_double_table(r->store);

    CHECK_OK(r, open_rank(r, &table));
    body_sums(r);
    close_rank(r);
    return NULL;
}

static void body_two(rank_run *r)
{
    rank_run second = *r;
    pthread_t thread;

    second.store = stores[0];
    second.seed = 1000;
    CHECK(pthread_create(&thread, NULL, sum_beside, &second) == 0);
    body_sums(r);
    CHECK(until_joined(thread) == 0);
}

static void test_two_communicators_at_once(void **state)
{
    (void)state;
    for (uint32_t world = 2; world <= 3; world++) {
        stores[0] = store_double_new();
        run_world(world, 4096, 20, body_two);
        store_double_free(stores[0]);
    }
}

static void test_ranks_may_be_threads_of_one_process(void **state)
{
    store_double *store = store_double_new();
    rank_run r[3];
    pthread_t thread[3];

    (void)state;
    for (uint32_t k = 0; k < 3; k++) {
        r[k] = rank_of(k, 3, store, NULL);
        assert_int_equal(pthread_create(&thread[k], NULL, sum_beside, &r[k]), 0);
    }
    for (uint32_t k = 0; k < 3; k++) assert_int_equal(until_joined(thread[k]), 0);
    store_double_free(store);
    assert_no_wrongs();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_abort_wakes_this_rank_and_its_peers),
        cmocka_unit_test(test_abort_wakes_a_message),
        cmocka_unit_test(test_deadline_ends_a_call),
        cmocka_unit_test(test_killed_rank_is_named_by_all),
        cmocka_unit_test(test_an_abort_does_not_hide_why),
        cmocka_unit_test(test_rank_that_leaves_is_named),
        cmocka_unit_test(test_leaving_after_the_last_call_harms_nobody),
        cmocka_unit_test(test_another_user_is_told_so),
        cmocka_unit_test(test_two_hosts_are_refused),
        cmocka_unit_test(test_abort_of_the_run_ends_the_rendezvous),
        cmocka_unit_test(test_what_is_not_rank_0s_memory_is_not_opened),
        cmocka_unit_test(test_connecting_ends_by_its_own_deadline),
        cmocka_unit_test(test_another_run_is_not_touched),
        cmocka_unit_test(test_memory_of_another_run_is_refused),
        cmocka_unit_test(test_opening_and_closing_leaks_nothing),
        cmocka_unit_test(test_no_descriptor_is_kept),
        cmocka_unit_test(test_two_communicators_at_once),
        cmocka_unit_test(test_ranks_may_be_threads_of_one_process),
    };

    return cmocka_run_group_tests(tests, load, NULL);
}
