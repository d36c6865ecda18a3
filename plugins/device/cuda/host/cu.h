/* plugins/device/cuda/host/cu.h -- what the host files of the CUDA device share. (Not cuda.h: the toolkit has one.)
 *
 *   device.c     the plugin's table: options, open, memory, copy, describe
 *   queues.c     the two streams, events, copies beside the host, host memory
 *   slices.c     optimiser step, reductions and scaling of flat slices, sync
 *   peak.c       how many FLOPs and bytes a second this GPU does at its best
 *   mirror.c     the parameters in bf16, kept beside the arena
 *   lower.c      which family has which op; device/common/ groups a program's nodes into kernels
 *   types.c      which values are stored in bf16
 *   exec.c       compile, instances: what each kernel is called with
 *   run.c        the batch's fields, runs, CUDA graphs
 *   side.c       kernels of a graph that run beside those behind them
 *   step.c       whole steps: what follows the kernels of a run that ends in an update
 *
 * families/ has a file for each family of kernels: what a kernel takes in, what it needs, how it runs. The kernels
 * are declared in kernels/kernels.h, the products of cuBLASLt in libs/gemm.h, cuDNN in libs/dnn.h.
 * device/common/lower.h says how values lie; a field of the batch, a parameter and a gradient are f32. */
#pragma once

#include "common/lower.h"
#include "libs/dnn.h"
#include "libs/gemm.h"
#include "kernels/kernels.h"
#include "libs/libraries.h"
#include "mirror.h"

#define CU_ALIGNMENT 256u /* of a kernel's scratch, and of its parts */
static inline uint64_t cu_round(uint64_t bytes) { return (bytes + CU_ALIGNMENT - 1) / CU_ALIGNMENT * CU_ALIGNMENT; }

/* ---- the device -------------------------------------------------------------------------------------------------- */
typedef struct cu_config {
    int32_t tf32, rounding, residual, graphs, side_stream;
    const char *cublas_library, *cudnn_library, *algorithm_cache;
    uint64_t workspace, logits;
} cu_config;

enum { CU_RING = 64, CU_TABLES = 16 };

/* What changes from run to run, in front of a stage's fields. */
typedef struct cu_head {
    cu_run_params random;
    cu_numbers numbers;
} cu_head;

/* Page-locked heads on their way to a stage; a slot is free again when its event is past. */
typedef struct cu_ring {
    cu_head *slots;
    cudaEvent_t past[CU_RING];
    uint32_t next;
} cu_ring;

typedef struct cu_attention_entry cu_attention_entry; /* families/attention.c */

enum { CU_SIDE_EVENTS = 16 };
enum { CU_SIDE_MEASURED = 0, CU_SIDE_ALWAYS, CU_SIDE_NEVER }; /* side_stream */

typedef struct cu_graph cu_graph; /* instance.h */
/* A second stream for kernels of a graph, and events in it: side.c. */
typedef struct cu_side {
    cudaStream_t stream; /* NULL: there is none */
    bool refused;        /* a capture with it has failed */
    cudaEvent_t before, done[CU_SIDE_EVENTS];
    cudaEvent_t from, to; /* around a graph that is timed */
    cu_graph *timed;      /* and not read yet; NULL: none */
} cu_side;

struct ddp_device {
    const ddp_host *host;
    int ordinal;
    bool half;        /* precision bf16 */
    bool half_stream; /* and the residual stream in it */
    bool stochastic, graphs;
    bool told_slow;    /* that something of bf16 is computed on f32 cores */
    uint32_t told_own; /* CU_OWN_*: that cuDNN has nothing for one */
    cudaStream_t streams[DDP_QUEUE_COUNT];
    cudaStream_t input; /* batches come up on it, beside what is computed */
    cu_side side;
    bool side_always; /* it is not measured whether that is faster */
    cudaEvent_t *events;
    uint32_t event_count;
    cu_libraries libraries;
    bool libraries_open;
    cu_products *products;
    cu_dnn *dnn; /* NULL: the device's own kernels */
    cu_attention_entry *attentions;
    cu_mirror *mirrors;
    cu_fault *fault, *fault_at; /* as the host and as kernels see it */
    ddp_exec *execs;
    uint32_t next_site; /* of the next kernel that is compiled */
    cu_ring ring;
    ddp_flat_result *flat_host, *flat_at;
    void *flat_scratch;
    uint64_t flat_scratch_bytes, memory_bytes;
    uint64_t logits_bytes; /* of a cross-entropy; more are computed in pieces */
    double bytes_per_ns;   /* that its memory moves at best */
    char gpu[128], library[128];
};

