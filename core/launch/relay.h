/* launch/relay.h -- what ranks say to their supervisor past the launcher that has started them: their lines, which
 * processes they are, and the exit code of each. What the launcher says itself is held, and shown only where it has
 * failed by itself: of a rank that ends badly a launcher says in many lines, and each in other words, what the one line
 * of that rank says better. */
#pragma once

#include "base/base.h"
#include <sys/types.h>

enum {
    LAUNCH_RELAY_OUT, /* what ranks write to standard output */
    LAUNCH_RELAY_ERR, /* and to standard error */
    LAUNCH_RELAY_NEWS,
    LAUNCH_RELAY_PIPES,
    LAUNCH_RELAY_ARGUMENT_MAX = 64
};

typedef struct launch_relay_rank {
    pid_t pid, parent; /* the parent: the launcher, or a process of its own that stands between */
    bool ended;        /* it has said its exit code */
} launch_relay_rank;

typedef struct launch_relay {
    int pipes[LAUNCH_RELAY_PIPES][2]; /* to read, to write; -1: none */
    int held;                         /* memory with the launcher's own lines */
    bool has_spoken;                  /* a rank has written something */
    launch_relay_rank *ranks;         /* in the order in which they have said who they are */
    size_t rank_count, rank_room;     /* room: as many as are started */
    bool given[256];                  /* exit codes that ranks have said */
    int first;                        /* of them, the first that is not 0; 0: none yet */
} launch_relay;

/* ---- the supervisor ---------------------------------------------------------------------------------------------- */
/* For `nproc` ranks. Close it, also after a failure. */
ddp_status launch_relay_open(launch_relay *r, int32_t nproc, ddp_err *err);
void launch_relay_close(launch_relay *r);
/* What --one-rank-relay tells each rank; LAUNCH_RELAY_ARGUMENT_MAX bytes. */
void launch_relay_argument(const launch_relay *r, char *text);
/* Writes what ranks have said to this process's own standard streams, and takes their news. Waits for nobody, unless
 * `all`: then until everything is written. */
void launch_relay_pass(launch_relay *r, bool all);
/* Whether the launcher itself has said anything; and all of that to standard error. */
bool launch_relay_holds(const launch_relay *r);
void launch_relay_show_held(const launch_relay *r);
/* A rank, as it has said itself. */
bool launch_relay_is_rank(const launch_relay *r, pid_t pid);
/* A process of the launcher's that ranks have for a parent. */
bool launch_relay_stands_between(const launch_relay *r, pid_t pid);
/* A rank has said who it is and has ended without an exit code; call it when all have ended. */
bool launch_relay_lost_one(const launch_relay *r);

/* ---- a rank ------------------------------------------------------------------------------------------------------ */
/* `argument`: of --one-rank-relay; NULL: there is none. Where the supervisor cannot be reached any more, the streams
 * stay those of the launcher. */
void ddp_relay_join(const char *argument);
/* The last that a rank does before it ends with this code. */
void ddp_relay_leave(const char *argument, int exit_code);
