/* tests/unit/cuda/test_cuda_attention.cpp -- the CUDA device's attention on the double of the CUDA runtime, against
 * plain loops in double: the kernels for tensor cores and the ones for everything else, lengths around the tiles'
 * edges, masks, dropout, types, what is added, extreme scores. */
#include "plugins/device/cuda/kernels/kernels.h"
#include "plugins/device/cuda/kernels/simt.h"

#include <ddpengine/program.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

extern "C" { /* its header does not say so */
#include <cmocka.h>
}

typedef std::vector<double> numbers;

#define CUDA(call) assert_int_equal((call), cudaSuccess)

static const cu_run_params run = {0x123456789abcdefu, 77};

/* ---- arrays ------------------------------------------------------------------------------------------------------ */
static uint64_t seed = 1;

static double random_number(void) /* from -1 to 1 */
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return static_cast<double>(static_cast<int64_t>(seed >> 33)) / static_cast<double>(1 << 30) - 1.0;
}

static numbers some(int64_t n, uint32_t type) /* numbers that the type has */
{
    numbers v(static_cast<size_t>(n));

    for (double &x : v) {
        float f = static_cast<float>(random_number());
        x = type == CU_BF16 ? cu_from_bf16(cu_to_bf16(f)) : f;
    }
    return v;
}

/* Device memory of exactly the elements, NaN when it is new, `skew` elements away from where an allocation begins. */
struct array {
    void *block;
    cu_view view;
    size_t count;

    array(size_t n, uint32_t type, size_t skew = 0) : block(NULL), view{NULL, type}, count(n)
    {
        CUDA(cudaMalloc(&block, (n + skew) * size()));
        CUDA(cudaMemset(block, 0xff, (n + skew) * size()));
        view.at = static_cast<char *>(block) + skew * size();
    }
    array(const numbers &v, uint32_t type, size_t skew = 0) : array(v.size(), type, skew)
    {
        std::vector<float> f(v.begin(), v.end());
        std::vector<unsigned short> h(count);

        for (size_t i = 0; i < count; i++) h[i] = cu_to_bf16(f[i]);
        CUDA(cudaMemcpy(view.at, type == CU_BF16 ? static_cast<void *>(h.data()) : f.data(), count * size(),
                        cudaMemcpyHostToDevice));
    }
    array(const array &) = delete;
    array &operator=(const array &) = delete;
    ~array() { (void)cudaFree(block); }
    size_t size() const { return view.type == CU_BF16 ? 2 : 4; }
    float *floats() const { return static_cast<float *>(view.at); }

