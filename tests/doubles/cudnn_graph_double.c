/* tests/doubles/cudnn_graph_double.c -- cuDNN's backend API, on the host: descriptors hold what was set, graphs are
 * checked when they are finalized and run one operation after the other. Of the two engines that the heuristics
 * propose, the first gives other bits in every run, and may not be planned. What the double does not know is an
 * error. */
#include "cudnn_double.h"
#include "cuda_runtime_double.h"
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ATTRIBUTES = 8, MAX_OPERANDS = 16, MAX_TENSORS = 64 };

typedef struct attribute {
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t count;
    void *values;
} attribute;

typedef struct descriptor {
    cudnnBackendDescriptorType_t type;
    bool finalized;
    attribute attributes[MAX_ATTRIBUTES];
    int count;
    int64_t engine; /* of a configuration and of an engine */
    const struct descriptor *graph;
} descriptor;

/* ---- attributes -------------------------------------------------------------------------------------------------- */
static size_t element_size(cudnnBackendAttributeType_t type)
{
    switch ((int)type) {
    case CUDNN_TYPE_BOOLEAN: return sizeof(bool);
    case CUDNN_TYPE_DATA_TYPE:
    case CUDNN_TYPE_POINTWISE_MODE:
    case CUDNN_TYPE_REDUCTION_OPERATOR_TYPE:
    case CUDNN_TYPE_HEUR_MODE: return sizeof(int);
    case CUDNN_TYPE_INT64: return sizeof(int64_t);
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR: return sizeof(void *);
    default: return 0;
    }
}

static const attribute *find(const descriptor *d, cudnnBackendAttributeName_t name)
{
    for (int i = 0; i < d->count; i++)
        if (d->attributes[i].name == name) return &d->attributes[i];
    return NULL;
}

static const void *values_of(const descriptor *d, cudnnBackendAttributeName_t name)
{
    const attribute *a = find(d, name);

    return a != NULL ? a->values : NULL;
}

static const descriptor *part(const descriptor *d, cudnnBackendAttributeName_t name)
{
    const attribute *a = find(d, name);

    return a != NULL && a->type == CUDNN_TYPE_BACKEND_DESCRIPTOR ? *(const descriptor *const *)a->values : NULL;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *out)
{
    descriptor *d = calloc(1, sizeof(*d));

    d->type = type;
    cudnn_double_count(&cudnn_double()->objects, 1);
    *out = d;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t p)
{
    descriptor *d = p;

    cudnn_double_count(&cudnn_double()->objects, -1);
    for (int i = 0; i < d->count; i++) free(d->attributes[i].values);
    free(d);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t p, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    descriptor *d = p;
    const size_t size = element_size(type);
    attribute *a;

    if (d->finalized) return cudnn_double_misuse("an attribute of a descriptor that is finalized");
    if (size == 0 || count < 1 || values == NULL) return cudnn_double_misuse("an attribute of no known type, or empty");
    if (find(d, name) != NULL) return cudnn_double_misuse("an attribute that is set twice");
    if (d->count == MAX_ATTRIBUTES) return cudnn_double_misuse("more attributes than the double has room for");
    for (int64_t i = 0; type == CUDNN_TYPE_BACKEND_DESCRIPTOR && i < count; i++)
        if (((descriptor *const *)values)[i] == NULL ||
            (!((descriptor *const *)values)[i]->finalized && d->type != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR))
            return cudnn_double_misuse("a descriptor that is not finalized");
    a = &d->attributes[d->count++];
    *a = (attribute){name, type, count, malloc(size * (size_t)count)};
    memcpy(a->values, values, size * (size_t)count);
    return CUDNN_STATUS_SUCCESS;
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */
typedef struct needed {
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t count; /* 0: any */
} needed;

static bool has_all(const descriptor *d, const needed *n, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const attribute *a = find(d, n[i].name);
        if (a == NULL || a->type != n[i].type || (n[i].count != 0 && a->count != n[i].count)) return false;
    }
    return true;
}
#define HAS_ALL_(d, n) has_all(d, n, sizeof(n) / sizeof((n)[0]))
#define PART_(name)                                                                                                    \
    {                                                                                                                  \
        CUDNN_ATTR_##name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1                                                            \
    }

