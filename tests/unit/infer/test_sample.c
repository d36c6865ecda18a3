/* tests of infer/sample.c: how a token is chosen; what a model gives is for tests/integration/test_use.py */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>

#include "infer/sample.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h> /* last: it makes a macro of fail */

enum { COUNT = 9 };
static const float logits[COUNT] = {0.5f, -1.0f, 2.0f, 2.0f, 0.0f, -3.0f, 1.5f, 0.5f, 0.0f};

/* How often of `draws` evenly spread numbers each token comes. */
static void histogram(const ddp_sampling *how, int draws, double share[COUNT])
{
    int64_t order[2 * COUNT];
    int hits[COUNT] = {0};

    for (int i = 0; i < draws; i++) {
        int64_t token = infer_sample(how, logits, COUNT, (i + 0.5) / draws, order);

        assert_in_range(token, 0, COUNT - 1);
        hits[token]++;
    }
    for (int i = 0; i < COUNT; i++) share[i] = (double)hits[i] / draws;
}

static void the_most_likely_one(void **state)
{
    const ddp_sampling how = {.temperature = 0.0, .top_k = 5};

    (void)state;
    for (int i = 0; i <= 10; i++) assert_int_equal(infer_sample(&how, logits, COUNT, i / 10.0, NULL), 2);
}

static void in_proportion(void **state)
{
    static const double temperatures[] = {0.3, 1.0, 2.5};
    double share[COUNT];

    (void)state;
    for (size_t t = 0; t < 3; t++) {
        const ddp_sampling how = {.temperature = temperatures[t]};
        double sum = 0.0;

        histogram(&how, 100000, share);
        for (int i = 0; i < COUNT; i++) sum += exp((double)logits[i] / how.temperature);
        for (int i = 0; i < COUNT; i++)
            assert_true(fabs(share[i] - exp((double)logits[i] / how.temperature) / sum) < 1e-4);
    }
}

/* Exactly k, of equal ones the first; the rest in proportion. */
static void of_the_likeliest(void **state)
{
    static const int by_rank[COUNT] = {2, 3, 6, 0, 7, 4, 8, 1, 5};
    double share[COUNT];

    (void)state;
    for (int k = 1; k <= COUNT; k++) {
        const ddp_sampling how = {.temperature = 1.0, .top_k = k};
        double sum = 0.0;

        histogram(&how, 50000, share);
        for (int i = 0; i < k; i++) sum += exp((double)logits[by_rank[i]]);
        for (int i = 0; i < COUNT; i++)
            assert_true(fabs(share[by_rank[i]] - (i < k ? exp((double)logits[by_rank[i]]) / sum : 0.0)) < 1e-4);
    }
}

/* The probabilities as transformers' TopPLogitsWarper leaves them, by sorting: a token stays while those before it have
 * less than p, after temperature and top-k. */
static void expected(const ddp_sampling *how, const int *by_rank, double share[COUNT])
{
    int kept = how->top_k > 0 ? (int)how->top_k : COUNT;
    double all = 0.0, sum = 0.0, before = 0.0;

    for (int r = 0; r < kept; r++) all += exp((double)logits[by_rank[r]] / how->temperature);
    for (int r = 0; r < COUNT; r++) {
        double weight = exp((double)logits[by_rank[r]] / how->temperature);
        bool in = r < kept && (r == 0 || before < how->top_p * all);

        share[by_rank[r]] = in ? weight : 0.0;
        sum += in ? weight : 0.0;
        before += weight;
    }
    for (int i = 0; i < COUNT; i++) share[i] /= sum;
}

static void of_the_fewest(void **state)
{
    static const int by_rank[COUNT] = {2, 3, 6, 0, 7, 4, 8, 1, 5};
    static const double ps[] = {1e-9, 0.1, 0.3, 0.31, 0.5, 0.62, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999999, 1.0},
                        temperatures[] = {0.3, 1.0, 4.0};
    double share[COUNT], want[COUNT];

    (void)state;
    for (int k = 0; k <= COUNT; k++)
        for (size_t t = 0; t < 3; t++)
            for (size_t i = 0; i < sizeof(ps) / sizeof(ps[0]); i++) {
                const ddp_sampling how = {.temperature = temperatures[t], .top_k = k, .top_p = ps[i]};

                histogram(&how, 20000, share);
                expected(&how, by_rank, want);
                for (int n = 0; n < COUNT; n++)
                    if (!(fabs(share[n] - want[n]) < 2e-4))
                        fail_msg("k %d, p %g, temperature %g: token %d has %g, not %g", k, ps[i], temperatures[t], n,
                                 share[n], want[n]);
            }
}

/* Against sorting, on many random rows with many equal values. */
static void the_heap_finds_them(void **state)
{
    enum { N = 137 };
    int64_t order[2 * N];
    float row[N];
    uint64_t x = 88172645463325252u;

    (void)state;
    for (int round = 0; round < 300; round++) {
        ddp_sampling how = {.temperature = 1e6, .top_k = 1 + round % N}; /* all of them alike */
        bool seen[N] = {false};
        int64_t in = 0;

        for (int i = 0; i < N; i++) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            row[i] = (float)(x % 23);
        }
        for (int i = 0; i < 4 * N; i++) seen[infer_sample(&how, row, N, (i + 0.5) / (4 * N), order)] = true;
        for (int i = 0; i < N; i++) in += seen[i];
        assert_int_equal(in, how.top_k);
        for (int i = 0; i < N; i++)
            for (int k = 0; k < N; k++)
                if (seen[i] && !seen[k]) assert_true(row[i] > row[k] || (row[i] == row[k] && i < k));
    }
}

static void at_the_ends(void **state)
{
    const ddp_sampling how = {.temperature = 1.0};
    const float far[3] = {-1e30f, 1e30f, 0.0f};

    (void)state;
    assert_int_equal(infer_sample(&how, logits, COUNT, 0.0, NULL), 0);
    assert_int_equal(infer_sample(&how, logits, COUNT, 1.0, NULL), COUNT - 1);
    assert_int_equal(infer_sample(&how, far, 3, 0.999, NULL), 1);
    assert_int_equal(infer_sample(&how, logits, 1, 0.5, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_most_likely_one), cmocka_unit_test(in_proportion),
        cmocka_unit_test(of_the_likeliest),    cmocka_unit_test(of_the_fewest),
        cmocka_unit_test(the_heap_finds_them), cmocka_unit_test(at_the_ends),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
