/* plugins/device/cuda/libs/gemm.c -- matrix products by cuBLASLt. Algorithms are timed in gemm_measure.c and kept by
 * algorithms.c.
 *
 * cuBLASLt's matrices lie column by column, ours row by row: the row-major c = a b is the column-major c' = b' a',
 * so that its A is our b, its B our a, its m our n, and its rows are our columns. A bias that runs along its rows
 * runs along our columns, as it should; the sums over k of its B, BGRADB, are those of our a. */
#include "gemm_parts.h"
#include <stdlib.h>
#include <string.h>

enum { ALIGN_F32 = 64, ALIGN_BF16 = 32, HEX = 2 * sizeof(cublasLtMatmulAlgo_t) };
_Static_assert((int)HEX < (int)CU_ALGORITHM_NAME, "an algorithm in hex");

/* ---- all of a device --------------------------------------------------------------------------------------------- */
ddp_status cu_products_open(const cu_products_params *p, cu_products **out, ddp_err *err)
{
    cu_products *all = calloc(1, sizeof(*all));
    ddp_status status;
    cudaError_t result;
    cublasStatus_t said;

    if (all == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "out of memory for the matrix products of a CUDA device");
    all->l = p->libraries;
    all->workspace_bytes = p->workspace_bytes;
    all->side = p->side;
    all->first_heuristic = p->first_heuristic;
    all->tf32 = p->tf32;
    all->candidates = p->candidates < 1                       ? 1
                      : p->candidates > CU_PRODUCT_CANDIDATES ? CU_PRODUCT_CANDIDATES
                                                              : p->candidates;
    all->known = cu_algorithms_open(p->host, p->first_heuristic ? "" : p->cache_dir, p->gpu, "cublaslt",
                                    all->l->cublasLtGetVersion());
    if (all->known == NULL) {
        status = ddp_fail(err, DDP_ERR_NOMEM, "out of memory for the matrix products of a CUDA device");
        goto failed;
    }
    result = cu_timer_open(&all->timer, p->stream);
    if (result != cudaSuccess) {
        status = cu_fail(result, err, "events that time matrix products");
        goto failed;
    }
    result = all->workspace_bytes > 0 ? cudaMalloc(&all->workspace, all->workspace_bytes) : cudaSuccess;
    if (result != cudaSuccess) {
        status = cu_fail(result, err, "%zu bytes of device memory for cuBLASLt's workspace", all->workspace_bytes);
        goto failed;
    }
    said = all->l->cublasLtCreate(&all->handle);
    if (said != CUBLAS_STATUS_SUCCESS) {
        all->handle = NULL;
        status = cu_fail_blas(said, err, "cublasLtCreate");
        goto failed;
    }
    if (all->side != NULL && all->workspace_bytes > 0 &&
        cudaMalloc(&all->side_workspace, all->workspace_bytes) != cudaSuccess) {
        (void)cudaGetLastError();
        all->side = NULL;
    }
    *out = all;
    return DDP_OK;

failed:
    cu_products_close(all);
    return status;
}

bool cu_products_have_side(const cu_products *all) { return all->side != NULL; }

void cu_products_close(cu_products *all)
{
    if (all == NULL) return;
    if (all->handle != NULL) (void)all->l->cublasLtDestroy(all->handle);
    if (all->workspace != NULL) (void)cudaFree(all->workspace);
    if (all->side_workspace != NULL) (void)cudaFree(all->side_workspace);
    cu_timer_close(&all->timer);
    cu_algorithms_close(all->known);
    free(all);
}

/* ---- one product ------------------------------------------------------------------------------------------------- */
static cudaDataType_t type_of(uint32_t type) { return type == CU_BF16 ? CUDA_R_16BF : CUDA_R_32F; }
static uint32_t alignment_of(uint32_t type) { return type == CU_BF16 ? ALIGN_BF16 : ALIGN_F32; }

