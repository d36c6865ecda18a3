/* plugins/model/layers/kinds.c -- every kind of section of a .net file: its keys, with ranges and defaults, and the
 * calls that add it to the graph. A new layer is a function and a row here, and a line in docs/nets.md. */
#include "build.h"

#define AT(field) offsetof(net_layer, field)
#define INT(key_, dflt_, field_, least_, most_)                                                                        \
    {                                                                                                                  \
        .key = (key_), .dflt = (dflt_), .type = KEY_INT, .offset = AT(field_), .least = (least_), .most = (most_)      \
    }
#define PAIR(key_, dflt_, field_, least_, most_)                                                                       \
    {                                                                                                                  \
        .key = (key_), .dflt = (dflt_), .type = KEY_PAIR, .offset = AT(field_), .least = (least_), .most = (most_)     \
    }
#define WIDTH(key_, dflt_, field_) INT(key_, dflt_, field_, 1.0, 16777216.0)
#define REAL(key_, dflt_, field_, least_, most_)                                                                       \
    {                                                                                                                  \
        .key = (key_), .dflt = (dflt_), .type = KEY_REAL, .offset = AT(field_), .least = (least_), .most = (most_)     \
    }
#define YES(key_, dflt_, field_)                                                                                       \
    {                                                                                                                  \
        .key = (key_), .dflt = (dflt_), .type = KEY_YES, .offset = AT(field_)                                          \
    }
#define NAME(key_, dflt_, field_)                                                                                      \
    {                                                                                                                  \
        .key = (key_), .dflt = (dflt_), .type = KEY_NAME, .offset = AT(field_)                                         \
    }
#define CHOICE(key_, dflt_, range_)                                                                                    \
    {                                                                                                                  \
        .key = (key_), .dflt = (dflt_), .type = KEY_CHOICE, .offset = AT(choice), .range = (range_)                    \
    }
#define TEXT(key_, field_)                                                                                             \
    {                                                                                                                  \
        .key = (key_), .dflt = "", .type = KEY_TEXT, .offset = AT(field_)                                              \
    }
#define INIT TEXT("init", init)
#define LAST                                                                                                           \
    {                                                                                                                  \
        .key = NULL                                                                                                    \
    }

const net_key net_common_keys[] = {NAME("name", "", name), NAME("from", "", from), LAST};

/* ---- layers with parameters -------------------------------------------------------------------------------------- */
static const net_key linear_keys[] = {WIDTH("out", "", out), YES("bias", "yes", bias), NAME("tied", "", tied), INIT,
                                      LAST};
static ddp_tensor linear_tied(net_builder *b, const net_layer *l, ddp_tensor x, const char *name)
{
    const net_point *p = build_find(b, "tied", l->tied);

    if (p == NULL) return x;
    if (p->weight.id < 0)
        build_fail(b, "tied = %s: this layer, in line %u, has no weight to tie", l->tied, p->line);
    else if (l->out > 0 || l->init[0] != '\0')
        build_fail(b, "tied = %s: its weight gives the width and the first values; take out and init away", l->tied);
    else
        return ddp_linear_tied(b->g, x, p->weight, name);
    return x;
}

static ddp_tensor linear(net_builder *b, const net_layer *l, ddp_tensor x, const char *name)
{
    if (l->tied[0] != '\0') return linear_tied(b, l, x, name);
    if (l->out == 0) {
        build_fail(b, "needs a key \"out\", or \"tied\" with the layer whose weight it shares");
        return x;
    }
    x = ddp_linear_weight(b->g, x, l->out, l->bias, &b->weight, name);
    build_init(b, l, (double)l->out);
    return x;
}

static const net_key conv1d_keys[] = {WIDTH("out", NULL, out), REAL("std", "0.02", std, 0.0, 1000.0), INIT, LAST};
static ddp_tensor hf_conv1d(net_builder *b, const net_layer *l, ddp_tensor x, const char *name)
{
    x = ddp_conv1d(b->g, x, l->out, l->std, &b->weight, "%s", name);
    build_init(b, l, 0);
    return x;
}

static const net_key conv2d_keys[] = {WIDTH("out", NULL, out),
                                      PAIR("kernel", NULL, kernel, 1.0, 1024.0),
                                      PAIR("stride", "1", stride, 1.0, 1024.0),
                                      PAIR("padding", "0", padding, 0.0, 1024.0),
                                      WIDTH("groups", "1", groups),
                                      YES("bias", "yes", bias),
                                      INIT,
                                      LAST};
