/* train/state/local_states.h -- of local steps: what a checkpoint holds beside rank 0's state, which is the momentum of
 * the outer steps and the optimiser's states of the other ranks. On its way to rank 0 and back it goes as what hooks
 * remember does: piece by piece, a broadcast from the rank that has it. Nothing where there are no local steps.
 *
 * All on the trainer's thread. */
#pragma once

#include "train/trainer.h"

/* What a checkpoint has of it. */
typedef struct state_local_found {
    int32_t momentum, states;
} state_local_found;

/* Elements of memory that _hold takes on rank 0. */
uint64_t state_local_elements(const ddp_trainer *t);
/* Memory for the states of the other ranks on rank 0, and for a piece of one on the others; freed by _drop. */
ddp_status state_local_hold(ddp_trainer *t, ddp_err *err);
void state_local_drop(ddp_trainer *t);
/* Collective, between those two: the states of all ranks to what rank 0 holds. */
ddp_status state_local_gather(ddp_trainer *t, ddp_err *err);
/* Rank 0: what the checkpoint has, into the staging buffer and what is held. With another number of ranks each begins
 * with the states of rank 0, which is said. */
ddp_status state_local_fill(ddp_trainer *t, const ddp_checkpoint *c, state_local_found *found, ddp_err *err);
/* Collective, once all have the states of rank 0: what rank 0 has found, where it belongs. */
ddp_status state_local_spread(ddp_trainer *t, const state_local_found *found, ddp_err *err);
