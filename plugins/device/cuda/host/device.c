/* plugins/device/cuda/host/device.c -- the plugin: its descriptor, options, open, memory, copy, describe. What a
 * program does is in lower.c and exec.c. */
#include "instance.h"

#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { NEAREST = 0, STOCHASTIC }; /* rounding */
enum { IN_F32 = 0, IN_BF16 };     /* residual */
enum { LEAST_MAJOR = 8 /* compute capability: bf16 */, CANDIDATES = 28, MOST_DEVICES = 64 };

static const ddp_option options[] = {
    {"tf32", "no", NULL,
     "Whether f32 matrix products and convolutions use tf32, which is much faster but has a mantissa of ten bits.",
     DDP_OPT_BOOL, 0, offsetof(cu_config, tf32)},
    {"rounding", "nearest", "nearest|stochastic",
     "How updated parameters are rounded to the bf16 copy that matrix products read; "
     "the parameters themselves stay f32.",
     DDP_OPT_ENUM, 0, offsetof(cu_config, rounding)},
    {"residual", "f32", "f32|bf16",
     "With precision bf16, how the residual stream is stored: embeddings, positions, norms, their sums, and the gradients of these. "
     "f32 is what PyTorch's autocast has; bf16 moves fewer bytes and rounds every sum.",
     DDP_OPT_ENUM, 0, offsetof(cu_config, residual)},
    {"graphs", "yes", NULL, "Whether a range of kernels is captured as a CUDA graph and launched as one.", DDP_OPT_BOOL,
     DDP_OPT_F_PER_RANK, offsetof(cu_config, graphs)},
    {"side_stream", "measured", "measured|always|never",
     "Whether the kernels of a CUDA graph that give gradients of parameters alone run on a second stream, beside those that follow them. "
     "measured: as is faster over the first steps. The second stream changes no bits, and takes `workspace` once more.",
     DDP_OPT_ENUM, DDP_OPT_F_PER_RANK, offsetof(cu_config, side_stream)},
    {"cublas_library", "libcublasLt.so.13", NULL, "File name or path of the cuBLASLt library.", DDP_OPT_STRING,
     DDP_OPT_F_PER_RANK, offsetof(cu_config, cublas_library)},
    {"cudnn_library", "libcudnn.so.9", NULL,
     "File name or path of the cuDNN library; empty: use the device's own kernels instead.", DDP_OPT_STRING,
     DDP_OPT_F_PER_RANK, offsetof(cu_config, cudnn_library)},
    {"algorithm_cache", "", NULL,
     "Folder that stores the fastest algorithm measured for each matrix product and convolution. empty: "
     "$XDG_CACHE_HOME/ddpengine or ~/.cache/ddpengine; off: nothing is stored.",
     DDP_OPT_STRING, DDP_OPT_F_PER_RANK, offsetof(cu_config, algorithm_cache)},
    {"workspace", "32MiB", NULL, "Device memory in bytes that cuBLASLt may use for a matrix product.", DDP_OPT_SIZE,
     DDP_OPT_F_PER_RANK, offsetof(cu_config, workspace)},
    {"logits", "1GiB", "1..",
     "Most bytes that the logits of a last linear layer without bias may take. "
     "Where they would take more, the layer, its cross-entropy and their gradients are computed in pieces of the batch, of at least 128 rows each.",
     DDP_OPT_SIZE, DDP_OPT_F_PER_RANK, offsetof(cu_config, logits)},
};

ddp_status cu_enter(const ddp_device *d, ddp_err *err)
{
    cudaError_t result = cudaSetDevice(d->ordinal);

    return result == cudaSuccess ? DDP_OK : cu_fail(result, err, "device \"cuda:%d\"", d->ordinal);
}

/* ---- is there a GPU ---------------------------------------------------------------------------------------------- */
static ddp_status no_device(cudaError_t result, ddp_err *err)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    int driver = 0, runtime = 0;

    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    if (result == cudaErrorInsufficientDriver && driver > 0)
        (void)ddp_fail(err, DDP_ERR_LIBRARY,
                       "device \"cuda\": the NVIDIA driver serves CUDA %d.%d, this plugin is built for %d.%d: "
                       "install a newer driver",
                       driver / 1000, driver % 100 / 10, runtime / 1000, runtime % 100 / 10);
    else if (result == cudaErrorInsufficientDriver || result == cudaErrorStubLibrary)
        (void)ddp_fail(err, DDP_ERR_LIBRARY,
                       "device \"cuda\": there is no NVIDIA driver on this machine: install it, or run without a GPU: "
                       "[train] device = cpu");
    else if (result == cudaSuccess || result == cudaErrorNoDevice)
        (void)ddp_fail(
            err, DDP_ERR_LIBRARY,
            "device \"cuda\": no CUDA device on this machine%s%.100s; look with nvidia-smi, or run without a GPU: "
            "[train] device = cpu",
            visible != NULL ? ", with CUDA_VISIBLE_DEVICES = " : "", visible != NULL ? visible : "");
    else
        return cu_fail(result, err, "device \"cuda\": the CUDA devices cannot be counted");
    err->lib_code = (int32_t)result;
    return err->status;
}

