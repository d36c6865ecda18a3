/* tests/unit/conform/test_pattern.c -- what `ddpengine conform` fills buffers with and holds results against: the
 * same by parts as at once, another in every place, and no wrong element goes unseen, wherever it lies. */
#include "conform/backend/pattern.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { COUNT = 2 * 1024 + 5, WORLD = 3 }; /* two of its chunks and a bit */

static const uint32_t dtypes[] = {DDP_F32, DDP_BF16, DDP_F64, DDP_I32, DDP_I64, DDP_U8};

static ddp_pattern pattern_of(uint32_t dtype, uint32_t op, bool random)
{
    return (ddp_pattern){.dtype = dtype, .op = op, .world = WORLD, .random = random, .seed = 77};
}

static void fills_the_same_by_parts(void **state)
{
    static unsigned char whole[8 * COUNT], parts[8 * COUNT];

    (void)state;
    for (size_t d = 0; d < DDP_COUNT(dtypes); d++)
        for (uint32_t op = 0; op <= DDP_MAX; op++) {
            ddp_pattern p = pattern_of(dtypes[d], op, false);
            size_t element = ddp_dtype_size(p.dtype), step = 1;

            ddp_pattern_fill(&p, 1, 0, COUNT, whole);
            for (size_t i = 0; i < COUNT; i += step) {
                step = DDP_MIN_OF((size_t)(1 + i % 7), COUNT - i);
                ddp_pattern_fill(&p, 1, i, step, parts + i * element);
            }
            assert_memory_equal(whole, parts, COUNT * element);
        }
}

/* Ranks, seeds and places differ, in more than half of the elements (those of u8 are few). */
static size_t equal_elements(const ddp_pattern *p, uint32_t rank, size_t first, const ddp_pattern *q)
{
    static unsigned char a[8 * COUNT], b[8 * COUNT];
    size_t element = ddp_dtype_size(p->dtype), same = 0;

    ddp_pattern_fill(p, 0, 0, COUNT, a);
    ddp_pattern_fill(q, rank, first, COUNT, b);
    for (size_t i = 0; i < COUNT; i++) same += memcmp(a + i * element, b + i * element, element) == 0;
    return same;
}

static void differs_everywhere(void **state)
{
    (void)state;
    for (size_t d = 0; d < DDP_COUNT(dtypes); d++)
        for (uint32_t op = 0; op <= DDP_MAX; op++) {
            ddp_pattern p = pattern_of(dtypes[d], op, false), q = p;

            q.seed++;
            assert_true(equal_elements(&p, 1, 0, &p) < COUNT / 2);
            assert_true(equal_elements(&p, 0, 1, &p) < COUNT / 2);
            assert_true(equal_elements(&p, 0, 1024, &p) < COUNT / 2);
            assert_true(equal_elements(&p, 0, 0, &q) < COUNT / 2);
            assert_int_equal(equal_elements(&p, 0, 0, &p), COUNT);
        }
}

static void sees_a_wrong_copy(void **state)
{
    static unsigned char got[8 * COUNT];
    char text[200], want[64];

    (void)state;
    for (size_t d = 0; d < DDP_COUNT(dtypes); d++) {
        ddp_pattern p = pattern_of(dtypes[d], 0, false);
        size_t element = ddp_dtype_size(p.dtype);

        ddp_pattern_fill(&p, 2, 9, COUNT, got);
        assert_true(backend_pattern_copied(&p, 2, 9, COUNT, got, text, sizeof(text)));
        for (size_t i = 0; i < COUNT; i++) {
            got[(i + 1) * element - 1] ^= 1;
            assert_false(backend_pattern_copied(&p, 2, 9, COUNT, got, text, sizeof(text)));
            (void)snprintf(want, sizeof(want), "element %zu is not what element %zu of rank 2", i, i + 9);
            assert_memory_equal(text, want, strlen(want));
            got[(i + 1) * element - 1] ^= 1;
        }
    }
}

/* The reduction in the dtype's own arithmetic, one element at a time: another way to the result than the
 * reference's. */
