/* tests/doubles/cublaslt_double.h -- cuBLASLt without a GPU, for plugins/device/cuda/libs/gemm.c: what a test can
 * ask of it and see in it. Products are sums in f32 in the order of k, done in the order of the stream by
 * cuda_runtime_double.h. It offers three algorithms for each product: the first is slow, the second cannot be
 * started, the third is fast. What a GPU would answer with nonsense is an error here: dimensions that do not fit,
 * pointers less aligned than was said, memory that is not the device's. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { CUBLASLT_DOUBLE_ALGORITHMS = 3 };
typedef struct cublaslt_double_control {
    size_t version;
    uint32_t refused;                /* an epilogue for which there is no algorithm; 0: none */
    int checks_fail;                 /* cublasLtMatmulAlgoCheck knows no algorithm */
    int heuristics, checks, started; /* calls */
    int sums;                        /* products started that give sums beside gelu's gradient */
    int last_algorithm;              /* of the last product that was started */
    int objects;                     /* not destroyed yet */
    char misuse[128];                /* the first, "" where there was none */
} cublaslt_double_control;

/* One for all handles. */
cublaslt_double_control *cublaslt_double(void);

#ifdef __cplusplus
}
#endif
