/* tests/unit/backend/gloo_util.h -- backend gloo-tcp alone, by its function table: ranks are threads of the test, or
 * a child that is killed; the store is a double (store_double.h). */
#pragma once

#include "collective_util.h"
#include "plugin_util.h"
#include "support/group_util.h"
#include "support/store_double.h"
#include <dirent.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <time.h>

#define MAX_WORLD 4

typedef struct rank_run {
    uint32_t rank, world;
    store_double *store;
    ddp_store table; /* ctx NULL: that of `store` */
    int64_t timeout_ms;
    const char *address; /* to bind to; NULL: 127.0.0.1 */
    size_t chunk, small; /* options; 0: the defaults */
    unsigned seed;
    void (*body)(struct rank_run *r);
    atomic_bool *entered;
    pthread_t thread;
    ddp_backend *backend;
    ddp_comm *comm;
    ddp_status status; /* of comm_create */
    ddp_err err;
} rank_run;

static inline size_t entries(const char *folder)
{
    DIR *dir = opendir(folder);
    size_t n = 0;

    assert_non_null(dir);
    while (readdir(dir) != NULL) n++;
    (void)closedir(dir);
    return n;
}

static inline int tcp_state(int fd)
{
    struct tcp_info info = {0};
    socklen_t size = sizeof(info);

    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 ? info.tcpi_state : 0;
}

/* Of this process; both ends of a connection, and duplicates, count. */
static inline uint32_t sockets_in(int state)
{
    DIR *dir = opendir("/proc/self/fd");
    uint32_t n = 0;

    assert_non_null(dir);
    for (const struct dirent *e; (e = readdir(dir)) != NULL;) n += tcp_state(atoi(e->d_name)) == state;
    (void)closedir(dir);
    return n;
}

/* Where it is not built the tests skip. */
static inline int load(void **state)
{
    const char *path = DDP_BUILDDIR "/.libs/backend_gloo_tcp.so";

    (void)state;
    return access(path, F_OK) == 0 ? load_plugin(path) : 0;
}

#define NEED_PLUGIN()                                                                                                  \
    do {                                                                                                               \
        if (ops == NULL) skip();                                                                                       \
    } while (0)

static inline void *rank_main(void *arg)
{
    rank_run *r = arg;
    char config[64] = {0};
    ddp_store store = r->table.ctx != NULL ? r->table : store_double_table(r->store);
    ddp_comm_params p = {.struct_size = sizeof(p),
                         .rank = r->rank,
                         .world_size = r->world,
                         .timeout_ms = r->timeout_ms,
                         .connect_timeout_ms = r->timeout_ms,
                         .group = "test",
                         .address = r->address != NULL ? r->address : "127.0.0.1",
                         .store = &store};

    assert_true(plugin->config_size <= sizeof(config));
    set_option(config, "chunk", r->chunk != 0 ? r->chunk : 131072);
    set_option(config, "small", r->chunk != 0 ? r->small : 65536);
    CHECK(ops->open(&host, config, &r->backend, &r->err) == DDP_OK);
    r->status = ops->comm_create(r->backend, &p, &r->comm, &r->err);
    if (r->status == DDP_OK) {
        r->body(r);
        ops->comm_destroy(r->comm);
    }
    ops->close(r->backend);
    return NULL;
}

static inline void start_ranks(rank_run *r, uint32_t first, uint32_t last)
{
    for (uint32_t i = first; i < last; i++) assert_int_equal(pthread_create(&r[i].thread, NULL, rank_main, &r[i]), 0);
}

static inline void join_ranks(rank_run *r, uint32_t first, uint32_t last)
{
    for (uint32_t i = first; i < last; i++) assert_int_equal(until_joined(r[i].thread), 0);
}

static inline void run_world(uint32_t world, size_t chunk, size_t small, void (*body)(rank_run *))
{
    rank_run r[MAX_WORLD];
    store_double *store = store_double_new();
    unsigned seed = (unsigned)ddp_now_ns();

    print_message("# world %u chunk %zu seed %u\n", world, chunk, seed);
    for (uint32_t i = 0; i < world; i++)
        r[i] = (rank_run){.rank = i,
                          .world = world,
                          .store = store,
                          .timeout_ms = LONG_MS,
                          .chunk = chunk,
                          .small = small,
                          .seed = seed,
                          .body = body};
    start_ranks(r, 0, world);
    join_ranks(r, 0, world);
    store_double_free(store);
    assert_no_wrongs();
    for (uint32_t i = 0; i < world; i++)
        if (r[i].status != DDP_OK) fail_msg("rank %u: %s", i, r[i].err.msg);
}
