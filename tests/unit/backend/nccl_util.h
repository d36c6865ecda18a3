/* tests/unit/backend/nccl_util.h -- backend nccl over the doubles of NCCL (tests/doubles/nccl_double.h) and of the
 * CUDA runtime: ranks are threads, each with a device of its own, whose memory a test may look at
 * (CUDA_DOUBLE_STRICT is off). */
#pragma once

#include "doubles/cuda_double.h"
#include "doubles/nccl_double.h"
#include "support/group_util.h"
#include "support/store_double.h"
#include <dirent.h>
#include <dlfcn.h>

#define MAX_WORLD   4
#define DOUBLE_PATH DDP_BUILDDIR "/.libs/nccl_double.so"
#define CUDA_PATH   DDP_BUILDDIR "/.libs/libcuda_double.so"

static const ddp_plugin *plugin;
static const ddp_backend_ops *ops;
static nccl_double_control *nccl; /* what the library's double is told, and has seen */
static struct {                   /* of the runtime's double */
    __typeof__(cuda_double_count) *count;
    __typeof__(cuda_double_misuse) *misuse;
    __typeof__(cuda_double_reset) *reset;
    __typeof__(cuda_double_devices) *devices;
    __typeof__(cuda_double_driver) *driver;
    __typeof__(cuda_double_fail_at) *fail_at;
} cuda;
static struct { /* the few calls that a caller of the backend makes itself; streams and events are pointers */
    int (*stream_create)(void **out, unsigned flags, int priority);
    int (*stream_destroy)(void *stream);
    int (*stream_synchronize)(void *stream);
    int (*memcpy_async)(void *to, const void *from, size_t bytes, int kind, void *stream);
    int (*launch_host)(void *stream, void (*fn)(void *), void *arg);
    int (*set_device)(int device);
    int (*malloc)(void **out, size_t bytes);
    int (*free)(void *p);
} gpu;
enum { RANK_BYTES = 1 << 20 };
static char *buffers[MAX_WORLD]; /* device memory, by rank */

typedef struct nccl_options { /* as the plugin's own, checked in nccl_load */
    const char *library, *cuda_library, *driver_library;
    int32_t registration;
} nccl_options;
static nccl_options use_double = {DOUBLE_PATH, CUDA_PATH, CUDA_PATH, 1};

typedef struct rank_run {
    uint32_t rank, world;
    store_double *store;
    int64_t timeout_ms;
    void (*body)(struct rank_run *r);
    pthread_t thread;
    ddp_backend *backend;
    ddp_comm *comm;
    ddp_status status; /* of comm_create */
    ddp_err err;
    size_t taken; /* of its buffers */
} rank_run;

/* Uninitialised memory of the rank's, until its `taken` is set back. */
static inline void *take_buffer(rank_run *r, size_t bytes)
{
    char *p = buffers[r->rank] + r->taken;

    r->taken += (bytes + 63) / 64 * 64;
    CHECK(r->taken <= RANK_BYTES);
    return p;
}

/* Holds up a stream until *released, an atomic_int, is not 0. */
static inline void wait_released(void *released) { UNTIL(atomic_load((atomic_int *)released) != 0); }

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static char last_log[512];
static void keep_log(void *ctx, int level, const char *file, int line, const char *fmt, ...) DDP_PRINTF_(5, 6);
static void keep_log(void *ctx, int level, const char *file, int line, const char *fmt, ...)
{
    va_list ap;

    (void)ctx, (void)file, (void)line;
    if (level < DDP_LOG_WARN) return;
    va_start(ap, fmt);
    pthread_mutex_lock(&log_lock); /* ranks are threads */
    (void)vsnprintf(last_log, sizeof(last_log), fmt, ap);
    pthread_mutex_unlock(&log_lock);
    va_end(ap);
}
static inline bool logged(const char *part)
{
    bool found;

    pthread_mutex_lock(&log_lock);
    found = strstr(last_log, part) != NULL;
    pthread_mutex_unlock(&log_lock);
    return found;
}
static const ddp_host host = {.struct_size = sizeof(host), .log = keep_log};

static void take_symbol(void *handle, const char *name, void *out)
{
    void *symbol = dlsym(handle, name);

    memcpy(out, &symbol, sizeof(symbol));
}

static void take_cuda(void *handle)
{
    take_symbol(handle, "cuda_double_count", &cuda.count);
    take_symbol(handle, "cuda_double_misuse", &cuda.misuse);
    take_symbol(handle, "cuda_double_reset", &cuda.reset);
    take_symbol(handle, "cuda_double_devices", &cuda.devices);
    take_symbol(handle, "cuda_double_driver", &cuda.driver);
    take_symbol(handle, "cuda_double_fail_at", &cuda.fail_at);
    take_symbol(handle, "cudaStreamCreateWithPriority", &gpu.stream_create);
    take_symbol(handle, "cudaStreamDestroy", &gpu.stream_destroy);
    take_symbol(handle, "cudaStreamSynchronize", &gpu.stream_synchronize);
    take_symbol(handle, "cudaMemcpyAsync", &gpu.memcpy_async);
    take_symbol(handle, "cudaLaunchHostFunc", &gpu.launch_host);
    take_symbol(handle, "cudaSetDevice", &gpu.set_device);
    take_symbol(handle, "cudaMalloc", &gpu.malloc);
    take_symbol(handle, "cudaFree", &gpu.free);
}

