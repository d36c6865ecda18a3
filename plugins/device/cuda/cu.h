/* cu.h -- what the host files of the CUDA device share. (Not cuda.h: the toolkit has one.)
 *
 *   device.c     the plugin's table: options, open, memory, copy, describe
 *   queues.c     the two streams, events, copies beside the host, host memory
 *   slices.c     optimiser step, reductions and scaling of flat slices, sync
 *   peak.c       how many FLOPs and bytes a second this GPU does at its best
 *   mirror.c     the parameters in bf16, kept beside the arena
 *   lower.c      groups a program's nodes into kernels, says what storage they need
 *   types.c      which values are stored in bf16
 *   layout.c     how values lie, and the copies where they lie otherwise than a kernel has them
 *   exec.c       compile, instances: what each kernel is called with
 *   run.c        the batch's fields, runs, CUDA graphs
 *   fam_*.c      the families of kernels: what a kernel takes in, what it needs, how it runs
 *
 * The kernels are behind kernels.h, the products of cuBLASLt behind gemm.h, cuDNN behind dnn.h. Images lie channels last,
 * (N, H, W, C); a field of the batch, a parameter and a gradient keep PyTorch's order, and are f32. */
#ifndef DDP_CUDA_CU_H
#define DDP_CUDA_CU_H

#include "dnn.h"
#include "gemm.h"
#include "kernels.h"
#include "libraries.h"

#define CU_ALIGNMENT 256u /* of a kernel's scratch, and of its parts */
static inline uint64_t cu_round(uint64_t bytes) { return (bytes + CU_ALIGNMENT - 1) / CU_ALIGNMENT * CU_ALIGNMENT; }

/* ---- the device ----------------------------------------------------------------------------------------------------- */
typedef struct cu_config {
    int32_t tf32, rounding, graphs;
    const char *cublas_library, *cudnn_library, *algorithm_cache;
    uint64_t workspace;
} cu_config;

/* The parameters of one arena in bf16, element by element; several instances share it. */
typedef struct cu_mirror {
    struct cu_mirror *next;
    const float *base;
    uint64_t elements;
    uint16_t *half;
    uint32_t users;
    bool filled;
} cu_mirror;

enum { CU_RING = 64, CU_TABLES = 16 };

/* Page-locked cu_run_params on their way to an instance; a slot is free again when its event is past. */
typedef struct cu_ring {
    cu_run_params *slots;
    cudaEvent_t past[CU_RING];
    uint32_t next;
} cu_ring;

typedef struct cu_attention_entry cu_attention_entry; /* fam_attention.c */

