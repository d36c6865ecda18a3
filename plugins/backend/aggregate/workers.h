/* plugins/backend/aggregate/workers.h -- the ranks of one communicator, as an aggregator has them: their pieces come
 * in, the sums go out. One thread, that of serve.c. */
#pragma once

#include "common/reduce.h"
#include "wire.h"
#include <poll.h>

enum { WORKERS_SLOTS = 16 }; /* pieces of a worker that may be here at once, and sums */

typedef struct worker {
    int fd;         /* -1: has not come, or has left in good order */
    bool came, bye; /* bye: it has said so */
    char address[96];
    unsigned char order[AGGREGATE_ORDER_BYTES];
    size_t order_got;
    uint64_t in, out; /* pieces that have come, that it has been sent; and bytes of the next one: */
    size_t in_at, out_at;
} worker;

typedef struct workers {
    struct workers *next;
    char name[AGGREGATE_NAME_MAX];
    uint32_t world, here; /* here: workers that have come */
    size_t chunk;
    const ddp_kernels *kernels;
    bool busy; /* an all-reduce is under way: */
    aggregate_order task;
    size_t size;             /* bytes of an element */
    uint64_t pieces, summed; /* summed: that are or were in an out slot */
    int64_t look_ms;         /* at the links, when next */
    uint64_t done, bytes;    /* all-reduces; bytes that were summed of them */
    unsigned char *memory;   /* WORKERS_SLOTS of `chunk` bytes: of each worker, then of the sums; when all have come */
    const void **sources;
    worker list[];
} workers;

ddp_status workers_open(const aggregate_hello *h, size_t chunk, workers **out, ddp_err *err);
void workers_close(workers *c);
/* Takes over the connection of one more. When all are there each is answered with `proof`. */
ddp_status workers_join(workers *c, const aggregate_hello *h, int fd, const unsigned char *proof, ddp_err *err);
/* What to poll, `world` entries: fd -1 where nothing is to be done. */
void workers_fds(const workers *c, struct pollfd *out);
/* After poll. DDP_OK: go on; DDP_IN_PROGRESS: all have left in good order; else it is broken, and err says by
 * whom. */
ddp_status workers_turn(workers *c, const struct pollfd *fds, ddp_err *err);
