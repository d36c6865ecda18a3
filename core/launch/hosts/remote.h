/* launch/hosts/remote.h -- one host of `ddpengine launch`: the ssh that runs the node there (node.h), its lines, and
 * why it ended. */
#pragma once

#include "base/log.h"
#include "launch/hosts/parse.h"
#include <sys/types.h>

typedef struct remote_stream {
    int fd; /* -1: at its end */
    char *line;
    size_t length;
} remote_stream;

typedef enum remote_state {
    REMOTE_CONNECTING = 0, /* the node has not answered */
    REMOTE_READY,          /* it has: it waits for what to run */
    REMOTE_RUNNING,
    REMOTE_ENDED /* `code` is set */
} remote_state;

typedef struct remote {
    const launch_host *host;
    remote_state state;
    pid_t pid;
    int64_t started_ms;
    int in; /* -1: closed */
    remote_stream out, err;
    int port;   /* of READY */
    int status; /* of waitpid, once `reaped` */
    bool reaped;
    int64_t reaped_ms;
    int code;          /* of ENDED */
    char last[512];    /* the last line on its standard error before it was READY */
    char problem[768]; /* of ENDED: why, where it is not a rank that says so; or "" */
} remote;

/* Starts `argv`, NULL-terminated, without this process's terminal and signals of it. */
ddp_status remote_start(remote *r, const launch_host *host, char *const *argv, ddp_err *err);
/* Reads what has come: lines go to this process's streams, with the name of the host in front. `program`: for words. */
void remote_read(remote *r, const char *program, const char *ssh);
/* Whether ssh has ended and all lines have come; then sets `code` and `problem`. */
void remote_reap(remote *r, const char *program, const char *ssh);
/* Ends a host that has not answered in time: sets `problem`. */
void remote_give_up(remote *r);
/* To the node; what cannot be written shows by its end. */
void remote_send(remote *r, const char *text, size_t length);
/* The node sees its launcher go. */
void remote_close(remote *r);
void remote_free(remote *r);
