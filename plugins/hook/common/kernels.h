/* plugins/hook/common/kernels.h -- the arithmetic of the hooks over flat vectors, one table of functions for each
 * instruction set, compiled from the same source (kernels_body.h) and chosen at run time by CPU feature. No
 * multiply-add is fused, so that every function gives the same bits on every CPU, except the sums of `fold`, which
 * only their own rank uses. Vectors lie anywhere; in and out do not overlap unless it says so. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { HOOK_BLOCK = 256, HOOK_MAX_RANK = 32 }; /* values of an int8 block; columns of powersgd's factors */

typedef struct hook_kernels {
    const char *isa;
    void (*to_bf16)(uint16_t *y, const float *x, size_t n); /* to nearest even */
    void (*from_bf16)(float *y, const uint16_t *x, size_t n);

    /* v = x + error, in blocks of HOOK_BLOCK with a scale each, the largest magnitude over 127: q = v / scale to
     * nearest even, error = v - q scale. A block of n values is padded with zeros. */
    void (*quantise)(int8_t *q, float *scale, const float *x, float *error, size_t n);
    void (*dequantise)(float *y, const int8_t *q, const float *scale, size_t n); /* y = q scale */
    /* The mean of `parts` such vectors, added in their order, rounded again to q and scale; what that loses, times
     * `parts`, is added to error. `part`: of vector k the scales of its blocks, then the blocks. */
    void (*requantise)(int8_t *q, float *scale, const unsigned char *const *part, uint32_t parts, size_t blocks,
                       float *error, size_t n);

    /* A matrix M (rows, cols), its factors by column: P (rank, rows), Q (rank, cols).
     *     fold      M += G, then P = (M Q^T)^T
     *     back      Q = (P M)
     *     expand    G = P^T Q, then M -= G */
    void (*fold)(float *m, const float *g, const float *q, float *p, size_t rows, size_t cols, uint32_t rank);
    void (*back)(const float *m, const float *p, float *q, size_t rows, size_t cols, uint32_t rank);
    void (*expand)(float *g, float *m, const float *p, const float *q, size_t rows, size_t cols, uint32_t rank);
} hook_kernels;

extern const hook_kernels hook_kernels_portable;
#if defined(__x86_64__)
extern const hook_kernels hook_kernels_avx2, hook_kernels_avx512;
#endif

/* By DDP_ISA_* of ddpengine/isa.h, best first: this CPU can run those from ddp_isa_best() on. */
extern const hook_kernels *const hook_kernels_variants[];
