/* conform/bench/plan.c -- the parent of `ddpengine bench`: which backends, how their ranks are started, and the exit
 * code. */
#include "conform/bench/plan.h"
#include "conform/harness/probe.h"
#include "conform/harness/world.h"
#include "launch/signals.h"
#include "plugin/plugin.h"
#include <string.h>

enum { DEADLINE_MS = 3600000 };

typedef struct planning {
    const ddp_bench_params *p;
    ddp_bench_plan plan;
    char launcher[256];
} planning;

static int refuse(const planning *g, int code, const char *backend, const char *why)
{
    ddp_log_line(g->p->log, DDP_LOG_ERROR, "%s%s%s", backend, backend[0] != '\0' ? ": " : "", why);
    return code;
}

static int take_backend(planning *g, const char *name)
{
    ddp_conform_params one = {.plugin = name, .log = g->p->log};
    ddp_probe probe;
    ddp_err err = {0};

    if (ddp_probe_plugin(&one, &probe, &err) != DDP_OK) return refuse(g, DDP_EXIT_INTERNAL, name, err.msg);
    if (probe.exit_code != DDP_EXIT_OK) return refuse(g, probe.exit_code, "", probe.error);
    if (probe.kind != DDP_KIND_BACKEND) return refuse(g, DDP_EXIT_CONFIG, name, "is not a backend");
    if (probe.unable[0] != '\0') return refuse(g, DDP_EXIT_PLUGIN, name, probe.unable);
    if ((probe.caps & DDP_CAP_ALL_REDUCE) == 0 || !probe.takes_host)
        return refuse(g, DDP_EXIT_PLUGIN, name, "cannot all_reduce host memory");
    if (probe.launcher[0] != '\0' && g->launcher[0] != '\0' && strcmp(probe.launcher, g->launcher) != 0)
        return refuse(g, DDP_EXIT_CONFIG, name, "needs another launcher than a backend before it; measure them apart");
    if (probe.launcher[0] != '\0') ddp_copy_text(g->launcher, sizeof(g->launcher), probe.launcher);
    ddp_copy_text(g->plan.paths[g->plan.backend_count++], PATH_MAX, probe.path);
    return DDP_EXIT_OK;
}

/* What `auto` takes between hosts. */
static int take_default(planning *g)
{
    static const ddp_list no_paths = {0};
    ddp_offer offers[DDP_MAX_OFFERS];
    ddp_registry *r;
    ddp_err err = {0};
    size_t count;

    if (ddp_registry_open(g->p->log, &no_paths, &r, &err) != DDP_OK) return refuse(g, DDP_EXIT_PLUGIN, "", err.msg);
    count = ddp_registry_offers(r, DDP_KIND_BACKEND, offers, DDP_MAX_OFFERS);
    ddp_registry_close(r);
    for (size_t i = 0; i < count; i++)
        if (offers[i].facts.reach >= DDP_REACH_NETWORK && ddp_memory_has(offers[i].facts.memory, DDP_MEMORY_HOST))
            return take_backend(g, offers[i].name);
    return refuse(g, DDP_EXIT_PLUGIN, "", "no backend is found that reduces host memory; name one with --backend");
}

/* What a rank leaves unchecked is not the backends' fault. */
static int exit_code_of(int state)
{
    return state == DDP_PASSED ? DDP_EXIT_OK : state == DDP_FAILED ? DDP_EXIT_PLUGIN : DDP_EXIT_INTERNAL;
}

static int run_ranks(planning *g)
{
    const ddp_case c = {.suite = DDP_SUITE_BENCH, .fresh = true, .deadline_ms = DEADLINE_MS};
    ddp_world w = {.log = g->p->log, .shared_fd = -1};
    char why[256] = "";
    ddp_err err = {0};
    int code;
    ddp_status st = ddp_shared_results_create((uint32_t)g->p->nproc, &c, 1, &w.shared, &w.shared_fd, &err);

    if (st == DDP_OK) {
        w.shared->kind = DDP_KIND_BACKEND;
        w.shared->bench = g->plan;
        w.shared->per_host = g->p->per_host;
        ddp_copy_text(w.shared->path, sizeof(w.shared->path), g->plan.paths[0]);
        w.shared->launched = g->launcher[0] != '\0';
        w.launcher = w.shared->launched ? g->launcher : NULL;
        st = ddp_world_run(&w, &err);
    }
    code = st == DDP_OK ? exit_code_of(ddp_shared_results_check(w.shared, 0, why)) : ddp_err_exit_code(&err);
    if (w.signal != 0)
        code = ddp_log_ended_by(g->p->log, w.signal);
    else if (code != DDP_EXIT_OK)
        ddp_log_line(g->p->log, DDP_LOG_ERROR, "%s", why[0] != '\0' ? why : err.msg);
    ddp_shared_results_free(w.shared, w.shared_fd);
    return code;
}

int ddp_bench(const ddp_bench_params *p)
{
    static const size_t most = DDP_BENCH_SIZES;
    planning g = {.p = p, .plan = {.rounds = (uint32_t)p->rounds, .json = p->json, .queue = p->queue}};

    int code = p->backend_count == 0 ? take_default(&g) : DDP_EXIT_OK;

    for (size_t i = 0; i < p->backend_count && code == DDP_EXIT_OK; i++) code = take_backend(&g, p->backends[i]);
    if (code != DDP_EXIT_OK) return code;
    for (size_t i = 0; i < DDP_MIN_OF(p->size_count, most); i++) g.plan.sizes[g.plan.size_count++] = p->sizes[i];
    return run_ranks(&g);
}
