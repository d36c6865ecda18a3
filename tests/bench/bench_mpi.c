/* bench_mpi.c -- all-reduce between the ranks that mpirun starts, in turn within one run: MPI called directly (two
 * buffers, in place, non-blocking), the slot of backend mpi, the same through the communicator's queue, and the slots
 * of other backends.
 *
 *     make tests/bench/bench_mpi
 *     mpirun --bind-to none -np 2 tests/bench/bench_mpi [own] [ROUNDS] [BACKEND...]
 *
 * "own" starts MPI before the plugin does, so that the library keeps its own settings (a waiting rank then keeps its
 * processor). Prints rank 0's median, minimum and 90th percentile in microseconds; nothing here decides a test. */
#include "base/sys.h"
#include "config/config.h"
#include "net/endpoint.h"
#include "comm/communicator.h"
#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_WAYS = 12, MAX_ROUNDS = 1000, MAX_BYTES = 64 << 20 };

typedef struct way {
    const char *name;
    void (*call)(struct way *w, size_t n);
    const ddp_loaded *loaded; /* NULL: the library itself */
    ddp_comm *comm;
    float *x; /* reduced in place */
    double us[MAX_ROUNDS];
} way;

typedef struct bench {
    int rank, world, rounds;
    ddp_log log;
    ddp_host host;
    ddp_registry *registry;
    ddp_group *group;
    ddp_settings settings;
    ddp_ini *ini;
    size_t way_count;
    way ways[MAX_WAYS];
} bench;

/* What the ways share: a benchmark is one program, and its calls take no context that would cost time. */
static MPI_Comm direct;
static float *other; /* the second buffer */
static ddp_communicator *queue;

static void must(int ok, const char *what, const ddp_err *err)
{
    if (ok) return;
    (void)fprintf(stderr, "bench_mpi: %s: %s\n", what, err != NULL ? err->msg : "failed");
    _exit(1);
}

/* ---- the ways ---------------------------------------------------------------------------------------------------- */
static void two_buffers(way *w, size_t n) { (void)MPI_Allreduce(w->x, other, (int)n, MPI_FLOAT, MPI_SUM, direct); }
static void in_place(way *w, size_t n) { (void)MPI_Allreduce(MPI_IN_PLACE, w->x, (int)n, MPI_FLOAT, MPI_SUM, direct); }
static void non_blocking(way *w, size_t n)
{
    MPI_Request request;

    (void)MPI_Iallreduce(w->x, other, (int)n, MPI_FLOAT, MPI_SUM, direct, &request);
    (void)MPI_Wait(&request, MPI_STATUS_IGNORE);
}

static ddp_coll coll_of(float *x, size_t n, uint32_t op)
{
    return (ddp_coll){.struct_size = sizeof(ddp_coll), .dtype = DDP_F32, .op = op, .send = x, .recv = x, .count = n};
}

static void slot(way *w, size_t n)
{
    const ddp_coll a = coll_of(w->x, n, DDP_SUM);
    ddp_err err;

    must(((const ddp_backend_ops *)w->loaded->ops)->all_reduce(w->comm, &a, NULL, &err) == DDP_OK, w->name, &err);
}
static void slot_average(way *w, size_t n)
{
    const ddp_coll a = coll_of(w->x, n, DDP_AVG);
    ddp_err err;

    must(((const ddp_backend_ops *)w->loaded->ops)->all_reduce(w->comm, &a, NULL, &err) == DDP_OK, w->name, &err);
}
static void through_queue(way *w, size_t n)
{
    const ddp_task t = {.what = DDP_COLL_ALL_REDUCE, .coll = coll_of(w->x, n, DDP_SUM)};
    ddp_err err;

    must(ddp_communicator_run(queue, &t, &err) == DDP_OK, w->name, &err);
}

/* ---- start ------------------------------------------------------------------------------------------------------- */
static uint32_t number(const char *variable)
{
    const char *text = getenv(variable);

    return text == NULL ? 0 : (uint32_t)strtoul(text, NULL, 10);
}

