/* tests/unit/cuda/test_cuda_runtime.cpp -- the double of the CUDA runtime (tests/doubles/cuda_runtime_double.h):
 * streams, events, capture, memory. */
#include "plugins/device/cuda/kernels/simt.h"
#include "doubles/cuda_runtime_double.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include <atomic>
#include <thread>
extern "C" {
#include <cmocka.h>
}

#define OK(call) assert_int_equal(call, cudaSuccess)
enum { N = 1000, BYTES = N * sizeof(float) };

static __global__ void add(float *y, const float *x, float by, int n)
{
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);

    if (i < n) y[i] = x[i] + by;
}
static cudaError_t start_add(cudaStream_t s, float *y, const float *x, float by)
{
    return cu_launch(add, 8, 128, 0, s, y, x, by, N);
}

struct fixture {
    cudaStream_t a, b;
    cudaEvent_t e, f;
    float *x, *y, *z, *host;
};

static int set_up(void **state)
{
    fixture *t = new fixture{};

    OK(cudaStreamCreateWithFlags(&t->a, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithPriority(&t->b, cudaStreamNonBlocking, -5));
    OK(cudaEventCreateWithFlags(&t->e, cudaEventDisableTiming));
    OK(cudaEventCreate(&t->f));
    OK(cudaMalloc(reinterpret_cast<void **>(&t->x), BYTES));
    OK(cudaMalloc(reinterpret_cast<void **>(&t->y), BYTES));
    OK(cudaMalloc(reinterpret_cast<void **>(&t->z), BYTES));
    OK(cudaHostAlloc(reinterpret_cast<void **>(&t->host), BYTES, cudaHostAllocDefault));
    *state = t;
    return 0;
}

static int tear_down(void **state)
{
    fixture *t = static_cast<fixture *>(*state);
    cuda_double_counts left;

    OK(cudaFree(t->x));
    OK(cudaFree(t->y));
    OK(cudaFree(t->z));
    OK(cudaFreeHost(t->host));
    OK(cudaEventDestroy(t->e));
    OK(cudaEventDestroy(t->f));
    OK(cudaStreamDestroy(t->a));
    OK(cudaStreamDestroy(t->b));
    delete t;
    cuda_double_count(&left);
    assert_int_equal(
        left.device_memory + left.host_memory + left.streams + left.events + left.graphs + left.device_bytes, 0);
    cuda_double_reset();
    (void)cudaGetLastError();
    return 0;
}

static void hold(void *argument)
{
    std::atomic<int> *until;

    memcpy(&until, argument, sizeof(until));
    while (until->load() == 0) std::this_thread::yield();
}

static void keep_back(cudaStream_t s, std::atomic<int> *until)
{
    OK(cuda_double_enqueue(s, hold, &until, sizeof(until)));
}

static void fetch(const fixture *t, const float *from, float expected)
{
    OK(cudaMemcpyAsync(t->host, from, BYTES, cudaMemcpyDeviceToHost, t->a));
    OK(cudaStreamSynchronize(t->a));
    for (int i = 0; i < N; i++) assert_true(t->host[i] == expected);
}

/* ---- order ------------------------------------------------------------------------------------------------------- */
static void test_order(void **state)
{
    const fixture *t = static_cast<fixture *>(*state);
    std::atomic<int> go{0};

    OK(cudaMemsetAsync(t->x, 0, BYTES, t->a));
    keep_back(t->a, &go);
    OK(start_add(t->a, t->y, t->x, 1.0f));
    OK(cudaEventRecord(t->e, t->a));
    OK(cudaStreamWaitEvent(t->b, t->e, 0));
    OK(start_add(t->b, t->z, t->y, 2.0f));
    OK(cudaEventRecord(t->f, t->b));
    assert_int_equal(cudaEventQuery(t->e), cudaErrorNotReady);
    assert_int_equal(cudaStreamQuery(t->b), cudaErrorNotReady);
    assert_int_equal(cudaGetLastError(), cudaErrorNotReady);
    go = 1;
    OK(cudaEventSynchronize(t->f));
    OK(cudaStreamQuery(t->b));
    fetch(t, t->z, 3.0f);
}

/* Without the event the other stream does not wait: it finds what was there. */
static void test_no_order(void **state)
{
    const fixture *t = static_cast<fixture *>(*state);
    std::atomic<int> go{0};

    OK(cudaMemsetAsync(t->y, 0, BYTES, t->b));
    OK(cudaMemsetAsync(t->x, 0, BYTES, t->a));
    OK(cudaStreamSynchronize(t->b));
    keep_back(t->a, &go);
    OK(start_add(t->a, t->y, t->x, 1.0f));
    OK(start_add(t->b, t->z, t->y, 2.0f));
    OK(cudaStreamSynchronize(t->b));
    go = 1;
    fetch(t, t->z, 2.0f);
}

static void test_times(void **state)
{
    const fixture *t = static_cast<fixture *>(*state);
    cudaEvent_t g;
    float ms = -1.0f;

    OK(cudaEventCreate(&g));
    OK(cudaEventRecord(t->f, t->a));
    OK(start_add(t->a, t->y, t->x, 1.0f));
    OK(cudaEventRecord(g, t->a));
    OK(cudaEventSynchronize(g));
    OK(cudaEventElapsedTime(&ms, t->f, g));
    assert_true(ms > 0.0f && ms < 60000.0f);
    assert_int_equal(cudaEventElapsedTime(&ms, t->e, g), cudaErrorInvalidResourceHandle);
    OK(cudaEventDestroy(g));
}

/* ---- copies and memory ------------------------------------------------------------------------------------------- */
static void test_copies(void **state)
{
    const fixture *t = static_cast<fixture *>(*state);
    float pageable[N];
    cuda_double_counts c;
    std::atomic<int> go{0};

    OK(cudaMemcpyAsync(t->host, t->x, BYTES, cudaMemcpyDeviceToHost, t->a));
    OK(cudaStreamSynchronize(t->a));
    assert_true(isnan(t->host[0]) && isnan(t->host[N - 1])); /* new memory holds nothing */
    for (int i = 0; i < N; i++) pageable[i] = 4.0f;
    keep_back(t->a, &go);
    std::thread later([&go] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        go = 1;
    });
    OK(cudaMemcpyAsync(t->x, pageable, BYTES, cudaMemcpyHostToDevice, t->a));
    assert_int_equal(go.load(), 1); /* it waited, and had been taken */
    later.join();
    go = 0;
    for (int i = 0; i < N; i++) pageable[i] = 5.0f;
    fetch(t, t->x, 4.0f);
    keep_back(t->a, &go);
    for (int i = 0; i < N; i++) t->host[i] = 6.0f;
    OK(cudaMemcpyAsync(t->x, t->host, BYTES, cudaMemcpyHostToDevice, t->a));
    for (int i = 0; i < N; i++) t->host[i] = 7.0f; /* page-locked memory is read when the stream gets there */
    go = 1;
    OK(cudaStreamSynchronize(t->a));
    fetch(t, t->x, 7.0f);
    cuda_double_count(&c);
    assert_int_equal(c.pageable, 1);
    assert_int_equal(c.copies, 5);
}

