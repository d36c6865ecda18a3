/* tests/unit/control/test_heartbeat.c -- signs of life: a silent rank ends the run, a short pause and a whole
 * machine asleep do not; the signal that one rank was asked to end by is known to all. */
#include "support/group_util.h"
#include <sys/socket.h>

#define SHORT_MS 500  /* a peer_timeout that is to pass */
#define LIVE_MS  2500 /* one that is not, whatever else the machine does */

/* ---- ranks that say nothing -------------------------------------------------------------------------------------- */
static void wait_for_failure(member *m)
{
    ddp_failure f;

    control_group_set_step(m->group, 17);
    UNTIL(ddp_group_failed(m->group, &f));
}

static void test_silent_rank_is_named(void **state)
{
    char endpoint[DDP_ENDPOINT_MAX] = "";
    ddp_wire raw;
    member m[2];
    ddp_frame f;
    published b;
    bool told = false;

    (void)state;
    published_init(&b, "127.0.0.1:0");
    for (int r = 0; r < 2; r++) {
        member_init(&m[r], &b, r, 3);
        m[r].peer_timeout_ms = SHORT_MS;
        m[r].body = wait_for_failure;
        member_start(&m[r]);
    }
    published_wait(&b, endpoint);
    raw_open(&raw, endpoint);
    raw_hello(&raw, (hello){2, 3, DDP_VERSION}, "");
    while ((f = raw_next(&raw)).type != 0)
        if (f.type == DDP_FRAME_FAILURE) told = contains((const char *)f.data + 8, "rank 2 on host rawhost has been");
    for (int r = 0; r < 2; r++) {
        member_join(&m[r]);
        assert_int_equal(m[r].status, DDP_OK);
        assert_int_equal(m[r].failure.exit_code, DDP_EXIT_TIMEOUT);
        assert_int_equal(m[r].failure.rank, 2);
        assert_string_equal(m[r].failure.msg,
                            "rank 2 on host rawhost has been silent for 0.5 s (peer_timeout) at step 17");
    }
    assert_true(told);
    ddp_wire_close(&raw);
    members_close(m, 2);
}

static void test_silence_before_all_have_met(void **state)
{
    char endpoint[DDP_ENDPOINT_MAX] = "";
    ddp_wire raw;
    member m;
    published b;

    (void)state;
    published_init(&b, "127.0.0.1:0");
    member_init(&m, &b, 0, 3);
    m.peer_timeout_ms = SHORT_MS;
    member_start(&m);
    published_wait(&b, endpoint);
    raw_open(&raw, endpoint);
    raw_hello(&raw, (hello){1, 3, DDP_VERSION}, "");
    member_join(&m);
    assert_int_equal(m.failure.exit_code, DDP_EXIT_TIMEOUT);
    assert_int_equal(m.failure.rank, 1);
    assert_contains(m.failure.msg, "rank 1 on host rawhost has been silent for 0.5 s (peer_timeout) before all");
    ddp_wire_close(&raw);
    members_close(&m, 1);
}

/* A rank 0 made by hand: it welcomes rank 1 and says no more. */
static void welcome_rank1(ddp_wire *w)
{
    ddp_text heard = {0}, all = {0};
    ddp_err err;

    assert_int_equal(raw_next(w).type, DDP_FRAME_HELLO);
    assert_int_equal(raw_next(w).type, DDP_FRAME_AGREEMENT);
    ddp_pack_bytes(&heard, "quiet", 5);
    ddp_pack_u64(&all, 1); /* start of the run */
    ddp_pack_u32(&all, 0); /* generation */
    ddp_pack_u32(&all, 1); /* the rank that gets it */
    ddp_pack_u32(&all, 2); /* ranks */
    for (uint32_t r = 0; r < 2; r++) {
        ddp_pack_u32(&all, r);
        ddp_pack_u32(&all, 4711);
        ddp_pack_bytes(&all, "raw", 3);
        ddp_pack_bytes(&all, "quiet", 5);
    }
    assert_int_equal(ddp_wire_put(w, DDP_FRAME_HEARD, heard.data, heard.length, &err), DDP_OK);
    assert_int_equal(ddp_wire_put(w, DDP_FRAME_WELCOME, all.data, all.length, &err), DDP_OK);
    assert_int_equal(ddp_wire_flush(w, &err), DDP_OK);
    ddp_text_free(&heard);
    ddp_text_free(&all);
}

