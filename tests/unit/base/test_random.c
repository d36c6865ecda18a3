/* tests/unit/base/test_random.c -- the generator against what PyTorch draws (tests/parity/vectors/random.txt,
 * initial.txt). */
#include "support/data_util.h"
#include "base/mt19937.h"
#include <inttypes.h>
#include <math.h>

static void check_uniform(const char *line)
{
    uint64_t seed, count;
    char low[64], high[64], expected[32], hex[65];
    ddp_mt19937 g;
    float *values;

    assert_int_equal(
        5, sscanf(line, "uniform %" SCNu64 " %" SCNu64 " %63s %63s : %31s", &seed, &count, low, high, expected));
    values = malloc(count * sizeof(*values));
    assert_non_null(values);
    ddp_mt19937_seed(&g, seed);
    ddp_mt19937_uniform(&g, values, count, strtod(low, NULL), strtod(high, NULL));
    sha256_hex(values, count * sizeof(*values), hex);
    free(values);
    if (strncmp(hex, expected, 16) != 0) fail_msg("got %.16s: %s", hex, line);
}

static void check_permutation(const char *line)
{
    uint64_t seed, count, *indices;
    char expected[32], hex[65];
    ddp_mt19937 g;

    assert_int_equal(3, sscanf(line, "permutation %" SCNu64 " %" SCNu64 " : %31s", &seed, &count, expected));
    indices = malloc((count + 1) * sizeof(*indices));
    assert_non_null(indices);
    ddp_mt19937_seed(&g, seed);
    ddp_mt19937_permutation(&g, indices, count);
    sha256_hex(indices, count * sizeof(*indices), hex);
    free(indices);
    if (strncmp(hex, expected, 16) != 0) fail_msg("got %.16s: %s", hex, line);
}

/* Permutations and floats in turn from one generator. */
static void check_mixed(const char *line)
{
    enum { ROUNDS = 39 };
    uint64_t seed;
    char expected[32], hex[65];
    unsigned char *bytes = malloc(ROUNDS * (ROUNDS + 1) / 2 * (37 * 8 + 13 * 4)), *at = bytes;
    ddp_mt19937 g;

    assert_non_null(bytes);
    assert_int_equal(2, sscanf(line, "mixed %" SCNu64 " : %31s", &seed, expected));
    ddp_mt19937_seed(&g, seed);
    for (uint64_t i = 1; i <= ROUNDS; i++) {
        uint64_t order[37 * ROUNDS];
        float values[13 * ROUNDS];

        ddp_mt19937_permutation(&g, order, 37 * i);
        memcpy(at, order, 37 * i * 8);
        at += 37 * i * 8;
        ddp_mt19937_uniform(&g, values, 13 * i, -0.5, 0.5);
        memcpy(at, values, 13 * i * 4);
        at += 13 * i * 4;
    }
    sha256_hex(bytes, (size_t)(at - bytes), hex);
    free(bytes);
    if (strncmp(hex, expected, 16) != 0) fail_msg("got %.16s: %s", hex, line);
}

static void check_normal(const char *line)
{
    uint64_t seed, count;
    char mean[64], std[64], expected[32], hex[65];
    ddp_mt19937 g, skipped;
    float *values;

    assert_int_equal(
        5, sscanf(line, "normal %" SCNu64 " %" SCNu64 " %63s %63s : %31s", &seed, &count, mean, std, expected));
    values = malloc(count * sizeof(*values));
    assert_non_null(values);
    ddp_mt19937_seed(&g, seed);
    ddp_mt19937_normal(&g, values, count, strtod(mean, NULL), strtod(std, NULL));
    sha256_hex(values, count * sizeof(*values), hex);
    free(values);
    if (strncmp(hex, expected, 16) != 0) fail_msg("got %.16s: %s", hex, line);
    ddp_mt19937_seed(&skipped, seed);
    ddp_mt19937_skip_normal(&skipped, count);
    for (int i = 0; i < 700; i++) assert_int_equal(base_mt19937_next(&g), base_mt19937_next(&skipped));
    assert_int_equal(g.has_kept, skipped.has_kept);
}