static void test_bounds(void **state)
{
    const fixture *t = static_cast<fixture *>(*state);
    cuda_double_counts c;
    void *p;
    size_t available, total;

    assert_int_equal(cudaMemsetAsync(t->x + 1, 0, BYTES, t->a), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpyAsync(t->x + 1, t->host, BYTES, cudaMemcpyHostToDevice, t->a), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpyAsync(t->x, t->host, BYTES, cudaMemcpyDeviceToDevice, t->a), cudaErrorInvalidValue);
    assert_int_equal(cudaFree(t->x + 1), cudaErrorInvalidValue);
    cuda_double_count(&c);
    assert_int_equal(c.misuse, 4);
    assert_string_not_equal(cuda_double_misuse(), "");
    cuda_double_memory(1 << 20);
    OK(cudaMemGetInfo(&available, &total));
    assert_int_equal(available, (1 << 20) - 3 * BYTES);
    assert_int_equal(cudaMalloc(&p, 1 << 20), cudaErrorMemoryAllocation);
    assert_null(p);
    cuda_double_memory(static_cast<size_t>(8) << 30);
}

static void test_failures(void **state)
{
    void *p;
    int n;

    (void)state;
    cuda_double_fail_at(2);
    OK(cudaSetDevice(0));
    assert_int_equal(cudaMalloc(&p, 16), cudaErrorMemoryAllocation);
    assert_int_equal(cudaPeekAtLastError(), cudaErrorMemoryAllocation);
    OK(cudaMalloc(&p, 16));
    OK(cudaFree(p));
    cuda_double_devices(0);
    assert_int_equal(cudaGetDeviceCount(&n), cudaErrorNoDevice);
    cuda_double_devices(-1);
    assert_int_equal(cudaGetDeviceCount(&n), cudaErrorInsufficientDriver);
    cuda_double_devices(2);
    assert_int_equal(cudaSetDevice(2), cudaErrorInvalidDevice);
    assert_string_equal(cudaGetErrorName(cudaErrorNoDevice), "cudaErrorNoDevice");
}

