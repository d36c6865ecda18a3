/* tests/unit/cuda/test_cuda_dnn.c -- the CUDA device's use of cuDNN over the doubles of both: convolutions and
 * attention against the definition in double, and what is not there or cannot be done. */
#include "cuda_library_util.h"
#include "plugins/device/cuda/libs/dnn.h"

static cu_libraries libraries;
static cudaStream_t stream;
static cu_dnn *dnn;

/* ---- convolutions ------------------------------------------------------------------------------------------------ */
/* y[n][p][q][o] += x[n][h][w][c] * w[o][r][s][i], over all of them: what = one of the three that is written. */
static void reference_conv(const cu_conv *c, uint32_t what, const double *x, const double *w, const double *y,
                           double *out)
{
    const int64_t ig = c->in.c / c->groups, og = c->o / c->groups;

    for (int64_t n = 0; n < c->in.n; n++)
        for (int64_t o = 0; o < c->o; o++)
            for (int64_t p = 0; p < c->oh; p++)
                for (int64_t q = 0; q < c->ow; q++)
                    for (int64_t i = 0; i < ig; i++)
                        for (int64_t r = 0; r < c->w.kernel[0]; r++)
                            for (int64_t s = 0; s < c->w.kernel[1]; s++) {
                                const int64_t h = p * c->w.stride[0] + r - c->w.padding[0],
                                              v = q * c->w.stride[1] + s - c->w.padding[1], ch = o / og * ig + i;
                                if (h < 0 || v < 0 || h >= c->in.h || v >= c->in.w) continue;
                                const int64_t at_x = ((n * c->in.h + h) * c->in.w + v) * c->in.c + ch,
                                              at_y = ((n * c->oh + p) * c->ow + q) * c->o + o,
                                              at_w = ((o * c->w.kernel[0] + r) * c->w.kernel[1] + s) * ig + i;
                                if (what == CU_CONV_FORWARD) out[at_y] += x[at_x] * w[at_w];
                                if (what == CU_CONV_GRAD_INPUT) out[at_x] += y[at_y] * w[at_w];
                                if (what == CU_CONV_GRAD_WEIGHT) out[at_w] += y[at_y] * x[at_x];
                            }
}

static void check_conv(const cu_conv *c, uint32_t what, uint32_t type)
{
    uint64_t seed = 7 + what;
    const int64_t xs = c->in.n * c->in.h * c->in.w * c->in.c, ys = c->in.n * c->oh * c->ow * c->o,
                  ws = c->o * c->w.kernel[0] * c->w.kernel[1] * (c->in.c / c->groups);
    cuda_util_array x = what == CU_CONV_GRAD_INPUT ? cuda_util_new(type, xs) : cuda_util_random_array(type, xs, &seed),
                    w = what == CU_CONV_GRAD_WEIGHT ? cuda_util_new(type, ws) : cuda_util_random_array(type, ws, &seed),
                    y = what == CU_CONV_FORWARD ? cuda_util_new(type, ys) : cuda_util_random_array(type, ys, &seed);
    cuda_util_array *out = what == CU_CONV_FORWARD ? &y : what == CU_CONV_GRAD_INPUT ? &x : &w;
    cu_dnn_conv *conv = NULL;
    void *workspace = NULL;
    ddp_err err;

    assert_ok(cu_dnn_conv_create(dnn, what, c, type, &conv, &err), err);
    assert_int_equal(cudaMalloc(&workspace, cu_dnn_conv_workspace(conv)), cudaSuccess);
    assert_ok(cu_dnn_conv_run(conv, stream, what == CU_CONV_FORWARD ? x.at : y.at,
                              what == CU_CONV_GRAD_WEIGHT ? x.at : w.at, out->at, workspace, &err),
              err);
    assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
    reference_conv(c, what, x.host, w.host, y.host, out->host);
    cuda_util_compare(out, 1e-3, "a convolution");
    cu_dnn_conv_free(conv);
    assert_int_equal(cudaFree(workspace), cudaSuccess);
    cuda_util_free(&x);
    cuda_util_free(&w);
    cuda_util_free(&y);
}

static const cu_conv convs[] = {
    {.in = {2, 5, 7, 3}, .o = 4, .oh = 5, .ow = 7, .groups = 1, .w = {{3, 3}, {1, 1}, {1, 1}}},
    {.in = {1, 8, 6, 4}, .o = 6, .oh = 4, .ow = 2, .groups = 2, .w = {{2, 3}, {2, 2}, {0, 0}}},
    {.in = {3, 4, 4, 8}, .o = 8, .oh = 5, .ow = 1, .groups = 8, .w = {{2, 3}, {1, 2}, {1, 0}}},
    {.in = {2, 3, 3, 5}, .o = 7, .oh = 3, .ow = 3, .groups = 1, .w = {{1, 1}, {1, 1}, {0, 0}}},
};

