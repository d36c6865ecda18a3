/* infer/model.h -- a trained model in a session that trains nothing: its parameters and buffers, read from a
 * checkpoint or a safetensors file. All from one thread. */
#pragma once

#include "train/state/weights/weights.h"
#include "train/trainer.h"

/* A session that infers, for one process alone: over what the checkpoint says of the data that the model was trained
 * on, or, where it says nothing, over [data]. `weights` as of launch.weights; `who` is for messages; `pool` outlives
 * the session. */
ddp_status infer_session_open(ddp_session *s, ddp_log *log, ddp_config *config, const char *weights, const char *who,
                              ddp_pool *pool, ddp_err *err);

typedef struct infer_model {
    ddp_trainer t; /* memory alone; t.s is the session */
    ddp_weights weights;
} infer_model;

/* Allocates and reads, of a zeroed model with t.s. In any case infer_model_close. The error has the exit code. */
ddp_status infer_model_read(infer_model *m, ddp_err *err);
/* The same, and leaves out what can be computed now: a batch norm behind a convolution becomes part of its weight and
 * bias. For programs on which ddp_program_fold has been called. */
ddp_status infer_model_read_folded(infer_model *m, const ddp_fold *folds, uint32_t count, ddp_err *err);
void infer_model_close(infer_model *m);