#define CU_LOG(d, level, ...)                                                                                          \
    do {                                                                                                               \
        if ((d)->host != NULL && (d)->host->log != NULL)                                                               \
            (d)->host->log((d)->host->ctx, level, __FILE__, __LINE__, __VA_ARGS__);                                    \
    } while (0)

/* Of each entry point: the calling thread's device is this one. */
ddp_status cu_enter(const ddp_device *d, ddp_err *err);
static inline cudaStream_t cu_compute(const ddp_device *d) { return d->streams[DDP_QUEUE_COMPUTE]; }
/* Device memory; what is missing, and what to do about it, in the error. */
ddp_status cu_memory(const ddp_device *d, uint64_t bytes, const char *what, void **out, ddp_err *err);
/* Page-locked, zeroed memory that kernels see too, at *device. */
ddp_status cu_page_locked(const ddp_device *d, size_t bytes, void **out, void **device, ddp_err *err);

/* ---- kernels ----------------------------------------------------------------------------------------------------- */
typedef struct cu_call cu_call;

typedef struct cu_building {
    ddp_device *device;
    const ddp_program *program;
    const uint8_t *type; /* by value, as it is stored */
} cu_building;

/* A family of kernels. Only base.group and `run` are never NULL. */
typedef struct cu_family {
    low_family base;
    ddp_status (*build)(const cu_building *b, const low_kernel *k, ddp_err *err); /* at compile; may be NULL */
    ddp_status (*run)(const cu_call *c, ddp_err *err);                            /* starts it; may be captured */
} cu_family;

static inline const cu_family *cu_family_of(const low_kernel *k) { return (const cu_family *)(const void *)k->family; }

/* ---- lowering: for the families ---------------------------------------------------------------------------------- */
/* What products and convolutions take in. */
static inline uint8_t cu_operand(const ddp_device *d) { return d->half ? CU_BF16 : CU_F32; }
static inline size_t cu_size(uint32_t type) { return type == CU_BF16 ? 2 : 4; }

/* Zeroed memory for k->state. */
void *cu_state(low_kernel *k, size_t bytes, ddp_err *err);
/* The status; an error gets the kernel's name and its layer's in front. */
ddp_status cu_in_kernel(const low_kernel *k, ddp_status status, ddp_err *err);
uint32_t cu_act_of(const ddp_node *n);
void cu_choose_types(low_lowering *w); /* types.c */

extern const cu_family cu_family_linear, cu_family_linear_grad_input, cu_family_linear_grad_weight,
    cu_family_column_sums;
extern const cu_family cu_family_act, cu_family_act_grad, cu_family_add, cu_family_mul, cu_family_rope, cu_family_view,
    cu_family_loss, cu_family_metric, cu_family_dropout, cu_family_leaky_relu, cu_family_scale;
extern const cu_family cu_family_conv, cu_family_conv_grad, cu_family_pool, cu_family_pool_grad, cu_family_batch_norm,
    cu_family_batch_norm_grad;
extern const cu_family cu_family_layer_norm, cu_family_layer_norm_grad, cu_family_embedding, cu_family_embedding_grad,
    cu_family_position, cu_family_position_grad, cu_family_attention, cu_family_attention_grad,
    cu_family_attention_apart, cu_family_attention_apart_grad;
extern const cu_family cu_family_head;
/* families/head.c: whether the linear layer's logits are so many that it, its loss and the gradients become one
 * kernel; k becomes it. */
bool cu_head_takes(const low_lowering *w, uint32_t node);
ddp_status cu_head_group(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err);
/* families/batch_norm.c: k becomes the kernel of a batch norm's gradient, where low_norm_grad_takes says so. */
ddp_status cu_batch_norm_group(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err);
/* families/attention.c: at close */
void cu_attentions_free(ddp_device *d);

ddp_status cu_lower(ddp_device *d, const ddp_program *p, ddp_lowered **out, ddp_err *err);
void cu_lowered_free(ddp_device *d, ddp_lowered *l);

/* ---- a call of a kernel: the same addresses in every run of an instance ------------------------------------------ */
/* Around the kernel: from -> to, as the kernel has it. */
typedef struct cu_move {
    low_conversion how;
    uint32_t slot;
    const ddp_value *value;
    cu_view from, to;
} cu_move;

