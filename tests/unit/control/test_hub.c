/* tests/unit/control/test_hub.c -- ranks behind hubs: whatever a rank says to rank 0 or hears from it is the same as
 * over a connection of its own, whoever dies or stands still; strangers at a hub change nothing.
 *
 * Seven ranks in blocks of two: 2 and 4 are the hubs of 3 and 5, the others have connections of their own. */
#include "support/group_util.h"
#include "control/hub/hub.h"
#include "control/run.h"
#include "control/state.h"
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>

#define SHORT_MS 700 /* a peer_timeout that is to pass */

enum { WORLD = 7, BLOCK = 2, LEAVES = 2 };

static void tree_init(member *m, published *b, void (*body)(member *))
{
    ranks_init(m, b, WORLD, body);
    for (int32_t r = 0; r < WORLD; r++) m[r].ranks_per_hub = BLOCK;
}

/* Until the leaves are behind their hubs. */
static void wait_for_tree(member *m, const char *name)
{
    ddp_err err;

    if (m->rank == 0) UNTIL(atomic_load(&m->group->server->relayed) == LEAVES);
    CHECK(ddp_group_barrier(m->group, name, LONG_MS, &err) == DDP_OK);
}

/* ---- all that passes --------------------------------------------------------------------------------------------- */
static void gather(member *m, const char *name, size_t unit)
{
    const void *parts[WORLD];
    size_t lengths[WORLD], mine = unit * (size_t)(m->rank + 1);
    unsigned char *data = malloc(mine + 1);
    void *block = NULL;
    ddp_err err;

    memset(data, 'a' + m->rank, mine);
    CHECK(ddp_group_gather(m->group, name, data, mine, &block, parts, lengths, LONG_MS, &err) == DDP_OK);
    for (int32_t r = 0; r < WORLD; r++) {
        CHECK(lengths[r] == unit * (size_t)(r + 1));
        CHECK(lengths[r] == 0 ||
              (((const char *)parts[r])[0] == 'a' + r && ((const char *)parts[r])[lengths[r] - 1] == 'a' + r));
    }
    free(block);
    free(data);
}

static void use_store(member *m)
{
    const ddp_store *s = ddp_group_store(m->group, "x", &m->err);
    char key[16], value[32] = "";
    int64_t sum = 0;
    size_t n = 0;
    ddp_err err;

    (void)snprintf(key, sizeof(key), "of %d", (int)m->rank);
    CHECK(s->set(s->ctx, key, key, strlen(key), &err) == DDP_OK);
    (void)snprintf(key, sizeof(key), "of %d", (int)(m->rank + 1) % WORLD);
    CHECK(s->get(s->ctx, key, value, sizeof(value), &n, LONG_MS, &err) == DDP_OK && n == strlen(key));
    CHECK(memcmp(key, value, n) == 0);
    CHECK(s->add(s->ctx, "sum", 1, &sum, &err) == DDP_OK && sum >= 1 && sum <= WORLD);
    CHECK(s->get(s->ctx, "never", value, sizeof(value), &n, 1, &err) == DDP_ERR_TIMEOUT);
    CHECK(ddp_group_barrier(m->group, "added", LONG_MS, &err) == DDP_OK);
    CHECK(s->add(s->ctx, "sum", 0, &sum, &err) == DDP_OK && sum == WORLD);
}

static void use_all(member *m)
{
    ddp_err err;

    gather(m, "before", 3); /* while the leaves move */
    wait_for_tree(m, "tree");
    CHECK(m->group->up == NULL || m->group->up->rank == (m->rank == 3 ? 2 : m->rank == 5 ? 4 : 0));
    gather(m, "small", 3);
    gather(m, "none", 0);
    gather(m, "large", DDP_WIRE_BLOCK_LIMIT / WORLD);
    use_store(m);
    CHECK(ddp_group_agree(m->group, "same", "a = 1\tx.ini:1\n", DDP_EXIT_CONFIG, LONG_MS, &err) == DDP_OK);
    if (m->rank != 5) CHECK(ddp_group_barrier(m->group, "without rank 5", 50, &err) == DDP_ERR_TIMEOUT);
    if (m->rank == 3) CHECK(contains(err.msg, "rank 5 did not come within 0.05 s"));
    CHECK(ddp_group_barrier(m->group, "end", LONG_MS, &err) == DDP_OK);
}