static bool complete(const descriptor *d)
{
    static const needed tensor[] = {{CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1},
                                    {CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4},
                                    {CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4},
                                    {CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1},
                                    {CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1}};
    static const needed matmul[] = {{CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1}};
    static const needed pointwise[] = {{CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1},
                                       {CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1}};
    static const needed reduction[] = {{CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1},
                                       {CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1}};
    static const needed op_matmul[] = {PART_(OPERATION_MATMUL_ADESC), PART_(OPERATION_MATMUL_BDESC),
                                       PART_(OPERATION_MATMUL_CDESC), PART_(OPERATION_MATMUL_DESC)};
    static const needed op_pointwise[] = {PART_(OPERATION_POINTWISE_PW_DESCRIPTOR), PART_(OPERATION_POINTWISE_XDESC),
                                          PART_(OPERATION_POINTWISE_YDESC)};
    static const needed op_reduction[] = {PART_(OPERATION_REDUCTION_DESC), PART_(OPERATION_REDUCTION_XDESC),
                                          PART_(OPERATION_REDUCTION_YDESC)};
    static const needed op_reshape[] = {PART_(OPERATION_RESHAPE_XDESC), PART_(OPERATION_RESHAPE_YDESC)};
    static const needed graph[] = {{CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0},
                                   {CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1}};
    static const needed heuristics[] = {PART_(ENGINEHEUR_OPERATION_GRAPH),
                                        {CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1}};
    static const needed plan[] = {PART_(EXECUTION_PLAN_ENGINE_CONFIG),
                                  {CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1}};
    static const needed pack[] = {{CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 0},
                                  {CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 0},
                                  {CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1}};

    switch ((int)d->type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR: return HAS_ALL_(d, tensor);
    case CUDNN_BACKEND_MATMUL_DESCRIPTOR: return HAS_ALL_(d, matmul);
    case CUDNN_BACKEND_POINTWISE_DESCRIPTOR: return HAS_ALL_(d, pointwise);
    case CUDNN_BACKEND_REDUCTION_DESCRIPTOR: return HAS_ALL_(d, reduction);
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR: return HAS_ALL_(d, op_matmul);
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: return HAS_ALL_(d, op_pointwise);
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR: return HAS_ALL_(d, op_reduction);
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR: return HAS_ALL_(d, op_reshape);
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR: return HAS_ALL_(d, graph);
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR: return HAS_ALL_(d, heuristics);
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR: return HAS_ALL_(d, plan);
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR:
        return HAS_ALL_(d, pack) && d->attributes[0].count == d->attributes[1].count &&
               d->attributes[0].count <= MAX_OPERANDS;
    default: return false;
    }
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t p)
{
    descriptor *d = p;

    if (!complete(d))
        return cudnn_double_misuse("a descriptor that is not complete, or of a kind the double does not know");
    if (d->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
        const descriptor *config = part(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
        if (config->graph == NULL) return cudnn_double_misuse("a plan of no configuration");
        if (config->engine == 0) return cudnn_double_misuse("a plan whose bits vary from run to run");
        if (cudnn_double()->no_plan) return CUDNN_STATUS_NOT_SUPPORTED;
    }
    d->finalized = true;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const p, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t room, int64_t *count, void *values)
{
    const descriptor *d = p;
    descriptor *const *parts = values;

    if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS && type == CUDNN_TYPE_BACKEND_DESCRIPTOR && room >= 2) {
        const bool first = *(const int *)values_of(d, CUDNN_ATTR_ENGINEHEUR_MODE) == CUDNN_HEUR_MODE_A;
        *count = first ? 2 : 0;
        for (int64_t i = 0; i < *count; i++) {
            parts[i]->graph = part(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
            parts[i]->engine = i;
        }
    } else if (name == CUDNN_ATTR_ENGINECFG_ENGINE && type == CUDNN_TYPE_BACKEND_DESCRIPTOR && room == 1) {
        parts[0]->engine = d->engine;
        *count = 1;
    } else if (name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE && type == CUDNN_TYPE_NUMERICAL_NOTE && room >= 2) {
        ((cudnnBackendNumericalNote_t *)values)[0] = CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
        ((cudnnBackendNumericalNote_t *)values)[1] = CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
        *count = d->engine == 0 ? 2 : 1;
    } else if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE && type == CUDNN_TYPE_INT64 && room == 1) {
        *(int64_t *)values = (int64_t)cudnn_double()->graph_workspace;
        *count = 1;
    } else {
        return cudnn_double_misuse("an attribute that the double cannot give");
    }
    return CUDNN_STATUS_SUCCESS;
}

