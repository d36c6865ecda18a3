/* tests/unit/backend/test_reduce.c -- the arithmetic of the backends: every variant that this CPU can run against
 * scalar code, to the bit, for every dtype and operation, any number of sources and results, any length and
 * alignment, through the caches and past them. */
#include <ddpengine/isa.h>
#include "plugins/backend/common/reduce.h"
#include "base/base.h"
#include "base/sys.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h> /* last: it has a macro `fail` */

enum { MAX_SOURCES = 9, ROOM = 4096 + 128 };

static float from_bf16(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float f;

    memcpy(&f, &bits, sizeof(f));
    return f;
}

static uint16_t to_bf16(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof(bits));
    if (isnan(f)) return (uint16_t)((bits >> 16) | 0x40);
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

#define COMBINE(v, x)                                                                                                  \
    (v) = op == DDP_MIN ? ((x) < (v) ? (x) : (v)) : op == DDP_MAX ? ((x) > (v) ? (x) : (v)) : (v) + (x)

/* Element i, written to `out`. */
static void scalar(uint32_t dtype, uint32_t op, void *out, const void *const *in, uint32_t n, size_t i)
{
    if (dtype == DDP_F32 || dtype == DDP_BF16) {
        float v = 0;
        for (uint32_t k = 0; k < n; k++) {
            float x = dtype == DDP_F32 ? ((const float *)in[k])[i] : from_bf16(((const uint16_t *)in[k])[i]);
            if (k == 0)
                v = x;
            else
                COMBINE(v, x);
        }
        if (op == DDP_AVG) v /= (float)n;
        if (dtype == DDP_F32)
            *(float *)out = v;
        else
            *(uint16_t *)out = to_bf16(v);
    } else if (dtype == DDP_F64) {
        double v = ((const double *)in[0])[i];
        for (uint32_t k = 1; k < n; k++) COMBINE(v, ((const double *)in[k])[i]);
        *(double *)out = op == DDP_AVG ? v / (double)n : v;
    } else {
        int64_t v = 0;
        for (uint32_t k = 0; k < n; k++) {
            int64_t x = dtype == DDP_I32   ? ((const int32_t *)in[k])[i]
                        : dtype == DDP_I64 ? ((const int64_t *)in[k])[i]
                                           : ((const uint8_t *)in[k])[i];
            if (k == 0)
                v = x;
            else if (op == DDP_SUM || op == DDP_AVG)
                v = (int64_t)((uint64_t)v + (uint64_t)x);
            else
                COMBINE(v, x);
        }
        if (op == DDP_AVG) v /= (int64_t)n;
        if (dtype == DDP_I32)
            *(int32_t *)out = (int32_t)v;
        else if (dtype == DDP_I64)
            *(int64_t *)out = v;
        else
            *(uint8_t *)out = (uint8_t)v;
    }
}

/* Any bit pattern for integers; for floats finite ones of all sizes, and a few that are not. */
static void fill(unsigned char *p, size_t bytes, uint32_t dtype, uint64_t seed)
{
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t x = ddp_hash64(&i, sizeof(i), seed);
        memcpy(p + i, &x, bytes - i < 8 ? bytes - i : 8);
    }
    for (size_t i = 0; dtype == DDP_F32 && i + 4 <= bytes; i += 4) {
        float f = (float)(p[i] - 128) * ldexpf((float)p[i + 1] + 1, p[i + 2] % 20 - 10);
        if (p[i + 3] == 7) f = p[i + 2] < 128 ? INFINITY : 0.0f;
        memcpy(p + i, &f, 4);
    }
    for (size_t i = 0; dtype == DDP_F64 && i + 8 <= bytes; i += 8) {
        double f = (double)(p[i] - 128) * ldexp((double)p[i + 1] + 1, p[i + 2] % 200 - 100);
        memcpy(p + i, &f, 8);
    }
    for (size_t i = 0; dtype == DDP_BF16 && i + 2 <= bytes; i += 2)
        p[i + 1] = (unsigned char)(p[i + 1] % 8 + 0x3c + (p[i + 1] & 0x80)); /* moderate exponents */
}

typedef struct lanes {
    unsigned char *in[MAX_SOURCES], *out[MAX_SOURCES];
} lanes;

