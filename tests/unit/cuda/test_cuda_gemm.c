/* tests/unit/cuda/test_cuda_gemm.c -- the CUDA device's matrix products over the doubles of CUDA and cuBLASLt: every
 * epilogue against the definition in double, the choice of algorithms, and the file that keeps them. */
#include "cuda_library_util.h"
#include "plugins/device/cuda/libs/gemm.h"
#include <dirent.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static cu_libraries libraries;
static cudaStream_t stream;
static cuda_util_log log_;
static const ddp_host host = {.struct_size = sizeof(ddp_host), .ctx = &log_, .log = cuda_util_line};
static char folder[64];

static cu_products *open_products(const char *dir, bool first, bool tf32)
{
    const cu_products_params p = {.libraries = &libraries,
                                  .host = &host,
                                  .stream = stream,
                                  .cache_dir = dir,
                                  .gpu = "NVIDIA H100 80GB/HBM3",
                                  .first_heuristic = first,
                                  .candidates = 8,
                                  .tf32 = tf32,
                                  .workspace_bytes = 4096};
    cu_products *out = NULL;
    ddp_err err;

    assert_ok(cu_products_open(&p, &out, &err), err);
    return out;
}

/* ---- the definition ---------------------------------------------------------------------------------------------- */
typedef struct problem {
    cu_product_params p;
    cuda_util_array a, b, c, bias, aux;
} problem;

static double gelu(double x) { return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); }
static double gelu_slope(double x)
{
    const double t = tanh(0.7978845608028654 * (x + 0.044715 * x * x * x));

    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * x * x);
}

static double a_of(const problem *t, int64_t i, int64_t k)
{
    return t->a.host[t->p.a_transposed ? k * t->p.m + i : i * t->p.k + k];
}
static double b_of(const problem *t, int64_t k, int64_t j)
{
    return t->b.host[t->p.b_transposed ? j * t->p.k + k : k * t->p.n + j];
}

static double apply(problem *t, double x, int64_t i, int64_t j)
{
    const uint32_t e = t->p.epilogue;
    double *aux = &t->aux.host[i * t->p.n + j];

    if (e == CU_EPILOGUE_BIAS || (t->p.has_bias && e <= CU_EPILOGUE_GELU_BIAS && e != CU_EPILOGUE_NONE))
        x += t->bias.host[j];
    if (e == CU_EPILOGUE_DGELU || e == CU_EPILOGUE_DGELU_BGRAD) return x * gelu_slope(*aux);
    if (e == CU_EPILOGUE_GELU_AUX_BIAS) *aux = x;
    if (e == CU_EPILOGUE_RELU_BIAS) return x > 0 ? x : 0;
    return e == CU_EPILOGUE_GELU_AUX_BIAS || e == CU_EPILOGUE_GELU_BIAS ? gelu(x) : x;
}

static void reference(problem *t, bool add)
{
    const cu_product_params *p = &t->p;
    double *sums = calloc((size_t)(p->m + p->n), sizeof(*sums));

    for (int64_t i = 0; i < p->m; i++)
        for (int64_t j = 0; j < p->n; j++) {
            double x = add ? t->c.host[i * p->n + j] : 0;
            for (int64_t k = 0; k < p->k; k++) x += a_of(t, i, k) * b_of(t, k, j);
            t->c.host[i * p->n + j] = apply(t, x, i, j);
            sums[j] += t->c.host[i * p->n + j];
        }
    if (p->epilogue == CU_EPILOGUE_DGELU_BGRAD)
        for (int64_t j = 0; j < p->n; j++) t->bias.host[j] = sums[j];
    memset(sums, 0, sizeof(*sums) * (size_t)(p->m + p->n));
    for (int64_t k = 0; k < p->k; k++) {
        for (int64_t i = 0; i < p->m && p->epilogue == CU_EPILOGUE_BGRAD_A; i++) sums[i] += a_of(t, i, k);
        for (int64_t j = 0; j < p->n && p->epilogue == CU_EPILOGUE_BGRAD_B; j++) sums[j] += b_of(t, k, j);
    }
    for (int64_t i = 0; i < t->bias.count && p->epilogue >= CU_EPILOGUE_BGRAD_A; i++) t->bias.host[i] = sums[i];
    free(sums);
}