/* ---- tensors at work --------------------------------------------------------------------------------------------- */
typedef struct call {
    const descriptor *graph;
    void *workspace;
    size_t workspace_bytes;
    int64_t count, uids[MAX_OPERANDS];
    void *at[MAX_OPERANDS];
    float values[MAX_OPERANDS]; /* of those in host memory */
} call;

typedef struct tensor {
    const descriptor *d;
    const int64_t *dims, *strides;
    cudnnDataType_t type;
    int64_t uid, extent;
    bool is_virtual, by_value;
    void *at; /* virtual: f32 whatever its type */
} tensor;

typedef struct run {
    const call *c;
    tensor tensors[MAX_TENSORS];
    int count;
} run;

static tensor describe(const descriptor *d)
{
    tensor t = {.d = d,
                .dims = values_of(d, CUDNN_ATTR_TENSOR_DIMENSIONS),
                .strides = values_of(d, CUDNN_ATTR_TENSOR_STRIDES),
                .type = *(const cudnnDataType_t *)values_of(d, CUDNN_ATTR_TENSOR_DATA_TYPE),
                .uid = *(const int64_t *)values_of(d, CUDNN_ATTR_TENSOR_UNIQUE_ID),
                .is_virtual = find(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL) != NULL,
                .by_value = find(d, CUDNN_ATTR_TENSOR_IS_BY_VALUE) != NULL,
                .extent = 1};

    for (int i = 0; i < 4; i++) t.extent += (t.dims[i] - 1) * t.strides[i];
    return t;
}

static const tensor *tensor_of(run *r, const descriptor *d)
{
    tensor *t;

    if (d == NULL) return NULL;
    for (int i = 0; i < r->count; i++)
        if (r->tensors[i].d == d) return &r->tensors[i];
    t = &r->tensors[r->count++];
    *t = describe(d);
    if (t->is_virtual) {
        t->at = malloc((size_t)t->extent * sizeof(float));
        memset(t->at, 0xff, (size_t)t->extent * sizeof(float));
        return t;
    }
    for (int64_t i = 0; i < r->c->count; i++)
        if (r->c->uids[i] == t->uid) t->at = t->by_value ? (void *)(uintptr_t)&r->c->values[i] : r->c->at[i];
    return t;
}

static int64_t offset(const tensor *t, const int64_t at[4])
{
    int64_t o = 0;

    for (int i = 0; i < 4; i++) o += t->dims[i] == 1 ? 0 : at[i] * t->strides[i];
    return o;
}

static float get(const tensor *t, const int64_t at[4])
{
    return cudnn_double_get(t->at, t->is_virtual ? CUDNN_DATA_FLOAT : t->type, offset(t, at));
}

static void put(const tensor *t, const int64_t at[4], float x)
{
    if (t->is_virtual && t->type == CUDNN_DATA_BFLOAT16) {
        uint16_t half;
        cudnn_double_put(&half, CUDNN_DATA_BFLOAT16, 0, x);
        x = cudnn_double_get(&half, CUDNN_DATA_BFLOAT16, 0);
    }
    cudnn_double_put(t->at, t->is_virtual ? CUDNN_DATA_FLOAT : t->type, offset(t, at), x);
}

