/* train/state/survivor.h -- what a rank that outlives a failure of the run keeps in memory: the run's whole state as of
 * the last update, from which the next generation of ranks goes on. It is there where each rank has all of it: with an
 * update by all_reduce, no local steps, and no hook that remembers something. Else the next generation starts from a
 * checkpoint.
 *
 * For that, no bucket is updated before all have been reduced: a failure leaves the parameters of one step. All on the
 * trainer's thread. */
#pragma once

#include "train/trainer.h"

struct ddp_survivor {
    uint64_t start; /* of the run, as of the last generation that this process was in; 0: none. The state is of it */
    int32_t server; /* the rank, by the config, that served that generation */
    uint32_t generation; /* in which the state was the run's; with `length` 0 there is none */
    size_t length;
    char *bytes; /* of the tensors of tensors.h, one after the other: parameters, buffers, optimiser state */
    ddp_progress progress;
    double loss;
    bool watched; /* this generation leaves the state of one step, whenever it ends */
    bool in_step;
    uint64_t micro_steps; /* before the step in progress */
    uint64_t bucket_size; /* of that generation, 0: none yet */
    uint64_t kept_batch;  /* what ddp_trainer_keep_batch has agreed on for it */
    int32_t expected;     /* rank 0: ranks that can be in the next generation; 0: all */
};

/* After a rendezvous. What is kept of an earlier start of the run is not used in a later one. */
void ddp_survivor_met(ddp_trainer *t);
/* Each rank has all of the run's state but for running statistics. */
bool ddp_survivor_has_all(const ddp_trainer *t);
/* After train_way_choose: t->way for that, where the state is whole. t->survivor NULL: nothing is changed. */
void ddp_survivor_watch(ddp_trainer *t);
/* After a failure, while the trainer's memory is there. */
void ddp_survivor_keep(ddp_trainer *t);
void ddp_survivor_free(ddp_survivor *v);

/* Collective, in a generation after the first: the rank whose state all go on from, the lowest of those that have the
 * newest, and what it is; -1: none has it. */
ddp_status ddp_survivor_find(ddp_trainer *t, int32_t *source, ddp_progress *at, ddp_err *err);
/* On that rank: into the arenas as the host sees them. */
ddp_status ddp_survivor_fill(ddp_trainer *t, ddp_err *err);
