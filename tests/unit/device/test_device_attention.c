/* tests/unit/device/test_device_attention.c -- the CPU device's attention, forward and gradient: the same bits by every
 * variant and by heads of q, and in bf16 within what its operands' rounding does. */
#include "plugins/device/cpu/kernels/product/half.h"
#include "support/device_variants.h"

typedef struct attention_results {
    float y[MOST], lse[MAX_T * 8], dqkv[MOST];
} attention_results;

/* The gradient by heads of q has the bits that are in `want` already. */
static void same_by_heads(const cpu_attention_kernels *k, const cpu_attention *a, const attention_results *want,
                          const float *dy, float *scratch)
{
    static float dqkv[MOST], parts[2 * MOST];
    cpu_attention_grad g = {.dy = dy, .y = want->y, .lse = want->lse, .dq = dqkv};

    g.dk = g.dq + a->heads * a->size;
    g.dv = g.dk + a->kv_heads * a->size;
    memset(dqkv, 0, sizeof(dqkv));
    poison(parts, 2 * MOST);
    for (int64_t h = 0; h < a->heads; h++) k->grad_head(a, &g, h, h % (a->heads / a->kv_heads) != 0, parts, scratch);
    for (int64_t h = 0; h < a->kv_heads; h++) k->grad_sum(a, &g, h, parts);
    assert_memory_equal(dqkv, want->dqkv, sizeof(dqkv));
}

/* Forward and gradient with poisoned scratch. */
static void attention_run(const cpu_attention_kernels *k, const cpu_attention *a, const float *dy,
                          attention_results *to)
{
    size_t forward = (size_t)k->scratch(a, false), gradient = (size_t)k->scratch(a, true);
    float *small = aligned(forward * 4), *scratch = aligned(gradient * 4);

    memset(to, 0, sizeof(*to));
    for (int64_t h = 0; h < a->heads; h++) {
        poison(small, forward);
        k->forward(a, h, false, to->y, to->lse, small);
    }
    for (int64_t h = 0; h < a->kv_heads; h++) {
        cpu_attention_grad g = {.dy = dy, .y = to->y, .lse = to->lse, .dq = to->dqkv};
        g.dk = g.dq + a->heads * a->size;
        g.dv = g.dk + a->kv_heads * a->size;
        poison(scratch, gradient);
        k->grad(a, &g, h, scratch);
    }
    same_by_heads(k, a, to, dy, scratch);
    free(scratch);
    free(small);
}

/* The distance of two arrays relative to the second's length, and no element further off than 4 % of the largest. */
static void near(const char *what, const float *got, const float *want, int64_t n)
{
    double apart = 0.0, length = 0.0, worst = 0.0, largest = 0.0;

    for (int64_t i = 0; i < n; i++) {
        double d = (double)got[i] - (double)want[i];
        assert_true(isfinite(got[i]));
        apart += d * d;
        length += (double)want[i] * (double)want[i];
        worst = fmax(worst, fabs(d));
        largest = fmax(largest, fabs((double)want[i]));
    }
    if (sqrt(apart) > 0.01 * sqrt(length) + 1e-6 || worst > 0.04 * largest + 1e-6)
        fail_msg("%s in bf16: distance %g of %g, the worst element %g of %g", what, sqrt(apart), sqrt(length), worst,
                 largest);
}

/* Operands of bf16 have 8 bits: half a percent of each. What is rounded is no result: they differ, by that. */
static void compare_bf16(const cpu_attention_kernels *k, const cpu_attention *a, const float *dy,
                         const attention_results *want)
{
    static attention_results got;

    attention_run(k, a, dy, &got);
    near("y", got.y, want->y, a->length * a->heads * a->size);
    near("lse", got.lse, want->lse, a->length * a->heads);
    near("gradient", got.dqkv, want->dqkv, a->length * a->q_wide);
    if (a->length > 8) assert_memory_not_equal(got.y, want->y, sizeof(got.y));
}

/* The same bits by every variant. */
static void same_by_variants(const cpu_attention *a, const float *dy, attention_results *want)
{
    static attention_results got;

    for (int v = variant_count - 1; v >= 0; v--) {
        attention_run(&variants[v]->attention, a, dy, v == variant_count - 1 ? want : &got);
        if (v < variant_count - 1) same("attention", v, &got, want, sizeof(got));
    }
}

