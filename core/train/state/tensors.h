/* train/state/tensors.h -- the tensors of a run by PyTorch's names, over the arenas that hold them: what a checkpoint
 * writes, reads and hashes. */
#pragma once

#include "train/trainer.h"

typedef struct ddp_views {
    ddp_named_tensor *tensors;
    void **data; /* data[i] is tensors[i].data, to be written */
    size_t count;
    ddp_pool pool;
} ddp_views;

/* Where the host finds a run's state: in the arenas, or in a copy of them. */
typedef struct ddp_state_arenas {
    float *params, *buffers, *states[2], *ema, *outer_momentum; /* the whole of each; NULL: there is none */
    int64_t *counts;
} ddp_state_arenas;

/* The trainer's own, as the host sees them. */
ddp_state_arenas state_arenas(const ddp_trainer *t);
/* Of a model with adapters: what a checkpoint holds, which is what is trained; what its base has, which is all but the
 * adapters. Of another model each is all of it. Buffers are always among them. */
typedef enum state_which { STATE_ALL, STATE_SAVED, STATE_BASE } state_which;
/* Parameters and buffers in state_dict's order; of arenas that are NULL names and shapes, without data. */
ddp_status state_model_views(const ddp_trainer *t, const ddp_state_arenas *a, state_which which, ddp_views *out,
                             ddp_err *err);
/* Of what is not trained beside adapters, by name, as it is in f32 or as a run that rounds it has it; "" where there
 * are none. */
ddp_status state_base_hash(const ddp_trainer *t, const float *params, bool rounded, char hex[DDP_XXH128_HEX],
                           ddp_err *err);
float state_rounded(float x); /* to the nearest bf16, ties to even */
/* The same names, of the average of the parameters; none where there is none. */
ddp_status state_ema_views(const ddp_trainer *t, const ddp_state_arenas *a, state_which which, ddp_views *out,
                           ddp_err *err);
/* Of the optimiser: "fc1.weight.momentum_buffer" or ".exp_avg" and ".exp_avg_sq" for each parameter. */
ddp_status state_views(const ddp_trainer *t, const ddp_state_arenas *a, ddp_views *out, ddp_err *err);
/* The pieces of these that this rank has, where it has a shard of every bucket: `own` are its arenas of state, and the
 * pieces are "fc1.weight.exp_avg:START", as checkpoint/shards.h has them. */
ddp_status state_shard_views(const ddp_trainer *t, float *const own[2], ddp_views *out, ddp_err *err);
/* Of local steps: NAME.outer_momentum, and rank1.NAME.exp_avg and so on of the ranks whose states t->mem.outer has. */
ddp_status state_local_views(const ddp_trainer *t, const ddp_state_arenas *a, ddp_views *out, ddp_err *err);
/* Rank 0, between gathering or allocating and freeing: what the hook of every rank remembers, "rank1.bucket0.error",
 * and once what is the same on all, "bucket0.q". None where there is nothing. */
ddp_status state_hook_views(const ddp_trainer *t, ddp_views *out, ddp_err *err);
void state_views_free(ddp_views *v); /* also one that was not made */

/* "f32 24x12", "absent" for NULL */
void state_tensor_text(const ddp_named_tensor *t, char *buf, size_t capacity);
bool state_tensor_alike(const ddp_named_tensor *a, const ddp_named_tensor *b); /* dtype and shape */
uint64_t state_tensor_elements(const ddp_named_tensor *t);
