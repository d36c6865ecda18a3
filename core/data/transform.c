/* data/transform.c -- see transform.h. Bytes that are not resized go through a table of the 256 results for each
 * channel, which has the bits of torch's div(255), sub(mean), div(std). */
#include "data/transform.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ELEMENTS_MAX (INT64_C(1) << 31)

struct ddp_transform {
    ddp_pool pool;
    ddp_field *fields;
    uint32_t field, field_count, label; /* field_count: of the dataset; label: of mixing */
    data_cache *cache;
    bool bytes, fixed, resized, antialias, dct_scale, normalised;
    int64_t channels;
    view_size raw, out; /* as the dataset gives it, {0, 0} where that differs; the sample */
    view_plan view;
    augment_plan augment;
    mix_plan mix;
    ddp_resize rows, columns;           /* where they are the same for all samples */
    float unit[256];                    /* byte / 255 */
    float *tables, *plain;              /* (C, 256): bytes to results; the same before they are normalised */
    float *mean, *std, *fill;           /* (C); fill: what becomes of black */
    float *zeros, *ones;                /* (C) */
    size_t row_at, wide_at, image_at;   /* in the scratch memory: a row of floats, rows in their new width, the image */
    size_t across_at, down_at, scratch; /* tables of random_resized_crop; bytes of all */
};

static ddp_status fits(const ddp_transform *t, view_size s, ddp_err *err)
{
    int64_t n;

    if (t->channels > 0 && s.h > 0 && s.w > 0 && !__builtin_mul_overflow(t->channels, s.h, &n) &&
        !__builtin_mul_overflow(n, s.w, &n) && n <= ELEMENTS_MAX)
        return DDP_OK;
    return ddp_fail(err, DDP_ERR_CONFIG, "an image of %" PRId64 " x %" PRId64 " x %" PRId64 " is beyond any memory",
                    t->channels, s.h, s.w);
}

/* ---- the settings ------------------------------------------------------------------------------------------------ */
static bool wants_anything(const ddp_transform_params *p)
{
    const struct ddp_data_config *c = p->config;

    return c->resize.count + c->random_crop.count + c->center_crop.count + c->random_resized_crop.count > 0 ||
           c->color_jitter.count + p->mean->count + p->std->count > 0 || c->padding > 0 || c->flip > 0 ||
           c->random_erasing > 0 || c->mixup > 0 || c->cutmix > 0;
}

static ddp_status find_image(ddp_transform *t, const ddp_transform_params *p, bool *found, ddp_err *err)
{
    const ddp_field *f = NULL;

    for (uint32_t i = 0; i < p->field_count; i++)
        if (strcmp(p->fields[i].name, "image") == 0) f = &p->fields[t->field = i];
    *found = f != NULL && (f->dtype == DDP_U8 || wants_anything(p));
    if (f == NULL && wants_anything(p))
        return ddp_fail(
            err, DDP_ERR_CONFIG,
            "this dataset has no field \"image\", so there is nothing to transform; remove resize, padding, random_crop, center_crop, random_resized_crop, flip, color_jitter, random_erasing, mixup, cutmix, mean and std");
    if (!*found) return DDP_OK;
    if (f->rank != 3 || (f->dtype != DDP_U8 && f->dtype != DDP_F32))
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "field \"image\" of this dataset is %s of %u dimensions; "
                        "only u8 or f32 of (C, H, W) can be transformed",
                        ddp_dtype_name(f->dtype), f->rank);
    t->bytes = f->dtype == DDP_U8;
    t->channels = f->dims[0];
    t->fixed = !(t->bytes && t->channels == 3 && f->dims[1] == -1 && f->dims[2] == -1);
    if (!t->fixed) return DDP_OK;
    t->raw = (view_size){f->dims[1], f->dims[2]};
    return fits(t, t->raw, err);
}

/* ---- tables ------------------------------------------------------------------------------------------------------ */
/* (C) floats from a list of one number, one for each channel, or none. */
static float *read_channels(ddp_transform *t, const char *key, const ddp_list *list, double none, ddp_err *err)
{
    const double *items = list->items;
    float *out = ddp_pool_alloc(&t->pool, (size_t)t->channels * sizeof(*out), err);

    if (out == NULL) return NULL;
    if (list->count > 1 && list->count != (size_t)t->channels) {
        (void)ddp_fail(err, DDP_ERR_CONFIG,
                       "%s has %zu numbers, the images have %" PRId64 " channels; give one for each, or one for all",
                       key, list->count, t->channels);
        return NULL;
    }
    for (int64_t c = 0; c < t->channels; c++)
        out[c] = (float)(list->count == 0 ? none : items[list->count == 1 ? 0 : c]);
    return out;
}

