/* cli/main.c -- arguments, and which command they ask for. */
#include "cli/cli.h"
#include "cli/preflight/preflight.h"
#include "base/sys.h"
#include "launch/identify.h"
#include "launch/mpirun.h"
#include "launch/relay.h"
#include "launch/secret.h"
#include "launch/signals.h"
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct command_line {
    ddp_args run;
    bool print_config;
    const char *secret_path;        /* --gen-secret; "": standard output; NULL when absent */
    const char *command, *argument; /* "plugins", "help", "eval"; NULL when absent */
} command_line;

/* ---- options ----------------------------------------------------------------------------------------------------- */
static int take_config(const ddp_command *c, void *request, const char *value)
{
    ddp_args *args = &((command_line *)request)->run;

    if (args->config_path != NULL) return cli_usage_error(c, "one -c only, not also -c ", value);
    if (value[0] == '\0') return cli_usage_error(c, "-c needs the name of a file", "");
    args->config_path = value;
    return -1;
}

static int print_version(const ddp_command *c, void *request, const char *value)
{
    const char *between = ": ";

    (void)c;
    (void)request;
    (void)value;
    (void)printf("ddpengine %s\nplugin ABI %u", DDP_VERSION, DDP_ABI);
#define KIND_NUMBER(NAME, name, number) (void)printf("%s" #name " %u", between, DDP_##NAME##_ABI), between = ", ";
    DDP_KIND_MAP(KIND_NUMBER)
#undef KIND_NUMBER
    (void)printf("\n");
    return DDP_EXIT_OK;
}

/* The key of the INI by a shorter name. */
static int take_log_level(const ddp_command *c, void *request, const char *value)
{
    static const char *const keys[] = {"output.log_level=debug", "output.log_level=info", "output.log_level=warning",
                                       "output.log_level=error"};
    ddp_args *args = &((command_line *)request)->run;

    for (size_t i = 0; i < DDP_COUNT(keys); i++) {
        if (strcmp(strchr(keys[i], '=') + 1, value) != 0) continue;
        if (args->override_count == DDP_MAX_OVERRIDES)
            return cli_usage_error(c, "too many of --set with --log-level ", value);
        args->overrides[args->override_count++] = keys[i];
        return -1;
    }
    return cli_usage_error(c, "--log-level is debug, info, warning or error, not ", value);
}

#define FIELD(name) .offset = offsetof(command_line, name)

