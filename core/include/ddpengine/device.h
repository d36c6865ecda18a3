/* ddpengine/device.h -- kind `device`: runs programs, updates parameters.
 *
 * One thread, the device's thread, makes all calls of a device, except:
 *   - with CAP_HOST_MEMORY the queue thread, which calls the backend, may also call `flat` and `copy`, on memory that
 *     no running kernel touches;
 *   - the queue thread makes all calls that name DDP_QUEUE_COMM;
 *   - `check` and `event_sync` come from any thread.
 * Several devices of one process have a thread each; a copy, and an update with peers, may then use memory of another
 * device of the plugin. Between the first and the last step the device allocates nothing. */
#ifndef DDPENGINE_DEVICE_H
#define DDPENGINE_DEVICE_H

#include <ddpengine/program.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DDP_DEVICE_ABI 1u

#define DDP_DEVICE_CAP_HOST_MEMORY (1ull << 0) /* its memory is "host": the loader and host backends use it directly */
#define DDP_DEVICE_CAP_OVERLAP     (1ull << 1) /* run() returns before the kernels are done */
#define DDP_DEVICE_CAP_PEERS       (1ull << 2) /* optim_step honours ddp_optim.peers */
#define DDP_DEVICE_CAP_BF16        (1ull << 3) /* has DDP_PRECISION_BF16; open may still refuse it, with the reason */
#define DDP_DEVICE_CAP_QUEUES      (1ull << 4) /* the slots from host_alloc on; set where CAP_HOST_MEMORY is not */

/* BF16: operands of matrix products and convolutions are rounded to bf16, their sums are f32; parameters, gradients,
 * optimiser state, normalisation and loss are f32, as under PyTorch's autocast. */
enum { DDP_PRECISION_F32 = 0, DDP_PRECISION_BF16 };

typedef struct ddp_device ddp_device; /* these three are defined by the plugin */
typedef struct ddp_exec ddp_exec;
typedef struct ddp_instance ddp_instance;

typedef struct ddp_device_params {
    uint32_t struct_size, ordinal; /* of "cpu:1": 1 */
    uint32_t threads;              /* compute threads, at least 1 */
    uint32_t precision;            /* DDP_PRECISION_* */
    uint32_t local_rank, local_size;
    uint32_t deterministic; /* 1: the same bits in every run; choose no kernel by a timing */
    uint32_t reserved0;
} ddp_device_params;

typedef struct ddp_device_info { /* zeroed by the core */
    uint32_t struct_size, reserved0;
    uint64_t memory_bytes;
    char name[128];    /* "AMD EPYC, AVX-512 with bf16" */
    char library[128]; /* "oneDNN 2.6.3" */
} ddp_device_info;

/* Memory of one instance of a program. */
typedef struct ddp_bind {
    uint32_t struct_size, reserved0;
    void *arena;         /* plan->arena_bytes, 64-byte aligned, of this device's alloc */
    const float *params; /* the parameter arena */
    float *grads;        /* the gradient arena; NULL when the program has no gradients */
    float *buffers;      /* the buffer arena; NULL when the model has none */
    const void *frozen;  /* parameters that no step writes and whose dtype is not f32; NULL when there are none */
} ddp_bind;

#define DDP_RUN_GRAD_ADD (1u << 0) /* add to the gradient arena instead of setting it: the later micro-steps */

typedef struct ddp_run {
    uint32_t struct_size, flags;
    /* One for each field: N samples, 64-byte aligned, in the device's memory or, with CAP_QUEUES, in memory of
     * host_alloc. They stay valid and unchanged until the run is done. */
    void *const *inputs;
    ddp_random random; /* of this micro-step on this rank */
} ddp_run;

/* An update where ranks see each other's memory. The gradient of a slice is the mean of grads[0 .. count - 1], added in
 * that order, with the bits of an all_reduce with DDP_AVG; slice->grad is not used. The new parameters are written to
 * each of params, one of which is slice->param. All pointers are to the slice's first element.
 * *not_finite gets the index of the first mean that is not finite, or slice->count. With CAP_QUEUES it is host_alloc
 * memory, which the caller has set to slice->count and reads after a sync, or after an event that follows the call.
 * grads NULL: the gradient is slice->grad, and *not_finite is not written. */
typedef struct ddp_optim_peers {
    uint32_t struct_size, count;
    const void *const *grads; /* of the slice's grad_dtype */
    float *const *params;
    uint64_t *not_finite;
} ddp_optim_peers;

/* One update of a flat slice, PyTorch's formulas (torch.optim.SGD, Adam, AdamW; dampening 0, amsgrad off), the same
 * bits on every CPU. g is grad * grad_scale. MEAN is no update: slice->param gets the mean of the peers' gradients
 * and may be one of them; peers->params, states and all other numbers are not used. */
enum { DDP_OPTIM_SGD = 1, DDP_OPTIM_ADAM, DDP_OPTIM_ADAMW, DDP_OPTIM_MEAN };

