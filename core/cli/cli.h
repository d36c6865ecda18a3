/* cli/cli.h -- the program's commands. Beside the ranks of launch and the child processes of conform the only folder
 * that ends a process. */
#pragma once

#include "cli/options.h"
#include "launch/args.h"
#include "launch/cause.h"
#include "session/session.h"

/* One rank, here: returns the exit code. A ddp_rank_main. */
int cli_run_rank(const ddp_args *args, ddp_config *config, const ddp_launch *launch, ddp_log *log, ddp_cause *cause);

/* Files that a rank has open at once beside its connections, with room: plugins, data, the control plane. */
#define CLI_OPEN_FILES 64

/* Writes the text to stdout and frees it; the exit code, after a line that says why when it cannot be written. */
int cli_print_text(ddp_text *text, ddp_log *log);
/* After an error: its line, and the exit code that it carries. */
int cli_print_error(const ddp_err *err, ddp_log *log);
/* The INI of a command with its --set. -1: it is loaded; else the exit code, after a line. */
int cli_load_config(const char *path, const char *const *overrides, size_t count, ddp_config *config, ddp_log *log);
int cli_command_plugins(const ddp_args *args, const char *wanted, ddp_log *log);
int cli_command_help(const ddp_command *program, const char *section, ddp_log *log); /* section NULL: its usage */
int cli_command_print_config(ddp_config *config, const ddp_launch *launch, ddp_log *log);

/* --sweep: runs one after the other, and their table; the exit code. */
int cli_sweep(const ddp_args *args, ddp_log *log);

/* A command with arguments of its own; argv[0] is the command. */
typedef struct cli_entry {
    const ddp_command *usage;
    int (*run)(int argc, char **argv, ddp_log *log);
} cli_entry;

extern const ddp_command cli_advise_usage;
extern const ddp_command cli_aggregate_usage;
extern const ddp_command cli_audit_usage;
extern const ddp_command cli_conform_usage;
extern const ddp_command cli_new_usage;
extern const ddp_command cli_bench_usage;
extern const ddp_command cli_checkpoint_usage;
extern const ddp_command cli_export_usage;
extern const ddp_command cli_launch_usage;
extern const ddp_command cli_runs_usage;
extern const ddp_command cli_report_usage;
extern const ddp_command cli_merge_usage;
extern const ddp_command cli_generate_usage;
extern const ddp_command cli_tokenize_usage;
extern const ddp_command cli_model_usage;
extern const ddp_command cli_import_yaml_usage;
extern const ddp_command cli_lr_usage;
extern const ddp_command cli_predict_usage;
extern const ddp_command cli_manual_usage;
extern const ddp_command cli_completion_usage;
int cli_command_advise(int argc, char **argv, ddp_log *log);
int cli_command_aggregate(int argc, char **argv, ddp_log *log);
int cli_command_audit(int argc, char **argv, ddp_log *log);
int cli_command_conform(int argc, char **argv, ddp_log *log);
int cli_command_bench(int argc, char **argv, ddp_log *log);
int cli_command_checkpoint(int argc, char **argv, ddp_log *log);
int cli_command_export(int argc, char **argv, ddp_log *log);
int cli_command_report(int argc, char **argv, ddp_log *log);
int cli_command_launch(int argc, char **argv, ddp_log *log);
int cli_command_runs(int argc, char **argv, ddp_log *log);
int cli_command_merge(int argc, char **argv, ddp_log *log);
int cli_command_generate(int argc, char **argv, ddp_log *log);
int cli_command_tokenize(int argc, char **argv, ddp_log *log);
int cli_command_model(int argc, char **argv, ddp_log *log);
int cli_command_import_yaml(int argc, char **argv, ddp_log *log);
int cli_command_new(int argc, char **argv, ddp_log *log);
int cli_command_lr(int argc, char **argv, ddp_log *log);
int cli_command_predict(int argc, char **argv, ddp_log *log);
int cli_command_manual(int argc, char **argv, ddp_log *log);
int cli_command_completion(int argc, char **argv, ddp_log *log);

/* The program: what the manual and the completion are made of (main.c). */
typedef struct cli_program {
    const ddp_command *usage; /* whose rows name every command */
    const cli_entry *entries;
    size_t entry_count;
} cli_program;
extern const cli_program cli_all;

/* `ddpengine --complete WORD...`, which only the scripts of `completion` call: one candidate a line, see
 * manual/complete.c. The exit code. */
#define CLI_COMPLETE "--complete"
int cli_complete(int argc, char **argv);
