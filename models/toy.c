/* models/toy.c -- two linear layers, small enough to follow by hand: the networks of PyTorch's DDP tutorials.
 *
 *   net = linear   fc1 = Linear(10, 5), fc2 = Linear(5, 2)
 *   net = relu     net1 = Linear(10, 10), ReLU, net2 = Linear(10, 5)
 *
 * Reads "input" (10) f32 and "target" f32 (mse) or "label" i64 (cross_entropy). */
#include <ddpengine/model.h>

enum { NET_LINEAR, NET_RELU };
enum { LOSS_MSE, LOSS_CROSS_ENTROPY };
enum { FEATURES = 10 };

struct config {
    int32_t net, loss;
};

static const ddp_option options[] = {
    {.key = "net",
     .dflt = "linear",
     .range = "linear|relu",
     .doc = "linear: Linear(10, 5), Linear(5, 2); relu: Linear(10, 10), ReLU, Linear(10, 5).",
     .type = DDP_OPT_ENUM,
     .offset = offsetof(struct config, net)},
    {.key = "loss",
     .dflt = "mse",
     .range = "mse|cross_entropy",
     .doc = "mse reads the field \"target\", cross_entropy the field \"label\".",
     .type = DDP_OPT_ENUM,
     .offset = offsetof(struct config, loss)},
};

/* The layers are those of the tutorials only for inputs of ten numbers. */
static void check_input(ddp_graph *g, ddp_tensor x)
{
    int64_t dims[DDP_MAX_DIMS];
    uint32_t rank = ddp_dims(g, x, dims);
    char message[128];

    if (rank == 2 && dims[1] == FEATURES) return;
    (void)snprintf(message, sizeof(message), "field \"input\" must have the shape (%d), that is %d numbers a sample",
                   FEATURES, FEATURES);
    ddp_graph_fail(g, message);
}

static ddp_status toy_build(ddp_graph *g, const void *config, ddp_err *err)
{
    const struct config *c = config;
    ddp_tensor x = ddp_input(g, "input"), label; /* (N, 10) */

    check_input(g, x);
    if (c->net == NET_LINEAR) {
        x = ddp_linear(g, x, 5, 1, "fc1");
        x = ddp_linear(g, x, 2, 1, "fc2");
    } else {
        x = ddp_relu(g, ddp_linear(g, x, 10, 1, "net1"));
        x = ddp_linear(g, x, 5, 1, "net2");
    }
    if (c->loss == LOSS_MSE) {
        ddp_loss(g, ddp_mse(g, x, ddp_input(g, "target")));
    } else {
        label = ddp_input(g, "label");
        ddp_loss(g, ddp_cross_entropy(g, x, label));
        ddp_metric(g, "accuracy", ddp_accuracy(g, x, label));
    }
    return ddp_graph_status(g, err);
}

static const ddp_model_ops ops = {.struct_size = sizeof(ops), .build = toy_build};

DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(DDP_KIND_MODEL, DDP_MODEL_ABI, 0),
    .name = "toy",
    .version = "0.1.0",
    .summary = "two linear layers on ten numbers, as in PyTorch's DDP tutorials",
    .options = options,
    .option_count = sizeof(options) / sizeof(options[0]),
    .option_size = sizeof(ddp_option),
    .config_size = sizeof(struct config),
    .ops = &ops,
};
