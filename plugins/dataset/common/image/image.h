/* plugins/dataset/common/image/image.h -- files of images to pixels, for datasets whose images differ in size: JPEG,
 * PNG and WebP, told apart by their first bytes. Each is RGB, u8, with the pixels of Pillow's convert("RGB").
 *
 * The header comes first, so that a file that would unpack to more than max_pixels is refused before any memory is
 * taken; then the part that the engine wants is decoded, once. */
#pragma once

#include <ddpengine/dataset.h>
#include <stdbool.h>
#include <stddef.h>

enum { IMAGE_SIDE_MAX = 65535 };

typedef struct image_options {
    uint64_t max_pixels;
    bool orient; /* turns an image upright as its EXIF orientation says */
} image_options;

typedef struct image_source {
    const char *plugin, *name; /* for messages: the dataset's name, the file's */
    const char *advice;        /* what to do about a broken one, after "; " */
    const uint8_t *bytes;
    size_t size;
} image_source;

/* DDP_ERR_DATA names the file, and says what is wrong with it. */
ddp_status image_decode(const image_source *source, const image_options *options, const ddp_image_sink *sink,
                        ddp_err *err);
/* Memory for a sink that wants each image whole, at full size: blocks 0 and 1 of the sink, and the pixels. */
typedef struct image_room {
    void *blocks[3];
    size_t sizes[3];
} image_room;
void image_room_sink(image_room *room, ddp_image_sink *sink);
void image_room_free(image_room *room);
/* By the name's end: .jpg, .jpeg, .png, .webp in any case. */
bool image_has_suffix(const char *name, size_t length);
