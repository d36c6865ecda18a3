/* plugins/backend/common/arguments.c -- see arguments.h. */
#include "arguments.h"

enum {
    NONE,
    ONE,
    ALL,
    ROOT_ONE,
    ROOT_ALL
};                           /* blocks of `count` elements: no, one, one of each rank; at the root alone */
enum { NEVER, SAME, BLOCK }; /* in place: send == recv; the one is this rank's block of the other */

typedef struct rule {
    const char *name;
    uint8_t send, recv, in_place;
    bool reduces, rooted, peer; /* op counts; root counts; root is the other end */
} rule;

static const rule rules[DDP_ARGS_END_] = {
    [DDP_ARGS_ALL_REDUCE] = {"all_reduce", ONE, ONE, SAME, .reduces = true},
    [DDP_ARGS_BROADCAST] = {"broadcast", NONE, ONE, NEVER, .rooted = true},
    [DDP_ARGS_ALL_GATHER] = {"all_gather", ONE, ALL, BLOCK, .reduces = false},
    [DDP_ARGS_REDUCE_SCATTER] = {"reduce_scatter", ALL, ONE, BLOCK, .reduces = true},
    [DDP_ARGS_REDUCE] = {"reduce", ONE, ROOT_ONE, SAME, .reduces = true, .rooted = true},
    [DDP_ARGS_GATHER] = {"gather", ONE, ROOT_ALL, BLOCK, .rooted = true},
    [DDP_ARGS_SCATTER] = {"scatter", ROOT_ALL, ONE, BLOCK, .rooted = true},
    [DDP_ARGS_ALL_TO_ALL] = {"all_to_all", ALL, ALL, NEVER, .reduces = false},
    [DDP_ARGS_SEND] = {"send", ONE, NONE, NEVER, .rooted = true, .peer = true},
    [DDP_ARGS_RECV] = {"recv", NONE, ONE, NEVER, .rooted = true, .peer = true},
};

const char *ddp_args_name(ddp_args_slot slot) { return rules[slot].name; }

static size_t blocks(uint8_t use, bool root, uint32_t world)
{
    switch (use) {
    case ONE: return 1;
    case ALL: return world;
    case ROOT_ONE: return root ? 1 : 0;
    case ROOT_ALL: return root ? world : 0;
    default: return 0;
    }
}

static bool overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;

    return a_bytes > 0 && b_bytes > 0 && (x < y ? y - x < a_bytes : x - y < b_bytes);
}

static bool in_place(const rule *r, const ddp_coll *a, size_t own)
{
    uintptr_t send = (uintptr_t)a->send, recv = (uintptr_t)a->recv;

    if (r->in_place == SAME) return send == recv;
    if (r->in_place == BLOCK) return r->send == ONE ? send == recv + own : recv == send + own;
    return false;
}

static const char *where(const rule *r)
{
    if (r->in_place == NEVER) return "it has no in place";
    if (r->in_place == SAME) return "in place is send == recv";
    return r->send == ONE ? "in place is send == recv + rank * count" : "in place is recv == send + rank * count";
}

static ddp_status check_buffers(const char *backend, const rule *r, uint32_t rank, uint32_t world, const ddp_coll *a,
                                ddp_err *err)
{
    const size_t bytes = ddp_args_bytes(a);
    const size_t send = blocks(r->send, rank == a->root, world) * bytes;
    const size_t recv = blocks(r->recv, rank == a->root, world) * bytes;

    if ((send > 0 && a->send == NULL) || (recv > 0 && a->recv == NULL))
        return ddp_fail(err, DDP_ERR_INVALID, "%s: %s of %zu elements without a buffer", backend, r->name, a->count);
    if (overlap(a->send, send, a->recv, recv) && !in_place(r, a, rank * bytes))
        return ddp_fail(err, DDP_ERR_INVALID, "%s: %s: send and recv overlap and are not in place; %s", backend,
                        r->name, where(r));
    return DDP_OK;
}

ddp_status ddp_args_check(const char *backend, uint32_t rank, uint32_t world, ddp_args_slot slot, const ddp_coll *a,
                          ddp_err *err)
{
    const rule *r = &rules[slot];
    const size_t size = ddp_dtype_size(a->dtype);

    if (size == 0) return ddp_fail(err, DDP_ERR_UNSUPPORTED, "%s: %s: unknown dtype %u", backend, r->name, a->dtype);
    if (r->reduces && (a->op < DDP_SUM || a->op >= DDP_REDUCE_OP_END_))
        return ddp_fail(err, DDP_ERR_UNSUPPORTED, "%s: %s: unknown operation %u", backend, r->name, a->op);
    if (r->rooted && a->root >= world)
        return ddp_fail(err, DDP_ERR_INVALID, "%s: %s with rank %u of %u", backend, r->name, a->root, world);
    if (r->peer && a->root == rank)
        return ddp_fail(err, DDP_ERR_INVALID, "%s: %s between rank %u and itself", backend, r->name, rank);
    if (a->count > (size_t)PTRDIFF_MAX / size / world)
        return ddp_fail(err, DDP_ERR_INVALID,
                        "%s: %s of %zu elements of %zu bytes for each of %u ranks: no memory is so large", backend,
                        r->name, a->count, size, world);
    return a->count == 0 ? DDP_OK : check_buffers(backend, r, rank, world, a, err);
}
