/* plugins/device/cuda/kernels/rows.cuh -- how a block goes through a long row of any alignment: what the kernels
 * over logits share. */
#pragma once

#include "load.cuh"

static const int N = 8;                  /* elements at a time */
static const int64_t ROW_MOST = 1 << 30; /* columns: places within a row are ints */

/* ---- a row in three parts: single elements up to an aligned address, packs, single elements ---------------------- */
struct row_parts {
    int head, packs, cols;
};

/* x and (where present) y advance together, so both have to be aligned at the same place. */
template <class X, class Y> static __device__ __forceinline__ row_parts parts_of(const X *x, const Y *y, int cols)
{
    uintptr_t skip = (16 - reinterpret_cast<uintptr_t>(x) % 16) % 16 / sizeof(X);
    row_parts r = {static_cast<int>(skip), 0, cols};

    if (r.head >= cols || (y != NULL && reinterpret_cast<uintptr_t>(y + skip) % 16 != 0))
        r.head = cols;
    else
        r.packs = (cols - r.head) / N;
    return r;
}

template <class X> struct pack {
    uint4 word[N * sizeof(X) / 16];
};
static __device__ __forceinline__ void unpack(const pack<cu_bf16> &q, float (&v)[N]) { cu_unpack_bf16(q.word[0], v); }
static __device__ __forceinline__ void unpack(const pack<float> &q, float (&v)[N])
{
    CU_UNROLL
    for (int k = 0; k < N; k += 4) {
        uint4 w = q.word[k / 4];
        v[k] = __uint_as_float(w.x), v[k + 1] = __uint_as_float(w.y);
        v[k + 2] = __uint_as_float(w.z), v[k + 3] = __uint_as_float(w.w);
    }
}
template <class X> static __device__ __forceinline__ pack<X> load_pack(const X *x)
{
    pack<X> q;

    CU_UNROLL
    for (int w = 0; w < N * static_cast<int>(sizeof(X)) / 16; w++) q.word[w] = reinterpret_cast<const cu_uint4 *>(x)[w];
    return q;
}
template <class X> static __device__ __forceinline__ void store_pack(X *x, const pack<X> &q)
{
    CU_UNROLL
    for (int w = 0; w < N * static_cast<int>(sizeof(X)) / 16; w++) reinterpret_cast<cu_uint4 *>(x)[w] = q.word[w];
}

/* Calls f.part(place, elements) for this thread's parts of the row x, U packs on their way together. The packs are
 * read from `packs`, and kept in `keep` where that is present. */
template <int U, class X, class F>
static __device__ __forceinline__ void for_row(const row_parts &r, const X *x, const X *packs, X *keep, F &f)
{
    const int t = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    float v[N], one[1];

    for (int p = t; p < r.packs; p += U * threads) {
        pack<X> q[U];
        CU_UNROLL
        for (int u = 0; u < U; u++)
            if (p + u * threads < r.packs) q[u] = load_pack(packs + (p + u * threads) * N);
        CU_UNROLL
        for (int u = 0; u < U; u++) {
            if (p + u * threads >= r.packs) continue;
            if (keep != NULL) store_pack(keep + (p + u * threads) * N, q[u]);
            unpack(q[u], v);
            f.part(r.head + (p + u * threads) * N, v);
        }
    }
    for (int k = t; k < r.cols - r.packs * N; k += threads) {
        int i = k < r.head ? k : k + r.packs * N;
        one[0] = cu_get(x + i);
        f.part(i, one);
    }
}

/* Threads for a row: a pack each, whole warps, at most 512. */
static inline unsigned threads_for(int64_t cols)
{
    int64_t t = cu_div_up(cu_div_up(cols, N), 32) * 32;

    return static_cast<unsigned>(t < 512 ? t : 512);
}

static const int LAST_THREADS = 1024;

/* *out = the sum of `count` numbers, divided. */
template <class T>
static __global__ void __launch_bounds__(LAST_THREADS) last_kernel(const T *x, int64_t count, double by, float *out)
{
    CU_SHARED(T, shared, [32]);
    T sum = T(0);

    CU_UNROLL_4
    for (int64_t i = threadIdx.x; i < count; i += LAST_THREADS) sum += x[i];
    sum = cu_block_sum(sum, shared);
    if (threadIdx.x == 0) *out = static_cast<float>(static_cast<double>(sum) / by);
}