static bool gives_bias(uint32_t epilogue)
{
    return epilogue == CU_EPILOGUE_DGELU_BGRAD || epilogue == CU_EPILOGUE_BGRAD_A || epilogue == CU_EPILOGUE_BGRAD_B;
}

static bool uses_bias(const cu_product_params *p)
{
    return p->epilogue == CU_EPILOGUE_BIAS || gives_bias(p->epilogue) ||
           (p->has_bias && p->epilogue >= CU_EPILOGUE_RELU_BIAS && p->epilogue <= CU_EPILOGUE_GELU_BIAS);
}

bool cu_product_uses_aux(uint32_t epilogue)
{
    return epilogue == CU_EPILOGUE_GELU_AUX_BIAS || epilogue == CU_EPILOGUE_DGELU ||
           epilogue == CU_EPILOGUE_DGELU_BGRAD;
}

static bool has_gelu(uint32_t epilogue) { return cu_product_uses_aux(epilogue) || epilogue == CU_EPILOGUE_GELU_BIAS; }

static uint32_t epilogue_of(const cu_product_params *p)
{
    switch (p->epilogue) {
    case CU_EPILOGUE_BIAS: return CUBLASLT_EPILOGUE_BIAS;
    case CU_EPILOGUE_RELU_BIAS: return p->has_bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    case CU_EPILOGUE_GELU_AUX_BIAS: return p->has_bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    case CU_EPILOGUE_GELU_BIAS: return p->has_bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    case CU_EPILOGUE_DGELU: return CUBLASLT_EPILOGUE_DGELU;
    case CU_EPILOGUE_DGELU_BGRAD: return CUBLASLT_EPILOGUE_DGELU_BGRAD;
    case CU_EPILOGUE_BGRAD_A: return CUBLASLT_EPILOGUE_BGRADB;
    case CU_EPILOGUE_BGRAD_B: return CUBLASLT_EPILOGUE_BGRADA;
    default: return CUBLASLT_EPILOGUE_DEFAULT;
    }
}

/* The library takes and gives a bias in the type of c alone. */
uint32_t cu_product_bias_type(const cu_product *p) { return p->p.c_type; }
uint64_t cu_product_nanoseconds(const cu_product *p) { return p->nanoseconds; }

static cublasStatus_t set(const cu_product *t, cublasLtMatmulDescAttributes_t what, const void *value, size_t bytes)
{
    return t->all->l->cublasLtMatmulDescSetAttribute(t->desc, what, value, bytes);
}

cublasStatus_t cu_product_point(const cu_product *t, const void *bias, const void *aux)
{
    cublasStatus_t said = CUBLAS_STATUS_SUCCESS;

    if (uses_bias(&t->p)) said = set(t, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(bias));
    if (said == CUBLAS_STATUS_SUCCESS && cu_product_uses_aux(t->p.epilogue))
        said = set(t, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux, sizeof(aux));
    return said;
}

static cublasStatus_t describe_epilogue(const cu_product *t)
{
    const uint32_t epilogue = epilogue_of(&t->p);
    const int32_t type = (int32_t)type_of(t->p.c_type);
    /* never followed here: an address of the alignment that the real ones will have, and no more */
    static const _Alignas(2 * ALIGN_F32) unsigned char memory[2 * ALIGN_F32];
    const void *aligned = memory + alignment_of(t->p.c_type);
    cublasStatus_t said = set(t, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue));

    if (said == CUBLAS_STATUS_SUCCESS && uses_bias(&t->p))
        said = set(t, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof(type));
    if (said == CUBLAS_STATUS_SUCCESS && cu_product_uses_aux(t->p.epilogue))
        said = set(t, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &t->p.n, sizeof(t->p.n));
    return said == CUBLAS_STATUS_SUCCESS ? cu_product_point(t, aligned, aligned) : said;
}

