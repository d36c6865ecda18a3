/* train/local/device_group.h -- the other devices of one process: for each a thread, a session with that device, and
 * a trainer over it, so that the thread runs the functions that a rank runs. Device 0 is that of the trainer itself,
 * on its own thread.
 *
 * What the devices do is in replicas.c and pipeline.c; what both have in common is here: devices, errors, and the
 * update, which is that of shards.c with devices instead of ranks. Optimiser states are one arena, of which each
 * touches its shards.
 *
 * All calls come from the trainer's thread. */
#pragma once

#include "train/local/thread_pool.h"
#include "train/trainer.h"

enum { DDP_JOB_OPEN, DDP_JOB_CLOSE, DDP_JOB_MEAN, DDP_JOB_UPDATE, DDP_JOB_OWN /* from here on the mode's own */ };

typedef struct ddp_group_device {
    ddp_session session; /* the trainer's, with a device and variants of its own */
    ddp_trainer trainer;
    char name[96]; /* "cpu:1" */
    bool finite;   /* its shards, in the last update */
} ddp_group_device;

struct ddp_device_group {
    ddp_trainer *t;
    ddp_thread_pool *pool;
    uint32_t count;            /* of devices, that of the trainer among them */
    ddp_group_device *devices; /* by device; the first one is not used */
    ddp_trainer **all;         /* by device; the first one is the trainer */
    /* A job on a device's thread; OPEN comes when its device is open, CLOSE before that is closed. */
    ddp_status (*work)(void *ctx, ddp_group_device *m, uint32_t job, ddp_err *err);
    void *ctx;
    const char *what; /* "replica" */
    bool abandoned;   /* a thread has not come back */
};

/* Sets t->local.group; threads are called "ddp-WHAT-N". The devices open with the job OPEN. */
ddp_status local_device_group_open(ddp_trainer *t, const char *what,
                                   ddp_status (*work)(void *ctx, ddp_group_device *m, uint32_t job, ddp_err *err),
                                   void *ctx, ddp_err *err);
/* False where a thread has not come back: it and what it uses are left until the process ends. */
bool local_device_group_close(ddp_trainer *t);

/* All devices do a job while the trainer goes on; then it waits for them. `own`: how its own part went, whose error
 * `err` holds. */
void local_device_group_start(ddp_device_group *c, uint32_t job);
ddp_status local_device_group_finish(ddp_device_group *c, const char *name, ddp_status own, ddp_err *err);
ddp_status local_device_group_run(ddp_device_group *c, uint32_t job, const char *name, ddp_err *err);

/* Slots of a way: the mean and the update of the shards of all devices. */
ddp_status ddp_device_group_mean(ddp_trainer *t, ddp_err *err);
ddp_status ddp_device_group_update(ddp_trainer *t, bool *finite, ddp_err *err);
