/* models/lenet.c -- small convolutional nets for images of any channels and size, as PyTorch's pages have them:
 *
 *   variant = lenet      LeNet-5 with ReLU and max pooling, of PyTorch's tutorials "Training with PyTorch" (28 x 28
 *                        images) and "Neural Networks" (32 x 32): conv1 6 of 5 x 5, pool, conv2 16 of 5 x 5, pool,
 *                        fc1 120, fc2 84, fc3
 *   variant = two_conv   the net of pytorch/examples/mnist: conv1 32 of 3 x 3, conv2 64 of 3 x 3, pool, dropout1,
 *                        fc1 128, dropout2, fc2
 *
 * Reads "image" (C, H, W) f32 and "label" i64. */
#include <ddpengine/model.h>

enum { VARIANT_LENET, VARIANT_TWO_CONV };

struct config {
    int32_t variant;
    int64_t classes;
    double dropout1, dropout2;
    const char *input;
};

static const ddp_option options[] = {
    {.key = "variant",
     .dflt = "lenet",
     .range = "lenet|two_conv",
     .doc = "lenet: LeNet-5 as in PyTorch's tutorials; two_conv: the network of pytorch/examples/mnist.",
     .type = DDP_OPT_ENUM,
     .offset = offsetof(struct config, variant)},
    {.key = "classes",
     .dflt = "10",
     .range = "1..1048576",
     .doc = "Number of classes, the width of the last layer; labels are 0 to classes - 1.",
     .type = DDP_OPT_INT,
     .offset = offsetof(struct config, classes)},
    {.key = "dropout1",
     .dflt = "0.25",
     .range = "0..1",
     .doc = "Dropout probability before fc1; used by two_conv.",
     .type = DDP_OPT_FLOAT,
     .offset = offsetof(struct config, dropout1)},
    {.key = "dropout2",
     .dflt = "0.5",
     .range = "0..1",
     .doc = "Dropout probability before the last layer; used by two_conv.",
     .type = DDP_OPT_FLOAT,
     .offset = offsetof(struct config, dropout2)},
    {.key = "input",
     .dflt = "image",
     .doc = "Field of the dataset that the model reads, of shape (channels, height, width).",
     .type = DDP_OPT_STRING,
     .offset = offsetof(struct config, input)},
};

static ddp_tensor conv(ddp_graph *g, ddp_tensor x, int64_t out, int64_t kernel, const char *name)
{
    const ddp_conv_spec spec = {.out = out, .kernel = kernel, .bias = 1};

    return ddp_relu(g, ddp_conv2d(g, x, &spec, NULL, "%s", name));
}

static ddp_tensor lenet(ddp_graph *g, const struct config *c, ddp_tensor x)
{
    x = ddp_max_pool2d(g, conv(g, x, 6, 5, "conv1"), 2, 2, 0);  /* (N, 6, 12, 12) of 28 x 28 */
    x = ddp_max_pool2d(g, conv(g, x, 16, 5, "conv2"), 2, 2, 0); /* (N, 16, 4, 4) */
    x = ddp_relu(g, ddp_linear(g, ddp_flatten(g, x), 120, 1, "fc1"));
    x = ddp_relu(g, ddp_linear(g, x, 84, 1, "fc2"));
    return ddp_linear(g, x, c->classes, 1, "fc3");
}

static ddp_tensor two_conv(ddp_graph *g, const struct config *c, ddp_tensor x)
{
    x = conv(g, conv(g, x, 32, 3, "conv1"), 64, 3, "conv2"); /* (N, 64, 24, 24) of 28 x 28 */
    x = ddp_dropout(g, ddp_max_pool2d(g, x, 2, 2, 0), c->dropout1);
    x = ddp_relu(g, ddp_linear(g, ddp_flatten(g, x), 128, 1, "fc1"));
    return ddp_linear(g, ddp_dropout(g, x, c->dropout2), c->classes, 1, "fc2");
}

static ddp_status lenet_build(ddp_graph *g, const void *config, ddp_err *err)
{
    const struct config *c = config;
    ddp_tensor x = ddp_input(g, c->input), label = ddp_input(g, "label"); /* (N, C, H, W), (N) */

    x = c->variant == VARIANT_LENET ? lenet(g, c, x) : two_conv(g, c, x); /* (N, classes) */
    ddp_loss(g, ddp_cross_entropy(g, x, label));
    ddp_metric(g, "accuracy", ddp_accuracy(g, x, label));
    ddp_output(g, "logits", x);
    return ddp_graph_status(g, err);
}

static const ddp_model_ops ops = {.struct_size = sizeof(ops), .build = lenet_build};

DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(MODEL, 0),
    DDP_PLUGIN_TAIL("lenet", "0.1.0", "LeNet-5 and the two-convolution net usual for MNIST",
                    DDP_OPTIONS(options, struct config), ops),
};
