/* tests/unit/dataset/test_synthetic.c -- dataset `synthetic`: shapes, determinism, and that there is something to
 * learn. */
#include "support/data_util.h"
#include <ddpengine/dataset.h>
#include <ddpengine/random.h>
#include <math.h>

static const ddp_plugin *plugin;
static const ddp_dataset_ops *ops;

static int open_plugin(void **state)
{
    (void)state;
    plugin = plugin_open("dataset_synthetic");
    ops = plugin->ops;
    return 0;
}

/* Opens with "key", "value", ..., NULL on top of the defaults. The config may go: only its strings are kept. */
static ddp_dataset *open_with(const char *key, ...)
{
    void *config = config_new(plugin);
    ddp_dataset *d = NULL;
    ddp_err err = {0};
    va_list ap;

    va_start(ap, key);
    for (; key != NULL; key = va_arg(ap, const char *)) config_set(plugin, config, key, va_arg(ap, const char *));
    va_end(ap);
    if (ops->open(NULL, config, &d, &err) != DDP_OK) fail_msg("%s", err.msg);
    config_free(plugin, config);
    return d;
}

static void read_sample(const ddp_dataset *d, uint64_t index, void *input, void *target)
{
    void *buffers[2] = {input, target};
    ddp_err err = {0};

    if (ops->read(d, index, 0, buffers, &err) != DDP_OK) fail_msg("%s", err.msg);
}

/* From Random123's kat_vectors. */
static void test_philox(void **state)
{
    static const uint32_t zero[4] = {0}, ones[4] = {~0u, ~0u, ~0u, ~0u},
                          pi[4] = {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344};
    uint32_t out[4];

    (void)state;
    ddp_philox4x32(zero, 0, out);
    assert_memory_equal(out, ((uint32_t[]){0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}), 16);
    ddp_philox4x32(ones, UINT64_MAX, out);
    assert_memory_equal(out, ((uint32_t[]){0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}), 16);
    ddp_philox4x32(pi, UINT64_C(0x299f31d0a4093822), out);
    assert_memory_equal(out, ((uint32_t[]){0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}), 16);
}

static void test_fields(void **state)
{
    const ddp_field *f;
    ddp_dataset *d = open_with(NULL);

    (void)state;
    assert_int_equal(ops->length(d), 1024);
    assert_int_equal(ops->fields(d, &f), 2);
    assert_string_equal(f[0].name, "input");
    assert_int_equal(f[0].dtype, DDP_F32);
    assert_int_equal(f[0].rank, 1);
    assert_int_equal(f[0].dims[0], 10);
    assert_string_equal(f[1].name, "target");
    assert_int_equal(f[1].dims[0], 5);
    assert_true(f[1].min > f[1].max);
    ops->close(d);

    d = open_with("shape", "3,32,16", "classes", "7", NULL);
    assert_int_equal(ops->fields(d, &f), 2);
    assert_string_equal(f[0].name, "image");
    assert_int_equal(f[0].rank, 3);
    assert_int_equal(f[0].dims[2], 16);
    assert_string_equal(f[1].name, "label");
    assert_int_equal(f[1].dtype, DDP_I64);
    assert_int_equal(f[1].rank, 0);
    assert_int_equal(f[1].min, 0);
    assert_int_equal(f[1].max, 6);
    ops->close(d);

    d = open_with("input_name", "x", NULL);
    ops->fields(d, &f);
    assert_string_equal(f[0].name, "x");
    ops->close(d);
}

/* Two instances give the same bits in any order; a seed or a sample more gives others. */
static void test_determinism(void **state)
{
    ddp_dataset *a = open_with("shape", "77", NULL), *b = open_with("shape", "77", NULL);
    ddp_dataset *c = open_with("shape", "77", "seed", "1", NULL);
    float x[77], y[5], x2[77], y2[5];

    (void)state;
    read_sample(a, 3, x, y);
    read_sample(b, 900, x2, y2);
    assert_memory_not_equal(x, x2, sizeof(x));
    read_sample(b, 3, x2, y2);
    assert_memory_equal(x, x2, sizeof(x));
    assert_memory_equal(y, y2, sizeof(y));
    assert_true(ops->fingerprint(a) == ops->fingerprint(b));
    read_sample(c, 3, x2, y2);
    assert_memory_not_equal(x, x2, sizeof(x));
    assert_true(ops->fingerprint(a) != ops->fingerprint(c));
    ops->close(a);
    ops->close(b);
    ops->close(c);
}

