/* tests/doubles/cudnn_graph_double.c -- cuDNN's backend API, on the host: descriptors hold what was set, and are
 * checked when they are finalized; the heuristics propose the engines of cudnn_parts.h. What the double does not know
 * is an error. */
#include "cudnn_parts.h"
#include <stdlib.h>
#include <string.h>

/* ---- attributes -------------------------------------------------------------------------------------------------- */
static size_t element_size(cudnnBackendAttributeType_t type)
{
    switch ((int)type) {
    case CUDNN_TYPE_BOOLEAN: return sizeof(bool);
    case CUDNN_TYPE_DATA_TYPE:
    case CUDNN_TYPE_POINTWISE_MODE:
    case CUDNN_TYPE_REDUCTION_OPERATOR_TYPE:
    case CUDNN_TYPE_CONVOLUTION_MODE:
    case CUDNN_TYPE_FLOAT:
    case CUDNN_TYPE_HEUR_MODE: return sizeof(int);
    case CUDNN_TYPE_INT64: return sizeof(int64_t);
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR: return sizeof(void *);
    default: return 0;
    }
}

const attribute *cudnn_find(const descriptor *d, cudnnBackendAttributeName_t name)
{
    for (int i = 0; i < d->count; i++)
        if (d->attributes[i].name == name) return &d->attributes[i];
    return NULL;
}

const void *cudnn_values(const descriptor *d, cudnnBackendAttributeName_t name)
{
    const attribute *a = cudnn_find(d, name);

    return a != NULL ? a->values : NULL;
}

const descriptor *cudnn_part(const descriptor *d, cudnnBackendAttributeName_t name)
{
    const attribute *a = cudnn_find(d, name);

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
    if (cudnn_find(d, name) != NULL) return cudnn_double_misuse("an attribute that is set twice");
    if (d->count == CUDNN_PARTS_ATTRIBUTES) return cudnn_double_misuse("more attributes than the double has room for");
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
        const attribute *a = cudnn_find(d, n[i].name);
        if (a == NULL || a->type != n[i].type || (n[i].count != 0 && a->count != n[i].count)) return false;
    }
    return true;
}
/* A convolution's parts have these and no others. */
#define HAS_EXACTLY_(d, n) (has_all(d, n, sizeof(n) / sizeof((n)[0])) && (d)->count == sizeof(n) / sizeof((n)[0]))
#define HAS_ALL_(d, n)     has_all(d, n, sizeof(n) / sizeof((n)[0]))
#define PART_(name)                                                                                                    \
    {                                                                                                                  \
        CUDNN_ATTR_##name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1                                                            \
    }

/* Two dimensions, no dilation, the same padding on both sides, sums in f32. */
static bool is_window(const descriptor *d)
{
    static const needed all[] = {{CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1},
                                 {CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1},
                                 {CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1},
                                 {CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2},
                                 {CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2},
                                 {CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2},
                                 {CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2}};
    const int64_t *dilation, *stride, *before, *after;

    if (!HAS_EXACTLY_(d, all)) return false;
    dilation = cudnn_values(d, CUDNN_ATTR_CONVOLUTION_DILATIONS);
    stride = cudnn_values(d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES);
    before = cudnn_values(d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS);
    after = cudnn_values(d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS);
    for (int i = 0; i < 2; i++)
        if (dilation[i] != 1 || stride[i] < 1 || before[i] < 0 || before[i] != after[i]) return false;
    return *(const int *)cudnn_values(d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE) == CUDNN_DATA_FLOAT &&
           *(const int *)cudnn_values(d, CUDNN_ATTR_CONVOLUTION_CONV_MODE) == CUDNN_CROSS_CORRELATION &&
           *(const int64_t *)cudnn_values(d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS) == 2;
}

/* The tensor's dimensions where its channels, the second of four, lie side by side; else NULL. */
static const int64_t *channels_last(const descriptor *t)
{
    const int64_t *d = t != NULL ? cudnn_values(t, CUDNN_ATTR_TENSOR_DIMENSIONS) : NULL,
                  *s = t != NULL ? cudnn_values(t, CUDNN_ATTR_TENSOR_STRIDES) : NULL;

    if (d == NULL || s == NULL || cudnn_find(t, CUDNN_ATTR_TENSOR_IS_VIRTUAL) != NULL) return NULL;
    for (int i = 0; i < 4; i++)
        if (d[i] < 1) return NULL;
    return s[1] == 1 && s[3] == d[1] && s[2] == d[3] * d[1] && s[0] == d[2] * d[3] * d[1] ? d : NULL;
}

