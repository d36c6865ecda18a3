/* conform/conform.c -- the order of a check: probe, worlds, report, exit code. */
#include "conform/conform.h"
#include "conform/harness/probe.h"
#include "conform/backend/cases.h"
#include "conform/harness/report.h"
#include "conform/harness/world.h"
#include "conform/kinds.h"
#include "launch/signals.h"
#include "net/endpoint.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { QUICK_WORLD = 3, FULL_WORLD = 8 };

typedef struct check_run {
    const ddp_conform_params *p;
    ddp_probe probe;
    ddp_report report;
    uint32_t suite; /* DDP_SUITE_END: all */
    int signal;
} check_run;

static int choose_suite(check_run *j)
{
    const char *names[DDP_SUITE_END], *near;

    for (j->suite = 0; j->suite < DDP_SUITE_BENCH; j->suite++) {
        names[j->suite] = ddp_suite_name(j->suite);
        if (j->p->suite != NULL && strcmp(j->p->suite, names[j->suite]) == 0) return DDP_EXIT_OK;
    }
    j->suite = DDP_SUITE_END;
    if (j->p->suite == NULL) return DDP_EXIT_OK;
    near = ddp_nearest(j->p->suite, names, DDP_SUITE_BENCH);
    ddp_log_line(j->p->log, DDP_LOG_ERROR, "no suite \"%s\"%s%s%s", j->p->suite,
                 near == NULL ? "" : "; did you mean \"", near == NULL ? "" : near,
                 near == NULL ? "; docs/writing-plugins/conform.md lists them" : "\"?");
    return DDP_EXIT_CONFIG;
}

static ddp_status fill_shared(const check_run *j, ddp_shared_results *s, ddp_err *err)
{
    size_t used = 0;

    s->kind = j->probe.kind;
    s->quick = j->p->quick;
    s->per_host = j->p->per_host;
    ddp_copy_text(s->path, sizeof(s->path), j->probe.path);
    ddp_copy_text(s->name, sizeof(s->name), j->probe.name);
    for (size_t i = 0; i < j->p->setting_count; i++) {
        size_t length = strlen(j->p->settings[i]);

        if (used + length + 2 > sizeof(s->settings))
            return ddp_fail(err, DDP_ERR_CONFIG, "the settings are longer than %zu bytes", sizeof(s->settings));
        used += (size_t)snprintf(s->settings + used, sizeof(s->settings) - used, "%s\n", j->p->settings[i]);
    }
    return DDP_OK;
}

/* ---- a world --------------------------------------------------------------------------------------------- */
/* For the rendezvous of ranks of this host: the URL that was given, else a folder that is made for it and a port. */
static ddp_status prepare_rendezvous(const check_run *j, ddp_shared_results *s, ddp_err *err)
{
    int fd;

    if (j->probe.kind != DDP_KIND_INIT) return DDP_OK;
    if (j->p->url != NULL) {
        ddp_copy_text(s->url, sizeof(s->url), j->p->url);
        return DDP_OK;
    }
    (void)snprintf(s->folder, sizeof(s->folder), "/tmp/ddpengine-conform-XXXXXX");
    if (mkdtemp(s->folder) == NULL) {
        s->folder[0] = '\0';
        return ddp_fail_errno(err, "cannot make a folder in /tmp");
    }
    DDP_TRY(ddp_endpoint_listen("127.0.0.1:0", &fd, s->endpoint, err)); /* a port that was free a moment ago */
    (void)close(fd);
    return DDP_OK;
}

static ddp_status run_cases(check_run *j, uint32_t world, const ddp_case_list *cases, ddp_err *err)
{
    ddp_world w = {.log = j->p->log, .shared_fd = -1};
    ddp_status st = ddp_shared_results_create(world, cases->items, cases->count, &w.shared, &w.shared_fd, err);

    if (st == DDP_OK) st = fill_shared(j, w.shared, err);
    if (st == DDP_OK) st = prepare_rendezvous(j, w.shared, err);
    if (st == DDP_OK) {
        w.shared->launched = j->probe.launcher[0] != '\0';
        w.launcher = w.shared->launched ? j->probe.launcher : NULL;
        st = ddp_world_run(&w, err);
    }
    if (st == DDP_OK) ddp_report_world(&j->report, w.shared);
    j->signal = w.signal;
    if (w.shared != NULL && w.shared->folder[0] != '\0') (void)ddp_remove_folder(w.shared->folder, &(ddp_err){0});
    ddp_shared_results_free(w.shared, w.shared_fd);
    return st;
}

