/* tests/unit/control/test_times.c -- the times of all ranks, as rank 0 gets them: over the same steps of each, whatever
 * steps they have marked, and never across a way back to a checkpoint. */
#include "support/group_util.h"
#include <math.h>

enum { RANKS = 3, FIRST = 5, FAILED = 205, BACK = 105, LAST = 405, MOST = 64 };

typedef struct taken {
    uint64_t step, steps;
    double ms[DDP_TIMES * RANKS];
} taken;

typedef struct shared {
    atomic_int here, told; /* ranks that are done with their steps; rank 0 has all */
    atomic_bool over;
    bool third_tells; /* rank 2 has times as well */
    taken all[MOST];
    int count;
} shared;

static void take(member *m, shared *b, bool last)
{
    taken *t = &b->all[b->count];
    ddp_rank_times times = {.ms = t->ms};

    while (b->count < MOST && ddp_group_times_take(m->group, last, &times)) {
        t->step = times.step;
        t->steps = times.steps;
        times.ms = (t = &b->all[++b->count])->ms;
    }
}

/* What "ddp-observe" does. */
static void *observe(void *arg)
{
    member *m = arg;
    shared *b = m->arg;

    while (!atomic_load(&b->over)) {
        take(m, b, false);
        (void)usleep(1000);
    }
    return NULL;
}

static void train(member *m, uint64_t from, uint64_t to)
{
    const double r = (double)m->rank;
    const double ms[DDP_TIMES] = {[DDP_TIME_DATA] = 0.25 * (r + 1),
                                  [DDP_TIME_COMPUTE] = 2.0 + r,
                                  [DDP_TIME_WAIT] = 4.0 - r,
                                  [DDP_TIME_UPDATE] = 0.5};

    for (uint64_t step = from + 1; step <= to; step++) ddp_group_times_step(m->group, step, ms);
}

static void body(member *m)
{
    shared *b = m->arg;
    pthread_t thread;

    if (m->rank == 0) assert_int_equal(pthread_create(&thread, NULL, observe, m), 0);
    if (m->rank < 2 || b->third_tells) {
        ddp_group_times_begin(m->group, FIRST, LAST);
        train(m, FIRST, FAILED);
        train(m, BACK, LAST);
        ddp_group_times_checkpoint(m->group, 7.0);
        if (m->rank > 0) (void)usleep(20000); /* rank 0 waits */
        ddp_group_times_end(m->group);
    }
    if (m->rank == 0) {
        atomic_store(&b->over, true);
        assert_int_equal(until_joined(thread), 0);
        take(m, b, true);
    }
    (void)atomic_fetch_add(&b->here, 1);
    UNTIL(atomic_load(&b->here) == RANKS);
}

static void run(shared *b)
{
    published p;
    member m[RANKS];

    published_init(&p, "127.0.0.1:0");
    for (int r = 0; r < RANKS; r++) {
        member_init(&m[r], &p, r, RANKS);
        m[r].body = body;
        m[r].arg = b;
        member_start(&m[r]);
    }
    for (int r = 0; r < RANKS; r++) {
        member_join(&m[r]);
        assert_int_equal(m[r].status, DDP_OK);
        assert_int_equal(m[r].failure.exit_code, 0);
    }
    members_close(m, RANKS);
}

static void near(double got, double want)
{
    if (!(fabs(got - want) <= 1e-5 * want)) fail_msg("%.9g, not %.9g", got, want);
}

static void check_rank(const taken *t, int r)
{
    near(t->ms[DDP_TIME_DATA * RANKS + r], 0.25 * (r + 1));
    near(t->ms[DDP_TIME_COMPUTE * RANKS + r], 2.0 + r);
    near(t->ms[DDP_TIME_WAIT * RANKS + r], 4.0 - r);
    near(t->ms[DDP_TIME_UPDATE * RANKS + r], 0.5);
    near(t->ms[DDP_TIME_STEP * RANKS + r], 6.5 + 0.25 * (r + 1));
    near(t->ms[DDP_TIME_CHECKPOINT * RANKS + r], t->step == LAST ? 7.0 / (double)t->steps : 0.0);
}

static void test_same_steps_of_all(void **state)
{
    shared b = {.third_tells = true};
    uint64_t at = FIRST;

    (void)state;
    run(&b);
    assert_true(b.count > 5 && b.count < MOST);
    for (int i = 0; i < b.count; i++) {
        const taken *t = &b.all[i];

        if (at > BACK && t->step - t->steps == BACK) at = BACK; /* the step that failed has no mark */
        assert_int_equal(t->step - t->steps, at);
        at = t->step;
        for (int r = 0; r < RANKS; r++) check_rank(t, r);
    }
    assert_int_equal(at, LAST);
}

static void test_a_rank_without_figures(void **state)
{
    shared b = {0};

    (void)state;
    run(&b);
    assert_true(b.count > 5);
    assert_int_equal(b.all[b.count - 1].step, LAST);
    for (int i = 0; i < b.count; i++) {
        for (int r = 0; r < 2; r++) check_rank(&b.all[i], r);
        for (int k = 0; k < DDP_TIMES; k++) assert_true(isnan(b.all[i].ms[k * RANKS + 2]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_steps_of_all),
                                       cmocka_unit_test(test_a_rank_without_figures)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
