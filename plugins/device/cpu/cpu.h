/* cpu.h -- what the files of the CPU device share.
 *
 *   device.c     the plugin's table: open, memory, copy, describe
 *   lower.c      groups a program's nodes into kernels, says what storage they need
 *   layout.c     how values lie, and the copies where they lie otherwise than a kernel has them
 *   exec.c       compile, instances, run
 *   fam_*.c      the families of kernels: what a kernel takes in, what it needs, how it runs
 *   flat.c       optimiser step and reductions over flat slices
 *   peak.c       how many FLOPs and bytes a second this CPU does at its best
 *   onednn.c, gemm.c, .. the files that see oneDNN; gemm.h and conv.h hide it from the others
 *   winograd.c   convolutions of 3 x 3 by tiles; it sees nothing of programs
 *   half.c       products in bf16; half_avx512.c has their kernels
 *   kernels.c    everything else, in three variants by CPU feature
 *
 * Images lie channels last, (N, H, W, C): so every kernel but a convolution or a pooling sees rows of channels. A field of the
 * batch, a parameter and a gradient keep PyTorch's order. */
#ifndef DDP_CPU_H
#define DDP_CPU_H

#include "conv.h"
#include "gemm.h"
#include "half.h"
#include "kernels.h"

typedef struct cpu_pins cpu_pins; /* parallel.c */

struct ddp_device {
    const ddp_host *host;
    uint32_t threads;
    const cpu_kernels *kernels;
    const cpu_half_kernels *half; /* NULL: products are in f32 */
    cpu_library *library;
    cpu_pins *pins; /* NULL: the threads run where the system puts them */
};

/* fn(ctx, first, last) over [0, count) in at most `threads` pieces whose bounds are multiples of `grain`; the pieces run at once.
 * What fn computes must not depend on the cut. */
void cpu_parallel(uint32_t threads, int64_t count, int64_t grain, void (*fn)(void *ctx, int64_t first, int64_t last),
                  void *ctx);
/* ddp_device_ops.pin, for the OpenMP threads of the calling thread. cpu_unpin takes *pins == NULL and leaves that. */
ddp_status cpu_pin_threads(uint32_t threads, const int32_t *processors, cpu_pins **pins, ddp_err *err);
void cpu_unpin(uint32_t threads, cpu_pins **pins);
#define CPU_GRAIN 16384 /* elements of an elementwise kernel for which another thread pays */

/* half.c: p->left_packed is set by the call. The scratch is 64-byte aligned. */
uint64_t cpu_half_scratch(const ddp_device *d, const cpu_half_product *p);
void cpu_half_multiply(const ddp_device *d, cpu_half_product *p, void *scratch);
/* The products of gemm.h. What becomes of the first one's result is for the caller to say. */
cpu_half_product cpu_half_forward(int64_t rows, int64_t in, int64_t out, bool transposed, const float *x,
                                  const float *w);
cpu_half_product cpu_half_grad_input(int64_t rows, int64_t in, int64_t out, bool transposed, const float *dy,
                                     const float *w, float *dx);
cpu_half_product cpu_half_grad_weight(int64_t rows, int64_t in, int64_t out, bool transposed, const float *dy,
                                      const float *x, float *dw, bool add);

/* ---- kernels -------------------------------------------------------------------------------------------------------- */
/* How a value lies in memory; ddp_storage.layout. */
enum { CPU_PLAIN = 0, /* row-major in the program's shape */ CPU_CHANNELS_LAST /* rank 4: (N, H, W, C) */ };

enum { CPU_MAX_VALUES = 8, CPU_MAX_NODES = 6, CPU_NO_PRIVATE = -1, CPU_MAX_PEERS = 64 };

typedef struct cpu_lowering cpu_lowering;
typedef struct cpu_kernel cpu_kernel;
typedef struct cpu_call cpu_call;

/* A family of kernels. Only `group` and `run` are never NULL. */
typedef struct cpu_family {
    /* Makes k the kernel of `node`, which it has already, and of the nodes it takes besides. */
    ddp_status (*group)(cpu_lowering *w, cpu_kernel *k, uint32_t node, ddp_err *err);
    ddp_status (*build)(const cpu_kernel *k, ddp_err *err); /* at compile */
    /* For one instance: what `run` finds in c->bound. Pointers into the arena are known, those of the batch are not. */
    ddp_status (*bind)(const cpu_call *c, void **bound, ddp_err *err);
    ddp_status (*run)(const cpu_call *c, ddp_err *err);
    void (*unbind)(void *bound);  /* takes NULL */
    void (*release)(void *state); /* takes NULL */
} cpu_family;

