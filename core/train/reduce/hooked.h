/* train/reduce/hooked.h -- the hook of a run, for hook.c and hook_state.c. */
#pragma once

#include "comm/communicator.h"
#include "train/measure/trace.h"

typedef struct ddp_hooked ddp_hooked;

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
    ddp_hook_tensor *tensors; /* by position in the arena */
    struct ddp_hook_call *calls;
    ddp_hook_state *states; /* the plugin's, in this engine's struct */
    uint32_t state_count;
    float **held, *piece; /* hookstate.c: [rank][state] on rank 0; a piece elsewhere */
};

/* The buckets of the session as a hook sees them: `out` and `tensors` have room for all, of which the latter are
 * ddp_hooked_tensors(). */
uint32_t ddp_hooked_tensors(const ddp_session *s);
void ddp_hooked_describe(const ddp_session *s, ddp_hook_bucket *out, ddp_hook_tensor *tensors);
