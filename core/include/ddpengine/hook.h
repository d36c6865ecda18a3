/* ddpengine/hook.h -- kind `hook`: compresses gradients; what it makes is sent in place of a bucket's gradients.
 *
 * A bucket is reduced in three calls: `compress` on the rank's compute thread as soon as its gradients are final,
 * `exchange` on the queue thread, which alone may use the group, and `decompress` on the compute thread again. Calls of
 * different buckets run at the same time, those of one bucket never; on every rank each thread takes the buckets in the
 * order 0, 1, .. in each update. These three calls allocate nothing.
 *
 * Every rank must end with the same bits: what decompress writes may depend only on what all ranks got from the group.
 * */
#ifndef DDPENGINE_HOOK_H
#define DDPENGINE_HOOK_H

#include <ddpengine/backend.h>
#include <ddpengine/program.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DDP_HOOK_ABI 1u

typedef struct ddp_hook ddp_hook; /* defined by the plugin */

/* Collectives of the run's ranks, with the rules of backend.h; blocking, from `exchange` alone. For a slot that
 * the backend lacks the core uses others; where it cannot, the slot is NULL. `exchange` returns their errors as
 * they are. */
typedef struct ddp_hook_group {
    uint32_t struct_size, rank, world_size, reserved0;
    void *ctx;
    ddp_status (*all_reduce)(void *ctx, const ddp_coll *a, ddp_err *err);
    ddp_status (*broadcast)(void *ctx, const ddp_coll *a, ddp_err *err);
    ddp_status (*all_gather)(void *ctx, const ddp_coll *a, ddp_err *err);
    ddp_status (*all_to_all)(void *ctx, const ddp_coll *a, ddp_err *err); /* NULL: the backend has none */
} ddp_hook_group;

/* A parameter's gradient, or a stretch of whole rows of it, within a bucket. */
typedef struct ddp_hook_tensor {
    const char *name;          /* "fc1.weight" */
    uint64_t offset, elements; /* from the bucket's first element */
    uint32_t rank, reserved0;
    int64_t dims[DDP_MAX_DIMS];
} ddp_hook_tensor;

typedef struct ddp_hook_bucket {
    uint64_t count; /* elements; those between tensors are zero on every rank */
    const ddp_hook_tensor *tensors;
    uint32_t tensor_count, dtype; /* dtype: of the gradients, today always DDP_F32 */
} ddp_hook_bucket;

typedef struct ddp_hook_params {
    uint32_t struct_size, bucket_size, tensor_size, bucket_count; /* bucket_size, tensor_size: strides of the arrays */
    uint64_t seed;                                                /* [train] seed */
    const ddp_hook_bucket *buckets;                               /* valid until close, as is the group */
    const ddp_hook_group *group;
} ddp_hook_params;

static inline const ddp_hook_bucket *ddp_hook_bucket_at(const ddp_hook_params *p, uint32_t i)
{
    return (const ddp_hook_bucket *)ddp_at_(p->buckets, p->bucket_size, i);
}

static inline const ddp_hook_tensor *ddp_hook_tensor_at(const ddp_hook_params *p, const ddp_hook_bucket *b, uint32_t i)
{
    return (const ddp_hook_tensor *)ddp_at_(b->tensors, p->tensor_size, i);
}

/* What a hook remembers from update to update, in host memory; the core saves and loads it in place. */
typedef struct ddp_hook_state {
    const char *name; /* unique within the hook, without spaces */
    void *data;
    uint64_t elements;
    uint32_t shared; /* 1: the same on all ranks; 0: each rank's own, whose mean over the ranks is what counts */
    uint32_t dtype;  /* today always DDP_F32 */
} ddp_hook_state;

typedef struct ddp_hook_ops {
    uint32_t struct_size, state_version; /* state_version: a checkpoint of another is refused */
    uint64_t needs;                      /* DDP_CAP_* of backend.h: slots of the group that `exchange` uses */
    uint32_t state_size, reserved0;      /* state_size: stride of what `states` gives, sizeof(ddp_hook_state) */

    /* ---- the compute thread */
    ddp_status (*open)(const ddp_host *host, const void *config, const ddp_hook_params *p, ddp_hook **out,
                       ddp_err *err);
    void (*close)(ddp_hook *h);
    /* grads: the bucket's `count` gradients of this rank, of its dtype; `update` is 1 for the first of the run. */
    ddp_status (*compress)(ddp_hook *h, uint32_t bucket, uint64_t update, void *grads, ddp_err *err);
    /* Leaves the mean over the ranks, as nearly as the hook gives it, in grads. */
    ddp_status (*decompress)(ddp_hook *h, uint32_t bucket, uint64_t update, void *grads, ddp_err *err);
    /* Optional. The arrays of its state, the same list on every rank, valid until close; returns their number. Not
     * called while an update is made. */
    uint32_t (*states)(ddp_hook *h, const ddp_hook_state **out);

    /* ---- the queue thread */
    ddp_status (*exchange)(ddp_hook *h, uint32_t bucket, uint64_t update, void *grads, ddp_err *err);
} ddp_hook_ops;

static inline const ddp_hook_state *ddp_hook_state_at(const ddp_hook_ops *ops, const ddp_hook_state *states, uint32_t i)
{
    return (const ddp_hook_state *)ddp_at_(states, ops->state_size, i);
}

/* The tables that the engine hands to a plugin of this kind. */
#define DDP_HOOK_SERVICES                                                                                              \
    (sizeof(ddp_host) + sizeof(ddp_hook_params) + sizeof(ddp_hook_group) + sizeof(ddp_hook_bucket) +                   \
     sizeof(ddp_hook_tensor) + sizeof(ddp_coll))

#ifdef __cplusplus
}
#endif
#endif