struct cpu_kernel {
    const cpu_family *family;
    const char *name;                                /* "linear+bias+relu" */
    const char *layer;                               /* "fc1" */
    int32_t in[CPU_MAX_VALUES], out[CPU_MAX_VALUES]; /* values by the family's own numbering; -1: absent */
    uint32_t adds;       /* bit i: the program adds to out[i], a gradient that is set before */
    bool plain;          /* it takes and gives all of them row-major; else images channels last */
    uint32_t reads_any;  /* bit i: takes in[i] as it lies; else it is converted */
    uint32_t writes_any; /* bit i: gives out[i] as it lies; else it is converted, but for a gradient */
    uint32_t
        writes_grad;    /* bit i: where out[i] is a slice of the gradient arena it writes there itself, set or added */
    uint32_t kind, act; /* the family's own; CPU_ACT_* */
    int64_t rows, inner, cols; /* of the matrix it works on: (rows, cols), or (rows, inner) -> (rows, cols) */
    uint64_t scratch_bytes;    /* the family's own */
    int32_t inplace_out[2], inplace_in[2];
    uint32_t inplace_count;
    int32_t privates[4]; /* cpu_private_add, cpu_private_use */
    uint32_t private_count;
    void *state;                    /* the family's own, freed by its release */
    uint32_t nodes[CPU_MAX_NODES];  /* that it computes, in program order */
    uint32_t node_count, place, id; /* stands where node `place` does; id: in order of creation */
};

/* ---- lowering: for the families ------------------------------------------------------------------------------------- */
struct cpu_lowering {
    ddp_device *device;
    const ddp_program *p;
    struct cpu_lowered *l;
    uint32_t *readers; /* by value: nodes that read it */
    bool *kept;        /* by value: the loss and the metrics */
    bool *taken;       /* by node */
    bool *inner;       /* by value: never leaves its kernel, no storage */
    uint32_t *layout;  /* by value */
};

static inline const ddp_value *cpu_value(const ddp_program *p, int32_t v)
{
    return (const ddp_value *)(const void *)((const char *)p->values + (size_t)v * p->value_size);
}
static inline const ddp_node *cpu_node(const ddp_program *p, uint32_t n)
{
    return (const ddp_node *)(const void *)((const char *)p->nodes + (size_t)n * p->node_size);
}
/* Not computed: a kernel may read it wherever it stands. */
static inline bool cpu_always_there(const cpu_lowering *w, int32_t v)
{
    return cpu_value(w->p, v)->kind != DDP_VALUE_ACT;
}
/* Of the batch, a parameter, a gradient or a buffer: it lies as the program has it. */
static inline bool cpu_outside(const ddp_value *v) { return v->kind != DDP_VALUE_ACT; }
static inline int64_t cpu_last_dim(const ddp_value *v) { return v->rank > 0 ? v->dims[v->rank - 1] : 1; }

/* Rows of channels, as the value lies: the channels of an image, else the last dimension. */
void cpu_matrix(const cpu_lowering *w, int32_t v, int64_t *rows, int64_t *cols);
/* The kernel also computes `node`. One that reads a value which does not exist at the kernel's place moves it there. */
void cpu_take(cpu_lowering *w, cpu_kernel *k, uint32_t node);
void cpu_take_and_move(cpu_lowering *w, cpu_kernel *k, uint32_t node);
/* The first free node after `from` whose op is in the list and whose input `slot` is `value`; -1 if none. */
int64_t cpu_find_reader(const cpu_lowering *w, uint32_t from, int32_t value, uint32_t slot, const uint32_t *ops,
                        uint32_t op_count);
/* One node alone reads it, and it is no result: a kernel that has both needs no storage for it. */
bool cpu_read_once(const cpu_lowering *w, int32_t v);
/* out may lie where in lies if nobody needs that later. Of several pairs of one output the first that can be is taken. */
void cpu_may_replace(cpu_kernel *k, int32_t out, int32_t in);
/* Memory of the device's own, from this kernel to the last that uses it. Returns its number. */
ddp_status cpu_private_add(cpu_lowering *w, cpu_kernel *k, uint64_t bytes, int32_t *number, ddp_err *err);
void cpu_private_use(cpu_lowering *w, cpu_kernel *k, int32_t number);
/* The kernel, of those made so far, that computes `node`; NULL. */
const cpu_kernel *cpu_kernel_of(const cpu_lowering *w, uint32_t node);
/* The node that writes the value; -1. */
int64_t cpu_writer(const cpu_lowering *w, int32_t v);
ddp_status cpu_refuse(ddp_err *err, const ddp_node *n, const char *why);
/* layout.c, in this order: before the nodes are grouped; behind that; for each kernel in its place, into the scratch behind its
 * own. The root of a value is the one whose memory it lies in. */