static ddp_tensor conv2d(net_builder *b, const net_layer *l, ddp_tensor x, const char *name)
{
    const ddp_conv2d_spec spec = {.out = l->out,
                                  .kernel = {l->kernel[0], l->kernel[1]},
                                  .stride = {l->stride[0], l->stride[1]},
                                  .padding = {l->padding[0], l->padding[1]},
                                  .groups = l->groups,
                                  .bias = l->bias};
    int64_t dims[DDP_MAX_DIMS];

    if (ddp_dims(b->g, x, dims) == 4 && (dims[1] % l->groups != 0 || l->out % l->groups != 0)) {
        build_fail(b, "groups = %lld must divide the %lld channels that it reads and out = %lld", (long long)l->groups,
                   (long long)dims[1], (long long)l->out);
        return x;
    }
    x = ddp_conv2d_weight(b->g, x, &spec, &b->weight, name);
    build_init(b, l, (double)(l->out * l->kernel[0] * l->kernel[1]));
    return x;
}

static const net_key batch_norm_keys[] = {REAL("eps", "1e-5", eps, 0.0, 1.0),
                                          REAL("momentum", "0.1", momentum, 0.0, 1.0), LAST};
static ddp_tensor batch_norm2d(net_builder *b, const net_layer *l, ddp_tensor x, const char *name)
{
    return ddp_batch_norm2d_with(b->g, x, l->eps, l->momentum, NULL, name);
}

static const net_key layer_norm_keys[] = {REAL("eps", "1e-5", eps, 0.0, 1.0), LAST};
static ddp_tensor layer_norm(net_builder *b, const net_layer *l, ddp_tensor x, const char *name)
{
    return ddp_layer_norm_with(b->g, x, l->eps, name);
}

static const net_key rms_norm_keys[] = {REAL("eps", "1e-6", eps, 0.0, 1.0), LAST};
static ddp_tensor rms_norm(net_builder *b, const net_layer *l, ddp_tensor x, const char *name)
{
    return ddp_rms_norm(b->g, x, l->eps, "%s", name);
}

static const net_key embedding_keys[] = {WIDTH("count", NULL, count), WIDTH("features", NULL, features), INIT, LAST};
static ddp_tensor embedding(net_builder *b, const net_layer *l, ddp_tensor x, const char *name)
{
    x = ddp_embedding(b->g, x, l->count, l->features, 1.0, &b->weight, "%s", name);
    build_init(b, l, 0);
    return x;
}

static const net_key position_keys[] = {WIDTH("count", NULL, count), INIT, LAST};
static ddp_tensor position_embedding(net_builder *b, const net_layer *l, ddp_tensor x, const char *name)
{
    x = ddp_position_embedding(b->g, x, l->count, 1.0, &b->weight, "%s", name);
    build_init(b, l, 0);
    return x;
}

/* ---- layers without ---------------------------------------------------------------------------------------------- */
static ddp_tensor relu(net_builder *b, const net_layer *l, ddp_tensor x, const char *name)
{
    (void)l, (void)name;
    return ddp_relu(b->g, x);
}

static const net_key leaky_relu_keys[] = {REAL("negative_slope", "0.01", slope, 0.0, 1e30), LAST};
static ddp_tensor leaky_relu(net_builder *b, const net_layer *l, ddp_tensor x, const char *name)
{
    (void)name;
    return ddp_leaky_relu(b->g, x, l->slope);
}

static const net_key gelu_keys[] = {CHOICE("approximate", "none", "none|tanh"), LAST};
static ddp_tensor gelu(net_builder *b, const net_layer *l, ddp_tensor x, const char *name)
{
    (void)name;
    return ddp_gelu(b->g, x, l->choice);
}

static ddp_tensor silu(net_builder *b, const net_layer *l, ddp_tensor x, const char *name)
{
    (void)l, (void)name;
    return ddp_silu(b->g, x);
}

static const net_key pool_keys[] = {PAIR("kernel", NULL, kernel, 1.0, 65536.0),
                                    PAIR("stride", "", stride, 1.0, 65536.0),
                                    PAIR("padding", "0", padding, 0.0, 65536.0), LAST};
static ddp_tensor pool2d(net_builder *b, const net_layer *l, uint32_t op, ddp_tensor x)
{
    return ddp_pool2d(b->g, op, x, l->kernel, l->stride[0] > 0 ? l->stride : l->kernel, l->padding);
}
static ddp_tensor max_pool2d(net_builder *b, const net_layer *l, ddp_tensor x, const char *name)
{
    (void)name;
    return pool2d(b, l, DDP_OP_MAX_POOL2D, x);
}
static ddp_tensor avg_pool2d(net_builder *b, const net_layer *l, ddp_tensor x, const char *name)
{
    (void)name;
    return pool2d(b, l, DDP_OP_AVG_POOL2D, x);
}

static const net_key adaptive_keys[] = {PAIR("out", "1", size, 1.0, 65536.0), LAST};
static ddp_tensor adaptive_avg_pool2d(net_builder *b, const net_layer *l, ddp_tensor x, const char *name)
{
    (void)name;
    return ddp_adaptive_avg_pool2d(b->g, x, l->size[0], l->size[1]);
}

