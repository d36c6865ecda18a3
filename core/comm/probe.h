/* comm/probe.h -- how fast the ranks of a communicator reach each other: latency and bandwidth of a pair, and of the
 * all_reduce that training is made of. Measured when it is asked for, and kept by nobody. */
#pragma once

#include "comm/communicator.h"

typedef struct ddp_link {
    /* Of a message between two ranks, one way; the slowest pair's. All pairs send at once, and are of two hosts where
     * there are several. 0: the backend has no send and recv. */
    double latency_s, bytes_per_s;
    /* An all_reduce of few bytes; and of n that is one of several in the queue: 2 all_reduce_latency_s + n /
     * all_reduce_bytes_per_s. */
    double all_reduce_latency_s, all_reduce_bytes_per_s;
    double bytes; /* of the largest that was timed */
} ddp_link;

/* Memory that the backend reduces, `bytes` of it, at least 64; what is in it is overwritten. No message is longer: how
 * well a backend uses a link depends on that, so it is best as long as those that one wants to know about. */
typedef struct ddp_probe_memory {
    float *data;
    size_t bytes;
} ddp_probe_memory;

/* Collective, from the owner's thread, with the same `budget_s` and bytes on all ranks, while nothing else is queued.
 * Takes about budget_s: messages grow until they are long enough to be measured, so that a slow link gets few bytes.
 * All ranks get the same numbers. world 1: zeros. Errors are those of a collective. */
ddp_status ddp_comm_probe(ddp_communicator *c, const ddp_probe_memory *memory, double budget_s, ddp_link *out,
                          ddp_err *err);
