/* tests/unit/device/test_device_cached.c -- what the CPU device has for text that is made token by token: a row times a
 * matrix, and attention over keys and values that are kept. Every variant gives the same bits; a whole context by
 * pieces gives what it gives at once; positions that are not there. */
#include "support/device_variants.h"

/* A row times a matrix, either way round, as a whole and in two parts; and attention over a cache. */
static void row_variants(int64_t n, int64_t cols, int64_t stride)
{
    static float x[MOST], w[MOST], want[MOST], got[MOST], parts[MOST];
    int64_t cut = cols / 3;

    fill(x, n);
    fill(w, MOST);
    for (int dots = 0; dots < 2; dots++)
        for (int v = variant_count - 1; v >= 0; v--) {
            float *to = v == variant_count - 1 ? want : got;
            poison(want == to ? want : got, MOST);
            poison(parts, MOST);
            if (dots) {
                variants[v]->row_dots(to, x, w, stride, n, cols);
                variants[v]->row_dots(parts, x, w, stride, n, cut);
                variants[v]->row_dots(parts + cut, x, w + cut * stride, stride, n, cols - cut);
            } else {
                variants[v]->row_product(to, x, w, stride, n, cols);
                variants[v]->row_product(parts, x, w, stride, n, cut);
                variants[v]->row_product(parts + cut, x, w + cut, stride, n, cols - cut);
            }
            same(dots ? "dots" : "row product", v, to, want, sizeof(want));
            same("its parts", v, parts, to, sizeof(parts));
        }
}

static void test_row_variants(void **state)
{
    (void)state;
    for (int64_t n = 1; n <= 70; n += 1 + n / 4)
        for (int64_t cols = 1; cols <= 70; cols += 1 + cols / 3)
            row_variants(n, cols, n > cols ? n + n % 3 : cols + n % 3);
}

static void cached_variants(cpu_cached_attention a)
{
    static float q[MOST], k[MOST], v[MOST], keys[MOST], rows[MOST], got[3][MOST], want[3][MOST];
    int64_t cache = a.kv_heads * a.capacity * a.size;

    a.q_wide = a.heads * a.size;
    a.kv_wide = a.kv_heads * a.size;
    a.q = q;
    a.k = k;
    a.v = v;
    assert_true(cache <= MOST && a.length * a.q_wide <= MOST);
    fill(q, MOST);
    fill(k, MOST);
    fill(v, MOST);
    fill(keys, MOST);
    fill(rows, MOST);
    for (int w = variant_count - 1; w >= 0; w--) {
        float(*to)[MOST] = w == variant_count - 1 ? want : got;
        int64_t floats = variants[w]->cached_attention_scratch(&a);
        float *scratch = aligned((size_t)(floats + CANARY) * 4);

        poison(to[0], MOST);
        memcpy(to[1], keys, sizeof(keys));
        memcpy(to[2], rows, sizeof(rows));
        a.keys = to[1];
        a.values = to[2];
        for (int64_t h = 0; h < a.kv_heads; h++) {
            poison(scratch, (size_t)(floats + CANARY));
            variants[w]->cached_attention(&a, h, to[0], scratch);
            for (int64_t i = 0; i < CANARY; i++) assert_true(isnan(scratch[floats + i]));
        }
        free(scratch);
        same("attention over a cache", w, to, want, sizeof(want));
    }
}

static void test_cached_variants(void **state)
{
    /* new positions, heads, those of k and v, size, capacity, start */
    static const int64_t shapes[][6] = {{1, 1, 1, 1, 1, 0},    {1, 2, 2, 16, 48, 47},  {1, 3, 3, 5, 33, 20},
                                        {3, 2, 2, 16, 64, 30}, {8, 2, 2, 32, 64, 56},  {17, 3, 3, 16, 32, 15},
                                        {9, 2, 2, 7, 40, 31},  {70, 1, 1, 16, 80, 10}, {1, 6, 2, 16, 48, 7},
                                        {9, 4, 1, 16, 48, 5},  {3, 4, 2, 7, 40, 3}};

    (void)state;
    for (size_t i = 0; i < DDP_COUNT(shapes); i++)
        cached_variants((cpu_cached_attention){.length = shapes[i][0],
                                               .heads = shapes[i][1],
                                               .kv_heads = shapes[i][2],
                                               .size = shapes[i][3],
                                               .capacity = shapes[i][4],
                                               .start = &shapes[i][5],
                                               .scale = 0.3f});
}

