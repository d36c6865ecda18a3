/* ddpengine/program.h -- what a step computes: ops, values, nodes, and the plan a device compiles.
 *
 * The core turns a model's graph into a program for one batch size; a device lowers it to kernels, the core plans memory
 * over the kernels, the device compiles them with the offsets known. Shapes are row-major, f32 unless said otherwise.
 */
#ifndef DDPENGINE_PROGRAM_H
#define DDPENGINE_PROGRAM_H

#include <ddpengine/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- ops ---------------------------------------------------------------------------------------------------------- *
 * Inputs -> outputs. N is the batch, * any leading dimensions. Each op matches the PyTorch function named. */
enum {
    DDP_OP_LINEAR = 1,         /* x (*, I), w (O, I) [, b (O)] -> y (*, O)              torch.nn.functional.linear */
    DDP_OP_LINEAR_GRAD_INPUT,  /* dy (*, O), w (O, I) -> dx (*, I) */
    DDP_OP_LINEAR_GRAD_WEIGHT, /* dy (*, O), x (*, I) -> dw (O, I) */
    DDP_OP_LINEAR_GRAD_BIAS,   /* dy (*, O) -> db (O) */
    DDP_OP_RELU,               /* x -> y                                                torch.relu */
    DDP_OP_RELU_GRAD,          /* dy, y (the output) -> dx; 0 where y == 0 */
    DDP_OP_GELU,               /* x -> y; attrs.gelu                                    torch.nn.functional.gelu */
    DDP_OP_GELU_GRAD,          /* dy, x (the input) -> dx */
    DDP_OP_ADD,                /* a, b of one shape -> a + b */
    DDP_OP_RESHAPE,            /* x -> y, the same elements in the same order; attrs.reshape */
    DDP_OP_CROSS_ENTROPY,      /* logits (N, C), label (N) i64 -> loss (), mean over N  torch.nn.functional.cross_entropy */
    DDP_OP_CROSS_ENTROPY_GRAD, /* logits (N, C), label (N) -> dlogits (N, C), for a loss gradient of 1 */
    DDP_OP_MSE,                /* p, t of one shape -> loss (), mean over all elements  torch.nn.functional.mse_loss */
    DDP_OP_MSE_GRAD,           /* p, t -> dp, for a loss gradient of 1 */
    DDP_OP_ACCURACY,           /* logits (N, C), label (N) -> count () of rows whose first largest logit is at the label */
    DDP_OP_END_
};

typedef union ddp_attrs {
    struct {
        uint32_t tanh; /* 1: the tanh approximation, 0: erf */
    } gelu;
    struct {
        uint32_t rank, reserved0;
        int64_t dims[DDP_MAX_DIMS]; /* of the output */
    } reshape;
    uint64_t words[16]; /* the union's size, 128 bytes, is part of the ABI */
} ddp_attrs;

/* ---- program ------------------------------------------------------------------------------------------------------ */
enum {
    DDP_VALUE_INPUT = 1, /* a field of the batch, written by the loader */
    DDP_VALUE_PARAM,     /* a slice of the parameter arena, canonical f32 */
    DDP_VALUE_GRAD,      /* a slice of the gradient arena, canonical f32 */
    DDP_VALUE_ACT        /* everything computed in between */
};

typedef struct ddp_value {
    uint32_t kind, dtype, rank;
    int32_t index; /* INPUT: field; PARAM and GRAD: parameter; else -1 */
    int64_t dims[DDP_MAX_DIMS];
    int64_t elements;
    uint64_t offset;  /* PARAM and GRAD: elements from the arena's start */
    const char *name; /* the model's name where it has one, else "" */
} ddp_value;

#define DDP_NODE_MAX_IN  4
#define DDP_NODE_MAX_OUT 3

#define DDP_NODE_F_ACCUMULATE (1u << 0) /* adds to its output, a GRAD that an earlier node of the program has set */

typedef struct ddp_node {
    uint32_t op, flags, in_count, out_count;
    int32_t in[DDP_NODE_MAX_IN], out[DDP_NODE_MAX_OUT]; /* values; -1 where absent */
    int32_t reserved0;
    ddp_attrs attrs;
    const char *name; /* of the layer, "fc1"; a gradient node has its forward node's name */
} ddp_node;

typedef struct ddp_program {
    uint32_t struct_size, value_size, node_size, reserved0; /* strides of the two arrays */
    int64_t batch;                                          /* N */
    uint32_t training;                                      /* 1: forward and gradients; 0: forward and metrics */
    uint32_t value_count, node_count, param_count;
    const ddp_value *values;
    const ddp_node *nodes; /* in an order in which every value is written before it is read */
    int32_t loss;          /* value; mean over the batch */
    uint32_t metric_count;
    const int32_t *metrics; /* values, scalars f32 */
    const char *const *metric_names;
} ddp_program;

/* ---- lowering: made by the device ----------------------------------------------------------------------------------- */
typedef struct ddp_kernel {
    const uint32_t *nodes; /* that it computes, in program order */
    uint32_t node_count;
    uint32_t inplace_count;        /* pairs whose two values may share storage if `in` is not read by a later kernel;
                              * pairs of one output are alternatives, the first that can be is taken */
    int32_t inplace_out[2], inplace_in[2];
    uint64_t scratch_bytes;        /* during this kernel only */
    const char *name;              /* "linear+bias+relu" */
} ddp_kernel;

/* For each value: bytes 0 means that it has no storage in the arena (inside a kernel, or an INPUT, PARAM or GRAD).
 * alias_of >= 0: a view, it shares the storage of that value. */
typedef struct ddp_storage {
    uint64_t bytes;
    uint32_t layout; /* opaque to the core */
    int32_t alias_of;
} ddp_storage;

/* A value of the device's own (saved statistics, masks, packed weights), planned like the rest. */
typedef struct ddp_private {
    uint64_t bytes;
    uint32_t first_kernel, last_kernel; /* both included */
} ddp_private;

typedef struct ddp_lowered {
    uint32_t struct_size, kernel_count, private_count, reserved0;
    const ddp_kernel *kernels;   /* in an order in which every value is written before it is read */
    const ddp_storage *storage;  /* program->value_count */
    const ddp_private *privates; /* private_count */
    void *device_data;           /* the device's own notes, freed by lowered_free */
} ddp_lowered;

/* ---- plan: made by the core ------------------------------------------------------------------------------------------ */
#define DDP_NO_OFFSET UINT64_MAX

typedef struct ddp_plan {
    uint32_t struct_size, reserved0;
    uint64_t arena_bytes;            /* of one instance; offsets are multiples of 64 */
    const uint64_t *value_offset;    /* program->value_count; DDP_NO_OFFSET where a value has no storage */
    const uint64_t *private_offset;  /* lowered->private_count */
    const uint64_t *scratch_offset;  /* lowered->kernel_count; DDP_NO_OFFSET where none */
} ddp_plan;

#ifdef __cplusplus
}
#endif
#endif
