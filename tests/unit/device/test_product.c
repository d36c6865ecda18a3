/* tests/unit/device/test_product.c -- the packers and tiles of a matrix product, of every variant that this CPU can
 * run, against sums in f64; and of AVX-512's sizes too, by the double of its registers below, on a CPU that lacks
 * them. */
#include "support/device_variants.h"

#include <math.h>

typedef struct operands {
    int64_t m, n, k;
    bool left_turned, right_turned;
    float *left, *right, *c;
    double *want;
} operands;

static float *numbers(int64_t n)
{
    float *x = malloc((size_t)n * sizeof(*x));

    assert_non_null(x);
    fill(x, n);
    return x;
}

static void operands_make(operands *o, bool add)
{
    o->left = numbers(o->m * o->k);
    o->right = numbers(o->n * o->k);
    o->c = numbers(o->m * o->n);
    o->want = malloc((size_t)(o->m * o->n) * sizeof(*o->want));
    assert_non_null(o->want);
    for (int64_t i = 0; i < o->m; i++)
        for (int64_t j = 0; j < o->n; j++) {
            double sum = add ? (double)o->c[i * o->n + j] : 0.0;
            for (int64_t l = 0; l < o->k; l++)
                sum += (double)(o->left_turned ? o->left[l * o->m + i] : o->left[i * o->k + l]) *
                       (double)(o->right_turned ? o->right[l * o->n + j] : o->right[j * o->k + l]);
            o->want[i * o->n + j] = sum;
        }
}

static void operands_free(operands *o)
{
    free(o->left);
    free(o->right);
    free(o->c);
    free(o->want);
}

/* Packed numbers that nobody wrote are NaN. */
static float *packed(int64_t panels, int64_t width, int64_t depth)
{
    size_t bytes = (size_t)(panels * cpu_product_stride(width, depth)) * sizeof(float);
    float *x = malloc(bytes);

    assert_non_null(x);
    memset(x, 0xff, bytes);
    return x;
}

static void check_product(const char *isa, const cpu_product_kernels *f, operands o, int how)
{
    float *left = packed((o.m + f->rows - 1) / f->rows, f->rows, o.k),
          *right = packed((o.n + f->cols - 1) / f->cols, f->cols, o.k);

    operands_make(&o, how == CPU_PRODUCT_ADD);
    f->pack_left(left, o.left, o.left_turned ? 1 : o.k, o.left_turned ? o.m : 1, o.m, o.k);
    f->pack_right(right, o.right, o.right_turned ? 1 : o.k, o.right_turned ? o.n : 1, o.n, o.k);
    f->panels(o.c, o.n, left, right, o.k, o.m, o.n, how);
    for (int64_t i = 0; i < o.m * o.n; i++)
        if (!(fabs((double)o.c[i] - o.want[i]) < 1e-6 * (double)(o.k + 1)))
            fail_msg("%s: %lld x %lld over %lld, %d%d, how %d: element %lld is %g, not %g", isa, (long long)o.m,
                     (long long)o.n, (long long)o.k, o.left_turned, o.right_turned, how, (long long)i, (double)o.c[i],
                     o.want[i]);
    operands_free(&o);
    free(left);
    free(right);
}

static void check_products(const char *isa, const cpu_product_kernels *f)
{
    static const int64_t rows[] = {1, 5, 6, 8, 13, 14, 15, 33}, cols[] = {1, 8, 16, 31, 32, 70},
                         depths[] = {1, 7, 8, 9, 16, 25, 100};

    for (size_t i = 0; i < DDP_COUNT(rows) * DDP_COUNT(cols) * DDP_COUNT(depths) * 8; i++) {
        const size_t shape = i / 8;
        const operands o = {.m = rows[shape % DDP_COUNT(rows)],
                            .n = cols[shape / DDP_COUNT(rows) % DDP_COUNT(cols)],
                            .k = depths[shape / DDP_COUNT(rows) / DDP_COUNT(cols)],
                            .left_turned = i % 2 != 0,
                            .right_turned = i / 2 % 2 != 0};
        check_product(isa, f, o, i / 4 % 2 != 0 ? CPU_PRODUCT_ADD : CPU_PRODUCT_SET);
    }
}

static void test_variants(void **state)
{
    (void)state;
    for (int v = 0; v < variant_count; v++) check_products(variants[v]->isa, &variants[v]->product);
}

/* ---- AVX-512's sizes without AVX-512 ----------------------------------------------------------------------------- */
#if defined(__x86_64__)
#include <immintrin.h>
#pragma GCC diagnostic ignored "-Wunused-function"
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
#define CPU_VECTOR                 16
#define _mm512_fmadd_ps(a, b, c)   ((a) * (b) + (c))
#define _mm512_max_ps(a, b)        ((cpu_vec)vec_choose((a) > (b), (cpu_ivec)(a), (cpu_ivec)(b)))
#define _mm512_stream_ps(place, x) vec_store((place), (x))
#include "plugins/device/cpu/kernels/loops.h"
#include "plugins/device/cpu/kernels/vector_body.h"
#include "plugins/device/cpu/kernels/product/product_body.h"

static const cpu_product_kernels double_of_avx512 = {.rows = PRODUCT_ROWS,
                                                     .cols = PRODUCT_COLS,
                                                     .pack_left = product_pack_left,
                                                     .pack_right = product_pack_right,
                                                     .panels = product_panels};
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

static void test_sizes_of_avx512(void **state)
{
    (void)state;
#if defined(__x86_64__)
    if (ddp_isa_of_cpu() > DDP_ISA_AVX2) skip(); /* its packers are those of AVX2 */
    check_products("the double of AVX-512", &double_of_avx512);
#else
    skip();
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_variants), cmocka_unit_test(test_sizes_of_avx512)};

    variants = cpu_kernels_variants + ddp_isa_best();
    variant_count = DDP_ISA_COUNT - ddp_isa_best();
    seed = test_seed();
    return cmocka_run_group_tests_name("the parts of a product on the CPU device", tests, NULL, NULL);
}
