/* tests/unit/cuda/test_cuda_dnn.c -- the CUDA device's use of cuDNN over the doubles of both: convolutions and
 * attention against the definition in double, and what is not there or cannot be done. */
#include "cuda_library_util.h"
#include "doubles/cudnn_parts.h"
#include "plugins/device/cuda/libs/dnn_graph.h"
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static cu_libraries libraries;
static cudaStream_t stream;
static cuda_util_log log_;
static const ddp_host host = {.struct_size = sizeof(ddp_host), .ctx = &log_, .log = cuda_util_line};
static char folder[64];
static cu_dnn *dnn; /* deterministic, without tf32 */

static cu_dnn *open_dnn(const char *dir, bool deterministic, bool tf32)
{
    const cu_dnn_params p = {.libraries = &libraries,
                             .host = &host,
                             .stream = stream,
                             .cache_dir = dir,
                             .gpu = "NVIDIA H100",
                             .deterministic = deterministic,
                             .tf32 = tf32};
    cu_dnn *out = NULL;
    ddp_err err;

    cudnn_double()->must_be_same = deterministic;
    cudnn_double()->may_tf32 = tf32;
    assert_ok(cu_dnn_open(&p, &out, &err), err);
    return out;
}

/* `dnn` is in use again. */
static void close_dnn(cu_dnn *other)
{
    cu_dnn_close(other);
    cudnn_double()->must_be_same = 1;
    cudnn_double()->may_tf32 = 0;
}

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

static void check_conv(cu_dnn *by, const cu_conv *c, uint32_t what, uint32_t type)
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

    assert_ok(cu_dnn_conv_create(by, what, c, type, &conv, &err), err);
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
            for (uint32_t type = CU_F32; type <= CU_BF16; type++) {
                const int before = cudnn_double()->convolutions;

                check_conv(dnn, &convs[i], what, type);
                /* the first that runs and gives the same bits each time, found by running it */
                assert_int_equal(cudnn_double()->last_engine, CUDNN_ENGINE_SLOW);
                assert_int_equal(cudnn_double()->convolutions, before + 2);
            }
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

static void make_conv(cu_dnn *by, uint32_t what, uint32_t type)
{
    cu_dnn_conv *conv = NULL;
    ddp_err err;

    assert_ok(cu_dnn_conv_create(by, what, &convs[0], type, &conv, &err), err);
    cu_dnn_conv_free(conv);
}

/* Of those that may be taken, the fastest; each is tried once, though two modes propose it. */
static void test_measured_convolutions(void **state)
{
    cu_dnn *by = open_dnn("", false, false);

    (void)state;
    for (uint32_t what = CU_CONV_FORWARD; what <= CU_CONV_GRAD_WEIGHT; what++)
        for (uint32_t type = CU_F32; type <= CU_BF16; type++) {
            int plans = cudnn_double()->plans, started;

            cudnn_double()->varied = 0;
            make_conv(by, what, type);
            assert_int_equal(cudnn_double()->varied, 1);
            assert_int_equal(cudnn_double()->plans, plans + 5); /* VARIES, HUGE, FAILS, SLOW, FAST */
            plans = cudnn_double()->plans;
            started = cudnn_double()->convolutions;
            check_conv(by, &convs[0], what, type);
            assert_int_equal(cudnn_double()->last_engine, CUDNN_ENGINE_FAST);
            assert_int_equal(cudnn_double()->convolutions, started + 1); /* known: not measured again */
            assert_int_equal(cudnn_double()->plans, plans + 1);
        }
    close_dnn(by);
}

static void test_tf32_convolutions(void **state)
{
    cu_dnn *by = open_dnn("", true, true);

    (void)state;
    check_conv(by, &convs[0], CU_CONV_FORWARD, CU_F32);
    assert_int_equal(cudnn_double()->last_engine, CUDNN_ENGINE_TF32);
    close_dnn(by);
}

/* Whether convolutions opened now find theirs in the file. */
static bool is_kept(const char *dir)
{
    const int started = cudnn_double()->convolutions;
    cu_dnn *by = open_dnn(dir, false, false);
    bool kept;

    make_conv(by, CU_CONV_FORWARD, CU_BF16);
    kept = cudnn_double()->convolutions == started;
    close_dnn(by);
    return kept;
}

