/* tests/unit/control/test_group_failure.c -- the first failure is everyone's, whoever dies, aborts or sends rubbish;
 * strangers on the port change nothing. */
#include "support/group_util.h"
#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>

/* ---- processes that can be killed -------------------------------------------------------------------------------- */
typedef struct outcome {
    int32_t rank, done;
    ddp_status status; /* of the wait */
    ddp_failure failure;
} outcome;

static void wait_for_ever(member *m)
{
    outcome *o = m->arg;
    ddp_err err;

    control_group_set_step(m->group, 1579);
    if (ddp_group_barrier(m->group, "ready", LONG_MS, &err) != DDP_OK) return;
    control_group_set_step(m->group, 1580);
    o->done = 1;
    if (m->rank == 2) {
        for (;;) (void)pause();
    }
    if (m->rank == 1) {
        const ddp_store *s = ddp_group_store(m->group, "x", &err);
        size_t n;

        o->status = s->get(s->ctx, "never", NULL, 0, &n, LONG_MS, &err);
    } else {
        o->status = ddp_group_barrier(m->group, "never", LONG_MS, &err);
    }
    o->done = 2;
}

static void exit_at_once(void *ctx, const ddp_failure *cause)
{
    (void)ctx;
    _exit(cause->exit_code);
}

/* Starts four ranks as processes, kills one once all are in the run, and returns when it did. `out` is shared
 * memory. Rank 2 does not react, so it ends because it has not left. */
static void kill_one(int32_t victim, outcome *out)
{
    char endpoint[DDP_ENDPOINT_MAX];
    pid_t pids[4];
    ddp_err err;
    int fd;

    assert_int_equal(ddp_endpoint_listen("127.0.0.1:0", &fd, endpoint, &err), DDP_OK);
    for (int32_t r = 0; r < 4; r++) {
        pids[r] = fork();
        if (pids[r] == 0) {
            member m;

            member_init(&m, NULL, r, 4);
            m.listen_fd = r == 0 ? fd : -1;
            m.endpoint = r == 0 ? NULL : endpoint;
            m.arg = &out[r];
            m.body = wait_for_ever;
            m.expired = exit_at_once;
            if (r != 0) (void)close(fd);
            (void)member_main(&m);
            out[r].failure = m.failure;
            _exit(0);
        }
    }
    (void)close(fd);
    for (int32_t r = 0; r < 4; r++) UNTIL(__atomic_load_n(&out[r].done, __ATOMIC_SEQ_CST) == 1);
    (void)kill(pids[victim], SIGKILL);
    for (int32_t r = 0; r < 4; r++) {
        int status;

        assert_int_equal(until_exited(pids[r], &status), pids[r]);
        if (r == victim)
            assert_true(WIFSIGNALED(status));
        else
            assert_int_equal(WEXITSTATUS(status), r == 2 ? DDP_EXIT_PEER : 0);
    }
}

static void test_killed_rank(void **state)
{
    outcome *out = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char host[64] = "", text[300];
    static const int32_t victims[] = {2, 0};

    (void)state;
    assert_true(4 * sizeof(*out) <= 4096);
    (void)gethostname(host, sizeof(host) - 1);
    for (size_t v = 0; v < DDP_COUNT(victims); v++) {
        memset(out, 0, 4096);
        kill_one(victims[v], out);
        (void)snprintf(text, sizeof(text), "rank %d on host %s: connection closed without goodbye at step 1580",
                       (int)victims[v], host);
        for (int32_t r = 0; r < 4; r++) {
            if (r == victims[v] || r == 2) continue; /* rank 2 sleeps through its own end */
            assert_int_equal(out[r].done, 2);
            assert_int_equal(out[r].status, DDP_ERR_ABORTED);
            assert_int_equal(out[r].failure.exit_code, DDP_EXIT_PEER);
            assert_int_equal(out[r].failure.rank, victims[v]);
            assert_string_equal(out[r].failure.msg, text);
        }
    }
    (void)munmap(out, 4096);
}

/* ---- abort ------------------------------------------------------------------------------------------------------- */
static atomic_int heard[4];
static void count_call(void *ctx) { atomic_fetch_add(&heard[((member *)ctx)->rank], 1); }

