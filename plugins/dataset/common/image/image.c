/* plugins/dataset/common/image/image.c -- see image.h. */
#include "format.h"
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- orientation: pixel (y, x) of the upright image is (r, c) of the file's ----
 * r is y, or x where the sides are swapped, counted from the end for 3, 4, 6, 7; c likewise for 2, 3, 7, 8. */
static bool swaps(int orientation) { return orientation >= 5; }
static bool flips_rows(int o) { return o == 3 || o == 4 || o == 6 || o == 7; }
static bool flips_columns(int o) { return o == 2 || o == 3 || o == 7 || o == 8; }

static int64_t scaled(int64_t length, uint32_t eighths) { return (length * eighths + 7) / 8; }

/* The part that is wanted, as it lies in the file. */
static void map_part(image_job *job, const image_size *size)
{
    const ddp_image *i = &job->image;
    bool swap = swaps(job->orientation);
    int64_t height = scaled(size->height, i->scale), width = scaled(size->width, i->scale);

    job->top = swap ? i->left : i->top;
    job->left = swap ? i->top : i->left;
    job->rows = swap ? i->columns : i->rows;
    job->columns = swap ? i->rows : i->columns;
    if (flips_rows(job->orientation)) job->top = height - job->top - job->rows;
    if (flips_columns(job->orientation)) job->left = width - job->left - job->columns;
}

/* From the file's orientation, at job->pixels, to upright. */
static void turn(const image_job *job)
{
    const ddp_image *i = &job->image;
    bool swap = swaps(job->orientation), up = flips_rows(job->orientation), back = flips_columns(job->orientation);
    uint8_t *out = i->pixels;

    for (int64_t y = 0; y < i->rows; y++)
        for (int64_t x = 0; x < i->columns; x++, out += 3) {
            int64_t r = swap ? x : y, c = swap ? y : x;

            if (up) r = job->rows - 1 - r;
            if (back) c = job->columns - 1 - c;
            memcpy(out, job->pixels + (r * job->columns + c) * 3, 3);
        }
}

/* ---- for the decoders -------------------------------------------------------------------------------------------- */
ddp_status image_fail(const image_job *job, ddp_err *err, const char *fmt, ...)
{
    char why[256];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(why, sizeof(why), fmt, ap);
    va_end(ap);
    return ddp_fail(err, DDP_ERR_DATA, "dataset %s: \"%s\" %s", job->source->plugin, job->source->name, why);
}

ddp_status image_broken(const image_job *job, ddp_err *err, const char *format, const char *why)
{
    return image_fail(job, err, "is a broken %s: %s%s", format, why, job->source->advice);
}

/* The engine knows no file: its complaint is about this one. */
static ddp_status name_file(const image_job *job, ddp_err *err)
{
    char why[sizeof(err->msg)];

    memcpy(why, err->msg, sizeof(why));
    return ddp_fail(err, err->status, "dataset %s: \"%.200s\": %.250s", job->source->plugin, job->source->name, why);
}

ddp_status image_place(image_job *job, const image_size *size, ddp_err *err)
{
    bool swap = swaps(job->orientation);

    if (size->height < 1 || size->width < 1) return image_fail(job, err, "has no pixels");
    if (size->height > IMAGE_SIDE_MAX || size->width > IMAGE_SIDE_MAX ||
        (uint64_t)size->height * (uint64_t)size->width > job->options->max_pixels)
        return image_fail(job, err,
                          "has %" PRId64 " x %" PRId64 " pixels; max_pixels = %" PRIu64
                          " and %d a side are allowed. Take it out or make it smaller, or raise max_pixels",
                          size->width, size->height, job->options->max_pixels, IMAGE_SIDE_MAX);
    job->image = (ddp_image){.struct_size = sizeof(job->image), .scales = size->scales, .scale = 8};
    job->image.height = swap ? size->width : size->height;
    job->image.width = swap ? size->height : size->width;
    if (job->sink->place(job->sink->ctx, &job->image, err) != DDP_OK) return name_file(job, err);
    map_part(job, size);
    return DDP_OK;
}

ddp_status image_extra(image_job *job, size_t bytes, ddp_err *err)
{
    bool turned = job->orientation > 1;
    size_t part = turned ? (size_t)(job->rows * job->columns) * 3 : 0;

    job->pixels = job->image.pixels;
    if (bytes + part == 0) return DDP_OK;
    job->extra = job->sink->memory(job->sink->ctx, 1, bytes + part, err);
    if (job->extra == NULL) return err->status;
    if (turned) job->pixels = job->extra + bytes;
    return DDP_OK;
}

static bool begins(const image_source *s, size_t at, const char *magic, size_t length)
{
    return s->size >= at + length && memcmp(s->bytes + at, magic, length) == 0;
}

ddp_status image_decode(const image_source *source, const image_options *options, const ddp_image_sink *sink,
                        ddp_err *err)
{
    image_job job = {.source = source, .options = options, .sink = sink, .orientation = 1};
    ddp_status status;

    if (source->size == 0)
        status = image_fail(&job, err, "is empty%s", source->advice);
    else if (begins(source, 0, "\xff\xd8\xff", 3))
        status = image_decode_jpeg(&job, err);
    else if (begins(source, 0, "\x89PNG\r\n\x1a\n", 8))
        status = image_decode_png(&job, err);
    else if (begins(source, 0, "RIFF", 4) && begins(source, 8, "WEBP", 4))
        status = image_decode_webp(&job, err);
    else
        status = image_fail(&job, err, "is no JPEG, PNG or WebP file, whatever its name says%s", source->advice);
    if (status == DDP_OK && job.orientation > 1) turn(&job);
    return status;
}

bool image_has_suffix(const char *name, size_t length)
{
    static const char *const suffixes[] = {".jpg", ".jpeg", ".png", ".webp"};

    for (size_t i = 0; i < sizeof(suffixes) / sizeof(suffixes[0]); i++) {
        size_t n = strlen(suffixes[i]);

        if (length > n && strncasecmp(name + length - n, suffixes[i], n) == 0) return true;
    }
    return false;
}

/* ---- a whole image ----------------------------------------------------------------------------------------------- */
static void *room_memory(void *ctx, uint32_t block, size_t bytes, ddp_err *err)
{
    image_room *room = ctx;

    if (bytes <= room->sizes[block] && room->blocks[block] != NULL) return room->blocks[block];
    free(room->blocks[block]);
    room->sizes[block] = bytes;
    room->blocks[block] = malloc(bytes + 1);
    if (room->blocks[block] == NULL) (void)ddp_fail(err, DDP_ERR_NOMEM, "no memory for %zu bytes of an image", bytes);
    return room->blocks[block];
}

static ddp_status room_place(void *ctx, ddp_image *image, ddp_err *err)
{
    image->scale = 8;
    image->top = image->left = 0;
    image->rows = image->height;
    image->columns = image->width;
    image->pixels = room_memory(ctx, 2, (size_t)(image->rows * image->columns) * 3, err);
    return image->pixels != NULL ? DDP_OK : err->status;
}

void image_room_sink(image_room *room, ddp_image_sink *sink)
{
    *sink = (ddp_image_sink){.struct_size = sizeof(*sink), .ctx = room, .memory = room_memory, .place = room_place};
}

void image_room_free(image_room *room)
{
    for (int i = 0; i < 3; i++) free(room->blocks[i]);
    *room = (image_room){.sizes = {0}};
}