static void test_file_of_convolutions(void **state)
{
    char path[128], text[1024], *engine;
    FILE *f;
    size_t n;

    (void)state;
    assert_false(is_kept(""));
    assert_false(is_kept(folder));
    assert_true(is_kept(folder));
    (void)snprintf(path, sizeof(path), "%s/nvidia-h100-cudnn-91900.txt", folder);
    f = fopen(path, "r+");
    assert_non_null(f);
    n = fread(text, 1, sizeof(text) - 1, f);
    text[n] = '\0';
    engine = strstr(text, "engine-18-k7.8-k8.9");
    assert_non_null(engine);
    assert_int_equal(fseek(f, engine - text + (long)strlen("engine-18-k7.8-k8."), SEEK_SET), 0);
    assert_int_equal(fputc('7', f), '7'); /* a plan that cuDNN does not propose */
    assert_int_equal(fclose(f), 0);
    assert_false(is_kept(folder));
    assert_true(is_kept(folder));
    cudnn_double()->version++;
    assert_false(is_kept(folder));
    cudnn_double()->version--;
    assert_int_equal(log_.lines, 0);
}

/* Nothing that runs, and no room to see whether it does. */
static void test_convolutions_that_do_not_run(void **state)
{
    cu_conv large = convs[0];
    cu_dnn_conv *conv = NULL;
    const int started = cudnn_double()->convolutions;
    cu_dnn *by;
    ddp_err err;

    (void)state;
    cudnn_double()->no_start = 1;
    assert_int_equal(cu_dnn_conv_create(dnn, CU_CONV_FORWARD, &convs[0], CU_F32, &conv, &err), DDP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "no plan runs"));
    cudnn_double()->no_start = 0;
    cudnn_double()->no_plan = 1;
    assert_int_equal(cu_dnn_conv_create(dnn, CU_CONV_FORWARD, &convs[0], CU_F32, &conv, &err), DDP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "same bits"));
    cudnn_double()->no_plan = 0;
    large.in.n = 1 << 28;
    assert_int_equal(cu_dnn_conv_create(dnn, CU_CONV_FORWARD, &large, CU_F32, &conv, &err), DDP_ERR_NOMEM);
    assert_non_null(strstr(err.msg, "deterministic = yes"));
    by = open_dnn("", false, false); /* which takes the first */
    assert_ok(cu_dnn_conv_create(by, CU_CONV_FORWARD, &large, CU_F32, &conv, &err), err);
    assert_int_equal(cu_dnn_conv_workspace(conv), cudnn_double()->graph_workspace);
    cu_dnn_conv_free(conv);
    close_dnn(by);
    assert_int_equal(cudnn_double()->convolutions, started);
}

/* Each call that may fail does, once; nothing is left behind (test_left). */
static void test_failing_convolutions(void **state)
{
    (void)state;
    for (uint64_t n = 1; n < 60; n++) {
        const cu_dnn_params p = {.libraries = &libraries, .stream = stream, .cache_dir = "", .gpu = ""};
        cu_dnn *by = NULL;
        cu_dnn_conv *conv = NULL;
        ddp_err err;

        cudnn_double()->must_be_same = 0;
        cuda_double_fail_at(n);
        if (cu_dnn_open(&p, &by, &err) == DDP_OK &&
            cu_dnn_conv_create(by, CU_CONV_FORWARD, &convs[3], CU_BF16, &conv, &err) == DDP_OK)
            cu_dnn_conv_free(conv);
        cuda_double_fail_at(0);
        close_dnn(by);
        (void)cudaGetLastError();
    }
}

#define SKIP(why)                                                                                                      \
    do {                                                                                                               \
        print_message("# skipped: %s\n", why);                                                                         \
        skip();                                                                                                        \
    } while (0)

/* NVIDIA's own library, where it is there, takes what is described to it; that needs no GPU, as plans do. */
static void test_real_descriptors(void **state)
{
    cu_libraries real;
    cu_dnn d = {.l = &real};
    ddp_err err;

    (void)state;
    assert_ok(cu_libraries_open("double", "libcudnn.so.9", &real, &err), err);
    if (real.dnn == NULL) SKIP("there is no cuDNN on this machine");
    for (size_t i = 0; i < sizeof(convs) / sizeof(convs[0]); i++)
        for (uint32_t what = CU_CONV_FORWARD; what <= CU_CONV_GRAD_WEIGHT; what++) {
            cu_dnn_graph g;

            cu_dnn_conv_describe(&g, &d, what, &convs[i], i % 2 == 0 ? CU_F32 : CU_BF16);
            if (g.status != CUDNN_STATUS_SUCCESS) {
                (void)cu_fail_dnn(&real, g.status, &err, "%s", g.failed);
                fail_msg("convolution %zu: %s", i, err.msg);
            }
            assert_int_equal(g.op_count, 1);
            cu_dnn_graph_end(&g);
        }
    cu_libraries_close(&real);
}

