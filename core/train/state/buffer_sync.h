/* train/state/buffer_sync.h -- what the model keeps and does not train, and the random numbers of a step. */
#pragma once

#include "train/trainer.h"

/* Zero; ddp_trainer_restore fills them. */
ddp_status ddp_trainer_buffers_open(ddp_trainer *t, ddp_err *err);
/* A training program has run. */
void ddp_trainer_buffers_count(ddp_trainer *t);
/* Of the micro-step that is next: differs between ranks and micro-steps, and not between a resumed run and one that
 * was never cut. */
ddp_random ddp_trainer_random(const ddp_trainer *t);
/* Rank 0's on every rank; collective. */
ddp_status ddp_trainer_broadcast_buffers(ddp_trainer *t, ddp_err *err);
/* In state_dict's order; "" where there are none. */
ddp_status ddp_trainer_hash_buffers(ddp_trainer *t, char sha256[DDP_SHA256_HEX], ddp_err *err);
