/* train/state/weights.h -- weights that another program, or another run, has saved. Rank 0. */
#pragma once

#include "train/trainer.h"

/* Parameters and buffers of a safetensors file, or of a checkpoint's folder, by PyTorch's names. */
ddp_status state_trainer_init_from(ddp_trainer *t, const char *path, ddp_err *err);
/* Of a run that does not train: those that launch.weights names, a checkpoint, a folder of such, or a file; else what a
 * run of this config would go on from, or start with. */
typedef struct ddp_weights {
    char path[512];
    ddp_checkpoint_meta meta; /* zero where it was no checkpoint */
} ddp_weights;
ddp_status ddp_trainer_read_weights(ddp_trainer *t, ddp_weights *out, ddp_err *err);