typedef struct ddp_optim {
    uint32_t struct_size, algorithm;
    uint32_t nesterov, reserved0;
    uint64_t step; /* 1 for the first update */
    double lr, momentum, beta1, beta2, eps, weight_decay, grad_scale;
    const ddp_optim_peers *peers; /* of DDP_DEVICE_CAP_PEERS; NULL: none */
} ddp_optim;

/* Parameters are f32. Gradients and states have the dtypes named below, today always DDP_F32; for a dtype that the
 * device cannot use it returns DDP_ERR_UNSUPPORTED. */
typedef struct ddp_optim_slice {
    float *param;
    void *state1, *state2; /* SGD with momentum: state1 the buffer; Adam: exp_avg, exp_avg_sq; else NULL */
    const void *grad;
    uint64_t count;
    uint32_t grad_dtype, state_dtype;
} ddp_optim_slice;

/* The end of a step of a single-rank run: optim_step of each slice, and the results that the host reads. not_finite,
 * loss_out and norm are host_alloc memory, written once a sync, or an event that follows the call, is past. */
typedef struct ddp_update {
    uint32_t struct_size, slice_count;
    uint32_t slice_size, reserved0; /* slice_size: stride of the slices */
    const ddp_optim *optim;         /* no MEAN, no peers */
    const ddp_optim_slice *slices;
    /* By slice: slice->count before the call; then the first index whose gradient is not finite. */
    uint64_t *not_finite;
    const float *loss; /* device memory that the program writes; copied to *loss_out */
    float *loss_out;
    /* 0: no clipping, and norm is NULL. Else torch.nn.utils.clip_grad_norm_ over all slices: flat(SUM_SQUARES) of each,
     * added in their order; *norm gets the square root, times grad_scale. */
    double max_norm;
    double *norm;
} ddp_update;

static inline const ddp_optim_slice *ddp_slice_at(const ddp_update *u, uint32_t i)
{
    return (const ddp_optim_slice *)ddp_at_(u->slices, u->slice_size, i);
}

enum {
    DDP_FLAT_FINITE = 1, /* result.index: of the first value that is not finite, or `count` */
    DDP_FLAT_SUM_SQUARES /* result.value: in double, fixed order, the same bits for every thread count and CPU */
};

typedef struct ddp_flat_result {
    uint64_t index;
    double value;
} ddp_flat_result;

/* What the device does at its best, as measured; 0: not known. */
typedef struct ddp_device_peaks {
    uint32_t struct_size, reserved0;
    double flops_per_s; /* of products in the precision of open; multiply and add count as two */
    double bytes_per_s; /* read from memory, behind all caches */
} ddp_device_peaks;

enum { DDP_COPY_TO_DEVICE = 1, DDP_COPY_TO_HOST, DDP_COPY_ON_DEVICE };

/* Of DDP_DEVICE_CAP_QUEUES. A queue does its work in order, as a stream, and at the same time as the other queue. An
 * event is a place in one queue that the other, or the host, can wait for. run, optim_step, copy, flat and scale work
 * on COMPUTE. */
enum { DDP_QUEUE_COMPUTE = 0, DDP_QUEUE_COMM, DDP_QUEUE_COUNT };