static void with_and_without_a_secret(void (*body)(member *))
{
    static const char *const secrets[] = {NULL, "an egg is an egg is an egg is an egg"};

    for (size_t i = 0; i < DDP_COUNT(secrets); i++) {
        member m[WORLD];
        published b;

        tree_init(m, &b, body);
        for (int32_t r = 0; r < WORLD; r++) m[r].secret = secrets[i];
        ranks_run(m, WORLD);
        for (int32_t r = 0; r < WORLD; r++) {
            assert_int_equal(m[r].status, DDP_OK);
            assert_int_equal(m[r].failure.exit_code, 0);
        }
        assert_no_wrongs();
        members_close(m, WORLD);
    }
}

static void test_all_passes(void **state)
{
    (void)state;
    with_and_without_a_secret(use_all);
}

/* ---- failures that a leaf brings, or hears of -------------------------------------------------------------------- */
static void wait_for_failure(member *m)
{
    ddp_failure f;

    UNTIL(ddp_group_failed(m->group, &f));
}

static void differ(member *m)
{
    ddp_err err;

    wait_for_tree(m, "tree");
    (void)ddp_group_agree(m->group, "lines", m->rank == 5 ? "a = 2\tx.ini:1\n" : "a = 1\tx.ini:1\n",
                          DDP_EXIT_CHECKPOINT, LONG_MS, &err);
    wait_for_failure(m);
}

static void abort_behind_hub(member *m)
{
    wait_for_tree(m, "tree");
    if (m->rank == 3) ddp_group_abort(m->group, DDP_EXIT_DATA, "no data on this rank");
    wait_for_failure(m);
}

static void count_and_time_out(member *m)
{
    ddp_err err;

    wait_for_tree(m, "tree");
    for (int i = 0; i < (m->rank == 3 ? 4 : 5); i++) ddp_group_count_collective(m->group);
    CHECK(ddp_group_barrier(m->group, "counted", LONG_MS, &err) == DDP_OK);
    (void)usleep(1000000); /* some beats, of leaves and then of their hubs */
    if (m->rank == 5) ddp_group_abort(m->group, DDP_EXIT_TIMEOUT, "all_reduce 5 did not end");
    wait_for_failure(m);
}

static void send_damaged(member *m)
{
    ddp_text half = {0};
    ddp_err err;

    wait_for_tree(m, "tree");
    ddp_pack_u32(&half, 1); /* a mark of times has more */
    if (m->rank != 3)
        ddp_text_free(&half);
    else
        CHECK(control_run_post(m->group, DDP_FRAME_TIMES, &half, &err) == DDP_OK);
    wait_for_failure(m);
}

static void fail_all(void (*body)(member *), int exit_code, int32_t rank, const char *text)
{
    member m[WORLD];
    published b;

    tree_init(m, &b, body);
    for (int32_t r = 0; r < WORLD; r++) m[r].peer_timeout_ms = 1000;
    ranks_run(m, WORLD);
    for (int32_t r = 0; r < WORLD; r++) {
        assert_int_equal(m[r].failure.exit_code, exit_code);
        assert_int_equal(m[r].failure.rank, rank);
        assert_contains(m[r].failure.msg, text);
    }
    assert_no_wrongs();
    members_close(m, WORLD);
}

static void test_failures_are_everyones(void **state)
{
    (void)state;
    fail_all(differ, DDP_EXIT_CHECKPOINT, 5, "rank 0 and rank 5 differ in a: 1 (rank 0, x.ini:1) against 2 (rank 5");
    fail_all(abort_behind_hub, DDP_EXIT_DATA, 3, "no data on this rank");
    fail_all(send_damaged, DDP_EXIT_PEER, 3, " sent a damaged frame by way of rank 2: a frame of type ");
    fail_all(count_and_time_out, DDP_EXIT_TIMEOUT, 5, "rank 3 has begun fewer collectives than rank 5");
}

/* ---- processes that are killed, or stopped ----------------------------------------------------------------------- */
typedef struct outcome {
    int32_t there;
    ddp_failure failure;
} outcome;

static void live(member *m)
{
    outcome *o = m->arg;

    wait_for_tree(m, "tree");
    control_group_set_step(m->group, 17);
    (void)__atomic_store_n(&o->there, 1, __ATOMIC_SEQ_CST);
    wait_for_failure(m);
}

