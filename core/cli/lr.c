/* cli/lr.c -- `ddpengine lr`: a short training whose learning rate rises exponentially, and what its loss says of a
 * good one (Smith 2015; fastai's lr_find). The training is a run of [optimizer] schedule = lr_range, without
 * evaluations and checkpoints, whose metrics are read and removed. */
#include "base/sys.h"
#include "cli/child.h"
#include "cli/cli.h"
#include "cli/lr_curve.h"
#include "config/config.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEPS = 100, SET = 256, PATH = 4096 };

typedef struct request {
    ddp_args run;
    int32_t steps;
    double first, last;
    const char *csv; /* NULL: in [output] dir, if that is set */
} request;

/* ---- arguments --------------------------------------------------------------------------------------------------- */
static int take_rate(const ddp_command *c, const char *name, const char *value, double *out)
{
    char *end;

    *out = strtod(value, &end);
    if (end != value && *end == '\0' && isfinite(*out) && *out > 0.0) return -1;
    return cli_usage_error(c, name, value);
}

static int take_first(const ddp_command *c, void *to, const char *value)
{
    return take_rate(c, "--start-lr takes a number above 0, not ", value, &((request *)to)->first);
}

static int take_last(const ddp_command *c, void *to, const char *value)
{
    return take_rate(c, "--end-lr takes a number above 0, not ", value, &((request *)to)->last);
}

#define FIELD(name) .offset = offsetof(request, name)

static const ddp_cli_option options[] = {
    {"--config", "FILE", "the run's INI file", DDP_TAKES_TEXT, .letter = 'c', FIELD(run.config_path)},
    {"--set", "SECTION.KEY=V", "overrides one key; may be repeated", DDP_TAKES_LIST, .most = DDP_MAX_OVERRIDES,
     FIELD(run.overrides), .count_offset = offsetof(request, run.override_count)},
    {"--nproc", "N", "starts N ranks on this host", DDP_TAKES_COUNT, .most = 4096, FIELD(run.nproc)},
    {"--start-lr", "LR", "the first learning rate (default: 1e-7)", DDP_TAKES_CALL, .take = take_first},
    {"--end-lr", "LR", "the last one (default: 10)", DDP_TAKES_CALL, .take = take_last},
    {"--steps", "N", "updates from the first to the last (default: 100)", DDP_TAKES_COUNT, .most = 1000000,
     FIELD(steps)},
    {"--csv", "FILE", "where the curve is written (default: lr.csv in [output] dir, where that is set)", DDP_TAKES_TEXT,
     FIELD(csv)},
    {"--help", NULL, "prints this text", DDP_TAKES_HELP, .letter = 'h'},
};

const ddp_command cli_lr_usage = {
    .name = "lr",
    .usage = "usage: ddpengine lr -c FILE [--set section.key=value]... [--nproc N]\n"
             "                    [--start-lr LR] [--end-lr LR] [--steps N] [--csv FILE]\n"
             "trains with a learning rate that rises in each step, and suggests the one at\n"
             "which the loss falls fastest\n",
    .footer = "\nIt ends where the loss diverges, and leaves neither checkpoints nor metrics.\n",
    .options = options,
    .option_count = DDP_COUNT(options),
    .example = "ddpengine lr -c run.ini --nproc 2 --steps 200",
};

/* ---- the run ----------------------------------------------------------------------------------------------------- */
static int train(const request *r, bool skips, char folder[CLI_TRIAL_FOLDER], ddp_log *log)
{
    char own[4][SET];
    const char *sets[] = {"optimizer.schedule=lr_range", "ddp.local_steps=0", own[0], own[1], own[2], own[3]};

    (void)snprintf(own[0], SET, "optimizer.lr=%.17g", r->last);
    (void)snprintf(own[1], SET, "optimizer.min_lr=%.17g", r->first);
    (void)snprintf(own[2], SET, "optimizer.schedule_steps=%d", r->steps);
    (void)snprintf(own[3], SET, "train.non_finite=%s", skips ? "skip" : "abort"); /* it diverges, which is no failure */
    return cli_trial_run("lr", &r->run, sets, DDP_COUNT(sets), r->steps, folder, log);
}

