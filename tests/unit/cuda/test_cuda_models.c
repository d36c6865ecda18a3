/* tests/unit/cuda/test_cuda_models.c -- whole models on the CUDA device over its doubles, against the double
 * reference: kernels fused, in place, views, conversions between types and layouts, gradients that accumulate; in
 * f32 exactly, in bf16 as near as its roundings allow. Also what is fused, and which values are stored in bf16. */
#include "cuda_device_util.h"
#include "common/lower.h"
#include "support/device_models.h"
#ifndef DDP_CUDA_REAL
#include "doubles/cublaslt_double.h"
#include <cublasLt.h>
#endif

static uint64_t seed;

/* Twice: the second run of a range is a graph's. */
static void check(fixture *f, const built *b, int64_t classes, double scale, double tolerance, bool by_scale)
{
    built_check(b,
                (job){.f = f,
                      .seed = &seed,
                      .classes = classes,
                      .scale = scale,
                      .tolerance = tolerance,
                      .by_scale = by_scale && !f->half,
                      .by_norm = f->half},
                2);
}

static void test_mlp(void **state)
{
    static const int64_t batches[] = {1, 9 LARGE(64)};
    fixture *f = *state;

    for (int i = 0; i < 24; i++) {
        mlp m = mlp_case(i, f->half);
        m.width = 5 + 11 * (i % 4); /* the double takes each thread by itself */
        m.features = 13 + 11 * (i % 3);
        for (size_t k = 0; k < 2 * DDP_COUNT(batches); k++) {
            built b = mlp_build(f, &m, batches[k / 2], k % 2 == 0);
            check(f, &b, m.classes, f->half ? 0.25 : 0.3, f->half ? 0.1 : 2e-5, false);
            unbuild(&b);
        }
    }
}

static void test_gpt(void **state)
{
    static const int64_t shapes[][3] = {
        {1, 1, 6}, {7, 2, 3}, {16, 2, 16}, {33, 3, 8}, {20, 1, 64} LARGE({128, 4, 64}, {300, 2, 64})}; /* T, heads, d */
    fixture *f = *state;

    for (size_t i = 0; i < 2 * DDP_COUNT(shapes); i++) {
        const int64_t *s = shapes[i / 2];
        const gpt m = {.length = s[0],
                       .heads = s[1],
                       .size = s[2],
                       .vocabulary = 5 + 17 * (int64_t)(i % 3),
                       .layers = 1 + (int)i % 2,
                       .dropout = i % 3 == 1 ? 0.3 : 0.0,
                       .tied = i % 2 == 0,
                       .full = i % 4 == 3,
                       .post = i % 5 == 2,
                       .gated = i % 4 >= 2};
        for (int training = 0; training < 2; training++) {
            built b = gpt_build(f, &m, 1 + (int64_t)i % 2, training != 0);
            check(f, &b, m.vocabulary, 0.5, f->half ? 0.1 : 1e-4, true);
            unbuild(&b);
        }
    }
}

#ifndef DDP_CUDA_REAL
/* The product with gelu's gradient gives the sums of the bias in front, where the library has none without them. */
static void test_sums(void **state)
{
    const gpt m = {.length = 7, .heads = 2, .size = 8, .vocabulary = 11, .layers = 2, .tied = true};
    fixture *f = *state;
    built b;

    cublaslt_double()->refused = CUBLASLT_EPILOGUE_DGELU;
    cublaslt_double()->sums = 0;
    b = gpt_build(f, &m, 3, true);
    assert_int_equal(named(f, &b, "linear_grad_input+gelu_grad+bias"), 2);
    check(f, &b, m.vocabulary, 0.5, 0.1, true);
    unbuild(&b);
    assert_true(cublaslt_double()->sums > 0);
}

static int sums_teardown(void **state)
{
    cublaslt_double()->refused = 0;
    return cuda_teardown(state);
}
#endif

