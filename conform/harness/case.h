/* conform/harness/case.h -- what a case is, and lists of them. */
#pragma once

#include "base/base.h"
#include <ddpengine/backend.h>

/* Suites, in the order in which they are reported; ddp_suite_name() */
enum {
    DDP_SUITE_OPEN = 0,
    DDP_SUITE_RENDEZVOUS,
    DDP_SUITE_CONNECT,
    DDP_SUITE_RESULTS,
    DDP_SUITE_ORDER,
    DDP_SUITE_STATE,
    DDP_SUITE_MEMORY,
    DDP_SUITE_REFUSALS,
    DDP_SUITE_GROWTH,
    DDP_SUITE_PAIR,
    DDP_SUITE_THREADS,
    DDP_SUITE_ABORT,
    DDP_SUITE_TIMEOUT,
    DDP_SUITE_LATE,
    DDP_SUITE_KILLED,
    DDP_SUITE_LEAKS,
    DDP_SUITE_BENCH, /* no suite: the ranks measure */
    DDP_SUITE_END
};
const char *ddp_suite_name(uint32_t suite);

enum {
    DDP_SLOT_ALL_REDUCE = 0,
    DDP_SLOT_BROADCAST,
    DDP_SLOT_ALL_GATHER,
    DDP_SLOT_REDUCE_SCATTER,
    DDP_SLOT_BARRIER,
    DDP_SLOT_REDUCE,
    DDP_SLOT_GATHER,
    DDP_SLOT_SCATTER,
    DDP_SLOT_ALL_TO_ALL,
    DDP_SLOT_SEND_RECV,
    DDP_SLOT_END
};

/* What a case of another kind than backend is about, ddp_case.variant. */
enum {
    DDP_TOPIC_NONE = 0,
    DDP_TOPIC_FLAT, /* device */
    DDP_TOPIC_OPTIMIZER,
    DDP_TOPIC_PROGRAM,
    DDP_TOPIC_GRAPH,   /* model */
    DDP_TOPIC_INDICES, /* sampler */
    DDP_TOPIC_SAMPLES, /* dataset */
    DDP_TOPIC_MEAN,    /* hook */
    DDP_TOPIC_ZERO,
    DDP_TOPIC_END
};

/* One case; which fields count depends on the suite. */
typedef struct ddp_case {
    uint64_t count; /* elements of a rank */
    uint64_t seed;
    int32_t deadline_ms;
    uint8_t suite, slot, dtype, op;
    uint8_t root, variant;
    uint8_t late;       /* 0: nobody; r + 1: rank r comes a little later */
    bool in_place;      /* as the slot defines it */
    bool own_memory;    /* buffers of the backend's mem_alloc */
    bool odd_address;   /* buffers start one element after a multiple of 64 bytes */
    bool random_values; /* floats that round, instead of small integers */
    bool fresh;         /* in processes of its own */
} ddp_case;

typedef struct ddp_slot_info {
    const char *name;
    uint64_t cap;
    bool reduces, rooted, in_place; /* in_place: backend.h defines it, and leaves the choice */
} ddp_slot_info;
const ddp_slot_info *ddp_slot_info_of(uint32_t slot);
const char *ddp_op_text(uint32_t op); /* "sum" */

typedef struct ddp_case_list {
    ddp_case *items; /* free() */
    uint32_t count, capacity;
} ddp_case_list;
ddp_status ddp_case_add(ddp_case_list *l, ddp_case c, ddp_err *err);
void harness_case_describe(const ddp_case *c, char *out, size_t capacity); /* "all_reduce of 3 f32, sum, in place" */