static void test_convolutions(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(convs) / sizeof(convs[0]); i++)
        for (uint32_t what = CU_CONV_FORWARD; what <= CU_CONV_GRAD_WEIGHT; what++)
            for (uint32_t type = CU_F32; type <= CU_BF16; type++) check_conv(&convs[i], what, type);
    assert_int_equal(cudnn_double()->convolutions, 24);
}

static void test_bad_convolutions(void **state)
{
    cu_conv c = convs[0];
    cu_dnn_conv *conv = NULL;
    ddp_err err;

    (void)state;
    c.in.n = (int64_t)1 << 40;
    assert_int_equal(cu_dnn_conv_create(dnn, CU_CONV_FORWARD, &c, CU_F32, &conv, &err), DDP_ERR_UNSUPPORTED);
    c = convs[0];
    c.groups = 2;
    assert_int_equal(cu_dnn_conv_create(dnn, CU_CONV_FORWARD, &c, CU_F32, &conv, &err), DDP_ERR_UNSUPPORTED);
    assert_null(conv);
}

/* ---- attention --------------------------------------------------------------------------------------------------- */
typedef struct attention {
    cu_attention a;
    cuda_util_array qkv, y, lse, dy, dqkv;
    double *weights; /* (n, heads, t, t) */
} attention;

static int64_t at_packed(const cu_attention *a, int64_t n, int64_t t, int64_t which, int64_t h, int64_t i)
{
    return ((n * a->t + t) * 3 + which) * a->heads * a->size + h * a->size + i;
}
static int64_t at_alone(const cu_attention *a, int64_t n, int64_t t, int64_t h, int64_t i)
{
    return (n * a->t + t) * a->heads * a->size + h * a->size + i;
}

static void reference_row(attention *t, int64_t n, int64_t h, int64_t r)
{
    const cu_attention *a = &t->a;
    const int64_t row = (n * a->heads + h) * a->t + r, last = a->causal ? r : a->t - 1;
    double *w = &t->weights[row * a->t], sum = 0;

    for (int64_t s = 0; s <= last; s++) {
        for (int64_t i = 0; i < a->size; i++)
            w[s] += t->qkv.host[at_packed(a, n, r, 0, h, i)] * t->qkv.host[at_packed(a, n, s, 1, h, i)] * a->scale;
        sum += exp(w[s]);
    }
    t->lse.host[row] = log(sum);
    for (int64_t s = 0; s <= last; s++) {
        w[s] = exp(w[s]) / sum;
        for (int64_t i = 0; i < a->size; i++)
            t->y.host[at_alone(a, n, r, h, i)] += w[s] * t->qkv.host[at_packed(a, n, s, 2, h, i)];
    }
}

/* y: what the forward pass has stored, with its rounding. */
static void reference_grad_row(attention *t, int64_t n, int64_t h, int64_t r, const double *y)
{
    const cu_attention *a = &t->a;
    const double *w = &t->weights[((n * a->heads + h) * a->t + r) * a->t];
    const double *dy = &t->dy.host[at_alone(a, n, r, h, 0)];
    double delta = 0;

    for (int64_t i = 0; i < a->size; i++) delta += dy[i] * y[at_alone(a, n, r, h, i)];
    for (int64_t s = 0; s < a->t; s++) {
        double d = -delta;
        if (w[s] == 0) continue;
        for (int64_t i = 0; i < a->size; i++) d += dy[i] * t->qkv.host[at_packed(a, n, s, 2, h, i)];
        d *= w[s] * a->scale;
        for (int64_t i = 0; i < a->size; i++) {
            t->dqkv.host[at_packed(a, n, r, 0, h, i)] += d * t->qkv.host[at_packed(a, n, s, 1, h, i)];
            t->dqkv.host[at_packed(a, n, s, 1, h, i)] += d * t->qkv.host[at_packed(a, n, r, 0, h, i)];
            t->dqkv.host[at_packed(a, n, s, 2, h, i)] += w[s] * dy[i];
        }
    }
}

static void reference(attention *t, bool gradient, const double *y)
{
    for (int64_t n = 0; n < t->a.n; n++)
        for (int64_t h = 0; h < t->a.heads; h++)
            for (int64_t r = 0; r < t->a.t; r++)
                if (gradient)
                    reference_grad_row(t, n, h, r, y);
                else
                    reference_row(t, n, h, r);
}

