/* tests/unit/backend/test_gloo_connect.c -- how the ranks of backend gloo-tcp connect: the run's abort, the one
 * deadline, threads with names, and nothing left in the store. Peers that misbehave are played by the test. */
#include "gloo_util.h"
#include <netinet/in.h>
#include <sys/socket.h>

static void body_nothing(rank_run *r) { (void)r; }
static void body_once(rank_run *r) { CHECK(ops->barrier(r->comm, NULL, &r->err) == DDP_OK); }

/* ---- a peer that is played --------------------------------------------------------------------------------------- */
typedef struct alone { /* rank 0 of 2, and what the test does for rank 1 */
    store_double *store;
    ddp_store table;
    rank_run rank;
    struct sockaddr_storage address; /* of rank 0's end */
} alone;

/* Rank 1 publishes an address that is higher than any: rank 0 listens. */
static void start_alone(alone *a, int64_t timeout_ms)
{
    char address[STORE_DOUBLE_BYTES];
    size_t length;
    ddp_err err;

    a->store = store_double_new();
    a->table = store_double_table(a->store);
    a->rank = (rank_run){.world = 2, .store = a->store, .timeout_ms = timeout_ms, .body = body_nothing};
    start_ranks(&a->rank, 0, 1);
    assert_int_equal(a->table.get(a->table.ctx, "gloo/0/1", address, sizeof(address), &length, LONG_MS, &err), DDP_OK);
    assert_true(length >= sizeof(a->address));
    memcpy(&a->address, address, sizeof(a->address));
    ((struct sockaddr_in *)(void *)address)->sin_port = 0xffff;
    assert_int_equal(a->table.set(a->table.ctx, "gloo/1/0", address, length, &err), DDP_OK);
    assert_int_equal(a->table.set(a->table.ctx, "gloo/1/host", "b", 1, &err), DDP_OK);
}

static void end_alone(alone *a)
{
    join_ranks(&a->rank, 0, 1);
    store_double_free(a->store);
}

/* Connects as rank 1 and says nothing; returns when rank 0's greeting comes, so that rank 0 now waits for the
 * answer. */
static int connect_silently(const alone *a)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char byte;

    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&a->address, sizeof(struct sockaddr_in)), 0);
    assert_int_equal(recv(fd, &byte, 1, MSG_PEEK), 1);
    return fd;
}

static bool thread_named(const char *name)
{
    DIR *tasks = opendir("/proc/self/task");
    bool found = false;

    for (const struct dirent *e; !found && tasks != NULL && (e = readdir(tasks)) != NULL;) {
        char path[300], text[32] = "";
        FILE *f;

        (void)snprintf(path, sizeof(path), "/proc/self/task/%s/comm", e->d_name);
        f = fopen(path, "re");
        if (f == NULL) continue;
        if (fgets(text, sizeof(text), f) != NULL) text[strcspn(text, "\n")] = '\0';
        (void)fclose(f);
        found = strcmp(text, name) == 0;
    }
    if (tasks != NULL) (void)closedir(tasks);
    return found;
}

/* ---- abort ------------------------------------------------------------------------------------------------------- */
static void test_abort_of_the_run_ends_connecting(void **state)
{
    alone a;

    (void)state;
    NEED_PLUGIN();
    start_alone(&a, LONG_MS * 10); /* which has not come: rank 0 waits in Gloo, not in the store */
    (void)usleep(50000);
    store_double_abort(a.store);
    end_alone(&a);
    assert_int_equal(a.rank.status, DDP_ERR_ABORTED);
}

static void test_abort_of_the_run_ends_the_wait_for_a_greeting(void **state)
{
    alone a;
    int fd;

    (void)state;
    NEED_PLUGIN();
    start_alone(&a, LONG_MS * 10);
    fd = connect_silently(&a);
    assert_true(thread_named("ddp-gloo-watch"));
    assert_true(thread_named("ddp-gloo-events"));
    store_double_abort(a.store);
    end_alone(&a);
    (void)close(fd);
    assert_int_equal(a.rank.status, DDP_ERR_ABORTED);
    assert_contains(a.rank.err.msg, "rank 1 on host b");
}

/* ---- the deadline ------------------------------------------------------------------------------------------------ */
/* A byte now and then keeps every single wait alive; the whole ends all the same. */
static void test_a_trickling_peer_is_named_when_the_time_is_over(void **state)
{
    alone a;
    int fd;

    (void)state;
    NEED_PLUGIN();
    start_alone(&a, 1500);
    fd = connect_silently(&a);
    for (int i = 0; i < 40 && send(fd, "", 1, MSG_NOSIGNAL) == 1; i++) (void)usleep(200000); /* no whole message */
    end_alone(&a);
    (void)close(fd);
    assert_int_equal(a.rank.status, DDP_ERR_PEER);
    assert_contains(a.rank.err.msg, "rank 1 on host b");
    assert_contains(a.rank.err.msg, "within 1.5 s (rendezvous_timeout, after a loss rejoin_timeout): the time is over");
}

