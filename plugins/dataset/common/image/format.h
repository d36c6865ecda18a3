/* plugins/dataset/common/image/format.h -- what image.c and the decoders of the formats share. A decoder reads the
 * header, calls image_place and image_extra, and writes the part that is wanted, as the file has it, to job->pixels. */
#pragma once

#include "image.h"

typedef struct image_job {
    const image_source *source;
    const image_options *options;
    const ddp_image_sink *sink;
    ddp_image image;
    int orientation; /* EXIF's, 1 to 8 */

    /* Filled by image_place; the part in the file's own orientation, at image.scale. */
    int64_t top, left, rows, columns;
    /* Filled by image_extra. */
    uint8_t *pixels; /* (rows, columns, 3) */
    uint8_t *extra;  /* memory for the decoder, as many bytes as it has asked for */
} image_job;

typedef struct image_size {
    int64_t height, width; /* in the file's own orientation */
    uint32_t scales;       /* as in ddp_image */
} image_size;

/* Asks the engine for the part. */
ddp_status image_place(image_job *job, const image_size *size, ddp_err *err);
/* After image_place: job->extra has `bytes`, those that the decoder needs for itself; sets job->pixels. */
ddp_status image_extra(image_job *job, size_t bytes, ddp_err *err);
ddp_status image_fail(const image_job *job, ddp_err *err, const char *fmt, ...) DDP_PRINTF_(3, 4);
/* The file is a broken `format`; says what can be done about it. */
ddp_status image_broken(const image_job *job, ddp_err *err, const char *format, const char *why);
/* The orientation that EXIF data, from "II" or "MM" on, have; 1 where they have none or make no sense. */
int image_exif_orientation(const uint8_t *data, size_t size);

ddp_status image_decode_jpeg(image_job *job, ddp_err *err);
ddp_status image_decode_png(image_job *job, ddp_err *err);
ddp_status image_decode_webp(image_job *job, ddp_err *err);