static ddp_status check_params(const ddp_device_params *p, ddp_err *err)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    int count = 0;
    cudaError_t result;

    if (p->precision != DDP_PRECISION_F32 && p->precision != DDP_PRECISION_BF16)
        return ddp_fail(err, DDP_ERR_UNSUPPORTED,
                        "device \"cuda\" does not know precision %u; set [train] precision to f32 or bf16",
                        p->precision);
    result = cudaGetDeviceCount(&count);
    if (result != cudaSuccess || count == 0) {
        (void)cudaGetLastError();
        return no_device(result, err);
    }
    if (p->ordinal < (uint32_t)count) return DDP_OK;
    return ddp_fail(err, DDP_ERR_CONFIG,
                    "[train] device is cuda:%u, but this machine shows %d CUDA device%s, numbered from 0%s%.100s",
                    p->ordinal, count, count == 1 ? "" : "s", visible != NULL ? ", with CUDA_VISIBLE_DEVICES = " : "",
                    visible != NULL ? visible : "");
}

/* ---- peers: only devices that this process has open, as looking at another makes a context on it ----------------- */
static pthread_mutex_t peers_lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t peers_open[MOST_DEVICES]; /* by ordinal: how often */

static void let_read(int from, int to)
{
    int can = 0;

    if (cudaSetDevice(from) == cudaSuccess && cudaDeviceCanAccessPeer(&can, from, to) == cudaSuccess && can != 0)
        (void)cudaDeviceEnablePeerAccess(to, 0); /* where it is on already that is an error, and no harm */
    (void)cudaGetLastError();
}

static void peers_add(int ordinal)
{
    if (ordinal >= MOST_DEVICES) return;
    (void)pthread_mutex_lock(&peers_lock);
    for (int i = 0; i < MOST_DEVICES; i++) {
        if (peers_open[i] == 0 || i == ordinal) continue;
        let_read(i, ordinal);
        let_read(ordinal, i);
    }
    peers_open[ordinal]++;
    (void)pthread_mutex_unlock(&peers_lock);
}

static void peers_remove(int ordinal)
{
    if (ordinal >= MOST_DEVICES) return;
    (void)pthread_mutex_lock(&peers_lock);
    peers_open[ordinal]--;
    (void)pthread_mutex_unlock(&peers_lock);
}

/* ---- open -------------------------------------------------------------------------------------------------------- */
/* Two transfers a clock, which is in kHz. */
static double bytes_per_ns(const ddp_device *d, const struct cudaDeviceProp *props)
{
    int khz = 0;

    if (cudaDeviceGetAttribute(&khz, cudaDevAttrMemoryClockRate, d->ordinal) != cudaSuccess) (void)cudaGetLastError();
    return khz > 0 && props->memoryBusWidth > 0 ? 2e-6 * khz * props->memoryBusWidth / 8 : 1000.0;
}

static ddp_status look(ddp_device *d, ddp_err *err)
{
    struct cudaDeviceProp props;
    cudaError_t result = cudaGetDeviceProperties(&props, d->ordinal);

    if (result != cudaSuccess) return cu_fail(result, err, "device \"cuda:%d\" cannot be looked at", d->ordinal);
    (void)snprintf(d->gpu, sizeof(d->gpu), "%.120s", props.name);
    d->memory_bytes = props.totalGlobalMem;
    d->bytes_per_ns = bytes_per_ns(d, &props);
    if (props.major >= LEAST_MAJOR) return DDP_OK;
    return ddp_fail(
        err, DDP_ERR_UNSUPPORTED,
        "device \"cuda:%d\" is a %.80s of compute capability %d.%d; this plugin needs 8.0 or newer (A100, H100): "
        "choose another with [train] device, or device = cpu",
        d->ordinal, d->gpu, props.major, props.minor);
}

