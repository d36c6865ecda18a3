/* tests/unit/backend/test_gloo_connect.c -- how the ranks of backend gloo-tcp connect: the run's abort, the one
 * deadline, threads with names, strangers, and nothing left in the store. Peers that misbehave are played. */
#include "gloo_util.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static void body_nothing(rank_run *r) { (void)r; }
static void body_once(rank_run *r) { CHECK(ops->barrier(r->comm, NULL, &r->err) == DDP_OK); }

/* ---- a peer that is played --------------------------------------------------------------------------------------- */
typedef struct alone { /* rank 0 of 2, and what the test does for rank 1 */
    store_double *store;
    ddp_store table;
    rank_run rank;
    struct sockaddr_storage address; /* of rank 0's end */
    int64_t number;                  /* which of its pairs, where one port serves them all; -1: a port for each */
    char published[STORE_DOUBLE_BYTES];
    size_t length;
} alone;

/* What Gloo publishes is a socket address, and behind it a number, which is -1 in Gloo before 2023: there each pair
 * listens for itself. Whoever connects says the number first, eight bytes as they lie in memory. */
static void start_rank_0(alone *a, rank_run r)
{
    ddp_err err;

    a->store = store_double_new();
    a->table = store_double_table(a->store);
    a->rank = r;
    a->rank.world = 2;
    a->rank.store = a->store;
    start_ranks(&a->rank, 0, 1);
    assert_int_equal(
        a->table.get(a->table.ctx, "gloo/0/1", a->published, sizeof(a->published), &a->length, LONG_MS, &err), DDP_OK);
    assert_true(a->length >= sizeof(a->address) + sizeof(a->number));
    memcpy(&a->address, a->published, sizeof(a->address));
    memcpy(&a->number, a->published + sizeof(a->address), sizeof(a->number));
}

/* As rank 1. The end with the higher address connects, the other listens. */
static void publish_address(alone *a, struct sockaddr_in address)
{
    ddp_err err;

    memcpy(a->published, &address, sizeof(address));
    memcpy(a->published + sizeof(a->address), &a->number, sizeof(a->number));
    assert_int_equal(a->table.set(a->table.ctx, "gloo/1/0", a->published, a->length, &err), DDP_OK);
    assert_int_equal(a->table.set(a->table.ctx, "gloo/1/host", "b", 1, &err), DDP_OK);
}

/* Rank 1 publishes an address that is higher than any: rank 0 listens. */
static void start_alone(alone *a, int64_t timeout_ms)
{
    struct sockaddr_in address;

    start_rank_0(a, (rank_run){.timeout_ms = timeout_ms, .body = body_nothing});
    memcpy(&address, &a->address, sizeof(address));
    address.sin_port = 0xffff;
    publish_address(a, address);
}

static void end_alone(alone *a)
{
    join_ranks(&a->rank, 0, 1);
    store_double_free(a->store);
}

static int connect_to(const struct sockaddr_storage *address)
{
    const struct timeval limit = {.tv_sec = LONG_MS / 1000};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)), 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)address, sizeof(struct sockaddr_in)), 0);
    return fd;
}

/* Connects as rank 1 and says nothing that is of the ranks; returns when rank 0's greeting comes, so that rank 0 now
 * waits for the answer. */
static int connect_silently(const alone *a)
{
    int fd = connect_to(&a->address);
    char byte;

    if (a->number != -1) assert_int_equal(send(fd, &a->number, sizeof(a->number), MSG_NOSIGNAL), sizeof(a->number));
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

/* A port whose queue is full does not answer: rank 0's connection is under way for ever. The abort ends it, and Gloo's
 * thread with it. */
static void test_abort_leaves_nothing_of_a_connection_that_is_under_way(void **state)
{
    struct sockaddr_storage full = {0};
    socklen_t size = sizeof(full);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), waiting;
    size_t fds, threads;
    alone a;

    (void)state;
    NEED_PLUGIN();
    ((struct sockaddr_in *)(void *)&full)->sin_family = AF_INET;
    ((struct sockaddr_in *)(void *)&full)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(bind(listener, (struct sockaddr *)&full, sizeof(struct sockaddr_in)), 0);
    assert_int_equal(listen(listener, 0), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&full, &size), 0);
    waiting = connect_to(&full);
    fds = entries("/proc/self/fd");
    threads = settled_threads();
    start_rank_0(&a, (rank_run){.timeout_ms = LONG_MS * 10, .body = body_nothing, .address = "127.0.0.2"});
    publish_address(&a, *(struct sockaddr_in *)(void *)&full);
    UNTIL(sockets_in(TCP_SYN_SENT) > 0);
    store_double_abort(a.store);
    end_alone(&a);
    assert_int_equal(a.rank.status, DDP_ERR_ABORTED);
    assert_int_equal(sockets_in(TCP_SYN_SENT), 0);
    assert_int_equal(entries("/proc/self/fd"), fds);
    THREADS_BECOME(threads);
    (void)close(waiting);
    (void)close(listener);
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