static void abort_while_others_wait(member *m)
{
    const ddp_store *s = ddp_group_store(m->group, "x", &m->err);
    char buf[8];
    size_t n;
    ddp_err err;
    ddp_failure f;

    CHECK(ddp_group_on_failure(m->group, count_call, m));
    CHECK(!ddp_group_failed(m->group, &f));
    CHECK(ddp_group_barrier(m->group, "ready", LONG_MS, &err) == DDP_OK);
    switch (m->rank) {
    case 0: CHECK(s->get(s->ctx, "never", buf, sizeof(buf), &n, LONG_MS, &err) == DDP_ERR_ABORTED); break;
    case 1: CHECK(s->get(s->ctx, "never", buf, sizeof(buf), &n, LONG_MS, &err) == DDP_ERR_ABORTED); break;
    case 2: CHECK(ddp_group_barrier(m->group, "never", LONG_MS, &err) == DDP_ERR_ABORTED); break;
    default:
        (void)usleep(50000);
        ddp_group_abort(m->group, DDP_EXIT_NONFINITE, "rank 3: loss is nan at step 7");
        ddp_group_abort(m->group, DDP_EXIT_DATA, "too late");
        CHECK(s->set(s->ctx, "k", "", 0, &err) == DDP_ERR_ABORTED);
    }
    CHECK(strcmp(err.msg, "rank 3: loss is nan at step 7") == 0 && err.rank == 3);
    CHECK(ddp_group_failed(m->group, &f) && f.exit_code == DDP_EXIT_NONFINITE && f.rank == 3);
    CHECK(ddp_group_on_failure(m->group, NULL, m));
}

static void test_abort(void **state)
{
    member m[4];
    published b;

    (void)state;
    for (int i = 0; i < 5; i++) {
        for (int r = 0; r < 4; r++) atomic_store(&heard[r], 0);
        run_ranks(m, &b, 4, abort_while_others_wait);
        assert_no_wrongs();
        for (int r = 0; r < 4; r++) {
            assert_true(atomic_load(&heard[r]) <= 1); /* 0: it was taken away before its turn */
            assert_string_equal(m[r].failure.msg, "rank 3: loss is nan at step 7");
        }
    }
}

static void abort_all_at_once(member *m)
{
    char text[64];
    ddp_err err;
    int before = atomic_load(&heard[m->rank]);

    ddp_group_on_failure(m->group, count_call, m);
    CHECK(ddp_group_barrier(m->group, "ready", LONG_MS, &err) == DDP_OK);
    (void)snprintf(text, sizeof(text), "rank %d was the first", (int)m->rank);
    ddp_group_abort(m->group, 20 + m->rank, text);
    UNTIL(atomic_load(&heard[m->rank]) != before);
    CHECK(atomic_load(&heard[m->rank]) == before + 1);
}

static void test_abort_race(void **state)
{
    member m[4];
    published b;

    (void)state;
    for (int i = 0; i < 10; i++) {
        run_ranks(m, &b, 4, abort_all_at_once);
        assert_no_wrongs();
        for (int r = 0; r < 4; r++) {
            assert_int_equal(m[r].failure.exit_code, 20 + m[r].failure.rank);
            assert_string_equal(m[r].failure.msg, m[0].failure.msg);
        }
    }
}

static void abort_alone(member *m)
{
    ddp_failure f;
    ddp_err err;

    ddp_group_abort(m->group, DDP_EXIT_PEER, "by itself");
    CHECK(ddp_group_failed(m->group, &f) && f.exit_code == DDP_EXIT_PEER && f.rank == 0);
    CHECK(ddp_group_barrier(m->group, "b", LONG_MS, &err) == DDP_ERR_ABORTED);
}

static void test_abort_world_1(void **state)
{
    member m;
    published b;

    (void)state;
    run_ranks(&m, &b, 1, abort_alone);
    assert_no_wrongs();
    assert_string_equal(m.failure.msg, "by itself");
}

/* A listener set when all is over is called too, and taking it away waits for it. */
static atomic_int slow;

static atomic_int quiet;
static void quiet_call(void *ctx)
{
    (void)ctx;
    atomic_fetch_add(&quiet, 1);
}

