/* plugins/device/cpu/onednn/conv.h -- convolutions by oneDNN. The only file that includes its header for them is
 * conv.c.
 *
 * Images are channels last, (N, H, W, C). The weight, or its gradient, lies (O, C / groups, KH, KW) as in the
 * parameter arena, or channels last too; it is reordered within the call to the layout that the library computes
 * with, through scratch. Which implementation is used is a fixed rule (conv.c), never a timing. Calls come from the
 * device's one thread. */
#pragma once

#include "library.h"

#include <stdbool.h>

typedef struct cpu_conv_shape {
    int64_t images, channels, height, width; /* of x */
    int64_t out, out_height, out_width;      /* of y */
    int64_t kernel[2], stride[2], padding[2], groups;
    bool weight_last; /* the weight lies (O, KH, KW, C / groups) */
    bool half; /* what is read is bf16: the images by the caller, the weight within the call; what is written is f32 */
    bool bias; /* forward only */
} cpu_conv_shape;

enum { CPU_CONV_FORWARD, CPU_CONV_GRAD_INPUT, CPU_CONV_GRAD_WEIGHT };

/* Described when a program is lowered, built when it is compiled, bound to memory for each instance. */
typedef struct cpu_conv cpu_conv;
typedef struct cpu_conv_bound cpu_conv_bound;
ddp_status cpu_conv_create(cpu_library *lib, int what, const cpu_conv_shape *s, cpu_conv **out, ddp_err *err);
uint64_t cpu_conv_scratch(const cpu_conv *c); /* bytes */
ddp_status cpu_conv_build(cpu_conv *c, ddp_err *err);
void cpu_conv_free(cpu_conv *c);
ddp_status cpu_conv_bind(const cpu_conv *c, void *scratch, cpu_conv_bound **out, ddp_err *err);
/* x, w, y or their gradients: two are read, the one that `what` names is written; of a weight's gradient `add` says
 * to add. bias: (O), of a convolution that has one. All of f32, but for the images that are read where shape.half. */
ddp_status cpu_conv_run(cpu_conv_bound *b, const void *x, const float *w, const float *bias, const void *y, bool add,
                        ddp_err *err);
void cpu_conv_bound_free(cpu_conv_bound *b);
