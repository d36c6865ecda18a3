/* Processes that help the ranks and are none: numbers, the store, what they must agree on, the end. Their loss is
 * tested with real processes, tests/integration/hosts/test_aggregate.py. */
#include "support/group_util.h"

enum { RANKS = 2, HELPERS = 2 };

/* Ranks and helpers exchange what they have to say under keys of the run. */
static void talk(member *m)
{
    const ddp_store *s = ddp_group_store(m->group, m->rank < 0 ? "helpers" : "communicator-1", &m->err);
    int own = m->rank < 0 ? RANKS + (int)ddp_group_helper(m->group) : m->rank;
    char key[32], buf[64];
    size_t n;
    ddp_err err;

    CHECK(ddp_group_world(m->group) == RANKS);
    (void)snprintf(key, sizeof(key), "/place/%d", own);
    CHECK(s->set(s->ctx, key, key, strlen(key), &err) == DDP_OK);
    CHECK(s->set(s->ctx, "own", key, strlen(key), &err) == DDP_OK);
    for (int i = 0; i < RANKS + HELPERS; i++) {
        (void)snprintf(key, sizeof(key), "/place/%d", i);
        CHECK(s->get(s->ctx, key, buf, sizeof(buf), &n, LONG_MS, &err) == DDP_OK);
        CHECK(n == strlen(key) && memcmp(buf, key, n) == 0);
    }
    CHECK(s->get(s->ctx, "place/0", buf, sizeof(buf), &n, 0, &err) == DDP_ERR_TIMEOUT); /* that is the scope's own */
    (void)snprintf(key, sizeof(key), "/read/%d", own);
    CHECK(s->set(s->ctx, key, "", 0, &err) == DDP_OK);
    for (int i = 0; i < RANKS + HELPERS && m->rank >= 0; i++) {
        (void)snprintf(key, sizeof(key), "/read/%d", i);
        CHECK(s->get(s->ctx, key, buf, sizeof(buf), &n, LONG_MS, &err) == DDP_OK);
    }
    if (m->rank < 0) CHECK(ddp_group_wait_over(m->group, LONG_MS));
}

static void they_come_with_the_ranks(void **state)
{
    static const char lines[] = "group.backend = x\ta.ini:3\nmodel.classes = 4\ta.ini:9\n";
    member m[RANKS + HELPERS];
    published b;

    (void)state;
    ranks_init(m, &b, RANKS, talk);
    for (int i = 0; i < RANKS + HELPERS; i++) {
        if (i >= RANKS) member_init(&m[i], &b, DDP_RANK_OF_HELPER, RANKS);
        m[i].body = talk;
        m[i].peer_timeout_ms = 2000;
        m[i].secret = "a secret of 32 characters or more";
        m[i].agreement = i < RANKS ? lines : "group.backend = x\tb.ini:1\n"; /* of the model it knows nothing */
    }
    ranks_run(m, RANKS + HELPERS);
    assert_no_wrongs();
    for (int i = 0; i < RANKS + HELPERS; i++) {
        assert_int_equal(m[i].status, DDP_OK);
        assert_int_equal(m[i].failure.exit_code, 0);
    }
    members_close(m, RANKS + HELPERS);
}

static void wait_for_others(member *m)
{
    ddp_err err;

    CHECK(ddp_group_barrier(m->group, "done", LONG_MS, &err) == DDP_OK);
}

/* Another value, one that the ranks do not have, another secret: refused alone, and the ranks go on. */
static void who_differs_is_refused_alone(void **state)
{
    static const struct {
        const char *lines, *secret, *says;
        int32_t world;
    } wrong[] = {{"group.backend = x\tb.ini:1\n", "a", "an aggregator on host ", RANKS + 1},
                 {"group.backend = y\tb.ini:1\n", "a",
                  "rank 0 and an aggregator differ in group.backend: x (rank 0, a.ini:3)", RANKS},
                 {"group.more = y\tb.ini:1\n", "a", "differ in group.more: not set (rank 0) against y", RANKS},
                 {"group.backend = x\tb.ini:1\n", "b", "differ in their secret", RANKS}};
    member m[RANKS + 1];
    published b;

    (void)state;
    for (size_t i = 0; i < DDP_COUNT(wrong); i++) {
        ranks_init(m, &b, RANKS, wait_for_others);
        for (int r = 0; r < RANKS; r++) {
            m[r].agreement = "group.backend = x\ta.ini:3\n";
            m[r].secret = "a";
        }
        member_init(&m[RANKS], &b, DDP_RANK_OF_HELPER, wrong[i].world);
        m[RANKS].agreement = wrong[i].lines;
        m[RANKS].secret = wrong[i].secret;
        member_start(&m[0]);
        member_start(&m[RANKS]);
        member_join(&m[RANKS]); /* before the ranks have met */
        member_start(&m[1]);
        member_join(&m[0]);
        member_join(&m[1]);
        assert_no_wrongs();
        assert_int_equal(m[0].status, DDP_OK);
        assert_int_equal(m[1].status, DDP_OK);
        assert_int_equal(m[RANKS].err.exit_code, DDP_EXIT_RENDEZVOUS);
        if (strstr(m[RANKS].err.msg, wrong[i].says) == NULL) fail_msg("%s", m[RANKS].err.msg);
        members_close(m, RANKS + 1);
    }
}

