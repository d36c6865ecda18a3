/* cli/runs.c -- `ddpengine runs`: the runs below a folder as a table, with the settings in which they differ. */
#include "base/sys.h"
#include "cli/cli.h"
#include "cli/options.h"
#include "cli/report/folders.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

static const ddp_cli_option options[] = {
    {"--help", NULL, NULL, DDP_TAKES_HELP, .letter = 'h'},
};

const ddp_command cli_runs_usage = {
    .name = "runs",
    .usage = "usage: ddpengine runs [FOLDER]\n"
             "lists the runs below a folder, as [output] dir has them: how they ended, the\n"
             "best evaluation, and the settings in which they differ; without FOLDER below\n"
             "the current one\n",
    .options = options,
    .option_count = DDP_COUNT(options),
    .footer = "",
    .example = "ddpengine runs runs",
};

/* ---- the table --------------------------------------------------------------------------------------------------- */
/* "lr=0.1 batch_size=64": of a setting that another run has with another value, or not at all. */
static void print_differences(const report_folders *l, const report_folder *r, ddp_text *out)
{
    const char *before = "  ";

    if (r->settings == NULL) {
        ddp_text_printf(out, "%s(no settings.ini that can be read)", before);
        return;
    }
    for (size_t i = 0; i < l->differing_count; i++) {
        const ddp_ini_entry *e = config_ini_find(r->settings, l->differing[i]->section, l->differing[i]->key);

        if (e == NULL) continue;
        ddp_text_printf(out, "%s%s.%s=%s", before, e->section, e->key, e->value);
        before = " ";
    }
}

/* A loss that has grown beyond all bounds has as many digits as any other. */
static const char *number(double v, char *buf, size_t capacity)
{
    (void)snprintf(buf, capacity, fabs(v) < 1e6 ? "%.4f" : "%.4g", v);
    return buf;
}

static void print_run(const report_folders *l, const report_folder *r, int width, ddp_text *out)
{
    const ddp_run_folder *f = &r->facts;
    char state[32], steps[64], loss[32] = "-", best[128] = "-", own[32], time[32];
    size_t from = out->length;

    (void)report_state_text(f, state, sizeof(state));
    if (f->planned_steps > f->steps)
        (void)snprintf(steps, sizeof(steps), "%" PRIu64 "/%" PRIu64, f->steps, f->planned_steps);
    else
        (void)snprintf(steps, sizeof(steps), "%" PRIu64, f->steps);
    if (isfinite(f->loss)) (void)number(f->loss, loss, sizeof(loss));
    if (isfinite(f->best))
        (void)snprintf(best, sizeof(best), "%s %s at %" PRIu64,
                       f->metric + (strncmp(f->metric, "eval_", 5) == 0 ? 5 : 0), number(f->best, own, sizeof(own)),
                       f->best_step);
    ddp_text_printf(out, "%-*s  %-13s  %13s  %9s  %-28s  %12s", width, r->dir, state, steps, loss, best,
                    ddp_format_seconds(f->seconds, time, sizeof(time)));
    print_differences(l, r, out);
    if (!out->failed) ddp_clean_text(out->data + from);
    ddp_text_printf(out, "\n");
}

static int print_table(const report_folders *l, const char *folder)
{
    ddp_text out = {0};
    int width = 3;

    if (l->count == 0) {
        ddp_log_line(l->log, DDP_LOG_ERROR, "no run below %s: no folder there has a metrics.jsonl", folder);
        return DDP_EXIT_CONFIG;
    }
    for (size_t i = 0; i < l->count; i++) width = DDP_MAX_OF(width, (int)strlen(l->runs[i].dir));
    ddp_text_printf(&out, "%-*s  %-13s  %13s  %9s  %-28s  %12s  %s\n", width, "run", "state", "step", "loss", "best",
                    "time", l->count > 1 ? "differs in" : "");
    for (size_t i = 0; i < l->count; i++) print_run(l, &l->runs[i], width, &out);
    return cli_print_text(&out, l->log);
}

int cli_command_runs(int argc, char **argv, ddp_log *log)
{
    report_folders l = {.log = log};
    const char *folder = ".";
    ddp_err err = {0};
    int next, code = cli_parse_options(&cli_runs_usage, argc, argv, &l, &next);

    if (code >= 0) return code;
    if (next < argc) folder = argv[next++];
    if (next < argc) return cli_usage_error(&cli_runs_usage, "too many arguments: ", argv[next]);
    if (report_folders_look(&l, folder, &err) != DDP_OK || report_folders_compare(&l, &err) != DDP_OK) {
        (void)ddp_fail_as(&err, DDP_EXIT_CONFIG);
        code = cli_print_error(&err, log);
    } else {
        report_folders_sort(&l, 0);
        code = print_table(&l, folder);
    }
    report_folders_free(&l);
    return code;
}
