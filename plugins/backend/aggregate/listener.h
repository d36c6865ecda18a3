/* plugins/backend/aggregate/listener.h -- a listener that lets in who shows its token: of a worker for those of
 * higher rank,
 * of an aggregator for all. Anybody may connect, so before the token one gets little memory, two seconds and one of a
 * few slots. One thread. */
#pragma once

#include "socket.h"
#include "wire.h"
#include <poll.h>

enum { AGGREGATE_SLOTS = 256, AGGREGATE_LISTENER_FDS = AGGREGATE_SLOTS + 1 };

typedef struct aggregate_stranger {
    int fd;
    size_t got;
    int64_t until_ms;
    unsigned char bytes[AGGREGATE_HELLO_BYTES];
} aggregate_stranger;

typedef struct aggregate_listener {
    int fd; /* -1: not open */
    aggregate_place place;
    int64_t again_ms; /* out of descriptors until then */
    uint32_t count;
    aggregate_stranger strangers[AGGREGATE_SLOTS];
} aggregate_listener;

/* At a free port of `address`, with a token and a proof of its own. */
ddp_status aggregate_listener_open(aggregate_listener *l, const char *address, ddp_err *err);
void aggregate_listener_close(aggregate_listener *l);
/* What to poll, AGGREGATE_LISTENER_FDS at most; how many. And for how long at most, -1: until something comes. */
uint32_t aggregate_listener_fds(const aggregate_listener *l, struct pollfd *out);
int aggregate_listener_wait_ms(const aggregate_listener *l);
/* The next of those who have shown the token: false: none now. The connection is the caller's, non-blocking. */
bool aggregate_listener_next(aggregate_listener *l, aggregate_hello *out, int *fd);
