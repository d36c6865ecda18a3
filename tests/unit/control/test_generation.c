/* tests/unit/control/test_generation.c -- runs that outlive the loss of a rank: which generation a rendezvous makes,
 * whom rank 0 waits for, and who is to try again; and how many losses a window of time allows. */
#include "base/losses.h"
#include "control/request.h"
#include "support/group_util.h"

#define START 77u /* number of the start of a run that rank 0 is in */

static atomic_int go_on, inside;

static void stay(member *m)
{
    atomic_store(&inside, 1);
    while (atomic_load(&go_on) == 0 && !ddp_group_failed(m->group, &m->failure)) (void)usleep(1000);
}

static void note_generation(member *m) { *(uint32_t *)m->arg = ddp_group_generation(m->group); }

/* Rank 0 alone, which rejoins; where it listens. */
static void rank0_start(member *m, published *b, uint32_t generation, char *endpoint)
{
    atomic_store(&go_on, 0);
    atomic_store(&inside, 0);
    published_init(b, "127.0.0.1:0");
    member_init(m, b, 0, 2);
    m->rejoins = true;
    m->generation = generation;
    m->start = generation > 0 ? START : 0;
    m->body = stay;
    member_start(m);
    published_wait(b, endpoint);
}

static void rank0_end(member *m)
{
    atomic_store(&go_on, 1);
    member_join(m);
    members_close(m, 1);
}

static void rank1(ddp_wire *w, const char *endpoint, uint32_t generation)
{
    raw_open(w, endpoint);
    raw_hello_again(w, (hello){1, 2, DDP_VERSION}, (past){generation > 0 ? START : 0, generation, false}, "");
}

static void expect_later(ddp_wire *w, const char *reason)
{
    ddp_frame f = raw_next(w);
    ddp_unpack u = {.data = f.data, .left = f.length};
    char text[256];

    assert_int_equal(f.type, DDP_FRAME_LATER);
    ddp_unpack_text(&u, text, sizeof(text));
    assert_contains(text, reason);
    ddp_wire_close(w);
}

/* All take the highest that one of them expects: a new process knows of none. */
static void test_highest_generation_counts(void **state)
{
    uint32_t seen[3] = {0};
    member m[3];
    published b;

    (void)state;
    ranks_init(m, &b, 3, note_generation);
    for (int r = 0; r < 3; r++) {
        m[r].rejoins = true;
        m[r].generation = r == 1 ? 7 : 0;
        m[r].arg = &seen[r];
    }
    ranks_run(m, 3);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(m[r].status, DDP_OK);
        assert_int_equal(seen[r], 7);
    }
    members_close(m, 3);
}

/* Before all ranks are there, a connection that closes frees its rank for another process. */
static void test_lost_rank_is_waited_for(void **state)
{
    char endpoint[DDP_ENDPOINT_MAX] = "", *log;
    member m[2];
    published b;
    ddp_wire w;

    (void)state;
    atomic_store(&go_on, 1);
    published_init(&b, "127.0.0.1:0");
    for (int r = 0; r < 2; r++) {
        member_init(&m[r], &b, r, 3);
        m[r].rejoins = true;
    }
    member_start(&m[0]);
    published_wait(&b, endpoint);
    raw_open(&w, endpoint);
    raw_hello(&w, (hello){1, 3, DDP_VERSION}, "");
    assert_int_equal(raw_next(&w).type, DDP_FRAME_HEARD);
    ddp_wire_close(&w);
    member_start(&m[1]);
    raw_open(&w, endpoint);
    raw_hello(&w, (hello){2, 3, DDP_VERSION}, "");
    assert_int_equal(raw_next(&w).type, DDP_FRAME_HEARD);
    assert_int_equal(raw_next(&w).type, DDP_FRAME_WELCOME);
    assert_int_equal(ddp_wire_put(&w, DDP_FRAME_GOODBYE, NULL, 0, &m[0].err), DDP_OK);
    assert_int_equal(ddp_wire_flush(&w, &m[0].err), DDP_OK);
    for (int r = 0; r < 2; r++) member_join(&m[r]);
    ddp_wire_close(&w);
    for (int r = 0; r < 2; r++) assert_int_equal(m[r].status, DDP_OK);
    log = member_log(&m[0]);
    assert_contains(log, "rank 1 on host rawhost is gone before all ranks had met: waiting for it to come back");
    free(log);
    members_close(m, 2);
}

