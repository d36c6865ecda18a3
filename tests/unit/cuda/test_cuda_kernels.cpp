/* tests/unit/cuda/test_cuda_kernels.cpp -- the CUDA device's kernels for everything but attention and images, on the
 * double of the CUDA runtime, against plain loops in double: odd sizes, both types, addresses that are no multiple
 * of 16, sums that add to what was there. Updates and random words have the CPU's bits. */
#include "plugins/device/cuda/kernels/kernels.h"
#include "plugins/device/cuda/kernels/load.cuh"
#include "doubles/cuda_runtime_double.h"
#include "plugins/device/cpu/kernels/kernels.h"

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

static const cu_view none = {NULL, CU_F32};
static const uint32_t types[] = {CU_F32, CU_BF16};

#define CUDA(call) assert_int_equal((call), cudaSuccess)

/* A sanitizer looks at addresses, not at numbers, and is slow: there a size has each combination of the two
 * types that are read, and the other switches take turns from size to size. */
#if defined __SANITIZE_ADDRESS__
enum { TURNS = 1 };
#else
enum { TURNS = 0 };
#endif

/* ---- arrays ------------------------------------------------------------------------------------------------------ */
static uint64_t seed = 1;

static uint64_t random_bits(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return seed >> 33;
}

static double random_number(void) { return static_cast<double>(random_bits()) / 1073741824.0 - 1.0; } /* from -1 to 1 */

static float in_type(uint32_t type, double v)
{
    float f = static_cast<float>(v);

    return type == CU_BF16 ? cu_from_bf16(cu_to_bf16(f)) : f;
}

/* What a type can hold. */
static numbers some(int64_t n, uint32_t type, double scale = 1.0)
{
    numbers v(static_cast<size_t>(n));

    for (double &x : v) x = in_type(type, scale * random_number());
    return v;
}

/* Device memory of exactly the elements, NaN at first, `skip` elements behind a multiple of 256 bytes. */
struct array {
    cu_view view;
    size_t count;
    char *block;

    array(size_t n, uint32_t type, size_t skip = 0) : view{NULL, type}, count(n)
    {
        void *p = NULL;

        CUDA(cudaMalloc(&p, (n + skip) * size() + 1));
        block = static_cast<char *>(p);
        view.at = block + skip * size();
        CUDA(cudaMemset(view.at, 0xff, n * size()));
    }
    array(const numbers &v, uint32_t type, size_t skip = 0) : array(v.size(), type, skip) { set(v); }
    array(const array &) = delete;
    array &operator=(const array &) = delete;
    ~array() { (void)cudaFree(block); }
    size_t size() const { return view.type == CU_BF16 ? 2 : 4; }
    float *floats() const { return static_cast<float *>(view.at); }

    void set(const numbers &v)
    {
        std::vector<float> f(v.begin(), v.end());
        std::vector<unsigned short> h(count);

        if (count == 0) return;
        for (size_t i = 0; i < count; i++) h[i] = cu_to_bf16(f[i]);
        CUDA(cudaMemcpy(view.at, view.type == CU_BF16 ? static_cast<void *>(h.data()) : f.data(), count * size(),
                        cudaMemcpyHostToDevice));
    }
    numbers get() const
    {
        std::vector<float> f(count);
        std::vector<unsigned short> h(count);

        CUDA(cudaDeviceSynchronize());
        if (count == 0) return numbers();
        CUDA(cudaMemcpy(view.type == CU_BF16 ? static_cast<void *>(h.data()) : f.data(), view.at, count * size(),
                        cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < count && view.type == CU_BF16; i++) f[i] = cu_from_bf16(h[i]);
        return numbers(f.begin(), f.end());
    }
};

/* Any values in device memory. */
template <class T> struct words {
    T *at;
    size_t count;

    explicit words(size_t n) : at(NULL), count(n)
    {
        void *p = NULL;

        CUDA(cudaMalloc(&p, n * sizeof(T) + 1));
        at = static_cast<T *>(p);
    }
    explicit words(const std::vector<T> &v) : words(v.size())
    {
        if (count > 0) CUDA(cudaMemcpy(at, v.data(), count * sizeof(T), cudaMemcpyHostToDevice));
    }
    words(const words &) = delete;
    words &operator=(const words &) = delete;
    ~words() { (void)cudaFree(at); }
    std::vector<T> get() const
    {
        std::vector<T> v(count);

        CUDA(cudaDeviceSynchronize());
        CUDA(cudaMemcpy(v.data(), at, count * sizeof(T), cudaMemcpyDeviceToHost));
        return v;
    }
};

/* |got - want| <= tolerance (1 + |want|), and what rounding to the type takes; a NaN is a NaN, an infinity itself. */
static void check_numbers(const char *what, const array &got, const numbers &want, double tolerance)
{
    const numbers is = got.get();
    double rounding = got.view.type == CU_BF16 ? 1.0 / 256.0 : 0.0;

    assert_int_equal(is.size(), want.size());
    for (size_t i = 0; i < want.size(); i++) {
        double room = isinf(want[i]) ? 0.0 : (tolerance + rounding) * fabs(want[i]) + tolerance;
        if (isnan(want[i]) ? isnan(is[i]) : is[i] == want[i] || fabs(is[i] - want[i]) <= room) continue;
        fail_msg("%s: element %zu of %zu is %.9g, not %.9g", what, i, want.size(), is[i], want[i]);
    }
}

static numbers plus(const numbers &a, const numbers &b)
{
    numbers sum(a);

    for (size_t i = 0; i < b.size(); i++) sum[i] += b[i];
    return sum;
}

/* The kernels' view of an array that is there or not. */
struct maybe {
    numbers values;
    array memory;

    maybe(bool there, size_t n, uint32_t type)
        : values(some(there ? static_cast<int64_t>(n) : 0, type)), memory(values, type)
    {
    }
    cu_view view() const { return values.empty() ? none : memory.view; }
};

static cu_fault *new_fault(void)
{
    void *p = NULL;

    CUDA(cudaHostAlloc(&p, sizeof(cu_fault), cudaHostAllocMapped));
    memset(p, 0, sizeof(cu_fault));
    return static_cast<cu_fault *>(p);
}

/* ---- words and bits ---------------------------------------------------------------------------------------------- */
static void test_philox(void **)
{
    for (int round = 0; round < 1000; round++) {
        const ddp_random r = {random_bits() << 32 ^ random_bits(), random_bits() << 32 ^ random_bits()};
        uint32_t place = static_cast<uint32_t>(random_bits()), want[4];
        uint64_t block = round % 2 ? random_bits() << 20 : random_bits();
        uint4 got = cu_philox(r.seed, r.stream, place, block);

        ddp_philox(&r, place, block, want);
        assert_true(got.x == want[0] && got.y == want[1] && got.z == want[2] && got.w == want[3]);
    }
}

/* ---- pointwise --------------------------------------------------------------------------------------------------- */
static double phi(double x) { return 0.5 * erfc(-x / sqrt(2.0)); }

static double act_of(uint32_t act, double x)
{
    double u = sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x);

    return act == CU_ACT_RELU        ? (x <= 0.0 ? 0.0 : x)
           : act == CU_ACT_GELU_TANH ? 0.5 * x * (1.0 + tanh(u))
           : act == CU_ACT_GELU_ERF  ? x * phi(x)
                                     : x;
}

/* By differences, so that no derivative is written twice. */
static double slope_of(uint32_t act, double x)
{
    const double h = 1e-4;

    if (act == CU_ACT_RELU) return x <= 0.0 ? 0.0 : 1.0;
    return (act_of(act, x + h) - act_of(act, x - h)) / (2.0 * h);
}

static const size_t lengths[] = {1, 7, 8, 9, 4099};

