/* ddpengine/layers.h -- torch.nn's modules for model plugins: each declares its parameters under PyTorch's names,
 * drawn as its constructor draws them, and applies its op. The name is a printf format. */
#ifndef DDPENGINE_LAYERS_H
#define DDPENGINE_LAYERS_H

#include <ddpengine/graph.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Item i of an option `place`, a list of LAYER:DEVICE as in "net1:0, net2:1", for ddp_place; 0 where it is not of
 * that form. */
static inline int ddp_place_item(const ddp_list *list, size_t i, char *layer, size_t capacity, uint32_t *device)
{
    const char *text = ((const char *const *)list->items)[i], *colon = strrchr(text, ':');
    size_t length = colon != NULL ? (size_t)(colon - text) : 0;
    uint32_t n = 0;

    if (length == 0 || length >= capacity || colon[1] == '\0' || strlen(colon + 1) > 4) return 0;
    for (colon++; *colon != '\0'; colon++) {
        if (*colon < '0' || *colon > '9') return 0;
        n = n * 10 + (uint32_t)(*colon - '0');
    }
    memcpy(layer, text, length);
    layer[length] = '\0';
    *device = n;
    return 1;
}

/* A parameter "NAME.suffix" of this shape. */
static inline ddp_tensor ddp_param_(ddp_graph *g, const char *name, const char *suffix, uint32_t rank,
                                    const int64_t *dims, uint32_t kind, double a, double b)
{
    char full[DDP_NAME_MAX + 16];
    ddp_init_spec init;

    memset(&init, 0, sizeof(init));
    init.kind = kind;
    init.a = a;
    init.b = b;
    (void)snprintf(full, sizeof(full), "%s.%s", name, suffix);
    return g->api->param(g, full, rank, dims, &init);
}

/* Draws the parameter again: torch.nn.init.normal_, uniform_, constant_. */
static inline void ddp_init_again(ddp_graph *g, ddp_tensor param, uint32_t kind, double a, double b)
{
    ddp_init_spec init;

    memset(&init, 0, sizeof(init));
    init.kind = kind;
    init.a = a;
    init.b = b;
    g->api->init(g, param, &init);
}

/* torch.nn.init.kaiming_uniform_(a = sqrt(5)) step by step, so that the double is the same. */
static inline double ddp_kaiming_bound_(double fan_in)
{
    return sqrt(3.0) * (sqrt(2.0 / (1.0 + sqrt(5.0) * sqrt(5.0))) / sqrt(fan_in));
}

/* torch.nn.Linear: parameters "NAME.weight" (out, in) and "NAME.bias" (out), both kaiming-uniform with a = sqrt(5).
 * x (*, in) -> (*, out). `drawn`, unless NULL, gets weight and bias, to tie them or draw them again; id -1: no bias. */
static inline ddp_tensor ddp_linear_drawn(ddp_graph *g, ddp_tensor x, int64_t out, int bias, ddp_tensor drawn[2],
                                          const char *name)
{
    int64_t dims[DDP_MAX_DIMS], shape[2];
    uint32_t rank = ddp_dims(g, x, dims);
    double in_features = rank > 0 ? (double)dims[rank - 1] : 1.0, bound = ddp_kaiming_bound_(in_features);
    ddp_tensor in[3];

    shape[0] = out;
    shape[1] = rank > 0 ? dims[rank - 1] : 1;
    in[0] = x;
    in[1] = ddp_param_(g, name, "weight", 2, shape, DDP_INIT_UNIFORM, -bound, bound);
    in[2].id = -1;
    bound = 1.0 / sqrt(in_features);
    if (bias) in[2] = ddp_param_(g, name, "bias", 1, shape, DDP_INIT_UNIFORM, -bound, bound);
    if (drawn != NULL) drawn[0] = in[1];
    if (drawn != NULL) drawn[1] = in[2];
    return g->api->op(g, DDP_OP_LINEAR, NULL, bias ? 3 : 2, in, name);
}

/* The same; `weight`, unless NULL, gets the weight alone. */
static inline ddp_tensor ddp_linear_weight(ddp_graph *g, ddp_tensor x, int64_t out, int bias, ddp_tensor *weight,
                                           const char *name)
{
    ddp_tensor drawn[2];

    x = ddp_linear_drawn(g, x, out, bias, drawn, name);
    if (weight != NULL) *weight = drawn[0];
    return x;
}

