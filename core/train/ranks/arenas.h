/* train/ranks/arenas.h -- with parallel = pipeline: each rank has the parameters, gradients and optimiser state of its
 * stage alone.
 *
 * The arenas are those of the whole model, so that every offset is what it is elsewhere, but only address space: a page
 * becomes memory when it is touched, and a rank touches the slices of its stage. Rank 0 has all of it for a moment,
 * where a run starts or a checkpoint is written. The trainer's thread; host memory. */
#pragma once

#include "train/trainer.h"

bool ranks_are_stages(const ddp_trainer *t);
/* That, or an output layer that is divided (train/head): arenas are address space of the whole model. */
bool arenas_are_mapped(const ddp_trainer *t);
/* Sets params, grads and states of t->mem; close unmaps them. */
ddp_status ranks_arenas_open(ddp_trainer *t, ddp_err *err);
void ranks_arenas_close(ddp_trainer *t);

/* Collective, which: DDP_ARENA_PARAMS, DDP_ARENA_STATES. From rank 0, which has all of it, to every rank that of its
 * stage; and from the first replica of every stage to rank 0. */
ddp_status ranks_arenas_spread(ddp_trainer *t, uint32_t which, ddp_err *err);
ddp_status ranks_arenas_collect(ddp_trainer *t, uint32_t which, ddp_err *err);
/* Rank 0 gives back the memory of what is not its stage's. */
void ranks_arenas_drop(ddp_trainer *t);
/* Collective. Every stage's running statistics to rank 0; and those of a stage's first replica to the others of it. */
ddp_status ranks_buffers_collect(ddp_trainer *t, ddp_err *err);
ddp_status ranks_buffers_broadcast(ddp_trainer *t, ddp_err *err);