/* The last layer and its loss in pieces of rows: even ones, and a shorter last one. */
static int setup_pieces(void **state, uint32_t precision, bool stream)
{
    cuda_config config = cuda_defaults(true);

    config.logits = 1024;
    config.residual = stream;
    return cuda_setup_with(state, &config, precision, true);
}

static int open_pieces(void **state) { return setup_pieces(state, DDP_PRECISION_F32, false); }
static int open_pieces_half(void **state) { return setup_pieces(state, DDP_PRECISION_BF16, false); }
static int open_pieces_stream(void **state) { return setup_pieces(state, DDP_PRECISION_BF16, true); }

static void test_head(void **state)
{
    static const int64_t shapes[][4] = {
        {64, 2, 8, 6}, {50, 1, 6, 3}, {128, 1, 16, 1}, {16, 1, 4, 1}}; /* T, heads, d, n */
    fixture *f = *state;

    for (size_t i = 0; i < 2 * DDP_COUNT(shapes); i++) {
        const int64_t *s = shapes[i / 2];
        const gpt m = {.length = s[0],
                       .heads = s[1],
                       .size = s[2],
                       .vocabulary = 33 + 6 * (int64_t)(i % 3),
                       .layers = 1,
                       .tied = i % 2 == 0};
        for (int training = 0; training < 2; training++) {
            built b = gpt_build(f, &m, s[3], training != 0);
            assert_int_equal(named(f, &b, training ? "linear+cross_entropy+grads" : "linear+cross_entropy"), 1);
            assert_int_equal(named(f, &b, "linear"), 0);
            check(f, &b, m.vocabulary, 0.5, f->half ? 0.1 : 1e-4, true);
            unbuild(&b);
        }
    }
}

/* Kernels that give them besides something else. */
static int sums_of_biases(fixture *f, const built *b)
{
    return named(f, b, "linear_grad_weight+bias") + named(f, b, "linear_grad_input+gelu_grad+bias") +
           named(f, b, "layer_norm_grad+bias") + named(f, b, "layer_norm_grad+add+bias");
}

/* With gelu and layer norm computed again, what is fused stays fused. */
static void test_recompute(void **state)
{
    const gpt m = {.length = 16, .heads = 2, .size = 8, .vocabulary = 11, .layers = 2, .tied = true};
    fixture *f = *state;
    built b = gpt_build(f, &m, 2, true);
    int sums = sums_of_biases(f, &b);

    OK(f, ddp_program_recompute(b.p, &f->err));
    assert_int_equal(sums_of_biases(f, &b), sums);
    assert_int_equal(named(f, &b, "gelu"), 2);
    assert_int_equal(named(f, &b, "layer_norm"), 1 + 4);
    check(f, &b, m.vocabulary, 0.5, f->half ? 0.1 : 1e-4, true);
    unbuild(&b);
}

/* ---- images ------------------------------------------------------------------------------------------------------ */
static void test_images(void **state)
{
    static const network nets[] = {net_smooth, net_lenet, net_resnet, net_odd, net_shared, net_dropped};
    fixture *f = *state;

    for (size_t i = 0; i < (f->half ? 1 : DDP_COUNT(nets)); i++)
        for (int k = 0; k < 4; k++) {
            built b = net_build(f, nets[i], k < 2 ? 2 : 5, k % 2 == 0);
            check(f, &b, CLASSES, f->half ? 0.5 : 0.0, f->half ? 0.1 : 2e-4, false);
            unbuild(&b);
        }
}

/* The same of whole blocks. */
static void test_recompute_blocks(void **state)
{
    const gpt m = {.length = 9, .heads = 2, .size = 8, .vocabulary = 22, .layers = 3, .tied = true, .dropout = 0.2};
    fixture *f = *state;
    built b = gpt_build(f, &m, 2, true);
    uint32_t nodes = b.p->node_count;

    OK(f, ddp_program_recompute_blocks(b.p, 3, &f->err));
    assert_true(b.p->node_count > nodes);
    check(f, &b, m.vocabulary, 0.5, f->half ? 0.1 : 1e-4, true);
    unbuild(&b);
}

