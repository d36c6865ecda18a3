/* models/resnet.c -- ResNet-18 and -34 (He et al., "Deep Residual Learning for Image Recognition", 2015) with the
 * names, shapes and first values of torchvision.models.resnet18 and resnet34.
 *
 *   stem = imagenet   conv1 7 x 7 with stride 2 and max pooling: torchvision's
 *   stem = cifar      conv1 3 x 3 with stride 1, no pooling: for images of 32 x 32, as He et al. have it
 *   width             channels of the first layer, 64 in torchvision; the next have 2, 4 and 8 times as many
 *
 * Reads "image" (C, H, W) f32 and "label" i64. */
#include <ddpengine/model.h>

enum { DEPTH_18, DEPTH_34 };
enum { STEM_IMAGENET, STEM_CIFAR };
enum { LAYERS = 4, MAX_CONVS = 64 };

struct config {
    int32_t depth, stem;
    int64_t width, classes;
    double label_smoothing;
    const char *input;
};

static const ddp_option options[] = {
    {.key = "depth",
     .dflt = "18",
     .range = "18|34",
     .doc = "Number of layers: ResNet-18 or ResNet-34.",
     .type = DDP_OPT_ENUM,
     .offset = offsetof(struct config, depth)},
    {.key = "stem",
     .dflt = "imagenet",
     .range = "imagenet|cifar",
     .doc = "First convolution. imagenet: 7 x 7 with stride 2 and max pooling, as in torchvision; cifar: "
            "3 x 3 with stride 1, for small images.",
     .type = DDP_OPT_ENUM,
     .offset = offsetof(struct config, stem)},
    {.key = "width",
     .dflt = "64",
     .range = "1..4096",
     .doc = "Channels of the first convolution; the four stages have 1, 2, 4 and 8 times as many.",
     .type = DDP_OPT_INT,
     .offset = offsetof(struct config, width)},
    {.key = "classes",
     .dflt = "1000",
     .range = "1..1048576",
     .doc = "Number of classes, the width of the last layer; labels are 0 to classes - 1.",
     .type = DDP_OPT_INT,
     .offset = offsetof(struct config, classes)},
    {.key = "label_smoothing",
     .dflt = "0",
     .range = "0..1",
     .doc = "Part of the target that is spread over all classes, as label_smoothing of torch.nn.CrossEntropyLoss.",
     .type = DDP_OPT_FLOAT,
     .offset = offsetof(struct config, label_smoothing)},
    {.key = "input",
     .dflt = "image",
     .doc = "Field of the dataset that the model reads, of shape (channels, height, width).",
     .type = DDP_OPT_STRING,
     .offset = offsetof(struct config, input)},
};

/* torchvision's constructor draws every convolution as torch.nn.Conv2d does, and draws all of them again at its end. */
struct builder {
    ddp_graph *g;
    ddp_tensor weights[MAX_CONVS];
    double std[MAX_CONVS];
    int count;
};

/* conv without bias, then batch norm: "conv1" and "bn1", or "downsample.0" and "downsample.1" */
static ddp_tensor conv_norm(struct builder *b, ddp_tensor x, int64_t out, int64_t kernel, int64_t stride,
                            const char *conv, const char *norm)
{
    const ddp_conv_spec spec = {.out = out, .kernel = kernel, .stride = stride, .padding = kernel / 2};

    b->std[b->count] = sqrt(2.0) / sqrt((double)(out * kernel * kernel)); /* kaiming_normal_, fan_out, relu */
    x = ddp_conv2d(b->g, x, &spec, &b->weights[b->count], "%s", conv);
    b->count++;
    return ddp_batch_norm2d(b->g, x, NULL, "%s", norm);
}

/* BasicBlock: (N, in, H, W) -> (N, out, H / stride, W / stride) */
static ddp_tensor block(struct builder *b, ddp_tensor x, int64_t out, int64_t stride)
{
    int64_t dims[DDP_MAX_DIMS];
    ddp_tensor y = conv_norm(b, x, out, 3, stride, "conv1", "bn1"), same = x;

    y = conv_norm(b, ddp_relu(b->g, y), out, 3, 1, "conv2", "bn2");
    if (stride != 1 || (ddp_dims(b->g, x, dims) == 4 && dims[1] != out))
        same = conv_norm(b, x, out, 1, stride, "downsample.0", "downsample.1");
    return ddp_relu(b->g, ddp_add(b->g, y, same));
}

static ddp_tensor stem(struct builder *b, const struct config *c, ddp_tensor x)
{
    if (c->stem == STEM_CIFAR) return ddp_relu(b->g, conv_norm(b, x, c->width, 3, 1, "conv1", "bn1"));
    x = ddp_relu(b->g, conv_norm(b, x, c->width, 7, 2, "conv1", "bn1"));
    return ddp_max_pool2d(b->g, x, 3, 2, 1);
}

static ddp_status resnet_build(ddp_graph *g, const void *config, ddp_err *err)
{
    static const int blocks[][LAYERS] = {[DEPTH_18] = {2, 2, 2, 2}, [DEPTH_34] = {3, 4, 6, 3}};
    const struct config *c = config;
    struct builder b = {.g = g};
    ddp_tensor x = ddp_input(g, c->input), label = ddp_input(g, "label"); /* (N, C, H, W), (N) */

    x = stem(&b, c, x);
    for (int layer = 0; layer < LAYERS; layer++)
        for (int i = 0; i < blocks[c->depth][layer]; i++) {
            ddp_scope(g, "layer%d.%d", layer + 1, i);
            x = block(&b, x, c->width << layer, i == 0 && layer > 0 ? 2 : 1);
            ddp_scope_end(g);
        }
    x = ddp_flatten(g, ddp_adaptive_avg_pool2d(g, x, 1, 1)); /* (N, 8 width) */
    x = ddp_linear(g, x, c->classes, 1, "fc");               /* (N, classes) */
    for (int i = 0; i < b.count; i++) ddp_init_again(g, b.weights[i], DDP_INIT_NORMAL, 0.0, b.std[i]);
    ddp_loss(g, ddp_cross_entropy_smoothed(g, x, label, c->label_smoothing));
    ddp_metric(g, "accuracy", ddp_accuracy(g, x, label));
    ddp_output(g, "logits", x);
    return ddp_graph_status(g, err);
}

static const ddp_model_ops ops = {.struct_size = sizeof(ops), .build = resnet_build};

DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(MODEL, 0),
    DDP_PLUGIN_TAIL("resnet", "0.1.0", "ResNet-18 and ResNet-34, torchvision's or with the stem for small images",
                    DDP_OPTIONS(options, struct config), ops),
};