/* Whether the tensors are those of a convolution: w (o, c / groups, kh, kw). */
static bool tensors_fit(const descriptor *window, const descriptor *x, const descriptor *w, const descriptor *y)
{
    const int64_t *dx = channels_last(x), *dw = channels_last(w), *dy = channels_last(y),
                  *stride = cudnn_values(window, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES),
                  *padding = cudnn_values(window, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS);
    const int type = dx != NULL ? *(const int *)cudnn_values(x, CUDNN_ATTR_TENSOR_DATA_TYPE) : -1;

    if (dx == NULL || dw == NULL || dy == NULL) return false;
    if (*(const int *)cudnn_values(w, CUDNN_ATTR_TENSOR_DATA_TYPE) != type ||
        *(const int *)cudnn_values(y, CUDNN_ATTR_TENSOR_DATA_TYPE) != type)
        return false;
    for (int i = 0; i < 2; i++)
        if (dy[2 + i] != (dx[2 + i] + 2 * padding[i] - dw[2 + i]) / stride[i] + 1) return false;
    return dx[0] == dy[0] && dw[0] == dy[1] && dx[1] % dw[1] == 0 && dw[0] % (dx[1] / dw[1]) == 0;
}

/* Set and not added, nor scaled. */
static bool is_convolution(const descriptor *d)
{
    const convolution_names *n = cudnn_convolution_names(d->type);
    const needed all[] = {{n->x, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1}, {n->w, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1},
                          {n->y, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1}, {n->window, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1},
                          {n->alpha, CUDNN_TYPE_FLOAT, 1},          {n->beta, CUDNN_TYPE_FLOAT, 1}};

    return HAS_EXACTLY_(d, all) && *(const float *)cudnn_values(d, n->alpha) == 1 &&
           *(const float *)cudnn_values(d, n->beta) == 0 &&
           cudnn_part(d, n->window)->type == CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR &&
           tensors_fit(cudnn_part(d, n->window), cudnn_part(d, n->x), cudnn_part(d, n->w), cudnn_part(d, n->y));
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
    case CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR: return is_window(d);
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR: return is_convolution(d);
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR: return HAS_ALL_(d, graph);
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR: return HAS_ALL_(d, heuristics);
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR: return HAS_ALL_(d, plan);
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR:
        return HAS_ALL_(d, pack) && d->attributes[0].count == d->attributes[1].count &&
               d->attributes[0].count <= CUDNN_PARTS_OPERANDS;
    default: return false;
    }
}

