#pragma once
/* checkpoint/shards.h -- the optimiser's state of a checkpoint in shards, each a file that the rank wrote which has it:
 * step-N/optimizer-00001-of-00004.safetensors. Private to checkpoint/ and the trainer's save.
 *
 * A shard has pieces of tensors, flat: "fc1.weight.exp_avg:4096" are the elements from 4096 on. Their shape is that of
 * the parameter. While it is written a shard lies beside the folder of the step, as step-N.TOKEN-2.part, and rank 0
 * moves all into the folder. Each rendezvous has another token, so that a process which was left behind, by an earlier
 * start or before a loss, writes to another name. */
#include "checkpoint/manifest.h"

/* Another rank than 0: writes and flushes its shard, and tells rank 0, also of a failure. */
ddp_status checkpoint_shard_save(const char *dir, const ddp_checkpoint_contents *what, ddp_err *err);
/* Removes it where rank 0 has not taken it. */
void checkpoint_shard_drop(const char *dir, uint64_t step, uint64_t token, uint32_t shard);

/* Rank 0: waits for the shards of the others and moves them into `folder`; facts[1 ..] are filled. */
ddp_status checkpoint_shards_take(const char *dir, const char *folder, const ddp_checkpoint_contents *what,
                                  ddp_file_facts *facts, ddp_err *err);
/* Rank 0: removes what other saves than this one have left; NULL: than any. */
ddp_status checkpoint_shards_sweep(const char *dir, const ddp_checkpoint_contents *but, ddp_err *err);

/* Maps the shards and reads their headers. Every element must be there once, and of a parameter of `model`: else
 * DDP_ERR_DATA. Nothing of their data is in memory before it is copied. */
ddp_status checkpoint_shards_open(const char *folder, const ddp_manifest *m, const ddp_safetensors *model,
                                  ddp_shard_files **out, ddp_err *err);
void checkpoint_shards_close(ddp_shard_files *s); /* takes NULL */
/* The tensors that they are pieces of, by name and without data. */
size_t checkpoint_shards_count(const ddp_shard_files *s);
const ddp_named_tensor *checkpoint_shards_at(const ddp_shard_files *s, size_t i);
const ddp_named_tensor *checkpoint_shards_find(const ddp_shard_files *s, const char *name);
void checkpoint_shards_copy(const ddp_shard_files *s, const ddp_named_tensor *t, void *to); /* t: one of those */
ddp_status checkpoint_shards_pieces(const ddp_shard_files *s, const ddp_named_tensor *t, uint64_t most,
                                    checkpoint_take_piece take, void *ctx, ddp_err *err);
/* All of them in memory, as the file of the optimiser would be. */
ddp_status checkpoint_shards_join(const char *folder, const ddp_shard_files *s, ddp_safetensors **out, ddp_err *err);