static void expect_beat(ddp_wire *w, const char *reason)
{
    ddp_frame f = raw_next(w);
    ddp_unpack u = {.data = f.data, .left = f.length};
    char text[256];

    assert_int_equal(f.type, DDP_FRAME_BEAT);
    ddp_unpack_text(&u, text, sizeof(text));
    assert_string_equal(text, reason);
}

static void note_start(member *m) { *(uint64_t *)m->arg = ddp_group_start(m->group); }

/* All take the number of the latest start; a run that nobody has been in gets one. */
static void test_latest_start_counts(void **state)
{
    (void)state;
    for (uint64_t known = 0; known < 2; known++) {
        uint64_t seen[3] = {0};
        member m[3];
        published b;

        ranks_init(m, &b, 3, note_start);
        for (int r = 0; r < 3; r++) {
            m[r].rejoins = true;
            m[r].start = known * (r == 1 ? 9 : r == 2 ? 5 : 0);
            m[r].arg = &seen[r];
        }
        ranks_run(m, 3);
        assert_true(known ? seen[0] == 9 : seen[0] > 9);
        assert_true(seen[1] == seen[0] && seen[2] == seen[0]);
        members_close(m, 3);
    }
}

static void test_who_comes_too_early_tries_again(void **state)
{
    char endpoint[DDP_ENDPOINT_MAX] = "";
    ddp_wire first, second, third;
    member m;
    published b;

    (void)state;
    rank0_start(&m, &b, 3, endpoint);
    rank1(&first, endpoint, 3);
    assert_int_equal(raw_next(&first).type, DDP_FRAME_HEARD);
    assert_int_equal(raw_next(&first).type, DDP_FRAME_WELCOME);
    UNTIL(atomic_load(&inside) == 1);
    /* a process in place of rank 1, which rank 0 still takes for alive: it waits, and disturbs nobody */
    rank1(&third, endpoint, 0);
    expect_beat(&third, "rank 1 is host rawhost, pid 4711");
    assert_int_equal(ddp_group_knocks(m.group), 0);
    assert_int_equal(ddp_group_stop_requested(m.group), 0);
    assert_false(ddp_group_failed(m.group, &m.failure));
    /* nor does one of an earlier start of the run, which was in more generations of that */
    raw_open(&second, endpoint);
    raw_hello_again(&second, (hello){1, 2, DDP_VERSION}, (past){START - 1, 9, false}, "");
    expect_beat(&second, "rank 1 is host rawhost, pid 4711");
    ddp_wire_close(&second);
    assert_false(ddp_group_failed(m.group, &m.failure));
    /* rank 1 itself, which knows of a failure that rank 0 does not */
    rank1(&second, endpoint, 4);
    expect_later(&second, "rank 0 did not know yet that the run had failed");
    expect_later(&third, "rank 0 is leaving the run that has failed");
    UNTIL(ddp_group_failed(m.group, &m.failure));
    assert_int_equal(m.failure.exit_code, DDP_EXIT_PEER);
    assert_contains(m.failure.msg, "rank 1 at 127.0.0.1:");
    ddp_wire_close(&first);
    rank0_end(&m);
}

/* A rank that is refused for good is not asked to try again: nobody could mend that. */
static void test_other_settings_still_end_it(void **state)
{
    char endpoint[DDP_ENDPOINT_MAX] = "";
    ddp_wire w;
    member m;
    published b;

    (void)state;
    rank0_start(&m, &b, 0, endpoint);
    raw_open(&w, endpoint);
    raw_hello(&w, (hello){1, 3, DDP_VERSION}, "");
    assert_int_equal(raw_next(&w).type, DDP_FRAME_FAILURE);
    ddp_wire_close(&w);
    rank0_end(&m);
    assert_int_equal(m.failure.exit_code, DDP_EXIT_RENDEZVOUS);
}