/* A row-major (rows, cols) is a column-major (cols, rows) with the same leading dimension. */
static cublasStatus_t layout(const cu_products *all, cublasLtMatrixLayout_t *out, uint32_t type, int64_t rows,
                             int64_t cols)
{
    return all->l->cublasLtMatrixLayoutCreate(out, type_of(type), (uint64_t)cols, (uint64_t)rows, cols);
}

static cublasStatus_t describe(cu_product *t)
{
    const cu_product_params *p = &t->p;
    const cu_libraries *l = t->all->l;
    const bool fast = t->all->tf32 && p->a_type == CU_F32;
    const int32_t op_a = p->b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
                  op_b = p->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasStatus_t said =
        l->cublasLtMatmulDescCreate(&t->desc, fast ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F);

    if (said != CUBLAS_STATUS_SUCCESS) return said;
    said = set(t, CUBLASLT_MATMUL_DESC_TRANSA, &op_a, sizeof(op_a));
    if (said == CUBLAS_STATUS_SUCCESS) said = set(t, CUBLASLT_MATMUL_DESC_TRANSB, &op_b, sizeof(op_b));
    if (said == CUBLAS_STATUS_SUCCESS) said = describe_epilogue(t);
    if (said == CUBLAS_STATUS_SUCCESS)
        said = layout(t->all, &t->a, p->a_type, p->a_transposed ? p->k : p->m, p->a_transposed ? p->m : p->k);
    if (said == CUBLAS_STATUS_SUCCESS)
        said = layout(t->all, &t->b, p->b_type, p->b_transposed ? p->n : p->k, p->b_transposed ? p->k : p->n);
    if (said == CUBLAS_STATUS_SUCCESS) said = layout(t->all, &t->c, p->c_type, p->m, p->n);
    return said;
}

cublasStatus_t cu_product_start(const cu_product *t, const cublasLtMatmulAlgo_t *algo, cudaStream_t s, const void *a,
                                const void *b, void *c, bool add)
{
    const float one = 1, beta = add ? 1 : 0;
    void *workspace = s != NULL && s == t->all->side ? t->all->side_workspace : t->all->workspace;

    return t->all->l->cublasLtMatmul(t->all->handle, t->desc, &one, b, t->b, a, t->a, &beta, c, t->c, c, t->c, algo,
                                     workspace, t->all->workspace_bytes, s);
}

ddp_status cu_product_run(const cu_product *t, cudaStream_t s, const void *a, const void *b, void *c, void *bias,
                          void *aux, bool add, ddp_err *err)
{
    cublasStatus_t said = cu_product_point(t, bias, aux);

    if (said == CUBLAS_STATUS_SUCCESS) said = cu_product_start(t, &t->algo, s, a, b, c, add);
    if (said == CUBLAS_STATUS_SUCCESS) return DDP_OK;
    return cu_fail_blas(said, err, "a product of (%lld, %lld) by (%lld, %lld)", (long long)t->p.m, (long long)t->p.k,
                        (long long)t->p.k, (long long)t->p.n);
}

/* ---- choosing ---------------------------------------------------------------------------------------------------- */
static void key_of(const cu_product *t, char key[CU_ALGORITHM_KEY])
{
    static const char *const types[] = {"f32", "bf16"};
    const cu_product_params *p = &t->p;

    (void)snprintf(key, CU_ALGORITHM_KEY, "m%lld-n%lld-k%lld-%c%c-%s-%s-%s-e%u-b%d-x%d-w%zu", (long long)p->m,
                   (long long)p->n, (long long)p->k, p->a_transposed ? 't' : 'n', p->b_transposed ? 't' : 'n',
                   types[p->a_type == CU_BF16], types[p->b_type == CU_BF16], types[p->c_type == CU_BF16], p->epilogue,
                   uses_bias(p), t->all->tf32, t->all->workspace_bytes);
}