static const net_key dropout_keys[] = {REAL("p", "0.5", p, 0.0, 1.0), LAST};
static ddp_tensor dropout(net_builder *b, const net_layer *l, ddp_tensor x, const char *name)
{
    (void)name;
    return ddp_dropout(b->g, x, l->p);
}

static ddp_tensor flatten(net_builder *b, const net_layer *l, ddp_tensor x, const char *name)
{
    (void)l, (void)name;
    return ddp_flatten(b->g, x);
}

static ddp_tensor identity(net_builder *b, const net_layer *l, ddp_tensor x, const char *name)
{
    (void)b, (void)l, (void)name;
    return x;
}

static const net_key attention_keys[] = {INT("heads", NULL, heads, 1.0, 1024.0), YES("causal", "yes", causal),
                                         REAL("dropout", "0", p, 0.0, 1.0), LAST};
static ddp_tensor attention(net_builder *b, const net_layer *l, ddp_tensor x, const char *name)
{
    (void)name;
    return ddp_attention(b->g, x, (uint32_t)l->heads, l->causal, l->p);
}

/* `from` is its second operand, which is required; the first is the layer before. */
static ddp_tensor add(net_builder *b, const net_layer *l, ddp_tensor x, const char *name)
{
    (void)name;
    if (l->from[0] == '\0') {
        build_fail(b, "needs a key \"from\" with the name of the layer whose result it adds");
        return x;
    }
    return ddp_add(b->g, b->x, x);
}

static ddp_tensor mul(net_builder *b, const net_layer *l, ddp_tensor x, const char *name)
{
    (void)name;
    if (l->from[0] == '\0') {
        build_fail(b, "needs a key \"from\" with the name of the layer whose result it multiplies with");
        return x;
    }
    return ddp_mul(b->g, b->x, x);
}

/* ---- the others -------------------------------------------------------------------------------------------------- */
static const net_key input_keys[] = {NAME("field", NULL, field), LAST};
static const net_key repeat_keys[] = {INT("times", NULL, times, 1.0, BUILT_MAX), NAME("name", "", name), LAST};
static const net_key loss_keys[] = {CHOICE("type", NULL, "cross_entropy|mse|l1|smooth_l1|bce_with_logits"),
                                    NAME("field", "", field),
                                    REAL("label_smoothing", "0", label_smoothing, 0.0, 1.0),
                                    WIDTH("classes", "", classes),
                                    INT("ignore_index", "-100", ignore_index, -2147483648.0, 2147483647.0),
                                    TEXT("weight", weight),
                                    REAL("beta", "1", beta, 0.0, 1e30),
                                    LAST};
static const net_key metric_keys[] = {CHOICE("type", NULL, METRIC_TYPES), NAME("field", "", field), LAST};

const net_kind net_kinds[] = {
    {"input", NET_INPUT, input_keys, NULL},
    {"linear", NET_LAYER, linear_keys, linear},
    {"hf_conv1d", NET_LAYER, conv1d_keys, hf_conv1d},
    {"conv2d", NET_LAYER, conv2d_keys, conv2d},
    {"batch_norm2d", NET_LAYER, batch_norm_keys, batch_norm2d},
    {"layer_norm", NET_LAYER, layer_norm_keys, layer_norm},
    {"rms_norm", NET_LAYER, rms_norm_keys, rms_norm},
    {"relu", NET_LAYER, NULL, relu},
    {"silu", NET_LAYER, NULL, silu},
    {"leaky_relu", NET_LAYER, leaky_relu_keys, leaky_relu},
    {"gelu", NET_LAYER, gelu_keys, gelu},
    {"max_pool2d", NET_LAYER, pool_keys, max_pool2d},
    {"avg_pool2d", NET_LAYER, pool_keys, avg_pool2d},
    {"adaptive_avg_pool2d", NET_LAYER, adaptive_keys, adaptive_avg_pool2d},
    {"dropout", NET_LAYER, dropout_keys, dropout},
    {"flatten", NET_LAYER, NULL, flatten},
    {"identity", NET_LAYER, NULL, identity},
    {"embedding", NET_LAYER, embedding_keys, embedding},
    {"position_embedding", NET_LAYER, position_keys, position_embedding},
    {"attention", NET_LAYER, attention_keys, attention},
    {"add", NET_LAYER, NULL, add},
    {"mul", NET_LAYER, NULL, mul},
    {"repeat", NET_REPEAT, repeat_keys, NULL},
    {"end", NET_END, NULL, NULL},
    {"loss", NET_LOSS, loss_keys, NULL},
    {"metric", NET_METRIC, metric_keys, NULL},
    {NULL, 0, NULL, NULL},
};
