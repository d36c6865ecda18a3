/* tests/unit/cuda/test_cuda_image.cpp -- the CUDA device's kernels over images on the double of the CUDA runtime,
 * against plain loops in double: batch norm, pooling, convolution, the order of weights; odd sizes, both types,
 * arrays of different types, sums that add to what was there. */
#include "plugins/device/cuda/kernels/kernels.h"
#include "plugins/device/cuda/kernels/simt.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <algorithm>
#include <memory>
#include <vector>

extern "C" { /* its header does not say so */
#include <cmocka.h>
}

typedef std::vector<double> numbers;

static const cu_view none = {NULL, CU_F32};

#define CUDA(call) assert_int_equal((call), cudaSuccess)

/* A sanitizer looks at addresses, not at numbers, and is slow: there a size has each pair of types, and the
 * other switches take turns from size to size. */
#if defined __SANITIZE_ADDRESS__
enum { TURNS = 1 };
#else
enum { TURNS = 0 };
#endif

/* ---- arrays ------------------------------------------------------------------------------------------------------ */
static uint64_t seed = 1;

static double random_number(void) /* from -1 to 1, with few bits, so that there are equals */
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return static_cast<double>(static_cast<int64_t>(seed >> 55) - 256) / 256.0;
}

static float in_type(uint32_t type, double v)
{
    float f = static_cast<float>(v);

    return type == CU_BF16 ? cu_from_bf16(cu_to_bf16(f)) : f;
}

/* What a type can hold, around `mean`. */
static numbers some(int64_t n, uint32_t type, double mean = 0.0)
{
    numbers v(static_cast<size_t>(n));

    for (double &x : v) x = in_type(type, mean + random_number());
    return v;
}

/* Device memory of exactly the elements; new memory is NaN. */
struct array {
    cu_view view;
    size_t count;

    array(size_t n, uint32_t type) : view{NULL, type}, count(n)
    {
        CUDA(cudaMalloc(&view.at, n > 0 ? n * size() : 1));
        CUDA(cudaMemset(view.at, 0xff, n * size()));
    }
    array(const numbers &v, uint32_t type) : array(v.size(), type) { set(v); }
    array(const array &) = delete;
    array &operator=(const array &) = delete;
    ~array() { (void)cudaFree(view.at); }
    size_t size() const { return view.type == CU_BF16 ? 2 : 4; }
    float *floats() const { return static_cast<float *>(view.at); }

    void set(const numbers &v)
    {
        std::vector<float> f(v.begin(), v.end());
        std::vector<unsigned short> h(count);

        for (size_t i = 0; i < count; i++) h[i] = cu_to_bf16(f[i]);
        CUDA(cudaMemcpy(view.at, view.type == CU_BF16 ? static_cast<void *>(h.data()) : f.data(), count * size(),
                        cudaMemcpyHostToDevice));
    }
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

struct scratch_memory {
    array bytes;

