/* plugins/device/cuda/kernels/batch_norm.cu -- batch norm, with the residual and the relu after it. batch_norm.cuh
 * says how. */
#include "batch_norm.cuh"

/* Mean, and sum of squared distances from it, of the block's rows. Sums are of distances from the chunk's first row,
 * which loses nothing where the mean is large. One block a multiprocessor: the registers are for the ROWS loads on
 * their way together. */
template <class L>
static __global__ void __launch_bounds__(NORM_THREADS, 1) moments_kernel(cu_view x, float *parts, norm_tiles t)
{
    constexpr int N = L::WIDE, ROWS = 8;
    CU_SHARED(float, shared, [2][NORM_WARPS][NORM_COLUMNS]);
    const norm_position<L> at(t);
    float shift[N] = {}, sum[N] = {}, square[N] = {}, s, q;
    int64_t channel = static_cast<int64_t>(blockIdx.x) * t.vectors * N + threadIdx.x;

    if (at.in) cu_fetch<L>(x, at.first * t.c + at.column, shift);
    for (int64_t r = at.row; at.in && r < at.last; r += ROWS * at.step) {
        float v[ROWS][N];
        CU_UNROLL
        for (int u = 0; u < ROWS; u++) /* past the end the first row again, which adds nothing */
            cu_fetch<L>(x, (r + u * at.step < at.last ? r + u * at.step : at.first) * t.c + at.column, v[u]);
        CU_UNROLL
        for (int u = 0; u < ROWS; u++) {
            CU_UNROLL
            for (int k = 0; k < N; k++) {
                float d = v[u][k] - shift[k];
                sum[k] += d;
                square[k] = fmaf(d, d, square[k]);
            }
        }
    }
    norm_block_sums(sum, square, t.vectors, shared, &s, &q);
    if (threadIdx.x < t.vectors * N && channel < t.c) {
        float n = static_cast<float>(at.last - at.first), m2 = q - s * (s / n);
        parts[2 * blockIdx.y * t.c + channel] = cu_get(x, at.first * t.c + channel) + s / n;
        parts[(2 * blockIdx.y + 1) * t.c + channel] = m2 < 0.0f ? 0.0f : m2; /* by rounding; a NaN stays */
    }
}

struct forward {
    cu_view x, residual, y;
    const float *w, *b;
    float *running_mean, *running_var, *mean, *invstd;
    double eps, momentum;
    norm_sums moments; /* parts 0: not training */
    bool relu;
};

static __device__ __forceinline__ float moved(float running, double momentum, double batch)
{
    return static_cast<float>(momentum * batch + (1.0 - momentum) * static_cast<double>(running));
}

/* Thread i: mean and invstd of the block's column i; the first block of the rows keeps them. */
static __device__ __forceinline__ void statistics(const forward &f, const norm_tiles &t, unsigned columns,
                                                  norm_slice_sums shared, float *mean, float *invstd)
{
    int64_t channel = static_cast<int64_t>(blockIdx.x) * columns + threadIdx.x;
    double a = 0.0, b = 0.0, n = static_cast<double>(t.rows), var;

    if (f.moments.parts > 0) norm_totals<true>(f.moments, t, columns, shared, &a, &b);
    if (threadIdx.x >= columns || channel >= t.c) return;
    if (f.moments.parts > 0) {
        a /= n;
        var = b / n - a * a;
        var = var < 0.0 ? 0.0 : var;
    } else {
        a = static_cast<double>(f.running_mean[channel]);
        var = static_cast<double>(f.running_var[channel]);
    }
    *mean = static_cast<float>(a);
    *invstd = cu_div_rn(1.0f, cu_sqrt_rn(static_cast<float>(var + f.eps)));
    if (blockIdx.y != 0) return;
    if (f.mean != NULL) f.mean[channel] = *mean;
    if (f.invstd != NULL) f.invstd[channel] = *invstd;
    if (f.moments.parts == 0) return;
    f.running_mean[channel] = moved(f.running_mean[channel], f.momentum, a);
    f.running_var[channel] = moved(f.running_var[channel], f.momentum, var * n / (n - 1.0));
}

