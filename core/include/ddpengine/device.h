/* ddpengine/device.h -- kind `device`: runs programs, updates parameters.
 *
 * All calls of one device come from one thread, except `flat` and `copy`, which may also come from the queue thread on
 * memory that no running kernel touches. Several devices of one process have a thread each; a copy, and an update with peers, may
 * then name memory that another device of the plugin has given. Between the first and the last step nothing of the device's own allocates.
 */
#ifndef DDPENGINE_DEVICE_H
#define DDPENGINE_DEVICE_H

#include <ddpengine/program.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DDP_DEVICE_ABI 1u

#define DDP_DEVICE_CAP_HOST_MEMORY                                                                                     \
    (1ull << 0)                            /* its memory is the host's: the loader and host backends use it directly */
#define DDP_DEVICE_CAP_OVERLAP (1ull << 1) /* run() returns before the kernels are done */
#define DDP_DEVICE_CAP_PEERS   (1ull << 2) /* optim_step honours ddp_optim.peers */
#define DDP_DEVICE_CAP_BF16    (1ull << 3) /* knows DDP_PRECISION_BF16; open may still refuse it, with the reason */

/* BF16: operands of matrix products and convolutions are rounded to bf16, their sums are f32; parameters, gradients, optimiser
 * state, normalisation and loss are f32, as under PyTorch's autocast. */
enum { DDP_PRECISION_F32 = 0, DDP_PRECISION_BF16 };

typedef struct ddp_device ddp_device; /* these three are defined by the plugin */
typedef struct ddp_exec ddp_exec;
typedef struct ddp_instance ddp_instance;

typedef struct ddp_device_params {
    uint32_t struct_size, ordinal; /* of "cpu:1": 1 */
    uint32_t threads;              /* compute threads, at least 1 */
    uint32_t precision;            /* DDP_PRECISION_* */
    uint32_t local_rank, local_size;
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
} ddp_bind;

#define DDP_RUN_GRAD_ADD (1u << 0) /* add to the gradient arena instead of setting it: the later micro-steps */

typedef struct ddp_run {
    uint32_t struct_size, flags;
    void *const *inputs; /* by field, 64-byte aligned device memory of N samples; stays valid until the run is done */
    ddp_random random;   /* of this micro-step on this rank */
} ddp_run;

/* Ranks that see each other's memory: the gradient of a slice is the mean of grads[0 .. count - 1], added in that order, with the
 * bits of an all_reduce with DDP_AVG, and slice->grad is not used; the new parameters go to each of params, slice->param among
 * them. All are addresses of the slice's first element. *not_finite gets the index of the first mean that is not finite, or
 * slice->count. grads NULL: the gradient is slice->grad, and *not_finite is not written. */
typedef struct ddp_optim_peers {
    uint32_t struct_size, count;
    const float *const *grads;
    float *const *params;
    uint64_t *not_finite;
} ddp_optim_peers;

/* One update of a flat slice, PyTorch's formulas (torch.optim.SGD, Adam, AdamW; dampening 0, amsgrad off), the same bits
 * on every CPU. g is grad * grad_scale. MEAN is no update: slice->param gets the mean of the peers' gradients and may be one of
 * them; peers->params, states and all other numbers are not used. */
enum { DDP_OPTIM_SGD = 1, DDP_OPTIM_ADAM, DDP_OPTIM_ADAMW, DDP_OPTIM_MEAN };

typedef struct ddp_optim {
    uint32_t struct_size, algorithm;
    uint32_t nesterov, reserved0;
    uint64_t step; /* 1 for the first update */
    double lr, momentum, beta1, beta2, eps, weight_decay, grad_scale;
    const ddp_optim_peers *peers; /* of DDP_DEVICE_CAP_PEERS; NULL: none */
} ddp_optim;

typedef struct ddp_optim_slice {
    float *param, *state1, *state2; /* SGD with momentum: state1 the buffer; Adam: exp_avg, exp_avg_sq; else NULL */
    const float *grad;
    uint64_t count;
} ddp_optim_slice;

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

typedef struct ddp_device_ops {
    uint32_t struct_size, reserved0;
    uint64_t caps;
    ddp_status (*open)(const ddp_host *host, const void *config, const ddp_device_params *p, ddp_device **out,
                       ddp_err *err);
    void (*close)(ddp_device *d);
    void (*describe)(ddp_device *d, ddp_device_info *out);
    ddp_status (*alloc)(ddp_device *d, size_t bytes, void **out, ddp_err *err); /* 64-byte aligned, zero-filled */
    void (*free)(ddp_device *d, void *p);
    ddp_status (*copy)(ddp_device *d, void *dst, const void *src, size_t bytes, uint32_t direction, ddp_err *err);
    /* Groups nodes into kernels. An op that the device cannot do is DDP_ERR_UNSUPPORTED, with the op and node->name. */
    ddp_status (*lower)(ddp_device *d, const ddp_program *p, ddp_lowered **out, ddp_err *err);
    void (*lowered_free)(ddp_device *d, ddp_lowered *l);
    /* program, lowered and plan live until exec_free. */
    ddp_status (*compile)(ddp_device *d, const ddp_program *p, const ddp_lowered *l, const ddp_plan *plan,
                          ddp_exec **out, ddp_err *err);
    void (*exec_free)(ddp_exec *e);
    ddp_status (*instance_create)(ddp_exec *e, const ddp_bind *bind, ddp_instance **out, ddp_err *err);
    void (*instance_free)(ddp_instance *i);
    /* Kernels first .. last-1, in order. A label out of range is DDP_ERR_DATA with the row and the value. */
    ddp_status (*run)(ddp_instance *i, const ddp_run *r, uint32_t first, uint32_t last, ddp_err *err);
    ddp_status (*sync)(ddp_device *d, ddp_err *err);
    ddp_status (*optim_step)(ddp_device *d, const ddp_optim *o, const ddp_optim_slice *s, ddp_err *err);
    ddp_status (*flat)(ddp_device *d, uint32_t what, const float *x, uint64_t count, ddp_flat_result *out,
                       ddp_err *err);
    /* May be NULL. With all of the device's threads, in about 50 ms, while nothing runs. */
    ddp_status (*measure)(ddp_device *d, ddp_device_peaks *out, ddp_err *err);
    /* May be NULL. Compute thread i, the caller being thread 0, keeps to processors[i] from now on (params.threads of them),
     * until close gives all of them back what the caller had. On failure none is bound. */
    ddp_status (*pin)(ddp_device *d, const int32_t *processors, ddp_err *err);
} ddp_device_ops;

#ifdef __cplusplus
}
#endif
#endif
