/* data/transform.c -- see transform.h. Bytes that are not resized go through a table of the 256 results for each
 * channel, which has the bits of torch's div(255), sub(mean), div(std). */
#include "data/transform.h"
#include "data/resize.h"
#include <ddpengine/program.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PLACE        0xda7au /* of ddp_philox, beside those of a model's dropouts */
#define ELEMENTS_MAX (INT64_C(1) << 31)

typedef struct size2 {
    int64_t h, w;
} size2;

struct ddp_transform {
    ddp_pool pool;
    ddp_field *fields;
    uint32_t field;
    bool bytes, resized, antialias, cropped, random, normalised;
    int64_t channels, padding;
    size2 raw, image, out; /* as the dataset gives it; resized; cropped */
    size2 corner;          /* of the crop in the image, where it is not random */
    double flip;
    uint64_t seed, flip_below; /* mirrored where 32 random bits are below */
    ddp_resize rows, columns;
    float unit[256];                           /* byte / 255 */
    float *tables;                             /* (C, 256): bytes to results */
    float *mean, *std, *fill;                  /* (C); fill: what becomes of black */
    size_t row_at, wide_at, image_at, scratch; /* bytes: a row of floats, (raw.h, image.w), (image.h, image.w) */
};

static ddp_status fits(const ddp_transform *t, size2 s, ddp_err *err)
{
    int64_t n;

    if (t->channels > 0 && s.h > 0 && s.w > 0 && !__builtin_mul_overflow(t->channels, s.h, &n) &&
        !__builtin_mul_overflow(n, s.w, &n) && n <= ELEMENTS_MAX)
        return DDP_OK;
    return ddp_fail(err, DDP_ERR_CONFIG, "an image of %" PRId64 " x %" PRId64 " x %" PRId64 " is beyond any memory",
                    t->channels, s.h, s.w);
}

/* ---- the settings ------------------------------------------------------------------------------------------- */
static bool wants_anything(const ddp_transform_params *p)
{
    const struct ddp_data_config *c = p->config;

    return c->resize.count + c->random_crop.count + c->center_crop.count + p->mean->count + p->std->count > 0 ||
           c->padding > 0 || c->flip > 0;
}

static ddp_status find_image(ddp_transform *t, const ddp_transform_params *p, bool *found, ddp_err *err)
{
    const ddp_field *f = NULL;

    for (uint32_t i = 0; i < p->field_count; i++)
        if (strcmp(p->fields[i].name, "image") == 0) f = &p->fields[t->field = i];
    *found = f != NULL && (f->dtype == DDP_U8 || wants_anything(p));
    if (f == NULL && wants_anything(p))
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "this dataset has no field \"image\", so there is nothing to transform; "
                        "remove resize, padding, random_crop, center_crop, flip, mean and std");
    if (!*found) return DDP_OK;
    if (f->rank != 3 || (f->dtype != DDP_U8 && f->dtype != DDP_F32))
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "field \"image\" of this dataset is %s of %u dimensions; "
                        "only u8 or f32 of (C, H, W) can be transformed",
                        ddp_dtype_name(f->dtype), f->rank);
    t->bytes = f->dtype == DDP_U8;
    t->channels = f->dims[0];
    t->raw = (size2){f->dims[1], f->dims[2]};
    return fits(t, t->raw, err);
}

/* Height and width, or one number for both. */
static ddp_status read_size(const char *key, const ddp_list *list, size2 *out, ddp_err *err)
{
    const int64_t *items = list->items;

    if (list->count > 2)
        return ddp_fail(err, DDP_ERR_CONFIG, "%s takes height and width, or one number, not %zu numbers", key,
                        list->count);
    *out = (size2){items[0], items[list->count - 1]};
    return DDP_OK;
}

static ddp_status read_resize(ddp_transform *t, const struct ddp_data_config *c, ddp_err *err)
{
    t->image = t->raw;
    if (c->resize.count == 0) return DDP_OK;
    DDP_TRY(read_size("resize", &c->resize, &t->image, err));
    if (c->resize.count == 1) { /* the shorter side; the other keeps the proportion, rounded down */
        int64_t shorter = t->image.h;

        if (t->raw.h <= t->raw.w)
            t->image.w = shorter * t->raw.w / t->raw.h;
        else
            t->image.h = shorter * t->raw.h / t->raw.w;
    }
    t->resized = t->image.h != t->raw.h || t->image.w != t->raw.w;
    t->antialias = c->antialias != 0;
    return DDP_OK;
}

