/* tests/unit/hook/test_kernels.c -- the arithmetic of the hooks on every instruction set that this CPU has: against
 * plain loops in double, and against each other. */
#include <ddpengine/isa.h>
#include "plugins/hook/common/kernels.h"
#include "base/base.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h> /* last: it has a macro `fail` */

enum { GUARD = 64 }; /* floats behind a result that nobody may write */
static const size_t sizes[] = {1, 2, 15, 16, 17, 255, 256, 257, 511, 1000, 4099};

static float *floats(size_t n)
{
    float *x = malloc((n + GUARD) * sizeof(*x));

    assert_non_null(x);
    for (size_t i = 0; i < n + GUARD; i++) x[i] = NAN;
    return x;
}

static void expect_guard(const float *x, size_t n)
{
    for (size_t i = n; i < n + GUARD; i++) assert_true(isnan(x[i]));
}

static void draw(float *x, size_t n, uint32_t seed)
{
    uint32_t s = seed * 2654435761u + 1;

    for (size_t i = 0; i < n; i++) {
        s = s * 1664525u + 1013904223u;
        x[i] = (float)((int32_t)s >> 8) * 0x1p-20f * (i % 37 == 5 ? 1e-4f : 1.0f);
    }
}

static void each(void (*test)(const hook_kernels *k))
{
    for (int i = ddp_isa_best(); i < DDP_ISA_COUNT; i++) test(hook_kernels_variants[i]);
}

/* ---- bf16 -------------------------------------------------------------------------------------------------------- */
static void bf16_of(const hook_kernels *k)
{
    static const struct {
        uint32_t from;
        uint16_t to;
    } cases[] = {{0x3f800000, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f818000, 0x3f82}, {0x3f808001, 0x3f81},
                 {0xc0490fdb, 0xc049}, {0x7f800000, 0x7f80}, {0xff800000, 0xff80}, {0x7f7fffff, 0x7f80},
                 {0x00000001, 0x0000}, {0x80000000, 0x8000}};
    float x[DDP_COUNT(cases)], back[DDP_COUNT(cases)];
    uint16_t y[DDP_COUNT(cases)];

    for (size_t i = 0; i < DDP_COUNT(cases); i++) memcpy(&x[i], &cases[i].from, 4);
    k->to_bf16(y, x, DDP_COUNT(cases));
    k->from_bf16(back, y, DDP_COUNT(cases));
    for (size_t i = 0; i < DDP_COUNT(cases); i++) {
        uint32_t bits;

        assert_int_equal(y[i], cases[i].to);
        memcpy(&bits, &back[i], 4);
        assert_int_equal(bits, (uint32_t)cases[i].to << 16);
    }
    x[0] = NAN;
    k->to_bf16(y, x, 1);
    k->from_bf16(back, y, 1);
    assert_true(isnan(back[0]));
}

static void test_bf16(void **state)
{
    (void)state;
    each(bf16_of);
}

/* ---- int8 -------------------------------------------------------------------------------------------------------- */
static void quantise_n(const hook_kernels *k, size_t n)
{
    size_t blocks = (n + HOOK_BLOCK - 1) / HOOK_BLOCK;
    float *x = floats(n), *error = floats(n), *before = floats(n), *y = floats(n), *scale = floats(blocks);
    int8_t *q = malloc(blocks * HOOK_BLOCK);

    draw(x, n, 1);
    draw(error, n, 2);
    memcpy(before, error, n * sizeof(*error));
    k->quantise(q, scale, x, error, n);
    k->dequantise(y, q, scale, n);
    for (size_t b = 0; b < blocks; b++) {
        size_t end = DDP_MIN_OF(n, (b + 1) * HOOK_BLOCK);
        float most = 0;

        for (size_t i = b * HOOK_BLOCK; i < end; i++) most = fmaxf(most, fabsf(before[i] + x[i]));
        assert_float_equal(scale[b], most / 127, 0);
        for (size_t i = b * HOOK_BLOCK; i < end; i++) {
            float v = before[i] + x[i];

            assert_true(fabsf(v - y[i]) <= scale[b] * 0.5001f);
            assert_true(fabsf(y[i] + error[i] - v) <= 1e-6f * most);
        }
        for (size_t i = end; i < (b + 1) * HOOK_BLOCK; i++) assert_int_equal(q[i], 0);
    }
    expect_guard(error, n);
    expect_guard(y, n);
    expect_guard(scale, blocks);
    free(x);
    free(error);
    free(before);
    free(y);
    free(scale);
    free(q);
}

