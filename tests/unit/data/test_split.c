/* tests/unit/data/test_split.c -- how the samples of an epoch are split up: each comes once, in the step that its
 * position says, whatever the number of ranks; and the loader's batches are those. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>

#include "data/split.h"
#include <stdlib.h>
#include <string.h>
#include <cmocka.h> /* last: it makes a macro of fail */

enum { MOST = 64 };

/* Marks what a rank has of the step in `seen`, by position; *next: the first of its samples that is still to come. */
static void take_step(const ddp_split *s, uint64_t rank, uint64_t step, uint64_t *next, int *seen)
{
    uint64_t micros = ddp_split_micros(s, step), begin = step * ddp_split_micros(s, 0), least = UINT64_MAX, most = 0;

    for (uint64_t m = 0; m < micros; m++) {
        uint64_t first, end;

        ddp_split_range(s, rank, begin + m, &first, &end);
        assert_int_equal(first, *next);
        assert_in_range(end, first, first + s->batch);
        least = DDP_MIN_OF(least, end - first);
        most = DDP_MAX_OF(most, end - first);
        for (uint64_t i = first; i < end; i++) {
            uint64_t position = i * s->world + rank;

            assert_int_equal(position / s->global, step);
            seen[position]++;
        }
        *next = end;
    }
    assert_in_range(most - least, 0, 1);
}

static void check(const ddp_split *s)
{
    uint64_t steps = ddp_split_steps(s), micros = 0, samples = 0;
    int seen[MOST] = {0};

    for (uint64_t step = 0; step < steps; step++) {
        samples += ddp_split_samples(s, step);
        micros += ddp_split_micros(s, step);
        assert_in_range(ddp_split_micros(s, step), 1, ddp_split_micros(s, 0));
    }
    assert_int_equal(samples, s->total);
    assert_int_equal(micros, ddp_split_batches(s));
    for (uint64_t rank = 0; rank < s->world; rank++) {
        uint64_t next = 0;

        for (uint64_t step = 0; step < steps; step++) take_step(s, rank, step, &next, seen);
        assert_int_equal(next, ddp_split_before(s, s->total, rank));
    }
    for (uint64_t i = 0; i < s->total; i++) assert_int_equal(seen[i], 1);
}

static void every_sample_once(void **state)
{
    (void)state;
    for (uint64_t total = 1; total < MOST; total += 1 + total / 9)
        for (uint64_t global = 1; global < 20; global++)
            for (uint64_t world = 1; world <= 7 && world <= global; world++)
                for (uint64_t batch = 1; batch <= 5; batch += 2)
                    check(&(ddp_split){.total = total, .global = global, .batch = batch, .world = world});
}

static void by_hand(void **state)
{
    const ddp_split s = {.total = 21, .global = 8, .batch = 2, .world = 3}; /* steps of 8, 8 and 5 */
    const struct {
        uint64_t rank, batch, first, end;
    } expected[] = {
        {0, 0, 0, 2}, {0, 1, 2, 3}, {1, 0, 0, 2}, {1, 1, 2, 3}, {2, 0, 0, 1}, {2, 1, 1, 2}, /* 0 3 6, 1 4 7, 2 5 */
        {0, 2, 3, 5}, {0, 3, 5, 6}, {2, 2, 2, 4}, {2, 3, 4, 5}, {1, 2, 3, 4}, {1, 3, 4, 5}, /* 9 12 15, 8 11 14 */
        {0, 4, 6, 7}, {1, 4, 5, 7}, {2, 4, 5, 7},                                           /* 18, 16 19, 17 20 */
    };

    (void)state;
    assert_int_equal(ddp_split_steps(&s), 3);
    assert_int_equal(ddp_split_micros(&s, 0), 2);
    assert_int_equal(ddp_split_micros(&s, 2), 1);
    assert_int_equal(ddp_split_batches(&s), 5);
    for (size_t i = 0; i < DDP_COUNT(expected); i++) {
        uint64_t first, end;

        ddp_split_range(&s, expected[i].rank, expected[i].batch, &first, &end);
        assert_int_equal(first, expected[i].first);
        assert_int_equal(end, expected[i].end);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_sample_once), cmocka_unit_test(by_hand)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
