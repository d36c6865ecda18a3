/* tests/integration/support/buffered_model.c -- a model for test_state.py: a linear layer and buffers of every kind
 * that the engine knows, with `norm = yes` those of a batch_norm2d that the loss reads. */
#include <ddpengine/model.h>

struct config {
    int64_t classes, hidden;
    int32_t norm, place;
    double dropout;
    const char *first;
};

static const ddp_option options[] = {
    {.key = "classes", .dflt = "4", .doc = "Classes.", .type = DDP_OPT_INT, .offset = offsetof(struct config, classes)},
    {.key = "hidden", .dflt = "17", .doc = "Channels.", .type = DDP_OPT_INT, .offset = offsetof(struct config, hidden)},
    {.key = "norm", .dflt = "no", .doc = "With a norm.", .type = DDP_OPT_BOOL, .offset = offsetof(struct config, norm)},
    {.key = "place",
     .dflt = "no",
     .doc = "What follows fc1 is of stage 1.",
     .type = DDP_OPT_BOOL,
     .offset = offsetof(struct config, place)},
    {.key = "dropout", .dflt = "0", .doc = "Its p.", .type = DDP_OPT_FLOAT, .offset = offsetof(struct config, dropout)},
    {.key = "first",
     .dflt = "fc1",
     .doc = "Its name.",
     .type = DDP_OPT_STRING,
     .offset = offsetof(struct config, first)},
};

static ddp_status build(ddp_graph *g, const void *config, ddp_err *err)
{
    const struct config *c = config;
    const int64_t image[] = {DDP_N, c->hidden, 1, 1}, shape[] = {2, 3};
    ddp_tensor x = ddp_flatten(g, ddp_input(g, "input")), label = ddp_input(g, "label");

    if (c->place) ddp_place(g, 0);
    x = ddp_linear(g, x, c->hidden, 1, "%s", c->first);
    if (c->place) ddp_place(g, 1);
    (void)g->api->buffer(g, "scale", DDP_F32, 2, shape, 0.25);
    (void)g->api->buffer(g, "calls", DDP_I64, 0, NULL, 0.0);
    if (c->norm) x = ddp_flatten(g, ddp_batch_norm2d(g, ddp_reshape(g, x, 4, image), NULL, "bn1"));
    x = ddp_dropout(g, ddp_relu(g, x), c->dropout);
    x = ddp_linear(g, x, c->classes, 1, "fc2");
    ddp_loss(g, ddp_cross_entropy(g, x, label));
    ddp_metric(g, "accuracy", ddp_accuracy(g, x, label));
    return ddp_graph_status(g, err);
}

static const ddp_model_ops ops = {.struct_size = sizeof(ops), .build = build};

DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(MODEL, 0),
    DDP_PLUGIN_TAIL("buffered", "0", "has buffers, for a test", DDP_OPTIONS(options, struct config), ops),
};
