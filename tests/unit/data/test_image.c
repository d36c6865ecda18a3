/* tests/unit/data/test_image.c -- images whose size differs by sample: they become what images of one size become, to
 * the bit, and the dataset is asked for no more than is needed. Boxes of random_resized_crop are what torchvision
 * draws from, and a sample follows from seed, epoch and index alone. Values are compared with torchvision's in
 * tests/parity. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include "data/image.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { IMAGES = 8, EPOCHS = 3 };

static const int64_t sizes[IMAGES][2] = {{37, 53}, {53, 37},  {24, 24}, {90, 31},
                                         {41, 40}, {25, 120}, {64, 48}, {33, 24}};

/* ---- a dataset --------------------------------------------------------------------------------------------------- */
static uint8_t value_at(uint64_t index, int64_t y, int64_t x, int c)
{
    return (uint8_t)((uint64_t)(y * 131 + x * 7 + c * 61 + x * y * 3) + index * 17);
}

static int64_t asked; /* pixels of the last image */
static int reads;

static ddp_status read_image(const ddp_dataset *d, uint64_t index, uint64_t epoch, const ddp_image_sink *sink,
                             void *const *buffers, ddp_err *err)
{
    ddp_image i = {.struct_size = sizeof(i), .height = sizes[index][0], .width = sizes[index][1]};
    int64_t label = (int64_t)index;

    (void)d;
    (void)epoch;
    memcpy(buffers[1], &label, sizeof(label));
    DDP_TRY(sink->place(sink->ctx, &i, err));
    assert_int_equal(i.scale, 8);
    assert_true(i.top >= 0 && i.left >= 0 && i.rows > 0 && i.columns > 0);
    assert_true(i.top + i.rows <= i.height && i.left + i.columns <= i.width);
    asked = i.rows * i.columns;
    reads++;
    for (int64_t y = 0; y < i.rows; y++)
        for (int64_t x = 0; x < i.columns; x++)
            for (int c = 0; c < 3; c++)
                i.pixels[(y * i.columns + x) * 3 + c] = value_at(index, i.top + y, i.left + x, c);
    return DDP_OK;
}

static const ddp_dataset_ops ops = {.struct_size = sizeof(ops), .read_image = read_image};

/* ---- settings ---------------------------------------------------------------------------------------------------- */
typedef struct keys {
    int64_t resize[2], crop[2], padding; /* resize[1] 0: the shorter side */
    bool random, resized_crop, plain;    /* plain: without antialias */
    double flip, erasing;
    double jitter[4];
    uint64_t cache;
    bool dct_scale;
} keys;

static const double mean[3] = {0.4, 0.5, 0.6}, deviation[3] = {0.2, 0.3, 0.4}, scale[2] = {0.08, 1},
                    ratio[2] = {0.75, 4.0 / 3};

static ddp_status open_with(const keys *k, int64_t height, int64_t width, ddp_transform **out, ddp_err *err)
{
    struct ddp_data_config c = {.antialias = !k->plain, .padding = k->padding, .flip = k->flip};
    ddp_field fields[2] = {{.name = "image", .dtype = DDP_U8, .rank = 3, .dims = {3, height, width}, .max = 255},
                           {.name = "label", .dtype = DDP_I64, .max = 9}};
    ddp_list crop = {k->crop[0] > 0 ? 2 : 0, k->crop}, means = {3, mean}, stds = {3, deviation};
    ddp_transform_params p = {&c, &means, &stds, 5, fields, 2, IMAGES};

    c.random_erasing = k->erasing;
    c.cache = k->cache;
    c.dct_scale = k->dct_scale;
    c.scale = (ddp_list){2, scale};
    c.ratio = (ddp_list){2, ratio};
    if (k->resize[0] > 0) c.resize = (ddp_list){k->resize[1] > 0 ? 2 : 1, k->resize};
    if (k->jitter[0] + k->jitter[1] + k->jitter[2] + k->jitter[3] > 0) c.color_jitter = (ddp_list){4, k->jitter};
    if (k->resized_crop)
        c.random_resized_crop = crop;
    else if (k->random)
        c.random_crop = crop;
    else
        c.center_crop = crop;
    return ddp_transform_open(&p, out, err);
}

static ddp_transform *open_ok(const keys *k, int64_t height, int64_t width)
{
    ddp_transform *t = NULL;
    ddp_err err = {0};

    if (open_with(k, height, width, &t, &err) != DDP_OK) fail_msg("%s", err.msg);
    return t;
}

