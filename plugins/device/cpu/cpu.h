/* cpu.h -- what the files of the CPU device share.
 *
 *   device.c   the plugin's table: open, memory, copy, describe
 *   lower.c    groups a program's nodes into kernels
 *   exec.c     compile, instances, run
 *   flat.c     optimiser step and reductions over flat slices
 *   gemm.c     matrix products by oneDNN, the one file that sees it
 *   kernels.c  everything else, in three variants by CPU feature */
#ifndef DDP_CPU_H
#define DDP_CPU_H

#include "gemm.h"
#include "kernels.h"

struct ddp_device {
    const ddp_host *host;
    uint32_t threads;
    const cpu_kernels *kernels;
    cpu_library *library;
};

/* fn(ctx, first, last) over [0, count) in at most `threads` pieces whose bounds are multiples of `grain`; the pieces run at once.
 * What fn computes must not depend on the cut. */
void cpu_parallel(uint32_t threads, int64_t count, int64_t grain, void (*fn)(void *ctx, int64_t first, int64_t last),
                  void *ctx);

/* ---- lowering: our notes beside ddp_lowered ------------------------------------------------------------------------- */
typedef enum cpu_kind {
    CPU_LINEAR = 1,    /* a = x, b = w, c = bias or -1; out = y (a value even when it has no storage), act_out or -1 */
    CPU_GRAD_INPUT,    /* a = dy, b = w; out = dx */
    CPU_GRAD_WEIGHT,   /* a = dy, b = x; out = dw */
    CPU_GRAD_BIAS,     /* a = dy; bias_out = db */
    CPU_ACT,           /* a = x; out = y */
    CPU_ACT_GRAD,      /* a = dy, b = x or y; out = dx, bias_out or -1 */
    CPU_ADD,           /* a, b; out */
    CPU_VIEW,          /* nothing to do, or a copy into the gradient arena */
    CPU_CROSS_ENTROPY, /* a = logits, b = label; out = loss or -1, grad_out or -1 */
    CPU_MSE,           /* a = prediction, b = target; out = loss or -1, grad_out or -1 */
    CPU_ACCURACY       /* a = logits, b = label; out */
} cpu_kind;

typedef struct cpu_kernel {
    cpu_kind kind;
    uint32_t act;                             /* CPU_ACT_* */
    int32_t a, b, c;                          /* values read */
    int32_t out, act_out, grad_out, bias_out; /* values written */
    int64_t rows, in, cols;                   /* linear: (rows, in) -> (rows, cols); else (rows, cols) */
    bool add, bias_add;                       /* DDP_NODE_F_ACCUMULATE of the node that writes out, bias_out */
    int32_t staged;       /* a value of the gradient arena that goes through scratch when it is added, or -1 */
    cpu_product *product; /* CPU_LINEAR */
    const char *name;     /* of the layer */
    uint32_t nodes[3];    /* that it computes, in program order */
    uint32_t node_count;
} cpu_kernel;

typedef struct cpu_lowered {
    cpu_kernel *kernels;
    ddp_kernel *table; /* what the core sees */
    ddp_storage *storage;
    uint32_t kernel_count;
} cpu_lowered;

static inline const ddp_value *cpu_value(const ddp_program *p, int32_t v)
{
    return (const ddp_value *)(const void *)((const char *)p->values + (size_t)v * p->value_size);
}

static inline const ddp_node *cpu_node(const ddp_program *p, uint32_t n)
{
    return (const ddp_node *)(const void *)((const char *)p->nodes + (size_t)n * p->node_size);
}

const char *cpu_op_name(uint32_t op);

ddp_status cpu_lower(ddp_device *d, const ddp_program *p, ddp_lowered **out, ddp_err *err);
void cpu_lowered_free(ddp_device *d, ddp_lowered *l);

/* exec.c and flat.c: slots of ddp_device_ops */
ddp_status cpu_compile(ddp_device *d, const ddp_program *p, const ddp_lowered *l, const ddp_plan *plan, ddp_exec **out,
                       ddp_err *err);
void cpu_exec_free(ddp_exec *e);
ddp_status cpu_instance_create(ddp_exec *e, const ddp_bind *bind, ddp_instance **out, ddp_err *err);
void cpu_instance_free(ddp_instance *i);
ddp_status cpu_run(ddp_instance *i, const ddp_run *r, uint32_t first, uint32_t last, ddp_err *err);
ddp_status cpu_optim_step(ddp_device *d, const ddp_optim *o, const ddp_optim_slice *s, ddp_err *err);
ddp_status cpu_flat(ddp_device *d, uint32_t what, const float *x, uint64_t count, ddp_flat_result *out, ddp_err *err);

#endif