/* The same with a name that is a format. */
static inline ddp_tensor ddp_linear(ddp_graph *g, ddp_tensor x, int64_t out, int bias, const char *fmt, ...)
    DDP_PRINTF_(5, 6);
static inline ddp_tensor ddp_linear(ddp_graph *g, ddp_tensor x, int64_t out, int bias, const char *fmt, ...)
{
    char name[DDP_NAME_MAX - 8];

    DDP_FORMAT_NAME_(name, fmt);
    return ddp_linear_weight(g, x, out, bias, NULL, name);
}

/* x (*, I), weight (O, I) of another layer: torch.nn.functional.linear, as a tied output layer uses it. */
static inline ddp_tensor ddp_linear_tied(ddp_graph *g, ddp_tensor x, ddp_tensor weight, const char *name)
{
    ddp_tensor in[2];

    in[0] = x;
    in[1] = weight;
    return g->api->op(g, DDP_OP_LINEAR, NULL, 2, in, name);
}

/* Hugging Face's Conv1D, a linear layer whose "NAME.weight" is (in, out): normal(0, std); "NAME.bias" zero.
 * `weight`, unless NULL, gets the weight, to draw it again. */
static inline ddp_tensor ddp_conv1d(ddp_graph *g, ddp_tensor x, int64_t out, double std, ddp_tensor *weight,
                                    const char *fmt, ...) DDP_PRINTF_(6, 7);
static inline ddp_tensor ddp_conv1d(ddp_graph *g, ddp_tensor x, int64_t out, double std, ddp_tensor *weight,
                                    const char *fmt, ...)
{
    char name[DDP_NAME_MAX - 8];
    int64_t dims[DDP_MAX_DIMS], shape[2];
    uint32_t rank = ddp_dims(g, x, dims);
    ddp_attrs attrs;
    ddp_tensor in[3];

    DDP_FORMAT_NAME_(name, fmt);
    memset(&attrs, 0, sizeof(attrs));
    attrs.linear.transposed = 1;
    shape[0] = rank > 0 ? dims[rank - 1] : 1;
    shape[1] = out;
    in[0] = x;
    in[1] = ddp_param_(g, name, "weight", 2, shape, DDP_INIT_NORMAL, 0.0, std);
    in[2] = ddp_param_(g, name, "bias", 1, shape + 1, DDP_INIT_CONSTANT, 0.0, 0.0);
    if (weight != NULL) *weight = in[1];
    return g->api->op(g, DDP_OP_LINEAR, &attrs, 3, in, name);
}

/* torch.nn.Conv2d: "NAME.weight" (out, C / groups, height, width of the kernel), "NAME.bias" (out), both
 * kaiming-uniform with a = sqrt(5). `weight`, unless NULL, gets the weight, to draw it again. */
typedef struct ddp_conv2d_spec {
    int64_t out, kernel[2], stride[2], padding[2], groups; /* height, width; stride and groups 0: 1 */
    int bias;
} ddp_conv2d_spec;
static inline ddp_tensor ddp_conv2d_weight(ddp_graph *g, ddp_tensor x, const ddp_conv2d_spec *c, ddp_tensor *weight,
                                           const char *name)
{
    int64_t dims[DDP_MAX_DIMS], shape[4], groups = c->groups > 0 ? c->groups : 1;
    uint32_t rank = ddp_dims(g, x, dims);
    double fan_in, bound;
    ddp_attrs attrs;
    ddp_tensor in[3];
    int i;

    memset(&attrs, 0, sizeof(attrs));
    attrs.conv.groups = groups;
    for (i = 0; i < 2; i++) {
        attrs.conv.stride[i] = c->stride[i] > 0 ? c->stride[i] : 1;
        attrs.conv.padding[i] = c->padding[i];
        shape[2 + i] = c->kernel[i];
    }
    shape[0] = c->out;
    shape[1] = rank == 4 ? dims[1] / groups : 1;
    fan_in = (double)(shape[1] * c->kernel[0] * c->kernel[1]);
    bound = ddp_kaiming_bound_(fan_in);
    in[0] = x;
    in[1] = ddp_param_(g, name, "weight", 4, shape, DDP_INIT_UNIFORM, -bound, bound);
    in[2].id = -1;
    bound = 1.0 / sqrt(fan_in);
    if (c->bias) in[2] = ddp_param_(g, name, "bias", 1, shape, DDP_INIT_UNIFORM, -bound, bound);
    if (weight != NULL) *weight = in[1];
    return g->api->op(g, DDP_OP_CONV2D, &attrs, c->bias ? 3 : 2, in, name);
}