static void check_act(uint32_t act, uint32_t xt, uint32_t yt, size_t n, size_t skip)
{
    numbers x = some(static_cast<int64_t>(n), xt, 6.0), dy = some(static_cast<int64_t>(n), yt), want(n), slope(n);
    array ax(x, xt, skip), ay(n, yt), ady(dy, yt, skip), old(dy, xt);

    if (n > 8) x[3] = NAN, x[1] = 0.0;
    ax.set(x);
    for (size_t i = 0; i < n; i++) want[i] = act_of(act, x[i]), slope[i] = dy[i] * slope_of(act, x[i]);
    CUDA(cu_act(NULL, act, ax.view, ay.view, static_cast<int64_t>(n)));
    check_numbers("act", ay, want, 3e-6);
    if (n > 8) slope[3] = act == CU_ACT_NONE || act == CU_ACT_RELU ? dy[3] : NAN;
    old.set(dy);
    const numbers before = old.get();
    CUDA(cu_act_grad(NULL, act, ady.view, ax.view, old.view, static_cast<int64_t>(n), true));
    check_numbers("act_grad, added", old, plus(before, slope), 3e-6);
    CUDA(cu_act_grad(NULL, act, ady.view, ax.view, ady.view, static_cast<int64_t>(n), false));
    check_numbers("act_grad in place", ady, slope, 3e-6);
}

static void test_act(void **)
{
    for (uint32_t act = CU_ACT_NONE; act <= CU_ACT_GELU_ERF; act++)
        for (uint32_t xt : types)
            for (uint32_t yt : types)
                for (size_t n : lengths) check_act(act, xt, yt, n, n % 2);
}

static void test_add_and_convert(void **)
{
    for (uint32_t at : types)
        for (uint32_t bt : types)
            for (uint32_t yt : types)
                for (size_t n : lengths) {
                    int64_t m = static_cast<int64_t>(n);
                    numbers a = some(m, at), b = some(m, bt), y = some(m, yt);
                    array aa(a, at), ab(b, bt, n % 3), ay(y, yt, n % 2);
                    CUDA(cu_add(NULL, aa.view, ab.view, ay.view, m, true));
                    check_numbers("add, added", ay, plus(plus(a, b), y), 1e-6);
                    CUDA(cu_add(NULL, aa.view, ab.view, aa.view, m, false));
                    check_numbers("add in place", aa, plus(a, b), 1e-6);
                    CUDA(cu_convert(NULL, ab.view, ay.view, m, false));
                    for (size_t i = 0; i < n; i++) y[i] = in_type(yt, b[i]);
                    check_numbers("convert", ay, y, 0.0);
                    CUDA(cu_convert(NULL, ab.view, ay.view, m, true));
                    check_numbers("convert, added", ay, plus(b, y), 1e-6);
                }
}

static void check_bias_act(uint32_t act, int64_t rows, int64_t cols, uint32_t xt, uint32_t yt, uint32_t pt)
{
    numbers x = some(rows * cols, xt), bias = some(cols, CU_F32), y(x.size()), pre(x);
    array ax(x, xt), ab(bias, CU_F32), ap(x.size(), pt), ay(x.size(), yt);

    for (size_t i = 0; i < x.size(); i++) {
        pre[i] += bias[i % static_cast<size_t>(cols)];
        y[i] = act_of(act, pre[i]);
    }
    CUDA(cu_bias_act(NULL, act, ax.view, ab.floats(), ap.view, ay.view, rows, cols));
    check_numbers("bias_act", ay, y, 2e-6);
    check_numbers("bias_act's pre", ap, pre, 2e-6);
    CUDA(cu_bias_act(NULL, act, ax.view, ab.floats(), none, ax.view, rows, cols));
    check_numbers("bias_act in place", ax, y, 2e-6);
}

static void test_bias_act(void **)
{
    for (uint32_t act = CU_ACT_NONE; act <= CU_ACT_GELU_ERF; act++)
        for (int64_t cols : {1, 12, 16, 333})
            for (uint32_t xt : types)
                for (uint32_t yt : types) check_bias_act(act, 13, cols, xt, yt, yt);
}

static void test_dropout(void **)
{
    const cu_run_params params = {0x123456789abcdefu, 77u << 20 | 5};
    const ddp_random random = {params.seed, params.stream};
    words<cu_run_params> p(std::vector<cu_run_params>(1, params));

    for (double drop : {0.0, 0.3, 1.0})
        for (uint32_t xt : types)
            for (uint32_t yt : types)
                for (size_t n : lengths) {
                    numbers x = some(static_cast<int64_t>(n), xt), y(n), old = some(static_cast<int64_t>(n), yt);
                    array ax(x, xt, n % 2), ay(old, yt);
                    for (size_t i = 0; i < n; i++) {
                        uint32_t word[4];
                        ddp_philox(&random, 9, i / 4, word);
                        y[i] = word[i % 4] < drop * 4294967296.0 || drop == 1.0 ? 0.0 : x[i] / (1.0 - drop);
                    }
                    CUDA(cu_dropout(NULL, ax.view, ay.view, static_cast<int64_t>(n), drop, 9, p.at, true));
                    check_numbers("dropout, added", ay, plus(y, old), 1e-6);
                    CUDA(cu_dropout(NULL, ax.view, ax.view, static_cast<int64_t>(n), drop, 9, p.at, false));
                    check_numbers("dropout in place", ax, y, 1e-6);
                }
}

static void check_column_sums(int64_t rows, int64_t cols, uint32_t type, size_t skip)
{
    numbers dy = some(rows * cols, type), sum(static_cast<size_t>(cols)), old = some(cols, CU_F32);
    array ady(dy, type, skip), adb(old, CU_F32);
    words<char> scratch(cu_column_sums_scratch(rows, cols));

    for (size_t i = 0; i < dy.size(); i++) sum[i % sum.size()] += dy[i];
    CUDA(cu_column_sums(NULL, ady.view, adb.floats(), rows, cols, true, scratch.at));
    check_numbers("column sums, added", adb, plus(sum, old), 1e-5);
    CUDA(cu_column_sums(NULL, ady.view, adb.floats(), rows, cols, false, scratch.at));
    check_numbers("column sums", adb, sum, 1e-5);
}

static numbers column_sums_of(const numbers &x, size_t cols)
{
    numbers sum(cols);

    for (size_t i = 0; i < x.size(); i++) sum[i % cols] += x[i];
    return sum;
}

/* dx in a place of its own, then in that of dy. */
static void check_act_grad_sums(uint32_t act, int64_t rows, int64_t cols, uint32_t xt, uint32_t yt, size_t skip)
{
    numbers x = some(rows * cols, xt, 4.0), dy = some(rows * cols, yt), dx(dy.size()), sum(static_cast<size_t>(cols)),
            old = some(cols, CU_F32);
    array ax(x, xt, skip), ady(dy, yt, skip), adx(dx.size(), xt, skip), adb(old, CU_F32);
    words<char> scratch(cu_column_sums_scratch(rows, cols));

    for (size_t i = 0; i < dx.size(); i++) dx[i] = dy[i] * slope_of(act, x[i]);
    CUDA(cu_act_grad_sums(NULL, act, ady.view, ax.view, adx.view, adb.floats(), rows, cols, true, scratch.at));
    check_numbers("act_grad with sums", adx, dx, 3e-6);
    check_numbers("its sums, added", adb, plus(column_sums_of(adx.get(), static_cast<size_t>(cols)), old), 1e-5);
    CUDA(cu_act_grad_sums(NULL, act, ady.view, ax.view, ady.view, adb.floats(), rows, cols, false, scratch.at));
    check_numbers("act_grad with sums in place", ady, dx, 3e-6);
    check_numbers("its sums", adb, column_sums_of(ady.get(), static_cast<size_t>(cols)), 1e-5);
}