static size_t elements(const ddp_transform *t)
{
    const ddp_field *f = ddp_transform_fields(t);

    return (size_t)(f->dims[0] * f->dims[1] * f->dims[2]);
}

/* The sample as the transform of images of one size makes it. */
static float *fixed_sample(const keys *k, uint64_t index, uint64_t epoch, size_t *count)
{
    int64_t h = sizes[index][0], w = sizes[index][1];
    ddp_transform *t = open_ok(k, h, w);
    ddp_err err;
    uint8_t *scratch = ddp_alloc_aligned(data_transform_scratch(t), &err);
    float *out = malloc(elements(t) * sizeof(*out));

    assert_true(scratch != NULL && out != NULL);
    for (int c = 0; c < 3; c++)
        for (int64_t y = 0; y < h; y++)
            for (int64_t x = 0; x < w; x++) scratch[(c * h + y) * w + x] = value_at(index, y, x, c);
    data_transform_apply(t, index, epoch, scratch, out);
    *count = elements(t);
    free(scratch);
    ddp_transform_close(t);
    return out;
}

/* ---- the same as images of one size ------------------------------------------------------------------------------ */
static void compare(const keys *k)
{
    ddp_transform *t = open_ok(k, -1, -1);
    data_image_reader *r = NULL;
    float *out = malloc(elements(t) * sizeof(*out));
    ddp_err err = {0};

    assert_int_equal(data_image_reader_open(t, &r, &err), DDP_OK);
    assert_false(data_transform_fixed(t));
    for (uint64_t e = 0; e < EPOCHS; e++)
        for (uint64_t i = 0; i < IMAGES; i++) {
            int64_t label = -1;
            size_t count;
            float *expected = fixed_sample(k, i, e, &count);

            if (data_image_read(r, &ops, NULL, i, e, (void *[2]){out, &label}, &err) != DDP_OK) fail_msg("%s", err.msg);
            assert_int_equal(label, i);
            assert_int_equal(count, elements(t));
            for (size_t n = 0; n < count; n++)
                if (memcmp(&out[n], &expected[n], sizeof(*out)) != 0)
                    fail_msg("image %d of epoch %d, element %zu: %.9g, not %.9g", (int)i, (int)e, n, (double)out[n],
                             (double)expected[n]);
            free(expected);
        }
    data_image_reader_close(r);
    ddp_transform_close(t);
    free(out);
}

static void test_same(void **state)
{
    static const keys cases[] = {
        {.resize = {20, 30}},
        {.resize = {20, 30}, .plain = true},
        {.resize = {150, 130}},
        {.resize = {24}, .crop = {20, 23}},
        {.resize = {24}, .crop = {24, 24}, .flip = 0.5},
        {.resize = {70}, .crop = {20, 20}, .random = true, .flip = 1},
        {.crop = {24, 24}},
        {.crop = {22, 21}, .random = true, .flip = 0.5},
        {.crop = {30, 27}, .random = true, .padding = 5, .flip = 0.5},
        {.crop = {5, 4}, .random = true, .padding = 30},
        {.resize = {30}, .crop = {33, 40}, .random = true, .padding = 7, .flip = 0.5, .plain = true},
        {.crop = {16, 18}, .resized_crop = true, .flip = 0.5},
        {.crop = {60, 50}, .resized_crop = true, .plain = true},
        {.crop = {16, 17}, .resized_crop = true, .flip = 0.5, .jitter = {0.4, 0.4, 0.4, 0.1}, .erasing = 0.7},
        {.crop = {24, 24}, .jitter = {0, 0, 0, 0.5}},
        {.crop = {16, 18}, .resized_crop = true, .flip = 0.5, .cache = 1 << 20},
        {.crop = {22, 21}, .random = true, .padding = 3, .flip = 0.5, .cache = 15000},
    };

    (void)state;
    for (size_t i = 0; i < DDP_COUNT(cases); i++) compare(&cases[i]);
}

