/* cli/predict.c -- `ddpengine predict`: its arguments. What it does is infer/predict.c. */
#include "cli/cli.h"
#include "cli/options.h"
#include "infer/predict.h"

typedef struct request {
    ddp_predict_request predict;
    const char *config_path, *overrides[DDP_MAX_OVERRIDES];
    size_t override_count;
} request;

#define FIELD(name) .offset = offsetof(request, name)

static const ddp_cli_option options[] = {
    {"--config", "FILE", "the INI that the model was trained with", DDP_TAKES_TEXT, .letter = 'c', FIELD(config_path)},
    {"--set", "SECTION.KEY=V", "overrides one key; may be repeated", DDP_TAKES_LIST, .most = DDP_MAX_OVERRIDES,
     FIELD(overrides), .count_offset = offsetof(request, override_count)},
    {"--checkpoint", "PATH",
     "a checkpoint, a folder with checkpoints (the newest), or a safetensors file; "
     "without it the newest of [checkpoint] dir, else init_from",
     DDP_TAKES_TEXT, FIELD(predict.weights)},
    {"--top", "N", "how many classes are printed, the likeliest first (default 5)", DDP_TAKES_COUNT, .most = 1000000,
     FIELD(predict.top)},
    {"--json", NULL, "an object a line instead of text", DDP_TAKES_NOTHING, FIELD(predict.json)},
    {"--help", NULL, NULL, DDP_TAKES_HELP, .letter = 'h'},
};

const ddp_command cli_predict_usage = {
    .name = "predict",
    .usage = "usage: ddpengine predict -c FILE [--checkpoint PATH] [--top N] [--json] FILE...\n",
    .options = options,
    .option_count = DDP_COUNT(options),
    .footer = "Each FILE is one that the dataset plugin of [eval], or of [data], can read.\n",
    .example = "ddpengine predict -c photos.ini --top 3 cat.jpg dog.jpg",
};

/* -1: go on; else the exit code of a command that is done. */
static int parse(int argc, char **argv, request *q)
{
    int next, code = cli_parse_options(&cli_predict_usage, argc, argv, q, &next);

    if (code >= 0) return code;
    if (q->config_path == NULL) return cli_usage_error(&cli_predict_usage, "no config file: give -c FILE", "");
    if (next == argc) return cli_usage_error(&cli_predict_usage, "no file to predict", "");
    q->predict.files = (const char *const *)argv + next;
    q->predict.file_count = (size_t)(argc - next);
    return -1;
}

int cli_command_predict(int argc, char **argv, ddp_log *log)
{
    request q = {.predict = {.top = 5}};
    ddp_config config = {0};
    int code = parse(argc, argv, &q);

    if (code >= 0) return code;
    if ((code = cli_load_config(q.config_path, q.overrides, q.override_count, &config, log)) >= 0) return code;
    code = ddp_predict_files(&q.predict, &config, log);
    ddp_config_free(&config);
    return code;
}