#define REDUCE(type, to, inputs, op)                                                                                   \
    for (size_t i = 0; i < COUNT; i++) {                                                                               \
        type x = ((const type *)(inputs)[0])[i];                                                                       \
        for (uint32_t r = 1; r < WORLD; r++) {                                                                         \
            type y = ((const type *)(inputs)[r])[i];                                                                   \
            x = (op) == DDP_MIN ? (y < x ? y : x) : (op) == DDP_MAX ? (y > x ? y : x) : (type)(x + y);                 \
        }                                                                                                              \
        ((type *)(to))[i] = (op) == DDP_AVG ? (type)(x / WORLD) : x;                                                   \
    }

static union {
    double align;
    float floats[COUNT];
    unsigned char bytes[8 * COUNT];
} inputs[WORLD], got;

/* bf16 as the float that it is the upper half of: the values are exact. */
static void widen(void *bytes)
{
    for (size_t i = COUNT; i-- > 0;) {
        uint32_t bits = (uint32_t)((const uint16_t *)bytes)[i] << 16;
        memcpy((float *)bytes + i, &bits, 4);
    }
}

static void narrow(void *bytes)
{
    for (size_t i = 0; i < COUNT; i++) {
        uint32_t bits;
        memcpy(&bits, (float *)bytes + i, 4);
        ((uint16_t *)bytes)[i] = (uint16_t)(bits >> 16);
    }
}

static void reduce(const ddp_pattern *p, size_t first, void *to)
{
    const void *in[WORLD];

    for (uint32_t r = 0; r < WORLD; r++) {
        ddp_pattern_fill(p, r, first, COUNT, inputs[r].bytes);
        if (p->dtype == DDP_BF16) widen(inputs[r].bytes);
        in[r] = inputs[r].bytes;
    }
    if (p->dtype == DDP_F32 || p->dtype == DDP_BF16) REDUCE(float, to, in, p->op)
    if (p->dtype == DDP_F64) REDUCE(double, to, in, p->op)
    if (p->dtype == DDP_I32) REDUCE(int32_t, to, in, p->op)
    if (p->dtype == DDP_I64) REDUCE(int64_t, to, in, p->op)
    if (p->dtype == DDP_U8) REDUCE(uint8_t, to, in, p->op)
    if (p->dtype == DDP_BF16) narrow(to);
}

static void sees_a_wrong_reduction(void **state)
{
    char text[200], want[64];

    (void)state;
    for (size_t d = 0; d < DDP_COUNT(dtypes); d++)
        for (uint32_t op = DDP_SUM; op <= DDP_MAX; op++) {
            ddp_pattern p = pattern_of(dtypes[d], op, false);
            size_t element = ddp_dtype_size(p.dtype);

            reduce(&p, 5, got.bytes);
            text[0] = '\0';
            if (!backend_pattern_reduced(&p, 5, COUNT, got.bytes, text, sizeof(text)))
                fail_msg("dtype %u, op %u: %s", p.dtype, op, text);
            for (size_t i = 0; i < COUNT; i++) {
                got.bytes[i * element + element - 1] ^= 1; /* of a float a bit of its exponent */
                assert_false(backend_pattern_reduced(&p, 5, COUNT, got.bytes, text, sizeof(text)));
                (void)snprintf(want, sizeof(want), "element %zu is ", i);
                assert_memory_equal(text, want, strlen(want));
                got.bytes[i * element + element - 1] ^= 1;
            }
        }
}

/* Random floats: rounding is forgiven, a wrong rank's value is not; a NaN never. */
static void forgives_rounding_alone(void **state)
{
    static float other[COUNT];
    ddp_pattern p = pattern_of(DDP_F32, DDP_SUM, true);
    char text[200];

    (void)state;
    reduce(&p, 0, got.bytes);
    assert_true(backend_pattern_reduced(&p, 0, COUNT, got.bytes, text, sizeof(text)));
    assert_int_equal(ddp_pattern_wrong(&p, COUNT, got.bytes), 0);
    ddp_pattern_fill(&p, 1, 0, COUNT, other);
    got.floats[COUNT - 1] = other[0];
    got.floats[3] = (float)strtod("nan", NULL);
    assert_false(backend_pattern_reduced(&p, 0, COUNT, got.bytes, text, sizeof(text)));
    assert_memory_equal(text, "element 3 is nan", 16);
    assert_int_equal(ddp_pattern_wrong(&p, COUNT, got.bytes), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fills_the_same_by_parts), cmocka_unit_test(differs_everywhere),
        cmocka_unit_test(sees_a_wrong_copy),       cmocka_unit_test(sees_a_wrong_reduction),
        cmocka_unit_test(forgives_rounding_alone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
