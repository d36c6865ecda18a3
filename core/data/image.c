/* data/image.c -- see image.h. */
#include "data/image.h"
#include <inttypes.h>
#include <stdlib.h>

enum { FILE_BYTES, DECODER, PIXELS, WORK, BLOCKS }; /* the first two are ddp_image_sink's blocks 0 and 1 */

typedef struct block {
    void *data;
    size_t size;
} block;

struct data_image_reader {
    const ddp_transform *transform;
    ddp_image_sink sink;
    block blocks[BLOCKS];
    uint64_t index, epoch; /* of the sample that is being read */
    resample plan;
    data_cached *fresh; /* being filled for the cache, else NULL */
    bool placed;
};

static void *block_of(data_image_reader *r, uint32_t which, size_t bytes, ddp_err *err)
{
    block *b = &r->blocks[which];

    if (bytes <= b->size) return b->data;
    free(b->data);
    *b = (block){0};
    b->data = ddp_alloc_aligned(bytes, err);
    if (b->data != NULL) b->size = bytes;
    return b->data;
}

static void *sink_memory(void *ctx, uint32_t which, size_t bytes, ddp_err *err)
{
    if (which <= DECODER) return block_of(ctx, which, DDP_MAX_OF(bytes, 1), err);
    (void)ddp_fail(err, DDP_ERR_INVALID, "the dataset asks for block %u of memory; there are 0 and 1", which);
    return NULL;
}

static int64_t scaled(int64_t length, uint32_t eighths) { return (length * eighths + 7) / 8; }

/* The smallest n/8 of those that the decoder has at which the box is still no smaller than what it is resized to. */
static uint32_t choose_scale(const data_image_reader *r, const ddp_image *image, const view *v)
{
    if (!data_transform_dct_scale(r->transform)) return 8;
    for (uint32_t n = 1; n < 8; n++)
        if ((image->scales >> n & 1) != 0 && v->box.h * n >= v->size.h * 8 && v->box.w * n >= v->size.w * 8) return n;
    return 8;
}

/* The box in the image of n/8; the whole image stays the whole. */
static void scale_box(view *v, const ddp_image *image, uint32_t n)
{
    int64_t height = scaled(image->height, n), width = scaled(image->width, n);

    v->from = (view_size){v->from.h * n / 8, v->from.w * n / 8};
    v->box = (view_size){DDP_MIN_OF(scaled(v->box.h, n), height - v->from.h),
                         DDP_MIN_OF(scaled(v->box.w, n), width - v->from.w)};
}

/* What the transform needs of an image of this size, at n/8. */
static ddp_status plan_sample(data_image_reader *r, ddp_image *image, ddp_err *err)
{
    bool antialias = data_transform_antialias(r->transform);
    void *work;
    view v;

    if (image->height < 1 || image->width < 1 || image->height > INT32_MAX || image->width > INT32_MAX)
        return ddp_fail(err, DDP_ERR_DATA, "an image of %" PRId64 " x %" PRId64 " pixels", image->height, image->width);
    DDP_TRY(view_draw(data_transform_view(r->transform), (view_size){image->height, image->width}, r->index, r->epoch,
                      &v, err));
    image->scale = choose_scale(r, image, &v);
    if (image->scale < 8) scale_box(&v, image, image->scale);
    work = block_of(r, WORK, resample_bytes(&v, antialias), err);
    if (work == NULL) return err->status;
    resample_plan(&r->plan, &v, antialias, work);
    r->placed = true;
    return DDP_OK;
}

/* The part that is needed; or all of it, into the cache. */
static ddp_status sink_place(void *ctx, ddp_image *image, ddp_err *err)
{
    data_image_reader *r = ctx;
    data_cache *cache = data_transform_cache(r->transform);

    DDP_TRY(plan_sample(r, image, err));
    image->reserved = 0;
    if (cache != NULL)
        r->fresh = data_cache_reserve(cache, image->height, image->width, data_transform_others(r->transform));
    if (r->fresh != NULL) {
        image->top = image->left = 0;
        image->rows = image->height;
        image->columns = image->width;
        image->pixels = r->fresh->pixels;
        return DDP_OK;
    }
    image->top = r->plan.from.h;
    image->left = r->plan.from.w;
    image->rows = r->plan.size.h;
    image->columns = r->plan.size.w;
    image->pixels = block_of(r, PIXELS, (size_t)(image->rows * image->columns) * 3, err);
    return image->pixels != NULL ? DDP_OK : err->status;
}

ddp_status data_image_reader_open(const ddp_transform *t, data_image_reader **out, ddp_err *err)
{
    data_image_reader *r = ddp_alloc(sizeof(*r), err);

    if (r == NULL) return err->status;
    r->transform = t;
    r->sink = (ddp_image_sink){.struct_size = sizeof(r->sink), .ctx = r, .memory = sink_memory, .place = sink_place};
    *out = r;
    return DDP_OK;
}

void data_image_reader_close(data_image_reader *r)
{
    if (r == NULL) return;
    for (int i = 0; i < BLOCKS; i++) free(r->blocks[i].data);
    free(r);
}

/* From the part alone, or from a whole image of the cache. */
static void make_sample(const data_image_reader *r, const data_cached *whole, float *out)
{
    resample_values values = data_transform_values(r->transform);
    const resample *p = &r->plan;

    if (whole != NULL)
        resample_apply(p, &values, whole->pixels + (p->from.h * whole->width + p->from.w) * 3, whole->width * 3, out);
    else
        resample_apply(p, &values, r->blocks[PIXELS].data, p->size.w * 3, out);
    data_transform_finish(r->transform, r->index, r->epoch, out);
}

static ddp_status read_new(data_image_reader *r, const ddp_dataset_ops *ops, const ddp_dataset *d, void *const *buffers,
                           ddp_err *err)
{
    DDP_TRY(ops->read_image(d, r->index, r->epoch, &r->sink, buffers, err));
    if (r->placed) return DDP_OK;
    return ddp_fail(err, DDP_ERR_INTERNAL, "the dataset's read_image did not call place; its plugin is at fault");
}

ddp_status data_image_read(data_image_reader *r, const ddp_dataset_ops *ops, const ddp_dataset *d, uint64_t index,
                           uint64_t epoch, void *const *buffers, ddp_err *err)
{
    data_cache *cache = data_transform_cache(r->transform);
    const data_cached *whole = cache != NULL ? data_cache_find(cache, index) : NULL;
    float *out = buffers[data_transform_field(r->transform)];
    ddp_status status;

    r->index = index;
    r->epoch = epoch;
    r->placed = false;
    r->fresh = NULL;
    if (whole != NULL) {
        ddp_image image = {.struct_size = sizeof(image), .height = whole->height, .width = whole->width};

        DDP_TRY(plan_sample(r, &image, err));
        data_transform_load(r->transform, whole->others, buffers);
        make_sample(r, whole, out);
        return DDP_OK;
    }
    status = read_new(r, ops, d, buffers, err);
    if (status == DDP_OK) make_sample(r, r->fresh, out);
    if (status == DDP_OK && r->fresh != NULL) {
        data_transform_save(r->transform, buffers, r->fresh->others);
        data_cache_keep(cache, index, r->fresh);
    } else if (r->fresh != NULL) {
        data_cache_drop(cache, r->fresh);
    }
    return status;
}
