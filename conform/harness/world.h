/* conform/harness/world.h -- the ranks of a world as child processes. */
#pragma once

#include "conform/harness/shared_results.h"

typedef struct ddp_world {
    ddp_shared_results *shared;
    int shared_fd;
    const char *launcher; /* NULL: fork */
    ddp_log *log;
    int signal; /* that asked this process to end; 0: none */
} ddp_world;

/* Runs all cases that are not checked yet, in as many runs as it takes; each case ends with a result of some rank. */
ddp_status ddp_world_run(ddp_world *w, ddp_err *err);
