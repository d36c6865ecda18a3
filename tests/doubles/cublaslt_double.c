/* tests/doubles/cublaslt_double.c -- the functions of cuBLASLt that plugins/device/cuda/libs/libraries.h names, on
 * the host. */
#include "cublaslt_double.h"
#include "cuda_runtime_double.h"
#include <cublasLt.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SLOW_SECONDS = 1000, WORKSPACE = 64, MAGIC = 0x474c4142 };

static cublaslt_double_control control = {.version = 130100};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
#define COUNT(field, by) ((void)__atomic_add_fetch(&control.field, by, __ATOMIC_RELAXED))
cublaslt_double_control *cublaslt_double(void) { return &control; }

static cublasStatus_t misuse(const char *what)
{
    (void)pthread_mutex_lock(&lock);
    if (control.misuse[0] == '\0') (void)snprintf(control.misuse, sizeof(control.misuse), "%s", what);
    (void)pthread_mutex_unlock(&lock);
    return CUBLAS_STATUS_INVALID_VALUE;
}

/* ---- objects ----------------------------------------------------------------------------------------------------- */
typedef struct layout {
    cudaDataType_t type;
    uint64_t rows, cols;
    int64_t ld;
} layout;

typedef struct desc {
    cublasComputeType_t compute;
    int32_t transa, transb, bias_type, aux_type;
    uint32_t epilogue;
    void *bias, *aux;
    int64_t aux_ld;
} desc;

typedef struct preference {
    uint64_t workspace;
    uint32_t scheme, a, b, c, d; /* alignments */
} preference;

/* What the opaque words of an algorithm are here: it is good for products of exactly this kind. */
typedef struct algorithm {
    uint32_t magic, index, a, b, c, d;
    uint64_t m, n, k;
    uint32_t epilogue, transposed;
} algorithm;
_Static_assert(sizeof(algorithm) <= sizeof(cublasLtMatmulAlgo_t), "an algorithm's words");

static void *object(size_t bytes)
{
    COUNT(objects, 1);
    return calloc(1, bytes);
}

static cublasStatus_t drop(void *p)
{
    COUNT(objects, -1);
    free(p);
    return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion(void) { return control.version; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t *out)
{
    *out = object(16);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t h) { return drop(h); }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute, cudaDataType_t scale)
{
    desc *d;

    if (scale != CUDA_R_32F || (compute != CUBLAS_COMPUTE_32F && compute != CUBLAS_COMPUTE_32F_FAST_TF32))
        return misuse("a compute type that is not f32");
    d = object(sizeof(*d));
    d->compute = compute;
    d->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    d->bias_type = d->aux_type = -1;
    *out = (cublasLtMatmulDesc_t)d;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) { return drop(d); }

