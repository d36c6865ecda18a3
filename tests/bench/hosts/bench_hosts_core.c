/* bench_hosts_core.c -- see bench_hosts.h. */
#include "bench_hosts.h"
#include "conform/harness/rank_process.h"
#include "net/endpoint.h"
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { PATIENCE_MS = 600000, BACKENDS = 8 };

typedef struct opened {
    ddp_rank_process process; /* its registry, plugin and options alone */
    ddp_communicator *communicator;
} opened;

static ddp_group *group;
static ddp_log bench_log;
static opened all[BACKENDS];
static uint32_t count, gathers;
static const ddp_store *store;
static int world;

static void check(ddp_status st, const ddp_err *err, const char *what)
{
    if (st == DDP_OK) return;
    (void)fprintf(stderr, "bench_hosts: %s: %s\n", what, err->msg);
    _exit(1);
}

static void join(const hosts_args *a)
{
    ddp_group_params p = {.rank = a->rank,
                          .world = a->world,
                          .url = "bench",
                          .listen_fd = -1,
                          .endpoint = a->endpoint,
                          .timeout_ms = 60000,
                          .agreement = "",
                          .interface = a->interface,
                          .auth_none = true,
                          .log = &bench_log};
    char shown[DDP_ENDPOINT_MAX];
    ddp_failure failure;
    ddp_err err = {0};

    world = a->world;
    ddp_log_init(&bench_log);
    bench_log.rank = DDP_MAX_OF(a->rank, -1);
    bench_log.level = DDP_LOG_WARN;
    if (a->rank == 0) check(ddp_endpoint_listen(a->endpoint, &p.listen_fd, shown, &err), &err, a->endpoint);
    check(ddp_group_join(&p, &group, &failure, &err), &err, "join");
    store = ddp_group_store(group, "bench", &err);
    check(store == NULL ? err.status : DDP_OK, &err, "store");
}

void hosts_join(const hosts_args *a) { join(a); }

/* "NAME:key=value:key=value" */
static void load(opened *o, const char *backend)
{
    char name[256], *settings;
    ddp_err err = {0};

    ddp_copy_text(name, sizeof(name), backend);
    settings = name + strcspn(name, ":");
    if (*settings != '\0') *settings++ = '\0';
    for (char *c = settings; *c != '\0'; c++)
        if (*c == ':') *c = '\n';
    o->process.log = bench_log;
    o->process.host = ddp_log_host(&o->process.log);
    check(ddp_rank_process_load(&o->process, DDP_KIND_BACKEND, name, settings, &err), &err, backend);
}

static void *watch_end(void *fd)
{
    const uint64_t one = 1;

    while (!ddp_group_wait_over(group, 100)) continue;
    (void)!write(*(const int *)fd, &one, sizeof(one));
    return NULL;
}

void hosts_help(const hosts_args *a, const char *backend)
{
    const hosts_args helper = {DDP_RANK_OF_HELPER, a->world, a->endpoint, a->interface};
    ddp_helper_params p = {.struct_size = sizeof(p), .world_size = (uint32_t)a->world, .interface = a->interface};
    pthread_t thread;
    ddp_err err = {0};

    join(&helper);
    load(&all[0], backend);
    p.index = (uint32_t)ddp_group_helper(group);
    p.address = ddp_group_address(group);
    p.store = store;
    p.stop_fd = eventfd(0, EFD_CLOEXEC);
    check(ddp_thread_start(&thread, "watch", watch_end, &p.stop_fd, &err), &err, "thread");
    check(((const ddp_backend_ops *)all[0].process.plugin->ops)
              ->helper->serve(&all[0].process.host, all[0].process.config, &p, &err),
          &err, "serve");
    (void)pthread_join(thread, NULL);
    ddp_group_leave(group, NULL);
}

void hosts_open(const char *backend)
{
    opened *o = &all[count];
    ddp_err err = {0};

    if (count == BACKENDS) return;
    load(o, backend);
    check(ddp_communicator_open(group, o->process.plugin, &o->process.host, o->process.config, -1, PATIENCE_MS,
                                &o->communicator, &err),
          &err, backend);
    count++;
}

float *hosts_buffer(uint32_t backend, size_t elements)
{
    ddp_communicator *c = all[backend].communicator;
    ddp_err err = {0};
    void *p = NULL;

    if ((ddp_communicator_caps(c) & DDP_CAP_MEM_ALLOC) != 0)
        check(ddp_communicator_alloc(c, elements * sizeof(float), &p, &err), &err, "mem_alloc");
    else
        p = ddp_alloc_aligned(elements * sizeof(float), &err);
    check(p == NULL ? err.status : DDP_OK, &err, "memory");
    return p;
}

void hosts_reduce(uint32_t backend, float *x, size_t elements)
{
    ddp_task t = {
        .what = DDP_COLL_ALL_REDUCE,
        .coll = {
            .struct_size = sizeof(ddp_coll), .dtype = DDP_F32, .op = DDP_SUM, .send = x, .recv = x, .count = elements}};
    ddp_err err = {0};

    check(ddp_communicator_run(all[backend].communicator, &t, &err), &err, "all_reduce");
}

double hosts_slowest(double value)
{
    const void **out = calloc((size_t)world, sizeof(*out));
    size_t *lengths = calloc((size_t)world, sizeof(*lengths));
    char name[32];
    void *block = NULL;
    ddp_err err = {0};

    (void)snprintf(name, sizeof(name), "slowest-%u", gathers++);
    check(ddp_group_gather(group, name, &value, sizeof(value), &block, out, lengths, PATIENCE_MS, &err), &err, name);
    for (int r = 0; r < world; r++) {
        double theirs;

        memcpy(&theirs, out[r], sizeof(theirs));
        value = DDP_MAX_OF(value, theirs);
    }
    free(block);
    free(lengths);
    free(out);
    return value;
}

void hosts_barrier(void) { (void)hosts_slowest(0); }

void hosts_set(const char *key, const void *data, size_t bytes)
{
    ddp_err err = {0};

    check(store->set(store->ctx, key, data, bytes, &err), &err, key);
}

size_t hosts_get(const char *key, void *data, size_t capacity)
{
    ddp_err err = {0};
    size_t length = 0;

    check(store->get(store->ctx, key, data, capacity, &length, PATIENCE_MS, &err), &err, key);
    return length;
}

void hosts_leave(void)
{
    while (count > 0) (void)ddp_communicator_close(all[--count].communicator);
    ddp_group_leave(group, NULL);
}