static void slow_call(void *ctx)
{
    (void)ctx;
    atomic_store(&slow, 1);
    (void)usleep(50000);
    atomic_store(&slow, 2);
}

/* Several listeners, each of which is called once; those that are full. */
static void listen_often(member *m)
{
    int before = atomic_load(&heard[m->rank]);
    char many[64];

    CHECK(ddp_group_on_failure(m->group, count_call, m));
    for (int i = 1; i < 64; i++) CHECK(ddp_group_on_failure(m->group, quiet_call, &many[i]));
    CHECK(!ddp_group_on_failure(m->group, quiet_call, &many[0]));
    CHECK(ddp_group_on_failure(m->group, NULL, &many[1]));
    CHECK(ddp_group_on_failure(m->group, quiet_call, &many[0]));
    ddp_group_abort(m->group, DDP_EXIT_DATA, "over");
    UNTIL(atomic_load(&quiet) == 63);
    CHECK(atomic_load(&heard[m->rank]) == before + 1);
}

static void test_many_listeners(void **state)
{
    member m;
    published b;

    (void)state;
    run_ranks(&m, &b, 1, listen_often);
    assert_no_wrongs();
}

static void listen_late(member *m)
{
    ddp_group_abort(m->group, DDP_EXIT_DATA, "over");
    ddp_group_on_failure(m->group, slow_call, NULL);
    UNTIL(atomic_load(&slow) != 0);
    ddp_group_on_failure(m->group, NULL, NULL);
    CHECK(atomic_load(&slow) == 2);
}

static void test_listener(void **state)
{
    member m;
    published b;

    (void)state;
    atomic_store(&slow, 0);
    run_ranks(&m, &b, 1, listen_late);
    assert_no_wrongs();
}

/* ---- a rank that does not leave ---------------------------------------------------------------------------------- */
static atomic_int expired_codes[2];
static void note_expired(void *ctx, const ddp_failure *cause)
{
    atomic_fetch_add(&expired_codes[((member *)ctx)->rank], cause->exit_code);
}

static void stay(member *m)
{
    ddp_err err;

    CHECK(ddp_group_barrier(m->group, "both are in", LONG_MS, &err) == DDP_OK || err.status == DDP_ERR_ABORTED);
    if (m->rank == 0) {
        ddp_group_abort(m->group, DDP_EXIT_DIVERGED, "over");
        return; /* leaves in time */
    }
    UNTIL(atomic_load(&expired_codes[1]) != 0);
    ddp_group_on_failure(m->group, NULL, NULL); /* wakes the control thread */
    (void)usleep(50000);                        /* it would be called again by now */
}

static void test_expired(void **state)
{
    int64_t began = ddp_now_ms();
    member m[2];
    published b;

    (void)state;
    ranks_init(m, &b, 2, stay);
    for (int32_t r = 0; r < 2; r++) m[r].expired = note_expired;
    ranks_run(m, 2);
    assert_int_equal(atomic_load(&expired_codes[0]), 0);
    assert_int_equal(atomic_load(&expired_codes[1]), DDP_EXIT_DIVERGED);
    assert_true(ddp_now_ms() - began >= 1000);
    members_close(m, 2);
}

/* ---- peers made by hand ------------------------------------------------------------------------------------------ */
typedef struct stage {
    member m[2]; /* ranks 0 and 1 of a world of 3 */
    published b;
    ddp_wire raw; /* rank 2 */
    char endpoint[DDP_ENDPOINT_MAX];
} stage;

static atomic_int on_stage;
static void (*stage_body)(member *);

static void enter_stage(member *m)
{
    atomic_fetch_add(&on_stage, 1);
    stage_body(m);
}

static void stage_open(stage *s, void (*body)(member *))
{
    memset(s, 0, sizeof(*s));
    atomic_store(&on_stage, 0);
    stage_body = body;
    published_init(&s->b, "127.0.0.1:0");
    for (int32_t r = 0; r < 2; r++) {
        member_init(&s->m[r], &s->b, r, 3);
        s->m[r].body = enter_stage;
        member_start(&s->m[r]);
    }
    published_wait(&s->b, s->endpoint);
    raw_open(&s->raw, s->endpoint);
    raw_hello(&s->raw, (hello){2, 3, DDP_VERSION}, "");
    assert_int_equal(raw_next(&s->raw).type, DDP_FRAME_HEARD);
    assert_int_equal(raw_next(&s->raw).type, DDP_FRAME_WELCOME);
    UNTIL(atomic_load(&on_stage) >= 2);
}

