/* cli/model.c -- `ddpengine model`: the model of an INI as a table. */
#include "cli/cli.h"
#include "cli/options.h"
#include "session/open.h"

typedef struct request {
    const char *config_path, *overrides[DDP_MAX_OVERRIDES + 2];
    size_t override_count;
} request;

#define FIELD(name) .offset = offsetof(request, name)

static const ddp_cli_option options[] = {
    {"--config", "FILE", "the INI that names the model and its data", DDP_TAKES_TEXT, .letter = 'c',
     FIELD(config_path)},
    {"--set", "SECTION.KEY=V", "overrides one key; may be repeated", DDP_TAKES_LIST, .most = DDP_MAX_OVERRIDES,
     FIELD(overrides), .count_offset = offsetof(request, override_count)},
    {"--help", NULL, NULL, DDP_TAKES_HELP, .letter = 'h'},
};

const ddp_command cli_model_usage = {
    .name = "model",
    .usage = "usage: ddpengine model -c FILE [--set SECTION.KEY=V]...\n",
    .options = options,
    .option_count = DDP_COUNT(options),
    .footer = "\nIt needs the data, whose shapes the model takes, and no GPU.\n",
    .example = "ddpengine model -c run.ini --set train.precision=bf16",
};

static int print_model(ddp_config *config, ddp_log *log)
{
    const ddp_launch launch = {.purpose = DDP_TO_TRAIN,
                               .planning = true,
                               .world = 1,
                               .local_size = 1,
                               .nproc = 1,
                               .rank_where = "model",
                               .world_where = "model",
                               .listen_fd = -1};
    ddp_session session;
    ddp_text text = {0};
    ddp_err err = {0};
    ddp_status st;

    if (ddp_session_open(&session, log, config, &launch, &err) != DDP_OK) return cli_print_error(&err, log);
    ddp_text_printf(&text, "model                 %s\n", session.model.plugin->desc.name);
    st = ddp_graph_summary(session.model.graph, session.model.layout, &text, &err);
    ddp_session_close(&session);
    if (st == DDP_OK) return cli_print_text(&text, log);
    ddp_text_free(&text);
    (void)ddp_fail_as(&err, DDP_EXIT_CONFIG);
    return cli_print_error(&err, log);
}

int cli_command_model(int argc, char **argv, ddp_log *log)
{
    request q = {0};
    ddp_config config = {0};
    int next, code = cli_parse_options(&cli_model_usage, argc, argv, &q, &next);

    if (code >= 0) return code;
    if (next < argc) return cli_usage_error(&cli_model_usage, "too many arguments: ", argv[next]);
    if (q.config_path == NULL) return cli_usage_error(&cli_model_usage, "no config file: give -c FILE", "");
    q.overrides[q.override_count++] = "train.device=cpu";
    q.overrides[q.override_count++] = "train.parallel=ddp";
    if ((code = cli_load_config(q.config_path, q.overrides, q.override_count, &config, log)) >= 0) return code;
    code = print_model(&config, log);
    ddp_config_free(&config);
    return code;
}
