/* train/reduce/clip.h -- [optimizer] clip_norm: torch.nn.utils.clip_grad_norm_ over all parameters' mean gradients,
 * 2-norm.
 *
 * With [train] non_finite = skip the norm is taken without a limit too: where it is finite, so is every gradient, all
 * ranks know that, and no parameter has been touched yet.
 *
 * The sum of squares is taken in double by bucket and by rank's shard of it, and added in the order of the buckets,
 * so that it has the same bits whether one rank looks at all of a bucket or each at its own shard. */
#pragma once

#include "train/trainer.h"

struct ddp_clip {
    double max_norm; /* INFINITY: nothing is scaled */
    double *squares; /* [rank][bucket] */
    /* Of a device that runs by itself: the sums that it still owes, and their positions in `squares`. NULL: of no
     * such device. */
    ddp_flat_result *owed;
    uint32_t *positions, owed_count;
};

/* A rank's shard of bucket b, in elements, without the scalars after the last parameter; *first: of the arena. */
uint64_t ddp_shard_of(const ddp_layout *l, uint32_t b, uint32_t rank, uint32_t world, uint64_t *first);

/* Nothing where gradients are not clipped and no step is left out. */
ddp_status ddp_clip_open(ddp_trainer *t, ddp_err *err);
void ddp_clip_close(ddp_trainer *t);
/* The reduced gradients of bucket b are there: those of the shards from `first` to `end` - 1. Waits for no device
 * that runs by itself. */
ddp_status reduce_clip_measure(ddp_trainer *t, uint32_t b, uint32_t first, uint32_t end, ddp_err *err);
/* Collective: where each rank has measured its own shards alone. */
ddp_status ddp_clip_gather(ddp_trainer *t, ddp_err *err);
/* All squares are known: scales t->optim.grad_scale, which holds the scale of the gradients, by min(1, max_norm /
 * (norm + 1e-6)). *finite false: the gradients are not, and nothing is scaled. */
ddp_status reduce_clip_apply(ddp_trainer *t, bool *finite, ddp_err *err);
