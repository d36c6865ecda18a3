/* launch/launcher_command.h -- the command by which a backend's own launcher starts this program once for each rank. */
#pragma once

#include "base/log.h"
#include "launch/args.h"
#include <limits.h>
#include <signal.h>

enum { DDP_LAUNCHER_WORDS = 64, DDP_LAUNCHER_ARGUMENTS = 2 * DDP_MAX_OVERRIDES + 16 };

typedef struct ddp_launcher_command {
    char *text;                         /* owns the words of the template */
    char *settings[DDP_LAUNCHER_WORDS]; /* NAME=value, for the environment */
    const char
        *argv[DDP_LAUNCHER_WORDS + DDP_LAUNCHER_ARGUMENTS + 2]; /* the launcher, this program, its arguments, NULL */
    size_t setting_count, argc;
    const char *install;
    char number[16], program[PATH_MAX];
} ddp_launcher_command;

/* From a template such as "A=1 mpirun -np %n": settings in front, as a shell has them, then the launcher's words, of
 * which %n becomes the number of ranks, then this program. `install`: what has the launcher, for messages, or NULL.
 * Free it, also after a failure. */
ddp_status ddp_launcher_command_make(ddp_launcher_command *c, const char *text, const char *install, int32_t nproc,
                                     ddp_err *err);
void ddp_launcher_command_free(ddp_launcher_command *c);
/* An argument of this program, at most DDP_LAUNCHER_ARGUMENTS; kept, not copied. */
void ddp_launcher_command_add(ddp_launcher_command *c, const char *argument);
/* Starts it as a child, which gets SIGTERM when this process dies. `signals`: its signal mask. `own_group`: a key of
 * the terminal does not reach it. `output`: a file for what it writes to its standard streams; -1: they stay this
 * process's. Where the launcher cannot be run the child prints why and ends with DDP_EXIT_PLUGIN. */
ddp_status ddp_launcher_command_start(const ddp_launcher_command *c, bool own_group, const sigset_t *signals,
                                      int output, ddp_log *log, pid_t *out, ddp_err *err);