static const ddp_cli_option options[] = {
    {"--config", "FILE", "the run's INI file", DDP_TAKES_CALL, .letter = 'c', .take = take_config},
    {"--set", "SECTION.KEY=V", "overrides one key; may be repeated", DDP_TAKES_LIST, .most = DDP_MAX_OVERRIDES,
     FIELD(run.overrides), .count_offset = offsetof(command_line, run.override_count)},
    {"--sweep", "SECTION.KEY=V,V",
     "trains once for each value, one run after the other, and prints a table; may be repeated: all combinations",
     DDP_TAKES_LIST, .most = DDP_MAX_SWEEPS, FIELD(run.sweeps),
     .count_offset = offsetof(command_line, run.sweep_count)},
    {"--nproc", "N", "starts N ranks on this host and supervises them", DDP_TAKES_COUNT, .most = 4096,
     FIELD(run.nproc)},
    {"--supervise", NULL,
     "runs the rank as a child, which is started again as [run] restarts says; --nproc does so anyway",
     DDP_TAKES_NOTHING, FIELD(run.supervise)},
    {"--one-rank", "[URL]", NULL, DDP_TAKES_TEXT, FIELD(run.rendezvous)}, /* given by launch/mpirun.c, as are: */
    {"--one-rank-secret", "FILE", NULL, DDP_TAKES_TEXT, FIELD(run.secret_file)},
    {"--one-rank-relay", "PIPES", NULL, DDP_TAKES_TEXT, FIELD(run.relay)},
    {"--restarted", NULL, NULL, DDP_TAKES_NOTHING, FIELD(run.restarted)},
    {"--profile", NULL, "trains, and prints on standard error how the time of rank 0's steps was spent",
     DDP_TAKES_NOTHING, FIELD(run.profile)},
    {"--check", NULL, "plans everything and looks for what would be in the way; trains nothing", DDP_TAKES_NOTHING,
     FIELD(run.check)},
    {"--all", NULL, "with --check: also loads and checks the plugins of sections that the run does not use",
     DDP_TAKES_NOTHING, FIELD(run.check_all)},
    {"--net", NULL, "with --check: the ranks connect, measure latency and bandwidth of each pair, and leave",
     DDP_TAKES_NOTHING, FIELD(run.check_net)},
    {"--log-level", "LEVEL", "debug, info, warning or error, as [output] log_level", DDP_TAKES_CALL,
     .take = take_log_level},
    {"--print-config", NULL, "prints every effective key, and where it was set, as a valid INI", DDP_TAKES_NOTHING,
     FIELD(print_config)},
    {"--checkpoint", "PATH", NULL, DDP_TAKES_TEXT, FIELD(run.checkpoint)},
    {"launch", NULL, "starts a run on several hosts by ssh; see ddpengine launch --help", DDP_TAKES_ROW, .most = 0},
    {"aggregate", NULL, "helps the ranks of a run from a host without its model; see ddpengine aggregate --help",
     DDP_TAKES_ROW, .most = 0},
    {"eval", NULL, "evaluates a checkpoint on the [eval] data; without --checkpoint the newest one", DDP_TAKES_ROW,
     .most = 0},
    {"predict", NULL, "says what a model makes of files; see ddpengine predict --help", DDP_TAKES_ROW, .most = 0},
    {"export", "FORMAT", "writes a model for PyTorch, PEFT, ONNX or llama.cpp; see export --help", DDP_TAKES_ROW,
     .most = 0},
    {"merge", "DIR", "writes a model with its adapters in its weights; see ddpengine merge --help", DDP_TAKES_ROW,
     .most = 0},
    {"generate", NULL, "continues a text with a language model; see ddpengine generate --help", DDP_TAKES_ROW,
     .most = 0},
    {"tokenize", "[FILE]", "counts or prints the tokens of a text; see ddpengine tokenize --help", DDP_TAKES_ROW,
     .most = 0},
    {"import-yaml", "FILE", "makes an INI of a YAML of LLaMA-Factory; see ddpengine import-yaml --help", DDP_TAKES_ROW,
     .most = 0},
    {"model", NULL, "prints the model: layers, shapes, parameters, arithmetic", DDP_TAKES_ROW, .most = 0},
    {"lr", NULL, "finds a learning rate by a short training; see ddpengine lr --help", DDP_TAKES_ROW, .most = 0},
    {"advise", NULL, "predicts what more ranks or other settings bring; see ddpengine advise --help", DDP_TAKES_ROW,
     .most = 0},
    {"checkpoint", "ACTION",
     "lists, verifies, compares, merges or removes saved checkpoints; see ddpengine checkpoint --help", DDP_TAKES_ROW,
     .most = 0},
    {"audit", "RUN...", "proves from [output] audit that each epoch used each sample exactly once", DDP_TAKES_ROW,
     .most = 0},
    {"runs", "[FOLDER]", "lists the runs below a folder; see ddpengine runs --help", DDP_TAKES_ROW, .most = 0},
    {"report", "RUN...", "writes an HTML page about runs, or draws them here; see ddpengine report --help",
     DDP_TAKES_ROW, .most = 0},
    {"plugins", "[PLUGIN]", "lists the plugins that are found, or the options of one", DDP_TAKES_ROW, .most = 0},
    {"help", "[SECTION]", "lists the sections of the INI file, or the keys of one", DDP_TAKES_ROW, .most = 0},
    {"conform", "PLUGIN", "checks whether a plugin keeps its contract; see ddpengine conform --help", DDP_TAKES_ROW,
     .most = 0},
    {"new", "KIND", "writes a plugin to start from; see ddpengine new --help", DDP_TAKES_ROW, .most = 0},
    {"bench", "all_reduce", "measures how fast backends are on this machine; see ddpengine bench --help", DDP_TAKES_ROW,
     .most = 0},
    {"manual", "[PAGE]", "prints a page for man; see ddpengine manual --help", DDP_TAKES_ROW, .most = 0},
    {"completion", "bash|zsh", "prints what completes commands, options and keys in a shell", DDP_TAKES_ROW, .most = 0},
    {"--gen-secret", "[FILE]", "writes a new secret for [group] secret_file; without FILE to standard output",
     DDP_TAKES_TEXT, FIELD(secret_path)},
    {"--version", NULL, "prints the version of the program and of its plugin interfaces", DDP_TAKES_CALL,
     .take = print_version},
    {"--help", NULL, "prints this text", DDP_TAKES_HELP, .letter = 'h'},
};

