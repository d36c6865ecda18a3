/* plugins/backend/aggregate/socket.h -- the sockets of connections, and how much is under way over each.
 *
 * Whatever is under way beyond what the link holds stands in the queues of the network, before the sums that others
 * wait for: at 200 Mb/s with queues of 50 ms all-reduces by four aggregators took 10 % longer with 128 KiB than with
 * 32. So a connection begins with few bytes, and gets more where its link holds more. */
#pragma once

#include <stdint.h>

/* The smallest limits of what is under way, in bytes: of two ranks, of a rank and an aggregator; how often to look. */
enum { AGGREGATE_BETWEEN_RANKS = 64 << 10, AGGREGATE_WITH_AGGREGATOR = 32 << 10, AGGREGATE_LOOK_MS = 50 };

int64_t aggregate_now_ms(void);
/* Non-blocking, without Nagle's delay; `limit` bytes under way at most. */
void aggregate_socket_prepare(int fd, int limit);
/* Bytes that may be under way over a link with this rate, 1/s, and time to and fro: twice what it holds. */
int aggregate_under_way(double bytes_per_s, double round_trip_s, int least);
/* That of the link as the kernel has seen it; once every AGGREGATE_LOOK_MS is enough. */
void aggregate_socket_adapt(int fd, int least);
