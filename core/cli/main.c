/* cli/main.c -- arguments, and which command they ask for. */
#include "cli/cli.h"
#include "base/sys.h"
#include "group/group.h"
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void ddp_print_usage(FILE *to)
{
    (void)fprintf(
        to, "usage: ddpengine -c FILE [--set section.key=value]... [--nproc N] [--check | --print-config]\n"
            "       ddpengine plugins [NAME]\n"
            "       ddpengine help [SECTION]\n"
            "\n"
            "  -c, --config FILE    the run's INI file\n"
            "  --set SECTION.KEY=V  overrides one key; may be repeated\n"
            "  --nproc N            starts N ranks on this host and supervises them\n"
            "  --check              loads and plans everything, prints the plan, trains nothing\n"
            "  --print-config       prints every key in force, with its place, as a valid INI\n"
            "  plugins [NAME]       the plugins found, or the options of one\n"
            "  help [SECTION]       the sections of the INI file, or the keys of one\n"
            "  --version, --help\n"
            "\n"
            "exit codes: 0 done, 1 internal, 2 config or usage, 3 plugin, 4 rendezvous or agreement, 5 peer lost,\n"
            "            6 time-out, 7 not finite, 8 checkpoint, 10 data\n");
}

static int usage_error(const char *what, const char *detail)
{
    (void)fprintf(stderr, "ddpengine: error: %s%s; see ddpengine --help\n", what, detail);
    return DDP_EXIT_CONFIG;
}

static int parse_nproc(const char *text, int32_t *out)
{
    char *end;
    long n = strtol(text, &end, 10);

    if (end == text || *end != '\0' || n < 1 || n > 4096)
        return usage_error("--nproc takes a number from 1 to 4096, not ", text);
    *out = (int32_t)n;
    return DDP_EXIT_OK;
}

enum { OPT_SET = 256, OPT_NPROC, OPT_CHECK, OPT_PRINT, OPT_VERSION };

/* -1: go on; else the exit code of a command that is done. */
static int parse_option(int option, ddp_args *args)
{
    int code;

    switch (option) {
    case 'c':
        if (args->config_path != NULL) return usage_error("one -c only, not also -c ", optarg);
        if (optarg[0] == '\0') return usage_error("-c needs the name of a file", "");
        args->config_path = optarg;
        return -1;
    case 'h': ddp_print_usage(stdout); return DDP_EXIT_OK;
    case OPT_SET:
        if (args->override_count == DDP_MAX_OVERRIDES) return usage_error("too many --set", "");
        args->overrides[args->override_count++] = optarg;
        return -1;
    case OPT_NPROC: code = parse_nproc(optarg, &args->nproc); return code == DDP_EXIT_OK ? -1 : code;
    case OPT_CHECK: args->check = true; return -1;
    case OPT_PRINT: args->print_config = true; return -1;
    case OPT_VERSION:
        (void)printf("ddpengine %s\nplugin ABI %u: backend %u, init %u, device %u, model %u, sampler %u, dataset %u\n",
                     DDP_VERSION, DDP_ABI, DDP_BACKEND_ABI, DDP_INIT_ABI, DDP_DEVICE_ABI, DDP_MODEL_ABI,
                     DDP_SAMPLER_ABI, DDP_DATASET_ABI);
        return DDP_EXIT_OK;
    default: return DDP_EXIT_INTERNAL; /* a row of the table that no case knows */
    }
}

static int parse_args(int argc, char **argv, ddp_args *args)
{
    static const struct option options[] = {
        {"config", required_argument, NULL, 'c'},    {"help", no_argument, NULL, 'h'},
        {"set", required_argument, NULL, OPT_SET},   {"nproc", required_argument, NULL, OPT_NPROC},
        {"check", no_argument, NULL, OPT_CHECK},     {"print-config", no_argument, NULL, OPT_PRINT},
        {"version", no_argument, NULL, OPT_VERSION}, {NULL, 0, NULL, 0}};
    int option, code;

    opterr = 0; /* one line, ours */
    while ((option = getopt_long(argc, argv, ":c:h", options, NULL)) != -1) {
        const char letter[] = {'-', (char)optopt, '\0'};
        const char *given = optopt > ' ' && optopt < 0x7f ? letter : argv[optind - 1];

        if (option == ':') return usage_error("missing value behind ", given);
        if (option == '?') return usage_error("unknown option, or one that takes no value: ", given);
        if ((code = parse_option(option, args)) >= 0) return code;
    }
    if (optind < argc) args->command = argv[optind++];
    if (optind < argc) args->argument = argv[optind++];
    if (optind < argc) return usage_error("too many arguments: ", argv[optind]);
    return -1;
}