static void test_losses(void **state)
{
    ddp_losses l = {.most = 3, .window_ms = 1000}, none = {.window_ms = 1000};

    (void)state;
    assert_false(ddp_losses_add(&none, 1));
    assert_true(ddp_losses_add(&l, 5000));
    assert_int_equal(ddp_losses_delay(&l, 10), 10);
    assert_true(ddp_losses_add(&l, 5100));
    assert_int_equal(ddp_losses_delay(&l, 10), 20);
    assert_true(ddp_losses_add(&l, 5200));
    assert_int_equal(ddp_losses_delay(&l, 10), 40);
    assert_false(ddp_losses_add(&l, 6000)); /* the first is just not older than the window */
    assert_true(ddp_losses_add(&l, 6001));
    assert_true(ddp_losses_add(&l, 9000));
    assert_int_equal(l.count, 1);
    l = (ddp_losses){.most = 1 << 20, .window_ms = 1000};
    for (int i = 0; i < DDP_LOSSES_MOST; i++) assert_true(ddp_losses_add(&l, 0));
    assert_false(ddp_losses_add(&l, 0));
    assert_int_equal(ddp_losses_delay(&l, 10), 640);
}

/* ---- ranks that are missing -------------------------------------------------------------------------------------- */
typedef struct place {
    int32_t rank, world, homes[4], stop;
} place;

/* Where it is among the others; then all wait for each other. */
static void note_place(member *m)
{
    place *p = m->arg;
    ddp_err err;

    p->rank = ddp_group_rank(m->group);
    p->world = ddp_group_world(m->group);
    for (int32_t r = 0; r < p->world; r++) p->homes[r] = ddp_group_home(m->group, r);
    (void)ddp_group_barrier(m->group, "noted", LONG_MS, &err);
}

static void quorum_init(member *m, published *b, place *places, int count, int32_t world)
{
    published_init(b, "127.0.0.1:0");
    if (places != NULL) memset(places, 0, (size_t)count * sizeof(*places));
    for (int i = 0; i < count; i++) {
        member_init(&m[i], b, i, world);
        m[i].rejoins = true;
        m[i].generation = 1;
        m[i].quorum.min_world = count;
        m[i].body = note_place;
        m[i].arg = places == NULL ? NULL : &places[i];
    }
}

/* Rank 1 of 4 does not come: the others have the numbers from 0 on. */
static void test_goes_on_without_a_rank(void **state)
{
    const int32_t ranks[] = {0, 2, 3};
    char *log;
    member m[3];
    place places[3];
    published b;

    (void)state;
    quorum_init(m, &b, places, 3, 4);
    for (int i = 0; i < 3; i++) m[i].rank = ranks[i];
    for (int i = 0; i < 3; i++) m[i].timeout_ms = 500;
    ranks_run(m, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(m[i].status, DDP_OK);
        assert_int_equal(places[i].rank, i);
        assert_int_equal(places[i].world, 3);
        assert_memory_equal(places[i].homes, ranks, sizeof(ranks));
    }
    log = member_log(&m[0]);
    assert_contains(log, "rank 1 of world_size 4 did not come within 0.5 s (rendezvous_timeout): the run goes on");
    free(log);
    members_close(m, 3);
}

/* With so many as were there before nobody waits for the others. */
static void test_enough_are_there(void **state)
{
    member m[2];
    place places[2];
    published b;
    char *log;

    (void)state;
    quorum_init(m, &b, places, 2, 4);
    for (int i = 0; i < 2; i++) m[i].quorum.enough = 2;
    ranks_run(m, 2);
    log = member_log(&m[0]);
    assert_null(strstr(log, "did not come"));
    free(log);
    assert_int_equal(places[0].world, 2);
    assert_int_equal(places[1].world, 2);
    members_close(m, 2);
}

