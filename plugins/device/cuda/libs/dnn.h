/* plugins/device/cuda/libs/dnn.h -- convolutions and attention by cuDNN. Where it is not there, or has nothing for a
 * shape, `create` is DDP_ERR_UNSUPPORTED and the caller takes its own kernel. All calls come from the device's
 * thread. */
#pragma once

#include "kernels/kernels.h"
#include "libraries.h"

typedef struct cu_dnn cu_dnn;
typedef struct cu_dnn_params {
    const cu_libraries *libraries;
    const ddp_host *host;        /* log */
    cudaStream_t stream;         /* on which algorithms are measured */
    const char *cache_dir, *gpu; /* as of cu_products_params */
    bool deterministic;          /* the same bits in every run; nothing is measured, nothing kept */
    bool tf32;                   /* f32 convolutions through tf32 */
} cu_dnn_params;
ddp_status cu_dnn_open(const cu_dnn_params *p, cu_dnn **out, ddp_err *err);
void cu_dnn_close(cu_dnn *d); /* takes NULL; writes the file of algorithms where something is new */

/* ---- convolution, NHWC; weights packed (o, kh, kw, i) in the type of the images ---------------------------------- */
enum { CU_CONV_FORWARD = 0, CU_CONV_GRAD_INPUT, CU_CONV_GRAD_WEIGHT };
typedef struct cu_dnn_conv cu_dnn_conv;
/* type: CU_* of x, y and the packed weight or its gradient; sums in f32 (tf32 as open says). Runs cuDNN's algorithms on
 * operands of its own and takes the fastest, or without memory for that the first; with `deterministic` the first that
 * runs, and DDP_ERR_NOMEM without memory to run it in. */
ddp_status cu_dnn_conv_create(cu_dnn *d, uint32_t what, const cu_conv *c, uint32_t type, cu_dnn_conv **out,
                              ddp_err *err);
void cu_dnn_conv_free(cu_dnn_conv *c); /* takes NULL */
size_t cu_dnn_conv_workspace(const cu_dnn_conv *c);
/* FORWARD: a = x, b = packed weight, out = y. GRAD_INPUT: a = dy, b = packed weight, out = dx. GRAD_WEIGHT: a = dy,
 * b = x, out = packed gradient. Set, never added. May be captured. */
ddp_status cu_dnn_conv_run(const cu_dnn_conv *c, cudaStream_t s, const void *a, const void *b, void *out,
                           void *workspace, ddp_err *err);

/* ---- attention in bf16 ------------------------------------------------------------------------------------------- */
typedef struct cu_dnn_attention cu_dnn_attention;
/* qkv (n, t, 3 e) packed as cu_attention says; no dropout. training: log-sum-exp is kept and the gradient can be
 * run. */
ddp_status cu_dnn_attention_create(cu_dnn *d, const cu_attention *a, bool training, cu_dnn_attention **out,
                                   ddp_err *err);
void cu_dnn_attention_free(cu_dnn_attention *c); /* takes NULL */
size_t cu_dnn_attention_workspace(const cu_dnn_attention *c, bool gradient);
ddp_status cu_dnn_attention_run(const cu_dnn_attention *c, cudaStream_t s, const void *qkv, void *y, float *lse,
                                void *workspace, ddp_err *err);
ddp_status cu_dnn_attention_run_grad(const cu_dnn_attention *c, cudaStream_t s, const void *dy, const void *qkv,
                                     const void *y, const float *lse, void *dqkv, void *workspace, ddp_err *err);