/* One that leaves before the end is not missed. */
static void leave_at_once(member *m)
{
    ddp_err err;

    if (m->rank >= 0) CHECK(ddp_group_barrier(m->group, "done", LONG_MS, &err) == DDP_OK);
}

static void one_may_leave(void **state)
{
    member m[RANKS + 1];
    published b;

    (void)state;
    ranks_init(m, &b, RANKS, leave_at_once);
    member_init(&m[RANKS], &b, DDP_RANK_OF_HELPER, RANKS);
    m[RANKS].body = leave_at_once;
    ranks_run(m, RANKS + 1);
    assert_no_wrongs();
    for (int i = 0; i < RANKS; i++) assert_int_equal(m[i].failure.exit_code, 0);
    members_close(m, RANKS + 1);
}

/* ---- connections made by hand ------------------------------------------------------------------------------------ */
static atomic_bool over;

static void until_over(member *m)
{
    ddp_err err;

    while (!atomic_load(&over)) (void)usleep(1000);
    CHECK(ddp_group_barrier(m->group, "done", LONG_MS, &err) == DDP_OK);
}

static bool has_logged(const member *m, const char *part)
{
    char *log = member_log(m);
    bool there = contains(log, part);

    free(log);
    return there;
}

static uint32_t next_but_beats(ddp_wire *w)
{
    uint32_t type = DDP_FRAME_BEAT;

    while (type == DDP_FRAME_BEAT) type = raw_next(w).type;
    return type;
}

/* Who has only said hello has no number, and no run ends with it; nor with one that nobody relies on yet. */
static void who_does_nothing_ends_nothing(void **state)
{
    static const hello helper = {(uint32_t)DDP_RANK_OF_HELPER, RANKS, DDP_VERSION};
    char endpoint[DDP_ENDPOINT_MAX];
    ddp_wire idle, other;
    member m[RANKS];
    published b;

    (void)state;
    atomic_store(&over, false);
    ranks_init(m, &b, RANKS, until_over);
    member_start(&m[0]);
    published_wait(&b, endpoint);
    raw_open(&idle, endpoint);
    raw_hello(&idle, helper, NULL);
    raw_open(&other, endpoint);
    raw_hello(&other, helper, "");
    assert_int_equal(next_but_beats(&other), DDP_FRAME_HEARD);
    UNTIL(has_logged(&m[0], "aggregator 0 is there"));
    member_start(&m[1]);
    assert_int_equal(next_but_beats(&other), DDP_FRAME_WELCOME); /* the run goes on */
    ddp_wire_close(&idle);
    UNTIL(has_logged(&m[0], "closed a connection from"));
    raw_open(&idle, endpoint);
    raw_hello(&idle, helper, NULL);
    assert_int_equal(write(idle.fd, "rubbish", 7), 7);
    assert_int_equal(next_but_beats(&idle), 0);
    ddp_wire_close(&idle);
    ddp_wire_close(&other);
    UNTIL(has_logged(&m[0], "aggregator 0 on host rawhost: connection closed without goodbye"));
    atomic_store(&over, true);
    for (int i = 0; i < RANKS; i++) member_join(&m[i]);
    assert_no_wrongs();
    for (int i = 0; i < RANKS; i++) assert_int_equal(m[i].failure.exit_code, 0);
    members_close(m, RANKS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(they_come_with_the_ranks),
        cmocka_unit_test(who_differs_is_refused_alone),
        cmocka_unit_test(one_may_leave),
        cmocka_unit_test(who_does_nothing_ends_nothing),
    };

    return cmocka_run_group_tests_name("helpers", tests, NULL, NULL);
}
