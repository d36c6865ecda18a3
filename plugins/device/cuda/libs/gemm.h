/* plugins/device/cuda/libs/gemm.h -- matrix products by cuBLASLt, the fastest of its algorithms measured for each shape
 * and kept on disk.
 *
 * A cu_products is a device's: its handle, its workspace, the algorithms known so far. A cu_product is one shape
 * with its layouts, epilogue and algorithm; several may stand for one shape, which is measured once. All calls come
 * from the device's thread. */
#pragma once

#include "kernels/kernels.h"
#include "libraries.h"

typedef struct cu_products cu_products;
typedef struct cu_product cu_product;

typedef struct cu_products_params {
    const cu_libraries *libraries;
    const ddp_host *host; /* log */
    cudaStream_t stream;  /* on which algorithms are measured */
    cudaStream_t side;    /* products on it have a workspace of their own; NULL: there is none */
    /* "": nothing is kept. A folder that is not there is made. What cannot be read or written is said once in the
     * log, and costs nothing but time. */
    const char *cache_dir;
    const char *gpu;        /* part of the cache's key, with the library's version */
    bool first_heuristic;   /* deterministic: nothing is measured, nothing kept */
    uint32_t candidates;    /* algorithms measured for a shape, 8 to 32 */
    bool tf32;              /* f32 products through tf32 */
    size_t workspace_bytes; /* 32 MiB on Hopper */
} cu_products_params;
ddp_status cu_products_open(const cu_products_params *p, cu_products **out, ddp_err *err);
/* Whether products may run on `side`: there was memory for its workspace. */
bool cu_products_have_side(const cu_products *p);
void cu_products_close(
    cu_products *p); /* takes NULL; writes the cache where something is new, by a file renamed into place */

/* c (m, n) = a (m, k) b (k, n), row-major. a_transposed: a is stored (k, m); b_transposed: b is stored (n, k). Sums
 * in f32. */
enum {
    CU_EPILOGUE_NONE = 0,
    CU_EPILOGUE_BIAS,          /* + bias (n), of c's type or f32 as the library takes it: `bias_type` */
    CU_EPILOGUE_RELU_BIAS,     /* relu(. + bias); bias may be left out: has_bias */
    CU_EPILOGUE_GELU_AUX_BIAS, /* c = gelu_tanh(. + bias), aux (m, n) = what went in, of c's type */
    CU_EPILOGUE_GELU_BIAS,     /* the same without aux */
    CU_EPILOGUE_DGELU,         /* c = . * gelu_tanh'(aux) */
    CU_EPILOGUE_DGELU_BGRAD,   /* and bias (n) = the sums of c's columns */
    CU_EPILOGUE_BGRAD_A,       /* bias (m) = the sums over k of a (the gradient of a weight: a = dy transposed) */
    CU_EPILOGUE_BGRAD_B
}; /* bias (n) = the sums over k of b (of one stored the other way round: b = dy) */
typedef struct cu_product_params {
    int64_t m, n, k;
    bool a_transposed, b_transposed;
    uint32_t a_type, b_type, c_type; /* CU_* of kernels.h; a and b of one type */
    uint32_t epilogue;
    bool has_bias;
    uint32_t bias_type; /* wanted; cu_product_bias_type says what it is to be */
    bool add; /* may be asked for at run: c is added to what is there. With an epilogue that is not NONE: never */
} cu_product_params;
/* DDP_ERR_UNSUPPORTED where the library has no algorithm for it (an alignment, an epilogue), or gelu's result is f32,
 * for which the library's tanh is too coarse: the caller does without the epilogue. */
ddp_status cu_product_create(cu_products *all, const cu_product_params *p, cu_product **out, ddp_err *err);
uint32_t cu_product_bias_type(const cu_product *p);
/* What its algorithm took when it was measured; 0: it was not. */
uint64_t cu_product_nanoseconds(const cu_product *p);
void cu_product_free(cu_product *p); /* takes NULL */
/* Starts it; may be captured. bias and aux as the epilogue says. */
ddp_status cu_product_run(const cu_product *p, cudaStream_t s, const void *a, const void *b, void *c, void *bias,
                          void *aux, bool add, ddp_err *err);
