/* nccl_slots.c -- backend nccl on real GPUs, by its function table alone: every collective against computed results,
 * order with the caller's streams, abort, and a table of all_reduce times. Not a test of `make check`:
 * tests/gpu/run_nccl runs it.
 *
 *   nccl_slots PLUGIN.so [--world N] [--one-gpu] [--max BYTES] [--set KEY=VALUE]... [--threads]
 *
 * Ranks are processes, forked before CUDA is touched, whose rendezvous is a store in shared memory. --one-gpu puts
 * all on device 0 and gives each another NCCL_HOSTID, without which NCCL refuses. --threads, for the double of NCCL,
 * makes them threads. */
#include "plugins/backend/nccl/runtime.h"
#include "support/store_double.h"
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_WORLD 16
#define N         10007 /* elements of a check: odd */

static struct {
    const char *plugin, *set[8];
    uint32_t world;
    int sets, one_gpu, threads;
    size_t max_bytes;
    store_double *store;
} run = {.world = 1, .max_bytes = (size_t)256 << 20};

typedef struct rank {
    uint32_t rank;
    int failures;
    const ddp_backend_ops *ops;
    ddp_nccl_runtime cuda;
    cudaError_t (*synchronize)(cudaStream_t);
    ddp_comm *comm;
    cudaStream_t stream;
    ddp_err err;
} rank;

static void say(void *ctx, int level, const char *file, int line, const char *fmt, ...) DDP_PRINTF_(5, 6);
static void say(void *ctx, int level, const char *file, int line, const char *fmt, ...)
{
    va_list ap;

    (void)ctx, (void)level, (void)file, (void)line;
    va_start(ap, fmt);
    (void)printf("  # ");
    (void)vprintf(fmt, ap);
    (void)printf("\n");
    va_end(ap);
}
static const ddp_host host = {.struct_size = sizeof(host), .log = say};

static double now_s(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */
static void report(rank *r, const char *what, bool good)
{
    if (!good) r->failures++;
    if (r->rank == 0 || !good)
        (void)printf("  rank %u  %-46s %s%s%s\n", r->rank, what, good ? "ok" : "FAILED: ", good ? "" : r->err.msg,
                     !good && r->err.msg[0] == '\0' ? "wrong values" : "");
    (void)fflush(stdout);
    r->err = (ddp_err){.status = DDP_OK};
}

static bool copy(rank *r, void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    return r->cuda.cudaMemcpyAsync(to, from, bytes, kind, r->stream) == cudaSuccess &&
           r->synchronize(r->stream) == cudaSuccess;
}

static bool finished(rank *r, ddp_work *w)
{
    bool good = r->ops->work_wait(w, 60000, &r->err) == DDP_OK;

    r->ops->work_free(w);
    return good;
}

static float value(uint32_t from, size_t i) { return (float)((i * 7 + from * 5) % 13); }

typedef struct shape { /* blocks of N that this rank sends and receives; what block b of the result is */
    const char *name;
    ddp_collective call;
    uint32_t op, root, send_blocks, recv_blocks;
    float (*want)(uint32_t me, uint32_t block, size_t i);
} shape;

static float want_sum(uint32_t me, uint32_t block, size_t i)
{
    float sum = 0;

    (void)me, (void)block;
    for (uint32_t k = 0; k < run.world; k++) sum += value(k, i);
    return sum;
}
static float want_own_sum(uint32_t me, uint32_t block, size_t i) { return want_sum(me, block, i + (size_t)me * N); }
static float want_max(uint32_t me, uint32_t block, size_t i)
{
    float max = 0;

    (void)me, (void)block;
    for (uint32_t k = 0; k < run.world; k++) max = value(k, i) > max ? value(k, i) : max;
    return max;
}
static float want_avg(uint32_t me, uint32_t block, size_t i) { return want_sum(me, block, i) / (float)run.world; }
static float want_gathered(uint32_t me, uint32_t block, size_t i) { return (void)me, value(block, i); }
static float want_exchanged(uint32_t me, uint32_t block, size_t i) { return value(block, i + (size_t)me * N); }
static float want_scattered(uint32_t me, uint32_t block, size_t i) { return (void)block, value(0, i + (size_t)me * N); }
static float want_root(uint32_t me, uint32_t block, size_t i) { return (void)me, (void)block, value(0, i); }

static void check_shape(rank *r, const shape *s, void *send, void *recv)
{
    static _Thread_local float x[MAX_WORLD * N];
    ddp_coll a = {.struct_size = sizeof(a), .dtype = DDP_F32, .op = s->op, .root = s->root, .send = send, .recv = recv};
    bool good = true;
    ddp_work *w;

    a.count = N;
    a.stream = r->stream;
    for (size_t i = 0; i < (size_t)run.world * N; i++) x[i] = value(r->rank, i);
    /* produced on the stream and not waited for: the collective must come after it */
    good = r->cuda.cudaMemcpyAsync(send, x, sizeof(float) * s->send_blocks * N, cudaMemcpyHostToDevice, r->stream) == 0;
    if (s->root == 0 && s->send_blocks == 1 && s->want == want_root) a.recv = send; /* broadcast is in place */
    good = good && s->call(r->comm, &a, &w, &r->err) == DDP_OK && finished(r, w);
    if (s->recv_blocks > 0 && good) {
        good = copy(r, x, a.recv, sizeof(float) * s->recv_blocks * N, cudaMemcpyDeviceToHost);
        for (uint32_t b = 0; b < s->recv_blocks && good; b++)
            for (size_t i = 0; i < N && good; i++) {
                float d = x[(size_t)b * N + i] - s->want(r->rank, b, i);
                good = d < 1e-5f && d > -1e-5f;
            }
    }
    report(r, s->name, good);
}

static void check_collectives(rank *r, void *send, void *recv)
{
    const ddp_backend_ops *o = r->ops;
    uint32_t w = run.world, mine = r->rank == 0 ? 1 : 0;
    const shape shapes[] = {
        {"all_reduce sum", o->all_reduce, DDP_SUM, 0, 1, 1, want_sum},
        {"all_reduce avg", o->all_reduce, DDP_AVG, 0, 1, 1, want_avg},
        {"all_reduce max", o->all_reduce, DDP_MAX, 0, 1, 1, want_max},
        {"broadcast", o->broadcast, DDP_SUM, 0, 1, 1, want_root},
        {"all_gather", o->all_gather, DDP_SUM, 0, 1, w, want_gathered},
        {"reduce_scatter sum", o->reduce_scatter, DDP_SUM, 0, w, 1, want_own_sum},
        {"reduce sum", o->reduce, DDP_SUM, 0, 1, mine, want_sum},
        {"gather", o->gather, DDP_SUM, 0, 1, mine * w, want_gathered},
        {"scatter", o->scatter, DDP_SUM, 0, w, 1, want_scattered},
        {"all_to_all", o->all_to_all, DDP_SUM, 0, w, w, want_exchanged},
    };

    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) check_shape(r, &shapes[i], send, recv);
}

