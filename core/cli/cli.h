/* cli/cli.h -- the program: arguments, commands, and the supervisor of local ranks. The only folder that ends a process. */
#ifndef DDP_CLI_H
#define DDP_CLI_H

#include "config/config.h"
#include "train/session.h"

#define DDP_MAX_OVERRIDES 64

typedef struct ddp_args {
    const char *config_path;
    const char *overrides[DDP_MAX_OVERRIDES];
    size_t override_count;
    int32_t nproc; /* 0: not given */
    bool check, print_config;
    const char *command, *argument; /* "plugins", "help"; NULL when absent */
} ddp_args;

/* What the ranks of one supervisor share: the cause already printed, so that N ranks do not print it N times. */
typedef struct ddp_cause ddp_cause;
ddp_cause *ddp_cause_create(ddp_err *err); /* shared memory, inherited by children; NULL on failure */
/* Prints the line once among all ranks that share `cause` (NULL: always). One that leaves because of a peer (exit code
 * DDP_EXIT_PEER) lets the others speak first, for the peer itself or the supervisor knows why. */
void ddp_cause_print(ddp_cause *cause, ddp_log *log, int exit_code, const char *message);

/* One rank, here: returns the exit code. */
int ddp_run_rank(const ddp_args *args, ddp_config *config, const ddp_launch *launch, ddp_log *log, ddp_cause *cause);
/* A signal that ends this process leaves a line as well; not for ranks under a supervisor, which speaks for them. */
void ddp_say_signals(void);
/* `nproc` ranks as children; returns the exit code of the first cause. */
int ddp_supervise(const ddp_args *args, ddp_config *config, const ddp_launch *first, ddp_log *log);

/* Writes the text to stdout and frees it; the exit code, after a line that says why when it cannot be written. */
int ddp_print_text(ddp_text *text, ddp_log *log);
int ddp_command_plugins(const ddp_args *args, ddp_log *log);
int ddp_command_help(const char *section, ddp_log *log);
int ddp_command_print_config(ddp_config *config, const ddp_launch *launch, ddp_log *log);
void ddp_print_usage(FILE *to);

#endif
