/* model_resmlp.c -- a model for ddpengine in one file: a residual MLP for classification, y = x + fc2(gelu(fc1(x))).
 *
 * The PyTorch module that it equals, with the same names in state_dict and the same first weights for the same seed:
 *
 *     class Block(nn.Module):
 *         def __init__(self, width, inner):
 *             super().__init__()
 *             self.fc1 = nn.Linear(width, inner)
 *             self.fc2 = nn.Linear(inner, width)
 *         def forward(self, x):
 *             return x + self.fc2(F.gelu(self.fc1(x)))
 *
 *     class ResMLP(nn.Module):
 *         def __init__(self, features, width=128, inner=256, blocks=2, classes=10):
 *             super().__init__()
 *             self.stem = nn.Linear(features, width)
 *             self.blocks = nn.ModuleList(Block(width, inner) for _ in range(blocks))
 *             self.head = nn.Linear(width, classes)
 *         def forward(self, image):
 *             x = self.stem(image.flatten(1))
 *             for block in self.blocks:
 *                 x = block(x)
 *             return self.head(x)
 *
 *   1. Options      the section [model.resmlp]
 *   2. Build        describes the graph; the engine derives gradients, memory and kernels from it
 *   3. Descriptor   [model] plugin = resmlp
 *
 *     make
 *     DDPENGINE_PLUGIN_PATH=$PWD ddpengine -c resmlp.ini --nproc 2 */
#include <ddpengine/model.h>

/* ---- 1. options -------------------------------------------------------------------------------------------------- */
struct resmlp_config {
    int64_t width, inner, blocks, classes;
};
#define OFFSET(field) offsetof(struct resmlp_config, field)

static const ddp_option options[] = {
    {"width", "128", "1..65536", "Features of the residual stream.", DDP_OPT_INT, 0, OFFSET(width)},
    {"inner", "256", "1..65536", "Features inside a block.", DDP_OPT_INT, 0, OFFSET(inner)},
    {"blocks", "2", "0..1000", "Number of residual blocks.", DDP_OPT_INT, 0, OFFSET(blocks)},
    {"classes", "10", "1..1000000", "Number of classes of the labels.", DDP_OPT_INT, 0, OFFSET(classes)},
};

/* ---- 2. build ---------------------------------------------------------------------------------------------------- */
static ddp_status build(ddp_graph *g, const void *config, ddp_err *err)
{
    const struct resmlp_config *c = config;
    ddp_tensor label = ddp_input(g, "label");             /* (N) */
    ddp_tensor x = ddp_flatten(g, ddp_input(g, "image")); /* (N, features) */
    int i;

    x = ddp_linear(g, x, c->width, 1, "stem"); /* (N, width) */
    for (i = 0; i < (int)c->blocks; i++) {
        ddp_tensor y;

        ddp_scope(g, "blocks.%d", i);                             /* parameters are "blocks.0.fc1.weight" .. */
        y = ddp_gelu(g, ddp_linear(g, x, c->inner, 1, "fc1"), 0); /* (N, inner) */
        y = ddp_linear(g, y, c->width, 1, "fc2");                 /* (N, width) */
        ddp_scope_end(g);
        x = ddp_add(g, x, y);
    }
    x = ddp_linear(g, x, c->classes, 1, "head"); /* (N, classes) */
    ddp_loss(g, ddp_cross_entropy(g, x, label));
    ddp_metric(g, "accuracy", ddp_accuracy(g, x, label));
    return ddp_graph_status(g, err); /* the first mistake of all the calls above, if any */
}

static const ddp_model_ops ops = {.struct_size = sizeof(ops), .build = build};

/* ---- 3. descriptor ----------------------------------------------------------------------------------------------- */
DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(MODEL, 0),
    /* the file is model_resmlp.so */
    DDP_PLUGIN_TAIL("resmlp", "1.0", "residual MLP with gelu, for classification",
                    DDP_OPTIONS(options, struct resmlp_config), ops),
};
