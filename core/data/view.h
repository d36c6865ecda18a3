/* data/view.h -- which part of an image becomes a sample, and how large: resize, padding, random_crop, center_crop,
 * random_resized_crop and flip, by the keys of [data] and [eval], as torchvision's transforms have them.
 *
 * What is random follows from the seed, the epoch and the sample's index alone. Not a pixel is touched here. */
#pragma once

#include "config/config.h"
#include <ddpengine/program.h>

typedef struct view_size {
    int64_t h, w;
} view_size;

typedef struct view_plan {
    bool resized, shorter; /* to `size`; shorter: its h is that of the shorter side */
    bool cropped, random, resized_crop;
    view_size size, crop; /* crop: of random_crop, center_crop or random_resized_crop */
    int64_t padding;
    double scale[2], log_ratio[2], ratio[2]; /* of random_resized_crop */
    double flip;
    uint64_t seed, flip_below; /* mirrored where 32 random bits are below */
} view_plan;

/* A box of the image is resized to `size`, of which `out` is taken from `corner` on; what is outside it is black. */
typedef struct view {
    view_size from, box; /* the box's upper left corner in the image, and its size */
    view_size size, corner, out;
    bool mirrored;
} view;

/* What the transforms of this engine draw, by ddp_philox: the places beside those of a model's dropouts. */
enum {
    VIEW_PLACE_CROP = 0xda7a,
    VIEW_PLACE_BOX = 0xda80,
    VIEW_PLACE_JITTER = 0xda90,
    VIEW_PLACE_ERASE = 0xdaa0,
    VIEW_PLACE_MIX = 0xdab0
};

ddp_status view_plan_read(view_plan *p, const struct ddp_data_config *c, uint64_t seed, ddp_err *err);
/* The size of a sample; where the images' sizes differ, {0, 0} unless it is the same for all. `image`: {0, 0} if so. */
ddp_status view_out_size(const view_plan *p, view_size image, view_size *out, ddp_err *err);
/* DDP_ERR_DATA where the image is too small for the crop. */
ddp_status view_draw(const view_plan *p, view_size image, uint64_t index, uint64_t epoch, view *out, ddp_err *err);
/* " -> resize 72x72 (antialias) -> random crop 64x64 -> flip 0.5"; `image` as for view_out_size. */
void view_describe(const view_plan *p, view_size image, bool antialias, ddp_text *out);

/* Evenly in 0 .. 1, from 32 bits; and evenly in 0 .. count - 1, but for 1 part in 2^32 / count. */
static inline double view_uniform(uint32_t bits, double low, double high)
{
    return low + (high - low) * bits * 0x1p-32;
}
static inline int64_t view_below(uint32_t bits, int64_t count)
{
    return (int64_t)((uint64_t)bits * (uint64_t)count >> 32);
}
