/* nccl_util.h -- backend nccl over the double of NCCL and CUDA (tests/doubles/nccl_double.h): ranks are threads, device
 * memory is the host's. */
#ifndef NCCL_UTIL_H
#define NCCL_UTIL_H

#include "../doubles/nccl_double.h"
#include "group_util.h"
#include "store_double.h"
#include <dirent.h>
#include <dlfcn.h>

#define MAX_WORLD   4
#define DOUBLE_PATH DDP_BUILDDIR "/.libs/nccl_double.so"

static const ddp_plugin *plugin;
static const ddp_backend_ops *ops;
static nccl_double_control *cuda; /* what the double is told, and has seen */
static struct { /* the few calls that a caller of the backend makes itself; streams and events are pointers */
    int (*stream_create)(void **out, unsigned flags, int priority);
    int (*stream_destroy)(void *stream);
    int (*stream_synchronize)(void *stream);
    int (*memcpy_async)(void *to, const void *from, size_t bytes, int kind, void *stream);
    nccl_double_hold_function hold;
} gpu;

typedef struct nccl_options { /* as the plugin's own, checked in nccl_load */
    const char *library, *cuda_library, *driver_library;
    int32_t registration;
} nccl_options;
static nccl_options use_double = {DOUBLE_PATH, DOUBLE_PATH, DOUBLE_PATH, 1};

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
} rank_run;

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
static const ddp_host host = {.struct_size = sizeof(host), .log = keep_log};

static void take_symbol(void *handle, const char *name, void *out)
{
    void *symbol = dlsym(handle, name);

    memcpy(out, &symbol, sizeof(symbol));
}

static int nccl_load(void **state)
{
    const char *path = DDP_BUILDDIR "/.libs/backend_nccl.so";
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL), *doubled = dlopen(DOUBLE_PATH, RTLD_NOW | RTLD_LOCAL);
    nccl_double_function get;

    (void)state;
    if (handle == NULL || doubled == NULL) {
        (void)fprintf(stderr, "# %s\n", dlerror());
        return access(path, F_OK) == 0 ? -1 : 0; /* not built: the tests skip */
    }
    plugin = dlsym(handle, DDP_PLUGIN_SYMBOL);
    if (plugin == NULL || plugin->config_size != sizeof(nccl_options)) return -1;
    take_symbol(doubled, "nccl_double", &get);
    take_symbol(doubled, "nccl_double_hold", &gpu.hold);
    take_symbol(doubled, "cudaStreamCreateWithPriority", &gpu.stream_create);
    take_symbol(doubled, "cudaStreamDestroy", &gpu.stream_destroy);
    take_symbol(doubled, "cudaStreamSynchronize", &gpu.stream_synchronize);
    take_symbol(doubled, "cudaMemcpyAsync", &gpu.memcpy_async);
    ops = plugin->ops;
    cuda = get();
    return 0;
}

static int nccl_fresh(void **state)
{
    (void)state;
    (void)setenv("NCCL_SOCKET_IFNAME", "=lo", 1); /* else each rank, a thread here, would set it */
    if (cuda == NULL) return 0;
    memset(cuda, 0, sizeof(*cuda));
    cuda->devices = 4;
    cuda->driver_version = 13000;
    cuda->launch_polls = 2;
    cuda->async_rank = -1;
    last_log[0] = '\0';
    return 0;
}

/* After each test: nothing lives, no rule of the libraries was broken. */
static int nccl_clean(void **state)
{
    (void)state;
    if (cuda == NULL) return 0;
    if (cuda->misuse != 0) print_error("misuse: %s\n", cuda->misuse_text);
    if (cuda->streams + cuda->events + cuda->memory + cuda->comms + cuda->registrations != 0)
        print_error("left: %d streams, %d events, %d pieces of memory, %d communicators, %d registrations\n",
                    cuda->streams, cuda->events, cuda->memory, cuda->comms, cuda->registrations);
    return cuda->misuse + cuda->streams + cuda->events + cuda->memory + cuda->comms + cuda->registrations;
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
    for (uint32_t i = 0; i < world; i++) assert_int_equal(pthread_join(r[i].thread, NULL), 0);
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

#endif