static void start_processes(pid_t pids[WORLD], outcome *out)
{
    char endpoint[DDP_ENDPOINT_MAX];
    ddp_err err;
    int fd;

    assert_int_equal(ddp_endpoint_listen("127.0.0.1:0", &fd, endpoint, &err), DDP_OK);
    for (int32_t r = 0; r < WORLD; r++) {
        pids[r] = fork();
        if (pids[r] == 0) {
            member m;

            member_init(&m, NULL, r, WORLD);
            m.listen_fd = r == 0 ? fd : -1;
            m.endpoint = r == 0 ? NULL : endpoint;
            m.peer_timeout_ms = SHORT_MS;
            m.ranks_per_hub = BLOCK;
            m.arg = &out[r];
            m.body = live;
            if (r != 0) (void)close(fd);
            (void)member_main(&m);
            out[r].failure = m.failure;
            _exit(m.status == DDP_OK ? 0 : 1);
        }
    }
    (void)close(fd);
    for (int32_t r = 0; r < WORLD; r++) UNTIL(__atomic_load_n(&out[r].there, __ATOMIC_SEQ_CST) != 0);
}

static void end_one(int32_t victim, int sig, int exit_code, const char *what)
{
    outcome *out = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char host[64] = "", text[300];
    pid_t pids[WORLD];

    assert_true(WORLD * sizeof(*out) <= 8192);
    (void)gethostname(host, sizeof(host) - 1);
    start_processes(pids, out);
    (void)kill(pids[victim], sig);
    (void)snprintf(text, sizeof(text), "rank %d on host %s%s at step 17", (int)victim, host, what);
    for (int32_t r = 0; r < WORLD; r++) {
        if (r != victim) assert_int_equal(until_exited(pids[r], NULL), pids[r]);
    }
    (void)kill(pids[victim], SIGKILL);
    assert_int_equal(until_exited(pids[victim], NULL), pids[victim]);
    for (int32_t r = 0; r < WORLD; r++) {
        if (r == victim) continue;
        assert_int_equal(out[r].failure.rank, victim);
        assert_int_equal(out[r].failure.exit_code, exit_code);
        assert_string_equal(out[r].failure.msg, text);
    }
    (void)munmap(out, 8192);
}

static void test_killed_one_is_named_by_all(void **state)
{
    static const int32_t victims[] = {3, 2, 0, 1, 6};

    (void)state;
    for (size_t i = 0; i < DDP_COUNT(victims); i++)
        end_one(victims[i], SIGKILL, DDP_EXIT_PEER, ": connection closed without goodbye");
}

static void test_silent_one_is_named_by_all(void **state)
{
    static const int32_t victims[] = {3, 2};

    (void)state;
    for (size_t i = 0; i < DDP_COUNT(victims); i++)
        end_one(victims[i], SIGSTOP, DDP_EXIT_TIMEOUT, " has been silent for 0.7 s (peer_timeout)");
}

/* ---- leaving, and the signal to stop ----------------------------------------------------------------------------- */
static atomic_int asked, none;

static void wait_for_stop(member *m)
{
    ddp_err err;

    wait_for_tree(m, "tree");
    if (m->rank == 5) atomic_store(&asked, 15);
    UNTIL(ddp_group_stop_requested(m->group) != 0);
    CHECK(ddp_group_stop_requested(m->group) == 15);
    CHECK(ddp_group_barrier(m->group, "done", LONG_MS, &err) == DDP_OK);
}

static void test_stop_is_known_to_all(void **state)
{
    member m[WORLD];
    published b;

    (void)state;
    atomic_store(&asked, 0);
    tree_init(m, &b, wait_for_stop);
    for (int32_t r = 0; r < WORLD; r++) m[r].stop_signal = r == 5 ? &asked : &none;
    ranks_run(m, WORLD);
    for (int32_t r = 0; r < WORLD; r++) assert_int_equal(m[r].status, DDP_OK);
    assert_no_wrongs();
    members_close(m, WORLD);
}

static bool long_tests(void)
{
    const char *wanted = getenv("DDP_LONG");

    return wanted != NULL && wanted[0] != '\0';
}

/* A hub that has said goodbye still serves a leaf that has not. */
static void leave_late(member *m)
{
    const ddp_store *s = ddp_group_store(m->group, "x", &m->err);
    size_t n;
    char buf[8];
    ddp_err err;

    wait_for_tree(m, "tree");
    if (m->rank == 0) (void)usleep(long_tests() ? (DDP_LEAVE_MS + 1000) * 1000 : 0); /* it has the store */
    if (m->rank == 3) {
        (void)usleep(long_tests() ? (DDP_LEAVE_MS + 500) * 1000 : 300000); /* long: other ranks wait no longer */
        CHECK(s->set(s->ctx, "late", "1", 1, &err) == DDP_OK);
        CHECK(s->get(s->ctx, "late", buf, sizeof(buf), &n, LONG_MS, &err) == DDP_OK);
    }
}