/* T, heads, d */
static const int64_t shapes[][3] = {{1, 1, 6},  {3, 1, 5},   {7, 2, 3},  {16, 2, 16}, {31, 2, 32}, {32, 1, 64},
                                    {33, 3, 8}, {64, 2, 20}, {65, 1, 7}, {97, 2, 16}, {130, 2, 17}};

/* ---- a cache ----------------------------------------------------------------------------------------------------- */
/* A program on the device, with arenas of its own but for parameters and buffers. */
typedef struct ready {
    fixture *f;
    ddp_program *p;
    ddp_lowered *l;
    ddp_planned *planned;
    ddp_exec *exec;
    ddp_instance *instance;
    float *arena;
} ready;

static ready ready_make(fixture *f, ddp_program *p, const float *params, float *buffers)
{
    ready r = {.f = f, .p = p};
    ddp_bind bind = {.struct_size = sizeof(bind), .params = params, .buffers = buffers};

    OK(f, f->ops->lower(f->device, p, &r.l, &f->err));
    OK(f, ddp_lowered_check(p, r.l, &f->err));
    OK(f, ddp_plan_create(p, r.l, NULL, &r.planned, &f->err));
    OK(f, f->ops->compile(f->device, p, r.l, &r.planned->plan, &r.exec, &f->err));
    bind.arena = r.arena = aligned((size_t)r.planned->plan.arena_bytes);
    poison(r.arena, (size_t)r.planned->plan.arena_bytes / 4);
    OK(f, f->ops->instance_create(r.exec, &bind, &r.instance, &f->err));
    return r;
}

static ddp_status ready_run(ready *r, int64_t *tokens, int64_t start)
{
    void *inputs[] = {tokens, NULL, &start};
    ddp_run run = {.struct_size = sizeof(run), .inputs = inputs};

    return r->f->ops->run(r->instance, &run, 0, r->l->kernel_count, &r->f->err);
}

static const float *ready_logits(const ready *r)
{
    return r->arena + r->planned->plan.value_offset[r->p->metrics[0]] / 4;
}

static void ready_free(ready *r)
{
    r->f->ops->instance_free(r->instance);
    r->f->ops->exec_free(r->exec);
    ddp_plan_free(r->planned);
    r->f->ops->lowered_free(r->f->device, r->l);
    ddp_program_free(r->p);
    free(r->arena);
}

static void near_logits(const ready *whole, const ready *piece, int64_t start, int64_t count, int64_t vocabulary)
{
    const float *want = ready_logits(whole) + start * vocabulary, *is = ready_logits(piece);
    double bound = whole->f->half ? 3e-2 : 1e-5; /* in bf16 what rounding moves is rounded again by the next layer */

    for (int64_t i = 0; i < count * vocabulary; i++)
        if (!(fabs((double)is[i] - (double)want[i]) < bound * (1.0 + fabs((double)want[i]))))
            fail_msg("position %lld + %lld: %g, not %g", (long long)start, (long long)i, (double)is[i],
                     (double)want[i]);
}