static const ddp_command main_usage = {
    .name = "",
    .usage = "usage: ddpengine -c FILE [--set section.key=value]... [--nproc N | --supervise]\n"
             "                 [--sweep section.key=value,value]...\n"
             "                 [--profile | --check [--all | --net] | --print-config]\n"
             "       ddpengine launch --hosts HOST:RANKS,... -c FILE [...]\n"
             "       ddpengine aggregate -c FILE [--set section.key=value]... [--check]\n"
             "       ddpengine eval -c FILE [--checkpoint PATH] [--set section.key=value]...\n"
             "                      [--nproc N]\n"
             "       ddpengine predict -c FILE [--checkpoint PATH] [--top N] [--json] FILE...\n"
             "       ddpengine export torch|peft|onnx|gguf -c FILE [--checkpoint PATH] PATH\n"
             "       ddpengine merge -c FILE [--checkpoint PATH] [--dtype f32|bf16] DIR\n"
             "       ddpengine generate -c FILE [--checkpoint PATH] [--prompt TEXT] [...]\n"
             "       ddpengine tokenize -c FILE [--ids | --pieces] [FILE]\n"
             "       ddpengine import-yaml [-o INI] FILE\n"
             "       ddpengine model -c FILE [--set section.key=value]...\n"
             "       ddpengine lr -c FILE [--nproc N] [...]\n"
             "       ddpengine advise -c FILE [--nproc N] [--json] [...]\n"
             "       ddpengine checkpoint ls DIR | verify PATH | diff A B |\n"
             "                            merge A DIR | prune DIR --keep N [...]\n"
             "       ddpengine audit RUN... | runs [FOLDER] | report RUN...\n"
             "       ddpengine plugins [PLUGIN]\n"
             "       ddpengine help [SECTION]\n"
             "       ddpengine manual [PAGE] | completion bash|zsh\n"
             "       ddpengine new KIND NAME [--dir DIR]\n"
             "       ddpengine conform PLUGIN [...] | bench all_reduce [...]\n"
             "       ddpengine --gen-secret [FILE]\n",
    .options = options,
    .option_count = DDP_COUNT(options),
    .footer = "\n"
              "exit codes: 0 done, 1 internal, 2 config or usage, 3 plugin,\n"
              "            4 rendezvous or agreement, 5 peer lost, 6 time-out, 7 not finite,\n"
              "            8 checkpoint, 9 replicas diverged, 10 data, 128+n ended by signal n\n",
    .example = "ddpengine -c /usr/share/doc/ddpengine/conf/quickstart.ini --nproc 2",
};

static int usage_error(const char *what, const char *detail) { return cli_usage_error(&main_usage, what, detail); }

/* ---- what goes together ------------------------------------------------------------------------------------------ */
static int check_eval(command_line *l)
{
    ddp_args *args = &l->run;

    args->eval = l->command != NULL && strcmp(l->command, "eval") == 0;
    if (!args->eval && args->checkpoint != NULL)
        return usage_error(
            "--checkpoint belongs to eval, predict, export and generate; to resume a training set checkpoint.resume",
            "");
    if (!args->eval) return -1;
    if (l->argument != NULL) return usage_error("too many arguments: ", l->argument);
    if (args->check || l->print_config) return usage_error("eval takes neither --check nor --print-config", "");
    return -1;
}