/* Nor does a rank 0 that was started again, once it has heard how many those are. */
static void test_rank0_started_again_hears_how_many(void **state)
{
    member m[2];
    place places[2];
    published b;
    char *log;

    (void)state;
    quorum_init(m, &b, places, 2, 4);
    m[0].generation = 0;
    m[0].restarted = true;
    m[1].start = START;
    m[1].quorum.enough = 2;
    ranks_run(m, 2);
    log = member_log(&m[0]);
    assert_null(strstr(log, "did not come"));
    free(log);
    assert_int_equal(places[0].world, 2);
    assert_int_equal(places[1].world, 2);
    members_close(m, 2);
}

static void test_fewer_than_min_world(void **state)
{
    member m[2];
    place places[2];
    published b;

    (void)state;
    quorum_init(m, &b, places, 2, 4);
    for (int i = 0; i < 2; i++) {
        m[i].quorum.min_world = 3;
        m[i].timeout_ms = 300;
    }
    ranks_run(m, 2);
    assert_int_equal(m[0].failure.exit_code, DDP_EXIT_RENDEZVOUS);
    assert_contains(m[0].failure.msg, "ranks 2, 3 of world_size 4 did not come");
    members_close(m, 2);
}

/* Rank 2 serves, in place of rank 0: it is the first of the generation. */
static void test_another_server(void **state)
{
    const int32_t homes[] = {2, 1, 3};
    member m[3];
    place places[3];
    published b;

    (void)state;
    quorum_init(m, &b, places, 3, 4);
    for (int i = 0; i < 3; i++) {
        m[i].rank = homes[i];
        m[i].quorum.server = 2;
        m[i].quorum.enough = 3;
    }
    ranks_run(m, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(m[i].status, DDP_OK);
        assert_int_equal(places[i].rank, i);
        assert_memory_equal(places[i].homes, homes, sizeof(homes));
    }
    members_close(m, 3);
}

/* Until it is to end for another rank. */
static void train_until_stop(member *m)
{
    place *p = m->arg;

    atomic_store(&inside, 1);
    UNTIL((p->stop = ddp_group_stop_requested(m->group)) != 0 || ddp_group_failed(m->group, &m->failure));
    p->world = ddp_group_world(m->group) + ddp_group_knocks(m->group);
    ddp_group_grow(m->group);
}

/* Rank 1 comes back to a generation that has gone on without it. */
static void test_missing_rank_comes_back(void **state)
{
    char endpoint[DDP_ENDPOINT_MAX] = "";
    member m;
    place place;
    published b;
    ddp_wire w;

    (void)state;
    quorum_init(&m, &b, &place, 1, 2);
    atomic_store(&inside, 0);
    m.timeout_ms = 200;
    m.body = train_until_stop;
    member_start(&m);
    published_wait(&b, endpoint);
    UNTIL(atomic_load(&inside) == 1);
    rank1(&w, endpoint, 0);
    assert_int_equal(raw_next(&w).type, DDP_FRAME_BEAT);
    expect_later(&w, "the ranks join again");
    member_join(&m);
    assert_int_equal(m.failure.exit_code, 0);
    assert_int_equal(place.stop, DDP_STOP_TO_GROW);
    assert_int_equal(place.world, 2);
    members_close(&m, 1);
}

/* A generation of rank 0 alone, of two, until go_on. */
static void rank0_alone(member *m, published *b, void (*body)(member *), char *endpoint)
{
    quorum_init(m, b, NULL, 1, 2);
    atomic_store(&go_on, 0);
    atomic_store(&inside, 0);
    m->agreement = "[train] seed = 1\ta.ini:1\n";
    m->timeout_ms = 200;
    m->body = body;
    member_start(m);
    published_wait(b, endpoint);
    UNTIL(atomic_load(&inside) == 1);
}

