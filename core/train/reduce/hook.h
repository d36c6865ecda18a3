/* train/reduce/hook.h -- the hook of a run: a plugin that stands between a bucket's gradients and the wire.
 *
 * The trainer's thread opens, compresses, decompresses and closes; the queue thread exchanges. */
#ifndef DDP_REDUCE_HOOK_H
#define DDP_REDUCE_HOOK_H

#include "comm/communicator.h"
#include "train/measure/trace.h"

typedef struct ddp_hooked ddp_hooked;

/* Whether a backend can do what the hook asks of the group; the error names what is missing. */
ddp_status ddp_hook_check(const ddp_loaded *hook, const ddp_loaded *backend, ddp_err *err);

/* `grads` is the gradient arena. Session, communicator, arena and trace outlive it. */
ddp_status ddp_hooked_open(ddp_session *s, ddp_communicator *c, float *grads, ddp_trace *trace, ddp_hooked **out,
                           ddp_err *err);
void ddp_hooked_close(ddp_hooked *h);
/* Bucket b's gradients are final: compresses them and queues the exchange. `update` counts from 1. */
ddp_status ddp_hooked_launch(ddp_hooked *h, uint32_t b, uint64_t update, uint64_t *ticket, ddp_err *err);
/* The exchange is done: leaves the mean in the arena. */
ddp_status ddp_hooked_finish(ddp_hooked *h, uint32_t b, ddp_err *err);

/* What this rank's hook remembers; 0: nothing. */
uint32_t ddp_hooked_states(ddp_hooked *h, const ddp_hook_state **out);
uint32_t ddp_hooked_version(const ddp_hooked *h);

/* What every rank's hook remembers, for a checkpoint (hookstate.c). Memory for it on rank 0 of `world` ranks, and of a piece of
 * it on the others; freed by _drop, or by close. */
ddp_status ddp_hooked_hold(ddp_hooked *h, ddp_err *err);
void ddp_hooked_drop(ddp_hooked *h);
float *ddp_hooked_held(const ddp_hooked *h, uint32_t rank, uint32_t state); /* rank 0: its elements */
/* Collective: from every rank to what rank 0 holds, and back. */
ddp_status ddp_hooked_gather(ddp_hooked *h, ddp_err *err);
ddp_status ddp_hooked_spread(ddp_hooked *h, ddp_err *err);

#endif
