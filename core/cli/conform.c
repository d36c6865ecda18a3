/* cli/conform.c -- `ddpengine conform PLUGIN`: its arguments. What it does is conform/. */
#include "conform/conform.h"
#include "cli/cli.h"
#include "cli/options.h"
#include "conform/harness/run_cases.h"
#include <errno.h>
#include <string.h>

_Static_assert(DDP_CONFORM_MAX_WORLD == 8, "the usage text has the number");

typedef struct request {
    ddp_conform_params p;
    const char *settings[DDP_CONFORM_MAX_SETTINGS];
} request;

static int take_setting(const ddp_command *c, void *to, const char *value)
{
    request *q = to;

    if (strchr(value, '=') == NULL) return cli_usage_error(c, "--set takes key=value, not ", value);
    if (q->p.setting_count == DDP_CONFORM_MAX_SETTINGS) return cli_usage_error(c, "too many --set", "");
    q->settings[q->p.setting_count++] = value;
    return -1;
}

#define FIELD(name) .offset = offsetof(request, name)

static const ddp_cli_option options[] = {
    {"PLUGIN", NULL, "NAME, KIND.NAME, LOCAL+REMOTE or a path with a '/', such as ./backend_mine.so", DDP_TAKES_ROW,
     .most = 0},
    {"--quick", NULL, "every pair of values instead of all combinations, worlds 1 to 3, at most 1 MiB + 3 elements",
     DDP_TAKES_NOTHING, FIELD(p.quick)},
    {"--nproc", "N", "worlds 1 to N, at most 8 (default 8, with --quick 3)", DDP_TAKES_COUNT,
     .most = DDP_CONFORM_MAX_WORLD, FIELD(p.nproc)},
    {"--per-host", "N", "every N ranks count as one host, as LOCAL+REMOTE asks for (default: all are on one)",
     DDP_TAKES_COUNT, .most = DDP_CONFORM_MAX_WORLD, FIELD(p.per_host)},
    {"--suite", "NAME", "only this suite", DDP_TAKES_TEXT, FIELD(p.suite)},
    {"--set", "KEY=VALUE", "an option of the plugin; may be repeated", DDP_TAKES_CALL, .take = take_setting},
    {"--url", "URL", "of an init plugin: where its ranks rendezvous", DDP_TAKES_TEXT, FIELD(p.url)},
    {"--help", NULL, NULL, DDP_TAKES_HELP, .letter = 'h'},
};

const ddp_command cli_conform_usage = {
    .name = "conform",
    .usage = "usage: ddpengine conform PLUGIN [--quick] [--nproc N] [--suite NAME]\n"
             "                         [--per-host N] [--set key=value]... [--url URL]\n",
    .options = options,
    .option_count = DDP_COUNT(options),
    .footer = "\nexit codes: 0 every case passed, 2 usage or a wrong option,\n"
              "            3 a case failed or the plugin was refused\n",
    .example = "ddpengine conform ./backend_mine.so --quick",
};

/* -1: go on; else the exit code of a command that is done. */
static int parse(int argc, char **argv, request *q)
{
    int next, code = cli_parse_options(&cli_conform_usage, argc, argv, q, &next);

    if (code >= 0) return code;
    if (next == argc || argv[next][0] == '\0') return cli_usage_error(&cli_conform_usage, "which plugin?", "");
    q->p.plugin = argv[next++];
    return next < argc ? cli_usage_error(&cli_conform_usage, "too many arguments: ", argv[next]) : -1;
}

int cli_command_conform(int argc, char **argv, ddp_log *log)
{
    request q = {.p = {.out = stdout, .log = log}};
    int code;

    if (argc == 3 && strcmp(argv[1], "--shared") == 0)
        return ddp_conform_rank(argv[2], log); /* by a launcher, for us */
    q.p.settings = q.settings;
    code = parse(argc, argv, &q);
    if (code >= 0) return code;
    code = ddp_conform(&q.p);
    if (ferror(stdout) == 0 && fflush(stdout) == 0) return code;
    ddp_log_line(log, DDP_LOG_ERROR, "cannot write to standard output: %s", strerror(errno));
    return DDP_EXIT_INTERNAL;
}
