/* tests/unit/train/test_predict.c -- what a step takes by the formula, beside cases computed by hand. */
#include "train/measure/predict.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h> /* last: it has a macro `fail` */

static void near(double got, double want)
{
    if (!(fabs(got - want) <= 1e-12 * fabs(want) + 1e-15)) fail_msg("%.15g, not %.15g", got, want);
}

/* 1 ms a message, 0.5 ms for each further one, 100 bytes a second. */
static const ddp_predict_link slow = {.latency_s = 0.001, .message_s = 0.0005, .bytes_per_s = 100.0};

static void bytes_that_leave_a_rank(void **state)
{
    (void)state;
    near(predict_sent(100.0, (ddp_predict_world){1, 1, 0}), 0.0);
    near(predict_sent(100.0, (ddp_predict_world){2, 1, 0}), 100.0); /* 2 (N - 1) / N */
    near(predict_sent(100.0, (ddp_predict_world){4, 1, 0}), 150.0);
    near(predict_sent(100.0, (ddp_predict_world){8, 1, 0}), 175.0);
    near(predict_sent(100.0, (ddp_predict_world){4, 1, 1.5}), 100.0); /* four ranks and four hosts that help */
    near(predict_sent(100.0, (ddp_predict_world){4, 2, 0}), 100.0);   /* 2 of 4 ranks are on the other host */
    near(predict_sent(100.0, (ddp_predict_world){4, 4, 0}), 150.0);   /* one host: all are reached alike */
    near(predict_sent(100.0, (ddp_predict_world){1024, 1, 0}), 2.0 * 1023 / 1024 * 100);
}

static void one_all_reduce(void **state)
{
    (void)state;
    near(predict_all_reduce(&slow, 100.0, (ddp_predict_world){1, 1, 0}), 0.0);
    near(predict_all_reduce(&slow, 100.0, (ddp_predict_world){2, 1, 0}), 2 * (0.001 + 0.0005) + 1.0);
    near(predict_all_reduce(&slow, 100.0, (ddp_predict_world){4, 1, 0}), 2 * (0.001 + 3 * 0.0005) + 1.5);
    near(predict_all_reduce(&slow, 0.0, (ddp_predict_world){8, 1, 0}), 2 * (0.001 + 7 * 0.0005));
}

/* The link that is made of a measurement gives it back. */
static void link_of_a_measurement(void **state)
{
    const ddp_predict_world w = {4, 1, 0};
    const ddp_predict_link l = predict_link(0.001, 0.004, 200.0, w);

    (void)state;
    near(l.latency_s, 0.001);
    near(l.message_s, 0.001); /* (4 - 1) / 3 */
    near(l.bytes_per_s, 300.0);
    near(predict_all_reduce(&l, 200.0, w), 2 * 0.004 + 1.0);
    near(predict_link(0.009, 0.004, 200.0, w).message_s, 0.0); /* a pair seemed slower than all */
}

/* Two buckets of 1 s each on the wire of two ranks; the backward pass ends at 3 s, the first bucket is ready at 1 s. */
static const ddp_predict_link plain = {.bytes_per_s = 100.0};
static const ddp_predict_world two = {2, 1, 0};
static const ddp_predict_bucket buckets[] = {{.bytes = 100.0, .ready_s = 1.0, .update_s = 0.25},
                                             {.bytes = 100.0, .ready_s = 3.0, .update_s = 0.5}};

static void without_overlap(void **state)
{
    const ddp_predict_work work = {.compute_s = 3.0, .buckets = buckets, .bucket_count = 2};
    ddp_prediction p = predict_step(&work, &plain, two);

    (void)state;
    near(p.step_s, 5.5); /* 3, reduced at 4 and 5; the first update is done meanwhile */
    near(p.wire_s, 2.0);
    near(p.wait_s, 1.75);
}

static void with_overlap(void **state)
{
    const ddp_predict_work work = {.compute_s = 3.0, .buckets = buckets, .bucket_count = 2, .early = 1};
    ddp_prediction p = predict_step(&work, &plain, two);

    (void)state;
    near(p.step_s, 4.5); /* the first goes from 1 to 2, the second from 3 to 4 */
    near(p.wait_s, 0.75);
}

/* Computing and sending share processors: from 1 s on both take half as long again. */
static void crowded(void **state)
{
    ddp_predict_work work = {.compute_s = 3.0, .buckets = buckets, .bucket_count = 2, .early = 1, .crowding = 1.5};

    (void)state;
    near(predict_crowded(&work, 0.5), 0.5);
    near(predict_crowded(&work, 3.0), 4.0);
    near(predict_step(&work, &plain, two).step_s, 5.5); /* the first goes from 1 to 2.5, the second from 4 to 5 */
    near(predict_step(&work, &plain, (ddp_predict_world){1, 1, 0}).step_s, 3.75);
    assert_true(fabs(predict_crowding(&work, &plain, two, 6.5) - 2.0) < 1e-6); /* 1 to 3, 5 to 6 */
    near(predict_crowding(&work, &plain, two, 0.1), 1.0);
    work.early = 0;
    near(predict_step(&work, &plain, two).step_s, 5.5);
    near(predict_crowded(&work, 3.0), 3.0);
}