static void test_silent_rank0(void **state)
{
    char endpoint[DDP_ENDPOINT_MAX], text[200] = "";
    int fd, connection, beats = 0;
    ddp_wire w;
    ddp_frame f;
    ddp_err err;
    member m;

    (void)state;
    assert_int_equal(ddp_endpoint_listen("127.0.0.1:0", &fd, endpoint, &err), DDP_OK);
    member_init(&m, NULL, 1, 2);
    m.endpoint = endpoint;
    m.peer_timeout_ms = SHORT_MS;
    m.body = wait_for_failure;
    member_start(&m);
    UNTIL((connection = accept(fd, NULL, NULL)) >= 0);
    ddp_wire_init(&w, connection, 1 << 20);
    welcome_rank1(&w);
    while ((f = raw_next(&w)).type != 0) {
        beats += f.type == DDP_FRAME_BEAT;
        /* what it says in leaving is for a rank 0 that wakes */
        if (f.type == DDP_FRAME_FAILURE) ddp_copy_printable(text, sizeof(text), f.data + 8, f.length - 8);
    }
    member_join(&m);
    assert_true(beats >= 2);
    assert_int_equal(m.failure.exit_code, DDP_EXIT_TIMEOUT);
    assert_int_equal(m.failure.rank, 0);
    assert_string_equal(m.failure.msg, "rank 0 on host quiet has been silent for 0.5 s (peer_timeout) at step 17");
    assert_string_equal(text, m.failure.msg);
    ddp_wire_close(&w);
    (void)close(fd);
    members_close(&m, 1);
}

/* ---- processes that are stopped ---------------------------------------------------------------------------------- */
typedef struct outcome {
    int32_t there, end; /* end: set by the test, the ranks leave */
    ddp_failure failure;
} outcome;

static void live(member *m)
{
    outcome *o = m->arg;
    ddp_failure f;

    (void)__atomic_store_n(&o->there, 1, __ATOMIC_SEQ_CST);
    UNTIL(__atomic_load_n(&o->end, __ATOMIC_SEQ_CST) != 0 || ddp_group_failed(m->group, &f));
}

typedef struct family {
    pid_t pids[3];
    outcome *out;
} family;

static void family_start(family *y, int64_t peer_timeout_ms)
{
    char endpoint[DDP_ENDPOINT_MAX];
    ddp_err err;
    int fd;

    y->out = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_int_equal(ddp_endpoint_listen("127.0.0.1:0", &fd, endpoint, &err), DDP_OK);
    for (int32_t r = 0; r < 3; r++) {
        y->pids[r] = fork();
        if (y->pids[r] == 0) {
            member m;

            member_init(&m, NULL, r, 3);
            m.listen_fd = r == 0 ? fd : -1;
            m.endpoint = r == 0 ? NULL : endpoint;
            m.peer_timeout_ms = peer_timeout_ms;
            m.arg = &y->out[r];
            m.body = live;
            if (r != 0) (void)close(fd);
            (void)member_main(&m);
            y->out[r].failure = m.failure;
            _exit(m.status == DDP_OK ? 0 : 1);
        }
    }
    (void)close(fd);
    for (int32_t r = 0; r < 3; r++) UNTIL(__atomic_load_n(&y->out[r].there, __ATOMIC_SEQ_CST) != 0);
}

