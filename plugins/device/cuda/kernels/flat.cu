/* plugins/device/cuda/kernels/flat.cu -- reductions over a flat array, and its product with a number. */
#include "load.cuh"

static const int THREADS = 256, LAST_THREADS = 1024, N = 4;

/* ---- finite ------------------------------------------------------------------------------------------------------ */
static __global__ void set_kernel(unsigned long long *out, unsigned long long to) { *out = to; }

/* A block takes THREADS * N * FINITE_ROUNDS elements. */
static const int FINITE_ROUNDS = 4;

static __device__ __forceinline__ uint64_t first_not_finite(const float (&v)[N], uint64_t i, uint64_t otherwise)
{
    CU_UNROLL
    for (int k = N - 1; k >= 0; k--)
        if (!cu_is_finite(v[k])) otherwise = i + static_cast<unsigned>(k);
    return otherwise;
}

/* A block's whole packs are loaded before any is looked at; only the array's last block, or one that is not aligned,
 * takes them singly. */
static __global__ void __launch_bounds__(THREADS, 4)
    finite_kernel(const float *x, uint64_t n, bool aligned, unsigned long long *out)
{
    const uint64_t step = static_cast<uint64_t>(THREADS) * N, base = blockIdx.x * step * FINITE_ROUNDS;
    const uint64_t i = base + threadIdx.x * static_cast<uint64_t>(N);
    uint64_t mine = UINT64_MAX;
    float v[FINITE_ROUNDS][N];

    if (aligned && n - base >= step * FINITE_ROUNDS) {
        CU_UNROLL
        for (int round = 0; round < FINITE_ROUNDS; round++) cu_load(x + i + round * step, v[round]);
        CU_UNROLL
        for (int round = FINITE_ROUNDS - 1; round >= 0; round--)
            mine = first_not_finite(v[round], i + round * step, mine);
    } else {
        for (int round = FINITE_ROUNDS - 1; round >= 0; round--) {
            uint64_t at = i + round * step;
            if (at >= n) continue;
            cu_load_some<false>(x + at, n - at < N ? static_cast<int>(n - at) : N, v[0]);
            mine = first_not_finite(v[0], at, mine);
        }
    }
    cu_block_first(mine, out);
}

cudaError_t cu_flat_finite(cudaStream_t s, const float *x, uint64_t n, uint64_t *out)
{
    static_assert(sizeof(uint64_t) == sizeof(unsigned long long), "one word");
    unsigned long long *to = reinterpret_cast<unsigned long long *>(out);
    cudaError_t e = cu_launch(set_kernel, dim3(1), dim3(1), 0, s, to, n);

    if (e != cudaSuccess || n == 0) return e;
    return cu_launch(finite_kernel, cu_grid(cu_div_up(static_cast<int64_t>(n), THREADS * N * FINITE_ROUNDS)),
                     dim3(THREADS), 0, s, x, n, cu_aligned(x, 16), to);
}

/* ---- sum of squares ---------------------------------------------------------------------------------------------- */
static const int64_t SQUARE_BLOCKS = 132 * 8;

static int64_t square_blocks(uint64_t n)
{
    int64_t most = cu_div_up(static_cast<int64_t>(n), THREADS * N);

    return most < SQUARE_BLOCKS ? most : SQUARE_BLOCKS;
}

static __device__ __forceinline__ void add_squares(const float (&v)[N], double (&sum)[N])
{
    CU_UNROLL
    for (int k = 0; k < N; k++) sum[k] = __fma_rn(static_cast<double>(v[k]), static_cast<double>(v[k]), sum[k]);
}

/* The alignment decides how elements are loaded, not which thread adds them when: whole packs four at a time, then
 * singly what is left. */