static void test_act_grad_sums(void **)
{
    for (uint32_t act : {CU_ACT_RELU, CU_ACT_GELU_TANH, CU_ACT_GELU_ERF})
        for (uint32_t xt : types)
            for (uint32_t yt : types)
                for (int64_t rows : {0, 1, 23, 64, 700})
                    for (int64_t cols : {1, 10, 64, 264})
                        check_act_grad_sums(act, rows, cols, xt, yt, static_cast<size_t>(rows == 23));
}

static void test_column_sums(void **)
{
    for (uint32_t type : types)
        for (int64_t rows : {0, 1, 65, 3000})
            for (int64_t cols : {1, 10, 64, 264}) check_column_sums(rows, cols, type, static_cast<size_t>(rows % 2));
}

static void test_channels(void **)
{
    for (uint32_t xt : types)
        for (uint32_t yt : types)
            for (int64_t c : {1, 3, 8, 9, 70})
                for (int64_t hw : {1, 5, 49, 300}) {
                    const int64_t n = 2;
                    numbers x = some(n * c * hw, xt), last(x.size()), old = some(n * c * hw, yt);
                    array ax(x, xt), ay(old, yt), back(x.size(), xt);
                    for (int64_t i = 0; i < n * c * hw; i++)
                        last[static_cast<size_t>((i / (c * hw) * hw + i % hw) * c + i / hw % c)] =
                            x[static_cast<size_t>(i)];
                    CUDA(cu_channels_last(NULL, ax.view, ay.view, n, c, hw, true));
                    check_numbers("channels last, added", ay, plus(last, old), 1e-6);
                    CUDA(cu_channels_last(NULL, ax.view, ay.view, n, c, hw, false));
                    check_numbers("channels last", ay, last, 1e-6);
                    ay.set(last);
                    CUDA(cu_channels_first(NULL, ay.view, back.view, n, c, hw, false));
                    check_numbers("channels first", back, x, yt == CU_BF16 ? 1.0 / 256.0 : 1e-6);
                }
}

/* ---- layer norm -------------------------------------------------------------------------------------------------- */
struct norm_case {
    int64_t rows, cols;
    uint32_t xt, rt, st, yt;
    bool residual, sum;
    size_t skip;
    bool rms; /* without mean and bias */
};

static void check_norm(const norm_case &c)
{
    size_t n = static_cast<size_t>(c.cols);
    numbers x = some(c.rows * c.cols, c.xt), w = some(c.cols, CU_F32), b = some(c.cols, CU_F32), t(x), y(x), mean,
            invstd;
    maybe residual(c.residual, x.size(), c.rt);
    array ax(x, c.xt, c.skip), aw(w, CU_F32), ab(b, CU_F32), ay(x.size(), c.yt), as(x.size(), c.st),
        am(static_cast<size_t>(c.rows), CU_F32), ai(static_cast<size_t>(c.rows), CU_F32);

    if (c.residual) t = plus(t, residual.values);
    for (size_t i = 0; i < t.size() && c.sum; i++) t[i] = in_type(c.st, t[i]);
    for (size_t r = 0; r < t.size(); r += n) {
        double m = 0.0, v = 0.0;
        for (size_t k = 0; k < n && !c.rms; k++) m += t[r + k] / static_cast<double>(n);
        for (size_t k = 0; k < n; k++) v += (t[r + k] - m) * (t[r + k] - m) / static_cast<double>(n);
        mean.push_back(m), invstd.push_back(1.0 / sqrt(v + 1e-3));
        for (size_t k = 0; k < n; k++) y[r + k] = (t[r + k] - m) * invstd.back() * w[k] + (c.rms ? 0.0 : b[k]);
    }
    CUDA(cu_layer_norm(NULL, ax.view, residual.view(), c.sum ? as.view : none, aw.floats(), c.rms ? NULL : ab.floats(),
                       ay.view, am.floats(), ai.floats(), c.rows, c.cols, 1e-3));
    check_numbers("layer norm", ay, y, 2e-5);
    check_numbers("layer norm's mean", am, mean, 2e-6);
    check_numbers("layer norm's invstd", ai, invstd, 2e-5);
    if (c.sum) check_numbers("layer norm's sum", as, t, 1e-6);
}

static const int64_t norm_cols[] = {1, 8, 13, 64, 260, 512, 768, 1024, 1032, 2048, 4096, 4104};

static void test_layer_norm(void **)
{
    for (int64_t cols : norm_cols)
        for (uint32_t k = 0; k < 16; k++) /* every combination of types and arrays, over the sizes */
            check_norm({5, cols, k & 1, k >> 1 & 1, k >> 2 & 1, k >> 3 & 1, (k ^ cols) % 3 != 0, (k + cols) % 5 != 0,
                        k == 7 ? 1u : 0u, k % 3 == 2});
}

struct norm_grad_case {
    int64_t rows, cols;
    uint32_t dt, xt, pt, ot;
    bool passed, add, in_place, sums_alone;
    bool rms;        /* without mean and bias */
    bool copy, sums; /* dx in bf16 too; the sums of its columns */
};

/* dx may have been rounded before it was summed. */
static void check_column_sums(const array &got, const numbers &dx, const numbers &old, int64_t rows, uint32_t type)
{
    const size_t n = old.size();
    numbers want(old), room(n);
    const numbers is = got.get();

    for (size_t i = 0; i < dx.size(); i++) want[i % n] += dx[i], room[i % n] += fabs(dx[i]);
    for (size_t k = 0; k < n; k++) {
        const double most = (type == CU_BF16 ? 1.0 / 256.0 : 1e-5) * room[k] + 1e-5 * (1.0 + fabs(want[k]));
        if (fabs(is[k] - want[k]) > most || isnan(is[k]))
            fail_msg("sum %zu of %zu over %d rows is %.9g, not %.9g", k, n, static_cast<int>(rows), is[k], want[k]);
    }
}

static void check_norm_grad(const norm_grad_case &c)
{
    size_t n = static_cast<size_t>(c.cols), size = static_cast<size_t>(c.rows) * n;
    numbers dy = some(c.rows * c.cols, c.dt), x = some(c.rows * c.cols, c.xt), w = some(c.cols, CU_F32),
            mean = some(c.rows, CU_F32), invstd = some(c.rows, CU_F32), dx(size), dw(n), db(n);
    maybe passed(c.passed, size, c.pt);
    if (c.rms) mean.assign(mean.size(), 0.0);
    numbers old = some(c.rows * c.cols, c.ot), old_w = some(c.cols, CU_F32);
    array ady(dy, c.dt), ax(x, c.xt), aw(w, CU_F32), am(mean, CU_F32), ai(invstd, CU_F32), out(old, c.ot),
        adw(old_w, CU_F32), adb(n, CU_F32), &to = c.in_place ? ady : out, copy(size, CU_BF16), sums(old_w, CU_F32);
    words<char> scratch(cu_layer_norm_grad_scratch(c.rows, c.cols, c.sums));

    for (size_t r = 0; r < static_cast<size_t>(c.rows); r++) {
        double g1 = 0.0, g2 = 0.0;
        for (size_t k = 0; k < n; k++) {
            double h = (x[r * n + k] - mean[r]) * invstd[r], d = dy[r * n + k];
            dw[k] += d * h, db[k] += d;
            g1 += c.rms ? 0.0 : d * w[k] / static_cast<double>(n), g2 += d * w[k] * h / static_cast<double>(n);
        }
        for (size_t k = 0; k < n; k++) {
            double h = (x[r * n + k] - mean[r]) * invstd[r];
            dx[r * n + k] = (dy[r * n + k] * w[k] - g1 - h * g2) * invstd[r];
        }
    }
    if (c.passed) dx = plus(dx, passed.values);
    if (c.add) dx = plus(dx, c.in_place ? dy : old);
    cu_norm_grad g = {};
    g.dy = ady.view, g.x = ax.view, g.passed = passed.view(), g.w = aw.floats(), g.invstd = ai.floats();
    if (!c.rms) g.mean = am.floats();
    if (!c.sums_alone) g.dx = to.view;
    if (!c.sums_alone && c.copy) g.copy = copy.view;
    if (!c.sums_alone && c.sums) g.sums = sums.floats();
    g.dw = adw.floats(), g.db = adb.floats(), g.rows = c.rows, g.cols = c.cols;
    g.add_x = c.add, g.add_w = true, g.add_sums = c.rows % 2 == 0;
    CUDA(cu_layer_norm_grad(NULL, &g, scratch.at));
    if (!c.sums_alone) check_numbers("layer norm grad", to, dx, 1e-5);
    if (g.copy.at != NULL) check_numbers("layer norm grad in bf16", copy, dx, 1e-5);
    if (g.sums != NULL) check_column_sums(sums, dx, g.add_sums ? old_w : numbers(n), c.rows, to.view.type);
    check_numbers("layer norm grad's dw", adw, plus(dw, old_w), 1e-5);
    check_numbers("layer norm grad's db", adb, db, 1e-5);
}