static ddp_status make_streams(ddp_device *d, ddp_err *err)
{
    for (int q = 0; q < DDP_QUEUE_COUNT; q++) {
        cudaError_t result = cudaStreamCreateWithFlags(&d->streams[q], cudaStreamNonBlocking);
        if (result != cudaSuccess) return cu_fail(result, err, "device \"cuda:%d\": no stream", d->ordinal);
    }
    if (cudaStreamCreateWithFlags(&d->input, cudaStreamNonBlocking) != cudaSuccess)
        return cu_fail(cudaGetLastError(), err, "device \"cuda:%d\": no stream", d->ordinal);
    for (int i = 0; i < CU_RING; i++) {
        cudaError_t result = cudaEventCreateWithFlags(&d->ring.past[i], cudaEventDisableTiming);
        if (result != cudaSuccess) return cu_fail(result, err, "device \"cuda:%d\": no event", d->ordinal);
    }
    return DDP_OK;
}

static ddp_status make_words(ddp_device *d, ddp_err *err)
{
    void *host, *device;
    ddp_status status = cu_page_locked(d, sizeof(cu_fault), &host, &device, err);

    if (status != DDP_OK) return status;
    d->fault = host;
    d->fault_at = device;
    status = cu_page_locked(d, sizeof(ddp_flat_result), &host, &device, err);
    if (status != DDP_OK) return status;
    d->flat_host = host;
    d->flat_at = device;
    status = cu_page_locked(d, CU_RING * sizeof(cu_head), &host, &device, err);
    if (status == DDP_OK) d->ring.slots = host;
    return status;
}

static void cache_dir(const cu_config *c, char *out, size_t capacity)
{
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");

    out[0] = '\0';
    if (strcmp(c->algorithm_cache, "off") == 0) return;
    if (c->algorithm_cache[0] != '\0')
        (void)snprintf(out, capacity, "%s", c->algorithm_cache);
    else if (base != NULL && base[0] == '/')
        (void)snprintf(out, capacity, "%s/ddpengine", base);
    else if (home != NULL && home[0] == '/')
        (void)snprintf(out, capacity, "%s/.cache/ddpengine", home);
}

/* "CUDA 13.0, cuBLASLt 13.0.1, cuDNN 9.10.2" */
static void name_libraries(ddp_device *d)
{
    size_t blas = d->libraries.cublasLtGetVersion(), dnn;
    int runtime = 0, n;

    (void)cudaRuntimeGetVersion(&runtime);
    n = snprintf(d->library, sizeof(d->library), "CUDA %d.%d, cuBLASLt %zu.%zu.%zu", runtime / 1000, runtime % 100 / 10,
                 blas / 10000, blas / 100 % 100, blas % 100);
    if (d->dnn == NULL || n < 0) return;
    dnn = d->libraries.cudnnGetVersion();
    (void)snprintf(d->library + n, sizeof(d->library) - (size_t)n, ", cuDNN %zu.%zu.%zu", dnn / 10000, dnn / 100 % 100,
                   dnn % 100);
}

/* Kernels one after the other are slower, and no reason not to train. */
static void without_side(ddp_device *d, const char *why)
{
    (void)cudaGetLastError();
    cu_side_close(d);
    CU_LOG(d, DDP_LOG_WARN, "device \"cuda:%d\": without side_stream: %s", d->ordinal, why);
}

static ddp_status open_libraries(ddp_device *d, const cu_config *c, const ddp_device_params *p, ddp_err *err)
{
    char dir[4096];
    cu_products_params products = {.libraries = &d->libraries,
                                   .host = d->host,
                                   .stream = cu_compute(d),
                                   .side = d->side.stream,
                                   .cache_dir = dir,
                                   .gpu = d->gpu,
                                   .first_heuristic = p->deterministic != 0,
                                   .candidates = CANDIDATES,
                                   .tf32 = c->tf32 != 0,
                                   .workspace_bytes = c->workspace};
    const cu_dnn_params dnn = {.libraries = &d->libraries,
                               .host = d->host,
                               .stream = cu_compute(d),
                               .cache_dir = dir,
                               .gpu = d->gpu,
                               .deterministic = p->deterministic != 0,
                               .tf32 = c->tf32 != 0};
    ddp_status status = cu_libraries_open(c->cublas_library, c->cudnn_library, &d->libraries, err);

    if (status != DDP_OK) return status;
    d->libraries_open = true;
    cache_dir(c, dir, sizeof(dir));
    status = cu_products_open(&products, &d->products, err);
    if (status != DDP_OK) return status;
    if (d->side.stream != NULL && !cu_products_have_side(d->products))
        without_side(d, "no memory for a second workspace; a smaller workspace makes room");
    if (d->libraries.dnn != NULL)
        status = cu_dnn_open(&dnn, &d->dnn, err);
    else if (c->cudnn_library[0] != '\0')
        CU_LOG(d, DDP_LOG_WARN,
               "device \"cuda\": without cuDNN, convolutions and attention by the device's own kernels: %s",
               d->libraries.dnn_missing);
    if (status == DDP_ERR_UNSUPPORTED) {
        CU_LOG(d, DDP_LOG_WARN, "device \"cuda\": cuDNN is not used: %s", err->msg);
        d->dnn = NULL;
        status = DDP_OK;
    }
    if (status == DDP_OK) name_libraries(d);
    return status;
}

