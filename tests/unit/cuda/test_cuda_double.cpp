/* tests/unit/cuda/test_cuda_double.cpp -- the double that kernels run on where there is no GPU
 * (tests/doubles/simt_double.h): does it do what CUDA's manuals say? Expected values are worked out here from the
 * manuals' formulas. */
#include "plugins/device/cuda/kernels/simt.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>
extern "C" {
#include <cmocka.h>
}

#define LAUNCH(...)                                                                                                    \
    assert_int_equal(cu_launch(__VA_ARGS__), cudaSuccess), assert_int_equal(cudaDeviceSynchronize(), cudaSuccess)
static const unsigned ALL = 0xffffffffu;

/* ---- places, barriers, shared memory ----------------------------------------------------------------------------- */
static __global__ void places(int *out)
{
    const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);

    out[block * blockDim.x * blockDim.y * blockDim.z + thread] = static_cast<int>(block * 1000 + thread);
}

static void test_places(void **state)
{
    std::vector<int> out(24 * 60, -1);

    (void)state;
    LAUNCH(places, dim3(2, 3, 4), dim3(3, 4, 5), 0, nullptr, out.data());
    for (size_t i = 0; i < out.size(); i++) assert_int_equal(out[i], i / 60 * 1000 + i % 60);
}

template <int N> static __global__ void turn(const float *x, float *y, float *first)
{
    CU_SHARED(float, tile, [2][N]);
    CU_SHARED(int, count, );
    CU_SHARED_DYNAMIC(float, dynamic);
    const int i = static_cast<int>(threadIdx.x);

    if (blockIdx.x == 1) first[i] = tile[0][i] + dynamic[i];
    if (i == 0) count = 7;
    tile[0][i] = x[i];
    __syncthreads();
    tile[1][i] = tile[0][N - 1 - i] + static_cast<float>(count);
    __syncthreads();
    dynamic[i] = tile[1][(i + 1) % N];
    __syncthreads();
    if (i % 2 == 0) return; /* those that have ended are not waited for */
    __syncthreads();
    y[blockIdx.x * N + threadIdx.x] = dynamic[i - 1];
}

static void test_barrier(void **state)
{
    enum { N = 320 };
    std::vector<float> x(N), y(2 * N, -1.0f), first(N, 0.0f);

    (void)state;
    for (int i = 0; i < N; i++) x[static_cast<size_t>(i)] = static_cast<float>(i * i % 101);
    LAUNCH(turn<N>, 2, N, N * sizeof(float), nullptr, x.data(), y.data(), first.data());
    for (int i = 0; i < N; i++) {
        assert_true(isnan(first[static_cast<size_t>(i)])); /* the second block does not find what the first left */
        for (int b = 0; b < 2; b++) {
            const float is = y[static_cast<size_t>(b * N + i)];
            const float expected = i % 2 == 0 ? -1.0f : x[static_cast<size_t>(N - 1 - i)] + 7.0f;
            assert_true(is == expected);
        }
    }
}

static __global__ void addresses(unsigned *out)
{
    CU_SHARED(char, one, [3]);
    CU_SHARED(float, four, [5]);
    CU_SHARED(double, eight, [1]);
    CU_SHARED(float4, sixteen, [1]);
    CU_SHARED_WIDE(char, wide, [3]);
    CU_SHARED_DYNAMIC(float, dynamic);
    const void *const all[] = {one, four, eight, sixteen, wide, dynamic};

    for (int i = 0; i < 6; i++) out[i] = static_cast<unsigned>(reinterpret_cast<uintptr_t>(all[i]) % 32);
}

static void test_alignment(void **state)
{
    const unsigned expected[] = {1, 4, 8, 0, 0, 0}; /* no more than the type's, or what was asked for */
    unsigned out[6];

    (void)state;
    LAUNCH(addresses, 1, 1, 64, nullptr, out);
    for (int i = 0; i < 6; i++) assert_int_equal(out[i] % 16, expected[i]);
    assert_true(out[3] == 16 && out[4] == 16 && out[5] == 16);
}