static ddp_status report(const request *r, const char *metrics, const char *csv, ddp_text *out, ddp_err *err)
{
    lr_curve c = {0};
    double suggestion;
    ddp_status st = lr_curve_read(metrics, &c, err);

    if (st != DDP_OK) return st;
    suggestion = lr_curve_suggestion(&c, (size_t)r->steps);
    lr_curve_draw(&c, suggestion, out);
    if (c.count < (size_t)r->steps && c.count > 0)
        ddp_text_printf(out, "the loss has diverged at a learning rate of %.3g\n", c.points[c.count - 1].lr);
    if (suggestion > 0.0)
        ddp_text_printf(out, "suggestion: lr = %.3g, where the loss falls fastest (the column of |)\n", suggestion);
    else
        ddp_text_printf(out,
                        "no suggestion: the loss falls nowhere; begin lower with --start-lr, or take more --steps\n");
    if (csv[0] != '\0') st = lr_curve_write(&c, csv, err);
    if (csv[0] != '\0' && st == DDP_OK) ddp_text_printf(out, "the curve is in %s\n", csv);
    free(c.points);
    return st;
}

/* A run that has failed for another reason than its loss has said why. */
static int find(const request *r, const char *csv, bool skips, ddp_log *log)
{
    char folder[CLI_TRIAL_FOLDER], metrics[CLI_TRIAL_FOLDER + 16];
    ddp_text out = {0};
    ddp_err err = {0};
    int code = train(r, skips, folder, log);

    (void)snprintf(metrics, sizeof(metrics), "%s/metrics.jsonl", folder);
    if (code == DDP_EXIT_NONFINITE) code = DDP_EXIT_OK;
    if (code == DDP_EXIT_OK && access(metrics, F_OK) == 0) { /* rank 0 is here */
        if (report(r, metrics, csv, &out, &err) != DDP_OK) code = cli_print_error(&err, log);
        if (cli_print_text(&out, log) != DDP_EXIT_OK && code == DDP_EXIT_OK) code = DDP_EXIT_INTERNAL;
    }
    cli_trial_remove(folder);
    return code;
}

int cli_command_lr(int argc, char **argv, ddp_log *log)
{
    request r = {.steps = STEPS, .first = 1e-7, .last = 10.0};
    ddp_config config = {0};
    char csv[PATH] = "";
    bool skips;
    ddp_err err = {0};
    int next, code = cli_parse_options(&cli_lr_usage, argc, argv, &r, &next);

    if (code >= 0) return code;
    if (next < argc) return cli_usage_error(&cli_lr_usage, "too many arguments: ", argv[next]);
    if (r.run.config_path == NULL) return cli_usage_error(&cli_lr_usage, "no config file: give -c FILE", "");
    if (r.first >= r.last) return cli_usage_error(&cli_lr_usage, "--start-lr must be below --end-lr", "");
    if (ddp_config_load(r.run.config_path, r.run.overrides, r.run.override_count, &config, &err) != DDP_OK) {
        (void)ddp_fail_as(&err, DDP_EXIT_CONFIG);
        return cli_print_error(&err, log);
    }
    if (r.csv == NULL && config.output->dir[0] != '\0') {
        (void)snprintf(csv, sizeof(csv), "%s/lr.csv", config.output->dir);
        if (ddp_make_folders(config.output->dir, &err) != DDP_OK) csv[0] = '\0';
    }
    if (r.csv != NULL) ddp_copy_text(csv, sizeof(csv), r.csv);
    skips = config.hook[0] == '\0'; /* one that keeps a state would carry a NaN on */
    ddp_config_free(&config);
    return find(&r, csv, skips, log);
}