/* Also of one that is half open. */
static void cu_close(ddp_device *d)
{
    ddp_err err;

    if (d == NULL) return;
    (void)cu_enter(d, &err);
    for (int q = 0; q < DDP_QUEUE_COUNT; q++)
        if (d->streams[q] != NULL) (void)cudaStreamSynchronize(d->streams[q]);
    if (d->input != NULL) (void)cudaStreamSynchronize(d->input);
    cu_attentions_free(d);
    cu_dnn_close(d->dnn);
    cu_products_close(d->products);
    if (d->libraries_open) cu_libraries_close(&d->libraries);
    (void)cudaFree(d->flat_scratch);
    (void)cudaFreeHost(d->fault);
    (void)cudaFreeHost(d->flat_host);
    (void)cudaFreeHost(d->ring.slots);
    for (int i = 0; i < CU_RING; i++)
        if (d->ring.past[i] != NULL) (void)cudaEventDestroy(d->ring.past[i]);
    for (uint32_t i = 0; i < d->event_count; i++) (void)cudaEventDestroy(d->events[i]);
    for (int q = 0; q < DDP_QUEUE_COUNT; q++)
        if (d->streams[q] != NULL) (void)cudaStreamDestroy(d->streams[q]);
    if (d->input != NULL) (void)cudaStreamDestroy(d->input);
    cu_side_close(d);
    (void)cudaGetLastError();
    peers_remove(d->ordinal);
    free(d->events);
    free(d);
}

static ddp_status cu_open(const ddp_host *host, const void *config, const ddp_device_params *p, ddp_device **out,
                          ddp_err *err)
{
    const cu_config *c = config;
    ddp_device *d;
    ddp_status status = check_params(p, err);

    if (status == DDP_OK && c->residual == IN_BF16 && p->precision != DDP_PRECISION_BF16)
        status = ddp_fail(err, DDP_ERR_CONFIG,
                          "[device.cuda] residual = bf16 needs [train] precision = bf16, which is f32 here; "
                          "set precision = bf16, or leave out residual");
    if (status != DDP_OK) return status;
    d = calloc(1, sizeof(*d));
    if (d == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "device \"cuda\": out of memory at open");
    d->host = host;
    d->ordinal = (int)p->ordinal;
    d->half = p->precision == DDP_PRECISION_BF16;
    d->half_stream = c->residual == IN_BF16;
    d->stochastic = c->rounding == STOCHASTIC;
    d->graphs = c->graphs != 0;
    d->side_always = c->side_stream == CU_SIDE_ALWAYS;
    d->logits_bytes = c->logits;
    peers_add(d->ordinal);
    status = cu_enter(d, err);
    if (status == DDP_OK) status = look(d, err);
    if (status == DDP_OK) status = make_streams(d, err);
    if (status == DDP_OK && d->graphs && c->side_stream != CU_SIDE_NEVER && cu_side_open(d, err) != DDP_OK)
        without_side(d, err->msg);
    if (status == DDP_OK) status = make_words(d, err);
    if (status == DDP_OK) status = open_libraries(d, c, p, err);
    if (status != DDP_OK) {
        cu_close(d);
        return status;
    }
    *out = d;
    return DDP_OK;
}

static ddp_status cu_check(const ddp_host *host, const void *config, uint32_t ordinal, ddp_err *err)
{
    const cu_config *c = config;
    const ddp_device_params p = {.ordinal = ordinal, .precision = DDP_PRECISION_F32};
    ddp_device d = {.host = host, .ordinal = (int)ordinal};
    ddp_status status = check_params(&p, err);

    if (status == DDP_OK) status = look(&d, err);
    if (status == DDP_OK) status = cu_libraries_open(c->cublas_library, "", &d.libraries, err);
    if (status == DDP_OK) cu_libraries_close(&d.libraries);
    return status;
}

