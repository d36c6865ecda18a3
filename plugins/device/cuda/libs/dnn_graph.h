/* plugins/device/cuda/libs/dnn_graph.h -- a graph of operations for cuDNN's backend API, and the plan that runs it.
 * What dnn.c, dnn_conv.c and dnn_attention.c share of cuDNN. Operations are in dnn_graph.c, plans in dnn_plan.c.
 *
 * The calls that build a graph can be written one after the other: from the first that fails on they do nothing, and
 * cu_dnn_graph_plan says which it was. */
#pragma once

#include "algorithms.h"
#include "dnn.h"
#include "timer.h"

struct cu_dnn {
    const cu_libraries *l;
    const ddp_host *host;
    cudnnHandle_t handle;
    cu_timer timer;
    cu_algorithms *known; /* convolutions */
    bool tf32, deterministic;
};

enum { CU_GRAPH_DESCRIPTORS = 256, CU_GRAPH_OPS = 32, CU_GRAPH_ALIGNMENT = 16 /* of each tensor, bytes */ };
typedef struct cu_dnn_graph {
    const cu_dnn *d;
    cudnnBackendDescriptor_t made[CU_GRAPH_DESCRIPTORS], ops[CU_GRAPH_OPS];
    uint32_t made_count, op_count;
    int64_t next_virtual;
    cudnnBackendDescriptor_t whole;        /* of all operations, once it is finished */
    cudnnBackendDescriptor_t plan, config; /* the plan, and the configuration that it is of */
    size_t workspace;                      /* of the plan */
    char name[CU_ALGORITHM_NAME];          /* its engine and knobs */
    bool over_limit;                       /* there would be a plan, with more workspace than the limit */
    cudnnStatus_t status;
    const char *failed; /* the step that did */
} cu_dnn_graph;

typedef cudnnBackendDescriptor_t cu_dnn_node;

typedef struct cu_shape {
    int64_t dims[4], strides[4];
} cu_shape;

void cu_dnn_graph_begin(cu_dnn_graph *g, const cu_dnn *d);
void cu_dnn_graph_end(cu_dnn_graph *g); /* a zeroed one too */

/* uid: from 1 to 99. In device memory, 16-byte aligned; a value is one f32 in host memory. */
cu_dnn_node cu_dnn_graph_tensor(cu_dnn_graph *g, int64_t uid, cudnnDataType_t type, const cu_shape *s);
cu_dnn_node cu_dnn_graph_value(cu_dnn_graph *g, int64_t uid);
/* Between operations: never in memory. */
cu_dnn_node cu_dnn_graph_virtual(cu_dnn_graph *g, cudnnDataType_t type, const cu_shape *s);

/* y = a b over the last two dimensions */
void cu_dnn_graph_matmul(cu_dnn_graph *g, cu_dnn_node a, cu_dnn_node b, cu_dnn_node y);
/* b and t (the condition of BINARY_SELECT) may be NULL; axis: of GEN_INDEX, else -1. */
void cu_dnn_graph_pointwise(cu_dnn_graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t math, int64_t axis,
                            cu_dnn_node x, cu_dnn_node b, cu_dnn_node t, cu_dnn_node y);
void cu_dnn_graph_reduce(cu_dnn_graph *g, cudnnReduceTensorOp_t mode, cu_dnn_node x, cu_dnn_node y);
void cu_dnn_graph_reshape(cu_dnn_graph *g, cu_dnn_node x, cu_dnn_node y);

/* One of x, w and y of the other two; `what` (CU_CONV_*) says which. Where there are groups w has fewer channels than
 * x. */
typedef struct cu_dnn_window {
    int64_t stride[2], padding[2];
} cu_dnn_window;
void cu_dnn_graph_convolution(cu_dnn_graph *g, uint32_t what, const cu_dnn_window *window, cu_dnn_node x, cu_dnn_node w,
                              cu_dnn_node y);

/* dnn_conv.c: the graph of a convolution, by itself for a test. */
void cu_dnn_conv_describe(cu_dnn_graph *g, const cu_dnn *d, uint32_t what, const cu_conv *c, uint32_t type);

/* ---- plans ------------------------------------------------------------------------------------------------------- */
#define CU_NOTE(name) (1u << CUDNN_NUMERICAL_NOTE_##name)
typedef enum cu_plan_choice {
    CU_PLAN_NEXT = 0, /* not this one */
    CU_PLAN_BEST,     /* rather than those before; but there may be a better one */
    CU_PLAN_TAKE,     /* this one */
    CU_PLAN_FAIL      /* none: *err says why */
} cu_plan_choice;
typedef struct cu_dnn_search {
    size_t limit;     /* bytes of workspace, at most */
    uint32_t refused; /* CU_NOTE(..) of engines that are not to be taken */
    const char *only; /* NULL: any, else the plan of this name alone */
    uint32_t most;    /* plans of each mode of the heuristics that are looked at; 0: all */
    /* What becomes of g->plan, with g->workspace. name: of the engine and its knobs, "" where cuDNN does not say them.
     * NULL: the first is taken. */
    cu_plan_choice (*check)(void *ctx, cu_dnn_graph *g, const char *name, ddp_err *err);
    void *ctx;
} cu_dnn_search;
/* The plan of the graph, of those that cuDNN's heuristics propose, best first, and that can be made.
 * DDP_ERR_UNSUPPORTED where there is none. May be asked again. */
ddp_status cu_dnn_graph_plan(cu_dnn_graph *g, const cu_dnn_search *how, const char *what, ddp_err *err);
/* Whether it was started. */
cudnnStatus_t cu_dnn_graph_start(const cu_dnn_graph *g, cudaStream_t s, const int64_t *uids, void *const *pointers,
                                 int64_t count, void *workspace);
ddp_status cu_dnn_graph_run(const cu_dnn_graph *g, cudaStream_t s, const int64_t *uids, void *const *pointers,
                            int64_t count, void *workspace, const char *what, ddp_err *err);

/* ---- descriptors: for dnn_graph.c and dnn_plan.c ----------------------------------------------------------------- */
/* Notes that `what` failed, unless something has before. */
void dnn_step(cu_dnn_graph *g, cudnnStatus_t status, const char *what);
cu_dnn_node dnn_create(cu_dnn_graph *g, cudnnBackendDescriptorType_t type, const char *what);
void dnn_set(cu_dnn_graph *g, cu_dnn_node n, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
             int64_t count, const void *values, const char *what);
void dnn_set_node(cu_dnn_graph *g, cu_dnn_node n, cudnnBackendAttributeName_t name, cu_dnn_node value,
                  const char *what);
void dnn_finish(cu_dnn_graph *g, cu_dnn_node n, const char *what);
/* Destroys what was made since there were `count`, but for g->config. */
void dnn_release(cu_dnn_graph *g, uint32_t count);
