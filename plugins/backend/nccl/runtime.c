/* plugins/backend/nccl/runtime.c -- opens NCCL and the CUDA runtime, and words their errors. */
#include "runtime.h"
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* NODELETE: both libraries start threads and register handlers that must not lose their code. */
static ddp_status open_library(const char *name, const char *what, const char *remedy, void **out, ddp_err *err)
{
    *out = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (*out != NULL) return DDP_OK;
    return ddp_fail(err, DDP_ERR_LIBRARY, "%s cannot be loaded (%.200s). %s", what, dlerror(), remedy);
}

static ddp_status no_function(const char *library, const char *name, const char *least, ddp_err *err)
{
    return ddp_fail(err, DDP_ERR_LIBRARY, "%s has no function %s; it needs %s", library, name, least);
}

/* dlsym gives an object pointer; POSIX lets it be read as one of a function. */
#define LOAD(handle, library, least, field)                                                                            \
    do {                                                                                                               \
        void *symbol_ = dlsym(handle, #field);                                                                         \
        if (symbol_ == NULL) return no_function(library, #field, least, err);                                          \
        memcpy(&r->field, &symbol_, sizeof(symbol_));                                                                  \
    } while (0);

static ddp_status fill(ddp_nccl_runtime *r, const ddp_nccl_libraries *names, ddp_err *err)
{
#define NCCL_(field) LOAD(r->nccl, names->nccl, "NCCL 2.19 or newer", field)
#define CUDA_(field) LOAD(r->cuda, names->cuda, "the CUDA runtime 12 or newer", field)
    DDP_NCCL_FUNCTIONS(NCCL_)
    DDP_CUDA_FUNCTIONS(CUDA_)
#undef NCCL_
#undef CUDA_
    return DDP_OK;
}

ddp_status ddp_nccl_runtime_open(const ddp_nccl_libraries *names, ddp_nccl_runtime *out, ddp_err *err)
{
    ddp_nccl_runtime r = {.nccl = NULL};
    void *driver;
    ddp_status st;

    st = open_library(names->nccl, "NCCL", "Install NVIDIA's package libnccl2, or name it in [backend.nccl] library",
                      &r.nccl, err);
    if (st != DDP_OK) return st;
    st = open_library(names->cuda, "the CUDA runtime",
                      "Install the CUDA Toolkit or its package cuda-cudart, or name it in [backend.nccl] cuda_library",
                      &r.cuda, err);
    if (st != DDP_OK) goto close_nccl;
    st = open_library(
        names->driver, "the NVIDIA driver",
        "Install the driver on this machine, or run without one: [train] device = cpu, [group] backend = gloo-tcp",
        &driver, err);
    if (st != DDP_OK) goto close_cuda;
    (void)dlclose(driver); /* only checked for: the two libraries above load it themselves */
    st = fill(&r, names, err);
    if (st != DDP_OK) goto close_cuda;
    *out = r;
    return DDP_OK;

close_cuda:
    (void)dlclose(r.cuda);
close_nccl:
    (void)dlclose(r.nccl);
    return st;
}

void ddp_nccl_runtime_close(ddp_nccl_runtime *r)
{
    (void)dlclose(r->cuda);
    (void)dlclose(r->nccl);
}

static ddp_status no_device(const ddp_nccl_runtime *r, cudaError_t result, ddp_err *err)
{
    int driver = 0, runtime = 0;

    (void)r->cudaDriverGetVersion(&driver);
    (void)r->cudaRuntimeGetVersion(&runtime);
    if (result == cudaErrorInsufficientDriver && driver > 0) {
        (void)ddp_fail(err, DDP_ERR_LIBRARY,
                       "the NVIDIA driver serves CUDA %d.%d, this CUDA runtime is %d.%d: install a newer driver",
                       driver / 1000, driver % 100 / 10, runtime / 1000, runtime % 100 / 10);
    } else if (result == cudaSuccess || result == cudaErrorNoDevice) {
        const char *visible = getenv("CUDA_VISIBLE_DEVICES");
        (void)ddp_fail(err, DDP_ERR_LIBRARY,
                       "no CUDA device on this machine%s%.100s; look with nvidia-smi, or run without one: "
                       "[train] device = cpu, [group] backend = gloo-tcp",
                       visible != NULL ? ", with CUDA_VISIBLE_DEVICES = " : "", visible != NULL ? visible : "");
    } else {
        return ddp_nccl_fail_cuda(r, result, err, "the CUDA devices cannot be counted");
    }
    err->lib_code = (int32_t)result;
    return err->status;
}

ddp_status ddp_nccl_device_check(const ddp_nccl_runtime *r, int32_t ordinal, ddp_err *err)
{
    int count = 0;
    cudaError_t result = r->cudaGetDeviceCount(&count);

    if (result != cudaSuccess || count == 0) return no_device(r, result, err);
    if (ordinal >= 0 && ordinal < count) return DDP_OK;
    return ddp_fail(err, DDP_ERR_CONFIG, "[train] device is CUDA device %d, but this machine has %d, numbered from 0",
                    ordinal, count);
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */
/* A library's words, cut and on one line. */
static void one_line(char *out, size_t capacity, const char *text)
{
    size_t n = 0;

    for (; text != NULL && *text != '\0' && n + 1 < capacity; text++)
        if ((unsigned char)*text >= ' ')
            out[n++] = *text;
        else if (n > 0 && out[n - 1] != ' ')
            out[n++] = ' ';
    while (n > 0 && out[n - 1] == ' ') n--;
    out[n] = '\0';
}

ddp_status ddp_nccl_fail(const ddp_nccl_runtime *r, ncclComm_t comm, ncclResult_t result, ddp_err *err, const char *fmt,
                         ...)
{
    char what[160], words[256];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(what, sizeof(what), fmt, ap);
    va_end(ap);
    one_line(words, sizeof(words), r->ncclGetLastError(comm));
    (void)ddp_fail(err, result == ncclRemoteError ? DDP_ERR_PEER : DDP_ERR_LIBRARY, "%s: NCCL error %d, %.60s%s%s",
                   what, (int)result, r->ncclGetErrorString(result), words[0] != '\0' ? ": " : "", words);
    err->lib_code = (int32_t)result;
    return err->status;
}

ddp_status ddp_nccl_fail_cuda(const ddp_nccl_runtime *r, cudaError_t result, ddp_err *err, const char *fmt, ...)
{
    char what[160];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(what, sizeof(what), fmt, ap);
    va_end(ap);
    (void)ddp_fail(err, result == cudaErrorMemoryAllocation ? DDP_ERR_NOMEM : DDP_ERR_LIBRARY,
                   "%s: CUDA error %d, %.60s: %.200s", what, (int)result, r->cudaGetErrorName(result),
                   r->cudaGetErrorString(result));
    err->lib_code = (int32_t)result;
    return err->status;
}
