/* conform/harness/run_cases.c -- one rank: loads the plugin, joins the others, and runs the cases one by one.
 *
 * Threads: the main thread joins and leaves; "conform" runs the cases with all signals blocked, as the queue thread
 * of a communicator does. A case that leaves the process unfit for another ends it without clean-up: the parent
 * starts another. */
#include "conform/harness/run_cases.h"
#include "conform/backend/backend.h"
#include "conform/bench/bench.h"
#include "conform/kinds.h"
#include "base/launcher.h"
#include "conform/harness/helper.h"
#include "net/endpoint.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { RENDEZVOUS_MS = 60000, LINGER_MS = 1000, TICK_US = 2000 };

/* ---- rendezvous -------------------------------------------------------------------------------------------------- */
/* Started by a launcher: rank 0 listens, and the shared results have its endpoint. */
static ddp_status introduce(ddp_rank_process *a, int *listen_fd, const char **endpoint, ddp_err *err)
{
    ddp_shared_results *s = a->shared;
    int64_t deadline = ddp_now_ms() + RENDEZVOUS_MS;

    if (a->rank == 0) {
        DDP_TRY(ddp_endpoint_listen("127.0.0.1:0", listen_fd, s->endpoint, err));
        atomic_store(&s->endpoint_ready, 1);
        return DDP_OK;
    }
    while (atomic_load(&s->endpoint_ready) == 0) {
        if (ddp_now_ms() >= deadline)
            return ddp_fail(err, DDP_ERR_TIMEOUT, "rank 0 did not start to listen within %d s", RENDEZVOUS_MS / 1000);
        (void)usleep(TICK_US);
    }
    *endpoint = s->endpoint;
    return DDP_OK;
}

/* What its parent could not ask: only here are the launcher's variables. */
static ddp_status check_backend(ddp_rank_process *a, ddp_err *err)
{
    const ddp_backend_ops *ops = a->plugin->ops;
    const ddp_comm_params p = {
        .struct_size = sizeof(p), .rank = a->rank, .world_size = a->world, .interface = "", .device_ordinal = -1};

    return ops->check(&a->host, a->config, &p, err);
}

static ddp_status join(ddp_rank_process *a, int listen_fd, const char *endpoint, ddp_err *err)
{
    ddp_group_params p = {.rank = (int32_t)a->rank,
                          .world = (int32_t)a->world,
                          .url = "conform",
                          .timeout_ms = RENDEZVOUS_MS,
                          .agreement = "",
                          .interface = "",
                          .log = &a->quiet};
    ddp_failure failure;

    if (a->shared->launched) DDP_TRY(check_backend(a, err));
    if (a->shared->launched && a->world > 1) DDP_TRY(introduce(a, &listen_fd, &endpoint, err));
    p.listen_fd = listen_fd;
    p.endpoint = endpoint;
    return ddp_group_join(&p, &a->group, &failure, err);
}

/* ---- the cases --------------------------------------------------------------------------------------------------- */
static void run_case(ddp_rank_process *a)
{
    if (a->c->suite == DDP_SUITE_BENCH) return ddp_bench_case(a);
    if (a->plugin->kind == DDP_KIND_BACKEND)
        ddp_backend_case(a);
    else
        ddp_kind_case(a);
}

static void *run_cases(void *arg)
{
    ddp_rank_process *a = arg;
    ddp_shared_results *s = a->shared;
    int64_t begin;

    a->c = &s->cases[s->first];
    a->v = ddp_shared_results_get(s, a->rank, s->first);
    if (a->plugin->kind == DDP_KIND_BACKEND) ddp_backend_begin(a);
    for (uint32_t i = s->first; i < s->last && !a->broken; i++) {
        atomic_store(&s->at[a->rank], i);
        a->c = &s->cases[i];
        a->v = ddp_shared_results_get(s, a->rank, i);
        begin = ddp_now_ns();
        run_case(a);
        a->v->us = (ddp_now_ns() - begin) / 1000;
        if (atomic_load(&a->v->state) == DDP_NOT_CHECKED) atomic_store(&a->v->state, DDP_PASSED);
    }
    if (a->plugin->kind == DDP_KIND_BACKEND && !a->broken) ddp_backend_end(a);
    return NULL;
}

