/* plugins/dataset/common/image/png.c -- PNG by libpng: grey, palette and RGB, of any depth, interlaced or not. Of 16
 * bits the upper 8 are taken; transparency is left out, not blended. */
#include "format.h"
#include <png.h>
#include <setjmp.h>
#include <string.h>

enum {
    CHUNK_MAX = 64 << 10
}; /* bytes that a chunk beside the pixels takes; EXIF data have as many at most in a JPEG */

typedef struct decoder {
    image_job *job;
    ddp_err *err;
    png_structp png;
    png_infop info;
    size_t at; /* in the source */
    jmp_buf failed;
    char why[160];
} decoder;

static void on_error(png_structp png, png_const_charp message)
{
    decoder *d = png_get_error_ptr(png);

    (void)snprintf(d->why, sizeof(d->why), "%s", message);
    longjmp(d->failed, 1);
}

static void on_warning(png_structp png, png_const_charp message)
{
    (void)png;
    (void)message;
}

static void on_read(png_structp png, png_bytep out, size_t length)
{
    decoder *d = png_get_io_ptr(png);

    if (length > d->job->source->size - d->at) png_error(png, "the file ends within the image");
    memcpy(out, d->job->source->bytes + d->at, length);
    d->at += length;
}

/* ---- header ------------------------------------------------------------------------------------------------------ */
/* Texts, profiles and palettes that are no part of the pixels are passed over: unpacked, 1 MB of them takes 1 GB. */
static void pass_over(decoder *d)
{
    static const png_byte names[] = "tEXt\0zTXt\0iTXt\0iCCP\0sPLT";

    png_set_keep_unknown_chunks(d->png, PNG_HANDLE_CHUNK_NEVER, names, sizeof(names) / 5);
    png_set_chunk_malloc_max(d->png, CHUNK_MAX);
}

/* libpng takes memory for as many bytes as a chunk of EXIF data says that it has: not more than the file has. */
static void check_chunks(decoder *d)
{
    const uint8_t *bytes = d->job->source->bytes;
    const size_t size = d->job->source->size;

    for (size_t at = 8; at + 12 <= size && memcmp(bytes + at + 4, "IDAT", 4) != 0;) {
        size_t length =
            (size_t)bytes[at] << 24 | (size_t)bytes[at + 1] << 16 | (size_t)bytes[at + 2] << 8 | bytes[at + 3];

        if (length > size - at - 12) png_error(d->png, "the file ends within the image");
        at += 12 + length;
    }
}

/* Whatever the file has becomes RGB of 8 bits. */
static void set_up(decoder *d)
{
    png_byte type = png_get_color_type(d->png, d->info), depth = png_get_bit_depth(d->png, d->info);

    if (depth == 16) png_set_strip_16(d->png);
    if (type == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(d->png);
    if (type == PNG_COLOR_TYPE_GRAY && depth < 8) png_set_expand_gray_1_2_4_to_8(d->png);
    if ((type & PNG_COLOR_MASK_COLOR) == 0) png_set_gray_to_rgb(d->png);
    png_set_strip_alpha(d->png);
}

static int orientation_of(const decoder *d)
{
    png_uint_32 length = 0;
    png_bytep data = NULL;

    if (png_get_eXIf_1(d->png, d->info, &length, &data) == 0 || data == NULL) return 1;
    return image_exif_orientation(data, length);
}

/* ---- pixels ------------------------------------------------------------------------------------------------------ */
static void take_row(const image_job *job, int64_t y, const uint8_t *row)
{
    if (y < job->top) return;
    memcpy(job->pixels + (y - job->top) * job->columns * 3, row + job->left * 3, (size_t)job->columns * 3);
}

/* All passes go over the whole image. */
static void read_interlaced(decoder *d, int64_t height, size_t row_bytes, int passes)
{
    const image_job *job = d->job;

    for (int pass = 0; pass < passes; pass++)
        for (int64_t y = 0; y < height; y++) png_read_row(d->png, job->extra + (size_t)y * row_bytes, NULL);
    for (int64_t y = job->top; y < job->top + job->rows; y++) take_row(job, y, job->extra + (size_t)y * row_bytes);
}

static ddp_status decode(decoder *d)
{
    image_job *job = d->job;
    image_size size;
    size_t row_bytes;
    int passes;

    png_set_user_limits(d->png, PNG_UINT_31_MAX, PNG_UINT_31_MAX); /* image_place looks at the size */
    pass_over(d);
    check_chunks(d);
    png_set_read_fn(d->png, d, on_read);
    png_read_info(d->png, d->info);
    size = (image_size){png_get_image_height(d->png, d->info), png_get_image_width(d->png, d->info), 0};
    set_up(d);
    passes = png_set_interlace_handling(d->png);
    if (job->options->orient) job->orientation = orientation_of(d);
    row_bytes = (size_t)size.width * 3;
    DDP_TRY(image_place(job, &size, d->err));
    DDP_TRY(image_extra(job, passes > 1 ? row_bytes * (size_t)size.height : row_bytes, d->err));
    png_read_update_info(d->png, d->info);
    if (png_get_rowbytes(d->png, d->info) != row_bytes) png_error(d->png, "its rows have an unknown form");
    if (passes > 1) {
        memset(job->extra, 0, row_bytes * (size_t)size.height);
        read_interlaced(d, size.height, row_bytes, passes);
        return DDP_OK;
    }
    for (int64_t y = 0; y < job->top + job->rows; y++) {
        png_read_row(d->png, job->extra, NULL);
        take_row(job, y, job->extra);
    }
    return DDP_OK;
}

ddp_status image_decode_png(image_job *job, ddp_err *err)
{
    decoder d = {.job = job, .err = err, .why = "out of memory"};
    ddp_status status;

    if (setjmp(d.failed) != 0) {
        status = image_broken(job, err, "PNG", d.why);
    } else {
        d.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &d, on_error, on_warning);
        d.info = d.png != NULL ? png_create_info_struct(d.png) : NULL;
        status = d.info != NULL ? decode(&d) : ddp_fail(err, DDP_ERR_NOMEM, "libpng: %s", d.why);
    }
    png_destroy_read_struct(&d.png, &d.info, NULL);
    return status;
}