/* Normals, few and many, and uniforms in turn from one generator; then the same with every second draw skipped. */
static void check_normals(const char *line)
{
    enum { ROUNDS = 39 };
    uint64_t seed;
    char expected[32], hex[65];
    float drawn[ROUNDS * (ROUNDS + 1) * 2], again[ROUNDS], *at = drawn;
    ddp_mt19937 g, skipped;

    assert_int_equal(2, sscanf(line, "normals %" SCNu64 " : %31s", &seed, expected));
    ddp_mt19937_seed(&g, seed);
    ddp_mt19937_seed(&skipped, seed);
    for (uint64_t i = 1; i <= ROUNDS; at += 4 * i, i++) {
        ddp_mt19937_normal(&g, at, i, 0.25, 2.0);
        ddp_mt19937_uniform(&g, at + i, 3 * i, -0.5, 0.5);
        if (i % 2 == 0)
            ddp_mt19937_skip_normal(&skipped, i);
        else
            ddp_mt19937_normal(&skipped, again, i, 0.25, 2.0);
        if (i % 2 == 1) assert_memory_equal(again, at, i * sizeof(float));
        ddp_mt19937_skip(&skipped, 3 * i);
    }
    sha256_hex(drawn, sizeof(drawn), hex);
    if (strncmp(hex, expected, 16) != 0) fail_msg("got %.16s: %s", hex, line);
}

static void check_random(const char *line)
{
    if (line[0] == 'u')
        check_uniform(line);
    else if (strncmp(line, "normals", 7) == 0)
        check_normals(line);
    else if (line[0] == 'n')
        check_normal(line);
    else if (line[0] == 'p')
        check_permutation(line);
    else
        check_mixed(line);
}

static void test_random(void **state)
{
    (void)state;
    assert_true(each_vector("random.txt", check_random) >= 720);
}

/* The CPU's fused operations and the C library's give the same bits, at the ends of the range too. */
static void test_normal_variants(void **state)
{
    enum { COUNT = 4096 };
    float fast[COUNT], portable[COUNT];
    ddp_mt19937 g;

    (void)state;
    ddp_mt19937_seed(&g, 5);
    for (int round = 0; round < 8; round++) {
        ddp_mt19937_uniform(&g, fast, COUNT, 0.0, 1.0);
        fast[0] = 0.0f;
        fast[1] = 1.0f - 0x1p-24f;
        fast[8] = 0.0f;
        fast[9] = 1.0f - 0x1p-24f;
        memcpy(portable, fast, sizeof(fast));
        base_normal_blocks(fast, COUNT, 0.0f, 1.0f, 0);
        base_normal_blocks(portable, COUNT, 0.0f, 1.0f, 1);
        assert_memory_equal(fast, portable, sizeof(fast));
        for (int i = 0; i < COUNT; i++) assert_true(fabsf(fast[i]) < 6.0f);
    }
}

/* torch.nn.Linear(in, out): weight, then bias. Returns the elements written. */
static size_t draw_linear(ddp_mt19937 *g, float *out, int in_features, int out_features)
{
    size_t weights = (size_t)in_features * (size_t)out_features;
    double bound = sqrt(3.0) * (sqrt(2.0 / (1.0 + sqrt(5.0) * sqrt(5.0))) / sqrt(in_features));

    ddp_mt19937_uniform(g, out, weights, -bound, bound);
    bound = 1.0 / sqrt(in_features);
    ddp_mt19937_uniform(g, out + weights, (uint64_t)out_features, -bound, bound);
    return weights + (size_t)out_features;
}

static void check_initial(const char *line)
{
    uint64_t seed;
    char sizes[128], expected[65], hex[65], *at = sizes;
    float *values = malloc(sizeof(*values) * 1000000);
    size_t count = 0;
    ddp_mt19937 g;
    int in_features;

    assert_non_null(values);
    assert_int_equal(3, sscanf(line, "linear %" SCNu64 " %127s : %64s", &seed, sizes, expected));
    ddp_mt19937_seed(&g, seed);
    in_features = (int)strtol(at, &at, 10);
    while (*at == ',') {
        int out_features = (int)strtol(at + 1, &at, 10);
        count += draw_linear(&g, values + count, in_features, out_features);
        in_features = out_features;
    }
    sha256_hex(values, count * sizeof(*values), hex);
    free(values);
    if (strcmp(hex, expected) != 0) fail_msg("got %s: %s", hex, line);
}

static void test_initial(void **state)
{
    (void)state;
    assert_int_equal(each_vector("initial.txt", check_initial), 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_normal_variants),
        cmocka_unit_test(test_initial),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