static ddp_status start(ddp_rank_process *a, int listen_fd, const char *endpoint, ddp_err *err)
{
    const ddp_shared_results *s = a->shared;
    pthread_t thread;

    if (ddp_rank_process_load(a, s->kind, s->path, s->settings, err) != DDP_OK) {
        if (listen_fd >= 0) (void)close(listen_fd);
        return err->status;
    }
    if (s->kind == DDP_KIND_BACKEND && a->rank == 0) DDP_TRY(harness_helpers_start(a, listen_fd, err));
    if (s->kind == DDP_KIND_BACKEND) DDP_TRY(join(a, listen_fd, endpoint, err));
    DDP_TRY(ddp_thread_start(&thread, "conform", run_cases, a, err));
    (void)pthread_join(thread, NULL);
    return DDP_OK;
}

/* This process is about to end in the middle of things: the others get the time to come to the same case, so that
 * they do not lose what they were still receiving of an earlier one. */
static void linger(const ddp_rank_process *a, uint32_t here)
{
    int64_t deadline = ddp_now_ms() + LINGER_MS;
    bool waiting = true;

    while (waiting && ddp_now_ms() < deadline) {
        waiting = false;
        for (uint32_t r = 0; r < a->world; r++) waiting = waiting || atomic_load(&a->shared->at[r]) < here;
        (void)usleep(TICK_US);
    }
}

/* Every `per_host` ranks count as one host. */
static void choose_host(const ddp_shared_results *s, uint32_t rank)
{
    char id[32];

    if (s->per_host <= 0) return;
    (void)snprintf(id, sizeof(id), "conform-%u", rank / (uint32_t)s->per_host);
    (void)setenv("DDPENGINE_HOST_ID", id, 1); /* no other thread yet */
}

int harness_rank_process_run(ddp_shared_results *s, uint32_t rank, int listen_fd, const char *endpoint)
{
    ddp_rank_process a = {.shared = s, .rank = rank, .world = s->world};
    ddp_err err = {0};

    ddp_log_init(&a.log);
    ddp_log_init(&a.quiet);
    a.log.rank = a.quiet.rank = (int)rank;
    a.log.level = DDP_LOG_WARN;
    a.quiet.level = DDP_LOG_ERROR + 1;
    a.host = ddp_log_host(&a.log);
    a.c = &s->cases[s->first];
    a.v = ddp_shared_results_get(s, rank, s->first);
    choose_host(s, rank);
    if (start(&a, listen_fd, endpoint, &err) != DDP_OK) {
        (void)DDP_FAIL(&a, "%.220s", err.msg);
        return DDP_EXIT_PLUGIN;
    }
    if (a.broken) {
        linger(&a, atomic_load(&s->at[rank]));
        return DDP_EXIT_PLUGIN; /* what stands in the plugin stays there */
    }
    if (a.group != NULL) ddp_group_leave(a.group, NULL);
    ddp_rank_process_unload(&a);
    return DDP_EXIT_OK;
}

/* ---- started by a launcher --------------------------------------------------------------------------------------- */
int ddp_conform_rank(const char *path, ddp_log *log)
{
    ddp_launcher who;
    ddp_shared_results *s = NULL;
    ddp_err err = {0};
    int code;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (harness_shared_results_map(path, &s, &err) != DDP_OK || ddp_launcher_find(false, &who, &err) != DDP_OK) {
        ddp_log_line(log, DDP_LOG_ERROR, "%s", err.msg);
    } else if (who.kind == DDP_LAUNCHER_NONE || who.world != (int32_t)s->world || who.rank < 0 ||
               who.rank >= who.world) {
        ddp_log_line(log, DDP_LOG_ERROR, "the launcher does not say which of %u ranks this is", s->world);
    } else {
        atomic_store(&s->pids[who.rank], (int)getpid());
        code = harness_rank_process_run(s, (uint32_t)who.rank, -1, NULL);
        atomic_store(&s->pids[who.rank], 0);
        if (code != DDP_EXIT_OK) _exit(code); /* something may stand in the plugin still */
        ddp_shared_results_free(s, -1);
        return code;
    }
    ddp_shared_results_free(s, -1);
    return DDP_EXIT_INTERNAL;
}
