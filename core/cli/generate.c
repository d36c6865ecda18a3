/* cli/generate.c -- `ddpengine generate`: a language model continues a text or a row of tokens, on standard output. */
#include "infer/generate.h"
#include "base/sys.h"
#include "cli/cli.h"
#include "session/open.h"
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OPT_SET = 256, OPT_CHECKPOINT, OPT_PROMPT, OPT_PROMPT_TOKENS, OPT_TOKENS, OPT_TEMPERATURE, OPT_TOP_K, OPT_SEED };

enum { BYTES = 256, DEFAULT_TOKENS = 256, MOST_TOKENS = 100000000 };

typedef struct request {
    ddp_args args;
    const char *prompt, *prompt_tokens; /* NULL: not given */
    int32_t tokens;
    ddp_sampling how;
} request;

static void print_usage(FILE *to)
{
    (void)fprintf(to,
                  "usage: ddpengine generate -c FILE [--checkpoint PATH] [--prompt TEXT | --prompt-tokens IDS]\n"
                  "                          [--tokens N] [--temperature T] [--top-k K] [--seed S]\n"
                  "\n"
                  "  -c, --config FILE     the INI that the model was trained with\n"
                  "  --set SECTION.KEY=V   overrides one key; may be repeated\n"
                  "  --checkpoint PATH     a checkpoint, a folder of such (its newest), or a safetensors file;\n"
                  "                        without it the newest of [checkpoint] dir, else init_from\n"
                  "  --prompt TEXT         to go on from (default a line's end), where tokens are bytes\n"
                  "  --prompt-tokens IDS   the same as numbers, 1,2,3; then numbers are printed, too\n"
                  "  --tokens N            new tokens (default %d)\n"
                  "  --temperature T       0 takes the most likely token always (default 1)\n"
                  "  --top-k K             chooses among the K most likely tokens; 0 among all (default)\n"
                  "  --seed S              of the choices (default 0); the same gives the same text\n",
                  DEFAULT_TOKENS);
}

/* ---- arguments ------------------------------------------------------------------------------------------------------------ */
static int bad(const char *what, const char *detail) { return ddp_usage_error("generate", what, detail); }

static bool parse_whole(const char *text, uint64_t most, uint64_t *out)
{
    char *end;

    errno = 0;
    *out = strtoull(text, &end, 10);
    return end != text && *end == '\0' && text[0] != '-' && errno == 0 && *out <= most;
}

static int parse_number(int option, request *q)
{
    char *end;
    uint64_t n = 0;

    if (option == OPT_TEMPERATURE) {
        q->how.temperature = strtod(optarg, &end);
        if (end == optarg || *end != '\0' || !isfinite(q->how.temperature) || q->how.temperature < 0.0)
            return bad("--temperature takes a number from 0, not ", optarg);
        return -1;
    }
    if (option == OPT_SEED)
        return parse_whole(optarg, UINT64_MAX, &q->how.seed) ? -1 : bad("--seed takes a whole number, not ", optarg);
    if (!parse_whole(optarg, MOST_TOKENS, &n) || (option == OPT_TOKENS && n == 0))
        return bad(option == OPT_TOKENS ? "--tokens takes a number from 1 to 100000000, not "
                                        : "--top-k takes a number from 0 to 100000000, not ",
                   optarg);
    if (option == OPT_TOKENS)
        q->tokens = (int32_t)n;
    else
        q->how.top_k = (int64_t)n;
    return -1;
}

/* -1: go on; else the exit code of a command that is done. */
static int parse_option(int option, request *q)
{
    switch (option) {
    case 'h': print_usage(stdout); return DDP_EXIT_OK;
    case 'c': q->args.config_path = optarg; return -1;
    case OPT_SET:
        if (q->args.override_count == DDP_MAX_OVERRIDES) return bad("too many --set", "");
        q->args.overrides[q->args.override_count++] = optarg;
        return -1;
    case OPT_CHECKPOINT: q->args.checkpoint = optarg; return -1;
    case OPT_PROMPT: q->prompt = optarg; return -1;
    case OPT_PROMPT_TOKENS: q->prompt_tokens = optarg; return -1;
    default: return parse_number(option, q);
    }
}

static int parse(int argc, char **argv, request *q)
{
    static const struct option options[] = {{"help", no_argument, NULL, 'h'},
                                            {"config", required_argument, NULL, 'c'},
                                            {"set", required_argument, NULL, OPT_SET},
                                            {"checkpoint", required_argument, NULL, OPT_CHECKPOINT},
                                            {"prompt", required_argument, NULL, OPT_PROMPT},
                                            {"prompt-tokens", required_argument, NULL, OPT_PROMPT_TOKENS},
                                            {"tokens", required_argument, NULL, OPT_TOKENS},
                                            {"temperature", required_argument, NULL, OPT_TEMPERATURE},
                                            {"top-k", required_argument, NULL, OPT_TOP_K},
                                            {"seed", required_argument, NULL, OPT_SEED},
                                            {NULL, 0, NULL, 0}};
    int option, code;

    opterr = 0;
    optind = 1;
    while ((option = getopt_long(argc, argv, ":hc:", options, NULL)) != -1) {
        const char *given = optind > 0 ? argv[optind - 1] : "";

        if (option == ':') return bad("missing value behind ", given);
        if (option == '?' && strcmp(given, "--profile") == 0)
            return bad("--profile measures the steps of a training; leave it out, or leave out ", "generate");
        if (option == '?') return bad("unknown option, or one that takes no value: ", given);
        if ((code = parse_option(option, q)) >= 0) return code;
    }
    if (optind < argc) return bad("too many arguments: ", argv[optind]);
    if (q->args.config_path == NULL) return bad("no config file: give -c FILE", "");
    if (q->prompt != NULL && q->prompt_tokens != NULL) return bad("--prompt or --prompt-tokens, not both", "");
    return -1;
}