/* It is gone before it could join: nobody waits for it any more. */
static void test_rank_that_knocks_and_is_gone(void **state)
{
    char endpoint[DDP_ENDPOINT_MAX] = "";
    ddp_wire w, spare;
    published b;
    member m;

    (void)state;
    rank0_alone(&m, &b, stay, endpoint);
    raw_open(&w, endpoint);
    raw_hello(&w, (hello){1, 2, DDP_VERSION}, m.agreement);
    assert_int_equal(raw_next(&w).type, DDP_FRAME_BEAT);
    assert_int_equal(ddp_group_stop_requested(m.group), DDP_STOP_TO_GROW);
    assert_int_equal(ddp_group_knocks(m.group), 1);
    /* its place is taken already, so a spare waits; and gets it when the rank is gone */
    raw_open(&spare, endpoint);
    raw_hello(&spare, (hello){(uint32_t)DDP_RANK_OF_SPARE, 2, DDP_VERSION}, m.agreement);
    assert_int_equal(raw_next(&spare).type, DDP_FRAME_BEAT);
    assert_int_equal(ddp_group_knocks(m.group), 1);
    ddp_wire_close(&w);
    assert_int_equal(raw_next(&spare).type, DDP_FRAME_BEAT);
    assert_int_equal(ddp_group_knocks(m.group), 1);
    ddp_wire_close(&spare);
    UNTIL(ddp_group_stop_requested(m.group) == 0);
    assert_int_equal(ddp_group_knocks(m.group), 0);
    rank0_end(&m);
    assert_int_equal(m.failure.exit_code, 0);
}

static void expect_refusal(const char *endpoint, hello h, const char *agreement, const char *reason)
{
    ddp_failure why = {0};
    ddp_frame f;
    ddp_wire w;

    raw_open(&w, endpoint);
    raw_hello(&w, h, agreement);
    f = raw_next(&w);
    assert_int_equal(f.type, DDP_FRAME_FAILURE);
    assert_true(ddp_failure_unpack(&f, &why));
    assert_int_equal(why.exit_code, DDP_EXIT_RENDEZVOUS);
    assert_contains(why.msg, reason);
    ddp_wire_close(&w);
}

/* Processes of other settings come to a run that goes on: it does not end for any of them. */
static void test_other_settings_concern_them_alone(void **state)
{
    char endpoint[DDP_ENDPOINT_MAX] = "";
    const uint32_t spare = (uint32_t)DDP_RANK_OF_SPARE;
    const char *other = "[train] seed = 2\tb.ini:9\n";
    published b;
    member m;

    (void)state;
    rank0_alone(&m, &b, stay, endpoint);
    expect_refusal(endpoint, (hello){1, 2, DDP_VERSION}, other,
                   "rank 0 and rank 1 differ in [train] seed: 1 (rank 0, a.ini:1) against 2 (rank 1, b.ini:9)");
    expect_refusal(endpoint, (hello){spare, 2, DDP_VERSION}, other, "rank 0 and a spare differ in [train] seed");
    expect_refusal(endpoint, (hello){1, 2, "0.0.1"}, other, "rank 1 on host rawhost runs ddpengine 0.0.1");
    expect_refusal(endpoint, (hello){spare, 3, DDP_VERSION}, other, "a spare on host rawhost has world_size 3");
    expect_refusal(endpoint, (hello){7, 2, DDP_VERSION}, other, "rank 7 on host rawhost is out of range");
    assert_int_equal(ddp_group_stop_requested(m.group), 0);
    assert_int_equal(ddp_group_knocks(m.group), 0);
    rank0_end(&m);
    assert_int_equal(m.failure.exit_code, 0);
}

