/* plugins/device/cpu/kernels/image.h -- kernels over images that lie channels last: windows of convolution and
 * pooling, and batch norm, for which an image is rows of channels. One table for each instruction set, part of
 * cpu_kernels; what kernels.h says about bits holds here too. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Windows over an image x that give an image y. Kernel 0: adaptive, window i of o over n goes from i n / o to (i +
 * 1) n / o, rounded outwards. */
typedef struct cpu_windows {
    int64_t channels, height, width, out_height, out_width;
    int64_t kernel[2], stride[2], padding[2];
    int64_t pitch; /* of `windows` and `fold`: floats from a pixel to the next, of which the channels are the first */
} cpu_windows;

enum { CPU_POOL_NOWHERE = 255, CPU_POOL_PLACES = 255 }; /* of a window; NOWHERE: the gradient goes to none of them */

typedef struct cpu_image_kernels {
    /* Places first .. last-1 of the y of all images: rows (channels, kernel height, kernel width) of what each sees,
     * 0 where that is padding. */
    void (*unfold)(float *rows, const float *x, const cpu_windows *w, int64_t first, int64_t last);
    /* Numbers first .. last-1 of (kernel height, kernel width, channels) that `count` places see, from `place` of the
     * y of all images on; a place's are at to + i * stride. */
    void (*windows)(float *to, int64_t stride, const float *x, const cpu_windows *w, int64_t place, int64_t count,
                    int64_t first, int64_t last);
    /* Lines first .. last-1 of the x of all images: the sum of what the rows have for each position. */
    void (*fold)(float *x, const float *rows, const cpu_windows *w, int64_t first, int64_t last);
    /* Lines of y. `at`, unless NULL, gets the offset in the window of the first largest. relu: of y, and NOWHERE
     * where that is 0. */
    void (*max_pool)(float *y, uint8_t *at, const float *x, const cpu_windows *w, bool relu, int64_t first,
                     int64_t last);
    /* Lines of x. */
    void (*max_pool_grad)(float *dx, const float *dy, const uint8_t *at, const cpu_windows *w, int64_t first,
                          int64_t last);
    /* Columns first .. last-1 of the sums over rows of dy where `at` is not NOWHERE: db = or +=. */
    void (*maximum_sums)(float *db, const float *dy, const uint8_t *at, int64_t rows, int64_t cols, int64_t first,
                         int64_t last, bool add);
    /* Lines of y: the windows' averages, of which padding is a part; lines of x: back. */
    void (*avg_pool)(float *y, const float *x, const cpu_windows *w, int64_t first, int64_t last);
    void (*avg_pool_grad)(float *dx, const float *dy, const cpu_windows *w, int64_t first, int64_t last);
    /* Column sums of (rows, cols), columns first .. last-1: of x, and of its squares. */
    void (*moments)(double *sum, double *square, const float *x, int64_t rows, int64_t cols, int64_t first,
                    int64_t last);
    /* y = act(x * scale + shift + other) over rows; scale and shift by column, other NULL for none, act relu or
     * none. */
    void (*normalize)(float *y, const float *x, const float *scale, const float *shift, const float *other,
                      int64_t rows, int64_t cols, bool relu);
    /* g = dy + more, 0 where ref <= 0 (more and ref NULL: none); columns: sums of g and of g * x. g itself is
     * written unless NULL; it may be dy, more or ref. */
    void (*norm_sums)(double *sum, double *dot, float *g, const float *dy, const float *more, const float *ref,
                      const float *x, int64_t rows, int64_t cols, int64_t first, int64_t last);
    /* dx = g * a + x * b + c over rows, g as above; dx may be any of the images. */
    void (*norm_grad)(float *dx, const float *dy, const float *more, const float *ref, const float *x, const float *a,
                      const float *b, const float *c, int64_t rows, int64_t cols);
} cpu_image_kernels;

/* A convolution of 3 x 3 by tiles of y, 4 x 4 pixels each. For the gradient of the input x and y have changed
 * positions. */
typedef struct cpu_tiles {
    int64_t channels, height, width, out, out_height, out_width; /* of x, of y; channels and outputs may be a part: */
    int64_t x_pitch, y_pitch;                                    /* floats from a pixel to the next */
    int64_t padding[2];
    int64_t high, wide, count;                 /* tiles of an image; of all */
    int64_t weight_out, weight_in, weight_tap; /* floats from a weight to that of the next output, input, tap */
    bool turned;                               /* the kernels are, by half a turn */
    /* Floats from a point to the next: of a block of tiles, x (36, tiles, channels) and y (36, tiles, out), and of
     * the weight. */
    int64_t x_stride, y_stride, weight_stride;
} cpu_tiles;

/* `tiles` tiles from `base` of all on; the points of a weight are (36, channels, out), in whatever order `weights`
 * gives them for `multiply`. */
typedef struct cpu_winograd_kernels {
    void (*pixels)(float *points, const float *x, const cpu_tiles *s, int64_t base, int64_t tiles);
    void (*gradients)(float *points, const float *dy, const cpu_tiles *s, int64_t base, int64_t tiles);
    /* y = points + bias, unless NULL; with relu of it. */
    void (*images)(float *y, const float *points, const float *bias, bool relu, const cpu_tiles *s, int64_t base,
                   int64_t tiles);
    /* Channels first .. last-1. */
    void (*weights)(float *points, const float *w, const cpu_tiles *s, int64_t first, int64_t last);
    void (*weight_gradients)(float *dw, const float *points, const cpu_tiles *s, bool add);
    /* y = x weight, and weight = or += x^T dy, point by point. */
    void (*multiply)(float *y, const float *x, const float *weight, const cpu_tiles *s, int64_t tiles);
    void (*correlate)(float *weight, const float *x, const float *dy, const cpu_tiles *s, int64_t tiles, bool add);
} cpu_winograd_kernels;
