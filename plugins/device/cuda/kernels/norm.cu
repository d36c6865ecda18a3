/* plugins/device/cuda/kernels/norm.cu -- layer normalisation and, where there is no bias, RMS normalisation, whose
 * mean is taken to be 0. norm.cuh says how. */
#include "norm.cuh"

struct norm_args {
    cu_view x, residual, sum, y;
    const float *w, *b;
    float *mean, *invstd;
    int64_t rows, cols;
    float eps;
};

static __device__ __forceinline__ void keep_statistics(const norm_args &a, int64_t row, float mean, float invstd)
{
    if (a.mean != NULL) a.mean[row] = mean;
    if (a.invstd != NULL) a.invstd[row] = invstd;
}

template <int PACKS, int WIDTH>
static __device__ __forceinline__ void sum_row(const norm_args &a, int64_t row, int t, float (&v)[PACKS][N])
{
    load_row(a.x, row, a.cols, t, WIDTH, v);
    if (a.residual.at != NULL) add_row(a.residual, row, a.cols, t, WIDTH, v);
    if (a.sum.at == NULL) return;
    store_row(a.sum, row, a.cols, t, WIDTH, v);
    if (a.sum.type != CU_BF16) return;
    CU_UNROLL
    for (int p = 0; p < PACKS; p++) {
        CU_UNROLL
        for (int k = 0; k < N; k += 2) cu_unpack_bf16(cu_pack_bf16(v[p][k], v[p][k + 1]), v[p] + k);
    }
}

template <int PACKS, bool WARP> static __global__ void __launch_bounds__(WARPS * 32) norm_kernel(norm_args a)
{
    const int WIDTH = WARP ? 32 : WARPS * 32;
    CU_SHARED(float, shared, [32]);
    int t = static_cast<int>(threadIdx.x) % WIDTH;
    int64_t row = WARP ? static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.x / 32 : blockIdx.x;
    float v[PACKS][N], scale = 1.0f / static_cast<float>(a.cols), mean = 0.0f, square = 0.0f, invstd;

    if (row >= a.rows) return;
    sum_row<PACKS, WIDTH>(a, row, t, v);
    CU_UNROLL
    for (int p = 0; p < PACKS; p++) {
        CU_UNROLL
        for (int k = 0; k < N; k++) mean += v[p][k];
    }
    mean = a.b != NULL ? row_sum<WARP>(mean, shared) * scale : 0.0f;
    CU_UNROLL
    for (int p = 0; p < PACKS; p++) {
        if (static_cast<int64_t>(p * WIDTH + t) * N >= a.cols) continue;
        CU_UNROLL
        for (int k = 0; k < N; k++) square += (v[p][k] - mean) * (v[p][k] - mean);
    }
    square = row_sum<WARP>(square, shared) * scale;
    invstd = 1.0f / sqrtf(square + a.eps);
    CU_UNROLL
    for (int p = 0; p < PACKS; p++) {
        float w[N], b[N] = {};
        int64_t c = static_cast<int64_t>(p * WIDTH + t) * N;
        if (c >= a.cols) continue;
        cu_load(a.w + c, w);
        if (a.b != NULL) cu_load(a.b + c, b);
        CU_UNROLL
        for (int k = 0; k < N; k++) v[p][k] = fmaf((v[p][k] - mean) * invstd, w[k], b[k]);
    }
    store_row(a.y, row, a.cols, t, WIDTH, v);
    if (t == 0) keep_statistics(a, row, mean, invstd);
}

/* A thread reads back what it has stored itself, so `sum` may be x or the residual. */
static __device__ __forceinline__ float plain_element(const norm_args &a, int64_t i)
{
    if (a.sum.at != NULL) return cu_get(a.sum, i);
    return a.residual.at != NULL ? cu_get(a.x, i) + cu_get(a.residual, i) : cu_get(a.x, i);
}

static __global__ void __launch_bounds__(PLAIN_THREADS) norm_plain_kernel(norm_args a)
{
    CU_SHARED(float, shared, [32]);
    int64_t row = blockIdx.x, first = row * a.cols;
    float mean = 0.0f, square = 0.0f, invstd, scale = 1.0f / static_cast<float>(a.cols);

    for (int64_t c = threadIdx.x; c < a.cols; c += PLAIN_THREADS) {
        if (a.sum.at != NULL)
            cu_put(a.sum, first + c,
                   cu_get(a.x, first + c) + (a.residual.at != NULL ? cu_get(a.residual, first + c) : 0.0f));
        mean += plain_element(a, first + c);
    }
    mean = a.b != NULL ? cu_block_sum(mean, shared) * scale : 0.0f;
    for (int64_t c = threadIdx.x; c < a.cols; c += PLAIN_THREADS) {
        float d = plain_element(a, first + c) - mean;
        square += d * d;
    }
    invstd = 1.0f / sqrtf(cu_block_sum(square, shared) * scale + a.eps);
    for (int64_t c = threadIdx.x; c < a.cols; c += PLAIN_THREADS)
        cu_put(a.y, first + c,
               fmaf((plain_element(a, first + c) - mean) * invstd, a.w[c], a.b != NULL ? a.b[c] : 0.0f));
    if (threadIdx.x == 0) keep_statistics(a, row, mean, invstd);
}

template <int PACKS> static cudaError_t start_norm(cudaStream_t s, const norm_args &a, bool warp)
{
    if (warp) return cu_launch(norm_kernel<PACKS, true>, cu_grid(cu_div_up(a.rows, WARPS)), dim3(WARPS * 32), 0, s, a);
    return cu_launch(norm_kernel<PACKS, false>, cu_grid(a.rows), dim3(WARPS * 32), 0, s, a);
}

cudaError_t cu_layer_norm(cudaStream_t s, cu_view x, cu_view residual, cu_view sum, const float *w, const float *b,
                          cu_view y, float *mean, float *invstd, int64_t rows, int64_t cols, double eps)
{
    const norm_args a = {x, residual, sum, y, w, b, mean, invstd, rows, cols, static_cast<float>(eps)};
    bool warp = cols <= 4 * 32 * N, aligned = cols % N == 0 && usable(x) && usable(residual) && usable(sum) &&
                                              usable(y) && cu_aligned(w, 16) && cu_aligned(b, 16);

    if (rows <= 0 || cols <= 0) return cudaSuccess;
    switch (aligned ? packs_of(cols, warp ? 32 : WARPS * 32) : 0) {
    case 1: return start_norm<1>(s, a, warp);
    case 2: return start_norm<2>(s, a, warp);
    case 3: return start_norm<3>(s, a, warp);
    case 4: return start_norm<4>(s, a, warp);
    default: return cu_launch(norm_plain_kernel, cu_grid(rows), dim3(PLAIN_THREADS), 0, s, a);
    }
}
