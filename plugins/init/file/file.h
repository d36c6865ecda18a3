/* plugins/init/file/file.h -- init method file:///PATH: rank 0 writes where it is into a file that all hosts see, the
 * others read it. Needs no more of the file system than NFS gives: link and rename are atomic, O_EXCL holds, and who
 * opens a file sees what was synced before. No lock, no inotify, no clock that hosts share. A run without a secret_file
 * has its secret there too, and then the file is one that other users cannot read.
 *
 *   file.c     the slots: URL, listen address, publish, find
 *   claim.c    whose the file is: claiming it, taking over a dead run's, the heartbeat, removing it
 *   record.c   what stands in it, and whether the run that wrote it still lives
 *
 * All calls of a handle come from one thread. Rank 0 has one more, "ddp-init-file", from publish to close: it writes
 * the heartbeat through its own descriptor and shares nothing else with the caller. */
#pragma once

#include "common/hex.h"
#include <ddpengine/init.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/stat.h>

enum {
    RECORD_MAX = 2048, /* bytes of the file */
    PATH_LIMIT = 3800, /* leaves room for the names beside it */
    DEAD_BEATS = 5     /* heartbeats that must be missing before a run of another host counts as dead */
};

/* What stands in the file: one "key value" a line, the heartbeat last and of fixed width. */
typedef struct record {
    char generation[17]; /* of one run: 16 random hex digits */
    char endpoint[DDP_ENDPOINT_MAX];
    char host[128];    /* its name, for messages */
    char machine[128]; /* boot id and pid namespace: within one, a pid and its start time name a process */
    int64_t pid;
    uint64_t start;       /* of the process, clock ticks since boot */
    int64_t began;        /* wall clock, seconds: for messages alone */
    int64_t interval_ms;  /* of the heartbeat */
    char secret[HEX_MAX]; /* of the run, in hex digits; "": none */
    bool guarded;         /* not in the file: it belongs to this user, and others can neither read nor write it */
    uint64_t beat;        /* goes up while the run lives */
    int64_t beat_time;    /* wall clock, seconds: for messages alone */
} record;

/* What a reader has seen of a file. */
typedef struct watch {
    char generation[17]; /* "": no file yet */
    uint64_t beat;
    int64_t since_ns; /* CLOCK_MONOTONIC time at which `beat` was first seen */
    bool absent;      /* the file was not there once: what comes is new */
    bool moved;       /* this generation has shown a sign of life */
} watch;

typedef enum state_of_run { LIVE, DEAD, UNSURE } state_of_run;

/* ---- record.c ---------------------------------------------------------------------------------------------------- */
int64_t file_now_ns(void);
ddp_status record_of_this_run(record *r, int64_t interval_ms, ddp_err *err);
/* The whole text; *beat_at is the offset of the heartbeat's line. */
size_t record_print(const record *r, char text[RECORD_MAX], size_t *beat_at);
/* Its owner is this user, and nobody else can read or write it. */
bool record_is_guarded(const struct stat *st);
/* DDP_IN_PROGRESS: no such file. DDP_ERR_DATA: something else stands there. */
ddp_status record_read(const char *path, record *out, ddp_err *err);
state_of_run record_check(const record *self, const record *other, watch *w);
/* "host node1, pid 77, since 2026-11-21 09:13:57 UTC" */
const char *record_who(const record *r, char *buf, size_t capacity);

/* ---- claim.c ----------------------------------------------------------------------------------------------------- */
typedef struct claim {
    const ddp_host *host;
    const char *path; /* the caller's */
    record self;
    int fd; /* the file of this run, -1: none */
    off_t beat_at;
    bool owned;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock; /* over `stop` */
    pthread_cond_t wake;
    bool stop;
} claim;

/* Puts c->self, whose endpoint is filled in, at c->path and starts the heartbeat. A file of a dead run is taken
 * over; one of a live run is an error that names both. Waits at most DEAD_BEATS heartbeats of another host's run to
 * tell them apart. */
ddp_status claim_take(claim *c, ddp_err *err);
/* Stops the heartbeat and removes the file if it is still this run's. */
void claim_drop(claim *c);

void file_log(const ddp_host *host, int level, int line, const char *fmt, ...) DDP_PRINTF_(4, 5);
