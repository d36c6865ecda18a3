/* tests/unit/session/test_affinity.c -- [train] pin: who gets which processors, decided from what the ranks of a
 * host say of themselves. */
#include "session/affinity.h"
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h> /* last: it has a macro `fail` */

enum { NONE = -1, LEFT = -2, REFUSED = -3 }; /* else the place of the first processor */

typedef struct expected {
    ddp_pin_rank ranks[4]; /* mask, processors, threads; the first with no thread ends it */
    bool bound;
    int answers[3][4]; /* by wish, by rank */
} expected;

static const expected cases[] = {
    /* a thread for each processor: pinned, in the order of the ranks */
    {{{7, 2, 1}, {7, 2, 1}}, false, {{0, 1}, {0, 1}, {NONE, NONE}}},
    {{{7, 8, 4}, {7, 8, 4}}, false, {{0, 4}, {0, 4}, {NONE, NONE}}},
    {{{7, 4, 4}}, false, {{0}, {0}, {NONE}}},
    {{{7, 4, 1}, {7, 4, 2}, {7, 4, 1}}, false, {{0, 1, 3}, {0, 1, 3}, {NONE, NONE, NONE}}}, /* unlike threads */
    /* processors to spare */
    {{{7, 8, 2}, {7, 8, 2}}, false, {{NONE, NONE}, {0, 2}, {NONE, NONE}}},
    {{{7, 2, 1}}, false, {{NONE}, {0}, {NONE}}},
    /* too few */
    {{{7, 2, 4}, {7, 2, 4}}, false, {{NONE, NONE}, {REFUSED, REFUSED}, {NONE, NONE}}},
    {{{7, 2, 1}, {7, 2, 1}, {7, 2, 1}}, false, {{NONE, NONE, NONE}, {REFUSED, REFUSED, REFUSED}, {NONE, NONE, NONE}}},
    {{{7, 1, 2}}, false, {{NONE}, {REFUSED}, {NONE}}},
    /* all bound to the same ones, by taskset or a container */
    {{{7, 2, 1}, {7, 2, 1}}, true, {{NONE, NONE}, {0, 1}, {NONE, NONE}}},
    {{{7, 2, 2}, {7, 2, 2}}, true, {{NONE, NONE}, {REFUSED, REFUSED}, {NONE, NONE}}},
    /* each to its own, by a launcher */
    {{{7, 1, 1}, {8, 1, 1}}, true, {{NONE, NONE}, {0, 0}, {NONE, NONE}}},
    {{{7, 2, 2}, {8, 2, 1}}, true, {{NONE, NONE}, {0, LEFT}, {NONE, NONE}}},
    {{{7, 1, 2}, {8, 1, 2}}, true, {{NONE, NONE}, {LEFT, LEFT}, {NONE, NONE}}},
    /* some to the same ones: whose they are is not known */
    {{{7, 1, 1}, {8, 1, 1}, {7, 1, 1}}, true, {{NONE, NONE, NONE}, {LEFT, 0, LEFT}, {NONE, NONE, NONE}}},
    {{{7, 4, 1}, {8, 2, 2}}, false, {{NONE, NONE}, {LEFT, 0}, {NONE, NONE}}},
    {{{0, 0, 1}, {0, 0, 1}}, false, {{NONE, NONE}, {NONE, NONE}, {NONE, NONE}}}, /* the system does not tell */
};

static int answer(const expected *e, ddp_pin_wish wish, uint32_t own, uint32_t count, ddp_err *err)
{
    const ddp_pin_case c = {.wish = wish, .bound = e->bound, .ranks = e->ranks, .own = own, .count = count};
    ddp_affinity pin;

    if (session_pin_choose(&c, &pin, err) != DDP_OK) {
        assert_int_equal(err->status, DDP_ERR_CONFIG);
        return REFUSED;
    }
    return pin.pinned ? (int)pin.first : pin.left_alone ? LEFT : NONE;
}

static void choices(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const expected *e = &cases[i];
        uint32_t count = 0;

        while (count < 4 && e->ranks[count].threads > 0) count++;
        for (int wish = DDP_AFFINITY_AUTO; wish <= DDP_AFFINITY_NO; wish++)
            for (uint32_t r = 0; r < count; r++) {
                ddp_err err = {0};
                int got = answer(e, (ddp_pin_wish)wish, r, count, &err);

                if (got != e->answers[wish][r])
                    fail_msg("case %zu, wish %d, rank %u: %d, expected %d", i, wish, r, got, e->answers[wish][r]);
            }
    }
}

static void refusal_says_why(void **state)
{
    static const char *const parts[] = {"pin = yes", "2 ranks", "8 threads", "2 processors", "lower [train] threads",
                                        "pin = auto"};
    const expected e = {.ranks = {{7, 2, 4}, {7, 2, 4}}};
    ddp_err err = {0};

    (void)state;
    assert_int_equal(answer(&e, DDP_AFFINITY_YES, 0, 2, &err), REFUSED);
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        if (strstr(err.msg, parts[i]) == NULL) fail_msg("no \"%s\" in: %s", parts[i], err.msg);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(choices), cmocka_unit_test(refusal_says_why)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
