/* plugins/backend/nccl/runtime.h -- the libraries of backend nccl: NCCL and the CUDA runtime, opened when they are
 * needed.
 *
 * The plugin links neither, so that it loads, prints its options and says what is missing on a machine without a
 * GPU. Each table below holds the library's functions under their own names. */
#pragma once

#include <ddpengine/backend.h>
#include <nccl.h>

#define DDP_NCCL_FUNCTIONS(X)                                                                                          \
    X(ncclGetVersion)                                                                                                  \
    X(ncclGetErrorString)                                                                                              \
    X(ncclGetLastError)                                                                                                \
    X(ncclGetUniqueId)                                                                                                 \
    X(ncclCommInitRankConfig)                                                                                          \
    X(ncclCommGetAsyncError)                                                                                           \
    X(ncclCommFinalize)                                                                                                \
    X(ncclCommDestroy)                                                                                                 \
    X(ncclCommAbort)                                                                                                   \
    X(ncclCommRegister)                                                                                                \
    X(ncclCommDeregister)                                                                                              \
    X(ncclMemAlloc)                                                                                                    \
    X(ncclMemFree)                                                                                                     \
    X(ncclAllReduce)                                                                                                   \
    X(ncclBroadcast)                                                                                                   \
    X(ncclReduce)                                                                                                      \
    X(ncclAllGather)                                                                                                   \
    X(ncclReduceScatter)                                                                                               \
    X(ncclSend)                                                                                                        \
    X(ncclRecv)                                                                                                        \
    X(ncclGroupStart)                                                                                                  \
    X(ncclGroupEnd)

#define DDP_CUDA_FUNCTIONS(X)                                                                                          \
    X(cudaRuntimeGetVersion)                                                                                           \
    X(cudaDriverGetVersion)                                                                                            \
    X(cudaGetErrorString)                                                                                              \
    X(cudaGetErrorName)                                                                                                \
    X(cudaGetDeviceCount)                                                                                              \
    X(cudaSetDevice)                                                                                                   \
    X(cudaMalloc)                                                                                                      \
    X(cudaFree)                                                                                                        \
    X(cudaMemsetAsync)                                                                                                 \
    X(cudaMemcpyAsync)                                                                                                 \
    X(cudaDeviceGetStreamPriorityRange)                                                                                \
    X(cudaStreamCreateWithPriority)                                                                                    \
    X(cudaStreamDestroy)                                                                                               \
    X(cudaStreamWaitEvent)                                                                                             \
    X(cudaEventCreateWithFlags)                                                                                        \
    X(cudaEventDestroy)                                                                                                \
    X(cudaEventRecord)                                                                                                 \
    X(cudaEventQuery)

#define DDP_NCCL_FIELD_(name) __typeof__(name) *name;
typedef struct ddp_nccl_runtime {
    DDP_NCCL_FUNCTIONS(DDP_NCCL_FIELD_)
    DDP_CUDA_FUNCTIONS(DDP_NCCL_FIELD_)
    void *nccl, *cuda; /* handles of dlopen; the libraries themselves stay loaded for ever */
} ddp_nccl_runtime;
#undef DDP_NCCL_FIELD_

typedef struct ddp_nccl_libraries { /* names or paths, as dlopen takes them */
    const char *nccl, *cuda, *driver;
} ddp_nccl_libraries;

/* Each failure names one library and what brings it. Needs a driver, but no device. */
ddp_status ddp_nccl_runtime_open(const ddp_nccl_libraries *names, ddp_nccl_runtime *out, ddp_err *err);
void ddp_nccl_runtime_close(ddp_nccl_runtime *r);

/* Whether CUDA device `ordinal` is there. */
ddp_status ddp_nccl_device_check(const ddp_nccl_runtime *r, int32_t ordinal, ddp_err *err);

/* The library's number in lib_code, its name for it and its own words in the message. */
ddp_status ddp_nccl_fail(const ddp_nccl_runtime *r, ncclComm_t comm, ncclResult_t result, ddp_err *err, const char *fmt,
                         ...) DDP_PRINTF_(5, 6);
ddp_status ddp_nccl_fail_cuda(const ddp_nccl_runtime *r, cudaError_t result, ddp_err *err, const char *fmt, ...)
    DDP_PRINTF_(4, 5);
