/* plugins/device/cuda/libs/dnn_graph.c -- descriptors of cuDNN's backend API: tensors and operations. */
#include "dnn_graph.h"

enum { FIRST_VIRTUAL = 100 };

/* ---- steps ------------------------------------------------------------------------------------------------------- */
void cu_dnn_graph_begin(cu_dnn_graph *g, const cu_dnn *d)
{
    *g = (cu_dnn_graph){.d = d, .next_virtual = FIRST_VIRTUAL, .status = CUDNN_STATUS_SUCCESS};
}

void cu_dnn_graph_end(cu_dnn_graph *g)
{
    if (g->d == NULL) return;
    if (g->plan != NULL) (void)g->d->l->cudnnBackendDestroyDescriptor(g->plan);
    if (g->config != NULL) (void)g->d->l->cudnnBackendDestroyDescriptor(g->config);
    g->plan = g->config = NULL;
    dnn_release(g, 0);
}

void dnn_release(cu_dnn_graph *g, uint32_t count)
{
    while (g->made_count > count) {
        cu_dnn_node n = g->made[--g->made_count];
        if (n != g->config) (void)g->d->l->cudnnBackendDestroyDescriptor(n);
    }
}

void dnn_step(cu_dnn_graph *g, cudnnStatus_t status, const char *what)
{
    if (g->status != CUDNN_STATUS_SUCCESS || status == CUDNN_STATUS_SUCCESS) return;
    g->status = status;
    g->failed = what;
}

cu_dnn_node dnn_create(cu_dnn_graph *g, cudnnBackendDescriptorType_t type, const char *what)
{
    cu_dnn_node n = NULL;

    if (g->made_count == CU_GRAPH_DESCRIPTORS) dnn_step(g, CUDNN_STATUS_INTERNAL_ERROR, "too many descriptors");
    if (g->status != CUDNN_STATUS_SUCCESS) return NULL;
    dnn_step(g, g->d->l->cudnnBackendCreateDescriptor(type, &n), what);
    if (g->status != CUDNN_STATUS_SUCCESS) return NULL;
    return g->made[g->made_count++] = n;
}

void dnn_set(cu_dnn_graph *g, cu_dnn_node n, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
             int64_t count, const void *values, const char *what)
{
    if (g->status == CUDNN_STATUS_SUCCESS)
        dnn_step(g, g->d->l->cudnnBackendSetAttribute(n, name, type, count, values), what);
}

void dnn_set_node(cu_dnn_graph *g, cu_dnn_node n, cudnnBackendAttributeName_t name, cu_dnn_node value, const char *what)
{
    dnn_set(g, n, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value, what);
}

void dnn_finish(cu_dnn_graph *g, cu_dnn_node n, const char *what)
{
    if (g->status == CUDNN_STATUS_SUCCESS) dnn_step(g, g->d->l->cudnnBackendFinalize(n), what);
}