    numbers get() const
    {
        std::vector<float> f(count);
        std::vector<unsigned short> h(count);

        CUDA(cudaDeviceSynchronize());
        CUDA(cudaMemcpy(view.type == CU_BF16 ? static_cast<void *>(h.data()) : f.data(), view.at, count * size(),
                        cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < count && view.type == CU_BF16; i++) f[i] = cu_from_bf16(h[i]);
        return numbers(f.begin(), f.end());
    }
};

static void *scratch_of(size_t bytes)
{
    void *p = NULL;

    CUDA(cudaMalloc(&p, bytes > 0 ? bytes : 1));
    CUDA(cudaMemset(p, 0xff, bytes));
    return p;
}

/* ---- the same in double ------------------------------------------------------------------------------------------ */
static double mask_of(const cu_attention *a, int64_t pair, int64_t t, int64_t s)
{
    const uint64_t element = static_cast<uint64_t>((pair * a->t + t) * a->t + s);
    const ddp_random random = {run.seed, run.stream};
    uint32_t word[4];

    if (a->dropout == 0.0) return 1.0;
    ddp_philox(&random, a->place, element / 4, word);
    return word[element % 4] < nearbyint(a->dropout * 4294967296.0) ? 0.0 : 1.0 / (1.0 - a->dropout);
}

static double dot(const double *a, const double *b, int64_t n)
{
    double sum = 0.0;

    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

struct expected {
    numbers y, lse, dqkv;
};

/* One query's row of the forward pass and of the gradient. */
static void expect_row(const cu_attention *a, const numbers &qkv, const numbers &dy, int64_t pair, int64_t t,
                       expected *want)
{
    const int64_t e = a->heads * a->size, row = pair / a->heads * a->t + t, at = pair % a->heads * a->size;
    const int64_t seen = a->causal != 0 ? t + 1 : a->t, first = (row - t) * 3 * e + at;
    const double *q = &qkv[static_cast<size_t>(row * 3 * e + at)], *k = &qkv[static_cast<size_t>(first)] + e,
                 *v = k + e;
    const double *g = &dy[static_cast<size_t>(row * e + at)];
    double *y = &want->y[static_cast<size_t>(row * e + at)], *dq = &want->dqkv[static_cast<size_t>(row * 3 * e + at)];
    double *dk = &want->dqkv[static_cast<size_t>(first)] + e, *dv = dk + e, most = -INFINITY, sum = 0.0, delta;
    numbers p(static_cast<size_t>(seen));

    for (int64_t s = 0; s < seen; s++)
        most = fmax(most, p[static_cast<size_t>(s)] = a->scale * dot(q, k + s * 3 * e, a->size));
    for (double &x : p) sum += x = exp(x - most);
    want->lse[static_cast<size_t>(pair * a->t + t)] = most + log(sum);
    for (int64_t s = 0; s < seen; s++)
        for (int64_t i = 0; i < a->size; i++)
            y[i] += p[static_cast<size_t>(s)] / sum * mask_of(a, pair, t, s) * v[s * 3 * e + i];
    delta = dot(g, y, a->size);
    for (int64_t s = 0; s < seen; s++) {
        const double w = p[static_cast<size_t>(s)] / sum, m = mask_of(a, pair, t, s);
        const double ds = w * (m * dot(g, v + s * 3 * e, a->size) - delta) * a->scale;

        for (int64_t i = 0; i < a->size; i++) {
            dq[i] += ds * k[s * 3 * e + i];
            dk[s * 3 * e + i] += ds * q[i];
            dv[s * 3 * e + i] += w * m * g[i];
        }
    }
}

static expected expect(const cu_attention *a, const numbers &qkv, const numbers &dy)
{
    expected want = {numbers(dy.size()), numbers(static_cast<size_t>(a->n * a->heads * a->t)), numbers(qkv.size())};

    for (int64_t pair = 0; pair < a->n * a->heads; pair++)
        for (int64_t t = 0; t < a->t; t++) expect_row(a, qkv, dy, pair, t, &want);
    return want;
}

/* ---- comparing --------------------------------------------------------------------------------------------------- */
static void check_numbers(const char *what, const cu_attention *a, const numbers &got, const numbers &want,
                          double tolerance)
{
    double largest = 1e-3;

    assert_int_equal(got.size(), want.size());
    for (double x : want) largest = fmax(largest, fabs(x));
    for (size_t i = 0; i < want.size(); i++) {
        if (fabs(got[i] - want[i]) <= tolerance * largest) continue;
        fail_msg("%s, n %d t %d heads %d size %d causal %u dropout %g scale %g: element %zu of %zu is %.9g, not %.9g",
                 what, static_cast<int>(a->n), static_cast<int>(a->t), static_cast<int>(a->heads),
                 static_cast<int>(a->size), a->causal, a->dropout, a->scale, i, want.size(), got[i], want[i]);
    }
}

/* As parts of the largest: f32 sums, or the weights and their gradient rounded to bf16 before they are summed. */
struct kind {
    bool flash;
    uint32_t qkv, dy, y, dqkv; /* types */
    double tolerance;
    size_t skew; /* of qkv and y */
    bool add;
};
static const kind plain = {false, CU_F32, CU_F32, CU_F32, CU_F32, 2e-5, 0, false};
static const kind plain_bf16 = {false, CU_BF16, CU_BF16, CU_BF16, CU_BF16, 6e-3, 0, false};
static const kind flash = {true, CU_BF16, CU_BF16, CU_BF16, CU_BF16, 1.2e-2, 0, false};

static void check_gradient(const cu_attention *a, const kind &k, const array &qkv, const array &y, const array &lse,
                           const numbers &dy, const numbers &want)
{
    const numbers before = some(static_cast<int64_t>(want.size()), k.dqkv);
    array given(dy, k.dy), fresh(want.size(), k.dqkv, k.skew), filled(before, k.dqkv, k.skew),
        &out = k.add ? filled : fresh;
    void *scratch = scratch_of(k.flash ? cu_flash_grad_scratch(a) : cu_attention_plain_grad_scratch(a));
    numbers sum(want);

    if (k.flash)
        CUDA(cu_flash_grad(NULL, a, given.view, qkv.view, y.view, lse.floats(), out.view, scratch));
    else
        CUDA(cu_attention_plain_grad(NULL, a, given.view, qkv.view, y.view, lse.floats(), out.view, k.add, scratch));
    for (size_t i = 0; k.add && i < sum.size(); i++) sum[i] += before[i];
    /* Of one position alone the gradients of q and k are 0, but for y's rounding: measured against those of v. */
    check_numbers("dqkv", a, out.get(), sum, k.tolerance);
    CUDA(cudaFree(scratch));
}

static void check(const cu_attention &shape, const kind &k)
{
    cu_attention a = shape;
    seed = 1; /* the same numbers whatever ran before */
    const int64_t rows = a.n * a.t, e = a.heads * a.size;
    const numbers x = some(rows * 3 * e, k.qkv), dy = some(rows * e, k.dy);
    const expected want = expect(&a, x, dy);
    array qkv(x, k.qkv, k.skew), y(static_cast<size_t>(rows * e), k.y, k.skew), lse(want.lse.size(), CU_F32);
    array alone(y.count, k.y);
    void *params = scratch_of(sizeof(run));

    CUDA(cudaMemcpy(params, &run, sizeof(run), cudaMemcpyHostToDevice));
    a.params = static_cast<cu_run_params *>(params);
    if (k.flash) {
        CUDA(cu_flash(NULL, &a, qkv.view, y.view, lse.floats()));
        CUDA(cu_flash(NULL, &a, qkv.view, alone.view, NULL));
    } else {
        CUDA(cu_attention_plain(NULL, &a, qkv.view, y.view, lse.floats()));
        CUDA(cu_attention_plain(NULL, &a, qkv.view, alone.view, NULL));
    }
    check_numbers("y", &a, y.get(), want.y, k.tolerance);
    check_numbers("lse", &a, lse.get(), want.lse, 1e-5);
    assert_true(y.get() == alone.get());
    check_gradient(&a, k, qkv, y, lse, dy, want.dqkv);
    CUDA(cudaFree(params));
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */
static const int64_t lengths[] = {1, 2, 17, 63, 64, 65, 130, 200};

static void check_lengths(int64_t size, uint32_t causal, const kind &k)
{
    int64_t heads = 0;

    for (int64_t t : lengths) {
        heads = heads % 3 + 1;
        cu_attention a = {
            t < 100 ? 2 : 1, t, heads, size, 1.0 / sqrt(static_cast<double>(size)), 0.0, causal, 0, NULL, 0, NULL};
        if (k.flash) assert_true(cu_flash_can(&a));
        check(a, k);
    }
}

static void flash_of_64(void **state)
{
    (void)state;
    check_lengths(64, 0, flash);
    check_lengths(64, 1, flash);
}

static void flash_of_128(void **state)
{
    (void)state;
    check_lengths(128, 0, flash);
    check_lengths(128, 1, flash);
}

static void plain_of_any_size(void **state)
{
    (void)state;
    for (int64_t size : {8, 20, 64, 128}) {
        check_lengths(size, 0, plain);
        check_lengths(size, 1, plain);
    }
}

static void plain_of_odd_sizes(void **state)
{
    (void)state;
    for (int64_t size : {1, 5, 67, 130, 200}) /* the last two in two blocks of columns */
        for (uint32_t causal = 0; causal < 2; causal++) {
            check({2, 33, 2, size, 0.2, 0.0, causal, 0, NULL, 0, NULL}, plain);
            check({1, 70, 1, size, -0.1, 0.1, causal, 4, NULL, 0, NULL}, plain);
        }
}

static void plain_in_other_types(void **state)
{
    kind k = plain_bf16;

    (void)state;
    for (int64_t size : {20, 64, 67, 128})
        for (uint32_t causal = 0; causal < 2; causal++) check({1, 65, 2, size, 0.15, 0.0, causal, 0, NULL, 0, NULL}, k);
    k.qkv = CU_F32;
    check({1, 65, 2, 20, 0.15, 0.0, 1, 0, NULL, 0, NULL}, k);
    k.qkv = CU_BF16, k.y = CU_F32, k.dqkv = CU_F32;
    check({1, 65, 2, 20, 0.15, 0.0, 1, 0, NULL, 0, NULL}, k);
}

static void plain_with_dropout(void **state)
{
    (void)state;
    for (int64_t t : {1, 2, 17, 64, 67, 130})
        for (uint32_t causal = 0; causal < 2; causal++) {
            check({2, t, 3, 20, 0.2, 0.3, causal, 9, NULL, 0, NULL}, plain);
            check({1, t, 2, 64, 0.2, 0.9, causal, 9, NULL, 0, NULL}, plain_bf16);
        }
}

static void plain_adds(void **state)
{
    kind k = plain;

    (void)state;
    k.add = true;
    check({2, 65, 2, 20, 0.2, 0.0, 1, 0, NULL, 0, NULL}, k);
    check({1, 33, 2, 7, 0.2, 0.3, 0, 2, NULL, 0, NULL}, k);
    k = plain_bf16, k.add = true;
    check({1, 65, 2, 64, 0.2, 0.0, 1, 0, NULL, 0, NULL}, k);
}

/* Arrays that no 16-byte read can take, for the tensor cores' entry point too. */
static void arrays_anywhere(void **state)
{
    kind k = plain;

    (void)state;
    k.skew = 1;
    check({1, 65, 2, 64, 0.125, 0.0, 1, 0, NULL, 0, NULL}, k);
    k = flash, k.skew = 1;
    check({1, 65, 2, 64, 0.125, 0.0, 1, 0, NULL, 0, NULL}, k);
    check({1, 40, 2, 64, -0.125, 0.0, 1, 0, NULL, 0, NULL}, k); /* a scale that it leaves to the other */
}

static void many_pairs(void **state) /* whose keys and values are more than the cache is to hold: blocks in sections */
{
    (void)state;
    check({1, 5, 300, 64, 0.125, 0.0, 1, 0, NULL, 0, NULL}, flash);
    check({2, 129, 130, 128, 0.125, 0.0, 1, 0, NULL, 0, NULL}, flash);
}

static void extreme_scores(void **state)
{
    kind k = flash;

    (void)state;
    k.tolerance = 3e-2; /* a weight near 1 leaves of its gradient little but how y was rounded */
    for (uint32_t causal = 0; causal < 2; causal++) {
        check({1, 130, 1, 64, 50.0, 0.0, causal, 0, NULL, 0, NULL}, k);
        check({1, 130, 1, 128, 50.0, 0.0, causal, 0, NULL, 0, NULL}, k);
        k.flash = false;
        check({1, 130, 1, 64, 50.0, 0.0, causal, 0, NULL, 0, NULL}, k);
        k.flash = true;
    }
    /* Log-sum-exps far below 0: what is computed for keys that are not there must not get into the sums. */
    for (int64_t t = 1; t < 4; t++) check({2, t, 3, 64, 50.0, 0.0, 0, 0, NULL, 0, NULL}, k);
}

static void no_nan(void **state) /* where f32 cannot hold the scores well: weights are 0 or 1, none is a NaN */
{
    (void)state;
    for (int64_t size : {64, 128}) {
        cu_attention a = {1, 130, 1, size, 1e6, 0.0, 1, 0, NULL, 0, NULL};
        const numbers x = some(130 * 3 * size, CU_BF16), dy = some(130 * size, CU_BF16);
        array qkv(x, CU_BF16), y(dy.size(), CU_BF16), lse(130, CU_F32), given(dy, CU_BF16), dqkv(x.size(), CU_BF16);
        void *scratch = scratch_of(cu_flash_grad_scratch(&a));

        CUDA(cu_flash(NULL, &a, qkv.view, y.view, lse.floats()));
        CUDA(cu_flash_grad(NULL, &a, given.view, qkv.view, y.view, lse.floats(), dqkv.view, scratch));
        for (double v : y.get()) assert_true(fabs(v) <= 1.01);
        for (double v : dqkv.get()) assert_true(isfinite(v));
        CUDA(cudaFree(scratch));
    }
}

/* ---- q, k and v apart -------------------------------------------------------------------------------------------- */
enum { LENGTH = 200, HEADS = 4, KV_HEADS = 2, SIZE = 16 };

struct apart_arrays {
    const int64_t t;
    array q, k, v, dy, y, lse, dq, dk, dv;

    static numbers part(const numbers &x, int64_t first, int64_t t, int64_t wide)
    {
        return numbers(x.begin() + first * wide, x.begin() + (first + t) * wide);
    }
    /* Positions first .. first + t - 1 of what there is. */
    apart_arrays(const numbers (&x)[4], int64_t first, int64_t length)
        : t(length), q(part(x[0], first, t, HEADS * SIZE), CU_F32), k(part(x[1], first, t, KV_HEADS * SIZE), CU_F32),
          v(part(x[2], first, t, KV_HEADS * SIZE), CU_F32), dy(part(x[3], first, t, HEADS * SIZE), CU_F32),
          y(q.count, CU_F32), lse(static_cast<size_t>(HEADS * t), CU_F32), dq(q.count, CU_F32), dk(k.count, CU_F32),
          dv(k.count, CU_F32)
    {
    }
    void run(uint32_t causal, const int64_t *segment)
    {
        cu_attention a = {1, t, HEADS, SIZE, 0.25, 0.0, causal, 0, NULL, KV_HEADS, segment};
        void *scratch = scratch_of(cu_attention_plain_grad_scratch(&a));

        CUDA(cu_attention_apart(NULL, &a, q.view, k.view, v.view, y.view, lse.floats()));
        const cu_apart_grad g = {dy.view, q.view, k.view, v.view, y.view, lse.floats(), dq.view, dk.view, dv.view};
        CUDA(cu_attention_apart_grad(NULL, &a, &g, scratch));
        CUDA(cudaFree(scratch));
    }
};

static void same_part(const array &whole, const array &part, int64_t first, int64_t wide, double tolerance)
{
    const numbers got = whole.get(), want = part.get();
    double largest = 1e-3;

    for (double x : want) largest = fmax(largest, fabs(x));
    for (size_t i = 0; i < want.size(); i++)
        assert_true(fabs(got[static_cast<size_t>(first * wide) + i] - want[i]) <= tolerance * largest);
}

/* Packed samples give what each gives alone, whole tiles of keys being left out; the last is padding. */
static void segments_apart(void **state)
{
    static const int64_t lengths_of[] = {70, 5, 100, 25};
    int64_t segment[LENGTH], first = 0;
    void *there = scratch_of(sizeof(segment));

    (void)state;
    for (int64_t i = 0; i < 4; first += lengths_of[i++])
        for (int64_t t = first; t < first + lengths_of[i]; t++) segment[t] = i < 3 ? i + 1 : 0;
    CUDA(cudaMemcpy(there, segment, sizeof(segment), cudaMemcpyHostToDevice));
    for (uint32_t causal = 0; causal < 2; causal++) {
        const numbers x[4] = {some(LENGTH * HEADS * SIZE, CU_F32), some(LENGTH * KV_HEADS * SIZE, CU_F32),
                              some(LENGTH * KV_HEADS * SIZE, CU_F32), some(LENGTH * HEADS * SIZE, CU_F32)};
        apart_arrays all(x, 0, LENGTH);

        all.run(causal, static_cast<int64_t *>(there));
        first = 0;
        for (int64_t length : lengths_of) {
            apart_arrays alone(x, first, length);

            alone.run(causal, NULL);
            same_part(all.y, alone.y, first, HEADS * SIZE, 1e-5);
            same_part(all.dq, alone.dq, first, HEADS * SIZE, 2e-5);
            same_part(all.dk, alone.dk, first, KV_HEADS * SIZE, 2e-5);
            same_part(all.dv, alone.dv, first, KV_HEADS * SIZE, 2e-5);
            first += length;
        }
    }
    CUDA(cudaFree(there));
}

static void nothing_to_do(void **state)
{
    cu_attention a = {0, 5, 2, 64, 0.125, 0.0, 1, 0, NULL, 0, NULL};
    const cu_view none = {NULL, CU_BF16};

    (void)state;
    for (int k = 0; k < 2; k++, a.n = 3, a.t = 0) {
        CUDA(cu_flash(NULL, &a, none, none, NULL));
        CUDA(cu_flash_grad(NULL, &a, none, none, none, NULL, none, NULL));
        CUDA(cu_attention_plain(NULL, &a, none, none, NULL));
        CUDA(cu_attention_plain_grad(NULL, &a, none, none, none, NULL, none, false, NULL));
    }
}

static void what_flash_can(void **state)
{
    const cu_attention good = {1, 5, 2, 64, 0.125, 0.0, 1, 0, NULL, 0, NULL};
    cu_attention a = good;

    (void)state;
    assert_true(cu_flash_can(&a));
    a.size = 96;
    assert_false(cu_flash_can(&a));
    a = good, a.dropout = 0.1;
    assert_false(cu_flash_can(&a));
    a = good, a.scale = 0.0;
    assert_false(cu_flash_can(&a));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flash_of_64),
        cmocka_unit_test(flash_of_128),
        cmocka_unit_test(plain_of_any_size),
        cmocka_unit_test(plain_of_odd_sizes),
        cmocka_unit_test(plain_in_other_types),
        cmocka_unit_test(plain_with_dropout),
        cmocka_unit_test(plain_adds),
        cmocka_unit_test(arrays_anywhere),
        cmocka_unit_test(many_pairs),
        cmocka_unit_test(extreme_scores),
        cmocka_unit_test(no_nan),
        cmocka_unit_test(segments_apart),
        cmocka_unit_test(nothing_to_do),
        cmocka_unit_test(what_flash_can),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