/* Of two calls that moved 200 bytes in 6 s. */
static void an_exchange(void **state)
{
    double latency_s = 0.5, rate = 0.0;

    (void)state;
    predict_exchange(200.0, 2, 6.0, &latency_s, &rate);
    near(latency_s, 0.5);
    near(rate, 50.0); /* 4 s are the bytes' */
    latency_s = 3.0;
    predict_exchange(200.0, 2, 6.0, &latency_s, &rate);
    near(latency_s, 1.125); /* 4.5 s of 6 */
    near(2 * 2 * latency_s + 200.0 / rate, 6.0);
}

/* A wire that is busy holds up the next bucket. */
static void a_long_bucket(void **state)
{
    ddp_predict_bucket long_first[2] = {buckets[0], buckets[1]};
    const ddp_predict_work work = {.compute_s = 3.0, .buckets = long_first, .bucket_count = 2, .early = 1};

    (void)state;
    long_first[0].bytes = 400.0;
    near(predict_step(&work, &plain, two).step_s, 6.5); /* 1 to 5, 5 to 6 */
}

static void accumulated(void **state)
{
    const ddp_predict_work work = {
        .before_s = 9.0, .compute_s = 3.0, .buckets = buckets, .bucket_count = 2, .early = 1};

    (void)state;
    near(predict_step(&work, &plain, two).step_s, 13.5);
}

static void updates_at_the_end(void **state)
{
    const ddp_predict_work work = {.compute_s = 3.0, .buckets = buckets, .bucket_count = 2, .last_decides = true};

    (void)state;
    near(predict_step(&work, &plain, two).step_s, 5.75);
}

/* Compression holds up what comes after it, decompression the trainer, the exchange's arithmetic the wire. */
static void a_hook(void **state)
{
    ddp_predict_bucket hooked[2] = {buckets[0], buckets[1]};
    const ddp_predict_work work = {
        .compute_s = 3.0, .buckets = hooked, .bucket_count = 2, .early = 1, .scalars_apart = true};
    const ddp_predict_link link = {.latency_s = 0.01, .bytes_per_s = 100.0};

    (void)state;
    for (int i = 0; i < 2; i++) {
        hooked[i].bytes = 50.0;
        hooked[i].before_s = 0.1;
        hooked[i].after_s = 0.2;
        hooked[i].queue_s = 0.05;
    }
    /* 1.1 to 1.67; ready at 3.1, compressed at 3.2, reduced at 3.77, scalars at 3.78; then 0.2 + 0.5; the first
     * bucket's 0.2 + 0.25 went from 3.2 to 3.65 */
    near(predict_step(&work, &link, two).step_s, 4.48);
}

static void zero(void **state)
{
    const ddp_predict_work work = {.compute_s = 3.0, .buckets = buckets, .bucket_count = 2, .scatters = true};
    ddp_prediction p = predict_step(&work, &plain, two);

    (void)state;
    /* scattered at 3.5 and 4; half an update each: 3.625, whose parameters travel from 4 to 4.5; 4.25, to 5 */
    near(p.step_s, 5.0);
    near(p.wire_s, 2.0);
}

static void one_rank(void **state)
{
    const ddp_predict_work work = {
        .before_s = 1.0, .compute_s = 3.0, .buckets = buckets, .bucket_count = 2, .early = 1};
    ddp_prediction p = predict_step(&work, NULL, (ddp_predict_world){1, 1, 0});

    (void)state;
    near(p.step_s, 4.75);
    near(p.wire_s, 0.0);
    near(predict_speedup(p.step_s, 4.75, two), 2.0);
    near(predict_speedup(p.step_s, 19.0, two), 0.5);
    near(predict_speedup(p.step_s, 0.0, two), 0.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_that_leave_a_rank),
        cmocka_unit_test(one_all_reduce),
        cmocka_unit_test(link_of_a_measurement),
        cmocka_unit_test(without_overlap),
        cmocka_unit_test(with_overlap),
        cmocka_unit_test(crowded),
        cmocka_unit_test(an_exchange),
        cmocka_unit_test(a_long_bucket),
        cmocka_unit_test(accumulated),
        cmocka_unit_test(updates_at_the_end),
        cmocka_unit_test(a_hook),
        cmocka_unit_test(zero),
        cmocka_unit_test(one_rank),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
