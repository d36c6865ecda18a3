/* train/state/memory.h -- a device's arenas as the host sees them: the arenas themselves where the device's memory is
 * the host's, else staging buffers in page-locked memory, which are brought up to date by name. Nothing else of the
 * trainer reads or writes through a pointer to the device's memory. The trainer's thread, or that of a device of a
 * group on its own trainer. */
#pragma once

#include "train/trainer.h"

enum { DDP_ARENA_PARAMS = 1, DDP_ARENA_BUFFERS = 2, DDP_ARENA_STATES = 4, DDP_ARENA_EMA = 8, DDP_ARENA_OUTER = 16 };

uint64_t states_elements(const ddp_trainer *t); /* of each arena of this rank */
/* Of the parameters, and of their average, that a checkpoint has: the first of the arena. */
uint64_t state_saved_elements(const ddp_trainer *t);
/* t->mem.host has the buffers named in `which` from now on, of those arenas that there are; repeatable. What they
 * hold is not said. */
ddp_status ddp_staging_open(ddp_trainer *t, uint32_t which, ddp_err *err);
void ddp_staging_close(ddp_trainer *t);
/* From the device to the staging buffers, and back. state_pull opens them where needed. */
ddp_status state_pull(ddp_trainer *t, uint32_t which, ddp_err *err);
ddp_status ddp_push(ddp_trainer *t, uint32_t which, ddp_err *err);

/* base_map.c. Collective, before the parameters are allocated: where ranks of a host share what is not trained,
 * t->mem.params is a mapping of this process's, of t->mem.mapped_bytes; else both stay 0. */
ddp_status state_base_map(ddp_trainer *t, ddp_err *err);
void state_base_unmap(ddp_trainer *t);
const void *state_base_half(const ddp_trainer *t); /* where programs have what is held in bf16; NULL: nothing is */
/* Collective, once the parameters are there and before a program runs: where the device takes it so, what rounds is
 * held in bf16, in place, and the memory behind it is given back. */
ddp_status state_base_pack(ddp_trainer *t, ddp_err *err);
/* `count` elements of parameter p from element `at` on, in f32, whatever it is held in. host.params is current. */
void state_param_copy(const ddp_trainer *t, uint32_t p, uint64_t at, uint64_t count, float *out);

/* Of `count` elements of device memory; to be compared with others of this function alone. */
ddp_status ddp_hash_floats(ddp_trainer *t, const float *x, uint64_t count, uint64_t *hash, ddp_err *err);
/* x *= by, device memory, done when it returns; by 0 sets zeros whatever x is. */
ddp_status ddp_scale_floats(ddp_trainer *t, float *x, uint64_t count, double by, ddp_err *err);
