/* tests/unit/data/test_transform.c -- what is done to images: where random crops lie and how often images are
 * mirrored, that a sample follows from seed, epoch and index alone (whoever makes it, whenever), and every refusal.
 * Values are compared with PyTorch's in tests/parity/test_transforms.c. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include "data/loader.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- settings ---------------------------------------------------------------------------------------------------- */
typedef struct setting {
    struct ddp_data_config config;
    ddp_field fields[2];
    ddp_transform_params params;
    int64_t sizes[3][3];
    double numbers[2][4];
} setting;

static void set_up(setting *s, uint32_t dtype, int64_t channels, int64_t height, int64_t width)
{
    *s = (setting){.config = {.antialias = 1}};
    s->fields[0] =
        (ddp_field){.name = "image", .dtype = dtype, .rank = 3, .dims = {channels, height, width}, .max = 255};
    s->fields[1] = (ddp_field){.name = "label", .dtype = DDP_I64, .max = 9};
    s->params = (ddp_transform_params){.config = &s->config,
                                       .mean = &s->config.mean,
                                       .std = &s->config.std,
                                       .seed = 5,
                                       .fields = s->fields,
                                       .field_count = 2};
}

/* The list of key number `k` of the setting. */
static ddp_list sizes(setting *s, int k, size_t count, int64_t a, int64_t b)
{
    s->sizes[k][0] = a;
    s->sizes[k][1] = b;
    return (ddp_list){.count = count, .items = s->sizes[k]};
}

static ddp_list numbers(setting *s, int k, size_t count, double v)
{
    for (size_t i = 0; i < 4; i++) s->numbers[k][i] = v + (double)i;
    return (ddp_list){.count = count, .items = s->numbers[k]};
}

static ddp_transform *open_ok(const setting *s)
{
    ddp_transform *t = NULL;
    ddp_err err = {0};

    if (ddp_transform_open(&s->params, &t, &err) != DDP_OK) fail_msg("%s", err.msg);
    return t;
}

static void expect_refusal(const setting *s, const char *part)
{
    ddp_transform *t = NULL;
    ddp_err err = {0};

    assert_int_equal(ddp_transform_open(&s->params, &t, &err), DDP_ERR_CONFIG);
    assert_null(t);
    if (strstr(err.msg, part) == NULL) fail_msg("\"%s\" lacks \"%s\"", err.msg, part);
}

static size_t elements(const ddp_field *f) { return (size_t)(f->dims[0] * f->dims[1] * f->dims[2]); }

/* The result for an image of the bytes 1, 2, 3, ..; free() it. */
static float *apply(const ddp_transform *t, const setting *s, uint64_t index, uint64_t epoch)
{
    const ddp_field *f = ddp_transform_fields(t);
    ddp_err err;
    unsigned char *scratch = ddp_alloc_aligned(data_transform_scratch(t), &err);
    float *out = ddp_alloc(elements(f) * sizeof(*out), &err);

    assert_true(scratch != NULL && out != NULL);
    for (size_t i = 0; i < elements(&s->fields[0]); i++) scratch[i] = (unsigned char)(1 + i);
    data_transform_apply(t, index, epoch, scratch, out);
    free(scratch);
    return out;
}

/* ---- what is made ------------------------------------------------------------------------------------------------ */
static void test_when(void **state)
{
    setting s;
    ddp_transform *t;
    float *out;

    (void)state;
    set_up(&s, DDP_F32, 1, 4, 4);
    assert_null(open_ok(&s)); /* floats stay as they are */
    s.fields[0].name = "input";
    s.fields[0].dtype = DDP_U8;
    assert_null(open_ok(&s)); /* no image */
    set_up(&s, DDP_U8, 2, 3, 4);
    t = open_ok(&s);
    assert_string_equal(ddp_transform_fields(t)[0].name, "image");
    assert_int_equal(ddp_transform_fields(t)[0].dtype, DDP_F32);
    assert_true(ddp_transform_fields(t)[0].min > ddp_transform_fields(t)[0].max);
    assert_int_equal(ddp_transform_fields(t)[1].max, 9);
    out = apply(t, &s, 0, 0);
    for (int i = 0; i < 24; i++) assert_true(out[i] == (float)(1 + i) / 255.0f);
    free(out);
    ddp_transform_close(t);
}

