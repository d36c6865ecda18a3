/* plugins/dataset/common/image/webp.c -- WebP by libwebp: lossy and lossless, still images. Transparency is left out,
 * not blended. */
#include "format.h"
#include <string.h>
#include <webp/decode.h>

enum { MARGIN = 4 }; /* around the part, so that the upsampling of colors has its neighbours; even */

static size_t little(const uint8_t *p) { return p[0] | (size_t)p[1] << 8 | (size_t)p[2] << 16 | (size_t)p[3] << 24; }

/* From the chunk "EXIF" of the RIFF file, which some programs begin with "Exif\0\0". */
static int orientation_of(const image_source *s)
{
    size_t at = 12;

    while (s->size >= 8 && at <= s->size - 8) {
        size_t length = little(s->bytes + at + 4), left = s->size - at - 8;
        const uint8_t *data = s->bytes + at + 8;

        if (length > left) return 1;
        if (memcmp(s->bytes + at, "EXIF", 4) == 0) {
            size_t head = length > 6 && memcmp(data, "Exif\0\0", 6) == 0 ? 6 : 0;

            return image_exif_orientation(data + head, length - head);
        }
        at += 8 + length + (length & 1);
    }
    return 1;
}

static const char *why(VP8StatusCode code)
{
    switch (code) {
    case VP8_STATUS_NOT_ENOUGH_DATA:
    case VP8_STATUS_SUSPENDED: return "the file ends within the image";
    case VP8_STATUS_OUT_OF_MEMORY: return "no memory for it";
    case VP8_STATUS_UNSUPPORTED_FEATURE: return "it has a feature that libwebp does not know";
    default: return "its data make no sense";
    }
}

/* The part and its margin go to job->extra, and from there to job->pixels. */
static ddp_status decode_part(image_job *job, const image_size *size, WebPDecoderConfig *config, ddp_err *err)
{
    int64_t top = job->top > MARGIN ? (job->top - MARGIN) & ~INT64_C(1) : 0;
    int64_t left = job->left > MARGIN ? (job->left - MARGIN) & ~INT64_C(1) : 0;
    int64_t bottom = job->top + job->rows + MARGIN, right = job->left + job->columns + MARGIN, stride;
    VP8StatusCode code;

    if (bottom > size->height) bottom = size->height;
    if (right > size->width) right = size->width;
    stride = (right - left) * 3;
    DDP_TRY(image_extra(job, (size_t)(stride * (bottom - top)), err));
    config->options.use_cropping = 1;
    config->options.crop_left = (int)left;
    config->options.crop_top = (int)top;
    config->options.crop_width = (int)(right - left);
    config->options.crop_height = (int)(bottom - top);
    config->output.colorspace = MODE_RGB;
    config->output.is_external_memory = 1;
    config->output.u.RGBA.rgba = job->extra;
    config->output.u.RGBA.stride = (int)stride;
    config->output.u.RGBA.size = (size_t)(stride * (bottom - top));
    code = WebPDecode(job->source->bytes, job->source->size, config);
    if (code != VP8_STATUS_OK) return image_broken(job, err, "WebP", why(code));
    for (int64_t y = 0; y < job->rows; y++)
        memcpy(job->pixels + y * job->columns * 3, job->extra + (job->top - top + y) * stride + (job->left - left) * 3,
               (size_t)job->columns * 3);
    return DDP_OK;
}

ddp_status image_decode_webp(image_job *job, ddp_err *err)
{
    WebPDecoderConfig config;
    image_size size;
    VP8StatusCode code;

    if (WebPInitDecoderConfig(&config) == 0) return image_fail(job, err, "needs another version of libwebp");
    code = WebPGetFeatures(job->source->bytes, job->source->size, &config.input);
    if (code != VP8_STATUS_OK) return image_broken(job, err, "WebP", why(code));
    if (config.input.has_animation != 0)
        return image_fail(job, err, "is an animation; take a frame out of it, as in: webpmux -get frame 1 IN -o OUT");
    size = (image_size){config.input.height, config.input.width, 0};
    if (job->options->orient) job->orientation = orientation_of(job->source);
    DDP_TRY(image_place(job, &size, err));
    return decode_part(job, &size, &config, err);
}