static const ddp_loaded *load(bench *b, const char *name, const void **config)
{
    ddp_loaded *p = NULL;
    char section[64];
    ddp_err err;

    (void)snprintf(section, sizeof(section), "backend.%s", name);
    must(ddp_registry_load(b->registry, DDP_KIND_BACKEND, name, &p, &err) == DDP_OK, "load", &err);
    must(ddp_options_parse(b->ini, section, p->desc.options, p->desc.option_count, p->desc.option_size,
                           p->desc.config_size, &b->settings, config, &err) == DDP_OK,
         "options", &err);
    return p;
}

/* The rendezvous is at a port that rank 0 writes to a file named after the job. */
static void rendezvous(bench *b)
{
    ddp_group_params p = {.rank = b->rank,
                          .world = b->world,
                          .url = "bench",
                          .interface = "",
                          .listen_fd = -1,
                          .timeout_ms = 60000,
                          .agreement = "",
                          .log = &b->log};
    char endpoint[DDP_ENDPOINT_MAX] = "", path[128], tmp[160];
    ddp_failure failure;
    ddp_err err;
    FILE *f;

    (void)snprintf(path, sizeof(path), "/tmp/bench_mpi.%d.%.40s", (int)getppid(), getenv("PMIX_NAMESPACE"));
    (void)snprintf(tmp, sizeof(tmp), "%s.new", path);
    if (b->rank == 0) {
        must(ddp_endpoint_listen("127.0.0.1:0", &p.listen_fd, endpoint, &err) == DDP_OK, "listen", &err);
        f = fopen(tmp, "w");
        must(f != NULL && fputs(endpoint, f) >= 0 && fclose(f) == 0 && rename(tmp, path) == 0, path, NULL);
    } else {
        while ((f = fopen(path, "r")) == NULL) (void)usleep(2000);
        must(fgets(endpoint, sizeof(endpoint), f) != NULL && fclose(f) == 0, path, NULL);
        p.endpoint = endpoint;
    }
    must(ddp_group_join(&p, &b->group, &failure, &err) == DDP_OK, "join", &err);
    if (b->rank == 0) (void)unlink(path);
}

static way *add_way(bench *b, const char *name, void (*call)(way *, size_t), float *x)
{
    way *w = &b->ways[b->way_count++];

    *w = (way){.name = name, .call = call, .x = x};
    return w;
}

/* A communicator of its own, its buffer in the backend's memory where it has some. */
static ddp_comm *open_backend(bench *b, const char *name, const ddp_loaded **loaded, float **x)
{
    const ddp_backend_ops *ops;
    const void *config = NULL;
    ddp_backend *backend = NULL;
    ddp_comm_params p;
    ddp_comm *comm = NULL;
    void *memory = *x;
    ddp_err err;

    *loaded = load(b, name, &config);
    ops = (*loaded)->ops;
    must(ops->open(&b->host, config, &backend, &err) == DDP_OK, name, &err);
    ddp_group_comm_params(b->group, name, ddp_group_store(b->group, name, &err), 60000, &p);
    must(ops->comm_create(backend, &p, &comm, &err) == DDP_OK, name, &err);
    if ((ops->caps & DDP_CAP_MEM_ALLOC) != 0)
        must(ops->mem_alloc(comm, MAX_BYTES, &memory, &err) == DDP_OK, name, &err);
    *x = memory;
    return comm;
}

static void open_ways(bench *b, float *x, char **others, int count)
{
    static char names[MAX_WAYS][40];
    const ddp_loaded *mpi = NULL, *loaded = NULL;
    const void *config = NULL;
    ddp_comm *comm = open_backend(b, "mpi", &mpi, &x);
    way *w;
    ddp_err err;

    must(MPI_Comm_dup(MPI_COMM_WORLD, &direct) == MPI_SUCCESS, "MPI_Comm_dup", NULL);
    (void)add_way(b, "MPI_Allreduce", two_buffers, x);
    (void)add_way(b, "MPI, in place", in_place, x);
    (void)add_way(b, "MPI_Iallreduce", non_blocking, x);
    w = add_way(b, "mpi, slot", slot, x);
    w->loaded = mpi;
    w->comm = comm;
    w = add_way(b, "mpi, slot, avg", slot_average, x);
    w->loaded = mpi;
    w->comm = comm;
    (void)load(b, "mpi", &config);
    must(ddp_communicator_open(b->group, (ddp_loaded *)(uintptr_t)mpi, &b->host, config, -1, 60000, &queue, &err) ==
             DDP_OK,
         "queue", &err);
    (void)add_way(b, "mpi, queue", through_queue, x);
    for (int i = 0; i < count && b->way_count < MAX_WAYS; i++) {
        float *own = x;
        (void)snprintf(names[i], sizeof(names[i]), "%.30s, slot", others[i]);
        comm = open_backend(b, others[i], &loaded, &own);
        w = add_way(b, names[i], slot, own);
        w->loaded = loaded;
        w->comm = comm;
    }
}

