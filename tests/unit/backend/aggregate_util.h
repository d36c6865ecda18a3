/* tests/unit/backend/aggregate_util.h -- backend aggregate alone, by its function table: ranks and aggregators are
 * threads of the test, the store is a double (store_double.h). */
#pragma once

#include "base/base.h"
#include "collective_util.h"
#include "plugin_util.h"
#include "shares.h"
#include "support/store_double.h"
#include "support/until.h"
#include "wire.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>
/* cmocka wants these before it */
#include <cmocka.h>

enum { MOST_RANKS = 4, MOST_AGGREGATORS = 4, SMALL_CHUNK = 4096 };

typedef struct rank_run {
    struct world_run *run;
    uint32_t rank, world;
    pthread_t thread;
    ddp_backend *backend;
    ddp_comm *comm;
    ddp_status status; /* of comm_create */
    ddp_err err;
} rank_run;

typedef struct world_run {
    uint32_t world, aggregators;
    bool absent; /* the aggregators do not come, so comm_create fails, and `body` looks at why */
    int64_t connect_timeout_ms;
    void (*body)(rank_run *r);
    store_double *store;
    int stop_fds[MOST_AGGREGATORS];
    atomic_bool stopped, named;
    void *config;
} world_run;

static inline int load(void **state)
{
    (void)state;
    return load_plugin(DDP_BUILDDIR "/.libs/backend_aggregate.so");
}

#define NEED_PLUGIN() assert_non_null(ops)

/* ---- aggregators ------------------------------------------------------------------------------------------------- */
typedef struct aggregator {
    world_run *run;
    uint32_t index;
    pthread_t thread;
    ddp_store store;
} aggregator;

static inline void *aggregator_main(void *arg)
{
    aggregator *a = arg;
    const ddp_helper_params p = {.struct_size = sizeof(p),
                                 .index = a->index,
                                 .world_size = a->run->world,
                                 .address = "127.0.0.1",
                                 .interface = "",
                                 .store = &a->store,
                                 .stop_fd = a->run->stop_fds[a->index]};
    ddp_err err = {0};

    assert_int_equal(ops->helper->serve(&host, a->run->config, &p, &err), DDP_OK);
    return NULL;
}

static inline void world_stop_aggregators(world_run *w)
{
    const uint64_t one = 1;

    if (atomic_exchange(&w->stopped, true)) return;
    for (uint32_t i = 0; i < w->aggregators && !w->absent; i++)
        assert_int_equal(write(w->stop_fds[i], &one, sizeof(one)), sizeof(one));
}

/* ---- ranks ------------------------------------------------------------------------------------------------------- */
static inline void *rank_main(void *arg)
{
    rank_run *r = arg;
    ddp_store store = store_double_table(r->run->store);
    const ddp_comm_params p = {.struct_size = sizeof(p),
                               .rank = r->rank,
                               .world_size = r->world,
                               .timeout_ms = 30000,
                               .connect_timeout_ms =
                                   r->run->connect_timeout_ms > 0 ? r->run->connect_timeout_ms : 30000,
                               .group = "test",
                               .address = "127.0.0.1",
                               .interface = "",
                               .store = &store};

    assert_int_equal(ops->open(&host, r->run->config, &r->backend, &r->err), DDP_OK);
    r->status = ops->comm_create(r->backend, &p, &r->comm, &r->err);
    if (!r->run->absent && r->status != DDP_OK) fail_msg("rank %u: %s", r->rank, r->err.msg);
    r->run->body(r);
    if (r->status == DDP_OK) ops->comm_destroy(r->comm);
    ops->close(r->backend);
    return NULL;
}

/* `body` on each rank; returns when all have ended. */
static inline void run_world(world_run *w)
{
    aggregator aggregators[MOST_AGGREGATORS];
    rank_run ranks[MOST_RANKS];

    w->store = store_double_new();
    w->config = calloc(1, plugin->config_size);
    set_option(w->config, "aggregators", w->aggregators);
    set_option(w->config, "chunk", SMALL_CHUNK);
    set_option(w->config, "small", 2048);
    for (uint32_t i = 0; i < w->aggregators && !w->absent; i++) {
        aggregators[i] = (aggregator){.run = w, .index = i, .store = store_double_table(w->store)};
        w->stop_fds[i] = eventfd(0, EFD_CLOEXEC);
        assert_int_equal(pthread_create(&aggregators[i].thread, NULL, aggregator_main, &aggregators[i]), 0);
    }
    for (uint32_t r = 0; r < w->world; r++) {
        ranks[r] = (rank_run){.run = w, .rank = r, .world = w->world};
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, rank_main, &ranks[r]), 0);
    }
    for (uint32_t r = 0; r < w->world; r++) (void)until_joined(ranks[r].thread);
    world_stop_aggregators(w);
    for (uint32_t i = 0; i < w->aggregators && !w->absent; i++) {
        (void)until_joined(aggregators[i].thread);
        (void)close(w->stop_fds[i]);
    }
    free(w->config);
    store_double_free(w->store);
}
