/* train/trainer.h -- one rank's run, from meeting the others to the summary.
 *
 *   trainer.c   the order of a run: join, memory, parameters, epochs, end
 *   step.c      one update: micro-steps, buckets, optimiser
 *   evaluate.c  a pass over the evaluation data, sharded without padding
 *   resume.c    checkpoints: who waits for whom, what is broadcast, what is checked */
#ifndef DDP_TRAINER_H
#define DDP_TRAINER_H

#include "base/sys.h"
#include "checkpoint/checkpoint.h"
#include "group/group.h"
#include "observe/observe.h"
#include "train/reducer.h"
#include "train/session.h"

/* How a run ends badly: the first cause, for the program to print. */
typedef struct ddp_ending {
    char message[512];
    /* Called from the control thread when a failed run has not left within a second; ends the process. */
    void (*expired)(void *ctx, int exit_code, const char *message);
    void *ctx;
} ddp_ending;

typedef struct ddp_trainer {
    ddp_ending *ending;
    ddp_session *s;
    ddp_group *group;
    ddp_communicator *comm;
    ddp_reducer *reducer;
    ddp_observer *observer; /* rank 0 only */
    ddp_loader *loader, *eval_loader;
    bool overlap, saving; /* saving: rank 0 has a checkpoint folder */

    /* Flat arenas of layout->elements floats, canonical f32, in bucket order. */
    float *params, *grads, *state1, *state2; /* states NULL where the optimiser has none */
    bool comm_memory;                        /* params and grads are the backend's memory */
    void *arena;                             /* activations, s->arena_bytes */
    ddp_bind bind;
    ddp_optim optim;

    uint64_t step, epoch, cursor; /* updates done; epoch in progress, from 0; micro-batches of it consumed */
    uint64_t start_step, start_epoch;
    uint64_t total_steps; /* planned for the whole run */
    uint64_t saved_step;  /* of the newest checkpoint, UINT64_MAX: none */
    double loss, first_step_s, eval_loss, eval_accuracy;
} ddp_trainer;

/* Runs it all and returns the exit code; ending->message says why it failed. Takes over the session's launch.listen_fd. */
int ddp_train(ddp_session *s, ddp_ending *ending);

/* The phase is the exit code if what follows fails on this rank. */
ddp_status ddp_trainer_step(ddp_trainer *t,
                            ddp_err *err);  /* one update; DDP_IN_PROGRESS: the epoch has no more batches */
void ddp_trainer_optimizer(ddp_trainer *t); /* fills t->optim from the config */
ddp_status ddp_trainer_evaluate(ddp_trainer *t, ddp_err *err);

/* Rank 0's parameters (and a checkpoint's optimiser state and position) on every rank. *done: the checkpoint is of a run
 * that is complete under this config. */
ddp_status ddp_trainer_restore(ddp_trainer *t, bool *done, ddp_err *err);
ddp_status ddp_trainer_save(ddp_trainer *t, ddp_err *err);
ddp_status ddp_trainer_hash(ddp_trainer *t, char sha256[DDP_SHA256_HEX],
                            ddp_err *err); /* parameters, state_dict order */

#endif
