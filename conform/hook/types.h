/* conform/hook/types.h -- a hook under test as one rank has it, with two threads and the collectives of the suite's
 * own. */
#pragma once

#include "conform/harness/rank_process.h"
#include <ddpengine/hook.h>

enum {
    DDP_HOOK_BUCKETS = 4,
    DDP_HOOK_LATER = 40, /* bytes by which structs of a later release are larger */
    DDP_HOOK_BEGUN =
        1000 /* updates that a run has made before its hook, which begins from scratch after a checkpoint */
};

/* How the calls of an update follow each other. */
typedef enum ddp_hook_way {
    DDP_WAY_AT_ONCE = 0, /* as in training: the wire works while this thread goes on to the next bucket */
    DDP_WAY_ONE_BY_ONE,  /* a bucket is done before the next begins */
    DDP_WAY_BY_CALL      /* all are compressed, then all exchanged, then all decompressed */
} ddp_hook_way;

typedef struct ddp_hook_trial {
    ddp_rank_process *a;
    const ddp_hook_ops *ops;
    ddp_exchange *x;
    ddp_hook *hook;
    ddp_hook_params params;
    ddp_hook_group group;
    void *tables[2]; /* buckets, tensors; with the strides of params */
    void *blocks[2]; /* of grads and their guards; of mean */
    float *grads[DDP_HOOK_BUCKETS], *other;
    uint64_t update; /* made so far; DDP_HOOK_BEGUN when opened, for some hooks let the first ones pass */

    /* what all ranks know: of the gradients that `fill` has made last */
    double *mean[DDP_HOOK_BUCKETS];
    double largest[DDP_HOOK_BUCKETS], rms[DDP_HOOK_BUCKETS]; /* of all ranks' gradients */

    bool watch; /* keeps in `most` what malloc has given out at the most when a collective was called */
    size_t most;

    pthread_t thread; /* of `exchange` */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t submitted, done; /* buckets of this update */
    bool started, stop;
    ddp_status status; /* the first that is not DDP_OK, with err */
    ddp_err err;
} ddp_hook_trial;
