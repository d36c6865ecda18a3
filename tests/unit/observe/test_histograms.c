/* tests/unit/observe/test_histograms.c -- histograms against those of torch.utils.tensorboard, of which
 * tests/parity/make/make_histograms.py stored some. */
#include "observe/histograms/histograms.h"
#include "support/data_util.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h> /* last: it has a macro `fail` */

static double next(const char **at)
{
    char *end;
    double v = strtod(*at, &end);

    assert_true(end != *at);
    *at = end;
    return v;
}

/* In two parts, as from two buckets of gradients, and at half of the size. */
static ddp_histograms *histogram_of(const float *x, size_t count)
{
    ddp_err err = {0};
    ddp_histograms *h = observe_histograms_new(1, &err);
    float half[512];

    assert_non_null(h);
    for (size_t i = 0; i < count; i++) half[i] = 0.5f * x[i];
    observe_histogram_add(h, &h->items[0], half, count / 3, 2.0f);
    observe_histogram_add(h, &h->items[0], half + count / 3, count - count / 3, 2.0f);
    return h;
}

static void check_line(const char *line)
{
    const char *at = strchr(line, ' ');
    double limits[DDP_HISTOGRAM_EDGES], buckets[DDP_HISTOGRAM_EDGES], sum = 0.0, size = 0.0;
    size_t count = (size_t)next(&at), n, rows;
    ddp_histograms *h;
    float x[512];

    assert_true(count <= DDP_COUNT(x));
    for (size_t i = 0; i < count; i++) {
        x[i] = (float)next(&at);
        size += fabs((double)x[i]);
    }
    h = histogram_of(x, count);
    n = observe_histogram_buckets(h, &h->items[0], limits, buckets);
    assert_true(h->items[0].number == count);
    assert_true(h->items[0].min == next(&at) && h->items[0].max == next(&at));
    assert_true(fabs(h->items[0].sum - next(&at)) <= 1e-14 * size);
    sum = next(&at);
    assert_true(fabs(h->items[0].sum_squares - sum) <= 1e-13 * sum);
    assert_int_equal(n, (size_t)next(&at));
    rows = (size_t)next(&at);
    sum = 0.0;
    for (size_t i = 0; i < rows; i++) {
        size_t which = (size_t)next(&at);

        assert_true(which < n && limits[which] == next(&at) && buckets[which] == next(&at));
        sum += buckets[which];
    }
    for (size_t i = 0; i < n; i++) sum -= buckets[i];
    assert_true(sum == 0.0); /* there is no other one */
    free(h);
}

static void as_torch(void **state)
{
    (void)state;
    assert_int_equal(each_vector("histograms.txt", check_line), 8);
}

static void not_finite(void **state)
{
    const float x[] = {1.0f, NAN, -INFINITY, 2.0f};
    double limits[DDP_HISTOGRAM_EDGES], buckets[DDP_HISTOGRAM_EDGES];
    ddp_histograms *h = histogram_of(x, 4);

    (void)state;
    assert_true(h->items[0].number == 4 && isnan(h->items[0].sum));
    assert_true(observe_histogram_buckets(h, &h->items[0], limits, buckets) > 1);
    observe_histograms_clear(h);
    assert_int_equal(observe_histogram_buckets(h, &h->items[0], limits, buckets), 0);
    free(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_torch), cmocka_unit_test(not_finite)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