static void requantise_n(const hook_kernels *k, size_t n, uint32_t parts)
{
    size_t blocks = (n + HOOK_BLOCK - 1) / HOOK_BLOCK + 1,
           bytes = blocks * (HOOK_BLOCK + sizeof(float)); /* one is left over */
    float *x = floats(n), *error = floats(n), *zero = floats(n), *y = floats(n), *scale = floats(blocks),
          *before = floats(n);
    double *mean = calloc(n, sizeof(*mean));
    const unsigned char *part[4];
    unsigned char *own[4];
    int8_t *q = calloc(blocks, HOOK_BLOCK);

    for (uint32_t p = 0; p < parts; p++) {
        part[p] = own[p] = calloc(1, bytes);
        draw(x, n, 10 + p);
        memset(zero, 0, n * sizeof(*zero));
        k->quantise((int8_t *)own[p] + blocks * sizeof(float), (float *)(void *)own[p], x, zero, n);
        k->dequantise(y, (int8_t *)own[p] + blocks * sizeof(float), (float *)(void *)own[p], n);
        for (size_t i = 0; i < n; i++) mean[i] += (double)y[i] / parts;
    }
    draw(error, n, 20);
    memcpy(before, error, n * sizeof(*error));
    k->requantise(q, scale, part, parts, blocks, error, n);
    k->dequantise(y, q, scale, n);
    for (size_t i = 0; i < n; i++) {
        assert_true(fabs((double)y[i] - mean[i]) <= (double)scale[i / HOOK_BLOCK] * 0.501);
        assert_true(fabs((double)(error[i] - before[i]) - parts * (mean[i] - (double)y[i])) <= 1e-4);
    }
    expect_guard(error, n);
    expect_guard(scale, blocks - 1);
    for (uint32_t p = 0; p < parts; p++) free(own[p]);
    free(x);
    free(error);
    free(zero);
    free(y);
    free(scale);
    free(before);
    free(mean);
    free(q);
}

static void int8_of(const hook_kernels *k)
{
    for (size_t i = 0; i < DDP_COUNT(sizes); i++) {
        quantise_n(k, sizes[i]);
        requantise_n(k, sizes[i], 1 + (uint32_t)i % 4);
    }
}

static void test_int8(void **state)
{
    (void)state;
    each(int8_of);
}

static void tiny_of(const hook_kernels *k)
{
    float x[HOOK_BLOCK], error[HOOK_BLOCK] = {0}, y[HOOK_BLOCK], scale;
    int8_t q[HOOK_BLOCK];

    for (size_t i = 0; i < HOOK_BLOCK; i++) x[i] = 1e-39f; /* 127 over it is not finite */
    k->quantise(q, &scale, x, error, HOOK_BLOCK);
    k->dequantise(y, q, &scale, HOOK_BLOCK);
    for (size_t i = 0; i < HOOK_BLOCK; i++) assert_true(y[i] == 0 && error[i] == x[i]);
}

static void test_int8_of_next_to_nothing(void **state)
{
    (void)state;
    each(tiny_of);
}

/* ---- powersgd ---------------------------------------------------------------------------------------------------- */
static void near(const float *got, const double *want, size_t n, double of)
{
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - want[i]) <= 1e-5 * of))
            fail_msg("element %zu of %zu is %g, not %g", i, n, (double)got[i], want[i]);
}

