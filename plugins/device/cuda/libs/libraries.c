/* plugins/device/cuda/libs/libraries.c -- opens cuBLASLt and cuDNN, and words their errors and CUDA's. With
 * DDP_CUDA_DOUBLE the name "double" stands for the functions of tests/doubles that are linked in. */
#include "libraries.h"
#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>

/* ---- loading ----------------------------------------------------------------------------------------------------- */
/* NODELETE: both start threads and register handlers that must not lose their code. */
static void *open_library(const char *name) { return dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE); }

/* dlsym gives an object pointer; POSIX lets it be read as one of a function. Returns the name that is not there, or
 * NULL. */
#define LOAD_(field)                                                                                                   \
    do {                                                                                                               \
        void *symbol_ = dlsym(handle, #field);                                                                         \
        if (symbol_ == NULL) return #field;                                                                            \
        memcpy(&l->field, &symbol_, sizeof(symbol_));                                                                  \
    } while (0);
static const char *fill_blas(cu_libraries *l, void *handle)
{
    CU_BLAS_FUNCTIONS(LOAD_)
    return NULL;
}

static const char *fill_dnn(cu_libraries *l, void *handle)
{
    CU_DNN_FUNCTIONS(LOAD_)
    return NULL;
}
#undef LOAD_

#ifdef DDP_CUDA_DOUBLE
#define LINKED_(field) l->field = field;
static bool open_double(const char *name) { return strcmp(name, "double") == 0; }
static void blas_double(cu_libraries *l) { CU_BLAS_FUNCTIONS(LINKED_) }
static void dnn_double(cu_libraries *l)
{
    CU_DNN_FUNCTIONS(LINKED_)
    l->dnn = dlopen(NULL, RTLD_NOW); /* not NULL: it is there */
}
#undef LINKED_
#endif

static ddp_status open_blas(const char *name, cu_libraries *l, ddp_err *err)
{
    const char *missing;

#ifdef DDP_CUDA_DOUBLE
    if (open_double(name)) {
        blas_double(l);
        return DDP_OK;
    }
#endif
    l->blas = open_library(name);
    if (l->blas == NULL)
        return ddp_fail(
            err, DDP_ERR_LIBRARY,
            "cuBLASLt cannot be loaded (%.200s). "
            "Install the CUDA Toolkit %d or its package libcublas, or name it in [device.cuda] cublas_library",
            dlerror(), CUDART_VERSION / 1000);
    missing = fill_blas(l, l->blas);
    if (missing == NULL) return DDP_OK;
    (void)dlclose(l->blas);
    return ddp_fail(err, DDP_ERR_LIBRARY, "%.200s has no function %s; it needs cuBLASLt of CUDA %d", name, missing,
                    CUDART_VERSION / 1000);
}

static void open_dnn(const char *name, cu_libraries *l)
{
    const char *missing;

    if (name[0] == '\0') {
        (void)snprintf(l->dnn_missing, sizeof(l->dnn_missing), "not wanted");
        return;
    }
#ifdef DDP_CUDA_DOUBLE
    if (open_double(name)) {
        dnn_double(l);
        return;
    }
#endif
    l->dnn = open_library(name);
    if (l->dnn == NULL) {
        (void)snprintf(l->dnn_missing, sizeof(l->dnn_missing), "%.200s", dlerror());
        return;
    }
    missing = fill_dnn(l, l->dnn);
    if (missing == NULL) return;
    (void)snprintf(l->dnn_missing, sizeof(l->dnn_missing), "%.150s has no function %s; it needs cuDNN 9", name,
                   missing);
    (void)dlclose(l->dnn);
    l->dnn = NULL;
}

ddp_status cu_libraries_open(const char *blas, const char *dnn, cu_libraries *out, ddp_err *err)
{
    cu_libraries l = {.blas = NULL};
    ddp_status st = open_blas(blas, &l, err);

    if (st != DDP_OK) return st;
    open_dnn(dnn, &l);
    *out = l;
    return DDP_OK;
}

void cu_libraries_close(cu_libraries *l)
{
    if (l->dnn != NULL) (void)dlclose(l->dnn);
    if (l->blas != NULL) (void)dlclose(l->blas);
    l->dnn = l->blas = NULL;
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */
ddp_status cu_fail(cudaError_t result, ddp_err *err, const char *fmt, ...)
{
    char what[200];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(what, sizeof(what), fmt, ap);
    va_end(ap);
    (void)ddp_fail(err, result == cudaErrorMemoryAllocation ? DDP_ERR_NOMEM : DDP_ERR_LIBRARY,
                   "%s: CUDA error %d, %.60s: %.160s", what, (int)result, cudaGetErrorName(result),
                   cudaGetErrorString(result));
    err->lib_code = (int32_t)result;
    return err->status;
}

static const char *blas_words(cublasStatus_t result)
{
    switch (result) {
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED: the library could not be set up";
    case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED: out of memory";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE: arguments that do not fit each other";
    case CUBLAS_STATUS_ARCH_MISMATCH: return "CUBLAS_STATUS_ARCH_MISMATCH: this GPU cannot do it";
    case CUBLAS_STATUS_MAPPING_ERROR: return "CUBLAS_STATUS_MAPPING_ERROR: GPU memory could not be reached";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED: the kernel failed";
    case CUBLAS_STATUS_INTERNAL_ERROR: return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED: no algorithm for it";
    default: return "unknown to this build";
    }
}

ddp_status cu_fail_blas(cublasStatus_t result, ddp_err *err, const char *fmt, ...)
{
    char what[200];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(what, sizeof(what), fmt, ap);
    va_end(ap);
    (void)ddp_fail(err, result == CUBLAS_STATUS_ALLOC_FAILED ? DDP_ERR_NOMEM : DDP_ERR_LIBRARY,
                   "%s: cuBLASLt error %d, %s", what, (int)result, blas_words(result));
    err->lib_code = (int32_t)result;
    return err->status;
}

/* A library's words, cut and on one line. */
static void one_line(char *text)
{
    size_t n = 0;

    for (const char *at = text; *at != '\0'; at++)
        if ((unsigned char)*at >= ' ')
            text[n++] = *at;
        else if (n > 0 && text[n - 1] != ' ')
            text[n++] = ' ';
    while (n > 0 && text[n - 1] == ' ') n--;
    text[n] = '\0';
}

static bool out_of_memory(cudnnStatus_t result)
{
    return result == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
           result == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
}

ddp_status cu_fail_dnn(const cu_libraries *l, cudnnStatus_t result, ddp_err *err, const char *fmt, ...)
{
    char what[160], words[240] = "";
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(what, sizeof(what), fmt, ap);
    va_end(ap);
    l->cudnnGetLastErrorString(words, sizeof(words));
    words[sizeof(words) - 1] = '\0';
    one_line(words);
    (void)ddp_fail(err, out_of_memory(result) ? DDP_ERR_NOMEM : DDP_ERR_LIBRARY, "%s: cuDNN error %d, %.80s%s%s", what,
                   (int)result, l->cudnnGetErrorString(result), words[0] != '\0' ? ": " : "", words);
    err->lib_code = (int32_t)result;
    return err->status;
}
