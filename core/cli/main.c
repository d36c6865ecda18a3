/* cli/main.c -- arguments, and which command they ask for. */
#include "cli/cli.h"
#include "base/sys.h"
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Files that a small run has open at once, with room: plugins, control plane, data and connections of a few ranks. */
enum { OPEN_FILES = 64 };

void ddp_print_usage(FILE *to)
{
    (void)fprintf(
        to,
        "usage: ddpengine -c FILE [--set section.key=value]... [--nproc N]\n"
        "                 [--profile | --check [--all] | --print-config]\n"
        "       ddpengine eval -c FILE [--checkpoint PATH] [--set section.key=value]... [--nproc N]\n"
        "       ddpengine generate -c FILE [--checkpoint PATH] [--prompt TEXT] [...]\n"
        "       ddpengine plugins [NAME]\n"
        "       ddpengine help [SECTION]\n"
        "       ddpengine conform PLUGIN [...] | bench all_reduce [...]\n"
        "       ddpengine --gen-secret [FILE]\n"
        "\n"
        "  -c, --config FILE    the run's INI file\n"
        "  --set SECTION.KEY=V  overrides one key; may be repeated\n"
        "  --nproc N            starts N ranks on this host and supervises them\n"
        "  --profile            trains and prints, on standard error, where the time of rank 0's steps went\n"
        "  --check              loads and plans everything, prints the plan, trains nothing\n"
        "  --all                with --check: loads and checks the plugins of sections that are not chosen as well\n"
        "  --print-config       prints every key in force, with its place, as a valid INI\n"
        "  eval                 evaluates a checkpoint, the newest one without --checkpoint, on the [eval] data\n"
        "  generate             continues a text with a language model; see ddpengine generate --help\n"
        "  plugins [NAME]       the plugins found, or the options of one\n"
        "  help [SECTION]       the sections of the INI file, or the keys of one\n"
        "  conform PLUGIN       whether a plugin keeps its contract; see ddpengine conform --help\n"
        "  bench all_reduce     how fast backends are on this machine; see ddpengine bench --help\n"
        "  --gen-secret [FILE]  writes a new secret for [group] secret_file, to standard output without FILE\n"
        "  --version, --help\n"
        "\n"
        "exit codes: 0 done, 1 internal, 2 config or usage, 3 plugin, 4 rendezvous or agreement, 5 peer lost,\n"
        "            6 time-out, 7 not finite, 8 checkpoint, 9 replicas diverged, 10 data, 128+n ended by signal n\n");
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

enum {
    OPT_SET = 256,
    OPT_NPROC,
    OPT_ONE_RANK,
    OPT_PROFILE,
    OPT_CHECK,
    OPT_ALL,
    OPT_PRINT,
    OPT_SECRET,
    OPT_VERSION,
    OPT_CHECKPOINT
};

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
    case OPT_ONE_RANK:
        args->one_rank = true;
        args->meeting = optarg;
        return -1;
    case OPT_PROFILE: args->profile = true; return -1;
    case OPT_CHECK: args->check = true; return -1;
    case OPT_ALL: args->check_all = true; return -1;
    case OPT_CHECKPOINT: args->checkpoint = optarg; return -1;
    case OPT_PRINT: args->print_config = true; return -1;
    case OPT_SECRET:
        args->gen_secret = true;
        args->secret_path = optarg;
        return -1;
    case OPT_VERSION:
        (void)printf("ddpengine %s\nplugin ABI %u: backend %u, init %u, device %u, model %u, sampler %u, dataset %u\n",
                     DDP_VERSION, DDP_ABI, DDP_BACKEND_ABI, DDP_INIT_ABI, DDP_DEVICE_ABI, DDP_MODEL_ABI,
                     DDP_SAMPLER_ABI, DDP_DATASET_ABI);
        return DDP_EXIT_OK;
    default: return DDP_EXIT_INTERNAL; /* a row of the table that no case knows */
    }
}

static int check_eval(ddp_args *args)
{
    args->eval = args->command != NULL && strcmp(args->command, "eval") == 0;
    if (!args->eval && args->checkpoint != NULL)
        return usage_error("--checkpoint belongs to eval and generate; to train on from one set checkpoint.resume", "");
    if (!args->eval) return -1;
    if (args->argument != NULL) return usage_error("too many arguments: ", args->argument);
    if (args->check || args->print_config) return usage_error("eval takes neither --check nor --print-config", "");
    return -1;
}

/* It would measure nothing in a command that does not train. */
static int check_profile(const ddp_args *args)
{
    const char *other = args->command != NULL ? args->command
                        : args->check         ? "--check"
                        : args->print_config  ? "--print-config"
                        : args->gen_secret    ? "--gen-secret"
                                              : NULL;

    if (!args->profile || other == NULL) return -1;
    return usage_error("--profile measures the steps of a training; leave it out, or leave out ", other);
}