static void test_layer_norm_grad(void **)
{
    uint32_t turn = 0;

    for (int64_t cols : norm_cols) {
        for (uint32_t k = 0; k < 16; k++) {
            if (TURNS && k >> 2 != (k + turn) % 4) continue;
            check_norm_grad({k == 3 ? 150 : 6, cols, k & 1, k >> 1 & 1, k >> 2 & 1, k >> 3 & 1, (k ^ cols) % 3 != 0,
                             (k + cols) % 4 == 0, (k + cols) % 3 == 0, (k + cols) % 7 == 0, k % 5 < 2,
                             (k + cols) % 5 != 1, (k + turn) % 4 != 1});
        }
        turn++;
    }
    check_norm_grad({2300, 16, CU_BF16, CU_BF16, CU_BF16, CU_BF16, true, false, false, false, false, true,
                     true}); /* more rows than warps */
    check_norm_grad({700, 9, CU_BF16, CU_F32, CU_BF16, CU_F32, true, false, false, false, true, true, true});
}

/* The sums have the same bits whichever of the blocks and threads come first. */
static void check_norm_grad_order(int64_t rows, int64_t cols)
{
    array dy(some(rows * cols, CU_BF16), CU_BF16), x(some(rows * cols, CU_F32), CU_F32), w(some(cols, CU_F32), CU_F32),
        mean(some(rows, CU_F32), CU_F32), invstd(some(rows, CU_F32), CU_F32);
    numbers got[2];

    for (int k = 0; k < 2; k++) {
        array dx(static_cast<size_t>(rows * cols), CU_F32), sums(static_cast<size_t>(cols), CU_F32);
        words<char> scratch(cu_layer_norm_grad_scratch(rows, cols, true));
        cu_norm_grad g = {};
        cudaStream_t s;
        g.dy = dy.view, g.x = x.view, g.dx = dx.view, g.w = w.floats(), g.mean = mean.floats();
        g.invstd = invstd.floats(), g.sums = sums.floats(), g.rows = rows, g.cols = cols;
        if (k == 1) (void)setenv("CUDA_DOUBLE_ORDER", "reverse", 1); /* of streams made from now on */
        CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
        CUDA(cudaDeviceSynchronize()); /* new arrays are filled by the default stream */
        CUDA(cu_layer_norm_grad(s, &g, scratch.at));
        CUDA(cudaStreamSynchronize(s));
        CUDA(cudaStreamDestroy(s));
        (void)unsetenv("CUDA_DOUBLE_ORDER");
        got[k] = sums.get();
    }
    assert_true(got[0] == got[1]);
}

static void test_layer_norm_grad_order(void **)
{
    check_norm_grad_order(150, 64);
    check_norm_grad_order(20, 1032);
    check_norm_grad_order(150, 13);
}

/* ---- embedding --------------------------------------------------------------------------------------------------- */
static void check_embedding(int64_t rows, int64_t e, int64_t v, uint32_t type, size_t skip)
{
    std::vector<int64_t> index(static_cast<size_t>(rows));
    numbers w = some(v * e, CU_F32), y(static_cast<size_t>(rows * e)), old = some(rows * e, type);
    cu_fault *fault = new_fault();

    for (int64_t &i : index) i = static_cast<int64_t>(random_bits()) % v;
    array aw(w, CU_F32), ay(old, type, skip);
    for (int bad = 0; bad < 2; bad++) {
        if (bad) index[static_cast<size_t>(rows / 2)] = v;
        words<int64_t> ai(index);
        for (size_t i = 0; i < y.size(); i++) {
            int64_t at = index[i / static_cast<size_t>(e)];
            y[i] = at == v ? old[i] : w[static_cast<size_t>(at * e) + i % static_cast<size_t>(e)];
        }
        ay.set(old);
        CUDA(cu_embedding(NULL, ai.at, aw.floats(), ay.view, rows, e, v, fault, 42));
        check_numbers("embedding", ay, y, 1e-6);
        assert_int_equal(fault->kind, bad ? CU_FAULT_INDEX : CU_FAULT_NONE);
    }
    assert_true(fault->kernel == 42 && fault->row == rows / 2 && fault->value == v);
    CUDA(cudaFreeHost(fault));
}

static void test_embedding(void **)
{
    for (uint32_t type : types)
        for (int64_t e : {1, 8, 77, 264}) check_embedding(37, e, 50, type, e == 264 ? 1 : 0);
}

/* `often` of a hundred rows have one index. In float as the CPU has it, so the bits are the same where nothing is
 * added to. */
static void check_embedding_grad(int64_t rows, int64_t e, int64_t v, uint32_t type, uint64_t often, size_t skip)
{
    std::vector<int64_t> index(static_cast<size_t>(rows));
    numbers dy = some(rows * e, type), dw(static_cast<size_t>(v * e)), old = some(v * e, CU_F32);

    for (int64_t &i : index) i = random_bits() % 100 < often ? v / 2 : static_cast<int64_t>(random_bits()) % v;
    if (rows > 3) index[3] = v; /* one that the forward pass has reported */
    for (size_t r = 0; r < index.size(); r++)
        for (size_t k = 0; k < static_cast<size_t>(e) && index[r] < v; k++) {
            double &d = dw[static_cast<size_t>(index[r] * e) + k];
            d = static_cast<float>(d) + static_cast<float>(dy[r * static_cast<size_t>(e) + k]);
        }
    array ady(dy, type, skip), adw(dw.size(), CU_F32);
    words<int64_t> ai(index);
    words<char> scratch(cu_embedding_grad_scratch(rows, e, v));
    CUDA(cu_embedding_grad(NULL, ady.view, ai.at, adw.floats(), rows, e, v, false, scratch.at));
    check_numbers("embedding grad", adw, dw, 0.0);
    adw.set(old);
    CUDA(cu_embedding_grad(NULL, ady.view, ai.at, adw.floats(), rows, e, v, true, scratch.at));
    check_numbers("embedding grad, added", adw, plus(dw, old), 1e-6);
}

static void test_embedding_grad(void **)
{
    uint64_t turn = 0;

    for (uint32_t type : types)
        for (int64_t e : {1, 8, 77, 264})
            for (uint64_t often : {0, 10, 100})
                if (!TURNS || turn++ % 2 == 0) check_embedding_grad(900, e, 70, type, often, e == 264 && often == 10);
    check_embedding_grad(5, 8, 3, CU_BF16, 0, 0);
    check_embedding_grad(0, 8, 3, CU_BF16, 0, 0);
    check_embedding_grad(70000, 8, 2000, CU_BF16, 3, 0); /* more than one window of bits */
    check_embedding_grad(70000, 1, 2, CU_F32, 3, 0);
}

