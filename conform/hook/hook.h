/* conform/hook/hook.h -- a hook under judgement: a rank's end of it, with two threads and the collectives of the suite's own. */
#ifndef DDP_HOOK_H
#define DDP_HOOK_H

#include "conform/harness/internal.h"
#include <ddpengine/hook.h>

enum {
    DDP_HOOK_BUCKETS = 4,
    DDP_HOOK_LATER = 40,  /* bytes by which structs of a later release are larger */
    DDP_HOOK_FEW = 5,     /* updates of most cases */
    DDP_HOOK_BEGUN = 1000 /* updates that a run has made before its hook, which begins anew behind a checkpoint */
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

/* ---- hook_group.c ------------------------------------------------------------------------------------------------------ */
void ddp_hook_group_open(ddp_hook_trial *t); /* fills t->group */
/* All ranks come here with the same value, or it is this rank's failure: "`what` differs between ranks". Compute thread. */
bool ddp_hook_agree(ddp_hook_trial *t, uint64_t value, const char *what);
void ddp_hook_give_up(ddp_hook_trial *t); /* this rank has failed: ends the others' waits and this process */
size_t ddp_hook_heap(void);               /* bytes that malloc has given out */

/* ---- hook_trial.c ------------------------------------------------------------------------------------------------------ */
/* `lane` of the board's exchanges; `later`: structs are larger than the plugin knows. All ranks. False: it has failed. */
bool ddp_hook_open(ddp_hook_trial *t, ddp_rank_process *a, uint32_t lane, bool later);
void ddp_hook_close(ddp_hook_trial *t);
/* Opens with gradients of dtype i32 and returns what `open` says; nothing is left open. */
ddp_status ddp_hook_open_i32(ddp_rank_process *a, ddp_err *err);
/* This rank's gradients, random in -1 .. 1, the same for the same seed; `zero`: all 0. */
void ddp_hook_fill(ddp_hook_trial *t, uint64_t seed, bool zero);
/* An update of what `fill` has left: checks that nothing outside is written, gaps stay 0, and all ranks end with the same bits. */
bool ddp_hook_update(ddp_hook_trial *t, ddp_hook_way way);
uint64_t ddp_hook_bits(const ddp_hook_trial *t); /* hash of the results */
uint64_t ddp_hook_count(uint32_t bucket);        /* elements */
/* Tensors of a bucket: where tensor i lies; false behind the last. */
bool ddp_hook_checked_tensor(uint32_t bucket, uint32_t i, const char **name, uint64_t *offset, uint64_t *elements);

/* ---- hook.c, hook_mean.c ------------------------------------------------------------------------------------------------- */
bool ddp_hook_next(ddp_hook_trial *t, uint64_t seed, ddp_hook_way way); /* `fill` and `update` */
bool ddp_hook_remembers(const ddp_hook_trial *t); /* a rank carries what it could not send to the next update */
bool ddp_hook_means(ddp_hook_trial *t);           /* from the first update on */
bool ddp_hook_zeros(ddp_hook_trial *t);           /* gradients of zero, then others */

#define DDP_HOOK_EXPECT(t, ok, ...) ((ok) || (ddp_rank_process_fail((t)->a, __VA_ARGS__), ddp_hook_give_up(t), false))

#endif