static const char *where_of(const ddp_config *c, const char *key)
{
    const ddp_setting *s = ddp_settings_find(&c->settings, "group", key);

    return s != NULL ? s->where : "default";
}

/* Without --nproc only world_size says how many ranks there are: a rank 0 that did not know would train alone. */
static ddp_status check_world(const ddp_args *args, const ddp_config *c, ddp_err *err)
{
    if (args->nproc > 0 || c->group->world_size > 0) return DDP_OK;
    if (c->group->rank > 0)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "%s: [group] rank = %d, but world_size is not set; write how many ranks there are in all",
                        where_of(c, "rank"), (int)c->group->rank);
    if (c->group->init_method[0] != '\0')
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "%s: [group] init_method is where ranks meet, but world_size is not set; write how many ranks "
                        "there are in all",
                        where_of(c, "init_method"));
    return DDP_OK;
}

/* Rank and world of the first rank of this process, from the config and --nproc. */
static ddp_status resolve_launch(const ddp_args *args, const ddp_config *c, ddp_launch *out, ddp_err *err)
{
    int32_t nproc = args->nproc > 0 ? args->nproc : 1;
    int64_t world = c->group->world_size > 0 ? c->group->world_size : nproc;
    const char *endpoint = strstr(c->group->init_method, "://");
    bool loopback = endpoint != NULL && ddp_endpoint_is_loopback(endpoint + 3);

    *out = (ddp_launch){.rank = (int32_t)c->group->rank, .world = (int32_t)world, .local_size = nproc, .listen_fd = -1};
    out->introduced = args->nproc > 0 && c->group->init_method[0] == '\0'; /* as the supervisor will do it */
    if (args->nproc == 0 && loopback) { /* all ranks are here, each started by hand */
        out->local_size = (int32_t)world;
        out->local_rank = out->rank;
    }
    DDP_TRY(check_world(args, c, err));
    if (c->group->rank + nproc > world)
        return ddp_fail(
            err, DDP_ERR_CONFIG,
            "[group] rank = %d with --nproc %d makes ranks up to %d, but world_size is %d; raise world_size or "
            "lower the other two",
            out->rank, nproc, out->rank + nproc - 1, out->world);
    if (args->nproc > 0 && world > nproc && c->group->init_method[0] == '\0')
        return ddp_fail(
            err, DDP_ERR_CONFIG,
            "world_size is %d and --nproc %d starts only some of the ranks, so [group] init_method must say where "
            "rank 0 is, for example tcp://host:29500",
            out->world, nproc);
    return DDP_OK;
}

static int run_config(const ddp_args *args, ddp_log *log)
{
    ddp_config config = {0};
    ddp_launch launch;
    ddp_err err = {0};
    int code = DDP_EXIT_CONFIG;

    if (ddp_config_load(args->config_path, args->overrides, args->override_count, &config, &err) != DDP_OK ||
        resolve_launch(args, &config, &launch, &err) != DDP_OK) {
        ddp_log_line(log, DDP_LOG_ERROR, "%s", err.msg);
    } else {
        launch.began_ns = ddp_process_start_ns();
        if (args->print_config)
            code = ddp_command_print_config(&config, &launch, log);
        else if (args->nproc > 1 && !args->check)
            code = ddp_supervise(args, &config, &launch, log);
        else {
            ddp_say_signals();
            code = ddp_run_rank(args, &config, &launch, log, NULL);
        }
    }
    ddp_config_free(&config);
    return code;
}

/* A closed standard stream would give its number to the next file or socket, and lines of the log would go there.
 * Standard output is opened for reading only, so that what cannot be written is still an error. */
static void open_standard_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) == -1) (void)open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY);
}

int main(int argc, char **argv)
{
    ddp_args args = {0};
    ddp_log log;
    int code;

    open_standard_streams();
    code = parse_args(argc, argv, &args);
    if (code >= 0) return code;
    (void)signal(SIGPIPE, SIG_IGN);
    /* OpenMP of a device's library reads it when it is loaded; spinning would burn processors that other ranks need. */
    (void)setenv("OMP_WAIT_POLICY", "PASSIVE", 0);
    ddp_log_init(&log);
    if (args.command != NULL && strcmp(args.command, "plugins") == 0) return ddp_command_plugins(&args, &log);
    if (args.command != NULL && strcmp(args.command, "help") == 0) return ddp_command_help(args.argument, &log);
    if (args.command != NULL) return usage_error("unknown command ", args.command);
    if (args.config_path == NULL) {
        ddp_print_usage(stderr);
        return usage_error("no config file: give -c FILE", "");
    }
    return run_config(&args, &log);
}
