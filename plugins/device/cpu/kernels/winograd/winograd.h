/* plugins/device/cpu/kernels/winograd/winograd.h -- convolutions with kernels of 3 x 3, stride 1, by Winograd's
 * algorithm F(4 x 4, 3 x 3) (Lavin and Gray, arXiv:1509.09308): 36 multiplications where the definition has 144. A
 * block of tiles goes through all of it, up to some 128 channels while it is in the L2 cache. Images are channels last,
 * f32; channels and outputs are multiples of 16.
 *
 * Rounding: of the order of 1e-6 of the largest result, a few times the definition's; the same bits for every
 * instruction set and number of threads. Calls come from the device's one thread. */
#pragma once

#include "onednn/conv.h"
#include "kernels/kernels.h"

typedef struct cpu_winograd {
    cpu_tiles tiles;               /* of a part */
    int what;                      /* CPU_CONV_* */
    uint32_t all_threads, threads; /* of the device; that have a part */
    /* The threads split the tiles, for the gradient of the weight channels and outputs: all of them, and in how many
     * parts. */
    int64_t sizes[2], parts[2];
    int64_t block;                        /* tiles at a time */
    int64_t y_points, weight_points, own; /* floats: in a thread's own part of the scratch, which has so many */
    uint64_t scratch_bytes;
} cpu_winograd;

/* Whether it can, and is worth it: measured, it is 1.2 to 3 times as fast as the direct one where there are as many
 * tiles as channels. Not where most of a tile lies outside of the image, and not the gradient of so few weights that
 * threads would be idle. */
bool cpu_winograd_suits(int what, const cpu_conv_shape *s, uint32_t threads);
void cpu_winograd_init(cpu_winograd *w, int what, const cpu_conv_shape *s, uint32_t threads);
/* x, w, y or their gradients: two are read, the one that `what` names is written, a weight's gradient set or added.
 * bias (O), or NULL, and relu are the forward's. scratch: scratch_bytes, 64-byte aligned. */
void cpu_winograd_run(const cpu_winograd *w, const cpu_kernels *kernels, float *scratch, float *x, float *weight,
                      const float *bias, float *y, bool relu, bool add);
