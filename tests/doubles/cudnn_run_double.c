/* tests/doubles/cudnn_run_double.c -- what cuDNN's plans do, on the host: a graph's operations one after the other, in
 * f32, in the order of the stream. */
#include "cuda_runtime_double.h"
#include "cudnn_parts.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TENSORS = 64, SLOW_SECONDS = 1000 };

/* ---- tensors at work --------------------------------------------------------------------------------------------- */
typedef struct call {
    const descriptor *graph;
    bool is_slow;
    void *workspace;
    size_t workspace_bytes;
    int64_t count, uids[CUDNN_PARTS_OPERANDS];
    void *at[CUDNN_PARTS_OPERANDS];
    float values[CUDNN_PARTS_OPERANDS]; /* of those in host memory */
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
                .dims = cudnn_values(d, CUDNN_ATTR_TENSOR_DIMENSIONS),
                .strides = cudnn_values(d, CUDNN_ATTR_TENSOR_STRIDES),
                .type = *(const cudnnDataType_t *)cudnn_values(d, CUDNN_ATTR_TENSOR_DATA_TYPE),
                .uid = *(const int64_t *)cudnn_values(d, CUDNN_ATTR_TENSOR_UNIQUE_ID),
                .is_virtual = cudnn_find(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL) != NULL,
                .by_value = cudnn_find(d, CUDNN_ATTR_TENSOR_IS_BY_VALUE) != NULL,
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
    const tensor *a = tensor_of(r, cudnn_part(op, CUDNN_ATTR_OPERATION_MATMUL_ADESC)),
                 *b = tensor_of(r, cudnn_part(op, CUDNN_ATTR_OPERATION_MATMUL_BDESC)),
                 *y = tensor_of(r, cudnn_part(op, CUDNN_ATTR_OPERATION_MATMUL_CDESC));
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
    case CUDNN_POINTWISE_IDENTITY: return x;
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
    const descriptor *how = cudnn_part(op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    const cudnnPointwiseMode_t mode = *(const cudnnPointwiseMode_t *)cudnn_values(how, CUDNN_ATTR_POINTWISE_MODE);
    const int64_t *axis = cudnn_values(how, CUDNN_ATTR_POINTWISE_AXIS);
    const tensor *x = tensor_of(r, cudnn_part(op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC)),
                 *b = tensor_of(r, cudnn_part(op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC)),
                 *t = tensor_of(r, cudnn_part(op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC)),
                 *y = tensor_of(r, cudnn_part(op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
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
    const cudnnReduceTensorOp_t mode = *(const cudnnReduceTensorOp_t *)cudnn_values(
        cudnn_part(op, CUDNN_ATTR_OPERATION_REDUCTION_DESC), CUDNN_ATTR_REDUCTION_OPERATOR);
    const tensor *x = tensor_of(r, cudnn_part(op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC)),
                 *y = tensor_of(r, cudnn_part(op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC));
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
    const tensor *x = tensor_of(r, cudnn_part(op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC)),
                 *y = tensor_of(r, cudnn_part(op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC));
    int64_t at[4] = {0};

    if (x->extent != y->extent) (void)cudnn_double_misuse("a reshape to another size");
    do {
        const int64_t o = offset(y, at);
        put(y, at, cudnn_double_get(x->at, x->is_virtual ? CUDNN_DATA_FLOAT : x->type, o));
    } while (next(y->dims, at));
}

/* ---- convolutions ------------------------------------------------------------------------------------------------ */
const convolution_names *cudnn_convolution_names(cudnnBackendDescriptorType_t type)
{
    static const convolution_names forward = {
        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA};
    static const convolution_names data = {
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA};
    static const convolution_names filter = {
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA};

    switch ((int)type) {
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR: return &forward;
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR: return &data;
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR: return &filter;
    default: return NULL;
    }
}

const descriptor *cudnn_convolution_of(const descriptor *graph)
{
    const attribute *ops = cudnn_find(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    const descriptor *first = ((const descriptor *const *)ops->values)[0];

    return ops->count == 1 && cudnn_convolution_names(first->type) != NULL ? first : NULL;
}

bool cudnn_is_f32(const descriptor *convolution)
{
    const descriptor *x = cudnn_part(convolution, cudnn_convolution_names(convolution->type)->x);

    return *(const int *)cudnn_values(x, CUDNN_ATTR_TENSOR_DATA_TYPE) == CUDNN_DATA_FLOAT;
}

/* One product of y (n, o, p, q)'s sum: with x (n, c, h, w) and w (o, i, r, s). */
typedef struct convolution {
    const tensor *x, *w, *y, *to; /* to: the one of them that is written */
    const int64_t *stride, *padding;
    float *sums; /* by the place in `to` */
} convolution;

static void add_term(const convolution *c, const int64_t y[4], const int64_t w[4])
{
    const int64_t groups = c->x->dims[1] / c->w->dims[1], outs = c->w->dims[0] / groups;
    const int64_t x[4] = {y[0], y[1] / outs * c->w->dims[1] + w[1], y[2] * c->stride[0] - c->padding[0] + w[2],
                          y[3] * c->stride[1] - c->padding[1] + w[3]};

    if (x[2] < 0 || x[2] >= c->x->dims[2] || x[3] < 0 || x[3] >= c->x->dims[3]) return;
    if (c->to == c->y) c->sums[offset(c->y, y)] += get(c->x, x) * get(c->w, w);
    if (c->to == c->x) c->sums[offset(c->x, x)] += get(c->y, y) * get(c->w, w);
    if (c->to == c->w) c->sums[offset(c->w, w)] += get(c->y, y) * get(c->x, x);
}

static void do_convolution(run *r, const descriptor *op)
{
    const convolution_names *n = cudnn_convolution_names(op->type);
    const descriptor *window = cudnn_part(op, n->window);
    convolution c = {.x = tensor_of(r, cudnn_part(op, n->x)),
                     .w = tensor_of(r, cudnn_part(op, n->w)),
                     .y = tensor_of(r, cudnn_part(op, n->y)),
                     .stride = cudnn_values(window, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES),
                     .padding = cudnn_values(window, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS)};
    int64_t y[4] = {0};

    c.to = op->type == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR         ? c.y
           : op->type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR ? c.x
                                                                                      : c.w;
    c.sums = calloc((size_t)c.to->extent, sizeof(*c.sums));
    do {
        const int64_t last[4] = {1, c.w->dims[1], c.w->dims[2], c.w->dims[3]};
        int64_t at[4] = {0};
        do {
            const int64_t w[4] = {y[1], at[1], at[2], at[3]};
            add_term(&c, y, w);
        } while (next(last, at));
    } while (next(c.y->dims, y));
    for (int64_t i = 0; i < c.to->extent; i++) cudnn_double_put(c.to->at, c.to->type, i, c.sums[i]);
    free(c.sums);
}

static void do_graph(void *argument)
{
    run r = {.c = argument};
    const attribute *ops = cudnn_find(r.c->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);

    if (r.c->is_slow) cuda_double_takes(SLOW_SECONDS);
    if (r.c->workspace_bytes > 0) memset(r.c->workspace, 0xa5, r.c->workspace_bytes);
    for (int64_t i = 0; i < ops->count; i++) {
        const descriptor *op = ((const descriptor *const *)ops->values)[i];
        switch ((int)op->type) {
        case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
        case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
        case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR: do_convolution(&r, op); break;
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
    const attribute *ops = cudnn_find(c->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);

    for (int64_t i = 0; i < ops->count; i++) {
        const descriptor *op = ((const descriptor *const *)ops->values)[i];
        for (int k = 0; k < op->count; k++) {
            const descriptor *d = cudnn_part(op, op->attributes[k].name);
            if (d != NULL && d->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR && !given(c, d)) return false;
        }
    }
    return true;
}

/* Whether there are as many operands as the graph has. */
static bool none_more(const call *c)
{
    const descriptor *convolution = cudnn_convolution_of(c->graph);

    return convolution == NULL || c->count == 3;
}

static void count_start(const call *c, int64_t engine)
{
    cudnn_double_control *control = cudnn_double();

    cudnn_double_count(cudnn_convolution_of(c->graph) != NULL ? &control->convolutions : &control->graphs, 1);
    if (cudnn_convolution_of(c->graph) != NULL) __atomic_store_n(&control->last_engine, (int)engine, __ATOMIC_RELAXED);
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t h, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack)
{
    const descriptor *p = plan, *v = pack, *config;
    const attribute *uids = cudnn_find(v, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    call c = {.workspace_bytes = cudnn_double()->graph_workspace};

    if (!p->finalized || !v->finalized) return cudnn_double_misuse("a plan or its operands not finalized");
    config = cudnn_part(p, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
    c.graph = config->graph;
    c.is_slow = cudnn_convolution_of(c.graph) != NULL &&
                (config->engine == CUDNN_ENGINE_SLOW || config->engine == CUDNN_ENGINE_VARIES);
    c.count = uids->count;
    memcpy(c.uids, uids->values, sizeof(c.uids[0]) * (size_t)c.count);
    memcpy(c.at, cudnn_values(v, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS), sizeof(c.at[0]) * (size_t)c.count);
    c.workspace = *(void *const *)cudnn_values(v, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
    if (c.workspace_bytes > 0 && !cuda_double_is_device(c.workspace, c.workspace_bytes))
        return cudnn_double_misuse("no workspace");
    if (!all_given(&c) || !none_more(&c))
        return cudnn_double_misuse("an operand that is missing, not in device memory, or not aligned");
    if (config->engine == CUDNN_ENGINE_FAILS || cudnn_double()->no_start) return CUDNN_STATUS_EXECUTION_FAILED;
    count_start(&c, config->engine);
    return cuda_double_enqueue(cudnn_double_stream(h), do_graph, &c, sizeof(c)) == cudaSuccess
               ? CUDNN_STATUS_SUCCESS
               : CUDNN_STATUS_EXECUTION_FAILED;
}
