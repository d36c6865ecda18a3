/* train/local/pipeline.h -- parallel = model: the layers of one model on several devices of this process, as the model places them.
 *
 * Each device is a stage, with the program that ddp_stages_create has cut for it; stage 0 is on the trainer's thread, each other one
 * on a thread "ddp-stage-N". The micro-batches of a step go through the stages one behind the other, each stage doing forward
 * and backward in turn as soon as it has what it needs ("1F1B": Narayanan et al., PipeDream, 2019; Megatron-LM, 2021): with P stages,
 * stage s has at most P - s micro-batches in flight, each with activations of its own. What passes between two stages goes through
 * a channel, in memory of the receiver's.
 *
 * Parameters, gradients and states are the trainer's arenas: each stage touches the slices of its layers. A parameter of two
 * stages gets the gradient of the earlier one behind the arena, to be added when all are done: the order is always the same, and
 * so are the bits. The update is shared out over all devices. Evaluation runs the whole program on device 0.
 *
 * All calls come from the trainer's thread. */
#ifndef DDP_LOCAL_PIPELINE_H
#define DDP_LOCAL_PIPELINE_H

#include "train/local/channel.h"
#include "train/local/device_group.h"

/* Behind the trainer's own memory: sets t->pipeline, opens the other devices; nothing where the model is not divided up. */
ddp_status ddp_pipeline_open(ddp_trainer *t, ddp_err *err);
/* False where a stage's thread has not come back: it and what it uses are left until the process ends. */
bool ddp_pipeline_close(ddp_trainer *t);

/* The next `micros` micro-batches of the epoch; gradients are in the trainer's arena then. Adds loss x samples, samples, and
 * the time for which stage 0 has waited for data. */
ddp_status ddp_pipeline_run(ddp_trainer *t, uint64_t micros, double *loss_sum, double *samples, int64_t *data_ns,
                            ddp_err *err);

/* ---- for pipeline.c and stage.c --------------------------------------------------------------------------------------------- */
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
    /* of the step: set before the stages begin */
    uint64_t micros;
    ddp_random random; /* of the first micro-batch */
    /* by stage 0 */
    double samples;
    int64_t data_ns;
};

/* On the stage's thread. Programs and memory; then all micro-batches of a step. Where another stage has failed, it comes back early,
 * and without an error. */
ddp_status ddp_stage_open(ddp_stage *g, ddp_err *err);
void ddp_stage_close(ddp_stage *g);
ddp_status ddp_stage_run(ddp_stage *g, ddp_err *err);

#endif