/* With memory for four of the images these are read once, the others in each epoch. */
static void test_cache(void **state)
{
    static const keys k = {.crop = {20, 20}, .cache = 17000};
    ddp_transform *t = open_ok(&k, -1, -1);
    data_image_reader *r = NULL;
    float *out = malloc(elements(t) * sizeof(*out));
    ddp_err err = {0};
    int64_t label;

    (void)state;
    assert_int_equal(data_image_reader_open(t, &r, &err), DDP_OK);
    for (uint64_t e = 0; e < 2; e++) {
        reads = 0;
        for (uint64_t i = 0; i < IMAGES; i++) {
            label = -1;
            assert_int_equal(data_image_read(r, &ops, NULL, i, e, (void *[2]){out, &label}, &err), DDP_OK);
            assert_int_equal(label, i);
        }
        assert_int_equal(reads, e == 0 ? IMAGES : IMAGES - 4); /* 37 x 53, 53 x 37, 24 x 24, 33 x 24 */
    }
    data_image_reader_close(r);
    ddp_transform_close(t);
    free(out);
}

/* ---- dct_scale --------------------------------------------------------------------------------------------------- */
static uint32_t scale_seen;

/* A decoder of 1/8, 2/8 and 4/8; every pixel is 51. */
static ddp_status read_scaled(const ddp_dataset *d, uint64_t index, uint64_t epoch, const ddp_image_sink *sink,
                              void *const *buffers, ddp_err *err)
{
    ddp_image i = {.struct_size = sizeof(i), .scales = 1 << 1 | 1 << 2 | 1 << 4};
    int64_t label = 0;

    (void)d;
    (void)epoch;
    memcpy(buffers[1], &label, sizeof(label));
    i.height = sizes[index][0] * 4;
    i.width = sizes[index][1] * 4;
    DDP_TRY(sink->place(sink->ctx, &i, err));
    scale_seen = i.scale;
    assert_true(i.scale == 8 || (i.scales >> i.scale & 1) != 0);
    assert_true(i.top >= 0 && i.left >= 0 && i.rows > 0 && i.columns > 0);
    assert_true(i.top + i.rows <= (i.height * i.scale + 7) / 8 && i.left + i.columns <= (i.width * i.scale + 7) / 8);
    memset(i.pixels, 51, (size_t)(i.rows * i.columns) * 3);
    return DDP_OK;
}

static const ddp_dataset_ops scaled_ops = {.struct_size = sizeof(scaled_ops), .read_image = read_scaled};

/* `scale`: that of the third image, of 96 x 96; 0: it depends on the box. */
static void check_scale(const keys *k, uint32_t scale)
{
    ddp_transform *t = open_ok(k, -1, -1);
    data_image_reader *r = NULL;
    size_t count = elements(t);
    float *out = malloc(count * sizeof(*out));
    ddp_err err = {0};
    int64_t label;

    assert_int_equal(data_image_reader_open(t, &r, &err), DDP_OK);
    for (uint64_t i = 0; i < (uint64_t)IMAGES * 8; i++) {
        void *buffers[2] = {out, &label};

        assert_int_equal(data_image_read(r, &scaled_ops, NULL, i % IMAGES, i, buffers, &err), DDP_OK);
        if (i == 2 && scale != 0) assert_int_equal(scale_seen, scale);
        for (size_t n = 0; n < count; n++)
            assert_true(fabs((double)out[n] * deviation[n * 3 / count] + mean[n * 3 / count] - 0.2) < 1e-6);
    }
    data_image_reader_close(r);
    ddp_transform_close(t);
    free(out);
}

static void test_dct_scale(void **state)
{
    (void)state;
    check_scale(&(keys){.resize = {20, 20}}, 8);
    check_scale(&(keys){.resize = {20, 20}, .dct_scale = true}, 2);
    check_scale(&(keys){.resize = {24}, .crop = {20, 20}, .dct_scale = true}, 2);
    check_scale(&(keys){.resize = {25}, .crop = {20, 20}, .random = true, .dct_scale = true}, 4);
    check_scale(&(keys){.resize = {49, 12}, .dct_scale = true}, 8);
    check_scale(&(keys){.resize = {12, 12}, .dct_scale = true}, 1);
    check_scale(&(keys){.crop = {11, 12}, .resized_crop = true, .flip = 0.5, .dct_scale = true}, 0);
}