static void attention_variants(cpu_attention a)
{
    static attention_results want, rounded;
    static float qkv[MOST], dy[MOST];

    fill(qkv, MOST);
    fill(dy, MOST);
    a.q_wide = a.kv_wide = (a.heads + 2 * a.kv_heads) * a.size; /* side by side */
    a.q = qkv;
    a.k = a.q + a.heads * a.size;
    a.v = a.k + a.kv_heads * a.size;
    same_by_variants(&a, dy, &want);
    if (cpu_half_available() != NULL) compare_bf16(cpu_half_available()->attention, &a, dy, &want);
    a.bf16 = true;
    same_by_variants(&a, dy, &rounded);
    compare_bf16(&variants[0]->attention, &a, dy, &want);
}

#if defined(__SANITIZE_ADDRESS__)
enum { EVERY = 3 }; /* each shape with some of the options: portable code takes fifty times as long there */
#else
enum { EVERY = 1 };
#endif

static void test_attention(void **state)
{
    static const int64_t shapes[][4] = {{1, 1, 1, 1},   {5, 2, 2, 3},   {31, 1, 1, 16}, {33, 2, 2, 32},
                                        {64, 2, 2, 64}, {70, 3, 3, 44}, {37, 4, 2, 24}, {66, 3, 1, 32}};
    static int64_t segment[MAX_T];

    (void)state;
    for (int64_t t = 0; t < MAX_T; t++) segment[t] = t / 19;
    for (size_t i = 0; i < DDP_COUNT(shapes) * 8; i++) {
        const int64_t *shape = shapes[i / 8];
        if ((i % 8 + i / 8) % EVERY != 0) continue;
        cpu_attention a = {
            .length = shape[0], .heads = shape[1], .kv_heads = shape[2], .size = shape[3], .scale = 0.3f};
        a.causal = i % 2 == 0;
        if (i % 8 >= 4) a.segment = segment;
        if (i % 4 >= 2) a.mask = (cpu_mask){{9, i}, 3, 1000000000u, 1.3f};
        attention_variants(a);
    }
}

/* As vcvtneps2bf16 rounds: to nearest, ties to even, denormal numbers to 0. */
static void test_bf16_numbers(void **state)
{
    static const uint32_t pairs[][2] = {
        {0x3f800000, 0x3f800000}, {0x3f808000, 0x3f800000}, {0x3f808001, 0x3f810000}, {0x3f818000, 0x3f820000},
        {0x3f817fff, 0x3f810000}, {0xbf808001, 0xbf810000}, {0x7f7fffff, 0x7f800000}, {0xff800000, 0xff800000},
        {0x7f800001, 0x7fc00000}, {0xffc12345, 0xffc10000}, {0x007fffff, 0x00000000}, {0x80000001, 0x80000000},
        {0x00800000, 0x00800000}, {0x00000000, 0x00000000}, {0x80000000, 0x80000000}, {0x7f7f8000, 0x7f800000}};
    float x[DDP_COUNT(pairs)], y[DDP_COUNT(pairs)];
    uint16_t half[DDP_COUNT(pairs)];

    (void)state;
    for (int v = 0; v < variant_count; v++) {
        for (size_t i = 0; i < DDP_COUNT(pairs); i++) memcpy(&x[i], &pairs[i][0], sizeof(*x));
        variants[v]->round_bf16(y, x, (int64_t)DDP_COUNT(pairs));
        for (size_t i = 0; i < DDP_COUNT(pairs); i++) assert_memory_equal(&y[i], &pairs[i][1], sizeof(*y));
        for (size_t i = 0; i < DDP_COUNT(pairs); i++) half[i] = (uint16_t)(pairs[i][1] >> 16);
        variants[v]->widen_bf16(x, half, (int64_t)DDP_COUNT(pairs));
        assert_memory_equal(x, y, sizeof(x));
        if (cpu_half_available() == NULL) continue;
        for (size_t i = 0; i < DDP_COUNT(pairs); i++) memcpy(&x[i], &pairs[i][0], sizeof(*x));
        memset(half, 0, sizeof(half));
        cpu_half_available()->round(half, x, (int64_t)DDP_COUNT(pairs));
        for (size_t i = 0; i < DDP_COUNT(pairs); i++) assert_int_equal(half[i], pairs[i][1] >> 16);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_attention), cmocka_unit_test(test_bf16_numbers)};

    variants = cpu_kernels_variants + ddp_isa_best();
    variant_count = DDP_ISA_COUNT - ddp_isa_best();
    seed = test_seed();
    return cmocka_run_group_tests_name("attention on the CPU device", tests, NULL, NULL);
}
