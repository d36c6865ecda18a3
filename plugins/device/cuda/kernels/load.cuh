/* plugins/device/cuda/kernels/load.cuh -- what the kernels share: typed loads and stores of 16 bytes, sums over a
 * warp and a block, random words, faults. */
#pragma once

#include "kernels.h"
#include "simt.h"

#include <math.h>

#ifdef DDP_CUDA_DOUBLE
#define CU_UNROLL
#define CU_UNROLL_4
#define CU_ROLLED
#else
#define CU_UNROLL   _Pragma("unroll")
#define CU_UNROLL_4 _Pragma("unroll 4") /* loops of loads; cu_sum_rows shows what brings them on their way together */
#define CU_ROLLED   _Pragma("unroll 1") /* where more would not fit the registers */
#endif
#define CU_WARP 0xffffffffu /* all lanes */

typedef unsigned short cu_bf16; /* its bits */
/* Words that may lie over any type, at addresses that are multiples of their size. */
#ifdef DDP_CUDA_DOUBLE
template <class V> struct cu_any {
    unsigned char bytes[sizeof(V)];

    const unsigned char *aligned(void) const
    {
        if (reinterpret_cast<uintptr_t>(bytes) % sizeof(V) != 0) __builtin_trap();
        return bytes;
    }
    operator V() const
    {
        V v;

        memcpy(&v, aligned(), sizeof(v));
        return v;
    }
    void operator=(const V &v) { memcpy(const_cast<unsigned char *>(aligned()), &v, sizeof(v)); }
};
typedef cu_any<uint4> cu_uint4;
typedef cu_any<uint2> cu_uint2;
typedef cu_any<float4> cu_float4;
#else
typedef uint4 cu_uint4;
typedef uint2 cu_uint2;
typedef float4 cu_float4;
#endif