/* ---- tokens --------------------------------------------------------------------------------------------------------------- */
/* The row so far; it grows to its full length at once. */
typedef struct row {
    int64_t *tokens;
    size_t count;
    bool numbers; /* printed as such */
} row;

static ddp_status parse_tokens(const char *text, int64_t vocabulary, row *r, ddp_err *err)
{
    for (const char *at = text; *at != '\0';) {
        char *end;
        long long id = strtoll(at, &end, 10);

        if (end == at || id < 0 || id >= vocabulary || (*end != ',' && *end != '\0'))
            return ddp_fail(err, DDP_ERR_CONFIG,
                            "--prompt-tokens takes numbers from 0 to %lld with commas between them, not %.100s",
                            (long long)vocabulary - 1, at);
        r->tokens[r->count++] = id;
        at = *end == ',' ? end + 1 : end;
    }
    return r->count > 0 ? DDP_OK : ddp_fail(err, DDP_ERR_CONFIG, "--prompt-tokens names no token to go on from");
}

static ddp_status make_row(const request *q, int64_t vocabulary, row *r, ddp_err *err)
{
    const char *text = q->prompt_tokens != NULL ? q->prompt_tokens : q->prompt != NULL ? q->prompt : "\n";
    size_t room = strlen(text) + (size_t)q->tokens + 1;

    r->numbers = q->prompt_tokens != NULL;
    if (!r->numbers && vocabulary != BYTES)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "the model knows %lld tokens, which are not bytes, and ddpengine has no tokenizer; give their "
                        "numbers with --prompt-tokens",
                        (long long)vocabulary);
    r->tokens = ddp_alloc(room * sizeof(*r->tokens), err);
    if (r->tokens == NULL) return err->status;
    if (r->numbers) return parse_tokens(text, vocabulary, r, err);
    for (; *text != '\0'; text++) r->tokens[r->count++] = (unsigned char)*text;
    return r->count > 0 ? DDP_OK : ddp_fail(err, DDP_ERR_CONFIG, "--prompt is empty; give a text to go on from");
}

/* A model may write any byte; a terminal must not obey it. */
static ddp_status print_token(const row *r, size_t i, bool terminal, ddp_err *err)
{
    int64_t token = r->tokens[i];
    int byte = (int)token, good;

    if (terminal && ((byte < ' ' && byte != '\n' && byte != '\t') || byte == 0x7f)) byte = '?';
    good = r->numbers ? printf("%s%lld", i > 0 ? " " : "", (long long)token) : putchar(byte);
    if (good < 0 || (terminal && fflush(stdout) == EOF)) return ddp_fail_errno(err, "cannot write to standard output");
    return DDP_OK;
}

static ddp_status write_text(ddp_generator *g, const request *q, row *r, ddp_err *err)
{
    bool terminal = isatty(STDOUT_FILENO) == 1;
    size_t end;

    DDP_TRY(make_row(q, ddp_generator_vocabulary(g), r, err));
    end = r->count + (size_t)q->tokens;
    for (size_t i = 0; i < r->count; i++) DDP_TRY(print_token(r, i, terminal, err));
    for (; r->count < end; r->count++) {
        DDP_TRY(ddp_generator_next(g, &q->how, r->tokens, r->count, &r->tokens[r->count], err));
        DDP_TRY(print_token(r, r->count, terminal, err));
    }
    return putchar('\n') == EOF || fflush(stdout) == EOF ? ddp_fail_errno(err, "cannot write to standard output")
                                                         : DDP_OK;
}

/* ---- the command ------------------------------------------------------------------------------------------------------------ */
/* Alone, whatever the config says of a group. */
static int generate(const request *q, ddp_config *config, ddp_log *log)
{
    const ddp_launch launch = {.purpose = DDP_TO_GENERATE,
                               .weights = q->args.checkpoint,
                               .world = 1,
                               .local_size = 1,
                               .nproc = 1,
                               .rank_where = "generate",
                               .world_where = "generate",
                               .listen_fd = -1};
    ddp_generator *g = NULL;
    ddp_session session;
    ddp_err err = {0};
    row r = {0};
    ddp_status st = ddp_session_open(&session, log, config, &launch, &err);
    int code;

    if (st != DDP_OK) {
        ddp_log_line(log, DDP_LOG_ERROR, "%s", err.msg);
        return ddp_err_exit_code(&err);
    }
    st = ddp_generator_open(&session, &g, &err);
    if (st == DDP_OK) {
        st = write_text(g, q, &r, &err);
        if (st != DDP_OK) (void)ddp_fail_as(&err, st == DDP_ERR_SYSTEM ? DDP_EXIT_INTERNAL : DDP_EXIT_CONFIG);
        ddp_generator_close(g);
    }
    code = st == DDP_OK ? DDP_EXIT_OK : ddp_err_exit_code(&err);
    if (st != DDP_OK) ddp_log_line(log, DDP_LOG_ERROR, "%s", err.msg);
    free(r.tokens);
    ddp_session_close(&session);
    return code;
}

int ddp_command_generate(int argc, char **argv, ddp_log *log)
{
    request q = {.tokens = DEFAULT_TOKENS, .how = {.temperature = 1.0}};
    ddp_config config = {0};
    ddp_err err = {0};
    int code = parse(argc, argv, &q);

    if (code >= 0) return code;
    if (ddp_config_load(q.args.config_path, q.args.overrides, q.args.override_count, &config, &err) != DDP_OK) {
        ddp_log_line(log, DDP_LOG_ERROR, "%s", err.msg);
        return DDP_EXIT_CONFIG;
    }
    code = generate(&q, &config, log);
    ddp_config_free(&config);
    return code;
}
