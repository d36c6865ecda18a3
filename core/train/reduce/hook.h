/* train/reduce/hook.h -- the hook of a run: a plugin that stands between a bucket's gradients and the wire.
 *
 * The trainer's thread opens, compresses, decompresses and closes; the queue thread exchanges. */
#pragma once

#include "comm/communicator.h"
#include "train/measure/trace.h"

typedef struct ddp_hooked ddp_hooked;

/* `grads` is the gradient arena. Session, communicator, arena and trace outlive it. */
ddp_status ddp_hooked_open(ddp_session *s, ddp_communicator *c, float *grads, ddp_trace *trace, ddp_hooked **out,
                           ddp_err *err);
void ddp_hooked_close(ddp_hooked *h);
/* Bucket b's gradients are final: compresses them and queues the exchange. `update` counts from 1. */
ddp_status reduce_hooked_launch(ddp_hooked *h, uint32_t b, uint64_t update, uint64_t *ticket, ddp_err *err);
/* The exchange is done: leaves the mean in the arena. */
ddp_status reduce_hooked_finish(ddp_hooked *h, uint32_t b, ddp_err *err);

uint32_t ddp_hooked_version(const ddp_hooked *h);