void cpu_describe_layouts(cpu_lowering *w);
void cpu_size_storage(cpu_lowering *w);
void cpu_find_converts(cpu_lowering *w, uint32_t kernel, uint64_t *scratch);
int32_t cpu_root_of(const cpu_lowering *w, int32_t v);
/* fam_pool.c: whether a max pooling, and its gradient, do the relu's work; then k becomes their kernel. */
bool cpu_pool_takes_relu(const cpu_lowering *w, uint32_t relu);
ddp_status cpu_pool_group_relu(cpu_lowering *w, cpu_kernel *k, uint32_t relu, ddp_err *err);
/* fam_batch_norm.c: whether a batch norm's gradient joins the gradient of a relu, or the add before it; then k becomes its kernel. */
bool cpu_batch_norm_takes(const cpu_lowering *w, uint32_t node);
ddp_status cpu_batch_norm_group(cpu_lowering *w, cpu_kernel *k, uint32_t node, ddp_err *err);

extern const cpu_family cpu_family_linear, cpu_family_linear_grad, cpu_family_pointwise, cpu_family_act_grad,
    cpu_family_view, cpu_family_loss;
extern const cpu_family cpu_family_conv, cpu_family_conv_grad, cpu_family_max_pool, cpu_family_max_pool_grad,
    cpu_family_avg_pool, cpu_family_batch_norm, cpu_family_batch_norm_grad;
extern const cpu_family cpu_family_layer_norm, cpu_family_layer_norm_grad, cpu_family_embedding,
    cpu_family_embedding_grad, cpu_family_position, cpu_family_attention, cpu_family_dropout;
/* Makes k, the kernel of an add, one of add and layer norm where the sum is normalised. */
bool cpu_join_layer_norm(cpu_lowering *w, cpu_kernel *k, uint32_t add);

/* ---- lowering: the result ------------------------------------------------------------------------------------------- */
/* A value that is in another place for one kernel: an input converted before it, an output after it. */
typedef enum cpu_conversion { CPU_COPY, CPU_TO_PLAIN, CPU_TO_IMAGE } cpu_conversion;
typedef struct cpu_convert {
    uint32_t slot;
    bool output;
    cpu_conversion how;
    uint64_t offset; /* in the kernel's scratch, behind the family's own */
} cpu_convert;

typedef struct cpu_lowered {
    cpu_kernel *kernels;
    ddp_kernel *table; /* what the core sees */
    ddp_storage *storage;
    ddp_private *privates;
    uint32_t kernel_count, private_count, private_capacity;
    cpu_convert (*converts)[2 * CPU_MAX_VALUES]; /* by kernel */
    uint32_t *convert_count;
} cpu_lowered;

ddp_status cpu_lower(ddp_device *d, const ddp_program *p, ddp_lowered **out, ddp_err *err);
void cpu_lowered_free(ddp_device *d, ddp_lowered *l);

/* ---- a call of a kernel --------------------------------------------------------------------------------------------- */
struct cpu_call {
    ddp_device *device;
    const ddp_program *program;
    const cpu_kernel *k;
    void *const *at; /* by value */
    void *scratch, *bound;
    char *arena;
    const ddp_plan *plan;
    const ddp_random *random;
    uint32_t adds; /* bit i: out[i] is added to */
};

static inline void *cpu_at(const cpu_call *c, int32_t v) { return v >= 0 ? c->at[v] : NULL; }
static inline void *cpu_in(const cpu_call *c, uint32_t slot) { return cpu_at(c, c->k->in[slot]); }
static inline void *cpu_out(const cpu_call *c, uint32_t slot) { return cpu_at(c, c->k->out[slot]); }
static inline bool cpu_adds(const cpu_call *c, uint32_t slot) { return (c->adds >> slot & 1u) != 0; }
/* Memory of privates[i] of the kernel. */
static inline void *cpu_private(const cpu_call *c, uint32_t i)
{
    return c->arena + c->plan->private_offset[c->k->privates[i]];
}

/* What dropout of probability p does in this run. */
cpu_mask cpu_mask_of(const cpu_call *c, double p, uint32_t place);

/* device.c, exec.c, flat.c and peak.c: slots of ddp_device_ops */
ddp_status cpu_alloc(ddp_device *d, size_t bytes, void **out, ddp_err *err);
void cpu_free(ddp_device *d, void *memory);
ddp_status cpu_measure(ddp_device *d, ddp_device_peaks *out, ddp_err *err);
ddp_status cpu_compile(ddp_device *d, const ddp_program *p, const ddp_lowered *l, const ddp_plan *plan, ddp_exec **out,
                       ddp_err *err);
void cpu_exec_free(ddp_exec *e);
ddp_status cpu_instance_create(ddp_exec *e, const ddp_bind *bind, ddp_instance **out, ddp_err *err);
void cpu_instance_free(ddp_instance *i);
ddp_status cpu_run(ddp_instance *i, const ddp_run *r, uint32_t first, uint32_t last, ddp_err *err);
ddp_status cpu_optim_step(ddp_device *d, const ddp_optim *o, const ddp_optim_slice *s, ddp_err *err);
ddp_status cpu_flat(ddp_device *d, uint32_t what, const float *x, uint64_t count, ddp_flat_result *out, ddp_err *err);

#endif
