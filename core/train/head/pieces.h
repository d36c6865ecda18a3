/* train/head/pieces.h -- what no rank has all of: the parameters of a divided output layer and their optimiser's state,
 * piece by piece between rank 0, which reads and writes files, and the ranks that have them.
 *
 * While rank 0 gets and puts pieces the others serve, until rank 0 is done. So rank 0 decides the order, and may end
 * early where a file cannot be read or written. Rank 0 has a piece of HEAD_PIECE elements besides its own classes. */
#pragma once

#include "train/head/head.h"
#include "train/state/tensors.h"

/* Rank 0; which: 0 parameters, 1 and 2 the optimiser's state. Elements of the arena, all of them of this layer. */
ddp_status head_get(ddp_trainer *t, uint32_t which, uint64_t first, uint64_t count, float *out, ddp_err *err);
ddp_status head_put(ddp_trainer *t, uint32_t which, uint64_t first, uint64_t count, const float *from, ddp_err *err);
ddp_status head_done(ddp_trainer *t, ddp_err *err);
/* The other ranks. */
ddp_status head_serve(ddp_trainer *t, ddp_err *err);

/* Whether data lie in an arena where the layer's are, which no rank has all of: which, and the element. */
bool head_finds(const ddp_trainer *t, const void *data, uint32_t *which, uint64_t *first);
/* To tensors of a save, of which the writer asks for pieces; nothing where the layer is whole. */
void head_set_reader(const ddp_trainer *t, ddp_views *v);

/* Rank 0: parameters as drawn, on all ranks those that they have. */
ddp_status head_draw(ddp_trainer *t, ddp_err *err);
/* Rank 0: a tensor of a checkpoint, to where head_finds() says. */
ddp_status head_load(ddp_trainer *t, const ddp_checkpoint *c, int part, const ddp_named_tensor *from, void *to,
                     ddp_err *err);
/* Collective. To all ranks from rank 0, all but this layer; `states`: of the optimiser too. */
ddp_status head_spread(ddp_trainer *t, bool states, ddp_err *err);
/* Collective: h->sha256 on rank 0, what ddp_trainer_hash() gives where one rank has all. */
ddp_status head_hash(ddp_trainer *t, ddp_err *err);