static void finish_op(cu_dnn_graph *g, cu_dnn_node n, const char *what)
{
    dnn_finish(g, n, what);
    if (g->op_count == CU_GRAPH_OPS) dnn_step(g, CUDNN_STATUS_INTERNAL_ERROR, "too many operations");
    if (g->status == CUDNN_STATUS_SUCCESS) g->ops[g->op_count++] = n;
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */
static cu_dnn_node tensor(cu_dnn_graph *g, int64_t uid, cudnnDataType_t type, const cu_shape *s,
                          cudnnBackendAttributeName_t flag)
{
    static const char what[] = "a tensor";
    const int64_t alignment = CU_GRAPH_ALIGNMENT;
    const bool yes = true;
    cu_dnn_node n = dnn_create(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR, what);

    dnn_set(g, n, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type, what);
    dnn_set(g, n, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, s->dims, what);
    dnn_set(g, n, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, s->strides, what);
    dnn_set(g, n, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid, what);
    dnn_set(g, n, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment, what);
    if (flag != CUDNN_ATTR_TENSOR_UNIQUE_ID) dnn_set(g, n, flag, CUDNN_TYPE_BOOLEAN, 1, &yes, what);
    dnn_finish(g, n, what);
    return n;
}

cu_dnn_node cu_dnn_graph_tensor(cu_dnn_graph *g, int64_t uid, cudnnDataType_t type, const cu_shape *s)
{
    return tensor(g, uid, type, s, CUDNN_ATTR_TENSOR_UNIQUE_ID);
}

cu_dnn_node cu_dnn_graph_value(cu_dnn_graph *g, int64_t uid)
{
    static const cu_shape one = {{1, 1, 1, 1}, {1, 1, 1, 1}};

    return tensor(g, uid, CUDNN_DATA_FLOAT, &one, CUDNN_ATTR_TENSOR_IS_BY_VALUE);
}

cu_dnn_node cu_dnn_graph_virtual(cu_dnn_graph *g, cudnnDataType_t type, const cu_shape *s)
{
    return tensor(g, g->next_virtual++, type, s, CUDNN_ATTR_TENSOR_IS_VIRTUAL);
}

/* ---- operations -------------------------------------------------------------------------------------------------- */
void cu_dnn_graph_matmul(cu_dnn_graph *g, cu_dnn_node a, cu_dnn_node b, cu_dnn_node y)
{
    static const char what[] = "a matrix product";
    const cudnnDataType_t math = CUDNN_DATA_FLOAT;
    cu_dnn_node how = dnn_create(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR, what), op;

    dnn_set(g, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &math, what);
    dnn_finish(g, how, what);
    op = dnn_create(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, what);
    dnn_set_node(g, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a, what);
    dnn_set_node(g, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b, what);
    dnn_set_node(g, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, y, what);
    dnn_set_node(g, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, how, what);
    finish_op(g, op, what);
}

void cu_dnn_graph_pointwise(cu_dnn_graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t math, int64_t axis,
                            cu_dnn_node x, cu_dnn_node b, cu_dnn_node t, cu_dnn_node y)
{
    static const char what[] = "a pointwise operation";
    cu_dnn_node how = dnn_create(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, what), op;

    dnn_set(g, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode, what);
    dnn_set(g, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &math, what);
    if (axis >= 0) dnn_set(g, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis, what);
    dnn_finish(g, how, what);
    op = dnn_create(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, what);
    dnn_set_node(g, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how, what);
    dnn_set_node(g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x, what);
    if (b != NULL) dnn_set_node(g, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b, what);
    if (t != NULL) dnn_set_node(g, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t, what);
    dnn_set_node(g, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y, what);
    finish_op(g, op, what);
}

void cu_dnn_graph_reduce(cu_dnn_graph *g, cudnnReduceTensorOp_t mode, cu_dnn_node x, cu_dnn_node y)
{
    static const char what[] = "a reduction";
    const cudnnDataType_t math = CUDNN_DATA_FLOAT;
    cu_dnn_node how = dnn_create(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR, what), op;

    dnn_set(g, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &math, what);
    dnn_set(g, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &mode, what);
    dnn_finish(g, how, what);
    op = dnn_create(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, what);
    dnn_set_node(g, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how, what);
    dnn_set_node(g, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x, what);
    dnn_set_node(g, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y, what);
    finish_op(g, op, what);
}

void cu_dnn_graph_reshape(cu_dnn_graph *g, cu_dnn_node x, cu_dnn_node y)
{
    static const char what[] = "a transposition";
    cu_dnn_node op = dnn_create(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, what);

    dnn_set_node(g, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x, what);
    dnn_set_node(g, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y, what);
    finish_op(g, op, what);
}

static cu_dnn_node describe_window(cu_dnn_graph *g, const cu_dnn_window *window)
{
    static const char what[] = "a convolution's window";
    const cudnnDataType_t math = CUDNN_DATA_FLOAT;
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    const int64_t dims = 2, dilation[2] = {1, 1};
    cu_dnn_node n = dnn_create(g, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, what);

    dnn_set(g, n, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &math, what);
    dnn_set(g, n, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode, what);
    dnn_set(g, n, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &dims, what);
    dnn_set(g, n, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, dims, window->padding, what);
    dnn_set(g, n, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, dims, window->padding, what);
    dnn_set(g, n, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, dims, dilation, what);
    dnn_set(g, n, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, dims, window->stride, what);
    dnn_finish(g, n, what);
    return n;
}

void cu_dnn_graph_convolution(cu_dnn_graph *g, uint32_t what, const cu_dnn_window *window, cu_dnn_node x, cu_dnn_node w,
                              cu_dnn_node y)
{
#define NAMES_(kind, x, w, y)                                                                                          \
    {                                                                                                                  \
        CUDNN_ATTR_OPERATION_CONVOLUTION_##kind##_##x, CUDNN_ATTR_OPERATION_CONVOLUTION_##kind##_##w,                  \
            CUDNN_ATTR_OPERATION_CONVOLUTION_##kind##_##y, CUDNN_ATTR_OPERATION_CONVOLUTION_##kind##_CONV_DESC,        \
            CUDNN_ATTR_OPERATION_CONVOLUTION_##kind##_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_##kind##_BETA            \
    }
    static const cudnnBackendAttributeName_t names[3][6] = {[CU_CONV_FORWARD] = NAMES_(FORWARD, X, W, Y),
                                                            [CU_CONV_GRAD_INPUT] = NAMES_(BWD_DATA, DX, W, DY),
                                                            [CU_CONV_GRAD_WEIGHT] = NAMES_(BWD_FILTER, X, DW, DY)};
#undef NAMES_
    static const cudnnBackendDescriptorType_t ops[3] = {
        [CU_CONV_FORWARD] = CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
        [CU_CONV_GRAD_INPUT] = CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
        [CU_CONV_GRAD_WEIGHT] = CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR};
    static const char text[] = "a convolution";
    const float one = 1, zero = 0;
    cu_dnn_node how = describe_window(g, window), op = dnn_create(g, ops[what], text);

    dnn_set_node(g, op, names[what][0], x, text);
    dnn_set_node(g, op, names[what][1], w, text);
    dnn_set_node(g, op, names[what][2], y, text);
    dnn_set_node(g, op, names[what][3], how, text);
    dnn_set(g, op, names[what][4], CUDNN_TYPE_FLOAT, 1, &one, text);
    dnn_set(g, op, names[what][5], CUDNN_TYPE_FLOAT, 1, &zero, text);
    finish_op(g, op, text);
}
