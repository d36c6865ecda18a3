/* tests/parity/test_augment.c -- the four parts of color_jitter, mixup and cutmix against what torchvision gives
 * (make_augment.py), within 3e-7 of pixels of 0..1. */
#include "base/base.h"
#include "checkpoint/safetensors.h"
#include "data/augment.h"
#include "data/mix.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define BOUND 3e-7

static const ddp_named_tensor *part(const ddp_safetensors *file, int k, const char *name)
{
    char text[64];

    (void)snprintf(text, sizeof(text), "%d.%s", k, name);
    return ddp_safetensors_find(file, text);
}

static double check_case(const ddp_safetensors *file, int k)
{
    const ddp_named_tensor *in = part(file, k, "in"), *out = part(file, k, "out");
    int64_t pixels = in->dims[1] * in->dims[2], what;
    size_t bytes = (size_t)pixels * 3 * sizeof(float);
    float *x = malloc(bytes), factor;
    double largest = 0;

    assert_non_null(x);
    memcpy(x, in->data, bytes);
    memcpy(&what, part(file, k, "what")->data, sizeof(what));
    memcpy(&factor, part(file, k, "factor")->data, sizeof(factor));
    augment_adjust((int)what, factor, x, pixels);
    for (int64_t i = 0; i < 3 * pixels; i++) {
        float expected;
        double difference;

        memcpy(&expected, (const char *)out->data + (size_t)i * sizeof(expected), sizeof(expected));
        difference = fabs((double)expected - (double)x[i]);
        if (!(difference <= BOUND))
            fail_msg("case %d (%d by %g), element %d: %.9g, not %.9g", k, (int)what, (double)factor, (int)i,
                     (double)x[i], (double)expected);
        largest = fmax(largest, difference);
    }
    free(x);
    return largest;
}

static void test_all(void **state)
{
    ddp_safetensors *file;
    ddp_err err;
    double largest = 0;
    int k;

    (void)state;
    if (ddp_safetensors_open(DDP_SRCDIR "/tests/parity/vectors/augment.safetensors", &file, &err) != DDP_OK)
        fail_msg("%s", err.msg);
    for (k = 0; part(file, k, "in") != NULL; k++) largest = fmax(largest, check_case(file, k));
    print_message("# %d cases, largest difference %.2g\n", k, largest);
    assert_true(k > 30);
    ddp_safetensors_close(file);
}

/* ---- mixup, cutmix ----------------------------------------------------------------------------------------------- */
static const ddp_named_tensor *mix_part(const ddp_safetensors *file, int k, const char *name)
{
    char text[64];

    (void)snprintf(text, sizeof(text), "mix%d.%s", k, name);
    return ddp_safetensors_find(file, text);
}

static void near(int k, const char *what, const float *got, const ddp_named_tensor *want, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        float expected;

        memcpy(&expected, (const char *)want->data + (size_t)i * sizeof(expected), sizeof(expected));
        if (!(fabs((double)expected - (double)got[i]) <= BOUND))
            fail_msg("mix %d, %s %d: %.9g, not %.9g", k, what, (int)i, (double)got[i], (double)expected);
    }
}

static void check_mixed(const ddp_safetensors *file, int k)
{
    const ddp_named_tensor *in = mix_part(file, k, "in"), *soft = mix_part(file, k, "soft");
    int64_t count = in->dims[0], classes = soft->dims[1], each = in->dims[1] * in->dims[2] * in->dims[3];
    view_size image = {in->dims[2], in->dims[3]};
    float *x = calloc((size_t)(count * each), sizeof(*x)), *spare = calloc((size_t)each, sizeof(*spare));
    float *target = calloc((size_t)(count * classes), sizeof(*target)), drawn[3], lambda[8];
    int64_t label[8], other[8];
    mix m;

    assert_true(x != NULL && spare != NULL && target != NULL && count <= 8);
    memcpy(x, in->data, (size_t)(count * each) * sizeof(*x));
    memcpy(label, mix_part(file, k, "label")->data, (size_t)count * sizeof(*label));
    memcpy(drawn, mix_part(file, k, "drawn")->data, sizeof(drawn));
    m = (mix){.lambda = drawn[0], .rest = (float)(1.0 - (double)drawn[0])};
    if (drawn[1] >= 0.0f) m = mix_box((double)drawn[0], (int64_t)drawn[1], (int64_t)drawn[2], image);
    mix_images(&m, x, count, in->dims[1], image, spare);
    near(k, "element", x, mix_part(file, k, "out"), count * each);
    mix_labels(&m, label, count, other, lambda);
    for (int64_t i = 0; i < count; i++) {
        target[i * classes + label[i]] += lambda[i];
        target[i * classes + other[i]] += 1.0f - lambda[i];
    }
    near(k, "target", target, soft, count * classes);
    free(target);
    free(spare);
    free(x);
}

static void test_mixed(void **state)
{
    ddp_safetensors *file;
    ddp_err err;
    int k;

    (void)state;
    if (ddp_safetensors_open(DDP_SRCDIR "/tests/parity/vectors/augment.safetensors", &file, &err) != DDP_OK)
        fail_msg("%s", err.msg);
    for (k = 0; mix_part(file, k, "in") != NULL; k++) check_mixed(file, k);
    assert_int_equal(k, 8);
    ddp_safetensors_close(file);
}

/* Mean and variance of Beta(alpha, alpha): 1/2 and 1 / (4 (2 alpha + 1)); of alpha = 1 each tenth has a tenth. */
static void test_beta(void **state)
{
    static const double alphas[] = {0.1, 0.2, 1.0, 4.0};
    enum { DRAWS = 40000 };

    (void)state;
    for (size_t a = 0; a < DDP_COUNT(alphas); a++) {
        double sum = 0.0, squares = 0.0, variance = 1.0 / (4.0 * (2.0 * alphas[a] + 1.0));
        int tenths[10] = {0};

        for (uint64_t i = 0; i < DRAWS; i++) {
            double l = mix_beta(alphas[a], 7, i, 3);

            assert_true(l >= 0.0 && l <= 1.0);
            sum += l / DRAWS;
            squares += (l - 0.5) * (l - 0.5) / DRAWS;
            tenths[l < 1.0 ? (int)(l * 10.0) : 9]++;
        }
        assert_true(fabs(sum - 0.5) < 0.01);
        assert_true(fabs(squares - variance) < 0.02 * variance + 0.001);
        for (int i = 0; i < 10 && alphas[a] == 1.0; i++) assert_true(abs(tenths[i] - DRAWS / 10) < 300);
    }
    assert_true(mix_beta(1.0, 7, 1, 3) == mix_beta(1.0, 7, 1, 3) && mix_beta(1.0, 7, 1, 3) != mix_beta(1.0, 7, 1, 4));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all), cmocka_unit_test(test_mixed),
                                       cmocka_unit_test(test_beta)};

    return cmocka_run_group_tests_name("augment", tests, NULL, NULL);
}
