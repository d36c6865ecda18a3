/* model_@FILE@.c -- model "@NAME@": a network for images, with one hidden layer.
 *
 * The PyTorch module that it equals, with the same names in its state_dict:
 *
 *     class Model(nn.Module):
 *         def __init__(self, features, hidden=64, classes=10):
 *             super().__init__()
 *             self.fc1 = nn.Linear(features, hidden)
 *             self.fc2 = nn.Linear(hidden, classes)
 *         def forward(self, image):
 *             return self.fc2(F.relu(self.fc1(image.flatten(1))))
 *
 * `build` describes the graph; the engine derives gradients, memory and kernels from it. Layers are in
 * <ddpengine/layers.h> and <ddpengine/graph.h>. */
#include <ddpengine/model.h>

/* ---- options: the section [model.@NAME@] of the INI file, which the engine parses -------------------------------- */
struct config {
    int64_t hidden, classes;
};

static const ddp_option options[] = {
    {"hidden", "64", "1..65536", "Features of the hidden layer.", DDP_OPT_INT, 0, offsetof(struct config, hidden)},
    {"classes", "10", "1..1000000", "Number of classes of the labels.", DDP_OPT_INT, 0,
     offsetof(struct config, classes)},
};

/* ---- the graph --------------------------------------------------------------------------------------------------- */
static ddp_status build(ddp_graph *g, const void *config, ddp_err *err)
{
    const struct config *c = config;
    ddp_tensor label = ddp_input(g, "label");             /* (N), i64 */
    ddp_tensor x = ddp_flatten(g, ddp_input(g, "image")); /* (N, features) */

    x = ddp_relu(g, ddp_linear(g, x, c->hidden, 1, "fc1")); /* (N, hidden); 1: with a bias */
    x = ddp_linear(g, x, c->classes, 1, "fc2");             /* (N, classes) */
    ddp_loss(g, ddp_cross_entropy(g, x, label));
    ddp_metric(g, "accuracy", ddp_accuracy(g, x, label));
    return ddp_graph_status(g, err); /* the first mistake of all the calls above, if any */
}

static const ddp_model_ops ops = {.struct_size = sizeof(ops), .build = build};

DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(MODEL, 0),
    DDP_PLUGIN_TAIL("@NAME@", "1.0", "one hidden layer, for images", DDP_OPTIONS(options, struct config), ops),
};