static void test_hub_leaves_first(void **state)
{
    member m[WORLD];
    published b;

    (void)state;
    tree_init(m, &b, leave_late);
    ranks_run(m, WORLD);
    for (int32_t r = 0; r < WORLD; r++) {
        assert_int_equal(m[r].status, DDP_OK);
        assert_int_equal(m[r].failure.exit_code, 0);
    }
    assert_no_wrongs();
    members_close(m, WORLD);
}

/* ---- strangers, and hubs that are not reached -------------------------------------------------------------------- */
static char hub_endpoint[DDP_ENDPOINT_MAX];
static pthread_mutex_t hub_lock = PTHREAD_MUTEX_INITIALIZER;

static void knock_at_hub(uint64_t start, uint32_t rank, uint32_t generation)
{
    ddp_text t = {0};
    ddp_wire w;
    ddp_err err;

    (void)pthread_mutex_lock(&hub_lock);
    raw_open(&w, hub_endpoint);
    (void)pthread_mutex_unlock(&hub_lock);
    ddp_pack_u64(&t, start);
    ddp_pack_u32(&t, generation);
    ddp_pack_u32(&t, rank);
    ddp_pack_u32(&t, (uint32_t)getpid()); /* as the ranks, which are threads */
    assert_int_equal(ddp_wire_put(&w, DDP_FRAME_LEAF, t.data, t.length, &err), DDP_OK);
    assert_int_equal(ddp_wire_flush(&w, &err), DDP_OK);
    assert_int_equal(raw_next(&w).type, 0); /* closed */
    ddp_wire_close(&w);
    ddp_text_free(&t);
}

static void be_knocked_at(member *m)
{
    ddp_err err;

    wait_for_tree(m, "tree");
    if (m->rank == 2) {
        (void)pthread_mutex_lock(&hub_lock);
        ddp_address_own(m->group->hub.listen_fd, true, hub_endpoint, sizeof(hub_endpoint));
        (void)pthread_mutex_unlock(&hub_lock);
        knock_at_hub(m->group->self.start, 3, 0);  /* who is there */
        knock_at_hub(m->group->self.start, 99, 0); /* nobody */
        knock_at_hub(m->group->self.start, 2, 0);
        knock_at_hub(m->group->self.start, 0x80000000u, 0); /* no int32_t is so small less 2 */
        knock_at_hub(m->group->self.start, 3, 7);
        knock_at_hub(1, 3, 0);
    }
    gather(m, "after", 5);
    CHECK(ddp_group_barrier(m->group, "end", LONG_MS, &err) == DDP_OK);
}

static void test_strangers_at_a_hub(void **state)
{
    (void)state;
    with_and_without_a_secret(be_knocked_at);
}

/* Comes while this process may open nothing more; whether the hub does not listen, now or any more. */
static bool is_turned_away(in_port_t port)
{
    const struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = port, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct timeval wait = {.tv_usec = 500000};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct rlimit was, few;
    bool away;
    char byte;

    CHECK(fd >= 0 && getrlimit(RLIMIT_NOFILE, &was) == 0);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait)) == 0);
    few = (struct rlimit){.rlim_cur = (rlim_t)fd + 1, .rlim_max = was.rlim_max};
    CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
    away = connect(fd, (const struct sockaddr *)&to, sizeof(to)) != 0 || recv(fd, &byte, 1, 0) != -1;
    away = away || errno != EAGAIN;
    CHECK(setrlimit(RLIMIT_NOFILE, &was) == 0);
    (void)close(fd);
    return away;
}

static void run_out_of_descriptors(member *m)
{
    in_port_t port = 0;
    ddp_err err;

    wait_for_tree(m, "tree");
    if (m->rank == 2) {
        char endpoint[DDP_ENDPOINT_MAX];

        ddp_address_own(m->group->hub.listen_fd, true, endpoint, sizeof(endpoint));
        port = htons((uint16_t)strtoul(strrchr(endpoint, ':') + 1, NULL, 10));
    }
    gather(m, "port", 5); /* the control thread writes the descriptor only after what this one has read */
    if (m->rank == 2) {
        UNTIL(is_turned_away(port));
        CHECK(control_hub_leaves(m->group) == 1);
    }
    gather(m, "after", 5);
    CHECK(ddp_group_barrier(m->group, "end", LONG_MS, &err) == DDP_OK);
}