/* The whole context's logits by pieces of `many`, then of one, each over what the pieces before have kept. */
static void check_pieces(fixture *f, const built *b, const gpt *m, int64_t many)
{
    ddp_program *p;
    float *params = aligned(b->layout->elements * 4), *cache;
    int64_t tokens[256] = {0}, start = 0;
    ready whole, piece, one;

    for (uint64_t i = 0; i < b->layout->elements; i++) params[i] = random_float(&seed) * 0.5f;
    for (int64_t t = 0; t < m->length; t++) tokens[t] = (int64_t)(random_bits(&seed) % (uint64_t)m->vocabulary);
    OK(f, ddp_program_create_outputs(b->g, b->layout, 1, &p, &f->err));
    whole = ready_make(f, p, params, NULL);
    OK(f, ddp_program_create_cached(b->g, b->layout, many, &p, &f->err));
    cache = aligned(ddp_program_buffer_elements(p) * 4);
    poison(cache, ddp_program_buffer_elements(p));
    piece = ready_make(f, p, params, cache);
    OK(f, ddp_program_create_cached(b->g, b->layout, 1, &p, &f->err));
    one = ready_make(f, p, params, cache);
    OK(f, ready_run(&whole, tokens, 0));
    for (; start + 2 * many <= m->length; start += many) {
        OK(f, ready_run(&piece, tokens + start, start));
        near_logits(&whole, &piece, start, many, m->vocabulary);
    }
    for (; start < m->length; start++) {
        OK(f, ready_run(&one, tokens + start, start));
        near_logits(&whole, &one, start, 1, m->vocabulary);
    }
    OK(f, ready_run(&piece, tokens + m->length - many, m->length - many)); /* over what is known */
    near_logits(&whole, &piece, m->length - many, many, m->vocabulary);
    ready_free(&whole);
    ready_free(&piece);
    ready_free(&one);
    free(params);
    free(cache);
}

static void test_cached_models(void **state)
{
    fixture *f = *state;

    for (size_t i = 0; i < DDP_COUNT(shapes); i++) {
        const gpt m = {.length = shapes[i][0] + (int64_t)i % 2,
                       .heads = shapes[i][1],
                       .size = shapes[i][2],
                       .vocabulary = 5 + 17 * (int64_t)(i % 4),
                       .layers = 2,
                       .dropout = 0.1,
                       .tied = i % 2 == 0,
                       .post = i % 5 == 2};
        built b = gpt_build(f, &m, 1, false);

        check_pieces(f, &b, &m, 1 + m.length / 3);
        unbuild(&b);
    }
}

/* Positions that are not there, by one position and by several. */
static void test_bad_start(void **state)
{
    static const int64_t starts[] = {-1, 9, INT64_MAX, INT64_MIN};
    const gpt m = {.length = 8, .heads = 1, .size = 4, .vocabulary = 11, .layers = 1};
    fixture *f = *state;
    built b = gpt_build(f, &m, 1, false);
    float *params = aligned(b.layout->elements * 4), cache[2 * 16 * 4];
    int64_t tokens[3] = {0};
    ddp_program *p;
    ready r;

    memset(params, 0, b.layout->elements * 4);
    OK(f, ddp_program_create_cached(b.g, b.layout, 3, &p, &f->err));
    r = ready_make(f, p, params, cache);
    for (size_t i = 0; i < DDP_COUNT(starts); i++) {
        char text[64];

        assert_int_equal(ready_run(&r, tokens, starts[i]), DDP_ERR_DATA);
        (void)snprintf(text, sizeof(text), "3 from position %lld on", (long long)starts[i]);
        assert_non_null(strstr(f->err.msg, text));
        assert_non_null(strstr(f->err.msg, "\"wpe\" has 11 positions"));
    }
    OK(f, ready_run(&r, tokens, 8)); /* the last that the table and the cache have */
    ready_free(&r);
    free(params);
    unbuild(&b);
}

/* ---- main -------------------------------------------------------------------------------------------------------- */
int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_row_variants), cmocka_unit_test(test_cached_variants),
                                       BOTH(test_cached_models), HALF(test_cached_models), ONE(test_bad_start)};

    variants = cpu_kernels_variants + ddp_isa_best();
    variant_count = DDP_ISA_COUNT - ddp_isa_best();
    seed = test_seed();
    return cmocka_run_group_tests_name("cached programs on the CPU device", tests, NULL, NULL);
}
