/* train/local/pipeline.h -- parallel = model: the layers of one model on several devices of this process, as the
 * model places them.
 *
 * Each device is a stage, with the program that ddp_stages_create has cut for it; stage 0 is on the trainer's thread,
 * each other one on a thread "ddp-stage-N". The micro-batches of a step go through the stages one after the other,
 * each stage doing forward and backward in turn as soon as it has what it needs ("1F1B": Narayanan et al., PipeDream,
 * 2019; Megatron-LM, 2021): with P stages, stage s has at most P - s micro-batches in flight, each with activations
 * of its own. What passes between two stages goes through a channel, in memory of the receiver's.
 *
 * Parameters, gradients and states are the trainer's arenas: each stage touches the slices of its layers. A parameter
 * of two stages gets the gradient of the earlier one after the end of the arena, to be added when all are done: the
 * order is always the same, and so are the bits. The update is divided among all devices. Evaluation runs the whole
 * program on device 0.
 *
 * All calls come from the trainer's thread. */
#pragma once

#include "train/trainer.h"

/* After the trainer's own memory: sets t->local.pipeline, opens the other devices; nothing where the model is not
 * divided. */
ddp_status ddp_pipeline_open(ddp_trainer *t, ddp_err *err);
/* False where a stage's thread has not come back: it and what it uses are left until the process ends. */
bool ddp_pipeline_close(ddp_trainer *t);

/* A way's micro_steps. */
ddp_status ddp_pipeline_micro_steps(ddp_trainer *t, ddp_step *step, ddp_err *err);
