/* tests/doubles/simt_double.h -- CUDA C++ for g++: what plugins/device/cuda/kernels/simt.h promises the kernels, run on
 * the host. simt_double.cpp has the machinery: every CUDA thread is a fiber, a launch runs its blocks one after the
 * other on one thread of the host.
 *
 * It is stricter than a GPU where it can be: shared memory starts as NaN and is aligned to no more than was asked
 * for, cp.async spoils its target at once and fills it at the wait, threads that wait for each other in vain stop
 * the program and say where. CUDA_DOUBLE_ORDER=reverse starts the threads of a block, and the blocks, from the last
 * on, which shows a __syncthreads that is missing. */
#pragma once

#include <cuda_runtime_api.h>
#include <vector_functions.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <tuple>
#include <utility>

#define __launch_bounds__(...)
#define CU_CONSTANT

/* ---- where a thread is ------------------------------------------------------------------------------------------- */
struct simt_place {
    uint3 thread, block;
    dim3 block_dim, grid_dim;
};
#if defined __GNUC__ && !defined __clang__
#define SIMT_TLS extern __thread __attribute__((tls_model("initial-exec")))
#else
#define SIMT_TLS extern __thread
#endif
SIMT_TLS simt_place *simt_at; /* of the thread that runs; NULL outside of a kernel */
#define threadIdx (static_cast<const uint3 &>(simt_at->thread))
#define blockIdx  (static_cast<const uint3 &>(simt_at->block))
#define blockDim  (static_cast<const dim3 &>(simt_at->block_dim))
#define gridDim   (static_cast<const dim3 &>(simt_at->grid_dim))

/* ---- shared memory ----------------------------------------------------------------------------------------------- */
/* An array lies at an address that is no multiple of twice its alignment: a kernel that counts on more finds out. */
void *simt_shared(const void *site, size_t bytes, size_t alignment);
void *simt_shared_dynamic(void);
/* What cu_allow_shared grants from now on, 227 KiB at most as on an H100; 0: that again. Any thread. */
void simt_limit_shared(size_t bytes);

#define SIMT_SHARED(type, name, dims, alignment)                                                                       \
    typedef type name##_of_block_ dims;                                                                                \
    static const char name##_site_ = 0;                                                                                \
    name##_of_block_ &name =                                                                                           \
        *static_cast<name##_of_block_ *>(simt_shared(&name##_site_, sizeof(name##_of_block_), alignment))
#define CU_SHARED(type, name, dims)      SIMT_SHARED(type, name, dims, alignof(name##_of_block_))
#define CU_SHARED_WIDE(type, name, dims) SIMT_SHARED(type, name, dims, 16)
#define CU_SHARED_DYNAMIC(type, name)    type *name = static_cast<type *>(simt_shared_dynamic())

/* ---- launches ---------------------------------------------------------------------------------------------------- */
struct simt_launch {
    const char *text; /* the arguments of cu_launch as written */
    const char *file;
    int line;
    const void *kernel;
    dim3 grid, block;
    size_t shared;
    void (*call)(const void *arguments);
    void *(*copy)(const void *arguments);
    void (*drop)(void *arguments);
    const void *arguments;
};
struct simt_where {
    const char *text, *file;
    int line;
};
/* Checks it and hands it to the stream of cuda_runtime_double.cpp; where that is not linked in, runs it at once. */
cudaError_t simt_start(const simt_launch *l, cudaStream_t s);
cudaError_t simt_allow_shared(const void *kernel, size_t bytes);

template <class... P> struct simt_call {
    void (*kernel)(P...);
    std::tuple<P...> arguments;

    static void call(const void *p)
    {
        const simt_call *c = static_cast<const simt_call *>(p);
        std::apply(c->kernel, c->arguments);
    }
    static void *copy(const void *p) { return new simt_call(*static_cast<const simt_call *>(p)); }
    static void drop(void *p) { delete static_cast<simt_call *>(p); }
};

template <class... P, class... A>
static inline cudaError_t simt_launch_at(simt_where at, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                                         cudaStream_t s, A... args)
{
    typedef simt_call<P...> held;
    static_assert((sizeof(P) + ... + 0) <= 32764, "a kernel takes at most 32764 bytes of arguments");
    const held h = {kernel, std::tuple<P...>(static_cast<P>(args)...)};
    const simt_launch l = {at.text,    at.file,    at.line, reinterpret_cast<const void *>(kernel),
                           grid,       block,      shared,  held::call,
                           held::copy, held::drop, &h};

    return simt_start(&l, s);
}
#define cu_launch(...) simt_launch_at(simt_where{#__VA_ARGS__, __FILE__, __LINE__}, __VA_ARGS__)

template <class... P> static inline cudaError_t cu_allow_shared(void (*kernel)(P...), size_t bytes)
{
    return simt_allow_shared(reinterpret_cast<const void *>(kernel), bytes);
}

