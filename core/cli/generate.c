/* cli/generate.c -- `ddpengine generate`: its arguments. What it does is infer/text.c. */
#include "cli/cli.h"
#include "cli/options.h"
#include "infer/text.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>

enum { MOST_TOKENS = 100000000 };

typedef struct request {
    ddp_text_request text;
    const char *config_path, *overrides[DDP_MAX_OVERRIDES];
    size_t override_count;
} request;

static int take_temperature(const ddp_command *c, void *to, const char *value)
{
    ddp_sampling *how = &((request *)to)->text.how;
    char *end;

    how->temperature = strtod(value, &end);
    if (end != value && *end == '\0' && isfinite(how->temperature) && how->temperature >= 0.0) return -1;
    return cli_usage_error(c, "--temperature takes a number from 0, not ", value);
}

static bool parse_whole(const char *text, uint64_t most, uint64_t *out)
{
    char *end;

    errno = 0;
    *out = strtoull(text, &end, 10);
    return end != text && *end == '\0' && text[0] != '-' && errno == 0 && *out <= most;
}

static int take_top_k(const ddp_command *c, void *to, const char *value)
{
    uint64_t n;

    if (!parse_whole(value, MOST_TOKENS, &n))
        return cli_usage_error(c, "--top-k takes a number from 0 to 100000000, not ", value);
    ((request *)to)->text.how.top_k = (int64_t)n;
    return -1;
}

static int take_top_p(const ddp_command *c, void *to, const char *value)
{
    ddp_sampling *how = &((request *)to)->text.how;
    char *end;

    how->top_p = strtod(value, &end);
    if (end != value && *end == '\0' && how->top_p > 0.0 && how->top_p <= 1.0) return -1;
    return cli_usage_error(c, "--top-p takes a number above 0 and at most 1, not ", value);
}

static int take_seed(const ddp_command *c, void *to, const char *value)
{
    if (parse_whole(value, UINT64_MAX, &((request *)to)->text.how.seed)) return -1;
    return cli_usage_error(c, "--seed takes a whole number, not ", value);
}

static int refuse_profile(const ddp_command *c, void *to, const char *value)
{
    (void)to;
    (void)value;
    return cli_usage_error(c, "--profile measures the steps of a training; leave it out, or leave out ", c->name);
}

#define FIELD(name) .offset = offsetof(request, name)

static const ddp_cli_option options[] = {
    {"--config", "FILE", "the INI that the model was trained with", DDP_TAKES_TEXT, .letter = 'c', FIELD(config_path)},
    {"--set", "SECTION.KEY=V", "overrides one key; may be repeated", DDP_TAKES_LIST, .most = DDP_MAX_OVERRIDES,
     FIELD(overrides), .count_offset = offsetof(request, override_count)},
    {"--checkpoint", "PATH",
     "a checkpoint, a folder with checkpoints (the newest), or a safetensors file; "
     "without it the newest of [checkpoint] dir, else init_from",
     DDP_TAKES_TEXT, FIELD(text.weights)},
    {"--prompt", "TEXT", "the text to continue, by the tokenizer of [data], or as bytes (default: a line break)",
     DDP_TAKES_TEXT, FIELD(text.prompt)},
    {"--prompt-tokens", "IDS", "the same as token numbers, 1,2,3; then numbers are printed, too", DDP_TAKES_TEXT,
     FIELD(text.prompt_tokens)},
    {"--tokens", "N", "how many new tokens (default 256)", DDP_TAKES_COUNT, .most = MOST_TOKENS, FIELD(text.tokens)},
    {"--temperature", "T", "0 always takes the most likely token (default 1)", DDP_TAKES_CALL,
     .take = take_temperature},
    {"--top-k", "K", "chooses among the K most likely tokens; 0: among all (default)", DDP_TAKES_CALL,
     .take = take_top_k},
    {"--top-p", "P",
     "chooses among the fewest likeliest tokens whose probabilities sum up to P, after --top-k; 1: all (default)",
     DDP_TAKES_CALL, .take = take_top_p},
    {"--seed", "S", "of the choices (default 0); the same seed gives the same text", DDP_TAKES_CALL, .take = take_seed},
    {"--profile", NULL, NULL, DDP_TAKES_CALL, .take = refuse_profile},
    {"--help", NULL, NULL, DDP_TAKES_HELP, .letter = 'h'},
};

const ddp_command cli_generate_usage = {
    .name = "generate",
    .usage = "usage: ddpengine generate -c FILE [--checkpoint PATH]\n"
             "                          [--prompt TEXT | --prompt-tokens IDS] [--tokens N]\n"
             "                          [--temperature T] [--top-k K] [--top-p P] [--seed S]\n",
    .options = options,
    .option_count = DDP_COUNT(options),
    .footer = "",
    .example = "ddpengine generate -c text.ini --prompt \"Once upon\" --tokens 64",
};

/* -1: go on; else the exit code of a command that is done. */
static int parse(int argc, char **argv, request *q)
{
    int next, code = cli_parse_options(&cli_generate_usage, argc, argv, q, &next);

    if (code >= 0) return code;
    if (next < argc) return cli_usage_error(&cli_generate_usage, "too many arguments: ", argv[next]);
    if (q->config_path == NULL) return cli_usage_error(&cli_generate_usage, "no config file: give -c FILE", "");
    if (q->text.prompt != NULL && q->text.prompt_tokens != NULL)
        return cli_usage_error(&cli_generate_usage, "--prompt or --prompt-tokens, not both", "");
    return -1;
}

int cli_command_generate(int argc, char **argv, ddp_log *log)
{
    request q = {.text = {.tokens = 256, .how = {.temperature = 1.0}}};
    ddp_config config = {0};
    int code = parse(argc, argv, &q);

    if (code >= 0) return code;
    if ((code = cli_load_config(q.config_path, q.overrides, q.override_count, &config, log)) >= 0) return code;
    code = ddp_generate_text(&q.text, &config, log);
    ddp_config_free(&config);
    return code;
}
