/* control/times/state.h -- the data of times.c and collect.c. All but `every` is guarded by the lock, which is held
 * for the copy of a few marks. */
#pragma once

#include "base/sys.h"
#include "control/times/parts.h"

enum { DDP_TIMES_MARKS = 32 /* kept of a rank: four to eight a second, and 15 in the first quarter */ };

/* The sums of DDP_TIME_DATA to DDP_TIME_CHECKPOINT, ns, since the rank has begun. */
typedef struct ddp_times_mark {
    uint64_t era, step;
    uint64_t ns[DDP_TIMES]; /* DDP_TIME_STEP: 0 */
    int64_t came_ns;        /* rank 0: when */
} ddp_times_mark;

/* First in, first out; a full one forgets its oldest mark. */
typedef struct ddp_times_queue {
    ddp_times_mark marks[DDP_TIMES_MARKS];
    uint32_t first, count;
} ddp_times_queue;

/* Rank 0: of one rank. */
typedef struct ddp_times_row {
    ddp_times_queue queue;
    ddp_times_mark base; /* the newest that was taken */
    uint64_t era, step;  /* of the newest that has come */
} ddp_times_row;

typedef struct ddp_times_state {
    pthread_mutex_t lock;
    pthread_cond_t came;
    bool on, ended;
    ddp_times_mark now, marked; /* the sums; the newest mark; era 0: not begun. Of the trainer's thread */
    uint64_t every, planned;    /* steps between two marks; the run's last step. Of the trainer's thread */
    ddp_times_queue unsent;     /* other ranks */
    int64_t send_ns;
    ddp_times_row *rows; /* rank 0: world; else NULL */
    uint64_t era, step;  /* rank 0: where the next interval begins; era 0: nowhere yet */
} ddp_times_state;