/* ---- barriers, and what the threads of a warp do together -------------------------------------------------------- */
enum simt_kind {
    SIMT_SYNC_WARP,
    SIMT_SHFL,
    SIMT_BALLOT,
    SIMT_ANY,
    SIMT_ALL,
    SIMT_MMA,
    SIMT_LDMATRIX,
    SIMT_LDMATRIX_TRANS
};
/* SHFL: the value of lane `from`, all ones where that takes no part. Votes: value != 0. */
uint64_t simt_warp(simt_kind kind, unsigned mask, uint64_t value, unsigned from);
void simt_matrix(simt_kind kind, const void *in[3], void *out);
unsigned simt_lane(void);
void __syncthreads(void);
static inline void __syncwarp(unsigned mask = 0xffffffffu) { (void)simt_warp(SIMT_SYNC_WARP, mask, 0, 0); }
static inline unsigned __ballot_sync(unsigned mask, int vote)
{
    return static_cast<unsigned>(simt_warp(SIMT_BALLOT, mask, vote != 0, 0));
}
static inline int __any_sync(unsigned mask, int vote)
{
    return static_cast<int>(simt_warp(SIMT_ANY, mask, vote != 0, 0));
}
static inline int __all_sync(unsigned mask, int vote)
{
    return static_cast<int>(simt_warp(SIMT_ALL, mask, vote != 0, 0));
}

template <class T> static inline T simt_shuffle(unsigned mask, T value, unsigned from)
{
    uint64_t bits = 0;

    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles take 4 or 8 bytes");
    memcpy(&bits, &value, sizeof(T));
    bits = simt_warp(SIMT_SHFL, mask, bits, from);
    memcpy(&value, &bits, sizeof(T));
    return value;
}
template <class T> static inline T __shfl_sync(unsigned mask, T value, int from, int width = 32)
{
    const unsigned w = static_cast<unsigned>(width), lane = simt_lane();

    return simt_shuffle(mask, value, (lane & ~(w - 1)) | (static_cast<unsigned>(from) & (w - 1)));
}
template <class T> static inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32)
{
    const unsigned lane = simt_lane(), first = lane & ~(static_cast<unsigned>(width) - 1);

    return simt_shuffle(mask, value, lane - first >= by ? lane - by : lane);
}
template <class T> static inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32)
{
    const unsigned lane = simt_lane(), last = lane | (static_cast<unsigned>(width) - 1);

    return simt_shuffle(mask, value, by <= last - lane ? lane + by : lane);
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T value, int with, int width = 32)
{
    const unsigned lane = simt_lane(), last = lane | (static_cast<unsigned>(width) - 1);
    const unsigned from = lane ^ static_cast<unsigned>(with);

    return simt_shuffle(mask, value, from <= last ? from : lane);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */
template <class T> static inline T __ldg(const T *p) { return *p; }
static inline void __threadfence(void) { asm volatile("" ::: "memory"); } /* one thread of the host runs a launch */

#define SIMT_ATOMICS(type)                                                                                             \
    static inline type atomicAdd(type *p, type by) { return __atomic_fetch_add(p, by, __ATOMIC_SEQ_CST); }             \
    static inline type atomicExch(type *p, type to) { return __atomic_exchange_n(p, to, __ATOMIC_SEQ_CST); }           \
    static inline type atomicCAS(type *p, type is, type to)                                                            \
    {                                                                                                                  \
        (void)__atomic_compare_exchange_n(p, &is, to, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                      \
        return is;                                                                                                     \
    }                                                                                                                  \
    static inline type atomicMin(type *p, type with)                                                                   \
    {                                                                                                                  \
        type is = __atomic_load_n(p, __ATOMIC_SEQ_CST);                                                                \
        while (with < is && !__atomic_compare_exchange_n(p, &is, with, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}  \
        return is;                                                                                                     \
    }                                                                                                                  \
    static inline type atomicMax(type *p, type with)                                                                   \
    {                                                                                                                  \
        type is = __atomic_load_n(p, __ATOMIC_SEQ_CST);                                                                \
        while (with > is && !__atomic_compare_exchange_n(p, &is, with, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}  \
        return is;                                                                                                     \
    }
SIMT_ATOMICS(int)
SIMT_ATOMICS(unsigned)
SIMT_ATOMICS(unsigned long long)
#undef SIMT_ATOMICS

/* ---- arithmetic -------------------------------------------------------------------------------------------------- */
static inline unsigned __float_as_uint(float x)
{
    unsigned bits;

    memcpy(&bits, &x, sizeof(bits));
    return bits;
}
static inline float __uint_as_float(unsigned bits)
{
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}
static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32);
}
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
/* What the compiler may not contract with its neighbours. */
static inline float __fadd_rn(float a, float b)
{
    volatile float sum = a + b;

    return sum;
}
static inline float __fmul_rn(float a, float b)
{
    volatile float product = a * b;

    return product;
}
static inline double __dmul_rn(double a, double b)
{
    volatile double product = a * b;

    return product;
}
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }

/* ---- tensor cores and asynchronous copies ------------------------------------------------------------------------ */
static inline void cu_mma(float d[4], const unsigned a[4], const unsigned b[2], const float c[4])
{
    const void *in[3] = {a, b, c};

    simt_matrix(SIMT_MMA, in, d);
}
static inline void cu_ldmatrix(unsigned r[4], const void *row)
{
    const void *in[3] = {row, nullptr, nullptr};

    simt_matrix(SIMT_LDMATRIX, in, r);
}
static inline void cu_ldmatrix_trans(unsigned r[4], const void *row)
{
    const void *in[3] = {row, nullptr, nullptr};

    simt_matrix(SIMT_LDMATRIX_TRANS, in, r);
}
void cu_copy_async(void *to, const void *from, bool valid);
void cu_copy_commit(void);
void simt_copy_wait(unsigned pending);
template <int PENDING> static inline void cu_copy_wait(void) { simt_copy_wait(PENDING); }
