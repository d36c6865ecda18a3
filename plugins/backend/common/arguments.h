/* plugins/backend/common/arguments.h -- what <ddpengine/backend.h> demands of the arguments of a collective: one
 * table and one check for every backend of this tree. Compiled into each plugin; nothing is shared at run time. */
#pragma once

#include <ddpengine/backend.h>
#include <stdbool.h>

typedef enum ddp_args_slot {
    DDP_ARGS_ALL_REDUCE,
    DDP_ARGS_BROADCAST,
    DDP_ARGS_ALL_GATHER,
    DDP_ARGS_REDUCE_SCATTER,
    DDP_ARGS_REDUCE,
    DDP_ARGS_GATHER,
    DDP_ARGS_SCATTER,
    DDP_ARGS_ALL_TO_ALL,
    DDP_ARGS_SEND,
    DDP_ARGS_RECV,
    DDP_ARGS_END_
} ddp_args_slot;

const char *ddp_args_name(ddp_args_slot slot); /* "all_reduce" */

/* dtype and op exist, root is a rank (of send and recv another one), the bytes of `count` elements of all ranks are
 * a size, every buffer that this rank uses is there, and the two do not overlap but in place. Without communication,
 * and the first three alike on all ranks. */
ddp_status ddp_args_check(const char *backend, uint32_t rank, uint32_t world, ddp_args_slot slot, const ddp_coll *a,
                          ddp_err *err);

/* Of arguments that have been checked: bytes of `count` elements. */
static inline size_t ddp_args_bytes(const ddp_coll *a) { return a->count * ddp_dtype_size(a->dtype); }