/* The next place in dims, the last dimension first; false behind the last. */
static bool next(const int64_t dims[4], int64_t at[4])
{
    for (int i = 3; i >= 0; i--) {
        if (++at[i] < dims[i]) return true;
        at[i] = 0;
    }
    return false;
}

/* ---- operations -------------------------------------------------------------------------------------------------- */
static void do_matmul(run *r, const descriptor *op)
{
    const tensor *a = tensor_of(r, part(op, CUDNN_ATTR_OPERATION_MATMUL_ADESC)),
                 *b = tensor_of(r, part(op, CUDNN_ATTR_OPERATION_MATMUL_BDESC)),
                 *y = tensor_of(r, part(op, CUDNN_ATTR_OPERATION_MATMUL_CDESC));
    int64_t at[4] = {0};

    if (a->dims[3] != b->dims[2] || a->dims[2] != y->dims[2] || b->dims[3] != y->dims[3])
        (void)cudnn_double_misuse("a matrix product whose tensors do not fit");
    do {
        float sum = 0;
        for (int64_t k = 0; k < a->dims[3]; k++)
            sum +=
                get(a, (const int64_t[4]){at[0], at[1], at[2], k}) * get(b, (const int64_t[4]){at[0], at[1], k, at[3]});
        put(y, at, sum);
    } while (next(y->dims, at));
}

static float pointwise(cudnnPointwiseMode_t mode, float x, float b, float t, int64_t index)
{
    switch ((int)mode) {
    case CUDNN_POINTWISE_ADD: return x + b;
    case CUDNN_POINTWISE_SUB: return x - b;
    case CUDNN_POINTWISE_MUL: return x * b;
    case CUDNN_POINTWISE_DIV: return x / b;
    case CUDNN_POINTWISE_EXP: return expf(x);
    case CUDNN_POINTWISE_LOG: return logf(x);
    case CUDNN_POINTWISE_CMP_GE: return x >= b ? 1 : 0;
    case CUDNN_POINTWISE_GEN_INDEX: return (float)index;
    case CUDNN_POINTWISE_BINARY_SELECT: return t != 0 ? x : b;
    default: (void)cudnn_double_misuse("a pointwise operation that the double does not know"); return NAN;
    }
}

