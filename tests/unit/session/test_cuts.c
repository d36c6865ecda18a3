/* tests/unit/session/test_cuts.c -- where a row of nodes is cut into stages: against all ways of cutting it. */
#include "session/stages/cuts.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h> /* last: it has a macro `fail` */

enum { NODES = 24, CUTS = 11, TRIES = 300 };

typedef struct trial {
    double time[NODES], params[NODES], activations[NODES];
    session_costs c;
    uint32_t cuts[CUTS], count;
} trial;

/* A small generator of its own: the same numbers on every machine. */
static uint32_t draw(uint32_t *state, uint32_t below)
{
    *state = *state * 1664525u + 1013904223u;
    return (*state >> 8) % below;
}

static void make(trial *t, uint32_t seed, uint32_t stages)
{
    uint32_t state = seed;

    *t = (trial){.c = {.nodes = NODES, .stages = stages}};
    t->c.time = t->time;
    t->c.params = t->params;
    t->c.activations = t->activations;
    for (int i = 0; i < NODES; i++) {
        t->time[i] = 1.0 + draw(&state, 50);
        t->params[i] = draw(&state, 100);
        t->activations[i] = draw(&state, 100);
    }
    for (uint32_t s = 0; s < stages; s++) t->c.speed[s] = 1.0 + draw(&state, 2);
    for (uint32_t at = 1 + draw(&state, 2); at < NODES && t->count < CUTS; at += 1 + draw(&state, 3))
        t->cuts[t->count++] = at;
}

/* The largest stage's time or, with a limit of that, memory; INFINITY: a stage is over it. */
static double largest(const trial *t, const uint32_t *first, double limit)
{
    double most = 0.0;

    for (uint32_t s = 0; s < t->c.stages; s++) {
        uint32_t end = s + 1 < t->c.stages ? first[s + 1] : NODES;
        double time = 0.0, memory = 0.0;

        for (uint32_t i = first[s]; i < end; i++) {
            time += t->time[i] * t->c.speed[s];
            memory += t->params[i] + t->activations[i] * (t->c.stages - s);
        }
        if (time > limit) return INFINITY;
        most = fmax(most, isinf(limit) ? time : memory);
    }
    return most;
}

/* The least of all ways. */
static double search(const trial *t, uint32_t *first, uint32_t stage, uint32_t from, double limit)
{
    double best = INFINITY;

    if (stage == t->c.stages) return largest(t, first, limit);
    for (uint32_t k = from; k < t->count; k++) {
        first[stage] = t->cuts[k];
        best = fmin(best, search(t, first, stage + 1, k + 1, limit));
    }
    return best;
}

static void test_is_the_best(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < TRIES; i++) {
        uint32_t first[SESSION_STAGES_MOST] = {0}, other[SESSION_STAGES_MOST] = {0};
        double slowest, best, time;
        ddp_err err = {0};
        trial t;

        make(&t, i, 2 + i % 3);
        assert_true(session_cut(&t.c, t.cuts, t.count, first, &slowest, &err));
        best = search(&t, other, 1, 0, INFINITY);
        time = largest(&t, first, INFINITY);
        assert_true(time <= best * 1.03 + 1e-9);
        assert_true(fabs(largest(&t, first, best * 1.03 + 1e-9) - search(&t, other, 1, 0, best * 1.03 + 1e-9)) < 1e-6);
        assert_true(slowest >= 1.0 - 1e-9);
    }
}

static void test_equal_layers(void **state)
{
    uint32_t first[SESSION_STAGES_MOST], cuts[NODES];
    double slowest;
    ddp_err err = {0};
    trial t;

    (void)state;
    make(&t, 1, 4);
    for (uint32_t i = 0; i < NODES; i++) {
        t.time[i] = t.params[i] = t.activations[i] = 1.0;
        cuts[i] = i + 1;
    }
    for (uint32_t s = 0; s < 4; s++) t.c.speed[s] = 1.0;
    assert_true(session_cut(&t.c, cuts, NODES - 1, first, &slowest, &err));
    for (uint32_t s = 0; s < 4; s++) assert_int_equal(first[s], s * 6);
    assert_true(fabs(slowest - 1.0) < 1e-9);
}

static void test_too_few_cuts(void **state)
{
    uint32_t first[SESSION_STAGES_MOST];
    double slowest;
    ddp_err err = {0};
    trial t;

    (void)state;
    make(&t, 1, 4);
    assert_false(session_cut(&t.c, t.cuts, 2, first, &slowest, &err));
    assert_int_equal(err.status, DDP_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_is_the_best), cmocka_unit_test(test_equal_layers),
                                       cmocka_unit_test(test_too_few_cuts)};

    return cmocka_run_group_tests_name("cuts", tests, NULL, NULL);
}