/* ---- what a warp does together ----------------------------------------------------------------------------------- */
static __global__ void shuffles(int *out, int by, int width)
{
    const int v = static_cast<int>(threadIdx.x) + 100;
    int *mine = out + threadIdx.x * 4;

    mine[0] = __shfl_sync(ALL, v, by, width);
    mine[1] = __shfl_up_sync(ALL, v, static_cast<unsigned>(by), width);
    mine[2] = __shfl_down_sync(ALL, v, static_cast<unsigned>(by), width);
    mine[3] = __shfl_xor_sync(ALL, v, by, width);
}

static void test_shuffles(void **state)
{
    (void)state;
    for (int width = 2; width <= 32; width *= 2)
        for (int by = 0; by < width; by++) {
            int out[64 * 4];
            LAUNCH(shuffles, 1, 64, 0, nullptr, out, by, width);
            for (int i = 0; i < 64; i++) {
                const int lane = i % 32, warp = i - lane + 100, first = lane / width * width, own = warp + lane;
                assert_int_equal(out[i * 4], warp + first + by % width);
                assert_int_equal(out[i * 4 + 1], lane - by >= first ? own - by : own);
                assert_int_equal(out[i * 4 + 2], lane + by < first + width ? own + by : own);
                assert_int_equal(out[i * 4 + 3], (lane ^ by) < first + width ? warp + (lane ^ by) : own);
            }
        }
}

static __global__ void nobody(unsigned *out) { out[threadIdx.x] = __shfl_sync(ALL, threadIdx.x, 20); }

static void test_half_warp(void **state)
{
    unsigned out[16];

    (void)state;
    LAUNCH(nobody, 1, 16, 0, nullptr, out);
    for (unsigned i = 0; i < 16; i++) assert_int_equal(out[i], ALL); /* lane 20 is not there */
}

static __global__ void votes(unsigned *out)
{
    const unsigned lane = threadIdx.x % 32, half = lane < 16 ? 0x0000ffffu : 0xffff0000u;

    if (lane % 2 == 1) __syncwarp(0xaaaaaaaau);
    out[threadIdx.x * 5] = __ballot_sync(ALL, lane % 3 == 0);
    out[threadIdx.x * 5 + 1] = __ballot_sync(half, 1); /* two groups of one warp, each by itself */
    out[threadIdx.x * 5 + 2] = static_cast<unsigned>(__any_sync(half, lane == 20));
    out[threadIdx.x * 5 + 3] = static_cast<unsigned>(__all_sync(half, lane < 16));
    out[threadIdx.x * 5 + 4] =
        lane < 16 ? static_cast<unsigned>(__shfl_sync(half, static_cast<double>(lane) + 0.5, 15) * 2.0) : 0;
}

static void test_votes(void **state)
{
    unsigned out[64 * 5];

    (void)state;
    LAUNCH(votes, 1, 64, 0, nullptr, out);
    for (unsigned i = 0; i < 64; i++) {
        const bool low = i % 32 < 16;
        assert_int_equal(out[i * 5], 0x49249249u);
        assert_int_equal(out[i * 5 + 1], low ? 0x0000ffffu : 0xffff0000u);
        assert_int_equal(out[i * 5 + 2], !low);
        assert_int_equal(out[i * 5 + 3], low);
        assert_int_equal(out[i * 5 + 4], low ? 31 : 0);
    }
}

static __global__ void count_up(int *sum, unsigned *least, unsigned long long *most, unsigned *claimed)
{
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;

    (void)atomicAdd(sum, static_cast<int>(i));
    (void)atomicMin(least, 5000u - i);
    (void)atomicMax(most, 3ull * i);
    if (atomicCAS(claimed, 0u, i + 1) == 0u) (void)atomicExch(claimed + 1, i);
}

static void test_atomics(void **state)
{
    int sum = 0;
    unsigned least = UINT32_MAX, claimed[2] = {0, 0};
    unsigned long long most = 0;

    (void)state;
    LAUNCH(count_up, 10, 100, 0, nullptr, &sum, &least, &most, claimed);
    assert_int_equal(sum, 999 * 1000 / 2);
    assert_int_equal(least, 5000 - 999);
    assert_int_equal(most, 3 * 999);
    assert_int_equal(claimed[0], claimed[1] + 1);
}

