/* data/transform.h -- transforms of a dataset's images before the model sees them, by the keys of [data] and [eval].
 *
 * The field "image", (C, H, W) of u8 or f32, becomes f32 in this order, as torchvision's transforms have it:
 *   to float (u8: / 255), resize, padding, random_crop, center_crop or random_resized_crop, flip, color_jitter,
 *   normalise ((x - mean) / std), random_erasing;
 * and then the batch, where samples are mixed (data/mix.h).
 * What is random follows from the seed, the epoch and the sample's index alone: neither the number of workers or ranks
 * nor a restart changes a sample. Images whose size differs by sample come through data/image.h. */
#pragma once

#include "data/augment.h"
#include "data/cache.h"
#include "data/mix.h"
#include "data/resample.h"
#include <ddpengine/dataset.h>

typedef struct ddp_transform ddp_transform;

typedef struct ddp_transform_params {
    const struct ddp_data_config *config;
    const ddp_list *mean, *std; /* the effective ones: of `config`, or for [eval] of [data] */
    uint64_t seed;
    const ddp_field *fields; /* of the dataset, as they are when it gives them */
    uint32_t field_count;
    uint64_t length; /* its samples */
} ddp_transform_params;

/* *out is NULL where there is nothing to do: no image of bytes, no key set. What does not fit is DDP_ERR_CONFIG. */
ddp_status ddp_transform_open(const ddp_transform_params *p, ddp_transform **out, ddp_err *err);
void ddp_transform_close(ddp_transform *t);
/* The fields as the model sees them: those of the dataset, and behind them the two that mixing adds. They live until
 * close. */
const ddp_field *ddp_transform_fields(const ddp_transform *t);
uint32_t ddp_transform_field_count(const ddp_transform *t);
bool ddp_transform_mixes(const ddp_transform *t);      /* t may be NULL */
uint32_t data_transform_field(const ddp_transform *t); /* which of them is made here */
/* "u8 3x96x96 -> resize 72x72 (antialias) -> random crop 64x64 -> flip 0.5 -> normalise" */
void ddp_transform_describe(const ddp_transform *t, ddp_text *out);

/* ---- images of one size ---- */
bool data_transform_fixed(const ddp_transform *t); /* else data/image.h reads them */
/* Bytes of memory that one thread needs. The dataset writes the field as it has it to its start. */
size_t data_transform_scratch(const ddp_transform *t);
/* From `scratch`, which is 64-byte aligned, to `out`. Any number of threads at once; allocates nothing. */
void data_transform_apply(const ddp_transform *t, uint64_t index, uint64_t epoch, void *scratch, float *out);

/* ---- for the loader ---- */
/* Mixes `count` samples, whose fields are in buffers; `index` is that of the first. spare: an image, f32. */
void data_transform_mix(const ddp_transform *t, uint64_t index, uint64_t epoch, int64_t count, void *const *buffers,
                        float *spare);
size_t data_transform_image(const ddp_transform *t); /* bytes of an image as the model sees it */

/* ---- for data/image.h ---- */
const view_plan *data_transform_view(const ddp_transform *t);
bool data_transform_antialias(const ddp_transform *t);
bool data_transform_dct_scale(const ddp_transform *t);
data_cache *data_transform_cache(const ddp_transform *t); /* NULL: none */
size_t data_transform_others(const ddp_transform *t);     /* bytes of a sample's other fields */
/* Copies them from the buffers of a sample, or to them. */
void data_transform_save(const ddp_transform *t, void *const *buffers, uint8_t *others);
void data_transform_load(const ddp_transform *t, const uint8_t *others, void *const *buffers);
resample_values data_transform_values(const ddp_transform *t);
/* What follows resample_apply. */
void data_transform_finish(const ddp_transform *t, uint64_t index, uint64_t epoch, float *out);
