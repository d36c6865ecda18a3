/* train/reduce/hook_state.h -- what the hooks of all ranks remember, on rank 0 for a checkpoint. */
#pragma once

#include "base/base.h"
#include <ddpengine/hook.h>

typedef struct ddp_hooked ddp_hooked;

/* What this rank's hook remembers; 0: nothing. */
uint32_t ddp_hooked_states(const ddp_hooked *h, const ddp_hook_state **out);
/* What every rank's hook remembers, for a checkpoint. Memory for it on rank 0 of `world` ranks, and of a piece of
 * it on the others; freed by _drop, or by close. */
ddp_status ddp_hooked_hold(ddp_hooked *h, ddp_err *err);
void ddp_hooked_drop(ddp_hooked *h);
float *ddp_hooked_held(const ddp_hooked *h, uint32_t rank, uint32_t state); /* rank 0: its elements */
/* Collective: from every rank to what rank 0 holds, and back. */
ddp_status ddp_hooked_gather(ddp_hooked *h, ddp_err *err);
ddp_status ddp_hooked_spread(ddp_hooked *h, ddp_err *err);