/* Half of what is cut off, to even where that is no whole number, as Python's round() in torchvision has it. */
static int64_t half(int64_t n) { return n / 2 + (n % 4 == 3); }

static ddp_status read_crop(ddp_transform *t, const struct ddp_data_config *c, ddp_err *err)
{
    const ddp_list *list = c->random_crop.count > 0 ? &c->random_crop : &c->center_crop;
    const char *key = c->random_crop.count > 0 ? "random_crop" : "center_crop";

    t->out = t->image;
    t->random = c->random_crop.count > 0;
    t->cropped = list->count > 0;
    t->padding = c->padding;
    if (t->random && c->center_crop.count > 0)
        return ddp_fail(err, DDP_ERR_CONFIG, "random_crop and center_crop exclude each other; take one of them out");
    if (t->padding > 0 && !t->random)
        return ddp_fail(err, DDP_ERR_CONFIG, "padding = %" PRId64 " is for random_crop; set that too, or take it out",
                        t->padding);
    if (!t->cropped) return DDP_OK;
    DDP_TRY(read_size(key, list, &t->out, err));
    if (t->out.h > t->image.h + 2 * t->padding || t->out.w > t->image.w + 2 * t->padding)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "%s = %" PRId64 ", %" PRId64 " is larger than the image, %" PRId64 " x %" PRId64
                        "%s; choose a smaller one, or resize first",
                        key, t->out.h, t->out.w, t->image.h + 2 * t->padding, t->image.w + 2 * t->padding,
                        t->padding > 0 ? " with its padding" : "");
    t->corner = (size2){half(t->image.h - t->out.h), half(t->image.w - t->out.w)};
    return DDP_OK;
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

static size_t floats(int64_t h, int64_t w)
{
    return (size_t)ddp_round_up((uint64_t)h * (uint64_t)w * sizeof(float), 64);
}

static ddp_status plan(ddp_transform *t, ddp_err *err)
{
    size_t raw = (size_t)(t->channels * t->raw.h * t->raw.w) * (t->bytes ? 1 : sizeof(float));

    t->row_at = (size_t)ddp_round_up(raw, 64);
    t->wide_at = t->image_at = t->scratch = t->row_at;
    if (!t->resized) return DDP_OK;
    DDP_TRY(fits(t, (size2){t->raw.h, t->image.w}, err));
    t->wide_at = t->row_at + floats(1, t->raw.w);
    t->image_at = t->wide_at + floats(t->raw.h, t->image.w);
    t->scratch = t->image_at + floats(t->image.h, t->image.w);
    DDP_TRY(data_resize_plan(&t->columns, &t->pool, t->raw.h, t->image.h, t->antialias, err));
    return data_resize_plan(&t->rows, &t->pool, t->raw.w, t->image.w, t->antialias, err);
}

/* ---- open, close ------------------------------------------------------------------------------------------------- */
static ddp_status describe_fields(ddp_transform *t, const ddp_transform_params *p, ddp_err *err)
{
    ddp_field *f;

    t->fields = ddp_pool_alloc(&t->pool, p->field_count * sizeof(*t->fields), err);
    if (t->fields == NULL) return err->status;
    memcpy(t->fields, p->fields, p->field_count * sizeof(*t->fields));
    f = &t->fields[t->field];
    *f = (ddp_field){.name = f->name, .dtype = DDP_F32, .rank = 3, .dims = {t->channels, t->out.h, t->out.w}, .min = 1};
    return DDP_OK;
}

static ddp_status fill(ddp_transform *t, const ddp_transform_params *p, ddp_err *err)
{
    const struct ddp_data_config *c = p->config;

    DDP_TRY(read_resize(t, c, err));
    DDP_TRY(read_crop(t, c, err));
    DDP_TRY(fits(t, t->image, err));
    DDP_TRY(fits(t, t->out, err));
    t->seed = p->seed;
    t->flip = c->flip;
    t->flip_below = (uint64_t)(c->flip * 0x1p32);
    DDP_TRY(make_tables(t, p, err));
    DDP_TRY(plan(t, err));
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
    ddp_pool_free(&t->pool);
    free(t);
}

const ddp_field *ddp_transform_fields(const ddp_transform *t) { return t->fields; }

uint32_t data_transform_field(const ddp_transform *t) { return t->field; }

size_t data_transform_scratch(const ddp_transform *t) { return t->scratch; }