static int parse_args(int argc, char **argv, ddp_args *args)
{
    static const struct option options[] = {{"config", required_argument, NULL, 'c'},
                                            {"help", no_argument, NULL, 'h'},
                                            {"set", required_argument, NULL, OPT_SET},
                                            {"nproc", required_argument, NULL, OPT_NPROC},
                                            {"one-rank", optional_argument, NULL, OPT_ONE_RANK}, /* for launcher.c */
                                            {"profile", no_argument, NULL, OPT_PROFILE},
                                            {"check", no_argument, NULL, OPT_CHECK},
                                            {"all", no_argument, NULL, OPT_ALL},
                                            {"print-config", no_argument, NULL, OPT_PRINT},
                                            {"checkpoint", required_argument, NULL, OPT_CHECKPOINT},
                                            {"version", no_argument, NULL, OPT_VERSION},
                                            {"gen-secret", optional_argument, NULL, OPT_SECRET},
                                            {NULL, 0, NULL, 0}};
    int option, code;

    opterr = 0; /* one line, ours */
    while ((option = getopt_long(argc, argv, ":c:h", options, NULL)) != -1) {
        const char letter[] = {'-', (char)optopt, '\0'};
        const char *given = optopt > ' ' && optopt < 0x7f ? letter : argv[optind - 1];

        if (option == ':') return usage_error("missing value behind ", given);
        if (option == '?') return usage_error("unknown option, or one that takes no value: ", given);
        if ((code = parse_option(option, args)) >= 0) return code;
    }
    if (args->check_all && !args->check) return usage_error("--all goes with --check", "");
    if (args->gen_secret && args->secret_path == NULL && optind < argc) args->secret_path = argv[optind++];
    if (args->gen_secret && optind < argc) return usage_error("too many arguments: ", argv[optind]);
    if (optind < argc) args->command = argv[optind++];
    if (optind < argc) args->argument = argv[optind++];
    if (optind < argc) return usage_error("too many arguments: ", argv[optind]);
    if ((code = check_profile(args)) >= 0) return code;
    return check_eval(args);
}

static int run_config(const ddp_args *args, ddp_log *log)
{
    ddp_config config = {0};
    ddp_launch launch;
    ddp_err err = {0};
    int code = DDP_EXIT_CONFIG;

    if (ddp_config_load(args->config_path, args->overrides, args->override_count, &config, &err) != DDP_OK ||
        ddp_launch_resolve(args, &config, &launch, &err) != DDP_OK ||
        (!args->print_config && ddp_secret_load(&config, &launch, &err) != DDP_OK)) {
        ddp_log_line(log, DDP_LOG_ERROR, "%s", err.msg);
    } else {
        launch.began_ns = ddp_process_start_ns();
        launch.planning = args->check || args->print_config;
        launch.purpose = args->eval ? DDP_TO_EVALUATE : DDP_TO_TRAIN;
        launch.weights = args->checkpoint;
        launch.profile = args->profile;
        if (args->print_config)
            code = ddp_command_print_config(&config, &launch, log);
        else if (launch.nproc > 1 && !args->check)
            code = ddp_start_ranks(args, &config, &launch, log);
        else {
            launch.stop = ddp_handle_signals(false);
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

/* Commands with options of their own; NULL for all else. */
static int (*find_command(int argc, char **argv))(int argc, char **argv, ddp_log *log)
{
    if (argc > 1 && strcmp(argv[1], "conform") == 0) return ddp_command_conform;
    if (argc > 1 && strcmp(argv[1], "bench") == 0) return ddp_command_bench;
    if (argc > 1 && strcmp(argv[1], "generate") == 0) return ddp_command_generate;
    return NULL;
}

int main(int argc, char **argv)
{
    ddp_args args = {0};
    int (*sub_command)(int argc, char **argv, ddp_log *log);
    ddp_err err = {0};
    ddp_log log;
    int code;

    open_standard_streams();
    (void)ddp_cpu_count(); /* reads the processors before a plugin's library can bind this thread */
    sub_command = find_command(argc, argv);
    code = sub_command != NULL ? -1 : parse_args(argc, argv, &args);
    if (code >= 0) return code;
    (void)signal(SIGPIPE, SIG_IGN); /* what is written fails with a reason instead */
    (void)signal(SIGXFSZ, SIG_IGN);
    /* OpenMP of a device's library reads it when it is loaded; spinning would burn processors that other ranks need. */
    (void)setenv("OMP_WAIT_POLICY", "PASSIVE", 0);
    ddp_log_init(&log);
    if (ddp_allow_open_files(OPEN_FILES, &err) != DDP_OK) {
        ddp_log_line(&log, DDP_LOG_ERROR, "%s", err.msg);
        return DDP_EXIT_PLUGIN;
    }
    if (sub_command != NULL) return sub_command(argc - 1, argv + 1, &log);
    if (args.gen_secret) return ddp_command_gen_secret(args.secret_path, &log);
    if (args.command != NULL && strcmp(args.command, "plugins") == 0) return ddp_command_plugins(&args, &log);
    if (args.command != NULL && strcmp(args.command, "help") == 0) return ddp_command_help(args.argument, &log);
    if (args.command != NULL && !args.eval) return usage_error("unknown command ", args.command);
    if (args.config_path == NULL) {
        ddp_print_usage(stderr);
        return usage_error("no config file: give -c FILE", "");
    }
    return run_config(&args, &log);
}