static void test_position(void **)
{
    const int64_t n = 6, p = 11;

    for (uint32_t xt : types)
        for (uint32_t yt : types)
            for (int64_t t : {1, 9, 11})
                for (int64_t e : {1, 8, 33}) {
                    numbers x = some(n * t * e, xt), w = some(p * e, CU_F32), y(x), dw(w.size());
                    array ax(x, xt, e == 33), aw(w, CU_F32), ay(x.size(), yt), adw(w.size(), CU_F32);
                    for (size_t i = 0; i < x.size(); i++) {
                        y[i] += w[i % static_cast<size_t>(t * e)];
                        dw[i % static_cast<size_t>(t * e)] += x[i];
                    }
                    CUDA(cu_position(NULL, ax.view, aw.floats(), ay.view, n, t, e));
                    check_numbers("position", ay, y, 1e-6);
                    CUDA(cu_position_grad(NULL, ax.view, adw.floats(), n, t, e, p, false));
                    check_numbers("position grad", adw, dw, 1e-6);
                    adw.set(w);
                    CUDA(cu_position_grad(NULL, ax.view, adw.floats(), n, t, e, p, true));
                    check_numbers("position grad, added", adw, plus(dw, w), 1e-6);
                    CUDA(cu_position(NULL, ax.view, aw.floats(), ax.view, n, t, e));
                    check_numbers("position in place", ax, y, 1e-6);
                }
}

/* ---- losses ------------------------------------------------------------------------------------------------------ */
struct entropy_case {
    int64_t rows, cols;
    uint32_t xt, gt;
    double smoothing;
    bool ignores, in_place, add;
    size_t skip;
    int64_t padding; /* columns behind the classes */
    bool weighted = false;
    double divisor = 0.0;
    bool mixed = false;
};

/* The gradient of one row; returns its loss. */
static double entropy_row(const double *x, double *g, size_t cols, size_t label, double s, double by,
                          const std::vector<float> &weight)
{
    double max = -INFINITY, sum = 0.0, all = 0.0, weights = 0.0, one = (1.0 - s) * static_cast<double>(weight[label]);
    double each = s / static_cast<double>(cols);

    for (size_t k = 0; k < cols; k++) max = fmax(max, x[k]);
    for (size_t k = 0; k < cols; k++) {
        sum += exp(x[k] - max);
        weights += static_cast<double>(weight[k]);
        all += each > 0.0 ? each * static_cast<double>(weight[k]) * x[k] : 0.0;
    }
    for (size_t k = 0; k < cols; k++)
        g[k] = (exp(x[k] - max) / sum * (one + each * weights) - each * static_cast<double>(weight[k]) -
                (k == label ? one : 0.0)) *
               by;
    return (log(sum) + max) * (one + each * weights) - one * x[label] - all;
}

static void check_entropy(const entropy_case &c)
{
    const int64_t classes = c.cols - c.padding;
    std::vector<float> weight(static_cast<size_t>(classes), 1.0f);
    double weights = 0.0;

    for (size_t k = 0; c.weighted && k < weight.size(); k++) weight[k] = 0.25f + static_cast<float>(k % 5);
    for (float w : weight) weights += static_cast<double>(w);
    words<float> device_weight(weight);
    std::vector<int64_t> other(static_cast<size_t>(c.rows));
    std::vector<float> lambda(static_cast<size_t>(c.rows));
    for (size_t r = 0; r < other.size(); r++) {
        other[r] = static_cast<int64_t>(random_bits()) % classes;
        lambda[r] = static_cast<float>(r % 5) / 4.0f;
    }
    words<int64_t> device_other(other);
    words<float> device_lambda(lambda);
    const cu_entropy e = {c.smoothing,
                          -100,
                          c.ignores,
                          c.padding > 0 ? classes : 0,
                          c.weighted ? device_weight.at : NULL,
                          c.weighted ? weights : 0.0,
                          c.divisor,
                          c.mixed ? device_other.at : NULL,
                          c.mixed ? device_lambda.at : NULL};
    size_t cols = static_cast<size_t>(c.cols), size = static_cast<size_t>(c.rows) * cols;
    numbers x = some(c.rows * c.cols, c.xt, 9.0), g(size), loss(1), old = some(c.rows * c.cols, c.gt);
    std::vector<int64_t> label;
    double counted = 0.0;

    for (int64_t r = 0; r < c.rows; r++)
        label.push_back(c.ignores && r % 3 == 1 ? -100 : static_cast<int64_t>(random_bits()) % classes);
    for (size_t k = 0; k < x.size(); k++) /* larger than any class: they would be all of the sum */
        if (k % cols >= static_cast<size_t>(classes)) x[k] = 80.0;
    if (cols > 20 && c.smoothing == 0.0) { /* as a mask leaves it */
        for (size_t k = 0; k < 20; k++) x[k] = -INFINITY;
        label[0] = 20;
    }
    for (int64_t l : label) counted += l >= 0 ? static_cast<double>(weight[static_cast<size_t>(l)]) : 0.0;
    if (c.divisor > 0.0) counted = c.divisor;
    for (size_t r = 0; r < label.size(); r++) {
        size_t own = static_cast<size_t>(label[r]), at = r * cols, width = static_cast<size_t>(classes);
        numbers two(cols);

        if (label[r] < 0) continue;
        loss[0] += (c.mixed ? static_cast<double>(lambda[r]) : 1.0) *
                   entropy_row(&x[at], &g[at], width, own, c.smoothing, 1.0 / counted, weight);
        if (!c.mixed) continue;
        loss[0] +=
            (1.0 - static_cast<double>(lambda[r])) *
            entropy_row(&x[at], &two[0], width, static_cast<size_t>(other[r]), c.smoothing, 1.0 / counted, weight);
        for (size_t k = 0; k < width; k++)
            g[at + k] = static_cast<double>(lambda[r]) * g[at + k] + (1.0 - static_cast<double>(lambda[r])) * two[k];
    }
    loss[0] /= counted;
    array ax(x, c.xt, c.skip), ag(old, c.gt, c.skip), al(1, CU_F32), &to = c.in_place ? ax : ag;
    words<int64_t> labels(label);
    words<char> scratch(cu_cross_entropy_scratch(c.rows, c.cols));
    CUDA(cu_cross_entropy(NULL, ax.view, labels.at, al.floats(), none, c.rows, c.cols, &e, false, scratch.at, NULL, 0));
    check_numbers("cross-entropy alone", al, loss, 2e-6);
    al.set(numbers(1, NAN));
    CUDA(cu_cross_entropy(NULL, ax.view, labels.at, al.floats(), to.view, c.rows, c.cols, &e, c.add, scratch.at, NULL,
                          0));
    check_numbers("cross-entropy", al, loss, 2e-6);
    check_numbers("cross-entropy's gradient", to, c.add ? plus(g, old) : g, 2e-6);
}