/* ---- NVIDIA's own library for a GPU that is not there ------------------------------------------------------------ */
/* Plans can be made for a device's properties instead of a device, since cuDNN 9.8; those that need no compiler at run
 * time, as convolutions', even without a driver. */
#if CUDNN_VERSION >= 90800 && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* its heuristics leak */
#define REAL_PLANS
static const char h100[] =
    "{\"deviceName\":\"NVIDIA H100 80GB HBM3\",\"deviceVer\":900,\"multiProcessorCount\":132,"
    "\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],\"regsPerBlock\":65536,\"warpSize\":32,"
    "\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":232448,\"reservedSharedMemoryPerBlock\":1024,"
    "\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,\"maxCtasPerSM\":32,\"maxRegistersPerSM\":65536,"
    "\"smClockRateKHz\":1980000,\"memClockRateKHz\":2619000,\"l2CacheSize\":52428800,\"totalGlobalMem\":85000000000,"
    "\"driverVer\":13000,\"isTccDriver\":0,\"supportCoopLaunch\":1,\"pciDeviceId\":0,\"cudaDeviceId\":0}";
static cu_libraries real;
static cudnnBackendDescriptor_t gpu, heuristics[8];
static int heuristics_count;

static cudnnStatus_t create_for(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *out)
{
    cudnnStatus_t status = real.cudnnBackendCreateDescriptor(type, out);

    if (type == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR) heuristics[heuristics_count++ % 8] = *out;
    return status;
}

static cudnnStatus_t set_for(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                             cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    if (name == CUDNN_ATTR_OPERATIONGRAPH_HANDLE) return CUDNN_STATUS_SUCCESS;
    if (name != CUDNN_ATTR_EXECUTION_PLAN_HANDLE) return real.cudnnBackendSetAttribute(d, name, type, count, values);
    return real.cudnnBackendSetAttribute(d, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                         &gpu);
}

static cudnnStatus_t finalize_for(cudnnBackendDescriptor_t d)
{
    for (int i = 0; i < 8; i++)
        if (heuristics[i] == d)
            (void)real.cudnnBackendSetAttribute(d, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                                &gpu);
    return real.cudnnBackendFinalize(d);
}

/* What the device refuses by its notes leaves a plan in f32 too. */
static void test_real_plans(void **state)
{
    cu_libraries shim;
    cu_dnn d = {.l = &shim};
    ddp_err err;

    (void)state;
    assert_ok(cu_libraries_open("double", "libcudnn.so.9", &real, &err), err);
    if (real.dnn == NULL || real.cudnnGetVersion() < 90800) SKIP("there is no cuDNN 9.8 or newer on this machine");
    shim = real;
    shim.cudnnBackendCreateDescriptor = create_for;
    shim.cudnnBackendSetAttribute = set_for;
    shim.cudnnBackendFinalize = finalize_for;
    assert_int_equal(real.cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &gpu), 0);
    assert_int_equal(real.cudnnBackendSetAttribute(gpu, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                                                   sizeof(h100), h100),
                     0);
    if (real.cudnnBackendFinalize(gpu) != CUDNN_STATUS_SUCCESS)
        SKIP("this version of cuDNN does not take the properties of a GPU that are here");
    for (uint32_t what = CU_CONV_FORWARD; what <= CU_CONV_GRAD_WEIGHT; what++)
        for (uint32_t type = CU_F32; type <= CU_BF16; type++) {
            const cu_dnn_search how = {.limit = 256 << 20,
                                       .refused = CU_NOTE(NONDETERMINISTIC) | CU_NOTE(DOWN_CONVERT_INPUTS) |
                                                  (type == CU_F32 ? CU_NOTE(TENSOR_CORE) : 0)};
            cu_dnn_graph g;

            cu_dnn_conv_describe(&g, &d, what, &convs[0], type);
            assert_ok(cu_dnn_graph_plan(&g, &how, "a convolution", &err), err);
            cu_dnn_graph_end(&g);
        }
    (void)real.cudnnBackendDestroyDescriptor(gpu);
    cu_libraries_close(&real);
}
#endif

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

