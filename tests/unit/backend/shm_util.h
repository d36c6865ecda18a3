/* tests/unit/backend/shm_util.h -- backend shm alone, by its function table: ranks are forked processes, the store
 * is a double. What a rank finds wrong it writes where the test can see it. */
#pragma once

#include "base/sys.h"
#include "plugin_util.h"
#include "support/store_double.h"
#include "support/until.h"
#include <dirent.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <setjmp.h>
#include <cmocka.h> /* last: it has a macro `fail` */

#define LONG_MS   20000 /* a bound that no good run comes near */
#define MAX_WORLD 8

typedef struct shared_results { /* seen by all processes */
    atomic_int wrongs, flags[MAX_WORLD];
    char first[600];
    ddp_status status[MAX_WORLD];
    ddp_err err[MAX_WORLD];
    unsigned char bytes[MAX_WORLD][1 << 18];
} shared_results;

typedef struct rank_run {
    uint32_t rank, world;
    store_double *store;
    int64_t timeout_ms, connect_timeout_ms;
    uint64_t staging, spin_us; /* options */
    unsigned seed;
    void (*body)(struct rank_run *r);
    void (*before)(struct rank_run *r); /* the communicator */
    uint32_t local_size;
    ddp_backend *backend;
    ddp_comm *comm;
    ddp_err err;
} rank_run;

static shared_results *seen;

/* A rank is no place for cmocka's assertions: it is another process, or a thread of one. */
#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition) && atomic_fetch_add(&seen->wrongs, 1) == 0)                                                   \
            (void)snprintf(seen->first, sizeof(seen->first), "%s:%d: %s", __FILE__, __LINE__, #condition);             \
    } while (0)

#define CHECK_OK(r, call)                                                                                              \
    do {                                                                                                               \
        ddp_status st_ = (call);                                                                                       \
        if (st_ != DDP_OK && atomic_fetch_add(&seen->wrongs, 1) == 0)                                                  \
            (void)snprintf(seen->first, sizeof(seen->first), "%s:%d: rank %u: %s", __FILE__, __LINE__, (r)->rank,      \
                           (r)->err.msg);                                                                              \
    } while (0)

static inline void assert_no_wrongs(void)
{
    if (atomic_exchange(&seen->wrongs, 0) != 0) fail_msg("%s", seen->first);
}

static inline int load(void **state)
{
    (void)state;
    seen = mmap(NULL, sizeof(*seen), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return seen == MAP_FAILED ? -1 : load_plugin(DDP_BUILDDIR "/.libs/backend_shm.so");
}

static inline ddp_status open_rank(rank_run *r, const ddp_store *store)
{
    uint64_t config[8] = {0};
    const ddp_comm_params p = {.struct_size = sizeof(p),
                               .rank = r->rank,
                               .world_size = r->world,
                               .local_rank = r->rank,
                               .local_size = r->local_size,
                               .timeout_ms = r->timeout_ms,
                               .connect_timeout_ms = r->connect_timeout_ms,
                               .group = "test",
                               .address = "127.0.0.1",
                               .interface = "",
                               .device_ordinal = -1,
                               .store = store};
    ddp_status st;

    set_option(config, "staging", r->staging);
    set_option(config, "spin", r->spin_us);
    CHECK(ops->open(&host, config, &r->backend, &r->err) == DDP_OK);
    st = ops->comm_create(r->backend, &p, &r->comm, &r->err);
    if (st != DDP_OK) ops->close(r->backend);
    return st;
}

static inline void close_rank(rank_run *r)
{
    ops->comm_destroy(r->comm);
    ops->close(r->backend);
}

static inline void rank_main(rank_run *r)
{
    const ddp_store store = store_double_table(r->store);

    if (r->before != NULL) r->before(r);
    seen->status[r->rank] = open_rank(r, &store);
    if (seen->status[r->rank] == DDP_OK) {
        if (r->body != NULL) r->body(r);
        close_rank(r);
    }
    seen->err[r->rank] = r->err;
}

static inline pid_t start_rank(rank_run *r)
{
    pid_t parent = getpid(), child = fork();

    assert_true(child >= 0);
    if (child > 0) return child;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(3);
    (void)alarm(200);
    rank_main(r);
    _exit(0);
}

static inline rank_run rank_of(uint32_t rank, uint32_t world, store_double *store, void (*body)(rank_run *))
{
    return (rank_run){.rank = rank,
                      .world = world,
                      .store = store,
                      .timeout_ms = LONG_MS * 5,
                      .connect_timeout_ms = LONG_MS * 5,
                      .staging = 131072,
                      .spin_us = 20,
                      .local_size = world,
                      .body = body};
}

static inline void start_world(rank_run *r, pid_t *child)
{
    memset(seen->status, 0, sizeof(seen->status));
    for (uint32_t i = 0; i < r[0].world; i++) atomic_store(&seen->flags[i], 0);
    for (uint32_t i = 0; i < r[0].world; i++) child[i] = start_rank(&r[i]);
}

static inline void end_world(const pid_t *child, uint32_t world)
{
    for (uint32_t i = 0; i < world; i++) {
        int status = 0;

        assert_int_equal(until_exited(child[i], &status), child[i]);
        if (status != 0) fail_msg("rank %u ended with wait status 0x%x", i, (unsigned)status);
    }
    assert_no_wrongs();
}

/* All ranks with one body; staging 0: the default. */
static inline void run_world(uint32_t world, uint64_t staging, uint64_t spin_us, void (*body)(rank_run *))
{
    store_double *store = store_double_new();
    unsigned seed = (unsigned)ddp_now_ns();
    rank_run r[MAX_WORLD];
    pid_t child[MAX_WORLD];

    print_message("# world %u staging %llu spin %llu seed %u\n", world, (unsigned long long)staging,
                  (unsigned long long)spin_us, seed);
    for (uint32_t i = 0; i < world; i++) {
        r[i] = rank_of(i, world, store, body);
        if (staging != 0) r[i].staging = staging;
        r[i].spin_us = spin_us;
        r[i].seed = seed;
    }
    start_world(r, child);
    end_world(child, world);
    store_double_free(store);
    for (uint32_t i = 0; i < world; i++)
        if (seen->status[i] != DDP_OK) fail_msg("rank %u: %s", i, seen->err[i].msg);
}

static inline bool contains(const char *text, const char *part) { return strstr(text, part) != NULL; }

#define assert_contains(text, part)                                                                                    \
    do {                                                                                                               \
        if (!contains(text, part)) fail_msg("\"%s\" does not contain \"%s\"", text, part);                             \
    } while (0)