static problem make_problem(const cu_product_params *p, uint64_t *seed)
{
    problem t = {.p = *p};
    const bool reads_aux = p->epilogue == CU_EPILOGUE_DGELU || p->epilogue == CU_EPILOGUE_DGELU_BGRAD;
    const int64_t bias = p->epilogue == CU_EPILOGUE_BGRAD_A ? p->m : p->n;

    t.a = cuda_util_random_array(p->a_type, p->m * p->k, seed);
    t.b = cuda_util_random_array(p->b_type, p->k * p->n, seed);
    t.c = p->add ? cuda_util_random_array(p->c_type, p->m * p->n, seed) : cuda_util_new(p->c_type, p->m * p->n);
    t.bias = p->epilogue < CU_EPILOGUE_DGELU ? cuda_util_random_array(p->c_type, bias, seed)
                                             : cuda_util_new(p->c_type, bias);
    t.aux = reads_aux ? cuda_util_random_array(p->c_type, p->m * p->n, seed) : cuda_util_new(p->c_type, p->m * p->n);
    return t;
}

static void free_problem(problem *t)
{
    cuda_util_free(&t->a);
    cuda_util_free(&t->b);
    cuda_util_free(&t->c);
    cuda_util_free(&t->bias);
    cuda_util_free(&t->aux);
}

static void compare(problem *t, double tolerance, const char *name)
{
    const uint32_t e = t->p.epilogue;

    cuda_util_compare(&t->c, tolerance, name);
    if (e == CU_EPILOGUE_GELU_AUX_BIAS) cuda_util_compare(&t->aux, tolerance, name);
    if (e >= CU_EPILOGUE_DGELU_BGRAD) cuda_util_compare(&t->bias, tolerance * 8, name);
}

static void check_product(cu_products *all, const cu_product_params *p, uint64_t *seed)
{
    problem t = make_problem(p, seed);
    cu_product *product = NULL;
    char name[160];
    ddp_err err;

    if (p->c_type == CU_F32 && p->epilogue >= CU_EPILOGUE_GELU_AUX_BIAS && p->epilogue <= CU_EPILOGUE_DGELU_BGRAD) {
        assert_int_equal(cu_product_create(all, p, &product, &err), DDP_ERR_UNSUPPORTED); /* its tanh is less exact */
        free_problem(&t);
        return;
    }
    (void)snprintf(name, sizeof(name), "(%lld, %lld, %lld) %d%d types %u %u epilogue %u bias %d add %d",
                   (long long)p->m, (long long)p->n, (long long)p->k, p->a_transposed, p->b_transposed, p->a_type,
                   p->c_type, p->epilogue, p->has_bias, p->add);
    assert_ok(cu_product_create(all, p, &product, &err), err);
    assert_int_equal(cu_product_bias_type(product), p->c_type);
    assert_ok(cu_product_run(product, stream, t.a.at, t.b.at, t.c.at, t.bias.at, t.aux.at, p->add, &err), err);
    assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
    reference(&t, p->add);
    compare(&t, 1e-5 * (double)p->k, name);
    if (p->add) { /* the same product may also set */
        assert_ok(cu_product_run(product, stream, t.a.at, t.b.at, t.c.at, NULL, NULL, false, &err), err);
        assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
        reference(&t, false);
        compare(&t, 1e-5 * (double)p->k, name);
    }
    cu_product_free(product);
    free_problem(&t);
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */
static void test_products(void **state)
{
    static const int64_t sizes[][3] = {{1, 8, 1}, {3, 16, 5}, {17, 24, 33}, {40, 8, 7}};
    static const uint32_t types[][2] = {{CU_F32, CU_F32}, {CU_BF16, CU_BF16}, {CU_BF16, CU_F32}};
    cu_products *all = open_products("", true, false);
    uint64_t seed = 1;

    (void)state;
    for (size_t s = 0; s < 4; s++)
        for (size_t t = 0; t < 3; t++)
            for (uint32_t turn = 0; turn < 4; turn++)
                for (uint32_t e = 0; e <= CU_EPILOGUE_BGRAD_B; e++)
                    for (uint32_t variant = 0; variant < 2; variant++) {
                        const cu_product_params p = {.m = sizes[s][0],
                                                     .n = sizes[s][1],
                                                     .k = sizes[s][2],
                                                     .a_transposed = turn % 2 != 0,
                                                     .b_transposed = turn / 2 != 0,
                                                     .a_type = types[t][0],
                                                     .b_type = types[t][0],
                                                     .c_type = types[t][1],
                                                     .epilogue = e,
                                                     .has_bias = e == CU_EPILOGUE_BIAS || variant != 0,
                                                     .add = e == CU_EPILOGUE_NONE && variant != 0};
                        check_product(all, &p, &seed);
                    }
    cu_products_close(all);
}

static void test_odd_columns(void **state)
{
    cu_products *all = open_products("", true, false);
    const cu_product_params odd = {.m = 5, .n = 7, .k = 3, .epilogue = CU_EPILOGUE_BIAS, .has_bias = true};
    const cu_product_params gelu_odd = {
        .m = 5, .n = 7, .k = 3, .a_type = CU_BF16, .b_type = CU_BF16, .c_type = CU_BF16, .epilogue = CU_EPILOGUE_DGELU};
    cu_product *product = NULL;
    uint64_t seed = 2;
    ddp_err err;

    (void)state;
    check_product(all, &odd, &seed);
    assert_int_equal(cu_product_create(all, &gelu_odd, &product, &err), DDP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "multiple of 8"));
    assert_null(product);
    cu_products_close(all);
}