static void stage_close(stage *s, int exit_code, const char *text)
{
    for (int32_t r = 0; r < 2; r++) member_join(&s->m[r]);
    ddp_wire_close(&s->raw);
    assert_no_wrongs();
    for (int32_t r = 0; r < 2; r++) {
        assert_int_equal(s->m[r].status, DDP_OK);
        assert_int_equal(s->m[r].failure.exit_code, exit_code);
        if (!contains(s->m[r].failure.msg, text)) fail_msg("\"%s\" is not \"%s\"", s->m[r].failure.msg, text);
    }
    members_close(s->m, 2);
}

static atomic_int rank1_aborts;

static void blame_the_backend(member *m)
{
    ddp_err err;

    if (m->rank == 1) {
        atomic_store(&rank1_aborts, 1);
        ddp_group_abort(m->group, DDP_EXIT_PEER, "all_reduce 5 on rank 1: connection reset by rank 2");
    } else {
        CHECK(ddp_group_barrier(m->group, "never", LONG_MS, &err) == DDP_ERR_ABORTED);
    }
}

/* What a rank's backend saw of a dead peer comes second to the end of that peer's own connection. */
static void test_cause_before_symptom(void **state)
{
    stage s;

    (void)state;
    atomic_store(&rank1_aborts, 0);
    stage_open(&s, blame_the_backend);
    UNTIL(atomic_load(&rank1_aborts) != 0);
    (void)usleep(2000);
    (void)shutdown(s.raw.fd, SHUT_RDWR);
    stage_close(&s, DDP_EXIT_PEER, "rank 2 on host rawhost: connection closed without goodbye");
    stage_open(&s, blame_the_backend);
    assert_int_equal(raw_next(&s.raw).type, DDP_FRAME_FAILURE);
    stage_close(&s, DDP_EXIT_PEER, "all_reduce 5 on rank 1: connection reset by rank 2");
}

static void wait_to_be_ended(member *m)
{
    ddp_err err;

    CHECK(ddp_group_barrier(m->group, "never", LONG_MS, &err) == DDP_ERR_ABORTED);
}

/* A connection that closes after its goodbye is no failure, though the others go on. */
static void go_on_without(member *m)
{
    ddp_err err;

    CHECK(ddp_group_barrier(m->group, "never", LONG_MS, &err) == DDP_ERR_PEER);
    CHECK(strcmp(err.msg, "barrier \"never\": rank 2 has left the run") == 0);
    (void)usleep(50000);
}

static void test_closed_after_goodbye(void **state)
{
    stage s;
    ddp_err err;

    (void)state;
    stage_open(&s, go_on_without);
    assert_int_equal(ddp_wire_put(&s.raw, DDP_FRAME_GOODBYE, NULL, 0, &err), DDP_OK);
    assert_int_equal(ddp_wire_flush(&s.raw, &err), DDP_OK);
    (void)shutdown(s.raw.fd, SHUT_WR);
    stage_close(&s, 0, "");
}

static void test_damaged_frames(void **state)
{
    static const unsigned char request[4] = {1, 2, 3, 4};
    stage s;
    ddp_err err;

    (void)state;
    stage_open(&s, wait_to_be_ended);
    assert_int_equal(write(s.raw.fd, "rubbish", 7), 7);
    assert_int_equal(raw_next(&s.raw).type, DDP_FRAME_FAILURE);
    stage_close(&s, DDP_EXIT_PEER,
                "rank 2 on host rawhost sent a damaged frame: these bytes are not ddpengine's protocol");
    stage_open(&s, wait_to_be_ended);
    assert_int_equal(ddp_wire_put(&s.raw, DDP_FRAME_REQUEST, request, sizeof(request), &err), DDP_OK);
    assert_int_equal(ddp_wire_flush(&s.raw, &err), DDP_OK);
    assert_int_equal(raw_next(&s.raw).type, DDP_FRAME_FAILURE);
    stage_close(&s, DDP_EXIT_PEER, "rank 2 on host rawhost sent a damaged frame: a frame of type 3");
    stage_open(&s, wait_to_be_ended);
    assert_int_equal(ddp_wire_put(&s.raw, DDP_FRAME_WELCOME, NULL, 0, &err), DDP_OK);
    assert_int_equal(ddp_wire_flush(&s.raw, &err), DDP_OK);
    assert_int_equal(raw_next(&s.raw).type, DDP_FRAME_FAILURE);
    stage_close(&s, DDP_EXIT_PEER, "sent a damaged frame: a frame of type 7 that does not belong here");
}