static attention make_attention(const cu_attention *a)
{
    const int64_t e = a->n * a->t * a->heads * a->size;
    uint64_t seed = 11;
    attention t = {.a = *a, .weights = calloc((size_t)(a->n * a->heads * a->t * a->t), sizeof(double))};

    t.qkv = cuda_util_random_array(CU_BF16, 3 * e, &seed);
    t.dy = cuda_util_random_array(CU_BF16, e, &seed);
    t.y = cuda_util_new(CU_BF16, e);
    t.dqkv = cuda_util_new(CU_BF16, 3 * e);
    t.lse = cuda_util_new(CU_F32, a->n * a->heads * a->t);
    return t;
}

static void free_attention(attention *t)
{
    cuda_util_free(&t->qkv);
    cuda_util_free(&t->dy);
    cuda_util_free(&t->y);
    cuda_util_free(&t->dqkv);
    cuda_util_free(&t->lse);
    free(t->weights);
}

static void check_attention(const cu_attention *a, bool training)
{
    attention t = make_attention(a);
    cu_dnn_attention *c = NULL;
    void *workspace = NULL;
    double *y;
    ddp_err err;

    assert_ok(cu_dnn_attention_create(dnn, a, training, &c, &err), err);
    assert_int_equal(cudaMalloc(&workspace, cu_dnn_attention_workspace(c, training)), cudaSuccess);
    assert_ok(cu_dnn_attention_run(c, stream, t.qkv.at, t.y.at, training ? t.lse.at : NULL, workspace, &err), err);
    assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
    reference(&t, false, NULL);
    cuda_util_compare(&t.y, 4e-3, "attention");
    if (training) {
        cuda_util_compare(&t.lse, 1e-4, "log-sum-exp");
        y = cuda_util_download(&t.y);
        assert_ok(cu_dnn_attention_run_grad(c, stream, t.dy.at, t.qkv.at, t.y.at, t.lse.at, t.dqkv.at, workspace, &err),
                  err);
        assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
        reference(&t, true, y);
        cuda_util_compare(&t.dqkv, 2e-2, "the gradient of attention");
        free(y);
    }
    cu_dnn_attention_free(c);
    assert_int_equal(cudaFree(workspace), cudaSuccess);
    free_attention(&t);
}

static const cu_attention attentions[] = {
    {.n = 2, .t = 17, .heads = 3, .size = 16, .scale = 0.25, .causal = 1},
    {.n = 1, .t = 9, .heads = 2, .size = 8, .scale = 0.5, .causal = 0},
    {.n = 1, .t = 2, .heads = 1, .size = 64, .scale = 0.125, .causal = 1},
};

static void test_attention(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(attentions) / sizeof(attentions[0]); i++) {
        check_attention(&attentions[i], true);
        check_attention(&attentions[i], false);
    }
    assert_int_equal(cudnn_double()->graphs, 9);
}

static void test_captured_attention(void **state)
{
    attention t = make_attention(&attentions[0]);
    cu_dnn_attention *c = NULL;
    void *workspace = NULL;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    ddp_err err;

    (void)state;
    assert_ok(cu_dnn_attention_create(dnn, &t.a, true, &c, &err), err);
    assert_int_equal(cudaMalloc(&workspace, cu_dnn_attention_workspace(c, true)), cudaSuccess);
    assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    assert_ok(cu_dnn_attention_run(c, stream, t.qkv.at, t.y.at, t.lse.at, workspace, &err), err);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    assert_int_equal(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    assert_int_equal(cudaGraphLaunch(exec, stream), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
    reference(&t, false, NULL);
    cuda_util_compare(&t.y, 4e-3, "captured attention");
    assert_int_equal(cudaGraphExecDestroy(exec), cudaSuccess);
    assert_int_equal(cudaGraphDestroy(graph), cudaSuccess);
    cu_dnn_attention_free(c);
    assert_int_equal(cudaFree(workspace), cudaSuccess);
    free_attention(&t);
}

static ddp_status refused(const cu_attention *a, ddp_err *err)
{
    cu_dnn_attention *c = NULL;
    ddp_status status = cu_dnn_attention_create(dnn, a, true, &c, err);

    assert_null(c);
    return status;
}

static void test_unsupported_attention(void **state)
{
    cu_attention a = attentions[0];
    ddp_err err;

    (void)state;
    a.dropout = 0.1;
    assert_int_equal(refused(&a, &err), DDP_ERR_UNSUPPORTED);
    a = attentions[0];
    a.size = 12;
    assert_int_equal(refused(&a, &err), DDP_ERR_UNSUPPORTED);
    a.size = 256;
    assert_int_equal(refused(&a, &err), DDP_ERR_UNSUPPORTED);
    cudnn_double()->version = 91500;
    assert_int_equal(refused(&attentions[0], &err), DDP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "9.16"));
    cudnn_double()->version = 91900;
    cudnn_double()->no_plan = 1;
    assert_int_equal(refused(&attentions[0], &err), DDP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "CUDNN_STATUS_NOT_SUPPORTED"));
    cudnn_double()->no_plan = 0;
    cudnn_double()->graph_workspace = (size_t)3 << 30;
    assert_int_equal(refused(&attentions[0], &err), DDP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "3221225472 bytes"));
    cudnn_double()->graph_workspace = 512;
}