/* The same with square kernels. */
typedef struct ddp_conv_spec {
    int64_t out, kernel, stride, padding, groups; /* stride and groups 0: 1 */
    int bias;
} ddp_conv_spec;
static inline ddp_tensor ddp_conv2d(ddp_graph *g, ddp_tensor x, const ddp_conv_spec *c, ddp_tensor *weight,
                                    const char *fmt, ...) DDP_PRINTF_(5, 6);
static inline ddp_tensor ddp_conv2d(ddp_graph *g, ddp_tensor x, const ddp_conv_spec *c, ddp_tensor *weight,
                                    const char *fmt, ...)
{
    char name[DDP_NAME_MAX - 8];
    ddp_conv2d_spec spec;
    int i;

    DDP_FORMAT_NAME_(name, fmt);
    memset(&spec, 0, sizeof(spec));
    spec.out = c->out;
    spec.groups = c->groups;
    spec.bias = c->bias;
    for (i = 0; i < 2; i++) {
        spec.kernel[i] = c->kernel;
        spec.stride[i] = c->stride;
        spec.padding[i] = c->padding;
    }
    return ddp_conv2d_weight(g, x, &spec, weight, name);
}

/* torch.nn.BatchNorm2d(C, eps, momentum): "NAME.weight" 1, "NAME.bias" 0, buffers running_mean 0, running_var 1,
 * num_batches_tracked. `weight`, unless NULL, gets the weight. A name has at most 160 bytes. */
static inline ddp_tensor ddp_batch_norm2d_with(ddp_graph *g, ddp_tensor x, double eps, double momentum,
                                               ddp_tensor *weight, const char *name)
{
    char full[DDP_NAME_MAX];
    int64_t dims[DDP_MAX_DIMS];
    uint32_t rank = ddp_dims(g, x, dims);
    const int64_t *channels = dims + 1;
    ddp_attrs attrs;
    ddp_tensor in[5];

    if (rank != 4) dims[1] = 1; /* the op complains */
    memset(&attrs, 0, sizeof(attrs));
    attrs.batch_norm.eps = eps;
    attrs.batch_norm.momentum = momentum;
    in[0] = x;
    in[1] = ddp_param_(g, name, "weight", 1, channels, DDP_INIT_CONSTANT, 1.0, 0.0);
    in[2] = ddp_param_(g, name, "bias", 1, channels, DDP_INIT_CONSTANT, 0.0, 0.0);
    (void)snprintf(full, sizeof(full), "%s.running_mean", name);
    in[3] = g->api->buffer(g, full, DDP_F32, 1, channels, 0.0);
    (void)snprintf(full, sizeof(full), "%s.running_var", name);
    in[4] = g->api->buffer(g, full, DDP_F32, 1, channels, 1.0);
    (void)snprintf(full, sizeof(full), "%s.num_batches_tracked", name);
    (void)g->api->buffer(g, full, DDP_I64, 0, NULL, 0.0);
    if (weight != NULL) *weight = in[1];
    return g->api->op(g, DDP_OP_BATCH_NORM, &attrs, 5, in, name);
}

/* The same with PyTorch's eps of 1e-5 and momentum of 0.1. */
static inline ddp_tensor ddp_batch_norm2d(ddp_graph *g, ddp_tensor x, ddp_tensor *weight, const char *fmt, ...)
    DDP_PRINTF_(4, 5);
static inline ddp_tensor ddp_batch_norm2d(ddp_graph *g, ddp_tensor x, ddp_tensor *weight, const char *fmt, ...)
{
    char name[DDP_NAME_MAX - 32];

    DDP_FORMAT_NAME_(name, fmt);
    return ddp_batch_norm2d_with(g, x, 1e-5, 0.1, weight, name);
}

/* torch.nn.LayerNorm over the last dimension: "NAME.weight" 1, "NAME.bias" 0. */
static inline ddp_tensor ddp_layer_norm_with(ddp_graph *g, ddp_tensor x, double eps, const char *name)
{
    int64_t dims[DDP_MAX_DIMS], features;
    uint32_t rank = ddp_dims(g, x, dims);
    ddp_attrs attrs;
    ddp_tensor in[3];

    features = rank > 1 ? dims[rank - 1] : 1;
    memset(&attrs, 0, sizeof(attrs));
    attrs.layer_norm.eps = eps;
    in[0] = x;
    in[1] = ddp_param_(g, name, "weight", 1, &features, DDP_INIT_CONSTANT, 1.0, 0.0);
    in[2] = ddp_param_(g, name, "bias", 1, &features, DDP_INIT_CONSTANT, 0.0, 0.0);
    return g->api->op(g, DDP_OP_LAYER_NORM, &attrs, 3, in, name);
}