static void test_sizes(void **state)
{
    static const int64_t cases[][6] = {/* image, resize, result */
                                       {10, 15, 4, 0, 4, 6}, {15, 10, 4, 0, 6, 4}, {7, 7, 20, 0, 20, 20},
                                       {10, 15, 5, 3, 5, 3}, {11, 15, 5, 0, 5, 6}, {3, 100, 1, 0, 1, 33}};
    setting s;

    (void)state;
    for (size_t i = 0; i < DDP_COUNT(cases); i++) {
        const int64_t *c = cases[i];
        ddp_transform *t;

        set_up(&s, DDP_U8, 3, c[0], c[1]);
        s.config.resize = sizes(&s, 0, c[3] == 0 ? 1 : 2, c[2], c[3]);
        t = open_ok(&s);
        assert_int_equal(ddp_transform_fields(t)[0].dims[1], c[4]);
        assert_int_equal(ddp_transform_fields(t)[0].dims[2], c[5]);
        ddp_transform_close(t);
    }
}

/* ---- random crops and flips -------------------------------------------------------------------------------------- */
enum {
    C = 2,
    H = 5,
    W = 6,
    PAD = 2,
    CROP_H = 4,
    CROP_W = 5,
    TOPS = H + 2 * PAD - CROP_H + 1,
    LEFTS = W + 2 * PAD - CROP_W + 1
};

/* Pixel (y, x) of the padded image, normalised by mean 1, std 2. */
static float padded(int c, int y, int x)
{
    float v = 0.0f;

    y -= PAD;
    x -= PAD;
    if (y >= 0 && y < H && x >= 0 && x < W) v = (float)(1 + (c * H + y) * W + x) / 255.0f;
    return (v - 1.0f) / 2.0f;
}

static bool is_crop(const float *out, int top, int left, bool mirrored)
{
    for (int c = 0; c < C; c++)
        for (int y = 0; y < CROP_H; y++)
            for (int x = 0; x < CROP_W; x++)
                if (*out++ != padded(c, top + y, left + (mirrored ? CROP_W - 1 - x : x))) return false;
    return true;
}

/* Which crop it is: (top * LEFTS + left) * 2 + mirrored; there must be one and no other. */
static int find_crop(const float *out)
{
    int found = -1;

    for (int i = 0; i < TOPS * LEFTS * 2; i++) {
        if (!is_crop(out, i / 2 / LEFTS, i / 2 % LEFTS, i % 2 == 1)) continue;
        assert_int_equal(found, -1);
        found = i;
    }
    assert_true(found >= 0);
    return found;
}

static void set_up_crop(setting *s, double flip)
{
    set_up(s, DDP_U8, C, H, W);
    s->config.random_crop = sizes(s, 0, 2, CROP_H, CROP_W);
    s->config.padding = PAD;
    s->config.flip = flip;
    s->config.mean = numbers(s, 0, 1, 1);
    s->config.std = numbers(s, 1, 1, 2);
}

/* Every place is as likely as another: 6000 draws over 36 places, each of them at most 6 deviations from 167. */
static void test_crop(void **state)
{
    enum { DRAWS = 6000 };
    int counts[TOPS * LEFTS * 2] = {0}, mirrored = 0;
    setting s;
    ddp_transform *t;

    (void)state;
    set_up_crop(&s, 0.25);
    t = open_ok(&s);
    for (uint64_t i = 0; i < DRAWS; i++) {
        float *out = apply(t, &s, i % 1000, i / 1000);

        counts[find_crop(out)]++;
        free(out);
    }
    for (int i = 0; i < TOPS * LEFTS; i++) {
        double expected = (double)DRAWS / (TOPS * LEFTS), seen = counts[2 * i] + counts[2 * i + 1];

        mirrored += counts[2 * i + 1];
        if (fabs(seen - expected) > 6 * sqrt(expected)) fail_msg("place %d: %g of %g", i, seen, expected);
    }
    assert_true(mirrored > DRAWS / 4 - 6 * 34 && mirrored < DRAWS / 4 + 6 * 34);
    ddp_transform_close(t);
}

static void test_flip(void **state)
{
    setting s;

    (void)state;
    for (int flip = 0; flip < 2; flip++) {
        ddp_transform *t;

        set_up_crop(&s, flip);
        t = open_ok(&s);
        for (uint64_t i = 0; i < 300; i++) {
            float *out = apply(t, &s, i, 0);

            assert_int_equal(find_crop(out) % 2, flip);
            free(out);
        }
        ddp_transform_close(t);
    }
}