static cublasStatus_t take(void *to, size_t size, const void *from, size_t bytes)
{
    if (bytes != size) return misuse("an attribute of another size");
    memcpy(to, from, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t t, cublasLtMatmulDescAttributes_t what,
                                              const void *value, size_t bytes)
{
    desc *d = (desc *)t;

    switch ((int)what) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return take(&d->transa, sizeof(d->transa), value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB: return take(&d->transb, sizeof(d->transb), value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return take(&d->epilogue, sizeof(d->epilogue), value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return take(&d->bias, sizeof(d->bias), value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return take(&d->bias_type, sizeof(d->bias_type), value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return take(&d->aux, sizeof(d->aux), value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return take(&d->aux_ld, sizeof(d->aux_ld), value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE: return take(&d->aux_type, sizeof(d->aux_type), value, bytes);
    default: return misuse("an attribute that the double does not know");
    }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type, uint64_t rows, uint64_t cols,
                                          int64_t ld)
{
    layout *l;

    if (ld < (int64_t)rows) return misuse("a leading dimension below the rows");
    l = object(sizeof(*l));
    *l = (layout){type, rows, cols, ld};
    *out = (cublasLtMatrixLayout_t)l;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) { return drop(l); }

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out)
{
    preference *p = object(sizeof(*p));

    *p = (preference){.scheme = CUBLASLT_REDUCTION_SCHEME_MASK, .a = 256, .b = 256, .c = 256, .d = 256};
    *out = (cublasLtMatmulPreference_t)p;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) { return drop(p); }

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t t,
                                                    cublasLtMatmulPreferenceAttributes_t what, const void *value,
                                                    size_t bytes)
{
    preference *p = (preference *)t;

    switch ((int)what) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return take(&p->workspace, sizeof(p->workspace), value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return take(&p->scheme, sizeof(p->scheme), value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: return take(&p->a, sizeof(p->a), value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: return take(&p->b, sizeof(p->b), value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: return take(&p->c, sizeof(p->c), value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return take(&p->d, sizeof(p->d), value, bytes);
    default: return misuse("a preference that the double does not know");
    }
}

/* ---- what goes together ------------------------------------------------------------------------------------------ */
static bool has(uint32_t epilogue, uint32_t bits) { return (epilogue & bits) == bits; }
static bool reads_bias(uint32_t e) { return has(e, CUBLASLT_EPILOGUE_BIAS); }
static bool writes_bias(uint32_t e)
{
    return e == CUBLASLT_EPILOGUE_BGRADA || e == CUBLASLT_EPILOGUE_BGRADB || has(e, 16);
}
static bool uses_aux(uint32_t e) { return has(e, 128); }

/* The size of a product from the layouts; false where they do not fit each other. */
static bool size_of(const desc *d, const layout *a, const layout *b, const layout *c, uint64_t *m, uint64_t *n,
                    uint64_t *k)
{
    *m = d->transa != CUBLAS_OP_N ? a->cols : a->rows;
    *k = d->transa != CUBLAS_OP_N ? a->rows : a->cols;
    *n = d->transb != CUBLAS_OP_N ? b->rows : b->cols;
    return *k == (d->transb != CUBLAS_OP_N ? b->cols : b->rows) && c->rows == *m && c->cols == *n;
}

/* cuBLASLt's tables of types. */
static bool supported(const desc *d, const layout *a, const layout *b, const layout *c)
{
    if (a->type != b->type || (a->type != CUDA_R_32F && a->type != CUDA_R_16BF)) return false;
    if (c->type != CUDA_R_32F && !(c->type == CUDA_R_16BF && a->type == CUDA_R_16BF)) return false;
    if ((reads_bias(d->epilogue) || writes_bias(d->epilogue)) && d->bias_type != -1 && d->bias_type != (int32_t)c->type)
        return false;
    if (uses_aux(d->epilogue) && d->aux_type != -1 && d->aux_type != (int32_t)c->type) return false;
    return control.refused == 0 || d->epilogue != control.refused;
}

static algorithm wanted(const desc *d, uint64_t m, uint64_t n, uint64_t k)
{
    return (algorithm){.magic = MAGIC,
                       .m = m,
                       .n = n,
                       .k = k,
                       .epilogue = d->epilogue,
                       .transposed = (uint32_t)d->transa * 2 + (uint32_t)d->transb};
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t t, cublasLtMatrixLayout_t la,
                                              cublasLtMatrixLayout_t lb, cublasLtMatrixLayout_t lc,
                                              cublasLtMatrixLayout_t ld, cublasLtMatmulPreference_t pref, int count,
                                              cublasLtMatmulHeuristicResult_t results[], int *given)
{
    const desc *d = (const desc *)t;
    const layout *a = (const layout *)la, *b = (const layout *)lb, *c = (const layout *)lc;
    const preference *p = (const preference *)pref;
    algorithm algo;
    uint64_t m, n, k;

    (void)h;
    COUNT(heuristics, 1);
    *given = 0;
    if (lc != ld || !size_of(d, a, b, c, &m, &n, &k)) return misuse("matrices that do not fit each other");
    if (uses_aux(d->epilogue) && (d->aux_ld % 8 != 0 || d->aux_ld < (int64_t)m)) return CUBLAS_STATUS_INVALID_VALUE;
    if ((reads_bias(d->epilogue) || writes_bias(d->epilogue)) && d->bias == NULL)
        return misuse("a bias that is nowhere");
    if (p->scheme & ~(uint32_t)CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) return misuse("sums in another type than f32");
    if (!supported(d, a, b, c)) return CUBLAS_STATUS_NOT_SUPPORTED;
    algo = wanted(d, m, n, k);
    algo.a = p->a;
    algo.b = p->b;
    algo.c = p->c;
    algo.d = p->d;
    for (; *given < count && *given < CUBLASLT_DOUBLE_ALGORITHMS; ++*given) {
        results[*given] = (cublasLtMatmulHeuristicResult_t){.state = CUBLAS_STATUS_SUCCESS, .workspaceSize = WORKSPACE};
        algo.index = (uint32_t)*given;
        memcpy(&results[*given].algo, &algo, sizeof(algo));
    }
    return CUBLAS_STATUS_SUCCESS;
}

static bool good_for(const cublasLtMatmulAlgo_t *algo, const desc *d, uint64_t m, uint64_t n, uint64_t k)
{
    const algorithm want = wanted(d, m, n, k);
    algorithm is;

    memcpy(&is, algo, sizeof(is));
    return is.magic == want.magic && is.m == m && is.n == n && is.k == k && is.epilogue == want.epilogue &&
           is.transposed == want.transposed && is.index < CUBLASLT_DOUBLE_ALGORITHMS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t h, cublasLtMatmulDesc_t t, cublasLtMatrixLayout_t la,
                                       cublasLtMatrixLayout_t lb, cublasLtMatrixLayout_t lc, cublasLtMatrixLayout_t ld,
                                       const cublasLtMatmulAlgo_t *algo, cublasLtMatmulHeuristicResult_t *result)
{
    const desc *d = (const desc *)t;
    uint64_t m, n, k;

    (void)h;
    (void)ld;
    COUNT(checks, 1);
    if (!size_of(d, (const layout *)la, (const layout *)lb, (const layout *)lc, &m, &n, &k) || control.checks_fail ||
        !good_for(algo, d, m, n, k))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    *result =
        (cublasLtMatmulHeuristicResult_t){.state = CUBLAS_STATUS_SUCCESS, .workspaceSize = WORKSPACE, .algo = *algo};
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */
static float from_bf16(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

static uint16_t to_bf16(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static float to_tf32(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    bits = (bits + 0xfffu + (bits >> 13 & 1u)) & ~0x1fffu;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static float get(const void *p, cudaDataType_t type, uint64_t i)
{
    return type == CUDA_R_16BF ? from_bf16(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}

static void put(void *p, cudaDataType_t type, uint64_t i, float x)
{
    if (type == CUDA_R_16BF)
        ((uint16_t *)p)[i] = to_bf16(x);
    else
        ((float *)p)[i] = x;
}

static float gelu(float x) { return 0.5f * x * (1 + tanhf(0.79788456f * (x + 0.044715f * x * x * x))); }

static float gelu_slope(float x)
{
    float t = tanhf(0.79788456f * (x + 0.044715f * x * x * x));

    return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * 0.79788456f * (1 + 3 * 0.044715f * x * x);
}

/* ---- products ---------------------------------------------------------------------------------------------------- */
typedef struct call {
    desc d;
    layout a, b, c;
    const void *at_a, *at_b;
    void *at_c, *workspace;
    uint64_t m, n, k;
    float alpha, beta;
    uint32_t index;
} call;

/* `rows` rows of k numbers each, side by side: of A its rows, of B its columns. */
static float *unpack(const void *at, const layout *l, bool by_column, uint64_t rows, uint64_t k, bool tf32)
{
    float *out = malloc(rows * k * sizeof(*out));
    const uint64_t ld = (uint64_t)l->ld;

    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t i = 0; i < k; i++) {
            float x = get(at, l->type, by_column ? r * ld + i : i * ld + r);
            out[r * k + i] = tf32 ? to_tf32(x) : x;
        }
    return out;
}

/* Element (i, j) with its epilogue. */
static float finish(const call *c, float x, uint64_t i, uint64_t j)
{
    const uint32_t e = c->d.epilogue;
    const uint64_t aux = j * (uint64_t)c->d.aux_ld + i;

    if (reads_bias(e)) x += get(c->d.bias, c->c.type, i);
    if (e == CUBLASLT_EPILOGUE_DGELU || e == CUBLASLT_EPILOGUE_DGELU_BGRAD)
        return x * gelu_slope(get(c->d.aux, c->c.type, aux));
    if (uses_aux(e)) put(c->d.aux, c->c.type, aux, x);
    if (has(e, CUBLASLT_EPILOGUE_RELU)) return x > 0 ? x : 0;
    return has(e, CUBLASLT_EPILOGUE_GELU) ? gelu(x) : x;
}

static void sums_over_k(const call *c, const float *rows, uint64_t count)
{
    for (uint64_t r = 0; r < count; r++) {
        float sum = 0;
        for (uint64_t i = 0; i < c->k; i++) sum += rows[r * c->k + i];
        put(c->d.bias, c->c.type, r, sum);
    }
}

static void multiply(void *argument)
{
    const call *c = argument;
    const bool tf32 = c->d.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    float *a = unpack(c->at_a, &c->a, c->d.transa != CUBLAS_OP_N, c->m, c->k, tf32),
          *b = unpack(c->at_b, &c->b, c->d.transb == CUBLAS_OP_N, c->n, c->k, tf32),
          *sums = calloc(c->m, sizeof(*sums));

    if (c->index == 0) cuda_double_takes(SLOW_SECONDS);
    memset(c->workspace, 0xa5, WORKSPACE);
    for (uint64_t j = 0; j < c->n; j++)
        for (uint64_t i = 0; i < c->m; i++) {
            const uint64_t at = j * (uint64_t)c->c.ld + i;
            float x = 0;
            for (uint64_t k = 0; k < c->k; k++) x += a[i * c->k + k] * b[j * c->k + k];
            x *= c->alpha;
            if (c->beta != 0) x += c->beta * get(c->at_c, c->c.type, at);
            x = finish(c, x, i, j);
            sums[i] += x;
            put(c->at_c, c->c.type, at, x);
        }
    if (c->d.epilogue == CUBLASLT_EPILOGUE_BGRADA) sums_over_k(c, a, c->m);
    if (c->d.epilogue == CUBLASLT_EPILOGUE_BGRADB) sums_over_k(c, b, c->n);
    for (uint64_t i = 0; i < c->m && c->d.epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD; i++)
        put(c->d.bias, c->c.type, i, sums[i]);
    free(a);
    free(b);
    free(sums);
}

static bool is_good(const void *p, uint64_t elements, cudaDataType_t type, uint64_t alignment)
{
    return (uintptr_t)p % alignment == 0 && cuda_double_is_device(p, elements * (type == CUDA_R_16BF ? 2 : 4));
}

static cublasStatus_t check_memory(const call *c, const algorithm *algo, size_t workspace)
{
    const uint64_t ld_a = (uint64_t)c->a.ld, ld_b = (uint64_t)c->b.ld,
                   bias = c->d.epilogue == CUBLASLT_EPILOGUE_BGRADB ? c->n : c->m;
    const uint64_t alignment = c->c.type == CUDA_R_16BF ? 32 : 64;

    if (!is_good(c->at_a, ld_a * c->a.cols, c->a.type, algo->a))
        return misuse("A less aligned than was said, or elsewhere");
    if (!is_good(c->at_b, ld_b * c->b.cols, c->b.type, algo->b))
        return misuse("B less aligned than was said, or elsewhere");
    if (!is_good(c->at_c, c->m * c->n, c->c.type, algo->d)) return misuse("D less aligned than was said, or elsewhere");
    if (workspace < WORKSPACE || !is_good(c->workspace, WORKSPACE / 4, CUDA_R_32F, 256)) return misuse("no workspace");
    if ((reads_bias(c->d.epilogue) || writes_bias(c->d.epilogue)) && !is_good(c->d.bias, bias, c->c.type, alignment))
        return misuse("a bias less aligned than was said, or elsewhere");
    if (uses_aux(c->d.epilogue) && !is_good(c->d.aux, (uint64_t)c->d.aux_ld * c->n, c->c.type, alignment))
        return misuse("aux less aligned than was said, or elsewhere");
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t t, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t la, const void *b, cublasLtMatrixLayout_t lb, const void *beta,
                              const void *c, cublasLtMatrixLayout_t lc, void *d, cublasLtMatrixLayout_t ld,
                              const cublasLtMatmulAlgo_t *algo, void *workspace, size_t workspace_bytes, cudaStream_t s)
{
    call now = {.d = *(const desc *)t,
                .a = *(const layout *)la,
                .b = *(const layout *)lb,
                .c = *(const layout *)lc,
                .at_a = a,
                .at_b = b,
                .at_c = d,
                .workspace = workspace,
                .alpha = *(const float *)alpha,
                .beta = *(const float *)beta};
    algorithm is;
    cublasStatus_t status;

    (void)h;
    if (c != d || lc != ld) return misuse("C that is not D");
    if (!size_of(&now.d, &now.a, &now.b, &now.c, &now.m, &now.n, &now.k))
        return misuse("matrices that do not fit each other");
    if (algo == NULL || !good_for(algo, &now.d, now.m, now.n, now.k)) return misuse("an algorithm of another product");
    memcpy(&is, algo, sizeof(is));
    if (is.index == 1) return CUBLAS_STATUS_NOT_SUPPORTED;
    if ((has(now.d.epilogue, CUBLASLT_EPILOGUE_GELU) || uses_aux(now.d.epilogue)) && now.c.type != CUDA_R_16BF)
        return misuse("a gelu, which is approximate, whose result is not bf16");
    status = check_memory(&now, &is, workspace_bytes);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    now.index = is.index;
    COUNT(started, 1);
    if (now.d.epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD) COUNT(sums, 1);
    __atomic_store_n(&control.last_algorithm, (int)is.index, __ATOMIC_RELAXED);
    return cuda_double_enqueue(s, multiply, &now, sizeof(now)) == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                                                              : CUBLAS_STATUS_EXECUTION_FAILED;
}
