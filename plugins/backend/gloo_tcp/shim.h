/* plugins/backend/gloo_tcp/shim.h -- what backend.c needs of Gloo, in C: a full mesh of connections that carry
 * messages.
 *
 * Gloo's pairs run in synchronous mode: the calling thread itself writes to and reads from the sockets. A hop to
 * Gloo's event thread and back costs more than a small collective, and under load that thread spins for whole
 * scheduler slices. The price is that a send can block until the peer reads, so what is on its way to one peer must
 * fit the sockets' buffers: ddp_gloo_room() says how much that is. The algorithms are in collective.c. */
#pragma once

#include <ddpengine/backend.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ddp_gloo ddp_gloo;

/* Where a message lands at its receiver. */
enum {
    DDP_GLOO_INBOX = 0, /* one for each peer, of the receiver's own memory */
    DDP_GLOO_REGION = 1 /* memory that the receiver has named with ddp_gloo_expect */
};

typedef struct ddp_gloo_params {
    uint32_t rank, world;
    int64_t timeout_ms;         /* of one send or receive */
    int64_t connect_timeout_ms; /* of ddp_gloo_open */
    const char *group;          /* name of the communicator: no other one takes part */
    const char *address;        /* to bind to */
    const ddp_host *host;
    const ddp_store *store; /* lives until ddp_gloo_close */
    size_t inbox_bytes;     /* largest message, the same on all ranks */
} ddp_gloo_params;

/* Connects to all other ranks; ends early when a get of the store does. world 2 and more. */
ddp_status ddp_gloo_open(const ddp_gloo_params *p, ddp_gloo **out, ddp_err *err);
/* Any thread, repeatable: wakes a blocked call, and every later one fails with DDP_ERR_ABORTED. */
void ddp_gloo_abort(ddp_gloo *g);
void ddp_gloo_close(ddp_gloo *g);

/* Bytes that can be under way to any peer before a send waits for it to read: the least of all ranks, the same on
 * each. */
size_t ddp_gloo_room(const ddp_gloo *g);
void *ddp_gloo_inbox(const ddp_gloo *g, uint32_t peer);
/* Names where messages to REGION may land, until ddp_gloo_expect_end; `bytes` at least 1. */
ddp_status ddp_gloo_expect(ddp_gloo *g, void *region, size_t bytes, ddp_err *err);
void ddp_gloo_expect_end(ddp_gloo *g);
/* Sends `bytes` to `peer`, to land `at` bytes into its inbox or region; returns when `data` may be changed. */
ddp_status ddp_gloo_send(ddp_gloo *g, uint32_t peer, uint32_t where, size_t at, const void *data, size_t bytes,
                         ddp_err *err);
/* Waits for the next message of `peer` and stores it there. Messages of one peer arrive in the order sent. */
ddp_status ddp_gloo_recv(ddp_gloo *g, uint32_t peer, uint32_t where, ddp_err *err);

#ifdef __cplusplus
}
#endif
