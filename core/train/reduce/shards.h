/* train/reduce/shards.h -- the update in shards: each rank, or device, has the mean gradients, the optimiser's state
 * and the update of its shard of every bucket, and gives the new parameters to all. */
#pragma once

#include "train/trainer.h"

/* Sets t->reduce.shards where each rank is to update a shard of the parameters. */
ddp_status ddp_shards_open(ddp_trainer *t, ddp_err *err);
/* The same for the trainers of one process, which all have their parameters and gradients, each its own (`arenas` is
 * `count`) or all the same (1): sets that of all[own]. */
ddp_status ddp_shards_among(ddp_trainer *const *all, uint32_t count, uint32_t own, uint32_t arenas, ddp_err *err);
void ddp_shards_close(ddp_trainer *t);
/* Before the parameters are allocated: ranks are to update directly, and none of them ever writes a parameter but for
 * all, so that one copy of the parameters serves them. */
bool reduce_shards_need_one_copy(const ddp_trainer *t);
bool ddp_shards_direct(const ddp_trainer *t); /* ranks write into each other's memory */
/* Which shard of how many is this rank's; left as they are where there are none. */
void ddp_shards_own(const ddp_trainer *t, uint32_t *shard, uint32_t *of);
/* Direct. This rank's shards of all buckets, from and to all ranks: all have their gradients, none goes on before all
 * are done. *finite: whether these shards of the mean gradients are. With clipping ddp_shards_mean comes first. */
ddp_status ddp_shards_update(ddp_trainer *t, bool *finite, ddp_err *err);
/* Direct. This rank's shards of the mean gradients, written over its own gradients, and their squares measured. */
ddp_status ddp_shards_mean(ddp_trainer *t, ddp_err *err);
/* Direct, before any rank can begin another step. Bucket b of the mean gradients of all shards, into host memory `out`;
 * `part`: for as much again. */
ddp_status reduce_shards_read_mean(ddp_trainer *t, uint32_t b, float *out, float *part, ddp_err *err);
/* Not direct. The reducer has left this rank's shard of bucket b: updates it and sends the parameters to all. */
ddp_status ddp_shards_update_bucket(ddp_trainer *t, uint32_t b, ddp_err *err);
ddp_status ddp_shards_wait(ddp_trainer *t, ddp_err *err);                       /* until this rank has all parameters */
ddp_status ddp_shards_measure_bucket(ddp_trainer *t, uint32_t b, ddp_err *err); /* the squares of this rank's shard */