/* Each step in float, as the tensors are. */
static float normalise(const ddp_transform *t, int64_t c, float v) { return (v - t->mean[c]) / t->std[c]; }

static ddp_status make_tables(ddp_transform *t, const ddp_transform_params *p, ddp_err *err)
{
    t->mean = read_channels(t, "mean", p->mean, 0, err);
    t->std = t->mean == NULL ? NULL : read_channels(t, "std", p->std, 1, err);
    if (t->std == NULL) return err->status;
    t->fill = ddp_pool_alloc(&t->pool, (size_t)t->channels * sizeof(*t->fill), err);
    t->tables = ddp_pool_alloc(&t->pool, (size_t)t->channels * 256 * sizeof(*t->tables), err);
    if (t->fill == NULL || t->tables == NULL) return err->status;
    t->normalised = p->mean->count + p->std->count > 0;
    for (int i = 0; i < 256; i++) t->unit[i] = (float)i / 255.0f;
    for (int64_t c = 0; c < t->channels; c++) {
        if (!isfinite(t->mean[c]) || !isfinite(t->std[c]) || t->std[c] == 0.0f)
            return ddp_fail(err, DDP_ERR_CONFIG,
                            "mean = %g, std = %g (channel %" PRId64
                            "): pixels cannot be normalised with them; set finite numbers and a std that is not 0",
                            (double)t->mean[c], (double)t->std[c], c);
        t->fill[c] = normalise(t, c, 0.0f);
        for (int i = 0; i < 256; i++) t->tables[c * 256 + i] = normalise(t, c, t->unit[i]);
    }
    return DDP_OK;
}

/* Before they are normalised, for color_jitter. */
static ddp_status make_plain_tables(ddp_transform *t, ddp_err *err)
{
    t->plain = ddp_pool_alloc(&t->pool, (size_t)t->channels * 256 * sizeof(*t->plain), err);
    t->zeros = ddp_pool_alloc(&t->pool, (size_t)t->channels * sizeof(*t->zeros), err);
    t->ones = ddp_pool_alloc(&t->pool, (size_t)t->channels * sizeof(*t->ones), err);
    if (t->plain == NULL || t->zeros == NULL || t->ones == NULL) return err->status;
    for (int64_t c = 0; c < t->channels; c++) {
        t->ones[c] = 1.0f;
        memcpy(t->plain + c * 256, t->unit, sizeof(t->unit));
    }
    return DDP_OK;
}

static size_t floats(int64_t h, int64_t w)
{
    return (size_t)ddp_round_up((uint64_t)h * (uint64_t)w * sizeof(float), 64);
}

static size_t aligned(size_t bytes) { return (size_t)ddp_round_up(bytes, 64); }

/* What random_resized_crop needs for any box. */
static ddp_status plan_boxes(ddp_transform *t, ddp_err *err)
{
    size_t across = DDP_MAX_OF(data_resize_bytes(t->raw.w, t->out.w, t->out.w, t->antialias),
                               data_resize_bytes(1, t->out.w, t->out.w, t->antialias));
    size_t down = DDP_MAX_OF(data_resize_bytes(t->raw.h, t->out.h, t->out.h, t->antialias),
                             data_resize_bytes(1, t->out.h, t->out.h, t->antialias));

    DDP_TRY(fits(t, (view_size){t->raw.h, t->out.w}, err));
    t->across_at = t->scratch;
    t->down_at = t->across_at + aligned(across);
    t->scratch = t->down_at + aligned(down);
    return DDP_OK;
}

