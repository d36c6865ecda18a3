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
    ddp_list place;
};

static const ddp_option options[] = {
    {.key = "net",
     .dflt = "linear",
     .range = "linear|relu",
     .doc = "Layers. linear: Linear(10, 5), Linear(5, 2); relu: Linear(10, 10), ReLU, Linear(10, 5).",
     .type = DDP_OPT_ENUM,
     .offset = offsetof(struct config, net)},
    {.key = "loss",
     .dflt = "mse",
     .range = "mse|cross_entropy",
     .doc = "Loss; mse compares with the field \"target\", cross_entropy with the field \"label\".",
     .type = DDP_OPT_ENUM,
     .offset = offsetof(struct config, loss)},
    {.key = "place",
     .dflt = "",
     .doc = "With [train] parallel = model or pipeline: the device or stage of each layer, as LAYER:INDEX. "
            "The index is into [train] device, or a stage's number: net1:0, net2:1.",
     .type = DDP_OPT_STRING,
     .flags = DDP_OPT_F_LIST,
     .offset = offsetof(struct config, place)},
};

static const char *const layer_names[][2] = {[NET_LINEAR] = {"fc1", "fc2"}, [NET_RELU] = {"net1", "net2"}};

/* What comes next is the layer. */
static void place(ddp_graph *g, const struct config *c, const char *layer)
{
    char name[64];
    uint32_t device;

    for (size_t i = 0; i < c->place.count; i++)
        if (ddp_place_item(&c->place, i, name, sizeof(name), &device) && strcmp(name, layer) == 0) ddp_place(g, device);
}

static void check_place(ddp_graph *g, const struct config *c)
{
    const char *const *names = layer_names[c->net];
    char name[64], message[160];
    uint32_t device;

    for (size_t i = 0; i < c->place.count; i++) {
        if (ddp_place_item(&c->place, i, name, sizeof(name), &device) &&
            (strcmp(name, names[0]) == 0 || strcmp(name, names[1]) == 0))
            continue;
        (void)snprintf(message, sizeof(message),
                       "place: \"%.64s\" is no layer with a device; its layers are %s and %s, as in %s:0, %s:1",
                       ((const char *const *)c->place.items)[i], names[0], names[1], names[0], names[1]);
        ddp_graph_fail(g, message);
    }
}

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
    check_place(g, c);
    place(g, c, layer_names[c->net][0]);
    if (c->net == NET_LINEAR) {
        x = ddp_linear(g, x, 5, 1, "fc1");
        place(g, c, "fc2");
        x = ddp_linear(g, x, 2, 1, "fc2");
    } else {
        x = ddp_relu(g, ddp_linear(g, x, 10, 1, "net1"));
        place(g, c, "net2");
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
    DDP_PLUGIN_HEAD(MODEL, 0),
    DDP_PLUGIN_TAIL("toy", "0.1.0", "two linear layers on ten numbers, as in PyTorch's DDP tutorials",
                    DDP_OPTIONS(options, struct config), ops),
};