/* A store in which every get takes 30 ms, and which writes down how long each may wait. */
enum { DELAY_MS = 30, GETS = 32 };
typedef struct slow_store {
    ddp_store inner;
    int64_t timeouts[GETS];
    uint32_t count;
} slow_store;

static ddp_status slow_get(void *ctx, const char *key, void *buf, size_t capacity, size_t *len, int64_t timeout_ms,
                           ddp_err *err)
{
    slow_store *s = ctx;

    if (!contains(key, "connected")) { /* the watch's own, on its own thread */
        if (s->count < GETS) s->timeouts[s->count++] = timeout_ms;
        (void)usleep(DELAY_MS * 1000);
    }
    return s->inner.get(s->inner.ctx, key, buf, capacity, len, timeout_ms, err);
}

static ddp_status slow_set(void *ctx, const char *key, const void *value, size_t len, ddp_err *err)
{
    slow_store *s = ctx;

    return s->inner.set(s->inner.ctx, key, value, len, err);
}

static ddp_status slow_remove(void *ctx, const char *key, ddp_err *err)
{
    slow_store *s = ctx;

    return s->inner.remove(s->inner.ctx, key, err);
}

/* Each wait may take what the ones before have left of the whole. */
static void test_all_waits_share_one_deadline(void **state)
{
    store_double *store = store_double_new();
    slow_store slow[3] = {{.count = 0}};
    rank_run r[3];

    (void)state;
    NEED_PLUGIN();
    for (uint32_t i = 0; i < 3; i++) {
        slow[i].inner = store_double_table(store);
        r[i] = (rank_run){.rank = i,
                          .world = 3,
                          .store = store,
                          .timeout_ms = LONG_MS,
                          .body = body_once,
                          .table = {.struct_size = sizeof(ddp_store),
                                    .ctx = &slow[i],
                                    .get = slow_get,
                                    .set = slow_set,
                                    .remove = slow_remove}};
    }
    start_ranks(r, 0, 3);
    join_ranks(r, 0, 3);
    store_double_free(store);
    assert_no_wrongs();
    for (uint32_t i = 0; i < 3; i++) {
        if (r[i].status != DDP_OK) fail_msg("rank %u: %s", i, r[i].err.msg);
        assert_true(slow[i].count >= 4); /* two hosts, two addresses */
        assert_true(slow[i].timeouts[0] <= LONG_MS);
        for (uint32_t k = 1; k < slow[i].count; k++)
            if (slow[i].timeouts[k] > slow[i].timeouts[k - 1] - DELAY_MS + 1) /* 1: whole milliseconds */
                fail_msg("rank %u: wait %u may take %lld ms, the one before could %lld ms", i, k,
                         (long long)slow[i].timeouts[k], (long long)slow[i].timeouts[k - 1]);
    }
}

static void test_a_rank_that_does_not_come_is_named(void **state)
{
    store_double *store = store_double_new();
    rank_run r = {.world = 2, .store = store, .timeout_ms = 200, .body = body_nothing};

    (void)state;
    NEED_PLUGIN();
    start_ranks(&r, 0, 1);
    join_ranks(&r, 0, 1);
    store_double_free(store);
    assert_int_equal(r.status, DDP_ERR_TIMEOUT);
    assert_contains(r.err.msg, "rank 1's host");
    assert_contains(r.err.msg, "until 0.2 s (rendezvous_timeout, after a loss rejoin_timeout) were over");
}

/* ---- the store --------------------------------------------------------------------------------------------------- */
/* It ends with the run alone: what each communicator left there would add up. */
static void test_connecting_leaves_nothing_in_the_store(void **state)
{
    (void)state;
    NEED_PLUGIN();
    for (uint32_t world = 1; world <= MAX_WORLD; world++) {
        store_double *store = store_double_new();
        rank_run r[MAX_WORLD];

        for (uint32_t i = 0; i < world; i++)
            r[i] = (rank_run){.rank = i, .world = world, .store = store, .timeout_ms = LONG_MS, .body = body_once};
        start_ranks(r, 0, world);
        join_ranks(r, 0, world);
        assert_no_wrongs();
        for (size_t i = 0; i < STORE_DOUBLE_ENTRIES; i++)
            if (store->entries[i].used) fail_msg("world %u: \"%s\" is left in the store", world, store->entries[i].key);
        store_double_free(store);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_abort_of_the_run_ends_connecting),
        cmocka_unit_test(test_abort_of_the_run_ends_the_wait_for_a_greeting),
        cmocka_unit_test(test_a_trickling_peer_is_named_when_the_time_is_over),
        cmocka_unit_test(test_all_waits_share_one_deadline),
        cmocka_unit_test(test_a_rank_that_does_not_come_is_named),
        cmocka_unit_test(test_connecting_leaves_nothing_in_the_store),
    };

    return cmocka_run_group_tests(tests, load, NULL);
}
