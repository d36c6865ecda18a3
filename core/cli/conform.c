/* cli/conform.c -- `ddpengine conform PLUGIN`: its arguments. What it does is core/conform. */
#include "conform/conform.h"
#include "cli/cli.h"
#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

enum { OPT_NPROC = 256, OPT_QUICK, OPT_SET, OPT_SUITE, OPT_URL };

static void print_usage(FILE *to)
{
    (void)fprintf(
        to,
        "usage: ddpengine conform PLUGIN [--quick] [--nproc N] [--suite NAME] [--set key=value]...\n                   "
        "      [--url URL]\n"
        "\n"
        "  PLUGIN           NAME, KIND.NAME or a path with a '/', such as ./backend_mine.so\n"
        "  --quick          pairwise choice, worlds 1 to 3, at most 1 MiB + 3 elements\n"
        "  --nproc N        worlds 1 to N, at most %d (8 without --quick)\n"
        "  --suite NAME     this suite alone\n"
        "  --set KEY=VALUE  an option of the plugin; may be repeated\n"
        "\n"
        "exit codes: 0 every case passed, 2 usage or a wrong option, 3 a case failed or the plugin was refused\n",
        DDP_CONFORM_MAX_WORLD);
}

int ddp_usage_error(const char *command, const char *what, const char *detail)
{
    (void)fprintf(stderr, "ddpengine: error: %s%s; see ddpengine %s%s--help\n", what, detail, command,
                  command[0] != '\0' ? " " : "");
    return DDP_EXIT_CONFIG;
}

int ddp_parse_count(const char *command, const char *option, const char *text, int32_t most, int32_t *out)
{
    char *end, what[96];
    long n;

    errno = 0;
    n = strtol(text, &end, 10);
    if (end != text && *end == '\0' && errno == 0 && n >= 1 && n <= most) {
        *out = (int32_t)n;
        return DDP_EXIT_OK;
    }
    (void)snprintf(what, sizeof(what), "%s takes a number from 1 to %d, not ", option, most);
    return ddp_usage_error(command, what, text);
}

/* -1: go on; else the exit code of a command that is done. */
static int parse_option(int option, ddp_conform_params *p, const char **settings)
{
    int code;

    switch (option) {
    case 'h': print_usage(stdout); return DDP_EXIT_OK;
    case OPT_QUICK: p->quick = true; return -1;
    case OPT_SUITE: p->suite = optarg; return -1;
    case OPT_URL: p->url = optarg; return -1;
    case OPT_SET:
        if (strchr(optarg, '=') == NULL) return ddp_usage_error("conform", "--set takes key=value, not ", optarg);
        if (p->setting_count == DDP_CONFORM_MAX_SETTINGS) return ddp_usage_error("conform", "too many --set", "");
        settings[p->setting_count++] = optarg;
        return -1;
    case OPT_NPROC:
        code = ddp_parse_count("conform", "--nproc", optarg, DDP_CONFORM_MAX_WORLD, &p->nproc);
        return code == DDP_EXIT_OK ? -1 : code;
    default: return DDP_EXIT_INTERNAL; /* a row of the table that no case knows */
    }
}

static int parse(int argc, char **argv, ddp_conform_params *p, const char **settings)
{
    static const struct option options[] = {{"help", no_argument, NULL, 'h'},
                                            {"nproc", required_argument, NULL, OPT_NPROC},
                                            {"quick", no_argument, NULL, OPT_QUICK},
                                            {"suite", required_argument, NULL, OPT_SUITE},
                                            {"set", required_argument, NULL, OPT_SET},
                                            {"url", required_argument, NULL, OPT_URL},
                                            {NULL, 0, NULL, 0}};
    int option, code;

    opterr = 0;
    optind = 1;
    while ((option = getopt_long(argc, argv, ":h", options, NULL)) != -1) {
        const char *given = optind > 0 ? argv[optind - 1] : "";

        if (option == ':') return ddp_usage_error("conform", "missing value behind ", given);
        if (option == '?') return ddp_usage_error("conform", "unknown option, or one that takes no value: ", given);
        if ((code = parse_option(option, p, settings)) >= 0) return code;
    }
    if (optind == argc) return ddp_usage_error("conform", "which plugin?", "");
    p->plugin = argv[optind++];
    if (optind < argc) return ddp_usage_error("conform", "too many arguments: ", argv[optind]);
    if (p->plugin[0] == '\0') return ddp_usage_error("conform", "which plugin?", "");
    return -1;
}

int ddp_command_conform(int argc, char **argv, ddp_log *log)
{
    const char *settings[DDP_CONFORM_MAX_SETTINGS];
    ddp_conform_params p = {.settings = settings, .out = stdout, .log = log};
    int code;

    if (argc == 3 && strcmp(argv[1], "--board") == 0) return ddp_conform_rank(argv[2], log); /* by a launcher, for us */
    code = parse(argc, argv, &p, settings);
    if (code >= 0) return code;
    code = ddp_conform(&p);
    if (ferror(stdout) == 0 && fflush(stdout) == 0) return code;
    ddp_log_line(log, DDP_LOG_ERROR, "cannot write to standard output: %s", strerror(errno));
    return DDP_EXIT_INTERNAL;
}