static ddp_status check_world(check_run *j, uint32_t world, ddp_err *err)
{
    ddp_case_list cases = {0};
    uint32_t suite = j->probe.kind == DDP_KIND_INIT && world > 1 ? DDP_SUITE_RENDEZVOUS : j->suite;
    bool launched = j->probe.launcher[0] != '\0';
    ddp_status st = j->probe.kind == DDP_KIND_BACKEND
                        ? ddp_backend_cases(&cases, j->probe.caps, world, j->p->quick, launched, suite, err)
                        : conform_kind_cases(&cases, j->probe.kind, suite, err);

    if (st == DDP_OK && cases.count > 0) st = run_cases(j, world, &cases, err);
    free(cases.items);
    return st;
}

/* Only init plugins and hooks need more than one rank. */
static ddp_status check_kind(check_run *j, ddp_err *err)
{
    uint32_t last = j->p->nproc > 0 ? (uint32_t)j->p->nproc : QUICK_WORLD;

    DDP_TRY(check_world(j, 1, err));
    if (j->probe.kind == DDP_KIND_INIT && j->suite != DDP_SUITE_END && j->suite != DDP_SUITE_RENDEZVOUS) return DDP_OK;
    if (j->probe.kind != DDP_KIND_INIT && j->probe.kind != DDP_KIND_HOOK) return DDP_OK;
    for (uint32_t world = 2; world <= last && j->signal == 0; world++) DDP_TRY(check_world(j, world, err));
    return DDP_OK;
}

/* ---- a backend --------------------------------------------------------------------------------------------------- */
/* What the capabilities leave out. */
static void skip_missing(check_run *j)
{
    static const struct {
        uint64_t bit;
        const char *text;
    } others[] = {
        {DDP_CAP_MEM_ALLOC, "memory of the backend: no DDP_CAP_MEM_ALLOC"},
        {DDP_CAP_ABORT, "abort, and a peer that dies: no DDP_CAP_ABORT; the control plane ends such processes"}};

    for (uint32_t slot = 0; slot < DDP_SLOT_END; slot++)
        if ((j->probe.caps & ddp_slot_info_of(slot)->cap) == 0)
            ddp_report_skip(&j->report, 1, "%s: the backend does not offer it", ddp_slot_info_of(slot)->name);
    if (j->probe.launcher[0] != '\0')
        ddp_report_skip(&j->report, 2,
                        "late, killed: the launcher connects the ranks itself, and ends all when one dies");
    for (size_t i = 0; i < DDP_COUNT(others); i++)
        if ((j->probe.caps & others[i].bit) == 0) ddp_report_skip(&j->report, 1, "%s", others[i].text);
}

static ddp_status check_backend(check_run *j, ddp_err *err)
{
    uint32_t last = j->p->nproc > 0 ? (uint32_t)j->p->nproc : j->p->quick ? QUICK_WORLD : FULL_WORLD;

    skip_missing(j);
    for (uint32_t world = 1; world <= last && j->signal == 0; world++) DDP_TRY(check_world(j, world, err));
    return DDP_OK;
}

/* ---- by kind ----------------------------------------------------------------------------------------------------- */
static int check(check_run *j)
{
    ddp_status st = DDP_OK;
    ddp_err err = {0};

    ddp_report_begin(&j->report, &j->probe, j->p);
    if (j->probe.kind == DDP_KIND_BACKEND && !j->probe.takes_host)
        ddp_report_skip(&j->report, 1, "collectives: it reduces device memory only, which these suites cannot fill");
    else if (j->probe.kind == DDP_KIND_BACKEND)
        st = check_backend(j, &err);
    else
        st = check_kind(j, &err);
    j->report.passed++; /* that it loads: gate, descriptor, tables, options, as the probe has seen */
    ddp_report_end(&j->report, &j->probe);
    if (st != DDP_OK) {
        ddp_log_line(j->p->log, DDP_LOG_ERROR, "%s", err.msg);
        return st == DDP_ERR_CONFIG ? DDP_EXIT_CONFIG : DDP_EXIT_INTERNAL;
    }
    return j->report.failed > 0 ? DDP_EXIT_PLUGIN : DDP_EXIT_OK;
}

int ddp_conform(const ddp_conform_params *p)
{
    check_run j = {.p = p, .report = {.out = p->out}};
    ddp_err err = {0};
    int code = choose_suite(&j);

    if (code != DDP_EXIT_OK) return code;
    if (ddp_probe_plugin(p, &j.probe, &err) != DDP_OK) {
        ddp_log_line(p->log, DDP_LOG_ERROR, "%s", err.msg);
        return DDP_EXIT_INTERNAL;
    }
    if (j.probe.exit_code == DDP_EXIT_OK && j.probe.unable[0] != '\0') {
        j.probe.exit_code = DDP_EXIT_PLUGIN;
        ddp_copy_text(j.probe.error, sizeof(j.probe.error), j.probe.unable);
    }
    if (j.probe.exit_code != DDP_EXIT_OK) {
        ddp_log_line(p->log, DDP_LOG_ERROR, "%s", j.probe.error);
        return j.probe.exit_code;
    }
    code = check(&j);
    return j.signal != 0 ? ddp_log_ended_by(p->log, j.signal) : code;
}
