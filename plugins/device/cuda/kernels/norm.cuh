/* plugins/device/cuda/kernels/norm.cuh -- rows of layer normalisation in registers: what norm.cu, the forward pass, and
 * norm_grad.cu share.
 *
 * A row of up to 4096 columns stays in the registers of a warp or, above 1024, of a block, so that memory is read
 * once; the plain kernels take every other size. */
#pragma once

#include "load.cuh"

static const int N = 8, WARPS = 4, PLAIN_THREADS = 256;

/* ---- rows in registers: thread t of `width` holds elements (p width + t) N + k ----------------------------------- */
template <int PACKS, class T>
static __device__ __forceinline__ void load_typed(const T *x, int64_t cols, int t, int width, float (&v)[PACKS][N])
{
    CU_UNROLL
    for (int p = 0; p < PACKS; p++) {
        int64_t c = static_cast<int64_t>(p * width + t) * N;
        if (c < cols) {
            cu_load(x + c, v[p]);
        } else {
            CU_UNROLL
            for (int k = 0; k < N; k++) v[p][k] = 0.0f;
        }
    }
}

/* The branch on the type stands outside of the loop, so that all loads of a row are under way together. */
template <int PACKS>
static __device__ __forceinline__ void load_row(cu_view x, int64_t row, int64_t cols, int t, int width,
                                                float (&v)[PACKS][N])
{
    if (x.type == CU_BF16)
        load_typed(static_cast<const cu_bf16 *>(x.at) + row * cols, cols, t, width, v);
    else
        load_typed(static_cast<const float *>(x.at) + row * cols, cols, t, width, v);
}

template <int PACKS>
static __device__ __forceinline__ void add_row(cu_view x, int64_t row, int64_t cols, int t, int width,
                                               float (&v)[PACKS][N])
{
    float u[PACKS][N];

    load_row(x, row, cols, t, width, u);
    CU_UNROLL
    for (int p = 0; p < PACKS; p++) {
        CU_UNROLL
        for (int k = 0; k < N; k++) v[p][k] += u[p][k];
    }
}

template <int PACKS>
static __device__ __forceinline__ void store_row(cu_view y, int64_t row, int64_t cols, int t, int width,
                                                 const float (&v)[PACKS][N])
{
    CU_UNROLL
    for (int p = 0; p < PACKS; p++) {
        int64_t c = static_cast<int64_t>(p * width + t) * N;
        if (c >= cols) continue;
        if (y.type == CU_BF16)
            cu_store(static_cast<cu_bf16 *>(y.at) + row * cols + c, v[p]);
        else
            cu_store(static_cast<float *>(y.at) + row * cols + c, v[p]);
    }
}

template <bool WARP> static __device__ __forceinline__ float row_sum(float v, float *shared)
{
    if constexpr (WARP)
        return cu_warp_sum(v);
    else
        return cu_block_sum(v, shared);
}

/* ---- on the host ------------------------------------------------------------------------------------------------- */
static inline bool usable(cu_view x) { return x.at == NULL || cu_aligned(x.at, 16); }

/* Packs a thread of `width` threads needs for a row. */
static inline int64_t packs_of(int64_t cols, int64_t width) { return cu_div_up(cols, width * N); }
