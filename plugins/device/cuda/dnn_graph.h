/* dnn_graph.h -- a graph of operations for cuDNN's backend API, and the plan that runs it. What dnn.c and dnn_attention.c share of
 * cuDNN.
 *
 * The calls that build a graph can be written one after the other: from the first that fails on they do nothing, and cu_graph_plan
 * says which it was. */
#ifndef DDP_CUDA_DNN_GRAPH_H
#define DDP_CUDA_DNN_GRAPH_H

#include "dnn.h"

struct cu_dnn {
    const cu_libraries *l;
    cudnnHandle_t handle;
    bool tf32;
};

enum { CU_GRAPH_DESCRIPTORS = 160, CU_GRAPH_OPS = 32 };
typedef struct cu_graph {
    const cu_dnn *d;
    cudnnBackendDescriptor_t made[CU_GRAPH_DESCRIPTORS], ops[CU_GRAPH_OPS], plan;
    uint32_t made_count, op_count;
    int64_t next_virtual;
    size_t workspace; /* of the plan */
    cudnnStatus_t status;
    const char *failed; /* the step that did */
} cu_graph;

typedef cudnnBackendDescriptor_t cu_node;

typedef struct cu_shape {
    int64_t dims[4], strides[4];
} cu_shape;

void cu_graph_begin(cu_graph *g, const cu_dnn *d);
void cu_graph_end(cu_graph *g); /* a zeroed one too */

/* uid: from 1 to 99. In device memory, 16-byte aligned; a value is one f32 in host memory. */
cu_node cu_graph_tensor(cu_graph *g, int64_t uid, cudnnDataType_t type, const cu_shape *s);
cu_node cu_graph_value(cu_graph *g, int64_t uid);
/* Between operations: never in memory. */
cu_node cu_graph_virtual(cu_graph *g, cudnnDataType_t type, const cu_shape *s);

/* y = a b over the last two dimensions */
void cu_graph_matmul(cu_graph *g, cu_node a, cu_node b, cu_node y);
/* b and t (the condition of BINARY_SELECT) may be NULL; axis: of GEN_INDEX, else -1. */
void cu_graph_pointwise(cu_graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t math, int64_t axis, cu_node x,
                        cu_node b, cu_node t, cu_node y);
void cu_graph_reduce(cu_graph *g, cudnnReduceTensorOp_t mode, cu_node x, cu_node y);
void cu_graph_reshape(cu_graph *g, cu_node x, cu_node y);

/* The first plan of cuDNN's heuristics that can be made, always gives the same bits, and needs `limit` bytes at most. */
ddp_status cu_graph_plan(cu_graph *g, size_t limit, const char *what, ddp_err *err);
ddp_status cu_graph_run(const cu_graph *g, cudaStream_t s, const int64_t *uids, void *const *pointers, int64_t count,
                        void *workspace, const char *what, ddp_err *err);

#endif