/* ---- libraries --------------------------------------------------------------------------------------------------- */
static void test_libraries(void **state)
{
    cu_libraries l;
    cu_dnn *none = NULL;
    ddp_err err;

    (void)state;
    assert_int_equal(cu_libraries_open("libnot_there.so.0", "", &l, &err), DDP_ERR_LIBRARY);
    assert_non_null(strstr(err.msg, "libnot_there.so.0"));
    assert_non_null(strstr(err.msg, "cublas_library"));
    assert_int_equal(cu_libraries_open("libc.so.6", "", &l, &err), DDP_ERR_LIBRARY);
    assert_non_null(strstr(err.msg, "cublasLtCreate"));
    assert_ok(cu_libraries_open("double", "libnot_there.so.0", &l, &err), err);
    assert_null(l.dnn);
    assert_non_null(strstr(l.dnn_missing, "libnot_there.so.0"));
    assert_int_equal(cu_dnn_open(&l, true, false, &none, &err), DDP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "libnot_there.so.0"));
    cu_libraries_close(&l);
    assert_ok(cu_libraries_open("double", "libc.so.6", &l, &err), err);
    assert_null(l.dnn);
    assert_non_null(strstr(l.dnn_missing, "cudnnCreate"));
    cu_libraries_close(&l);
}

static void test_words(void **state)
{
    ddp_err err;

    (void)state;
    assert_int_equal(cu_fail(cudaErrorMemoryAllocation, &err, "%d bytes", 3), DDP_ERR_NOMEM);
    assert_non_null(strstr(err.msg, "3 bytes"));
    assert_int_equal(err.lib_code, cudaErrorMemoryAllocation);
    assert_int_equal(cu_fail(cudaErrorIllegalAddress, &err, "here"), DDP_ERR_LIBRARY);
    assert_int_equal(cu_fail_blas(CUBLAS_STATUS_ALLOC_FAILED, &err, "here"), DDP_ERR_NOMEM);
    assert_int_equal(cu_fail_blas(CUBLAS_STATUS_NOT_SUPPORTED, &err, "here"), DDP_ERR_LIBRARY);
    assert_non_null(strstr(err.msg, "here: cuBLASLt error 15, CUBLAS_STATUS_NOT_SUPPORTED"));
    assert_int_equal(cu_fail_dnn(&libraries, CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED, &err, "here"),
                     DDP_ERR_NOMEM);
    assert_int_equal(cu_fail_dnn(&libraries, CUDNN_STATUS_BAD_PARAM, &err, "here"), DDP_ERR_LIBRARY);
    assert_non_null(strstr(err.msg, "CUDNN_STATUS_BAD_PARAM"));
    assert_int_equal(err.lib_code, CUDNN_STATUS_BAD_PARAM);
}

static int setup(void **state)
{
    ddp_err err;

    (void)state;
    assert_ok(cu_libraries_open("double", "double", &libraries, &err), err);
    assert_ok(cu_dnn_open(&libraries, false, false, &dnn, &err), err);
    return cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess ? 0 : -1;
}

/* The last of all. */
static void test_left(void **state)
{
    cuda_double_counts counts;

    (void)state;
    cu_dnn_close(dnn);
    cuda_double_count(&counts);
    assert_int_equal(counts.device_memory, 0);
    assert_string_equal(cuda_double_misuse(), "");
    assert_string_equal(cudnn_double()->misuse, "");
    assert_int_equal(cudnn_double()->objects, 0);
}

static int teardown(void **state)
{
    (void)state;
    cu_libraries_close(&libraries);
    return cudaStreamDestroy(stream) == cudaSuccess ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_convolutions),
        cmocka_unit_test(test_bad_convolutions),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_captured_attention),
        cmocka_unit_test(test_unsupported_attention),
        cmocka_unit_test(test_libraries),
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_left),
    };

    return cmocka_run_group_tests_name("cuDNN of the CUDA device", tests, setup, teardown);
}
