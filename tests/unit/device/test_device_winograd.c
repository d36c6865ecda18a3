/* tests/unit/device/test_device_winograd.c -- Winograd's convolution against the definition in double: forward and
 * both gradients over odd sizes, all paddings and both layouts of the weight, every instruction set and split of the
 * work the same bits, nothing written beside. */
#include <ddpengine/isa.h>
#include "plugins/device/cpu/kernels/winograd/winograd.h"
#include "support/device_util.h"

enum { GUARD = 64 };
static const float canary = -77.25f;
static uint64_t seed;

/* As cpu_parallel() splits it, but one piece after the other. */
void cpu_parallel(uint32_t threads, int64_t count, int64_t grain, void (*fn)(void *ctx, int64_t first, int64_t last),
                  void *ctx)
{
    int64_t grains = (count + grain - 1) / grain, pieces = grains < (int64_t)threads ? grains : (int64_t)threads;

    for (int64_t i = pieces - 1; i >= 0; i--) {
        int64_t last = grains * (i + 1) / pieces * grain;
        fn(ctx, grains * i / pieces * grain, last < count ? last : count);
    }
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */
typedef struct guarded {
    float *base, *data;
    int64_t count;
} guarded;

static guarded allocate(int64_t count)
{
    guarded g = {.base = aligned_alloc(64, ((size_t)(count + 2 * GUARD) * sizeof(float) + 63) / 64 * 64),
                 .count = count};

    assert_non_null(g.base);
    g.data = g.base + GUARD;
    for (int64_t i = 0; i < count + 2 * GUARD; i++) g.base[i] = canary;
    return g;
}

static guarded random_values(int64_t count)
{
    guarded g = allocate(count);

    for (int64_t i = 0; i < count; i++) g.data[i] = random_float(&seed);
    return g;
}

static void check_guards(const guarded *g)
{
    for (int64_t i = 0; i < GUARD; i++)
        if (g->base[i] != canary || g->data[g->count + i] != canary)
            fail_msg("written beside an array of %ld", (long)g->count);
}

/* ---- the definition ---------------------------------------------------------------------------------------------- */
typedef struct problem {
    cpu_conv_shape s;
    guarded x, w, y, bias; /* of the bias: outputs */
    double *want;          /* of what `what` writes; NULL before define() */
    int what;
} problem;

static int64_t weight_at(const cpu_conv_shape *s, int64_t o, int64_t c, int64_t place)
{
    return s->weight_last ? (o * 9 + place) * s->channels + c : (o * s->channels + c) * 9 + place;
}

/* Every product of the convolution, added to the result that `what` names. */
static void add_products(problem *p, int64_t n, int64_t h, int64_t w, int64_t place)
{
    const cpu_conv_shape *s = &p->s;
    int64_t i = h + place / 3 - s->padding[0], j = w + place % 3 - s->padding[1];
    int64_t at_x = ((n * s->height + i) * s->width + j) * s->channels,
            at_y = ((n * s->out_height + h) * s->out_width + w) * s->out;

    if (i < 0 || j < 0 || i >= s->height || j >= s->width) return;
    for (int64_t o = 0; o < s->out; o++)
        for (int64_t c = 0; c < s->channels; c++) {
            int64_t at_w = weight_at(s, o, c, place);
            double x = (double)p->x.data[at_x + c], k = (double)p->w.data[at_w], y = (double)p->y.data[at_y + o];
            if (p->what == CPU_CONV_FORWARD) p->want[at_y + o] += x * k;
            if (p->what == CPU_CONV_GRAD_INPUT) p->want[at_x + c] += y * k;
            if (p->what == CPU_CONV_GRAD_WEIGHT) p->want[at_w] += x * y;
        }
}

static guarded *result(problem *p)
{
    return p->what == CPU_CONV_FORWARD ? &p->y : p->what == CPU_CONV_GRAD_INPUT ? &p->x : &p->w;
}

static problem make(const cpu_conv_shape *shape, int what)
{
    problem p = {.s = *shape, .what = what};
    cpu_conv_shape *s = &p.s;

    s->out_height = s->height + 2 * s->padding[0] - 2;
    s->out_width = s->width + 2 * s->padding[1] - 2;
    s->kernel[0] = s->kernel[1] = 3;
    s->stride[0] = s->stride[1] = s->groups = 1;
    p.x = random_values(s->images * s->height * s->width * s->channels);
    p.w = random_values(s->out * s->channels * 9);
    p.y = random_values(s->images * s->out_height * s->out_width * s->out);
    p.bias = random_values(s->out);
    return p;
}

static void define(problem *p)
{
    const cpu_conv_shape *s = &p->s;

    p->want = calloc((size_t)result(p)->count, sizeof(double));
    assert_non_null(p->want);
    for (int64_t n = 0; n < s->images; n++)
        for (int64_t h = 0; h < s->out_height; h++)
            for (int64_t w = 0; w < s->out_width; w++)
                for (int64_t place = 0; place < 9; place++) add_products(p, n, h, w, place);
}

static void drop(problem *p)
{
    free(p->x.base);
    free(p->w.base);
    free(p->y.base);
    free(p->bias.base);
    free(p->want);
}

static void run(problem *p, const cpu_kernels *kernels, uint32_t threads, bool with_bias, bool relu, bool add)
{
    cpu_winograd w;
    guarded scratch;

    cpu_winograd_init(&w, p->what, &p->s, threads);
    assert_int_equal(w.scratch_bytes % sizeof(float), 0);
    scratch = allocate((int64_t)(w.scratch_bytes / sizeof(float)));
    for (int64_t i = 0; i < scratch.count; i++) scratch.data[i] = (float)NAN;
    cpu_winograd_run(&w, kernels, scratch.data, p->x.data, p->w.data, with_bias ? p->bias.data : NULL, p->y.data, relu,
                     add);
    check_guards(&scratch);
    check_guards(&p->x);
    check_guards(&p->w);
    check_guards(&p->y);
    free(scratch.base);
}

/* ---- against the definition -------------------------------------------------------------------------------------- */
enum { MANY_BLOCKS = 5 };
static const cpu_conv_shape shapes[] = {
    {.images = 1, .channels = 16, .height = 3, .width = 3, .out = 16},
    {.images = 3, .channels = 16, .height = 6, .width = 5, .out = 48, .padding = {1, 1}},
    {.images = 2, .channels = 48, .height = 13, .width = 10, .out = 32, .padding = {0, 1}, .weight_last = true},
    {.images = 2, .channels = 32, .height = 4, .width = 4, .out = 80, .padding = {2, 2}},
    {.images = 2, .channels = 112, .height = 12, .width = 12, .out = 128, .padding = {1, 1}},
    {.images = 4,
     .channels = 32,
     .height = 22,
     .width = 18,
     .out = 48,
     .padding = {1, 1},
     .weight_last = true}, /* many blocks */
    {.images = 1, .channels = 64, .height = 1, .width = 30, .out = 16, .padding = {1, 2}, .weight_last = true},
};

/* Of the largest, with random numbers: a few times 2^-24. */
static void compare_all(problem *p, const double *before, bool with_bias, bool relu)
{
    const guarded *r = result(p);
    double largest = 0.0;

    for (int64_t i = 0; i < r->count; i++) {
        if (with_bias) p->want[i] += (double)p->bias.data[i % p->s.out];
        if (before != NULL) p->want[i] += before[i];
        if (fabs(p->want[i]) > largest) largest = fabs(p->want[i]);
        if (relu && p->want[i] < 0.0) p->want[i] = 0.0;
    }
    for (int64_t i = 0; i < r->count; i++)
        if (!(fabs((double)r->data[i] - p->want[i]) <= 5e-6 * largest))
            fail_msg("kind %d, %ld x %ld: [%ld] is %.9g, should be %.9g; the largest is %.3g", p->what,
                     (long)p->s.height, (long)p->s.width, (long)i, (double)r->data[i], p->want[i], largest);
}

static void one_by_definition(const cpu_conv_shape *s, int what, int flags)
{
    problem p = make(s, what);
    bool forward = what == CPU_CONV_FORWARD, with_bias = forward && (flags & 1) != 0,
         relu = forward && (flags & 2) != 0, add = what == CPU_CONV_GRAD_WEIGHT && (flags & 1) != 0;
    double *before = NULL;

    define(&p);
    if (add) {
        before = calloc((size_t)p.w.count, sizeof(*before));
        assert_non_null(before);
        for (int64_t i = 0; i < p.w.count; i++) before[i] = (double)p.w.data[i];
    } else {
        for (int64_t i = 0; i < result(&p)->count; i++) result(&p)->data[i] = (float)NAN; /* all of it is written */
    }
    run(&p, cpu_kernels_variants[ddp_isa_best()], 1, with_bias, relu, add);
    compare_all(&p, before, with_bias, relu);
    free(before);
    drop(&p);
}

static void test_definition(void **state)
{
    static const int flags[] = {[CPU_CONV_FORWARD] = 4, [CPU_CONV_GRAD_INPUT] = 1, [CPU_CONV_GRAD_WEIGHT] = 2};

    (void)state;
    for (size_t i = 0; i < DDP_COUNT(shapes); i++)
        for (int what = 0; what < 3; what++)
            for (int k = 0; k < flags[what]; k++) one_by_definition(&shapes[i], what, k);
}

/* ---- the same bits ----------------------------------------------------------------------------------------------- */
#if defined(__SANITIZE_ADDRESS__)
enum { MORE_THREADS = 4 }; /* one and five: portable code takes fifty times as long there */
#else
enum { MORE_THREADS = 1 };
#endif

static void test_same_bits(void **state)
{
    const cpu_kernels *const *variants = cpu_kernels_variants + ddp_isa_best();
    int count = DDP_ISA_COUNT - ddp_isa_best();

    (void)state;
    for (size_t i = 0; i < DDP_COUNT(shapes); i++)
        for (int what = 0; what < 3; what++) {
            problem p = make(&shapes[i], what);
            guarded *r = result(&p);
            float *first = malloc((size_t)r->count * sizeof(float));

            assert_non_null(first);
            if (what == CPU_CONV_GRAD_WEIGHT) memset(r->data, 0, (size_t)r->count * sizeof(float));
            run(&p, variants[0], 1, true, true, true);
            memcpy(first, r->data, (size_t)r->count * sizeof(float));
            for (int v = 0; v < count; v++)
                for (uint32_t threads = 1; threads < 6; threads += MORE_THREADS) {
                    if (what == CPU_CONV_GRAD_WEIGHT) memset(r->data, 0, (size_t)r->count * sizeof(float));
                    run(&p, variants[v], threads, true, true, true);
                    if (memcmp(first, r->data, (size_t)r->count * sizeof(float)) != 0)
                        fail_msg("kind %d of shape %zu: %s with %u threads has other bits than %s with one", what, i,
                                 variants[v]->isa, threads, variants[0]->isa);
                }
            free(first);
            drop(&p);
        }
}

/* That the shape meant to be split is: into blocks of which the last is smaller, among as many threads as there are. */
static void test_split(void **state)
{
    cpu_conv_shape s = shapes[MANY_BLOCKS];
    cpu_winograd w;

    (void)state;
    s.out_height = s.height;
    s.out_width = s.width;
    for (int what = 0; what < 3; what++)
        for (uint32_t threads = 1; threads < 4; threads++) {
            cpu_winograd_init(&w, what, &s, threads);
            assert_int_equal(w.threads, threads);
            if (threads == 1) assert_true(w.tiles.count > 2 * w.block && w.tiles.count % w.block != 0);
        }
    cpu_winograd_init(&w, CPU_CONV_GRAD_INPUT, &s, 200); /* 20 steps of 6 tiles */
    assert_int_equal(w.threads, 20);
    s.channels = s.out = 512;
    cpu_winograd_init(&w, CPU_CONV_FORWARD, &s, 64);
    assert_true(w.scratch_bytes < UINT64_C(5) * 36 * 512 * 512 * 4);
}

static void test_not_a_number(void **state)
{
    problem p = make(&shapes[1], CPU_CONV_FORWARD);

    (void)state;
    p.x.data[0] = (float)NAN; /* of the first image's first pixel: relu lets it pass */
    run(&p, cpu_kernels_variants[ddp_isa_best()], 1, true, true, false);
    assert_int_equal(isnan(p.y.data[0]) != 0, 1);
    assert_int_equal(isnan(p.y.data[p.y.count - 1]) != 0, 0);
    drop(&p);
}

/* ---- which suit -------------------------------------------------------------------------------------------------- */
static void test_suits(void **state)
{
    const cpu_conv_shape good = {.images = 8,
                                 .channels = 32,
                                 .height = 8,
                                 .width = 8,
                                 .out = 32,
                                 .out_height = 8,
                                 .out_width = 8,
                                 .kernel = {3, 3},
                                 .stride = {1, 1},
                                 .padding = {1, 1},
                                 .groups = 1};
    cpu_conv_shape bad[9], few = good;

    (void)state;
    assert_true(cpu_winograd_suits(CPU_CONV_FORWARD, &good, 4));
    for (size_t i = 0; i < DDP_COUNT(bad); i++) bad[i] = good;
    bad[0].stride[1] = 2;
    bad[1].kernel[0] = 5;
    bad[2].groups = 2;
    bad[3].channels = 24;
    bad[4].out = 40;
    bad[5].padding[0] = 3;
    bad[6].images = 7; /* 28 tiles for 32 channels */
    bad[7].out = 48;
    bad[8].images = 128; /* four of sixteen places of a tile */
    bad[8].height = bad[8].width = bad[8].out_height = bad[8].out_width = 2;
    for (size_t i = 0; i < DDP_COUNT(bad); i++)
        if (cpu_winograd_suits(CPU_CONV_FORWARD, &bad[i], 4)) fail_msg("shape %zu suits", i);
    assert_true(cpu_winograd_suits(CPU_CONV_GRAD_WEIGHT, &good, 4));
    assert_false(cpu_winograd_suits(CPU_CONV_GRAD_WEIGHT, &good, 5)); /* 2 x 2 groups of 16 weights */
    few.images =
        32; /* 6 x 6 from 4 x 4: the gradient of the input has four tiles for what the definition does in one */
    few.height = few.width = 6;
    few.padding[0] = few.padding[1] = 0;
    few.out_height = few.out_width = 4;
    assert_true(cpu_winograd_suits(CPU_CONV_FORWARD, &few, 1));
    assert_false(cpu_winograd_suits(CPU_CONV_GRAD_INPUT, &few, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_definition), cmocka_unit_test(test_same_bits),
                                       cmocka_unit_test(test_split), cmocka_unit_test(test_not_a_number),
                                       cmocka_unit_test(test_suits)};

    seed = test_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