typedef struct ddp_device_ops {
    uint32_t struct_size, reserved0;
    uint64_t caps;

    /* ---- the device: `check` on any thread and before anything is open, the others on the device's thread */
    /* Optional. An error if device `ordinal` is missing or cannot be opened. Keeps nothing open. */
    ddp_status (*check)(const ddp_host *host, const void *config, uint32_t ordinal, ddp_err *err);
    ddp_status (*open)(const ddp_host *host, const void *config, const ddp_device_params *p, ddp_device **out,
                       ddp_err *err);
    void (*close)(ddp_device *d);
    void (*describe)(ddp_device *d, ddp_device_info *out);
    /* Optional. Measures with all of the device's threads, for about 50 ms, while nothing else runs. */
    ddp_status (*measure)(ddp_device *d, ddp_device_peaks *out, ddp_err *err);
    /* Optional. Binds compute thread i to processors[i], of which there are params.threads; thread 0 is the caller.
     * close restores for all of them the processors that the caller had. On failure none is bound. */
    ddp_status (*pin)(ddp_device *d, const int32_t *processors, ddp_err *err);

    /* ---- memory: the device's thread; with CAP_HOST_MEMORY `copy` also the queue thread */
    ddp_status (*alloc)(ddp_device *d, size_t bytes, void **out, ddp_err *err); /* 64-byte aligned, zero-filled */
    void (*free)(ddp_device *d, void *p);
    ddp_status (*copy)(ddp_device *d, void *dst, const void *src, size_t bytes, uint32_t direction, ddp_err *err);

    /* ---- programs: the device's thread */
    /* Groups nodes into kernels. An op that the device cannot do is DDP_ERR_UNSUPPORTED, with the op and node->name. */
    ddp_status (*lower)(ddp_device *d, const ddp_program *p, ddp_lowered **out, ddp_err *err);
    void (*lowered_free)(ddp_device *d, ddp_lowered *l);
    /* program, lowered and plan live until exec_free. */
    ddp_status (*compile)(ddp_device *d, const ddp_program *p, const ddp_lowered *l, const ddp_plan *plan,
                          ddp_exec **out, ddp_err *err);
    void (*exec_free)(ddp_exec *e);
    ddp_status (*instance_create)(ddp_exec *e, const ddp_bind *bind, ddp_instance **out, ddp_err *err);
    void (*instance_free)(ddp_instance *i);
    /* Kernels first .. last-1, in order. A label out of range is DDP_ERR_DATA with the row and the value, from this
     * call or, with CAP_OVERLAP, from a later run or at the latest from the next sync. */
    ddp_status (*run)(ddp_instance *i, const ddp_run *r, uint32_t first, uint32_t last, ddp_err *err);
    ddp_status (*sync)(ddp_device *d, ddp_err *err);

    /* ---- updates, passes over flat arrays: the device's thread; with CAP_HOST_MEMORY `flat` also the queue thread */
    ddp_status (*optim_step)(ddp_device *d, const ddp_optim *o, const ddp_optim_slice *s, ddp_err *err);
    ddp_status (*flat)(ddp_device *d, uint32_t what, const float *x, uint64_t count, ddp_flat_result *out,
                       ddp_err *err);
    /* Optional, with CAP_QUEUES. All kernels of the program, then the update: the bits of those calls one after the
     * other, on COMPUTE, without waiting; the device may start them as one. The caller alternates
     * between few sets of addresses; a call with a new set may allocate. */
    ddp_status (*step)(ddp_instance *i, const ddp_run *r, const ddp_update *u, ddp_err *err);

    /* ---- of CAP_QUEUES: the device's thread; with DDP_QUEUE_COMM the queue thread; event_sync any thread */
    /* Page-locked host memory, for asynchronous copies: 64-byte aligned, zero-filled. */
    ddp_status (*host_alloc)(ddp_device *d, size_t bytes, void **out, ddp_err *err);
    void (*host_free)(ddp_device *d, void *p);
    /* Makes events 0 .. count - 1. Called before any of the functions below. */
    ddp_status (*events)(ddp_device *d, uint32_t count, ddp_err *err);
    ddp_status (*event_record)(ddp_device *d, uint32_t queue, uint32_t event, ddp_err *err);
    /* Later work of `queue` waits for the newest record of the event; the caller does not. An event that was never
     * recorded counts as past. */
    ddp_status (*event_wait)(ddp_device *d, uint32_t queue, uint32_t event, ddp_err *err);
    ddp_status (*event_sync)(ddp_device *d, uint32_t event, ddp_err *err); /* the caller waits */
    /* Between host_alloc and alloc memory, or within the latter; returns before it is done. */
    ddp_status (*copy_async)(ddp_device *d, uint32_t queue, void *dst, const void *src, size_t bytes,
                             uint32_t direction, ddp_err *err);
    /* `flat` on COMPUTE. *out is host_alloc memory, written once an event that follows the call is past. Any number of
     * these may be pending. */
    ddp_status (*flat_async)(ddp_device *d, uint32_t what, const float *x, uint64_t count, ddp_flat_result *out,
                             ddp_err *err);
    void *(*stream)(ddp_device *d, uint32_t queue); /* its native handle, for ddp_coll.stream */
    /* x[i] *= by, in double, rounded once; by 0 gives 0 even for a NaN. */
    ddp_status (*scale)(ddp_device *d, float *x, uint64_t count, double by, ddp_err *err);
    /* Something other than optim_step wrote the `count` parameters from `params` on: the device makes its own copies of
     * them (packed, bf16) again, on COMPUTE. Called for all parameters before the first run. */
    ddp_status (*params_changed)(ddp_device *d, const float *params, uint64_t count, ddp_err *err);

    /* ---- added later */
    /* Optional, of a device with CAP_HOST_MEMORY: 1 << dtype of what parameters that are not trained may be given as,
     * beside f32. Only those that nothing reads but LINEAR, LINEAR_GRAD_INPUT and EMBEDDING, as their w, are. */
    uint32_t (*frozen_dtypes)(ddp_device *d);
    /* Optional. The device's thread: looks at what would slow down or end a run on it, and reports it. */
    void (*preflight)(ddp_device *d, const ddp_preflight *p);
} ddp_device_ops;

/* The tables that the engine hands to a plugin of this kind. */
#define DDP_DEVICE_SERVICES                                                                                            \
    (sizeof(ddp_host) + sizeof(ddp_device_params) + sizeof(ddp_device_info) + sizeof(ddp_bind) + sizeof(ddp_run) +     \
     sizeof(ddp_optim) + sizeof(ddp_optim_peers) + sizeof(ddp_optim_slice) + sizeof(ddp_update) +                      \
     sizeof(ddp_flat_result) + sizeof(ddp_device_peaks) + sizeof(ddp_program) + sizeof(ddp_value) + sizeof(ddp_node) + \
     sizeof(ddp_plan) + sizeof(ddp_preflight))

#ifdef __cplusplus
}
#endif
#endif
