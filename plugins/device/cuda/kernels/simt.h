/* plugins/device/cuda/kernels/simt.h -- what the kernels are written against: CUDA C++, or, with DDP_CUDA_DOUBLE, a
 * double of it that runs them on the host (tests/doubles/simt_double.h), so that the same source is tested where there
 * is no GPU.
 *
 * What a kernel uses beside plain C++ and the names below: __global__, __device__, __forceinline__, __restrict__,
 * __launch_bounds__, threadIdx, blockIdx, blockDim, gridDim, __syncthreads, __syncwarp, __shfl_xor_sync,
 * __shfl_sync, __shfl_down_sync, __shfl_up_sync, __ballot_sync, __any_sync, __all_sync, atomicAdd (int, unsigned,
 * unsigned long long), atomicMin, atomicMax, atomicCAS, atomicExch (unsigned, unsigned long long, int),
 * __threadfence, __fmaf_rn, __fma_rn, __fadd_rn, __fmul_rn, __dmul_rn, fmaf, expf, exp2f, logf, log1pf, tanhf, erff,
 * rsqrtf, sqrtf, __float_as_uint, __uint_as_float, __umulhi, __ldg, float4, uint4, uint2, int4, make_float4,
 * make_uint4, make_uint2, dim3. Shared memory is declared by the three macros alone. */
#pragma once

#ifdef DDP_CUDA_DOUBLE
#include "simt_double.h"
#else
#include <cuda_runtime.h>

/* CU_SHARED(float, tile, [32][33]); static shared memory of a block, not initialised. A kernel may count on the
 * type's alignment alone, and the double gives no more; on 16 bytes, for accesses of that size, with CU_SHARED_WIDE. */
#define CU_SHARED(type, name, dims) __shared__ __align__(16) type name dims
#define CU_SHARED_WIDE              CU_SHARED
/* The block's dynamic shared memory, 16-byte aligned. */
#define CU_SHARED_DYNAMIC(type, name)                                                                                  \
    extern __shared__ __align__(16) unsigned char cu_dynamic_shared_[];                                                \
    type *name = reinterpret_cast<type *>(cu_dynamic_shared_)

/* A kernel's argument that is indexed where it lies, in constant memory: const CU_CONSTANT type name. */
#define CU_CONSTANT __grid_constant__

/* kernel<<<grid, block, shared, s>>>(args...), with what the start said. Above 48 KiB of shared memory:
 * cu_allow_shared first. */
template <class... P, class... A>
static inline cudaError_t cu_launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, cudaStream_t s,
                                    A... args)
{
    cudaLaunchConfig_t c = {};

    c.gridDim = grid;
    c.blockDim = block;
    c.dynamicSmemBytes = shared;
    c.stream = s;
    return cudaLaunchKernelEx(&c, kernel, static_cast<P>(args)...);
}

template <class... P> static inline cudaError_t cu_allow_shared(void (*kernel)(P...), size_t bytes)
{
    return cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                static_cast<int>(bytes));
}

/* ---- tensor cores and asynchronous copies, sm_80 and newer ------------------------------------------------------- */
/* d (16x8 f32) = a (16x16 bf16, row) * b (16x8 bf16, col) + c: mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32;
 * d may be c. */
static __device__ __forceinline__ void cu_mma(float d[4], const unsigned a[4], const unsigned b[2], const float c[4])
{
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}
/* ldmatrix.sync.aligned.m8n8.x4[.trans].shared.b16: `row` is this lane's row address in shared memory, 16-byte
 * aligned */
static __device__ __forceinline__ void cu_ldmatrix(unsigned r[4], const void *row)
{
    unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
static __device__ __forceinline__ void cu_ldmatrix_trans(unsigned r[4], const void *row)
{
    unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
/* 16 bytes from global to shared memory, or zeros where !valid (then `from` is not read). */
static __device__ __forceinline__ void cu_copy_async(void *to, const void *from, bool valid)
{
    unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(to));
    int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "r"(at), "l"(from), "r"(bytes) : "memory");
}
static __device__ __forceinline__ void cu_copy_commit(void) { asm volatile("cp.async.commit_group;" : : : "memory"); }
template <int PENDING>
static __device__ __forceinline__ void cu_copy_wait(void) /* all but the newest PENDING groups are there */
{
    asm volatile("cp.async.wait_group %0;" : : "n"(PENDING) : "memory");
}
#endif

/* ---- bf16 as bits, both ways ------------------------------------------------------------------------------------- */
static __device__ __forceinline__ float cu_from_bf16(unsigned short h)
{
    return __uint_as_float(static_cast<unsigned>(h) << 16);
}
static __device__ __forceinline__ unsigned short cu_to_bf16(float x) /* nearest even; a NaN stays one */
{
    unsigned bits = __float_as_uint(x);

    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<unsigned short>(bits >> 16 | 0x40u);
    return static_cast<unsigned short>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
