/* data/resize.h -- bilinear resizing of one axis, as torch.nn.functional.interpolate(mode="bilinear",
 * align_corners=False) does it with antialias=False and True. An image is resized along its rows first, then along its
 * columns. */
#pragma once

#include "base/base.h"

/* Output from + i is the sum over k < count[i] of weights[i * taps + k] * input[first[i] + k]. */
typedef struct ddp_resize {
    int64_t in, out, taps; /* out: outputs that are planned; taps: the largest count */
    int64_t *first, *count;
    float *weights; /* (out, taps) */
} ddp_resize;

/* Bytes of the tables for `count` outputs of an axis that is resized from `in` to `out`; in, out >= 1. */
size_t data_resize_bytes(int64_t in, int64_t out, int64_t count, bool antialias);
/* The outputs from .. from + count - 1; the tables lie in `memory`, 16-byte aligned. */
void data_resize_fill(ddp_resize *r, void *memory, int64_t in, int64_t out, int64_t from, int64_t count,
                      bool antialias);
/* All outputs; the tables come from `pool`. */
ddp_status data_resize_plan(ddp_resize *r, ddp_pool *pool, int64_t in, int64_t out, bool antialias, ddp_err *err);
/* One row: in (r->in) -> out (r->out). */
void data_resize_row(const ddp_resize *r, const float *in, float *out);
/* All columns: in (r->in, width) -> out (r->out, width). */
void data_resize_columns(const ddp_resize *r, const float *in, int64_t width, float *out);