/* ---- measuring --------------------------------------------------------------------------------------------------- */
static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void measure(bench *b, size_t bytes)
{
    const size_t n = bytes / sizeof(float);
    const int inner = bytes <= 4096 ? 20 : bytes <= 65536 ? 4 : 1;
    const int rounds = bytes > 8u << 20 ? DDP_MAX_OF(b->rounds / 4, 3) : b->rounds;

    for (int r = -1; r < rounds; r++) /* one to warm up */
        for (size_t i = 0; i < b->way_count; i++) {
            way *w = &b->ways[i];
            int64_t began;

            (void)MPI_Barrier(direct);
            w->call(w, n); /* the caches are those of this way, whoever came before */
            (void)MPI_Barrier(direct);
            began = ddp_now_ns();
            for (int k = 0; k < inner; k++) w->call(w, n);
            if (r >= 0) w->us[r] = (double)(ddp_now_ns() - began) * 1e-3 / inner;
        }
    for (size_t i = 0; i < b->way_count && b->rank == 0; i++) {
        way *w = &b->ways[i];

        qsort(w->us, (size_t)rounds, sizeof(double), by_value);
        (void)printf("%10zu B  %-16s median %10.2f  min %10.2f  p90 %10.2f us  (%d rounds)\n", bytes, w->name,
                     w->us[rounds / 2], w->us[0], w->us[rounds * 9 / 10], rounds);
    }
    (void)fflush(stdout);
}

int main(int argc, char **argv)
{
    static const size_t sizes[] = {4,       1024,    4096,    16384,    65536,    262144,
                                   1 << 20, 2700000, 4 << 20, 16 << 20, 25 << 20, MAX_BYTES};
    static const ddp_list no_paths;
    static bench b = {.rounds = 60};
    float *x = aligned_alloc(64, MAX_BYTES);
    int at = 1, level;
    ddp_err err;

    other = aligned_alloc(64, MAX_BYTES);
    must(x != NULL && other != NULL, "memory", NULL);
    memset(x, 0, MAX_BYTES); /* sums stay zero: no rounding, no infinity, after however many */
    memset(other, 0, MAX_BYTES);
    b.rank = (int)number("OMPI_COMM_WORLD_RANK");
    b.world = (int)number("OMPI_COMM_WORLD_SIZE");
    must(b.world > 0, "start it with mpirun --bind-to none -np 2", NULL);
    if (at < argc && strcmp(argv[at], "own") == 0 && ++at > 0)
        (void)MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
    if (at < argc && atoi(argv[at]) > 0) {
        b.rounds = DDP_MIN_OF(atoi(argv[at]), MAX_ROUNDS);
        at++;
    }
    (void)setenv("DDPENGINE_PLUGIN_PATH", DDP_BUILDDIR "/.libs", 0);
    ddp_log_init(&b.log);
    b.host = ddp_log_host(&b.log);
    must(ddp_registry_open(&b.log, &no_paths, &b.registry, &err) == DDP_OK, "registry", &err);
    must(ddp_ini_load("/dev/null", &b.ini, &err) == DDP_OK, "options", &err);
    rendezvous(&b);
    open_ways(&b, x, &argv[at], argc - at);
    for (size_t i = 0; i < DDP_COUNT(sizes); i++) measure(&b, sizes[i]);
    (void)MPI_Finalize();
    _exit(0); /* nothing else is closed: it measures */
}