static void test_recomputed_norm(void **state)
{
    check_recomputed_norm((job){.f = *state, .seed = &seed, .classes = CLASSES, .tolerance = 2e-4}, 2);
}

/* ---- what is fused, and in which type it lies -------------------------------------------------------------------- */
/* By whichever way, which stands in brackets. */
static bool same_kernel(const char *name, const char *want)
{
    size_t n = strlen(want);

    return strncmp(name, want, n) == 0 && (name[n] == '\0' || name[n] == '(');
}

/* Conversions of inputs that are kernels of their own, and those that a layer norm's gradient spares: it writes what
 * the products read in bf16 besides. */
static void count_conversions(const ddp_lowered *lowered, int *apart, int *spared)
{
    const low_lowered *l = lowered->device_data;

    *apart = *spared = 0;
    for (uint32_t i = 0; i < l->kernel_count; i++) {
        *spared += l->kernels[i].half >= 0;
        for (uint32_t c = 0; c < l->change_count[i]; c++) *apart += !l->changes[i][c].ready;
    }
}

static bool has_dnn(const fixture *f)
{
    ddp_device_info info = {.struct_size = sizeof(info)};

    f->ops->describe(f->device, &info);
    return strstr(info.library, "cuDNN") != NULL;
}

/* Which elements relu has let through follows from x where a batch norm alone stands in front of it: its output is not
 * read then. */
static void check_signs(fixture *f, const built *b)
{
    ddp_lowered *l;
    uint32_t of_y = 0, of_x = 0;

    OK(f, f->ops->lower(f->device, b->p, &l, &f->err));
    const low_lowered *own = l->device_data;
    for (uint32_t i = 0; i < own->kernel_count; i++) {
        const low_kernel *k = &own->kernels[i];
        if (strstr(k->name, "relu_grad+batch_norm_grad") == NULL) continue;
        of_y += k->in[LOW_NORM_REF] >= 0;
        of_x += k->in[LOW_NORM_REF + 1] >= 0;
    }
    assert_int_equal(of_x, 4);
    assert_int_equal(of_y, 3);
    f->ops->lowered_free(f->device, l);
}

static void test_lowering(void **state)
{
    static const char *const want[] = {"embedding",
                                       "position",
                                       "layer_norm",
                                       "linear+bias",
                                       "attention",
                                       "linear+bias",
                                       "add+layer_norm",
                                       "linear+bias+gelu",
                                       "linear+bias",
                                       "add+layer_norm",
                                       "linear",
                                       "cross_entropy+grad",
                                       "linear_grad_weight",
                                       "linear_grad_input",
                                       "layer_norm_grad+bias",
                                       "linear_grad_weight",
                                       "linear_grad_input+gelu_grad",
                                       "linear_grad_weight+bias",
                                       "linear_grad_input",
                                       "layer_norm_grad+add+bias",
                                       "linear_grad_weight",
                                       "linear_grad_input",
                                       "attention_grad",
                                       "linear_grad_weight+bias",
                                       "linear_grad_input",
                                       "layer_norm_grad+add",
                                       "position_grad",
                                       "embedding_grad"};
    const gpt m = {.length = 8, .heads = 2, .size = 8, .vocabulary = 11, .layers = 1, .tied = true};
    fixture *f = *state;
    built b = gpt_build(f, &m, 2, true);
    ddp_lowered *l;
    uint64_t stored = 0;
    int apart, spared;

    OK(f, f->ops->lower(f->device, b.p, &l, &f->err));
    for (uint32_t i = 0; i < l->kernel_count && i < DDP_COUNT(want); i++) {
        const char *name = f->half && i == 16   ? "linear_grad_input+gelu_grad+bias" /* and so not in the next one */
                           : f->half && i == 17 ? "linear_grad_weight"
                                                : want[i];
        if (!same_kernel(l->kernels[i].name, name)) fail_msg("kernel %u is %s", i, l->kernels[i].name);
    }
    assert_int_equal(l->kernel_count, DDP_COUNT(want));
    assert_int_equal(l->kernels[11].inplace_count, 1); /* the gradient in place of the logits */
    for (uint32_t v = 0; v < b.p->value_count; v++) stored += l->storage[v].bytes;
    count_conversions(l, &apart, &spared);
    assert_int_equal(spared, f->half ? 2 : 0);
    assert_int_equal(apart, 0);
    f->ops->lowered_free(f->device, l);
    /* the residual stream, statistics, its gradients and the loss are f32, all else is half as large */
    assert_true(f->half ? stored < 20000 : stored > 31000);
    unbuild(&b);
    b = net_build(f, net_resnet, 2, true);
    assert_int_equal(named(f, &b, "batch_norm+relu"), 4);
    assert_int_equal(named(f, &b, "batch_norm+add+relu"), 3);
    assert_int_equal(named(f, &b, "relu"), 0);
    assert_int_equal(named(f, &b, "relu_grad"), 0);
    assert_int_equal(named(f, &b, "relu_grad+batch_norm_grad"), 5);
    assert_int_equal(named(f, &b, "add+relu_grad+batch_norm_grad"), 2);
    check_signs(f, &b);
    if (has_dnn(f)) assert_non_null(strstr(cuda_log, "cuDNN takes ")); /* what it was is told */
    unbuild(&b);
}