static ddp_status plan(ddp_transform *t, ddp_err *err)
{
    size_t raw = (size_t)(t->channels * t->raw.h * t->raw.w) * (t->bytes ? 1 : sizeof(float));
    view_size image = t->out;
    view v;

    if (!t->view.resized_crop) {
        /* without the crop, which draws a position for each sample */
        view_plan whole = t->view;

        whole.cropped = false;
        DDP_TRY(view_draw(&whole, t->raw, 0, 0, &v, err));
        image = v.size;
        DDP_TRY(fits(t, image, err));
    }
    t->resized = t->view.resized_crop || image.h != t->raw.h || image.w != t->raw.w;
    t->row_at = aligned(raw);
    t->wide_at = t->image_at = t->scratch = t->row_at;
    if (!t->resized) return DDP_OK;
    DDP_TRY(fits(t, (view_size){t->raw.h, image.w}, err));
    t->wide_at = t->row_at + floats(1, t->raw.w);
    t->image_at = t->wide_at + floats(t->raw.h, image.w);
    t->scratch = t->image_at + floats(image.h, image.w);
    if (t->view.resized_crop) return plan_boxes(t, err);
    DDP_TRY(data_resize_plan(&t->columns, &t->pool, t->raw.h, image.h, t->antialias, err));
    return data_resize_plan(&t->rows, &t->pool, t->raw.w, image.w, t->antialias, err);
}

/* ---- open, close ------------------------------------------------------------------------------------------------- */
enum { MIX_FIELDS = 2 };

static ddp_status describe_mixed(ddp_transform *t, ddp_err *err)
{
    const ddp_field *label;

    while (t->label < t->field_count && strcmp(t->fields[t->label].name, "label") != 0) t->label++;
    label = t->label < t->field_count ? &t->fields[t->label] : NULL;
    if (label == NULL || label->dtype != DDP_I64 || label->rank != 0)
        return ddp_fail(
            err, DDP_ERR_CONFIG,
            "mixup and cutmix mix images with one class each, which this dataset does not have; take them out");
    t->fields[t->field_count] = *label;
    t->fields[t->field_count].name = DDP_FIELD_MIX_LABEL;
    t->fields[t->field_count + 1] = (ddp_field){.name = DDP_FIELD_MIX_LAMBDA, .dtype = DDP_F32, .min = 1};
    return DDP_OK;
}

static ddp_status describe_fields(ddp_transform *t, const ddp_transform_params *p, ddp_err *err)
{
    ddp_field *f;

    t->fields = ddp_pool_alloc(&t->pool, (p->field_count + MIX_FIELDS) * sizeof(*t->fields), err);
    if (t->fields == NULL) return err->status;
    memcpy(t->fields, p->fields, p->field_count * sizeof(*t->fields));
    t->field_count = p->field_count;
    f = &t->fields[t->field];
    *f = (ddp_field){.name = f->name, .dtype = DDP_F32, .rank = 3, .dims = {t->channels, t->out.h, t->out.w}, .min = 1};
    return mix_is_on(&t->mix) ? describe_mixed(t, err) : DDP_OK;
}

/* An image is cached at its full size: whether it fits must not change a sample. */
static ddp_status open_cache(ddp_transform *t, const ddp_transform_params *p, ddp_err *err)
{
    if (t->fixed || p->config->cache == 0) return DDP_OK;
    if (t->dct_scale) return ddp_fail(err, DDP_ERR_CONFIG, "cache keeps whole images; take it out, or dct_scale = yes");
    return data_cache_open(p->length, p->config->cache, &t->cache, err);
}

static ddp_status fill(ddp_transform *t, const ddp_transform_params *p, ddp_err *err)
{
    const struct ddp_data_config *c = p->config;

    t->antialias = c->antialias != 0;
    t->dct_scale = c->dct_scale != 0;
    DDP_TRY(view_plan_read(&t->view, c, p->seed, err));
    DDP_TRY(view_out_size(&t->view, t->raw, &t->out, err));
    DDP_TRY(fits(t, t->out, err));
    DDP_TRY(augment_plan_read(&t->augment, c, t->channels, p->seed, err));
    t->mix = (mix_plan){.mixup = c->mixup, .cutmix = c->cutmix, .seed = p->seed};
    DDP_TRY(make_tables(t, p, err));
    DDP_TRY(make_plain_tables(t, err));
    if (t->fixed) DDP_TRY(plan(t, err));
    DDP_TRY(open_cache(t, p, err));
    return describe_fields(t, p, err);
}

ddp_status ddp_transform_open(const ddp_transform_params *p, ddp_transform **out, ddp_err *err)
{
    ddp_transform *t = ddp_alloc(sizeof(*t), err);
    bool found = false;
    ddp_status status;

    if (t == NULL) return err->status;
    status = find_image(t, p, &found, err);
    if (status == DDP_OK && found) status = fill(t, p, err);
    if (status == DDP_OK) *out = found ? t : NULL;
    if (status != DDP_OK || !found) ddp_transform_close(t);
    return status;
}

