/* plugins/dataset/common/image/jpeg.c -- JPEG by libjpeg-turbo: baseline and progressive; grey, YCbCr, RGB, CMYK,
 * YCCK.
 *
 * Only the wanted part goes through IDCT, upsampling and color conversion (jpeg_crop_scanline, jpeg_skip_scanlines).
 * At the edges of a part the upsampling of the colors would lack its neighbours, so a margin is decoded around it: the
 * pixels are those of the whole image. A file that ends early is broken; other damage, which libjpeg warns of, is
 * decoded as well as it can be, as Pillow does. */
#include "format.h"
#include <setjmp.h>
#include <stdio.h>
#include <string.h>
/* after stdio.h */
#include <jpeglib.h>

enum {
    MARGIN = 4,
    SCANS_MAX = 100,
    MARKER_MAX = 0xffff,
    SCALES =
        1 << 1 | 1 << 2 | 1 << 4 /* whose IDCT is vectorised; those of 6/8 and the like take longer than that of 8/8 */
};

typedef struct decoder {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;
    struct jpeg_source_mgr source;
    struct jpeg_progress_mgr progress;
    jmp_buf failed;
    char why[JMSG_LENGTH_MAX];
} decoder;

/* ---- what libjpeg calls ------------------------------------------------------------------------------------------ */
static void on_error(j_common_ptr jpeg)
{
    decoder *d = jpeg->client_data;

    if (d->why[0] == '\0') jpeg->err->format_message(jpeg, d->why);
    longjmp(d->failed, 1);
}

static void on_message(j_common_ptr jpeg, int level)
{
    (void)jpeg;
    (void)level;
}

static void on_init(j_decompress_ptr jpeg) { (void)jpeg; }

static boolean on_end_of_data(j_decompress_ptr jpeg)
{
    decoder *d = jpeg->client_data;

    (void)snprintf(d->why, sizeof(d->why), "the file ends within the image");
    on_error((j_common_ptr)jpeg);
    return FALSE;
}

static void on_skip(j_decompress_ptr jpeg, long bytes)
{
    if (bytes <= 0) return;
    if ((size_t)bytes > jpeg->src->bytes_in_buffer) (void)on_end_of_data(jpeg);
    jpeg->src->next_input_byte += bytes;
    jpeg->src->bytes_in_buffer -= (size_t)bytes;
}

/* A progressive file of some kilobytes can have scans that take minutes. */
static void on_progress(j_common_ptr common)
{
    const decoder *d = common->client_data;

    if (d->jpeg.input_scan_number <= SCANS_MAX) return;
    (void)snprintf(((decoder *)common->client_data)->why, sizeof(d->why), "it has more than %d scans", SCANS_MAX);
    on_error(common);
}

/* ---- header ------------------------------------------------------------------------------------------------------ */
static void prepare(decoder *d, const image_source *s)
{
    d->source = (struct jpeg_source_mgr){.next_input_byte = s->bytes,
                                         .bytes_in_buffer = s->size,
                                         .init_source = on_init,
                                         .fill_input_buffer = on_end_of_data,
                                         .skip_input_data = on_skip,
                                         .resync_to_restart = jpeg_resync_to_restart,
                                         .term_source = on_init};
    d->progress.progress_monitor = on_progress;
    d->jpeg.src = &d->source;
    d->jpeg.progress = &d->progress;
}

static int orientation_of(const decoder *d)
{
    for (const struct jpeg_marker_struct *m = d->jpeg.marker_list; m != NULL; m = m->next)
        if (m->data_length > 6 && memcmp(m->data, "Exif\0\0", 6) == 0)
            return image_exif_orientation(m->data + 6, m->data_length - 6);
    return 1;
}

