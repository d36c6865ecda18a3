/* train/state/buffer_sync.h -- what the model keeps and does not train, and the random numbers of a step. */
#pragma once

#include "train/trainer.h"

/* Zero; ddp_trainer_restore fills them. */
ddp_status ddp_trainer_buffers_open(ddp_trainer *t, ddp_err *err);
/* A training program has run. */
void ddp_trainer_buffers_count(ddp_trainer *t);
/* With non_finite = skip: as they are before a step, and back to that after its `micros` micro-batches, whose update is
 * left out: a NaN would stay in a running mean for ever. */
ddp_status ddp_trainer_buffers_keep(ddp_trainer *t, ddp_err *err);
ddp_status ddp_trainer_buffers_undo(ddp_trainer *t, uint64_t micros, ddp_err *err);
/* Of the micro-step that is next of one of the rank's shares: differs between shares and micro-steps, and not between a
 * resumed run and one that was never cut. */
ddp_random ddp_trainer_random(const ddp_trainer *t, uint32_t share);
/* Rank 0's, or those of rank `root`, on every rank; and what i64 buffers count. Collective. */
ddp_status ddp_trainer_broadcast_buffers(ddp_trainer *t, ddp_err *err);
ddp_status ddp_trainer_broadcast_buffers_of(ddp_trainer *t, uint32_t root, ddp_err *err);
ddp_status ddp_trainer_take_counts(ddp_trainer *t, int32_t root, ddp_err *err);
/* In state_dict's order; "" where there are none. */
ddp_status ddp_trainer_hash_buffers(ddp_trainer *t, char sha256[DDP_SHA256_HEX], ddp_err *err);