/* ---- random_resized_crop ----------------------------------------------------------------------------------------- */
static void test_boxes(void **state)
{
    struct ddp_data_config c = {.scale = {2, scale}, .ratio = {2, ratio}};
    int64_t crop[1] = {16};
    double smallest = 1, largest = 0, flat = 10, tall = 0;
    view_plan p;
    ddp_err err = {0};
    view v;

    (void)state;
    c.random_resized_crop = (ddp_list){1, crop};
    assert_int_equal(view_plan_read(&p, &c, 3, &err), DDP_OK);
    for (uint64_t i = 0; i < 20000; i++) {
        double area, aspect;

        assert_int_equal(view_draw(&p, (view_size){300, 400}, i, 0, &v, &err), DDP_OK);
        assert_true(v.from.h >= 0 && v.from.w >= 0 && v.box.h > 0 && v.box.w > 0);
        assert_true(v.from.h + v.box.h <= 300 && v.from.w + v.box.w <= 400);
        area = (double)(v.box.h * v.box.w) / 120000.0;
        aspect = (double)v.box.w / (double)v.box.h;
        smallest = fmin(smallest, area);
        largest = fmax(largest, area);
        flat = fmin(flat, aspect);
        tall = fmax(tall, aspect);
    }
    assert_true(smallest > 0.078 && smallest < 0.09 && largest > 0.97 && largest <= 1.0);
    assert_true(flat > 0.74 && flat < 0.76 && tall > 1.32 && tall < 1.35);
    /* no box of such proportions fits: the middle, as torchvision takes it */
    assert_int_equal(view_draw(&p, (view_size){10, 1000}, 1, 0, &v, &err), DDP_OK);
    assert_true(v.box.h == 10 && v.box.w == 13 && v.from.h == 0 && v.from.w == 493);
    assert_int_equal(view_draw(&p, (view_size){1000, 10}, 1, 0, &v, &err), DDP_OK);
    assert_true(v.box.h == 13 && v.box.w == 10 && v.from.h == 493 && v.from.w == 0);
}

/* ---- what is asked for, and refused ------------------------------------------------------------------------------ */
static void test_part(void **state)
{
    static const keys crop = {.crop = {10, 12}}, shrunk = {.resize = {12}, .crop = {6, 6}};
    ddp_err err = {0};
    float out[3 * 12 * 12];
    int64_t label;

    (void)state;
    for (int k = 0; k < 2; k++) {
        ddp_transform *t = open_ok(k ? &shrunk : &crop, -1, -1);
        data_image_reader *r = NULL;

        assert_int_equal(data_image_reader_open(t, &r, &err), DDP_OK);
        assert_int_equal(data_image_read(r, &ops, NULL, 2, 0, (void *[2]){out, &label}, &err), DDP_OK);
        assert_int_equal(asked,
                         k ? 14 * 14 : 10 * 12); /* 24 x 24 to 12 x 12: two pixels and half a neighbour each side */
        data_image_reader_close(r);
        ddp_transform_close(t);
    }
}

static void expect_refusal(const keys *k, const char *part)
{
    ddp_transform *t = NULL;
    ddp_err err = {0};

    assert_int_equal(open_with(k, -1, -1, &t, &err), DDP_ERR_CONFIG);
    if (strstr(err.msg, part) == NULL) fail_msg("\"%s\" lacks \"%s\"", err.msg, part);
}

static void test_refusals(void **state)
{
    static const keys small = {.crop = {40, 40}};
    ddp_transform *t = open_ok(&small, -1, -1);
    data_image_reader *r = NULL;
    float *out = malloc(elements(t) * sizeof(*out));
    ddp_err err = {0};
    int64_t label;

    (void)state;
    expect_refusal(&(keys){.flip = 0.5}, "differ in size");
    expect_refusal(&(keys){.resize = {24}}, "set resize = HEIGHT, WIDTH");
    expect_refusal(&(keys){.resize = {24, 24}, .crop = {30, 20}}, "larger than the image");
    expect_refusal(&(keys){.resize = {24, 24}, .crop = {20, 20}, .resized_crop = true}, "by itself");
    expect_refusal(&(keys){.crop = {20, 20}, .jitter = {0, 0, 0, 0.6}}, "at most 0.5");
    assert_int_equal(data_image_reader_open(t, &r, &err), DDP_OK);
    assert_int_equal(data_image_read(r, &ops, NULL, 0, 0, (void *[2]){out, &label}, &err), DDP_ERR_DATA);
    if (strstr(err.msg, "center_crop = 40, 40 is larger than the image, 37 x 53") == NULL) fail_msg("%s", err.msg);
    data_image_reader_close(r);
    ddp_transform_close(t);
    free(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same),  cmocka_unit_test(test_cache), cmocka_unit_test(test_dct_scale),
        cmocka_unit_test(test_boxes), cmocka_unit_test(test_part),  cmocka_unit_test(test_refusals),
    };

    return cmocka_run_group_tests_name("image", tests, NULL, NULL);
}