/* ---- pixels ------------------------------------------------------------------------------------------------------ */
/* As Pillow does: inverted, as Adobe writes it, then each of C, M, Y reduced by K. */
static void from_cmyk(const uint8_t *in, int64_t count, uint8_t *out)
{
    for (int64_t i = 0; i < count; i++, in += 4)
        for (int c = 0; c < 3; c++) {
            int left = in[3], part = (255 - in[c]) * left + 128;
            int v = left - (((part >> 8) + part) >> 8);

            *out++ = (uint8_t)(v < 0 ? 0 : v);
        }
}

/* Row by row from job->top on; `row` holds a row of the decoder's, which begins at column `first` of the image. */
static void read_rows(decoder *d, const image_job *job, int64_t first, uint8_t *row)
{
    bool cmyk = d->jpeg.out_color_space == JCS_CMYK;
    int64_t from = (job->left - first) * (cmyk ? 4 : 3), skip = job->top > MARGIN ? job->top - MARGIN : 0;
    bool straight = !cmyk && from == 0 && (int64_t)d->jpeg.output_width == job->columns;

    if (skip > 0) (void)jpeg_skip_scanlines(&d->jpeg, (JDIMENSION)skip);
    while (d->jpeg.output_scanline < (JDIMENSION)(job->top + job->rows)) {
        int64_t y = (int64_t)d->jpeg.output_scanline - job->top;
        uint8_t *out = y < 0 ? NULL : job->pixels + y * job->columns * 3, *to = straight && y >= 0 ? out : row;

        (void)jpeg_read_scanlines(&d->jpeg, &to, 1);
        if (out == NULL || to == out) continue;
        if (cmyk)
            from_cmyk(row + from, job->columns, out);
        else
            memcpy(out, row + from, (size_t)job->columns * 3);
    }
}

static void decode_part(decoder *d, image_job *job)
{
    JDIMENSION first = (JDIMENSION)(job->left > MARGIN ? job->left - MARGIN : 0), width;

    d->jpeg.scale_num = job->image.scale;
    d->jpeg.scale_denom = 8;
    (void)jpeg_start_decompress(&d->jpeg);
    width = (JDIMENSION)(job->left + job->columns + MARGIN);
    width = (width < d->jpeg.output_width ? width : d->jpeg.output_width) - first;
    if (width < d->jpeg.output_width) jpeg_crop_scanline(&d->jpeg, &first, &width);
    read_rows(d, job, (int64_t)first, job->extra);
}

static ddp_status decode(decoder *d, image_job *job, ddp_err *err)
{
    image_size size;

    jpeg_create_decompress(&d->jpeg);
    prepare(d, job->source);
    if (job->options->orient) jpeg_save_markers(&d->jpeg, JPEG_APP0 + 1, MARKER_MAX);
    (void)jpeg_read_header(&d->jpeg, TRUE);
    if (job->options->orient) job->orientation = orientation_of(d);
    if (d->jpeg.num_components == 2 || d->jpeg.num_components > 4)
        return image_fail(job, err, "is a JPEG of %d components; those of 1, 3 and 4 can be read",
                          d->jpeg.num_components);
    d->jpeg.out_color_space = d->jpeg.num_components == 4 ? JCS_CMYK : JCS_RGB;
    size = (image_size){d->jpeg.image_height, d->jpeg.image_width, SCALES};
    DDP_TRY(image_place(job, &size, err));
    DDP_TRY(image_extra(job, (size_t)d->jpeg.image_width * 4, err));
    decode_part(d, job);
    return DDP_OK;
}

ddp_status image_decode_jpeg(image_job *job, ddp_err *err)
{
    decoder d = {.why = ""};
    ddp_status status;

    d.jpeg.err = jpeg_std_error(&d.errors);
    d.jpeg.client_data = &d;
    d.errors.error_exit = on_error;
    d.errors.emit_message = on_message;
    if (setjmp(d.failed) != 0)
        status = image_broken(job, err, "JPEG", d.why);
    else
        status = decode(&d, job, err);
    jpeg_destroy_decompress(&d.jpeg);
    return status;
}