static void test_devices(void **state)
{
    const fixture *t = static_cast<fixture *>(*state);
    float *there;
    cudaDeviceProp prop;

    OK(cudaSetDevice(1));
    assert_int_equal(start_add(t->a, t->y, t->x, 1.0f), cudaErrorInvalidResourceHandle);
    OK(cudaMalloc(reinterpret_cast<void **>(&there), BYTES));
    OK(cudaGetDeviceProperties(&prop, 1));
    assert_int_equal(prop.major, 9);
    OK(cudaDeviceEnablePeerAccess(0, 0));
    assert_int_equal(cudaDeviceEnablePeerAccess(0, 0), cudaErrorPeerAccessAlreadyEnabled);
    OK(cudaSetDevice(0));
    OK(cudaMemsetAsync(t->x, 0, BYTES, t->a));
    OK(cudaMemcpyPeerAsync(there, 1, t->x, 0, BYTES, t->a));
    assert_int_equal(cudaMemcpyPeerAsync(there, 0, t->x, 0, BYTES, t->a), cudaErrorInvalidValue);
    fetch(t, there, 0.0f);
    OK(cudaFree(there));
}

/* ---- capture ----------------------------------------------------------------------------------------------------- */
static void test_capture(void **state)
{
    const fixture *t = static_cast<fixture *>(*state);
    cudaGraph_t g;
    cudaGraphExec_t exec;
    cudaStreamCaptureStatus status;
    cuda_double_counts c;
    float by = 1.0f;

    OK(cudaStreamBeginCapture(t->a, cudaStreamCaptureModeThreadLocal));
    OK(cudaMemsetAsync(t->x, 0, BYTES, t->a));
    OK(cudaEventRecord(t->e, t->a));
    OK(cudaStreamWaitEvent(t->b, t->e, 0));
    OK(start_add(t->b, t->y, t->x, by)); /* beside what `a` does next */
    OK(cudaEventRecord(t->f, t->b));
    OK(start_add(t->a, t->z, t->x, 10.0f));
    OK(cudaStreamWaitEvent(t->a, t->f, 0));
    OK(start_add(t->a, t->y, t->y, 5.0f));
    by = 2.0f;
    OK(cudaStreamIsCapturing(t->b, &status));
    assert_int_equal(status, cudaStreamCaptureStatusActive);
    OK(cudaStreamEndCapture(t->a, &g));
    OK(cudaStreamIsCapturing(t->b, &status));
    assert_int_equal(status, cudaStreamCaptureStatusNone);
    OK(cudaGraphInstantiate(&exec, g, 0));
    OK(cudaGraphDestroy(g));
    OK(cudaDeviceSynchronize());
    cuda_double_count(&c);
    assert_int_equal(c.kernels + c.launches, 0); /* nothing ran yet */
    for (int i = 0; i < 3; i++) OK(cudaGraphLaunch(exec, t->a));
    fetch(t, t->y, 6.0f);
    fetch(t, t->z, 10.0f);
    cuda_double_count(&c);
    assert_int_equal(c.graph_launches, 3);
    assert_int_equal(c.kernels, 9);
    assert_int_equal(c.misuse, 0);
    OK(cudaGraphExecDestroy(exec));
}

static void test_capture_forbids(void **state)
{
    const fixture *t = static_cast<fixture *>(*state);
    cudaGraph_t g;
    void *p;
    float pageable[4] = {0};
    cudaStreamCaptureMode relaxed = cudaStreamCaptureModeRelaxed;

    OK(cudaStreamBeginCapture(t->a, cudaStreamCaptureModeThreadLocal));
    assert_int_equal(cudaMalloc(&p, 16), cudaErrorStreamCaptureUnsupported);
    assert_int_equal(start_add(t->a, t->y, t->x, 1.0f), cudaErrorStreamCaptureInvalidated);
    assert_int_equal(cudaStreamEndCapture(t->a, &g), cudaErrorStreamCaptureInvalidated);
    assert_null(g);
    OK(cudaStreamBeginCapture(t->a, cudaStreamCaptureModeThreadLocal));
    assert_int_equal(cudaStreamSynchronize(t->a), cudaErrorStreamCaptureUnsupported);
    assert_int_equal(cudaStreamEndCapture(t->a, &g), cudaErrorStreamCaptureInvalidated);
    OK(cudaStreamBeginCapture(t->a, cudaStreamCaptureModeRelaxed));
    assert_int_equal(cudaMemcpyAsync(t->x, pageable, 16, cudaMemcpyHostToDevice, t->a),
                     cudaErrorStreamCaptureUnsupported);
    assert_int_equal(cudaStreamEndCapture(t->a, &g), cudaErrorStreamCaptureInvalidated);
    OK(cudaEventRecord(t->e, t->b));
    OK(cudaStreamBeginCapture(t->a, cudaStreamCaptureModeRelaxed));
    assert_int_equal(cudaStreamWaitEvent(t->a, t->e, 0), cudaErrorStreamCaptureIsolation);
    assert_int_equal(cudaStreamEndCapture(t->a, &g), cudaErrorStreamCaptureInvalidated);
    OK(cudaStreamBeginCapture(t->a, cudaStreamCaptureModeGlobal));
    OK(cudaThreadExchangeStreamCaptureMode(&relaxed));
    OK(cudaMalloc(&p, 16));
    OK(cudaThreadExchangeStreamCaptureMode(&relaxed));
    OK(cudaEventRecord(t->e, t->a));
    OK(cudaStreamWaitEvent(t->b, t->e, 0));
    OK(start_add(t->b, t->y, t->x, 1.0f));
    assert_int_equal(cudaStreamEndCapture(t->a, &g), cudaErrorStreamCaptureUnjoined);
    OK(cudaFree(p));
}

