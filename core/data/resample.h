/* data/resample.h -- from the pixels of a decoder, u8 (rows, columns, 3), to a sample, f32 (3, H, W): only the part of
 * the image that a view needs, in one pass from row to row.
 *
 * The results have the bits of data_resize_row and data_resize_columns on the whole image. */
#pragma once

#include "data/resize.h"
#include "data/view.h"

/* What becomes of a pixel's value, by channel. */
typedef struct resample_values {
    const float *unit;       /* (256): byte / 255 */
    const float *table;      /* (3, 256): bytes to results */
    const float *mean, *std; /* (3); the result is (v - mean) / std */
    const float *fill;       /* (3): what becomes of black */
} resample_values;

typedef struct resample {
    view v;
    bool resized;
    view_size begin, end;    /* of the sample: rows and columns that are inside the image, the others are black */
    ddp_resize across, down; /* for these columns, and rows */
    view_size from, size;    /* the part of the image that is needed */
    size_t row_at, ring_at;  /* in the work memory: a row of the part, rows in their new width */
    int64_t ring, stride;    /* rows; pixels of a row, a multiple of 4 */
    char *work;
} resample;

/* Bytes of work memory for a view, 64-byte aligned. */
size_t resample_bytes(const view *v, bool antialias);
void resample_plan(resample *r, const view *v, bool antialias, void *work);
/* pixels: (r->size.h, r->size.w, 3), a row `stride` bytes after the other; out: (3, v.out.h, v.out.w). */
void resample_apply(const resample *r, const resample_values *values, const uint8_t *pixels, int64_t stride,
                    float *out);