static void test_hub_without_descriptors(void **state)
{
    member m[WORLD];
    published b;

    (void)state;
    tree_init(m, &b, run_out_of_descriptors);
    ranks_run(m, WORLD);
    for (int32_t r = 0; r < WORLD; r++) assert_int_equal(m[r].failure.exit_code, 0);
    assert_no_wrongs();
    members_close(m, WORLD);
}

/* A rank 0 made by hand that names a hub where nobody listens: the rank goes on with rank 0 itself. */
static void ask_once(member *m)
{
    ddp_err err;

    CHECK(ddp_group_barrier(m->group, "here", LONG_MS, &err) == DDP_OK);
}

static void welcome_and_move(ddp_wire *w, const char *nowhere)
{
    ddp_text heard = {0}, all = {0}, move = {0};
    ddp_err err;

    assert_int_equal(raw_next(w).type, DDP_FRAME_HELLO);
    assert_int_equal(raw_next(w).type, DDP_FRAME_AGREEMENT);
    ddp_pack_bytes(&heard, "quiet", 5);
    ddp_pack_u64(&all, 1); /* start of the run */
    ddp_pack_u32(&all, 0); /* generation */
    ddp_pack_u32(&all, 2); /* the rank that gets it */
    ddp_pack_u32(&all, 3); /* ranks */
    for (uint32_t r = 0; r < 3; r++) {
        ddp_pack_u32(&all, r);
        ddp_pack_u32(&all, 4711);
        ddp_pack_bytes(&all, "raw", 3);
        ddp_pack_bytes(&all, "quiet", 5);
    }
    ddp_pack_u32(&move, 1);
    ddp_pack_bytes(&move, nowhere, strlen(nowhere));
    assert_int_equal(ddp_wire_put(w, DDP_FRAME_HEARD, heard.data, heard.length, &err), DDP_OK);
    assert_int_equal(ddp_wire_put(w, DDP_FRAME_WELCOME, all.data, all.length, &err), DDP_OK);
    assert_int_equal(ddp_wire_put(w, DDP_FRAME_MOVE, move.data, move.length, &err), DDP_OK);
    assert_int_equal(ddp_wire_flush(w, &err), DDP_OK);
    ddp_text_free(&heard);
    ddp_text_free(&all);
    ddp_text_free(&move);
}

static void test_hub_that_is_not_reached(void **state)
{
    char endpoint[DDP_ENDPOINT_MAX], nowhere[DDP_ENDPOINT_MAX];
    int fd, closed, connection;
    ddp_text reply = {0};
    ddp_unpack u;
    ddp_wire w;
    ddp_frame f;
    ddp_err err;
    member m;

    (void)state;
    assert_int_equal(ddp_endpoint_listen("127.0.0.1:0", &fd, endpoint, &err), DDP_OK);
    assert_int_equal(ddp_endpoint_listen("127.0.0.1:0", &closed, nowhere, &err), DDP_OK);
    (void)close(closed);
    member_init(&m, NULL, 2, 3);
    m.endpoint = endpoint;
    m.body = ask_once;
    member_start(&m);
    UNTIL((connection = accept(fd, NULL, NULL)) >= 0);
    ddp_wire_init(&w, connection, 1 << 20);
    welcome_and_move(&w, nowhere);
    do f = raw_next(&w);
    while (f.type == DDP_FRAME_BEAT);
    assert_int_equal(f.type, DDP_FRAME_REQUEST);
    u = (ddp_unpack){.data = f.data, .left = f.length};
    ddp_pack_u64(&reply, ddp_unpack_u64(&u));
    ddp_pack_u32(&reply, DDP_OK);
    assert_int_equal(ddp_wire_put(&w, DDP_FRAME_REPLY, reply.data, reply.length, &err), DDP_OK);
    assert_int_equal(ddp_wire_put(&w, DDP_FRAME_FAREWELL, NULL, 0, &err), DDP_OK);
    assert_int_equal(ddp_wire_flush(&w, &err), DDP_OK);
    member_join(&m);
    assert_int_equal(m.failure.exit_code, 0);
    assert_no_wrongs();
    ddp_wire_close(&w);
    ddp_text_free(&reply);
    (void)close(fd);
    members_close(&m, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_passes),
        cmocka_unit_test(test_failures_are_everyones),
        cmocka_unit_test(test_killed_one_is_named_by_all),
        cmocka_unit_test(test_silent_one_is_named_by_all),
        cmocka_unit_test(test_stop_is_known_to_all),
        cmocka_unit_test(test_hub_leaves_first),
        cmocka_unit_test(test_strangers_at_a_hub),
        cmocka_unit_test(test_hub_without_descriptors),
        cmocka_unit_test(test_hub_that_is_not_reached),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