void cu_product_keep(const cu_product *t, const char *key)
{
    unsigned char bytes[sizeof(t->algo)];
    char name[HEX + 1];

    memcpy(bytes, &t->algo, sizeof(bytes));
    for (size_t i = 0; i < sizeof(bytes); i++) (void)snprintf(name + 2 * i, 3, "%02x", bytes[i]);
    cu_algorithms_put(t->all->known, key, name, t->nanoseconds);
}

static bool parse(const char *name, cublasLtMatmulAlgo_t *out)
{
    unsigned char bytes[sizeof(*out)];

    if (strlen(name) != HEX || strspn(name, "0123456789abcdef") != HEX) return false;
    for (size_t i = 0; i < sizeof(bytes); i++) {
        const char digits[] = {name[2 * i], name[2 * i + 1], '\0'};
        bytes[i] = (unsigned char)strtoul(digits, NULL, 16);
    }
    memcpy(out, bytes, sizeof(bytes));
    return true;
}

static bool use_known(cu_product *t, const char *key)
{
    uint64_t nanoseconds;
    const char *name = cu_algorithms_find(t->all->known, key, &nanoseconds);
    cublasLtMatmulAlgo_t algo;
    cublasLtMatmulHeuristicResult_t said;

    if (name == NULL || !parse(name, &algo)) return false;
    if (t->all->l->cublasLtMatmulAlgoCheck(t->all->handle, t->desc, t->b, t->a, t->c, t->c, &algo, &said) !=
            CUBLAS_STATUS_SUCCESS ||
        said.workspaceSize > t->all->workspace_bytes)
        return false;
    t->algo = algo;
    t->nanoseconds = nanoseconds;
    return true;
}

/* Partial sums stay in f32: INPLACE and OUTPUT_TYPE would round them to c's type. */
static cublasStatus_t prefer(const cu_product *t, cublasLtMatmulPreference_t preference)
{
    const cu_libraries *l = t->all->l;
    const uint64_t workspace = t->all->workspace_bytes;
    const uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, a = alignment_of(t->p.a_type),
                   b = alignment_of(t->p.b_type), c = alignment_of(t->p.c_type);
    const struct {
        cublasLtMatmulPreferenceAttributes_t what;
        const void *value;
        size_t bytes;
    } wanted[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace)},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &scheme, sizeof(scheme)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &b, sizeof(b)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &a, sizeof(a)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &c, sizeof(c)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &c, sizeof(c)},
    };
    cublasStatus_t said = CUBLAS_STATUS_SUCCESS;

    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]) && said == CUBLAS_STATUS_SUCCESS; i++)
        said = l->cublasLtMatmulPreferenceSetAttribute(preference, wanted[i].what, wanted[i].value, wanted[i].bytes);
    return said;
}

/* What the library proposes, best first; those it cannot do are left out. */
static cublasStatus_t propose(const cu_product *t, cublasLtMatmulHeuristicResult_t found[CU_PRODUCT_CANDIDATES],
                              int *count)
{
    const cu_libraries *l = t->all->l;
    const int wanted = t->all->first_heuristic ? 1 : (int)t->all->candidates;
    cublasLtMatmulPreference_t preference;
    int given = 0;
    cublasStatus_t said = l->cublasLtMatmulPreferenceCreate(&preference);

    *count = 0;
    if (said != CUBLAS_STATUS_SUCCESS) return said;
    said = prefer(t, preference);
    if (said == CUBLAS_STATUS_SUCCESS)
        said = l->cublasLtMatmulAlgoGetHeuristic(t->all->handle, t->desc, t->b, t->a, t->c, t->c, preference, wanted,
                                                 found, &given);
    (void)l->cublasLtMatmulPreferenceDestroy(preference);
    for (int i = 0; i < given && said == CUBLAS_STATUS_SUCCESS; i++)
        if (found[i].state == CUBLAS_STATUS_SUCCESS && found[i].workspaceSize <= t->all->workspace_bytes)
            found[(*count)++] = found[i];
    return said;
}