/* As a graph does that copies what is in memory: of a product, added up by many blocks. */
static bool sums_in_memory(const descriptor *graph)
{
    const attribute *ops = cudnn_find(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);

    for (int64_t i = 0; i < ops->count; i++) {
        const descriptor *how =
            cudnn_part(((const descriptor *const *)ops->values)[i], CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
        if (how != NULL && *(const int *)cudnn_values(how, CUDNN_ATTR_POINTWISE_MODE) == CUDNN_POINTWISE_IDENTITY)
            return true;
    }
    return false;
}

/* ---- engines ----------------------------------------------------------------------------------------------------- */
static cudnnStatus_t check_plan(const descriptor *config)
{
    const cudnn_double_control *c = cudnn_double();
    const descriptor *convolution = config->graph != NULL ? cudnn_convolution_of(config->graph) : NULL;
    const bool f32 = convolution != NULL && cudnn_is_f32(convolution);

    if (config->graph == NULL) return cudnn_double_misuse("a plan of no configuration");
    if (config->engine == CUDNN_ENGINE_VARIES && c->must_be_same)
        return cudnn_double_misuse("a plan whose bits vary from run to run");
    if (sums_in_memory(config->graph)) {
        if (c->must_be_same) return cudnn_double_misuse("sums whose bits vary from run to run");
        if (c->no_summed) return CUDNN_STATUS_NOT_SUPPORTED;
        cudnn_double_count(&cudnn_double()->summed, 1);
    }
    if ((config->engine == CUDNN_ENGINE_TF32 && f32 && !c->may_tf32) || config->engine == CUDNN_ENGINE_ROUNDS ||
        config->engine == CUDNN_ENGINE_REDUCES)
        return cudnn_double_misuse("a plan of an engine that is less exact than was asked for");
    if (config->engine == CUDNN_ENGINE_VARIES) cudnn_double_count(&cudnn_double()->varied, 1);
    cudnn_double_count(&cudnn_double()->plans, 1);
    return c->no_plan ? CUDNN_STATUS_NOT_SUPPORTED : CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t p)
{
    descriptor *d = p;
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;

    if (!complete(d))
        return cudnn_double_misuse("a descriptor that is not complete, or of a kind the double does not know");
    if (d->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)
        status = check_plan(cudnn_part(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG));
    d->finalized = status == CUDNN_STATUS_SUCCESS;
    return status;
}

/* Of a convolution mode A proposes most, B some of the same and the best, and the fallback the best. */
static int64_t propose(const descriptor *graph, int mode, int64_t engines[8])
{
    static const int64_t exact[] = {CUDNN_ENGINE_REDUCES, CUDNN_ENGINE_VARIES, CUDNN_ENGINE_HUGE, CUDNN_ENGINE_FAILS,
                                    CUDNN_ENGINE_SLOW},
                         b[] = {CUDNN_ENGINE_SLOW, CUDNN_ENGINE_VARIES, CUDNN_ENGINE_FAST};
    const descriptor *convolution = cudnn_convolution_of(graph);
    int64_t n = 0;

    if (convolution == NULL) {
        engines[0] = CUDNN_ENGINE_VARIES;
        engines[1] = CUDNN_ENGINE_PLAIN;
        return (mode == CUDNN_HEUR_MODE_A) != (cudnn_double()->fails_mode_a != 0) && mode != CUDNN_HEUR_MODE_B ? 2 : 0;
    }
    if (mode == CUDNN_HEUR_MODE_FALLBACK) engines[n++] = CUDNN_ENGINE_FAST;
    if (mode == CUDNN_HEUR_MODE_A && cudnn_is_f32(convolution)) {
        engines[n++] = CUDNN_ENGINE_TF32;
        engines[n++] = CUDNN_ENGINE_ROUNDS;
    }
    for (size_t i = 0; mode == CUDNN_HEUR_MODE_A && i < sizeof(exact) / sizeof(exact[0]); i++) engines[n++] = exact[i];
    for (size_t i = 0; mode == CUDNN_HEUR_MODE_B && i < sizeof(b) / sizeof(b[0]); i++) engines[n++] = b[i];
    return n;
}

static int64_t notes_of(const descriptor *engine, cudnnBackendNumericalNote_t *notes)
{
    static const int also[] = {[CUDNN_ENGINE_VARIES] = CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC,
                               [CUDNN_ENGINE_ROUNDS] = CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS,
                               [CUDNN_ENGINE_REDUCES] = CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION,
                               [CUDNN_ENGINE_FAST] = 0};
    const descriptor *convolution = cudnn_convolution_of(engine->graph);
    int64_t n = 0;

    if (convolution == NULL || !cudnn_is_f32(convolution) || engine->engine == CUDNN_ENGINE_TF32)
        notes[n++] = CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
    if (also[engine->engine] != 0) notes[n++] = (cudnnBackendNumericalNote_t)also[engine->engine];
    return n;
}

static int64_t workspace_of(const descriptor *plan)
{
    cudnn_double_control *c = cudnn_double();

    if (cudnn_part(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)->engine == CUDNN_ENGINE_HUGE) return (int64_t)1 << 40;
    return c->too_big > 0 && c->too_big-- > 0 ? (int64_t)3 << 30 : (int64_t)c->graph_workspace;
}

/* What a configuration says of its knobs. */
static int64_t knobs_of(const descriptor *config, descriptor *const *choices)
{
    for (int64_t i = 0; i < 2; i++) {
        choices[i]->engine = config->engine;
        choices[i]->knob = i;
    }
    return 2;
}

/* Whether the attribute is one of a descriptor of this kind, and of this type, with room for it. */
typedef struct given {
    cudnnBackendDescriptorType_t of;
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t least;
} given;
static bool can_give(const descriptor *d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                     int64_t room)
{
    static const given all[] = {
        {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 8},
        {CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1},
        {CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, 2},
        {CUDNN_BACKEND_ENGINE_DESCRIPTOR, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, 2},
        {CUDNN_BACKEND_ENGINE_DESCRIPTOR, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1},
        {CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1},
        {CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1},
        {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1}};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (all[i].name == name) return all[i].of == d->type && all[i].type == type && room >= all[i].least;
    return false;
}

static cudnnStatus_t give_proposals(const descriptor *d, int64_t *count, descriptor *const *configs)
{
    const int mode = *(const int *)cudnn_values(d, CUDNN_ATTR_ENGINEHEUR_MODE);
    const descriptor *graph = cudnn_part(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
    int64_t engines[8];

    if (mode == CUDNN_HEUR_MODE_A && cudnn_double()->fails_mode_a) return CUDNN_STATUS_EXECUTION_FAILED;
    *count = propose(graph, mode, engines);
    for (int64_t i = 0; i < *count; i++) {
        configs[i]->graph = graph;
        configs[i]->engine = engines[i];
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const p, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t room, int64_t *count, void *values)
{
    const descriptor *d = p;
    descriptor *const *parts = values;

    if (!can_give(d, name, type, room)) return cudnn_double_misuse("an attribute that the double cannot give");
    *count = 1;
    switch ((int)name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS: return give_proposals(d, count, parts);
    case CUDNN_ATTR_ENGINECFG_ENGINE:
        parts[0]->engine = d->engine;
        parts[0]->graph = d->graph;
        break;
    case CUDNN_ATTR_ENGINECFG_KNOB_CHOICES: *count = knobs_of(d, parts); break;
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE: *count = notes_of(d, values); break;
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX: *(int64_t *)values = 10 + d->engine; break;
    case CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE:
        *(cudnnBackendKnobType_t *)values = (cudnnBackendKnobType_t)(7 + d->knob);
        break;
    case CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE: *(int64_t *)values = d->engine + d->knob; break;
    default: *(int64_t *)values = workspace_of(d);
    }
    return CUDNN_STATUS_SUCCESS;
}