struct cu_call {
    ddp_device *device;
    const ddp_program *program;
    const low_kernel *k;
    cudaStream_t stream;
    cu_view in[LOW_MAX_VALUES], out[LOW_MAX_VALUES]; /* at NULL: absent, or inner */
    uint16_t *half[LOW_MAX_VALUES];                  /* in[i] in the mirror, where it is a parameter that has one */
    cu_view copy;                                    /* bf16, of out[k->half_of]; at NULL: nobody wants it */
    char *scratch;                                   /* 256-byte aligned */
    char *kept[LOW_MAX_PRIVATES];                    /* the kernel's private values, 64-byte aligned */
    const cu_run_params *params;
    cu_fault *fault;
    uint32_t site;    /* the kernel's number in a fault */
    uint32_t grads;   /* bit i: out[i] is a slice of the gradient arena */
    uint32_t changed; /* bit i: out[i] is converted after the kernel, which adds nothing then */
    uint32_t adds;    /* bit i: out[i] is added to; of the run that is being started */
    cu_move before[LOW_MAX_VALUES], after[LOW_MAX_VALUES];
    uint32_t before_count, after_count;
};

static inline bool cu_adds(const cu_call *c, uint32_t slot) { return (c->adds >> slot & 1u) != 0; }
static inline const ddp_attrs *cu_attrs(const cu_call *c, uint32_t node)
{
    return &low_node(c->program, c->k->nodes[node])->attrs;
}
/* A line that cuDNN does not compute `what` of a layer, and why: the first of a kind (CU_OWN_*) a device is a warning,
 * the others are of level debug. families/attention.c */
enum { CU_OWN_ATTENTION = 1, CU_OWN_CONVOLUTION = 2 };
void cu_tell_own(ddp_device *d, uint32_t kind, const char *what, const char *layer, const char *why);
/* One warning a device that `what` of a layer, in bf16, has to do without tensor cores. families/attention.c */
void cu_tell_slow(ddp_device *d, const char *what, const char *layer, const char *why);
/* What starting a kernel said. */
ddp_status cu_started(const cu_call *c, cudaError_t result, ddp_err *err);

/* slots of ddp_device_ops */
ddp_status cu_compile(ddp_device *d, const ddp_program *p, const ddp_lowered *l, const ddp_plan *plan, ddp_exec **out,
                      ddp_err *err);
void cu_exec_free(ddp_exec *e);
ddp_status cu_instance_create(ddp_exec *e, const ddp_bind *bind, ddp_instance **out, ddp_err *err);
void cu_instance_free(ddp_instance *i);
ddp_status cu_run(ddp_instance *i, const ddp_run *r, uint32_t first, uint32_t last, ddp_err *err);
ddp_status cu_step(ddp_instance *i, const ddp_run *r, const ddp_update *u, ddp_err *err);
ddp_status cu_sync(ddp_device *d, ddp_err *err);
/* What is known by now to be wrong with the data of a run: as cu_sync reports it. */
ddp_status cu_known_fault(ddp_device *d, ddp_err *err);
ddp_status cu_update(ddp_device *d, const ddp_optim *o, const ddp_optim_slice *s, ddp_err *err);
/* slices.c: what an update is refused for, and how its kernel has it, without peers and mirror. */
ddp_status cu_update_check(const ddp_optim *o, const ddp_optim_slice *s, const ddp_optim_peers *peers, ddp_err *err);
cu_optim cu_update_describe(const ddp_optim *o, const ddp_optim_slice *s);
ddp_status cu_flat(ddp_device *d, uint32_t what, const float *x, uint64_t count, ddp_flat_result *out, ddp_err *err);
ddp_status cu_flat_async(ddp_device *d, uint32_t what, const float *x, uint64_t count, ddp_flat_result *out,
                         ddp_err *err);
ddp_status cu_scale(ddp_device *d, float *x, uint64_t count, double by, ddp_err *err);
ddp_status cu_measure(ddp_device *d, ddp_device_peaks *out, ddp_err *err);
ddp_status cu_host_alloc(ddp_device *d, size_t bytes, void **out, ddp_err *err);
void cu_host_free(ddp_device *d, void *p);
ddp_status cu_events(ddp_device *d, uint32_t count, ddp_err *err);
ddp_status cu_event_record(ddp_device *d, uint32_t queue, uint32_t event, ddp_err *err);
ddp_status cu_event_wait(ddp_device *d, uint32_t queue, uint32_t event, ddp_err *err);
ddp_status cu_event_sync(ddp_device *d, uint32_t event, ddp_err *err);
ddp_status cu_copy_async(ddp_device *d, uint32_t queue, void *dst, const void *src, size_t bytes, uint32_t direction,
                         ddp_err *err);
void *cu_stream(ddp_device *d, uint32_t queue);