static __global__ void __launch_bounds__(THREADS, 4)
    squares_kernel(const float *x, uint64_t n, bool aligned, double *parts)
{
    CU_SHARED(double, shared, [32]);
    const int U = 4;
    const uint64_t step = static_cast<uint64_t>(gridDim.x) * THREADS * N, whole = aligned ? n / N * N : 0;
    uint64_t i = (static_cast<uint64_t>(blockIdx.x) * THREADS + threadIdx.x) * N;
    double sum[N] = {};
    float v[U][N];

    for (; i + (U - 1) * step < whole; i += U * step) {
        CU_UNROLL
        for (int u = 0; u < U; u++) cu_load(x + i + u * step, v[u]);
        CU_UNROLL
        for (int u = 0; u < U; u++) add_squares(v[u], sum);
    }
    for (; i < n; i += step) {
        if (i < whole)
            cu_load(x + i, v[0]);
        else
            cu_load_some<false>(x + i, n - i < N ? static_cast<int>(n - i) : N, v[0]);
        add_squares(v[0], sum);
    }
    sum[0] = cu_block_sum((sum[0] + sum[1]) + (sum[2] + sum[3]), shared);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum[0];
}

static __global__ void __launch_bounds__(LAST_THREADS)
    squares_last_kernel(const double *parts, int64_t count, double *out)
{
    CU_SHARED(double, shared, [32]);
    double sum = 0.0;

    for (int64_t i = threadIdx.x; i < count; i += LAST_THREADS) sum += parts[i];
    sum = cu_block_sum(sum, shared);
    if (threadIdx.x == 0) *out = sum;
}

size_t cu_flat_squares_scratch(uint64_t n) { return static_cast<size_t>(square_blocks(n)) * sizeof(double); }

cudaError_t cu_flat_squares(cudaStream_t s, const float *x, uint64_t n, double *out, void *scratch)
{
    double *parts = static_cast<double *>(scratch);
    const int64_t blocks = square_blocks(n);
    cudaError_t e = cudaSuccess;

    if (n > 0) e = cu_launch(squares_kernel, cu_grid(blocks), dim3(THREADS), 0, s, x, n, cu_aligned(x, 16), parts);
    if (e != cudaSuccess) return e;
    return cu_launch(squares_last_kernel, dim3(1), dim3(LAST_THREADS), 0, s, parts, blocks, out);
}

/* ---- clipping ---------------------------------------------------------------------------------------------------- */
static __global__ void clip_kernel(const double *sums, uint32_t count, double max_norm, const cu_numbers *numbers,
                                   float *clipped, double *norm)
{
    double sum = 0.0, scale = numbers->scale;

    for (uint32_t i = 0; i < count; i++) sum += sums[i];
    const double length = __dmul_rn(sqrt(sum), scale), coefficient = max_norm / (length + 1e-6);
    *norm = length;
    *clipped = static_cast<float>(coefficient < 1.0 ? scale * coefficient : scale);
}

cudaError_t cu_clip(cudaStream_t s, const double *sums, uint32_t count, double max_norm, const cu_numbers *numbers,
                    float *clipped, double *norm)
{
    return cu_launch(clip_kernel, dim3(1), dim3(1), 0, s, sums, count, max_norm, numbers, clipped, norm);
}

/* ---- scale ------------------------------------------------------------------------------------------------------- */
static __global__ void __launch_bounds__(THREADS) scale_kernel(float *x, uint64_t n, bool aligned, double by)
{
    uint64_t i = (static_cast<uint64_t>(blockIdx.x) * THREADS + threadIdx.x) * N;
    float v[N] = {};

    if (i >= n) return;
    const bool whole = aligned && n - i >= N;
    const int count = n - i < N ? static_cast<int>(n - i) : N;
    if (by != 0.0) {
        if (whole)
            cu_load_some<true>(x + i, N, v);
        else
            cu_load_some<false>(x + i, count, v);
        CU_UNROLL
        for (int k = 0; k < N; k++) v[k] = static_cast<float>(static_cast<double>(v[k]) * by);
    }
    if (whole)
        cu_store_some<true>(x + i, N, v);
    else
        cu_store_some<false>(x + i, count, v);
}

cudaError_t cu_flat_scale(cudaStream_t s, float *x, uint64_t n, double by)
{
    if (n == 0) return cudaSuccess;
    return cu_launch(scale_kernel, cu_grid(cu_div_up(static_cast<int64_t>(n), THREADS * N)), dim3(THREADS), 0, s, x, n,
                     cu_aligned(x, 16), by);
}
