/* data/augment.h -- what changes the values of a sample's pixels: color_jitter and random_erasing, as torchvision's
 * ColorJitter and RandomErasing do it on float tensors. What is drawn follows from seed, epoch and index alone. */
#pragma once

#include "data/view.h"

typedef struct augment_plan {
    double jitter[4]; /* brightness, contrast, saturation, hue; 0: none */
    double erasing;   /* probability */
    uint64_t seed;
    bool jitters;
} augment_plan;

ddp_status augment_plan_read(augment_plan *p, const struct ddp_data_config *c, int64_t channels, uint64_t seed,
                             ddp_err *err);
void augment_describe_jitter(const augment_plan *p, ddp_text *out);
void augment_describe_erasing(const augment_plan *p, ddp_text *out);

/* x: (3, pixels), 0 to 1. The four in a random order, each by a factor that is drawn. */
void augment_jitter(const augment_plan *p, uint64_t index, uint64_t epoch, float *x, int64_t pixels);
/* x: (channels, h, w), normalised: with the probability `erasing` a box of it becomes 0. */
void augment_erase(const augment_plan *p, uint64_t index, uint64_t epoch, float *x, int64_t channels, view_size size);

/* The four by themselves: torchvision.transforms.functional.adjust_brightness and so on. */
enum { AUGMENT_BRIGHTNESS, AUGMENT_CONTRAST, AUGMENT_SATURATION, AUGMENT_HUE };
void augment_adjust(int what, float factor, float *x, int64_t pixels);