static int nccl_load(void **state)
{
    const char *path = DDP_BUILDDIR "/.libs/backend_nccl.so";
    void *handle, *doubled, *runtime;
    nccl_double_function get;

    (void)state;
    if (access(path, F_OK) != 0 || access(DOUBLE_PATH, F_OK) != 0) return 0; /* not built: the tests skip */
    handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    doubled = dlopen(DOUBLE_PATH, RTLD_NOW | RTLD_LOCAL);
    runtime = dlopen(CUDA_PATH, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL || doubled == NULL || runtime == NULL) {
        (void)fprintf(stderr, "# %s\n", dlerror());
        return -1;
    }
    plugin = dlsym(handle, DDP_PLUGIN_SYMBOL);
    if (plugin == NULL || plugin->config_size != sizeof(nccl_options)) return -1;
    take_symbol(doubled, "nccl_double", &get);
    take_cuda(runtime);
    ops = plugin->ops;
    nccl = get();
    return 0;
}

static int nccl_fresh(void **state)
{
    (void)state;
    (void)setenv("NCCL_SOCKET_IFNAME", "=lo", 1); /* else each rank, a thread here, would set it */
    if (ops == NULL) return 0;
    memset(nccl, 0, sizeof(*nccl));
    nccl->launch_polls = 2;
    nccl->async_rank = -1;
    cuda.devices(MAX_WORLD);
    cuda.driver(0);
    cuda.fail_at(0);
    for (int i = 0; i < MAX_WORLD; i++) {
        void *memory;
        if (gpu.set_device(i) != 0 || gpu.malloc(&memory, RANK_BYTES) != 0) return -1;
        buffers[i] = memory;
    }
    (void)gpu.set_device(0);
    cuda.reset();
    last_log[0] = '\0';
    return 0;
}

/* Nothing lives but `buffers`, and no rule of the libraries was broken. */
static inline bool nothing_is_left(void)
{
    cuda_double_counts c;

    cuda.count(&c);
    if (c.misuse != 0) print_error("misuse: %s\n", cuda.misuse());
    if (c.timed != 0) print_error("%d events take times\n", (int)c.timed);
    if (c.streams == 0 && c.events == 0 && c.device_memory == MAX_WORLD && c.host_memory == 0 && nccl->comms == 0 &&
        nccl->registrations == 0)
        return c.misuse == 0 && c.timed == 0;
    print_error("left: %d streams, %d events, %d pieces of memory, %d communicators, %d registrations\n",
                (int)c.streams, (int)c.events, (int)(c.device_memory + c.host_memory) - MAX_WORLD, nccl->comms,
                nccl->registrations);
    return false;
}

/* After each test. */
static int nccl_clean(void **state)
{
    bool clean;

    (void)state;
    if (ops == NULL) return 0;
    clean = nothing_is_left();
    cuda.fail_at(0);
    for (int i = 0; i < MAX_WORLD; i++) clean = gpu.free(buffers[i]) == 0 && clean;
    return clean ? 0 : -1;
}

#define NEED_PLUGIN()                                                                                                  \
    do {                                                                                                               \
        if (ops == NULL) skip();                                                                                       \
    } while (0)
#define NCCL_TEST(name) cmocka_unit_test_setup_teardown(name, nccl_fresh, nccl_clean)

static ddp_comm_params params_of(const rank_run *r, const ddp_store *store)
{
    return (ddp_comm_params){.struct_size = sizeof(ddp_comm_params),
                             .rank = r->rank,
                             .world_size = r->world,
                             .local_rank = r->rank,
                             .local_size = r->world,
                             .timeout_ms = r->timeout_ms,
                             .connect_timeout_ms = r->timeout_ms,
                             .group = "test",
                             .address = "127.0.0.1",
                             .store = store,
                             .interface = "",
                             .device_ordinal = (int32_t)r->rank};
}

static void *rank_main(void *arg)
{
    rank_run *r = arg;
    ddp_store store = store_double_table(r->store);
    ddp_comm_params p = params_of(r, &store);

    r->status = ops->open(&host, &use_double, &r->backend, &r->err);
    if (r->status != DDP_OK) return NULL;
    r->status = ops->comm_create(r->backend, &p, &r->comm, &r->err);
    if (r->status == DDP_OK) {
        r->body(r);
        ops->comm_destroy(r->comm);
    }
    ops->close(r->backend);
    return NULL;
}

/* Runs `body` on every rank; how comm_create went is in r[].status. */
static void run_nccl_ranks(rank_run *r, uint32_t world, int64_t timeout_ms, void (*body)(rank_run *))
{
    store_double *store = store_double_new();

    for (uint32_t i = 0; i < world; i++) {
        r[i] = (rank_run){.rank = i, .world = world, .store = store, .timeout_ms = timeout_ms, .body = body};
        assert_int_equal(pthread_create(&r[i].thread, NULL, rank_main, &r[i]), 0);
    }
    for (uint32_t i = 0; i < world; i++) assert_int_equal(until_joined(r[i].thread), 0);
    store_double_free(store);
    assert_no_wrongs();
}

static void run_world(uint32_t world, void (*body)(rank_run *))
{
    rank_run r[MAX_WORLD];

    run_nccl_ranks(r, world, LONG_MS, body);
    for (uint32_t i = 0; i < world; i++)
        if (r[i].status != DDP_OK) fail_msg("rank %u: %s", i, r[i].err.msg);
}

/* Waits for a work and frees it. */
static inline ddp_status finish(rank_run *r, ddp_work *w)
{
    ddp_status st = ops->work_wait(w, LONG_MS, &r->err);

    ops->work_free(w);
    return st;
}

static inline ddp_status run_to_end(rank_run *r, ddp_collective call, const ddp_coll *a)
{
    ddp_work *w;
    ddp_status st = call(r->comm, a, &w, &r->err);

    return st == DDP_OK ? finish(r, w) : st;
}