static void test_cross_entropy(void **)
{
    for (int64_t cols : {1, 10, 33, 256, 257, 301, 1000, 4100, 20000})
        for (uint32_t k = 0; k < 8; k++)
            check_entropy({cols < 1000 ? 70 : 4, cols, k & 1, k >> 1 & 1, k % 3 == 2 ? 0.1 : 0.0, k % 4 == 1,
                           k == 3 || k == 4, k == 5 || k == 6, k == 7 || k == 3 ? 3u : 0u, 0});
    for (int64_t cols : {16, 256, 264, 1024, 20000})
        for (uint32_t k = 0; k < 4; k++)
            check_entropy({cols < 1000 ? 70 : 4, cols, k & 1, k >> 1 & 1, k == 2 ? 0.1 : 0.0, k % 2 == 1,
                           k == 3 || k == 0, k == 1, k == 1 ? 3u : 0u, 1 + 6 * (cols % 3)});
    for (int64_t cols : {10, 301, 4100}) /* class weights, and a divisor instead of what counts */
        for (uint32_t k = 0; k < 8; k++)
            check_entropy({cols < 1000 ? 70 : 4, cols, k & 1, k >> 1 & 1, k % 3 == 2 ? 0.1 : 0.0, k % 4 == 1, k == 3,
                           k == 5, k == 7 ? 3u : 0u, k == 6 ? 4 : 0, k != 4, k > 3 ? 37.5 : 0.0});
    for (int64_t cols : {10, 301, 4100}) /* mixed labels */
        for (uint32_t k = 0; k < 8; k++)
            check_entropy({cols < 1000 ? 70 : 4, cols, k & 1, k >> 1 & 1, k % 3 == 2 ? 0.1 : 1e-9, false, k == 3,
                           k == 5, k == 7 ? 3u : 0u, k == 6 ? 4 : 0, false, k == 4 ? 37.5 : 0.0, true});
    check_entropy({1024, 10, CU_F32, CU_F32, 0.0, true, true, false, 3, 0}); /* one block's most, and one more */
    check_entropy({1025, 10, CU_F32, CU_F32, 0.0, true, true, false, 3, 0});
    check_entropy({2, 60000, CU_BF16, CU_BF16, 0.0, false, true, false, 0, 0}); /* too long for shared memory */
    simt_limit_shared(99 * 1024);                                               /* as of sm_86 and 89 */
    check_entropy({2, 51200, CU_BF16, CU_BF16, 0.1, true, true, false, 0, 0});
    check_entropy({2, 26000, CU_F32, CU_BF16, 0.0, false, false, true, 0, 0});
    check_entropy({2, 50304, CU_BF16, CU_BF16, 0.0, false, true, false, 0, 0}); /* fits */
    simt_limit_shared(0);
}

static void test_cross_entropy_faults(void **)
{
    const cu_entropy e = {0.0, -100, 1, 0, NULL, 0.0, 0.0, NULL, NULL};
    const int64_t cols = 10;
    cu_fault *fault = new_fault();
    array x(some(4 * cols, CU_F32), CU_F32), g(static_cast<size_t>(4 * cols), CU_F32), loss(1, CU_F32);
    words<char> scratch(cu_cross_entropy_scratch(4, cols));
    const std::vector<int64_t> ignored(4, -100);
    words<int64_t> good(ignored), bad(std::vector<int64_t>{1, 2, 10, 3});

    CUDA(cu_cross_entropy(NULL, x.view, good.at, loss.floats(), g.view, 4, cols, &e, false, scratch.at, fault, 7));
    check_numbers("the loss of no rows", loss, numbers(1, NAN), 0.0);
    check_numbers("the gradient of no rows", g, numbers(static_cast<size_t>(4 * cols), 0.0), 0.0);
    assert_int_equal(fault->kind, CU_FAULT_NONE);
    CUDA(cu_cross_entropy(NULL, x.view, bad.at, loss.floats(), g.view, 4, cols, &e, false, scratch.at, fault, 7));
    CUDA(cudaDeviceSynchronize());
    assert_true(fault->kind == CU_FAULT_LABEL && fault->kernel == 7 && fault->row == 2 && fault->value == 10);
    CUDA(cudaFreeHost(fault));
}

static void test_mse(void **)
{
    for (uint32_t pt : types)
        for (uint32_t tt : types)
            for (uint32_t gt : types)
                for (size_t n : lengths) {
                    int64_t m = static_cast<int64_t>(n);
                    numbers p = some(m, pt), t = some(m, tt), g(n), loss(1), old = some(m, gt);
                    array ap(p, pt, n % 2), at(t, tt), ag(old, gt), al(1, CU_F32);
                    words<char> scratch(cu_pair_loss_scratch(m));
                    for (size_t i = 0; i < n; i++) {
                        loss[0] += (p[i] - t[i]) * (p[i] - t[i]) / static_cast<double>(n);
                        g[i] = (p[i] - t[i]) * 2.0 / static_cast<double>(n);
                    }
                    CUDA(cu_pair_loss(NULL, CU_LOSS_MSE, 0.0, ap.view, at.view, al.floats(), ag.view, m, true,
                                      scratch.at));
                    check_numbers("mse", al, loss, 1e-6);
                    check_numbers("mse's gradient, added", ag, plus(g, old), 1e-6);
                    CUDA(cu_pair_loss(NULL, CU_LOSS_MSE, 0.0, ap.view, at.view, NULL, ag.view, m, false, scratch.at));
                    check_numbers("mse's gradient", ag, g, 1e-6);
                    CUDA(cu_pair_loss(NULL, CU_LOSS_MSE, 0.0, ap.view, at.view, al.floats(), none, m, false,
                                      scratch.at));
                    check_numbers("mse alone", al, loss, 1e-6);
                }
}

static void check_accuracy(int64_t rows, int64_t cols, uint32_t type, size_t skip)
{
    numbers x = some(rows * cols, type), want(1);
    std::vector<int64_t> label;

    for (double &v : x) v = round(v * 4.0) / 4.0; /* many equals, 0 of both signs */
    if (cols > 9) {
        x[static_cast<size_t>(cols) + 7] = x[static_cast<size_t>(cols) + 9] = NAN;
        for (size_t k = 0; k < static_cast<size_t>(cols); k++) x[k] = k == 1 ? -0.0 : k == 3 ? 0.0 : -1.0;
    }
    for (int64_t r = 0; r < rows; r++) {
        const double *row = &x[static_cast<size_t>(r * cols)];
        int64_t best = 0;
        for (int64_t k = 1; k < cols && !isnan(row[best]); k++)
            if (isnan(row[k]) || row[k] > row[best]) best = k;
        label.push_back(r % 4 == 3 && best + 1 < cols ? best + 1 : best);
        want[0] += label.back() == best ? 0.5 : 0.0;
    }
    array ax(x, type, skip), out(1, CU_F32);
    words<int64_t> labels(label);
    words<char> scratch(cu_accuracy_scratch(rows));
    CUDA(cu_accuracy(NULL, ax.view, labels.at, out.floats(), rows, cols, 2.0, scratch.at, NULL, 0));
    check_numbers("accuracy", out, want, 0.0);
}

static void test_accuracy(void **)
{
    for (uint32_t type : types)
        for (int64_t cols : {1, 10, 13, 1000, 6000}) check_accuracy(45, cols, type, cols == 13 ? 3 : 0);
}

/* ---- updates ----------------------------------------------------------------------------------------------------- */
/* What the CPU device's flat.c makes of the numbers of an update. */
static cpu_update cpu_constants(const cu_optim &o)
{
    cpu_update u = {};
    double bias1 = 1.0 - pow(o.beta1, static_cast<double>(o.step)),
           bias2 = 1.0 - pow(o.beta2, static_cast<double>(o.step));

    u.algorithm = o.algorithm, u.nesterov = o.nesterov != 0, u.first = o.step == 1, u.momentum_on = o.momentum != 0.0;
    u.grad_scale = static_cast<float>(o.grad_scale), u.weight_decay = static_cast<float>(o.weight_decay);
    u.minus_lr = static_cast<float>(-o.lr), u.momentum = static_cast<float>(o.momentum);
    u.shrink = static_cast<float>(1.0 - o.lr * o.weight_decay);
    u.beta1 = static_cast<float>(o.beta1), u.one_minus_beta1 = static_cast<float>(1.0 - o.beta1);
    u.beta2 = static_cast<float>(o.beta2), u.one_minus_beta2 = static_cast<float>(1.0 - o.beta2);
    u.minus_step = static_cast<float>(-(o.lr / bias1)), u.root_bias2 = static_cast<float>(sqrt(bias2));
    u.eps = static_cast<float>(o.eps);
    return u;
}

