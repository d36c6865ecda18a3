/* train/state/optim_state.h -- the optimiser's state, and the whole of it for a checkpoint. */
#pragma once

#include "train/trainer.h"

ddp_status ddp_states_open(ddp_trainer *t, ddp_err *err);
/* Memory for the whole of a state that is in shares: t->mem.whole on rank 0. */
ddp_status states_whole(ddp_trainer *t, ddp_err *err);
void ddp_states_free(ddp_trainer *t);
/* Collective, between those two: all ranks' shards, in their staging buffers, to rank 0's t->mem.whole; and from
 * there, or from the staging buffers of rank `root`, where each rank has all of it, to every rank's, with a hash of
 * what came. */
ddp_status states_gather(ddp_trainer *t, ddp_err *err);
ddp_status states_spread(ddp_trainer *t, uint32_t root, uint64_t *hash, ddp_err *err);
