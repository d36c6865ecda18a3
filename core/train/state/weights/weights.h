/* train/state/weights/weights.h -- weights that another program, or another run, has saved. Rank 0. */
#pragma once

#include "train/trainer.h"

/* What a run begins with that no checkpoint continues: drawn, or of the files of [checkpoint] and [lora] init_from, a
 * safetensors file or a folder with one, by PyTorch's names. */
ddp_status state_trainer_first(ddp_trainer *t, ddp_err *err);
/* Whether these files are there and fit, of a trainer without arenas, which reads no values. */
ddp_status weights_check_first(ddp_trainer *t, ddp_err *err);
/* What lies below the adapters of a checkpoint, before these are read: nothing where the model has none.
 * DDP_ERR_CONFIG: the checkpoint at `path` is of another base, or the one has adapters and the other has not. */
ddp_status state_trainer_base(ddp_trainer *t, const char *path, const ddp_checkpoint_meta *meta, ddp_err *err);
/* Of a run that does not train: those that launch.weights names, a checkpoint, a folder of such, or a file; else what a
 * run of this config would go on from, or start with. */
typedef struct ddp_weights {
    char path[512];
    ddp_checkpoint_meta meta; /* zero where it was no checkpoint */
} ddp_weights;
ddp_status ddp_trainer_read_weights(ddp_trainer *t, ddp_weights *out, ddp_err *err);
