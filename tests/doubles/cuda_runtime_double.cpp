/* tests/doubles/cuda_runtime_double.cpp -- of the double of the CUDA runtime: settings, counts, errors, devices. */
#include "cuda_parts.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

namespace cuda_double
{
/* Never destroyed: a stream that nobody destroyed may still wait on it when the program ends. */
alignas(std::condition_variable) static char changed_place[sizeof(std::condition_variable)];
std::condition_variable &changed = *new (changed_place) std::condition_variable;
std::mutex lock;
cuda_double_counts counts;
bool strict, late, newest_first;
int device_count = 2;
size_t memory_bytes = static_cast<size_t>(8) << 30;
thread_local int current_device;
static thread_local cudaError_t last_error = cudaSuccess;
static uint64_t fail_at;
static int driver_version = CUDART_VERSION;
static char first_misuse[256];
static std::set<std::pair<int, int>> peers;

static long setting(const char *name, long otherwise)
{
    const char *text = getenv(name);

    return text == nullptr || *text == 0 ? otherwise : strtol(text, nullptr, 10);
}

static void report(void)
{
    const cuda_double_counts &c = counts;

    (void)fprintf(
        stderr,
        "cuda double: launches %llu, graph launches %llu, kernels %llu, copies %llu (%llu bytes, %llu pageable), sets "
        "%llu, "
        "mallocs %llu, waits %llu, calls %llu, misuse %llu; left: device memory %lld, host memory %lld, streams %lld, "
        "events %lld, graphs %lld\n",
        static_cast<unsigned long long>(c.launches), static_cast<unsigned long long>(c.graph_launches),
        static_cast<unsigned long long>(c.kernels), static_cast<unsigned long long>(c.copies),
        static_cast<unsigned long long>(c.copied_bytes), static_cast<unsigned long long>(c.pageable),
        static_cast<unsigned long long>(c.sets), static_cast<unsigned long long>(c.mallocs),
        static_cast<unsigned long long>(c.waits), static_cast<unsigned long long>(c.calls),
        static_cast<unsigned long long>(c.misuse), static_cast<long long>(c.device_memory),
        static_cast<long long>(c.host_memory), static_cast<long long>(c.streams), static_cast<long long>(c.events),
        static_cast<long long>(c.graphs));
}

__attribute__((constructor)) static void read_settings(void)
{
    const char *order = getenv("CUDA_DOUBLE_ORDER");

    device_count = static_cast<int>(setting("CUDA_DOUBLE_DEVICES", device_count));
    memory_bytes = static_cast<size_t>(setting("CUDA_DOUBLE_MEMORY", static_cast<long>(memory_bytes)));
    fail_at = static_cast<uint64_t>(setting("CUDA_DOUBLE_FAIL_AT", 0));
    strict = setting("CUDA_DOUBLE_STRICT", 0) != 0;
    late = setting("CUDA_DOUBLE_LATE", 0) != 0;
    newest_first = order != nullptr && strcmp(order, "reverse") == 0;
    if (setting("CUDA_DOUBLE_REPORT", 0) != 0) (void)atexit(report);
}

double seconds_now(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

cudaError_t said(cudaError_t e)
{
    if (e != cudaSuccess) last_error = e;
    return e;
}

/* `lock` held */
cudaError_t misused(cudaError_t e, const char *format, ...)
{
    char text[256];
    va_list list;

    va_start(list, format);
    (void)vsnprintf(text, sizeof(text), format, list);
    va_end(list);
    (void)fprintf(stderr, "cuda double: %s\n", text);
    if (counts.misuse++ == 0) memcpy(first_misuse, text, sizeof(text));
    return e;
}

bool fails(void)
{
    counts.calls++;
    return fail_at > 0 && --fail_at == 0;
}

cudaError_t usable(void)
{
    if (device_count < 0 || driver_version / 1000 < CUDART_VERSION / 1000) return cudaErrorInsufficientDriver;
    return device_count == 0 ? cudaErrorNoDevice : cudaSuccess;
}

static cudaError_t known(int device)
{
    const cudaError_t e = usable();

    if (e != cudaSuccess) return e;
    return device >= 0 && device < device_count ? cudaSuccess : cudaErrorInvalidDevice;
}
} // namespace cuda_double
using namespace cuda_double;

extern "C" {
/* ---- for tests --------------------------------------------------------------------------------------------------- */
void cuda_double_count(cuda_double_counts *out)
{
    guard held(lock);

    *out = counts;
}

const char *cuda_double_misuse(void)
{
    guard held(lock);

    return first_misuse;
}

void cuda_double_reset(void)
{
    guard held(lock);
    cuda_double_counts c = {};

    c.device_memory = counts.device_memory;
    c.host_memory = counts.host_memory;
    c.streams = counts.streams;
    c.events = counts.events;
    c.graphs = counts.graphs;
    c.device_bytes = counts.device_bytes;
    counts = c;
    first_misuse[0] = 0;
}

void cuda_double_devices(int count)
{
    guard held(lock);

    device_count = count;
}

void cuda_double_driver(int version)
{
    guard held(lock);

    driver_version = version == 0 ? CUDART_VERSION : version;
}

void cuda_double_memory(size_t bytes)
{
    guard held(lock);

    memory_bytes = bytes;
}

void cuda_double_fail_at(uint64_t n)
{
    guard held(lock);

    fail_at = n;
}

int cuda_double_fails(void)
{
    guard held(lock);

    return fails();
}

void cuda_double_misused(const char *what)
{
    guard held(lock);

    (void)misused(cudaErrorInvalidValue, "%s", what);
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */
#define ERRORS(X)                                                                                                      \
    X(cudaSuccess, "no error")                                                                                         \
    X(cudaErrorInvalidValue, "invalid argument")                                                                       \
    X(cudaErrorMemoryAllocation, "out of memory")                                                                      \
    X(cudaErrorInvalidConfiguration, "invalid configuration argument")                                                 \
    X(cudaErrorInvalidDevice, "invalid device ordinal")                                                                \
    X(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy")                                            \
    X(cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version")                     \
    X(cudaErrorNoDevice, "no CUDA-capable device is detected")                                                         \
    X(cudaErrorInvalidResourceHandle, "invalid resource handle")                                                       \
    X(cudaErrorNotReady, "device not ready")                                                                           \
    X(cudaErrorLaunchFailure, "unspecified launch failure")                                                            \
    X(cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled")                                             \
    X(cudaErrorPeerAccessUnsupported, "peer access is not supported between these two devices")                        \
    X(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing")                           \
    X(cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture")                    \
    X(cudaErrorStreamCaptureMerge, "operation would result in a merge of separate capture sequences")                  \
    X(cudaErrorStreamCaptureUnmatched, "capture was not initiated in this stream")                                     \
    X(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work")                                            \
    X(cudaErrorStreamCaptureIsolation, "dependency created on uncaptured work in another stream")                      \
    X(cudaErrorStreamCaptureImplicit, "operation would make the legacy stream depend on a capturing blocking stream")  \
    X(cudaErrorStreamCaptureWrongThread, "attempt to terminate a thread-local capture sequence from another thread")   \
    X(cudaErrorCapturedEvent, "operation not permitted on an event last recorded in a capturing stream")               \
    X(cudaErrorUnknown, "unknown error")

const char *cudaGetErrorName(cudaError_t error)
{
    switch (error) {
#define NAME_(name, words)                                                                                             \
    case name: return #name;
        ERRORS(NAME_)
#undef NAME_
    default: return "cudaErrorOfTheDouble";
    }
}

const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
#define WORDS_(name, words)                                                                                            \
    case name: return words;
        ERRORS(WORDS_)
#undef WORDS_
    default: return "an error of the double";
    }
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t e = last_error;

    last_error = cudaSuccess;
    return e;
}

cudaError_t cudaPeekAtLastError(void) { return last_error; }

/* ---- devices ----------------------------------------------------------------------------------------------------- */
cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    guard held(lock);

