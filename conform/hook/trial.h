/* conform/hook/trial.h -- an opened hook with the buckets that it is tested by. */
#pragma once

#include "conform/hook/types.h"

/* `index` of the shared exchanges; `later`: structs are larger than the plugin knows. All ranks. False: it has
 * failed. */
bool hook_instance_open(ddp_hook_trial *t, ddp_rank_process *a, uint32_t index, bool later);
void hook_instance_close(ddp_hook_trial *t);
/* Opens with gradients of dtype i32 and returns what `open` returns; nothing is left open. */
ddp_status hook_open_i32(ddp_rank_process *a, ddp_err *err);
/* This rank's gradients, random in -1 .. 1, the same for the same seed; `zero`: all 0. */
void hook_fill(ddp_hook_trial *t, uint64_t seed, bool zero);
/* An update of what `fill` has left: checks that nothing outside is written, gaps stay 0, and all ranks end with the
 * same bits. */
bool hook_update(ddp_hook_trial *t, ddp_hook_way way);
uint64_t hook_bits(const ddp_hook_trial *t); /* hash of the results */
uint64_t hook_count(uint32_t bucket);        /* elements */
/* Tensors of a bucket: where tensor i lies; false after the last. */
bool hook_checked_tensor(uint32_t bucket, uint32_t i, const char **name, uint64_t *offset, uint64_t *elements);
bool hook_next(ddp_hook_trial *t, uint64_t seed, ddp_hook_way way); /* `fill` and `update` */
uint32_t hook_instance_states(const ddp_hook_trial *t, const ddp_hook_state **out);
bool hook_remembers(const ddp_hook_trial *t); /* a rank carries what it could not send to the next update */
