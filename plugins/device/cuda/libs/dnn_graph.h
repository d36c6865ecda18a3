/* plugins/device/cuda/libs/dnn_graph.h -- a graph of operations for cuDNN's backend API, and the plan that runs it.
 * What dnn.c and dnn_attention.c share of cuDNN.
 *
 * The calls that build a graph can be written one after the other: from the first that fails on they do nothing, and
 * cu_dnn_graph_plan says which it was. */
#pragma once

#include "dnn.h"

struct cu_dnn {
    const cu_libraries *l;
    cudnnHandle_t handle;
    bool tf32;
};

enum { CU_GRAPH_DESCRIPTORS = 160, CU_GRAPH_OPS = 32 };
typedef struct cu_dnn_graph {
    const cu_dnn *d;
    cudnnBackendDescriptor_t made[CU_GRAPH_DESCRIPTORS], ops[CU_GRAPH_OPS], plan;
    uint32_t made_count, op_count;
    int64_t next_virtual;
    size_t workspace; /* of the plan */
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

/* The first plan of cuDNN's heuristics that can be made, always gives the same bits, and needs `limit` bytes at
 * most. */
ddp_status cu_dnn_graph_plan(cu_dnn_graph *g, size_t limit, const char *what, ddp_err *err);
ddp_status cu_dnn_graph_run(const cu_dnn_graph *g, cudaStream_t s, const int64_t *uids, void *const *pointers,
                            int64_t count, void *workspace, const char *what, ddp_err *err);