/* And before the ranks of a later generation have met: the place stays free for the right one. */
static void test_other_settings_while_ranks_join_again(void **state)
{
    char endpoint[DDP_ENDPOINT_MAX] = "";
    place places[2];
    member m[2];
    published b;

    (void)state;
    quorum_init(m, &b, places, 2, 2);
    for (int i = 0; i < 2; i++) m[i].agreement = "[train] seed = 1\ta.ini:1\n";
    member_start(&m[0]);
    published_wait(&b, endpoint);
    expect_refusal(endpoint, (hello){1, 2, DDP_VERSION}, "[train] seed = 2\tb.ini:9\n", "differ in [train] seed");
    member_start(&m[1]);
    for (int i = 0; i < 2; i++) member_join(&m[i]);
    for (int i = 0; i < 2; i++) assert_int_equal(m[i].status, DDP_OK);
    assert_int_equal(places[0].world, 2);
    members_close(m, 2);
}

/* So it is with a rank 0 that was started again, though it knows of no generation. */
static void test_rank0_started_again(void **state)
{
    char endpoint[DDP_ENDPOINT_MAX] = "";
    place places[2];
    member m[2];
    published b;

    (void)state;
    quorum_init(m, &b, places, 2, 2);
    m[0].generation = 0;
    m[0].restarted = true;
    for (int i = 0; i < 2; i++) m[i].agreement = "[train] seed = 1\ta.ini:1\n";
    member_start(&m[0]);
    published_wait(&b, endpoint);
    expect_refusal(endpoint, (hello){1, 3, DDP_VERSION}, m[0].agreement, "rank 1 on host rawhost has world_size 3");
    expect_refusal(endpoint, (hello){1, 2, DDP_VERSION}, "[train] seed = 2\tb.ini:9\n", "differ in [train] seed");
    member_start(&m[1]);
    for (int i = 0; i < 2; i++) member_join(&m[i]);
    for (int i = 0; i < 2; i++) assert_int_equal(m[i].status, DDP_OK);
    members_close(m, 2);
}

/* Who has waited for a place that another one had does not take it from that one when the ranks join again. */
static void test_place_of_one_that_lives(void **state)
{
    char endpoint[DDP_ENDPOINT_MAX] = "";
    const hello waiter = {1, 2, DDP_VERSION};
    place places[2];
    member m[2];
    ddp_wire w;
    published b;

    (void)state;
    for (int lives = 0; lives < 2; lives++) {
        quorum_init(m, &b, places, 2, 2);
        for (int i = 0; i < 2; i++) m[i].agreement = "";
        member_start(&m[0]);
        published_wait(&b, endpoint);
        raw_open(&w, endpoint);
        raw_hello_again(&w, waiter, (past){.displaced = true}, "");
        expect_beat(&w, "who was this rank may come back");
        if (lives) {
            member_start(&m[1]);
            for (int i = 0; i < 2; i++) member_join(&m[i]);
            assert_int_equal(m[1].status, DDP_OK);
        } else {
            expect_later(&w, "the ranks join again");
            raw_open(&w, endpoint);
            raw_hello_again(&w, waiter, (past){.displaced = true}, "");
            assert_int_equal(raw_next(&w).type, DDP_FRAME_HEARD);
            assert_int_equal(raw_next(&w).type, DDP_FRAME_WELCOME);
            assert_int_equal(ddp_wire_put(&w, DDP_FRAME_GOODBYE, NULL, 0, &m[0].err), DDP_OK);
            assert_int_equal(ddp_wire_flush(&w, &m[0].err), DDP_OK);
            member_join(&m[0]);
        }
        ddp_wire_close(&w);
        assert_int_equal(m[0].status, DDP_OK);
        members_close(m, 2);
    }
}