/* The crop of a sample, of 64 samples as one number: what seed, epoch and index change and nothing else does. */
static uint64_t crops_of(uint64_t seed, uint64_t epoch, uint64_t first)
{
    uint64_t mark = 0;
    setting s;
    ddp_transform *t;

    set_up_crop(&s, 0.5);
    s.params.seed = seed;
    t = open_ok(&s);
    for (uint64_t i = 0; i < 64; i++) {
        float *out = apply(t, &s, first + i, epoch);

        mark = mark * 6364136223846793005u + (uint64_t)find_crop(out) + 1;
        free(out);
    }
    ddp_transform_close(t);
    return mark;
}

static void test_seeds(void **state)
{
    static const uint64_t cases[][3] = {{5, 0, 0},
                                        {5, 1, 0},
                                        {6, 0, 0},
                                        {5, 0, 64},
                                        {5, UINT64_C(1) << 32, 0},
                                        {UINT64_C(5) + (UINT64_C(1) << 32), 0, 0},
                                        {5, 0, UINT64_C(1) << 32}};
    uint64_t seen[DDP_COUNT(cases)];

    (void)state;
    for (size_t i = 0; i < DDP_COUNT(cases); i++) {
        seen[i] = crops_of(cases[i][0], cases[i][1], cases[i][2]);
        assert_true(seen[i] == crops_of(cases[i][0], cases[i][1], cases[i][2]));
        for (size_t k = 0; k < i; k++) assert_true(seen[i] != seen[k]);
    }
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */
static void test_refusals(void **state)
{
    setting s;

    (void)state;
    set_up(&s, DDP_U8, 3, 32, 32);
    s.config.random_crop = sizes(&s, 0, 1, 33, 0);
    expect_refusal(&s, "random_crop = 33, 33 is larger than the image, 32 x 32;");
    s.config.padding = 4;
    s.config.random_crop = sizes(&s, 0, 2, 20, 41);
    expect_refusal(&s, "random_crop = 20, 41 is larger than the image, 40 x 40 with its padding");
    s.config.center_crop = sizes(&s, 1, 1, 10, 0);
    expect_refusal(&s, "random_crop and center_crop exclude each other");
    s.config.random_crop = (ddp_list){0};
    expect_refusal(&s, "padding = 4 is for random_crop");
    s.config.padding = 0;
    s.config.center_crop = sizes(&s, 1, 3, 10, 10);
    expect_refusal(&s, "center_crop takes height and width, or one number, not 3 numbers");
    s.config.center_crop = sizes(&s, 1, 2, 32, 33);
    expect_refusal(&s, "center_crop = 32, 33 is larger than the image, 32 x 32;");
    s.config.center_crop = (ddp_list){0};
    s.config.resize = sizes(&s, 2, 3, 8, 8);
    expect_refusal(&s, "resize takes height and width, or one number, not 3 numbers");
    s.config.resize = (ddp_list){0};
    s.config.mean = numbers(&s, 0, 2, 0.5);
    expect_refusal(&s, "mean has 2 numbers, the images have 3 channels");
    s.config.mean = numbers(&s, 0, 3, INFINITY);
    expect_refusal(&s, "pixels cannot be normalised");
    s.config.mean = (ddp_list){0};
    s.config.std = numbers(&s, 1, 3, -2);
    expect_refusal(&s, "std = 0 (channel 2)");
    s.config.std = numbers(&s, 1, 4, 1);
    expect_refusal(&s, "std has 4 numbers, the images have 3 channels");
    s.fields[0].rank = 2;
    expect_refusal(&s, "field \"image\" of this dataset is u8 of 2 dimensions");
    s.fields[0].name = "input";
    expect_refusal(&s, "this dataset has no field \"image\"");
    set_up(&s, DDP_I64, 1, 2, 2);
    s.config.flip = 0.5;
    expect_refusal(&s, "is i64 of 3 dimensions");
    set_up(&s, DDP_U8, INT64_MAX / 2, 2, 2);
    expect_refusal(&s, "beyond any memory");
    set_up(&s, DDP_U8, 16, 4, 4);
    s.config.resize = sizes(&s, 0, 2, 16384, 16384);
    expect_refusal(&s, "beyond any memory");
    set_up(&s, DDP_U8, 1, 1, 16384); /* the shorter side: the other would be beyond any */
    s.config.resize = sizes(&s, 0, 1, 16384, 0);
    expect_refusal(&s, "beyond any memory");
}

/* ---- in the loader ----------------------------------------------------------------------------------------------- */
enum { LENGTH = 50, BATCH = 4, EPOCHS = 2, BATCHES = (LENGTH + BATCH - 1) / BATCH };

struct ddp_dataset {
    const ddp_field *fields;
};

static uint64_t dataset_length(const ddp_dataset *d)
{
    (void)d;
    return LENGTH;
}

static uint32_t dataset_fields(const ddp_dataset *d, const ddp_field **out)
{
    *out = d->fields;
    return 2;
}

static ddp_status dataset_read(const ddp_dataset *d, uint64_t index, uint64_t epoch, void *const *buffers, ddp_err *err)
{
    (void)epoch;
    (void)err;
    for (size_t i = 0; i < elements(&d->fields[0]); i++)
        ((unsigned char *)buffers[0])[i] = (unsigned char)(index * 3 + i);
    *(int64_t *)buffers[1] = (int64_t)index;
    return DDP_OK;
}

static uint64_t sampler_count(const ddp_sampler *s)
{
    (void)s;
    return LENGTH;
}

static ddp_status sampler_indices(ddp_sampler *s, uint64_t epoch, uint64_t *out, ddp_err *err)
{
    (void)s;
    (void)err;
    for (uint64_t i = 0; i < LENGTH; i++) out[i] = (i * 7 + epoch) % LENGTH;
    return DDP_OK;
}

static const ddp_dataset_ops dataset_ops = {.struct_size = sizeof(dataset_ops),
                                            .field_size = sizeof(ddp_field),
                                            .length = dataset_length,
                                            .fields = dataset_fields,
                                            .read = dataset_read};
static const ddp_sampler_ops sampler_ops = {
    .struct_size = sizeof(sampler_ops), .count = sampler_count, .indices = sampler_indices};

/* The images from batch `first` of each epoch on, to their places in `out`. */
static void run_loader(const ddp_transform *t, const setting *s, int64_t workers, uint64_t first, float *out)
{
    ddp_dataset data = {.fields = s->fields};
    ddp_loader_params p = {.dataset_ops = &dataset_ops,
                           .dataset = &data,
                           .transform = t,
                           .sampler_ops = &sampler_ops,
                           .batch_size = BATCH,
                           .workers = workers,
                           .prefetch = 3};
    size_t sample = elements(ddp_transform_fields(t));
    ddp_loader *l = NULL;
    ddp_err err = {0};

    if (ddp_loader_open(&p, &l, &err) != DDP_OK) fail_msg("%s", err.msg);
    for (uint64_t epoch = 0; epoch < EPOCHS; epoch++) {
        assert_int_equal(ddp_loader_begin(l, epoch, first, &err), DDP_OK);
        for (uint64_t b = first; b < BATCHES; b++) {
            ddp_batch batch;

            assert_int_equal(ddp_loader_next(l, &batch, &err), DDP_OK);
            for (int64_t i = 0; i < batch.count; i++)
                assert_int_equal(((int64_t *)batch.buffers[1])[i], batch.indices[i]);
            memcpy(out + (epoch * LENGTH + b * BATCH) * sample, batch.buffers[0],
                   (size_t)batch.count * sample * sizeof(*out));
        }
    }
    ddp_loader_close(l);
}

/* The same without a loader. */
static void run_plainly(const ddp_transform *t, const setting *s, float *out)
{
    ddp_dataset data = {.fields = s->fields};
    uint64_t indices[LENGTH];
    int64_t label;
    ddp_err err;
    void *scratch = ddp_alloc_aligned(data_transform_scratch(t), &err);

    assert_non_null(scratch);
    for (uint64_t epoch = 0; epoch < EPOCHS; epoch++) {
        assert_int_equal(sampler_indices(NULL, epoch, indices, &err), DDP_OK);
        for (uint64_t i = 0; i < LENGTH; i++, out += elements(ddp_transform_fields(t))) {
            assert_int_equal(dataset_read(&data, indices[i], epoch, (void *[2]){scratch, &label}, &err), DDP_OK);
            data_transform_apply(t, indices[i], epoch, scratch, out);
        }
    }
    free(scratch);
}

/* Neither the number of workers nor where an epoch begins changes a bit. */
static void test_loader(void **state)
{
    static const int64_t worker_counts[] = {0, 1, 2, 5};
    setting s;
    ddp_transform *t;
    size_t bytes, row;
    float *expected, *got;
    ddp_err err;

    (void)state;
    set_up_crop(&s, 0.5);
    s.config.resize = sizes(&s, 1, 2, 7, 9);
    t = open_ok(&s);
    row = elements(ddp_transform_fields(t)) * BATCH;
    bytes = elements(ddp_transform_fields(t)) * LENGTH * EPOCHS * sizeof(float);
    expected = ddp_alloc(bytes, &err);
    got = ddp_alloc(bytes, &err);
    assert_true(expected != NULL && got != NULL);
    run_plainly(t, &s, expected);
    for (size_t i = 0; i < DDP_COUNT(worker_counts); i++) {
        memset(got, 0, bytes);
        run_loader(t, &s, worker_counts[i], 0, got);
        assert_memory_equal(got, expected, bytes);
        memset(got, 0, bytes);
        run_loader(t, &s, worker_counts[i], 5, got);
        assert_memory_equal(got + 5 * row, expected + 5 * row, (BATCHES - 6) * row * sizeof(float));
    }
    free(expected);
    free(got);
    ddp_transform_close(t);
}

/* Mixed batches: the same whoever makes them; two more fields; the parts of a batch by themselves. */
static void test_mixed(void **state)
{
    setting s;
    ddp_transform *t;
    size_t row, bytes;
    float *expected, *got, *spare, lambda[BATCH];
    int64_t label[BATCH], other[BATCH];
    ddp_err err;

    (void)state;
    set_up_crop(&s, 0.5);
    s.config.mixup = 0.4;
    s.config.cutmix = 1.0;
    t = open_ok(&s);
    assert_int_equal(ddp_transform_field_count(t), 4);
    assert_string_equal(ddp_transform_fields(t)[2].name, DDP_FIELD_MIX_LABEL);
    assert_string_equal(ddp_transform_fields(t)[3].name, DDP_FIELD_MIX_LAMBDA);
    assert_int_equal(ddp_transform_fields(t)[2].max, 9);
    row = elements(ddp_transform_fields(t));
    bytes = row * LENGTH * EPOCHS * sizeof(float);
    expected = ddp_alloc(bytes, &err);
    got = ddp_alloc(bytes, &err);
    spare = ddp_alloc(data_transform_image(t), &err);
    assert_true(expected != NULL && got != NULL && spare != NULL);
    run_plainly(t, &s, expected);
    for (uint64_t epoch = 0; epoch < EPOCHS; epoch++)
        for (uint64_t b = 0; b < BATCHES; b++) {
            int64_t count = (int64_t)DDP_MIN_OF((uint64_t)BATCH, LENGTH - b * BATCH);
            uint64_t indices[LENGTH];
            void *buffers[] = {expected + (epoch * LENGTH + b * BATCH) * row, label, other, lambda};

            assert_int_equal(sampler_indices(NULL, epoch, indices, &err), DDP_OK);
            for (int64_t i = 0; i < count; i++) label[i] = i;
            data_transform_mix(t, indices[b * BATCH], epoch, count, buffers, spare);
            for (int64_t i = 0; i < count; i++) {
                assert_int_equal(other[i], (i + count - 1) % count);
                assert_true(lambda[i] == lambda[0] && lambda[i] >= 0.0f && lambda[i] <= 1.0f);
            }
        }
    for (int64_t workers = 0; workers < 3; workers++) {
        memset(got, 0, bytes);
        run_loader(t, &s, workers, 0, got);
        assert_memory_equal(got, expected, bytes);
    }
    free(spare);
    free(expected);
    free(got);
    ddp_transform_close(t);
    s.fields[1].name = "target";
    expect_refusal(&s, "one class each");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_when),   cmocka_unit_test(test_sizes), cmocka_unit_test(test_crop),
        cmocka_unit_test(test_flip),   cmocka_unit_test(test_seeds), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_loader), cmocka_unit_test(test_mixed),
    };

    return cmocka_run_group_tests_name("transforms", tests, NULL, NULL);
}
