/* plugins/model/layers/layers.c -- a model from a file: sections in order, each a layer, in place of a plugin in C. The
 * file is a user's or a stranger's: every mistake in it is an error with its line. docs/nets.md is its manual.
 *
 * Reads the field of the dataset that [input] names, else "image", and what [loss] compares with. */
#include "build.h"
#include <ddpengine/model.h>
#include <stdlib.h>

struct config {
    const char *net;
};

static const ddp_option options[] = {
    {.key = "net",
     .dflt = NULL,
     .doc = "File of the net: sections in order, each a layer; docs/nets.md describes it.",
     .type = DDP_OPT_PATH,
     .offset = offsetof(struct config, net)},
};

static ddp_status layers_build(ddp_graph *g, const void *config, ddp_err *err)
{
    const struct config *c = config;
    net_layer *layers = NULL;
    net_file file;
    ddp_status st;

    DDP_TRY(net_file_read(c->net, &file, err));
    st = net_layers_read(&file, &layers, err);
    if (st == DDP_OK) st = net_build_graph(g, &file, layers, err);
    free(layers);
    net_file_free(&file);
    return st;
}

static const ddp_model_ops ops = {.struct_size = sizeof(ops), .build = layers_build};

DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {
    DDP_PLUGIN_HEAD(MODEL, 0),
    DDP_PLUGIN_TAIL("layers", "0.1.0", "a net described in a file, layer by layer, without writing C",
                    DDP_OPTIONS(options, struct config), ops),
};