/* With residual bf16 nothing as large as the stream is stored in f32, so no product needs a copy of it. */
static void all_in_half(fixture *f, const built *b, uint64_t stream, uint32_t values)
{
    uint32_t seen = 0;
    ddp_lowered *l;
    int apart, spared;

    OK(f, f->ops->lower(f->device, b->p, &l, &f->err));
    for (uint32_t i = 0; i < b->p->value_count; i++) {
        const ddp_value *v = &b->p->values[i];
        if (v->kind != DDP_VALUE_ACT || v->dtype != DDP_F32 || (uint64_t)v->elements < stream) continue;
        if (l->storage[i].bytes > (uint64_t)v->elements * sizeof(uint16_t)) fail_msg("value %u is not in bf16", i);
        seen += l->storage[i].bytes > 0;
    }
    assert_int_equal(seen, values);
    count_conversions(l, &apart, &spared);
    assert_int_equal(apart, 0);
    assert_int_equal(spared, 0);
    f->ops->lowered_free(f->device, l);
}

static void test_stream(void **state)
{
    gpt m = {.length = 8, .heads = 2, .size = 8, .vocabulary = 11, .layers = 2};
    fixture *f = *state;
    built b = gpt_build(f, &m, 2, true);

    all_in_half(f, &b, 2 * 8 * 2 * 8, 39);
    assert_int_equal(named(f, &b, "add+layer_norm"), 4); /* what is fused stays fused */
    assert_int_equal(named(f, &b, "layer_norm_grad+add") + named(f, &b, "layer_norm_grad+add+bias"), 4);
    unbuild(&b);
    m.post = true;
    b = gpt_build(f, &m, 2, true);
    all_in_half(f, &b, 2 * 8 * 2 * 8, 25);
    unbuild(&b);
}

/* ---- by which of several ways ------------------------------------------------------------------------------------ */
static void expect_attention(fixture *f, double dropout, const char *forward, const char *gradient)
{
    const gpt m = {.length = 16, .heads = 2, .size = 64, .vocabulary = 11, .layers = 2, .dropout = dropout};
    built b = gpt_build(f, &m, 2, true);

    assert_int_equal(named(f, &b, forward), 2);
    assert_int_equal(named(f, &b, gradient), 2);
    unbuild(&b);
}

static int warnings(void)
{
    int n = 0;

    for (const char *at = cuda_log; (at = strstr(at, "on f32 cores")) != NULL; at++) n++;
    return n;
}

