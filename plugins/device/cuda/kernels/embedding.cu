/* plugins/device/cuda/kernels/embedding.cu -- rows of a table by index, rows added by position and the gradient of
 * those; embedding_grad.cu has the other table's. */
#include "load.cuh"

static const int THREADS = 256;

static bool usable(cu_view x) { return cu_aligned(x.at, 16); }

/* ---- rows by index: a warp for each ------------------------------------------------------------------------------ */
template <bool WHOLE, class Y>
static __global__ void __launch_bounds__(THREADS)
    gather_kernel(const int64_t *index, const float *__restrict__ w, Y *__restrict__ y, int64_t rows, int64_t e,
                  int64_t v, cu_fault *fault, uint32_t kernel)
{
    const int N = WHOLE ? 8 : 1;
    int64_t row = static_cast<int64_t>(blockIdx.x) * (THREADS / 32) + threadIdx.x / 32, at;
    unsigned lane = threadIdx.x % 32;
    float u[N];

    if (row >= rows) return;
    at = index[row];
    if (at < 0 || at >= v) {
        if (lane == 0) cu_report(fault, CU_FAULT_INDEX, kernel, row, at);
        return;
    }
    CU_UNROLL_4
    for (int64_t c = lane * N; c < e; c += 32 * N) {
        cu_load_some<WHOLE>(w + at * e + c, 1, u);
        cu_store_some<WHOLE>(y + row * e + c, 1, u);
    }
}

cudaError_t cu_embedding(cudaStream_t s, const int64_t *index, const float *w, cu_view y, int64_t rows, int64_t e,
                         int64_t v, cu_fault *fault, uint32_t kernel)
{
    bool whole = e % 8 == 0 && cu_aligned(w, 16) && usable(y);

    if (rows <= 0 || e <= 0) return cudaSuccess;
    return cu_by_type(y.type, [=](auto t) {
        typedef decltype(t) Y;
        return cu_launch(whole ? gather_kernel<true, Y> : gather_kernel<false, Y>,
                         cu_grid(cu_div_up(rows, THREADS / 32)), dim3(THREADS), 0, s, index, w, static_cast<Y *>(y.at),
                         rows, e, v, fault, kernel);
    });
}

/* ---- rows by position -------------------------------------------------------------------------------------------- */
template <bool WHOLE, class X, class Y>
static __global__ void __launch_bounds__(THREADS)
    position_kernel(const X *x, const float *w, Y *y, int64_t n, int64_t size)
{
    const int N = WHOLE ? 8 : 1;
    int64_t i = (static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x) * N;
    float u[N], v[N];

    if (i >= size) return;
    cu_load_some<WHOLE>(w + i, 1, v);
    for (int64_t sample = blockIdx.y; sample < n; sample += gridDim.y) {
        cu_load_some<WHOLE>(x + sample * size + i, 1, u);
        CU_UNROLL
        for (int k = 0; k < N; k++) u[k] += v[k];
        cu_store_some<WHOLE>(y + sample * size + i, 1, u);
    }
}

cudaError_t cu_position(cudaStream_t s, cu_view x, const float *w, cu_view y, int64_t n, int64_t t, int64_t e)
{
    const int64_t size = t * e;
    bool whole = size % 8 == 0 && cu_aligned(w, 16) && usable(x) && usable(y);
    const dim3 grid(static_cast<unsigned>(cu_div_up(size, THREADS * (whole ? 8 : 1))),
                    static_cast<unsigned>(n < 65535 ? n : 65535));

    if (n <= 0 || size <= 0) return cudaSuccess;
    return cu_by_types(x, y, [=](auto xt, auto yt) {
        typedef decltype(xt) X;
        typedef decltype(yt) Y;
        return cu_launch(whole ? position_kernel<true, X, Y> : position_kernel<false, X, Y>, grid, dim3(THREADS), 0, s,
                         static_cast<const X *>(x.at), w, static_cast<Y *>(y.at), n, size);
    });
}

template <bool WHOLE, class T>
static __global__ void __launch_bounds__(THREADS, 4)
    position_grad_kernel(const T *dy, float *dw, int64_t n, int64_t size, int64_t full, bool add)
{
    const int N = WHOLE ? 8 : 1;
    int64_t i = (static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x) * N;
    float u[N], sum[N] = {};

    if (i >= full || (add && i >= size)) return;
    if (i < size) cu_sum_rows<WHOLE>(dy + i, n, size, sum);
    if (add) {
        cu_load_some<WHOLE>(dw + i, 1, u);
        CU_UNROLL
        for (int k = 0; k < N; k++) sum[k] += u[k];
    }
    cu_store_some<WHOLE>(dw + i, 1, sum);
}

cudaError_t cu_position_grad(cudaStream_t s, cu_view dy, float *dw, int64_t n, int64_t t, int64_t e, int64_t p,
                             bool add)
{
    const int64_t size = n > 0 ? t * e : 0, full = p * e;
    bool whole = (t * e) % 8 == 0 && full % 8 == 0 && usable(dy) && cu_aligned(dw, 16);

    if (full <= 0) return cudaSuccess;
    return cu_by_type(dy.type, [=](auto dt) {
        typedef decltype(dt) T;
        return cu_launch(whole ? position_grad_kernel<true, T> : position_grad_kernel<false, T>,
                         cu_grid(cu_div_up(full, THREADS * (whole ? 8 : 1))), dim3(THREADS), 0, s,
                         static_cast<const T *>(dy.at), dw, n, size, full, add);
    });
}
