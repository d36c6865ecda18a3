/* tests/unit/train/test_thread_pool.c -- threads that work side by side for one trainer: every member does every job
 * once, what is written before a start is seen by it, what it writes is seen after the wait. Under ThreadSanitizer
 * this is the test of the handover. */
#include "train/local/thread_pool.h"
#include "base/sys.h"
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h> /* last: it has a macro `fail` */

enum { MEMBERS = 5, FIRST = 1, JOBS = 2000 };
enum { JOB_ADD, JOB_FAIL, JOB_SLEEP };

typedef struct results {
    uint64_t given;                 /* by the trainer, for the job in hand */
    uint64_t sums[FIRST + MEMBERS]; /* by member */
    uint32_t failing;               /* members from this number on */
    int64_t sleep_us;
} results;

static ddp_status work(void *ctx, uint32_t member, uint32_t job, ddp_err *err)
{
    results *b = ctx;

    if (job == JOB_ADD) b->sums[member] += b->given * member;
    if (job == JOB_SLEEP && member == FIRST) (void)usleep((useconds_t)b->sleep_us);
    if (job == JOB_FAIL && member >= b->failing)
        return ddp_fail(err, DDP_ERR_DATA, "member %u cannot", (unsigned)member);
    return DDP_OK;
}

static ddp_thread_pool *open_pool(results *b)
{
    ddp_thread_pool_params p = {
        .name = "ddp-member", .what = "member", .first = FIRST, .count = MEMBERS, .work = work, .ctx = b};
    ddp_thread_pool *t = NULL;
    ddp_err err = {0};

    if (local_thread_pool_open(&p, &t, &err) != DDP_OK) fail_msg("%s", err.msg);
    return t;
}

static void test_every_member_does_every_job(void **state)
{
    results b = {0};
    ddp_thread_pool *t = open_pool(&b);
    ddp_err err = {0};
    uint64_t sum = 0;

    (void)state;
    for (uint64_t job = 1; job <= JOBS; job++) {
        b.given = job;
        sum += job;
        local_thread_pool_start(t, JOB_ADD);
        assert_int_equal(local_thread_pool_wait(t, "a job", 10000, NULL, &err), DDP_OK);
        for (uint32_t m = FIRST; m < FIRST + MEMBERS; m++) assert_int_equal(b.sums[m], sum * m);
    }
    assert_true(local_thread_pool_close(t));
}

static void test_the_lowest_member_that_fails_is_named(void **state)
{
    results b = {.failing = 3};
    ddp_thread_pool *t = open_pool(&b);
    ddp_err err = {0};
    uint32_t culprit = 0;

    (void)state;
    for (int i = 0; i < 100; i++) {
        local_thread_pool_start(t, JOB_FAIL);
        assert_int_equal(local_thread_pool_wait(t, "a job", 10000, &culprit, &err), DDP_ERR_DATA);
        assert_string_equal(err.msg, "member 3 cannot");
        assert_int_equal(culprit, 3);
        local_thread_pool_start(t, JOB_ADD); /* a failure is of its job alone */
        assert_int_equal(local_thread_pool_wait(t, "a job", 10000, &culprit, &err), DDP_OK);
    }
    assert_true(local_thread_pool_close(t));
}

static void test_who_is_late_is_named_and_left(void **state)
{
    results b = {.sleep_us = 400000};
    ddp_thread_pool *t = open_pool(&b);
    ddp_err err = {0};

    (void)state;
    local_thread_pool_start(t, JOB_SLEEP);
    assert_int_equal(local_thread_pool_wait(t, "a long job", 30, NULL, &err), DDP_ERR_TIMEOUT);
    assert_non_null(strstr(err.msg, "a long job: member 1 has not done its part within 0.0 s"));
    assert_false(local_thread_pool_close(t)); /* it is in its work yet */
    (void)usleep(600000);
    assert_true(local_thread_pool_close(t));
}

static void test_close_without_a_job(void **state)
{
    results b = {0};

    (void)state;
    for (int i = 0; i < 20; i++) assert_true(local_thread_pool_close(open_pool(&b)));
    assert_true(local_thread_pool_close(NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_member_does_every_job),
        cmocka_unit_test(test_the_lowest_member_that_fails_is_named),
        cmocka_unit_test(test_who_is_late_is_named_and_left),
        cmocka_unit_test(test_close_without_a_job),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
