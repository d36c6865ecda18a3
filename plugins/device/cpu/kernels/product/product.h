/* plugins/device/cpu/kernels/product/product.h -- the device's matrix product, over its threads.
 *
 * c (m, n) = left (m, k) right^T (k, n), all f32 in memory, the two sides either way round; in precision bf16 by
 * half.h, else in f32 by the parts in cpu_kernels.product. How it is cut into blocks and among threads changes no
 * bit: each sum goes through k in parts whose length the shape alone decides. */
#pragma once

#include "kernels/image.h"

#include <ddpengine/device.h>
#include <stdbool.h>
#include <stdint.h>

/* A matrix (rows, k): element (r, i) at r * stride + i, or turned, at i * stride + r. */
typedef struct cpu_side {
    const void *at; /* f32 */
    int64_t stride;
    bool turned, half; /* half: bf16, of a right side */
    /* Not NULL: `at` has images, and the matrix is what each place of their windows sees, (kernel height, kernel width,
     * channels), a row, or turned, a column. In f32 alone. */
    const cpu_windows *windows;
} cpu_side;

typedef struct cpu_product {
    int64_t m, n, k;
    int64_t stride; /* from a row of the result to the next */
    cpu_side left, right;
    float *plain, *activated; /* (m, n) left right^T + bias; the activation of that; NULL for one that is not wanted */
    const float *bias;        /* (n) or NULL */
    uint32_t act;             /* CPU_ACT_*, of `activated` */
    bool add;                 /* to what `plain` has, which is then alone and without bias */
    uint16_t *left_packed;    /* in bf16: room for left_bytes(); set by cpu_product_run() */
} cpu_product;

/* Bytes, and the product itself. The scratch is 64-byte aligned. The device's one thread calls. */
uint64_t cpu_product_scratch(const ddp_device *d, const cpu_product *p);
void cpu_product_run(const ddp_device *d, cpu_product *p, void *scratch);
/* Of a linear layer: y (rows, out) = x (rows, in) w^T, w (out, in), or transposed (in, out); dx = dy w; dw = or += dy^T
 * x. What becomes of the first one's result is for the caller to say. */
cpu_product cpu_product_forward(int64_t rows, int64_t in, int64_t out, bool transposed, const float *x, const void *w);
cpu_product cpu_product_grad_input(int64_t rows, int64_t in, int64_t out, bool transposed, const float *dy,
                                   const void *w, float *dx);
cpu_product cpu_product_grad_weight(int64_t rows, int64_t in, int64_t out, bool transposed, const float *dy,
                                    const float *x, float *dw, bool add);