static std::vector<float> as_floats(const numbers &v) { return std::vector<float>(v.begin(), v.end()); }

static void same_bits(const char *what, const array &got, const std::vector<float> &want)
{
    const std::vector<float> is = as_floats(got.get());

    for (size_t i = 0; i < want.size(); i++)
        if (memcmp(&is[i], &want[i], sizeof(float)) != 0)
            fail_msg("%s: element %zu of %zu is %.9g, not %.9g", what, i, want.size(), static_cast<double>(is[i]),
                     static_cast<double>(want[i]));
}

/* Rounded by the words of the generator: the part that is cut off, and the word's low half, carry or do not. */
static void check_half(const cu_optim &o, const array &half, const std::vector<float> &p)
{
    const ddp_random random = {o.seed, o.step};
    numbers want;

    for (size_t i = 0; i < p.size(); i++) {
        uint32_t word[4], bits;
        ddp_philox(&random, 0, o.first + i / 4, word);
        memcpy(&bits, &p[i], sizeof(bits));
        bits = (bits + (word[i % 4] & 0xffffu)) & 0xffff0000u;
        want.push_back(o.stochastic ? static_cast<double>(cu_from_bf16(static_cast<unsigned short>(bits >> 16)))
                                    : static_cast<double>(in_type(CU_BF16, static_cast<double>(p[i]))));
    }
    assert_true(half.get() == want);
}

static void check_update(cu_optim o, size_t n, uint32_t peers, size_t skip)
{
    numbers p = some(static_cast<int64_t>(n), CU_F32), m = some(static_cast<int64_t>(n), CU_F32),
            v = some(static_cast<int64_t>(n), CU_F32), g[CU_MAX_PEERS];
    std::vector<float> wp = as_floats(p), wm = as_floats(m), wv, wg(n), grads[CU_MAX_PEERS];
    const float *from[CU_MAX_PEERS];
    std::vector<array *> arrays;

    for (double &x : v) x = fabs(x);
    wv = as_floats(v);
    for (uint32_t k = 0; k < (peers > 0 ? peers : 1); k++) {
        g[k] = some(static_cast<int64_t>(n), CU_F32);
        grads[k] = as_floats(g[k]), from[k] = grads[k].data();
        arrays.push_back(new array(g[k], CU_F32, k == 1 ? skip : 0));
        o.grads[k] = arrays.back()->floats();
    }
    array ap(p, CU_F32, skip), am(m, CU_F32), av(v, CU_F32), other(n, CU_F32), half(n, CU_BF16, skip);
    const cpu_update u = cpu_constants(o);
    o.param = ap.floats(), o.state1 = am.floats(), o.state2 = av.floats(),
    o.half = static_cast<uint16_t *>(half.view.at), o.n = n;
    o.grad = peers > 0 ? NULL : o.grads[0];
    o.grad_peers = peers, o.param_peers = peers > 0 ? 2 : 0;
    o.params[0] = other.floats(), o.params[1] = o.param;
    cpu_kernels_portable.mean(wg.data(), from, peers > 0 ? peers : 1, static_cast<int64_t>(n));
    cpu_kernels_portable.update(&u, wp.data(), wm.data(), wv.data(), wg.data(), static_cast<int64_t>(n));
    CUDA(cu_optim_steps(NULL, &o, 1, NULL));
    same_bits("parameters", ap, wp);
    same_bits("first state", am, wm);
    same_bits("second state", av, wv);
    if (peers > 0) same_bits("another's parameters", other, wp);
    check_half(o, half, wp);
    for (array *a : arrays) delete a;
}

static cu_optim some_update(uint32_t algorithm, double momentum, bool nesterov, uint64_t step)
{
    cu_optim o = {};

    o.algorithm = algorithm, o.nesterov = nesterov, o.step = step, o.momentum = momentum;
    o.lr = 0.03, o.beta1 = 0.9, o.beta2 = 0.95, o.eps = 1e-8, o.weight_decay = 0.1, o.grad_scale = 0.37;
    o.stochastic = step % 2 == 0, o.seed = 99, o.first = 1000;
    return o;
}

static void test_updates(void **)
{
    for (size_t n : {1u, 3u, 4u, 1030u})
        for (uint64_t step : {1u, 2u, 1001u})
            for (uint32_t peers : {0u, 1u, 2u, 3u, 4u, 16u})
                for (size_t skip : {0u, 1u}) {
                    check_update(some_update(DDP_OPTIM_SGD, 0.0, false, step), n, peers, skip);
                    check_update(some_update(DDP_OPTIM_SGD, 0.9, false, step), n, peers, skip);
                    check_update(some_update(DDP_OPTIM_SGD, 0.9, true, step), n, peers, skip);
                    check_update(some_update(DDP_OPTIM_ADAM, 0.0, false, step), n, peers, skip);
                    check_update(some_update(DDP_OPTIM_ADAMW, 0.0, false, step), n, peers, skip);
                }
}

/* As many slices as fill a launch twice and one more, of all sizes, one of them empty: each as by itself. */
static void test_updates_together(void **)
{
    const size_t sizes[] = {1030, 0, 3, 4096, 1, 777, 5000, 64, 1025, 12, 2048, 9, 600, 31};
    const size_t count = sizeof(sizes) / sizeof(sizes[0]), state_of = 3;
    std::vector<array *> apart, together;
    std::vector<cu_optim> all;
    words<unsigned long long> bad(std::vector<unsigned long long>(count, 1u << 20));
    cu_numbers one;

    for (size_t i = 0; i < count; i++) {
        cu_optim o = some_update(DDP_OPTIM_ADAMW, 0.0, false, 7), other;
        const int64_t n = static_cast<int64_t>(sizes[i]);
        const numbers p = some(n, CU_F32), m = some(n, CU_F32);
        numbers v = some(n, CU_F32), g = some(n, CU_F32);
        for (double &x : v) x = fabs(x);
        if (i % 3 == 2) g[sizes[i] / 2] = NAN;
        for (std::vector<array *> *to : {&apart, &together})
            for (const numbers &x : {p, m, v, g}) to->push_back(new array(x, CU_F32, i % 2));
        o.n = sizes[i], o.grad_peers = 1, o.stochastic = false;
        for (size_t way = 0; way < 2; way++) {
            array **a = (way == 0 ? apart : together).data() + 4 * i;
            other = o;
            other.param = a[0]->floats(), other.state1 = a[1]->floats(), other.state2 = a[2]->floats();
            other.grads[0] = a[3]->floats();
            other.not_finite = way == 0 ? NULL : bad.at + i;
            if (way == 0) CUDA(cu_optim_steps(NULL, &other, 1, NULL));
        }
        all.push_back(other);
    }
    cu_optim_numbers(&all[0], &one);
    words<cu_numbers> numbers_of_all(std::vector<cu_numbers>(1, one));
    for (cu_optim &o : all) o.lr = 1e9; /* which the numbers of all overrule */
    CUDA(cu_optim_steps(NULL, all.data(), count, numbers_of_all.at));
    for (size_t i = 0; i < count; i++) {
        for (size_t k = 0; k < state_of; k++)
            same_bits("a slice", *together[4 * i + k], as_floats(apart[4 * i + k]->get()));
        assert_int_equal(bad.get()[i], i % 3 == 2 ? sizes[i] / 2 : 1u << 20);
    }
    for (array *a : apart) delete a;
    for (array *a : together) delete a;
}