static void test_tf32_rounds(void **state)
{
    cu_products *exact = open_products("", true, false), *fast = open_products("", true, true);
    const cu_product_params p = {.m = 4, .n = 8, .k = 64};
    uint64_t seed = 3;
    problem t = make_problem(&p, &seed);
    double *first, *second;
    cu_product *product;
    ddp_err err;

    (void)state;
    for (int i = 0; i < 2; i++) {
        assert_ok(cu_product_create(i == 0 ? exact : fast, &p, &product, &err), err);
        assert_ok(cu_product_run(product, stream, t.a.at, t.b.at, t.c.at, NULL, NULL, false, &err), err);
        assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
        *(i == 0 ? &first : &second) = cuda_util_download(&t.c);
        cu_product_free(product);
    }
    assert_true(memcmp(first, second, (size_t)t.c.count * sizeof(*first)) != 0);
    for (int64_t i = 0; i < t.c.count; i++) assert_true(fabs(first[i] - second[i]) < 0.05);
    free(first);
    free(second);
    free_problem(&t);
    cu_products_close(exact);
    cu_products_close(fast);
}

static const cu_product_params one_shape = {
    .m = 16, .n = 16, .k = 16, .a_type = CU_BF16, .b_type = CU_BF16, .c_type = CU_BF16};

static void make_one(cu_products *all)
{
    cu_product *product = NULL;
    ddp_err err;

    assert_ok(cu_product_create(all, &one_shape, &product, &err), err);
    cu_product_free(product);
}

/* Which of the double's algorithms a product takes. */
static int algorithm_of(cu_products *all)
{
    uint64_t seed = 4;

    check_product(all, &one_shape, &seed);
    return cublaslt_double()->last_algorithm;
}

static void test_choice(void **state)
{
    cu_products *all = open_products("", false, false);
    int started;

    (void)state;
    assert_int_equal(algorithm_of(all), 2); /* the first is slow, the second does not start */
    started = cublaslt_double()->started;
    make_one(all);
    assert_int_equal(cublaslt_double()->started, started); /* known: not measured again */
    cu_products_close(all);

    all = open_products(folder, true, false);
    started = cublaslt_double()->started;
    make_one(all);
    assert_int_equal(cublaslt_double()->started, started);
    assert_int_equal(algorithm_of(all), 0);
    cu_products_close(all);
}