static void check_barrier(rank *r)
{
    ddp_work *w;
    bool good = true;

    for (int i = 0; i < 10 && good; i++) good = r->ops->barrier(r->comm, &w, &r->err) == DDP_OK && finished(r, w);
    report(r, "barrier, ten times", good);
}

/* bf16: the bits of small integers are the upper half of the f32's. */
static void check_bf16(rank *r, void *memory)
{
    static _Thread_local uint16_t x[N];
    ddp_coll a = {.struct_size = sizeof(a), .dtype = DDP_BF16, .op = DDP_SUM, .send = memory, .recv = memory};
    bool good;
    ddp_work *w;

    a.count = N;
    for (size_t i = 0; i < N; i++) {
        float f = value(r->rank, i);
        uint32_t bits;
        memcpy(&bits, &f, sizeof(bits));
        x[i] = (uint16_t)(bits >> 16);
    }
    good = copy(r, memory, x, sizeof(x), cudaMemcpyHostToDevice) &&
           r->ops->all_reduce(r->comm, &a, &w, &r->err) == DDP_OK && finished(r, w) &&
           copy(r, x, memory, sizeof(x), cudaMemcpyDeviceToHost);
    for (size_t i = 0; i < N && good; i++) {
        uint32_t bits = (uint32_t)x[i] << 16;
        float f;
        memcpy(&f, &bits, sizeof(f));
        good = f == want_sum(r->rank, 0, i);
    }
    report(r, "all_reduce sum of bf16, in place", good);
}

/* ---- times ------------------------------------------------------------------------------------------------------- */
static double time_once(rank *r, const ddp_coll *a, int turns)
{
    ddp_work *w = NULL, *next;
    double began = now_s();

    for (int i = 0; i < turns; i++) {
        if (r->ops->all_reduce(r->comm, a, &next, &r->err) != DDP_OK) return -1;
        if (w != NULL) r->ops->work_free(w);
        w = next;
    }
    return finished(r, w) ? (now_s() - began) / turns : -1;
}

