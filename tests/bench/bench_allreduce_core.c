/* bench_allreduce_core.c -- see bench_allreduce.h. */
#include "bench_allreduce.h"
#include "support/store_double.h"
#include "base/sys.h"
#include "comm/communicator.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static store_double *shared;
static const ddp_backend_ops *ops;
static ddp_backend *backend;
static ddp_comm *comm;
static ddp_group *group;
static ddp_communicator *communicator;
static ddp_log bench_log;
static ddp_host host;
static ddp_loaded loaded;
static uint64_t config[8];
static int agreements;

enum { PATIENCE_MS = 600000 }; /* a large sum takes minutes on a slow network */

static void check(ddp_status st, const ddp_err *err, const char *what)
{
    if (st == DDP_OK) return;
    (void)fprintf(stderr, "bench_allreduce: %s: %s\n", what, err->msg);
    _exit(1);
}

static void load_plugin(void)
{
    void *handle = dlopen(DDP_BUILDDIR "/.libs/backend_gloo_tcp.so", RTLD_NOW | RTLD_LOCAL);
    const ddp_plugin *plugin = handle != NULL ? dlsym(handle, DDP_PLUGIN_SYMBOL) : NULL;
    static const uint64_t defaults[] = {131072, 65536}; /* chunk, small */

    if (plugin == NULL || plugin->option_count != DDP_COUNT(defaults) || plugin->config_size > sizeof(config)) {
        (void)fprintf(stderr, "bench_allreduce: %s\n", handle == NULL ? dlerror() : "not the plugin it knows");
        _exit(1);
    }
    for (uint32_t i = 0; i < plugin->option_count; i++)
        memcpy((char *)config + plugin->options[i].offset, &defaults[i], sizeof(defaults[i]));
    ops = plugin->ops;
    loaded = (ddp_loaded){.kind = DDP_KIND_BACKEND, .name = "gloo-tcp", .path = "", .desc = *plugin, .ops = ops};
}

static void open_slot(int rank, const char *address)
{
    ddp_store *store = malloc(sizeof(*store));
    ddp_err err;
    ddp_comm_params p = {.struct_size = sizeof(p),
                         .rank = (uint32_t)rank,
                         .world_size = 2,
                         .timeout_ms = PATIENCE_MS,
                         .connect_timeout_ms = 60000,
                         .group = "bench",
                         .address = address,
                         .store = store};

    *store = store_double_table(shared);
    check(ops->open(&host, config, &backend, &err), &err, "open");
    check(ops->comm_create(backend, &p, &comm, &err), &err, "comm_create");
}

static void open_queue(int rank, int listen_fd, const char *endpoint)
{
    ddp_group_params p = {.rank = rank,
                          .world = 2,
                          .url = "bench",
                          .listen_fd = rank == 0 ? listen_fd : -1,
                          .endpoint = rank == 0 ? NULL : endpoint,
                          .timeout_ms = 60000,
                          .agreement = "",
                          .log = &bench_log};
    ddp_failure failure;
    ddp_err err;

    check(ddp_group_join(&p, &group, &failure, &err), &err, "join");
    check(ddp_communicator_open(group, &loaded, &host, config, -1, 60000, &communicator, &err), &err, "communicator");
}

int bench_start(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(address);
    int listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), rank;
    char endpoint[64];

    if (bind(listen_fd, (struct sockaddr *)&address, size) != 0 || listen(listen_fd, 16) != 0 ||
        getsockname(listen_fd, (struct sockaddr *)&address, &size) != 0) {
        perror("bench_allreduce");
        _exit(1);
    }
    (void)snprintf(endpoint, sizeof(endpoint), "127.0.0.1:%u", ntohs(address.sin_port));
    shared = store_double_new();
    rank = fork() == 0 ? 1 : 0;
    ddp_log_init(&bench_log);
    bench_log.rank = rank;
    host = ddp_log_host(&bench_log);
    if (rank != 0) (void)close(listen_fd);
    load_plugin();
    open_slot(rank, "127.0.0.1");
    open_queue(rank, listen_fd, endpoint);
    return rank;
}

static void enter(const char *netns)
{
    int fd = open(netns, O_RDONLY | O_CLOEXEC);

    if (fd < 0 || setns(fd, CLONE_NEWNET) != 0) {
        perror(netns);
        _exit(1);
    }
    (void)close(fd);
}

int bench_start_hosts(const char *const address[2], const char *rank1_netns)
{
    int rank;

    shared = store_double_new();
    rank = fork() == 0 ? 1 : 0;
    if (rank == 1) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        enter(rank1_netns);
    }
    ddp_log_init(&bench_log);
    bench_log.rank = rank;
    host = ddp_log_host(&bench_log);
    load_plugin();
    open_slot(rank, address[rank]);
    return rank;
}

int bench_end(int rank)
{
    int status = 0;

    if (communicator != NULL) {
        ddp_communicator_close(communicator);
        ddp_group_leave(group, NULL);
    }
    ops->comm_destroy(comm);
    ops->close(backend);
    if (rank != 0) _exit(0);
    (void)wait(&status);
    return status != 0;
}

int bench_agree(int rank, int rounds)
{
    char key[32];

    (void)snprintf(key, sizeof(key), "rounds/%d", agreements++);
    if (rank == 0)
        bench_store_set(key, &rounds, sizeof(rounds));
    else
        (void)bench_store_get(key, &rounds, sizeof(rounds));
    return rounds;
}

void bench_store_set(const char *key, const void *data, size_t bytes)
{
    ddp_err err;

    check(store_double_set(shared, key, data, bytes, &err), &err, key);
}

size_t bench_store_get(const char *key, void *data, size_t capacity)
{
    ddp_err err;
    size_t length = 0;

    check(store_double_get(shared, key, data, capacity, &length, PATIENCE_MS, &err), &err, key);
    return length;
}

static ddp_coll sum_of(float *x, size_t n)
{
    return (ddp_coll){
        .struct_size = sizeof(ddp_coll), .dtype = DDP_F32, .op = DDP_SUM, .send = x, .recv = x, .count = n};
}

void bench_slot(float *x, size_t n)
{
    ddp_coll a = sum_of(x, n);
    ddp_work *none = NULL;
    ddp_err err;

    check(ops->all_reduce(comm, &a, &none, &err), &err, "all_reduce");
}

void bench_queue(float *x, size_t n)
{
    ddp_task t = {.what = DDP_COLL_ALL_REDUCE, .coll = sum_of(x, n)};
    ddp_err err;

    check(ddp_communicator_run(communicator, &t, &err), &err, "communicator");
}
