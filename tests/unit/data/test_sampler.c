/* tests/unit/data/test_sampler.c -- the samplers: `distributed` against PyTorch's indices
 * (tests/parity/vectors/sampler.txt), `sequential` against its promise that every sample comes once. */
#include "support/data_util.h"
#include <ddpengine/sampler.h>
#include <inttypes.h>

static const ddp_plugin *distributed, *sequential;

static int open_both(void **state)
{
    (void)state;
    distributed = plugin_open("sampler_distributed");
    sequential = plugin_open("sampler_sequential");
    return 0;
}

static ddp_sampler_params params(uint64_t length, uint32_t world, uint32_t rank, uint64_t seed)
{
    return (ddp_sampler_params){
        .struct_size = sizeof(ddp_sampler_params), .rank = rank, .world_size = world, .seed = seed, .length = length};
}

/* Opens, draws one epoch, closes; *count indices, free()d by the caller. */
static uint64_t *draw(const ddp_plugin *p, const void *config, const ddp_sampler_params *sp, uint64_t epoch,
                      uint64_t *count)
{
    const ddp_sampler_ops *ops = p->ops;
    ddp_sampler *s = NULL;
    ddp_err err = {0};
    uint64_t *out;

    if (ops->open(NULL, config, sp, &s, &err) != DDP_OK) fail_msg("%s", err.msg);
    *count = ops->count(s);
    out = malloc((*count + 1) * sizeof(*out));
    assert_non_null(out);
    assert_int_equal(ops->indices(s, epoch, out, &err), DDP_OK);
    ops->close(s);
    return out;
}

static void check_vector(const char *line)
{
    uint64_t length, seed, epoch, expected_count, count, *out;
    uint32_t world, rank;
    int shuffle, drop_last;
    char expected[32], hex[65];
    void *config = config_new(distributed);
    ddp_sampler_params p;

    assert_int_equal(9, sscanf(line, "%" SCNu64 " %u %u %" SCNu64 " %" SCNu64 " %d %d : %" SCNu64 " %31s", &length,
                               &world, &rank, &seed, &epoch, &shuffle, &drop_last, &expected_count, expected));
    config_set(distributed, config, "shuffle", shuffle ? "yes" : "no");
    config_set(distributed, config, "drop_last", drop_last ? "yes" : "no");
    p = params(length, world, rank, seed);
    out = draw(distributed, config, &p, epoch, &count);
    sha256_hex(out, count * sizeof(*out), hex);
    free(out);
    config_free(distributed, config);
    if (count != expected_count || strncmp(hex, expected, 16) != 0)
        fail_msg("got %" PRIu64 " %.16s: %s", count, hex, line);
}

static void test_as_pytorch(void **state)
{
    (void)state;
    assert_true(each_vector("sampler.txt", check_vector) >= 500);
}

/* The same handle over epochs: epoch 2 does not depend on what was drawn before. */
static void test_epochs(void **state)
{
    const ddp_sampler_ops *ops = distributed->ops;
    void *config = config_new(distributed);
    ddp_sampler_params p = params(100, 2, 1, 42);
    uint64_t first[50], again[50], other[50];
    ddp_sampler *s = NULL;
    ddp_err err = {0};

    (void)state;
    assert_int_equal(ops->open(NULL, config, &p, &s, &err), DDP_OK);
    assert_int_equal(ops->count(s), 50);
    assert_int_equal(ops->indices(s, 2, first, &err), DDP_OK);
    assert_int_equal(ops->indices(s, 3, other, &err), DDP_OK);
    assert_int_equal(ops->indices(s, 2, again, &err), DDP_OK);
    assert_memory_equal(first, again, sizeof(first));
    assert_memory_not_equal(first, other, sizeof(first));
    ops->close(s);
    config_free(distributed, config);
}

/* The option wins over [train] seed; -1 leaves it to [train]. */
static void test_seed_option(void **state)
{
    void *config = config_new(distributed);
    ddp_sampler_params p7 = params(30, 1, 0, 7), p8 = params(30, 1, 0, 8);
    uint64_t count, *train7 = draw(distributed, config, &p7, 0, &count),
                    *train8 = draw(distributed, config, &p8, 0, &count);
    uint64_t *own7;

    (void)state;
    config_set(distributed, config, "seed", "7");
    own7 = draw(distributed, config, &p8, 0, &count);
    assert_memory_equal(own7, train7, count * sizeof(*own7));
    assert_memory_not_equal(own7, train8, count * sizeof(*own7));
    free(train7);
    free(train8);
    free(own7);
    config_free(distributed, config);
}

static void expect_refusal(const ddp_plugin *plugin, const void *config, ddp_sampler_params p, ddp_status status,
                           const char *part)
{
    const ddp_sampler_ops *ops = plugin->ops;
    ddp_sampler *s = NULL;
    ddp_err err = {0};

    assert_int_equal(ops->open(NULL, config, &p, &s, &err), status);
    assert_null(s);
    if (strstr(err.msg, part) == NULL) fail_msg("\"%s\" lacks \"%s\"", err.msg, part);
}

static void test_refusals(void **state)
{
    void *config = config_new(distributed);

    (void)state;
    expect_refusal(distributed, config, params(0, 2, 0, 0), DDP_ERR_CONFIG, "the dataset has no samples");
    expect_refusal(distributed, config, params(5, 2, 2, 0), DDP_ERR_INVALID, "rank 2 of 2 ranks");
    expect_refusal(sequential, NULL, params(0, 2, 0, 0), DDP_ERR_CONFIG, "the dataset has no samples");
    expect_refusal(sequential, NULL, params(5, 0, 0, 0), DDP_ERR_INVALID, "rank 0 of 0 ranks");
    config_set(distributed, config, "drop_last", "yes");
    expect_refusal(distributed, config, params(3, 4, 1, 0), DDP_ERR_CONFIG, "nothing of 3 samples for each of 4 ranks");
    expect_refusal(distributed, config, params(3, 4, 1, 0), DDP_ERR_CONFIG, "set drop_last = no");
    config_free(distributed, config);
}

static void test_sequential(void **state)
{
    (void)state;
    for (uint64_t length = 1; length < 20; length++)
        for (uint32_t world = 1; world < 8; world++) {
            uint64_t seen[20] = {0};

            for (uint32_t rank = 0; rank < world; rank++) {
                ddp_sampler_params p = params(length, world, rank, 0);
                uint64_t count, *out = draw(sequential, NULL, &p, 5, &count);

                assert_in_range(count, length / world, (length + world - 1) / world);
                for (uint64_t i = 0; i < count; i++) {
                    assert_int_equal(out[i], rank + i * world);
                    seen[out[i]]++;
                }
                free(out);
            }
            for (uint64_t i = 0; i < length; i++) assert_int_equal(seen[i], 1);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_pytorch), cmocka_unit_test(test_epochs),     cmocka_unit_test(test_seed_option),
        cmocka_unit_test(test_refusals),   cmocka_unit_test(test_sequential),
    };
    return cmocka_run_group_tests(tests, open_both, NULL);
}
