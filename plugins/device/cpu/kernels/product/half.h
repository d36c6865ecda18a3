/* plugins/device/cpu/kernels/product/half.h -- the products of product.h in bf16 with sums in f32, for CPUs with
 * AVX512_BF16. No threads, no allocation, no library.
 *
 * Operands are f32 in memory and rounded to bf16, to nearest and ties to even, on the way; or the right side is bf16
 * in memory. A result is the same for every cut of n between threads. */
#pragma once

#include "kernels/kernels.h"
#include "product.h"

#include <ddpengine/device.h>
#include <stdbool.h>
#include <stdint.h>

#define CPU_HALF_PANEL INT64_C(64) /* columns of the result that are computed together */

typedef struct cpu_half_kernels {
    uint64_t (*left_bytes)(const cpu_product *p);  /* what `prepare` writes */
    uint64_t (*right_bytes)(const cpu_product *p); /* scratch of each thread in `run`, 64-byte aligned */
    /* Pieces first .. last - 1, of prepare_count(), of the packed left side; all of them before any `run`. */
    void (*prepare)(const cpu_product *p, int64_t first, int64_t last);
    int64_t (*prepare_count)(const cpu_product *p);
    /* Columns first .. last - 1, multiples of CPU_HALF_PANEL but for the last. */
    void (*run)(const cpu_product *p, int64_t first, int64_t last, void *scratch);
    void (*round)(uint16_t *y, const float *x, int64_t n);
    double (*chains)(int64_t rounds, float *keep); /* as cpu_kernels.fma_chains */
    const cpu_attention_kernels *attention;
} cpu_half_kernels;

/* Where there is cpu_half_available(). */
extern const cpu_attention_kernels cpu_attention_bf16;

/* NULL where this CPU has no AVX512_BF16, or the compiler did not know it. */
const cpu_half_kernels *cpu_half_available(void);
