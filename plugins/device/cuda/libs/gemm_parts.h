/* plugins/device/cuda/libs/gemm_parts.h -- what gemm.c and gemm_measure.c share. */
#pragma once

#include "algorithms.h"
#include "gemm.h"
#include "timer.h"

enum { CU_PRODUCT_CANDIDATES = 32 };

struct cu_products {
    const cu_libraries *l;
    cublasLtHandle_t handle;
    void *workspace, *side_workspace;
    cudaStream_t side;
    size_t workspace_bytes;
    bool first_heuristic, tf32;
    uint32_t candidates;
    cu_algorithms *known;
    cu_timer timer;
};

struct cu_product {
    cu_products *all;
    cu_product_params p;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c; /* of our a, b and c */
    cublasLtMatmulAlgo_t algo;
    uint64_t nanoseconds; /* 0: not measured */
};

bool cu_product_uses_aux(uint32_t epilogue);
/* Where the product's bias and aux are, for those that have them. */
cublasStatus_t cu_product_point(const cu_product *t, const void *bias, const void *aux);
cublasStatus_t cu_product_start(const cu_product *t, const cublasLtMatmulAlgo_t *algo, cudaStream_t s, const void *a,
                                const void *b, void *c, bool add);
/* Puts t->algo and t->nanoseconds into the table. */
void cu_product_keep(const cu_product *t, const char *key);
/* t->algo and t->nanoseconds: the fastest of `found`, kept. Without memory to measure in, it stays as
 * it is. */
ddp_status cu_product_measure(cu_product *t, const cublasLtMatmulHeuristicResult_t *found, int count, const char *key,
                              ddp_err *err);