static void cu_describe(ddp_device *d, ddp_device_info *out)
{
    out->memory_bytes = d->memory_bytes;
    (void)snprintf(out->name, sizeof(out->name), "%.96s%s", d->gpu, d->half ? ", products in bf16" : "");
    (void)snprintf(out->library, sizeof(out->library), "%s", d->library);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */
ddp_status cu_memory(const ddp_device *d, uint64_t bytes, const char *what, void **out, ddp_err *err)
{
    void *memory = NULL;
    size_t free_bytes = 0, total = 0;
    cudaError_t result = cudaMalloc(&memory, bytes > 0 ? (size_t)bytes : 1);

    if (result == cudaSuccess) result = cudaMemsetAsync(memory, 0, bytes > 0 ? (size_t)bytes : 1, cu_compute(d));
    if (result == cudaSuccess) result = cudaStreamSynchronize(cu_compute(d));
    if (result == cudaSuccess) {
        *out = memory;
        return DDP_OK;
    }
    if (memory != NULL) (void)cudaFree(memory);
    (void)cudaGetLastError();
    if (result != cudaErrorMemoryAllocation)
        return cu_fail(result, err, "device \"cuda:%d\": memory for %s", d->ordinal, what);
    (void)cudaMemGetInfo(&free_bytes, &total);
    (void)ddp_fail(
        err, DDP_ERR_NOMEM,
        "device \"cuda:%d\": %llu bytes of device memory for %s could not be allocated, %llu of %llu are free; "
        "use a smaller batch_size or a larger accumulate",
        d->ordinal, (unsigned long long)bytes, what, (unsigned long long)free_bytes, (unsigned long long)total);
    err->lib_code = (int32_t)result;
    return err->status;
}

static ddp_status cu_alloc(ddp_device *d, size_t bytes, void **out, ddp_err *err)
{
    ddp_status status = cu_enter(d, err);

    return status == DDP_OK ? cu_memory(d, bytes, "an arena", out, err) : status;
}

static void cu_free(ddp_device *d, void *memory)
{
    ddp_err err;

    if (cu_enter(d, &err) == DDP_OK) (void)cudaFree(memory);
}

/* The bytes are there, or no longer needed, when it returns. */
static ddp_status cu_copy(ddp_device *d, void *dst, const void *src, size_t bytes, uint32_t direction, ddp_err *err)
{
    ddp_status status = cu_copy_async(d, DDP_QUEUE_COMPUTE, dst, src, bytes, direction, err);
    cudaError_t result;

    if (status == DDP_OK && direction != DDP_COPY_TO_HOST)
        status = cu_mirror_refresh(d, dst, bytes / sizeof(float), NULL, err);
    if (status != DDP_OK) return status;
    result = cudaStreamSynchronize(cu_compute(d));
    return result == cudaSuccess ? DDP_OK
                                 : cu_fail(result, err, "device \"cuda:%d\": a copy of %zu bytes", d->ordinal, bytes);
}

static ddp_status cu_params_changed(ddp_device *d, const float *params, uint64_t count, ddp_err *err)
{
    ddp_status status = cu_enter(d, err);

    return status == DDP_OK ? cu_mirror_refresh(d, params, count, NULL, err) : status;
}

/* ---- the table --------------------------------------------------------------------------------------------------- */
static const ddp_device_ops ops = {
    .struct_size = sizeof(ops),
    .caps = DDP_DEVICE_CAP_OVERLAP | DDP_DEVICE_CAP_PEERS | DDP_DEVICE_CAP_BF16 | DDP_DEVICE_CAP_QUEUES,
    .open = cu_open,
    .close = cu_close,
    .describe = cu_describe,
    .alloc = cu_alloc,
    .free = cu_free,
    .copy = cu_copy,
    .lower = cu_lower,
    .lowered_free = cu_lowered_free,
    .compile = cu_compile,
    .exec_free = cu_exec_free,
    .instance_create = cu_instance_create,
    .instance_free = cu_instance_free,
    .run = cu_run,
    .step = cu_step,
    .sync = cu_sync,
    .optim_step = cu_update,
    .flat = cu_flat,
    .measure = cu_measure,
    .host_alloc = cu_host_alloc,
    .host_free = cu_host_free,
    .events = cu_events,
    .event_record = cu_event_record,
    .event_wait = cu_event_wait,
    .event_sync = cu_event_sync,
    .copy_async = cu_copy_async,
    .flat_async = cu_flat_async,
    .stream = cu_stream,
    .scale = cu_scale,
    .params_changed = cu_params_changed,
    .check = cu_check,
};

/* NO_UNLOAD: the CUDA runtime in it has handlers that run at exit. */
DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(DEVICE, DDP_PLUGIN_F_NO_UNLOAD),
    .priority = 20,
    .memory = "cuda",
    DDP_PLUGIN_TAIL("cuda", "0.1.0", "an NVIDIA GPU, matrix products by cuBLASLt", DDP_OPTIONS(options, cu_config),
                    ops),
};