struct ddp_device {
    const ddp_host *host;
    int ordinal;
    bool half; /* precision bf16 */
    bool stochastic, graphs;
    cudaStream_t streams[DDP_QUEUE_COUNT];
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

/* mirror.c. A mirror is made at its first use and filled before the first run. */
ddp_status cu_mirror_use(ddp_device *d, const float *base, uint64_t elements, cu_mirror **out, ddp_err *err);
void cu_mirror_release(ddp_device *d, cu_mirror *m); /* takes NULL */
ddp_status cu_mirror_fill(ddp_device *d, cu_mirror *m, ddp_err *err);
/* Where the bf16 parameters of the whole slice are, of one mirror; NULL. */
uint16_t *cu_mirror_of(const ddp_device *d, const float *param, uint64_t count, uint64_t *first);
/* `count` floats from `at` on were written: all mirrors but the one that has `half`. */
ddp_status cu_mirror_refresh(ddp_device *d, const float *at, uint64_t count, const uint16_t *half, ddp_err *err);

/* ---- kernels -------------------------------------------------------------------------------------------------------- */
/* How a value lies in memory; ddp_storage.layout. */
enum { CU_PLAIN = 0, /* row-major in the program's shape */ CU_CHANNELS_LAST /* rank 4: (N, H, W, C) */ };

enum { CU_MAX_VALUES = 8, CU_MAX_NODES = 4, CU_AS_IT_LIES = 2 /* beside CU_F32 and CU_BF16 */ };

typedef struct cu_lowering cu_lowering;
typedef struct cu_kernel cu_kernel;
typedef struct cu_call cu_call;

typedef struct cu_building {
    ddp_device *device;
    const ddp_program *program;
    const uint8_t *type; /* by value, as it is stored */
} cu_building;

/* A family of kernels. Only `group` and `run` are never NULL. */
typedef struct cu_family {
    /* Makes k the kernel of `node`, which it has already, and of the nodes it takes besides. */
    ddp_status (*group)(cu_lowering *w, cu_kernel *k, uint32_t node, ddp_err *err);
    ddp_status (*build)(const cu_building *b, const cu_kernel *k, ddp_err *err); /* at compile; may be NULL */
    ddp_status (*run)(const cu_call *c, ddp_err *err);                           /* starts it; may be captured */
    void (*release)(void *state);                                                /* takes NULL */
} cu_family;

struct cu_kernel {
    const cu_family *family;
    const char *name;                              /* "linear+bias+relu" */
    const char *layer;                             /* "fc1" */
    int32_t in[CU_MAX_VALUES], out[CU_MAX_VALUES]; /* values by the family's own numbering; -1: absent */
    uint8_t in_type[CU_MAX_VALUES];                /* CU_*: what it takes, and gives; else there is a conversion */
    uint8_t out_type[CU_MAX_VALUES];
    uint32_t adds;                /* bit i: the program adds to out[i], a gradient that is set before */
    bool plain;                   /* it takes and gives all of them row-major; else images channels last */
    uint32_t plain_in, plain_out; /* bit i: in[i] or out[i] row-major whatever the others are: weights */
    uint32_t reads_any;           /* bit i: takes in[i] as it lies; else it is converted */
    uint32_t writes_any;          /* bit i: gives out[i] as it lies; else it is converted, but for a gradient */
    uint32_t
        writes_grad;    /* bit i: where out[i] is a slice of the gradient arena it writes there itself, set or added */
    uint32_t kind, act; /* the family's own; CU_ACT_* */
    int64_t rows, inner, cols; /* of the matrix it works on: (rows, cols), or (rows, inner) -> (rows, cols) */
    int64_t limit;             /* labels or indices are below */
    uint64_t scratch_bytes;    /* the family's own */
    int32_t inplace_out[2], inplace_in[2];
    uint32_t inplace_count;
    void *state;                    /* the family's own, freed by its release */
    uint32_t nodes[CU_MAX_NODES];   /* that it computes, in program order */
    uint32_t node_count, place, id; /* stands where node `place` does; id: in order of creation */
};

/* ---- lowering: for the families ------------------------------------------------------------------------------------- */
struct cu_lowering {
    ddp_device *device;
    const ddp_program *p;
    struct cu_lowered *l;
    uint32_t *readers; /* by value: nodes that read it */
    bool *kept;        /* by value: the loss and the metrics */
    bool *taken;       /* by node */
    bool *inner;       /* by value: never leaves its kernel, no storage */
    uint32_t *layout;  /* by value */
    uint8_t *type;     /* by value: CU_F32 or CU_BF16, as it is stored; the lowered program's */
};

static inline const ddp_value *cu_value(const ddp_program *p, int32_t v)
{
    return (const ddp_value *)(const void *)((const char *)p->values + (size_t)v * p->value_size);
}
static inline const ddp_node *cu_node(const ddp_program *p, uint32_t n)
{
    return (const ddp_node *)(const void *)((const char *)p->nodes + (size_t)n * p->node_size);
}
/* Of the batch, a parameter, a gradient or a buffer: not computed, and it lies as the program has it. */
static inline bool cu_outside(const ddp_value *v) { return v->kind != DDP_VALUE_ACT; }
static inline int64_t cu_last_dim(const ddp_value *v) { return v->rank > 0 ? v->dims[v->rank - 1] : 1; }
/* What products and convolutions take in. */
static inline uint8_t cu_operand(const ddp_device *d) { return d->half ? CU_BF16 : CU_F32; }
static inline size_t cu_size(uint32_t type) { return type == CU_BF16 ? 2 : 4; }
static inline uint64_t cu_stored_bytes(const ddp_value *v, uint8_t type)
{
    return (uint64_t)v->elements * (v->dtype == DDP_F32 ? cu_size(type) : ddp_dtype_size(v->dtype));
}

/* Rows of channels, as the value lies: the channels of an image, else the last dimension. */
void cu_matrix(const cu_lowering *w, int32_t v, int64_t *rows, int64_t *cols);
/* Rows of the last dimension, in a kernel that takes everything row-major. */
void cu_rows(const cu_lowering *w, cu_kernel *k, int32_t v);
/* The kernel also computes `node`. One that reads a value which does not exist at the kernel's place moves it there. */
void cu_take(cu_lowering *w, cu_kernel *k, uint32_t node);
void cu_take_and_move(cu_lowering *w, cu_kernel *k, uint32_t node);
/* The first free node after `from` whose op is in the list and whose input `slot` is `value`; -1 if none. */
int64_t cu_find_reader(const cu_lowering *w, uint32_t from, int32_t value, uint32_t slot, const uint32_t *ops,
                       uint32_t op_count);
/* One node alone reads it, and it is no result: a kernel that has both needs no storage for it. */
bool cu_read_once(const cu_lowering *w, int32_t v);
/* out may lie where in lies if nobody needs that later. Of several pairs of one output the first that can be is taken. */
void cu_may_replace(cu_kernel *k, int32_t out, int32_t in);
ddp_status cu_refuse(ddp_err *err, const ddp_node *n, const char *why);
/* Zeroed memory for k->state. */
void *cu_state(cu_kernel *k, size_t bytes, ddp_err *err);
uint32_t cu_act_of(const ddp_node *n);
/* types.c, layout.c, in this order: before the nodes are grouped; behind that; with all kernels in their places. The root of a
 * value is the one whose memory it lies in. */
void cu_choose_types(cu_lowering *w);
void cu_describe_layouts(cu_lowering *w);
void cu_size_storage(cu_lowering *w);
ddp_status cu_find_changes(cu_lowering *w, ddp_err *err);
int32_t cu_root_of(const struct cu_lowered *l, int32_t v);

extern const cu_family cu_family_linear, cu_family_linear_grad_input, cu_family_linear_grad_weight,
    cu_family_column_sums;
extern const cu_family cu_family_act, cu_family_act_grad, cu_family_add, cu_family_view, cu_family_loss,
    cu_family_dropout;
extern const cu_family cu_family_conv, cu_family_conv_grad, cu_family_pool, cu_family_pool_grad, cu_family_batch_norm,
    cu_family_batch_norm_grad;
extern const cu_family cu_family_layer_norm, cu_family_layer_norm_grad, cu_family_embedding, cu_family_embedding_grad,
    cu_family_position, cu_family_position_grad, cu_family_attention, cu_family_attention_grad;
/* Makes k, the kernel of an add, one of add and layer norm where the sum is normalised. */
bool cu_join_layer_norm(cu_lowering *w, cu_kernel *k, uint32_t add);
/* fam_attention.c: at close */
void cu_attentions_free(ddp_device *d);

/* ---- lowering: the result ------------------------------------------------------------------------------------------- */
/* A value that is in another place, or of another type, for one kernel: an input converted before it, an output after it. */
typedef enum cu_conversion { CU_COPY, CU_TO_PLAIN, CU_TO_IMAGE } cu_conversion;
typedef struct cu_change {
    uint32_t slot;
    bool output;
    bool ready; /* an earlier kernel has made it */
    cu_conversion how;
    uint8_t type;    /* of the kernel's side */
    int32_t own;     /* private that has it for later kernels too; -1: in the scratch */
    uint64_t offset; /* in the kernel's scratch, behind the family's own */
} cu_change;

typedef struct cu_lowered {
    cu_kernel *kernels;
    ddp_kernel *table; /* what the core sees */
    ddp_storage *storage;
    ddp_private *privates;
    uint8_t *type; /* by value */
    uint32_t kernel_count, private_count;
    cu_change (*changes)[2 * CU_MAX_VALUES]; /* by kernel */
    uint32_t *change_count;
    bool mirrored; /* a kernel takes a parameter in bf16 */
} cu_lowered;

ddp_status cu_lower(ddp_device *d, const ddp_program *p, ddp_lowered **out, ddp_err *err);
void cu_lowered_free(ddp_device *d, ddp_lowered *l);

/* ---- a call of a kernel: the same addresses in every run of an instance --------------------------------------------- */
/* Around the kernel: from -> to, as the kernel has it. */
typedef struct cu_move {
    cu_conversion how;
    uint32_t slot;
    const ddp_value *value;
    cu_view from, to;
} cu_move;

struct cu_call {
    ddp_device *device;
    const ddp_program *program;
    const cu_kernel *k;
    cudaStream_t stream;
    cu_view in[CU_MAX_VALUES], out[CU_MAX_VALUES]; /* at NULL: absent, or inner */
    uint16_t *half[CU_MAX_VALUES];                 /* in[i] in the mirror, where it is a parameter that has one */
    char *scratch;                                 /* 256-byte aligned */
    const cu_run_params *params;
    cu_fault *fault;
    uint32_t site;    /* the kernel's number in a fault */
    uint32_t grads;   /* bit i: out[i] is a slice of the gradient arena */
    uint32_t changed; /* bit i: out[i] is converted behind the kernel, which adds nothing then */
    uint32_t adds;    /* bit i: out[i] is added to; of the run that is being started */
    cu_move before[CU_MAX_VALUES], after[CU_MAX_VALUES];
    uint32_t before_count, after_count;
};

static inline bool cu_adds(const cu_call *c, uint32_t slot) { return (c->adds >> slot & 1u) != 0; }
static inline const ddp_attrs *cu_attrs(const cu_call *c, uint32_t node)
{
    return &cu_node(c->program, c->k->nodes[node])->attrs;
}
/* What starting a kernel said. */
ddp_status cu_started(const cu_call *c, cudaError_t result, ddp_err *err);

/* ---- programs and instances: exec.c, run.c -------------------------------------------------------------------------- */
struct ddp_exec {
    ddp_exec *next; /* of the device's */
    ddp_device *device;
    const ddp_program *program;
    const cu_lowered *lowered;
    const ddp_plan *plan;
    uint32_t first_site;
    uint32_t field_count;             /* fields of the batch that a kernel reads */
    uint64_t *field_at, *field_bytes; /* by field: in an instance's own memory */
    uint64_t own_bytes;
    uint32_t *next_reader; /* by field, by kernel: the first from there on that reads it, or UINT32_MAX */
    bool random;           /* a kernel draws random numbers */
};

typedef struct cu_graph {
    uint32_t first, last, flags;
    cudaGraphExec_t exec;
} cu_graph;

enum { CU_GRAPHS = 64 };

struct ddp_instance {
    ddp_exec *exec;
    char *arena, *own; /* own: the fields of the batch, then cu_run_params */
    cu_mirror *mirror;
    cu_call *calls;    /* by kernel */
    bool *uploaded;    /* by field, in this sequence */
    uint32_t ended;    /* where the last range did; UINT32_MAX: there was none */
    ddp_random random; /* that was uploaded */
    cu_graph graphs[CU_GRAPHS];
    uint32_t graph_count;
};

/* slots of ddp_device_ops */
ddp_status cu_compile(ddp_device *d, const ddp_program *p, const ddp_lowered *l, const ddp_plan *plan, ddp_exec **out,
                      ddp_err *err);
void cu_exec_free(ddp_exec *e);
ddp_status cu_instance_create(ddp_exec *e, const ddp_bind *bind, ddp_instance **out, ddp_err *err);
void cu_instance_free(ddp_instance *i);
ddp_status cu_run(ddp_instance *i, const ddp_run *r, uint32_t first, uint32_t last, ddp_err *err);
ddp_status cu_sync(ddp_device *d, ddp_err *err);
/* What is known by now to be wrong with the data of a run: as cu_sync tells it. */
ddp_status cu_known_fault(ddp_device *d, ddp_err *err);
ddp_status cu_update(ddp_device *d, const ddp_optim *o, const ddp_optim_slice *s, ddp_err *err);
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

#endif
