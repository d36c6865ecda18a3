/* plugins/device/cuda/libs/dnn_graph.c -- descriptors of cuDNN's backend API: tensors, operations, plans. */
#include "dnn_graph.h"
#include <string.h>

enum { MAX_CONFIGS = 8, FIRST_VIRTUAL = 100, TENSOR_ALIGNMENT = 16 };

/* ---- steps ------------------------------------------------------------------------------------------------------- */
void cu_dnn_graph_begin(cu_dnn_graph *g, const cu_dnn *d)
{
    *g = (cu_dnn_graph){.d = d, .next_virtual = FIRST_VIRTUAL, .status = CUDNN_STATUS_SUCCESS};
}

void cu_dnn_graph_end(cu_dnn_graph *g)
{
    if (g->d == NULL) return;
    while (g->made_count > 0) (void)g->d->l->cudnnBackendDestroyDescriptor(g->made[--g->made_count]);
    g->plan = NULL;
}

static void step(cu_dnn_graph *g, cudnnStatus_t status, const char *what)
{
    if (g->status != CUDNN_STATUS_SUCCESS || status == CUDNN_STATUS_SUCCESS) return;
    g->status = status;
    g->failed = what;
}

static cu_dnn_node create(cu_dnn_graph *g, cudnnBackendDescriptorType_t type, const char *what)
{
    cu_dnn_node n = NULL;

    if (g->made_count == CU_GRAPH_DESCRIPTORS) step(g, CUDNN_STATUS_INTERNAL_ERROR, "too many descriptors");
    if (g->status != CUDNN_STATUS_SUCCESS) return NULL;
    step(g, g->d->l->cudnnBackendCreateDescriptor(type, &n), what);
    if (g->status != CUDNN_STATUS_SUCCESS) return NULL;
    return g->made[g->made_count++] = n;
}

static void set(cu_dnn_graph *g, cu_dnn_node n, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                int64_t count, const void *values, const char *what)
{
    if (g->status == CUDNN_STATUS_SUCCESS)
        step(g, g->d->l->cudnnBackendSetAttribute(n, name, type, count, values), what);
}

static void set_node(cu_dnn_graph *g, cu_dnn_node n, cudnnBackendAttributeName_t name, cu_dnn_node value,
                     const char *what)
{
    set(g, n, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value, what);
}

static void finish(cu_dnn_graph *g, cu_dnn_node n, const char *what)
{
    if (g->status == CUDNN_STATUS_SUCCESS) step(g, g->d->l->cudnnBackendFinalize(n), what);
}

static void finish_op(cu_dnn_graph *g, cu_dnn_node n, const char *what)
{
    finish(g, n, what);
    if (g->op_count == CU_GRAPH_OPS) step(g, CUDNN_STATUS_INTERNAL_ERROR, "too many operations");
    if (g->status == CUDNN_STATUS_SUCCESS) g->ops[g->op_count++] = n;
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */
static cu_dnn_node tensor(cu_dnn_graph *g, int64_t uid, cudnnDataType_t type, const cu_shape *s,
                          cudnnBackendAttributeName_t flag)
{
    static const char what[] = "a tensor";
    const int64_t alignment = TENSOR_ALIGNMENT;
    const bool yes = true;
    cu_dnn_node n = create(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR, what);

    set(g, n, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type, what);
    set(g, n, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, s->dims, what);
    set(g, n, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, s->strides, what);
    set(g, n, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid, what);
    set(g, n, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment, what);
    if (flag != CUDNN_ATTR_TENSOR_UNIQUE_ID) set(g, n, flag, CUDNN_TYPE_BOOLEAN, 1, &yes, what);
    finish(g, n, what);
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
    cu_dnn_node how = create(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR, what), op;

    set(g, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &math, what);
    finish(g, how, what);
    op = create(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, what);
    set_node(g, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a, what);
    set_node(g, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b, what);
    set_node(g, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, y, what);
    set_node(g, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, how, what);
    finish_op(g, op, what);
}

void cu_dnn_graph_pointwise(cu_dnn_graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t math, int64_t axis,
                            cu_dnn_node x, cu_dnn_node b, cu_dnn_node t, cu_dnn_node y)
{
    static const char what[] = "a pointwise operation";
    cu_dnn_node how = create(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, what), op;

    set(g, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode, what);
    set(g, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &math, what);
    if (axis >= 0) set(g, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis, what);
    finish(g, how, what);
    op = create(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, what);
    set_node(g, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how, what);
    set_node(g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x, what);
    if (b != NULL) set_node(g, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b, what);
    if (t != NULL) set_node(g, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t, what);
    set_node(g, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y, what);
    finish_op(g, op, what);
}

void cu_dnn_graph_reduce(cu_dnn_graph *g, cudnnReduceTensorOp_t mode, cu_dnn_node x, cu_dnn_node y)
{
    static const char what[] = "a reduction";
    const cudnnDataType_t math = CUDNN_DATA_FLOAT;
    cu_dnn_node how = create(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR, what), op;

    set(g, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &math, what);
    set(g, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &mode, what);
    finish(g, how, what);
    op = create(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, what);
    set_node(g, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how, what);
    set_node(g, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x, what);
    set_node(g, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y, what);
    finish_op(g, op, what);
}

void cu_dnn_graph_reshape(cu_dnn_graph *g, cu_dnn_node x, cu_dnn_node y)
{
    static const char what[] = "a transposition";
    cu_dnn_node op = create(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, what);

    set_node(g, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x, what);
    set_node(g, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y, what);
    finish_op(g, op, what);
}

/* ---- plans ------------------------------------------------------------------------------------------------------- */
/* Whether the engine of a configuration says that its bits may differ from run to run. */
static bool varies(cu_dnn_graph *g, cu_dnn_node config)
{
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    int64_t count = 0;
    cu_dnn_node engine = create(g, CUDNN_BACKEND_ENGINE_DESCRIPTOR, "an engine");

    if (engine == NULL) return true;
    if (g->d->l->cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count,
                                          &engine) != CUDNN_STATUS_SUCCESS)
        return true;
    if (g->d->l->cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                          CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count, notes) != CUDNN_STATUS_SUCCESS)
        return true;
    for (int64_t i = 0; i < count; i++)
        if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) return true;
    return false;
}

