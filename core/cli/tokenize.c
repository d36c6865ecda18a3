/* cli/tokenize.c -- `ddpengine tokenize`: its arguments. What it does is infer/tokenize.c. */
#include "cli/cli.h"
#include "cli/options.h"
#include "infer/tokenize.h"

typedef struct request {
    ddp_tokenize_request text;
    const char *config_path, *overrides[DDP_MAX_OVERRIDES];
    size_t override_count;
} request;

#define FIELD(name) .offset = offsetof(request, name)

static const ddp_cli_option options[] = {
    {"--config", "FILE", "the INI whose [data] has the tokenizer", DDP_TAKES_TEXT, .letter = 'c', FIELD(config_path)},
    {"--set", "SECTION.KEY=V", "overrides one key; may be repeated", DDP_TAKES_LIST, .most = DDP_MAX_OVERRIDES,
     FIELD(overrides), .count_offset = offsetof(request, override_count)},
    {"--ids", NULL, "prints the token numbers, as --prompt-tokens of generate takes them", DDP_TAKES_NOTHING,
     FIELD(text.print_ids)},
    {"--pieces", NULL, "prints a line for each token: its number and its text", DDP_TAKES_NOTHING,
     FIELD(text.print_pieces)},
    {"--help", NULL, NULL, DDP_TAKES_HELP, .letter = 'h'},
};

const ddp_command cli_tokenize_usage = {
    .name = "tokenize",
    .usage = "usage: ddpengine tokenize -c FILE [--ids | --pieces] [TEXT_FILE]\n"
             "counts the tokens of a file, or of standard input\n",
    .options = options,
    .option_count = DDP_COUNT(options),
    .footer = "",
    .example = "ddpengine tokenize -c text.ini --pieces book.txt",
};

int cli_command_tokenize(int argc, char **argv, ddp_log *log)
{
    request q = {0};
    ddp_config config = {0};
    int next, code = cli_parse_options(&cli_tokenize_usage, argc, argv, &q, &next);

    if (code >= 0) return code;
    if (next < argc) q.text.file = argv[next++];
    if (next < argc) return cli_usage_error(&cli_tokenize_usage, "too many arguments: ", argv[next]);
    if (q.config_path == NULL) return cli_usage_error(&cli_tokenize_usage, "no config file: give -c FILE", "");
    if ((code = cli_load_config(q.config_path, q.overrides, q.override_count, &config, log)) >= 0) return code;
    code = ddp_tokenize(&q.text, &config, log);
    ddp_config_free(&config);
    return code;
}
