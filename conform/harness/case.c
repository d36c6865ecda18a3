/* conform/harness/case.c -- see case.h. */
#include "conform/harness/case.h"
#include <stdlib.h>

const char *ddp_suite_name(uint32_t suite)
{
    static const char *const names[DDP_SUITE_END] = {
        [DDP_SUITE_OPEN] = "open",         [DDP_SUITE_RENDEZVOUS] = "rendezvous",
        [DDP_SUITE_CONNECT] = "connect",   [DDP_SUITE_RESULTS] = "results",
        [DDP_SUITE_ORDER] = "order",       [DDP_SUITE_MEMORY] = "memory",
        [DDP_SUITE_REFUSALS] = "refusals", [DDP_SUITE_GROWTH] = "growth",
        [DDP_SUITE_PAIR] = "pair",         [DDP_SUITE_THREADS] = "threads",
        [DDP_SUITE_ABORT] = "abort",       [DDP_SUITE_TIMEOUT] = "timeout",
        [DDP_SUITE_STATE] = "state",       [DDP_SUITE_LATE] = "late",
        [DDP_SUITE_KILLED] = "killed",     [DDP_SUITE_LEAKS] = "leaks",
        [DDP_SUITE_BENCH] = "bench"};

    return suite < DDP_SUITE_END ? names[suite] : "?";
}

const ddp_slot_info *ddp_slot_info_of(uint32_t slot)
{
    static const ddp_slot_info slots[DDP_SLOT_END] = {
        [DDP_SLOT_ALL_REDUCE] = {"all_reduce", DDP_CAP_ALL_REDUCE, true, false, true},
        [DDP_SLOT_BROADCAST] = {"broadcast", DDP_CAP_BROADCAST, false, true, false},
        [DDP_SLOT_ALL_GATHER] = {"all_gather", DDP_CAP_ALL_GATHER, false, false, true},
        [DDP_SLOT_REDUCE_SCATTER] = {"reduce_scatter", DDP_CAP_REDUCE_SCATTER, true, false, true},
        [DDP_SLOT_BARRIER] = {"barrier", DDP_CAP_BARRIER, false, false, false},
        [DDP_SLOT_REDUCE] = {"reduce", DDP_CAP_REDUCE, true, true, true},
        [DDP_SLOT_GATHER] = {"gather", DDP_CAP_GATHER, false, true, true},
        [DDP_SLOT_SCATTER] = {"scatter", DDP_CAP_SCATTER, false, true, true},
        [DDP_SLOT_ALL_TO_ALL] = {"all_to_all", DDP_CAP_ALL_TO_ALL, false, false, false},
        [DDP_SLOT_SEND_RECV] = {"send/recv", DDP_CAP_SEND_RECV, false, false, false},
    };

    return &slots[slot];
}

const char *ddp_op_text(uint32_t op)
{
    static const char *const names[DDP_REDUCE_OP_END_] = {"none", "sum", "avg", "min", "max"};

    return op < DDP_REDUCE_OP_END_ ? names[op] : "?";
}

ddp_status ddp_case_add(ddp_case_list *l, ddp_case c, ddp_err *err)
{
    if (l->count == l->capacity) {
        uint32_t capacity = l->capacity == 0 ? 64 : 2 * l->capacity;
        ddp_case *grown = realloc(l->items, capacity * sizeof(*grown));

        if (grown == NULL) return ddp_fail(err, DDP_ERR_NOMEM, "no memory for %u cases", capacity);
        l->items = grown;
        l->capacity = capacity;
    }
    c.seed = ((uint64_t)l->count + 1) * 0x9e3779b97f4a7c15u;
    l->items[l->count++] = c;
    return DDP_OK;
}

void harness_case_describe(const ddp_case *c, char *out, size_t capacity)
{
    static const char *const topics[DDP_TOPIC_END] = {[DDP_TOPIC_FLAT] = "flat reductions",
                                                      [DDP_TOPIC_OPTIMIZER] = "optimizer steps",
                                                      [DDP_TOPIC_PROGRAM] = "a program's values",
                                                      [DDP_TOPIC_GRAPH] = "the graph",
                                                      [DDP_TOPIC_INDICES] = "indices",
                                                      [DDP_TOPIC_SAMPLES] = "samples",
                                                      [DDP_TOPIC_MEAN] = "the mean",
                                                      [DDP_TOPIC_ZERO] = "gradients of zero, then others"};
    const ddp_slot_info *s = ddp_slot_info_of(c->slot);
    char root[16] = "", late[32] = "";

    if (c->variant != DDP_TOPIC_NONE) return ddp_copy_text(out, capacity, topics[c->variant]);

    if (s->rooted) (void)snprintf(root, sizeof(root), ", root %u", c->root);
    if (c->late != 0) (void)snprintf(late, sizeof(late), ", rank %u late", c->late - 1u);
    switch (c->suite) {
    case DDP_SUITE_RESULTS:
        if (c->slot == DDP_SLOT_BARRIER)
            (void)snprintf(out, capacity, "barrier%s", late);
        else
            (void)snprintf(out, capacity, "%s of %llu %s%s%s%s%s%s%s%s%s", s->name, (unsigned long long)c->count,
                           ddp_dtype_name(c->dtype), s->reduces ? ", " : "", s->reduces ? ddp_op_text(c->op) : "", root,
                           c->in_place ? ", in place" : "", c->own_memory ? ", in its own memory" : "",
                           c->odd_address ? ", odd addresses" : "", c->random_values ? ", random values" : "", late);
        break;
    case DDP_SUITE_ABORT: (void)snprintf(out, capacity, "abort within %s", s->name); break;
    case DDP_SUITE_TIMEOUT: (void)snprintf(out, capacity, "a rank that does not come to %s", s->name); break;
    default: ddp_copy_text(out, capacity, ddp_suite_name(c->suite));
    }
}