/* Whose place is taken while the ranks join again gets it where that one is lost, by silence too. */
static void test_place_of_one_that_is_silent(void **state)
{
    char endpoint[DDP_ENDPOINT_MAX] = "", *log;
    ddp_wire silent, w[2];
    published b;
    member m;

    (void)state;
    quorum_init(&m, &b, NULL, 1, 3);
    m.quorum.min_world = 3;
    m.body = NULL;
    m.peer_timeout_ms = 300;
    m.agreement = "";
    member_start(&m);
    published_wait(&b, endpoint);
    raw_open(&silent, endpoint);
    raw_hello_again(&silent, (hello){1, 3, DDP_VERSION}, (past){0, 1, false}, "");
    assert_int_equal(raw_next(&silent).type, DDP_FRAME_HEARD);
    raw_open(&w[0], endpoint);
    raw_hello(&w[0], (hello){1, 3, DDP_VERSION}, "");
    for (uint32_t type = DDP_FRAME_BEAT; type != DDP_FRAME_LATER;) {
        assert_int_equal(type, DDP_FRAME_BEAT);
        type = raw_next(&w[0]).type;
    }
    ddp_wire_close(&w[0]);
    for (uint32_t i = 0; i < 2; i++) {
        raw_open(&w[i], endpoint);
        raw_hello(&w[i], (hello){i + 1, 3, DDP_VERSION}, "");
        assert_int_equal(raw_next(&w[i]).type, DDP_FRAME_HEARD);
    }
    for (int i = 0; i < 2; i++) {
        while (raw_next(&w[i]).type == DDP_FRAME_BEAT) continue; /* the last one is WELCOME */
        assert_int_equal(ddp_wire_put(&w[i], DDP_FRAME_GOODBYE, NULL, 0, &m.err), DDP_OK);
        assert_int_equal(ddp_wire_flush(&w[i], &m.err), DDP_OK);
    }
    member_join(&m);
    assert_int_equal(m.status, DDP_OK);
    assert_int_equal(m.failure.exit_code, 0);
    log = member_log(&m);
    assert_contains(log, "rank 1 on host rawhost is silent before all ranks had met: waiting for it to come back");
    free(log);
    ddp_wire_close(&silent);
    for (int i = 0; i < 2; i++) ddp_wire_close(&w[i]);
    members_close(&m, 1);
}

static void leave_to_grow(member *m)
{
    stay(m);
    ddp_group_grow(m->group);
}

/* Whoever waits when the run ends hears of it; when a generation alone ends, it comes again. */
static void test_the_end_of_those_who_wait(void **state)
{
    char endpoint[DDP_ENDPOINT_MAX] = "";
    published b;
    member m;

    (void)state;
    for (int grows = 0; grows < 2; grows++) {
        ddp_wire w[2];

        rank0_alone(&m, &b, grows ? leave_to_grow : stay, endpoint);
        for (int i = 0; i < 2; i++) {
            raw_open(&w[i], endpoint);
            raw_hello(&w[i], (hello){i == 0 ? 1 : (uint32_t)DDP_RANK_OF_SPARE, 2, DDP_VERSION}, m.agreement);
            assert_int_equal(raw_next(&w[i]).type, DDP_FRAME_BEAT);
        }
        atomic_store(&go_on, 1);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(raw_next(&w[i]).type, grows ? DDP_FRAME_LATER : DDP_FRAME_FAREWELL);
            ddp_wire_close(&w[i]);
        }
        rank0_end(&m);
    }
}

static void end_at_once(member *m)
{
    while (atomic_load(&go_on) == 0) (void)usleep(1000);
    (void)m;
}

static bool says_that_it_waits(const member *m)
{
    char *log = member_log(m);
    bool waits = strstr(log, "this spare waits at") != NULL;

    free(log);
    return waits;
}

/* Nobody is lost: the spare ends with the run, and not by an error. */
static void test_spare_is_not_needed(void **state)
{
    char endpoint[DDP_ENDPOINT_MAX] = "";
    member m[2], spare;
    place places[2];
    published b;

    (void)state;
    quorum_init(m, &b, places, 2, 2);
    atomic_store(&go_on, 0);
    for (int i = 0; i < 2; i++) {
        m[i].generation = 0; /* in a later one it would take the place of a rank that comes after it */
        m[i].body = end_at_once;
        member_start(&m[i]);
    }
    published_wait(&b, endpoint);
    member_init(&spare, &b, DDP_RANK_OF_SPARE, 2);
    spare.rejoins = true;
    spare.log.rank = -1;
    member_start(&spare);
    UNTIL(says_that_it_waits(&spare));
    atomic_store(&go_on, 1);
    for (int i = 0; i < 2; i++) member_join(&m[i]);
    member_join(&spare);
    assert_int_equal(spare.status, DDP_IN_PROGRESS);
    assert_int_equal(spare.failure.exit_code, 0);
    members_close(m, 2);
    members_close(&spare, 1);
}

