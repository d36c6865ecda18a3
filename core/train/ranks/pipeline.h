/* train/ranks/pipeline.h -- parallel = pipeline: the stages of one model are ranks, on one host or several, and there
 * may be several replicas of each stage.
 *
 * A rank runs its stage as parallel = model does on a thread (local/stage.h): the same programs, order and bits. What
 * passes between two stages goes through a link of ranks/link.h. Ranks count stage by stage, in each the replicas: the
 * gradients of a stage are reduced among its replicas, which are neighbours and so mostly of one host.
 *
 * A step ends with one message among all ranks, which brings the loss, what it is a mean over, whether all is finite,
 * and the squares of a clipped norm. Each rank then updates its stage. Evaluation passes through the stages too.
 *
 * All calls come from the trainer's thread. */
#pragma once

#include "train/local/stage.h"

typedef struct ddp_rank_pipeline {
    ddp_pipeline pipe;
    ddp_stage stage;
    ddp_communicator *replicas; /* of this stage; NULL: there is one */
    uint64_t *tickets;          /* by bucket, of its reduction */
    double *sums;               /* DDP_EXTRA, and the squares of a norm by rank's shard and bucket */
    uint64_t squares;           /* how many those are; 0: no norm is taken */
    uint64_t evaluated;         /* batches of the evaluation */
} ddp_rank_pipeline;

/* After the trainer's own memory: sets t->local.ranks and connects the stages; nothing where the model is not cut over
 * ranks. */
ddp_status ddp_rank_pipeline_open(ddp_trainer *t, ddp_err *err);
/* False where a queue thread has not come back: it and what it uses are left until the process ends. */
bool ddp_rank_pipeline_close(ddp_trainer *t);

/* ---- slots of a way -------------------------------------------------------------------------------------------- */
ddp_status ranks_micro_steps(ddp_trainer *t, ddp_step *step, ddp_err *err);
ddp_status ranks_update(ddp_trainer *t, ddp_step *step, ddp_err *err);
ddp_status ranks_check_replicas(ddp_trainer *t, ddp_err *err);

/* All batches of this rank's share through all stages: adds to sums what this stage has of them. */
ddp_status ranks_evaluate(ddp_trainer *t, ddp_sums *sums, ddp_err *err);
bool ranks_has_bucket(const ddp_trainer *t, uint32_t b); /* arenas.c: it is of this stage */