/* What is read is chosen at compile time, here and below: a branch between loads would make each wait for the one
 * before. */
template <class L, bool RESIDUAL>
static __global__ void __launch_bounds__(NORM_THREADS, 2) normalize_kernel(forward f, norm_tiles t)
{
    constexpr int N = L::WIDE, ROWS = N == 8 ? 2 : 4;
    CU_SHARED(double, shared, [2][NORM_THREADS]);
    CU_SHARED(float, channels, [3][NORM_COLUMNS]);
    const norm_position<L> at(t);
    float mean[N], scale[N], bias[N], m = 0.0f, invstd = 0.0f;
    int64_t channel = static_cast<int64_t>(blockIdx.x) * t.vectors * N + threadIdx.x;

    statistics(f, t, t.vectors * N, shared, &m, &invstd);
    if (threadIdx.x < t.vectors * N && channel < t.c) {
        channels[0][threadIdx.x] = m;
        channels[1][threadIdx.x] = invstd * f.w[channel];
        channels[2][threadIdx.x] = f.b[channel];
    }
    __syncthreads();
    if (!at.in) return;
    CU_UNROLL
    for (int k = 0; k < N; k++) {
        mean[k] = channels[0][at.vector * N + k];
        scale[k] = channels[1][at.vector * N + k];
        bias[k] = channels[2][at.vector * N + k];
    }
    for (int64_t r = at.first + at.last - 1 - at.row; r >= at.first; r -= ROWS * at.step) {
        float v[ROWS][N], other[ROWS][N];
        CU_UNROLL
        for (int u = 0; u < ROWS; u++) {
            int64_t i = (r - u * at.step >= at.first ? r - u * at.step : at.first) * t.c + at.column;
            cu_fetch<L>(f.x, i, v[u]);
            if (RESIDUAL) cu_fetch<L>(f.residual, i, other[u]);
        }
        CU_UNROLL
        for (int u = 0; u < ROWS; u++) {
            CU_UNROLL
            for (int k = 0; k < N; k++) {
                v[u][k] = fmaf(v[u][k] - mean[k], scale[k], bias[k]);
                if (RESIDUAL) v[u][k] += other[u][k];
                if (f.relu) v[u][k] = v[u][k] < 0.0f ? 0.0f : v[u][k]; /* a NaN stays */
            }
            if (r - u * at.step >= at.first) cu_keep<L>(f.y, (r - u * at.step) * t.c + at.column, v[u]);
        }
    }
}

size_t cu_batch_norm_scratch(int64_t rows, int64_t c)
{
    (void)rows;
    return norm_scratch(c);
}

cudaError_t cu_batch_norm(cudaStream_t s, cu_view x, const float *w, const float *b, float *running_mean,
                          float *running_var, cu_view residual, cu_view y, float *mean, float *invstd, int64_t rows,
                          int64_t c, double eps, double momentum, bool training, bool relu, void *scratch)
{
    if (rows <= 0 || c <= 0) return cudaSuccess;
    return cu_by_width({x, residual, y}, c, [&](auto l) {
        typedef decltype(l) L;
        const norm_tiles read = norm_tiles_of(rows, c, L::WIDE, NORM_SUM_BLOCKS),
                         write = norm_tiles_of(rows, c, L::WIDE, NORM_WRITE_BLOCKS);
        const norm_sums moments = {static_cast<float *>(scratch), read.chunk, training ? read.parts : 0};
        const forward f = {x, residual, y, w, b, running_mean, running_var, mean, invstd, eps, momentum, moments, relu};
        cudaError_t e = cudaSuccess;

        if (training)
            e = cu_launch(moments_kernel<L>, dim3(read.across, read.parts), dim3(NORM_THREADS), 0, s, x, moments.at,
                          read);
        if (e != cudaSuccess) return e;
        return cu_launch(residual.at != NULL ? normalize_kernel<L, true> : normalize_kernel<L, false>,
                         dim3(write.across, write.parts), dim3(NORM_THREADS), 0, s, f, write);
    });
}