/* The first bytes of a connection differ: without a word about it the ranks would wait for each other. */
static void test_another_generation_of_gloo_is_refused(void **state)
{
    struct sockaddr_in address;
    char name[64];
    alone a;

    (void)state;
    NEED_PLUGIN();
    start_rank_0(&a, (rank_run){.timeout_ms = LONG_MS * 10, .body = body_nothing});
    a.number = a.number == -1 ? 0 : -1;
    memcpy(&address, &a.address, sizeof(address));
    (void)snprintf(name, sizeof(name), "rank 1 on host b (127.0.0.1:%u)", ntohs(address.sin_port));
    publish_address(&a, address);
    end_alone(&a);
    assert_int_equal(a.rank.status, DDP_ERR_CONFIG);
    assert_contains(a.rank.err.msg, "rank 0 on host ");
    assert_contains(a.rank.err.msg, name);
    assert_contains(a.rank.err.msg, "one from before May 2023, one later");
    assert_contains(a.rank.err.msg, "Install the same version of Gloo on all hosts");
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

/* ---- strangers --------------------------------------------------------------------------------------------------- */
static atomic_bool met, seen;

static void body_met(rank_run *r)
{
    CHECK(ops->barrier(r->comm, NULL, &r->err) == DDP_OK);
    if (r->rank == 0) atomic_store(&met, true);
    UNTIL(atomic_load(&seen));
    CHECK(ops->barrier(r->comm, NULL, &r->err) == DDP_OK);
}

/* Rank 0 is there, and then rank 1; returns when they have met. `early`: a stranger that has connected before, where
 * Gloo has one port for all pairs (where it has not, the stranger would be taken for rank 1); -1: there is none. */
static void start_both(alone *a, rank_run *second, int *early)
{
    atomic_store(&met, false);
    atomic_store(&seen, false);
    start_rank_0(a, (rank_run){.timeout_ms = LONG_MS, .body = body_met});
    *early = a->number != -1 ? connect_to(&a->address) : -1;
    *second = a->rank;
    second->rank = 1;
    start_ranks(second, 0, 1);
    UNTIL(atomic_load(&met));
}

static void end_both(alone *a, rank_run *second)
{
    atomic_store(&seen, true);
    join_ranks(second, 0, 1);
    end_alone(a);
    assert_no_wrongs();
    if (a->rank.status != DDP_OK) fail_msg("rank 0: %s", a->rank.err.msg);
    if (second->status != DDP_OK) fail_msg("rank 1: %s", second->err.msg);
}

/* A port that stays open would accept whoever comes, and keep a descriptor for each. */
static void test_nobody_can_connect_afterwards(void **state)
{
    int late = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), early;
    rank_run second;
    alone a;

    (void)state;
    NEED_PLUGIN();
    start_both(&a, &second, &early);
    (void)connect(late, (const struct sockaddr *)&a.address, sizeof(struct sockaddr_in)); /* over loopback at once */
    assert_int_not_equal(tcp_state(late), TCP_ESTABLISHED);
    end_both(&a, &second);
    (void)close(late);
    if (early >= 0) (void)close(early);
}

/* From now on this thread, and those that it starts, are refused SO_ATTACH_FILTER as some kernels refuse it to who is
 * not root; CI is root. False: this kernel (an emulator's) filters no system calls. */
static bool refuse_socket_filters(void)
{
    const struct sock_filter refuse[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_setsockopt, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])), /* lower half: little endian */
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SO_ATTACH_FILTER, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {sizeof(refuse) / sizeof(refuse[0]), (struct sock_filter *)refuse};
    int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), rc;

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
        (void)close(s);
        return false;
    }
    rc = setsockopt(s, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program));
    assert_true(rc != 0 && errno == EPERM);
    (void)close(s);
    return true;
}

/* The last of all: what the thread is refused, it is refused for good. */
static void test_nobody_can_connect_where_filters_are_refused(void **state)
{
    NEED_PLUGIN();
    if (!refuse_socket_filters()) skip();
    test_nobody_can_connect_afterwards(state);
}

/* It is hung up on, and Gloo's threads end with the communicator. */
static void test_a_silent_stranger_changes_nothing(void **state)
{
    size_t fds, threads;
    rank_run second;
    int early;
    char byte;
    alone a;

    (void)state;
    NEED_PLUGIN();
    fds = entries("/proc/self/fd");
    threads = settled_threads();
    start_both(&a, &second, &early);
    if (early >= 0) {
        assert_int_equal(recv(early, &byte, 1, 0), 0);
        (void)close(early);
    }
    end_both(&a, &second);
    assert_int_equal(entries("/proc/self/fd"), fds);
    THREADS_BECOME(threads);
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
        cmocka_unit_test(test_abort_leaves_nothing_of_a_connection_that_is_under_way),
        cmocka_unit_test(test_a_trickling_peer_is_named_when_the_time_is_over),
        cmocka_unit_test(test_all_waits_share_one_deadline),
        cmocka_unit_test(test_another_generation_of_gloo_is_refused),
        cmocka_unit_test(test_a_rank_that_does_not_come_is_named),
        cmocka_unit_test(test_nobody_can_connect_afterwards),
        cmocka_unit_test(test_a_silent_stranger_changes_nothing),
        cmocka_unit_test(test_connecting_leaves_nothing_in_the_store),
        cmocka_unit_test(test_nobody_can_connect_where_filters_are_refused),
    };

    return cmocka_run_group_tests(tests, load, NULL);
}