/* These bits are a promise to every machine and compiler: a change of them bumps FORMAT in synthetic.c. */
static void test_golden(void **state)
{
    ddp_dataset *d = open_with("shape", "100", "seed", "42", NULL);
    unsigned char bytes[105 * sizeof(float)];
    char hex[65];

    (void)state;
    read_sample(d, 1000, bytes, bytes + 100 * sizeof(float));
    sha256_hex(bytes, sizeof(bytes), hex);
    assert_string_equal(hex, "1634de2356b25ae79469340a9b1d5a6c93cc7286ce6a174a81f6947c44f05925");
    ops->close(d);
}

static void test_statistics(void **state)
{
    ddp_dataset *d = open_with("shape", "20", "samples", "4000", NULL);
    double sum = 0, squares = 0, target_squares = 0;

    (void)state;
    for (uint64_t i = 0; i < 4000; i++) {
        float x[20], y[5];

        read_sample(d, i, x, y);
        for (int k = 0; k < 20; k++) {
            sum += x[k];
            squares += (double)x[k] * x[k];
        }
        target_squares += (double)y[0] * y[0];
    }
    assert_true(fabs(sum / 80000) < 0.02);
    assert_true(fabs(squares / 80000 - 1) < 0.02);
    assert_true(target_squares / 4000 > 0.2 && target_squares / 4000 < 5);
    ops->close(d);
}

/* A linear model by plain gradient descent explains nearly all of the target. */
static void test_learnable(void **state)
{
    ddp_dataset *d = open_with("outputs", "1", NULL);
    double w[10] = {0}, before = 0, after = 0;

    (void)state;
    for (uint64_t i = 0; i < 5 * 1024; i++) {
        float x[10], y;
        double error = 0;

        read_sample(d, i % 1024, x, &y);
        for (int k = 0; k < 10; k++) error += w[k] * x[k];
        error -= y;
        for (int k = 0; k < 10; k++) w[k] -= 0.02 * error * x[k];
        if (i >= 4 * 1024) {
            before += (double)y * y;
            after += error * error;
        }
    }
    assert_true(after < 0.1 * before);
    ops->close(d);
}

/* Classes all occur, labels are in range, also where the map is sparse. */
static void test_labels(void **state)
{
    ddp_dataset *d = open_with("shape", "1,28,28", "classes", "4", NULL);
    static float x[784];
    int seen[4] = {0};

    (void)state;
    for (uint64_t i = 0; i < 1024; i++) {
        int64_t label = -1;

        read_sample(d, i, x, &label);
        assert_in_range(label, 0, 3);
        seen[label]++;
    }
    for (int k = 0; k < 4; k++) assert_true(seen[k] > 100);
    ops->close(d);
}

static void expect_refusal(const char *key, const char *text, const char *part)
{
    void *config = config_new(plugin);
    ddp_dataset *d = NULL;
    ddp_err err = {0};

    config_set(plugin, config, key, text);
    assert_int_equal(ops->open(NULL, config, &d, &err), DDP_ERR_CONFIG);
    assert_null(d);
    if (strstr(err.msg, part) == NULL) fail_msg("\"%s\" lacks \"%s\"", err.msg, part);
    config_free(plugin, config);
}

