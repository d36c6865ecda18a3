/* plugins/device/cpu/kernels/product/windows.h -- a convolution and its gradients as a matrix product that reads
 * windows of images as its rows, without writing them down: forward y = windows(x) w^T; the gradient of the weight
 * dy^T windows(x); that of the input windows(dy) by the turned kernel, or with a stride, rows dy w that are added up
 * where they come from.
 *
 * Images are channels last. The weight lies (O, C / groups, KH, KW), or its channels last, and is laid in
 * each call as the product reads it, unless it lies so. In bf16 what is multiplied is rounded as it is packed. */
#pragma once

#include "kernels/image.h"
#include "onednn/conv.h"
#include "product.h"

typedef struct cpu_window_conv {
    cpu_windows x, read;                      /* the windows over x; those that the product reads, if it reads any */
    int64_t images, groups, out, taps, inner; /* inner: numbers that one output's kernel has */
    int kind;                                 /* CPU_CONV_* */
    bool reads, last,
        lies; /* it reads windows; in memory the weight's channels are last; it lies as the product takes it */
    uint64_t weight_bytes, scratch_bytes;
} cpu_window_conv;

cpu_windows cpu_windows_of(const cpu_conv_shape *s); /* over x, of one group */
/* kind: CPU_CONV_* of onednn/conv.h. Of s the fields `bias` and `half` do not matter. */
void cpu_window_conv_init(cpu_window_conv *c, const ddp_device *d, int kind, const cpu_conv_shape *s);
/* What the kind computes is written, a weight's gradient added to if `add`. bias NULL for none, and act CPU_ACT_*: of
 * the forward kind. The scratch is 64-byte aligned. The device's one thread calls. */
void cpu_window_conv_run(const cpu_window_conv *c, const ddp_device *d, void *scratch, float *x, float *w,
                         const float *bias, uint32_t act, float *y, bool add);