    *version = device_count < 0 ? 0 : driver_version;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    guard held(lock);
    const cudaError_t e = fails() ? cudaErrorUnknown : usable();

    *count = e == cudaSuccess ? device_count : 0;
    return said(e);
}

cudaError_t cudaSetDevice(int device)
{
    guard held(lock);
    const cudaError_t e = fails() ? cudaErrorUnknown : known(device);

    if (e == cudaSuccess) current_device = device;
    return said(e);
}

cudaError_t cudaGetDevice(int *device)
{
    guard held(lock);

    *device = current_device;
    return said(usable());
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *prop, int device)
{
    guard held(lock);
    const cudaError_t e = fails() ? cudaErrorUnknown : known(device);

    if (e != cudaSuccess) return said(e);
    memset(prop, 0, sizeof(*prop));
    (void)snprintf(prop->name, sizeof(prop->name), "double of a GPU");
    memcpy(prop->uuid.bytes, "double of GPU", 13);
    prop->uuid.bytes[15] = static_cast<char>(device);
    prop->totalGlobalMem = memory_bytes;
    prop->sharedMemPerBlock = 48 * 1024;
    prop->sharedMemPerBlockOptin = 227 * 1024;
    prop->sharedMemPerMultiprocessor = 228 * 1024;
    prop->regsPerBlock = prop->regsPerMultiprocessor = 65536;
    prop->warpSize = 32;
    prop->maxThreadsPerBlock = 1024;
    prop->maxThreadsPerMultiProcessor = 2048;
    prop->maxThreadsDim[0] = prop->maxThreadsDim[1] = 1024;
    prop->maxThreadsDim[2] = 64;
    prop->maxGridSize[0] = 0x7fffffff;
    prop->maxGridSize[1] = prop->maxGridSize[2] = 65535;
    prop->major = 9;
    prop->multiProcessorCount = 132;
    prop->l2CacheSize = 50 << 20;
    prop->memoryBusWidth = 5120;
    prop->asyncEngineCount = 3;
    prop->concurrentKernels = prop->unifiedAddressing = prop->canMapHostMemory = 1;
    prop->pciBusID = device + 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attr, int device)
{
    guard held(lock);
    const cudaError_t e = fails() ? cudaErrorUnknown : known(device);

    if (e != cudaSuccess) return said(e);
    switch (attr) {
    case cudaDevAttrMultiProcessorCount: *value = 132; break;
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 * 1024; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 227 * 1024; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = 228 * 1024; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrL2CacheSize: *value = 50 << 20; break;
    case cudaDevAttrClockRate: *value = 1980000; break;
    case cudaDevAttrMemoryClockRate: *value = 2619000; break;
    case cudaDevAttrGlobalMemoryBusWidth: *value = 5120; break;
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrCanUseHostPointerForRegisteredMem:
    case cudaDevAttrConcurrentKernels: *value = 1; break;
    case cudaDevAttrPciBusId: *value = device + 1; break;
    case cudaDevAttrPciDeviceId:
    case cudaDevAttrPciDomainId:
    case cudaDevAttrComputeMode: *value = 0; break;
    default:
        return said(misused(cudaErrorInvalidValue, "attribute %d of a device: the double has no value for it", attr));
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int bytes, int device)
{
    guard held(lock);
    const cudaError_t e = known(device);

    if (e == cudaSuccess)
        (void)snprintf(text, static_cast<size_t>(bytes), "0000:%02x:00.0", static_cast<unsigned>(device) + 1);
    return said(e);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    guard held(lock);

    *least = 0;
    *greatest = -5;
    return said(usable());
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    guard held(lock);
    const cudaError_t e = fails() ? cudaErrorUnknown : known(device);

    if (e != cudaSuccess) return said(e);
    *can = device != peer && known(peer) == cudaSuccess;
    return said(known(peer));
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    guard held(lock);
    const cudaError_t e = fails() ? cudaErrorUnknown : known(peer);

    if (e != cudaSuccess) return said(e);
    if (flags != 0 || peer == current_device) return said(cudaErrorInvalidValue);
    return said(peers.insert({current_device, peer}).second ? cudaSuccess : cudaErrorPeerAccessAlreadyEnabled);
}

cudaError_t cudaDeviceSynchronize(void)
{
    guard held(lock);
    cudaError_t e = fails() ? cudaErrorLaunchFailure : usable();

    if (e == cudaSuccess) e = allowed("cudaDeviceSynchronize");
    if (e != cudaSuccess) return said(e);
    wait_for_device(held, current_device);
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute attr, int value)
{
    if (attr != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    return said(value < 0 ? cudaErrorInvalidValue : simt_allow_shared(kernel, static_cast<size_t>(value)));
}
}