static void test_mean(void **)
{
    const size_t n = 1030;

    for (uint32_t peers : {1u, 2u, 3u, 4u}) {
        cu_optim o = {};
        std::vector<array *> arrays;
        std::vector<float> want(n), grads[4];
        const float *from[4];
        words<unsigned long long> bad(std::vector<unsigned long long>(1, n));
        for (uint32_t k = 0; k < peers; k++) {
            numbers g = some(static_cast<int64_t>(n), CU_F32);
            if (k + 1 == peers && peers > 1) g[777] = INFINITY, g[779] = NAN;
            grads[k] = as_floats(g), from[k] = grads[k].data();
            arrays.push_back(new array(g, CU_F32));
            o.grads[k] = arrays[k]->floats();
        }
        o.algorithm = DDP_OPTIM_MEAN, o.n = n, o.grad_peers = peers, o.param = arrays[0]->floats(),
        o.not_finite = bad.at;
        cpu_kernels_portable.mean(want.data(), from, peers, static_cast<int64_t>(n));
        CUDA(cu_optim_steps(NULL, &o, 1, NULL));
        want[779] = 0.0f;
        numbers got = arrays[0]->get();
        assert_true(peers == 1 || isnan(got[779]));
        got[779] = 0.0;
        arrays[0]->set(got);
        same_bits("mean", *arrays[0], want);
        assert_int_equal(bad.get()[0], peers > 1 ? 777 : n);
        for (array *a : arrays) delete a;
    }
}

/* ---- flat arrays ------------------------------------------------------------------------------------------------- */
static void test_finite(void **)
{
    for (size_t n : {0u, 1u, 5u, 4096u, 9001u})
        for (size_t skip : {0u, 1u}) {
            words<uint64_t> out(1);
            numbers x = some(static_cast<int64_t>(n), CU_F32);
            array ax(x, CU_F32, skip);
            CUDA(cu_flat_finite(NULL, ax.floats(), n, out.at));
            assert_int_equal(out.get()[0], n);
            if (n == 0) continue;
            for (size_t i = n / 2; i < n; i += i == n / 2 ? 1 : 1023) x[i] = i == n / 2 ? -INFINITY : NAN;
            ax.set(x);
            CUDA(cu_flat_finite(NULL, ax.floats(), n, out.at));
            assert_int_equal(out.get()[0], n / 2);
        }
}

static void test_squares(void **)
{
    const size_t four_packs = 4 * 132 * 8 * 1024 + 1027; /* of each thread, which it loads together */

    for (size_t n : {size_t(0), size_t(1), size_t(5), size_t(4096), size_t(9001), four_packs}) {
        numbers x = some(static_cast<int64_t>(n), CU_F32);
        double want = 0.0, less = 0.0, got[2];
        for (double v : x) { /* Kahan's sum */
            double term = v * v - less, sum = want + term;
            less = (sum - want) - term;
            want = sum;
        }
        for (size_t skip : {0u, 1u}) {
            array ax(x, CU_F32, skip);
            words<double> out(1);
            words<char> scratch(cu_flat_squares_scratch(n));
            CUDA(cu_flat_squares(NULL, ax.floats(), n, out.at, scratch.at));
            got[skip] = out.get()[0];
        }
        assert_true(fabs(got[0] - want) <= 1e-13 * want);
        assert_true(got[0] == got[1]); /* the order depends on n alone */
    }
}

static void test_scale(void **)
{
    for (size_t n : {1u, 5u, 9001u})
        for (double by : {0.3, 1e-30, 0.0}) {
            numbers x = some(static_cast<int64_t>(n), CU_F32);
            if (by == 0.0) x[0] = NAN;
            array ax(x, CU_F32, n % 2);
            std::vector<float> want;
            for (double v : x) want.push_back(by == 0.0 ? 0.0f : static_cast<float>(v * by));
            CUDA(cu_flat_scale(NULL, ax.floats(), n, by));
            same_bits("scale", ax, want);
        }
}

/* ---- nothing to do ----------------------------------------------------------------------------------------------- */
static void test_nothing(void **)
{
    const cu_entropy e = {};
    cu_optim o = some_update(DDP_OPTIM_ADAM, 0.0, false, 1);

    CUDA(cu_act(NULL, CU_ACT_RELU, none, none, 0));
    CUDA(cu_act_grad(NULL, CU_ACT_RELU, none, none, none, 0, true));
    CUDA(cu_add(NULL, none, none, none, 0, false));
    CUDA(cu_convert(NULL, none, none, 0, false));
    CUDA(cu_bias_act(NULL, CU_ACT_RELU, none, NULL, none, none, 0, 0));
    CUDA(cu_dropout(NULL, none, none, 0, 0.5, 0, NULL, false));
    CUDA(cu_column_sums(NULL, none, NULL, 0, 0, false, NULL));
    CUDA(cu_channels_last(NULL, none, none, 0, 0, 0, false));
    CUDA(cu_channels_first(NULL, none, none, 3, 0, 5, false));
    CUDA(cu_layer_norm(NULL, none, none, none, NULL, NULL, none, NULL, NULL, 0, 8, 1e-5));
    const cu_norm_grad nothing = {};
    CUDA(cu_layer_norm_grad(NULL, &nothing, NULL));
    CUDA(cu_embedding(NULL, NULL, NULL, none, 0, 8, 3, NULL, 0));
    CUDA(cu_embedding_grad(NULL, none, NULL, NULL, 0, 0, 0, false, NULL));
    CUDA(cu_position(NULL, none, NULL, none, 0, 0, 0));
    CUDA(cu_position_grad(NULL, none, NULL, 0, 0, 0, 0, false));
    CUDA(cu_cross_entropy(NULL, none, NULL, NULL, none, 0, 0, &e, false, NULL, NULL, 0));
    CUDA(cu_pair_loss(NULL, CU_LOSS_MSE, 0.0, none, none, NULL, none, 0, false, NULL));
    CUDA(cu_accuracy(NULL, none, NULL, NULL, 0, 0, 1.0, NULL, NULL, 0));
    CUDA(cu_optim_steps(NULL, &o, 1, NULL));
    CUDA(cu_flat_scale(NULL, NULL, 0, 2.0));
    CUDA(cudaDeviceSynchronize());
}

/* Nothing was done that CUDA would refuse, or kept. */
static int check_double(void **)
{
    cuda_double_counts c;

    CUDA(cudaDeviceSynchronize());
    cuda_double_count(&c);
    assert_string_equal(cuda_double_misuse(), "");
    assert_int_equal(c.device_memory + c.host_memory, 0);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_philox),
        cmocka_unit_test(test_act),
        cmocka_unit_test(test_add_and_convert),
        cmocka_unit_test(test_bias_act),
        cmocka_unit_test(test_dropout),
        cmocka_unit_test(test_column_sums),
        cmocka_unit_test(test_act_grad_sums),
        cmocka_unit_test(test_channels),
        cmocka_unit_test(test_layer_norm),
        cmocka_unit_test(test_layer_norm_grad),
        cmocka_unit_test(test_layer_norm_grad_order),
        cmocka_unit_test(test_embedding),
        cmocka_unit_test(test_embedding_grad),
        cmocka_unit_test(test_position),
        cmocka_unit_test(test_cross_entropy),
        cmocka_unit_test(test_cross_entropy_faults),
        cmocka_unit_test(test_mse),
        cmocka_unit_test(test_accuracy),
        cmocka_unit_test(test_updates),
        cmocka_unit_test(test_updates_together),
        cmocka_unit_test(test_mean),
        cmocka_unit_test(test_finite),
        cmocka_unit_test(test_squares),
        cmocka_unit_test(test_scale),
        cmocka_unit_test(test_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, check_double);
}