static void test_paths(void **state)
{
    fixture *f = *state;
    bool dnn = has_dnn(f);
    built b;

#ifdef DDP_CUDA_REAL
    if (dnn) skip(); /* which shapes it takes is its own affair */
#endif
    b = net_build(f, net_resnet, 2, true);
    assert_int_equal(named(f, &b, "conv2d(cudnn)") > 0, dnn);
    assert_int_equal(named(f, &b, "conv2d_grad_weight(cudnn)") > 0, dnn);
    assert_int_equal(named(f, &b, "conv2d_grad_input(cudnn)") > 0, dnn);
    assert_int_equal(warnings(), f->half && !dnn ? 1 : 0);
    unbuild(&b);
    if (f->half)
        expect_attention(f, 0.0, dnn ? "attention(cudnn)" : "attention(flash)",
                         dnn ? "attention_grad(cudnn)" : "attention_grad(flash)");
    else
        expect_attention(f, 0.0, "attention", "attention_grad");
    expect_attention(f, 0.1, "attention", "attention_grad");
    assert_int_equal(warnings(), f->half ? 1 : 0); /* one a device */
}

#ifndef DDP_CUDA_REAL
static int lines_about(int level, const char *text)
{
    char head[8];
    int n = 0;

    (void)snprintf(head, sizeof(head), "%d ", level);
    for (const char *at = cuda_log; *at != '\0'; at = strchr(at, '\n') + 1) {
        const char *found = strstr(at, text);

        n += strncmp(at, head, strlen(head)) == 0 && found != NULL && found < strchr(at, '\n');
    }
    return n;
}

/* What cuDNN has nothing for is told with cuDNN's reason: the first as a warning, others of another shape at level
 * debug. */
static void test_why_own(void **state)
{
    fixture *f = *state;
    built b;

    cudnn_double()->no_plan = 1;
    expect_attention(f, 0.0, "attention(flash)", "attention_grad(flash)");
    assert_int_equal(lines_about(DDP_LOG_WARN, "by the device's own kernel, not by cuDNN: "), 1);
    assert_int_equal(lines_about(DDP_LOG_WARN, "gives the same bits each time"), 1);
    b = gpt_build(f, &(gpt){.length = 16, .heads = 1, .size = 64, .vocabulary = 11, .layers = 1}, 2, true);
    assert_int_equal(named(f, &b, "attention(flash)"), 1);
    unbuild(&b);
    cudnn_double()->no_plan = 0;
    assert_int_equal(lines_about(DDP_LOG_WARN, "not by cuDNN"), 1);
    assert_int_equal(lines_about(DDP_LOG_DEBUG, "not by cuDNN"), 1);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        F32(test_mlp),
        BF16(test_mlp),
        F32(test_gpt),
        BF16(test_gpt),
        BF16_STREAM(test_gpt),
#ifndef DDP_CUDA_REAL
        {"test_sums, bf16", test_sums, open_half, sums_teardown, NULL},
#endif
        OWN(test_gpt),
        {"test_head", test_head, open_pieces, cuda_teardown, NULL},
        {"test_head, bf16", test_head, open_pieces_half, cuda_teardown, NULL},
        {"test_head, bf16 stream", test_head, open_pieces_stream, cuda_teardown, NULL},
        F32(test_recompute),
        F32(test_recompute_blocks),
        BF16(test_recompute_blocks),
        F32(test_recomputed_norm),
        BF16(test_recompute),
        BF16_STREAM(test_recompute),
        BF16_STREAM(test_recompute_blocks),
        F32(test_images),
        BF16(test_images),
        OWN(test_images),
        F32(test_lowering),
        BF16(test_lowering),
        BF16_STREAM(test_stream),
        F32(test_paths),
        BF16(test_paths),
        OWN(test_paths),
#ifndef DDP_CUDA_REAL
        BF16(test_why_own),
#endif
    };

    seed = test_seed();
    return cuda_run_tests("models on the CUDA device", tests, DDP_COUNT(tests));
}
