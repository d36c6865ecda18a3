/* train/reduce/hooked.h -- what hook.c and hookstate.c share. */
#ifndef DDP_REDUCE_HOOKED_H
#define DDP_REDUCE_HOOKED_H

#include "train/reduce/hook.h"

struct ddp_hook_call { /* of one bucket, for the queue thread */
    ddp_hooked *hooked;
    uint32_t bucket;
    uint64_t update;
};

struct ddp_hooked {
    ddp_session *session;
    ddp_communicator *comm;
    ddp_trace *trace;
    const ddp_hook_ops *ops;
    ddp_hook *hook;
    ddp_hook_group group; /* of the communicator, which is closed before the hook is */
    float *grads;
    ddp_hook_bucket *buckets;
    ddp_hook_tensor *tensors; /* by place in the arena */
    struct ddp_hook_call *calls;
    float **held, *piece; /* hookstate.c: [rank][state] on rank 0; a piece elsewhere */
};

#endif
