/* test_pairs.c -- of `--check --net`: in which order pairs are measured, the table, and which pairs are slow. */
#include "cli/preflight/net.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h> /* last: it has a macro `fail` */

/* Every pair has one round, and in no round has a rank two others. */
static void each_pair_once(int32_t world, bool in_turn)
{
    int32_t rounds = in_turn ? world * (world - 1) / 2 : world + world % 2 - 1, met[20][20] = {{0}};

    for (int32_t round = 0; round < rounds; round++)
        for (int32_t a = 0; a < world; a++) {
            int32_t b = preflight_partner(world, round, a, in_turn);

            assert_true(b >= -1 && b < world && b != a);
            if (b >= 0) assert_int_equal(preflight_partner(world, round, b, in_turn), a);
            if (b >= 0) met[a][b]++;
        }
    for (int32_t a = 0; a < world; a++)
        for (int32_t b = 0; b < world; b++) assert_int_equal(met[a][b], a != b);
}

static void rounds(void **state)
{
    (void)state;
    for (int32_t world = 2; world <= 20; world++) {
        each_pair_once(world, true);
        each_pair_once(world, false);
    }
}

static void slow_pairs(void **state)
{
    const int32_t first_of[] = {0, 0, 2, 2}; /* two hosts; between them all is slower, which is no fault */
    double us[16], mbps[16];
    const ddp_pairs p = {.world = 4, .first_of = first_of, .us = us, .mbps = mbps};
    ddp_findings f = {0};
    ddp_text table = {0};
    double median;

    (void)state;
    for (int i = 0; i < 16; i++) us[i] = 40.0, mbps[i] = first_of[i / 4] == first_of[i % 4] ? 9000.0 : 1000.0;
    us[1] = us[4] = 4.25;
    mbps[1 * 4 + 3] = mbps[3 * 4 + 1] = 499.0;
    assert_true(preflight_is_slow(&p, 1, 3, &median) && preflight_is_slow(&p, 3, 1, NULL));
    assert_float_equal(median, 1000.0, 1e-9);
    assert_false(preflight_is_slow(&p, 0, 2, NULL) || preflight_is_slow(&p, 0, 1, &median));
    assert_float_equal(median, 9000.0, 1e-9);
    preflight_pairs_report(&p, "x", false, &table, &f);
    assert_int_equal(f.count[DDP_FINDING_WARNING], 1);
    assert_non_null(
        strstr(f.lines.data, "  warning  network        ranks 1 and 3: 499 MB/s, less than half of the median 1000"));
    assert_string_equal(table.data, "network               backend x: latency in us above the diagonal, MB/s below it\n"
                                    "  rank        0        1        2        3 \n"
                                    "     0        -      4.2       40       40 \n"
                                    "     1     9000        -       40       40 \n"
                                    "     2     1000     1000        -       40 \n"
                                    "     3     1000      499*    9000        - \n");
    ddp_text_free(&table);
    preflight_free(&f);
    mbps[1 * 4 + 3] = mbps[3 * 4 + 1] = 500.0; /* half is not less than half */
    preflight_pairs_report(&p, "x", true, &table, &f);
    assert_int_equal(f.count[DDP_FINDING_WARNING], 0);
    assert_non_null(strstr(f.lines.data, "  ok       network        at most 40 us and at least 500 MB/s"));
    assert_non_null(strstr(table.data, "backend x, by broadcasts:"));
    ddp_text_free(&table);
    preflight_free(&f);
}

/* The first problem decides; what a plugin reports cannot break a line. */
static void findings(void **state)
{
    ddp_findings f = {0};
    ddp_finding_sink sink = {.findings = &f, .exit_code = DDP_EXIT_PLUGIN};
    ddp_err err = {0};

    (void)state;
    preflight_add(&f, DDP_FINDING_OK, 0, "one", "fine");
    preflight_add(&f, DDP_FINDING_WARNING, 0, "two", "slow");
    assert_int_equal(f.exit_code, DDP_EXIT_OK);
    preflight_report(&sink, DDP_FINDING_PROBLEM, "three", "%d\nlines", 2);
    (void)ddp_fail(&err, DDP_ERR_CONFIG, "no such key");
    (void)ddp_fail_as(&err, DDP_EXIT_CONFIG);
    preflight_add_error(&f, NULL, &err);
    assert_int_equal(f.exit_code, DDP_EXIT_PLUGIN);
    assert_string_equal(f.first, "2 lines");
    assert_string_equal(f.lines.data, "  ok       one            fine\n  warning  two            slow\n"
                                      "  problem  three          2 lines\n  problem  config         no such key\n");
    assert_true(preflight_has(&f, "no such key") && !preflight_has(&f, "another"));
    preflight_free(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rounds), cmocka_unit_test(slow_pairs),
                                       cmocka_unit_test(findings)};

    return cmocka_run_group_tests_name("pairs", tests, NULL, NULL);
}