static void test_refused(void **state)
{
    cu_products *all = open_products("", false, false);
    cu_product_params p = one_shape;
    cu_product *product = NULL;
    ddp_err err;

    (void)state;
    cublaslt_double()->refused = 256; /* CUBLASLT_EPILOGUE_BGRADA */
    p.epilogue = CU_EPILOGUE_BGRAD_B;
    assert_int_equal(cu_product_create(all, &p, &product, &err), DDP_ERR_UNSUPPORTED);
    cublaslt_double()->refused = 0;
    p.add = true;
    assert_int_equal(cu_product_create(all, &p, &product, &err), DDP_ERR_INVALID);
    p.add = false;
    p.k = 0;
    assert_int_equal(cu_product_create(all, &p, &product, &err), DDP_ERR_INVALID);
    assert_null(product);
    cu_products_close(all);
}

static void test_capture(void **state)
{
    cu_products *all = open_products("", false, false);
    uint64_t seed = 5;
    problem t = make_problem(&one_shape, &seed);
    cu_product *product = NULL;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    ddp_err err;

    (void)state;
    assert_ok(cu_product_create(all, &one_shape, &product, &err), err);
    assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    assert_ok(cu_product_run(product, stream, t.a.at, t.b.at, t.c.at, NULL, NULL, false, &err), err);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    assert_int_equal(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    assert_int_equal(cudaGraphLaunch(exec, stream), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
    reference(&t, false);
    compare(&t, 1e-3, "captured");
    assert_int_equal(cudaGraphExecDestroy(exec), cudaSuccess);
    assert_int_equal(cudaGraphDestroy(graph), cudaSuccess);
    cu_product_free(product);
    free_problem(&t);
    cu_products_close(all);
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */
static void path_of(const char *dir, char path[512])
{
    (void)snprintf(path, 512, "%s/nvidia-h100-80gb-hbm3-cublaslt-%zu.txt", dir, cublaslt_double()->version);
}

static size_t read_file(const char *path, char *text, size_t room)
{
    FILE *f = fopen(path, "r");
    size_t n;

    assert_non_null(f);
    n = fread(text, 1, room - 1, f);
    text[n] = '\0';
    (void)fclose(f);
    return n;
}

static void write_file(const char *path, const char *text, size_t bytes)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
}

static int files_in(const char *dir)
{
    DIR *d = opendir(dir);
    int n = -2; /* . and .. */

    assert_non_null(d);
    while (readdir(d) != NULL) n++;
    (void)closedir(d);
    return n;
}

/* Whether products opened now find the shape in the file. */
static bool is_kept(const char *dir)
{
    const int started = cublaslt_double()->started;
    cu_products *all = open_products(dir, false, false);
    bool kept;

    make_one(all);
    kept = cublaslt_double()->started == started;
    cu_products_close(all);
    return kept;
}

static void test_file(void **state)
{
    char dir[128], path[512], text[4096], damaged[4096];
    struct stat s;
    size_t n;

    (void)state;
    (void)snprintf(dir, sizeof(dir), "%s/a/b", folder); /* two folders that are not there */
    path_of(dir, path);
    log_.lines = 0;
    assert_false(is_kept(dir));
    assert_int_equal(stat(path, &s), 0);
    assert_int_equal(s.st_mode & 0777, 0600);
    assert_true(is_kept(dir));
    assert_int_equal(log_.lines, 0);
    n = read_file(path, text, sizeof(text));
    for (size_t cut = 0; cut < n; cut += 7) { /* cut off anywhere */
        write_file(path, text, cut);
        log_.lines = 0;
        assert_false(is_kept(dir));
        assert_int_equal(log_.lines, 1);
    }
    for (size_t at = 0; at < n; at += 5) { /* or with one other byte: measured again, or, where that is the time, not */
        memcpy(damaged, text, n);
        damaged[at] = '\t';
        write_file(path, damaged, n);
        (void)is_kept(dir);
    }
    write_file(path, text, n);
    cublaslt_double()->checks_fail = 1; /* the library does not know it any more */
    assert_false(is_kept(dir));
    cublaslt_double()->checks_fail = 0;
    cublaslt_double()->version++; /* another version has a file of its own */
    assert_false(is_kept(dir));
    assert_int_equal(files_in(dir), 2);
    cublaslt_double()->version--;
    assert_true(is_kept(dir));
}

static void test_file_of_two(void **state)
{
    char dir[128];
    cu_product_params other = one_shape;
    cu_products *one, *two;
    cu_product *product;
    int started;
    ddp_err err;

    (void)state;
    (void)snprintf(dir, sizeof(dir), "%s/two", folder);
    one = open_products(dir, false, false);
    two = open_products(dir, false, false);
    make_one(one);
    other.n = 32;
    assert_ok(cu_product_create(two, &other, &product, &err), err);
    cu_product_free(product);
    cu_products_close(one);
    cu_products_close(two); /* keeps what the first has written */
    started = cublaslt_double()->started;
    one = open_products(dir, false, false);
    make_one(one);
    assert_ok(cu_product_create(one, &other, &product, &err), err);
    cu_product_free(product);
    cu_products_close(one);
    assert_int_equal(cublaslt_double()->started, started);
}

static void test_file_elsewhere(void **state)
{
    char dir[128], path[512];

    (void)state;
    (void)snprintf(dir, sizeof(dir), "%s/plain", folder); /* a file where the folder should be */
    write_file(dir, "x", 1);
    log_.lines = 0;
    assert_false(is_kept(dir));
    assert_int_equal(log_.lines, 1);
    (void)snprintf(dir, sizeof(dir), "%s/link", folder);
    assert_int_equal(mkdir(dir, 0700), 0);
    path_of(dir, path);
    assert_int_equal(symlink("/dev/zero", path), 0);
    log_.lines = 0;
    assert_false(is_kept(dir)); /* not read; replaced by a file of its own */
    assert_true(log_.lines >= 1);
    assert_true(is_kept(dir));
}

/* Each call that may fail does, once. */
static void test_failures(void **state)
{
    ddp_err err;

    (void)state;
    for (uint64_t n = 1; n < 60; n++) {
        const cu_products_params p = {.libraries = &libraries,
                                      .stream = stream,
                                      .cache_dir = "",
                                      .gpu = "",
                                      .candidates = 8,
                                      .workspace_bytes = 4096};
        cu_products *all = NULL;
        cu_product *product = NULL;
        cuda_double_fail_at(n);
        if (cu_products_open(&p, &all, &err) == DDP_OK && cu_product_create(all, &one_shape, &product, &err) == DDP_OK)
            cu_product_free(product);
        cuda_double_fail_at(0);
        cu_products_close(all);
        (void)cudaGetLastError();
    }
}

static int setup(void **state)
{
    ddp_err err;

    (void)state;
    (void)snprintf(folder, sizeof(folder), "/tmp/test_cuda_gemm.XXXXXX");
    if (mkdtemp(folder) == NULL) return -1;
    assert_ok(cu_libraries_open("double", "", &libraries, &err), err);
    return cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess ? 0 : -1;
}

/* The last of all. */
static void test_left(void **state)
{
    cuda_double_counts counts;

    (void)state;
    cuda_double_count(&counts);
    assert_int_equal(counts.device_memory, 0);
    assert_int_equal(counts.events, 0);
    assert_string_equal(cuda_double_misuse(), "");
    assert_string_equal(cublaslt_double()->misuse, "");
    assert_int_equal(cublaslt_double()->objects, 0);
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
        cmocka_unit_test(test_products), cmocka_unit_test(test_odd_columns), cmocka_unit_test(test_tf32_rounds),
        cmocka_unit_test(test_choice),   cmocka_unit_test(test_refused),     cmocka_unit_test(test_capture),
        cmocka_unit_test(test_file),     cmocka_unit_test(test_file_of_two), cmocka_unit_test(test_file_elsewhere),
        cmocka_unit_test(test_failures), cmocka_unit_test(test_left),
    };

    return cmocka_run_group_tests_name("matrix products of the CUDA device", tests, setup, teardown);
}