    explicit scratch_memory(size_t n) : bytes(n / 4 + 1, CU_F32) {}
    void *at() const { return bytes.view.at; }
};

/* ---- batch norm -------------------------------------------------------------------------------------------------- */
struct norm_case {
    int64_t rows, c;
    double mean;
};
static const norm_case norm_cases[] = {
    {2, 1, 0},    {3, 5, 2},     {7, 8, 0},    {65, 3, -1},  {33, 16, 0}, {129, 24, 3}, {1, 12, 0},    {300, 64, 1},
    {77, 130, 0}, {600, 40, 10}, {9, 1024, 0}, {1100, 7, 0}, {2, 66, 0},  {5000, 4, 0}, {9000, 72, 1}, {300, 520, 0}};
/* Of x, and of the rest. */
static const uint32_t type_pairs[][2] = {{CU_F32, CU_F32}, {CU_BF16, CU_BF16}, {CU_F32, CU_BF16}, {CU_BF16, CU_F32}};

struct norm_run {
    norm_case n;
    uint32_t type, other_type;
    bool training, relu, residual, in_place, kept;
};

static void norm_moments(const numbers &x, int64_t rows, int64_t c, int64_t channel, double *mean, double *var)
{
    double sum = 0.0, square = 0.0;

    for (int64_t r = 0; r < rows; r++) sum += x[static_cast<size_t>(r * c + channel)];
    *mean = sum / static_cast<double>(rows);
    for (int64_t r = 0; r < rows; r++) {
        double d = x[static_cast<size_t>(r * c + channel)] - *mean;
        square += d * d;
    }
    *var = square / static_cast<double>(rows);
}

struct norm_want {
    numbers y, mean, invstd, running_mean, running_var;
};

static norm_want norm_reference(const norm_run &t, const numbers &x, const numbers &other, const numbers &w,
                                const numbers &b, const numbers &running_mean, const numbers &running_var)
{
    const double n = static_cast<double>(t.n.rows), eps = 1e-5, momentum = 0.1;
    norm_want o = {numbers(x.size()), numbers(w.size()), numbers(w.size()), running_mean, running_var};

    for (size_t c = 0; c < w.size(); c++) {
        double mean = running_mean[c], var = running_var[c];
        if (t.training) {
            norm_moments(x, t.n.rows, t.n.c, static_cast<int64_t>(c), &mean, &var);
            o.running_mean[c] += momentum * (mean - o.running_mean[c]);
            o.running_var[c] += momentum * (var * n / (n - 1.0) - o.running_var[c]);
        }
        o.mean[c] = mean;
        o.invstd[c] = 1.0 / sqrt(var + eps);
        for (size_t i = c; i < x.size(); i += w.size()) {
            o.y[i] = (x[i] - mean) * o.invstd[c] * w[c] + b[c] + (t.residual ? other[i] : 0.0);
            if (t.relu && o.y[i] < 0.0) o.y[i] = 0.0;
        }
    }
    return o;
}

static void norm_forward(const norm_run &t)
{
    const size_t elements = static_cast<size_t>(t.n.rows * t.n.c);
    const numbers x = some(t.n.rows * t.n.c, t.type, t.n.mean), other = some(t.n.rows * t.n.c, t.other_type);
    const numbers w = some(t.n.c, CU_F32, 1.5), b = some(t.n.c, CU_F32), rm = some(t.n.c, CU_F32),
                  rv = some(t.n.c, CU_F32, 2.0);
    const norm_want want = norm_reference(t, x, other, w, b, rm, rv);
    array dx(x, t.type), dother(other, t.other_type), dw(w, CU_F32), db(b, CU_F32), drm(rm, CU_F32), drv(rv, CU_F32);
    array y(elements, t.other_type), mean(w.size(), CU_F32), invstd(w.size(), CU_F32);
    scratch_memory scratch(cu_batch_norm_scratch(t.n.rows, t.n.c));
    const array &out = t.in_place ? dx : y;
    double tolerance = 2e-6 * (1.0 + fabs(t.n.mean)) + 1e-5;

    CUDA(cu_batch_norm(NULL, dx.view, dw.floats(), db.floats(), drm.floats(), drv.floats(),
                       t.residual ? dother.view : none, out.view, t.kept ? mean.floats() : NULL,
                       t.kept ? invstd.floats() : NULL, t.n.rows, t.n.c, 1e-5, 0.1, t.training, t.relu, scratch.at()));
    /* two equal values in a channel: what eps leaves of invstd makes y large, and its error */
    check_numbers("y", out, want.y, t.n.rows < 4 ? 1e-3 : tolerance);
    if (t.kept) check_numbers("mean", mean, want.mean, tolerance);
    if (t.kept) check_numbers("invstd", invstd, want.invstd, tolerance);
    check_numbers("running mean", drm, want.running_mean, tolerance);
    check_numbers("running var", drv, want.running_var, tolerance);
}

static void test_batch_norm(void **state)
{
    unsigned turn = 0;

    (void)state;
    for (const norm_case &n : norm_cases) {
        for (const uint32_t(&type)[2] : type_pairs) {
            for (unsigned bits = 0; bits < 4; bits++) {
                if (TURNS && bits != turn % 4) continue;
                norm_run t = {
                    n,        type[0], type[1], true, (bits & 1) != 0, (bits & 2) != 0, bits == 3 && type[0] == type[1],
                    bits != 1};
                norm_forward(t);
                t.training = false;
                norm_forward(t);
            }
            turn++;
        }
        turn++;
    }
}

/* Where mean^2 is far above the variance, f32 sums of x and x^2 would leave nothing. */
static void test_batch_norm_far_mean(void **state)
{
    const int64_t rows = 4000, c = 12;
    numbers x(static_cast<size_t>(rows * c)), ones(static_cast<size_t>(c), 1.0), zeros(static_cast<size_t>(c), 0.0);

    (void)state;
    for (size_t i = 0; i < x.size(); i++) x[i] = in_type(CU_F32, 4096.0 + random_number());
    array dx(x, CU_F32), w(ones, CU_F32), b(zeros, CU_F32), rm(zeros, CU_F32), rv(ones, CU_F32);
    array y(x.size(), CU_F32), mean(ones.size(), CU_F32), invstd(ones.size(), CU_F32);
    scratch_memory scratch(cu_batch_norm_scratch(rows, c));
    norm_run t = {{rows, c, 4096.0}, CU_F32, CU_F32, true, false, false, false, true};
    norm_want want = norm_reference(t, x, x, ones, zeros, zeros, ones);

    CUDA(cu_batch_norm(NULL, dx.view, w.floats(), b.floats(), rm.floats(), rv.floats(), none, y.view, mean.floats(),
                       invstd.floats(), rows, c, 1e-5, 0.1, true, false, scratch.at()));
    check_numbers("invstd", invstd, want.invstd, 1e-5);
    check_numbers("y", y, want.y, 5e-4); /* the mean itself is an f32 */
}

static void test_batch_norm_nan(void **state)
{
    const double bad = static_cast<double>(NAN);
    numbers x = {1, bad, 2, 0, 3, 5, 4, 1}, ones(2, 1.0), zeros(2, 0.0); /* (4, 2) */

    (void)state;
    array dx(x, CU_F32), w(ones, CU_F32), b(zeros, CU_F32), rm(zeros, CU_F32), rv(ones, CU_F32), y(8, CU_F32);
    scratch_memory scratch(cu_batch_norm_scratch(4, 2));
    CUDA(cu_batch_norm(NULL, dx.view, w.floats(), b.floats(), rm.floats(), rv.floats(), none, y.view, NULL, NULL, 4, 2,
                       1e-5, 0.1, true, true, scratch.at()));
    for (size_t i = 0; i < 8; i++) assert_int_equal(isnan(y.get()[i]), i % 2 == 1);
    assert_false(isnan(rm.get()[0]));
    assert_true(isnan(rv.get()[1]));
}

struct norm_grad_run {
    norm_case n;
    uint32_t type, other_type;
    bool more, relu, masked, add, no_dx, no_sums, in_place, of_x; /* of_x: the relu's output is not given */
};

/* As the forward kernel computes it. */
static double forward_relu(double x, double mean, double invstd, double w, double b)
{
    const float scale = static_cast<float>(invstd) * static_cast<float>(w);
    const float y = fmaf(static_cast<float>(x) - static_cast<float>(mean), scale, static_cast<float>(b));

    return y < 0.0f ? 0.0 : static_cast<double>(y);
}

static void norm_grad(const norm_grad_run &t)
{
    const int64_t all = t.n.rows * t.n.c;
    const size_t c_count = static_cast<size_t>(t.n.c), elements = static_cast<size_t>(all);
    const numbers x = some(all, t.type, t.n.mean), dy = some(all, t.other_type), more = some(all, t.other_type);
    const numbers w = some(t.n.c, CU_F32, 1.5), mean = some(t.n.c, CU_F32, t.n.mean), invstd = some(t.n.c, CU_F32, 2.0);
    const numbers b = some(t.n.c, CU_F32);
    const numbers old = some(all, t.type), old_w = some(t.n.c, CU_F32), old_b = some(t.n.c, CU_F32);
    numbers y = some(all, t.other_type), g(dy), dx(elements), dw(c_count), db(c_count);
    const double n = static_cast<double>(t.n.rows);

    for (double &v : y) v = v < 0.0 ? 0.0 : v;
    for (size_t i = 0; i < elements; i++) {
        if (t.of_x) y[i] = forward_relu(x[i], mean[i % c_count], invstd[i % c_count], w[i % c_count], b[i % c_count]);
        if (t.more) g[i] += more[i];
        if (t.relu && y[i] == 0.0) g[i] = 0.0;
        if (t.masked) g[i] = in_type(t.other_type, g[i]);
        db[i % c_count] += g[i];
        dw[i % c_count] += g[i] * (x[i] - mean[i % c_count]) * invstd[i % c_count];
    }
    for (size_t i = 0; i < elements; i++) {
        size_t c = i % c_count;
        dx[i] = w[c] * invstd[c] * (g[i] - db[c] / n - (x[i] - mean[c]) * invstd[c] * dw[c] / n);
    }
    array d_dy(dy, t.other_type), d_more(more, t.other_type), d_y(y, t.other_type), d_x(x, t.type), d_w(w, CU_F32);
    array d_b(b, CU_F32), d_mean(mean, CU_F32), d_invstd(invstd, CU_F32), d_masked(elements, t.other_type),
        d_dx(old, t.type);
    array d_dw(old_w, CU_F32), d_db(old_b, CU_F32);
    scratch_memory scratch(cu_batch_norm_grad_scratch(t.n.rows, t.n.c));
    const array &out = t.in_place ? d_dy : d_dx;
    const cu_view to = t.no_dx ? none : out.view, y_view = t.relu && !t.of_x ? d_y.view : none;
    float *to_w = t.no_sums ? NULL : d_dw.floats(), *to_b = t.no_sums ? NULL : d_db.floats();
    const double tolerance = 1e-5 * (1.0 + fabs(t.n.mean)), sum_tolerance = 1e-5 * (1.0 + fabs(t.n.mean) + n / 1000.0);

    CUDA(cu_batch_norm_grad(NULL, d_dy.view, t.more ? d_more.view : none, y_view, t.masked ? d_masked.view : none,
                            d_x.view, d_w.floats(), t.of_x ? d_b.floats() : NULL, d_mean.floats(), d_invstd.floats(),
                            to, to_w, to_b, t.n.rows, t.n.c, t.add, t.add, t.add, scratch.at()));
    if (t.masked) check_numbers("masked", d_masked, g, 0.0);
    check_numbers("dx", out, t.no_dx ? old : t.add ? plus(dx, old) : dx, tolerance * 4.0);
    check_numbers("dw", d_dw, t.no_sums ? old_w : t.add ? plus(dw, old_w) : dw, sum_tolerance);
    check_numbers("db", d_db, t.no_sums ? old_b : t.add ? plus(db, old_b) : db, sum_tolerance);
}

static void test_batch_norm_grad(void **state)
{
    size_t turn = 0;

    (void)state;
    for (const norm_case &n : norm_cases) {
        for (const uint32_t(&type)[2] : type_pairs) {
            const bool one_type = type[0] == type[1];
            const norm_grad_run runs[] = {
                {n, type[0], type[1], false, false, false, false, false, false, false, false},
                {n, type[0], type[1], false, true, false, true, false, false, false, false},
                {n, type[0], type[1], true, false, false, false, false, true, false, false},
                {n, type[0], type[1], true, true, true, false, false, false, one_type, false},
                {n, type[0], type[1], true, true, false, true, false, false, false, false},
                {n, type[0], type[1], false, true, true, true, true, false, false, false},
                {n, type[0], type[1], false, false, false, false, false, false, one_type, false},
                {n, type[0], type[1], false, true, false, false, false, false, one_type, true},
                {n, type[0], type[1], true, true, true, true, false, false, false, true},
                {n, type[0], type[1], true, true, false, false, true, false, false, true},
            };
            for (size_t i = 0; i < sizeof(runs) / sizeof(runs[0]); i++)
                if (!TURNS || (i + turn) % 4 == 0) norm_grad(runs[i]);
            turn++;
        }
        turn++;
    }
}

/* ---- pooling ----------------------------------------------------------------------------------------------------- */
struct pool_case {
    int64_t n, h, w, c;
    int64_t kernel[2], stride[2], padding[2];
};
static const pool_case pool_cases[] = {{1, 1, 1, 1, {1, 1}, {1, 1}, {0, 0}},   {2, 4, 6, 8, {2, 2}, {2, 2}, {0, 0}},
                                       {3, 7, 5, 3, {3, 3}, {2, 2}, {1, 1}},   {1, 9, 8, 16, {3, 2}, {1, 3}, {1, 0}},
                                       {2, 5, 5, 130, {5, 5}, {1, 2}, {2, 2}}, {1, 11, 13, 4, {7, 5}, {3, 2}, {3, 1}},
                                       {5, 3, 3, 12, {3, 3}, {3, 3}, {0, 1}},  {2, 10, 4, 7, {2, 1}, {3, 2}, {1, 0}},
                                       {1, 33, 2, 24, {2, 2}, {1, 1}, {0, 0}}, {9, 2, 300, 2, {1, 3}, {1, 2}, {0, 1}}};

enum { POOL_MAX, POOL_AVG, POOL_ADAPTIVE };
struct window_span {
    int64_t first, last;
};

static window_span pool_window(int what, const pool_case &p, int axis, int64_t at, int64_t out)
{
    const int64_t size = axis == 0 ? p.h : p.w;

    if (what == POOL_ADAPTIVE)
        return {at * size / out,
                static_cast<int64_t>(ceil(static_cast<double>((at + 1) * size) / static_cast<double>(out)))};
    const int64_t first = at * p.stride[axis] - p.padding[axis];
    return {std::max<int64_t>(first, 0), std::min(first + p.kernel[axis], size)};
}

/* y of x, or where dy is given, dx. */
static numbers pool_reference(int what, const pool_case &p, int64_t oh, int64_t ow, const numbers &x, const numbers *dy)
{
    numbers y(static_cast<size_t>(p.n * oh * ow * p.c)), dx(x.size(), 0.0);

    for (int64_t at = 0; at < p.n * oh * ow * p.c; at++) {
        const int64_t c = at % p.c, col = at / p.c % ow, row = at / p.c / ow % oh, n = at / p.c / ow / oh;
        const window_span h = pool_window(what, p, 0, row, oh), w = pool_window(what, p, 1, col, ow);
        const double count = what == POOL_AVG ? static_cast<double>(p.kernel[0] * p.kernel[1])
                                              : static_cast<double>((h.last - h.first) * (w.last - w.first));
        size_t best = static_cast<size_t>(((n * p.h + h.first) * p.w + w.first) * p.c + c),
               out = static_cast<size_t>(at);
        for (int64_t i = h.first; i < h.last; i++)
            for (int64_t j = w.first; j < w.last; j++) {
                size_t in = static_cast<size_t>(((n * p.h + i) * p.w + j) * p.c + c);
                if (x[in] > x[best] || isnan(x[in])) best = in;
                if (what != POOL_MAX) y[out] += x[in] / count;
                if (what != POOL_MAX && dy != NULL) dx[in] += (*dy)[out] / count;
            }
        if (what == POOL_MAX) y[out] = x[best];
        if (what == POOL_MAX && dy != NULL) dx[best] += (*dy)[out];
    }
    return dy != NULL ? dx : y;
}

static void pool_run(int what, const pool_case &p, int64_t oh, int64_t ow, const uint32_t (&type)[2], bool spoil)
{
    const cu_image in = {p.n, p.h, p.w, p.c};
    cu_window w;
    numbers x = some(p.n * p.h * p.w * p.c, type[0]), dy = some(p.n * oh * ow * p.c, type[1]);
    const numbers old = some(p.n * p.h * p.w * p.c, type[0]);

    memcpy(w.kernel, p.kernel, sizeof(w.kernel));
    memcpy(w.stride, p.stride, sizeof(w.stride));
    memcpy(w.padding, p.padding, sizeof(w.padding));
    for (size_t i = 0; i < x.size() && spoil; i++) {
        if (random_number() > 0.7) x[i] = static_cast<double>(NAN);
        if (random_number() < -0.5) x[i] = static_cast<double>(-INFINITY);
    }
    array d_x(x, type[0]), d_dy(dy, type[1]), y(dy.size(), type[1]), dx(x.size(), type[0]), added(old, type[0]);
    if (what == POOL_MAX) CUDA(cu_max_pool(NULL, d_x.view, y.view, in, w, oh, ow));
    if (what == POOL_AVG) CUDA(cu_avg_pool(NULL, d_x.view, y.view, in, w, oh, ow));
    if (what == POOL_ADAPTIVE) CUDA(cu_adaptive_pool(NULL, d_x.view, y.view, in, oh, ow));
    for (int add = 0; add < 2; add++) {
        const cu_view to = add ? added.view : dx.view;
        if (what == POOL_MAX) CUDA(cu_max_pool_grad(NULL, d_dy.view, d_x.view, to, in, w, oh, ow, add));
        if (what == POOL_AVG) CUDA(cu_avg_pool_grad(NULL, d_dy.view, to, in, w, oh, ow, add));
        if (what == POOL_ADAPTIVE) CUDA(cu_adaptive_pool_grad(NULL, d_dy.view, to, in, oh, ow, add));
    }
    check_numbers("y", y, pool_reference(what, p, oh, ow, x, NULL), 1e-6);
    const numbers want = pool_reference(what, p, oh, ow, x, &dy);
    check_numbers("dx", dx, want, 1e-6);
    check_numbers("dx added", added, plus(want, old), 1e-6);
}

static void test_pool(void **state)
{
    (void)state;
    for (const pool_case &p : pool_cases)
        for (const uint32_t(&type)[2] : type_pairs) {
            const int64_t oh = (p.h + 2 * p.padding[0] - p.kernel[0]) / p.stride[0] + 1;
            const int64_t ow = (p.w + 2 * p.padding[1] - p.kernel[1]) / p.stride[1] + 1;
            pool_run(POOL_MAX, p, oh, ow, type, false);
            pool_run(POOL_MAX, p, oh, ow, type, true);
            pool_run(POOL_AVG, p, oh, ow, type, false);
        }
}

static void test_adaptive_pool(void **state)
{
    static const int64_t outs[][2] = {{1, 1}, {2, 3}, {7, 5}, {13, 1}};

    (void)state;
    for (const pool_case &p : pool_cases)
        for (const uint32_t(&type)[2] : type_pairs)
            for (const int64_t(&out)[2] : outs) pool_run(POOL_ADAPTIVE, p, out[0], out[1], type, false);
}

static void test_pool_too_large(void **state)
{
    const cu_image in = {1, INT64_C(1) << 40, 1, 1};
    const cu_window w = {{1, 1}, {1, 1}, {0, 0}};
    array x(1, CU_F32);

    (void)state;
    assert_int_equal(cu_avg_pool(NULL, x.view, x.view, in, w, INT64_C(1) << 40, 1), cudaErrorInvalidValue);
    assert_int_equal(cu_adaptive_pool(NULL, x.view, x.view, {1, 1 << 20, 1, 1}, 1 << 20, 1), cudaErrorInvalidValue);
}

/* ---- convolution ------------------------------------------------------------------------------------------------- */
struct conv_case {
    int64_t n, h, w, c, o, groups;
    int64_t kernel[2], stride[2], padding[2];
};
static const conv_case conv_cases[] = {
    {1, 1, 1, 1, 1, 1, {1, 1}, {1, 1}, {0, 0}},    {2, 5, 6, 3, 4, 1, {3, 3}, {1, 1}, {1, 1}},
    {1, 7, 9, 16, 70, 1, {2, 5}, {2, 3}, {0, 2}},  {3, 8, 8, 6, 9, 3, {3, 3}, {2, 2}, {1, 1}},
    {1, 12, 11, 5, 5, 5, {7, 7}, {2, 1}, {3, 3}},  {4, 9, 9, 130, 66, 2, {1, 1}, {3, 3}, {0, 0}},
    {2, 16, 17, 8, 12, 1, {3, 1}, {1, 2}, {2, 0}}, {1, 6, 6, 33, 1, 1, {5, 3}, {1, 1}, {3, 1}},
    {2, 20, 19, 4, 7, 1, {3, 3}, {1, 1}, {1, 1}},  {1, 4, 4, 2, 8, 2, {4, 4}, {1, 1}, {0, 0}},
};

/* Calls f(index of x, of w, of y) for each product; weights in PyTorch's order. */
template <class F> static void conv_products(const conv_case &p, int64_t oh, int64_t ow, F f)
{
    const int64_t cg = p.c / p.groups, og = p.o / p.groups;

    for (int64_t y = 0; y < p.n * oh * ow * p.o; y++) {
        const int64_t o = y % p.o, col = y / p.o % ow, row = y / p.o / ow % oh, n = y / p.o / ow / oh;
        for (int64_t k = 0; k < cg * p.kernel[0] * p.kernel[1]; k++) {
            const int64_t j = k % p.kernel[1], i = k / p.kernel[1] % p.kernel[0], c = k / p.kernel[1] / p.kernel[0];
            const int64_t h = row * p.stride[0] - p.padding[0] + i, w = col * p.stride[1] - p.padding[1] + j;
            if (h < 0 || w < 0 || h >= p.h || w >= p.w) continue;
            f(static_cast<size_t>(((n * p.h + h) * p.w + w) * p.c + o / og * cg + c),
              static_cast<size_t>(o * cg * p.kernel[0] * p.kernel[1] + k), static_cast<size_t>(y));
        }
    }
}

static cu_conv conv_of(const conv_case &p, bool bf16)
{
    cu_conv c = {};

    c.in = {p.n, p.h, p.w, p.c};
    memcpy(c.w.kernel, p.kernel, sizeof(c.w.kernel));
    memcpy(c.w.stride, p.stride, sizeof(c.w.stride));
    memcpy(c.w.padding, p.padding, sizeof(c.w.padding));
    c.o = p.o, c.groups = p.groups, c.bf16 = bf16;
    c.oh = (p.h + 2 * p.padding[0] - p.kernel[0]) / p.stride[0] + 1;
    c.ow = (p.w + 2 * p.padding[1] - p.kernel[1]) / p.stride[1] + 1;
    return c;
}

static numbers rounded(const numbers &v, bool bf16)
{
    numbers r(v);

    for (double &x : r) x = bf16 ? in_type(CU_BF16, x) : x;
    return r;
}

static void conv_run(const conv_case &p, const uint32_t (&type)[2], bool bf16)
{
    const cu_conv c = conv_of(p, bf16);
    /* thirds have more bits than bf16 */
    numbers x = some(p.n * p.h * p.w * p.c, CU_F32), w = some(p.o * p.c / p.groups * p.kernel[0] * p.kernel[1], CU_F32);
    numbers dy = some(p.n * c.oh * c.ow * p.o, CU_F32), bias = some(p.o, CU_F32);
    for (double &v : x) v = in_type(type[0], v / 3.0);
    for (double &v : w) v = in_type(CU_F32, v / 3.0);
    for (double &v : dy) v = in_type(type[1], v / 3.0);
    const numbers rx = rounded(x, bf16), rw = rounded(w, bf16), rdy = rounded(dy, bf16);
    const numbers old_x = some(static_cast<int64_t>(x.size()), type[0]),
                  old_w = some(static_cast<int64_t>(w.size()), CU_F32);
    numbers y(dy.size()), plain(dy.size()), dx(x.size()), dw(w.size());

    conv_products(p, c.oh, c.ow, [&](size_t ix, size_t iw, size_t iy) {
        plain[iy] += rx[ix] * rw[iw];
        dx[ix] += rdy[iy] * rw[iw];
        dw[iw] += rdy[iy] * rx[ix];
    });
    for (size_t i = 0; i < y.size(); i++) y[i] = plain[i] + bias[i % bias.size()];
    array d_x(x, type[0]), d_w(w, CU_F32), d_dy(dy, type[1]), d_bias(bias, CU_F32), d_y(y.size(), type[1]);
    array d_dx(x.size(), type[0]), d_dw(w.size(), CU_F32);
    scratch_memory scratch(cu_conv_plain_grad_weight_scratch(&c));

    CUDA(cu_conv_plain(NULL, &c, d_x.view, d_w.floats(), d_bias.floats(), d_y.view));
    check_numbers("y", d_y, y, 2e-5);
    CUDA(cu_conv_plain(NULL, &c, d_x.view, d_w.floats(), NULL, d_y.view));
    check_numbers("y without bias", d_y, plain, 2e-5);
    CUDA(cu_conv_plain_grad_input(NULL, &c, d_dy.view, d_w.floats(), d_dx.view, false));
    check_numbers("dx", d_dx, dx, 2e-5);
    d_dx.set(old_x);
    CUDA(cu_conv_plain_grad_input(NULL, &c, d_dy.view, d_w.floats(), d_dx.view, true));
    check_numbers("dx added", d_dx, plus(dx, old_x), 2e-5);
    CUDA(cu_conv_plain_grad_weight(NULL, &c, d_dy.view, d_x.view, d_dw.floats(), false, scratch.at()));
    check_numbers("dw", d_dw, dw, 2e-5);
    d_dw.set(old_w);
    CUDA(cu_conv_plain_grad_weight(NULL, &c, d_dy.view, d_x.view, d_dw.floats(), true, scratch.at()));
    check_numbers("dw added", d_dw, plus(dw, old_w), 2e-5);
}

static void test_conv(void **state)
{
    (void)state;
    for (const conv_case &p : conv_cases)
        for (const uint32_t(&type)[2] : type_pairs) conv_run(p, type, type[1] == CU_BF16);
}

static void test_conv_order(void **state)
{
    static const int64_t sizes[][3] = {{1, 1, 1},    {3, 5, 9},    {2, 300, 9}, {7, 64, 1},
                                       {1, 2, 2304}, {2, 3, 2305}, {4, 130, 25}};

    (void)state;
    for (const int64_t(&size)[3] : sizes)
        for (uint32_t type = CU_F32; type <= CU_BF16; type++) {
            const int64_t o = size[0], i = size[1], khw = size[2];
            const numbers w = some(o * i * khw, type), old = some(o * i * khw, CU_F32);
            numbers want(w.size());
            for (int64_t at = 0; at < o * i * khw; at++)
                want[static_cast<size_t>((at / khw / i * khw + at % khw) * i + at / khw % i)] =
                    w[static_cast<size_t>(at)];
            array d_w(w, CU_F32), packed(w.size(), type), back(w.size(), CU_F32);
            const cu_pack one = {d_w.floats(), packed.view.at, o, i, khw};
            CUDA(cu_conv_pack(NULL, &one, 1, type));
            check_numbers("packed", packed, want, 0.0);
            CUDA(cu_conv_unpack(NULL, packed.view, back.floats(), o, i, khw, false));
            check_numbers("unpacked", back, w, 0.0);
            back.set(old);
            CUDA(cu_conv_unpack(NULL, packed.view, back.floats(), o, i, khw, true));
            check_numbers("unpacked and added", back, plus(w, old), 1e-6);
        }
}

/* More weights than one launch takes, of all sizes, some of them nothing. */
static void test_conv_packs(void **state)
{
    static const int64_t sizes[][3] = {{3, 5, 9}, {0, 5, 9}, {2, 300, 9}, {1, 2, 2305}, {7, 64, 1}};
    enum { COUNT = 75 };

    (void)state;
    for (uint32_t type = CU_F32; type <= CU_BF16; type++) {
        std::vector<std::unique_ptr<array>> weights, packed;
        std::vector<cu_pack> packs;
        for (size_t p = 0; p < COUNT; p++) {
            const int64_t *size = sizes[p % 5];
            const numbers w = some(size[0] * size[1] * size[2], type);
            weights.push_back(std::make_unique<array>(w, CU_F32));
            packed.push_back(std::make_unique<array>(w.size(), type));
            packs.push_back(cu_pack{weights[p]->floats(), packed[p]->view.at, size[0], size[1], size[2]});
        }
        CUDA(cu_conv_pack(NULL, packs.data(), COUNT, type));
        for (size_t p = 0; p < COUNT; p++) {
            const int64_t i = packs[p].i, khw = packs[p].khw;
            const numbers w = weights[p]->get();
            numbers want(w.size());
            for (size_t at = 0; at < w.size(); at++) {
                const int64_t n = static_cast<int64_t>(at);
                want[static_cast<size_t>((n / khw / i * khw + n % khw) * i + n / khw % i)] = w[at];
            }
            check_numbers("packed with others", *packed[p], want, 0.0);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batch_norm),     cmocka_unit_test(test_batch_norm_far_mean),
        cmocka_unit_test(test_batch_norm_nan), cmocka_unit_test(test_batch_norm_grad),
        cmocka_unit_test(test_pool),           cmocka_unit_test(test_adaptive_pool),
        cmocka_unit_test(test_pool_too_large), cmocka_unit_test(test_conv),
        cmocka_unit_test(test_conv_order),     cmocka_unit_test(test_conv_packs),
    };

    return cmocka_run_group_tests_name("cuda_image", tests, NULL, NULL);
}
