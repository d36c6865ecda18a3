/* tests/parity/test_augment.c -- the four parts of color_jitter against what torchvision gives (make_augment.py),
 * within 3e-7 of pixels of 0..1. */
#include "base/base.h"
#include "checkpoint/safetensors.h"
#include "data/augment.h"
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all)};

    return cmocka_run_group_tests_name("augment", tests, NULL, NULL);
}
