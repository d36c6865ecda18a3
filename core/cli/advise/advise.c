/* cli/advise/advise.c -- `ddpengine advise`: a short run of all ranks with [output] advice = full, that saves nothing,
 * and what its advice.json says. */
#include "cli/advise/table.h"
#include "base/sys.h"
#include "cli/child.h"
#include "cli/cli.h"
#include "config/config.h"
#include "launch/identify.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEPS = 10, MOST_STEPS = 60 };

typedef struct request {
    ddp_args run;
    int32_t steps;
    bool json;
} request;

#define FIELD(name) .offset = offsetof(request, name)

static const ddp_cli_option options[] = {
    {"--config", "FILE", "the run's INI file", DDP_TAKES_TEXT, .letter = 'c', FIELD(run.config_path)},
    {"--set", "SECTION.KEY=V", "overrides one key; may be repeated", DDP_TAKES_LIST, .most = DDP_MAX_OVERRIDES,
     FIELD(run.overrides), .count_offset = offsetof(request, run.override_count)},
    {"--nproc", "N", "starts N ranks on this host", DDP_TAKES_COUNT, .most = 4096, FIELD(run.nproc)},
    {"--steps", "N", "steps that are made, the first two of which do not count (default: 10)", DDP_TAKES_COUNT,
     .most = MOST_STEPS, FIELD(steps)},
    {"--json", NULL, "prints all that was measured and predicted as JSON", DDP_TAKES_NOTHING, FIELD(json)},
    {"--help", NULL, "prints this text", DDP_TAKES_HELP, .letter = 'h'},
};

const ddp_command cli_advise_usage = {
    .name = "advise",
    .usage = "usage: ddpengine advise -c FILE [--set section.key=value]... [--nproc N]\n"
             "                        [--steps N] [--json]\n"
             "measures what a step computes and what is between the ranks, and predicts steps\n"
             "and speed-up for 2 to 1,024 ranks, and what would make them faster\n",
    .footer = "\nStart it on every host, as the run. It saves nothing; rank 0 prints.\n",
    .options = options,
    .option_count = DDP_COUNT(options),
    .example = "ddpengine advise -c run.ini --nproc 2",
};

static ddp_status print(const request *r, const char *path, ddp_text *out, ddp_err *err)
{
    json_error_t where;
    json_t *advice = json_load_file(path, JSON_REJECT_DUPLICATES, &where);
    char *text;
    ddp_status st = DDP_OK;

    if (advice == NULL) return ddp_fail(err, DDP_ERR_INTERNAL, "%s: %s", path, where.text);
    if (r->json) {
        text = json_dumps(advice, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
        if (text == NULL)
            st = ddp_fail(err, DDP_ERR_NOMEM, "out of memory for the JSON");
        else
            ddp_text_printf(out, "%s\n", text);
        free(text);
    } else {
        st = advise_table(advice, out, err);
    }
    json_decref(advice);
    return st;
}

/* Of the rank's own run; the other hosts' have no file. A schedule need not fit into so few steps. */
static int advise(const request *r, ddp_log *log)
{
    static const char *const sets[] = {"output.advice=full", "optimizer.schedule=constant", "ddp.local_steps=0"};
    char folder[CLI_TRIAL_FOLDER], path[CLI_TRIAL_FOLDER + 16];
    ddp_text out = {0};
    ddp_err err = {0};
    int code = cli_trial_run("advise", &r->run, sets, DDP_COUNT(sets), r->steps, folder, log);

    (void)snprintf(path, sizeof(path), "%s/advice.json", folder);
    if (code == DDP_EXIT_OK && access(path, F_OK) == 0) { /* rank 0 is here */
        if (print(r, path, &out, &err) != DDP_OK) code = cli_print_error(&err, log);
        if (cli_print_text(&out, log) != DDP_EXIT_OK && code == DDP_EXIT_OK) code = DDP_EXIT_INTERNAL;
    }
    cli_trial_remove(folder);
    return code;
}

/* What cannot be said beforehand, rank 0 says. */
static int check(const request *r, const ddp_config *config, ddp_log *log)
{
    ddp_launch launch;
    ddp_err err = {0};

    if (config->train->split_head)
        return cli_usage_error(
            &cli_advise_usage,
            "[train] split_head: advice is for ranks that exchange all gradients; set train.split_head=no", "");
    if (config->train->parallel != DDP_PARALLEL_DDP)
        return cli_usage_error(&cli_advise_usage,
                               "[train] parallel: advice is for ranks that exchange gradients; set train.parallel=ddp",
                               "");
    if (ddp_launch_resolve(&r->run, config, &launch, &err) != DDP_OK) return cli_print_error(&err, log);
    if (launch.world == 1)
        return cli_usage_error(
            &cli_advise_usage,
            "one rank has nobody to exchange gradients with: give --nproc N, or [group] world_size and rank on each host",
            "");
    return -1;
}

int cli_command_advise(int argc, char **argv, ddp_log *log)
{
    request r = {.steps = STEPS};
    ddp_config config = {0};
    int next, code = cli_parse_options(&cli_advise_usage, argc, argv, &r, &next);

    if (code >= 0) return code;
    if (next < argc) return cli_usage_error(&cli_advise_usage, "too many arguments: ", argv[next]);
    if (r.run.config_path == NULL) return cli_usage_error(&cli_advise_usage, "no config file: give -c FILE", "");
    if (r.steps < 3)
        return cli_usage_error(&cli_advise_usage, "--steps: the first two do not count, give at least 3", "");
    if ((code = cli_load_config(r.run.config_path, r.run.overrides, r.run.override_count, &config, log)) >= 0)
        return code;
    code = check(&r, &config, log);
    ddp_config_free(&config);
    return code >= 0 ? code : advise(&r, log);
}
