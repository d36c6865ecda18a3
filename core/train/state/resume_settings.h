/* train/state/resume_settings.h -- whether a checkpoint's position means the same in this run, and how it is counted
 * with another number of ranks. Rank 0, but for what is collective. */
#pragma once

#include "train/trainer.h"

/* Collective, before memory is allocated: the global batch stays what it was where the run goes on with another number
 * of ranks, and the config does not say otherwise. */
ddp_status ddp_trainer_keep_batch(ddp_trainer *t, ddp_err *err);
/* The same of one rank that looks at this checkpoint, and connects to nobody. */
ddp_status state_keep_batch_of(const ddp_trainer *t, const ddp_checkpoint *c, ddp_err *err);
/* The checkpoint's cursor in micro-batches of this run, and its micro-steps, so that no random numbers come twice. */
uint64_t state_cursor(const ddp_trainer *t, const ddp_checkpoint_meta *m);
uint64_t state_micro_steps(const ddp_trainer *t, const ddp_checkpoint_meta *m);
/* DDP_ERR_CONFIG where the checkpoint is of the middle of an epoch and this run would go on with other samples, or in
 * another order: both values, and what to do. Other settings that differ are one warning. */
ddp_status state_check_settings(const ddp_trainer *t, const ddp_checkpoint *c, ddp_err *err);
/* For a use of its weights. DDP_ERR_CONFIG where they are adapters whose result was multiplied by another factor, which
 * is not in the tensors. */
ddp_status state_check_adapters(const ddp_trainer *t, const ddp_checkpoint *c, ddp_err *err);