/* It would measure nothing in a command that does not train. */
static int check_profile(const command_line *l)
{
    const char *other = l->command != NULL       ? l->command
                        : l->run.check           ? "--check"
                        : l->print_config        ? "--print-config"
                        : l->secret_path != NULL ? "--gen-secret"
                                                 : NULL;

    if (!l->run.profile || other == NULL) return -1;
    return usage_error("--profile measures the steps of a training; leave it out, or leave out ", other);
}

/* It is a number of trainings. */
static int check_sweep(const command_line *l)
{
    const char *other = l->command != NULL       ? l->command
                        : l->run.check           ? "--check"
                        : l->print_config        ? "--print-config"
                        : l->run.profile         ? "--profile"
                        : l->secret_path != NULL ? "--gen-secret"
                                                 : NULL;

    if (l->run.sweep_count == 0 || other == NULL) return -1;
    return usage_error("--sweep trains; leave it out, or leave out ", other);
}

static int parse(int argc, char **argv, command_line *l)
{
    int next, code = cli_parse_options(&main_usage, argc, argv, l, &next);

    if (code >= 0) return code;
    if (l->run.check_all && !l->run.check) return usage_error("--all goes with --check", "");
    if (l->run.check_net && !l->run.check) return usage_error("--net goes with --check", "");
    if (l->run.check_net && l->run.check_all) return usage_error("--all looks at one host alone; leave out --net", "");
    l->run.one_rank = l->run.rendezvous != NULL;
    if (l->secret_path != NULL && l->secret_path[0] == '\0' && next < argc) l->secret_path = argv[next++];
    if (l->secret_path != NULL && next < argc) return usage_error("too many arguments: ", argv[next]);
    if (next < argc) l->command = argv[next++];
    if (next < argc) l->argument = argv[next++];
    if (next < argc) return usage_error("too many arguments: ", argv[next]);
    if ((code = check_profile(l)) >= 0) return code;
    if ((code = check_sweep(l)) >= 0) return code;
    return check_eval(l);
}

/* ---- running ----------------------------------------------------------------------------------------------------- */
static ddp_status prepare(const command_line *l, ddp_config *config, ddp_launch *launch, ddp_log *log, ddp_err *err)
{
    const ddp_args *args = &l->run;

    DDP_TRY(ddp_config_load(args->config_path, args->overrides, args->override_count, config, err));
    log->level = config->output->log_level;
    DDP_TRY(ddp_launch_resolve(args, config, launch, err));
    if (!l->print_config) DDP_TRY(ddp_secret_load(config, args->secret_file, launch, err));
    launch->began_ns = ddp_process_start_ns();
    launch->planning = l->print_config;
    launch->purpose = args->eval ? DDP_TO_EVALUATE : DDP_TO_TRAIN;
    launch->weights = args->checkpoint;
    launch->profile = args->profile;
    launch->restarted = args->restarted;
    return DDP_OK;
}

/* --check finds what is too little itself, and the rest. */
static bool is_preflight(const command_line *l) { return l->run.check && !l->run.check_net && !l->print_config; }

static int run_config(const command_line *l, ddp_log *log)
{
    const ddp_args *args = &l->run;
    ddp_config config = {0};
    ddp_launch launch;
    ddp_err err = {0};
    int code;

    if (is_preflight(l)) return cli_preflight(args, log);
    ddp_relay_join(args->relay);
    if (prepare(l, &config, &launch, log, &err) != DDP_OK) {
        (void)ddp_fail_as(&err, DDP_EXIT_CONFIG);
        code = cli_print_error(&err, log);
    } else if (l->print_config) {
        code = cli_command_print_config(&config, &launch, log);
    } else if (launch.nproc > 1 || args->supervise) {
        code = ddp_start_ranks(args, &config, &launch, cli_run_rank, log);
    } else {
        launch.stop = ddp_handle_signals(NULL);
        code = cli_run_rank(args, &config, &launch, log, NULL);
    }
    ddp_config_free(&config);
    ddp_relay_leave(args->relay, code);
    return code;
}