void ddp_transform_close(ddp_transform *t)
{
    if (t == NULL) return;
    data_cache_close(t->cache);
    ddp_pool_free(&t->pool);
    free(t);
}

const ddp_field *ddp_transform_fields(const ddp_transform *t) { return t->fields; }

uint32_t ddp_transform_field_count(const ddp_transform *t)
{
    return t->field_count + (mix_is_on(&t->mix) ? MIX_FIELDS : 0);
}

bool ddp_transform_mixes(const ddp_transform *t) { return t != NULL && mix_is_on(&t->mix); }

size_t data_transform_image(const ddp_transform *t)
{
    return (size_t)(t->channels * t->out.h * t->out.w) * sizeof(float);
}

void data_transform_mix(const ddp_transform *t, uint64_t index, uint64_t epoch, int64_t count, void *const *buffers,
                        float *spare)
{
    mix m = mix_draw(&t->mix, index, epoch, t->out);

    mix_images(&m, buffers[t->field], count, t->channels, t->out, spare);
    mix_labels(&m, buffers[t->label], count, buffers[t->field_count], buffers[t->field_count + 1]);
}

uint32_t data_transform_field(const ddp_transform *t) { return t->field; }

void ddp_transform_describe(const ddp_transform *t, ddp_text *out)
{
    if (t->fixed)
        ddp_text_printf(out, "%s %" PRId64 "x%" PRId64 "x%" PRId64, t->bytes ? "u8" : "f32", t->channels, t->raw.h,
                        t->raw.w);
    else
        ddp_text_printf(out, "u8 3 x any size");
    view_describe(&t->view, t->raw, t->antialias, out);
    augment_describe_jitter(&t->augment, out);
    ddp_text_printf(out, t->normalised ? " -> normalise" : t->bytes ? " -> 0..1" : "");
    augment_describe_erasing(&t->augment, out);
    mix_describe(&t->mix, out);
}

bool data_transform_fixed(const ddp_transform *t) { return t->fixed; }

size_t data_transform_scratch(const ddp_transform *t) { return t->scratch; }

/* ---- images of any size ------------------------------------------------------------------------------------------ */
const view_plan *data_transform_view(const ddp_transform *t) { return &t->view; }

bool data_transform_antialias(const ddp_transform *t) { return t->antialias; }

bool data_transform_dct_scale(const ddp_transform *t) { return t->dct_scale; }

data_cache *data_transform_cache(const ddp_transform *t) { return t->cache; }

static size_t field_bytes(const ddp_field *f)
{
    size_t bytes = ddp_dtype_size(f->dtype);

    for (uint32_t i = 0; i < f->rank; i++) bytes *= (size_t)f->dims[i];
    return bytes;
}

size_t data_transform_others(const ddp_transform *t)
{
    size_t bytes = 0;

    for (uint32_t i = 0; i < t->field_count; i++)
        if (i != t->field) bytes += field_bytes(&t->fields[i]);
    return bytes;
}

void data_transform_save(const ddp_transform *t, void *const *buffers, uint8_t *others)
{
    for (uint32_t i = 0; i < t->field_count; i++) {
        if (i == t->field) continue;
        memcpy(others, buffers[i], field_bytes(&t->fields[i]));
        others += field_bytes(&t->fields[i]);
    }
}

void data_transform_load(const ddp_transform *t, const uint8_t *others, void *const *buffers)
{
    for (uint32_t i = 0; i < t->field_count; i++) {
        if (i == t->field) continue;
        memcpy(buffers[i], others, field_bytes(&t->fields[i]));
        others += field_bytes(&t->fields[i]);
    }
}

resample_values data_transform_values(const ddp_transform *t)
{
    bool plain = t->augment.jitters;

    return (resample_values){.unit = t->unit,
                             .table = plain ? t->plain : t->tables,
                             .mean = plain ? t->zeros : t->mean,
                             .std = plain ? t->ones : t->std,
                             .fill = plain ? t->zeros : t->fill};
}

void data_transform_finish(const ddp_transform *t, uint64_t index, uint64_t epoch, float *out)
{
    int64_t pixels = t->out.h * t->out.w;

    if (t->augment.jitters) {
        augment_jitter(&t->augment, index, epoch, out, pixels);
        for (int64_t c = 0; c < 3; c++)
            for (int64_t i = 0; i < pixels; i++) out[c * pixels + i] = normalise(t, c, out[c * pixels + i]);
    }
    if (t->augment.erasing > 0) augment_erase(&t->augment, index, epoch, out, t->channels, t->out);
}

