/* plugins/model/layers/build.h -- from the layers of a .net file to the graph. The model's one call of build owns all
 * of it. */
#pragma once

#include "keys.h"

enum { BUILT_MAX = 4096 /* layers, those of a [repeat] counted each time */, BUILT_NAME_MAX = 128 };

/* A layer that has been built, for `from` and `tied`. */
typedef struct net_point {
    char name[BUILT_NAME_MAX + 1]; /* with the names of the [repeat]s around it: "h.0.ln_1" */
    uint32_t line;
    ddp_tensor out, weight; /* weight.id -1: it has none that could be tied */
} net_point;

/* A weight that is drawn again once all layers are there: normal(0, std). */
typedef struct net_draw {
    ddp_tensor weight;
    double std;
} net_draw;

typedef struct net_builder {
    ddp_graph *g;
    const char *path;
    const net_layer *layers;
    net_point *points;
    net_draw *draws;
    uint32_t point_count, point_capacity, draw_count, draw_capacity, built;
    uint32_t index;                  /* of the next layer in its torch.nn.Sequential */
    char prefix[BUILT_NAME_MAX + 1]; /* of the named [repeat]s that are open, "h.0." */
    ddp_tensor x;                    /* the result of the layer before */
    ddp_tensor weight;               /* of the layer that is being built */
    const char *label;               /* the field that the loss reads */
} net_builder;

ddp_status net_build_graph(ddp_graph *g, const net_file *f, const net_layer *layers, ddp_err *err);

/* For the functions of kinds.c: the graph keeps the complaint; net_build_graph() puts file, line and layer in front. */
void build_fail(net_builder *b, const char *fmt, ...) DDP_PRINTF_(2, 3);
/* The layer above of that name, looked for in the innermost named [repeat] first; NULL after a complaint. */
const net_point *build_find(net_builder *b, const char *key, const char *name);
/* The draws of l->init on b->weight; fan_out 0 where kaiming_normal has no meaning. */
void build_init(net_builder *b, const net_layer *l, double fan_out);
