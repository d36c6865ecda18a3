/* plugins/device/cuda/host/instance.h -- programs and instances, for the files that compile, run and end them: exec.c,
 * run.c, step.c and slices.c. */
#pragma once

#include "cu.h"

struct ddp_exec {
    ddp_exec *next; /* of the device's */
    ddp_device *device;
    const ddp_program *program;
    const low_lowered *lowered;
    const ddp_plan *plan;
    uint32_t first_site;
    uint32_t field_count;             /* fields of the batch that a kernel reads */
    uint64_t *field_at, *field_bytes; /* by field: in a stage */
    uint64_t stage_bytes;
    uint32_t *next_reader; /* by field, by kernel: the first from there on that reads it, or UINT32_MAX */
    bool random;           /* a kernel draws random numbers */
};

/* The update after the kernels of a step, but for its numbers; step.c */
typedef struct cu_ending {
    cu_optim *updates; /* one for each slice */
    uint32_t count;
    double max_norm, *norm;
    char *memory; /* the device's: a sum for each slice, what clipping scales by, scratch of a sum */
    uint64_t memory_bytes, scratch_at;
    bool borrowed; /* the memory is that of an ending before this one */
} cu_ending;

/* Of a range, once with its kernels one after the other and once with some beside others, of which the faster is kept
 * after some turns. */
enum { CU_IN_ORDER = 0, CU_BESIDE, CU_WAYS };
struct cu_graph {
    uint32_t first, last, flags, stage;
    const cu_ending *ending;       /* NULL: kernels alone */
    cudaGraphExec_t exec[CU_WAYS]; /* NULL: not that way */
    float ms[CU_WAYS];             /* the least so far */
    uint32_t turns, way;           /* way: that the next run takes */
};

/* Where a batch's fields come up, beside the computing of the sequence before, and kernels read them. */
typedef struct cu_stage {
    char *at;       /* cu_head, then the fields */
    cu_call *calls; /* by kernel */
    cudaEvent_t there, taken;
} cu_stage;

enum { CU_STAGES = 2, CU_GRAPHS = 64 * CU_STAGES, CU_ENDINGS = 4 };

struct ddp_instance {
    ddp_exec *exec;
    char *arena, *own; /* own: the stages */
    cu_stage stages[CU_STAGES];
    uint32_t stage; /* of this sequence */
    cu_mirror *mirror;
    bool *uploaded;    /* by field, in this sequence */
    uint32_t ended;    /* where the last range did; UINT32_MAX: there was none */
    ddp_random random; /* that was uploaded */
    cu_graph graphs[CU_GRAPHS];
    uint32_t graph_count;
    cu_ending endings[CU_ENDINGS];
    uint32_t ending_count;
};

/* ---- side.c ------------------------------------------------------------------------------------------------------ */
ddp_status cu_side_open(ddp_device *d, ddp_err *err);
void cu_side_close(ddp_device *d); /* also of one that is half open, or not at all */

typedef struct cu_span {
    const char *from, *to;
    bool written;
} cu_span;
typedef struct cu_touched {
    cu_span spans[2 * LOW_MAX_VALUES + LOW_MAX_PRIVATES + 2 + 4 * LOW_MAX_VALUES];
    uint32_t count;
} cu_touched;

/* A range while it is captured: the kernels of the second stream that the first has not waited for, in order. Begin
 * with {.in = in}. */
typedef struct cu_beside {
    const ddp_instance *in;
    cu_touched pending[CU_SIDE_EVENTS + 1];
    uint32_t first, count; /* first: number of pending[0], from the begin of the range */
    uint32_t total, waits; /* kernels that went to the second stream; how often the first waited for one */
    bool aside;            /* the kernel between begin and end */
} cu_beside;
/* Around each kernel of the range: which stream it is started on, what that waits for. */
cudaError_t cu_beside_begin(cu_beside *b, const cu_call *c, cudaStream_t *stream);
cudaError_t cu_beside_end(cu_beside *b);
cudaError_t cu_beside_join(cu_beside *b); /* at the end of the range */

/* run.c: kernels first to last - 1 and, unless NULL, the ending with these numbers. */
ddp_status cu_run_range(ddp_instance *in, const ddp_run *r, uint32_t first, uint32_t last, const cu_ending *ending,
                        const cu_numbers *numbers, ddp_err *err);
/* step.c: starts what the ending says, or captures it. */
ddp_status cu_ending_start(const ddp_instance *in, const cu_ending *ending, uint32_t stage, ddp_err *err);
void cu_ending_free(cu_ending *ending);
/* run.c */
void cu_graph_free(ddp_device *d, cu_graph *g);
