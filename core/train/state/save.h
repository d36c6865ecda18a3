/* train/state/save.h -- a checkpoint of all ranks, and the hash of the parameters. */
#pragma once

#include "train/trainer.h"

/* Collective; nothing where no checkpoints are saved, or this step's is. */
ddp_status ddp_trainer_save(ddp_trainer *t, ddp_err *err);
/* Parameters, in state_dict's order. */
ddp_status ddp_trainer_hash(ddp_trainer *t, char sha256[DDP_SHA256_HEX], ddp_err *err);
