/* conform/harness/helper.c -- see helper.h. */
#include "conform/harness/helper.h"
#include "net/address.h"
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { RENDEZVOUS_MS = 60000, LOOK_MS = 50 };

typedef struct service {
    ddp_rank_process *a;
    const ddp_helper_ops *ops;
    ddp_helper_params p;
} service;

static void *serve(void *arg)
{
    service *v = arg;
    ddp_err err = {0};

    (void)v->ops->serve(&v->a->host, v->a->config, &v->p, &err);
    return NULL;
}

static void help(ddp_rank_process *a, const char *endpoint)
{
    const ddp_group_params p = {.rank = DDP_RANK_OF_HELPER,
                                .world = (int32_t)a->world,
                                .url = "conform",
                                .timeout_ms = RENDEZVOUS_MS,
                                .agreement = "",
                                .interface = "",
                                .listen_fd = -1,
                                .endpoint = endpoint,
                                .log = &a->quiet};
    service v = {.a = a, .ops = ((const ddp_backend_ops *)a->plugin->ops)->helper};
    ddp_failure failure;
    pthread_t thread;
    ddp_group *g;
    ddp_err err = {0};

    a->host = ddp_log_host(&a->quiet); /* of ranks that go without a word the run has to say something, this has not */
    if (ddp_group_join(&p, &g, &failure, &err) != DDP_OK) return;
    v.p = (ddp_helper_params){.struct_size = sizeof(v.p),
                              .index = (uint32_t)ddp_group_helper(g),
                              .world_size = a->world,
                              .address = ddp_group_address(g),
                              .interface = "",
                              .store = ddp_group_store(g, "helpers", &err),
                              .stop_fd = eventfd(0, EFD_CLOEXEC)};
    if (v.p.store == NULL || ddp_thread_start(&thread, "conform-help", serve, &v, &err) != DDP_OK) return;
    while (!ddp_group_wait_over(g, LOOK_MS)) continue;
}

static void start_some(ddp_rank_process *a, uint32_t count, int listen_fd)
{
    char endpoint[DDP_ENDPOINT_MAX];

    ddp_address_own(listen_fd, true, endpoint, sizeof(endpoint));
    for (uint32_t i = 0; i < count; i++) {
        if (fork() != 0) continue;
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)close(listen_fd);
        help(a, endpoint);
        _exit(DDP_EXIT_OK);
    }
}

static uint32_t wanted(const ddp_rank_process *a)
{
    const ddp_helper_ops *ops = ((const ddp_backend_ops *)a->plugin->ops)->helper;

    return ops != NULL && a->world > 1 ? ops->count(a->config) : 0;
}

ddp_status harness_helpers_start(ddp_rank_process *a, int listen_fd, ddp_err *err)
{
    const ddp_bench_plan *bench = &a->shared->bench;

    if (listen_fd < 0) return DDP_OK;
    if (a->c->suite != DDP_SUITE_BENCH) start_some(a, wanted(a), listen_fd);
    for (uint32_t i = 0; a->c->suite == DDP_SUITE_BENCH && i < bench->backend_count; i++) {
        ddp_rank_process one = {.shared = a->shared, .world = a->world, .log = a->log, .quiet = a->quiet};

        one.host = ddp_log_host(&one.log);
        DDP_TRY(ddp_rank_process_load(&one, DDP_KIND_BACKEND, bench->paths[i], "", err));
        start_some(&one, wanted(&one), listen_fd);
        ddp_rank_process_unload(&one);
    }
    return DDP_OK;
}