static void try_one(const ddp_kernels *k, lanes *l, uint32_t dtype, uint32_t op, uint32_t n, uint32_t outs,
                    size_t count, size_t skew, bool in_place, bool stream)
{
    const size_t size = ddp_dtype_size(dtype), at = skew * size;
    const void *in[MAX_SOURCES];
    void *out[MAX_SOURCES];
    unsigned char *want = malloc(count * size + 1);

    for (uint32_t s = 0; s < n; s++) {
        fill(l->in[s], ROOM * 8, dtype, count + s * 100 + op);
        in[s] = l->in[s] + at;
    }
    for (size_t i = 0; i < count; i++) scalar(dtype, op, want + i * size, in, n, i);
    for (uint32_t s = 0; s < outs; s++) {
        unsigned char *p = in_place ? l->in[count % 2 == 0 ? s : n - 1 - s] : l->out[s]; /* any of the sources */
        if (!in_place) memset(p, 0xee, ROOM * 8);
        out[s] = p + at + (s == 1 && stream && skew == 5 ? size : 0); /* results of unlike alignment */
        if (in_place && s == 1) out[s] = p + at;
    }
    ddp_reduce(k, dtype, op, out, outs, in, n, count, stream);
    for (uint32_t s = 0; s < outs; s++) {
        if (memcmp(out[s], want, count * size) != 0)
            fail_msg("%s dtype %u op %u n %u outs %u count %zu skew %zu in_place %d stream %d result %u", k->isa, dtype,
                     op, n, outs, count, skew, in_place, stream, s);
        if (!in_place) assert_int_equal(((unsigned char *)out[s])[count * size], 0xee); /* nothing beyond the end */
    }
    free(want);
}

static void test_all_variants_give_the_bits_of_scalar_code(void **state)
{
    static const struct {
        uint32_t n, outs;
    } shapes[] = {{1, 1}, {2, 1}, {2, 2}, {3, 1}, {3, 3}, {4, 1}, {8, 8}, {9, 2}};
    static const size_t counts[] = {0, 1, 17, 64, 511, 513, 4096};
    const ddp_kernels *const *kernels = ddp_kernels_variants + ddp_isa_best();
    const int variants = DDP_ISA_COUNT - ddp_isa_best();
    lanes l;
    size_t turn = 0;

    (void)state;
    for (int i = 0; i < MAX_SOURCES; i++) {
        l.in[i] = aligned_alloc(64, ROOM * 8);
        l.out[i] = aligned_alloc(64, ROOM * 8);
    }
    for (int v = 0; v < variants; v++)
        for (uint32_t dtype = DDP_F32; dtype < DDP_DTYPE_END_; dtype++)
            for (uint32_t op = DDP_SUM; op < DDP_REDUCE_OP_END_; op++)
                for (size_t s = 0; s < DDP_COUNT(shapes); s++)
                    for (size_t c = 0; c < DDP_COUNT(counts); c++, turn++)
                        try_one(kernels[v], &l, dtype, op, shapes[s].n, shapes[s].outs, counts[c],
                                turn % 4 == 0 ? 5 : 0, turn % 3 == 0 && shapes[s].outs <= shapes[s].n, turn % 2 == 0);
    print_message("# %d variants, best %s\n", variants, kernels[0]->isa);
    for (int i = 0; i < MAX_SOURCES; i++) {
        free(l.in[i]);
        free(l.out[i]);
    }
}

static void test_a_nan_stays_one(void **state)
{
    const ddp_kernels *const *kernels = ddp_kernels_variants + ddp_isa_best();
    const int variants = DDP_ISA_COUNT - ddp_isa_best();

    (void)state;
    for (int v = 0; v < variants; v++) {
        float x[40], y[40];
        uint16_t p[40], q[40];
        void *out[2] = {x, y}, *out16[2] = {p, q};
        const void *in[2] = {x, y}, *in16[2] = {p, q};

        for (int i = 0; i < 40; i++) {
            x[i] = i % 2 == 0 ? NAN : 1.0f;
            y[i] = 2.0f;
            p[i] = i % 2 == 0 ? 0x7fff : 0x3f80;
            q[i] = 0x4000;
        }
        ddp_reduce(kernels[v], DDP_F32, DDP_AVG, out, 2, in, 2, 40, false);
        ddp_reduce(kernels[v], DDP_BF16, DDP_AVG, out16, 2, in16, 2, 40, false);
        for (int i = 0; i < 40; i++) {
            assert_int_equal(isnan(x[i]) && isnan(y[i]), i % 2 == 0);
            assert_int_equal((p[i] & 0x7fff) > 0x7f80 && (q[i] & 0x7fff) > 0x7f80, i % 2 == 0);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_variants_give_the_bits_of_scalar_code),
        cmocka_unit_test(test_a_nan_stays_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