static void time_sizes(rank *r, void *memory)
{
    double factor = run.world > 1 ? 2.0 * (run.world - 1) / run.world : 1;

    if (r->rank == 0) (void)printf("  %12s %12s %12s %12s\n", "bytes", "us", "algbw GB/s", "busbw GB/s");
    for (size_t bytes = 4; bytes <= run.max_bytes && r->failures == 0; bytes *= bytes < 1024 ? 256 : 8) {
        ddp_coll a = {.struct_size = sizeof(a), .dtype = DDP_F32, .op = DDP_SUM, .send = memory, .recv = memory};
        double best = 1e9;
        a.count = bytes / 4;
        (void)time_once(r, &a, 3);
        for (int i = 0; i < 5; i++) {
            double t = time_once(r, &a, bytes > (size_t)16 << 20 ? 5 : 20);
            if (t < 0)
                r->failures++;
            else if (t < best)
                best = t;
        }
        if (r->rank == 0)
            (void)printf("  %12zu %12.1f %12.2f %12.2f\n", bytes, best * 1e6, (double)bytes / best * 1e-9,
                         (double)bytes / best * 1e-9 * factor);
        (void)fflush(stdout);
    }
    if (r->failures > 0 && r->err.msg[0] != '\0') report(r, "all_reduce, timed", false);
}

/* ---- abort ------------------------------------------------------------------------------------------------------- */
static _Atomic double aborted_at;
static void *abort_soon(void *arg)
{
    rank *r = arg;

    (void)usleep(500000);
    atomic_store(&aborted_at, now_s());
    r->ops->comm_abort(r->comm);
    return NULL;
}

/* The last rank does not take part, so the others' kernels stand on the device until they are aborted. */
static void check_abort(rank *r, void *memory)
{
    ddp_coll a = {
        .struct_size = sizeof(a), .dtype = DDP_F32, .op = DDP_SUM, .send = memory, .recv = memory, .count = 8};
    pthread_t aborter;
    char line[64];
    ddp_status st;
    ddp_work *w;

    if (r->rank == run.world - 1) {
        (void)usleep(1500000);
        r->ops->comm_abort(r->comm);
        return;
    }
    if (r->ops->all_reduce(r->comm, &a, &w, &r->err) != DDP_OK) {
        report(r, "all_reduce without the last rank", false);
        return;
    }
    report(r, "a wait of 100 ms ends", r->ops->work_wait(w, 100, &r->err) == DDP_ERR_TIMEOUT);
    (void)pthread_create(&aborter, NULL, abort_soon, r);
    st = r->ops->work_wait(w, 20000, &r->err);
    (void)snprintf(line, sizeof(line), "abort wakes a wait (after %.1f ms)",
                   (now_s() - atomic_load(&aborted_at)) * 1e3);
    report(r, line, st == DDP_ERR_ABORTED && now_s() - atomic_load(&aborted_at) < 1);
    (void)pthread_join(aborter, NULL);
    r->ops->work_free(w);
}

/* ---- a rank ------------------------------------------------------------------------------------------------------ */
static const char *text_of(const ddp_option *o)
{
    for (int i = 0; i < run.sets; i++) {
        size_t n = strlen(o->key);
        if (strncmp(run.set[i], o->key, n) == 0 && run.set[i][n] == '=') return run.set[i] + n + 1;
    }
    return o->dflt;
}

/* Defaults of the option table, as far as this plugin's types go. */
static void configure(const ddp_plugin *p, void *config)
{
    for (uint32_t i = 0; i < p->option_count; i++) {
        const ddp_option *o = &p->options[i];
        const char *text = text_of(o);
        if (o->type == DDP_OPT_BOOL)
            *(int32_t *)(void *)((char *)config + o->offset) = strcmp(text, "yes") == 0;
        else
            memcpy((char *)config + o->offset, &text, sizeof(text));
    }
}

static void take_part(rank *r, void *config)
{
    ddp_store store = store_double_table(run.store);
    ddp_comm_params p = {.struct_size = sizeof(p),
                         .rank = r->rank,
                         .world_size = run.world,
                         .local_rank = r->rank,
                         .local_size = run.world,
                         .timeout_ms = 120000,
                         .connect_timeout_ms = 120000,
                         .group = "slots",
                         .address = "127.0.0.1",
                         .store = &store,
                         .interface = "",
                         .device_ordinal = run.one_gpu ? 0 : (int32_t)r->rank};
    size_t room = run.max_bytes > sizeof(float) * MAX_WORLD * N ? run.max_bytes : sizeof(float) * MAX_WORLD * N;
    void *send, *recv;
    ddp_backend *b;

    if (r->ops->check(&host, config, &p, &r->err) != DDP_OK || r->ops->open(&host, config, &b, &r->err) != DDP_OK) {
        report(r, "open", false);
        return;
    }
    if (r->ops->comm_create(b, &p, &r->comm, &r->err) != DDP_OK) {
        report(r, "comm_create", false);
        r->ops->close(b);
        return;
    }
    (void)r->cuda.cudaSetDevice(p.device_ordinal);
    if (r->cuda.cudaStreamCreateWithPriority(&r->stream, cudaStreamNonBlocking, run.threads ? -5 : 0) != cudaSuccess ||
        r->ops->mem_alloc(r->comm, room, &send, &r->err) != DDP_OK ||
        r->ops->mem_alloc(r->comm, room, &recv, &r->err) != DDP_OK) {
        report(r, "mem_alloc", false);
    } else {
        report(r, "comm_create, mem_alloc", true);
        check_collectives(r, send, recv);
        check_bf16(r, send);
        check_barrier(r);
        time_sizes(r, send);
        if (run.world > 1) check_abort(r, send);
        r->ops->mem_free(r->comm, recv);
        r->ops->mem_free(r->comm, send);
    }
    if (r->stream != NULL) (void)r->cuda.cudaStreamDestroy(r->stream);
    r->ops->comm_destroy(r->comm);
    r->ops->close(b);
}