/* One plan, kept where it can be made and is small enough; what fails here leaves the graph as it was. */
static bool try_config(cu_dnn_graph *g, cu_dnn_node config, size_t limit, cudnnStatus_t *why, size_t *wanted)
{
    const cu_libraries *l = g->d->l;
    cu_dnn_node plan = create(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, "a plan");
    int64_t workspace = 0, count = 0;
    cudnnStatus_t status;

    if (plan == NULL) return false;
    status = l->cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->d->handle);
    if (status == CUDNN_STATUS_SUCCESS)
        status = l->cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                                             CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &config);
    if (status == CUDNN_STATUS_SUCCESS) status = l->cudnnBackendFinalize(plan);
    if (status == CUDNN_STATUS_SUCCESS)
        status = l->cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
                                             &count, &workspace);
    if (status == CUDNN_STATUS_SUCCESS && workspace >= 0 && (uint64_t)workspace <= limit) {
        g->plan = plan;
        g->workspace = (size_t)workspace;
        return true;
    }
    if (status != CUDNN_STATUS_SUCCESS)
        *why = status;
    else if (*wanted == 0 || (uint64_t)workspace < *wanted)
        *wanted = (size_t)workspace;
    (void)l->cudnnBackendDestroyDescriptor(g->made[--g->made_count]);
    return false;
}

/* What the heuristics of one mode propose, best first. */
static int64_t propose(cu_dnn_graph *g, cu_dnn_node graph, cudnnBackendHeurMode_t mode,
                       cu_dnn_node configs[MAX_CONFIGS])
{
    static const char what[] = "the heuristics";
    cu_dnn_node heuristics = create(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, what);
    int64_t count = 0;

    set_node(g, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph, what);
    set(g, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode, what);
    finish(g, heuristics, what);
    for (int i = 0; i < MAX_CONFIGS; i++) configs[i] = create(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, what);
    if (g->status == CUDNN_STATUS_SUCCESS)
        step(g,
             g->d->l->cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                               MAX_CONFIGS, &count, configs),
             what);
    return g->status != CUDNN_STATUS_SUCCESS ? 0 : count < MAX_CONFIGS ? count : MAX_CONFIGS;
}

static void unsupported(const cu_dnn_graph *g, cudnnStatus_t status, const char *what, const char *at, ddp_err *err)
{
    (void)cu_fail_dnn(g->d->l, status, err, "%.60s by cuDNN: %.60s", what, at);
    err->status = DDP_ERR_UNSUPPORTED;
}

ddp_status cu_dnn_graph_plan(cu_dnn_graph *g, size_t limit, const char *what, ddp_err *err)
{
    static const cudnnBackendHeurMode_t modes[] = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK};
    cudnnStatus_t why = CUDNN_STATUS_NOT_SUPPORTED;
    size_t wanted = 0;
    cu_dnn_node configs[MAX_CONFIGS], graph = create(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, "the graph");

    set(g, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->d->handle, "the graph");
    set(g, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->op_count, g->ops, "the graph");
    finish(g, graph, "the graph");
    for (int i = 0; i < 2 && g->status == CUDNN_STATUS_SUCCESS; i++) {
        int64_t count = propose(g, graph, modes[i], configs);
        for (int64_t k = 0; k < count; k++)
            if (!varies(g, configs[k]) && try_config(g, configs[k], limit, &why, &wanted)) return DDP_OK;
    }
    if (g->status != CUDNN_STATUS_SUCCESS)
        unsupported(g, g->status, what, g->failed, err);
    else if (wanted > 0)
        (void)ddp_fail(err, DDP_ERR_UNSUPPORTED, "%.60s by cuDNN needs %zu bytes of workspace, more than %zu", what,
                       wanted, limit);
    else
        unsupported(g, why, what, "no plan can be made that gives the same bits each time", err);
    return err->status;
}

ddp_status cu_dnn_graph_run(const cu_dnn_graph *g, cudaStream_t s, const int64_t *uids, void *const *pointers,
                            int64_t count, void *workspace, const char *what, ddp_err *err)
{
    const cu_libraries *l = g->d->l;
    cudnnBackendDescriptor_t pack = NULL;
    cudnnStatus_t status = l->cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);

    if (status != CUDNN_STATUS_SUCCESS) return cu_fail_dnn(l, status, err, "%.60s by cuDNN: its operands", what);
    status =
        l->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, pointers);
    if (status == CUDNN_STATUS_SUCCESS)
        status = l->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, uids);
    if (status == CUDNN_STATUS_SUCCESS)
        status =
            l->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    if (status == CUDNN_STATUS_SUCCESS) status = l->cudnnBackendFinalize(pack);
    if (status == CUDNN_STATUS_SUCCESS) status = l->cudnnSetStream(g->d->handle, s);
    if (status == CUDNN_STATUS_SUCCESS) status = l->cudnnBackendExecute(g->d->handle, g->plan, pack);
    if (status != CUDNN_STATUS_SUCCESS) (void)cu_fail_dnn(l, status, err, "%.60s by cuDNN", what);
    (void)l->cudnnBackendDestroyDescriptor(pack);
    return status == CUDNN_STATUS_SUCCESS ? DDP_OK : err->status;
}