static __global__ void arithmetic(float *out)
{
    out[0] = __fmaf_rn(1.0f + 0x1p-23f, 1.0f - 0x1p-23f, -1.0f);
    out[1] = __fadd_rn(__fmul_rn(1.0f + 0x1p-12f, 1.0f + 0x1p-12f), -1.0f);
    out[2] = __uint_as_float(__umulhi(0x80000000u, __float_as_uint(2.0f) << 1));
    out[3] = cu_from_bf16(cu_to_bf16(1.00390625f)); /* half way: to even */
    out[4] = rsqrtf(0.25f);
}

static void test_arithmetic(void **state)
{
    float out[5];

    (void)state;
    LAUNCH(arithmetic, 1, 1, 0, nullptr, out);
    assert_true(out[0] == -0x1p-46f);
    assert_true(out[1] == 0x1p-11f);
    assert_true(out[2] == 2.0f);
    assert_true(out[3] == 1.0f);
    assert_true(out[4] == 2.0f);
}

/* ---- tensor cores ------------------------------------------------------------------------------------------------ */
/* a (16, 16), b (8, 16) that is (n, k), or (16, 8) that is (k, n) where `transposed`; c (16, 8). Addresses and
 * results as in the PTX ISA: the pictures of ldmatrix and of mma.m16n8k16. */
static __global__ void product(const unsigned short *a, const unsigned short *b, const float *c, float *d,
                               bool transposed)
{
    CU_SHARED(uint4, tiles, [64]);
    unsigned short *sa = reinterpret_cast<unsigned short *>(tiles), *sb = sa + 256;
    const unsigned lane = threadIdx.x, group = lane / 4, pair = lane % 4;
    unsigned ra[4], rb[4];
    float sums[4];

    for (unsigned i = lane; i < 256; i += 32) sa[i] = a[i];
    for (unsigned i = lane; i < 128; i += 32) sb[i] = sb[i + 128] = b[i];
    __syncthreads();
    cu_ldmatrix(ra, sa + lane % 16 * 16 + lane / 16 * 8);
    if (transposed)
        cu_ldmatrix_trans(rb, sb + lane % 16 * 8);
    else
        cu_ldmatrix(rb, sb + lane % 8 * 16 + lane / 8 % 2 * 8);
    for (unsigned i = 0; i < 4; i++) sums[i] = c[(group + i / 2 * 8) * 8 + pair * 2 + i % 2];
    cu_mma(sums, ra, rb, sums);
    for (unsigned i = 0; i < 4; i++) d[(group + i / 2 * 8) * 8 + pair * 2 + i % 2] = sums[i];
}

static void check_product(bool transposed)
{
    unsigned short a[256], b[128];
    float c[128], d[128];

    for (unsigned i = 0; i < 256; i++)
        a[i] = cu_to_bf16(static_cast<float>(static_cast<int>(i * 37 % 64) - 31) / 16.0f);
    for (unsigned i = 0; i < 128; i++) b[i] = cu_to_bf16(static_cast<float>(static_cast<int>(i * 53 % 61) - 30) / 8.0f);
    for (unsigned i = 0; i < 128; i++) c[i] = static_cast<float>(i % 19);
    LAUNCH(product, 1, 32, 0, nullptr, a, b, c, d, transposed);
    for (unsigned m = 0; m < 16; m++)
        for (unsigned n = 0; n < 8; n++) {
            float expected = c[m * 8 + n]; /* every term and sum of these is exact */
            for (unsigned k = 0; k < 16; k++)
                expected += cu_from_bf16(a[m * 16 + k]) * cu_from_bf16(b[transposed ? k * 8 + n : n * 16 + k]);
            assert_true(d[m * 8 + n] == expected);
        }
}

static void test_mma(void **state)
{
    (void)state;
    check_product(false);
    check_product(true);
}

/* The operands in registers as the manual numbers them, without ldmatrix: a_i of lane l is row l / 4 (+ 8 where 2 <=
 * i % 4 < 4 in the elements a0 .. a7), column l % 4 * 2 + i % 2 (+ 8 where i >= 4); b_i: row l % 4 * 2 + i % 2 (+ 8
 * where i >= 2), column l / 4. */