void ddp_transform_describe(const ddp_transform *t, ddp_text *out)
{
    ddp_text_printf(out, "%s %" PRId64 "x%" PRId64 "x%" PRId64, t->bytes ? "u8" : "f32", t->channels, t->raw.h,
                    t->raw.w);
    if (t->resized)
        ddp_text_printf(out, " -> resize %" PRId64 "x%" PRId64 "%s", t->image.h, t->image.w,
                        t->antialias ? " (antialias)" : "");
    if (t->padding > 0) ddp_text_printf(out, " -> padding %" PRId64, t->padding);
    if (t->cropped)
        ddp_text_printf(out, " -> %s crop %" PRId64 "x%" PRId64, t->random ? "random" : "center", t->out.h, t->out.w);
    if (t->flip > 0) ddp_text_printf(out, " -> flip %g", t->flip);
    ddp_text_printf(out, t->normalised ? " -> normalise" : t->bytes ? " -> 0..1" : "");
}

/* ---- a sample ---------------------------------------------------------------------------------------------------- */
/* Evenly in 0 .. count - 1, but for 1 part in 2^32 / count. */
static int64_t below(uint32_t bits, int64_t count) { return (int64_t)((uint64_t)bits * (uint64_t)count >> 32); }

static void draw(const ddp_transform *t, uint64_t index, uint64_t epoch, size2 *corner, bool *mirrored)
{
    ddp_random random = {.seed = t->seed, .stream = epoch};
    uint32_t bits[4];

    ddp_philox(&random, PLACE, index, bits);
    *corner = t->corner;
    if (t->random)
        *corner = (size2){below(bits[0], t->image.h + 2 * t->padding - t->out.h + 1) - t->padding,
                          below(bits[1], t->image.w + 2 * t->padding - t->out.w + 1) - t->padding};
    *mirrored = bits[2] < t->flip_below;
}

/* One channel in its new size, floats, at scratch + image_at. */
static void resize_channel(const ddp_transform *t, int64_t c, char *scratch)
{
    float *row = (float *)(void *)(scratch + t->row_at), *wide = (float *)(void *)(scratch + t->wide_at);
    const unsigned char *bytes = (unsigned char *)scratch + c * t->raw.h * t->raw.w;
    const float *values = (float *)(void *)scratch + c * t->raw.h * t->raw.w;

    for (int64_t y = 0; y < t->raw.h; y++) {
        if (t->bytes)
            for (int64_t x = 0; x < t->raw.w; x++) row[x] = t->unit[bytes[y * t->raw.w + x]];
        data_resize_row(&t->rows, t->bytes ? row : values + y * t->raw.w, wide + y * t->image.w);
    }
    data_resize_columns(&t->columns, wide, t->image.w, (float *)(void *)(scratch + t->image_at));
}

/* `count` pixels of row y of channel c from `first` on, normalised. */
static void make_pixels(const ddp_transform *t, int64_t c, int64_t y, int64_t first, int64_t count, const char *scratch,
                        float *restrict out)
{
    if (t->bytes && !t->resized) {
        const unsigned char *in = (const unsigned char *)scratch + (c * t->raw.h + y) * t->raw.w + first;
        const float *table = t->tables + c * 256;

        for (int64_t x = 0; x < count; x++) out[x] = table[in[x]];
    } else {
        const float *plane = t->resized ? (const float *)(const void *)(scratch + t->image_at)
                                        : (const float *)(const void *)scratch + c * t->raw.h * t->raw.w;
        const float *in = plane + y * t->image.w + first, mean = t->mean[c], std = t->std[c];

        for (int64_t x = 0; x < count; x++) out[x] = (in[x] - mean) / std;
    }
}

/* Row y of the crop's channel c; pixels outside the image are black. */
static void make_row(const ddp_transform *t, int64_t c, int64_t y, int64_t left, const char *scratch, float *out)
{
    bool beside = y < 0 || y >= t->image.h;
    int64_t from = beside ? t->out.w : DDP_MIN_OF(DDP_MAX_OF(-left, 0), t->out.w);
    int64_t to = DDP_MAX_OF(DDP_MIN_OF(t->out.w, t->image.w - left), from);

    for (int64_t x = 0; x < from; x++) out[x] = t->fill[c];
    if (from < to) make_pixels(t, c, y, left + from, to - from, scratch, out + from);
    for (int64_t x = to; x < t->out.w; x++) out[x] = t->fill[c];
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
    size2 corner;
    bool mirrored;

    draw(t, index, epoch, &corner, &mirrored);
    for (int64_t c = 0; c < t->channels; c++) {
        if (t->resized) resize_channel(t, c, scratch);
        for (int64_t y = 0; y < t->out.h; y++, out += t->out.w) {
            make_row(t, c, y + corner.h, corner.w, scratch, out);
            if (mirrored) mirror(out, t->out.w);
        }
    }
}