/* A rank that comes when all are there is told so; the run goes on. */
static atomic_int go_on;

static void train_on(member *m)
{
    ddp_err err;

    atomic_fetch_add(&on_stage, 1);
    UNTIL(atomic_load(&go_on) != 0);
    CHECK(ddp_group_barrier(m->group, "on", LONG_MS, &err) == DDP_OK);
}

static void test_stray_rank(void **state)
{
    char endpoint[DDP_ENDPOINT_MAX] = "", *log;
    member m[2], stray;
    published b;

    (void)state;
    atomic_store(&go_on, 0);
    atomic_store(&on_stage, 0);
    published_init(&b, "127.0.0.1:0");
    for (int32_t r = 0; r < 2; r++) {
        member_init(&m[r], &b, r, 2);
        m[r].body = train_on;
        member_start(&m[r]);
    }
    published_wait(&b, endpoint);
    UNTIL(atomic_load(&on_stage) >= 2);
    member_init(&stray, &b, 1, 2);
    (void)member_main(&stray);
    atomic_store(&go_on, 1);
    for (int32_t r = 0; r < 2; r++) member_join(&m[r]);
    assert_no_wrongs();
    assert_int_equal(stray.failure.exit_code, DDP_EXIT_RENDEZVOUS);
    assert_contains(stray.failure.msg, "rank 1 is already taken by host ");
    for (int32_t r = 0; r < 2; r++) assert_int_equal(m[r].failure.exit_code, 0);
    log = member_log(&m[0]);
    assert_contains(log, "refused a process at 127.0.0.1:");
    free(log);
    members_close(m, 2);
    members_close(&stray, 1);
}

/* ---- strangers on the port --------------------------------------------------------------------------------------- */
#define FLOOD 200

typedef struct attack {
    const char *endpoint;
    int fds[FLOOD + 8];
    int count;
} attack;

static void attack_with(attack *a, const void *bytes, size_t length)
{
    ddp_err err;
    int fd;

    assert_int_equal(ddp_endpoint_connect("", a->endpoint, ddp_now_ns() + LONG_MS * 1000000ll, &fd, &err), DDP_OK);
    if (length > 0) (void)!send(fd, bytes, length, MSG_NOSIGNAL);
    a->fds[a->count++] = fd;
}