/* ---- images of one size ------------------------------------------------------------------------------------------ */
/* The plans of a box, in the scratch memory. */
static void plan_view(const ddp_transform *t, const view *v, char *scratch, ddp_resize *rows, ddp_resize *columns)
{
    *rows = t->rows;
    *columns = t->columns;
    if (!t->view.resized_crop) return;
    data_resize_fill(rows, scratch + t->across_at, v->box.w, v->size.w, 0, v->size.w, t->antialias);
    data_resize_fill(columns, scratch + t->down_at, v->box.h, v->size.h, 0, v->size.h, t->antialias);
}

/* One channel of the box in its new size, floats, at scratch + image_at. */
static void resize_channel(const ddp_transform *t, const view *v, const ddp_resize *rows, const ddp_resize *columns,
                           int64_t c, char *scratch)
{
    float *row = (float *)(void *)(scratch + t->row_at), *wide = (float *)(void *)(scratch + t->wide_at);
    int64_t at = (c * t->raw.h + v->from.h) * t->raw.w + v->from.w;
    const unsigned char *bytes = (unsigned char *)scratch + at;
    const float *values = (float *)(void *)scratch + at;

    for (int64_t y = 0; y < v->box.h; y++) {
        if (t->bytes)
            for (int64_t x = 0; x < v->box.w; x++) row[x] = t->unit[bytes[y * t->raw.w + x]];
        data_resize_row(rows, t->bytes ? row : values + y * t->raw.w, wide + y * v->size.w);
    }
    data_resize_columns(columns, wide, v->size.w, (float *)(void *)(scratch + t->image_at));
}

/* `count` pixels of row y of channel c from `first` on. */
static void make_pixels(const ddp_transform *t, const resample_values *values, const view *v, int64_t c, int64_t y,
                        int64_t first, int64_t count, const char *scratch, float *restrict out)
{
    if (t->bytes && !t->resized) {
        const unsigned char *in = (const unsigned char *)scratch + (c * t->raw.h + y) * t->raw.w + first;
        const float *table = values->table + c * 256;

        for (int64_t x = 0; x < count; x++) out[x] = table[in[x]];
    } else {
        const float *plane = t->resized ? (const float *)(const void *)(scratch + t->image_at)
                                        : (const float *)(const void *)scratch + c * t->raw.h * t->raw.w;
        const float *in = plane + y * v->size.w + first, mean = values->mean[c], std = values->std[c];

        for (int64_t x = 0; x < count; x++) out[x] = (in[x] - mean) / std;
    }
}

/* Row y of the crop's channel c; pixels outside the image are black. */
static void make_row(const ddp_transform *t, const resample_values *values, const view *v, int64_t c, int64_t y,
                     const char *scratch, float *out)
{
    int64_t left = v->corner.w;
    bool beside = y < 0 || y >= v->size.h;
    int64_t from = beside ? t->out.w : DDP_MIN_OF(DDP_MAX_OF(-left, 0), t->out.w);
    int64_t to = DDP_MAX_OF(DDP_MIN_OF(t->out.w, v->size.w - left), from);

    for (int64_t x = 0; x < from; x++) out[x] = values->fill[c];
    if (from < to) make_pixels(t, values, v, c, y, left + from, to - from, scratch, out + from);
    for (int64_t x = to; x < t->out.w; x++) out[x] = values->fill[c];
}

static void mirror(float *row, int64_t width)
{
    for (int64_t a = 0, b = width - 1; a < b; a++, b--) {
        float v = row[a];

        row[a] = row[b];
        row[b] = v;
    }
}

void data_transform_apply(const ddp_transform *t, uint64_t index, uint64_t epoch, void *scratch, float *out)
{
    resample_values values = data_transform_values(t);
    ddp_resize rows, columns;
    ddp_err unused;
    float *at = out;
    view v;

    (void)view_draw(&t->view, t->raw, index, epoch, &v, &unused); /* all images have the size that open has checked */
    plan_view(t, &v, scratch, &rows, &columns);
    for (int64_t c = 0; c < t->channels; c++) {
        if (t->resized) resize_channel(t, &v, &rows, &columns, c, scratch);
        for (int64_t y = 0; y < t->out.h; y++, at += t->out.w) {
            make_row(t, &values, &v, c, y + v.corner.h, scratch, at);
            if (v.mirrored) mirror(at, t->out.w);
        }
    }
    data_transform_finish(t, index, epoch, out);
}