/* Where the workspace for the whole batch would be too large, parts of it are computed one after the other. */
static void test_attention_in_parts(void **state)
{
    cu_attention a = attentions[0];
    ddp_err err;

    (void)state;
    a.n = 6;
    a.t = 16;
    for (int refused_plans = 1; refused_plans < 4; refused_plans++) {
        const int before = cudnn_double()->graphs;

        cudnn_double()->too_big = refused_plans;
        check_attention(&a, false);
        assert_int_equal(cudnn_double()->too_big, 0);
        assert_int_equal(cudnn_double()->graphs - before, refused_plans == 3 ? 6 : refused_plans + 1);
        cudnn_double()->too_big = refused_plans;
        check_attention(&a, true);
    }
    cudnn_double()->too_big = 4; /* 1, 2, 3 and 6 parts */
    assert_int_equal(refused(&a, &err), DDP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "3221225472 bytes"));
    a.t = 17; /* parts of 3 x 17 rows would begin off a multiple of 16 bytes, as all but the whole do */
    cudnn_double()->too_big = 1;
    assert_int_equal(refused(&a, &err), DDP_ERR_UNSUPPORTED);
}

/* Without `deterministic` what the heuristics put first is taken, though its bits vary. */
static void test_may_vary(void **state)
{
    cu_dnn *exact = dnn;

    (void)state;
    cudnn_double()->varied = 0;
    dnn = open_dnn("", false, false);
    check_attention(&attentions[0], true);
    assert_int_equal(cudnn_double()->varied, 2);
    assert_int_equal(cudnn_double()->summed, 1);
    cudnn_double()->no_summed = 1; /* then as with `deterministic` */
    check_attention(&attentions[0], true);
    assert_int_equal(cudnn_double()->summed, 1);
    cudnn_double()->no_summed = 0;
    close_dnn(dnn);
    dnn = exact;
    cudnn_double()->varied = 0;
    check_attention(&attentions[0], true);
    assert_int_equal(cudnn_double()->varied, 0);
}

static void test_heuristics_fail(void **state)
{
    (void)state;
    cudnn_double()->fails_mode_a = 1;
    check_attention(&attentions[0], true);
    cudnn_double()->fails_mode_a = 0;
}

/* ---- libraries --------------------------------------------------------------------------------------------------- */
static void test_libraries(void **state)
{
    cu_libraries l;
    const cu_dnn_params p = {.libraries = &l, .cache_dir = "", .gpu = ""};
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
    assert_int_equal(cu_dnn_open(&p, &none, &err), DDP_ERR_UNSUPPORTED);
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
    (void)snprintf(folder, sizeof(folder), "/tmp/test_cuda_dnn.XXXXXX");
    if (mkdtemp(folder) == NULL) return -1;
    assert_ok(cu_libraries_open("double", "double", &libraries, &err), err);
    if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) return -1;
    dnn = open_dnn("", true, false);
    return 0;
}

/* The last of all. */
static void test_left(void **state)
{
    cuda_double_counts counts;

    (void)state;
    cu_dnn_close(dnn);
    cuda_double_count(&counts);
    assert_int_equal(counts.device_memory, 0);
    assert_int_equal(counts.events, 0);
    assert_string_equal(cuda_double_misuse(), "");
    assert_string_equal(cudnn_double()->misuse, "");
    assert_int_equal(cudnn_double()->objects, 0);
}

static int teardown(void **state)
{
    char command[128];

    (void)state;
    (void)snprintf(command, sizeof(command), "rm -r '%s'", folder);
    cu_libraries_close(&libraries);
    return system(command) == 0 && cudaStreamDestroy(stream) == cudaSuccess ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_convolutions),
        cmocka_unit_test(test_bad_convolutions),
        cmocka_unit_test(test_measured_convolutions),
        cmocka_unit_test(test_tf32_convolutions),
        cmocka_unit_test(test_file_of_convolutions),
        cmocka_unit_test(test_convolutions_that_do_not_run),
        cmocka_unit_test(test_failing_convolutions),
        cmocka_unit_test(test_real_descriptors),
#ifdef REAL_PLANS
        cmocka_unit_test(test_real_plans),
#endif
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_captured_attention),
        cmocka_unit_test(test_unsupported_attention),
        cmocka_unit_test(test_attention_in_parts),
        cmocka_unit_test(test_may_vary),
        cmocka_unit_test(test_heuristics_fail),
        cmocka_unit_test(test_libraries),
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_left),
    };

    return cmocka_run_group_tests_name("cuDNN of the CUDA device", tests, setup, teardown);
}