/* What a process that waits is told may arrive together with a heartbeat. */
static void test_frames_that_come_together(void **state)
{
    ddp_err err = {0};
    int fd, connection;
    member spare;
    published b;
    ddp_wire w;

    (void)state;
    published_init(&b, "");
    assert_int_equal(ddp_endpoint_listen("127.0.0.1:0", &fd, b.endpoint, &err), DDP_OK);
    member_init(&spare, &b, DDP_RANK_OF_SPARE, 2);
    spare.rejoins = true;
    spare.peer_timeout_ms = LONG_MS;
    spare.log.rank = -1;
    member_start(&spare);
    UNTIL((connection = accept(fd, NULL, NULL)) >= 0);
    ddp_wire_init(&w, connection, 1 << 20);
    assert_int_equal(raw_next(&w).type, DDP_FRAME_HELLO);
    assert_int_equal(raw_next(&w).type, DDP_FRAME_AGREEMENT);
    assert_int_equal(ddp_wire_put(&w, DDP_FRAME_BEAT, NULL, 0, &err), DDP_OK);
    assert_int_equal(ddp_wire_put(&w, DDP_FRAME_FAREWELL, NULL, 0, &err), DDP_OK);
    assert_int_equal(ddp_wire_flush(&w, &err), DDP_OK);
    member_join(&spare);
    assert_int_equal(spare.status, DDP_IN_PROGRESS);
    ddp_wire_close(&w);
    (void)close(fd);
    members_close(&spare, 1);
}

/* It comes while a rank is missing: it becomes that rank. */
static void test_spare_takes_the_place_of_a_missing_rank(void **state)
{
    member m[2];
    place places[2];
    published b;

    (void)state;
    quorum_init(m, &b, places, 2, 2);
    m[1].rank = DDP_RANK_OF_SPARE;
    m[1].generation = 0;
    m[1].log.rank = -1;
    ranks_run(m, 2);
    assert_int_equal(m[1].status, DDP_OK);
    assert_int_equal(places[1].rank, 1);
    assert_int_equal(places[1].homes[1], 1);
    members_close(m, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_highest_generation_counts),
        cmocka_unit_test(test_latest_start_counts),
        cmocka_unit_test(test_lost_rank_is_waited_for),
        cmocka_unit_test(test_who_comes_too_early_tries_again),
        cmocka_unit_test(test_other_settings_still_end_it),
        cmocka_unit_test(test_losses),
        cmocka_unit_test(test_goes_on_without_a_rank),
        cmocka_unit_test(test_enough_are_there),
        cmocka_unit_test(test_rank0_started_again_hears_how_many),
        cmocka_unit_test(test_fewer_than_min_world),
        cmocka_unit_test(test_another_server),
        cmocka_unit_test(test_missing_rank_comes_back),
        cmocka_unit_test(test_rank_that_knocks_and_is_gone),
        cmocka_unit_test(test_other_settings_concern_them_alone),
        cmocka_unit_test(test_other_settings_while_ranks_join_again),
        cmocka_unit_test(test_rank0_started_again),
        cmocka_unit_test(test_place_of_one_that_lives),
        cmocka_unit_test(test_place_of_one_that_is_silent),
        cmocka_unit_test(test_the_end_of_those_who_wait),
        cmocka_unit_test(test_spare_is_not_needed),
        cmocka_unit_test(test_frames_that_come_together),
        cmocka_unit_test(test_spare_takes_the_place_of_a_missing_rank),
    };

    (void)signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
