/* cli/cli.h -- the program: arguments, commands, and the supervisor of local ranks. Beside the children of core/conform the
 * only folder that ends a process. */
#ifndef DDP_CLI_H
#define DDP_CLI_H

#include "config/config.h"
#include "session/session.h"
#include <signal.h>

#define DDP_MAX_OVERRIDES 64

typedef struct ddp_args {
    const char *config_path;
    const char *overrides[DDP_MAX_OVERRIDES];
    size_t override_count;
    int32_t nproc;       /* 0: not given */
    bool one_rank;       /* of --nproc, started by a backend's launcher, whose variables say which */
    const char *meeting; /* with one_rank: where to meet if the config does not say; or NULL */
    bool check, check_all, print_config, gen_secret, profile;
    const char *secret_path;        /* with gen_secret; NULL: standard output */
    const char *command, *argument; /* "plugins", "help", "eval"; NULL when absent */
    const char *checkpoint;         /* of eval; NULL when absent */
    bool eval;
} ddp_args;

/* What the ranks of one supervisor share: the cause already printed, so that N ranks do not print it N times. */
typedef struct ddp_cause ddp_cause;
ddp_cause *ddp_cause_create(ddp_err *err); /* shared memory, inherited by children; NULL on failure */
/* Prints the line once among all ranks that share `cause` (NULL: always). One that leaves because of a peer (exit code
 * DDP_EXIT_PEER) lets the others speak first, for the peer itself or the supervisor knows why. */
void ddp_cause_print(ddp_cause *cause, ddp_log *log, int exit_code, const char *message);

/* Rank, world and init method of the first rank of this process: from --nproc and the config, a launcher, or nodes. */
ddp_status ddp_launch_resolve(const ddp_args *args, const ddp_config *c, ddp_launch *out, ddp_err *err);
/* Reads [group] secret_file, where it is given, into l->secret. */
ddp_status ddp_secret_load(const ddp_config *c, ddp_launch *l, ddp_err *err);
/* Makes a secret for the ranks of one supervisor. */
ddp_status ddp_secret_make(ddp_launch *l, ddp_err *err);
/* Writes a new one to a new file of this user alone, or to standard output. */
int ddp_command_gen_secret(const char *path, ddp_log *log);
/* One rank, here: returns the exit code. */
int ddp_run_rank(const ddp_args *args, ddp_config *config, const ddp_launch *launch, ddp_log *log, ddp_cause *cause);
/* SIGINT, SIGTERM and SIGHUP: the first one while the run is graceful is noted in the result, for launch.stop; any other ends
 * the process, with a line unless a supervisor speaks for it. */
ddp_stop *ddp_handle_signals(bool supervised);
/* The signals that end a run and SIGCHLD, but not those that who started us wants ignored: nohup, a shell's background job. */
void ddp_choose_signals(sigset_t *watched);
/* `nproc` ranks, by the launcher of the chosen backend where it brings one, else as children: the exit code of the first
 * cause. */
int ddp_start_ranks(const ddp_args *args, ddp_config *config, const ddp_launch *first, ddp_log *log);
/* Time that the last rank may take, after the first, to leave a run that was asked to end: rank 0 hashes and writes. */
enum { DDP_STOP_MS = 60000 };
/* A launcher that this process has started, as a child. */
typedef struct ddp_launched {
    pid_t pid;
    int32_t nproc;
    const char *name;
    void (*clean)(uint64_t pid); /* what it leaves behind */
    bool adopts;                 /* what loses its parent becomes a child of this process */
    size_t other_count; /* children that this process had before: whoever became this program by exec has them */
    pid_t others[64];
} ddp_launched;
/* Before it is started: sets `adopts` and the others. */
void ddp_mpirun_prepare(ddp_launched *l);
/* Until it and all that it has started have ended: the exit code of the first cause. `watched` is blocked. */
int ddp_mpirun_supervise(const ddp_launched *launched, const sigset_t *watched, ddp_log *log);
/* `nproc` ranks as children; returns the exit code of the first cause. */
int ddp_supervise(const ddp_args *args, ddp_config *config, const ddp_launch *first, ddp_log *log);

/* Writes the text to stdout and frees it; the exit code, after a line that says why when it cannot be written. */
int ddp_print_text(ddp_text *text, ddp_log *log);
int ddp_command_plugins(const ddp_args *args, ddp_log *log);
int ddp_command_help(const char *section, ddp_log *log);
int ddp_command_print_config(ddp_config *config, const ddp_launch *launch, ddp_log *log);
void ddp_print_usage(FILE *to);

/* Commands with arguments of their own; argv[0] is the command. */
int ddp_command_conform(int argc, char **argv, ddp_log *log);
int ddp_command_bench(int argc, char **argv, ddp_log *log);
int ddp_command_generate(int argc, char **argv, ddp_log *log);
/* "ddpengine: error: WHATDETAIL; see ddpengine COMMAND --help"; DDP_EXIT_CONFIG. */
int ddp_usage_error(const char *command, const char *what, const char *detail);
/* A number from 1 to `most`; else the exit code after a line that says so. */
int ddp_parse_count(const char *command, const char *option, const char *text, int32_t most, int32_t *out);

#endif
