/* conform/conform.c -- the order of a judgement: probe, worlds, report, exit code. */
#include "conform/harness/probe.h"
#include "conform/backend/cases.h"
#include "conform/harness/report.h"
#include "conform/harness/world.h"
#include "conform/kinds.h"
#include "launch/signals.h"
#include "net/address.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { QUICK_WORLD = 3, FULL_WORLD = 8 };

typedef struct judgement {
    const ddp_conform_params *p;
    ddp_probe probe;
    ddp_report report;
    uint32_t suite; /* DDP_SUITE_END: all */
    int signal;
} judgement;

static int choose_suite(judgement *j)
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
                 near == NULL ? "; docs/conform.md lists them" : "\"?");
    return DDP_EXIT_CONFIG;
}

static ddp_status fill_board(const judgement *j, ddp_shared_results *b, ddp_err *err)
{
    size_t used = 0;

    b->kind = j->probe.kind;
    b->quick = j->p->quick;
    ddp_copy_text(b->path, sizeof(b->path), j->probe.path);
    ddp_copy_text(b->name, sizeof(b->name), j->probe.name);
    for (size_t i = 0; i < j->p->setting_count; i++) {
        size_t length = strlen(j->p->settings[i]);

        if (used + length + 2 > sizeof(b->settings))
            return ddp_fail(err, DDP_ERR_CONFIG, "the settings are longer than %zu bytes", sizeof(b->settings));
        used += (size_t)snprintf(b->settings + used, sizeof(b->settings) - used, "%s\n", j->p->settings[i]);
    }
    return DDP_OK;
}

/* ---- a world of a backend ------------------------------------------------------------------------------------------------ */
static ddp_status judge_world(judgement *j, uint32_t world, ddp_err *err)
{
    ddp_case_list cases = {0};
    ddp_world w = {.log = j->p->log, .board_fd = -1};
    bool launched = j->probe.launcher[0] != '\0';
    ddp_status st = ddp_backend_cases(&cases, j->probe.caps, world, j->p->quick, launched, j->suite, err);

    if (st == DDP_OK) st = ddp_shared_results_create(world, cases.items, cases.count, &w.board, &w.board_fd, err);
    if (st == DDP_OK) st = fill_board(j, w.board, err);
    if (st == DDP_OK && launched) {
        w.board->launched = true;
        w.launcher = j->probe.launcher;
    }
    if (st == DDP_OK) st = ddp_world_run(&w, err);
    if (st == DDP_OK) ddp_report_world(&j->report, w.board);
    j->signal = w.signal;
    ddp_shared_results_free(w.board, w.board_fd);
    free(cases.items);
    return st;
}

/* ---- the other kinds ------------------------------------------------------------------------------------------------------ */
/* A URL on which ranks of this host can meet; a folder that is made for it is in `folder`. */
static ddp_status choose_url(const judgement *j, ddp_shared_results *b, char *folder, size_t capacity, ddp_err *err)
{
    bool file = strcmp(j->probe.name, "file") == 0, env = strcmp(j->probe.name, "env") == 0;
    int fd;

    if (j->probe.kind != DDP_KIND_INIT) return DDP_OK;
    if (j->p->url != NULL || file) {
        ddp_copy_text(b->url, sizeof(b->url), j->p->url != NULL ? j->p->url : "");
        if (j->p->url != NULL) return DDP_OK;
        (void)snprintf(folder, capacity, "/tmp/ddpengine-conform-XXXXXX");
        if (mkdtemp(folder) == NULL) return ddp_fail_errno(err, "cannot make a folder in /tmp");
        (void)snprintf(b->url, sizeof(b->url), "file://%s/meet", folder);
        return DDP_OK;
    }
    if (!env && strcmp(j->probe.name, "tcp") != 0) return DDP_OK;
    DDP_TRY(ddp_endpoint_listen("127.0.0.1:0", &fd, b->endpoint, err)); /* a port that was free a moment ago */
    (void)close(fd);
    (void)snprintf(b->url, sizeof(b->url), env ? "env://" : "tcp://%.200s", b->endpoint);
    return DDP_OK;
}

static ddp_status judge_kind_world(judgement *j, uint32_t world, ddp_err *err)
{
    ddp_case_list cases = {0};
    ddp_world w = {.log = j->p->log, .board_fd = -1};
    char folder[64] = "";
    bool init = j->probe.kind == DDP_KIND_INIT;
    ddp_status st = ddp_kind_cases(&cases, j->probe.kind, init && world > 1 ? DDP_SUITE_RENDEZVOUS : j->suite, err);

    if (st == DDP_OK && cases.count > 0) {
        st = ddp_shared_results_create(world, cases.items, cases.count, &w.board, &w.board_fd, err);
        if (st == DDP_OK) st = fill_board(j, w.board, err);
        if (st == DDP_OK) st = choose_url(j, w.board, folder, sizeof(folder), err);
        if (st == DDP_OK) st = ddp_world_run(&w, err);
        if (st == DDP_OK) ddp_report_world(&j->report, w.board);
        j->signal = w.signal;
    }
    if (folder[0] != '\0') {
        ddp_err ignored;
        (void)ddp_remove_folder(folder, &ignored);
    }
    ddp_shared_results_free(w.board, w.board_fd);
    free(cases.items);
    return st;
}

/* Only init plugins and hooks have to do with more than one rank. */
static ddp_status judge_kind(judgement *j, ddp_err *err)
{
    uint32_t last = j->p->nproc > 0 ? (uint32_t)j->p->nproc : QUICK_WORLD;

    DDP_TRY(judge_kind_world(j, 1, err));
    if (j->probe.kind == DDP_KIND_INIT && j->suite != DDP_SUITE_END && j->suite != DDP_SUITE_RENDEZVOUS) return DDP_OK;
    if (j->probe.kind != DDP_KIND_INIT && j->probe.kind != DDP_KIND_HOOK) return DDP_OK;
    for (uint32_t world = 2; world <= last && j->signal == 0; world++) DDP_TRY(judge_kind_world(j, world, err));
    return DDP_OK;
}

/* ---- a backend -------------------------------------------------------------------------------------------------------------- */
/* What the capabilities leave out. */
static void skip_missing(judgement *j)
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

static ddp_status judge_backend(judgement *j, ddp_err *err)
{
    uint32_t last = j->p->nproc > 0 ? (uint32_t)j->p->nproc : j->p->quick ? QUICK_WORLD : FULL_WORLD;

    skip_missing(j);
    for (uint32_t world = 1; world <= last && j->signal == 0; world++) DDP_TRY(judge_world(j, world, err));
    return DDP_OK;
}

/* ---- by kind ---------------------------------------------------------------------------------------------------------------- */
static int judge(judgement *j)
{
    ddp_status st = DDP_OK;
    ddp_err err = {0};

    ddp_report_begin(&j->report, &j->probe, j->p);
    if (j->probe.kind == DDP_KIND_BACKEND && (j->probe.caps & DDP_CAP_MEM_HOST) == 0)
        ddp_report_skip(&j->report, 1, "collectives: it reduces device memory only, which these suites cannot fill");
    else if (j->probe.kind == DDP_KIND_BACKEND)
        st = judge_backend(j, &err);
    else
        st = judge_kind(j, &err);
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
    judgement j = {.p = p, .report = {.out = p->out}};
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
    code = judge(&j);
    return j.signal != 0 ? ddp_log_ended_by(p->log, j.signal) : code;
}