/* The same with PyTorch's eps of 1e-5. */
static inline ddp_tensor ddp_layer_norm(ddp_graph *g, ddp_tensor x, const char *fmt, ...) DDP_PRINTF_(3, 4);
static inline ddp_tensor ddp_layer_norm(ddp_graph *g, ddp_tensor x, const char *fmt, ...)
{
    char name[DDP_NAME_MAX - 8];

    DDP_FORMAT_NAME_(name, fmt);
    return ddp_layer_norm_with(g, x, 1e-5, name);
}

/* torch.nn.RMSNorm over the last dimension: "NAME.weight" 1. */
static inline ddp_tensor ddp_rms_norm(ddp_graph *g, ddp_tensor x, double eps, const char *fmt, ...) DDP_PRINTF_(4, 5);
static inline ddp_tensor ddp_rms_norm(ddp_graph *g, ddp_tensor x, double eps, const char *fmt, ...)
{
    char name[DDP_NAME_MAX - 8];
    int64_t dims[DDP_MAX_DIMS], features;
    uint32_t rank = ddp_dims(g, x, dims);
    ddp_attrs attrs;
    ddp_tensor in[2];

    DDP_FORMAT_NAME_(name, fmt);
    features = rank > 1 ? dims[rank - 1] : 1;
    memset(&attrs, 0, sizeof(attrs));
    attrs.rms_norm.eps = eps;
    in[0] = x;
    in[1] = ddp_param_(g, name, "weight", 1, &features, DDP_INIT_CONSTANT, 1.0, 0.0);
    return g->api->op(g, DDP_OP_RMS_NORM, &attrs, 2, in, name);
}

/* torch.nn.Embedding: "NAME.weight" (count, features), normal(0, std); index (*) i64 -> (*, features). `weight`,
 * unless NULL, gets the weight, to tie it. */
static inline ddp_tensor ddp_embedding(ddp_graph *g, ddp_tensor index, int64_t count, int64_t features, double std,
                                       ddp_tensor *weight, const char *fmt, ...) DDP_PRINTF_(7, 8);
static inline ddp_tensor ddp_embedding(ddp_graph *g, ddp_tensor index, int64_t count, int64_t features, double std,
                                       ddp_tensor *weight, const char *fmt, ...)
{
    char name[DDP_NAME_MAX - 8];
    int64_t shape[2];
    ddp_tensor in[2];

    DDP_FORMAT_NAME_(name, fmt);
    shape[0] = count;
    shape[1] = features;
    in[0] = index;
    in[1] = ddp_param_(g, name, "weight", 2, shape, DDP_INIT_NORMAL, 0.0, std);
    if (weight != NULL) *weight = in[1];
    return g->api->op(g, DDP_OP_EMBEDDING, NULL, 2, in, name);
}

/* x (N, T, E) plus the first T rows of "NAME.weight" (count, E), a torch.nn.Embedding of the positions. `weight`,
 * unless NULL, gets the weight. */
static inline ddp_tensor ddp_position_embedding(ddp_graph *g, ddp_tensor x, int64_t count, double std,
                                                ddp_tensor *weight, const char *fmt, ...) DDP_PRINTF_(6, 7);
static inline ddp_tensor ddp_position_embedding(ddp_graph *g, ddp_tensor x, int64_t count, double std,
                                                ddp_tensor *weight, const char *fmt, ...)
{
    char name[DDP_NAME_MAX - 8];
    int64_t dims[DDP_MAX_DIMS], shape[2];
    uint32_t rank = ddp_dims(g, x, dims);
    ddp_tensor in[2];

    DDP_FORMAT_NAME_(name, fmt);
    shape[0] = count;
    shape[1] = rank == 3 ? dims[2] : 1;
    in[0] = x;
    in[1] = ddp_param_(g, name, "weight", 2, shape, DDP_INIT_NORMAL, 0.0, std);
    if (weight != NULL) *weight = in[1];
    return g->api->op(g, DDP_OP_POSITION, NULL, 2, in, name);
}

#ifdef __cplusplus
}
#endif
#endif
