/* data/split.h -- how the samples of an epoch become steps and micro-batches where ranks need not have equally many.
 *
 * Step k has the samples at [k * global, (k + 1) * global) of the epoch's order, whatever the number of ranks is, and
 * the last step what is left. The sample at position p is number p / world of rank p % world, as with
 * torch.utils.data.DistributedSampler; so the parts of a step differ by one sample at most. All ranks cut their parts
 * into equally many micro-batches, again as even as they can be; some may be empty. */
#pragma once

#include "base/base.h"

typedef struct ddp_split {
    uint64_t total;  /* samples of an epoch; 0: ranks have equally many, and each cuts its own into batches */
    uint64_t global; /* samples of a step */
    uint64_t batch;  /* of a micro-batch at most */
    uint64_t world;  /* ranks that the samples are shared out to */
} ddp_split;

/* The first of `count` items that part `part` has, of `parts` as even as they can be, the first ones the longer ones.
 */
static inline uint64_t ddp_part_begin(uint64_t count, uint64_t parts, uint64_t part)
{
    return count / parts * part + DDP_MIN_OF(count % parts, part);
}

/* How many of the first `position` samples are rank `rank`'s. */
static inline uint64_t ddp_split_before(const ddp_split *s, uint64_t position, uint64_t rank)
{
    return position / s->world + (position % s->world > rank);
}

uint64_t ddp_split_steps(const ddp_split *s);                  /* of an epoch */
uint64_t ddp_split_samples(const ddp_split *s, uint64_t step); /* of all ranks */
uint64_t ddp_split_micros(const ddp_split *s, uint64_t step);  /* micro-batches of each rank */
uint64_t ddp_split_batches(const ddp_split *s);                /* micro-batches of an epoch */
/* Samples [*first, *end) of rank `rank` are micro-batch `batch` of its epoch. */
void ddp_split_range(const ddp_split *s, uint64_t rank, uint64_t batch, uint64_t *first, uint64_t *end);