/* ---- arithmetic that simt.h does not list ------------------------------------------------------------------------ */
#ifdef DDP_CUDA_DOUBLE
static inline float cu_div_rn(float a, float b) { return a / b; }
static inline float cu_sqrt_rn(float x) { return sqrtf(x); }
static inline float cu_exp2(float x) { return exp2f(x); }
static inline int cu_lowest_bit(unsigned x) { return __builtin_ctz(x); }
static inline int cu_count_bits(unsigned x) { return __builtin_popcount(x); }
static inline unsigned cu_pack_bf16(float low, float high)
{
    return static_cast<unsigned>(cu_to_bf16(low)) | static_cast<unsigned>(cu_to_bf16(high)) << 16;
}
#else
static __device__ __forceinline__ float cu_div_rn(float a, float b) { return __fdiv_rn(a, b); }
static __device__ __forceinline__ float cu_sqrt_rn(float x) { return __fsqrt_rn(x); }
static __device__ __forceinline__ float cu_exp2(float x) /* to 2 ulp; 0 where the result is below 2^-126 */
{
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
static __device__ __forceinline__ int cu_lowest_bit(unsigned x) { return __ffs(static_cast<int>(x)) - 1; } /* x not 0 */
static __device__ __forceinline__ int cu_count_bits(unsigned x) { return __popc(x); }
static __device__ __forceinline__ unsigned cu_pack_bf16(float low, float high) /* nearest even */
{
    unsigned both;

    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
#endif

static __device__ __forceinline__ float cu_exp(float x) { return cu_exp2(x * 1.4426950408889634f); }
static __device__ __forceinline__ bool cu_is_finite(float x)
{
    return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u;
}

/* ---- one element ------------------------------------------------------------------------------------------------- */
static __device__ __forceinline__ float cu_get(const float *x) { return *x; }
static __device__ __forceinline__ float cu_get(const cu_bf16 *x) { return cu_from_bf16(*x); }
static __device__ __forceinline__ void cu_put(float *y, float v) { *y = v; }
static __device__ __forceinline__ void cu_put(cu_bf16 *y, float v) { *y = cu_to_bf16(v); }

/* Of a type known when it runs only: where a branch per element does not matter. */
static __device__ __forceinline__ float cu_get(cu_view x, int64_t i)
{
    return x.type == CU_BF16 ? cu_get(static_cast<const cu_bf16 *>(x.at) + i) : static_cast<const float *>(x.at)[i];
}
static __device__ __forceinline__ void cu_put(cu_view y, int64_t i, float v)
{
    if (y.type == CU_BF16)
        cu_put(static_cast<cu_bf16 *>(y.at) + i, v);
    else
        static_cast<float *>(y.at)[i] = v;
}

/* ---- N elements: N a multiple of 4, the address of min(16, N * size) bytes' alignment ---------------------------- */
template <int N> static __device__ __forceinline__ void cu_load(const float *x, float (&v)[N])
{
    static_assert(N % 4 == 0, "whole float4");
    CU_UNROLL
    for (int k = 0; k < N; k += 4) {
        float4 q = reinterpret_cast<const cu_float4 *>(x)[k / 4];
        v[k] = q.x, v[k + 1] = q.y, v[k + 2] = q.z, v[k + 3] = q.w;
    }
}

template <int N> static __device__ __forceinline__ void cu_store(float *y, const float (&v)[N])
{
    CU_UNROLL
    for (int k = 0; k < N; k += 4)
        reinterpret_cast<cu_float4 *>(y)[k / 4] = make_float4(v[k], v[k + 1], v[k + 2], v[k + 3]);
}

static __device__ __forceinline__ void cu_unpack_bf16(unsigned both, float *v)
{
    v[0] = __uint_as_float(both << 16);
    v[1] = __uint_as_float(both & 0xffff0000u);
}

static __device__ __forceinline__ void cu_unpack_bf16(uint4 q, float *v)
{
    cu_unpack_bf16(q.x, v), cu_unpack_bf16(q.y, v + 2), cu_unpack_bf16(q.z, v + 4), cu_unpack_bf16(q.w, v + 6);
}

template <int N> static __device__ __forceinline__ void cu_load(const cu_bf16 *x, float (&v)[N])
{
    static_assert(N == 4 || N % 8 == 0, "whole words");
    if constexpr (N == 4) {
        uint2 q = *reinterpret_cast<const cu_uint2 *>(x);
        cu_unpack_bf16(q.x, v), cu_unpack_bf16(q.y, v + 2);
    } else {
        CU_UNROLL
        for (int k = 0; k < N; k += 8)
            cu_unpack_bf16(static_cast<uint4>(reinterpret_cast<const cu_uint4 *>(x)[k / 8]), v + k);
    }
}

template <int N> static __device__ __forceinline__ void cu_store(cu_bf16 *y, const float (&v)[N])
{
    if constexpr (N == 4) {
        *reinterpret_cast<cu_uint2 *>(y) = make_uint2(cu_pack_bf16(v[0], v[1]), cu_pack_bf16(v[2], v[3]));
    } else {
        CU_UNROLL
        for (int k = 0; k < N; k += 8)
            reinterpret_cast<cu_uint4 *>(y)[k / 8] =
                make_uint4(cu_pack_bf16(v[k], v[k + 1]), cu_pack_bf16(v[k + 2], v[k + 3]),
                           cu_pack_bf16(v[k + 4], v[k + 5]), cu_pack_bf16(v[k + 6], v[k + 7]));
    }
}

/* The first `count` of N elements; WHOLE: all of them, aligned as above. What is not there is 0. */
template <bool WHOLE, class T, int N>
static __device__ __forceinline__ void cu_load_some(const T *x, int count, float (&v)[N])
{
    if constexpr (WHOLE) {
        cu_load(x, v);
    } else {
        CU_UNROLL
        for (int k = 0; k < N; k++) v[k] = k < count ? cu_get(x + k) : 0.0f;
    }
}
template <bool WHOLE, class T, int N>
static __device__ __forceinline__ void cu_store_some(T *y, int count, const float (&v)[N])
{
    if constexpr (WHOLE) {
        cu_store(y, v);
    } else {
        CU_UNROLL
        for (int k = 0; k < N; k++)
            if (k < count) cu_put(y + k, v[k]);
    }
}

/* sum += the rows x, x + stride, .. one after the other, four of them on their way together: they are loaded into an
 * array before any is used, and the kernel's second launch bound has to leave the registers for it, else ptxas puts
 * the loads after the sums. */
template <bool WHOLE, class T, int N>
static __device__ __forceinline__ void cu_sum_rows(const T *x, int64_t count, int64_t stride, float (&sum)[N])
{
    const int U = 4;
    float v[U][N];

    CU_ROLLED
    for (; count >= U; count -= U, x += U * stride) {
        CU_UNROLL
        for (int u = 0; u < U; u++) cu_load_some<WHOLE>(x + u * stride, 1, v[u]);
        CU_UNROLL
        for (int u = 0; u < U; u++) {
            CU_UNROLL
            for (int k = 0; k < N; k++) sum[k] += v[u][k];
        }
    }
    CU_ROLLED
    for (; count > 0; count--, x += stride) {
        cu_load_some<WHOLE>(x, 1, v[0]);
        CU_UNROLL
        for (int k = 0; k < N; k++) sum[k] += v[0][k];
    }
}

/* ---- sums and maxima, in a fixed order --------------------------------------------------------------------------- */
template <class T> static __device__ __forceinline__ T cu_warp_sum(T v) /* every lane gets it */
{
    for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(CU_WARP, v, step);
    return v;
}
static __device__ __forceinline__ float cu_warp_max(float v) /* a NaN is passed over */
{
    for (int step = 16; step > 0; step /= 2) v = fmaxf(v, __shfl_xor_sync(CU_WARP, v, step));
    return v;
}

/* Of a block of whole warps, every thread gets it; `shared`: 32 values, not in use until the next __syncthreads. */
template <class T> static __device__ __forceinline__ T cu_block_sum(T v, T *shared)
{
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    v = cu_warp_sum(v);
    __syncthreads();
    if (lane == 0) shared[warp] = v;
    __syncthreads();
    return cu_warp_sum(lane < blockDim.x / 32 ? shared[lane] : T(0));
}
static __device__ __forceinline__ float cu_block_max(float v, float *shared)
{
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    v = cu_warp_max(v);
    __syncthreads();
    if (lane == 0) shared[warp] = v;
    __syncthreads();
    return cu_warp_max(lane < blockDim.x / 32 ? shared[lane] : -INFINITY);
}

/* *out, which may be the host's: the smallest `mine` of the block, if that is smaller still; all threads, whole
 * warps. One atomic for a block: those on the host's memory go over the bus one by one. */
static __device__ __forceinline__ void cu_block_first(unsigned long long mine, unsigned long long *out)
{
    CU_SHARED(unsigned long long, first, [1]);

    if (threadIdx.x == 0) first[0] = UINT64_MAX;
    __syncthreads();
    if (__any_sync(CU_WARP, mine != UINT64_MAX)) {
        for (int step = 16; step > 0; step /= 2) {
            unsigned long long other = __shfl_xor_sync(CU_WARP, mine, step);
            mine = other < mine ? other : mine;
        }
        if (threadIdx.x % 32 == 0) atomicMin(first, mine);
    }
    __syncthreads();
    if (threadIdx.x == 0 && first[0] != UINT64_MAX) atomicMin(out, first[0]);
}

/* Second stage of sums over rows: parts (count, width) -> column sums; the first `split` columns go to a, as many to b,
 * the others to c, each of which may be NULL. A block of 32 x 32 threads does 32 columns. Template: a header's kernel
 * that not every file starts. */
template <class T>
static __global__ void cu_sum_parts_kernel(const T *parts, int64_t count, int64_t width, int64_t split, T *a, T *b,
                                           T *c, bool add_a, bool add_b, bool add_c)
{
    CU_SHARED(T, tile, [32][33]);
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t first = static_cast<int64_t>(blockIdx.x) * 32, column = first + lane;
    T sum = T(0);

    if (column < width) {
        CU_UNROLL_4
        for (int64_t k = warp; k < count; k += 32) sum += parts[k * width + column];
    }
    tile[warp][lane] = sum;
    __syncthreads();
    sum = cu_warp_sum(tile[lane][warp]);
    column = first + warp;
    if (lane != 0 || column >= width) return;
    T *to = column < split ? a : column < 2 * split ? b : c;
    const bool add = column < split ? add_a : column < 2 * split ? add_b : add_c;
    if (to == NULL) return;
    to += column - (column < split ? 0 : column < 2 * split ? split : 2 * split);
    *to = add ? *to + sum : sum;
}
template <class T>
static inline cudaError_t cu_sum_parts(cudaStream_t s, const T *parts, int64_t count, int64_t width, int64_t split,
                                       T *a, T *b, bool add_a, bool add_b, T *c = NULL, bool add_c = false)
{
    if (width <= 0) return cudaSuccess;
    return cu_launch(cu_sum_parts_kernel<T>, dim3(static_cast<unsigned>((width + 31) / 32)), dim3(1024), 0, s, parts,
                     count, width, split, a, b, c, add_a, add_b, add_c);
}

/* ---- random words: ddp_philox of <ddpengine/program.h> ----------------------------------------------------------- */
static __device__ __forceinline__ uint4 cu_philox(uint64_t seed, uint64_t stream, uint32_t place, uint64_t block)
{
    unsigned c0 = static_cast<unsigned>(block), c1 = place ^ static_cast<unsigned>(block >> 32) << 16;
    unsigned c2 = static_cast<unsigned>(stream), c3 = static_cast<unsigned>(stream >> 32);
    unsigned k0 = static_cast<unsigned>(seed), k1 = static_cast<unsigned>(seed >> 32);

    CU_UNROLL
    for (int round = 0; round < 10; round++) {
        unsigned a = __umulhi(0xD2511F53u, c0), b = __umulhi(0xCD9E8D57u, c2), low_a = 0xD2511F53u * c0,
                 low_b = 0xCD9E8D57u * c2;
        c0 = b ^ c1 ^ k0, c1 = low_b, c2 = a ^ c3 ^ k1, c3 = low_a;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    return make_uint4(c0, c1, c2, c3);
}

/* ---- faults ------------------------------------------------------------------------------------------------------ */
static __device__ __forceinline__ void cu_report(cu_fault *f, uint32_t kind, uint32_t kernel, int64_t row,
                                                 int64_t value)
{
    if (f == NULL || atomicCAS(&f->kind, static_cast<uint32_t>(CU_FAULT_NONE), kind) != CU_FAULT_NONE) return;
    f->kernel = kernel, f->row = row, f->value = value;
}

/* ---- on the host ------------------------------------------------------------------------------------------------- */
static inline int64_t cu_div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline dim3 cu_grid(int64_t blocks) { return dim3(static_cast<unsigned>(blocks)); }
static inline int64_t cu_size_of(uint32_t type) { return type == CU_BF16 ? 2 : 4; }
static inline bool cu_aligned(const void *p, uintptr_t bytes)
{
    return (reinterpret_cast<uintptr_t>(p) & (bytes - 1)) == 0;
}

/* Calls f(T()) with T the element type. */
template <class F> static inline cudaError_t cu_by_type(uint32_t type, F f)
{
    return type == CU_BF16 ? f(cu_bf16()) : f(float());
}

/* Calls f with an element of each of the two, or three, types. */
template <class F> static inline cudaError_t cu_by_types(cu_view a, cu_view b, F f)
{
    return cu_by_type(a.type, [=](auto at) { return cu_by_type(b.type, [=](auto bt) { return f(at, bt); }); });
}
template <class F> static inline cudaError_t cu_by_types(cu_view a, cu_view b, cu_view c, F f)
{
    return cu_by_types(a, b,
                       [=](auto at, auto bt) { return cu_by_type(c.type, [=](auto ct) { return f(at, bt, ct); }); });
}