static void do_pointwise(run *r, const descriptor *op)
{
    const descriptor *how = part(op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    const cudnnPointwiseMode_t mode = *(const cudnnPointwiseMode_t *)values_of(how, CUDNN_ATTR_POINTWISE_MODE);
    const int64_t *axis = values_of(how, CUDNN_ATTR_POINTWISE_AXIS);
    const tensor *x = tensor_of(r, part(op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC)),
                 *b = tensor_of(r, part(op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC)),
                 *t = tensor_of(r, part(op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC)),
                 *y = tensor_of(r, part(op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
    int64_t at[4] = {0};

    if ((mode == CUDNN_POINTWISE_GEN_INDEX) != (axis != NULL)) (void)cudnn_double_misuse("an axis of no use, or none");
    do
        put(y, at,
            pointwise(mode, get(x, at), b != NULL ? get(b, at) : NAN, t != NULL ? get(t, at) : 0,
                      axis != NULL ? at[*axis] : 0));
    while (next(y->dims, at));
}

static void do_reduction(run *r, const descriptor *op)
{
    const cudnnReduceTensorOp_t mode = *(const cudnnReduceTensorOp_t *)values_of(
        part(op, CUDNN_ATTR_OPERATION_REDUCTION_DESC), CUDNN_ATTR_REDUCTION_OPERATOR);
    const tensor *x = tensor_of(r, part(op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC)),
                 *y = tensor_of(r, part(op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC));
    int64_t at[4] = {0};

    if (y->dims[3] != 1 || (mode != CUDNN_REDUCE_TENSOR_MAX && mode != CUDNN_REDUCE_TENSOR_ADD))
        (void)cudnn_double_misuse("a reduction that the double does not know");
    do {
        float sum = mode == CUDNN_REDUCE_TENSOR_ADD ? 0 : -INFINITY;
        for (int64_t i = 0; i < x->dims[3]; i++) {
            const float v = get(x, (const int64_t[4]){at[0], at[1], at[2], i});
            sum = mode == CUDNN_REDUCE_TENSOR_ADD ? sum + v : fmaxf(sum, v);
        }
        put(y, at, sum);
    } while (next(y->dims, at));
}

/* The same memory, seen with other dimensions. */
static void do_reshape(run *r, const descriptor *op)
{
    const tensor *x = tensor_of(r, part(op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC)),
                 *y = tensor_of(r, part(op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC));
    int64_t at[4] = {0};

    if (x->extent != y->extent) (void)cudnn_double_misuse("a reshape to another size");
    do {
        const int64_t o = offset(y, at);
        put(y, at, cudnn_double_get(x->at, x->is_virtual ? CUDNN_DATA_FLOAT : x->type, o));
    } while (next(y->dims, at));
}

static void do_graph(void *argument)
{
    run r = {.c = argument};
    const attribute *ops = find(r.c->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);

    if (r.c->workspace_bytes > 0) memset(r.c->workspace, 0xa5, r.c->workspace_bytes);
    for (int64_t i = 0; i < ops->count; i++) {
        const descriptor *op = ((const descriptor *const *)ops->values)[i];
        switch ((int)op->type) {
        case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR: do_matmul(&r, op); break;
        case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: do_pointwise(&r, op); break;
        case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR: do_reduction(&r, op); break;
        case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR: do_reshape(&r, op); break;
        default: (void)cudnn_double_misuse("an operation that the double does not know");
        }
    }
    for (int i = 0; i < r.count; i++)
        if (r.tensors[i].is_virtual) free(r.tensors[i].at);
}

/* ---- execution --------------------------------------------------------------------------------------------------- */
/* Whether an operation's tensor, where it has one, is among the operands. */
static bool given(call *c, const descriptor *d)
{
    tensor t;

    if (d == NULL) return true;
    t = describe(d);
    if (t.is_virtual) return true;
    for (int64_t i = 0; i < c->count; i++) {
        if (c->uids[i] != t.uid) continue;
        if (t.by_value)
            c->values[i] = *(const float *)c->at[i];
        else if ((uintptr_t)c->at[i] % 16 != 0 ||
                 !cuda_double_is_device(c->at[i], (size_t)t.extent * (t.type == CUDNN_DATA_FLOAT ? 4 : 2)))
            return false;
        return true;
    }
    return false;
}

static bool all_given(call *c)
{
    const attribute *ops = find(c->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);

    for (int64_t i = 0; i < ops->count; i++) {
        const descriptor *op = ((const descriptor *const *)ops->values)[i];
        for (int k = 0; k < op->count; k++) {
            const descriptor *d = part(op, op->attributes[k].name);
            if (d != NULL && d->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR && !given(c, d)) return false;
        }
    }
    return true;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t h, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack)
{
    const descriptor *p = plan, *v = pack;
    const attribute *uids = find(v, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    call c = {.workspace_bytes = cudnn_double()->graph_workspace};

    if (!p->finalized || !v->finalized) return cudnn_double_misuse("a plan or its operands not finalized");
    c.graph = part(p, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)->graph;
    c.count = uids->count;
    memcpy(c.uids, uids->values, sizeof(c.uids[0]) * (size_t)c.count);
    memcpy(c.at, values_of(v, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS), sizeof(c.at[0]) * (size_t)c.count);
    c.workspace = *(void *const *)values_of(v, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
    if (c.workspace_bytes > 0 && !cuda_double_is_device(c.workspace, c.workspace_bytes))
        return cudnn_double_misuse("no workspace");
    if (!all_given(&c)) return cudnn_double_misuse("an operand that is missing, not in device memory, or not aligned");
    cudnn_double_count(&cudnn_double()->graphs, 1);
    return cuda_double_enqueue(cudnn_double_stream(h), do_graph, &c, sizeof(c)) == cudaSuccess
               ? CUDNN_STATUS_SUCCESS
               : CUDNN_STATUS_EXECUTION_FAILED;
}