static void factors(const hook_kernels *k, size_t rows, size_t cols, uint32_t rank)
{
    size_t n = rows * cols;
    float *m = floats(n), *g = floats(n), *q = floats(cols * rank), *p = floats(rows * rank);
    double *wm = calloc(n, sizeof(*wm)), *wp = calloc(rows * rank, sizeof(*wp)), *wq = calloc(cols * rank, sizeof(*wq));
    double *wg = calloc(n, sizeof(*wg));

    draw(m, n, 3);
    draw(g, n, 4);
    draw(q, cols * rank, 5);
    for (size_t i = 0; i < n; i++) wm[i] = (double)(m[i] + g[i]);
    for (size_t r = 0; r < rank; r++)
        for (size_t i = 0; i < rows; i++)
            for (size_t j = 0; j < cols; j++) wp[r * rows + i] += wm[i * cols + j] * (double)q[r * cols + j];
    k->fold(m, g, q, p, rows, cols, rank);
    near(m, wm, n, 1e-30);
    near(p, wp, rows * rank, 8.0 * 8.0 * (double)cols);
    for (size_t r = 0; r < rank; r++)
        for (size_t j = 0; j < cols; j++)
            for (size_t i = 0; i < rows; i++) wq[r * cols + j] += wm[i * cols + j] * (double)p[r * rows + i];
    k->back(m, p, q, rows, cols, rank);
    near(q, wq, cols * rank, 8.0 * 8.0 * 8.0 * (double)(cols * rows));
    draw(q, cols * rank, 6);
    draw(p, rows * rank, 7);
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++) {
            for (size_t r = 0; r < rank; r++) wg[i * cols + j] += (double)p[r * rows + i] * (double)q[r * cols + j];
            wm[i * cols + j] -= wg[i * cols + j];
        }
    k->expand(g, m, p, q, rows, cols, rank);
    near(g, wg, n, 64.0 * rank);
    near(m, wm, n, 64.0 * rank);
    expect_guard(m, n);
    expect_guard(g, n);
    expect_guard(p, rows * rank);
    expect_guard(q, cols * rank);
    free(m);
    free(g);
    free(q);
    free(p);
    free(wm);
    free(wp);
    free(wq);
    free(wg);
}

static void powersgd_of(const hook_kernels *k)
{
    static const size_t shapes[][2] = {{1, 1}, {3, 5}, {4, 16}, {5, 17}, {64, 48}, {7, 2051}, {2, 4100}, {33, 100}};

    for (size_t i = 0; i < DDP_COUNT(shapes); i++)
        for (uint32_t rank = 1; rank <= 9; rank += rank < 5 ? 1 : 4) factors(k, shapes[i][0], shapes[i][1], rank);
}

static void test_powersgd(void **state)
{
    (void)state;
    each(powersgd_of);
}

/* What is the same on every rank must not depend on its CPU. */
static void test_the_same_bits_on_every_instruction_set(void **state)
{
    enum { ROWS = 21, COLS = 219, N = ROWS * COLS, RANK = 3 };
    const hook_kernels *const *found = hook_kernels_variants + ddp_isa_best();
    int n = DDP_ISA_COUNT - ddp_isa_best();
    static float m[3][N], g[3][N], q[3][COLS * RANK], error[3][N], scale[3][N], y[3][N];
    static float p[ROWS * RANK];
    static int8_t bytes[3][N + HOOK_BLOCK];

    (void)state;
    draw(p, DDP_COUNT(p), 1);
    for (int i = 0; i < n; i++) {
        draw(m[i], N, 2);
        draw(error[i], N, 3);
        found[i]->back(m[i], p, q[i], ROWS, COLS, RANK);
        found[i]->expand(g[i], m[i], p, q[i], ROWS, COLS, RANK);
        found[i]->quantise(bytes[i], scale[i], g[i], error[i], N);
        found[i]->dequantise(y[i], bytes[i], scale[i], N);
    }
    for (int i = 1; i < n; i++) {
        assert_memory_equal(m[0], m[i], sizeof(m[0]));
        assert_memory_equal(g[0], g[i], sizeof(g[0]));
        assert_memory_equal(q[0], q[i], sizeof(q[0]));
        assert_memory_equal(error[0], error[i], sizeof(error[0]));
        assert_memory_equal(y[0], y[i], sizeof(y[0]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_int8),
        cmocka_unit_test(test_int8_of_next_to_nothing),
        cmocka_unit_test(test_powersgd),
        cmocka_unit_test(test_the_same_bits_on_every_instruction_set),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