static void *rank_main(void *arg)
{
    rank *r = arg;
    char config[256] = {0};
    void *handle = dlopen(run.plugin, RTLD_NOW | RTLD_LOCAL), *symbol;
    const ddp_plugin *plugin = handle != NULL ? dlsym(handle, DDP_PLUGIN_SYMBOL) : NULL;
    ddp_nccl_libraries names;

    if (plugin == NULL || plugin->config_size > sizeof(config)) {
        (void)ddp_fail(&r->err, DDP_ERR_SYSTEM, "%.400s", handle == NULL ? dlerror() : "not a plugin");
        report(r, "dlopen", false);
        return NULL;
    }
    r->ops = plugin->ops;
    configure(plugin, config);
    names =
        (ddp_nccl_libraries){text_of(&plugin->options[0]), text_of(&plugin->options[1]), text_of(&plugin->options[2])};
    if (ddp_nccl_runtime_open(&names, &r->cuda, &r->err) != DDP_OK) {
        report(r, "libraries", false);
        return NULL;
    }
    symbol = dlsym(r->cuda.cuda, "cudaStreamSynchronize");
    memcpy(&r->synchronize, &symbol, sizeof(symbol));
    take_part(r, config);
    return NULL;
}

static int run_processes(rank *r)
{
    pid_t pid[MAX_WORLD];
    int failures = 0, status;

    for (uint32_t i = 0; i < run.world; i++) {
        pid[i] = fork();
        if (pid[i] == 0) {
            char id[32];
            (void)snprintf(id, sizeof(id), "ddp-rank-%u", i);
            if (run.one_gpu) (void)setenv("NCCL_HOSTID", id, 1);
            (void)rank_main(&r[i]);
            _exit(r[i].failures > 0);
        }
    }
    for (uint32_t i = 0; i < run.world; i++)
        if (waitpid(pid[i], &status, 0) < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0) failures++;
    return failures;
}

static int run_threads(rank *r)
{
    pthread_t thread[MAX_WORLD];
    int failures = 0;

    for (uint32_t i = 0; i < run.world; i++) (void)pthread_create(&thread[i], NULL, rank_main, &r[i]);
    for (uint32_t i = 0; i < run.world; i++) (void)pthread_join(thread[i], NULL);
    for (uint32_t i = 0; i < run.world; i++) failures += r[i].failures > 0;
    return failures;
}

int main(int argc, char **argv)
{
    static rank ranks[MAX_WORLD];
    int failures;

    for (int i = 1; i < argc; i++) {
        const char *next = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--world") == 0)
            run.world = (uint32_t)strtoul(next, NULL, 10), i++;
        else if (strcmp(argv[i], "--max") == 0)
            run.max_bytes = strtoull(next, NULL, 10), i++;
        else if (strcmp(argv[i], "--set") == 0 && run.sets < 8)
            run.set[run.sets++] = next, i++;
        else if (strcmp(argv[i], "--one-gpu") == 0)
            run.one_gpu = 1;
        else if (strcmp(argv[i], "--threads") == 0)
            run.threads = 1;
        else
            run.plugin = argv[i];
    }
    run.store = store_double_new();
    if (run.plugin == NULL || run.world < 1 || run.world > MAX_WORLD || run.store == NULL) {
        (void)fprintf(stderr,
                      "usage: nccl_slots PLUGIN.so [--world 1..%d] [--one-gpu] [--max BYTES] [--set KEY=VALUE]\n",
                      MAX_WORLD);
        return 2;
    }
    for (uint32_t i = 0; i < run.world; i++) ranks[i].rank = i;
    failures = run.threads ? run_threads(ranks) : run_processes(ranks);
    (void)printf("world %u: %s\n", run.world, failures == 0 ? "ok" : "FAILED");
    return failures != 0;
}