/* Bytes stand for the same numbers as the floats, and labels follow from them. */
static void test_bytes(void **state)
{
    ddp_dataset *bytes = open_with("shape", "3,8,8", "classes", "4", "dtype", "u8", NULL);
    ddp_dataset *floats = open_with("shape", "3,8,8", "classes", "4", NULL);
    const ddp_field *f;
    int same = 0;

    (void)state;
    ops->fields(bytes, &f);
    assert_string_equal(f[0].name, "image");
    assert_int_equal(f[0].dtype, DDP_U8);
    assert_int_equal(f[0].min, 0);
    assert_int_equal(f[0].max, 255);
    assert_true(ops->fingerprint(bytes) != ops->fingerprint(floats));
    for (uint64_t i = 0; i < 200; i++) {
        unsigned char image[192];
        float values[192];
        int64_t label, other;

        read_sample(bytes, i, image, &label);
        read_sample(floats, i, values, &other);
        for (int k = 0; k < 192; k++) assert_true(fabsf(values[k] - (float)(image[k] - 128) / 36.0f) < 1.0f / 36.0f);
        assert_true(label >= 0 && label < 4);
        same += label == other;
    }
    assert_true(same > 180);
    ops->close(bytes);
    ops->close(floats);
}

/* The target is the input one further; three of four tokens follow from the one before. */
static void test_tokens(void **state)
{
    enum { CONTEXT = 50, VOCABULARY = 11, SAMPLES = 400 };
    ddp_dataset *d = open_with("shape", "50", "vocabulary", "11", "samples", "400", NULL);
    ddp_dataset *other = open_with("shape", "50", "vocabulary", "12", "samples", "400", NULL);
    int64_t input[CONTEXT], target[CONTEXT];
    int counts[VOCABULARY][VOCABULARY] = {{0}}, followed = 0;
    const ddp_field *f;

    (void)state;
    assert_int_equal(ops->fields(d, &f), 2);
    for (int i = 0; i < 2; i++) {
        assert_string_equal(f[i].name, i == 0 ? "input" : "target");
        assert_int_equal(f[i].dtype, DDP_I64);
        assert_int_equal(f[i].dims[0], CONTEXT);
        assert_int_equal(f[i].max, VOCABULARY - 1);
    }
    assert_true(ops->fingerprint(d) != ops->fingerprint(other));
    for (uint64_t i = 0; i < SAMPLES; i++) {
        read_sample(d, i, input, target);
        for (int k = 0; k < CONTEXT; k++) {
            assert_true(input[k] >= 0 && input[k] < VOCABULARY && target[k] >= 0 && target[k] < VOCABULARY);
            if (k > 0) assert_int_equal(input[k], target[k - 1]);
            counts[input[k]][target[k]]++;
        }
    }
    for (int a = 0; a < VOCABULARY; a++) {
        int best = 0;

        for (int b = 0; b < VOCABULARY; b++) best = counts[a][b] > best ? counts[a][b] : best;
        followed += best;
    }
    /* 3 of 4, and one eleventh of the others by chance: 0.773 */
    assert_true(followed > 0.75 * SAMPLES * CONTEXT && followed < 0.8 * SAMPLES * CONTEXT);
    ops->close(d);
    ops->close(other);
}

static void test_refusals(void **state)
{
    ddp_dataset *d = open_with(NULL);
    float x[10], y[5];
    void *buffers[2] = {x, y};
    ddp_err err = {0};

    (void)state;
    expect_refusal("shape", "", "shape has 0 dimensions");
    expect_refusal("shape", "1,1,1,1,1,1,1,1", "shape has 8 dimensions");
    expect_refusal("shape", "65536,65536", "dimension 1 of shape, 65536");
    expect_refusal("shape", "3,0", "dimension 1 of shape, 0");
    expect_refusal("input_name", "target", "input_name = target");
    assert_int_equal(ops->read(d, 1024, 0, buffers, &err), DDP_ERR_INVALID);
    assert_non_null(strstr(err.msg, "no sample 1024 of 1024"));
    ops->close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_philox), cmocka_unit_test(test_fields),     cmocka_unit_test(test_determinism),
        cmocka_unit_test(test_golden), cmocka_unit_test(test_statistics), cmocka_unit_test(test_learnable),
        cmocka_unit_test(test_labels), cmocka_unit_test(test_refusals),   cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_tokens),
    };
    return cmocka_run_group_tests(tests, open_plugin, NULL);
}
