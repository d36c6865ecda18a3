/* train/local/stage.h -- one stage of a model on its device. See pipeline.h for what the stages do together. */
#pragma once

#include "train/local/channel.h"
#include "train/trainer.h"

/* From one stage to another: what crosses, in the order of the table; forward where from < to. */
typedef struct ddp_link {
    uint32_t from, to, first, count; /* crossings first .. first + count - 1, the same for every batch size */
    uint32_t slots;
    uint64_t slot_bytes;
    char *memory; /* slots x slot_bytes, of the receiver's device */
    ddp_channel *channel;
} ddp_link;

/* A stage's program for one batch size. */
typedef struct ddp_stage_program {
    ddp_lowered *lowered;
    ddp_planned *planned;
    ddp_exec *exec;           /* NULL until compiled */
    ddp_instance **instances; /* by slot; NULL until it is first due */
    uint32_t split;           /* kernels before it are the forward pass */
} ddp_stage_program;

typedef struct ddp_stage {
    struct ddp_pipeline *pipe;
    uint32_t number, slots; /* slots: micro-batches in flight */
    ddp_session *s;         /* with the stage's device */
    ddp_trainer *t;
    ddp_stage_program programs[DDP_MAX_VARIANTS]; /* by variant of the trainer's session; those that train */
    void **arenas;                                /* by slot */
    void ***inputs;                               /* by slot: fields of its batch */
    double loss_sum;                              /* of the step; of the stage that has the loss */
    bool cancelled;                               /* a wait has ended because another stage failed */
} ddp_stage;

struct ddp_pipeline {
    ddp_trainer *t;
    uint32_t count;
    ddp_stage *stages;
    ddp_link *links;
    uint32_t link_count;
    ddp_step *step; /* in hand: its micros are set before the stages begin; stage 0 adds what it has read and waited */
    ddp_random random; /* of the first micro-batch */
};

/* On the stage's thread. Programs and memory; then all micro-batches of a step. Where another stage has failed, it
 * comes back early, and without an error. */
ddp_status local_stage_open(ddp_stage *g, ddp_err *err);
void local_stage_close(ddp_stage *g);
ddp_status local_stage_run(ddp_stage *g, ddp_err *err);
