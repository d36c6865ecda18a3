/* plugins/device/cpu/cpu.h -- what the files of the CPU device share.
 *
 *   device.c          the plugin's table: open, memory, copy, describe
 *   lower.c           which family has which op; device/common/ groups a program's nodes into kernels
 *   exec.c            compile, instances, run
 *   families/         a file for each family of kernels: what a kernel takes in, what it needs, how it runs
 *   flat.c            optimiser step and reductions over flat slices
 *   peak.c            how many FLOPs and bytes a second this CPU does at its best
 *   parallel.c        loops over OpenMP's threads
 *   onednn/           the only files that see oneDNN; library.h and conv.h hide it from the others
 *   kernels/          the kernels: in three variants by CPU feature (kernels.h), matrix products (product.h; half.h in
 *                     bf16), convolutions of 3 x 3 by tiles (winograd.h)
 *
 * device/common/lower.h says how values lie. */
#pragma once

#include "common/lower.h"
#include "onednn/conv.h"
#include "onednn/library.h"
#include "kernels/product/half.h"
#include "kernels/kernels.h"
#include "kernels/product/product.h"
#include "parallel.h"

struct ddp_device {
    const ddp_host *host;
    uint32_t threads;
    const cpu_kernels *kernels;
    bool bf16;                    /* what products multiply is rounded to bf16 */
    const cpu_half_kernels *half; /* and the CPU's instructions for that; NULL: by f32's */
    cpu_library *library;
    int64_t block_rows; /* of a product's left side: as many as stay in the second cache */
    cpu_pins *pins;     /* NULL: the threads run where the system puts them */
};

/* ---- kernels ----------------------------------------------------------------------------------------------------- */
enum { CPU_NO_PRIVATE = -1, CPU_MAX_PEERS = 64 };

typedef struct cpu_call cpu_call;

/* A family of kernels. Only base.group and `run` are never NULL. */
typedef struct cpu_family {
    low_family base;
    ddp_status (*build)(const low_kernel *k, ddp_err *err); /* at compile */
    /* For one instance: what `run` finds in c->bound. Pointers into the arena are known, those of the batch are not. */
    ddp_status (*bind)(const cpu_call *c, void **bound, ddp_err *err);
    ddp_status (*run)(const cpu_call *c, ddp_err *err);
    void (*unbind)(void *bound); /* takes NULL */
} cpu_family;

static inline const cpu_family *cpu_family_of(const low_kernel *k)
{
    return (const cpu_family *)(const void *)k->family;
}

/* families/pool.c: whether a max pooling, and its gradient, do the relu's work; then k becomes their kernel. */
bool cpu_pool_takes_relu(const low_lowering *w, uint32_t relu);
ddp_status cpu_pool_group_relu(low_lowering *w, low_kernel *k, uint32_t relu, ddp_err *err);
/* families/batch_norm.c: k becomes the kernel of a batch norm's gradient, where low_norm_grad_takes says so. */
ddp_status cpu_batch_norm_group(low_lowering *w, low_kernel *k, uint32_t node, ddp_err *err);

extern const cpu_family cpu_family_linear, cpu_family_linear_grad, cpu_family_pointwise, cpu_family_act_grad,
    cpu_family_view, cpu_family_loss, cpu_family_metric, cpu_family_leaky_relu, cpu_family_scale;
extern const cpu_family cpu_family_conv, cpu_family_conv_grad, cpu_family_max_pool, cpu_family_max_pool_grad,
    cpu_family_avg_pool, cpu_family_batch_norm, cpu_family_batch_norm_grad;
extern const cpu_family cpu_family_layer_norm, cpu_family_layer_norm_grad, cpu_family_embedding,
    cpu_family_embedding_grad, cpu_family_position, cpu_family_attention, cpu_family_dropout;
extern const cpu_family cpu_family_position_at, cpu_family_attention_cached, cpu_family_rope, cpu_family_softmax_parts;

/* families/narrow.c: makes k, the kernel of a linear layer's product or gradient with rows, inner and cols, one for few
 * features, if it is such. */
extern const cpu_family cpu_family_narrow;
bool cpu_narrow_group(low_lowering *w, low_kernel *k, uint32_t node);

/* families/loss.c: the error of a label that is no class. */
ddp_status cpu_bad_label(int64_t label, int64_t row, int64_t classes, ddp_err *err);

uint32_t cpu_frozen_dtypes(ddp_device *d);
ddp_status cpu_lower(ddp_device *d, const ddp_program *p, ddp_lowered **out, ddp_err *err);
void cpu_lowered_free(ddp_device *d, ddp_lowered *l);

/* ---- a call of a kernel ------------------------------------------------------------------------------------------ */
struct cpu_call {
    ddp_device *device;
    const ddp_program *program;
    const low_kernel *k;
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
