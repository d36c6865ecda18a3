/* train/state/save.h -- a checkpoint of all ranks, and the hash of the parameters.
 *
 * With [checkpoint] async the step stops for a copy into memory, and rank 0's thread "ddp-save" writes that beside
 * training (checkpoint/writer.h); else rank 0 writes in the step. The trainer's thread owns that thread, and joins it
 * in ddp_trainer_save_close. */
#pragma once

#include "train/trainer.h"

/* Collective, before the first step: memory and thread for saves beside training, where the config wants them and the
 * memory is there; else saves stay in the step, and rank 0 says why. */
ddp_status ddp_trainer_save_open(ddp_trainer *t, ddp_err *err);
/* Collective; nothing where no checkpoints are saved, or this step's is. What is written beside training is not durable
 * when it returns; one that is still being written is waited for first. */
ddp_status ddp_trainer_save(ddp_trainer *t, ddp_err *err);
/* After a step: tells of a save that has become durable. One that has failed ends the run with exit code 8, or with
 * [checkpoint] on_error = warn a warning. */
ddp_status ddp_trainer_save_check(ddp_trainer *t, ddp_err *err);
/* Collective, at the end of a generation that saves nothing: what is being written is durable, or the run fails. */
ddp_status ddp_trainer_save_wait(ddp_trainer *t, ddp_err *err);
/* Collective, the last save of a run: as ddp_trainer_save, and it is durable. */
ddp_status ddp_trainer_save_last(ddp_trainer *t, ddp_err *err);
/* Before a state is loaded in place: what is being written becomes durable, and memory for saves beside training goes
 * back, which ddp_trainer_save_open takes again. */
ddp_status ddp_trainer_save_pause(ddp_trainer *t, ddp_err *err);
/* A save under way gets so long to become durable (INT64_MAX: as long as it takes), then it is given up, and nothing of
 * it stays. Before the folder's lock is released, and while the trainer's observer is there. */
void ddp_trainer_save_close(ddp_trainer *t, int64_t patience_ms);

/* Parameters, in state_dict's order. */
ddp_status ddp_trainer_hash(ddp_trainer *t, char sha256[DDP_SHA256_HEX], ddp_err *err);
