/* models/mlp.c -- a multi-layer perceptron for classification: fc1, activation, fc2, activation, .., the last fcN
 * without. Flattens its input field; labels are the field "label". In PyTorch: nn.Linear layers named fc1, fc2, .. */
#include <ddpengine/model.h>

enum { ACTIVATION_RELU, ACTIVATION_GELU, ACTIVATION_GELU_TANH };

struct config {
    ddp_list hidden; /* of int64_t */
    int64_t classes;
    int32_t activation, bias;
    const char *input;
};

static const ddp_option options[] = {
    {.key = "hidden",
     .dflt = "512, 512",
     .range = "1..1048576",
     .doc = "Width of each hidden layer; empty: a single linear layer from the input to the classes.",
     .type = DDP_OPT_INT,
     .flags = DDP_OPT_F_LIST,
     .offset = offsetof(struct config, hidden)},
    {.key = "classes",
     .dflt = "10",
     .range = "1..1048576",
     .doc = "Number of classes, the width of the last layer; labels are 0 to classes - 1.",
     .type = DDP_OPT_INT,
     .offset = offsetof(struct config, classes)},
    {.key = "activation",
     .dflt = "relu",
     .range = "relu|gelu|gelu_tanh",
     .doc = "Activation after each hidden layer; gelu is torch.nn.GELU(), gelu_tanh the same with approximate='tanh'.",
     .type = DDP_OPT_ENUM,
     .offset = offsetof(struct config, activation)},
    {.key = "bias",
     .dflt = "yes",
     .doc = "Whether the linear layers have a bias.",
     .type = DDP_OPT_BOOL,
     .offset = offsetof(struct config, bias)},
    {.key = "input",
     .dflt = "image",
     .doc = "Field of the dataset that the model reads, of any shape.",
     .type = DDP_OPT_STRING,
     .offset = offsetof(struct config, input)},
};

static ddp_tensor activate(ddp_graph *g, ddp_tensor x, int32_t activation)
{
    if (activation == ACTIVATION_RELU) return ddp_relu(g, x);
    return ddp_gelu(g, x, activation == ACTIVATION_GELU_TANH);
}

static ddp_status mlp_build(ddp_graph *g, const void *config, ddp_err *err)
{
    const struct config *c = config;
    const int64_t *hidden = c->hidden.items;
    ddp_tensor x = ddp_flatten(g, ddp_input(g, c->input)), label = ddp_input(g, "label"); /* (N, features), (N) */
    int layer = 1;

    for (size_t i = 0; i < c->hidden.count; i++)
        x = activate(g, ddp_linear(g, x, hidden[i], c->bias, "fc%d", layer++), c->activation);
    x = ddp_linear(g, x, c->classes, c->bias, "fc%d", layer); /* (N, classes) */
    ddp_loss(g, ddp_cross_entropy(g, x, label));
    ddp_metric(g, "accuracy", ddp_accuracy(g, x, label));
    ddp_output(g, "logits", x);
    return ddp_graph_status(g, err);
}

static const ddp_model_ops ops = {.struct_size = sizeof(ops), .build = mlp_build};

DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(MODEL, 0),
    DDP_PLUGIN_TAIL("mlp", "0.1.0", "multi-layer perceptron for classification", DDP_OPTIONS(options, struct config),
                    ops),
};
