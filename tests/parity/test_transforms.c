/* tests/parity/test_transforms.c -- the transforms of images against what PyTorch gives (make_transforms.py):
 * without a resize to the bit, with one within 1e-6 of pixels of 0..1. */
#include "base/base.h"
#include "checkpoint/safetensors.h"
#include "data/transform.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define BOUND 1e-6

enum { RESIZE_H, RESIZE_W, ANTIALIAS, CROP_H, CROP_W, HOW };

static const ddp_named_tensor *part(const ddp_safetensors *file, int k, const char *name)
{
    char text[64];

    (void)snprintf(text, sizeof(text), "%d.%s", k, name);
    return ddp_safetensors_find(file, text);
}

static size_t elements(const ddp_named_tensor *t)
{
    size_t n = 1;

    for (uint32_t i = 0; i < t->rank; i++) n *= (size_t)t->dims[i];
    return n;
}

/* A list of doubles; the tensor's floats must come back as they were. */
static ddp_list numbers(const ddp_named_tensor *t, double *out)
{
    for (size_t i = 0; i < elements(t); i++) {
        float v;

        memcpy(&v, (const char *)t->data + i * sizeof(v), sizeof(v));
        out[i] = (double)v;
    }
    return (ddp_list){.count = elements(t), .items = out};
}

static ddp_transform *open_case(const ddp_safetensors *file, int k, const int64_t *how, uint32_t dtype, ddp_list mean,
                                ddp_list std)
{
    const ddp_named_tensor *in = part(file, k, "in");
    ddp_field fields[2] = {
        {.name = "label", .dtype = DDP_I64},
        {.name = "image", .dtype = dtype, .rank = 3, .dims = {in->dims[0], in->dims[1], in->dims[2]}}};
    struct ddp_data_config config = {.antialias = (int32_t)how[ANTIALIAS]};
    ddp_transform_params p = {.config = &config, .mean = &mean, .std = &std, .fields = fields, .field_count = 2};
    ddp_transform *t = NULL;
    ddp_err err = {0};

    if (how[RESIZE_H] > 0) config.resize = (ddp_list){.count = how[RESIZE_W] > 0 ? 2 : 1, .items = how + RESIZE_H};
    if (how[CROP_H] > 0) config.center_crop = (ddp_list){.count = 2, .items = how + CROP_H};
    if (ddp_transform_open(&p, &t, &err) != DDP_OK) fail_msg("case %d: %s", k, err.msg);
    assert_non_null(t);
    return t;
}

/* Returns the largest difference, in units of a pixel of 0..1. */
static double check_case(const ddp_safetensors *file, int k)
{
    const ddp_named_tensor *in = part(file, k, "in"), *out = part(file, k, "out");
    double mean[8], std[8], largest = 0;
    int64_t how[HOW];
    ddp_transform *t;
    const ddp_field *f;
    ddp_err err;
    float *result;
    void *scratch;

    memcpy(how, part(file, k, "how")->data, sizeof(how));
    t = open_case(file, k, how, in->dtype, numbers(part(file, k, "mean"), mean), numbers(part(file, k, "std"), std));
    f = ddp_transform_fields(t);
    assert_int_equal(data_transform_field(t), 1);
    assert_int_equal(f[1].dtype, DDP_F32);
    for (int i = 0; i < 3; i++) assert_int_equal(f[1].dims[i], out->dims[i]);
    scratch = ddp_alloc_aligned(data_transform_scratch(t), &err);
    result = ddp_alloc_aligned(elements(out) * sizeof(float), &err);
    assert_true(scratch != NULL && result != NULL);
    memcpy(scratch, in->data, elements(in) * ddp_dtype_size(in->dtype));
    data_transform_apply(t, 7, 3, scratch, result);
    for (size_t i = 0; i < elements(out); i++) {
        double scale = elements(part(file, k, "std")) > 0 ? std[i / (size_t)(out->dims[1] * out->dims[2])] : 1.0;
        float expected;

        memcpy(&expected, (const char *)out->data + i * sizeof(expected), sizeof(expected));
        largest = fmax(largest, fabs((double)expected - (double)result[i]) * scale);
        if (how[RESIZE_H] == 0 && memcmp(&expected, &result[i], sizeof(expected)) != 0)
            fail_msg("case %d, element %zu: %a, not %a", k, i, (double)result[i], (double)expected);
        if (!(largest <= BOUND))
            fail_msg("case %d, element %zu: %.9g, not %.9g", k, i, (double)result[i], (double)expected);
    }
    free(scratch);
    free(result);
    ddp_transform_close(t);
    return largest;
}

static void test_all(void **state)
{
    ddp_safetensors *file;
    ddp_err err;
    double largest = 0;
    int k;

    (void)state;
    if (ddp_safetensors_open(DDP_SRCDIR "/tests/parity/vectors/transforms.safetensors", &file, &err) != DDP_OK)
        fail_msg("%s", err.msg);
    for (k = 0; part(file, k, "in") != NULL; k++) largest = fmax(largest, check_case(file, k));
    assert_true(k >= 40);
    printf("# %d cases, largest difference %.2g\n", k, largest);
    ddp_safetensors_close(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all)};

    return cmocka_run_group_tests_name("parity of transforms", tests, NULL, NULL);
}