static void family_end(family *y)
{
    /* all together: rank 0 stays until the others leave */
    for (int32_t r = 0; r < 3; r++) (void)__atomic_store_n(&y->out[r].end, 1, __ATOMIC_SEQ_CST);
    for (int32_t r = 0; r < 3; r++) {
        int status;

        assert_int_equal(until_exited(y->pids[r], &status), y->pids[r]);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
}

static void test_short_pause_changes_nothing(void **state)
{
    family y;

    (void)state;
    family_start(&y, LIVE_MS);
    for (int32_t r = 0; r < 3; r += 2) {
        (void)kill(y.pids[r], SIGSTOP);
        (void)usleep(LIVE_MS * 1000 / 4);
        (void)kill(y.pids[r], SIGCONT);
        (void)usleep(LIVE_MS * 1000 / 2);
    }
    family_end(&y);
    for (int32_t r = 0; r < 3; r++) assert_int_equal(y.out[r].failure.exit_code, 0);
    (void)munmap(y.out, 4096);
}

/* A suspended machine, Ctrl-Z on a family: nobody blames another for the time that all have lost. */
static void test_all_asleep_at_once(void **state)
{
    family y;

    (void)state;
    family_start(&y, LIVE_MS);
    for (int32_t r = 0; r < 3; r++) (void)kill(y.pids[r], SIGSTOP);
    (void)usleep(LIVE_MS * 1000 + LIVE_MS * 1000 / 2);
    for (int32_t r = 0; r < 3; r++) (void)kill(y.pids[r], SIGCONT);
    (void)usleep(LIVE_MS * 1000 / 2);
    family_end(&y);
    for (int32_t r = 0; r < 3; r++) assert_int_equal(y.out[r].failure.exit_code, 0);
    (void)munmap(y.out, 4096);
}

/* The one that was stopped wakes when the others have left, and says the same as they did. */
static void stopped(int32_t victim)
{
    char text[80];
    family y;

    family_start(&y, SHORT_MS);
    (void)kill(y.pids[victim], SIGSTOP);
    for (int32_t r = 0; r < 3; r++)
        if (r != victim) assert_int_equal(until_exited(y.pids[r], NULL), y.pids[r]);
    (void)kill(y.pids[victim], SIGCONT);
    assert_int_equal(until_exited(y.pids[victim], NULL), y.pids[victim]);
    (void)snprintf(text, sizeof(text), "rank %d on host ", (int)victim);
    for (int32_t r = 0; r < 3; r++) {
        assert_int_equal(y.out[r].failure.exit_code, DDP_EXIT_TIMEOUT);
        assert_contains(y.out[r].failure.msg, text);
        assert_contains(y.out[r].failure.msg, " has been silent for 0.5 s (peer_timeout)");
    }
    (void)munmap(y.out, 4096);
}

static void test_stopped_rank(void **state)
{
    (void)state;
    stopped(2);
}

static void test_stopped_rank0(void **state)
{
    (void)state;
    stopped(0);
}

/* ---- stragglers -------------------------------------------------------------------------------------------------- */
typedef struct step_times {
    double data[3], compute[3], wait[3]; /* ms a step, by rank */
    int warnings;                        /* that rank 0 took */
    char text[512];
} step_times;

/* Steps as fast as the machine likes, reported to have taken what `step_times` has, until rank 0 has seen some
 * windows. */
static void make_steps(member *m)
{
    step_times *p = m->arg;
    int64_t end = ddp_now_ms() + 2000;
    ddp_err err;

    for (int64_t step = 1; ddp_now_ms() < end; step++) {
        ddp_group_report_step(m->group, step, p->data[m->rank], p->compute[m->rank], p->wait[m->rank]);
        if (m->rank == 0) p->warnings += ddp_group_take_warning(m->group, p->text, sizeof(p->text));
        (void)usleep(500);
    }
    CHECK(ddp_group_barrier(m->group, "end", LONG_MS, &err) == DDP_OK);
}

static char *run_step_times(step_times *p)
{
    char *log;
    member m[3];
    published b;

    ranks_init(m, &b, 3, make_steps);
    for (int32_t r = 0; r < 3; r++) {
        m[r].arg = p;
        m[r].peer_timeout_ms = 1000; /* a beat every 250 ms, a window every one or two */
    }
    ranks_run(m, 3);
    for (int32_t r = 0; r < 3; r++) assert_int_equal(m[r].failure.exit_code, 0);
    assert_no_wrongs();
    log = member_log(&m[0]);
    members_close(m, 3);
    return log;
}

static void test_straggler(void **state)
{
    step_times p = {.data = {1, 1, 3}, .compute = {20, 19, 41}, .wait = {22, 23, 0}};
    char *log = run_step_times(&p), host[64] = "", text[300];

    (void)state;
    (void)gethostname(host, sizeof(host) - 1);
    (void)snprintf(
        text, sizeof(text),
        "rank 2 on host %s is the straggler: it computes 41 ms and waits for data 3 ms a step, the others 20 ms and "
        "1 ms, and they wait 23 ms for it and the network",
        host);
    assert_contains(log, text);
    assert_int_equal(p.warnings, 1); /* several windows, one line a minute */
    assert_string_equal(p.text, text);
    assert_null(strstr(strstr(log, "straggler") + 1, "straggler"));
    free(log);
}

/* Within a quarter of the others, or within a millisecond. */
static void test_no_straggler(void **state)
{
    step_times near = {.data = {1, 1, 1}, .compute = {20, 20, 24}}, small = {.compute = {0.1, 0.1, 1.0}};
    char *log;

    (void)state;
    log = run_step_times(&near);
    assert_false(contains(log, "straggler"));
    free(log);
    log = run_step_times(&small);
    assert_false(contains(log, "straggler"));
    free(log);
    assert_int_equal(near.warnings + small.warnings, 0);
}

/* The time-out of a collective names who has not come to it. */
static void count_and_time_out(member *m)
{
    ddp_err err;

    for (int i = 0; i < (m->rank == 1 ? 4 : 5); i++) ddp_group_count_collective(m->group);
    CHECK(ddp_group_barrier(m->group, "counted", LONG_MS, &err) == DDP_OK);
    (void)usleep(800000); /* some beats */
    if (m->rank == 2) ddp_group_abort(m->group, DDP_EXIT_TIMEOUT, "all_reduce 5 did not end");
    wait_for_failure(m);
}

static void test_time_out_names_who_is_late(void **state)
{
    member m[3];
    published b;

    (void)state;
    ranks_init(m, &b, 3, count_and_time_out);
    for (int32_t r = 0; r < 3; r++) m[r].peer_timeout_ms = 1000;
    ranks_run(m, 3);
    for (int32_t r = 0; r < 3; r++) {
        assert_int_equal(m[r].failure.exit_code, DDP_EXIT_TIMEOUT);
        assert_string_equal(m[r].failure.msg,
                            "all_reduce 5 did not end; rank 1 has begun fewer collectives than rank 2");
    }
    assert_no_wrongs();
    members_close(m, 3);
}

/* ---- the signal to stop ------------------------------------------------------------------------------------------ */
static atomic_int asked, none;

static void wait_for_stop(member *m)
{
    ddp_err err;

    CHECK(ddp_group_stop_requested(m->group) == 0);
    CHECK(ddp_group_barrier(m->group, "ready", LONG_MS, &err) == DDP_OK);
    if (m->stop_signal == &asked) {
        atomic_store(&asked, 15);
        CHECK(ddp_group_stop_requested(m->group) == 15);
    }
    UNTIL(ddp_group_stop_requested(m->group) != 0);
    CHECK(ddp_group_stop_requested(m->group) == 15);
    CHECK(ddp_group_barrier(m->group, "done", LONG_MS, &err) == DDP_OK);
}

static void test_stop_is_known_to_all(void **state)
{
    (void)state;
    for (int32_t world = 1; world <= 3; world++) {
        for (int32_t who = 0; who < world; who += 2) {
            member m[3];
            published b;

            atomic_store(&asked, 0);
            ranks_init(m, &b, world, wait_for_stop);
            for (int32_t r = 0; r < world; r++) m[r].stop_signal = r == who ? &asked : r == 1 ? NULL : &none;
            ranks_run(m, world);
            for (int32_t r = 0; r < world; r++) assert_int_equal(m[r].status, DDP_OK);
            members_close(m, world);
            assert_no_wrongs();
        }
    }
}

static void wait_for_signal_2(member *m)
{
    UNTIL(ddp_group_stop_requested(m->group) != 0);
    CHECK(ddp_group_stop_requested(m->group) == 2);
}

/* Before all have met too: who joins later hears of it. */
static void test_stop_during_the_rendezvous(void **state)
{
    char endpoint[DDP_ENDPOINT_MAX] = "";
    member m[3];
    published b;

    (void)state;
    atomic_store(&asked, 2);
    ranks_init(m, &b, 3, wait_for_signal_2);
    for (int32_t r = 0; r < 3; r++) m[r].stop_signal = r == 1 ? &asked : NULL;
    member_start(&m[0]);
    published_wait(&b, endpoint);
    member_start(&m[1]);
    (void)usleep(100000);
    member_start(&m[2]);
    for (int32_t r = 0; r < 3; r++) member_join(&m[r]);
    for (int32_t r = 0; r < 3; r++) assert_int_equal(m[r].status, DDP_OK);
    members_close(m, 3);
    atomic_store(&asked, 0);
    assert_no_wrongs();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_silent_rank_is_named),
        cmocka_unit_test(test_silence_before_all_have_met),
        cmocka_unit_test(test_silent_rank0),
        cmocka_unit_test(test_short_pause_changes_nothing),
        cmocka_unit_test(test_all_asleep_at_once),
        cmocka_unit_test(test_stopped_rank),
        cmocka_unit_test(test_stopped_rank0),
        cmocka_unit_test(test_stop_is_known_to_all),
        cmocka_unit_test(test_stop_during_the_rendezvous),
        cmocka_unit_test(test_straggler),
        cmocka_unit_test(test_no_straggler),
        cmocka_unit_test(test_time_out_names_who_is_late),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