static __global__ void product_by_hand(const unsigned short *a, const unsigned short *b, float *d)
{
    const unsigned lane = threadIdx.x, group = lane / 4, pair = lane % 4;
    unsigned ra[4] = {0, 0, 0, 0}, rb[2] = {0, 0};
    const float zero[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    float sums[4];

    for (unsigned i = 0; i < 8; i++) {
        const unsigned row = i < 2 || (i >= 4 && i < 6) ? group : group + 8,
                       column = pair * 2 + (i & 1) + (i >= 4 ? 8 : 0);
        ra[i / 2] |= static_cast<unsigned>(a[row * 16 + column]) << 16 * (i & 1);
    }
    for (unsigned i = 0; i < 4; i++) {
        const unsigned row = pair * 2 + (i & 1) + (i >= 2 ? 8 : 0);
        rb[i / 2] |= static_cast<unsigned>(b[row * 8 + group]) << 16 * (i & 1);
    }
    cu_mma(sums, ra, rb, zero);
    for (unsigned i = 0; i < 4; i++) d[(i < 2 ? group : group + 8) * 8 + pair * 2 + (i & 1)] = sums[i];
}

static void test_mma_registers(void **state)
{
    unsigned short a[256], b[128];
    float d[128];

    (void)state;
    for (unsigned i = 0; i < 256; i++) a[i] = cu_to_bf16(static_cast<float>(i * i % 23));
    for (unsigned i = 0; i < 128; i++) b[i] = cu_to_bf16(static_cast<float>(i * 7 % 29));
    LAUNCH(product_by_hand, 1, 32, 0, nullptr, a, b, d);
    for (unsigned i = 0; i < 128; i++) {
        float expected = 0.0f;
        for (unsigned k = 0; k < 16; k++) expected += cu_from_bf16(a[i / 8 * 16 + k]) * cu_from_bf16(b[k * 8 + i % 8]);
        assert_true(d[i] == expected);
    }
}

/* ---- cp.async ---------------------------------------------------------------------------------------------------- */
static __global__ void copies(const float4 *from, float4 *out)
{
    CU_SHARED(float4, tile, [4]);

    for (int i = 0; i < 4; i++) tile[i] = make_float4(1.0f, 1.0f, 1.0f, 1.0f);
    cu_copy_async(&tile[0], &from[0], true);
    cu_copy_commit();
    cu_copy_async(&tile[1], &from[1], true);
    cu_copy_async(&tile[2], nullptr, false);
    cu_copy_commit();
    out[0] = tile[0]; /* too early: neither the old nor the new */
    cu_copy_wait<1>();
    out[1] = tile[0];
    out[2] = tile[1];
    cu_copy_wait<0>();
    out[3] = tile[1];
    out[4] = tile[2];
    out[5] = tile[3];
}

static void test_copies(void **state)
{
    const float4 from[2] = {make_float4(2.0f, 3.0f, 4.0f, 5.0f), make_float4(6.0f, 7.0f, 8.0f, 9.0f)};
    float4 out[6];

    (void)state;
    LAUNCH(copies, 1, 1, 0, nullptr, from, out);
    assert_true(isnan(out[0].x) && isnan(out[2].w));
    assert_memory_equal(&out[1], &from[0], sizeof(float4));
    assert_memory_equal(&out[3], &from[1], sizeof(float4));
    assert_true(out[4].x == 0.0f && out[4].w == 0.0f);
    assert_true(out[5].y == 1.0f);
}

/* ---- limits and misuse ------------------------------------------------------------------------------------------- */
static __global__ void big(float *out)
{
    CU_SHARED_DYNAMIC(float, dynamic);

    dynamic[60 * 256 - 1] = 3.0f;
    *out = dynamic[60 * 256 - 1];
}

static void test_limits(void **state)
{
    float out = 0.0f;
    int place;

    (void)state;
    assert_int_equal(cu_launch(places, 0, 32, 0, nullptr, &place), cudaErrorInvalidConfiguration);
    assert_int_equal(cu_launch(places, 1, 1025, 0, nullptr, &place), cudaErrorInvalidConfiguration);
    assert_int_equal(cu_launch(places, dim3(1, 65536), 1, 0, nullptr, &place), cudaErrorInvalidConfiguration);
    assert_int_equal(cu_launch(places, 1, dim3(1, 1, 65), 0, nullptr, &place), cudaErrorInvalidConfiguration);
    assert_int_equal(cu_launch(big, 1, 1, 60 * 1024, nullptr, &out), cudaErrorInvalidValue);
    assert_int_equal(cu_allow_shared(big, 228 * 1024), cudaErrorInvalidValue);
    assert_int_equal(cu_allow_shared(big, 60 * 1024), cudaSuccess);
    LAUNCH(big, 1, 1, 60 * 1024, nullptr, &out);
    assert_true(out == 3.0f);
    simt_limit_shared(99 * 1024);
    assert_int_equal(cu_launch(big, 1, 1, 60 * 1024, nullptr, &out), cudaErrorInvalidValue); /* forgotten */
    assert_int_equal(cu_allow_shared(big, 100 * 1024), cudaErrorInvalidValue);
    assert_int_equal(cu_allow_shared(big, 99 * 1024), cudaSuccess);
    simt_limit_shared(0);
    assert_int_equal(cu_allow_shared(big, 100 * 1024), cudaSuccess);
}

static __global__ void parted(void)
{
    if (threadIdx.x < 40)
        __syncthreads();
    else
        (void)__shfl_sync(ALL, 1, 0);
}
static __global__ void mixed(void)
{
    if (threadIdx.x < 16)
        (void)__shfl_sync(ALL, 1, 0);
    else
        (void)__ballot_sync(ALL, 1);
}
#if !defined __SANITIZE_ADDRESS__ /* which has words of its own for it */
static __global__ void beyond(void)
{
    CU_SHARED(float, tile, [8]);
    CU_SHARED_DYNAMIC(float, dynamic);
    volatile float *any = blockDim.x == 1 ? tile : dynamic;

    if (threadIdx.x == 0) any[blockDim.x == 1 ? 8 : 0] = 1.0f;
}
#endif
static __global__ void outside(void) { (void)__shfl_sync(1u, 1, 0); }
static __global__ void shallow(void)
{
    unsigned r[4];
    CU_SHARED(unsigned short, tile, [512]);

    cu_ldmatrix(r, tile + threadIdx.x * 8 + 1);
}

/* What the double says of it, in a process that ends with that. */
static void dies(void (*kernel)(void), unsigned threads, const char *saying)
{
    char text[4096];
    size_t at = 0;
    int ends[2], status;
    pid_t child;

    assert_int_equal(pipe(ends), 0);
    child = fork();
    if (child == 0) {
        (void)dup2(ends[1], 2);
        (void)cu_launch(kernel, 1, threads, 0, nullptr);
        (void)cudaDeviceSynchronize();
        _exit(0);
    }
    (void)close(ends[1]);
    for (ssize_t n; at + 1 < sizeof(text) && (n = read(ends[0], text + at, sizeof(text) - 1 - at)) > 0;)
        at += static_cast<size_t>(n);
    text[at] = 0;
    (void)close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) != 0);
    if (strstr(text, saying) == nullptr || strstr(text, "cu_launch(kernel, 1, threads") == nullptr)
        fail_msg("not said: %s\nbut: %s", saying, text);
}

static void test_misuse(void **state)
{
    (void)state;
    dies(parted, 64, "nobody can go on: 0 of 64 threads have ended, 40 wait in __syncthreads");
    dies(mixed, 32, "come to different operations");
    dies(outside, 32, "is not in its own mask 00000001");
    dies(shallow, 32, "not 16-byte aligned");
    dies(shallow, 16, "a warp that is not whole");
#if !defined __SANITIZE_ADDRESS__
    dies(beyond, 1, "wrote beyond an array of 32 bytes in shared memory");
    dies(beyond, 2, "wrote beyond its dynamic shared memory");
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_misuse), /* first: a process that has streams is not forked */
        cmocka_unit_test(test_places),     cmocka_unit_test(test_barrier),   cmocka_unit_test(test_shuffles),
        cmocka_unit_test(test_votes),      cmocka_unit_test(test_half_warp), cmocka_unit_test(test_atomics),
        cmocka_unit_test(test_arithmetic), cmocka_unit_test(test_mma),       cmocka_unit_test(test_mma_registers),
        cmocka_unit_test(test_copies),     cmocka_unit_test(test_limits),    cmocka_unit_test(test_alignment),
    };

    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