static void attack_all(attack *a)
{
    static const char http[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    static const char huge[] = "DDPG\3\0\1\0\xff\xff\xff\x7f\0\0\0\0";
    static const char half[] = "DDPG\3\0\1\0\x40\0\0\0\0\0\0\0half a hello";
    static const char early[] = "DDPG\3\0\4\0\5\0\0\0\0\0\0\0\5\0\0\0x"; /* an abort before any hello */
    static const char empty[] = "DDPG\3\0\1\0\0\0\0\0\0\0\0\0";
    unsigned char noise[5000];
    uint32_t x = 12345;

    for (size_t i = 0; i < sizeof(noise); i++) noise[i] = (unsigned char)((x = x * 1664525u + 1013904223u) >> 24);
    a->count = 0;
    attack_with(a, noise, sizeof(noise));
    attack_with(a, http, sizeof(http) - 1);
    attack_with(a, huge, sizeof(huge) - 1);
    attack_with(a, half, sizeof(half) - 1);
    attack_with(a, early, sizeof(early) - 1);
    attack_with(a, empty, sizeof(empty) - 1);
    for (int i = 0; i < FLOOD; i++) attack_with(a, NULL, 0);
}

static int count_closed(const attack *a)
{
    int n = 0;
    char c;

    for (int i = 0; i < a->count; i++) {
        ssize_t got = recv(a->fds[i], &c, 1, MSG_DONTWAIT);

        n += got == 0 || (got < 0 && errno != EAGAIN);
    }
    return n;
}

static void attack_end(attack *a)
{
    for (int i = 0; i < a->count; i++) (void)close(a->fds[i]);
}

static void go_through_barriers(member *m)
{
    ddp_err err;

    while (atomic_load(&go_on) < 100) {
        CHECK(ddp_group_barrier(m->group, "attack", LONG_MS, &err) == DDP_OK);
        if (m->rank == 0 && atomic_load(&go_on) != 0) atomic_fetch_add(&go_on, 1);
        CHECK(ddp_group_barrier(m->group, "attack", LONG_MS, &err) == DDP_OK);
    }
}

static void test_strangers(void **state)
{
    char endpoint[DDP_ENDPOINT_MAX] = "", *log;
    attack before, during;
    member m[3];
    published b;
    size_t lines = 0;

    (void)state;
    atomic_store(&go_on, 0);
    ranks_init(m, &b, 3, go_through_barriers);
    member_start(&m[0]);
    published_wait(&b, endpoint);
    before.endpoint = during.endpoint = endpoint;
    attack_all(&before); /* while ranks 1 and 2 are still to come */
    for (int32_t r = 1; r < 3; r++) member_start(&m[r]);
    attack_all(&during);
    UNTIL(count_closed(&before) + count_closed(&during) >= 2 * FLOOD - 64);
    assert_true(count_closed(&before) + count_closed(&during) >= 2 * FLOOD - 64); /* pending ones are bounded */
    atomic_store(&go_on, 1);
    for (int32_t r = 0; r < 3; r++) member_join(&m[r]);
    attack_end(&before);
    attack_end(&during);
    assert_no_wrongs();
    for (int32_t r = 0; r < 3; r++) {
        assert_int_equal(m[r].status, DDP_OK);
        assert_int_equal(m[r].failure.exit_code, 0);
    }
    log = member_log(&m[0]);
    assert_contains(log, "closed a connection from 127.0.0.1:");
    assert_contains(log, "it is no rank of this run: these bytes are not ddpengine's protocol");
    assert_contains(log, "a frame of 2147483647 bytes, at most 4096 are allowed here");
    for (const char *p = log; (p = strchr(p, '\n')) != NULL; p++) lines++;
    assert_true(lines < 30);
    free(log);
    members_close(m, 3);
}

/* ---- nothing is left over ---------------------------------------------------------------------------------------- */
static int count_entries(const char *path)
{
    DIR *d = opendir(path);
    int n = 0;

    assert_non_null(d);
    while (readdir(d) != NULL) n++;
    (void)closedir(d);
    return n;
}

static void end_by_rank_0(member *m)
{
    if (m->rank == 0)
        ddp_group_abort(m->group, DDP_EXIT_DATA, "over");
    else
        wait_to_be_ended(m);
}

static void test_nothing_left(void **state)
{
    int fds = count_entries("/proc/self/fd"), threads = (int)settled_threads();
    member m[3];
    published b;

    (void)state;
    run_ranks(m, &b, 3, NULL);
    run_ranks(m, &b, 2, end_by_rank_0);
    assert_int_equal(count_entries("/proc/self/fd"), fds);
    THREADS_BECOME(threads);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed_rank), /* forks: while this process has one thread */
        cmocka_unit_test(test_abort),
        cmocka_unit_test(test_abort_race),
        cmocka_unit_test(test_abort_world_1),
        cmocka_unit_test(test_listener),
        cmocka_unit_test(test_many_listeners),
        cmocka_unit_test(test_expired),
        cmocka_unit_test(test_cause_before_symptom),
        cmocka_unit_test(test_closed_after_goodbye),
        cmocka_unit_test(test_damaged_frames),
        cmocka_unit_test(test_stray_rank),
        cmocka_unit_test(test_strangers),
        cmocka_unit_test(test_nothing_left),
    };

    return cmocka_run_group_tests_name("group failure", tests, NULL, NULL);
}
