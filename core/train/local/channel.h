/* train/local/channel.h -- hands values from one stage of a model to another: one thread sends, one receives, in the
 * order of the micro-batches.
 *
 * The memory is the receiver's, `slots` messages; message k lies in slot k % slots. The sender reserves a slot,
 * writes it, and sends; the receiver waits for message k, reads it, and releases slots in their order. Every wait has
 * a deadline and ends when the channel is cancelled. Nothing allocates after the opening. */
#pragma once

#include "base/base.h"

typedef struct ddp_channel ddp_channel;

ddp_status local_channel_open(uint32_t slots, ddp_channel **out, ddp_err *err);
void local_channel_close(ddp_channel *c); /* takes NULL; nobody uses it */
/* For a new series of messages, from 0; nobody uses it. */
void local_channel_reset(ddp_channel *c);

/* Waits return DDP_OK, DDP_ERR_TIMEOUT after the deadline (ddp_now_ns() terms), DDP_ERR_ABORTED when cancelled; no
 * text. */
ddp_status local_channel_reserve(ddp_channel *c, int64_t deadline_ns); /* the sender: room for one more */
void local_channel_send(ddp_channel *c);
ddp_status local_channel_wait(ddp_channel *c, uint64_t message,
                              int64_t deadline_ns); /* the receiver: until it is there */
void local_channel_release(ddp_channel *c);         /* the oldest slot is free again */
/* Ends all waits, now and until the next reset. Any thread. */
void local_channel_cancel(ddp_channel *c);
