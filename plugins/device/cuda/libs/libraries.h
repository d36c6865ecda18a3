/* plugins/device/cuda/libs/libraries.h -- cuBLASLt and cuDNN, opened when a device is, so that the plugin loads and
 * explains itself where they are not. The CUDA runtime is linked in, and looks for the driver by itself. */
#pragma once

#include <ddpengine/device.h>
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>

#define CU_BLAS_FUNCTIONS(X)                                                                                           \
    X(cublasLtCreate)                                                                                                  \
    X(cublasLtDestroy)                                                                                                 \
    X(cublasLtGetVersion)                                                                                              \
    X(cublasLtMatmul)                                                                                                  \
    X(cublasLtMatmulDescCreate)                                                                                        \
    X(cublasLtMatmulDescDestroy)                                                                                       \
    X(cublasLtMatmulDescSetAttribute)                                                                                  \
    X(cublasLtMatrixLayoutCreate)                                                                                      \
    X(cublasLtMatrixLayoutDestroy)                                                                                     \
    X(cublasLtMatmulPreferenceCreate)                                                                                  \
    X(cublasLtMatmulPreferenceDestroy)                                                                                 \
    X(cublasLtMatmulPreferenceSetAttribute)                                                                            \
    X(cublasLtMatmulAlgoGetHeuristic)                                                                                  \
    X(cublasLtMatmulAlgoCheck)

#define CU_DNN_FUNCTIONS(X)                                                                                            \
    X(cudnnCreate)                                                                                                     \
    X(cudnnDestroy)                                                                                                    \
    X(cudnnGetVersion)                                                                                                 \
    X(cudnnGetErrorString)                                                                                             \
    X(cudnnGetLastErrorString)                                                                                         \
    X(cudnnSetStream)                                                                                                  \
    X(cudnnBackendCreateDescriptor)                                                                                    \
    X(cudnnBackendDestroyDescriptor)                                                                                   \
    X(cudnnBackendSetAttribute)                                                                                        \
    X(cudnnBackendGetAttribute)                                                                                        \
    X(cudnnBackendFinalize)                                                                                            \
    X(cudnnBackendExecute)

#define CU_FIELD_(name) __typeof__(name) *name;
typedef struct cu_libraries {
    CU_BLAS_FUNCTIONS(CU_FIELD_)
    CU_DNN_FUNCTIONS(CU_FIELD_)
    void *blas, *dnn;      /* handles of dlopen; dnn NULL: not there, the device's own kernels take its place */
    char dnn_missing[256]; /* why, "" where it is there */
} cu_libraries;
#undef CU_FIELD_

/* Names or paths, as dlopen takes them; dnn "" : not wanted. Without cuBLASLt it fails, naming what brings it;
 * without cuDNN, or with one that lacks a function above, it goes on. */
ddp_status cu_libraries_open(const char *blas, const char *dnn, cu_libraries *out, ddp_err *err);
void cu_libraries_close(cu_libraries *l);

/* CUDA's, cuBLASLt's and cuDNN's errors in one line: what, the number, its name and words; err->lib_code is the
 * number. Running out of device memory is DDP_ERR_NOMEM. */
ddp_status cu_fail(cudaError_t result, ddp_err *err, const char *fmt, ...) DDP_PRINTF_(3, 4);
ddp_status cu_fail_blas(cublasStatus_t result, ddp_err *err, const char *fmt, ...) DDP_PRINTF_(3, 4);
ddp_status cu_fail_dnn(const cu_libraries *l, cudnnStatus_t result, ddp_err *err, const char *fmt, ...)
    DDP_PRINTF_(4, 5);
