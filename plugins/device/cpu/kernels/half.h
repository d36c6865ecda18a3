/* plugins/device/cpu/kernels/half.h -- matrix products of bf16 numbers with sums in f32, for CPUs with AVX512_BF16. No
 * threads, no allocation, no library.
 *
 * c (m, n) = left (m, k) right^T (k, n); all three are f32 in memory, the two sides either way round, and rounded to
 * bf16, to nearest and ties to even, on the way; or the right side is bf16 in memory. A result is the same for every
 * cut of n between threads. */
#pragma once

#include "kernels.h"

#include <ddpengine/device.h>
#include <stdbool.h>
#include <stdint.h>

/* A matrix (rows, k): element (r, i) at r * stride + i, or turned, at i * stride + r. */
typedef struct cpu_side {
    const void *at; /* f32 */
    int64_t stride;
    bool turned, half; /* half: bf16, of a right side */
} cpu_side;

typedef struct cpu_half_product {
    int64_t m, n, k;
    cpu_side left, right;
    float *plain, *activated; /* (m, n) left right^T + bias; the activation of that; NULL for one that is not wanted */
    const float *bias;        /* (n) or NULL */
    uint32_t act;             /* CPU_ACT_*, of `activated` */
    bool add;                 /* to what `plain` has, which is then alone and without bias */
    uint16_t *left_packed;    /* room for left_bytes() */
} cpu_half_product;

#define CPU_HALF_PANEL INT64_C(64) /* columns of the result that are computed together */

typedef struct cpu_half_kernels {
    uint64_t (*left_bytes)(const cpu_half_product *p);  /* what `prepare` writes */
    uint64_t (*right_bytes)(const cpu_half_product *p); /* scratch of each thread in `run`, 64-byte aligned */
    /* Pieces first .. last - 1, of prepare_count(), of the packed left side; all of them before any `run`. */
    void (*prepare)(const cpu_half_product *p, int64_t first, int64_t last);
    int64_t (*prepare_count)(const cpu_half_product *p);
    /* Columns first .. last - 1, multiples of CPU_HALF_PANEL but for the last. */
    void (*run)(const cpu_half_product *p, int64_t first, int64_t last, void *scratch);
    void (*round)(uint16_t *y, const float *x, int64_t n);
    double (*chains)(int64_t rounds, float *keep); /* as cpu_kernels.fma_chains */
    const cpu_attention_kernels *attention;
} cpu_half_kernels;

/* Where there is cpu_half_available(). */
extern const cpu_attention_kernels cpu_attention_bf16;

/* NULL where this CPU has no AVX512_BF16, or the compiler did not know it. */
const cpu_half_kernels *cpu_half_available(void);

/* Over the threads of a device; p->left_packed is set by the call. The scratch is 64-byte aligned. */
uint64_t cpu_half_scratch(const ddp_device *d, const cpu_half_product *p);
void cpu_half_multiply(const ddp_device *d, cpu_half_product *p, void *scratch);
/* The products of gemm.h. What becomes of the first one's result is for the caller to say. */
cpu_half_product cpu_half_forward(int64_t rows, int64_t in, int64_t out, bool transposed, const float *x,
                                  const void *w);
cpu_half_product cpu_half_grad_input(int64_t rows, int64_t in, int64_t out, bool transposed, const float *dy,
                                     const void *w, float *dx);
cpu_half_product cpu_half_grad_weight(int64_t rows, int64_t in, int64_t out, bool transposed, const float *dy,
                                      const float *x, float *dw, bool add);