/* A capture in one thread leaves the others alone, unless it is global. */
static void test_capture_threads(void **state)
{
    const fixture *t = static_cast<fixture *>(*state);
    cudaGraph_t g;
    const auto elsewhere = [t](void) {
        cudaError_t e = cudaErrorUnknown;
        std::thread([&] { e = cudaStreamSynchronize(t->b); }).join();
        return e;
    };

    OK(cudaStreamBeginCapture(t->a, cudaStreamCaptureModeThreadLocal));
    OK(elsewhere());
    OK(cudaStreamEndCapture(t->a, &g));
    OK(cudaGraphDestroy(g));
    OK(cudaStreamBeginCapture(t->a, cudaStreamCaptureModeGlobal));
    assert_int_equal(elsewhere(), cudaErrorStreamCaptureUnsupported);
    assert_int_equal(cudaStreamEndCapture(t->a, &g), cudaErrorStreamCaptureInvalidated);
}

/* ---- device memory is not the host's: this program once more, with CUDA_DOUBLE_STRICT ---------------------------- */
static int touch(bool device)
{
    float *x, *y, *host;

    if (cudaMalloc(reinterpret_cast<void **>(&x), BYTES) != cudaSuccess) return 2;
    if (cudaMalloc(reinterpret_cast<void **>(&y), BYTES) != cudaSuccess) return 2;
    if (cudaHostAlloc(reinterpret_cast<void **>(&host), BYTES, 0) != cudaSuccess) return 2;
    (void)cudaMemset(x, 0, BYTES);
    (void)start_add(nullptr, y, x, 1.0f);
    (void)cudaMemcpy(host, y, BYTES, cudaMemcpyDeviceToHost);
    const int right = host[N - 1] == 1.0f ? 0 : 3,
              touched = device && static_cast<volatile float *>(y)[3] == 1.0f ? 4 : 0;
    (void)cudaFree(x);
    (void)cudaFree(y);
    (void)cudaFreeHost(host);
    return right + touched;
}

static int ends(const char *what, const char *variable)
{
    int status = 0;
    pid_t child = fork();

    if (child == 0) {
        (void)unsetenv("CUDA_DOUBLE_STRICT");
        (void)setenv(variable, "1", 1);
        (void)close(2);
        (void)execl("/proc/self/exe", "test_cuda_runtime", what, static_cast<char *>(nullptr));
        _exit(127);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? -1 : WEXITSTATUS(status);
}

static void test_strict(void **state)
{
    (void)state;
    assert_int_equal(ends("host", "CUDA_DOUBLE_STRICT"), 0);
    assert_int_equal(ends("device", "CUDA_DOUBLE_OF_NOTHING"), 4);
    const int end = ends("device", "CUDA_DOUBLE_STRICT"); /* the signal, or what a sanitizer makes of it */
    assert_true(end != 0 && end != 3 && end != 4 && end != 127);
    assert_int_equal(ends("host", "CUDA_DOUBLE_LATE"), 0);
}

int main(int argc, char **argv)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strict),
        CASE(test_order),
        CASE(test_no_order),
        CASE(test_times),
        CASE(test_copies),
        CASE(test_bounds),
        CASE(test_failures),
        CASE(test_devices),
        CASE(test_capture),
        CASE(test_capture_forbids),
        CASE(test_capture_threads),
    };

    if (argc > 1) return touch(strcmp(argv[1], "device") == 0);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