static ddp_status choose(cu_product *t, ddp_err *err)
{
    cublasLtMatmulHeuristicResult_t found[CU_PRODUCT_CANDIDATES];
    char key[CU_ALGORITHM_KEY];
    int count;
    cublasStatus_t said;

    key_of(t, key);
    if (!t->all->first_heuristic && use_known(t, key)) return DDP_OK;
    said = propose(t, found, &count);
    if (said == CUBLAS_STATUS_NOT_SUPPORTED || said == CUBLAS_STATUS_INVALID_VALUE ||
        (said == CUBLAS_STATUS_SUCCESS && count == 0))
        return ddp_fail(err, DDP_ERR_UNSUPPORTED, "cuBLASLt has no algorithm for the product %s", key);
    if (said != CUBLAS_STATUS_SUCCESS) return cu_fail_blas(said, err, "algorithms for the product %s", key);
    t->algo = found[0].algo;
    return t->all->first_heuristic ? DDP_OK : cu_product_measure(t, found, count, key, err);
}

/* ---- create ------------------------------------------------------------------------------------------------------ */
static ddp_status check(const cu_product_params *p, ddp_err *err)
{
    if (p->m < 1 || p->n < 1 || p->k < 1 || p->a_type != p->b_type || p->epilogue > CU_EPILOGUE_BGRAD_B)
        return ddp_fail(err, DDP_ERR_INVALID, "a product of (%lld, %lld) by (%lld, %lld), types %u and %u, epilogue %u",
                        (long long)p->m, (long long)p->k, (long long)p->k, (long long)p->n, p->a_type, p->b_type,
                        p->epilogue);
    if (p->add && p->epilogue != CU_EPILOGUE_NONE)
        return ddp_fail(err, DDP_ERR_INVALID, "a product with epilogue %u that is added to what is there", p->epilogue);
    if (has_gelu(p->epilogue) && p->c_type != CU_BF16)
        return ddp_fail(err, DDP_ERR_UNSUPPORTED, "how exact cuBLASLt's gelu is in f32 is not known");
    if (cu_product_uses_aux(p->epilogue) && p->n % 8 != 0)
        return ddp_fail(err, DDP_ERR_UNSUPPORTED,
                        "cuBLASLt keeps what goes into gelu in rows of a multiple of 8, not %lld", (long long)p->n);
    return DDP_OK;
}

ddp_status cu_product_create(cu_products *all, const cu_product_params *p, cu_product **out, ddp_err *err)
{
    ddp_status status = check(p, err);
    cu_product *t;
    cublasStatus_t said;

    if (status != DDP_OK) return status;
    t = calloc(1, sizeof(*t));
    if (t == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "out of memory for a matrix product");
    t->all = all;
    t->p = *p;
    said = describe(t);
    if (said == CUBLAS_STATUS_NOT_SUPPORTED || said == CUBLAS_STATUS_INVALID_VALUE)
        status = ddp_fail(err, DDP_ERR_UNSUPPORTED, "cuBLASLt does not know products with epilogue %u", p->epilogue);
    else if (said != CUBLAS_STATUS_SUCCESS)
        status = cu_fail_blas(said, err, "describing a product of (%lld, %lld) by (%lld, %lld)", (long long)p->m,
                              (long long)p->k, (long long)p->k, (long long)p->n);
    else
        status = choose(t, err);
    if (status != DDP_OK) {
        cu_product_free(t);
        return status;
    }
    *out = t;
    return DDP_OK;
}

void cu_product_free(cu_product *t)
{
    if (t == NULL) return;
    if (t->a != NULL) (void)t->all->l->cublasLtMatrixLayoutDestroy(t->a);
    if (t->b != NULL) (void)t->all->l->cublasLtMatrixLayoutDestroy(t->b);
    if (t->c != NULL) (void)t->all->l->cublasLtMatrixLayoutDestroy(t->c);
    if (t->desc != NULL) (void)t->all->l->cublasLtMatmulDescDestroy(t->desc);
    free(t);
}