static int gen_secret(const char *path, ddp_log *log)
{
    ddp_err err = {0};

    if (ddp_secret_write(path, &err) == DDP_OK) return DDP_EXIT_OK;
    if (err.status == DDP_ERR_CONFIG) (void)ddp_fail_as(&err, DDP_EXIT_CONFIG);
    return cli_print_error(&err, log);
}

/* A closed standard stream would give its number to the next file or socket, and lines of the log would go there.
 * Standard output is opened for reading only, so that what cannot be written is still an error. */
static void open_standard_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) == -1) (void)open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY);
}

/* Commands with options of their own. */
static const cli_entry entries[] = {
    {&cli_advise_usage, cli_command_advise},
    {&cli_aggregate_usage, cli_command_aggregate},
    {&cli_audit_usage, cli_command_audit},
    {&cli_conform_usage, cli_command_conform},
    {&cli_new_usage, cli_command_new},
    {&cli_bench_usage, cli_command_bench},
    {&cli_lr_usage, cli_command_lr},
    {&cli_generate_usage, cli_command_generate},
    {&cli_tokenize_usage, cli_command_tokenize},
    {&cli_import_yaml_usage, cli_command_import_yaml},
    {&cli_model_usage, cli_command_model},
    {&cli_export_usage, cli_command_export},
    {&cli_merge_usage, cli_command_merge},
    {&cli_launch_usage, cli_command_launch},
    {&cli_runs_usage, cli_command_runs},
    {&cli_report_usage, cli_command_report},
    {&cli_predict_usage, cli_command_predict},
    {&cli_checkpoint_usage, cli_command_checkpoint},
    {&cli_manual_usage, cli_command_manual},
    {&cli_completion_usage, cli_command_completion},
};

const cli_program cli_all = {&main_usage, entries, DDP_COUNT(entries)};

static const cli_entry *find_command(int argc, char **argv)
{
    for (size_t i = 0; argc > 1 && i < DDP_COUNT(entries); i++)
        if (strcmp(argv[1], entries[i].usage->name) == 0) return &entries[i];
    return NULL;
}

static int run(const command_line *l, ddp_log *log)
{
    if (l->secret_path != NULL) return gen_secret(l->secret_path[0] != '\0' ? l->secret_path : NULL, log);
    if (l->command != NULL && strcmp(l->command, "plugins") == 0) return cli_command_plugins(&l->run, l->argument, log);
    if (l->command != NULL && strcmp(l->command, "help") == 0) return cli_command_help(&main_usage, l->argument, log);
    if (l->command != NULL && !l->run.eval) return usage_error("unknown command ", l->command);
    if (l->run.config_path == NULL) {
        cli_print_usage(&main_usage, stderr);
        return usage_error("no config file: give -c FILE", "");
    }
    return l->run.sweep_count > 0 ? cli_sweep(&l->run, log) : run_config(l, log);
}

int main(int argc, char **argv)
{
    command_line l = {0};
    const cli_entry *entry;
    ddp_err err = {0};
    ddp_log log;
    int code;

    open_standard_streams();
    if (argc > 1 && strcmp(argv[1], CLI_COMPLETE) == 0) return cli_complete(argc - 2, argv + 2);
    (void)ddp_cpu_count(); /* reads the processors before a plugin's library can bind this thread */
    entry = find_command(argc, argv);
    code = entry != NULL ? -1 : parse(argc, argv, &l);
    if (code >= 0) return code;
    (void)signal(SIGPIPE, SIG_IGN); /* what is written fails with a reason instead */
    (void)signal(SIGXFSZ, SIG_IGN);
    /* OpenMP of a device's library reads it when it is loaded; spinning would burn processors that other ranks need. */
    (void)setenv("OMP_WAIT_POLICY", "PASSIVE", 0);
    ddp_log_init(&log);
    if (ddp_allow_open_files(CLI_OPEN_FILES, &err) != DDP_OK && (entry != NULL || !is_preflight(&l)))
        return cli_print_error(&err, &log);
    return entry != NULL ? entry->run(argc - 1, argv + 1, &log) : run(&l, &log);
}
