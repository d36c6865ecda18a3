/* train/reduce/buckets.h -- an update by collectives: bucket after bucket, in index order on all ranks, as soon as
 * each is there.
 *
 * Every rank updates all of a bucket, or, by shards ([ddp] zero = 1), its shard, and sends the parameters to all.
 * With clipping all buckets come first: the norm of all gradients is needed before the first of them can be used. */
#pragma once

#include "train/trainer.h"

ddp_status ddp_bucket_send(ddp_trainer *t, uint32_t b, ddp_err *err); /* its gradients are final */

ddp_status reduce_bucket_wait(ddp_trainer *t, ddp_step *step, uint32_t b, ddp_err *err); /* until it has been reduced */

/* ---- slots of a way -------------------------------------------------------------------------------------------- */
ddp_status ddp_buckets_update(ddp_trainer *t, ddp_step *step, ddp_err *err);
ddp_status ddp_bucket_reduced(ddp_trainer *t, ddp_step *step, uint32_t b, ddp_err *err);
ddp_status ddp_bucket_reduced_clip(ddp_trainer *t, ddp_step *step, uint32_t b, ddp_err *err);
ddp_status ddp_bucket_reduced_last(ddp_trainer *t, ddp_step *step, uint32_t b, ddp_err *err);
/* Each rank updates all parameters. */
ddp_status ddp_bucket_update(ddp_trainer *t, uint32_t b, ddp_err *err);
ddp_status ddp_bucket_measure(ddp_trainer *t, uint32_t b, ddp_err *err);
/* It has all squares and all parameters already. */
ddp_status ddp_buckets_nothing(ddp_trainer *t, ddp_err *err);
